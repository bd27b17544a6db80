//! Definitions received over the network. They are restricted more than those of the folder: permission to register
//! an agent does not include permission to run programs or read files on the runtime's machine.

use abide_client::arguments::RegisterAgent;
use abide_definitions::agent::{AgentDefinition, Subagent};
use abide_definitions::error::DefinitionError;
use abide_definitions::prompt_source::PromptSource;
use serde_json::Value;

use crate::catalog::agents::Catalog;

impl Catalog {
    /// Returns the agents to register for a received definition: its inline subagents, then the agent itself. It can
    /// use the tools of the folder. It must not start a program (`cli`), reach a remote agent (`a2a`) or refer to
    /// files: their content would become a row.
    ///
    /// # Errors
    /// [`DefinitionError`]; [`DefinitionError::Contradiction`] for fields that only the folder may use.
    pub fn posted(&self, definition: &Value) -> Result<Vec<RegisterAgent>, DefinitionError> {
        let mut parsed = AgentDefinition::from_json(definition)?;
        parsed.native = false;
        check_size(&parsed)?;
        check_reach(&parsed)?;
        let ready = self.ready(parsed)?;
        Ok(ready.with_inline().iter().map(AgentDefinition::to_register).collect())
    }
}

/// Maximum number of inline subagents in a received definition, at every depth.
const SUBAGENTS: usize = 100;

/// Maximum number of names in a list of a received definition.
const NAMES: usize = 1_000;

/// Refuses a definition whose check takes long.
fn check_size(definition: &AgentDefinition) -> Result<(), DefinitionError> {
    let too_many = |why: String| Err(DefinitionError::Contradiction(why));
    let mut open = vec![definition];
    let mut checked = 0;
    while let Some(one) = open.pop() {
        // Without the definition itself.
        if checked + open.len() > SUBAGENTS {
            let name = &definition.name;
            return too_many(format!("agent {name} has more than {SUBAGENTS} inline subagents"));
        }
        let lists = [
            ("tools", one.tools.len()),
            ("blocked_tools", one.blocked_tools.len()),
            ("excluded_tools", one.excluded_tools.len()),
            ("subagents", one.subagents.len()),
            ("interrupt_on", one.interrupt_on.len()),
            ("middleware", one.middleware.len()),
        ];
        if let Some((list, count)) = lists.into_iter().find(|(_, count)| *count > NAMES) {
            let name = &one.name;
            return too_many(format!("agent {name} has {count} {list}; the limit is {NAMES}"));
        }
        open.extend(one.subagents.iter().filter_map(|subagent| match subagent {
            Subagent::Inline(inline) => Some(&**inline),
            Subagent::Named(_) => None,
        }));
        checked += 1;
    }
    Ok(())
}

