//! Updates for a pipe: a line for each row that came, changed or left.

use std::collections::HashMap;

use abide_client::{Column, Subscription, Update, Value};

use crate::cells;

/// Makes lines of updates.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line of each row by its key, to be told once more when the row leaves.
    by_key: HashMap<String, String>,
}

impl Lines {
    /// The lines of an update: first what left, then what came, then what changed.
    pub(super) fn take(&mut self, subscription: &Subscription, update: &Update) -> Vec<String> {
        self.lines(subscription.columns(), subscription.key(), update)
    }

    fn lines(&mut self, columns: &[Column], key: &[String], update: &Update) -> Vec<String> {
        let key: Option<Vec<usize>> =
            key.iter().map(|name| columns.iter().position(|c| c.name == *name)).collect();
        // Where the query does not select its key, a row that leaves is only known by that.
        let key = key.unwrap_or_default();
        let mut lines = Vec::new();
        for gone in update.delete_keys() {
            let known = self.by_key.remove(&identity(gone.iter()));
            lines.push(format!("- {}", known.unwrap_or_else(|| line(columns, gone))));
        }
        let came = update.insert_rows().map(|row| ('+', row));
        let changed = update.update_rows().map(|row| ('~', row));
        for (sign, row) in came.chain(changed) {
            let text = line(columns, row);
            lines.push(format!("{sign} {text}"));
            if !key.is_empty() {
                let key = key.iter().filter_map(|at| row.get(*at));
                self.by_key.insert(identity(key), text);
            }
        }
        lines
    }
}

/// The cells, a tab between them: for `cut` and `awk`.
fn line(columns: &[Column], row: &[Value]) -> String {
    let name = |at: usize| columns.get(at).map_or("", |column| column.name.as_str());
    let cells = row.iter().enumerate();
    let cells = cells.map(|(at, value)| cells::show(name(at), &value.to_json()));
    cells.collect::<Vec<_>>().join("\t")
}

/// A key as text, every cell told apart from every other.
fn identity<'a>(key: impl Iterator<Item = &'a Value>) -> String {
    key.map(|value| value.to_json().to_string()).collect::<Vec<_>>().join("\n")
}
