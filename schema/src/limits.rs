//! All limits of calls, rows, frames and queues, with their reasons. Those of sockets and headers are in `abide-server`,
//! those of the other protocols in `abide-protocols`. Exceeding one is refused with `limit_exceeded`, or with
//! `rate_limited` or `overloaded` if a retry can succeed.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes of one call's arguments as JSON text. Recorded agents read files of over a megabyte in one
/// message; eight leave room without letting one call occupy the writer for long.
pub const CALL_BYTES: usize = 8 << 20;

/// Events that one call may record for a run: a model streams tens of them between two commits.
pub const RUN_EVENTS: usize = 1_000;

/// Depth of delegation: runs between a run and the top of its chain. A definition can set a lower limit.
pub const DELEGATION_DEPTH: i64 = 5;

/// Runs that one run may start by delegation, including its descendants'. A definition can set a lower limit. An
/// abort updates all of them in one transaction, so this bounds that transaction.
pub const RUN_DESCENDANTS: i64 = 256;

/// Agents examined to detect a delegation cycle.
pub const DELEGATED_AGENTS: usize = 1_000;

/// Steps of the exchange of one tool call with its server. A server can ask this often before it gives a result; each
/// question also needs a decision, so a person notices earlier.
pub const EXCHANGES_OF_A_CALL: i64 = 100;

/// Bytes of one of these steps: a server's questions with their forms, or the answers. A server chooses most of it, and it is
/// stored in the log.
pub const EXCHANGE_BYTES: usize = 256 << 10;

/// Questions that a server can ask at a time. Each is a call with an approval.
pub const INPUTS_AT_ONCE: usize = 8;

/// Bytes of a question's text, and of its URL: a person reads it.
pub const INPUT_MESSAGE_BYTES: usize = 8 << 10;

/// Calls in one `/v1/batch`: all of them share one transaction, which no other call can join.
pub const BATCH_CALLS: usize = 1_000;

/// Levels of JSON that the records of a run may have in addition to [`MAX_DEPTH`](crate::integers::MAX_DEPTH): an event
/// has the arguments of a call within a list of its calls, for instance.
pub const RECORD_DEPTH: usize = 16;

/// Levels of JSON that a snapshot may have in addition to [`MAX_DEPTH`](crate::integers::MAX_DEPTH): it has what a run
/// has recorded, some five levels deeper. With it, the messages around it stay below the 127 levels that readers of JSON accept.
pub const SNAPSHOT_DEPTH: usize = 32;

/// Values in one request or WebSocket message, as [`crate::json_values`] counts them. With the most expensive values
/// a message of this many takes some 60 MB while it is parsed.
pub const JSON_VALUES: usize = 250_000;

/// Values in one request of A2A, counted in the same way. They are copied several times: into the message that is
/// stored, its digest and the input of the run. In gRPC a value of a list is two fields, so it has twice as many fields.
pub const A2A_VALUES: usize = 50_000;

/// Bytes of a whole request or WebSocket message: one full call, or a batch of ordinary ones.
pub const MESSAGE_BYTES: usize = 16 << 20;

/// Bytes of one SQL statement. The longest hand-written ones seen are a tenth of it.
pub const SQL_BYTES: usize = 64 << 10;

/// Bytes of an id, a name or a request id: they are index keys.
pub const NAME_BYTES: usize = 512;

/// Maximum number of waiting rows of one kind that `/metrics` counts: a scrape costs a reader about a millisecond for each
/// kind.
pub const WAITING_ROWS: usize = 10_000;

/// Queue overhead of a call in addition to its arguments: it waits decoded, with the channel for its reply.
pub const CALL_OVERHEAD_BYTES: usize = 1 << 10;

/// Bytes of calls queued for the writer: some ten thousand ordinary ones, a fifth of a second of work.
/// Beyond that, calls are refused with `overloaded`, except from callers with little in the queue: they share
/// a reserve of the same size, so that a caller that floods the queue delays only itself.
pub const WRITER_QUEUE_BYTES: usize = 16 << 20;

