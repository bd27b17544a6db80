//! Standard protocols for agents. Each is a projection of the events of a run, so a client that reconnects gets the same
//! again, even from another process. Only A2A stores something: the messages of its clients.
//!
//! [`turn`] is the part that all of them share: one turn of a run as items. [`follow`] reads the events, [`start`] the
//! requests that begin or continue a run, [`thread`] those in a session that the client
//! has named.

pub(super) mod a2a;
pub(super) mod ag_ui;
mod call;
pub(super) mod chat;
mod decision;
mod follow;
pub(super) mod mcp;
pub(super) mod responses;
mod start;
mod thread;
mod turn;
mod whole;
