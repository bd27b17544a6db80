//! Results of planned queries, now or as of a seq: the rows of a binding in one snapshot.

use std::borrow::Cow;

use abide_live::Binding;
use abide_schema::{Code, Refusal, Row, Seq};
use abide_store::{Query, QueryLimits, Reader, Snapshot};

use crate::queries::as_of;
use crate::queries::changes::{TooManyChanges, changes_since};
use crate::queries::failure::QueryFailure;
use crate::queries::output::Output;
use crate::queries::reader_sql::ReaderSql;
use crate::queries::statement_limits::limits_of_binding;
use crate::queries::tables::LiveTables;

/// Reads a whole result.
pub(crate) fn whole_result(
    reader: &mut Reader,
    binding: &Binding,
) -> Result<(Seq, Vec<Row>), QueryFailure> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    Ok((state.seq(), rows(&state, binding, binding.snapshot_sql())?))
}

/// The rows of one of a binding's own statements.
pub(crate) fn rows(
    state: &Snapshot<'_>,
    binding: &Binding,
    sql: &str,
) -> Result<Vec<Row>, QueryFailure> {
    require_latest(binding)?;
    Ok(read_rows(state, binding, sql, limits_of_binding(binding))?)
}

/// Checks that a binding uses the latest policies. Checked after the snapshot is open, so
/// that the snapshot contains no later ones.
pub(crate) fn require_latest(binding: &Binding) -> Result<(), QueryFailure> {
    if binding.is_latest() { Ok(()) } else { Err(QueryFailure::Outdated) }
}

fn read_rows(
    state: &Snapshot<'_>,
    binding: &Binding,
    sql: &str,
    limits: QueryLimits,
) -> Result<Vec<Row>, Refusal> {
    let rows = prepare(state, binding, sql, limits).and_then(Query::collect);
    rows.map_err(|refusal| error_for(binding, refusal))
}

fn prepare<'a>(
    state: &'a Snapshot<'_>,
    binding: &Binding,
    sql: &str,
    limits: QueryLimits,
) -> Result<Query<'a>, Refusal> {
    let params = binding.params();
    let mut bind = |_: Option<&str>, number: usize| Ok(params[number - 1].clone());
    state.prepare(sql, &mut bind, limits)
}

/// The error for the caller: for a restricted one without SQLite's message, which may reveal
/// hidden data.
pub(crate) fn error_for(binding: &Binding, refusal: Refusal) -> Refusal {
    if !binding.is_bounded() || refusal.code != Code::BadSql {
        return refusal;
    }
    tracing::debug!(%refusal, "a query of a restricted caller failed");
    Refusal::new(Code::BadSql, "an expression failed: invalid argument")
        .hint("check the arguments of functions such as json_extract(), fts_match() and sum()")
}

/// Runs a query as planned, now or as of a seq. Columns that only determine the order are removed. Returns the state that it
/// read.
pub(crate) fn run_once(
    reader: &mut Reader,
    tables: &LiveTables,
    binding: &Binding,
    as_of: Option<Seq>,
    output: &mut Output<'_>,
) -> Result<Seq, QueryFailure> {
    let state = reader.snapshot().map_err(|error| error.to_refusal())?;
    let shown = binding.shape().columns.iter().filter(|column| !column.hidden);
    let columns: Vec<String> = shown.map(|column| column.name.clone()).collect();
    let limits =
        output.limits(QueryLimits { columns: columns.len(), ..limits_of_binding(binding) });
    let (seq, sql) = match as_of {
        None => {
            require_latest(binding)?;
            (state.seq(), Cow::Borrowed(binding.snapshot_sql()))
        }
        Some(past) => {
            let past = as_of::find_state(&state, past)?;
            lay_out_past(&state, tables, binding, past)?;
            (past, Cow::Owned(binding.past_sql()))
        }
    };
    prepare(&state, binding, &sql, limits)
        .and_then(|query| output.write(seq, columns, query))
        .map_err(|refusal| error_for(binding, refusal))?;
    Ok(seq)
}

/// A result as of a seq, by the policies that it was planned with.
pub(crate) fn rows_as_of(
    state: &Snapshot<'_>,
    tables: &LiveTables,
    binding: &Binding,
    past: Seq,
    limits: QueryLimits,
) -> Result<Vec<Row>, Refusal> {
    lay_out_past(state, tables, binding, past)?;
    read_rows(state, binding, &binding.past_sql(), limits)
}

/// Creates what the statement for the past reads.
fn lay_out_past(
    state: &Snapshot<'_>,
    tables: &LiveTables,
    binding: &Binding,
    past: Seq,
) -> Result<(), Refusal> {
    let changes = changes_since(state, tables, binding, past)?
        .map_err(|too_many| too_far(binding, &too_many, past))?;
    binding.lay_out(&changes, &mut ReaderSql::new(state)).map_err(|error| {
        if let Some(refusal) = state.interrupted_for_checkpoint() {
            return refusal;
        }
        tracing::error!(name: "past_state_unreadable", %error, "a past state could not be read");
        Refusal::new(Code::Internal, "the change log could not be read")
    })
}

/// The refusal of a past state with too many later changes.
pub(crate) fn too_far(binding: &Binding, too_many: &TooManyChanges, past: Seq) -> Refusal {
    as_of::too_far(name_for(binding, too_many), past)
}

/// The table's name for the caller: a policy may have brought the table into the query of a restricted one.
pub(crate) fn name_for(binding: &Binding, too_many: &TooManyChanges) -> &'static str {
    if binding.is_bounded() { "a table" } else { too_many.table }
}