/// Bytes of calls in one transaction: some six hundred ordinary ones. By then the sync is well amortised, and
/// a longer batch only makes the first caller wait for the last.
pub const COMMIT_BYTES: usize = 1 << 20;

/// Bytes of journal records after which SQLite commits their groups. More would make the commit itself, during which
/// calls wait, longer than some milliseconds. Measured (`abide-bench turns`): 1 MiB here
/// and 16 MiB for [`CHECKPOINT_WAL_BYTES`] together give 12 % fewer turns.
pub const OPEN_TRANSACTION_BYTES: usize = 4 << 20;

/// [`OPEN_TRANSACTION_BYTES`] while the disk has less than [`LOW_DISK_BYTES`].
pub const OPEN_TRANSACTION_BYTES_LOW: usize = 128 << 10;

/// Below this much space, a disk counts as nearly full.
pub const LOW_DISK_BYTES: u64 = 64 << 20;

/// Time without calls after which SQLite commits an open transaction: longer than a caller takes from one answer to its
/// next call.
pub const OPEN_TRANSACTION_IDLE: Duration = Duration::from_millis(3);

/// Time after which SQLite commits an open transaction while calls arrive. Other programs that read the file see it that
/// much later.
pub const OPEN_TRANSACTION: Duration = Duration::from_millis(100);

/// Time between two commits for readers, while calls arrive: readers that arrive meanwhile share one commit.
pub const READER_COMMIT: Duration = Duration::from_millis(4);

/// Bytes of a segment of the journal: some thousand ordinary calls.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// Bytes of journal that trigger a checkpoint, so that the recovery after a crash takes less than a second.
pub const CHECKPOINT_JOURNAL_BYTES: u64 = 48 << 20;

/// Steps of SQLite's virtual machine after which a batch of so many calls is refused before its next call. An ordinary
/// call takes some hundreds, the first step of a cancellation up to 45,000 (`reducers/tests/rules/costs.rs`).
#[must_use]
pub fn batch_steps(calls: usize) -> u64 {
    100_000 + 1_000 * calls as u64
}

/// Bytes of the arguments of a restricted caller's batch besides those of its largest call: some thirty milliseconds of work.
pub const BATCH_BYTES: usize = 1 << 20;

/// Changed rows after which a batch is refused before its next call. A call that appends a message changes two.
pub const BATCH_ROWS: u64 = 4_000;

/// Bytes of results after which a batch is refused before its next call. Most results are rows: a call that changes a
/// large one reads it, writes it, logs it and returns it, for some milliseconds each megabyte.
pub const BATCH_RESULT_BYTES: usize = 4 << 20;

/// Bytes of rows that a batch reads after which it is refused before its next call. Rows that a call replaces or deletes
/// are read, and become undo images.
pub const BATCH_READ_BYTES: u64 = 16 << 20;

/// Bytes of rows that a group reads after which its other units wait for the next group. The undo images of a group are
/// one value for each table, which SQLite limits to 1 GB.
pub const GROUP_READ_BYTES: u64 = 32 << 20;

/// Entries of a collection that one call writes or deletes by key: a few milliseconds of work.
pub const ENTRIES_OF_A_CALL: usize = 1_000;

/// Bytes of stored entries that one call reads, to replace, to compare or to delete them: it must not block others for
/// long, nor fill the memory. The first entry is always read.
pub const ENTRIES_BYTES: usize = 16 << 20;

/// Entries of a collection that one call deletes by a prefix of their keys.
pub const ENTRIES_DELETED: usize = 200;

/// Bytes of an entry's key: several names, since frameworks address their data by paths.
pub const ENTRY_KEY_BYTES: usize = 1_024;

/// Steps that the policies of a caller's role may take on the writer in one call. A condition can read tables, and
/// with them rows that a tenant has stored.
pub const POLICY_STEPS: u64 = 1_000_000;

/// Milliseconds of processor time that one evaluation of policies on the writer may take.
pub const POLICY_MS: u64 = 50;

