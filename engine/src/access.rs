//! What a caller may do: scopes, policies, credentials, rate limits, and the record of denials.
//!
//! `scope_rules` and `row_policies` hold reducers to the caller's scope and policies, `policies` does so for queries, `credentials` checks
//! tokens again when a call runs, `rate_limiter` counts calls, `denials` limits how often refused attempts are recorded.

pub mod credentials;
pub(crate) mod denials;
pub(crate) mod policies;
pub(crate) mod rate_limiter;
pub(crate) mod row_policies;
pub(crate) mod scope_rules;
