//! Live queries' SQL on the writer's connection.

use std::time::Duration;

use abide_live::{Cost, Sql, SqlError, SqlErrorKind, StatementLimits};
use abide_schema::Value;
use abide_store::StoreError;

use crate::fault_points::FaultPoint;
use crate::ports::StepScheduler;
use crate::queries::reader_sql::sql_error;
use crate::queries::statement_limits::live_limits;

/// Live queries' SQL on the writer's connection.
pub(crate) struct WriterSql<'a> {
    pub(crate) store: &'a abide_store::Writer,
    pub(crate) scheduler: &'a dyn StepScheduler,
}

impl Sql for WriterSql<'_> {
    fn run(
        &mut self,
        statement: &str,
        params: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<Cost, SqlError> {
        self.scheduler.at_fault_point(FaultPoint::Delta);
        let steps = self.store.run(statement, params, each).map_err(|error| match error {
            // A reader accepts longer values.
            StoreError::Limit(_) => {
                SqlError { message: error.to_string(), fault: SqlErrorKind::Budget }
            }
            error => sql_error(&error),
        })?;
        Ok(Cost::of_statement(steps.all, steps.visible))
    }

    fn allow(&mut self, allowance: Option<StatementLimits>) {
        if let Err(error) = self.store.allow(allowance.map(live_limits).as_ref()) {
            tracing::error!(%error, "the limits of a delta could not be set");
        }
    }

    fn processor_time(&self) -> Duration {
        abide_store::processor_time()
    }
}
