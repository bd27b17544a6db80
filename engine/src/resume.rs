//! Where a subscription starts, read from one still state: the whole result, or what changed since a
//! seq. `delta(query, N → M)` is the same rule as for a live commit; only the changes come from the
//! change log: the net (old, new) of every row that was touched after N.

use std::collections::HashMap;

use abide_live::{Binding, Changes, Delta, Filled, LiveError, Sql, SqlError};
use abide_schema::{Code, Refusal, Row, Seq, TableSpec, Value, limits};
use abide_store::change_log::Image;
use abide_store::{QueryLimits, Reader, Snapshot, StoreError};

use crate::hub::SubscriptionKey;
use crate::writer::sql_error;

/// What a subscription is told first.
#[derive(Debug)]
pub(crate) enum Resumed {
    /// The whole result; with the reason, where a delta was asked for and could not be had.
    Snapshot { seq: Seq, rows: Vec<Row>, refetch: Option<Refusal> },
    /// What changed since.
    Delta { seq: Seq, delta: Delta },
}

impl Resumed {
    pub(crate) fn seq(&self) -> Seq {
        match self {
            Resumed::Snapshot { seq, .. } | Resumed::Delta { seq, .. } => *seq,
        }
    }
}

/// The bounds of any one query.
pub(crate) const LIMITS: QueryLimits = QueryLimits {
    rows: limits::QUERY_ROWS,
    bytes: limits::QUERY_BYTES,
    time: std::time::Duration::from_millis(limits::QUERY_MS),
};

/// Reads a whole result.
pub(crate) fn snapshot(reader: &mut Reader, binding: &Binding) -> Result<Resumed, Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    whole(&state, binding, None)
}

/// Reads what changed in a result since `from`, or the whole where that cannot be had.
pub(crate) fn resume(
    reader: &mut Reader,
    tables: &[&'static TableSpec],
    binding: &Binding,
    from: Seq,
) -> Result<Resumed, Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    resume_in(&state, tables, binding, from)
}

/// Several subscriptions, each with what it is told.
pub(crate) type Each = Vec<(SubscriptionKey, Result<Resumed, Refusal>)>;

/// As [`resume`], for several at once, in one state.
pub(crate) fn resume_all(
    reader: &mut Reader,
    tables: &[&'static TableSpec],
    wanted: Vec<(SubscriptionKey, Binding, Seq)>,
) -> Result<(Seq, Each), Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let resumed = wanted
        .into_iter()
        .map(|(key, binding, from)| (key, resume_in(&state, tables, &binding, from)))
        .collect();
    Ok((state.seq(), resumed))
}

fn resume_in(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    binding: &Binding,
    from: Seq,
) -> Result<Resumed, Refusal> {
    let seq = state.seq();
    if from > seq {
        let why = format!("seq {from} is ahead of the log, which ends at {seq}");
        return whole(state, binding, Some(refetch(why)));
    }
    let floor = state.change_log_floor().map_err(|error| error.to_refusal())?;
    if from < floor {
        let why = format!("changes are kept from seq {floor} on, not from {from}");
        return whole(state, binding, Some(refetch(why)));
    }
    let mut changes = Changes::new();
    if !changes_since(state, tables, binding, from, &mut changes)? {
        let why = format!("more than {} rows changed since {from}", limits::RESUME_CHANGES);
        return whole(state, binding, Some(refetch(why)));
    }
    match binding.delta(&changes, &mut ReaderSql(state)) {
        Ok(delta) => Ok(Resumed::Delta { seq, delta }),
        Err(LiveError::Query(why)) => Err(Refusal::new(Code::BadSql, why)),
        Err(LiveError::OverBudget) => unreachable!("a reader has no budget of steps"),
        Err(LiveError::Broken(why)) => {
            tracing::error!(%why, "a resume failed");
            Err(Refusal::new(Code::Internal, "the change log could not be read"))
        }
    }
}

/// Adds the net changes since a seq of all tables that a query reads; `false` where they are too many.
pub(crate) fn changes_since(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    binding: &Binding,
    from: Seq,
    changes: &mut Changes,
) -> Result<bool, Refusal> {
    for name in binding.tables() {
        let table = tables.iter().find(|table| table.name == name).ok_or_else(|| unknown(name))?;
        if !net_changes(state, table, from, changes).map_err(|error| error.to_refusal())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads the accumulators of a group, and at which seq they are so.
pub(crate) fn fill(
    reader: &mut Reader,
    binding: &Binding,
    group: &Row,
) -> Result<Option<(Seq, Filled)>, Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let filled = binding
        .fill(group, &mut ReaderSql(&state))
        .map_err(|error| Refusal::new(Code::BadSql, error.to_string()))?;
    Ok(filled.map(|filled| (state.seq(), filled)))
}

fn whole(
    state: &Snapshot<'_>,
    binding: &Binding,
    refetch: Option<Refusal>,
) -> Result<Resumed, Refusal> {
    let params = binding.params();
    let mut bind = |_: Option<&str>, number: usize| Ok(params[number - 1].clone());
    let rows = state.query(binding.snapshot_sql(), &mut bind, LIMITS)?.rows;
    Ok(Resumed::Snapshot { seq: state.seq(), rows, refetch })
}

/// Adds the net change of every row of a table since `from`; `false` where they are too many.
fn net_changes(
    state: &Snapshot<'_>,
    table: &'static TableSpec,
    from: Seq,
    changes: &mut Changes,
) -> Result<bool, StoreError> {
    if table.name == "events" {
        return new_events(state, from, changes);
    }
    let Some(images) = state.images(table, from, limits::RESUME_CHANGES)? else {
        return Ok(false);
    };
    // The oldest image of a row is what it was at `from`.
    let mut oldest: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut rows: Vec<(Vec<Value>, Option<Row>)> = Vec::new();
    for image in images {
        let (key, old) = match image {
            Image::Absent(key) => (key, None),
            Image::Present(row) => (table.key_of(&row), Some(Row::from(row))),
        };
        let mut place = Vec::new();
        abide_store::change_log::encode_cells(0, &key, &mut place);
        oldest.entry(place).or_insert_with(|| {
            rows.push((key, old));
            rows.len() - 1
        });
    }
    for (key, old) in rows {
        let new = state.get(table, &key)?;
        changes.push(table.name, old, new);
    }
    Ok(true)
}

/// The log has no undo images: it only grows.
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

fn refetch(why: String) -> Refusal {
    Refusal::new(Code::Refetch, why).hint("a whole snapshot follows")
}

fn unknown(table: &str) -> Refusal {
    Refusal::new(Code::Internal, format!("a live query reads {table}, which is not registered"))
}

/// Live queries' SQL on a reader's state.
pub(crate) struct ReaderSql<'a>(pub(crate) &'a Snapshot<'a>);

impl Sql for ReaderSql<'_> {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<u64, SqlError> {
        // A reader is bounded by time, not by work: nobody asks how much it was.
        self.0.run(statement, params, each).map(|()| 0).map_err(|error| sql_error(&error))
    }
}
