//! Formats rows for people: as a table, or a single row as an aligned list.

use abide_schema::wire::Column;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Row, Table, presets};
use serde_json::{Map, Value as JsonValue};

use crate::cells;
use crate::printable::Printable;
use crate::terminal::Terminal;

/// The change of a watched row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowMark {
    /// The row is new.
    Came,
    /// The row has changed.
    Changed,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MarkedRow {
    pub(crate) cells: Vec<JsonValue>,
    /// Its change, if the row is watched and has just changed.
    pub(crate) mark: Option<RowMark>,
}

/// A formatted table.
#[derive(Debug)]
pub(crate) struct RenderedTable {
    /// The text.
    pub(crate) text: Printable,
    /// Number of empty columns that were omitted to save space.
    pub(crate) left_out: usize,
}

/// Returns the rows as a table, at most as wide as the terminal; on a pipe nothing is cut. A row is one line.
pub(crate) fn render_table(
    terminal: Terminal,
    columns: &[Column],
    rows: &[MarkedRow],
) -> RenderedTable {
    let mut table = Table::new();
    // [`Terminal`] has already determined what stdout is; the library must not check again.
    table.force_no_tty().load_style(presets::NOTHING);
    // Without a delimiter a cell is one word, so it is cut at the column width and not at a word boundary.
    table.set_delimiter('\0');
    if terminal.styled {
        table.enforce_styling();
    }
    if let Some(width) = terminal.columns() {
        table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
    }
    let mut shown: Vec<usize> = (0..columns.len()).filter(|at| !columns[*at].hidden).collect();
    let all = shown.len();
    if terminal.columns().is_some_and(|room| uncut_width(columns, &shown, rows) > usize::from(room))
    {
        shown.retain(|at| {
            rows.is_empty() || rows.iter().any(|row| row.cells.get(*at).is_some_and(has_content))
        });
    }
    let names = shown.iter().map(|at| cells::one_line(&columns[*at].name));
    let mut header = Row::from(names.map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    header.max_height(1);
    table.set_header(header);
    for row in rows {
        let cells = shown.iter().map(|at| {
            let value = row.cells.get(*at).unwrap_or(&JsonValue::Null);
            format_cell(terminal, &columns[*at].name, value, row.mark)
        });
        let mut line = Row::from(cells);
        line.max_height(1);
        table.add_row(line);
    }
    let text = Printable::from_printable_parts(table.trim_fmt());
    RenderedTable { text, left_out: all - shown.len() }
}

/// Returns the width of the table without cuts. Columns that are usually long count with a maximum.
fn uncut_width(columns: &[Column], shown: &[usize], rows: &[MarkedRow]) -> usize {
    const LONG: usize = 24;
    shown
        .iter()
        .map(|at| {
            let name = &columns[*at].name;
            let cells =
                rows.iter().filter_map(|row| Some(cells::format_value(name, row.cells.get(*at)?)));
            let widest = cells.map(|cell| cell.chars().count().min(LONG)).max().unwrap_or(0);
            widest.max(name.chars().count()) + 2
        })
        .sum()
}

fn has_content(value: &JsonValue) -> bool {
    !value.is_null() && value.as_str() != Some("{}")
}

fn format_cell(terminal: Terminal, column: &str, value: &JsonValue, mark: Option<RowMark>) -> Cell {
    let mut text = cells::format_value(column, value);
    if let Some(width) = terminal.columns() {
        text = cells::truncate(&text, width.into());
    }
    let cell = Cell::new(text);
    let cell = match mark {
        Some(RowMark::Came) => cell.fg(Color::Green),
        Some(RowMark::Changed) => cell.fg(Color::Yellow),
        None if value.is_null() => cell.add_attribute(Attribute::Dim),
        None => cell,
    };
    if cells::is_number(column, value) { cell.set_alignment(CellAlignment::Right) } else { cell }
}

/// The fields that come first and last in a list; the others are sorted by name between them.
const FIRST: [&str; 8] =
    ["id", "call_id", "name", "session_id", "agent", "tool_name", "status", "attempt"];
const LAST: [&str; 3] = ["created_at", "updated_at", "seq"];

/// An object as an aligned list, with a line for each field that is not empty.
pub(crate) fn format_fields(terminal: Terminal, object: &Map<String, JsonValue>) -> String {
    let mut fields: Vec<_> = object.iter().filter(|(_, value)| !value.is_null()).collect();
    fields.sort_by_key(|(key, _)| {
        let first = FIRST.iter().position(|name| name == key).unwrap_or(FIRST.len());
        let last = LAST.iter().position(|name| name == key).map_or(0, |at| at + 1);
        (first, last)
    });
    let wide = fields.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    let lines = fields.into_iter().map(|(key, value)| {
        let mut text = cells::format_value(key, value);
        if let Some(width) = terminal.columns() {
            text = cells::truncate(&text, usize::from(width).saturating_sub(wide + 4));
        }
        format!("  {key:wide$}  {text}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Columns known only by name.
pub(crate) fn columns_from_names(names: &[String]) -> Vec<Column> {
    names
        .iter()
        .map(|name| Column { name: name.clone(), kind: String::new(), hidden: false })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use serde_json::json;

    const PIPE: Terminal = Terminal { size: None, styled: false };

    fn check(terminal: Terminal, columns: &[&str], rows: JsonValue, expected: Expect) {
        let names: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        let rows: Vec<Vec<JsonValue>> = serde_json::from_value(rows).expect("rows are lists");
        let rows: Vec<MarkedRow> =
            rows.into_iter().map(|cells| MarkedRow { cells, mark: None }).collect();
        let RenderedTable { text, left_out } =
            render_table(terminal, &columns_from_names(&names), &rows);
        expected.assert_eq(&format!("{text}\n({left_out} left out)"));
    }

    #[test]
    fn numbers_stand_right_and_nothing_is_cut_on_a_pipe() {
        check(
            PIPE,
            &["id", "rows", "created_at"],
            json!([
                ["s_1", 3, 1_795_269_731_000_000_i64],
                ["a much longer id\nin two lines", 12_000, null],
            ]),
            expect![[r#"
                 id                              rows   created_at
                 s_1                                 3  2026-11-21 14:02:11
                 a much longer id\nin two lines  12000  null
                (0 left out)"#]],
        );
    }

    #[test]
    fn a_terminal_shows_the_beginning_of_what_is_long() {
        check(
            Terminal { size: Some((40, 10)), styled: false },
            &["id", "content"],
            json!([["s_1", "the parcel was sent on monday and should be there"], ["s_2", null]]),
            expect![[r#"
                 id   content
                 s_1  the parcel was sent on monday an…
                 s_2  null
                (0 left out)"#]],
        );
    }

    #[test]
    fn where_there_is_no_room_empty_columns_go_first() {
        check(
            Terminal { size: Some((40, 10)), styled: false },
            &["id", "parent_id", "scope", "metadata", "title", "error_message", "status"],
            json!([
                ["s_1", null, "{}", "{}", null, null, "active"],
                ["s_2", null, "{}", "{}", "A lost parcel", null, "suspended"],
            ]),
            expect![[r#"
                 id   title          status
                 s_1  null           active
                 s_2  A lost parcel  suspended
                (4 left out)"#]],
        );
    }

    #[test]
    fn an_object_is_a_list() {
        let object = json!({
            "reason": "angry\ncustomer", "seq": 7, "id": "s_1", "title": null, "data": {"a": [1]},
            "created_at": 1_795_269_731_000_000_i64, "status": "pending",
        });
        let object = object.as_object().expect("it is an object");
        expect![[r#"
            seq 7
              id          s_1
              status      pending
              data        {"a":[1]}
              reason      angry\ncustomer
              created_at  2026-11-21 14:02:11
              seq         7"#]]
        .assert_eq(&format!("seq 7\n{}", format_fields(PIPE, object)));
    }
}
