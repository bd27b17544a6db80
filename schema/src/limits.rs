//! Every bound of calls, rows, frames and queues, in one place, with its reason (those of sockets and
//! headers stand in `abide-server`). What is over one is refused with `limit_exceeded`,
//! or with `overloaded` where waiting helps.

use std::ops::RangeInclusive;

/// Bytes of one call's arguments as JSON text. Recorded agents read files of over a megabyte in one
/// message; eight leaves room without letting one call hold the writer for long.
pub const CALL_BYTES: usize = 8 << 20;

/// Events that one call may tell of a run: what a model streams between two commits is tens at most.
pub const RUN_EVENTS: usize = 1_000;

/// Runs between a run and the one at the top of its delegations. A definition can say less.
pub const DELEGATION_DEPTH: i64 = 5;

/// Runs that one run may cause by delegation, its descendants' included. A definition can say less. A call that starts
/// one counts them, and one that ends a run looks whether any of them is active.
pub const RUN_DESCENDANTS: i64 = 256;

/// Agents that are looked at to see whether a definition delegates in a circle.
pub const DELEGATED_AGENTS: usize = 1_000;

/// Calls in one `/v1/batch`: all of them share one transaction, which nobody else can join.
pub const BATCH_CALLS: usize = 1_000;

/// Bytes of a whole request or WebSocket message: one full call, or a batch of ordinary ones.
pub const MESSAGE_BYTES: usize = 16 << 20;

/// Bytes of one SQL statement. The longest hand-written ones seen are a tenth of it.
pub const SQL_BYTES: usize = 64 << 10;

/// Bytes of an id, a name or a request id: they are index keys.
pub const NAME_BYTES: usize = 512;

/// What a call weighs in the writer's queue beside its arguments: it waits there decoded, with the
/// channel for its answer.
pub const CALL_OVERHEAD_BYTES: usize = 1 << 10;

/// Bytes of calls that wait for the writer: some ten thousand ordinary ones, which is a fifth of a
/// second of work. Beyond it the answer is `overloaded`, not a longer queue, but for callers of whom little waits:
/// they have as much again between them, so that who fills the queue fills it for himself.
pub const WRITER_QUEUE_BYTES: usize = 16 << 20;

/// Bytes of calls in one transaction: some six hundred ordinary ones. By then the sync is paid for many
/// times over, and a longer batch only makes the first caller wait for the last.
pub const COMMIT_BYTES: usize = 1 << 20;

/// Commits that wait for their sync. The writer pauses rather than run further ahead of the disk.
/// A commit counts once more for each [`UNSYNCED_UNIT_BYTES`] of its calls.
pub const UNSYNCED_COMMITS: usize = 64;

/// See [`UNSYNCED_COMMITS`]: some four megabytes of calls are unsynced at a time.
pub const UNSYNCED_UNIT_BYTES: usize = 64 << 10;

/// Rows in one answer of `/v1/sql`.
pub const QUERY_ROWS: usize = 100_000;

/// Bytes that wait in memory for clients, of all callers together: bodies and messages that arrive, results and
/// deltas that leave. Four of the largest results, on a machine of a few gigabytes. The last quarter is reserved for
/// callers of whom little waits.
pub const BUFFERED_BYTES: usize = 256 << 20;

/// The same of one caller: one of the largest results, or eight of the largest bodies.
pub const BUFFERED_BYTES_PER_CALLER: usize = 96 << 20;

/// What must leave, of the bytes that wait for clients, before unused memory is given back to the system. Smaller
/// falls are used again sooner than they are given back.
pub const RECLAIMED_BYTES: usize = 16 << 20;

/// Results, deltas and texts from this size on are counted, and results shared; so are smaller deltas while so much
/// waits for one connection. What is smaller is bounded by the number of connections.
pub const COUNTED_BYTES: usize = 64 << 10;

/// Bytes of one answer of `/v1/sql`, and of one snapshot.
pub const QUERY_BYTES: usize = 64 << 20;

/// Bytes of a policy's condition: it stands in every statement that names the table.
pub const POLICY_BYTES: usize = 4 << 10;

/// Policies of one table for one role.
pub const POLICIES_OF_ONE: i64 = 16;

/// Policies of all tables and roles: the writer reads all of them whenever one changes.
pub const POLICIES: i64 = 1_000;

/// Milliseconds that one query may run: it holds one of few readers.
pub const QUERY_MS: u64 = 10_000;

/// Steps of SQLite's virtual machine that one query may take: half of what a fast machine does in the
/// time above, so that a recursion without an end stops at the same place there.
pub const QUERY_STEPS: u64 = 500_000_000;

