//! Who may do what: identities, roles, tokens, policies, and the record of denied attempts.

pub(crate) mod call_limits;
pub mod denial;
pub mod identity;
pub mod policy;
pub mod role;
pub mod token;
