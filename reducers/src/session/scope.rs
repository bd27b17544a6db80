//! The scope of a new session: its creator cannot place it outside its own scope, and a child session has
//! the scope of its parent.

use abide_schema::{Caller, Code, Refusal, Scope, limits};
use serde_json::{Map, Value as JsonValue};

use super::Session;
use crate::check;

/// Returns the entries of a scope whose values are texts. Rules about scopes ignore other values.
pub(crate) fn text_entries(scope: &JsonValue) -> Scope {
    let members = scope.as_object().into_iter().flatten();
    members.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Inherits the scope of the parent session.
pub(super) fn inherit(scope: &mut Map<String, JsonValue>, parent: &Session) -> Result<(), Refusal> {
    let JsonValue::Object(inherited) = parent.scope.value() else { return Ok(()) };
    for (key, value) in inherited {
        if *scope.entry(key.clone()).or_insert_with(|| value.clone()) != value {
            let detail =
                format!("scope.{key} differs from the scope of the parent session {}", parent.id);
            let hint = "omit it: a session inherits the scope of its parent and can add keys";
            return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
        }
    }
    Ok(())
}

/// Adds the caller's scope, and checks that the new scope is within it.
pub(crate) fn confine(scope: &mut Map<String, JsonValue>, caller: &Caller) -> Result<(), Refusal> {
    for (key, value) in caller.scope() {
        let own = scope.entry(key.clone()).or_insert_with(|| value.as_str().into());
        if own.as_str() != Some(value) {
            let detail = format!("scope.{key} is outside the caller's own scope");
            let hint = format!("omit {key}; it is filled in");
            return Err(Refusal::new(Code::Denied, detail).hint(hint));
        }
    }
    if scope.len() > limits::SCOPE_KEYS {
        let count = scope.len();
        let max = limits::SCOPE_KEYS;
        let detail = format!("scope has {count} keys; the limit is {max}");
        let hint = "keep attributes that do not decide who sees the session in metadata";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint));
    }
    for (key, value) in scope {
        check::name("a key in scope", key)?;
        check::characters(&format!("scope.{key}"), value.as_str().unwrap_or_default())?;
    }
    Ok(())
}
