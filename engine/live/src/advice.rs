//! What SQLite would have to read whole to make a query's deltas, and the index that spares it.

use abide_schema::{TableSpec, Value};

use crate::select::Query;
use crate::sql::{Sql, SqlError};
use crate::template::Binding;

/// A table that a delta statement reads from end to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The table.
    pub table: &'static str,
    /// The columns whose index would spare it; none where no index would.
    pub columns: Vec<&'static str>,
    /// The statement.
    pub statement: String,
}

impl Binding {
    /// Asks SQLite how it would run the delta statements, and lists the tables it would read whole.
    /// Nothing listed means that a commit costs the rows that it touches, however large the tables are.
    ///
    /// # Errors
    /// [`SqlError`] when a statement cannot be explained.
    pub fn scans(&self, sql: &mut dyn Sql) -> Result<Vec<Scan>, SqlError> {
        let (template, mut scans) = (self.template(), Vec::new());
        for statement in template.statements() {
            let mut details = Vec::new();
            let (explain, params) = (
                format!("EXPLAIN QUERY PLAN {}", statement.sql),
                vec![Value::Null; statement.args.len()],
            );
            sql.run(&explain, &params, &mut |row| {
                if let Some(Value::Text(detail)) = row.last() {
                    details.push(detail.clone());
                }
            })?;
            for detail in details {
                let Some(name) = detail.strip_prefix("SCAN ") else { continue };
                let name = name.split(" USING").next().unwrap_or(name);
                let Some((table, columns)) = template.wanted_index(name) else { continue };
                let statement = statement.sql.clone();
                scans.push(Scan { table, columns, statement });
            }
        }
        Ok(scans)
    }
}

/// Whether an index begins with one of these columns.
pub(crate) fn is_indexed(table: &TableSpec, columns: &[usize]) -> bool {
    let whole = table.indexes.iter().filter(|index| index.condition.is_none());
    let first = whole.filter_map(|index| table.column(index.columns.first()?));
    first.chain(table.key.first().copied()).any(|first| columns.contains(&first))
}

impl Query {
    /// The columns of a source that some condition equals with another table's.
    pub(crate) fn joined_columns(&self, source: usize) -> Vec<usize> {
        let equal = self.blocks.iter().flat_map(|block| block.equal());
        let columns = equal.flat_map(|(left, right)| [left, right]);
        let mut columns: Vec<usize> =
            columns.filter(|(known, _)| *known == source).map(|(_, column)| column).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}
