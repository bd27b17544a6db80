//! Live queries with SQLite as the oracle: after every commit a client's result from deltas must
//! equal a fresh query, by exact type and order.

mod barrier;
mod budget;
mod client;
mod compounds;
mod costs;
mod deltas;
mod engine;
mod equal_values;
mod failing_deltas;
mod fixture;
mod frames;
mod from_subqueries;
mod generated;
mod generated_extended;
mod hidden_joins;
mod hidden_rows;
mod hostile;
mod known_bugs;
mod outer_joins;
mod partial;
mod partitioned;
mod proof;
mod refusals;
mod rewritten_queries;
mod routing;
mod seed_budget;
mod sequences;
mod shapes;
mod slt;
mod table_functions;
mod unordered;
mod values;
mod windowed;
mod world;
