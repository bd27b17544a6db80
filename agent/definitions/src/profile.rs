//! Profiles: named sets of numbers for limits, planning, context, memory and watchdog. A definition names one, changes
//! parts of it, and is registered with the resolved numbers. So a run keeps the numbers that it started with.
//!
//! Order of precedence: the preset, then the custom profile on top of it, then `limits` and `planning` of the
//! definition.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::profile_settings::{
    ContextOverrides, ContextSettings, LimitSettings, MemoryOverrides, MemorySettings,
    PlanOverrides, PlanSettings, Preset, WatchdogOverrides, WatchdogSettings,
};

/// The field `profile` of a definition: the name of a preset, or a custom profile on top of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Profile {
    /// A preset, unchanged.
    Preset(Preset),
    /// A preset with changes.
    Custom(Box<CustomProfile>),
}

/// A custom profile: a preset, and what differs from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a custom profile: a map of its fields")]
pub struct CustomProfile {
    /// The preset that it changes; the default is `balanced`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Preset>,
    /// The model's view of a long conversation.
    #[serde(skip_serializing_if = "is_default")]
    pub context: ContextOverrides,
    /// When the plan is revised.
    #[serde(skip_serializing_if = "is_default")]
    pub plan: PlanOverrides,
    /// Facts that outlive a session.
    #[serde(skip_serializing_if = "is_default")]
    pub memory: MemoryOverrides,
    /// Signs of an unhealthy run.
    #[serde(skip_serializing_if = "is_default")]
    pub watchdog: WatchdogOverrides,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The resolved settings of an agent: every number that applies to its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileSettings {
    /// The name: that of a preset, `custom (NAME)` for one on top of a preset, or `none`.
    pub profile: String,
    /// Limits of a run.
    pub limits: LimitSettings,
    /// Whether the agent keeps a plan.
    pub planning: bool,
    /// When it revises the plan.
    #[serde(default)]
    pub plan: PlanSettings,
    /// The model's view of a long conversation.
    pub context: ContextSettings,
    /// Facts that outlive a session.
    pub memory: MemorySettings,
    /// Signs of an unhealthy run.
    pub watchdog: WatchdogSettings,
}

impl Profile {
    /// Returns the settings of a definition with this profile, before its own `limits` and `planning`.
    #[must_use]
    pub fn settings(profile: Option<&Profile>) -> ProfileSettings {
        match profile {
            None => ProfileSettings::without_profile(),
            Some(Profile::Preset(preset)) => preset.settings(),
            Some(Profile::Custom(custom)) => {
                let base = custom.base.unwrap_or(Preset::Balanced);
                let settings = base.settings();
                ProfileSettings {
                    profile: format!("custom ({})", base.name()),
                    context: settings.context.with(&custom.context),
                    plan: settings.plan.with(&custom.plan),
                    memory: settings.memory.with(&custom.memory),
                    watchdog: settings.watchdog.with(&custom.watchdog),
                    ..settings
                }
            }
        }
    }
}

impl Preset {
    /// Returns its settings. `docs/agent-context.md` explains the numbers.
    #[must_use]
    pub fn settings(self) -> ProfileSettings {
        let (tool_calls, parallel_tools) = match self {
            Preset::Fast => (8, 3),
            Preset::Balanced => (20, 5),
            Preset::Deep => (40, 8),
            Preset::Research => (80, 10),
        };
        ProfileSettings {
            profile: self.name().to_owned(),
            limits: LimitSettings { tool_calls, parallel_tools },
            planning: matches!(self, Preset::Deep | Preset::Research),
            plan: PlanSettings::for_preset(self),
            context: ContextSettings::for_preset(self),
            memory: MemorySettings::for_preset(self),
            watchdog: WatchdogSettings::for_preset(self),
        }
    }
}

impl ProfileSettings {
    /// Returns the settings of a definition without a profile: the loop as it was before profiles, and a context that
    /// is compacted like that of `balanced`, so that a long run does not end at the model's window.
    fn without_profile() -> ProfileSettings {
        let balanced = Preset::Balanced.settings();
        ProfileSettings {
            profile: "none".to_owned(),
            limits: LimitSettings { tool_calls: 50, parallel_tools: 5 },
            context: ContextSettings { window_tokens: 1_000_000, ..balanced.context },
            memory: MemorySettings { enabled: false, ..balanced.memory },
            watchdog: WatchdogSettings { enabled: false, ..balanced.watchdog },
            ..balanced
        }
    }
}

/// Accepts the name of a preset, `custom`, or the map of a custom profile.
impl<'de> Deserialize<'de> for Profile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Profile, D::Error> {
        struct NameOrMap;
        impl<'de> Visitor<'de> for NameOrMap {
            type Value = Profile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a profile, or a map with base and what differs from it")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Profile, E> {
                const NAMES: &[&str] = &["fast", "balanced", "deep", "research", "custom"];
                if name == "custom" {
                    // The default base, without changes.
                    return Ok(Profile::Custom(Box::default()));
                }
                match Preset::ALL.into_iter().find(|preset| preset.name() == name) {
                    Some(preset) => Ok(Profile::Preset(preset)),
                    None => Err(E::unknown_variant(name, NAMES)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Profile, A::Error> {
                let custom = CustomProfile::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Profile::Custom(Box::new(custom)))
            }
        }
        from.deserialize_any(NameOrMap)
    }
}

#[cfg(test)]
mod tests;
