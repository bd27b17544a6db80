//! The numbers of a profile: one struct for each part, with the fields that a custom profile can change.

use serde::{Deserialize, Serialize};

use crate::error::InvalidSetting;
use crate::reduction_rules::{self, Reduction, ReductionRules};

/// A named set of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Short tasks with few calls, in a small context.
    Fast,
    /// Everyday work.
    Balanced,
    /// Long work with many calls, with a plan.
    Deep,
    /// Very long work in a large context, with a plan.
    Research,
}

impl Preset {
    /// All presets, from the smallest to the largest.
    pub const ALL: [Preset; 4] = [Preset::Fast, Preset::Balanced, Preset::Deep, Preset::Research];

    /// Its name in a definition.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Fast => "fast",
            Preset::Balanced => "balanced",
            Preset::Deep => "deep",
            Preset::Research => "research",
        }
    }
}

/// Limits of a run. `limits` of the definition replaces them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitSettings {
    /// Maximum number of tool calls.
    pub tool_calls: i64,
    /// Maximum number of concurrent tool calls.
    pub parallel_tools: usize,
}

impl LimitSettings {
    /// Returns how many answers a model may give in a run, unless the definition says it: three for each call, some
    /// spare, and at least forty.
    pub fn recursion_limit(&self) -> i64 {
        self.tool_calls.saturating_mul(3).saturating_add(10).max(40)
    }
}

/// Declares a part of a profile, and the same fields as changes that a custom profile makes.
macro_rules! settings {
    ($(#[$about:meta])* $name:ident / $overrides:ident {
        $($(#[$meaning:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$meaning])* pub $field: $type,)*
        }

        /// The changes of a custom profile.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, expecting = "a map of settings")]
        pub struct $overrides {
            $($(#[$meaning])* #[serde(skip_serializing_if = "Option::is_none")]
            pub $field: Option<$type>,)*
        }

        impl $name {
            /// Returns these settings with changes.
            #[must_use]
            pub fn with(self, changes: &$overrides) -> $name {
                $name { $($field: changes.$field.clone().unwrap_or(self.$field),)* }
            }
        }
    };
}

settings! {
    /// The model's view of a long conversation.
    ContextSettings / ContextOverrides {
        /// Whether older messages are summarised. Otherwise a run whose request exceeds the window fails.
        compaction: bool,
        /// Maximum size of a request in tokens. A request never exceeds it.
        window_tokens: u64,
        /// The trigger: a larger request in tokens is compacted before it is sent.
        compact_above_tokens: u64,
        /// The size in tokens that compaction aims at.
        compact_to_tokens: u64,
        /// Maximum size of the summary in tokens.
        summary_token_limit: u64,
        /// Maximum size in tokens of the part that is summarised at once.
        chunk_tokens: u64,
        /// Maximum number of answers that stay unchanged after compaction.
        last_answers: usize,
        /// Maximum number of results that the model may fetch in one run with `get_tool_response`.
        tool_responses: i64,
        /// The model's view of messages that a summary covers.
        #[serde(default)]
        policy: ContextPolicy,
        /// The replacement of their results, by tool.
        #[serde(default)]
        reduce_results: ReductionRules,
        /// The replacement of the arguments of their calls, by tool.
        #[serde(default)]
        reduce_arguments: ReductionRules,
    }
}

/// The model's view of a long conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextPolicy {
    /// The summary, the newest of the messages that it covers, with reduced results, and the latest turns.
    #[default]
    Hybrid,
    /// The summary and the latest turns.
    SummaryOnly,
    /// All messages, unchanged: nothing is compacted, as with `compaction: false`.
    Raw,
}

settings! {
    /// When the model is asked to revise its plan.
    PlanSettings / PlanOverrides {
        /// The occasion.
        replan: Replan,
        /// For `every_n_steps`: the number of answers without a change of the plan.
        replan_steps: usize,
    }
}

/// When the model is asked to revise its plan. The request stays until the plan changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replan {
    /// Never.
    #[default]
    Never,
    /// A tool call has failed.
    OnFailure,
    /// A change of the plan was refused.
    OnConflict,
    /// The plan has not changed for some answers.
    EveryNSteps,
}

impl PlanSettings {
    /// Returns the settings of a preset: all but `fast` revise the plan after a failure.
    pub fn for_preset(preset: Preset) -> PlanSettings {
        let replan = match preset {
            Preset::Fast => Replan::Never,
            Preset::Balanced | Preset::Deep | Preset::Research => Replan::OnFailure,
        };
        PlanSettings { replan, ..PlanSettings::default() }
    }

    /// Checks that these numbers do not contradict each other.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        match self.replan_steps {
            0 => {
                Err(InvalidSetting::new("profile.plan.replan_steps", "is 0; it must be at least 1"))
            }
            _ => Ok(()),
        }
    }
}

/// The settings of definitions that were registered before these settings existed.
impl Default for PlanSettings {
    fn default() -> PlanSettings {
        PlanSettings { replan: Replan::Never, replan_steps: 10 }
    }
}

