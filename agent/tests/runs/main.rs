//! Complete runs over a real engine: events, stored rows, and recovery after a runtime is killed.

mod composition;
mod contract;
mod delegation;
mod errors;
mod events;
mod fixture;
mod golden;
mod inline;
mod killed;
mod limits;
mod lives;
mod moved;
mod panics;
mod pauses;
mod plans;
mod programs;
mod recorded;
mod reload;
mod restarts;
mod rows;
mod shapes;
mod stops;
mod tenants;
mod traces;
mod withheld;
