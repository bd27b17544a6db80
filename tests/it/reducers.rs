//! Every built-in reducer: its effects, and its refusals with their messages. The responses are
//! part of the protocol.

mod agents;
mod approvals;
mod arguments;
mod cancellation;
mod collections;
mod handoffs;
mod identities;
mod messages;
mod pauses;
mod retries;
mod runs;
mod scopes;
mod sessions;
mod snapshots;
mod timers;
mod tool_calls;
mod tools;
