//! Every built-in reducer: what it does, what it refuses and in which words. The answers are the
//! contract of the protocol; others depend on them.

mod agents;
mod approvals;
mod arguments;
mod cancellation;
mod handoffs;
mod identities;
mod messages;
mod retries;
mod runs;
mod scopes;
mod sessions;
mod timers;
mod tool_calls;
mod tools;
