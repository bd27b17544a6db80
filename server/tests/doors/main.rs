//! The doors as a stranger meets them: real sockets, a real engine, a file of its own.

mod house;
mod http;
mod notes;
mod ws;

mod agents;
mod bad_input;
mod buffers;
mod calls;
mod credentials;
mod events;
mod golden;
mod jwts;
mod probes;
mod runs;
mod shutdown;
mod sockets;
mod tokens;
