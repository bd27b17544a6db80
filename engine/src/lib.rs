//! The runtime: one writer, group commit, durability, publish, recovery.
//!
//! It changes when the path from a call to a durable commit or to subscribers changes. It does not depend on
//! HTTP, agents, or any particular reducer: the embedding program registers reducers.
//!
//! ```text
//! caller ─▶ queue ─▶ writer ─▶ reducer ─▶ rows + event ─▶ journal ─▶ sync ─▶ answers
//!                    one thread, groups of calls            │         └────▶ deltas ─▶ outboxes
//!                                                           └─ many groups later: COMMIT of the rows
//! ```
//!
//! In reading order: [`Engine`] the handle · `commit` the path of a call, with the file that decides each step and what
//! follows a crash · `access` what a caller may do · `queries` the path of a query · `subscriptions` live queries on
//! [`Connection`]s · `replay` · `fault_points` where tests inject faults. Each folder's own file lists its modules.
//!
//! # How a call is read
//!
//! The arguments of a call are read once, on the caller's thread, into [`CallArguments`](abide_schema::CallArguments):
//! canonical JSON, with the places of its members. A server has `serde` write them while it parses the message; an
//! embedded caller passes a value. Depth and integers are looked at on the way. No tree of values is made of a message,
//! and no text is checked twice: only if a number may be too large, the text is searched for it.
//!
//! `registry` then decodes the canonical text into the reducer's own arguments (`schema/src/arguments.rs`) and hashes
//! it. The reducer takes its arguments when it runs; a call that runs again (after a rollback, or after deferred work)
//! is decoded again from the text. The same text is bound to the `INSERT` of the event and goes into the record of the
//! group, which the journal writes from the buffer in which the group collected it.
//!
//! So the content of a message is copied into: the canonical text, the reducer's arguments (which become the row),
//! SQLite, the record, and the row that the reducer gets back from its insert. `server/tests/api/call_work.rs` counts
//! the allocations.
//!
//! # The path of a call
//!
//! The documentation of `commit` has this path as a table, with the function that decides each thing and what follows a
//! crash between any two of them. Here are the reasons.
//!
//! 1. **On the caller's thread.** A server admits the caller, counts the bytes as they arrive, and parses the message
//!    when it has its turn and room. `Engine::call` charges the caller's rate (`access/rate_limiter`).
//!    `commit/registry` finds the reducer, and decodes, bounds and hashes the arguments. Malformed input never reaches
//!    the writer.
//! 2. **Queue** (`commit/queue`, `commit/fair_queue`). It is bounded: a call that does not fit gets `overloaded` at
//!    once. Tenants are served by deficit round robin, and so are the callers of each tenant. `Tenants` in
//!    `access/tenants` names the tenant of a caller. The queue of the readers works in the same way. A caller that
//!    floods the queue delays only itself.
//! 3. **Writer** (`commit/writer`). One thread takes the waiting calls, up to 1 MiB, into one group. It first takes the
//!    deadlines that are due (`commit/timers`).
//!    - *Groups and units.* A group has units: a unit is a call or a batch. The writer is a loop over a work list of
//!      groups. It runs each unit, derives undo images and deltas, appends the group to the journal, and hands it over
//!      to the sync thread. `commit/run_unit` checks the credential of a unit again and answers a retry from the log
//!      (`commit/request_ids`). `commit/execute` runs each call: guards, the reducer, which reads and writes rows
//!      through the overlay, and an event that is appended to the chain. A group that has read many bytes or has taken
//!      20 ms ends early. Its other units return to the queue and keep their places, and the turn of the tenant of the
//!      last unit ends. A denied call adds a group that records the denial.
//!    - *Savepoints.* A unit has no savepoint: SQLite would copy every page that the unit changes, and reducers check
//!      before they write. If a unit is refused after it wrote, the group goes back to the work list with a savepoint
//!      for each unit. Each unit of the next 256 groups has a savepoint too. If the group violates a deferred
//!      constraint, or a touched row is rejected, each unit goes back alone.
//!    - *Deferred work.* Some work follows from the input alone and can take long, such as validation by a tool's
//!      schema (`schema/src/work.rs`). It gets a small number of steps in the writer. The planning of a policy's
//!      condition gets none. Beyond these steps the call is undone, a reader does the work, and the call runs again
//!      with the result (`commit/deferred`).
//! 4. **Overlay** (`commit/overlay`). It is a cache, a write buffer (a session row that many calls change is written
//!    once), and the net changes (old row, new row) by primary key. SQLite checks each row that is written, with
//!    constraints and triggers. Restricted callers reach rows through `access/scoped_transaction`, which applies their
//!    scope and policies.
//! 5. **Undo images** are written to `change_log`, one row for each table of a commit. Only old images are stored: the
//!    new image of a row is the old image of its next change, or the current row.
//! 6. **Live deltas** (`commit/live_queries`). SQLite computes them in the open transaction, on the state after the
//!    changes.
//! 7. **Journal** (`engine/store/src/journal.rs`). One record with the row operations of the group is appended to a
//!    preallocated segment. SQLite's transaction stays open. The writer commits it for many groups at once: by time, by
//!    size, and when a reader needs the rows (`commit/open_rows`). `docs/journal.md` describes the contents of the disk
//!    at each step.
//! 8. **Sync thread** (`commit/durable`). One `fdatasync` of the journal covers all waiting groups. Then the durable
//!    seq advances, answers go to the tasks that wait for them, and deltas go to the publisher, which puts them into
//!    the outboxes of connections (`subscriptions/hub`). During a sync the writer runs the next group, and at most one
//!    group waits: one caller pays one sync, many callers share it. Consecutive commits without listeners are merged
//!    for the publisher.
//! 9. **Answer.** The task of the call encodes it, counts its bytes until they are written, and hands it to the writing
//!    half of the socket, which also sends the deltas. An embedded caller gets the text of the result.
//! 10. **Checkpointer** (`commit/checkpointer`). Its own connection moves the WAL into the file and syncs the file. The
//!     writer moves the rest between two transactions, so that the WAL restarts, and then uses the segments of the
//!     journal again. While the WAL grows about as fast as it is copied, the writer pauses between groups. When long
//!     queries have kept the WAL from restarting, those that run longer than 100 ms are ended (`queries/reader_drain`).
//!
//! # Callers
//!
//! Each interface names the caller (`schema/src/caller.rs`): id, role, capabilities, scope, limits. A server reads the
//! credential of a request and checks it; it looks tokens up with queries that a module declares. Cached lookups are
//! dropped when a table concerned changes: the writer notifies `commit/table_watchers` after the group and before the
//! answer. Rates and quotas are checked on the caller's thread. In the transaction, guards of modules check the role,
//! `access/scoped_transaction` checks scope and policies, and reducers check the capabilities that rows require. A
//! refusal `denied` is recorded as a separate call (`access/denials`).
//!
//! # Time
//!
//! Everything that waits for a time is a row with a column for that time: a timer, a lease, the next attempt of a call,
//! the expiry of an approval, the escalation of a handoff. A module declares such a column as a **deadline**
//! (`schema/src/reducer.rs`), with an index in order of time and a reducer that only the engine may call.
//! `commit/timers` stores one number for each kind of deadline: the earliest time at which an unread row can be due.
//! The writer sleeps until the earliest of these times.
//!
//! Before each transaction the writer reads rows that have become due, sorts them by the tenant of their scope, and
//! takes the oldest row of each tenant in turn: a tenant with many due rows delays only itself. It turns these rows, up
//! to a maximum, into ordinary calls of the caller `system`. They are logged and can be replayed; the time is in their
//! arguments. So a call never sees an overdue row, tests move a virtual clock, and deadlines that passed while the file
//! was closed run at the next start, except that leases can get the time in which nobody could renew them
//! (`Config::lease_grace`). If a reducer refuses its row, or leaves it due, the engine logs that and skips the
//! row.
//!
//! Some calls take several transactions. A module declares them with `Module::continuing`. `commit/timers` makes the
//! later calls, in the name of the first caller, and `PendingAnswers` in `commit/unit` holds the answer to the first
//! call until the last step.
//!
//! # Subscriptions
//!
//! The planner (`engine/live/src/planner.rs`) turns SQL into a **template**, whose literals are parameters, and the
//! parameter values of this subscription. The **router** (`engine/live/src/router.rs`) finds the subscriptions that a
//! changed row can concern. It needs one hash probe for each set of equality columns, for the old and the new image.
//! Only these subscriptions run the delta SQL of their **rule** (`engine/live/src/delta/rule.rs`). Subscribers with
//! equal SQL and parameters share one delta, encoded once.
//!
//! - **Restricted queries follow their views.** The changes of the authorized views are computed first
//!   (`engine/live/src/views.rs`), once for each table and distinct role, scope and policy, at the cost of the commit.
//!   Only these changes decide which restricted queries are found and charged. The statements that find what to
//!   evaluate join visible changes with visible rows only, including the subqueries of policies.
//! - **State is optional.** A delta over any range of commits can be computed from the tables and the changes of the
//!   range; resume does this. Some rules keep state because it is cheaper (`engine/live/src/delta/state.rs`):
//!   accumulators of groups, rows of a top-N result. State is dropped when its commit is undone, when it is too large,
//!   or when a delta was not computed.
//! - **A seq has a timeline.** Each opening of a file starts a timeline (`engine/store/src/timelines.rs`). A client
//!   resumes with its seq and the timeline on which it received the seq. If the file does not have that state, because
//!   another copy of it was continued, the client fetches the result again (`subscriptions/resume`).
//! - **Cost is bounded.** Work is counted in steps of SQLite's virtual machine, by template and payer
//!   (`engine/live/src/delta/meter.rs`). For restricted callers only the rows that they see count. A delta over its
//!   budget is interrupted: its subscribers get `"stale"`, and a reader runs the query again, once for all of them
//!   (`subscriptions/rerun`). A reader counts a group that is too large to count within a commit, and hands it over
//!   between two transactions.
//! - **The start has no gap**, because (1) the writer registers the subscription between two transactions, (2) a reader
//!   then reads the result at some seq S, (3) frames up to S are dropped and later frames are delivered. Resume and
//!   slow clients work in the same way; the delta from S₀ to S is computed from the change log.
//! - **Clients cannot block the engine.** An outbox is bounded. When it is full, or the caller's share of
//!   `--buffer-limit` is used up (`subscriptions/buffers`), the outbox is dropped, and the client catches up when it
//!   reads again. If commits arrive faster than deliveries, the publisher pauses in proportion to the number of
//!   listeners, so that each socket is written once for several commits. Very large groups of listeners wake in parts.
//! - **Queries are checked first** (`engine/live/src/analysis.rs`), once for each template: a statement that runs at
//!   each commit may not scan a table if an index could avoid it. The check uses an empty database with the same schema
//!   (`queries/explain`), so its result does not depend on the data.
//! - **Checksums** (`schema/src/checksum.rs`) are computed on request: a sum over rows that a delta updates
//!   incrementally. The server and the SDK compute it independently; on a difference the SDK shows no rows and
//!   subscribes again.
//! - **Retention** (`commit/retention`) limits how far back resume and `as_of` reach, by events and by age.
//!
//! # Visibility
//!
//! The engine rewrites the SQL of a restricted caller. `access/policies` combines the stored policies, the declarations
//! of the modules and the owners of rows (`access/row_owners`) into one SELECT for each table. This SELECT is equal for
//! all callers with the same role and scope keys; the identity of the caller is a parameter. A module declares where
//! policies, roles and identities are stored (`PolicyTables` in `schema/src/module.rs`), and which table has the
//! sessions that events name. The planner reads the SELECT in place of the table (`engine/live/src/plan/principal.rs`,
//! `engine/live/src/plan/visibility.rs`). So subscriptions, queries, `as_of` and resume apply the policy like any other
//! condition, templates are shared, and the router can use its keys.
//!
//! A commit that changes policies activates them before it commits, and marks all subscriptions of the old policies as
//! outdated. From then on no delta uses the old policies. The connection plans the query again and sends the difference
//! between the old and the new result, both from one state. A reader checks after it opened its snapshot that its
//! policies are the latest.
//!
//! # The file
//!
//! Plain SQLite in WAL mode with STRICT tables. `application_id` is "ABID", and `user_version` is the format. The
//! process that writes locks `abide.db-lock` next to it (`engine/store/src/lock.rs`). Tables of modules have versions
//! of their own in `meta`. A version can also change rules: `meta` has the last event before the version, and a replay
//! applies the former rules up to it (`Context::is_before`).
//!
//! | table | contents |
//! |---|---|
//! | `events` | the log: one row for each call with an effect; triggers abort UPDATE and DELETE |
//! | `request_ids` | the events of each request id; a replay rebuilds it |
//! | `change_log` | undo images for resume, slow clients and `as_of` |
//! | `meta` | the id of the log, timelines, module versions, the lower end of the change log |
//! | all others | declared by modules |
//!
//! An event contains the restrictions of its caller (`authority`), so that a replay applies them. Its hash covers all
//! its fields and the previous hash (`engine/log/src/encoding.rs`); the chain starts with a hash of the log's random
//! id. Caller, authority, contents and a digest of the rows that the call has written (`engine/log/src/written_rows.rs`)
//! enter the hash through a commitment that the event's `salt` blinds. So a hash does not
//! confirm a guess of the contents, and the chain can be verified after contents and salt are erased. A result that repeats
//! a long argument is stored with a reference in its place (`commit/outcome`).
//!
//! # Invariants
//!
//! *Invariant:* no answer and no delta is sent before the record of its group is on disk, except answers of
//! [`Engine::apply`]. The answer to a query waits until the seq that it saw is durable.
//!
//! *Invariant:* a failed sync is never retried. The engine accepts nothing until the file is opened again, and the WAL
//! is not moved. The next process that opens the file applies the journal and writes the WAL once more before it uses
//! it.
//!
//! *Invariant:* a reader that starts sees every group that was finished before. A segment of the journal is used again
//! only when a completed checkpoint has its groups.
//!
//! *Invariant:* one call, one event, one transaction; `seq` has no gaps. A refused call stores nothing, with two
//! exceptions. A late result is recorded: the outcome of the event is the refusal. A denied call adds a separate event
//! with a row of `denied_attempts`, at a limited rate for each caller (`access/denials`). A request id that concerns
//! several calls, of which some existed before, adds an event that records it.
//!
//! *Invariant:* in queries, a policy is part of the SQL and never a filter on the result. Results of reducers are
//! filtered: an object that has the columns of a table loses the hidden ones (`access/row_policies`). No expression of
//! a restricted caller is evaluated for a row before the row is known to be visible, except for some comparisons of
//! indexed columns.
//!
//! *Invariant:* an id that a caller with a scope chooses is stored in the namespace of the scope. An id with `~`
//! derives from the id of its parent and can be created only with the parent's lease.
//!
//! *Invariant:* a thread that panics poisons the engine, and every waiter gets a reply (`threads`). A query or a
//! reducer that panics affects only its caller.
//!
//! *Invariant:* every queue is bounded; an item that does not fit is refused.
//!
//! *Invariant:* live queries have no second implementation of SQL. The router may select too many subscriptions; SQLite
//! decides.

