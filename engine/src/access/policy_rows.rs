//! The policies that are stored, by table and role, and the conditions and hidden columns that follow from them.

use std::collections::BTreeMap;

use abide_live::OwnerReference;
use abide_schema::reducer::{ColumnCopies, PolicyTables};
use abide_schema::{TableSpec, Value};
use abide_store::{StoreError, Writer};

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
pub(crate) fn read_rows(writer: &Writer, from: &PolicyTables) -> Result<PolicyRows, StoreError> {
    let mut rows = PolicyRows::new();
    writer.run(from.query, &[], &mut |row| {
        let [Value::Text(table), Value::Text(role), condition, hidden] = row else { return };
        let text = |value: &Value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        let hidden = text(hidden).and_then(|text| serde_json::from_str(&text).ok());
        let policy = Policy { condition: text(condition), hidden: hidden.unwrap_or_default() };
        rows.entry((table.to_ascii_lowercase(), role.clone())).or_default().push(policy);
    })?;
    Ok(rows)
}

/// The policies of a table for a role: those of every role, and its own.
pub(crate) fn of_role<'a>(
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

/// The columns of a table that the policies of a role hide: by name, or as a copy of another hidden
/// column.
pub(crate) fn hidden_of(
    rows: &PolicyRows,
    copies: &[ColumnCopies],
    table: &TableSpec,
    role: &str,
) -> Vec<String> {
    let of_role = rows.iter().filter(|((_, of), _)| of == EVERY_ROLE || of == role);
    let mut all: Vec<(String, String)> = Vec::new();
    for ((table, _), policies) in of_role {
        let names = policies.iter().flat_map(|policy| &policy.hidden);
        all.extend(names.map(|name| (table.clone(), name.to_ascii_lowercase())));
    }
    let mut next = 0;
    while let Some((table, name)) = all.get(next).cloned() {
        let of_it = copies.iter().filter(|((of, column), _)| *of == table && *column == name);
        for (table, name) in of_it.flat_map(|(_, into)| *into) {
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

/// Which rows of a table the policies of a role permit: those of the table, and of the table that owns
/// its rows, as sessions own messages. `None` if they permit all.
pub(crate) fn permitted_rows(
    rows: &PolicyRows,
    tables: &[&'static TableSpec],
    owners: &[OwnerReference],
    table: &TableSpec,
    role: &str,
) -> Option<String> {
    let own = permitted(of_role(rows, table, role));
    let root = owners.last().and_then(|root| tables.iter().find(|spec| spec.name == root.table));
    let owned = root.and_then(|root| permitted(of_role(rows, root, role))).map(|condition| {
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
    });
    let conditions: Vec<&str> = [&own, &owned].into_iter().flatten().map(String::as_str).collect();
    (!conditions.is_empty()).then(|| joined(&conditions, " AND "))
}

/// The union of the conditions of all policies of one table and role; `None` if they permit all rows, as one policy
/// without a condition does.
fn permitted<'a>(policies: impl Iterator<Item = &'a Policy>) -> Option<String> {
    let conditions: Option<Vec<&str>> =
        policies.map(|policy| policy.condition.as_deref()).collect();
    conditions.filter(|conditions| !conditions.is_empty()).map(|all| joined(&all, " OR "))
}

/// Joins conditions; a trailing comment cannot affect the next one.
pub(crate) fn joined(conditions: &[&str], by: &str) -> String {
    let conditions: Vec<String> =
        conditions.iter().map(|condition| format!("({condition}\n)")).collect();
    conditions.join(by)
}
