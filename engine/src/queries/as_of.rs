//! Queries on past states: during one snapshot, temporary views shadow the tables and show
//! them as of a seq. SQLite resolves an unqualified name in the temporary schema first.

use abide_schema::{Code, Refusal, Seq, TableSpec, Value, limits};
use abide_store::change_log::ChangedRow;
use abide_store::{Layout, Snapshot, StoreError};

/// The state for a seq: that seq, or, if it lies inside a commit, the
/// end of the previous commit. The old images of a commit are one step, so no past state is half a
/// transaction.
pub(crate) fn find_state(state: &Snapshot<'_>, past: Seq) -> Result<Seq, Refusal> {
    let head = state.seq();
    if past.0 < 0 || past > head {
        let detail = format!("there is no state {past}: the log ends at {head}");
        return Err(
            Refusal::new(Code::BadRequest, detail).hint(format!("use a seq from 0 to {head}"))
        );
    }
    let floor = state.change_log_floor().map_err(|error| error.to_refusal())?;
    if past < floor {
        let detail = format!("changes are kept from seq {floor} on, not from {past}");
        return Err(Refusal::new(Code::HistoryExpired, detail)
            .hint("use that seq or a later one, or replay the log up to this one"));
    }
    last_state(state, past).map_err(|error| error.to_refusal())
}

/// The refusal of a past state with too many later changes.
pub(crate) fn too_far(table: &str, past: Seq) -> Refusal {
    let max = limits::RESUME_CHANGES;
    let detail = format!("more than {max} rows of {table} changed since {past}");
    Refusal::new(Code::LimitExceeded, detail).hint("use a later seq")
}

/// Creates the views that a statement can name; they disappear with the snapshot. Returns the seq that is then visible.
pub(crate) fn travel(
    state: &mut Snapshot<'_>,
    layout: &Layout,
    sql: &str,
    past: Seq,
) -> Result<Seq, Refusal> {
    let past = find_state(state, past)?;
    let named = NamedRelations::find_in(layout, sql);
    for table in named.tables {
        let shown = if table.name == "events" {
            show_events(state, past)
        } else {
            show_table(state, table, past)?
        };
        shown.map_err(|error| error.to_refusal())?;
    }
    for (name, select) in named.views {
        // The view in the file refers to the tables; the same text here refers to their past.
        let sql = format!("CREATE TEMP VIEW {name} AS {select}");
        state.run(&sql, &[], &mut |_| {}).map_err(|error| error.to_refusal())?;
    }
    state.only_views();
    Ok(past)
}

/// The tables and views that a statement may read.
struct NamedRelations {
    tables: Vec<&'static TableSpec>,
    /// Names, and their SELECT.
    views: Vec<(&'static str, &'static str)>,
}

impl NamedRelations {
    /// The tables and views whose name is in the text of the statement, or in the text of such a view. A name in a literal or a
    /// comment only costs time.
    fn find_in(layout: &Layout, sql: &str) -> NamedRelations {
        let mut text = sql.to_ascii_lowercase();
        let mut views = Vec::new();
        let mut others = layout.views();
        loop {
            let (named, rest) = others.into_iter().partition(|(name, _)| is_in(name, &text));
            let named: Vec<(&str, &str)> = named;
            if named.is_empty() {
                break;
            }
            named.iter().for_each(|(_, select)| text.push_str(&select.to_ascii_lowercase()));
            views.extend(named);
            others = rest;
        }
        let mut tables = layout.live_tables();
        tables.retain(|table| is_in(table.name, &text));
        NamedRelations { tables, views }
    }
}

fn is_in(name: &str, text: &str) -> bool {
    text.contains(&name.to_ascii_lowercase())
}

fn last_state(state: &Snapshot<'_>, past: Seq) -> Result<Seq, StoreError> {
    let sql = "SELECT from_seq FROM main.change_log WHERE seq > ?1 ORDER BY seq LIMIT 1";
    let mut last = past;
    state.run(sql, &[Value::Integer(past.0)], &mut |row| {
        if let [Value::Integer(from)] = row {
            last = last.min(Seq(*from));
        }
    })?;
    Ok(last)
}