/// Refuses fields that only the folder may use, in the definition and its inline subagents.
fn check_reach(definition: &AgentDefinition) -> Result<(), DefinitionError> {
    let name = &definition.name;
    let outside = [
        ("cli: programs", definition.cli.is_some()),
        ("a2a: remote agents", definition.a2a.is_some()),
    ];
    if let Some((what, _)) = outside.iter().find(|(_, is_there)| *is_there) {
        let why =
            format!("agent {name} has {what} can only be configured in the server's agent folder");
        return Err(DefinitionError::Contradiction(why));
    }
    let prompt = definition.system_prompt.as_ref().and_then(PromptSource::reach);
    let files = [
        (!definition.memory.is_empty()).then_some("memory"),
        (!definition.skills.is_empty()).then_some("skills"),
        prompt,
    ];
    if let Some(what) = files.into_iter().flatten().next() {
        let why = format!(
            "agent {name} has {what}: files and other servers can only be used in the server's agent folder"
        );
        return Err(DefinitionError::Contradiction(why));
    }
    definition.subagents.iter().try_for_each(|subagent| match subagent {
        Subagent::Inline(inline) => check_reach(inline),
        Subagent::Named(_) => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use abide_tools::Tools;
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    fn check(definition: &Value, expected: Expect) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("AGENTS.md"), "Be kind.")
            .expect("the file can be written");
        let listing = match Catalog::new(folder.path(), Tools::new()).posted(definition) {
            Ok(agents) => {
                let listing = agents.iter().map(|agent| {
                    let instructions = &agent.definition["instructions"];
                    format!(
                        "{} native: {} says {instructions}",
                        agent.name,
                        agent.native == Some(true)
                    )
                });
                listing.collect::<Vec<String>>().join("\n")
            }
            Err(error) => format!("{}: {error}", error.code()),
        };
        expected.assert_eq(&listing);
    }

    #[test]
    fn inline_subagents_come_first_and_no_agent_is_native() {
        check(
            &json!({"name": "clerk", "native": true, "system_prompt": "Be kind.",
                "subagents": [{"name": "helper", "system_prompt": "Look."}, "other"]}),
            expect![[r#"
                clerk/helper native: false says "Look."
                clerk native: false says "Be kind.""#]],
        );
    }

    #[test]
    fn unknown_names_are_reported() {
        check(
            &json!({"name": "clerk", "tools": ["refnd"]}),
            expect!["unknown_tool: unknown tool refnd; available: none"],
        );
        check(
            &json!({"name": "clerk", "middleware": [{"name": "pi", "at": "request"}]}),
            expect![
                "malformed_definition: unknown middleware `pi`; available: `guardrail`, `tool_security`, `tool_retry`, `model_fallback`, `pii`, `observability`, `streaming`"
            ],
        );
        check(
            &json!({"name": "clerk", "middleware": ["gardrail"]}),
            expect![
                "unknown_middleware: unknown middleware gardrail; available: guardrail, tool_security, tool_retry, model_fallback, pii, observability, streaming"
            ],
        );
        check(
            &json!({"name": "clerk", "tool": []}),
            expect![
                "malformed_definition: unknown field `tool`, expected one of `name`, `system_prompt`, `tools`, `blocked_tools`, `excluded_tools`, `skills`, `memory`, `subagents`, `interrupt_on`, `as_tool`, `as_handoff`, `middleware`, `pause`, `model`, `config`, `mode`, `description`, `hidden`, `allow`, `a2a_exposed`, `mcp_exposed`, `response_format`, `allow_empty_answers`, `profile`, `planning`, `supervisor`, `limits`, `sandbox`, `loop`, `cli`, `a2a`"
            ],
        );
    }

    /// 20,000 inline subagents took ten seconds, and 100,000 unknown tools were all named in the answer.
    #[test]
    fn large_definitions_are_refused_before_they_are_checked() {
        let inline: Vec<Value> =
            (0..101).map(|n| json!({"name": format!("a{n}"), "system_prompt": "x"})).collect();
        check(
            &json!({"name": "clerk", "subagents": inline}),
            expect!["contradiction: agent clerk has more than 100 inline subagents"],
        );
        let tools: Vec<String> = (0..1_001).map(|n| format!("t{n}")).collect();
        check(
            &json!({"name": "clerk", "tools": tools}),
            expect!["contradiction: agent clerk has 1001 tools; the limit is 1000"],
        );
        let folder = tempfile::tempdir().expect("a temporary folder");
        let definition = json!({"name": "clerk", "tools": tools[..1_000]});
        let refused = Catalog::new(folder.path(), Tools::new()).posted(&definition);
        let text = refused.expect_err("the tools are unknown").to_string();
        assert!(text.ends_with("t49 and 950 more; available: none"), "{text}");
    }

    #[test]
    fn agents_can_be_tools() {
        check(
            &json!({"name": "clerk", "mode": "all", "system_prompt": "Be kind.",
                "as_tool": {"name": "ask_clerk"}, "as_handoff": {},
                "subagents": [{"name": "helper", "system_prompt": "Help.", "as_tool": {"name": "help"}}],
                "interrupt_on": {"help": true, "task": true}}),
            expect![[r#"
                clerk/helper native: false says "Help."
                clerk native: false says "Be kind.""#]],
        );
        check(
            &json!({"name": "clerk", "as_tool": {}}),
            expect![
                "contradiction: an agent with as_tool or as_handoff needs mode: subagent or all"
            ],
        );
        check(
            &json!({"name": "clerk", "mode": "all", "as_tool": {"name": "same"},
                "as_handoff": {"name": "same"}}),
            expect![
                "contradiction: agent clerk uses the tool name same for both as_tool and as_handoff"
            ],
        );
    }

    #[test]
    fn programs_and_files_of_the_machine_are_not_accessible() {
        check(
            &json!({"name": "clerk", "cli": {"command": ["sh", "-c", "id"]}}),
            expect![
                "contradiction: agent clerk has cli: programs can only be configured in the server's agent folder"
            ],
        );
        // Its address would get the credentials of this machine.
        check(
            &json!({"name": "clerk", "a2a": {"url": "https://x/",
                "headers": {"x": {"env": "KEY"}}}}),
            expect![
                "contradiction: agent clerk has a2a: remote agents can only be configured in the server's agent folder"
            ],
        );
        let inline = json!({"name": "in", "cli": {"command": ["sh", "-c", "id"]}});
        check(
            &json!({"name": "clerk", "subagents": [inline]}),
            expect![
                "contradiction: agent in has cli: programs can only be configured in the server's agent folder"
            ],
        );
        // Regression: `memory: ["abide.yaml"]` copied the provider's key into a row.
        for (what, field) in [
            ("memory", json!({"memory": ["abide.yaml"]})),
            ("memory", json!({"memory": ["AGENTS.md"]})),
            ("skills", json!({"skills": ["mail"]})),
            ("a prompt file", json!({"system_prompt": {"file": "clerk"}})),
            ("a prompt of MLflow", json!({"system_prompt": {"mlflow": "clerk@1"}})),
        ] {
            let mut posted = field;
            posted["name"] = "clerk".into();
            let inline = json!({"name": "outer", "subagents": [posted.clone()]});
            for posted in [posted, inline] {
                let folder = tempfile::tempdir().expect("a temporary folder");
                let refused = Catalog::new(folder.path(), Tools::new()).posted(&posted);
                let refused = refused.map(drop).expect_err("the file is not read");
                let expected = format!(
                    "agent clerk has {what}: files and other servers can only be used in the server's agent folder"
                );
                assert_eq!((refused.code(), refused.to_string()), ("contradiction", expected));
            }
        }
    }
}
