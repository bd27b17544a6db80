//! A caller as policies see it: whether they apply to it, and the values that their conditions may name.

use std::collections::BTreeMap;

use abide_live::{OWN, scope_parameter};
use abide_schema::{Caller, Scope, Value};
use serde_json::json;

use crate::fault_points;

/// Whether a caller's visibility is restricted.
pub(crate) fn is_restricted(caller: &Caller) -> bool {
    let is_restricted = caller.role() != Caller::ADMIN || !caller.scope().is_empty();
    fault_points::restricts_visibility(is_restricted)
}

/// The values that the replacing SQL may name, for both scopes.
pub(crate) fn values_in_both_scopes(caller: &Caller) -> BTreeMap<String, Value> {
    let mut both = values(caller, caller.scope());
    if let Some(own_scope) = caller.own_scope() {
        let own = values(caller, own_scope);
        both.extend(own.into_iter().map(|(name, value)| (format!("{OWN}{name}"), value)));
    }
    both
}

/// The values that conditions may name, for a caller with this scope.
pub(crate) fn values(caller: &Caller, scope: &Scope) -> BTreeMap<String, Value> {
    let text = |text: &str| Value::Text(text.to_owned());
    let capabilities: Vec<&String> = caller.capabilities().iter().collect();
    let own = [
        ("caller_id", text(caller.id())),
        ("caller_role", text(caller.role())),
        ("caller_scope", Value::Text(json!(scope).to_string())),
        ("caller_capabilities", Value::Text(json!(capabilities).to_string())),
    ];
    let scope = scope.iter().map(|(key, value)| (scope_parameter(key), text(value)));
    own.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(scope).collect()
}
