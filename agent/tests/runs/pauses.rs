//! Pauses: at each stage, by a rule, by a call and by a callback. A run that is paused at every stage and resumed each
//! time leaves the same rows as a run that never pauses.

use abide_agent::{Catalog, RunEvents, Runtime, Settings};
use abide_client::arguments::{
    AbortRun, ClaimRun, CreateSession, DecideApproval, Decision, NewMemory, PauseRun, ResumeRun,
    SaveMemories, StartRun,
};
use abide_client::rows::{PauseStage, Run, RunEventKind, RunStatus};
use abide_client::{Abide, Call, Code};
use expect_test::expect;
use tokio_util::sync::CancellationToken;

use crate::fixture::{FixtureOptions, RuntimeFixture, ledger, providers, scripted, tools};

/// Pauses at every stage.
pub(crate) const EVERYWHERE: &str = "pause: [{ at: before_guardrails }, { at: after_agent }, \
    { at: after_tools }, { at: after_loop }]\n";

/// A run with all that a turn can have.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    agents: &'static [(&'static str, &'static str)],
    scripts: &'static [(&'static str, &'static str)],
    /// How often it pauses, if it pauses at every stage.
    pauses: usize,
}

pub(crate) const SCENARIOS: [Scenario; 7] = [
    Scenario {
        name: "answers",
        agents: &[("clerk", "config: { provider: script }\n")],
        scripts: &[("script", "answers: [{ text: Hello. }]")],
        pauses: 3,
    },
    Scenario {
        name: "tools and an approval",
        agents: &[(
            "clerk",
            "config: { provider: script }\ntools: [look, note, pay]\ninterrupt_on: { pay: true }\n",
        )],
        scripts: &[(
            "script",
            "answers: [{ text: Look., calls: [{ name: look, arguments: { order: A } }, \
             { name: pay, arguments: { order: A } }], usage: { input_tokens: 5, output_tokens: 2 } }, \
             { calls: [{ name: note, arguments: { wrong: A } }] }, { text: Paid. }]",
        )],
        // The call with wrong arguments does not begin.
        pauses: 8,
    },
    Scenario {
        name: "structured output",
        agents: &[(
            "clerk",
            "config: { provider: script }\n\
             response_format: { type: object, required: [total] }\n",
        )],
        scripts: &[("script", "answers: [{ text: five }, { text: '{\"total\": 5}' }]")],
        pauses: 6,
    },
    Scenario {
        name: "guardrails and a plan",
        agents: &[(
            "clerk",
            "config: { provider: script }\nplanning: true\nmiddleware:\n\
             - { name: guardrail, at: response, deny: secret, message: No. }\n",
        )],
        scripts: &[(
            "script",
            "answers: [{ calls: [{ name: manage_todo_list, arguments: { operation: write, \
             todos: [{ id: 1, title: Look, status: in-progress }] } }] }, { text: the secret }]",
        )],
        pauses: 6,
    },
    Scenario {
        name: "delegation",
        agents: &[
            ("clerk", "config: { provider: script }\nsubagents: [helper]\n"),
            (
                "helper",
                "mode: subagent\nas_tool: { name: arrange }\nconfig: { provider: helps }\n\
                 tools: [pay]\ninterrupt_on: { pay: true }\n",
            ),
        ],
        scripts: &[
            (
                "script",
                "answers: [{ calls: [{ name: arrange, arguments: { input: Pay A. } }] }, \
                 { text: It is paid. }]",
            ),
            (
                "helps",
                "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]",
            ),
        ],
        pauses: 12,
    },
    Scenario {
        name: "handoff",
        agents: &[
            ("clerk", "config: { provider: script }\nsubagents: [other]\n"),
            (
                "other",
                "mode: subagent\nas_handoff: {}\nconfig: { provider: other }\ntools: [pay]\n",
            ),
        ],
        scripts: &[
            (
                "script",
                "answers: [{ calls: [{ name: handoff_to_other, arguments: { message: Pay. } }] }]",
            ),
            (
                "other",
                "answers: [{ text: none }, { calls: [{ name: pay, arguments: { order: A } }] }, \
                 { text: Paid. }]",
            ),
        ],
        pauses: 9,
    },
    Scenario {
        name: "memory",
        agents: &[(
            "clerk",
            "config: { provider: script }\ntools: [pay]\ninterrupt_on: { pay: true }\n\
             profile: { base: fast, memory: { scope: session } }\n",
        )],
        scripts: &[(
            "script",
            "answers: [{ calls: [{ name: save_memory, arguments: { key: word, value: Swordfish. } }] }, \
             { calls: [{ name: pay, arguments: { order: A } }, \
             { name: search_memories, arguments: { query: swordfish } }] }, \
             { calls: [{ name: forget_memory, arguments: { key: word } }] }, { text: Paid. }]",
        )],
        pauses: 12,
    },
];

