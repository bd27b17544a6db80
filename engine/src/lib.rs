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
//! commit pipeline · `timers` deadlines · `execute` a call in the transaction · `bounds` row access by scope,
//! `reach` row access by policies, `denials` and `allowances` · `overlay` the transaction's rows · `durable` the
//! sync thread · `hub` subscribers, `pace` the rate of wake-ups · [`Connection`] a client's subscriptions ·
//! `resume` their start · `rerun` expensive queries · `explain` query costs ·
//! `retention` of the change log.
//!
//! *Invariant:* no answer and no delta leaves before its commit is durable.
//! *Invariant:* after a failed sync the engine accepts nothing until the file is reopened.
//! *Invariant:* a thread that panics poisons the engine, and every waiter gets a reply (`threads`); a query that panics
//! affects only its caller.
//! *Invariant:* every queue is bounded; an item that does not fit is refused.

mod allowances;
mod as_of;
mod bounds;
pub mod buffers;
mod checkpointer;
mod connection;
pub mod credentials;
mod deferred;
mod denials;
mod durable;
mod engine;
mod execute;
mod explain;
mod health;
mod hub;
#[cfg(all(test, feature = "interleavings"))]
mod interleavings;
mod lanes;
mod locks;
mod metrics;
mod outcome;
mod overlay;
mod pace;
mod policies;
mod ports;
mod query;
mod queue;
mod reach;
mod readers;
mod registry;
mod replay;
mod requests;
mod rerun;
mod results;
mod resume;
mod retention;
mod shared_results;
mod threads;
mod timers;
mod unit;
mod watches;
mod writer;

pub use abide_live::{Budget, Delta, Placed, Spent, TemplateWork, Window};
pub use abide_store::{
    Disk, Layout, OpenError, StoreError, SyncData, SystemDisk, Tuning, Verified, VerifyError,
    backup, sqlite_version, verify_file,
};
pub use connection::{Change, Connection, SnapshotPart, Start, Update, Wanted};
pub use engine::{Config, Engine};
pub use hub::{HeldDelta, SharedDelta};
pub use metrics::{Counter, Labelled, Metrics, Series, template_series};
pub use ports::{
    Clock, Entropy, FreeTurns, Point, Stage, SystemClock, SystemEntropy, Turns, Waiting,
};
pub use replay::{ReplayError, replay};
pub use results::{Answer, BatchDone, Done};
pub use retention::Retention;
