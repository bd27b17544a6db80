//! The net changes of rows since a seq, from the change log: the old and the new image of every row that
//! changed after it.

use abide_live::{Binding, Changes};
use abide_schema::{Code, Refusal, Seq, TableSpec, Value, limits};
use abide_store::change_log::ChangedRow;
use abide_store::{Snapshot, StoreError};

use crate::fault_points;
use crate::queries::tables::LiveTables;

/// A table with more changed rows than a delta can be computed from.
#[derive(Debug)]
pub(crate) struct TooManyChanges {
    pub(crate) table: &'static str,
}

/// The net change since `from` of every row that a query reads.
pub(crate) fn changes_since(
    state: &Snapshot<'_>,
    tables: &LiveTables,
    binding: &Binding,
    from: Seq,
) -> Result<Result<Changes, TooManyChanges>, Refusal> {
    let mut changes = Changes::new();
    let from = fault_points::resume_after(from);
    for name in binding.tables() {
        let table = tables.named(name).ok_or_else(|| unknown(name))?;
        if !net_changes(state, table, from, &mut changes).map_err(|error| error.to_refusal())? {
            return Ok(Err(TooManyChanges { table: name }));
        }
    }
    Ok(Ok(changes))
}

/// Whether any row of a table, or one row, changed since, or there were too many to check.
pub(crate) fn changed_since(
    state: &Snapshot<'_>,
    table: &'static TableSpec,
    key: Option<&Value>,
    from: Seq,
) -> Result<bool, Refusal> {
    let changed = state.changed_rows(table, from, limits::RESUME_CHANGES);
    let Some(changed) = changed.map_err(|error| error.to_refusal())? else { return Ok(true) };
    Ok(changed.iter().any(|row| key.is_none_or(|key| row.key.first() == Some(key))))
}

/// Adds the net change of every row of a table since `from`; `false` if there are too many.
fn net_changes(
    state: &Snapshot<'_>,
    table: &'static TableSpec,
    from: Seq,
    changes: &mut Changes,
) -> Result<bool, StoreError> {
    if table.name == "events" {
        return new_events(state, from, changes);
    }
    let Some(changed) = state.changed_rows(table, from, limits::RESUME_CHANGES)? else {
        return Ok(false);
    };
    for ChangedRow { key, old } in changed {
        let new = state.get(table, &key)?;
        changes.push(table.name, old, new);
    }
    Ok(true)
}

/// The log has no undo images: it is append-only.
fn new_events(state: &Snapshot<'_>, from: Seq, changes: &mut Changes) -> Result<bool, StoreError> {
    if state.seq().0 - from.0 > i64::try_from(limits::RESUME_CHANGES).unwrap_or(i64::MAX) {
        return Ok(false);
    }
    let sql = "SELECT * FROM main.events WHERE seq > ?1 ORDER BY seq";
    state.run(sql, &[Value::Integer(from.0)], &mut |row| {
        changes.push("events", None, Some(row.into()));
    })?;
    Ok(true)
}

fn unknown(table: &str) -> Refusal {
    Refusal::new(Code::Internal, format!("a live query reads {table}, which is not registered"))
}
