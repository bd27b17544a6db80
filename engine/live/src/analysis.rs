//! Index advice: which tables SQLite must scan to compute a query's deltas, which index avoids the
//! scan, and whether the query may be live without it.
//!
//! SQLite plans every statement over a database that holds the tables and indexes but no rows, so a
//! plan does not depend on the stored data. A candidate index is created there to see whether it
//! helps.

use std::collections::BTreeSet;
use std::sync::Arc;

use abide_schema::wire::{Plan, SubscriptionInfo};
use abide_schema::{Code, Refusal, TableSpec, Value};

use crate::identifier::quoted;
use crate::plan::conjunct::Comparison;
use crate::plan::fragment::Statement;
use crate::plan::query::Query;
use crate::sql::{Sql, SqlError};
use crate::template::{Binding, Template};

/// The purpose of a statement of a live query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementPurpose {
    /// From changed rows to the rows of other tables that they join.
    Term,
    /// From changed rows to the bindings that they affect.
    Lookup,
    /// The whole query, or one group or row of it, before or after the changes.
    Evaluation,
}

impl StatementPurpose {
    /// Returns the name of the purpose.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StatementPurpose::Term => "term",
            StatementPurpose::Lookup => "lookup",
            StatementPurpose::Evaluation => "evaluation",
        }
    }
}

/// A full table scan by a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The table.
    pub table: &'static str,
    /// The columns to index to avoid the scan. Empty if no index helps.
    pub columns: Vec<&'static str>,
    /// The purpose of the statement.
    pub purpose: StatementPurpose,
    /// Whether only the caller's policies read the table there. The caller does not know them, and
    /// cannot change them.
    pub is_of_policy: bool,
    /// The statement.
    pub statement: String,
}

impl Scan {
    /// Returns the index that avoids the scan, as `#[table]` declares it.
    #[must_use]
    pub fn declare(&self) -> Option<String> {
        (!self.columns.is_empty()).then(|| format!("index({})", self.columns.join(", ")))
    }

    /// Returns the index as SQL.
    #[must_use]
    pub fn create(&self) -> Option<String> {
        (!self.columns.is_empty()).then(|| create(self.table, &self.columns))
    }

    fn refusal(&self) -> Option<Refusal> {
        let table = self.table;
        let declare = self.declare()?;
        let create = self.create()?;
        let detail = format!(
            "every change would scan {table}, which has no index on {}",
            self.columns.join(", ")
        );
        let hint = format!(
            "declare `#[table(name = \"{table}\", {declare})]`, which is `{create}`, \
             or run it once with `abide sql`"
        );
        Some(Refusal::new(Code::UnsupportedSql, detail).hint(hint))
    }
}

impl Binding {
    /// Returns the metadata of the first reply to a subscription: shape and plan, without
    /// statements.
    #[must_use]
    pub fn info(&self) -> Arc<SubscriptionInfo> {
        let info =
            || Arc::new(SubscriptionInfo { shape: self.shape().clone(), plan: self.plan(false) });
        Arc::clone(self.template().advice.info.get_or_init(info))
    }

    /// How the result is maintained, in a few words; with the statements if requested.
    #[must_use]
    pub fn plan(&self, statements: bool) -> Plan {
        let explanation = self.explain();
        Plan {
            rule: explanation.rule.to_owned(),
            cost: explanation.cost.to_owned(),
            state: explanation.state.to_owned(),
            statements: if statements { explanation.statements } else { Vec::new() },
        }
    }

    /// Whether the query may be live, for any parameters, if already known.
    #[must_use]
    pub fn verdict(&self) -> Option<&Result<(), Refusal>> {
        self.template().advice.verdict.get()
    }

    /// Whether the query may be live: no statement that runs at every commit may scan a table if an
    /// index could avoid the scan. `sql` runs over an empty database with the same tables and
    /// indexes, and may create trial indexes in it. The verdict holds for all bindings of the
    /// template.
    ///
    /// # Errors
    /// [`SqlError`] when a statement cannot be explained.
    pub fn check_plan(&self, sql: &mut dyn Sql) -> Result<&Result<(), Refusal>, SqlError> {
        let template = self.template();
        let mut verdict_found = Ok(());
        for (part, statement) in template.every_commit() {
            let scans = template.scans_of(part, statement, sql)?;
            let query_scans = scans.iter().filter(|scan| !scan.is_of_policy);
            if let Some(refusal) = query_scans.filter_map(Scan::refusal).next() {
                verdict_found = Err(refusal);
                break;
            }
        }
        Ok(template.advice.verdict.get_or_init(|| verdict_found))
    }

