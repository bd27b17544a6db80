//! Rate limits and quotas of callers. Checked on the caller's thread, before
//! anything is queued. Kept in memory: a restart resets them.
//!
//! This is not a crate such as `governor`, because a batch is charged as a whole or not at all, a rate and a quota are
//! charged together, the limits of a caller change while it is connected, and time is the engine's, which tests set.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use abide_schema::caller::{CallLimits, Caller, RateLimit};
use abide_schema::{Code, Micros, Refusal, limits};

/// Usage of a caller.
#[derive(Clone, Copy, Debug, Default)]
struct CallerUsage {
    /// Its limits at its last call.
    limits: CallLimits,
    /// When the calls so far would have been made at the allowed rate, in nanoseconds: the
    /// "theoretical arrival time" of the generic cell rate algorithm (ITU-T I.371).
    paced_to_ns: i128,
    /// The quota period that `count` belongs to.
    span: i64,
    count: i64,
}

/// Usage by caller. See the module.
#[derive(Debug, Default)]
pub(crate) struct RateLimiter {
    callers: Mutex<HashMap<String, CallerUsage>>,
}

impl RateLimiter {
    /// Charges a number of calls to a caller.
    ///
    /// # Errors
    /// `rate_limited` if the rate is exceeded or the quota is used up, with the time
    /// until a retry can succeed; `limit_exceeded` for more calls than the limit ever allows.
    pub(crate) fn take(&self, caller: &Caller, calls: usize, now: Micros) -> Result<(), Refusal> {
        let allowed = caller.limits();
        if !allowed.is_limited() {
            return Ok(());
        }
        let calls = i64::try_from(calls).unwrap_or(i64::MAX);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= limits::LIMITED_CALLERS && !callers.contains_key(caller.quota_key()) {
            // A caller idle for a month has its full allowance again.
            let idle_ns =
                (i128::from(now.0) - i128::from(*limits::ALLOWED_SPAN_MS.end()) * 1_000) * 1_000;
            callers.retain(|_, used| used.paced_to_ns > idle_ns);
            if callers.len() >= limits::LIMITED_CALLERS {
                let detail = "too many callers with limits are active";
                let hint = "try again later";
                return Err(Refusal::new(Code::Overloaded, detail).hint(hint));
            }
        }
        let used = callers.entry(caller.quota_key().to_owned()).or_default();
        let mut after = *used;
        allowed.rate.map_or(Ok(()), |rate| after.pace(rate, calls, now))?;
        allowed.quota.map_or(Ok(()), |quota| after.count(quota, calls, now))?;
        after.paced_to_ns = after.paced_to_ns.max(i128::from(now.0) * 1_000);
        after.limits = allowed;
        *used = after;
        Ok(())
    }

    /// Charges further calls for work that is done: the caller waits longer before its next call. The limits are those
    /// of its last call, since the log does not have them.
    pub(crate) fn add(&self, caller: &Caller, calls: usize, now: Micros) {
        if calls == 0 {
            return;
        }
        let calls = i64::try_from(calls).unwrap_or(i64::MAX);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        // A caller with limits is known since its call was charged, unless it was idle for a month since.
        let own = caller
            .own_scope()
            .map(|scope| Caller::with(caller.id(), caller.role(), BTreeSet::new(), scope.clone()));
        // The caller of a step comes from the log, which has the narrower scope that the call was made with. Its limits
        // are those of its credential.
        let keys =
            [Some(caller.quota_key()), own.as_ref().map(Caller::quota_key), Some(caller.id())];
        let key = keys.into_iter().flatten().find(|key| callers.contains_key(*key));
        let Some(used) = key.and_then(|key| callers.get_mut(key)) else { return };
        let allowed = used.limits;
        if let Some(RateLimit { calls: max, per_ms }) = allowed.rate {
            let taken_ns = i128::from(per_ms) * 1_000_000 * i128::from(calls) / i128::from(max);
            used.paced_to_ns = used.paced_to_ns.max(i128::from(now.0) * 1_000) + taken_ns;
        }
        if let Some(RateLimit { per_ms, .. }) = allowed.quota {
            let span = now.0.div_euclid(1_000).div_euclid(per_ms);
            let so_far = if span == used.span { used.count } else { 0 };
            used.span = span;
            used.count = so_far.saturating_add(calls);
        }
    }
}

