//! The start of a subscription, read from one snapshot: the whole result, the changes since a seq,
//! or the result as of a seq and the changes since. `delta(query, N → M)` is the same rule as for a live
//! commit; only the changes come from the change log: the net (old, new) of every row changed
//! after N.

use std::collections::HashMap;
use std::sync::Arc;

use abide_live::{
    BackfilledGroup, Binding, Changes, Delta, LiveError, Sql, SqlError, StatementLimits,
};
use abide_schema::seeded::{SeededBug, makes};
use abide_schema::{Checksum, Code, Refusal, Row, Seq, TableSpec, Value, limits};
use abide_store::change_log::Image;
use abide_store::{QueryLimits, Reader, Snapshot, StoreError};

use crate::access::policies;
use crate::commit::writer_sql::sql_error;
use crate::queries::as_of;
use crate::subscriptions::connection::Start;
use crate::subscriptions::hub::{HeldDelta, SharedDelta, SubscriptionKey};
use crate::subscriptions::shared_results::{SharedResult, SharedResults};

/// The first answer to a subscription.
#[derive(Debug)]
pub(crate) enum ResumeResult {
    /// The whole result; with a reason if a delta was requested but is not possible.
    Snapshot { seq: Seq, rows: Arc<SharedResult>, why: Option<Refusal> },
    /// The changes since a seq, and the checksum of the new result if requested.
    Delta { from: Seq, seq: Seq, delta: HeldDelta, checksum: Option<Checksum> },
    /// The result as of a past state, and the changes since.
    Past { past: Seq, rows: Arc<SharedResult>, seq: Seq, delta: HeldDelta },
}

impl ResumeResult {
    /// The state that the answer leads to.
    pub(crate) fn seq(&self) -> Seq {
        match self {
            ResumeResult::Snapshot { seq, .. }
            | ResumeResult::Delta { seq, .. }
            | ResumeResult::Past { seq, .. } => *seq,
        }
    }
}

/// The limits of any one query.
pub(crate) const LIMITS: QueryLimits = QueryLimits {
    columns: usize::MAX,
    rows: limits::QUERY_ROWS,
    bytes: limits::QUERY_BYTES,
    time: std::time::Duration::from_millis(limits::QUERY_MS),
    of_processor: false,
    steps: limits::QUERY_STEPS,
    memory_bytes: limits::QUERY_MEMORY_BYTES,
    value_bytes: limits::QUERY_VALUE_BYTES,
};

/// The limits of a text with this many operators.
pub(crate) fn limits_of(operations: usize) -> QueryLimits {
    QueryLimits { value_bytes: limits::value_bytes(limits::QUERY_ROW_BYTES, operations), ..LIMITS }
}

/// The limits of a delta.
pub(crate) fn live_limits(allowance: StatementLimits) -> QueryLimits {
    let StatementLimits { steps, value_bytes } = allowance;
    QueryLimits {
        time: std::time::Duration::from_millis(limits::LIVE_DELTA_MS),
        of_processor: true,
        steps,
        // Growth between two checks is small.
        memory_bytes: usize::MAX,
        value_bytes,
        ..LIMITS
    }
}

/// Reads where a subscription starts.
pub(crate) fn begin(
    reader: &mut Reader,
    tables: &[&'static TableSpec],
    binding: &Binding,
    (start, checksum): (Start, bool),
    shared: &SharedResults,
) -> Result<ResumeResult, Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    match start {
        Start::Now => whole_snapshot(&state, binding, None, shared),
        Start::AsOf(past) => past_and_since(&state, tables, binding, past, shared),
        Start::After(from) => match resume_in(&state, tables, binding, from, shared)? {
            ResumeResult::Delta { from, seq, delta, .. } if checksum => {
                // The client's current rows are unknown here, so the new result is read.
                let sum = Checksum::of(rows(&state, binding, binding.snapshot_sql())?);
                Ok(ResumeResult::Delta { from, seq, delta, checksum: Some(sum) })
            }
            resumed => Ok(resumed),
        },
    }
}

/// Several subscriptions, each with its answer.
pub(crate) type ResumeResults = Vec<(SubscriptionKey, Result<ResumeResult, Refusal>)>;

