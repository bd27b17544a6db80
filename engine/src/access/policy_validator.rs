//! Validates the policies that reducers set.

use std::collections::BTreeSet;
use std::sync::Arc;

use abide_live::{Planner, check_condition, check_condition_syntax};
use abide_schema::work::{PolicyChecker, Verdict};
use abide_schema::{Code, Listing, Refusal, TableSpec, nearest};
use serde_json::Map;

use crate::commit::registry;
use crate::queries::explain::PlanningDb;

/// Validates a new policy.
#[derive(Debug)]
pub(crate) struct PolicyValidator {
    tables: Vec<&'static TableSpec>,
    reducers: Vec<&'static str>,
    planner: Planner,
    planning_db: Arc<PlanningDb>,
}

impl PolicyValidator {
    pub(crate) fn new(
        tables: Vec<&'static TableSpec>,
        reducers: Vec<&'static str>,
        planner: Planner,
        planning_db: Arc<PlanningDb>,
    ) -> PolicyValidator {
        PolicyValidator { tables, reducers, planner, planning_db }
    }

    /// Whether a role can name these reducers.
    pub(crate) fn check_reducer_names(&self, names: &BTreeSet<String>) -> Result<(), Refusal> {
        match names.iter().find(|name| !self.reducers.contains(&name.as_str())) {
            Some(unknown) => Err(registry::unknown_reducer(unknown, self.reducers.iter().copied())),
            None => Ok(()),
        }
    }
}

impl PolicyChecker for PolicyValidator {
    /// Whether a policy is valid: its table and columns exist, and its condition can be live and can be evaluated.
    fn check(&self, table: &str, condition: Option<&str>, hidden: &[String]) -> Verdict {
        let spec = self.tables.iter().find(|spec| spec.name == table).ok_or_else(|| {
            let refusal = bad_arguments(format!("there is no table {table}"));
            match nearest(table, self.tables.iter().map(|spec| spec.name)) {
                Some(name) => refusal.hint(format!("did you mean {name}?")),
                None => refusal.hint(Listing::Tables.hint()),
            }
        })?;
        if let Some(missing) = hidden.iter().find(|name| spec.column(name).is_none()) {
            let columns: Vec<&str> = spec.columns.iter().map(|column| column.name).collect();
            return Err(bad_arguments(format!("table {table} has no column {missing}"))
                .hint(format!("its columns are {}", columns.join(", "))));
        }
        if spec.columns.len() == hidden.len() {
            return Err(bad_arguments("every column would be hidden")
                .hint("drop the table's policies; then only an admin sees it"));
        }
        let Some(condition) = condition else { return Ok(()) };
        check_condition(condition)?;
        let sql = format!("SELECT * FROM \"{table}\" WHERE ({condition}\n)");
        let bound = self.planner.bind_some(&sql, &Map::new(), None);
        let binding = bound.map_err(|refusal| match refusal.code {
            Code::BadSql => check_condition_syntax(condition).err().unwrap_or(refusal),
            _ => refuse_condition(refusal),
        })?;
        self.planning_db.check_plan(&binding).map_err(refuse_plan)?;
        self.planning_db.try_out(&binding).map_err(refuse_plan)
    }
}

fn bad_arguments(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::BadArguments, detail)
}

/// Returns the refusal of a condition whose query SQLite has refused. The hint can be a place in that query, which the caller
/// has not written.
fn refuse_plan(refusal: Refusal) -> Refusal {
    if refusal.code == Code::BadSql {
        return Refusal { hint: None, ..refusal };
    }
    refuse_condition(refusal)
}

/// Returns the refusal of a condition whose query was refused. A condition becomes a part of live queries, so the hint
/// about one-shot queries does not apply.
fn refuse_condition(refusal: Refusal) -> Refusal {
    if refusal.code != Code::UnsupportedSql {
        return refusal;
    }
    let why = refusal.detail.trim_end_matches(", so this query cannot be live");
    let detail = format!("a policy's condition must be able to be part of a live query: {why}");
    Refusal::new(Code::UnsupportedSql, detail)
        .hint("write a condition that depends only on stored rows and on the caller")
}
