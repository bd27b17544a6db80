//! The runtime: one writer, group commit, durability, publish, recovery.
//!
//! Changes when it changes how calls become durable and how clients hear of them. It knows nothing of
//! HTTP, of agents, or of any particular reducer: reducers are registered by whoever opens it.
//!
//! ```text
//! caller ─▶ queue ─▶ writer ─▶ reducer ─▶ rows + event ─▶ commit ─▶ sync ─▶ answers
//!                    one thread, one transaction a batch            └────▶ deltas ─▶ outboxes
//! ```
//!
//! In reading order: [`Engine`] the handle · `registry` calls made ready · `queue` · `writer` the
//! commit pipeline · `timers` what time calls · `execute` a call in the transaction · `bounds` what
//! its caller reaches, `reach` what policies say of that, `denials` and `allowances` what not · `overlay` its rows · `durable` the sync thread · `hub` who listens, `pace` how fast they are woken · [`Connection`] a client's subscriptions ·
//! `resume` where they start · `rerun` those that cost too much · `explain` what they would cost ·
//! `retention` how far back they reach.
//!
//! *Invariant:* no answer and no delta leaves before its commit is on the disk.
//! *Invariant:* after a failed sync nothing is accepted until the file is opened again.
//! *Invariant:* a thread that panics poisons the engine, and every waiter is answered (`threads`); a query that panics
//! costs its caller alone.
//! *Invariant:* every queue is bounded; what does not fit is refused, not kept.

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
