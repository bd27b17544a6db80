//! Real processes: the `abide` program as people and programs use it, killed with real signals.
//!
//! `program` finds the binaries and runs them · `server` one that serves, and is killed and started again
//! · `load` programs that write to it, and what they were told · then one module for each concern.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod agent;
mod authority;
mod claims;
mod command_line;
mod demo;
mod docs;
mod files;
mod handoff;
mod kill;
mod load;
mod memory;
mod mistakes;
mod operators;
#[cfg(debug_assertions)]
mod panics;
mod program;
mod retention;
mod secrets;
mod server;
mod sharing;
mod term;
mod terminal;
mod timers;
mod unread;
mod verify;