/// Gives an agent without a profile a memory that all agents share.
const MEMORY: &str = "profile: { base: fast, memory: { namespace: shared } }\n";

impl Scenario {
    fn has_memory(&self) -> bool {
        self.agents.iter().any(|(_, text)| text.contains("memory"))
    }

    pub(crate) async fn open(&self, more: &str) -> RuntimeFixture {
        let options = FixtureOptions::new("", "answers: []");
        for (name, text) in self.agents {
            options.define(&format!("{name}.yaml"), &format!("name: {name}\n{text}{more}"));
        }
        let fixture = FixtureOptions { models: providers(self.scripts), ..options }.open().await;
        assert_eq!(*fixture.problems.borrow(), [], "{}", self.name);
        fixture
    }
}

/// Approves every call and resumes every paused run, until the run has ended. Returns the number of pauses.
pub(crate) async fn attend(abide: &Abide, run_id: &str) -> usize {
    let sql = "SELECT id, turn FROM runs WHERE status = 'waiting' AND reason = 'pause'";
    let mut paused = abide.subscribe(sql).await.expect("the subscription starts");
    let sql = "SELECT id FROM approvals WHERE status = 'pending'";
    let mut asked = abide.subscribe(sql).await.expect("the subscription starts");
    let sql = "SELECT id FROM runs WHERE id = :id AND ended_at IS NOT NULL";
    let ended = abide.subscribe(sql).param("id", run_id);
    let mut ended = ended.await.expect("the subscription starts");
    let mut pauses = 0;
    loop {
        tokio::select! {
            update = paused.try_next() => {
                update.expect("the file is open");
                for (id, _) in paused.typed_rows::<(String, i64)>().expect("they are rows") {
                    let resumed = abide.call(ResumeRun::new(&id)).await.expect("it is paused");
                    pauses += usize::from(!resumed.duplicate);
                }
            }
            update = asked.try_next() => {
                update.expect("the file is open");
                for (id,) in asked.typed_rows::<(String,)>().expect("they are rows") {
                    let decide = DecideApproval::new(Decision::Approve).id(id);
                    // The rows of the subscription can be older than the decision.
                    let _ = abide.call(decide).await;
                }
            }
            update = ended.try_next() => {
                update.expect("the file is open");
                if ended.rows().len() > 0 {
                    return pauses;
                }
            }
        }
    }
}

/// The rows that a run leaves, without times and numbers of events.
pub(crate) async fn rows(abide: &Abide) -> Vec<String> {
    let all = [
        "SELECT session_id, role, kind, content, data FROM agent_state ORDER BY session_id, id",
        "SELECT call_id, session_id, tool_name, tool_version, arguments, status, result, error \
         FROM tool_calls ORDER BY call_id",
        "SELECT id, session_id, agent, status, iterations, tool_calls, input_tokens, \
         output_tokens, usage_missing, cost_micros, output, error_code FROM runs ORDER BY id",
        "SELECT session_id, status FROM sessions JOIN runs ON runs.session_id = sessions.id",
        "SELECT run_id, kind, data FROM run_events WHERE kind NOT IN \
         ('token', 'status', 'interrupt') ORDER BY run_id, number",
        "SELECT call_id, status, approved_arguments FROM approvals ORDER BY call_id",
        "SELECT space, key, value, confidence FROM memories ORDER BY space, key",
    ];
    let mut rendered = Vec::new();
    for sql in all {
        let sql = sql.replace("SELECT session_id, status", "SELECT sessions.id, sessions.status");
        let found = abide.sql(&sql).rows().await.expect("the query succeeds");
        rendered.extend(found.rows.iter().map(|row| format!("{row:?}")));
    }
    rendered
}