mod access;
mod commit;
mod config;
mod engine;
mod fault_points;
mod health;
#[cfg(all(test, feature = "interleavings"))]
mod interleavings;
mod last_commit;
mod locks;
mod metrics;
mod ports;
mod queries;
mod replay;
mod results;
mod subscriptions;
mod threads;

pub use abide_live::{Budget, Cost, Delta, DeltaJson, PositionedRow, TemplateWork, TopNDelta};
pub use abide_store::{
    BackupError, Disk, DiskFile, Holder, Layout, LockState, OpenError, RowRef, StoreError,
    SystemDisk, Tuning, Verified, VerifiedTable, VerifyError, backup, sqlite_version, verify_file,
};
pub use access::credentials;
pub use access::tenants::Tenants;
pub use commit::retention::Retention;
pub use config::Config;
pub use engine::{BatchCalls, Engine};
pub use fault_points::FaultPoint;
pub use last_commit::LastCommit;
pub use metrics::{
    CodeCounter, Counter, Gauge, Histogram, Metrics, WaitingCount, template_digest,
    template_families, waiting_families,
};
pub use ports::{
    Backlog, Clock, EngineThread, Entropy, FreeRunning, StepScheduler, SystemClock, SystemEntropy,
};
pub use replay::{ReplayError, RowDifference, replay};
pub use results::{
    CommittedBatch, CommittedCall, EngineFuture, QueryResult, RowSink, TableColumns,
};
pub use subscriptions::buffers;
pub use subscriptions::connection::{
    Change, Connection, SnapshotPart, Start, SubscribeRequest, Update,
};
pub use subscriptions::shared_delta::{QueuedDelta, ResultChange, SharedDelta};