/// The changes since a seq in several results at once, in one snapshot, or whole results if that is not
/// possible.
pub(crate) fn resume_all(
    reader: &mut Reader,
    tables: &[&'static TableSpec],
    wanted: Vec<(SubscriptionKey, CatchUpRequest)>,
    shared: &SharedResults,
) -> Result<(Seq, ResumeResults), Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let resumed = wanted.into_iter().map(|(key, catch_up)| {
        let resumed = match &catch_up {
            CatchUpRequest::Since(binding, from) => {
                resume_in(&state, tables, binding, *from, shared)
            }
            CatchUpRequest::Rebind { old, new, from: Some(from) } => {
                resume_replanned(&state, tables, (old, new), *from, shared)
            }
            CatchUpRequest::Rebind { new, from: None, .. } => {
                let why = resync("what may be seen has changed".to_owned());
                whole_snapshot(&state, new, Some(why), shared)
            }
        };
        (key, resumed)
    });
    Ok((state.seq(), resumed.collect()))
}

/// How to catch up a subscription.
#[derive(Debug)]
pub(crate) enum CatchUpRequest {
    /// With the changes since a seq.
    Since(Binding, Seq),
    /// With the difference from the result at a seq under old policies to the currently visible
    /// result; with the whole result if the client's rows are unknown.
    Rebind { old: Binding, new: Binding, from: Option<Seq> },
}

fn resume_in(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    binding: &Binding,
    from: Seq,
    shared: &SharedResults,
) -> Result<ResumeResult, Refusal> {
    let seq = state.seq();
    if from > seq {
        let why = format!("seq {from} is ahead of the log, which ends at {seq}");
        return whole_snapshot(state, binding, Some(resync(why)), shared);
    }
    let floor = state.change_log_floor().map_err(|error| error.to_refusal())?;
    if from < floor {
        let why = format!("changes are kept from seq {floor} on, not from {from}");
        return whole_snapshot(state, binding, Some(resync(why)), shared);
    }
    if policies::may_have_changed(state, tables, binding, from)? {
        let why = resync(format!("policies changed since {from}"));
        return whole_snapshot(state, binding, Some(why), shared);
    }
    match changes_since(state, tables, binding, from)? {
        Ok(changes) => {
            let delta = held(delta(state, binding, &changes)?, shared)?;
            Ok(ResumeResult::Delta { from, seq, delta, checksum: None })
        }
        Err(table) => {
            let most = limits::RESUME_CHANGES;
            let table = if binding.is_bounded() { "a table" } else { table };
            let why = format!("more than {most} rows of {table} changed since {from}");
            whole_snapshot(state, binding, Some(resync(why)), shared)
        }
    }
}

/// Reads a result as of a past state, and the changes since.
fn past_and_since(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    binding: &Binding,
    past: Seq,
    shared: &SharedResults,
) -> Result<ResumeResult, Refusal> {
    let past = as_of::find_state(state, past)?;
    let changes = changes_since(state, tables, binding, past)?;
    let changes = changes.map_err(|table| too_far(binding, table, past))?;
    let delta = held(delta(state, binding, &changes)?, shared)?;
    // Computed over the same changes, which are in the temporary tables now.
    let rows = shared.own(rows(state, binding, &binding.past_sql())?)?;
    Ok(ResumeResult::Past { past, rows, seq: state.seq(), delta })
}

/// A delta to be sent, counted for the caller.
fn held(delta: Delta, shared: &SharedResults) -> Result<HeldDelta, Refusal> {
    HeldDelta::waiting(SharedDelta::new(Ok(delta)), &shared.account)
}

fn delta(state: &Snapshot<'_>, binding: &Binding, changes: &Changes) -> Result<Delta, Refusal> {
    require_latest(binding)?;
    binding.delta(changes, &mut ReaderSql::new(state)).map_err(|error| match error {
        LiveError::Query(why) => result_for(binding, Refusal::new(Code::BadSql, why)),
        LiveError::OverBudget => {
            Refusal::new(Code::LimitExceeded, "the changes take too long to compute")
                .hint("subscribe without after_seq and as_of, or with a narrower WHERE")
        }
        LiveError::Broken(why) => {
            tracing::error!(%why, "a resume failed");
            Refusal::new(Code::Internal, "the change log could not be read")
        }
    })
}

