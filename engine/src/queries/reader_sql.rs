//! Live queries' SQL on a reader's snapshot, and storage errors as live queries see them.

use abide_live::{Cost, Sql, SqlError, SqlErrorKind, StatementLimits};
use abide_schema::Value;
use abide_store::{QueryLimits, Snapshot, StoreError};

use crate::queries::statement_limits::{LIMITS, live_limits};

/// Live queries' SQL on a reader's snapshot, within the limits of any one query.
pub(crate) struct ReaderSql<'a> {
    state: &'a Snapshot<'a>,
    limits: QueryLimits,
}

impl<'a> ReaderSql<'a> {
    /// On a snapshot. Nothing else may use it meanwhile.
    pub(crate) fn new(state: &'a Snapshot<'a>) -> ReaderSql<'a> {
        ReaderSql::within(state, LIMITS)
    }

    /// With other limits, of all statements together.
    pub(crate) fn within(state: &'a Snapshot<'a>, limits: QueryLimits) -> ReaderSql<'a> {
        let mut sql = ReaderSql { state, limits };
        sql.limit(&limits);
        sql
    }

    fn limit(&mut self, limits: &QueryLimits) {
        if let Err(error) = self.state.allow(Some(limits)) {
            tracing::error!(
                name: "reader_limits_failed",
                %error,
                "a reader's statement limits could not be set"
            );
        }
    }
}

impl Drop for ReaderSql<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.state.allow(None) {
            tracing::error!(
                name: "reader_limits_failed",
                %error,
                "a reader's statement limits could not be reset"
            );
        }
    }
}

impl Sql for ReaderSql<'_> {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<Cost, SqlError> {
        // The cost is not needed here: the reader's limits apply.
        let done = self.state.run(statement, params, each);
        done.map(|()| Cost::default()).map_err(|error| sql_error(&error))
    }

    fn allow(&mut self, allowance: Option<StatementLimits>) {
        self.limit(&allowance.map_or(self.limits, live_limits));
    }
}

/// Converts an error of the store to the error that live queries know.
pub(crate) fn sql_error(error: &StoreError) -> SqlError {
    let kind = match error {
        StoreError::Interrupted => SqlErrorKind::Budget,
        StoreError::Sql { .. } | StoreError::Limit(_) => SqlErrorKind::Query,
        _ => SqlErrorKind::Store,
    };
    SqlError { message: error.to_string(), kind }
}