/// Commits that wait for their sync. The writer pauses rather than run further ahead of the disk.
/// A commit counts once more for each [`UNSYNCED_UNIT_BYTES`] of its calls.
pub const UNSYNCED_COMMITS: usize = 64;

/// See [`UNSYNCED_COMMITS`]: some four megabytes of calls are unsynced at a time.
pub const UNSYNCED_UNIT_BYTES: usize = 64 << 10;

/// Rows in one result of `/v1/sql`.
pub const QUERY_ROWS: usize = 100_000;

/// Bytes buffered for all clients: request bodies and results. Room for four of the largest results, on a
/// machine with a few gigabytes.
pub const BUFFERED_BYTES: usize = 256 << 20;

/// Bytes buffered for one caller: one of the largest results, or eight of the largest bodies.
pub const BUFFERED_BYTES_PER_CALLER: usize = 96 << 20;

/// Results from this size on are accounted and shared. The number of connections bounds the smaller ones.
pub const COUNTED_BYTES: usize = 64 << 10;

/// Bytes of one result of `/v1/sql`, and of one snapshot.
pub const QUERY_BYTES: usize = 64 << 20;

/// Bytes of a policy's condition: it is part of every statement that names the table.
pub const POLICY_BYTES: usize = 4 << 10;

/// Policies of one table for one role.
pub const POLICIES_OF_ONE: i64 = 16;

/// Policies of all tables and roles: the writer reads all of them whenever one changes.
pub const POLICIES: i64 = 1_000;

/// Milliseconds that one query may run: it occupies one of few readers.
pub const QUERY_MS: u64 = 10_000;

/// Steps of SQLite's virtual machine that one query may take: half of what a fast machine executes in
/// [`QUERY_MS`], so that an endless recursion stops at the same point on such machines.
pub const QUERY_STEPS: u64 = 500_000_000;

/// Bytes by which SQLite's memory may grow while one query runs. An interactive query needs no larger sort, and
/// a machine with 2 GB has room for it on every reader.
pub const QUERY_MEMORY_BYTES: usize = 256 << 20;

/// Bytes of one value, and of one row that is sorted. The largest event has 16 MB; encoding a longer value would
/// delay other callers.
pub const QUERY_VALUE_BYTES: usize = 17 << 20;

/// Bytes of the undo images of one commit and table: the former cells of the rows that it changed, as one value.
/// Whoever reads a past state, or resumes, needs as much memory. A group of calls that changes more runs again as
/// single calls, and a call that changes more is refused.
pub const UNDO_IMAGES_BYTES: usize = 256 << 20;

/// Bytes of a LIKE or GLOB pattern.
pub const PATTERN_BYTES: usize = 4 << 10;

/// Arguments of one function: in some, such as `json_set`, each reads the whole document.
pub const FUNCTION_ARGUMENTS: usize = 100;

/// Bytes that the operators and functions of one query may process for one row, each counted with the longest value:
/// SQLite cannot be interrupted within a row. Queries with many operators get shorter values; up to 32 operators
/// allow [`QUERY_VALUE_BYTES`]. It corresponds to about a second of copying.
pub const QUERY_ROW_BYTES: usize = 1 << 30;

/// [`QUERY_ROW_BYTES`] for a live query, which the writer evaluates: some ten milliseconds. If a value is longer, a reader
/// runs the query again.
pub const LIVE_ROW_BYTES: usize = 32 << 20;

/// Lower bound of the maximum value length derived from [`QUERY_ROW_BYTES`] and [`LIVE_ROW_BYTES`].
pub const VALUE_BYTES_AT_LEAST: usize = 4 << 10;

/// Maximum length of a value if all operators of a row may process this many bytes.
#[must_use]
pub fn value_bytes(row_bytes: usize, operations: usize) -> usize {
    (row_bytes / operations.max(1)).clamp(VALUE_BYTES_AT_LEAST, QUERY_VALUE_BYTES)
}

