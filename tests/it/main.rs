//! The engine in this process, end to end, with the built-in reducers and a virtual clock.
//!
//! `traffic` random calls · `replica` a client's state of a subscription · then one module for each concern. The rules
//! of each reducer are tested in `reducers/tests/rules/`.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

mod broken;
mod claims;
mod cleanup;
mod damaged_rows;
mod database;
mod durability;
mod explain;
mod forks;
mod guesses;
mod journal;
mod live;
mod log;
mod long_snapshots;
mod migrations;
mod model;
mod opening;
mod planning;
mod queries;
mod recordings;
mod references;
mod replica;
mod retention;
mod scope_keys;
mod tenants;
mod timers;
mod touches;
mod traffic;
mod turn_work;
mod turns;
mod validation;
mod verifier;
mod visibility;
