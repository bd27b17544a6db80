//! The changes of a commit: the net old and new image of every row that it touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_schema::{Row, TableSpec, Value};

use crate::catalog::{Catalog, delta_name};
use crate::delta::exact;
use crate::delta::meter::Cost;
use crate::sql::{LiveError, Sql};

/// The weight of an old image.
pub(crate) const OLD: i64 = -1;
/// The weight of a new image.
pub(crate) const NEW: i64 = 1;

/// The net change of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChange {
    /// The old image; `None` for an insert.
    pub old: Option<Row>,
    /// The new image; `None` for a delete.
    pub new: Option<Row>,
}

/// The net changes of one commit or of a span of commits: at most one [`RowChange`] per primary
/// key. A changed primary key counts as a delete and an insert.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    tables: BTreeMap<&'static str, Arc<Vec<RowChange>>>,
}

impl RowChange {
    /// `true` if the row is unchanged in these columns.
    pub(crate) fn is_same_in(&self, columns: &BTreeSet<usize>) -> bool {
        let (Some(old), Some(new)) = (&self.old, &self.new) else { return false };
        columns.iter().all(|at| exact::same(&old[*at..=*at], &new[*at..=*at]))
    }
}

impl Changes {
    /// Creates an empty set of changes.
    #[must_use]
    pub fn new() -> Changes {
        Changes::default()
    }

    /// Adds the net change of one row. A change without effect is dropped.
    pub fn push(&mut self, table: &'static str, old: Option<Row>, new: Option<Row>) {
        let same = match (&old, &new) {
            (Some(old), Some(new)) => exact::same(old, new),
            (None, None) => true,
            _ => false,
        };
        if !same {
            let rows = self.tables.entry(table).or_default();
            Arc::make_mut(rows).push(RowChange { old, new });
        }
    }

    /// Returns the changes without those of these tables.
    pub(crate) fn without(&self, tables: &[&str]) -> Changes {
        let kept = self.tables.iter().filter(|(name, _)| !tables.contains(*name));
        Changes { tables: kept.map(|(name, rows)| (*name, Arc::clone(rows))).collect() }
    }

    /// Sets the changes of one table.
    pub(crate) fn set(&mut self, table: &'static str, rows: Vec<RowChange>) {
        if !rows.is_empty() {
            self.tables.insert(table, Arc::new(rows));
        }
    }

    /// Returns the changes of one table.
    #[must_use]
    pub fn for_table(&self, table: &str) -> &[RowChange] {
        self.tables.get(table).map_or(&[], |rows| rows.as_slice())
    }

    /// Returns the tables that changed, by name, with their changes.
    pub fn tables(&self) -> impl Iterator<Item = (&'static str, &[RowChange])> {
        self.tables.iter().map(|(name, rows)| (*name, rows.as_slice()))
    }

    /// `true` if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Writes the changes of the given tables into their temporary tables. Returns the work that
    /// this took.
    pub(crate) fn lay_out(
        &self,
        catalog: &Catalog,
        tables: impl IntoIterator<Item = usize>,
        sql: &mut dyn Sql,
    ) -> Result<Cost, LiveError> {
        let mut spent = Cost::default();
        for table in tables {
            let spec = catalog.table(table);
            let delete = format!("DELETE FROM {}", delta_name(spec));
            spent.add(sql.run(&delete, &[], &mut |_| {})?);
            self.insert_images(spec, sql, &mut spent)?;
        }
        Ok(spent)
    }

    fn insert_images(
        &self,
        spec: &TableSpec,
        sql: &mut dyn Sql,
        spent: &mut Cost,
    ) -> Result<(), LiveError> {
        let marks = vec!["?"; spec.columns.len() + 2].join(", ");
        let insert = format!("INSERT INTO {} VALUES ({marks})", delta_name(spec));
        for (number, change) in self.for_table(spec.name).iter().enumerate() {
            for (image, weight) in [(&change.old, OLD), (&change.new, NEW)] {
                let Some(image) = image else { continue };
                let mut cells = image.to_vec();
                cells.extend([image_number(number, weight), Value::Integer(weight)]);
                spent.add(sql.run(&insert, &cells, &mut |_| {})?);
            }
        }
        Ok(())
    }
}

/// Returns the number of an image in its temporary table.
pub(crate) fn image_number(change: usize, weight: i64) -> Value {
    let change = i64::try_from(change).expect("fewer changes than an i64 counts");
    Value::Integer(2 * change + i64::from(weight == NEW))
}