/// Reader connections. On two cores, more would only share the time. One additional reader looks up credentials
/// only: a caller that occupies the others does not delay authentication.
pub const READERS: usize = 4;

/// Readers that one caller may use at a time, so that its long queries leave some for others.
pub const READERS_OF_A_CALLER: usize = 2;

/// Queries that wait for a reader; one with large parameters counts once for every
/// [`READER_QUEUE_UNIT_BYTES`] of them. Callers with little in the queue share a reserve of the same size.
pub const READER_QUEUE: usize = 1_024;

/// See [`READER_QUEUE`].
pub const READER_QUEUE_UNIT_BYTES: usize = 64 << 10;

/// Rows in one part of a snapshot: a few tens of kilobytes per frame.
pub const SNAPSHOT_PART_ROWS: usize = 500;

/// Bytes of rows in one part of a snapshot with more than one row: the memory of a connection that does not
/// read, in addition to shared rows.
pub const SNAPSHOT_PART_BYTES: usize = 128 << 10;

/// Bytes of the parameters of one live query, as JSON: they are held as long as it lives.
pub const LIVE_PARAMETER_BYTES: usize = 64 << 10;

/// Bytes of the parameters of a live query that are not counted: a live query without parameters takes as much.
pub const SMALL_LIVE_PARAMETER_BYTES: usize = 1 << 10;

/// Counted bytes of the parameters of all live queries.
pub const ALL_LIVE_PARAMETER_BYTES: usize = 64 << 20;

/// Counted bytes of the parameters of one caller's live queries.
pub const LIVE_PARAMETER_BYTES_PER_CALLER: usize = 8 << 20;

/// Subscriptions of one connection.
pub const SUBSCRIPTIONS_PER_CONNECTION: usize = 10_000;

/// Live bindings on all connections whose condition has no routing key: each of them is evaluated for
/// every change of its table. One tenant can have a quarter of them.
pub const RESIDUAL_BINDINGS_PER_TABLE: usize = 1_000;

/// Bytes that the subscriptions of restricted callers hold: their texts, and [`SUBSCRIPTION_OVERHEAD_BYTES`] each. One
/// tenant can have a quarter, for some 60,000 ordinary subscriptions.
pub const SUBSCRIPTIONS_BYTES: usize = 256 << 20;

/// Memory of a subscription besides its text and large parameters.
pub const SUBSCRIPTION_OVERHEAD_BYTES: usize = 1 << 10;

/// Bytes of cached state of live queries, which makes deltas cheaper: accumulators of groups,
/// top-N results. Queries beyond it are evaluated again.
pub const LIVE_STATE_BYTES: usize = 64 << 20;

/// Average steps of SQLite's virtual machine for a delta of one template: about a millisecond of the
/// writer's time. More expensive queries are run again by a reader instead.
pub const LIVE_DELTA_STEPS: u64 = 50_000;

/// Steps after which a single delta is interrupted: some twenty milliseconds, occasionally.
pub const LIVE_DELTA_MOST_STEPS: u64 = 1_000_000;

/// Milliseconds of CPU time after which a single delta is interrupted, and after which no further delta of one tenant
/// begins in a commit. A safety net: steps also count the bytes that functions read.
pub const LIVE_DELTA_MS: u64 = 25;

/// Milliseconds of CPU time after which no further delta begins in a commit.
pub const LIVE_COMMIT_MS: u64 = 100;

/// Operators, functions and paths of a live query. Each may read a value of [`VALUE_BYTES_AT_LEAST`], so a row costs at
/// most [`LIVE_ROW_BYTES`].
pub const LIVE_OPERATIONS: usize = LIVE_ROW_BYTES / VALUE_BYTES_AT_LEAST;

/// Milliseconds that a reader may take to fill the accumulators of a group.
pub const LIVE_FILL_MS: u64 = 2_000;

/// Minimum milliseconds between two full runs of a live query.
pub const RERUN_MS: u64 = 50;

/// Steps that the deltas of the operator's live queries may take for one commit: a tenth of a second at
/// worst. Each tenant has a quarter, and the views of restricted callers have half. Readers run the remaining
/// queries again.
pub const LIVE_COMMIT_STEPS: u64 = 5_000_000;

