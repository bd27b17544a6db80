//! Inline subagents: they belong to their parent, and replace no other agent.

use abide_agent::Catalog;
use abide_client::Abide;
use abide_tools::Tools;
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture, temporary_folder};

/// Name, mode and prompt of all agents, sorted by name.
async fn agents(abide: &Abide) -> Vec<(String, String, Option<String>)> {
    let sql = "SELECT a.name, a.mode, r.definition ->> '$.instructions' FROM agents a \
               JOIN agent_revisions r ON r.agent = a.name AND r.revision = a.revision \
               WHERE a.retired_at IS NULL ORDER BY a.name";
    abide.sql(sql).fetch().await.expect("the query succeeds")
}

fn named(name: &str, mode: &str, prompt: &str) -> (String, String, Option<String>) {
    (name.to_owned(), mode.to_owned(), Some(prompt.to_owned()))
}

/// Regression: an inline subagent replaced any agent of its name, also `default`, and nested ones were accepted and
/// never registered.
#[tokio::test]
async fn an_inline_subagent_replaces_no_agent() {
    let plan = FixtureOptions::new(
        "
system_prompt: Be kind.
subagents:
  - { name: boss, system_prompt: hijacked }
  - name: default
    system_prompt: hijacked
    subagents: [{ name: scout, system_prompt: Look. }]
",
        "answers: []",
    );
    plan.define("boss.yaml", "system_prompt: Lead.\n");
    let fixture = plan.open().await;
    let found = agents(&fixture.abide).await;
    let found: Vec<_> = found.into_iter().filter(|it| it.0 != "hitl_test").collect();
    assert_eq!(
        found[..5],
        [
            named("boss", "primary", "Lead."),
            named("clerk", "primary", "Be kind."),
            named("clerk/boss", "subagent", "hijacked"),
            named("clerk/default", "subagent", "hijacked"),
            named("clerk/default/scout", "subagent", "Look."),
        ]
    );
    assert_eq!(found[5].0, "default");
    assert!(!found[5].2.as_deref().is_some_and(|text| text.contains("hijacked")));
    fixture.close().await;
}

/// Two agents have a helper of the same name. Each delegates to its own, and the helper to its own scout.
#[tokio::test]
async fn a_task_goes_to_the_agents_own_inline_subagent() {
    let script = r#"
answers:
  - calls: [{ name: task, arguments: { agent: helper, task: Look. } }]
  - text: So.
"#;
    let plan = FixtureOptions::new(
        "subagents: [{ name: helper, subagents: [{ name: helper }] }]\n",
        script,
    );
    plan.define("other.yaml", "subagents: [{ name: helper, system_prompt: Not me. }]\n");
    let fixture = plan.open().await;
    let run = fixture.begin("Go on.").await;
    fixture.output(&run.id, 0).await;
    let sql = "SELECT agent FROM runs ORDER BY created_at, id";
    let mut ran: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it succeeds");
    ran.sort();
    let ran: Vec<&str> = ran.iter().map(|(agent,)| agent.as_str()).collect();
    assert_eq!(ran, ["clerk", "clerk/helper", "clerk/helper/helper"]);
    fixture.close().await;
}

/// An inline subagent that its file no longer has starts no runs.
#[tokio::test]
async fn a_removed_inline_subagent_is_retired() {
    let fixture = RuntimeFixture::start("subagents: [{ name: helper }]\n", "answers: []").await;
    crate::fixture::define(fixture.folder.path(), "clerk.yaml", "name: clerk\n");
    fixture
        .until("SELECT name FROM agents WHERE name = 'clerk/helper' AND retired_at IS NOT NULL")
        .await;
    fixture.close().await;
}

/// The names that are refused, in files and over the network.
#[test]
fn ambiguous_and_foreign_subagents_are_refused() {
    let folder = temporary_folder();
    let catalog = Catalog::new(folder.path(), Tools::new());
    let mut deep = json!({"name": "last"});
    for _ in 0..6 {
        deep = json!({"name": "next", "subagents": [deep]});
    }
    for (definition, expected) in [
        (
            json!({"name": "a", "subagents": [{"name": "b"}, "b"]}),
            "contradiction: agent a has two subagents b",
        ),
        (
            json!({"name": "a", "subagents": ["boss/helper"]}),
            "contradiction: boss/helper belongs to agent boss, and no other agent can use it",
        ),
        (
            json!({"name": "boss/helper"}),
            "bad_agent_name: invalid agent name \"boss/helper\": letters, digits, . _ and -, at most 100",
        ),
        (
            json!({"name": "a", "subagents": [{"name": "../b"}]}),
            "bad_agent_name: invalid agent name \"../b\": letters, digits, . _ and -, at most 100",
        ),
        (
            json!({"name": "a", "subagents": [{"name": "b", "tool": []}]}),
            "malformed_definition: unknown field `tool`, expected one of",
        ),
        (deep, "contradiction: inline subagents are nested more than 5 deep"),
    ] {
        let refused = catalog.posted(&definition).map(drop).expect_err("it is refused");
        let output = format!("{}: {refused}", refused.code());
        assert!(output.starts_with(expected), "{output}");
    }
}
