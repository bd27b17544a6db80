//! The engine in this process, end to end, with the built-in reducers and a virtual clock.
//!
//! `world` one engine over one file · `script` calls and responses as lines of text · `traffic`
//! random calls · `replica` a client's state of a subscription · then one module for each concern.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

mod broken;
mod claims;
mod cleanup;
mod costs;
mod damaged_rows;
mod database;
mod durability;
mod explain;
mod forks;
mod former;
mod guesses;
mod journal;
mod leases;
mod live;
mod log;
mod long_snapshots;
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
mod tenants;
mod timers;
mod traffic;
mod turn_work;
mod turns;
mod validation;
mod visibility;
mod world;
