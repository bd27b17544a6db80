//! The checks of a definition that need neither tools nor files: numbers, and parts that contradict each other.

use std::collections::BTreeSet;

use abide_programs::CliConfig;
use abide_tools::Parameters;

use super::{AgentDefinition, OF_PARENT, Subagent};
use crate::error::{DefinitionError, InvalidSetting, NAME_CHARS};
use crate::middleware::Middleware;
use crate::supervisor::Supervisor;

/// How deep inline subagents can be nested: as deep as runs can delegate.
const INLINE_DEPTH: usize = 5;

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

fn contradiction(why: impl Into<String>) -> Result<(), DefinitionError> {
    Err(DefinitionError::Contradiction(why.into()))
}

impl AgentDefinition {
    /// Checks the definition for contradictions.
    pub(super) fn check(&self) -> Result<(), DefinitionError> {
        let length = self.name.chars().count();
        if length == 0 || length > NAME_CHARS || !self.name.chars().all(is_name_char) {
            return Err(DefinitionError::Name(self.name.clone()));
        }
        if let Some(kind) = self.external_kind() {
            self.check_external(kind)?;
        }
        for rule in &self.pause {
            rule.check()?;
        }
        if let Some(why) = self.allow.as_ref().and_then(|allow| allow.check().err()) {
            return contradiction(why);
        }
        if let Some(why) = self.middleware.iter().find_map(|rule| rule.check().err()) {
            return contradiction(why);
        }
        let settings = self.computed_settings();
        settings.context.check()?;
        settings.watchdog.check()?;
        settings.memory.check()?;
        settings.plan.check()?;
        self.check_numbers()?;
        self.supervisor.as_ref().map_or(Ok(()), Supervisor::check)?;
        for tool in self.agent_tools() {
            if let Err(why) = tool.check() {
                return contradiction(why);
            }
            if !self.mode.is_subagent() {
                return contradiction(
                    "an agent with as_tool or as_handoff needs mode: subagent or all",
                );
            }
        }
        self.check_subagents()?;
        if self.allow_empty_answers && self.response_format.is_some() {
            return contradiction(
                "an empty answer never matches response_format: remove allow_empty_answers",
            );
        }
        if let Some(schema) = &self.response_format {
            Parameters::compile(schema).map_err(|why| {
                let why = format!("is not a supported JSON Schema: {why}");
                InvalidSetting::new("response_format", why)
            })?;
        }
        Ok(())
    }

    /// Checks the numbers of `limits` and `config`. A limit can be 0 if a run can work with it: without tools, or without
    /// delegation.
    fn check_numbers(&self) -> Result<(), InvalidSetting> {
        let limits = &self.limits;
        let config = &self.config;
        let parallel_tools = limits.parallel_tools.map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        for (setting, number, least) in [
            ("limits.tool_calls", limits.tool_calls, 0),
            ("limits.descendants", limits.descendants, 0),
            ("limits.delegation_depth", limits.delegation_depth, 0),
            ("limits.parallel_tools", parallel_tools, 1),
            ("limits.delegation_seconds", limits.delegation_seconds, 1),
            ("limits.wall_clock_seconds", limits.wall_clock_seconds, 1),
            ("limits.tokens", limits.tokens, 1),
            ("config.recursion_limit", config.recursion_limit, 1),
            ("config.max_tokens", config.max_tokens.map(i64::from), 1),
        ] {
            if let Some(number) = number.filter(|number| *number < least) {
                let why = format!("is {number}; it must be at least {least}");
                return Err(InvalidSetting::new(setting, why));
            }
        }
        if limits.wall_clock_counts_waits && limits.wall_clock_seconds.is_none() {
            let why = "is true without wall_clock_seconds: set the number, or remove it";
            return Err(InvalidSetting::new("limits.wall_clock_counts_waits", why));
        }
        if let Some(cost) = limits.cost_usd.filter(|cost| !cost.is_finite() || *cost <= 0.0) {
            let why = format!("is {cost}; it must be finite and above 0");
            return Err(InvalidSetting::new("limits.cost_usd", why));
        }
        if let Some(temperature) =
            config.temperature.filter(|number| !number.is_finite() || *number < 0.0)
        {
            let why = format!("is {temperature}; it must be finite and at least 0");
            return Err(InvalidSetting::new("config.temperature", why));
        }
        Ok(())
    }

