//! Who may start runs of an agent: the key `allow` of its definition. The rule is checked in the transaction that starts a
//! run, so every protocol has it, and again when a run delegates, hands over, or continues.
//!
//! A run is always judged by the caller that started it (see `run/starter.rs`), never by its driver: a driver acts for every
//! tenant.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::id::forbidden_character;
use abide_schema::{Abort, Caller, Code, Context, Json, Refusal, Scope, nearest};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as JsonValue;

use super::rows::{Agent, AgentRevision};
use crate::session::scope::text_entries;

/// Who may start runs of an agent: a caller that matches one entry of each list that is given. An unrestricted caller
/// (role `admin`, capability `*`, no scope) always may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AgentAllow {
    /// The roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<BTreeSet<String>>,
    /// The capabilities; one of them is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<BTreeSet<String>>,
    /// The scopes: those of the caller, or wider ones. For a caller without a scope, the scope of the session counts. Callers
    /// with other scopes do not see the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<BTreeSet<Scope>>,
}

/// Unlike a derived implementation, it refuses a list in place of the map, and `null` in place of a list: both would be a rule
/// that admits everybody.
impl<'de> Deserialize<'de> for AgentAllow {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AgentAllow, D::Error> {
        let mut allow = AgentAllow::default();
        for (name, list) in BTreeMap::<String, JsonValue>::deserialize(from)? {
            let read = match name.as_str() {
                "roles" => BTreeSet::deserialize(list).map(|list| allow.roles = Some(list)),
                "capabilities" => {
                    BTreeSet::deserialize(list).map(|list| allow.capabilities = Some(list))
                }
                "scopes" => BTreeSet::deserialize(list).map(|list| allow.scopes = Some(list)),
                _ => {
                    let known = &["roles", "capabilities", "scopes"];
                    return Err(D::Error::unknown_field(&name, known));
                }
            };
            read.map_err(|why| D::Error::custom(format!("allow.{name}: {why}")))?;
        }
        Ok(allow)
    }
}

/// The rule of [`Rule::shows_agent_to`] in SQL, for a row of `agents`. A macro, so that it can be a part of another condition.
macro_rules! shows_agent {
    () => {
        ":caller_scope = '{}' OR EXISTS (
  SELECT 1 FROM agent_revisions AS r
  WHERE r.agent = agents.name AND r.revision = agents.revision AND CASE
    WHEN r.definition ->> '$.allow' IS NULL THEN agents.native = 0
    WHEN r.definition ->> '$.allow.scopes' IS NULL THEN 1
    ELSE EXISTS (
      SELECT 1 FROM json_each(r.definition, '$.allow.scopes') AS s WHERE NOT EXISTS (
        SELECT 1 FROM json_each(s.value) AS k WHERE NOT EXISTS (
          SELECT 1 FROM json_each(:caller_scope) AS c WHERE c.key = k.key AND c.value = k.value)))
  END)"
    };
}

/// The rows of `agents` that a caller sees.
pub(super) const VISIBLE: &str = shows_agent!();

