//! Live queries with SQLite as the oracle: after every commit a client's result from deltas must
//! equal a fresh query, by exact type and order.

mod barrier;
mod budget;
mod client;
mod compounds;
mod costs;
mod deltas;
mod derived;
mod engine;
mod extent;
mod fixture;
mod frames;
mod generated;
mod hostile;
mod listed;
mod partial;
mod partitioned;
mod proof;
mod refusals;
mod richer;
mod routing;
mod sequences;
mod shapes;
mod sides;
mod slt;
mod traps;
mod unordered;
mod values;
mod windowed;
mod world;
mod written;
