//! What runs do, as golden files: the requests to the model, the stream of the run, the messages and calls, the reducers that were
//! called, the number of rows in each table, and the number of queries. A change of the runtime's structure changes none of them.
//!
//! `UPDATE_EXPECT=1` writes the files again. A difference is a change that users of an agent see, or its cost.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_client::arguments::{ClaimHandoff, DecideApproval, Decision, ResolveHandoff};
use abide_client::rows::RunEventKind;
use abide_client::{Abide, Call, Config};
use abide_engine::Engine;
use abide_models::{
    ConfigContext, ModelProvider, ModelRequest, ModelStream, Models, ModelsConfig, Script,
};
use expect_test::{ExpectFile, expect_file};

use crate::fixture::{FixtureOptions, RuntimeFixture};
use crate::scripted_model::add_read;

/// A run to record.
struct Scenario {
    /// Fields of the agent `clerk`.
    clerk: &'static str,
    /// Other definitions: file and text.
    others: Vec<(&'static str, &'static str)>,
    /// The answers of the model, by provider. The one of `clerk` is `script`.
    scripts: Vec<(&'static str, &'static str)>,
    /// What a person does when the run waits.
    decides: fn(String) -> Vec<Call>,
    /// The most queries that it makes. The number depends on which of two waiting tasks is faster.
    queries: u64,
}

impl Default for Scenario {
    fn default() -> Scenario {
        let decides = |waits: String| panic!("the run waits: {waits}");
        Scenario { clerk: "", others: Vec::new(), scripts: Vec::new(), decides, queries: 0 }
    }
}

/// A scripted model that writes down what it is asked.
struct Recorded {
    script: Script,
    requests: Arc<Mutex<String>>,
}

impl ModelProvider for Recorded {
    fn id(&self) -> &str {
        self.script.id()
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let mut requests = self.requests.lock().expect("no test panics with it");
        write_request(&mut requests, self.id(), &request);
        drop(requests);
        self.script.stream(request)
    }
}

fn write_request(out: &mut String, provider: &str, request: &ModelRequest) {
    let tools: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    let system = request.system.as_deref().unwrap_or_default();
    writeln!(out, "{provider} {:?} system {system:?} tools {tools:?}", request.purpose)
        .expect("writing to a string succeeds");
    for message in &request.messages {
        let text = serde_json::to_string(message).expect("a message is JSON");
        let shown: String = text.chars().take(300).collect();
        writeln!(out, "    {shown}").expect("writing to a string succeeds");
    }
}

/// Runs a scenario and compares everything that it has left.
async fn check(scenario: Scenario, expected: ExpectFile) {
    let requests = Arc::new(Mutex::new(String::new()));
    let mut options = FixtureOptions::new(scenario.clerk, "answers: []");
    options.models = models(&scenario.scripts, &requests);
    options.settings.reload_interval = Duration::from_secs(3_600);
    add_read(&options.tools, 40_000);
    for (file, text) in &scenario.others {
        options.define(file, text);
    }
    let file = options.folder.path().join("abide.db");
    let engine = Engine::open(file, Config::default().into()).expect("the file opens");
    let fixture = options.open_file(Abide::embed(engine.clone())).await;
    assert_eq!(*fixture.problems.borrow(), [], "every file is valid");
    let queries_before = engine.metrics().queries_total.get();
    let run = fixture.begin("Go on.").await;
    let (mut stream, mut last) = fixture.output(&run.id, 0).await;
    while last.kind == RunEventKind::Interrupt {
        fixture.until("SELECT id FROM runs WHERE id = 'r1' AND status = 'waiting'").await;
        let calls = (scenario.decides)(waiting(&fixture).await);
        fixture.abide.batch(calls).await.expect("it is decided");
        let more;
        (more, last) = fixture.output(&run.id, last.number).await;
        stream += &more;
    }
    fixture.until("SELECT id FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL").await;
    let queries = engine.metrics().queries_total.get() - queries_before;
    let requests = requests.lock().expect("no test panics with it").clone();
    assert!(queries <= scenario.queries, "{queries} queries");
    let mut found = format!("== requests\n{requests}\n== stream\n{stream}");
    for (what, sql) in QUERIES {
        write!(found, "\n== {what}\n{}", rows(&fixture, sql).await)
            .expect("writing to a string succeeds");
    }
    write!(found, "\n== ledger\n{}\n", fixture.ledger().join("\n"))
        .expect("writing to a string succeeds");
    expected.assert_eq(&without_random_ids(&found));
    fixture.close().await;
}