/// Steps that the start of a statement counts in [`LIVE_COMMIT_STEPS`]: 30 to 50 µs, of which its fifty steps are one.
/// Without that, ten thousand deltas of fifty steps each would take half a second of the writer.
pub const LIVE_STATEMENT_STEPS: u64 = 1_500;

/// Bytes of frames queued for one connection. If a client falls further behind, its queue is
/// dropped and it is caught up from its seq when it reads again.
pub const OUTBOX_BYTES: usize = 1 << 20;

/// Changed rows that a resume reads from the change log; beyond that, a new snapshot is cheaper.
pub const RESUME_CHANGES: usize = 100_000;

/// Default retention of the change log in events: how far behind a client can resume.
pub const CHANGE_LOG_EVENTS: u64 = 1_000_000;

/// WAL size in bytes that triggers a checkpoint: small enough for fast recovery after a restart, large enough that a
/// page changed by many commits is copied once. For a measurement see [`OPEN_TRANSACTION_BYTES`].
pub const CHECKPOINT_WAL_BYTES: u64 = 48 << 20;

/// Milliseconds between `progress` messages of an idle connection.
pub const PROGRESS_MS: u64 = 5_000;

/// The shortest and the longest lease, in milliseconds: one second to one day.
pub const LEASE_MS: RangeInclusive<i64> = 1..=86_400_000;

/// Maximum delay of a timer or deadline, in milliseconds: ten years.
pub const AHEAD_MS: RangeInclusive<i64> = 0..=315_360_000_000;

/// Due rows that one transaction processes: some five milliseconds of work, so that
/// a million timers due at once delay other calls no longer than that.
pub const DUE_PER_COMMIT: usize = 64;

/// Bytes of rows that the calls for due rows read in one transaction; the others wait for the next one. A timer can deliver
/// megabytes.
pub const DUE_BYTES: u64 = 1 << 20;

/// Due rows that one transaction reads to sort them by tenant: some three milliseconds. It is more than
/// [`DUE_PER_COMMIT`], so that the rows of one tenant do not hide those of the others.
pub const DUE_READ_PER_COMMIT: usize = 1_024;

/// Due rows of one kind in memory, sorted by tenant, for some hundred bytes each. If more are due, the rest is read in the
/// order of their due times as these are processed.
pub const DUE_IN_MEMORY: usize = 100_000;

/// Due rows of one kind and one tenant in memory. If more are due, they are read again when these are processed: they take
/// no room from the rows of other tenants.
pub const DUE_OF_A_TENANT: usize = 20_000;

/// Pending timers of the sessions of one scope, and of those of one tenant. All of them can be due at the same time.
pub const TIMERS_OF_A_SCOPE: i64 = 10_000;

/// Pending timers without a session, and of sessions without a scope: they are those of the operator.
pub const TIMERS_WITHOUT_SCOPE: i64 = 1_000_000;

/// Skipped due rows of one kind, after their reducer refused them. At this number the reducer is considered
/// broken, and the kind is suspended.
pub const DUE_STUCK: usize = 1_000;

/// Allowed values for a tool's maximum attempts.
pub const ATTEMPTS: RangeInclusive<i64> = 1..=1_000;

/// Allowed values for a tool's limits of concurrent calls, calls per session, and calls per period. Each claim of
/// a rate-limited tool reads that many index entries.
pub const TOOL_CALLS: RangeInclusive<i64> = 1..=10_000;

/// Bytes of a tool's JSON Schema as text. The longest of recorded tools are a tenth of it.
pub const TOOL_SCHEMA_BYTES: usize = 64 << 10;

/// Steps to validate arguments against a tool's JSON Schema. A step is a subschema, a comparison or a few bytes of
/// text. `abide-bench writer` prints the steps of recorded calls, and the time of this many steps.
pub const TOOL_SCHEMA_STEPS: u64 = 500_000;