/// Bytes by which the process may grow while one query runs. Nobody sorts as much for a person to look at, and
/// with every reader at it a machine with 2 GB stands it.
pub const QUERY_MEMORY_BYTES: usize = 256 << 20;

/// Bytes of one value, and of one row that is sorted. The largest event has 16 MB, and what encodes a longer value delays
/// other callers.
pub const QUERY_VALUE_BYTES: usize = 17 << 20;

/// Bytes of a pattern of LIKE or GLOB.
pub const PATTERN_BYTES: usize = 4 << 10;

/// Arguments of one function: of some, such as `json_set`, each reads the whole document.
pub const FUNCTION_ARGUMENTS: usize = 100;

/// Bytes that the operators and functions of one query may pass over for one row, each counted with the longest value:
/// within a row SQLite cannot be interrupted. A query of many operators so has shorter values; up to 32 operators
/// have those of [`QUERY_VALUE_BYTES`]. It is about a second of copying.
pub const QUERY_ROW_BYTES: usize = 1 << 30;

/// The same of a live query, which the writer evaluates: some ten milliseconds. Where a value is longer, the query is run
/// again by a reader.
pub const LIVE_ROW_BYTES: usize = 32 << 20;

/// The shortest of the longest values that [`QUERY_ROW_BYTES`] and [`LIVE_ROW_BYTES`] lead to.
pub const VALUE_BYTES_AT_LEAST: usize = 4 << 10;

/// How long a value may be where all operators of a row may pass over so much.
#[must_use]
pub fn value_bytes(row_bytes: usize, operations: usize) -> usize {
    (row_bytes / operations.max(1)).clamp(VALUE_BYTES_AT_LEAST, QUERY_VALUE_BYTES)
}

/// Connections that read. On two cores more would only take turns. One more looks up credentials, and nothing else: whoever
/// fills the others keeps nobody from being let in.
pub const READERS: usize = 4;

/// Readers that one caller may have at a time, so that its long queries leave some for others.
pub const READERS_OF_A_CALLER: usize = 2;

/// Queries that wait for a reader; one with large parameters counts once for every
/// [`READER_QUEUE_UNIT_BYTES`] of them. Callers of whom little waits have as much again between them.
pub const READER_QUEUE: usize = 1_024;

/// See [`READER_QUEUE`].
pub const READER_QUEUE_UNIT_BYTES: usize = 64 << 10;

/// Rows in one part of a snapshot: a few tens of kilobytes a frame.
pub const SNAPSHOT_PART_ROWS: usize = 500;

/// Bytes of rows in one part of a snapshot, where it has more than one row: what a connection that does not read
/// holds beside the rows that it shares.
pub const SNAPSHOT_PART_BYTES: usize = 128 << 10;

/// Subscriptions of one connection.
pub const SUBSCRIPTIONS_PER_CONNECTION: usize = 10_000;

/// Live bindings, all connections together whose condition the router has no key for: each of
/// them is asked about every change of its table.
pub const RESIDUAL_BINDINGS_PER_TABLE: usize = 1_000;

/// Bytes that are remembered of live results, so that their deltas cost less: groups' accumulators,
/// windows. What does not fit is evaluated again.
pub const LIVE_STATE_BYTES: usize = 64 << 20;

/// Steps of SQLite's virtual machine that a delta may take on average, for the bindings of one template:
/// about a millisecond of the writer's time. What is above is run again by a reader instead.
pub const LIVE_DELTA_STEPS: u64 = 50_000;

/// Steps after which a single delta is interrupted: some twenty milliseconds, once in a while.
pub const LIVE_DELTA_MOST_STEPS: u64 = 1_000_000;

/// Milliseconds of processor time after which a single delta is interrupted: what steps do not tell, such as long values.
pub const LIVE_DELTA_MS: u64 = 25;

/// Milliseconds at least between two runs of a live query that is run again as a whole.
pub const RERUN_MS: u64 = 50;

/// Steps that the deltas of all live queries together may take of one commit: a tenth of a second at
/// worst. Those beyond are run again by readers.
pub const LIVE_COMMIT_STEPS: u64 = 5_000_000;

/// Bytes of frames that wait for one connection. A client that is further behind has its queue
/// dropped and is caught up from its seq when it reads again.
pub const OUTBOX_BYTES: usize = 1 << 20;

/// Changed rows that a resume reads from the change log before a fresh snapshot is the cheaper answer.
pub const RESUME_CHANGES: usize = 100_000;

/// Events for which the change log is kept where nothing else is said, that is how far behind a client
/// may resume.
pub const CHANGE_LOG_EVENTS: u64 = 1_000_000;

/// Bytes in the WAL from which a checkpoint is due: small enough that a restart recovers it at once,
/// large enough that a page which many commits touch is moved once. Not measured against others yet.
pub const CHECKPOINT_WAL_BYTES: u64 = 16 << 20;