settings! {
    /// Facts that outlive a session.
    MemorySettings / MemoryOverrides {
        /// Whether facts are read before turns and written after compaction.
        enabled: bool,
        /// Maximum size in tokens of the facts in a request.
        budget_tokens: u64,
        /// Which sessions share facts.
        scope: MemoryScope,
        /// The name that agents with common facts share; empty for the name of the agent.
        namespace: String,
        /// Which facts are read before a turn.
        read: MemoryRead,
        /// Which facts of a summary are saved.
        write: MemoryWrite,
    }
}

/// Which sessions share the facts of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected session, scope or a list of keys of the scope")]
pub enum MemoryScope {
    /// A fixed rule.
    Rule(MemoryScopeRule),
    /// Sessions whose scopes have the same values of these keys. A session that lacks one of them shares facts as with
    /// `scope`.
    Keys(Vec<String>),
}

/// Which sessions share the facts of an agent, by a fixed rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryScopeRule {
    /// None: the facts belong to one session.
    Session,
    /// Sessions with the same scope.
    Scope,
}

/// Which facts are read before a turn, as far as the budget permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryRead {
    /// The facts that changed last.
    RecentOnly,
    /// The facts that are similar to the last message of the user.
    Semantic,
    /// Similar facts first, then those that changed last.
    Hybrid,
}

/// Which facts of a summary are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryWrite {
    /// None: only the tools save facts.
    Manual,
    /// Facts of high confidence are saved.
    AutoImportant,
    /// All.
    Always,
}

impl MemoryWrite {
    /// Returns `true` if a fact of a summary is saved.
    pub fn takes(self, confidence: f64) -> bool {
        match self {
            MemoryWrite::Manual => false,
            MemoryWrite::AutoImportant => confidence >= IMPORTANT,
            MemoryWrite::Always => true,
        }
    }
}

/// The confidence from which on `auto_important` saves a fact.
const IMPORTANT: f64 = 0.7;

settings! {
    /// Signs of an unhealthy run. A value at or above its threshold is a sign.
    WatchdogSettings / WatchdogOverrides {
        /// Whether a run is watched.
        enabled: bool,
        /// Threshold of the growth of the context in tokens from one answer to the next.
        token_drift: u64,
        /// Threshold of the share of tool messages among the messages since the answer before.
        over_tooling: f64,
        /// Threshold of `context_rot`: summaries and markers for each message of the request, see `RunHealth`.
        context_rot: f64,
        /// Whether a sign compacts the context. Otherwise it is only reported.
        auto_compaction: bool,
        /// Threshold of consecutive answers that request the same calls and get the same results. The model is warned.
        repeats: i64,
        /// Number of such answers after which the run ends; 0 for never.
        stop_after_repeats: i64,
        /// Number of consecutive answers with a sign after which the model is warned; 0 for never.
        warn_after: i64,
        /// Number of consecutive answers with a sign after which the run ends; 0 for never.
        stop_after: i64,
    }
}

impl ContextSettings {
    /// Returns the settings of a preset. The trigger (`compact_above_tokens`) is three quarters of the window: an
    /// answer and its results have to fit next to it. The target (`compact_to_tokens`) is a share of the trigger that
    /// decreases from 0.5 to 0.35: the larger a context, the larger its part that is out of date.
    pub fn for_preset(preset: Preset) -> ContextSettings {
        let balanced = ContextSettings {
            compaction: true,
            window_tokens: 96_000,
            compact_above_tokens: 72_000,
            compact_to_tokens: 32_000,
            summary_token_limit: 3_000,
            chunk_tokens: 12_000,
            last_answers: 16,
            tool_responses: 8,
            policy: ContextPolicy::Hybrid,
            reduce_results: ReductionRules::new(),
            reduce_arguments: ReductionRules::new(),
        };
        match preset {
            Preset::Fast => ContextSettings {
                window_tokens: 32_000,
                compact_above_tokens: 24_000,
                compact_to_tokens: 12_000,
                summary_token_limit: 1_500,
                chunk_tokens: 6_000,
                last_answers: 8,
                // A small window has no room for many original results, so their outlines are kept.
                reduce_results: ReductionRules::from([("*".to_owned(), Reduction::KeepStructured)]),
                ..balanced
            },
            Preset::Balanced => balanced,
            Preset::Deep => ContextSettings {
                window_tokens: 200_000,
                compact_above_tokens: 150_000,
                compact_to_tokens: 60_000,
                summary_token_limit: 4_000,
                chunk_tokens: 16_000,
                last_answers: 30,
                ..balanced
            },
            Preset::Research => ContextSettings {
                window_tokens: 400_000,
                compact_above_tokens: 300_000,
                compact_to_tokens: 105_000,
                summary_token_limit: 6_000,
                chunk_tokens: 24_000,
                last_answers: 60,
                ..balanced
            },
        }
    }

    /// Returns `true` if a long conversation is compacted.
    pub fn compacts(&self) -> bool {
        self.compaction && self.policy != ContextPolicy::Raw
    }

