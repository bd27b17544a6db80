//! The supervisor that an agent can ask for: the key `supervisor` of a definition.

use serde::{Deserialize, Serialize};

use crate::error::InvalidSetting;

/// Who supervises an agent. The definition says it, and not the model: the model only gives the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "supervisor: a map with capability")]
pub struct Supervisor {
    /// The capability that a supervisor needs.
    pub capability: String,
    /// After how long an unclaimed request goes to `escalate_to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_after_seconds: Option<i64>,
    /// The capability that a supervisor needs then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_to: Option<String>,
    /// After how long the agent continues without an answer if the request is unclaimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after_seconds: Option<i64>,
}

impl Supervisor {
    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        let names = [
            ("supervisor.capability", Some(&self.capability)),
            ("supervisor.escalate_to", self.escalate_to.as_ref()),
        ];
        for (setting, name) in names {
            if name.is_some_and(String::is_empty) {
                return Err(InvalidSetting::new(setting, "is empty".to_owned()));
            }
        }
        for (setting, seconds) in [
            ("supervisor.escalate_after_seconds", self.escalate_after_seconds),
            ("supervisor.expires_after_seconds", self.expires_after_seconds),
        ] {
            if let Some(seconds) = seconds.filter(|seconds| *seconds < 1) {
                let why = format!("is {seconds}; it must be at least 1");
                return Err(InvalidSetting::new(setting, why));
            }
        }
        if self.escalate_to.is_some() != self.escalate_after_seconds.is_some() {
            let why = "and supervisor.escalate_after_seconds are only valid together".to_owned();
            return Err(InvalidSetting::new("supervisor.escalate_to", why));
        }
        Ok(())
    }
}
