//! The network interfaces: HTTP, SSE and WebSocket for one engine.
//!
//! It changes when the wire interface changes: routes, status codes, credentials, framing, timeouts. The generic
//! routes (`routes/call`, `routes/sql`, `sse`, `websocket`) know no reducer and no table by name;
//! [`abide_engine::Engine::describe`] lists them. The REST routes of agents, runs, sessions and prompts name
//! what they call and read, and [`Drain`] names the reducers that begin work. Standard protocols for agents are another
//! crate, which uses the [`port`].
//!
//! In reading order: [`serve()`] the accept loop and its shutdown · [`Drain`] what comes before it · [`ServerListener`] where
//! it listens · [`SharedListener`] where programs share an engine · [`Tls`] certificates ·
//! [`AccessConfig`] authentication · `authenticator` admitted callers, `credential_store` tokens in the database, `jwt`
//! tokens of an issuer · `request_head` what a request must have · `single` what it has at most once · `cors` which pages
//! of browsers read a response · `connections` how many, for how long, and turns of large messages · `arrivals` and
//! `unsent` count the bytes of messages and answers · `routes` one file per family · [`AgentRegistry`] checks agent
//! definitions · [`port`] what protocols use · `body` request bodies · `problem` refusals over HTTP · `frames`
//! messages of WebSocket and SSE · `websocket` · `sse` · `openapi` · `metrics` · `access_log` and `unknown_calls`
//! records for operators · `limits` all limits.
//!
//! *Invariant:* the memory for one peer is bounded; a peer that does not read is not read from.
//! *Invariant:* every unsuccessful response is a problem document with a stable code.

mod access_log;
mod agents;
mod app_state;
mod arrivals;
mod auth;
mod body;
mod connections;
mod cors;
mod drain;
mod frames;
mod limits;
mod listener;
mod metrics;
mod openapi;
mod page;
pub mod port;
mod problem;
mod public_url;
mod query_string;
mod regular_file;
mod request_head;
mod routes;
mod serve;
mod single;
mod sse;
mod tls;
mod unknown_calls;
mod unsent;
mod websocket;

/// The messages of `abide.v1`, for transports other than sockets, such as a simulator: decoding of
/// client messages and encoding of replies.
pub mod protocol {
    pub use crate::frames::{
        encode_batch, encode_call, encode_error, encode_hello, encode_rows, encode_update,
    };
    pub use crate::websocket::read;
}

pub use agents::AgentRegistry;
pub use auth::access_config::AccessConfig;
pub use auth::jwt::Jwt;
pub use drain::Drain;
pub use listener::{ServerListener, SharedListener};
pub use public_url::PublicUrl;
pub use serve::{Services, check_listens, serve, serve_shared, serve_with};
pub use tls::{ClientCertificate, Tls, TlsFiles};