/// Reads the accumulators of a group, and the seq of that state.
pub(crate) fn fill(
    reader: &mut Reader,
    binding: &Binding,
    group: &Row,
) -> Result<Option<(Seq, BackfilledGroup)>, Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let filled = binding
        .fill(group, &mut ReaderSql::new(&state))
        .map_err(|error| Refusal::new(Code::BadSql, error.to_string()))?;
    Ok(filled.map(|filled| (state.seq(), filled)))
}

/// Reads a whole result.
pub(crate) fn whole_result(
    reader: &mut Reader,
    binding: &Binding,
) -> Result<(Seq, Vec<Row>), Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    Ok((state.seq(), rows(&state, binding, binding.snapshot_sql())?))
}

fn whole_snapshot(
    state: &Snapshot<'_>,
    binding: &Binding,
    why: Option<Refusal>,
    shared: &SharedResults,
) -> Result<ResumeResult, Refusal> {
    let seq = state.seq();
    // Equal queries have equal results at one seq. Policies are part of the query.
    require_latest(binding)?;
    let rows = match shared.find(binding, seq)? {
        Some(rows) => rows,
        None => shared.keep(binding, seq, rows(state, binding, binding.snapshot_sql())?)?,
    };
    Ok(ResumeResult::Snapshot { seq, rows, why })
}

/// The rows of one of a binding's own statements.
fn rows(state: &Snapshot<'_>, binding: &Binding, sql: &str) -> Result<Vec<Row>, Refusal> {
    require_latest(binding)?;
    rows_by_any(state, binding, sql, limits_of(binding.operations()))
}

/// Checks that a binding uses the latest policies. Checked after the snapshot is open, so
/// that the snapshot contains no later ones.
fn require_latest(binding: &Binding) -> Result<(), Refusal> {
    if binding.is_latest() { Ok(()) } else { Err(policies::outdated()) }
}

fn rows_by_any(
    state: &Snapshot<'_>,
    binding: &Binding,
    sql: &str,
    limits: QueryLimits,
) -> Result<Vec<Row>, Refusal> {
    let params = binding.params();
    let mut bind = |_: Option<&str>, number: usize| Ok(params[number - 1].clone());
    let found = state.query(sql, &mut bind, limits);
    Ok(found.map_err(|refusal| result_for(binding, refusal))?.rows)
}

/// The error for the caller: for a restricted one without SQLite's message, which may reveal
/// hidden data.
fn result_for(binding: &Binding, refusal: Refusal) -> Refusal {
    if !binding.is_bounded() || refusal.code != Code::BadSql {
        return refusal;
    }
    tracing::debug!(%refusal, "a bounded query failed");
    Refusal::new(Code::BadSql, "the query failed while evaluating a row")
        .hint("invalid argument to an expression: check json_extract(), sum(), abs()")
}

/// One query of a restricted caller, now or as of a seq. Columns that only determine the order are removed.
pub(crate) fn once(
    reader: &mut Reader,
    tables: &[&'static TableSpec],
    binding: &Binding,
    as_of: Option<Seq>,
) -> Result<(Seq, Vec<Row>), Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let shown = binding.shape().columns.iter().filter(|column| !column.hidden);
    let limits = QueryLimits { columns: shown.count(), ..limits_of(binding.operations()) };
    let Some(past) = as_of else {
        require_latest(binding)?;
        let rows = rows_by_any(&state, binding, binding.snapshot_sql(), limits)?;
        return Ok((state.seq(), rows));
    };
    let past = as_of::find_state(&state, past)?;
    Ok((past, rows_of(&state, tables, binding, (past, limits))?))
}

/// A result as of a seq.
fn rows_of(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    binding: &Binding,
    (past, limits): (Seq, QueryLimits),
) -> Result<Vec<Row>, Refusal> {
    let changes = changes_since(state, tables, binding, past)?;
    let changes = changes.map_err(|table| too_far(binding, table, past))?;
    binding.lay_out(&changes, &mut ReaderSql::new(state)).map_err(|error| {
        tracing::error!(%error, "a past state could not be read");
        Refusal::new(Code::Internal, "the change log could not be read")
    })?;
    rows_by_any(state, binding, &binding.past_sql(), limits)
}

