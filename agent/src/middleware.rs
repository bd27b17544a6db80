//! Middleware around requests and calls: guardrails, redaction of personal data, counters, publishing, and middleware
//! in Rust. `abide_definitions::middleware` and `abide_definitions::guardrail` are their settings.
//!
//! | file | what it does |
//! |---|---|
//! | `unchecked`, `request_check` | which messages request guardrails have not checked; the check, before anything else happens with them |
//! | `verdict` | the decision about a text |
//! | `held`, `pattern_reach` | an answer that a rule may still deny is held back; how far a match extends |
//! | `redaction`, `redactor` | where personal data is redacted, and how |
//! | `agent_middleware`, `hooks` | the interface in Rust, and where it is called |
//! | `streaming` | what is published of an answer while it arrives |
//! | `observability` | counters |

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
