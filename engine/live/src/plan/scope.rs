//! The names that an expression or a FROM clause can refer to.

use crate::plan::fragment::Fragment;

/// A table, view or subquery in a FROM clause.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// The name that qualifies its columns.
    pub(crate) name: String,
    /// Its columns and their values.
    pub(crate) columns: Vec<(String, Fragment)>,
    /// The value of `rowid`.
    pub(crate) rowid: Option<Fragment>,
    /// Columns that USING merged with those of an earlier table.
    pub(crate) merged: Vec<String>,
    /// The values of bare column names that USING merged with those of a later table, if they are
    /// not the column itself.
    pub(crate) bare: Vec<(String, Fragment)>,
}

impl Entry {
    /// Returns the column of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&(String, Fragment)> {
        self.columns.iter().find(|(column, _)| column.eq_ignore_ascii_case(name))
    }

    /// Returns the value of a bare column name.
    pub(crate) fn bare_column(&self, name: &str) -> Option<&Fragment> {
        let bare = self.bare.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        bare.or_else(|| self.find(name)).map(|(_, value)| value)
    }

    /// `true` if the bare name refers to an earlier table's column.
    pub(crate) fn is_merged(&self, name: &str) -> bool {
        self.merged.iter().any(|merged| merged.eq_ignore_ascii_case(name))
    }
}

/// The names that are visible to an expression.
#[derive(Clone, Default)]
pub(crate) struct Scope<'s> {
    pub(crate) entries: Vec<Entry>,
    /// Names given with AS. Columns take precedence.
    pub(crate) aliases: Vec<(String, Fragment)>,
    /// The enclosing query's scope.
    pub(crate) outer: Option<&'s Scope<'s>>,
    /// The number of enclosing scopes.
    pub(crate) depth: usize,
}

impl Scope<'_> {
    /// Returns the entries that a qualified name may refer to, or all for a bare name.
    pub(crate) fn entries_named(&self, table: Option<&str>) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |entry| table.is_none_or(|table| entry.name.eq_ignore_ascii_case(table)))
    }
}

/// A view or CTE: a text under a name.
#[derive(Clone, Debug)]
pub(crate) struct NamedQuery {
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    pub(crate) sql: String,
}
