//! Changes of definitions and tools while runs are active.

use std::path::Path;

use abide_client::Code;
use abide_client::arguments::{CreateSession, DecideApproval, Decision, StartRun};
use abide_tools::{Effect, Function, ToolContext, Tools};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fixture::{FixtureOptions, RuntimeFixture, define};

const PAYS: &str = "
answers:
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: It is paid.
";

const BEFORE: &str = "tools: [pay]\ninterrupt_on: { pay: true }\nsystem_prompt: Be kind.\n";

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Adds a tool that is never called.
fn add(tools: &Tools, name: &str, effect: Effect) {
    tools
        .add(
            Function::new(name, "Does it.", |_: Nothing, _: ToolContext| async {
                Ok::<_, String>("done")
            })
            .effect(effect),
        )
        .expect("it is a tool");
}

async fn approve(fixture: &RuntimeFixture, call_id: &str) {
    let call = DecideApproval::new(Decision::Approve).call_id(call_id);
    fixture.abide.call(call).await.expect("the decision succeeds");
}

fn agents(fixture: &RuntimeFixture) -> &Path {
    fixture.folder.path()
}

#[tokio::test]
async fn a_changed_file_creates_a_revision_and_active_runs_keep_theirs() {
    let fixture = RuntimeFixture::start(BEFORE, PAYS).await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    // The new revision has no tools: with it, this run could not continue as it does.
    define(agents(&fixture), "clerk.yaml", "name: clerk\nsystem_prompt: Be strict.\n");
    fixture.until("SELECT name FROM agents WHERE name = 'clerk' AND revision = 2").await;
    approve(&fixture, "r1~1.1").await;
    let (output, _) = fixture.output(&run.id, interrupt.number).await;
    assert!(output.contains("pay A is done") && output.contains("It is paid."), "{output}");
    let session = CreateSession::new("clerk").id("s2");
    fixture.abide.call(session).await.expect("it is created");
    let next = fixture
        .abide
        .call(StartRun::new("s2").input("Pay B."))
        .await
        .expect("the run starts")
        .into_inner();
    assert_eq!((run.revision, next.revision), (1, 2));
    let (output, _) = fixture.output(&next.id, 0).await;
    assert!(output.contains("unknown tool pay"), "{output}");
    fixture.close().await;
}

#[tokio::test]
async fn an_invalid_file_is_reported_and_its_agent_is_unchanged() {
    let mut fixture = RuntimeFixture::start(BEFORE, PAYS).await;
    define(agents(&fixture), "clerk.yaml", "name: clerk\ntools: [fly]\n");
    let problems = fixture.problems.wait_for(|problems| !problems.is_empty()).await;
    let problems = problems.expect("the runtime is running").clone();
    let output: Vec<String> = problems.iter().map(|it| it.error.to_string()).collect();
    assert_eq!(output, ["unknown tool fly; available: look, note, pay"]);
    let sql = "SELECT revision, retired_at IS NULL FROM agents WHERE name = 'clerk'";
    let stands: Vec<(i64, bool)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(stands, [(1, true)]);
    fixture.close().await;
}

/// Regression: an agent whose file was removed continued to start runs until the database was recreated.
#[tokio::test]
async fn an_agent_without_a_file_starts_no_runs_until_the_file_is_back() {
    let fixture = RuntimeFixture::start(BEFORE, PAYS).await;
    let run = fixture.begin("Pay A.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    std::fs::remove_file(agents(&fixture).join("agents/clerk.yaml")).expect("the file exists");
    fixture.until("SELECT name FROM agents WHERE name = 'clerk' AND retired_at IS NOT NULL").await;
    let session = CreateSession::new("clerk").id("s2");
    fixture.abide.call(session).await.expect("it is created");
    let again = StartRun::new("s2").agent("clerk");
    let refused = fixture.abide.call(again.clone()).await.expect_err("the agent is retired");
    assert_eq!(refused.code(), Some(Code::BadTransition), "{refused}");
    assert!(refused.to_string().contains("agent clerk is retired"), "{refused}");
    approve(&fixture, "r1~1.1").await;
    let (output, _) = fixture.output(&run.id, interrupt.number).await;
    assert!(output.contains("It is paid."), "the active run continues: {output}");
    define(agents(&fixture), "clerk.yaml", &format!("name: clerk\n{BEFORE}"));
    fixture.until("SELECT name FROM agents WHERE name = 'clerk' AND retired_at IS NULL").await;
    fixture.abide.call(again).await.expect("the agent is active again");
    fixture.close().await;
}

/// Regression: changes between the start and the first check were missed, and `readonly` did not get tools that an
/// MCP server added after the start.
#[tokio::test]
async fn tools_added_later_reach_native_agents_and_fix_definitions_that_need_them() {
    let plan = FixtureOptions::new(BEFORE, PAYS);
    plan.define("late.yaml", "tools: [files_read]\n");
    let tools = plan.tools.clone();
    let fixture = plan.open().await;
    assert_eq!(fixture.problems.borrow().len(), 1, "files_read does not exist yet");
    add(&tools, "files_read", Effect::ReadOnly);
    add(&tools, "files_write_file", Effect::Idempotent);
    fixture.until("SELECT name FROM agents WHERE name = 'late'").await;
    fixture
        .until(
            "SELECT agent FROM agent_revisions WHERE agent = 'hitl_test' AND \
             definition ->> '$.interrupt_on.files_write_file'",
        )
        .await;
    // Not `files_write_file`, which changes something.
    fixture
        .until(
            "SELECT agent FROM agent_revisions WHERE agent = 'readonly' AND \
             definition ->> '$.tools' = '[\"files_read\",\"look\"]'",
        )
        .await;
    fixture.close().await;
}