    /// Returns the field of the program (`cli`) or the remote agent (`a2a`) that works instead of a model and tools.
    pub fn external_kind(&self) -> Option<&'static str> {
        let fields = [("cli", self.cli.is_some()), ("a2a", self.a2a.is_some())];
        fields.into_iter().find_map(|(field, is_there)| is_there.then_some(field))
    }

    /// Checks a definition without a model: a program (`cli`) or a remote agent (`a2a`).
    fn check_external(&self, field: &str) -> Result<(), DefinitionError> {
        let who = if field == "cli" { "program" } else { "remote agent" };
        let has_prompt =
            self.system_prompt.is_some() || !self.memory.is_empty() || !self.skills.is_empty();
        let problems = [
            (
                self.cli.is_some() && self.a2a.is_some(),
                "has both cli and a2a: remove one".to_owned(),
            ),
            (
                !(self.tools.is_empty() && self.subagents.is_empty()),
                format!("uses the {who}'s tools: remove tools and subagents"),
            ),
            (self.agent_loop.is_some(), format!("is driven by the {who}: remove loop")),
            (self.planning == Some(true), format!("uses the {who}'s plans: remove planning")),
            (
                !self.middleware.iter().all(Middleware::applies_to_external),
                "takes only the middleware observability, because its output cannot be held back"
                    .to_owned(),
            ),
            (
                self.supervisor.is_some(),
                "does not ask Abide for a supervisor: remove supervisor".to_owned(),
            ),
            (!self.pause.is_empty(), "cannot be paused at a stage: remove pause".to_owned()),
            (self.as_handoff.is_some(), "cannot take over a turn: remove as_handoff".to_owned()),
            (
                field == "a2a" && has_prompt,
                "uses the remote agent's instructions: remove system_prompt, memory and skills"
                    .to_owned(),
            ),
        ];
        if let Some((_, why)) = problems.into_iter().find(|(is_wrong, _)| *is_wrong) {
            let why = format!("an agent with {field} {why}");
            return Err(DefinitionError::Contradiction(why));
        }
        match self.cli.as_ref().map_or(Ok(()), CliConfig::check) {
            Err((subject, why)) => {
                let why = why.to_owned();
                let subject = subject.to_owned();
                Err(DefinitionError::Program { code: "bad_parser", why, subject })
            }
            Ok(()) => Ok(()),
        }
    }

    /// Checks the names of the subagents: the model chooses among them by name, and only an inline agent has its
    /// parent in its name.
    fn check_subagents(&self) -> Result<(), DefinitionError> {
        let mut names = BTreeSet::new();
        for subagent in &self.subagents {
            let name = subagent.name();
            if !names.insert(name) {
                return contradiction(format!("agent {} has two subagents {name}", self.name));
            }
            if let (Subagent::Named(_), Some((parent, _))) = (subagent, name.split_once(OF_PARENT))
            {
                let why =
                    format!("{name} belongs to agent {parent}, and no other agent can use it");
                return contradiction(why);
            }
        }
        if self.inline_depth() > INLINE_DEPTH {
            let why = format!("inline subagents are nested more than {INLINE_DEPTH} deep");
            return contradiction(why);
        }
        Ok(())
    }

    /// Returns how deep inline subagents are nested; 0 if there are none.
    fn inline_depth(&self) -> usize {
        let inline = self.subagents.iter().filter_map(|subagent| match subagent {
            Subagent::Inline(inline) => Some(1 + inline.inline_depth()),
            Subagent::Named(_) => None,
        });
        inline.max().unwrap_or(0)
    }
}