/// Milliseconds between `progress` marks of a quiet connection.
pub const PROGRESS_MS: u64 = 5_000;

/// The shortest and the longest lease, in milliseconds: a second to notice, a day to work.
pub const LEASE_MS: RangeInclusive<i64> = 1..=86_400_000;

/// How far ahead a moment may lie that something waits for, in milliseconds: ten years. What is to
/// outlast that is no timer.
pub const AHEAD_MS: RangeInclusive<i64> = 0..=315_360_000_000;

/// Rows whose moment has come that one transaction takes on: some five milliseconds of work, so that
/// a million timers due at once hold nobody up for longer.
pub const DUE_PER_COMMIT: usize = 256;

/// Rows of one kind whose reducer refused to take them on, which are passed over. With that many the
/// reducer is broken, and the kind rests.
pub const DUE_STUCK: usize = 1_000;

/// How often a call may be attempted, as a tool may say.
pub const ATTEMPTS: RangeInclusive<i64> = 1..=1_000;

/// Calls that a tool may say it takes at a time, in a session, or in a span. Each claim of a tool that
/// limits its rate looks at that many index entries.
pub const TOOL_CALLS: RangeInclusive<i64> = 1..=10_000;

/// Bytes of a tool's JSON Schema as text. The longest of recorded tools are a tenth of it.
pub const TOOL_SCHEMA_BYTES: usize = 64 << 10;

/// Steps that it may take to hold arguments to a tool's JSON Schema. A step is a subschema, a comparison or some bytes of
/// text. `abide-bench writer` prints how many steps recorded calls take, and how long so many take.
pub const TOOL_SCHEMA_STEPS: u64 = 500_000;

/// Steps of some work that the writer does itself ([`crate::work`]): less than the rest of the call takes. Readers do
/// what takes more.
pub const WRITER_STEPS: u64 = 2_000;

/// How often a call is deferred. More means that a schema changes again and again while arguments are held to it.
pub const DEFERRALS: usize = 8;

/// Bytes of a JSON Schema without patterns that the writer compiles itself.
pub const WRITER_SCHEMA_BYTES: usize = 4 << 10;

/// Levels of arrays and objects in a tool's JSON Schema. Recorded tools have a dozen.
pub const TOOL_SCHEMA_DEPTH: usize = 64;

/// Subschemas that a tool's JSON Schema may come to with its local references written out.
pub const TOOL_SCHEMA_NODES: usize = 10_000;

/// Tools that a worker may ask the next call of in one call.
pub const TOOLS_OF_A_CLAIM: usize = 100;

/// Rows that one claim looks at for one that it may take: those that its policies hide, that are being cancelled, or
/// that match a part of its scope only.
pub const LOOKS_OF_A_CLAIM: usize = 1_000;

/// Denied attempts of one caller that are put on record in a row, each with its event. Further ones
/// are counted, and one more is recorded every [`DENIAL_EVERY_MS`].
pub const DENIALS_AT_ONCE: u32 = 10;

/// See [`DENIALS_AT_ONCE`]: a caller who is denied day and night writes 8,640 rows a day.
pub const DENIAL_EVERY_MS: i64 = 10_000;

/// Callers whose denied attempts are kept count of at a time. Those of others are not recorded meanwhile.
pub const DENIED_CALLERS: usize = 4_096;

/// Callers with a rate or a quota who are kept count of at a time.
pub const LIMITED_CALLERS: usize = 100_000;

/// Calls that an identity may be allowed in a span.
pub const ALLOWED_CALLS: RangeInclusive<i64> = 1..=1_000_000_000;

/// The span that an allowance of calls is for, in milliseconds: up to a month.
pub const ALLOWED_SPAN_MS: RangeInclusive<i64> = 1..=2_678_400_000;

/// Keys of a scope, of a session or an identity: every look at a row compares them.
pub const SCOPE_KEYS: usize = 16;

/// Rows that one step of a cleanup ends or looks at: some five milliseconds of work. A session with fewer calls,
/// timers and descendants ends in one transaction.
pub const CLEANUP_ROWS: usize = 100;

/// Steps of cleanups that one transaction takes: each is as much work as many ordinary calls.
pub const CLEANUPS_PER_COMMIT: usize = 1;

/// Sessions that may stand above one another. While something above is being cancelled, each call that would
/// begin something looks at all of them.
pub const SESSION_DEPTH: i64 = 100;

const _: () = assert!(CALL_BYTES < MESSAGE_BYTES, "a full call must fit its envelope");
const _: () = assert!(COMMIT_BYTES <= WRITER_QUEUE_BYTES, "a full commit must fit the queue");