impl CallerUsage {
    fn pace(&mut self, rate: RateLimit, calls: i64, now: Micros) -> Result<(), Refusal> {
        let RateLimit { calls: max, per_ms } = rate;
        let now_ns = i128::from(now.0) * 1_000;
        let span_ns = i128::from(per_ms) * 1_000_000;
        if calls > max {
            return Err(too_many(calls, rate));
        }
        let taken_ns = span_ns * i128::from(calls) / i128::from(max);
        let paced_to_ns = self.paced_to_ns.max(now_ns) + taken_ns;
        let over_ns = paced_to_ns - now_ns - span_ns;
        if over_ns > 0 {
            let detail = format!("the caller has used up its limit of {max} calls in {per_ms} ms");
            let after_ms = over_ns.div_euclid(1_000_000) + 1;
            return Err(Refusal::new(Code::RateLimited, detail)
                .hint(
                    "wait for retry_after_ms; an admin can raise the limit: `abide identity change ID --rate …`",
                )
                .retry_after_ms(after_ms as u64));
        }
        self.paced_to_ns = paced_to_ns;
        Ok(())
    }

    fn count(&mut self, quota: RateLimit, calls: i64, now: Micros) -> Result<(), Refusal> {
        let RateLimit { calls: max, per_ms } = quota;
        let now_ms = now.0.div_euclid(1_000);
        let span = now_ms.div_euclid(per_ms);
        let so_far = if span == self.span { self.count } else { 0 };
        if calls > max {
            return Err(too_many(calls, quota));
        }
        if so_far.saturating_add(calls) > max {
            let detail = format!("the caller has used up its quota of {max} calls in {per_ms} ms");
            let after_ms = (span + 1) * per_ms - now_ms;
            let refusal = Refusal::new(Code::RateLimited, detail).hint(
                "wait for retry_after_ms; an admin can raise the quota: `abide identity change ID --quota …`",
            );
            return Err(refusal.retry_after_ms(after_ms.unsigned_abs()));
        }
        self.span = span;
        self.count = so_far + calls;
        Ok(())
    }
}

fn too_many(calls: i64, allowed: RateLimit) -> Refusal {
    let RateLimit { calls: max, per_ms } = allowed;
    let detail = format!(
        "a batch of {calls} calls exceeds the caller's limit of {max} calls in {per_ms} ms"
    );
    Refusal::new(Code::LimitExceeded, detail).hint("send smaller batches")
}

#[cfg(test)]
mod tests {
    use abide_schema::Scope;

    use super::*;

    fn caller(rate: Option<(i64, i64)>, quota: Option<(i64, i64)>) -> Caller {
        let allowance =
            |given: Option<(i64, i64)>| given.map(|(calls, per_ms)| RateLimit { calls, per_ms });
        let limits = CallLimits { rate: allowance(rate), quota: allowance(quota) };
        Caller::new("ann").limited(limits)
    }

    /// Returns the refusal of `calls` at a time (ms): its code and retry delay, or none.
    fn ask(all: &RateLimiter, by: &Caller, calls: usize, ms: i64) -> Option<(Code, Option<u64>)> {
        let taken = all.take(by, calls, Micros(0).plus_ms(ms));
        taken.err().map(|refusal| (refusal.code, refusal.retry_after_ms))
    }

    #[test]
    fn a_rate_limit_allows_a_burst_and_then_its_rate() {
        let all = RateLimiter::default();
        let ann = caller(Some((10, 1_000)), None);
        for _ in 0..10 {
            assert_eq!(ask(&all, &ann, 1, 5_000), None);
        }
        assert_eq!(ask(&all, &ann, 1, 5_000), Some((Code::RateLimited, Some(101))));
        assert_eq!(ask(&all, &ann, 1, 5_099), Some((Code::RateLimited, Some(2))));
        assert_eq!(ask(&all, &ann, 1, 5_100), None);
        assert_eq!(ask(&all, &ann, 5, 5_100), Some((Code::RateLimited, Some(501))));
        assert_eq!(ask(&all, &ann, 5, 5_600), None);
        assert_eq!(ask(&all, &ann, 11, 60_000), Some((Code::LimitExceeded, None)));
        assert_eq!(ask(&all, &ann, 10, 60_000), None);
    }

