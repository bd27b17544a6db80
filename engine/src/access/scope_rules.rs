//! The declarations of all modules for restricted callers: the owners of rows, references between tables,
//! guards, secrets, and the tables with policies.

use std::collections::BTreeMap;

use abide_schema::reducer::{Abort, BuiltInRole, ColumnCopies, Context, Guard, PolicyTables};
use abide_schema::{Module, TableSpec, integers};

use crate::access::row_owners::{RowOwners, references};
use crate::access::row_policies::RowPolicies;

/// The access of restricted callers. See the module.
#[derive(Debug, Default)]
pub(crate) struct ScopeRules {
    pub(crate) owners: RowOwners,
    /// By table, the columns that name a row of another, and that table.
    references: BTreeMap<&'static str, Vec<(usize, &'static TableSpec)>>,
    guards: Vec<Guard>,
    /// By reducer, the roles that it declares.
    roles: BTreeMap<&'static str, &'static [BuiltInRole]>,
    /// Reducers that continue calls, and the reducers of those calls.
    continued: BTreeMap<&'static str, &'static str>,
    copies: Vec<ColumnCopies>,
    /// Reducers, and members of their results that are hidden from restricted callers.
    secrets: Vec<(&'static str, &'static str)>,
    tables: Vec<&'static TableSpec>,
    policy_tables: Option<PolicyTables>,
}

impl ScopeRules {
    pub(crate) fn new(modules: &[Module]) -> ScopeRules {
        let tables: Vec<&'static TableSpec> =
            modules.iter().flat_map(|module| module.tables.iter().copied()).collect();
        let deadlines = modules.iter().flat_map(|module| &module.deadlines);
        let continued = deadlines
            .filter_map(|deadline| Some((deadline.reducer.name, deadline.continuation?.reducer)));
        let reducers = modules.iter().flat_map(|module| &module.reducers);
        ScopeRules {
            owners: RowOwners::new(&tables),
            references: tables
                .iter()
                .map(|table| (table.name, references(table, &tables)))
                .collect(),
            roles: reducers.map(|reducer| (reducer.name, reducer.roles)).collect(),
            guards: modules.iter().flat_map(|module| module.guards.iter().copied()).collect(),
            continued: continued.collect(),
            copies: modules.iter().flat_map(|module| module.copies.clone()).collect(),
            secrets: modules.iter().flat_map(|module| module.secrets.clone()).collect(),
            policy_tables: modules.iter().find_map(|module| module.policy_tables),
            tables,
        }
    }

    /// Returns the columns of a table that name a row of another, and that table.
    pub(crate) fn references(&self, table: &TableSpec) -> &[(usize, &'static TableSpec)] {
        self.references.get(table.name).map_or(&[], Vec::as_slice)
    }

    /// Asks the guards whether a caller may call a reducer; for a step of a call, the reducer of the call. The answer
    /// does not depend on visible rows.
    pub(crate) fn run_guards(&self, context: &mut Context<'_>, reducer: &str) -> Result<(), Abort> {
        let reducer = self.continued.get(reducer).copied().unwrap_or(reducer);
        let roles = self.roles.get(reducer).copied().unwrap_or_default();
        context.without_policies(|context| {
            self.guards.iter().try_for_each(|guard| guard(context, reducer, roles))
        })
    }

    /// Returns the reducer that continues the calls of a reducer, if their work goes on in later transactions.
    pub(crate) fn step_of(&self, reducer: &str) -> Option<&'static str> {
        self.continued.iter().find(|(_, first)| **first == reducer).map(|(step, _)| *step)
    }

    /// Returns the result for a restricted caller: an empty text replaces each secret of the reducer, so that the
    /// row keeps its shape.
    pub(crate) fn without_secrets(&self, reducer: &str, result: String) -> String {
        let mut members = self.secrets.iter().filter(|(of, _)| *of == reducer).peekable();
        if members.peek().is_none() {
            return result;
        }
        let Ok(mut value) = integers::parse(&result) else { return result };
        for (_, member) in members {
            if let Some(secret) = value.get_mut(member) {
                *secret = "".into();
            }
        }
        value.to_string()
    }

    /// Returns the policies that apply to reducers.
    pub(crate) fn row_policies(&self) -> RowPolicies {
        let owners = self.tables.iter().filter_map(|table| {
            let path = self.owners.path(table)?;
            Some((table.name, path.references))
        });
        let tables = self.tables.clone();
        RowPolicies::new(tables, self.policy_tables, owners.collect(), self.copies.clone())
    }
}
