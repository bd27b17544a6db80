//! The limits of identities and roles on calls: how high they may be, and their stored form.

use abide_schema::caller::{CallLimits, Caller, RateLimit};
use abide_schema::{Abort, Code, Json, Refusal, limits};
use serde_json::json;

use crate::check;

/// Checks that a caller with limits grants no higher ones. (A replay does not know limits: the log contains
/// only calls that passed this check.)
pub(crate) fn check_limits(caller: &Caller, what: &str, given: &CallLimits) -> Result<(), Abort> {
    let own = caller.limits();
    for (kind, own, given) in [("rate", own.rate, given.rate), ("quota", own.quota, given.quota)] {
        let Some(own) = own else { continue };
        if given.is_some_and(|given| given.is_within(own)) {
            continue;
        }
        let RateLimit { calls, per_ms } = own;
        let detail = format!("{what} would have a higher {kind} than you have");
        let hint = format!("set --{kind} to at most {calls} calls in {per_ms} ms");
        return Err(Refusal::new(Code::Denied, detail).hint(hint).into());
    }
    Ok(())
}

/// Limits in their stored form.
pub(crate) fn checked(given: Option<CallLimits>) -> Result<Option<Json>, Refusal> {
    let Some(given) = given else { return Ok(None) };
    for (what, allowance) in [("rate", given.rate), ("quota", given.quota)] {
        let Some(allowance) = allowance else { continue };
        check::within(&format!("{what}.calls"), Some(allowance.calls), &limits::ALLOWED_CALLS)?;
        check::within(&format!("{what}.per_ms"), Some(allowance.per_ms), &limits::ALLOWED_SPAN_MS)?;
    }
    Ok((given != CallLimits::default()).then(|| Json::from(json!(given))))
}
