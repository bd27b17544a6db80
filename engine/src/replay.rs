//! Replays a log into an empty file: it must produce identical rows.
//!
//! This proves that rows depend on events alone, and gives access to any past state. It
//! compares every event's hash (which covers its outcome and the rows that it wrote) and, at the log's end, every row
//! of every registered table and of `request_ids`, so that the new file answers retries like the old one. Undo images
//! (rows as they were before a commit) are not rebuilt: they depend on how calls were batched into commits. The change
//! log of the new file starts at its last event, and its clients start with a new snapshot.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use abide_log::Chain;
use abide_schema::event::Event;
use abide_schema::reducer::Caller;
use abide_schema::{
    CallArguments, Micros, Module, Refusal, Row, Seq, Table as _, TableSpec, Value, integers,
};
use abide_store::{
    Layout, LogFile, OpenError, PartialFile, RequestIdRow, Store, StoreError, Tuning, VerifyError,
};

use crate::access::credentials::CredentialChecker;
use crate::access::scope_rules::ScopeRules;
use crate::commit::execute::{Executor, LogPosition, ReplayedEvent};
use crate::commit::registry::{RECORD, Registry};
use crate::commit::request_ids::{self, RequestIdRebuilder};
use crate::commit::transaction::{GroupTransaction, refusal_of};
use crate::ports::{EventSources, SystemClock, SystemEntropy};

/// Events in one transaction of a replay.
const EVENTS_PER_COMMIT: i64 = 1_000;

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The log itself is invalid.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The target cannot be created.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The target cannot be written.
    #[error("the replay could not be written")]
    Store(#[from] StoreError),
    /// The log ends before the event that was named.
    #[error("the log ends at event {end}, before event {to}")]
    Beyond {
        /// The event that was named.
        to: Seq,
        /// The last event.
        end: Seq,
    },
    /// The file lacks a step that changes the columns of a table, so its rows cannot be compared.
    #[error(
        "the file is not migrated: table {table} has other columns or another primary key than in this program"
    )]
    NotMigrated {
        /// The table.
        table: &'static str,
    },
    /// A call that was done is refused now.
    #[error("event {seq}: {reducer} is refused in the replay: {refusal}")]
    Refused {
        /// The event.
        seq: Seq,
        /// The reducer.
        reducer: String,
        /// The refusal.
        refusal: Refusal,
    },
    /// An event that records a request id is invalid.
    #[error("event {seq}: record_request has invalid arguments")]
    Record {
        /// The event.
        seq: Seq,
    },
    /// The arguments of a call are no JSON that can be read.
    #[error("event {seq}: the arguments of {reducer} cannot be read: {why}")]
    Unreadable {
        /// The event.
        seq: Seq,
        /// The reducer.
        reducer: String,
        /// Why not.
        why: serde_json::Error,
    },
    /// A call has another outcome, or writes other rows.
    #[error("event {seq}: {reducer} has another outcome or writes other rows in the replay")]
    Differs {
        /// The event.
        seq: Seq,
        /// The reducer.
        reducer: String,
    },
    /// The rows differ from those of the replay.
    #[error("table {table} differs from the replay of the log: {difference}")]
    Rows {
        /// The table.
        table: &'static str,
        /// The first row that differs.
        difference: RowDifference,
    },
}

/// How a row of the file differs from the log. The row is named by its primary key, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowDifference {
    /// A cell has another value.
    Cell {
        /// The row.
        key: String,
        /// The first column with another value.
        column: &'static str,
        /// The event that wrote the row last, if the table says so.
        seq: Option<Seq>,
    },
    /// No event has written the row.
    Unknown {
        /// The row.
        key: String,
    },
    /// The file does not have the row.
    Missing {
        /// The row.
        key: String,
    },
}

impl fmt::Display for RowDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowDifference::Cell { key, column, seq: Some(seq) } => {
                write!(f, "row {key} has another value of {column} than event {seq} wrote last")
            }
            RowDifference::Cell { key, column, seq: None } => {
                write!(f, "row {key} has another value of {column}")
            }
            RowDifference::Unknown { key } => write!(f, "row {key} is not in the log"),
            RowDifference::Missing { key } => write!(f, "row {key} is missing"),
        }
    }
}

