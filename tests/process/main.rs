//! Real processes: the `abide` program as users and programs run it, with real signals.
//!
//! `program` finds the binaries and runs them · `server` a server that can be killed and restarted
//! · `load` writing programs and their responses · then one module for each concern.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

mod agent;
mod agent_mistakes;
mod authority;
mod chat;
mod claims;
mod coding_agent;
mod command_line;
mod configuration;
mod conformance;
mod containers;
mod demo;
mod dev;
mod docs;
mod drain;
mod failures;
mod files;
mod forks;
mod handoff;
mod interrupts;
mod kill;
mod load;
mod logs;
mod mcp;
mod mcp_login;
mod memory;
mod metrics;
mod mistakes;
mod open;
mod operators;
#[cfg(debug_assertions)]
mod panics;
mod program;
mod project;
mod proxy;
mod read_only;
mod remote_agents;
mod restore;
mod retention;
mod secrets;
mod server;
mod sharing;
mod steps;
mod systemd;
mod term;
mod terminal;
mod timers;
mod tls;
mod unread;
mod upgrade;
mod verify;
