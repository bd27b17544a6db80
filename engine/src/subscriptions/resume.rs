//! The start of a subscription, read from one snapshot: the whole result, the changes since a seq,
//! or the result as of a seq and the changes since. `delta(query, N → M)` is the same rule as for a live
//! commit; only the changes come from the change log: the net (old, new) of every row changed
//! after N.

use std::sync::Arc;

use abide_live::{Binding, Changes, Delta, LiveError};
use abide_schema::{Checksum, Code, Refusal, Seq, limits};
use abide_store::{Reader, Snapshot, StoreError};

use crate::queries::as_of;
use crate::queries::changes::{changed_since, changes_since};
use crate::queries::failure::QueryFailure;
use crate::queries::planned::{error_for, name_for, require_latest, rows, rows_as_of, too_far};
use crate::queries::reader_sql::ReaderSql;
use crate::queries::statement_limits::LIMITS;
use crate::queries::tables::LiveTables;
use crate::subscriptions::connection::Start;
use crate::subscriptions::outbox::SubscriptionKey;
use crate::subscriptions::shared_delta::{QueuedDelta, ResultChange, SharedDelta};
use crate::subscriptions::shared_results::{SharedResult, SharedResults};

/// The first answer to a subscription.
#[derive(Debug)]
pub(crate) enum ResumeResult {
    /// The whole result; with a reason if a delta was requested but is not possible.
    Snapshot { seq: Seq, rows: Arc<SharedResult>, why: Option<Resync> },
    /// The changes since a seq, and the checksum of the new result if requested.
    Delta { from: Seq, seq: Seq, delta: QueuedDelta, checksum: Option<Checksum> },
    /// The result as of a past state, and the changes since.
    Past { past: Seq, rows: Arc<SharedResult>, seq: Seq, delta: QueuedDelta },
}

/// Why a client gets a whole result in place of changes.
#[derive(Debug)]
pub(crate) struct Resync {
    pub(crate) refusal: Refusal,
    /// The client's rows are from a history that the file does not have.
    pub(crate) history_changed: bool,
}

impl From<Refusal> for Resync {
    fn from(refusal: Refusal) -> Resync {
        Resync { refusal, history_changed: false }
    }
}

impl ResumeResult {
    /// Returns the state that the answer leads to.
    pub(crate) fn seq(&self) -> Seq {
        match self {
            ResumeResult::Snapshot { seq, .. }
            | ResumeResult::Delta { seq, .. }
            | ResumeResult::Past { seq, .. } => *seq,
        }
    }
}

/// Reads the whole result for a client whose rows are from another history.
pub(crate) fn begin_again(
    reader: &mut Reader,
    binding: &Binding,
    shared: &SharedResults,
) -> Result<ResumeResult, QueryFailure> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let why = "the client's rows are from a history that this database does not have; \
               it may have been restored from a backup";
    whole_snapshot(&state, binding, Some(other_history(why.to_owned())), shared)
}

/// Reads where a subscription starts.
pub(crate) fn begin(
    reader: &mut Reader,
    tables: &LiveTables,
    binding: &Binding,
    start: Start,
    wants_checksum: bool,
    shared: &SharedResults,
) -> Result<ResumeResult, QueryFailure> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    match start {
        Start::Now => whole_snapshot(&state, binding, None, shared),
        Start::AsOf(past) => past_and_since(&state, tables, binding, past, shared),
        Start::After(from) => match resume_in(&state, tables, binding, from, shared)? {
            ResumeResult::Delta { from, seq, delta, .. } if wants_checksum => {
                // The client's current rows are unknown here, so the new result is read.
                let sum = Checksum::from_rows(rows(&state, binding, binding.snapshot_sql())?);
                Ok(ResumeResult::Delta { from, seq, delta, checksum: Some(sum) })
            }
            resumed => Ok(resumed),
        },
    }
}

/// Several subscriptions, each with its answer.
pub(crate) type ResumeResults = Vec<(SubscriptionKey, Result<ResumeResult, QueryFailure>)>;