    /// Returns the tables that the statements would scan. If there are none, a commit costs as much
    /// as the rows that it touches, however large the tables are. `sql` is as for
    /// [`Binding::check_plan`].
    ///
    /// # Errors
    /// [`SqlError`] when a statement cannot be explained.
    pub fn scans(&self, sql: &mut dyn Sql) -> Result<Vec<Scan>, SqlError> {
        let template = self.template();
        let mut scans = Vec::new();
        for (part, statement) in template.every_commit() {
            scans.extend(template.scans_of(part, statement, sql)?);
        }
        let terms: Vec<&str> =
            template.terms().iter().map(|term| term.statement.sql.as_str()).collect();
        for statement in template.statements() {
            if !terms.contains(&statement.sql.as_str()) {
                scans.extend(template.scans_of(StatementPurpose::Evaluation, &statement, sql)?);
            }
        }
        Ok(scans)
    }
}

impl Template {
    /// Returns the statements that run whenever their tables change.
    fn every_commit(&self) -> impl Iterator<Item = (StatementPurpose, &Statement)> {
        self.terms()
            .into_iter()
            .map(|term| (StatementPurpose::Term, &term.statement))
            .chain(self.lookup_terms().map(|term| (StatementPurpose::Lookup, &term.statement)))
    }

    fn scans_of(
        &self,
        purpose: StatementPurpose,
        statement: &Statement,
        sql: &mut dyn Sql,
    ) -> Result<Vec<Scan>, SqlError> {
        let mut scans = Vec::new();
        for name in read_whole(statement, sql)? {
            let Some((table, source)) = self.scanned(&name) else { continue };
            let mut columns = Vec::new();
            let parts = self.part_columns(source);
            for column in parts.into_iter().chain(self.query.sought_columns(source)) {
                let column = table.columns[column].name;
                if spares(table, column, &name, statement, sql)? {
                    columns.push(column);
                    break;
                }
            }
            let statement = statement.sql.clone();
            let is_of_policy = self.is_of_policy(source);
            scans.push(Scan { table: table.name, columns, purpose, is_of_policy, statement });
        }
        Ok(scans)
    }
}

/// Returns the tables that SQLite would scan, by their names in the statement.
fn read_whole(statement: &Statement, sql: &mut dyn Sql) -> Result<Vec<String>, SqlError> {
    let mut names = Vec::new();
    let explain = format!("EXPLAIN QUERY PLAN {}", statement.sql);
    sql.run(&explain, &vec![Value::Null; statement.args.len()], &mut |row| {
        let Some(Value::Text(detail)) = row.last() else { return };
        // SQLite builds an automatic index by a full scan.
        let search =
            detail.strip_prefix("SEARCH ").filter(|rest| rest.contains(" USING AUTOMATIC"));
        let Some(rest) = detail.strip_prefix("SCAN ").or(search) else { return };
        names.push(rest.split(" USING").next().unwrap_or(rest).to_owned());
    })?;
    Ok(names)
}

/// Returns whether an index on a column avoids the scan of a table.
fn spares(
    table: &TableSpec,
    column: &str,
    name: &str,
    statement: &Statement,
    sql: &mut dyn Sql,
) -> Result<bool, SqlError> {
    let create =
        format!("CREATE INDEX main.an_index ON {} ({})", quoted(table.name), quoted(column));
    sql.run("SAVEPOINT an_index", &[], &mut |_| {})?;
    sql.run(&create, &[], &mut |_| {})?;
    let left = read_whole(statement, sql);
    sql.run("ROLLBACK TO an_index", &[], &mut |_| {})?;
    sql.run("RELEASE an_index", &[], &mut |_| {})?;
    Ok(!left?.iter().any(|left| left == name))
}

fn create(table: &str, columns: &[&str]) -> String {
    format!("CREATE INDEX {table}_{} ON {table} ({})", columns.join("_"), columns.join(", "))
}

impl Query {
    /// Returns the columns of a source that can select its rows: first those equal to a column of
    /// another table, then those equal to a value.
    fn sought_columns(&self, source: usize) -> Vec<usize> {
        let joined = self
            .blocks
            .iter()
            .flat_map(|block| block.equal_columns())
            .flat_map(|(left, right)| [left, right]);
        let mut columns: Vec<usize> =
            joined.filter(|(known, _)| *known == source).map(|(_, column)| column).collect();
        let alternatives = self.routes[source].alternatives_for(source).into_iter().flatten();
        let given = alternatives.flatten().filter(|equality| equality.test == Comparison::Among);
        columns.extend(given.map(|equality| equality.column));
        let mut seen = BTreeSet::new();
        columns.retain(|column| seen.insert(*column));
        columns
    }
}
