//! Every built-in reducer: its effects, and its refusals with their messages. The responses are
//! part of the protocol.

mod agents;
mod allow;
mod approvals;
mod arguments;
mod cancellation;
mod collections;
mod corrections;
mod depth;
mod exchanges;
mod forged_snapshots;
mod handoffs;
mod health;
mod identities;
mod memory;
mod messages;
mod names;
mod owners;
mod pauses;
mod prompts;
mod retries;
mod runs;
mod scopes;
mod sessions;
mod snapshots;
mod summaries;
mod timers;
mod tool_calls;
mod tools;
mod webhooks;
