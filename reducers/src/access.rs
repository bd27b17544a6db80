//! Who may do what: identities, roles, tokens, policies, the record of denied attempts, and the limits of identities and roles
//! on calls.

use abide_schema::caller::{CallLimits, Caller, RateLimit};
use abide_schema::limits::{ALLOWED_CALLS, ALLOWED_SPAN_MS};
use abide_schema::{Abort, Code, Json, Refusal};
use serde_json::json;

use crate::check;

pub mod denial;
pub mod identity;
pub mod policy;
pub mod role;
pub mod token;

/// Checks that a caller with limits grants no higher ones. (A replay does not know limits: the log contains
/// only calls that passed this check.)
pub(crate) fn check_limits(caller: &Caller, what: &str, granted: &CallLimits) -> Result<(), Abort> {
    let own = caller.limits();
    let pairs = [("rate", own.rate, granted.rate), ("quota", own.quota, granted.quota)];
    for (kind, own, granted) in pairs {
        let Some(own) = own else { continue };
        if granted.is_some_and(|granted| granted.is_within(own)) {
            continue;
        }
        let RateLimit { calls, per_ms } = own;
        let detail = format!("{what} would have a higher {kind} than the caller");
        let hint = format!("set --{kind} to at most {calls} calls in {per_ms} ms");
        return Err(Refusal::new(Code::Denied, detail).hint(hint).into());
    }
    Ok(())
}

/// Checks limits, and returns them in their stored form: `None` if nothing is limited.
pub(crate) fn limits_to_column(limits: Option<CallLimits>) -> Result<Option<Json>, Refusal> {
    let Some(limits) = limits else { return Ok(None) };
    for (name, limit) in [("rate", limits.rate), ("quota", limits.quota)] {
        let Some(RateLimit { calls, per_ms }) = limit else { continue };
        check::in_range(&format!("limits.{name}.calls"), Some(calls), &ALLOWED_CALLS)?;
        check::in_range(&format!("limits.{name}.per_ms"), Some(per_ms), &ALLOWED_SPAN_MS)?;
    }
    Ok(limits.is_limited().then(|| Json::from(json!(limits))))
}
