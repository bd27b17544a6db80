//! The engine in this process, end to end, with the built-in reducers and a clock of its own.
//!
//! `world` is one engine over one file · `script` calls as lines of text and what they answer ·
//! `traffic` random calls · `replica` what a client holds of a subscription · then one module for
//! each concern.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod broken;
mod claims;
mod cleanup;
mod costs;
mod database;
mod durability;
mod explain;
mod former;
mod guesses;
mod leases;
mod live;
mod log;
mod migrations;
mod model;
mod opening;
mod planning;
mod queries;
mod recordings;
mod reducers;
mod references;
mod replica;
mod retention;
mod script;
mod sight;
mod tenants;
mod timers;
mod traffic;
mod validation;
mod world;
