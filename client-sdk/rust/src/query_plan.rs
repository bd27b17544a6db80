//! What a live query returns, how the server maintains its result, and at what cost.

pub use abide_schema::wire::{Column, Explanation, OrderTerm, Plan, Shape, TableScan};

pub use crate::explain::Explain;