/// Steps of deferrable work that the writer does itself ([`crate::work`]): less than the rest of the call takes.
/// Readers do larger work.
pub const WRITER_STEPS: u64 = 2_000;

/// Maximum deferrals of a call. More means that a schema changes repeatedly during validation.
pub const DEFERRALS: usize = 8;

/// Bytes of a JSON Schema without patterns that the writer compiles itself.
pub const WRITER_SCHEMA_BYTES: usize = 4 << 10;

/// Nesting depth of a tool's JSON Schema. Recorded tools have a dozen levels.
pub const TOOL_SCHEMA_DEPTH: usize = 64;

/// Subschemas of a tool's JSON Schema after expanding local references.
pub const TOOL_SCHEMA_NODES: usize = 10_000;

/// Tools that a worker can name in one claim.
pub const TOOLS_OF_A_CLAIM: usize = 100;

/// Rows that one claim examines to find one it may take: it skips rows that policies hide, rows being
/// cancelled, and rows that match only a part of its scope.
pub const ROWS_EXAMINED_PER_CLAIM: usize = 1_000;

/// Bytes of calls after which one claim examines no further one. The first is nearly always one that the caller may claim.
pub const CLAIM_BYTES: usize = 32 << 20;

/// Denied attempts of one caller that are recorded individually, each with a row and an event. Further ones
/// are counted, and one more is recorded every [`DENIAL_EVERY_MS`].
pub const DENIALS_AT_ONCE: u32 = 10;

/// See [`DENIALS_AT_ONCE`]: a caller that is denied continuously writes 8,640 rows a day.
pub const DENIAL_EVERY_MS: i64 = 10_000;

/// Callers whose denied attempts are counted at a time. Those of further callers are not recorded meanwhile.
pub const DENIED_CALLERS: usize = 4_096;

/// Changed rows for which a call counts as one more in the caller's rate and quota. An ordinary call changes fewer than
/// twenty; the fork of a session with 19,000 messages changes 20,000 rows in its steps, and counts as 200 calls.
pub const ROWS_PER_CALL: u64 = 100;

/// Callers with a rate limit or a quota that are tracked at a time.
pub const LIMITED_CALLERS: usize = 100_000;

/// Allowed values for a limit of calls per period.
pub const ALLOWED_CALLS: RangeInclusive<i64> = 1..=1_000_000_000;

/// The period of a call limit, in milliseconds: up to a month.
pub const ALLOWED_SPAN_MS: RangeInclusive<i64> = 1..=2_678_400_000;

/// Keys of a session's or identity's scope: every row check compares them.
pub const SCOPE_KEYS: usize = 16;

/// Rows that one cleanup step ends or examines: some five milliseconds of work. A session with fewer calls,
/// timers and descendants ends in one transaction.
pub const CLEANUP_ROWS: usize = 100;

/// Bytes of rows after which a cleanup step reads no further row: some ten milliseconds of work. A call or a timer can have
/// megabytes, and a step reads, writes and logs it.
pub const CLEANUP_BYTES: usize = 1 << 20;

/// Cleanup steps in one transaction: each is as much work as many ordinary calls.
pub const CLEANUPS_PER_COMMIT: usize = 1;

/// Depth of the session hierarchy. While an ancestor is being cancelled, each call that starts
/// something checks all of them.
pub const SESSION_DEPTH: i64 = 100;

/// Parts of a message in A2A: one for each paragraph or file of a long message. Each is copied several times.
pub const A2A_PARTS: usize = 64;

/// Bytes of a message's id in A2A: it is a part of a key. A UUID has 36.
pub const A2A_MESSAGE_ID_BYTES: usize = 256;

/// Messages in the history of a task in A2A. Each can have megabytes, and a client asks for fewer.
pub const A2A_HISTORY: usize = 100;

/// Tasks in one page of a list in A2A, as the protocol says.
pub const A2A_PAGE: usize = 100;

/// Webhooks of a run: each event is sent to all of them.
pub const WEBHOOKS_OF_A_RUN: i64 = 10;

