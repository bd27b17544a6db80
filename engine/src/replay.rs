//! Running a log again, into an empty file: the same rows must come out, bit for bit.
//!
//! This is the proof that rows follow from events alone, and the way back to any past state. What is
//! compared is every event's hash (which covers its outcome) and, at the log's end, every row of every
//! registered table. The engine's own tables for retries and resume are not part of it: they follow
//! from how calls were batched, not from what they did.

use std::path::Path;
use std::sync::Arc;

use abide_log::Chain;
use abide_schema::event::Event;
use abide_schema::reducer::Caller;
use abide_schema::{Micros, Module, Refusal, Seq, TableSpec, Value};
use abide_store::{Layout, LogFile, OpenError, Store, StoreError, Tuning, VerifyError};

use crate::bounds::Bounds;
use crate::execute::{Executor, refusal_of};
use crate::ports::SystemClock;
use crate::registry::Registry;

/// Events in one transaction of a replay.
const EVENTS_PER_COMMIT: i64 = 1_000;

/// Why a log could not be run again to the same end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The log itself cannot be believed.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The target cannot be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The target cannot be written.
    #[error("the replay could not be written")]
    Store(#[from] StoreError),
    /// A call that was done is refused now.
    #[error("event {seq}: {reducer} is refused in the replay: {refusal}")]
    Refused {
        /// The event.
        seq: Seq,
        /// The rule.
        reducer: String,
        /// Why.
        refusal: Refusal,
    },
    /// A call does something else now.
    #[error("event {seq}: {reducer} had another outcome in the replay")]
    Differs {
        /// The event.
        seq: Seq,
        /// The rule.
        reducer: String,
    },
    /// The rows are not those that the log gives.
    #[error("table {table} is not what the log gives: row {key}")]
    Rows {
        /// The table.
        table: &'static str,
        /// The primary key of the first row that differs.
        key: String,
    },
}

/// Runs the log of a file again into a new file, up to a seq or to its end. At the end the tables of
/// both are compared. Returns the last event that was run.
///
/// # Errors
/// [`ReplayError`], naming the first event or row that differs.
pub fn replay(
    from: &Path,
    into: &Path,
    modules: Vec<Module>,
    to: Option<Seq>,
    progress: &mut dyn FnMut(Seq),
) -> Result<Seq, ReplayError> {
    if into.exists() {
        return Err(OpenError::Exists(into.to_owned()).into());
    }
    let log = LogFile::open(from)?;
    let registry = Registry::new(&modules);
    let layout = Layout { modules };
    let store = Store::open_as(into, layout, Tuning::default(), Some(log.log_id()))?;
    let chain = Chain::start(log.log_id());
    let bounds = Bounds::new(&store.layout().modules);
    let clock = Arc::new(SystemClock);
    let mut executor = Executor::new(store.writer()?, chain, Micros(0), clock, bounds);
    executor.store.begin()?;
    let end = log.walk::<ReplayError>(&mut |event| {
        if to.is_some_and(|to| event.seq > to) {
            return Ok(());
        }
        run_again(&mut executor, &registry, event)?;
        if event.seq.0 % EVENTS_PER_COMMIT == 0 {
            commit(&mut executor)?;
            executor.store.begin()?;
        }
        progress(event.seq);
        Ok(())
    })?;
    commit(&mut executor)?;
    let reached = executor.chain.seq;
    if reached == end.seq {
        for table in store.layout().tables() {
            compare(&log, &executor, table)?;
        }
    }
    drop(executor);
    store.checkpointer()?.truncate()?;
    Ok(reached)
}

fn run_again(
    executor: &mut Executor,
    registry: &Registry,
    event: &Event,
) -> Result<(), ReplayError> {
    let (seq, reducer) = (event.seq, event.reducer.clone());
    let refused = |refusal| ReplayError::Refused { seq, reducer: reducer.clone(), refusal };
    let arguments = serde_json::from_str(&event.arguments).unwrap_or_default();
    let call = registry.ready_any(&event.reducer, &arguments).map_err(refused)?;
    let caller = Caller::recorded(&event.caller, event.authority.as_deref());
    let request_id = event.request_id.as_deref();
    let done = executor.run_at(event.at, &caller, request_id, &call);
    let done = done.map_err(|abort| refused(refusal_of(&abort)))?;
    if done.duplicate || executor.chain.hash != event.hash {
        return Err(ReplayError::Differs { seq, reducer });
    }
    Ok(())
}

fn commit(executor: &mut Executor) -> Result<(), StoreError> {
    executor.flush()?;
    executor.store.commit()?;
    executor.overlay.committed();
    Ok(())
}

/// Holds the rows of a file to those of the replay.
fn compare(
    log: &LogFile,
    replayed: &Executor,
    table: &'static TableSpec,
) -> Result<(), ReplayError> {
    let (mut count, mut differing) = (0_usize, None);
    let mut failed = None;
    log.rows(table, &mut |row| {
        count += 1;
        let key = table.key_of(row);
        match replayed.store.get(table, &key) {
            Ok(Some(again)) if *again == *row => {}
            Ok(_) => differing = differing.take().or(Some(key)),
            Err(error) => failed = failed.take().or(Some(error)),
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    let sql = format!("SELECT count(*) FROM {}", table.name);
    let mut count_again = 0;
    replayed.store.run(&sql, &[], &mut |row| {
        if let [Value::Integer(n)] = row {
            count_again = usize::try_from(*n).unwrap_or(0);
        }
    })?;
    if differing.is_none() && count == count_again {
        return Ok(());
    }
    let key = differing.map_or_else(
        || format!("(there are {count}, the log gives {count_again})"),
        |key| key.iter().map(|cell| cell.to_json().to_string()).collect::<Vec<_>>().join(", "),
    );
    Err(ReplayError::Rows { table: table.name, key })
}
