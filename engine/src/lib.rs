//! The runtime: one writer, group commit, durability, publish, recovery.
//!
//! It changes when the path from a call to a durable commit or to subscribers changes. It does not depend on
//! HTTP, agents, or any particular reducer: the embedding program registers reducers.
//!
//! ```text
//! caller ─▶ queue ─▶ writer ─▶ reducer ─▶ rows + event ─▶ commit ─▶ sync ─▶ answers
//!                    one thread, one transaction a batch            └────▶ deltas ─▶ outboxes
//! ```
//!
//! In reading order: [`Engine`] the handle · `commit` the path of a call, from the queue to the disk · `access` what a caller may
//! do · `queries` the path of a query · `subscriptions` live queries on [`Connection`]s · `replay` · `fault_points` where tests
//! inject faults. Each folder's own file lists its modules.
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
pub use engine::Engine;
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
