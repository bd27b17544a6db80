//! Why a model stopped, in the terms of providers.
//!
//! A reason that means failure is an error, also one that nobody has documented: text in front of it must not look
//! like a complete answer.

use serde_json::Value;

use crate::{ModelError, Stop, classify};

/// The reasons of a protocol, in lower case.
pub(super) struct StopReasons {
    pub(super) end: &'static [&'static str],
    pub(super) tool_use: &'static [&'static str],
    pub(super) length: &'static [&'static str],
    pub(super) filtered: &'static [&'static str],
    pub(super) failed: &'static [&'static str],
}

/// Words in reasons that mean failure, for those that are not listed.
const FAILURE_WORDS: [&str; 18] = [
    "error",
    "fail",
    "abort",
    "cancel",
    "timeout",
    "timed_out",
    "time_out",
    "overload",
    "exceed",
    "exhaust",
    "malformed",
    "invalid",
    "interrupt",
    "unavailable",
    "insufficient",
    "disconnect",
    "terminated",
    "crash",
];

/// Words in reasons that mean a token limit, for those that are not listed.
const LENGTH_WORDS: [&str; 4] = ["length", "max_token", "max_output", "token_limit"];

/// Words in reasons that mean that content was withheld, for those that are not listed.
const FILTER_WORDS: [&str; 7] =
    ["filter", "safety", "refus", "policy", "moderation", "prohibited", "sensitive"];

impl StopReasons {
    /// Returns the meaning of a reason. `details` has the provider's error or message about it, if there is one.
    ///
    /// # Errors
    /// The reason means that the answer has failed.
    pub(super) fn read(&self, reason: &str, details: &Value) -> Result<Stop, ModelError> {
        let code = reason.trim().to_ascii_lowercase().replace(['-', ' '], "_");
        // Gateways write `function_call_filter: MALFORMED_FUNCTION_CALL`.
        let last = code.rsplit(':').next().unwrap_or_default().trim_start_matches('_');
        let is_in = |listed: &[&str]| listed.contains(&code.as_str());
        let ends_in = |listed: &[&str]| listed.contains(&last);
        let has_one_of = |words: &[&str]| words.iter().any(|word| code.contains(word));
        Ok(if is_in(self.end) {
            Stop::End
        } else if is_in(self.tool_use) {
            Stop::ToolUse
        } else if ends_in(self.length) {
            Stop::Length
        } else if ends_in(self.filtered) {
            Stop::Filtered
        } else if ends_in(self.failed) {
            return Err(classify::error_from_stop(reason, details));
        } else if last == "unexpected_tool_call" {
            Stop::UnknownTool("a tool".to_owned())
        } else if has_one_of(&LENGTH_WORDS) {
            Stop::Length
        } else if has_one_of(&FILTER_WORDS) {
            Stop::Filtered
        } else if has_one_of(&FAILURE_WORDS) {
            return Err(classify::error_from_stop(reason, details));
        } else {
            Stop::Other(reason.to_owned())
        })
    }
}