/// Regression: each resumption began a turn of an agent with a memory, so it read its facts again.
#[tokio::test]
async fn resuming_at_every_stage_equals_never_having_paused() {
    let with_memory = SCENARIOS.iter().filter(|scenario| !scenario.has_memory());
    let with_memory = with_memory.map(|scenario| (scenario, MEMORY));
    for (scenario, memory) in SCENARIOS.iter().map(|scenario| (scenario, "")).chain(with_memory) {
        let name = format!("{} {memory}", scenario.name);
        let mut ends = Vec::new();
        for (pause, pauses) in [("", 0), (EVERYWHERE, scenario.pauses)] {
            let fixture = scenario.open(&format!("{memory}{pause}")).await;
            let fact = NewMemory {
                key: "city".to_owned(),
                value: "Orders are paid in Bonn.".to_owned(),
                confidence: None,
                source_seq: None,
            };
            let save = SaveMemories::new("shared", vec![fact]);
            fixture.abide.call(save).await.expect("it is saved");
            fixture.begin("Pay order A.").await;
            assert_eq!(attend(&fixture.abide, "r1").await, pauses, "{name}");
            let mut found = rows(&fixture.abide).await;
            // Revisions are numbers of the file, and a handoff entry has a time.
            found.iter_mut().for_each(strip_time);
            ends.push((found, fixture.ledger()));
            fixture.close().await;
        }
        assert_eq!(ends[0], ends[1], "{name}");
        let reads = ends[0].0.iter().filter(|row| row.contains("Text(\"memory\")")).count();
        assert_eq!(reads > 0, !memory.is_empty() || scenario.has_memory(), "{name}");
    }
}

/// Removes the times of a handoff from a row.
pub(crate) fn strip_time(row: &mut String) {
    for name in ["at", "worked_us"] {
        let member = format!("\\\"{name}\\\":");
        let Some(at) = row.find(&member) else { continue };
        let number = at + member.len();
        let end = row[number..].find(|c: char| !c.is_ascii_digit()).unwrap_or_default();
        row.replace_range(at..number + end, "");
    }
}

