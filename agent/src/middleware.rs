//! Middleware around requests and calls: guardrails, redaction of personal data, counters, publishing, and middleware
//! in Rust.
//! `abide_definitions::middleware` and `abide_definitions::guardrail` are their settings.
//!
//! `agent_middleware` the interface in Rust · `held` answers that a rule may still deny · `hooks` its calls ·
//! `observability` counters · `pattern_reach` how far a match extends · `redaction` where personal data is redacted ·
//! `redactor` how · `request_check` the check of new messages · `streaming` what is published of an
//! answer · `unchecked` the messages to check · `verdict` the decision about a text.

pub(crate) mod agent_middleware;
pub(crate) mod held;
pub(crate) mod hooks;
pub(crate) mod observability;
pub(crate) mod pattern_reach;
pub(crate) mod redaction;
pub(crate) mod redactor;
pub(crate) mod request_check;
pub(crate) mod streaming;
pub(crate) mod unchecked;
pub(crate) mod verdict;
