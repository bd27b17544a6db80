//! The supervisor that an agent can ask for: the key `supervisor` of a definition.

use abide_client::rules::forbidden_character;
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

/// The longest time of a deadline: ten years, as the database accepts it.
const MAX_SECONDS: i64 = 315_360_000;

/// The longest name of a capability in bytes, as the database accepts it.
const NAME_BYTES: usize = 512;

impl Supervisor {
    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        let names = [
            ("supervisor.capability", Some(&self.capability)),
            ("supervisor.escalate_to", self.escalate_to.as_ref()),
        ];
        for (setting, name) in names {
            let Some(name) = name else { continue };
            let why = if name.is_empty() {
                "is empty".to_owned()
            } else if name.len() > NAME_BYTES {
                format!("has {} bytes; the limit is {NAME_BYTES}", name.len())
            } else if let Some(c) = forbidden_character(name) {
                format!("has the character U+{:04X}, which a name cannot have", u32::from(c))
            } else {
                continue;
            };
            return Err(InvalidSetting::new(setting, why));
        }
        for (setting, seconds) in [
            ("supervisor.escalate_after_seconds", self.escalate_after_seconds),
            ("supervisor.expires_after_seconds", self.expires_after_seconds),
        ] {
            if let Some(seconds) = seconds.filter(|seconds| !(1..=MAX_SECONDS).contains(seconds)) {
                let why = format!("is {seconds}; it must be from 1 to {MAX_SECONDS}");
                return Err(InvalidSetting::new(setting, why));
            }
        }
        if self.escalate_to.is_some() != self.escalate_after_seconds.is_some() {
            let why = "and supervisor.escalate_after_seconds are only valid together".to_owned();
            return Err(InvalidSetting::new("supervisor.escalate_to", why));
        }
        // A request that has expired is escalated to nobody.
        if let (Some(escalation), Some(expiry)) =
            (self.escalate_after_seconds, self.expires_after_seconds)
            && escalation >= expiry
        {
            let why = format!("is {escalation}, but the request expires after {expiry}");
            return Err(InvalidSetting::new("supervisor.escalate_after_seconds", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// Class: a value that `agent check` accepts and the database refuses when the agent needs it.
    #[test]
    fn what_the_database_refuses_is_refused_in_a_definition() {
        let mut all = String::new();
        for yaml in [
            "{ capability: boss, escalate_after_seconds: 60, escalate_to: chief, expires_after_seconds: 3600 }",
            "{ capability: boss, expires_after_seconds: 315360000 }",
            "{ capability: boss, expires_after_seconds: 9999999999999999 }",
            "{ capability: boss, escalate_after_seconds: 315360001, escalate_to: chief }",
            "{ capability: boss, escalate_after_seconds: 60, escalate_to: chief, expires_after_seconds: 60 }",
            "{ capability: \"bo\\u200Bss\" }",
            "{ capability: boss, escalate_after_seconds: 60, escalate_to: \"a\\tb\" }",
        ] {
            let supervisor: Supervisor = abide_yaml::from_str(yaml).expect("it is a map");
            all += &match supervisor.check() {
                Ok(()) => "ok\n".to_owned(),
                Err(why) => format!("{why}\n"),
            };
        }
        expect![[r#"
            ok
            ok
            supervisor.expires_after_seconds is 9999999999999999; it must be from 1 to 315360000
            supervisor.escalate_after_seconds is 315360001; it must be from 1 to 315360000
            supervisor.escalate_after_seconds is 60, but the request expires after 60
            supervisor.capability has the character U+200B, which a name cannot have
            supervisor.escalate_to has the character U+0009, which a name cannot have
        "#]]
        .assert_eq(&all);
    }
}