    /// Checks that these numbers do not contradict each other.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let ContextSettings {
            window_tokens: window,
            compact_above_tokens: trigger,
            compact_to_tokens: target,
            summary_token_limit: summary,
            ..
        } = self;
        let (setting, why) = if trigger > window {
            ("compact_above_tokens", format!("{trigger} exceeds window_tokens {window}"))
        } else if target >= trigger {
            let why = format!("{target} is not below compact_above_tokens {trigger}");
            ("compact_to_tokens", why)
        } else if summary.saturating_mul(2) > *target {
            let why = format!("{summary} exceeds half of compact_to_tokens {target}");
            ("summary_token_limit", why)
        } else if *summary < SUMMARY_TOKENS {
            let why = format!("is {summary}; it must be at least {SUMMARY_TOKENS}");
            ("summary_token_limit", why)
        } else if self.chunk_tokens < SUMMARY_TOKENS || self.chunk_tokens > *window {
            let chunk = self.chunk_tokens;
            let why =
                format!("is {chunk}; it must be from {SUMMARY_TOKENS} to window_tokens {window}");
            ("chunk_tokens", why)
        } else if self.last_answers == 0 {
            ("last_answers", "is 0: the last answer always stays".to_owned())
        } else if self.tool_responses < 0 {
            ("tool_responses", format!("is {}; it must be at least 0", self.tool_responses))
        } else if let Err(why) = reduction_rules::check(&self.reduce_results) {
            ("reduce_results", why)
        } else if let Err(why) = reduction_rules::check(&self.reduce_arguments) {
            ("reduce_arguments", why)
        } else {
            return Ok(());
        };
        Err(InvalidSetting::new(&format!("profile.context.{setting}"), why))
    }
}

/// The least size of a summary: its JSON alone takes about fifty tokens.
const SUMMARY_TOKENS: u64 = 100;

impl MemorySettings {
    /// Checks these settings.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let has_other_chars = self
            .namespace
            .contains(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/')));
        if has_other_chars || self.namespace.len() > 100 {
            let name = &self.namespace;
            let why = format!("{name:?}: letters, digits, . _ - and /, at most 100");
            return Err(InvalidSetting::new("profile.memory.namespace", why));
        }
        match &self.scope {
            MemoryScope::Keys(keys) if keys.is_empty() => {
                let why = "is an empty list: name keys of the scope";
                Err(InvalidSetting::new("profile.memory.scope", why))
            }
            _ => Ok(()),
        }
    }

    /// Returns the settings of a preset: about a fiftieth of its trigger, so that facts never crowd out the
    /// conversation.
    pub fn for_preset(preset: Preset) -> MemorySettings {
        let budget_tokens = match preset {
            Preset::Fast => 500,
            Preset::Balanced => 1_500,
            Preset::Deep => 3_000,
            Preset::Research => 6_000,
        };
        MemorySettings {
            enabled: true,
            budget_tokens,
            scope: MemoryScope::Rule(MemoryScopeRule::Scope),
            namespace: String::new(),
            read: match preset {
                Preset::Fast => MemoryRead::RecentOnly,
                _ => MemoryRead::Hybrid,
            },
            write: MemoryWrite::AutoImportant,
        }
    }
}

impl WatchdogSettings {
    /// Returns the settings of a preset. Thresholds of shares decrease, because a sign costs more in a longer run.
    pub fn for_preset(preset: Preset) -> WatchdogSettings {
        let (token_drift, over_tooling, context_rot, warn_after) = match preset {
            Preset::Fast => (3_200, 0.7, 0.65, 6),
            Preset::Balanced => (7_600, 0.6, 0.55, 8),
            Preset::Deep => (11_000, 0.55, 0.5, 12),
            Preset::Research => (18_600, 0.5, 0.45, 16),
        };
        WatchdogSettings {
            enabled: true,
            token_drift,
            over_tooling,
            context_rot,
            auto_compaction: true,
            repeats: 3,
            stop_after_repeats: 6,
            warn_after,
            stop_after: 0,
        }
    }

    /// Checks these numbers.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let invalid = |name: &str, why: String| {
            Err(InvalidSetting::new(&format!("profile.watchdog.{name}"), why))
        };
        for (name, share) in
            [("over_tooling", self.over_tooling), ("context_rot", self.context_rot)]
        {
            if !share.is_finite() || share <= 0.0 {
                return invalid(name, format!("is {share}; it must be above 0"));
            }
        }
        for (name, count, least) in [
            ("repeats", self.repeats, 2),
            ("stop_after_repeats", self.stop_after_repeats, 0),
            ("warn_after", self.warn_after, 0),
            ("stop_after", self.stop_after, 0),
        ] {
            if count < least {
                return invalid(name, format!("is {count}; it must be at least {least}"));
            }
        }
        if self.stop_after_repeats > 0 && self.stop_after_repeats <= self.repeats {
            let stop = self.stop_after_repeats;
            let warn = self.repeats;
            let why = format!("{stop} is not above repeats {warn}: the model is warned first");
            return invalid("stop_after_repeats", why);
        }
        Ok(())
    }
}
