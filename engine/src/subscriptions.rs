//! Live queries and their subscribers.
//!
//! `publisher` takes durable commits, `hub` delivers each `shared_delta` to the `outbox` of its connections, `wakeups`
//! limits how many it wakes at once, `connection` is one client's subscriptions, `resume` finds where they start,
//! `shared_results` keeps whole results while they are sent, `rerun` repeats queries that cost too much, `buffers`
//! bounds what waits to be sent.

pub mod buffers;
pub(crate) mod connection;
pub(crate) mod hub;
pub(crate) mod outbox;
pub(crate) mod publisher;
pub(crate) mod rerun;
pub(crate) mod resume;
pub(crate) mod shared_delta;
pub(crate) mod shared_results;
pub(crate) mod wakeups;
