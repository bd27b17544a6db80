//! The network interfaces: HTTP, SSE and WebSocket for one engine.
//!
//! It changes when the wire interface changes: routes, status codes, credentials, framing, timeouts. Except for the
//! REST routes of agents and runs (`routes/agents`, `routes/runs`) it knows no reducer and no table by name;
//! [`abide_engine::Engine::describe`] lists them.
//!
//! In reading order: [`serve()`] the accept loop and its shutdown · [`Access`] authentication ·
//! `pass` admitted callers, `directory` tokens in the database, `jwt` tokens of an issuer · `routes`
//! one file per family · [`Agents`] checks agent definitions · `content` request bodies · `problem` refusals over HTTP ·
//! `frames` messages of WebSocket and SSE · `websocket` · `sse` · `openapi` · `metrics` · `limits` all limits.
//!
//! *Invariant:* the memory for one peer is bounded; a peer that does not read is not read from.
//! *Invariant:* every unsuccessful response is a problem document with a stable code.

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

/// The messages of `abide.v1`, for transports other than sockets, such as a simulator: decoding of
/// client messages and encoding of replies.
pub mod protocol {
    pub use crate::frames::{batch, call, error, hello, rows, update};
    pub use crate::websocket::read;
}

pub use access::Access;
pub use agents::Agents;
pub use jwt::Jwt;
pub use serve::{check_listens, serve, serve_with};
