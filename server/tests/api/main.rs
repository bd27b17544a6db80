//! The server's API over real sockets, with a real engine on a temporary file.

mod http;
mod notes;
mod test_server;
mod ws;

mod a2a;
mod a2a_bindings;
mod admission;
mod agents;
mod allow;
mod bad_input;
mod buffers;
mod call_work;
mod calls;
mod chats;
mod contract;
mod cors;
mod credentials;
mod decisions;
mod doubled;
mod events;
mod golden;
mod jwts;
mod mcp;
mod mcp_sessions;
mod other_identities;
mod parents;
mod probes;
mod prompts;
mod push;
mod responses;
mod runs;
mod sessions;
mod shutdown;
mod sockets;
mod tokens;