/// Replaces the ids of approvals and handoffs.
fn without_random_ids(text: &str) -> String {
    let mut words = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.by_ref().fold(String::new(), |mut out, word| {
        match ["ap_", "ho_"].into_iter().find(|prefix| word.starts_with(prefix)) {
            Some(prefix) if word.len() > ULID_CHARS => {
                out += prefix;
                out += "ID";
                out += &word[prefix.len() + ULID_CHARS..];
            }
            _ => out += word,
        }
        out
    })
}

const ULID_CHARS: usize = 26;

/// What a run leaves: without times, and without calls whose number depends on time: renewed leases, and the parts in which the
/// text of an answer is stored.
const QUERIES: [(&str, &str); 5] = [
    (
        "messages",
        "SELECT session_id, role, kind, substr(content, 1, 200), substr(json_remove(data, '$.handoff.at', '$.handoff.worked_us'), 1, 400) FROM agent_state \
         ORDER BY session_id, id",
    ),
    (
        "calls",
        "SELECT call_id, tool_name, status, attempt, arguments, substr(result, 1, 200), error \
         FROM tool_calls ORDER BY call_id",
    ),
    (
        "runs",
        "SELECT id, agent, status, turn, iterations, tool_calls, reason, error_code FROM runs ORDER BY id",
    ),
    (
        "log",
        "SELECT reducer, count(*) FROM events WHERE reducer NOT LIKE 'register%' AND reducer NOT LIKE 'heartbeat%' \
         AND reducer <> 'record_run' GROUP BY reducer ORDER BY reducer",
    ),
    (
        "changed rows",
        "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM agent_state), \
         (SELECT count(*) FROM tool_calls), (SELECT count(*) FROM approvals), \
         (SELECT count(*) FROM memories), (SELECT count(*) FROM plan_versions), (SELECT count(*) FROM delegations), \
         (SELECT count(*) FROM handoff_requests), (SELECT count(*) FROM active_agents)",
    ),
];

async fn rows(fixture: &RuntimeFixture, sql: &str) -> String {
    let found = fixture.abide.sql(sql).rows().await.expect("it is read");
    found.rows.iter().fold(String::new(), |mut text, row| {
        writeln!(text, "{row:?}").expect("writing to a string succeeds");
        text
    })
}

/// The calls and handoffs that wait for a person.
async fn waiting(fixture: &RuntimeFixture) -> String {
    let sql = "SELECT call_id FROM tool_calls WHERE status IN ('awaiting_approval', 'unknown') \
               AND call_id NOT IN (SELECT call_id FROM handoff_calls) \
               UNION ALL SELECT id FROM handoff_requests WHERE status = 'pending'";
    let found: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    found.into_iter().map(|(id,)| id).next().expect("something waits")
}

fn models(scripts: &[(&str, &str)], requests: &Arc<Mutex<String>>) -> Models {
    let process = ConfigContext::of_process();
    let mut models = Models::new(ModelsConfig::default(), &process).expect("it is valid");
    for (id, script) in scripts {
        let script = Script::from_text(script).expect("the script is valid").named(id);
        let provider = Recorded { script, requests: Arc::clone(requests) };
        models.add(Arc::new(provider), vec![format!("{id}-model")], 0).expect("the id is unique");
    }
    models
}

fn approve(call_id: String) -> Vec<Call> {
    vec![Call::from(DecideApproval::new(Decision::Approve).call_id(&call_id))]
}

fn reject(call_id: String) -> Vec<Call> {
    let decision = DecideApproval::new(Decision::Reject).call_id(&call_id).comment("Not this one.");
    vec![Call::from(decision)]
}