/// Reads the changes since a seq in several results at once, in one snapshot, or whole results if that is not
/// possible.
pub(crate) fn resume_all(
    reader: &mut Reader,
    tables: &LiveTables,
    requests: Vec<(SubscriptionKey, CatchUpRequest)>,
    shared: &SharedResults,
) -> Result<(Seq, ResumeResults), Refusal> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let resumed = requests.into_iter().map(|(key, catch_up)| {
        let resumed = match &catch_up {
            CatchUpRequest::Since(binding, from) => {
                resume_in(&state, tables, binding, *from, shared)
            }
            CatchUpRequest::Rebind { old, new, from: Some(from) } => {
                difference_after_replan(&state, tables, old, new, *from, shared)
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
    tables: &LiveTables,
    binding: &Binding,
    from: Seq,
    shared: &SharedResults,
) -> Result<ResumeResult, QueryFailure> {
    let seq = state.seq();
    if from > seq {
        let why = format!("seq {from} is ahead of the log, which ends at {seq}");
        return whole_snapshot(state, binding, Some(other_history(why)), shared);
    }
    if let Some(why) = missing_changes(state, from).map_err(|error| error.to_refusal())? {
        return whole_snapshot(state, binding, Some(resync(why)), shared);
    }
    if policies_may_have_changed(state, tables, binding, from)? {
        let why = resync(format!("policies changed since {from}"));
        return whole_snapshot(state, binding, Some(why), shared);
    }
    let changes = match changes_since(state, tables, binding, from)? {
        Ok(changes) => changes,
        Err(too_many) => {
            let max = limits::RESUME_CHANGES;
            let table = name_for(binding, &too_many);
            let why = resync(format!("more than {max} rows of {table} changed since {from}"));
            return whole_snapshot(state, binding, Some(why), shared);
        }
    };
    let Ok(delta) = compute_delta(state, binding, &changes)? else {
        // The query as a whole may have a result; if it has none, its own error is returned.
        let why = resync(format!("the changes since {from} cannot be computed"));
        return whole_snapshot(state, binding, Some(why), shared);
    };
    Ok(ResumeResult::Delta { from, seq, delta: queue_delta(delta, shared)?, checksum: None })
}

/// Reads a result as of a past state, and the changes since.
fn past_and_since(
    state: &Snapshot<'_>,
    tables: &LiveTables,
    binding: &Binding,
    past: Seq,
    shared: &SharedResults,
) -> Result<ResumeResult, QueryFailure> {
    let past = as_of::find_state(state, past)?;
    let changes = changes_since(state, tables, binding, past)?
        .map_err(|too_many| too_far(binding, &too_many, past))?;
    let delta = compute_delta(state, binding, &changes)?
        .map_err(|why| error_for(binding, Refusal::new(Code::BadSql, why)))?;
    let delta = queue_delta(delta, shared)?;
    // Computed over the same changes, which are in the temporary tables now.
    let rows = shared.keep_unshared(rows(state, binding, &binding.past_sql())?)?;
    Ok(ResumeResult::Past { past, rows, seq: state.seq(), delta })
}

/// Returns a delta to be sent, counted for the caller.
fn queue_delta(delta: Delta, shared: &SharedResults) -> Result<QueuedDelta, Refusal> {
    QueuedDelta::counted_if_large(SharedDelta::new(ResultChange::Rows(delta)), &shared.account)
}

/// Computes a delta. The inner error is SQLite's message about an expression, which may fail for a row of the former
/// state, or for one that the query as a whole does not reach.
fn compute_delta(
    state: &Snapshot<'_>,
    binding: &Binding,
    changes: &Changes,
) -> Result<Result<Delta, String>, QueryFailure> {
    require_latest(binding)?;
    let refusal = match binding.delta(changes, &mut ReaderSql::new(state)) {
        Ok(delta) => return Ok(Ok(delta)),
        Err(LiveError::Query(why)) => return Ok(Err(why)),
        Err(LiveError::OverBudget) => state.interrupted_for_checkpoint().unwrap_or_else(|| {
            Refusal::new(Code::LimitExceeded, "the changes take too long to compute")
                .hint("subscribe without after_seq and as_of, or with a narrower WHERE")
        }),
        Err(LiveError::Broken(why)) => {
            tracing::error!(name: "resume_failed", %why, "a resume failed");
            Refusal::new(Code::Internal, "the change log could not be read")
        }
    };
    Err(refusal.into())
}

/// Returns why the change log does not have all changes since a seq, if it does not.
fn missing_changes(state: &Snapshot<'_>, from: Seq) -> Result<Option<String>, StoreError> {
    let floor = state.change_log_floor()?;
    if from < floor {
        return Ok(Some(format!("changes are kept from seq {floor} on, not from {from}")));
    }
    let is_older = state.last_step()?.is_some_and(|step| from <= step);
    Ok(is_older.then(|| format!("a step of a module has changed tables since seq {from}")))
}

fn whole_snapshot(
    state: &Snapshot<'_>,
    binding: &Binding,
    why: Option<Resync>,
    shared: &SharedResults,
) -> Result<ResumeResult, QueryFailure> {
    let seq = state.seq();
    // Equal queries have equal results at one seq. Policies are part of the query.
    require_latest(binding)?;
    let rows = match shared.find(binding, seq)? {
        Some(rows) => rows,
        None => shared.keep(binding, seq, rows(state, binding, binding.snapshot_sql())?)?,
    };
    Ok(ResumeResult::Snapshot { seq, rows, why })
}

/// Returns the difference from a result at a seq under other policies to the current one; the whole result
/// if that is not possible.
fn difference_after_replan(
    state: &Snapshot<'_>,
    tables: &LiveTables,
    old: &Binding,
    new: &Binding,
    from: Seq,
    shared: &SharedResults,
) -> Result<ResumeResult, QueryFailure> {
    let why = resync("visibility has changed".to_owned());
    let missing = missing_changes(state, from).map_err(|error| error.to_refusal())?;
    if missing.is_some() || from > state.seq() || old.shape() != new.shape() {
        return whole_snapshot(state, new, Some(why), shared);
    }
    match rows_as_of(state, tables, old, from, LIMITS) {
        Ok(before) => {
            let after = rows(state, new, new.snapshot_sql())?;
            let delta = queue_delta(new.difference(&before, &after), shared)?;
            Ok(ResumeResult::Delta { from, seq: state.seq(), delta, checksum: None })
        }
        Err(_) => whole_snapshot(state, new, Some(why), shared),
    }
}

fn resync(why: String) -> Resync {
    Refusal::new(Code::ResyncRequired, why).hint("a whole snapshot follows").into()
}

fn other_history(why: String) -> Resync {
    Resync { history_changed: true, ..resync(why) }
}

/// `true` if a client with a result as of `from` may have it under other policies.
fn policies_may_have_changed(
    state: &Snapshot<'_>,
    tables: &LiveTables,
    binding: &Binding,
    from: Seq,
) -> Result<bool, Refusal> {
    let (Some(caller), Some(decisive)) = (binding.asked_by(), &tables.policies) else {
        return Ok(false);
    };
    Ok(changed_since(state, decisive.policies, None, from)?
        || changed_since(state, decisive.roles, None, from)?
        || changed_since(state, decisive.identities, Some(caller), from)?)
}
