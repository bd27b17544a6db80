//! Nobody sees, or reaches, what is another tenant's: held to what is told, and not to what the engine says of whose
//! it is. Sessions are `s0`, `s1` …, those of even numbers of one tenant and those of odd ones of the other, so
//! that the name of a session in any cell says whose the row is.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::Caller;
use serde_json::Value as JsonValue;

use super::Finding;

const NAME: &str = "sight is bounded";

/// The callers of the tenants, by the number of each.
pub const TENANTS: [&str; 2] = ["tenant0", "tenant1"];

/// The number of a tenant, if a caller is one's.
#[must_use]
pub fn tenant(caller: &str) -> Option<usize> {
    TENANTS.iter().position(|name| *name == caller)
}

/// Whose the nth session is, as its scope says.
#[must_use]
pub fn scope(session: usize) -> BTreeMap<String, String> {
    BTreeMap::from([("tenant".to_owned(), TENANTS[session % TENANTS.len()].to_owned())])
}

/// A tenant's caller.
#[must_use]
pub fn caller(tenant: usize) -> Caller {
    Caller::with(TENANTS[tenant], "app", BTreeSet::new(), scope(tenant))
}

/// Holds what a tenant was told to it: a message, or the result of a call.
///
/// # Errors
/// It names a session of another's.
pub fn check(tenant: usize, told: &JsonValue) -> Result<(), Finding> {
    match told {
        JsonValue::String(text) => match number(text) {
            Some(session) if session % TENANTS.len() != tenant => {
                let what = format!("{} is told of {text}", TENANTS[tenant]);
                Err(Finding::new(NAME, what))
            }
            _ => Ok(()),
        },
        JsonValue::Array(list) => list.iter().try_for_each(|item| check(tenant, item)),
        JsonValue::Object(map) => map.values().try_for_each(|item| check(tenant, item)),
        _ => Ok(()),
    }
}

/// The number of a session, if the text names one.
fn number(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('s')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}
