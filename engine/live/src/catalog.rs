//! The tables and views that can be subscribed to, and the temporary tables that hold their
//! changes.

use std::collections::HashMap;

use abide_schema::TableSpec;
use abide_schema::table::Kind;

use crate::identifier::quoted;

/// The image's number: twice the number of its change within the commit, plus one for the NEW
/// image.
pub(crate) const IMAGE: &str = "_i";
/// The image's weight in the Z-set: −1 for OLD, +1 for NEW.
pub(crate) const WEIGHT: &str = "_w";

/// The tables and views that can be subscribed to. Any other name is `no such table`.
#[derive(Debug)]
pub struct Catalog {
    tables: Vec<&'static TableSpec>,
    by_name: HashMap<String, usize>,
    views: HashMap<String, &'static str>,
    work_functions: Option<WorkFunctions>,
}

/// The names of SQL functions by which a connection counts work.
#[derive(Clone, Copy, Debug)]
pub struct WorkFunctions {
    /// `read(value, times)` returns its first argument, and counts its bytes so many times: the
    /// work of the function that gets the result.
    pub read: &'static str,
    /// The same for an expression of a restricted caller, which is evaluated on visible rows only.
    pub visible_read: &'static str,
    /// `visible()` returns 1, and counts a row that a restricted caller sees.
    pub visible: &'static str,
}

impl Catalog {
    /// Creates a catalog of these tables and these views (name and SELECT).
    #[must_use]
    pub fn new(
        tables: Vec<&'static TableSpec>,
        views: Vec<(&'static str, &'static str)>,
    ) -> Catalog {
        let named = tables.iter().enumerate();
        let by_name = named.map(|(at, table)| (table.name.to_ascii_lowercase(), at)).collect();
        let views = views.into_iter().map(|(name, sql)| (name.to_ascii_lowercase(), sql)).collect();
        Catalog { tables, by_name, views, work_functions: None }
    }

    /// Returns the same catalog for connections that have these functions.
    #[must_use]
    pub fn counting_work(self, functions: WorkFunctions) -> Catalog {
        Catalog { work_functions: Some(functions), ..self }
    }

    /// Returns the functions that count work, if the connections have them.
    pub(crate) fn work_functions(&self) -> Option<&WorkFunctions> {
        self.work_functions.as_ref()
    }

    /// Returns the statements that a connection runs once before it computes deltas. For each table
    /// they create a temporary `d_<table>` with the same columns, no constraints and a weight, so
    /// affinity and collation equal those of the table.
    #[must_use]
    pub fn setup_sql(&self) -> Vec<String> {
        self.tables.iter().map(|table| delta_table(table)).collect()
    }

    /// Returns the position of a table. SQL identifiers are case-insensitive.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(&name.to_ascii_lowercase()).copied()
    }

    /// Returns the SELECT of a view.
    pub(crate) fn view(&self, name: &str) -> Option<&'static str> {
        self.views.get(&name.to_ascii_lowercase()).copied()
    }

    /// Returns the table at a position.
    pub(crate) fn table(&self, at: usize) -> &'static TableSpec {
        self.tables[at]
    }

    /// Returns the number of tables.
    pub(crate) fn len(&self) -> usize {
        self.tables.len()
    }

    /// Returns the declared column that `rowid` is an alias of, if any.
    pub(crate) fn rowid_column(&self, table: usize) -> Option<usize> {
        let spec = self.tables[table];
        let is_integer_key = matches!(spec.key, [at] if spec.columns[*at].kind == Kind::Integer);
        (is_integer_key && !spec.without_rowid).then(|| spec.key[0])
    }
}

/// Returns the temporary table's name in SQL.
pub(crate) fn delta_name(table: &TableSpec) -> String {
    format!("temp.{}", quoted(&format!("d_{}", table.name)))
}

fn delta_table(table: &TableSpec) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| format!("{} {}", quoted(column.name), column.kind.sql()))
        .collect();
    format!(
        "CREATE TEMP TABLE IF NOT EXISTS {} ({}, {IMAGE} INTEGER PRIMARY KEY, {WEIGHT} INTEGER)",
        quoted(&format!("d_{}", table.name)),
        columns.join(", ")
    )
}