/// Replays the log of a file into a new file, up to a seq or to its end. At the end the tables of
/// both are compared. Returns the last replayed event.
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
    let layout = Layout { modules };
    let log = LogFile::open(from, &layout)?;
    let replayed = replay_log(&log, into, layout, to, progress);
    log.check_unchanged()?;
    replayed
}

fn replay_log(
    log: &LogFile,
    into: &Path,
    layout: Layout,
    to: Option<Seq>,
    progress: &mut dyn FnMut(Seq),
) -> Result<Seq, ReplayError> {
    let is_compared = match to {
        Some(to) => is_end(log, to)?,
        None => true,
    };
    if is_compared {
        check_migrated(log, &layout)?;
    }
    let registry = Registry::new(&layout.modules);
    let file = PartialFile::create(into)?;
    let store = Store::open_as(file.path(), layout, Tuning::default(), Some(log.log_id()))?;
    let reached = replay_into(log, store, &registry, to, progress)?;
    file.put_in_place()?;
    Ok(reached)
}

fn replay_into(
    log: &LogFile,
    store: Store,
    registry: &Registry,
    to: Option<Seq>,
    progress: &mut dyn FnMut(Seq),
) -> Result<Seq, ReplayError> {
    let start = LogPosition { chain: Chain::start(log.log_id()), last_at: Micros(0) };
    let scope_rules = ScopeRules::new(&store.layout().modules);
    let sources = EventSources { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) };
    let credentials = CredentialChecker::new(&store.layout().modules);
    let writer = store.writer()?;
    let version_starts = log.version_starts(&store.layout().modules)?;
    for version_start in &version_starts {
        writer.set_version_start(version_start)?;
    }
    let row_policies = scope_rules.row_policies();
    let transaction = GroupTransaction::new(writer, row_policies, credentials, version_starts);
    let mut executor = Executor::new(transaction, start, sources, scope_rules);
    let mut requests = RequestIdRebuilder::default();
    executor.transaction.store.begin()?;
    let end = log.walk::<ReplayError>(&mut |event| {
        if to.is_some_and(|to| event.seq > to) {
            if requests.continues(event) {
                requests.forget();
            }
            return Ok(());
        }
        run_again(&mut executor, registry, event, &mut requests)?;
        if event.seq.0 % EVENTS_PER_COMMIT == 0 {
            commit(&mut executor)?;
            executor.transaction.store.begin()?;
        }
        progress(event.seq);
        Ok(())
    })?;
    if let Some(row) = requests.finish() {
        executor.transaction.store.remember_request(row)?;
    }
    let reached = executor.chain.seq;
    executor.transaction.store.prune_change_log(reached)?;
    commit(&mut executor)?;
    if reached == end.seq {
        for table in store.layout().tables().chain([RequestIdRow::SPEC]) {
            compare(log, &executor, table)?;
        }
    }
    drop(executor);
    store.checkpointer()?.truncate()?;
    Ok(reached)
}

/// Whether an event is the last one.
///
/// # Errors
/// [`ReplayError::Beyond`] if the log ends before it.
fn is_end(log: &LogFile, to: Seq) -> Result<bool, ReplayError> {
    let end = log.end()?;
    if to > end { Err(ReplayError::Beyond { to, end }) } else { Ok(to == end) }
}

/// Refuses a file whose rows cannot be compared at the end, before a file is made.
fn check_migrated(log: &LogFile, layout: &Layout) -> Result<(), ReplayError> {
    for table in layout.tables() {
        if !log.is_comparable(table)? {
            return Err(ReplayError::NotMigrated { table: table.name });
        }
    }
    Ok(())
}

