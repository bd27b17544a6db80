//! Access control: scopes, policies, credentials, rate limits, and the record of denials.
//!
//! In reading order: `row_owners` the scope of a row · `policy_rows` the stored policies, and whom they restrict ·
//! `policies` what queries see · `row_policies` the same for reducers · `scope_rules` all declarations together ·
//! `scoped_transaction` holds reducers to them · `policy_validator` checks new policies · `credentials` checks tokens
//! again when a call runs · `rate_limiter` counts calls · `tenants` names the tenants of callers · `denials` limits how
//! often refused attempts are recorded.

pub mod credentials;
pub(crate) mod denials;
pub(crate) mod policies;
pub(crate) mod policy_rows;
pub(crate) mod policy_validator;
pub(crate) mod rate_limiter;
pub(crate) mod row_owners;
pub(crate) mod row_policies;
pub(crate) mod scope_rules;
pub(crate) mod scoped_transaction;
pub(crate) mod tenants;