    #[test]
    fn any_period_allows_at_most_a_burst_and_the_rate() {
        let all = RateLimiter::default();
        let ann = caller(Some((7, 330)), None);
        let taken = (0..10_000).filter(|ms| ask(&all, &ann, 1, *ms).is_none()).count();
        let bound = 7 + 7 * 10_000 / 330 + 1;
        assert!(taken <= bound && taken >= bound - 2, "{taken} of {bound}");
    }

    #[test]
    fn a_quota_resets_with_its_period() {
        let all = RateLimiter::default();
        let ann = caller(None, Some((3, 60_000)));
        assert_eq!(ask(&all, &ann, 2, 61_000), None);
        assert_eq!(ask(&all, &ann, 2, 62_000), Some((Code::RateLimited, Some(58_000))));
        assert_eq!(ask(&all, &ann, 1, 62_000), None);
        assert_eq!(ask(&all, &ann, 1, 119_999), Some((Code::RateLimited, Some(1))));
        assert_eq!(ask(&all, &ann, 3, 120_000), None);
    }

    /// The caller of a step of a fork comes from the log. With a scope that was narrower than that of its credential it
    /// had another key, and the rows of the steps were charged to nobody.
    #[test]
    fn a_caller_from_the_log_is_charged_as_its_credential() {
        let scope = |key: &str| Scope::from([(key.to_owned(), "x".to_owned())]);
        let limits = CallLimits { rate: Some(RateLimit { calls: 5, per_ms: 1_000 }), quota: None };
        for own in [Scope::new(), scope("tenant")] {
            let all = RateLimiter::default();
            let ann = Caller::with("ann", "agent", BTreeSet::new(), own).limited(limits);
            let narrower = ann.acting_for(&scope("team")).expect("another key");
            let recorded = Caller::recorded("ann", narrower.authority());
            assert_eq!(ask(&all, &ann, 1, 0), None);
            all.add(&recorded, 200, Micros(0));
            assert_eq!(ask(&all, &ann, 1, 0), Some((Code::RateLimited, Some(39_401))));
        }
    }

    #[test]
    fn a_call_that_changes_many_rows_delays_the_next_one() {
        let all = RateLimiter::default();
        let ann = caller(Some((5, 1_000)), None);
        assert_eq!(ask(&all, &ann, 1, 0), None);
        all.add(&ann, 200, Micros(0));
        // The burst of five and its one second are used up, and 196 calls more.
        assert_eq!(ask(&all, &ann, 1, 0), Some((Code::RateLimited, Some(39_401))));
        assert_eq!(ask(&all, &ann, 1, 39_400), None);
        let bob = Caller::new("bob").limited(CallLimits {
            quota: Some(RateLimit { calls: 300, per_ms: 60_000 }),
            ..CallLimits::default()
        });
        assert_eq!(ask(&all, &bob, 1, 0), None);
        all.add(&bob, 300, Micros(0));
        assert_eq!(ask(&all, &bob, 1, 1_000), Some((Code::RateLimited, Some(59_000))));
        assert_eq!(ask(&all, &bob, 1, 60_000), None);
    }

    #[test]
    fn refused_calls_do_not_count() {
        let all = RateLimiter::default();
        let ann = caller(Some((2, 1_000)), Some((3, 60_000)));
        assert_eq!(ask(&all, &ann, 2, 0), None);
        for ms in 0..500 {
            assert!(ask(&all, &ann, 1, ms).is_some());
        }
        assert_eq!(ask(&all, &ann, 1, 500), None);
        assert_eq!(ask(&all, &ann, 1, 5_000).map(|(code, _)| code), Some(Code::RateLimited));
        assert_eq!(ask(&all, &Caller::new("bob"), 1_000, 0), None);
    }
}
