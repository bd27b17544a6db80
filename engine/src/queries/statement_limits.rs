//! Limits of the statements that readers and the writer run for queries.

use std::time::Duration;

use abide_live::StatementLimits;
use abide_schema::limits;
use abide_store::QueryLimits;

/// The limits of any one query.
pub(crate) const LIMITS: QueryLimits = QueryLimits {
    columns: usize::MAX,
    rows: limits::QUERY_ROWS,
    bytes: limits::QUERY_BYTES,
    time: Duration::from_millis(limits::QUERY_MS),
    of_processor: false,
    steps: limits::QUERY_STEPS,
    memory_bytes: limits::QUERY_MEMORY_BYTES,
    value_bytes: limits::QUERY_VALUE_BYTES,
};

/// The limits of the fill of a group's accumulators.
pub(crate) const FILL_LIMITS: QueryLimits =
    QueryLimits { time: Duration::from_millis(limits::LIVE_FILL_MS), of_processor: true, ..LIMITS };

/// The limits of a text with this many operators.
pub(crate) fn limits_of(operations: usize) -> QueryLimits {
    QueryLimits { value_bytes: limits::value_bytes(limits::QUERY_ROW_BYTES, operations), ..LIMITS }
}

/// The limits of a delta.
pub(crate) fn live_limits(allowance: StatementLimits) -> QueryLimits {
    let StatementLimits { steps, time, value_bytes } = allowance;
    QueryLimits {
        time,
        of_processor: true,
        steps,
        // Growth between two checks is small.
        memory_bytes: usize::MAX,
        value_bytes,
        ..LIMITS
    }
}
