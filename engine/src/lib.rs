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
//! In reading order: [`Engine`] the handle · `registry` preparation of calls · `queue` · `writer` the
//! commit pipeline · `timers` deadlines · `execute` a call in the transaction · `scope_rules` row access by scope,
//! `row_policies` row access by policies, `denials` and `rate_limiter` · `overlay` the transaction's rows · `durable` the
//! sync thread · `hub` subscribers, `wakeups` the rate of wake-ups · [`Connection`] a client's subscriptions ·
//! `resume` their start · `rerun` expensive queries · `explain` query costs ·
//! `retention` of the change log.
//!
//! *Invariant:* no answer and no delta leaves before its commit is durable.
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

pub use abide_live::{Budget, Cost, Delta, PositionedRow, TemplateWork, WindowDelta};
pub use abide_store::{
    Disk, Layout, OpenError, StoreError, SyncData, SystemDisk, Tuning, Verified, VerifyError,
    backup, sqlite_version, verify_file,
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
pub use results::{CommittedBatch, CommittedCall, QueryResult};
pub use subscriptions::buffers;
pub use subscriptions::connection::{
    Change, Connection, SnapshotPart, Start, SubscribeRequest, Update,
};
pub use subscriptions::shared_delta::{HeldDelta, ResultChange, SharedDelta};
