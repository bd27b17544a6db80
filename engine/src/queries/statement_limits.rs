//! Limits of the statements that readers and the writer run for queries.

use std::time::Duration;

use abide_live::{Binding, StatementLimits};
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
    visible_steps: u64::MAX,
    of_each_row: false,
    memory_bytes: limits::QUERY_MEMORY_BYTES,
    value_bytes: limits::QUERY_VALUE_BYTES,
};

/// The limits of a text with this many operators.
pub(crate) fn limits_of(operations: usize) -> QueryLimits {
    QueryLimits { value_bytes: limits::value_bytes(limits::QUERY_ROW_BYTES, operations), ..LIMITS }
}

/// The limits of one run of a planned query.
pub(crate) fn limits_of_binding(binding: &Binding) -> QueryLimits {
    of_visible_rows(binding, limits_of(binding.operations()))
}

/// The limits of the fill of a group's accumulators.
pub(crate) fn fill_limits(binding: &Binding, time: Duration) -> QueryLimits {
    of_visible_rows(binding, QueryLimits { time, of_processor: true, ..LIMITS })
}

/// All steps of a restricted caller's query, relative to those for rows that it sees. The work of a function in a constant
/// expression is in no row: without this bound one call of `instr` would hold a reader until the time is over.
const ALL_STEPS_FACTOR: u64 = 2;

/// Steps over hidden rows must not decide what a restricted caller gets: with its own rows it can come so close to the
/// limit that one hidden row exceeds it.
fn of_visible_rows(binding: &Binding, limits: QueryLimits) -> QueryLimits {
    if binding.is_bounded() {
        return QueryLimits {
            steps: limits.steps.saturating_mul(ALL_STEPS_FACTOR),
            visible_steps: limits.steps,
            ..limits
        };
    }
    limits
}

/// The limits of a delta.
pub(crate) fn live_limits(allowance: StatementLimits) -> QueryLimits {
    let StatementLimits { steps, visible_steps, time, value_bytes } = allowance;
    QueryLimits {
        time,
        of_processor: true,
        steps,
        visible_steps,
        // Growth between two checks is small.
        memory_bytes: usize::MAX,
        value_bytes,
        ..LIMITS
    }
}