fn run_again(
    executor: &mut Executor,
    registry: &Registry,
    event: &Event,
    requests: &mut RequestIdRebuilder,
) -> Result<(), ReplayError> {
    let seq = event.seq;
    let reducer = event.reducer.clone();
    let refused = |refusal| ReplayError::Refused { seq, reducer: reducer.clone(), refusal };
    // The arguments of an old log may be nested deeper than those of a call may be now.
    let arguments = integers::parse(&event.arguments).map_err(|why| ReplayError::Unreadable {
        seq,
        reducer: reducer.clone(),
        why,
    })?;
    let caller = Caller::recorded(&event.caller, event.authority.as_deref());
    let recorded = ReplayedEvent { at: event.at, salt: event.salt };
    let request_id = event.request_id.as_deref();
    let call = match event.reducer.as_str() {
        RECORD => request_ids::record_call(&arguments),
        reducer => {
            let arguments = CallArguments::from_value(&arguments);
            registry.prepare_any(reducer, arguments).map_err(refused)?
        }
    };
    let done = match call.reducer {
        RECORD => executor.record_again(recorded, &caller, request_id.unwrap_or_default(), &call),
        _ => executor.run_again(recorded, &caller, request_id, &call).map(drop),
    };
    done.map_err(|abort| refused(refusal_of(&abort)))?;
    if executor.chain.hash != event.hash {
        return Err(ReplayError::Differs { seq, reducer });
    }
    let ended = requests.add(event, caller, &call);
    if let Some(row) = ended.map_err(|_| ReplayError::Record { seq })? {
        executor.transaction.store.remember_request(row)?;
    }
    Ok(())
}

fn commit(executor: &mut Executor) -> Result<(), StoreError> {
    executor.transaction.flush()?;
    executor.transaction.store.commit()?;
    executor.transaction.overlay.group_finished();
    Ok(())
}

/// Compares the rows of a file with those of the replay.
fn compare(
    log: &LogFile,
    replayed: &Executor,
    table: &'static TableSpec,
) -> Result<(), ReplayError> {
    // A table without a column `seq` is derived from other tables. A file from before such a table does not have it:
    // the step that creates the table fills it.
    let is_derived = !table.columns.iter().any(|column| column.name == "seq");
    let is_stored = log.has(table)?;
    if is_derived && !is_stored {
        return Ok(());
    }
    let mut difference = None;
    let mut failed: Option<ReplayError> = None;
    log.rows(table, &mut |row| {
        let key = table.key_of(row);
        match replayed.transaction.store.get(table, &key) {
            Ok(again) => {
                difference = difference.take().or_else(|| difference_of(table, row, again))
            }
            Err(error) => failed = failed.take().or(Some(error.into())),
        }
    })?;
    if let Some(error) = failed.take() {
        return Err(error);
    }
    let columns: Vec<&str> = table.key.iter().map(|at| table.columns[*at].name).collect();
    let sql = format!("SELECT {} FROM {}", columns.join(", "), table.name);
    // Each key is looked up: those of a large table would not fit into memory.
    replayed.transaction.store.run(&sql, &[], &mut |key| {
        if difference.is_some() || failed.is_some() {
            return;
        }
        match if is_stored { log.has_row(table, key) } else { Ok(false) } {
            Ok(true) => {}
            Ok(false) => difference = Some(RowDifference::Missing { key: key_as_json(key) }),
            Err(error) => failed = Some(error.into()),
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    match difference {
        Some(difference) => Err(ReplayError::Rows { table: table.name, difference }),
        None => Ok(()),
    }
}

/// Returns how a row of the file differs from the replayed one; `None` if it does not.
fn difference_of(table: &TableSpec, row: &[Value], again: Option<Row>) -> Option<RowDifference> {
    let key = key_as_json(&table.key_of(row));
    let Some(again) = again else { return Some(RowDifference::Unknown { key }) };
    // A file of an older version lacks the last columns: the step that adds them also fills them.
    let at = (0..row.len()).find(|at| again.get(*at) != row.get(*at))?;
    let seq = table.columns.iter().position(|column| column.name == "seq");
    let seq = seq.and_then(|at| match again[at] {
        Value::Integer(seq) => Some(Seq(seq)),
        _ => None,
    });
    Some(RowDifference::Cell { key, column: table.columns[at].name, seq })
}

/// Returns a key as JSON values, separated by commas.
fn key_as_json(key: &[Value]) -> String {
    key.iter().map(|cell| cell.to_json().to_string()).collect::<Vec<_>>().join(", ")
}
