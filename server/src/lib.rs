//! The doors: HTTP, SSE and WebSocket over one engine.
//!
//! Changes when what travels changes: routes, status codes, credentials, framing, timeouts. But for the REST
//! of agents and runs (`routes/agents`, `routes/runs`) it knows no reducer and no table by name; what there is,
//! [`abide_engine::Engine::describe`] tells it.
//!
//! In reading order: [`serve()`] the accept loop and its end · [`Access`] who may come in ·
//! `pass` with what, `directory` by the file, `jwt` by an issuer's word · `routes`
//! one file a family · [`Agents`] who says what a definition is · `content` a request's body · `problem` how a "no" leaves · `frames` what is
//! said on both live doors · `websocket` · `sse` · `openapi` · `metrics` · `limits` every bound.
//!
//! *Invariant:* what waits for one peer is bounded; a peer that does not read is not read from.
//! *Invariant:* every answer that is no success is a problem document with a stable code.

mod access;
mod agents;
mod arrivals;
mod content;
mod descriptors;
mod directory;
mod frames;
mod jwt;
mod life;
mod limits;
mod metrics;
mod newcomers;
mod openapi;
mod page;
mod pass;
mod patience;
mod problem;
mod reclaim;
mod routes;
mod serve;
mod sse;
mod turns;
mod unsent;
mod websocket;

/// What is said over `abide.v1`, for who speaks it over something else than a socket, as a simulator
/// does: from a message to what it asks for, and from what came of it to the message that says so.
pub mod protocol {
    pub use crate::frames::{batch, call, error, hello, rows, update};
    pub use crate::websocket::read;
}

pub use access::Access;
pub use agents::Agents;
pub use jwt::Jwt;
pub use serve::{check_listens, serve, serve_with};
