//! The policies that are stored, by table and role: the conditions and hidden columns that follow from them, the
//! callers that they restrict, and the values of a caller that conditions may name.
//!
//! `policies` makes them into what queries see, `row_policies` into what reducers see.

use std::collections::BTreeMap;

use abide_live::{OWN, OwnerReference, scope_parameter};
use abide_schema::reducer::{ColumnCopies, PolicyTables};
use abide_schema::{Caller, Scope, TableSpec, Value};
use abide_store::{StoreError, Writer};
use serde_json::json;

use crate::fault_points;

/// The role name that means all roles.
pub(crate) const EVERY_ROLE: &str = "*";

/// A policy of one table and role.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) condition: Option<String>,
    pub(crate) hidden: Vec<String>,
}

/// The policies by table and role.
pub(crate) type PolicyRows = BTreeMap<(String, String), Vec<Policy>>;

/// Reads the policies in the open transaction.
pub(crate) fn read_policies(
    writer: &Writer,
    from: &PolicyTables,
) -> Result<PolicyRows, StoreError> {
    let mut rows = PolicyRows::new();
    writer.run(from.query, &[], &mut |row| {
        let [Value::Text(table), Value::Text(role), condition, hidden] = row else { return };
        let hidden = text_cell(hidden).and_then(|text| serde_json::from_str(&text).ok());
        let policy = Policy { condition: text_cell(condition), hidden: hidden.unwrap_or_default() };
        rows.entry((table.to_ascii_lowercase(), role.clone())).or_default().push(policy);
    })?;
    Ok(rows)
}

fn text_cell(cell: &Value) -> Option<String> {
    if let Value::Text(text) = cell { Some(text.clone()) } else { None }
}

/// Returns the policies of a table for a role: those of every role, and its own.
pub(crate) fn policies_for_role<'a>(
    rows: &'a PolicyRows,
    table: &TableSpec,
    role: &'a str,
) -> impl Iterator<Item = &'a Policy> + Clone {
    let table = table.name.to_ascii_lowercase();
    [EVERY_ROLE, role]
        .into_iter()
        .filter_map(move |role| rows.get(&(table.clone(), role.to_owned())))
        .flatten()
}

/// Returns the columns of a table that the policies of a role hide: by name, or as a copy of another hidden
/// column.
pub(crate) fn hidden_columns(
    rows: &PolicyRows,
    copies: &[ColumnCopies],
    table: &TableSpec,
    role: &str,
) -> Vec<String> {
    let role_policies = rows.iter().filter(|((_, of), _)| of == EVERY_ROLE || of == role);
    let mut all: Vec<(String, String)> = Vec::new();
    for ((table, _), policies) in role_policies {
        let names = policies.iter().flat_map(|policy| &policy.hidden);
        all.extend(names.map(|name| (table.clone(), name.to_ascii_lowercase())));
    }
    let mut next = 0;
    while let Some((table, name)) = all.get(next).cloned() {
        let further = copies.iter().filter(|((of, column), _)| *of == table && *column == name);
        for (table, name) in further.flat_map(|(_, into)| *into) {
            let copy = ((*table).to_owned(), (*name).to_owned());
            if !all.contains(&copy) {
                all.push(copy);
            }
        }
        next += 1;
    }
    all.retain(|(of, _)| of.eq_ignore_ascii_case(table.name));
    all.into_iter().map(|(_, name)| name).collect()
}

/// Returns the condition that the policies of a role put on the rows of a table: those of the table, and of the table
/// that owns its rows, as sessions own messages. `None` if they permit all.
pub(crate) fn permitted_rows(
    rows: &PolicyRows,
    tables: &[&'static TableSpec],
    owners: &[OwnerReference],
    table: &TableSpec,
    role: &str,
) -> Option<String> {
    let own = permitted_condition(policies_for_role(rows, table, role));
    let root = owners.last().and_then(|root| tables.iter().find(|spec| spec.name == root.table));
    let owned = root
        .and_then(|root| permitted_condition(policies_for_role(rows, root, role)))
        .map(|condition| condition_on_owner(table, owners, condition));
    let conditions: Vec<&str> = [&own, &owned].into_iter().flatten().map(String::as_str).collect();
    (!conditions.is_empty()).then(|| join_conditions(&conditions, " AND "))
}

/// Returns a condition on the last of these owners as a condition on the rows of a table.
fn condition_on_owner(table: &TableSpec, owners: &[OwnerReference], condition: String) -> String {
    let children = [table.name].into_iter().chain(owners.iter().map(|owner| owner.table));
    let links: Vec<(&str, &OwnerReference)> = children.zip(owners).collect();
    links.into_iter().rev().fold(condition, |condition, (child, owner)| {
        let OwnerReference { column, table: parent, key } = owner;
        // Rows without a parent, as some events are, are not hidden.
        format!(
            "\"{child}\".\"{column}\" IS NULL OR EXISTS (SELECT 1 FROM \"{parent}\" \
             WHERE \"{parent}\".\"{key}\" = \"{child}\".\"{column}\" AND ({condition}\n))"
        )
    })
}

/// Returns the union of the conditions of all policies of one table and role; `None` if they permit all rows, as one
/// policy without a condition does.
fn permitted_condition<'a>(policies: impl Iterator<Item = &'a Policy>) -> Option<String> {
    let conditions: Option<Vec<&str>> =
        policies.map(|policy| policy.condition.as_deref()).collect();
    conditions.filter(|conditions| !conditions.is_empty()).map(|all| join_conditions(&all, " OR "))
}

/// Joins conditions; a trailing comment cannot affect the next one.
pub(crate) fn join_conditions(conditions: &[&str], by: &str) -> String {
    let conditions: Vec<String> =
        conditions.iter().map(|condition| format!("({condition}\n)")).collect();
    conditions.join(by)
}

/// `true` if policies and its scope restrict what a caller sees.
pub(crate) fn is_restricted(caller: &Caller) -> bool {
    let is_restricted = caller.role() != Caller::ADMIN || !caller.scope().is_empty();
    fault_points::restricts_visibility(is_restricted)
}

/// Returns the values that the replacing SQL may name: for the scope of a caller, and for the one that it had before.
pub(crate) fn values_in_both_scopes(caller: &Caller) -> BTreeMap<String, Value> {
    let mut values = condition_values(caller, caller.scope());
    if let Some(own_scope) = caller.own_scope() {
        let own = condition_values(caller, own_scope);
        values.extend(own.into_iter().map(|(name, value)| (format!("{OWN}{name}"), value)));
    }
    values
}

/// Returns the values that conditions may name, for a caller with this scope.
pub(crate) fn condition_values(caller: &Caller, scope: &Scope) -> BTreeMap<String, Value> {
    let capabilities: Vec<&String> = caller.capabilities().iter().collect();
    let own = [
        ("caller_id", Value::from(caller.id())),
        ("caller_role", Value::from(caller.role())),
        ("caller_scope", Value::Text(json!(scope).to_string())),
        ("caller_capabilities", Value::Text(json!(capabilities).to_string())),
    ];
    let scope =
        scope.iter().map(|(key, value)| (scope_parameter(key), Value::from(value.as_str())));
    own.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(scope).collect()
}
