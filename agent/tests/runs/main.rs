//! Runs from their beginning to their end, over a real engine: what is told, what is on record, and that
//! a runtime may be killed at any moment of it.

mod contract;
mod errors;
mod events;
mod house;
mod killed;
mod limits;
mod lives;
mod panics;
mod plans;
mod programs;
mod recorded;
mod reload;
mod rows;
mod shapes;
mod tenants;
