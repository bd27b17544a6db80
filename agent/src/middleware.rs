//! What surrounds requests and calls: guardrails, redaction of personal data, and middleware in Rust.
//! `definition::middleware` and `definition::guardrail` are their settings.
//!
//! `agent_middleware` the interface in Rust · `held` answers that a rule may still deny · `hooks` its calls ·
//! `pattern_reach` how far a match extends · `redaction` where personal data is redacted · `redactor` how · `verdict`
//! the decision about a text.

pub(crate) mod agent_middleware;
pub(crate) mod held;
pub(crate) mod hooks;
pub(crate) mod pattern_reach;
pub(crate) mod redaction;
pub(crate) mod redactor;
pub(crate) mod verdict;
