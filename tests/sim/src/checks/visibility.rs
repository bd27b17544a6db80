//! A tenant can neither see nor access rows of another. Checked on the responses, independently of
//! the engine's notion of ownership: sessions are `s0`, `s1` …, even numbers belong to one tenant
//! and odd ones to the other, so the name of a session in any cell reveals the tenant.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::Caller;
use serde_json::Value as JsonValue;

use super::Finding;

const NAME: &str = "visibility is restricted";

/// The callers of the tenants, by tenant number.
pub const TENANTS: [&str; 2] = ["tenant0", "tenant1"];

/// The number of a caller's tenant, if it has one.
#[must_use]
pub fn tenant(caller: &str) -> Option<usize> {
    TENANTS.iter().position(|name| *name == caller)
}

/// The scope of the nth session.
#[must_use]
pub fn scope(session: usize) -> BTreeMap<String, String> {
    BTreeMap::from([("tenant".to_owned(), TENANTS[session % TENANTS.len()].to_owned())])
}

/// A tenant's caller.
#[must_use]
pub fn caller(tenant: usize) -> Caller {
    Caller::with(TENANTS[tenant], "app", BTreeSet::new(), scope(tenant))
}

/// Checks a message or a call result that a tenant received.
///
/// # Errors
/// It names a session of the other tenant.
pub fn check(tenant: usize, output: &JsonValue) -> Result<(), Finding> {
    match output {
        JsonValue::String(text) => match number(text) {
            Some(session) if session % TENANTS.len() != tenant => {
                let what = format!("{} received {text}", TENANTS[tenant]);
                Err(Finding::new(NAME, what))
            }
            _ => Ok(()),
        },
        JsonValue::Array(list) => list.iter().try_for_each(|item| check(tenant, item)),
        JsonValue::Object(map) => map.values().try_for_each(|item| check(tenant, item)),
        _ => Ok(()),
    }
}

/// The number of a session, if the text is the name of one.
fn number(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('s')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}
