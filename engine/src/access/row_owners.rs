//! Which scope a row belongs to, by the declarations of the tables (see [`TableSpec::shared`]): the one in its own
//! scope column, or that of the row that it refers to, as a message belongs to its session.

use std::collections::BTreeMap;

use abide_live::{OwnerReference, scope_path};
use abide_schema::{Scope, TableSpec};

/// The owners of the rows of all tables.
#[derive(Debug, Default)]
pub(crate) struct RowOwners {
    by_table: BTreeMap<&'static str, ScopeOwner>,
}

/// Who owns the rows of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScopeOwner {
    /// The scope in this column.
    Column(usize),
    /// The owner of the row of that table that this column names.
    Reference(usize, &'static TableSpec),
}

/// How the rows of a table lead to a scope.
#[derive(Clone, Debug)]
pub(crate) struct OwnerPath {
    /// The references from row to row; none if the rows have a scope column.
    pub(crate) references: Vec<OwnerReference>,
    /// The scope column of the last row.
    pub(crate) scope_column: &'static str,
}

impl RowOwners {
    pub(crate) fn new(tables: &[&'static TableSpec]) -> RowOwners {
        let mut owners = BTreeMap::new();
        for table in tables {
            if let Some(at) = table.columns.iter().position(|column| column.scope) {
                owners.insert(table.name, ScopeOwner::Column(at));
            }
        }
        // Ownership is transitive: repeat until no further table is owned.
        while let Some((table, owner)) =
            tables.iter().find_map(|table| find_owner(table, tables, &owners))
        {
            owners.insert(table, owner);
        }
        RowOwners { by_table: owners }
    }

    /// Returns the owner of a table's rows; `None` if they belong to no scope.
    pub(crate) fn owner(&self, table: &TableSpec) -> Option<ScopeOwner> {
        self.by_table.get(table.name).copied()
    }

    /// Returns the references by which a table's rows belong to a scope; `None` if they have no owner.
    pub(crate) fn path(&self, table: &TableSpec) -> Option<OwnerPath> {
        let mut references = Vec::new();
        let mut name = table.name;
        let mut columns = table.columns.iter().map(|column| column.name).collect::<Vec<_>>();
        loop {
            match self.by_table.get(name)? {
                ScopeOwner::Column(at) => {
                    return Some(OwnerPath { references, scope_column: columns[*at] });
                }
                ScopeOwner::Reference(at, owner) => {
                    let key = owner.columns[owner.key[0]].name;
                    let column = columns[*at];
                    references.push(OwnerReference { column, table: owner.name, key });
                    (name, columns) =
                        (owner.name, owner.columns.iter().map(|column| column.name).collect());
                }
            }
        }
    }

    /// Returns the scope of a row of `alias`, as SQL; `None` if its table has no owner.
    pub(crate) fn scope(&self, table: &TableSpec, alias: &str) -> Option<String> {
        match self.by_table.get(table.name)? {
            ScopeOwner::Column(at) => Some(format!("{alias}.{}", table.columns[*at].name)),
            ScopeOwner::Reference(at, owner) => {
                let column = table.columns[*at].name;
                let key = owner.columns[owner.key[0]].name;
                let own = owner.name;
                let inner = format!("{alias}_o");
                let scope = self.scope(owner, &inner)?;
                Some(format!(
                    "(SELECT {scope} FROM {own} AS {inner} WHERE {inner}.{key} = {alias}.{column})"
                ))
            }
        }
    }

    /// Returns the condition that a row of `alias` is within the scope; `None` if its table has no owner.
    pub(crate) fn condition(
        &self,
        table: &TableSpec,
        alias: &str,
        scope: &ScopeParameters<'_>,
    ) -> Option<String> {
        match self.by_table.get(table.name)? {
            ScopeOwner::Column(at) => {
                Some(scope.contained_in(&format!("{alias}.{}", table.columns[*at].name)))
            }
            ScopeOwner::Reference(at, owner) => {
                let column = table.columns[*at].name;
                let key = owner.columns[owner.key[0]].name;
                // Named after its depth, so that it cannot collide with a table's name.
                let own = owner.name;
                let inner = format!("{alias}_o");
                let condition = self.condition(owner, &inner, scope)?;
                Some(format!(
                    "EXISTS (SELECT 1 FROM {own} AS {inner} \
                     WHERE {inner}.{key} = {alias}.{column} AND {condition})"
                ))
            }
        }
    }
}

/// The scope of a caller, as parameters of a statement.
pub(crate) struct ScopeParameters<'a> {
    pub(crate) scope: &'a Scope,
    /// The number of the first value; values follow the order of their keys.
    pub(crate) first: usize,
}

impl ScopeParameters<'_> {
    /// Returns the condition that a column contains the whole scope, each key with the same text.
    fn contained_in(&self, column: &str) -> String {
        self.scope.keys().enumerate().map(|(nth, key)| {
            let value = self.first + nth;
            let path = scope_path(key);
            format!(
                "json_extract({column}, {path}) = ?{value} AND json_type({column}, {path}) = 'text'"
            )
        }).collect::<Vec<_>>().join(" AND ")
    }
}

/// Returns the columns of a table that refer to a row by its key, and the referenced tables.
pub(crate) fn references(
    table: &TableSpec,
    tables: &[&'static TableSpec],
) -> Vec<(usize, &'static TableSpec)> {
    let columns = table.columns.iter().enumerate();
    columns
        .filter_map(|(at, column)| Some((at, referenced_table(column.references?, tables)?)))
        .collect()
}

/// Returns the table of a reference `table(column)`, if the column is its key.
fn referenced_table(reference: &str, tables: &[&'static TableSpec]) -> Option<&'static TableSpec> {
    let (name, column) = reference.split_once('(')?;
    let table = tables.iter().copied().find(|table| table.name == name)?;
    let is_key = matches!(table.key, [key] if column == format!("{})", table.columns[*key].name));
    is_key.then_some(table)
}

/// Returns a table and its owner, if a reference leads to a table whose owner is known, and its own is not.
fn find_owner(
    table: &'static TableSpec,
    tables: &[&'static TableSpec],
    owners: &BTreeMap<&'static str, ScopeOwner>,
) -> Option<(&'static str, ScopeOwner)> {
    if owners.contains_key(table.name) {
        return None;
    }
    let mut references = references(table, tables).into_iter();
    let (at, owner) = references.find(|(_, owner)| owners.contains_key(owner.name))?;
    Some((table.name, ScopeOwner::Reference(at, owner)))
}