/// A paused run is a row and an event, has no driver, and names the stage.
#[tokio::test]
async fn checkpoint_stages_after_agent_pauses_before_the_tool_runs() {
    let definition = "tools: [pay]\npause: [{ at: after_agent, tools: [pay] }]\n";
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]";
    let fixture = RuntimeFixture::start(definition, script).await;
    fixture.begin("Pay.").await;
    let (rendered, event) = fixture.output("r1", 0).await;
    expect![[r#"
        1 status {"status":"thinking"}
        1 usage {"cached_tokens":null,"completeness":"unavailable","estimated_cost":null,"input_tokens":null,"model":"scripted","output_tokens":null,"provider":"script","reasoning_tokens":null}
        1 tool_call {"args":{"order":"A"},"id":"r1~1.1","name":"pay"}
        1 interrupt {"action_requests":[],"iteration":1,"reason":"pause","run_id":"r1","session_id":"s1","stage":"after_agent","why":"the definition of agent clerk pauses here"}
    "#]].assert_eq(&rendered);
    assert_eq!(event.kind, RunEventKind::Interrupt);
    let sql = "SELECT r.status, r.reason, r.driver, p.status, p.stage, p.iteration FROM runs AS r \
               JOIN pauses AS p ON p.run_id = r.id";
    let found = fixture.abide.sql(sql).rows().await.expect("the query succeeds");
    expect![[r#"["waiting","pause",null,"paused","after_agent",1]"#]]
        .assert_eq(&json_of(&found.rows[0]));
    assert_eq!(fixture.ledger(), Vec::<String>::new());
    // It holds no lease, and nothing else than the resumption continues it.
    let claim = ClaimRun::new("r1", "other", 1_000);
    let refused = fixture.abide.call(claim).await.expect_err("it is paused");
    assert_eq!(refused.code(), Some(Code::BadTransition));
    fixture.abide.call(ResumeRun::new("r1")).await.expect("it is paused");
    let (_, end) = fixture.output("r1", event.number).await;
    assert_eq!((end.kind, fixture.ledger().len()), (RunEventKind::Done, 1));
    fixture.close().await;
}

fn json_of(row: &abide_client::Row) -> String {
    let cells: Vec<_> = row.iter().map(abide_client::Value::to_json).collect();
    serde_json::to_string(&cells).expect("it is JSON")
}

/// The result is known and the model has not seen it: nothing runs twice after the resumption.
#[tokio::test]
async fn pause_run_pauses_at_the_named_stage() {
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]";
    for stage in [
        PauseStage::BeforeGuardrails,
        PauseStage::AfterAgent,
        PauseStage::AfterTools,
        PauseStage::AfterLoop,
    ] {
        let fixture = RuntimeFixture::start("tools: [pay]\n", script).await;
        fixture.abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
        // Together, so that no driver is faster.
        let pause = PauseRun::new("r1").stage(stage).reason("review");
        let start = Call::from(StartRun::new("s1").id("r1").input("Pay."));
        fixture.abide.batch([start, Call::from(pause)]).await.expect("it starts");
        let (_, event) = fixture.output("r1", 0).await;
        assert_eq!(event.data["stage"], stage.as_str());
        assert_eq!(event.data["why"], "review");
        fixture.abide.call(ResumeRun::new("r1")).await.expect("it is paused");
        let (_, end) = fixture.output("r1", event.number).await;
        assert_eq!(end.kind, RunEventKind::Done, "{stage}");
        assert_eq!(fixture.ledger(), ["pay A"], "{stage}");
        fixture.close().await;
    }
}

/// Without a stage it is the next one. A request is withdrawn by a resumption.
#[tokio::test]
async fn a_withdrawn_request_does_not_pause() {
    let fixture =
        RuntimeFixture::start("pause: [{ at: before_guardrails }]\n", "answers: [{ text: Hi. }]")
            .await;
    fixture.begin("Hello").await;
    let (_, event) = fixture.output("r1", 0).await;
    let again = fixture.abide.call(PauseRun::new("r1")).await.expect("it is paused");
    assert!(again.duplicate, "a paused run is not paused twice");
    fixture.abide.call(ResumeRun::new("r1")).await.expect("it is paused");
    let (_, end) = fixture.output("r1", event.number).await;
    assert_eq!(end.kind, RunEventKind::Done);
    for call in [
        fixture.abide.call(PauseRun::new("r1")).await.map(drop),
        fixture.abide.call(ResumeRun::new("r1")).await.map(drop),
    ] {
        assert_eq!(call.expect_err("it has ended").code(), Some(Code::BadTransition));
    }
    fixture.close().await;
}

#[tokio::test]
async fn a_paused_run_can_be_aborted() {
    let fixture =
        RuntimeFixture::start("pause: [{ at: after_loop }]\n", "answers: [{ text: Hi. }]").await;
    fixture.begin("Hello").await;
    let (_, event) = fixture.output("r1", 0).await;
    fixture.abide.call(AbortRun::new("r1")).await.expect("it waits");
    let (_, end) = fixture.output("r1", event.number).await;
    assert_eq!((end.kind, end.turn), (RunEventKind::Error, 2));
    fixture.close().await;
}

/// A callback that panics pauses the run: supervision that fails must not let it go on.
#[tokio::test]
async fn on_state_change_a_callback_pauses_and_a_panic_pauses_too() {
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]";
    let options = FixtureOptions::new("tools: [pay]\n", script);
    let folder = options.folder;
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    let ours = tools(folder.path().join("ledger"));
    let catalog = Catalog::new(folder.path(), ours.clone());
    let models = scripted(script);
    let runtime =
        Runtime::builder(abide.clone(), models, ours, catalog, Settings::named("runtime"))
            .pause_when(|point| match point.stage {
                PauseStage::AfterAgent if point.tools == ["pay"] => Some("a payment".to_owned()),
                PauseStage::AfterLoop => panic!("the review cannot be reached: {}", point.text),
                _ => None,
            })
            .build();
    runtime.register().await.expect("it is registered");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { runtime.run(stopped).await.expect("it runs") });
    abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    abide.call(StartRun::new("s1").id("r1").input("Pay.")).await.expect("it starts");
    let mut events = RunEvents::subscribe(&abide, "r1", 0).await.expect("the subscription starts");
    let mut whys = Vec::new();
    while let Some(event) = events.next().await.expect("the stream continues") {
        if event.kind == RunEventKind::Interrupt {
            whys.push(event.data["why"].as_str().unwrap_or_default().to_owned());
            abide.call(ResumeRun::new("r1")).await.expect("it is paused");
        }
    }
    assert_eq!(whys, ["a payment", "the pause callback panicked"]);
    let sql = "SELECT * FROM runs WHERE id = 'r1'";
    let run: Vec<Run> = abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(run[0].status, RunStatus::Done);
    assert_eq!(ledger(&folder.path().join("ledger")), ["pay A"]);
    stop.cancel();
    task.await.expect("the task succeeds");
    abide.close().await;
}
