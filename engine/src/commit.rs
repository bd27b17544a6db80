//! The commit pipeline: from the queue to the disk.
//!
//! In reading order: `registry` prepares a call · `queue` and `fair_queue` order callers · `jobs` of the writer's queue · `writer`
//! commits one `group` of units after the other · `unit` and `run_unit` run the calls of a unit · `execute` runs one call in the
//! open `transaction`, over the `overlay` · `deferred` moves long work to readers · `outcome` and `request_ids` answer retries ·
//! `live_queries` makes deltas · `timers` makes due rows into calls · `continued` holds the answers to calls that take several transactions · `open_rows` are committed by SQLite later ·
//! `durable` syncs · `checkpointer` moves the WAL, with a `writer_pause` if it must · `retention` of the change log · `table_watchers` reports changed
//! tables.

pub(crate) mod checkpointer;
pub(crate) mod continued;
pub(crate) mod deferred;
pub(crate) mod durable;
pub(crate) mod execute;
pub(crate) mod fair_queue;
pub(crate) mod group;
pub(crate) mod held_subscriptions;
pub(crate) mod jobs;
pub(crate) mod live_queries;
pub(crate) mod open_rows;
pub(crate) mod outcome;
pub(crate) mod overlay;
pub(crate) mod prepared_call;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod request_ids;
pub(crate) mod retention;
pub(crate) mod run_unit;
pub(crate) mod table_watchers;
pub(crate) mod timers;
pub(crate) mod transaction;
pub(crate) mod unit;
pub(crate) mod writer;
pub(crate) mod writer_pause;
pub(crate) mod writer_sql;