/// Bytes of the address of a webhook. Browsers and proxies accept as many.
pub const WEBHOOK_URL_BYTES: usize = 2_048;

/// Bytes of a secret of a webhook: it is a header, and servers accept 8 KiB of headers.
pub const WEBHOOK_SECRET_BYTES: usize = 4 << 10;

/// Bytes of the metadata of a session after a change. The row is written by each call of the session, and a tool gets it
/// with each call.
pub const SESSION_METADATA_BYTES: usize = 64 << 10;

const _: () = assert!(CALL_BYTES < MESSAGE_BYTES, "a full call must fit its envelope");
const _: () = assert!(COMMIT_BYTES <= WRITER_QUEUE_BYTES, "a full commit must fit the queue");

/// Maximum size of a reason for people in bytes, such as that of a pause: it is copied into events.
pub const REASON_BYTES: usize = 4 << 10;

/// Maximum size of a snapshot of a run in bytes: it is an argument of one call, with room for the other arguments.
pub const SNAPSHOT_BYTES: usize = 7 << 20;

/// Maximum number of messages and tool calls that a snapshot copies in one transaction, and a fork in all its steps.
pub const SNAPSHOT_ROWS: usize = 20_000;

/// Maximum size of the messages and outcomes that a fork copies, in bytes: a request of some bytes writes as much.
pub const FORK_BYTES: usize = 16 << 20;

/// Rows that one step of a fork copies: some five milliseconds of work. The fork of a shorter session is one transaction.
pub const FORK_STEP_ROWS: usize = 200;

/// Bytes of messages and outcomes that one step of a fork copies: some ten milliseconds of work. A larger row is a step of
/// its own.
pub const FORK_STEP_BYTES: usize = 1 << 20;

/// Steps of forks in one transaction: each is as much work as many ordinary calls.
pub const FORK_STEPS_PER_COMMIT: usize = 1;

/// Calls that one message of a forked session can name: each step looks all of them up. A model requests a few.
pub const FORK_CALLS_OF_A_MESSAGE: usize = 1_000;

/// Spaces of facts that the messages of a forked session can name.
pub const FORK_SPACES: usize = 100;

/// Facts in a memory space. A search compares all of them, and a full space still takes milliseconds.
pub const MEMORIES_OF_A_SPACE: i64 = 1_000;

/// Facts that one call writes, forgets or embeds: a few milliseconds of work.
pub const MEMORIES_OF_A_CALL: usize = 100;

/// Bytes of the key of a fact: it is a name, and an index has it.
pub const MEMORY_KEY_BYTES: usize = 256;

/// Bytes of the value of a fact. A fact is a sentence, and facts share the budget of a prompt.
pub const MEMORY_VALUE_BYTES: usize = 4 << 10;

/// Bytes of an embedding: 4,096 dimensions. Common models have 256 to 3,072.
pub const EMBEDDING_BYTES: usize = 16 << 10;

/// Health rows of one run: those of its last answers.
pub const HEALTH_ROWS: i64 = 1_000;

/// Steps of a plan: a plan is part of each request to a model.
pub const PLAN_STEPS: usize = 100;

/// Bytes of a text of a step, for the same reason.
pub const PLAN_TEXT_BYTES: usize = 4_000;

/// Bytes of a prompt, also with the values of its variables: it is a part of each request to a model. It is as long as a file of
/// instructions may be.
pub const PROMPT_BYTES: usize = 1 << 20;

/// Variables of a prompt: a person gives each a value.
pub const PROMPT_VARIABLES: usize = 100;

/// Bytes of the name of a variable.
pub const PROMPT_VARIABLE_BYTES: usize = 64;

/// Bytes of the description of a prompt: lists have all of them.
pub const PROMPT_DESCRIPTION_BYTES: usize = 1 << 10;

/// Labels of a prompt: each answer about the prompt has all of them.
pub const PROMPT_LABELS: i64 = 50;

/// Bytes of a label.
pub const PROMPT_LABEL_BYTES: usize = 64;
