//! Explains and judges live queries with SQLite's planner on the
//! schema alone, so that the answer does not depend on the rows in the file.

use std::sync::{Mutex, PoisonError};

use abide_live::{Binding, QueryPrincipal, Scan, Sql as _, SqlError, SqlErrorKind};
use abide_schema::wire::{Explanation, TableScan};
use abide_schema::{Code, Refusal, Value};
use abide_store::{Layout, Reader, blank};

use crate::queries::reader_sql::ReaderSql;

/// An empty database with the tables and indexes of the file.
#[derive(Debug)]
pub(crate) struct PlanningDb {
    layout: Layout,
    /// Statements that prepare a connection for live queries.
    set_up: Vec<String>,
    /// Created on first use.
    made: Mutex<Option<Reader>>,
}

impl PlanningDb {
    pub(crate) fn new(layout: Layout, set_up: Vec<String>) -> PlanningDb {
        PlanningDb { layout, set_up, made: Mutex::new(None) }
    }

    /// Whether a query can be live; determined once per template.
    pub(crate) fn check_plan(&self, binding: &Binding) -> Result<(), Refusal> {
        if let Some(verdict) = binding.verdict() {
            return verdict.clone();
        }
        self.with_sql(|sql| binding.check_plan(sql).cloned())?
    }

    /// The full explanation of a query.
    pub(crate) fn explain(&self, binding: &Binding) -> Result<Explanation, Refusal> {
        let found =
            self.with_sql(|sql| Ok((binding.scans(sql)?, binding.check_plan(sql)?.clone())));
        let (scans, verdict) = found?;
        Ok(Explanation {
            plan: binding.plan(true),
            routed_by: binding.explain().routed_by,
            scans: scans.iter().map(table_scan).collect(),
            snapshot: binding.snapshot_sql().to_owned(),
            params: binding.params().iter().map(Value::to_json).collect(),
            shape: binding.shape().clone(),
            refused: verdict.err().map(|refusal| refusal.problem()),
        })
    }

    /// Runs a query on the empty tables.
    pub(crate) fn try_out(&self, binding: &Binding) -> Result<(), Refusal> {
        let statement = binding.snapshot_sql();
        let params = binding.params();
        self.with_sql(|sql| sql.run(statement, params, &mut |_| {})).map(drop)
    }

    /// The explanation for a restricted caller: only how the query is maintained. Its
    /// statements would reveal the policies.
    pub(crate) fn explain_restricted(
        &self,
        binding: &Binding,
        principal: &QueryPrincipal,
    ) -> Result<Explanation, Refusal> {
        let verdict = self
            .check_plan(binding)
            .map_err(|refusal| restrict_verdict(refusal, binding, principal));
        Ok(Explanation {
            plan: binding.plan(false),
            routed_by: Vec::new(),
            scans: Vec::new(),
            snapshot: String::new(),
            params: Vec::new(),
            shape: binding.shape().clone(),
            refused: verdict.err().map(|refusal| refusal.problem()),
        })
    }

    /// Runs something on the empty database.
    fn with_sql<T>(
        &self,
        work: impl FnOnce(&mut ReaderSql<'_>) -> Result<T, SqlError>,
    ) -> Result<T, Refusal> {
        // A panic left at most an open transaction, which is rolled back.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = match &mut *made {
            Some(reader) => reader,
            empty => {
                let reader = blank(&self.layout).map_err(|error| error.to_refusal())?;
                reader.set_up(&self.set_up).map_err(|error| error.to_refusal())?;
                empty.insert(reader)
            }
        };
        let state = reader.snapshot().map_err(|error| error.to_refusal())?;
        work(&mut ReaderSql::new(&state)).map_err(|error| {
            if error.kind == SqlErrorKind::Budget {
                return Refusal::new(Code::LimitExceeded, "the query is too large to be planned")
                    .hint("join fewer tables, or with fewer conditions");
            }
            if error.kind == SqlErrorKind::Query {
                // Such as a chain of a thousand operators. What SQLite says may tell of a policy.
                tracing::info!(
                    name: "live_query_not_planned",
                    %error,
                    "a live query cannot be planned"
                );
                return Refusal::new(Code::BadSql, "SQLite cannot plan the query")
                    .hint("write it with fewer operators in a row");
            }
            tracing::error!(
                name: "live_query_not_explained",
                %error,
                "a live query could not be explained"
            );
            Refusal::new(Code::Internal, "the query could not be explained")
        })
    }
}

/// Restricts a verdict for a restricted caller: it must not name hidden tables.
pub(crate) fn restrict_verdict(
    refusal: Refusal,
    binding: &Binding,
    principal: &QueryPrincipal,
) -> Refusal {
    let tables = binding.tables();
    if tables.iter().all(|table| principal.authorized_views().select(table).is_some()) {
        return refusal;
    }
    Refusal::new(refusal.code, "every change would have to scan a whole table")
        .hint("run it once with `abide sql`, or ask an administrator for an index")
}

fn table_scan(scan: &Scan) -> TableScan {
    TableScan {
        table: scan.table.to_owned(),
        columns: scan.columns.iter().map(|column| (*column).to_owned()).collect(),
        part: scan.purpose.name().to_owned(),
        statement: scan.statement.clone(),
        declare: scan.declare(),
        create: scan.create(),
    }
}