fn show_events(state: &Snapshot<'_>, past: Seq) -> Result<(), StoreError> {
    let sql = format!("CREATE TEMP VIEW events AS SELECT * FROM main.events WHERE seq <= {past}");
    state.run(&sql, &[], &mut |_| {})
}

/// The rows that have not changed since, and the old state of those that have.
fn show_table(
    state: &Snapshot<'_>,
    table: &'static TableSpec,
    past: Seq,
) -> Result<Result<(), StoreError>, Refusal> {
    let changed = state
        .changed_rows(table, past, limits::RESUME_CHANGES)
        .map_err(|error| error.to_refusal())?
        .ok_or_else(|| too_far(table.name, past))?;
    Ok(create_view(state, table, changed))
}

fn create_view(
    state: &Snapshot<'_>,
    table: &'static TableSpec,
    changed: Vec<ChangedRow>,
) -> Result<(), StoreError> {
    let name = table.name;
    if changed.is_empty() {
        let sql = format!("CREATE TEMP VIEW {name} AS SELECT * FROM main.{name}");
        return state.run(&sql, &[], &mut |_| {});
    }
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("{} {}", column.name, column.kind.sql()))
        .collect();
    let keys: Vec<&str> = table.key.iter().map(|at| table.columns[*at].name).collect();
    let key_columns: Vec<&str> = table.key.iter().map(|at| columns[*at].as_str()).collect();
    let all = columns.join(", ");
    let key = keys.join(", ");
    let statements = [
        format!("CREATE TEMP TABLE past_{name} ({all})"),
        format!("CREATE TEMP TABLE since_{name} ({}, PRIMARY KEY ({key}))", key_columns.join(", ")),
        format!(
            "CREATE TEMP VIEW {name} AS SELECT * FROM main.{name} WHERE ({key}) NOT IN
               (SELECT {key} FROM temp.since_{name}) UNION ALL SELECT * FROM temp.past_{name}"
        ),
    ];
    for statement in &statements {
        state.run(statement, &[], &mut |_| {})?;
    }
    let since = format!("INSERT INTO since_{name} VALUES ({})", list_marks(keys.len()));
    let past = format!("INSERT INTO past_{name} VALUES ({})", list_marks(columns.len()));
    for ChangedRow { key, old } in changed {
        state.run(&since, &key, &mut |_| {})?;
        if let Some(old) = old {
            state.run(&past, &old, &mut |_| {})?;
        }
    }
    Ok(())
}

/// Returns so many parameters of a statement.
fn list_marks(count: usize) -> String {
    vec!["?"; count].join(", ")
}

#[cfg(test)]
mod tests {
    use abide_schema::Module;

    use super::*;

    /// A past query of one table read the changes of all tables, and was refused if one of them had too many.
    #[test]
    fn only_named_relations_are_created() {
        let module = Module::new("m")
            .view("last_event", "SELECT MAX(seq) FROM events")
            .view("next_event", "SELECT * FROM Last_Event");
        let layout = Layout { modules: vec![module] };
        for (sql, tables, views) in [
            ("SELECT 1", vec![], vec![]),
            ("SELECT * FROM \"EVENTS\"", vec!["events"], vec![]),
            ("SELECT * FROM last_event", vec!["events"], vec!["last_event"]),
            ("SELECT * FROM next_event", vec!["events"], vec!["next_event", "last_event"]),
        ] {
            let named = NamedRelations::find_in(&layout, sql);
            let found: Vec<&str> = named.tables.iter().map(|table| table.name).collect();
            assert_eq!(found, tables, "{sql}");
            let found: Vec<&str> = named.views.iter().map(|(name, _)| *name).collect();
            assert_eq!(found, views, "{sql}");
        }
    }
}
