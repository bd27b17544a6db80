//! The tools of the runtime in sessions with a scope.

use abide_client::arguments::{ClaimHandoff, CreateSession, ResolveHandoff, StartRun};
use abide_client::rows::RunEventKind;
use abide_client::{Abide, Call, Scope};
use serde_json::json;

use crate::fixture::{FixtureOptions, providers};

const CLERK: &str = "
tools: [look]
planning: true
profile: fast
limits: { tool_calls: 20 }
supervisor: { capability: boss }
subagents: [helper, research, billing]
config: { provider: script, tool_token_limit_before_evict: 2 }
";

const SCRIPT: &str = r#"
answers:
  - calls:
      - name: manage_todo_list
        arguments: { operation: write, todos: [{ id: 1, title: look, status: in-progress }] }
      - { name: save_memory, arguments: { key: language, value: German. } }
      - { id: call_look, name: look, arguments: { order: A } }
  - calls:
      - { name: search_memories, arguments: { query: german } }
      - { name: forget_memory, arguments: { key: language } }
      - { name: get_tool_response, arguments: { id: call_look } }
      - { name: task, arguments: { agent: helper, task: Help. } }
      - { name: research, arguments: { input: Where? } }
  - calls: [{ name: request_supervisor, arguments: { reason: May I pay? } }]
  - calls: [{ name: to_billing, arguments: {} }]
  - {}
  - text: Done.
"#;

async fn of_scope(abide: &Abide) -> Abide {
    let scope = Scope::from([("tenant".to_owned(), "acme".to_owned())]);
    abide.acting_for(&scope).await.expect("an embedded client has no restrictions")
}

/// Starts a run in a new session with a scope, and returns its id.
async fn begin(abide: &Abide) -> String {
    let tenant = of_scope(abide).await;
    let created = tenant.call(CreateSession::new("clerk").id("s1")).await;
    let session = created.expect("it is created").value.id;
    let run = tenant.call(StartRun::new(&session).id("r1").input("Pay A.")).await;
    run.expect("the run starts").value.id
}

async fn answer_supervisor(abide: &Abide) {
    let tenant = of_scope(abide).await;
    let sql = "SELECT id FROM handoff_requests WHERE status = 'pending'";
    let open: Vec<(String,)> = tenant.sql(sql).fetch().await.expect("it is read");
    let id = &open.first().expect("a handoff is open").0;
    let calls = [Call::from(ClaimHandoff::new(id)), Call::from(ResolveHandoff::new(id, "Pay it."))];
    tenant.batch(calls).await.expect("it is resolved");
}

/// Class: an effect of the runtime that works without a scope only. A driver acts within the scope of its session, where a row
/// cannot refer to one that does not exist yet. The row that linked a call to its handoff did, so `request_supervisor` was refused
/// in every session with a scope, and the run neither went on nor said why.
#[tokio::test]
async fn every_tool_of_the_runtime_works_in_a_session_with_a_scope() {
    let scripts = [
        ("script", SCRIPT),
        ("helper", "answers: [{ text: Helped. }]"),
        ("research", "answers: [{ text: Found. }]"),
        ("billing", "answers: [{}, {}, {}, {}, { calls: [{ name: hand_back, arguments: {} }] }]"),
    ];
    let options =
        FixtureOptions { models: providers(&scripts), ..FixtureOptions::new(CLERK, "answers: []") };
    options.define("helper.yaml", "mode: subagent\nconfig: { provider: helper }\n");
    let as_tool = "as_tool: { name: research, description: Looks things up. }\n";
    let research = format!("mode: subagent\nconfig: {{ provider: research }}\n{as_tool}");
    options.define("research.yaml", &research);
    let billing =
        "mode: subagent\nconfig: { provider: billing }\nas_handoff: { name: to_billing }\n";
    options.define("billing.yaml", billing);
    let fixture = options.open().await;
    assert_eq!(*fixture.problems.borrow(), [], "every file is valid");
    let run = begin(&fixture.abide).await;
    let (_, interrupt) = fixture.output(&run, 0).await;
    assert_eq!(
        (interrupt.kind, &interrupt.data["reason"]),
        (RunEventKind::Interrupt, &json!("handoff"))
    );
    answer_supervisor(&fixture.abide).await;
    let (rendered, last) = fixture.output(&run, interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "Done.", "{rendered}");
    let sql = "SELECT tool_name, status, attempt, error FROM tool_calls ORDER BY tool_name";
    let calls: Vec<(String, String, i64, Option<String>)> =
        fixture.abide.sql(sql).fetch().await.expect("it is read");
    let names: Vec<&str> = calls.iter().map(|call| call.0.as_str()).collect();
    let expected = [
        "forget_memory",
        "get_tool_response",
        "hand_back",
        "look",
        "manage_todo_list",
        "request_supervisor",
        "research",
        "save_memory",
        "search_memories",
        "task",
        "to_billing",
    ];
    assert_eq!(names, expected, "{calls:?}");
    assert!(calls.iter().all(|call| (call.1.as_str(), call.2) == ("succeeded", 1)), "{calls:?}");
    // The runtime registers all of its tools: a new one has to be called in `SCRIPT`. The first two are tools of the fixture, the
    // others are questions, which no model calls.
    let sql =
        "SELECT name FROM tools WHERE name NOT IN (SELECT tool_name FROM tool_calls) ORDER BY name";
    let uncalled: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    let uncalled: Vec<String> = uncalled.into_iter().map(|(name,)| name).collect();
    assert_eq!(uncalled, ["note", "pay", "program_call", "remote_agent_input", "tool_input"]);
    fixture.close().await;
}