/// The rows of `tools` that a caller sees: a tool that stands for an agent has the name of the agent.
pub(crate) const VISIBLE_TOOLS: &str = concat!(
    "annotations ->> '$.agent' IS NULL OR EXISTS (
  SELECT 1 FROM agents WHERE agents.name = tools.annotations ->> '$.agent' AND (",
    shows_agent!(),
    "))"
);

/// The rows of `tool_versions` that a caller sees.
pub(crate) const VISIBLE_TOOL_VERSIONS: &str = concat!(
    "manifest ->> '$.annotations.agent' IS NULL OR EXISTS (
  SELECT 1 FROM agents WHERE agents.name = tool_versions.manifest ->> '$.annotations.agent' AND (",
    shows_agent!(),
    "))"
);

impl AgentAllow {
    /// Reads the rule of a definition; `None` if it has none.
    fn from_definition(definition: &JsonValue) -> Result<Option<AgentAllow>, serde_json::Error> {
        definition.get("allow").map(AgentAllow::deserialize).transpose()
    }

    /// Returns the rule that admits only unrestricted callers.
    fn nobody() -> AgentAllow {
        let roles = Some(BTreeSet::new());
        let scopes = Some(BTreeSet::new());
        AgentAllow { roles, capabilities: None, scopes }
    }

    /// Checks a rule that is about to be stored.
    ///
    /// # Errors
    /// What is wrong, in one sentence.
    pub fn check(&self) -> Result<(), String> {
        let roles_and_capabilities = self.roles.iter().chain(&self.capabilities).flatten();
        if roles_and_capabilities.clone().any(String::is_empty) {
            return Err("allow has an empty name".to_owned());
        }
        let scopes = self.scopes.iter().flatten().flatten();
        let mut names = roles_and_capabilities.chain(scopes.flat_map(|(key, value)| [key, value]));
        if let Some(c) = names.find_map(|name| forbidden_character(name)) {
            return Err(format!("allow has a name with the character U+{:04X}", u32::from(c)));
        }
        if self.scopes.iter().flatten().any(Scope::is_empty) {
            let why = "allow.scopes has a scope without keys: omit scopes to allow all";
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// Returns `true` if a scope is one of the rule's, or within one of them.
    fn covers(&self, scope: &Scope) -> bool {
        let Some(scopes) = &self.scopes else { return true };
        scopes.iter().any(|one| one.iter().all(|(key, value)| scope.get(key) == Some(value)))
    }
}

/// Refuses a definition whose `allow` is malformed: nobody could start its runs.
pub(super) fn check_definition(definition: &JsonValue) -> Result<(), Refusal> {
    let checked = match AgentAllow::from_definition(definition) {
        Ok(allow) => allow.map_or(Ok(()), |allow| allow.check()),
        Err(why) => Err(format!("allow is malformed: {why}")),
    };
    checked.map_err(|why| {
        let hint = r#"for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]}"#;
        Refusal::new(Code::BadArguments, why).hint(hint)
    })
}

/// Refuses a caller that may not start runs of an agent in a session with this scope. A caller that may not know the agent
/// gets the answer for an unknown one.
pub(crate) fn check(
    ctx: &mut Context<'_>,
    agent: &Agent,
    starter: &Caller,
    session_scope: &Json,
) -> Result<(), Abort> {
    if starter.is_unrestricted() {
        return Ok(());
    }
    let rule = Rule::load(ctx, agent)?;
    if !rule.shows_agent_to(starter) {
        return Err(no_such_agent(ctx, &agent.name, starter)?.into());
    }
    let Rule::Allow(allow) = rule else { return Ok(()) };
    let name = &agent.name;
    let refused =
        if starter.scope().is_empty() && !allow.covers(&text_entries(&session_scope.value())) {
            format!("agent {name} may not work in a session with this scope")
        } else if allow.roles.is_some_and(|roles| !roles.contains(starter.role())) {
            format!("the role {} may not start runs of agent {name}", starter.role())
        } else if allow.capabilities.is_some_and(|all| !all.iter().any(|it| starter.can(it))) {
            format!("starting runs of agent {name} requires a capability that the caller lacks")
        } else {
            return Ok(());
        };
    let hint = "an operator can extend `allow` in the definition of the agent";
    Err(Refusal::new(Code::Denied, refused).hint(hint).into())
}

/// Returns `true` if a caller may know an agent.
pub(super) fn may_know(
    ctx: &mut Context<'_>,
    agent: &Agent,
    caller: &Caller,
) -> Result<bool, Abort> {
    Ok(caller.is_unrestricted() || Rule::load(ctx, agent)?.shows_agent_to(caller))
}

/// Returns the refusal of a name that no agent has, or none that the caller may know.
pub(super) fn no_such_agent(
    ctx: &mut Context<'_>,
    name: &str,
    by: &Caller,
) -> Result<Refusal, Abort> {
    let mut known = Vec::new();
    for agent in ctx.find::<Agent>("WHERE retired_at IS NULL ORDER BY name LIMIT 100", &[])? {
        if may_know(ctx, &agent, by)? {
            known.push(agent);
        }
    }
    let refusal = Refusal::new(Code::NotFound, format!("there is no agent {name}"));
    Ok(match nearest(name, known.iter().map(|agent| &*agent.name)) {
        Some(name) => refusal.hint(format!("did you mean {name}?")),
        None => refusal.hint_query("SELECT name FROM agents"),
    })
}

/// The rule that applies to an agent.
enum Rule {
    /// A built-in agent without `allow`: for callers without a scope.
    BuiltIn,
    Allow(AgentAllow),
}

impl Rule {
    /// Returns the rule of the newest definition. One that cannot be read admits nobody.
    fn load(ctx: &mut Context<'_>, agent: &Agent) -> Result<Rule, Abort> {
        let key = (agent.name.as_str(), agent.revision);
        let revision = ctx.without_policies(|ctx| ctx.get::<AgentRevision>(key))?;
        Ok(match revision.map(|it| AgentAllow::from_definition(&it.definition.value())) {
            Some(Ok(None)) if agent.native => Rule::BuiltIn,
            Some(Ok(allow)) => Rule::Allow(allow.unwrap_or_default()),
            Some(Err(_)) | None => Rule::Allow(AgentAllow::nobody()),
        })
    }

    fn shows_agent_to(&self, caller: &Caller) -> bool {
        // A caller chooses the scope to which it narrows its own, so both have to match.
        [Some(caller.scope()), caller.own_scope()].into_iter().flatten().all(|scope| {
            scope.is_empty()
                || match self {
                    Rule::BuiltIn => false,
                    Rule::Allow(allow) => allow.covers(scope),
                }
        })
    }
}
