//! Live queries against SQLite as oracle: after every commit what a client made of the deltas must be
//! what a fresh query says, by exact type and order.

mod budget;
mod client;
mod deltas;
mod engine;
mod frames;
mod generated;
mod hostile;
mod proof;
mod refusals;
mod routing;
mod shapes;
mod slt;
mod traps;
mod world;
