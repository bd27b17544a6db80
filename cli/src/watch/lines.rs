//! Updates for a pipe: one line for each new, changed or removed row.

use std::collections::HashMap;

use abide_client::query_plan::Column;
use abide_client::{Positions, Subscription, Update, Value};

use crate::cells;

/// Converts updates to lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line of each row by its key, to repeat it when the row is removed.
    by_key: HashMap<String, String>,
    /// The current lines of a top-N result.
    top_n: Vec<String>,
}

impl Lines {
    /// The lines of an update: removed rows, then new rows, then changed rows.
    pub(super) fn next_lines(
        &mut self,
        subscription: &Subscription,
        update: &Update,
    ) -> Vec<String> {
        let columns = subscription.columns();
        match update.positions() {
            Some(positions) => self.top_n_lines(columns, positions, update),
            None => self.row_lines(columns, subscription.key(), update),
        }
    }

    fn row_lines(&mut self, columns: &[Column], key: &[String], update: &Update) -> Vec<String> {
        let key: Option<Vec<usize>> =
            key.iter().map(|name| columns.iter().position(|c| c.name == *name)).collect();
        // If the query does not select its key, a removed row is identified by the line alone.
        let key = key.unwrap_or_default();
        let mut lines = Vec::new();
        for gone in update.delete_keys() {
            let known = self.by_key.remove(&key_text(gone.iter()));
            lines.push(format!("- {}", known.unwrap_or_else(|| format_row(columns, gone))));
        }
        let came = update.insert_rows().map(|row| ('+', row));
        let changed = update.update_rows().map(|row| ('~', row));
        for (sign, row) in came.chain(changed) {
            let text = format_row(columns, row);
            let mut known = None;
            if !key.is_empty() {
                let key = key.iter().filter_map(|at| row.get(*at));
                known = self.by_key.insert(key_text(key), text.clone());
            }
            // A row with an unchanged line may have changed in a column that only sorts.
            if sign == '+' || known.as_deref() != Some(&text) {
                lines.push(format!("{sign} {text}"));
            }
        }
        lines
    }

    /// The line of a row in a top-N result starts with its position; the first is #1.
    fn top_n_lines(
        &mut self,
        columns: &[Column],
        positions: &Positions,
        update: &Update,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        if update.reset {
            self.top_n.clear();
        }
        for at in &positions.deletes {
            if *at < self.top_n.len() {
                lines.push(format_positioned('-', *at, &self.top_n.remove(*at)));
            }
        }
        for (at, row) in positions.inserts.iter().zip(update.insert_rows()) {
            let text = format_row(columns, row);
            lines.push(format_positioned('+', *at, &text));
            self.top_n.insert((*at).min(self.top_n.len()), text);
        }
        for (at, row) in positions.updates.iter().zip(update.update_rows()) {
            let text = format_row(columns, row);
            match self.top_n.get_mut(*at) {
                Some(known) if *known == text => {}
                Some(known) => {
                    lines.push(format_positioned('~', *at, &text));
                    *known = text;
                }
                None => {}
            }
        }
        lines
    }
}

fn format_positioned(sign: char, at: usize, text: &str) -> String {
    format!("{sign} #{}\t{text}", at + 1)
}

/// The cells, separated by tabs, for `cut` and `awk`.
fn format_row(columns: &[Column], row: &[Value]) -> String {
    let mut cells = Vec::new();
    for (at, value) in row.iter().enumerate() {
        let column = columns.get(at).map_or("", |column| column.name.as_str());
        cells.push(cells::format_value(column, &value.to_json()));
    }
    cells.join("\t")
}

/// A key as unambiguous text.
fn key_text<'a>(key: impl Iterator<Item = &'a Value>) -> String {
    key.map(|value| value.to_json().to_string()).collect::<Vec<_>>().join("\n")
}
