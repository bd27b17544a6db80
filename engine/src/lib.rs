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
//! The arguments of a call are read once, on the caller's thread, into [`CallArguments`](abide_schema::CallArguments): canonical
//! JSON, with the places of its members. A server has `serde` write them while it parses the message; an embedded caller passes a
//! value. Depth and integers are looked at on the way. No tree of values is made of a message, and no text is checked twice:
//! only if a number may be too large, the text is searched for it.
//!
//! `registry` then decodes the canonical text into the reducer's own arguments (`schema/src/arguments.rs`) and hashes it. The
//! reducer takes its arguments when it runs; a call that runs again (after a rollback, or after deferred work) is decoded again from
//! the text. The same text is bound to the `INSERT` of the event and goes into the record of the group, which the journal
//! writes from the buffer in which the group collected it.
//!
//! So the content of a message is copied into: the canonical text, the reducer's arguments (which become the row), SQLite, the
//! record, and the row that the reducer gets back from its insert. `server/tests/api/call_work.rs` counts the
//! allocations.
//!
//! *Invariant:* no answer and no delta leaves before its commit is durable, except answers of [`Engine::apply`].
//! *Invariant:* after a failed sync the engine accepts nothing until the file is reopened.
//! *Invariant:* a thread that panics poisons the engine, and every waiter gets a reply (`threads`); a query that panics
//! affects only its caller.
//! *Invariant:* every queue is bounded; an item that does not fit is refused.

mod access;
mod commit;
mod config;
mod engine;
mod fault_points;
mod health;
#[cfg(all(test, feature = "interleavings"))]
mod interleavings;
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
    Disk, DiskFile, Holder, Layout, LockState, OpenError, StoreError, SystemDisk, Tuning, Verified,
    VerifyError, backup, sqlite_version, verify_file,
};
pub use access::credentials;
pub use commit::retention::Retention;
pub use config::Config;
pub use engine::{BatchCalls, Engine};
pub use fault_points::FaultPoint;
pub use metrics::{Counter, Labelled, Metrics, Series, template_series};
pub use ports::{
    Backlog, Clock, EngineThread, Entropy, FreeRunning, StepScheduler, SystemClock, SystemEntropy,
};
pub use replay::{ReplayError, replay};
pub use results::{CommittedBatch, CommittedCall, EngineFuture, QueryResult, TableColumns};
pub use subscriptions::buffers;
pub use subscriptions::connection::{
    Change, Connection, SnapshotPart, Start, SubscribeRequest, Update,
};
pub use subscriptions::shared_delta::{HeldDelta, ResultChange, SharedDelta};