fn resolve(handoff: String) -> Vec<Call> {
    vec![
        Call::from(ClaimHandoff::new(&handoff)),
        Call::from(ResolveHandoff::new(&handoff, "Pay it.")),
    ]
}

#[tokio::test]
async fn an_answer() {
    let scenario = Scenario {
        scripts: vec![(
            "script",
            "answers: [{ text: So., usage: { input_tokens: 9, output_tokens: 1 } }]",
        )],
        clerk: "system_prompt: You help.\n",
        queries: 13,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/answer.txt"]).await;
}

/// Calls of each kind of tool of a user, in one turn after the other: alone, failed, several in one answer, past the limit.
#[tokio::test]
async fn calls() {
    let script = "
answers:
  - calls: [{ name: look, arguments: { order: A } }]
  - calls: [{ name: pay, arguments: { order: A } }]
  - calls: [{ name: pay, arguments: { order: 7 } }, { name: unknown, arguments: {} }, { name: note, arguments: { order: B } }]
  - calls: [{ name: look, arguments: { order: A } }, { name: look, arguments: { order: B } }]
  - text: Done.
";
    let clerk = "tools: [look, note, pay]\nlimits: { tool_calls: 6, parallel_tools: 1 }\n";
    let scenario =
        Scenario { clerk, scripts: vec![("script", script)], queries: 24, ..Scenario::default() };
    check(scenario, expect_file!["behaviour/calls.txt"]).await;
}

const PAYS: &str =
    "answers: [{ text: I pay., calls: [{ name: pay, arguments: { order: A } }] }, { text: Done. }]";

const ASKS: &str = "tools: [pay]\ninterrupt_on: { pay: true }\n";

#[tokio::test]
async fn an_approved_call() {
    let scenario = Scenario {
        clerk: ASKS,
        scripts: vec![("script", PAYS)],
        decides: approve,
        queries: 31,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/approved.txt"]).await;
}

#[tokio::test]
async fn a_rejected_call() {
    let scenario = Scenario {
        clerk: ASKS,
        scripts: vec![("script", PAYS)],
        decides: reject,
        queries: 31,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/rejected.txt"]).await;
}

/// `task`, with an approval below it, and arguments that do not fit.
#[tokio::test]
async fn a_delegated_task() {
    let delegates = "
answers:
  - calls: [{ name: task, arguments: { agent: nobody, task: Pay A. } }]
  - calls: [{ name: task, arguments: { agent: helper, task: Pay A. } }]
  - text: It is arranged.
";
    let helper =
        "mode: subagent\nconfig: { provider: helps }\ntools: [pay]\ninterrupt_on: { pay: true }\n";
    let scenario = Scenario {
        clerk: "config: { provider: script }\nsubagents: [helper]\n",
        others: vec![("helper.yaml", helper)],
        scripts: vec![("script", delegates), ("helps", PAYS)],
        decides: approve,
        queries: 64,
    };
    check(scenario, expect_file!["behaviour/task.txt"]).await;
}

/// A tool that stands for an agent.
#[tokio::test]
async fn an_agent_as_a_tool() {
    let asks = "
answers:
  - calls: [{ name: research, arguments: { input: 1 } }]
  - calls: [{ name: research, arguments: { input: Where is A? } }]
  - text: There.
";
    let other = "mode: subagent\nconfig: { provider: other }\nas_tool: { name: research, description: Looks things up. }\n";
    let scenario = Scenario {
        clerk: "config: { provider: script }\nsubagents: [other]\n",
        others: vec![("other.yaml", other)],
        scripts: vec![("script", asks), ("other", "answers: [{ text: In B. }]")],
        queries: 27,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/agent_tool.txt"]).await;
}

/// A handoff, `hand_back`, and both where they are not permitted.
#[tokio::test]
async fn a_handoff_and_back() {
    let first = "
answers:
  - calls: [{ name: hand_back, arguments: { message: No. } }]
  - calls: [{ name: to_billing, arguments: { message: Order A. } }]
  - {}
  - {}
  - text: Good bye.
";
    let second = "
answers:
  - {}
  - {}
  - calls: [{ name: pay, arguments: { order: A } }]
  - { text: Back., calls: [{ name: hand_back, arguments: { message: It is paid. } }] }
";
    let other = "mode: subagent\nconfig: { provider: other }\nas_handoff: { name: to_billing }\ntools: [pay]\nsystem_prompt: You bill.\n";
    let scenario = Scenario {
        clerk: "config: { provider: script }\nsubagents: [other]\n",
        others: vec![("other.yaml", other)],
        scripts: vec![("script", first), ("other", second)],
        queries: 31,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/handoff.txt"]).await;
}

/// The tools of the memory, with a fact that does not exist.
#[tokio::test]
async fn memory() {
    let script = "
answers:
  - calls: [{ name: save_memory, arguments: { key: language, value: Ann writes German., confidence: 0.9 } }]
  - calls: [{ name: save_memory, arguments: { key: language } }]
  - calls: [{ name: search_memories, arguments: { query: German } }]
  - calls: [{ name: forget_memory, arguments: { key: colour } }]
  - calls: [{ name: forget_memory, arguments: { key: language } }]
  - text: Done.
";
    let scenario = Scenario {
        clerk: "profile: balanced\n",
        scripts: vec![("script", script)],
        queries: 39,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/memory.txt"]).await;
}

/// The plan: written, read, updated, and refused.
#[tokio::test]
async fn a_plan() {
    let script = "
answers:
  - calls: [{ name: manage_todo_list, arguments: { operation: write, todos: [{ id: 1, title: look, status: in-progress }, { id: 2, title: pay }] } }]
  - calls: [{ name: manage_todo_list, arguments: { operation: read } }]
  - calls: [{ name: manage_todo_list, arguments: { operation: update, todos: [{ id: 9, status: completed }] } }]
  - calls: [{ name: manage_todo_list, arguments: { operation: update, todos: [{ id: 1, status: completed }, { id: 2, status: completed }] } }]
  - text: Done.
";
    let scenario = Scenario {
        clerk: "planning: true\n",
        scripts: vec![("script", script)],
        queries: 42,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/plan.txt"]).await;
}

/// A result that is cut, and `get_tool_response` before and after.
#[tokio::test]
async fn a_long_result() {
    let script = "
answers:
  - calls: [{ name: get_tool_response, arguments: { id: r1~1.1 } }]
  - calls: [{ name: read, arguments: { page: 1 } }]
  - calls: [{ name: get_tool_response, arguments: { id: r1~2.1, offset: 4, length: 9 } }]
  - calls: [{ name: get_tool_response, arguments: { id: r1~9.9 } }]
  - text: Done.
";
    let scenario = Scenario {
        clerk: "tools: [read]\n",
        scripts: vec![("script", script)],
        queries: 24,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/long_result.txt"]).await;
}

#[tokio::test]
async fn a_supervisor() {
    let script = "
answers:
  - { text: I ask., calls: [{ name: request_supervisor, arguments: { reason: May I pay? } }] }
  - text: Done.
";
    let scenario = Scenario {
        clerk: "supervisor: { capability: boss }\n",
        scripts: vec![("script", script)],
        decides: resolve,
        queries: 33,
        ..Scenario::default()
    };
    check(scenario, expect_file!["behaviour/supervisor.txt"]).await;
}

/// Names of the runtime's tools at an agent that has none of them.
#[tokio::test]
async fn tools_that_the_agent_does_not_have() {
    let script = "
answers:
  - calls:
      - { name: task, arguments: { agent: helper, task: Pay A. } }
      - { name: hand_back, arguments: { message: No. } }
      - { name: save_memory, arguments: { key: language, value: Ann writes German. } }
      - { name: search_memories, arguments: { query: German } }
      - { name: forget_memory, arguments: { key: language } }
      - { name: manage_todo_list, arguments: { operation: read } }
      - { name: get_tool_response, arguments: { id: r1~1.1 } }
      - { name: request_supervisor, arguments: { reason: May I pay? } }
  - text: Done.
";
    let scenario =
        Scenario { scripts: vec![("script", script)], queries: 14, ..Scenario::default() };
    check(scenario, expect_file!["behaviour/no_tools.txt"]).await;
}
