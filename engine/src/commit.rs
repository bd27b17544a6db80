//! The commit pipeline: from the queue to the disk.
//!
//! In reading order: `registry` prepares a call · `queue` and `fair_queue` order callers · `writer` commits · `unit` and
//! `execute` run calls over the `overlay` · `deferred` moves long work to readers · `outcome` and `request_ids` answer retries ·
//! `timers` makes due rows into calls · `durable` syncs · `checkpointer` moves the WAL · `retention` prunes the change log ·
//! `table_watchers` reports changed tables.

pub(crate) mod checkpointer;
pub(crate) mod deferred;
pub(crate) mod durable;
pub(crate) mod execute;
pub(crate) mod fair_queue;
pub(crate) mod outcome;
pub(crate) mod overlay;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod request_ids;
pub(crate) mod retention;
pub(crate) mod table_watchers;
pub(crate) mod timers;
pub(crate) mod unit;
pub(crate) mod writer;
pub(crate) mod writer_sql;