fn too_far(binding: &Binding, table: &str, past: Seq) -> Refusal {
    // The table's name may come from a policy.
    as_of::too_far(if binding.is_bounded() { "a table" } else { table }, past)
}

/// Whether any row of a table, or one row, changed since; also if there were too many to check.
pub(crate) fn changed_since(
    state: &Snapshot<'_>,
    table: &'static TableSpec,
    key: Option<&Value>,
    from: Seq,
) -> Result<bool, Refusal> {
    let images = state.images(table, from, limits::RESUME_CHANGES);
    let Some(images) = images.map_err(|error| error.to_refusal())? else { return Ok(true) };
    let is_it = |image: &Image| {
        let found = match image {
            Image::Absent(key) => key.clone(),
            Image::Present(row) => table.key_of(row),
        };
        key.is_none_or(|key| found.first() == Some(key))
    };
    Ok(images.iter().any(is_it))
}

/// The difference from a result at a seq under other policies to the current one; the whole result
/// if that is not possible.
fn resume_replanned(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    (old, new): (&Binding, &Binding),
    from: Seq,
    shared: &SharedResults,
) -> Result<ResumeResult, Refusal> {
    let why = || Some(resync("visibility has changed".to_owned()));
    let floor = state.change_log_floor().map_err(|error| error.to_refusal())?;
    if from < floor || from > state.seq() || old.shape() != new.shape() {
        return whole_snapshot(state, new, why(), shared);
    }
    match rows_of(state, tables, old, (from, LIMITS)) {
        Ok(before) => {
            let after = rows(state, new, new.snapshot_sql())?;
            let delta = held(new.difference(&before, &after), shared)?;
            Ok(ResumeResult::Delta { from, seq: state.seq(), delta, checksum: None })
        }
        Err(_) => whole_snapshot(state, new, why(), shared),
    }
}

/// The net change since `from` of every row that a query reads; or the table with too many changes.
pub(crate) fn changes_since(
    state: &Snapshot<'_>,
    tables: &[&'static TableSpec],
    binding: &Binding,
    from: Seq,
) -> Result<Result<Changes, &'static str>, Refusal> {
    let mut changes = Changes::new();
    let from = if makes(SeededBug::ResumeTooLate) { from.next() } else { from };
    for name in binding.tables() {
        let table = tables.iter().find(|table| table.name == name).ok_or_else(|| unknown(name))?;
        if !net_changes(state, table, from, &mut changes).map_err(|error| error.to_refusal())? {
            return Ok(Err(name));
        }
    }
    Ok(Ok(changes))
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
    let Some(images) = state.images(table, from, limits::RESUME_CHANGES)? else {
        return Ok(false);
    };
    // The oldest image of a row is its state at `from`.
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

fn resync(why: String) -> Refusal {
    Refusal::new(Code::ResyncRequired, why).hint("a whole snapshot follows")
}

fn unknown(table: &str) -> Refusal {
    Refusal::new(Code::Internal, format!("a live query reads {table}, which is not registered"))
}

/// Live queries' SQL on a reader's snapshot, within the limits of any one query.
pub(crate) struct ReaderSql<'a>(&'a Snapshot<'a>);

impl<'a> ReaderSql<'a> {
    /// On a snapshot. Nothing else may use it meanwhile.
    pub(crate) fn new(state: &'a Snapshot<'a>) -> ReaderSql<'a> {
        let mut sql = ReaderSql(state);
        sql.bound(&LIMITS);
        sql
    }

    fn bound(&mut self, limits: &QueryLimits) {
        if let Err(error) = self.0.allow(Some(limits)) {
            tracing::error!(%error, "a reader's statement limits could not be set");
        }
    }
}

impl Drop for ReaderSql<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.allow(None) {
            tracing::error!(%error, "a reader's statement limits could not be reset");
        }
    }
}

impl Sql for ReaderSql<'_> {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<u64, SqlError> {
        // The cost is not needed here: the reader's limits apply.
        self.0.run(statement, params, each).map(|()| 0).map_err(|error| sql_error(&error))
    }

    fn allow(&mut self, allowance: Option<StatementLimits>) {
        self.bound(&allowance.map_or(LIMITS, live_limits));
    }
}
