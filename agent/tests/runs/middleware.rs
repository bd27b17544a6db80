//! Middleware of a definition: redaction, retries, other models, and middleware in Rust.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use abide_agent::{AgentDefinition, AgentMiddleware, Catalog, MiddlewareContext};
use abide_client::Abide;
use abide_client::arguments::{CreateSession, StartRun};
use abide_client::metrics::{Metric, MetricKind, MetricSample};
use abide_models::{ModelProvider, ModelRequest, ModelResponse, ModelStream, Models, Script};
use abide_tools::{Effect, Function, ToolContext, ToolOutcome};
use expect_test::expect;
use serde_json::{Map, Value, json};

use crate::fixture::{FixtureOptions, Order, RuntimeFixture, answering, providers};

/// A scripted model that keeps its requests.
struct Recorder {
    script: Script,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ModelProvider for Recorder {
    fn id(&self) -> &str {
        "script"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let text = serde_json::to_string(&request).expect("it is JSON");
        self.requests.lock().expect("no test panics meanwhile").push(text);
        self.script.stream(request)
    }
}

fn recording(script: &str) -> (Models, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let script = Script::from_text(script).expect("the script is valid").named("script");
    (answering(Recorder { script, requests: Arc::clone(&requests) }), requests)
}

/// Everything that a client of the session could read.
async fn rows(abide: &Abide) -> String {
    let mut text = String::new();
    for sql in [
        "SELECT data FROM run_events",
        "SELECT content FROM agent_state WHERE role <> 'user'",
        "SELECT data FROM agent_state",
        "SELECT output FROM runs",
        "SELECT arguments FROM tool_calls",
        "SELECT result FROM tool_calls",
        "SELECT error FROM tool_calls",
        "SELECT original FROM withheld_answers",
        "SELECT arguments FROM events WHERE reducer NOT IN ('start_run', 'append_message')",
        "SELECT outcome FROM events WHERE reducer NOT IN ('start_run', 'append_message')",
    ] {
        let rows: Vec<(Option<String>,)> = abide.sql(sql).fetch().await.expect("it can be read");
        text.extend(rows.into_iter().flat_map(|(cell,)| cell));
    }
    text
}

/// The tool `look` of the fixture returns its argument; `mail` returns an address.
fn with_mail(plan: &FixtureOptions) {
    let mail = |_: Order, _: ToolContext| async { Ok::<_, String>("Ask eve@example.com.") };
    let mail = Function::new("mail", "Finds an address.", mail).effect(Effect::ReadOnly);
    plan.tools.add(mail).expect("the tool is valid");
}

/// Neither a token, row, event, result nor request of a model has the original. The message of the user is the user's
/// own row.
#[tokio::test]
async fn pii_leaves_neither_as_token_row_or_event_nor_to_the_model() {
    let script = "
answers:
  - text: I ask bob@example.com. Wait for it.
    reasoning: The user is bob@example.com.
    calls:
      - { name: look, arguments: { order: bob@example.com } }
      - { name: mail, arguments: { order: A } }
  - text: It is +49 30 1234567 or eve@example.com. Bye.
";
    let definition =
        "tools: [look, mail]\nsystem_prompt: Write to help@shop.test.\nmiddleware: [pii]\n";
    let (models, requests) = recording(script);
    let plan = FixtureOptions { models, ..FixtureOptions::new(definition, "answers: []") };
    with_mail(&plan);
    let fixture = plan.open().await;
    let run = fixture.begin("I am ann@example.com.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert!(rendered.contains("says \"I ask [email]. Wait for it.\"\n"), "{rendered}");
    let content = &last.data["assistant_data"]["content"];
    assert_eq!(content, "It is [phone] or [email]. Bye.", "{rendered}");
    assert_eq!(fixture.ledger(), ["look [email]"], "the tool gets the redacted arguments");
    let requests = requests.lock().expect("no test panics meanwhile").concat();
    assert!(requests.contains("help@shop.test"), "the instructions are the author's own");
    assert!(requests.contains("I am [email].") && requests.contains("Ask [email]."), "{requests}");
    for text in [rows(&fixture.abide).await, requests] {
        for name in ["ann@", "bob@", "eve@", "1234567"] {
            assert!(!text.contains(name), "{name} in {text}");
        }
    }
    fixture.close().await;
}

/// The schema of an answer is checked after the redaction, and an escape hides nothing.
#[tokio::test]
async fn pii_in_structured_answers_is_redacted_by_value() {
    let definition = "response_format: { type: object, required: [to] }\nmiddleware: [pii]\n";
    let script = r#"answers: [{ text: '{"to": "bob\u0040example.com"}' }]"#;
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Who?").await;
    let (rendered, _) = fixture.output(&run.id, 0).await;
    let sql = "SELECT output ->> '$.structured.to' FROM runs";
    let to: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(to[0].0, "[email]", "{rendered}");
    let text = rows(&fixture.abide).await;
    assert!(!text.contains("bob"), "{text}");
    fixture.close().await;
}

/// A tool that fails so many times, and counts its attempts.
fn failing(plan: &FixtureOptions, name: &str, effect: Effect, times: usize) -> Arc<AtomicUsize> {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&attempts);
    let function = Function::new(name, "Fails.", move |_: Order, _: ToolContext| {
        let attempt = counter.fetch_add(1, Ordering::SeqCst);
        async move { if attempt < times { Err("it is busy".to_owned()) } else { Ok("done") } }
    })
    .effect(effect);
    plan.tools.add(function).expect("the tool is valid");
    attempts
}

#[tokio::test]
async fn tool_retry_runs_failed_calls_again_but_never_those_that_must_not_run_twice() {
    for (effect, settings, attempts, status) in [
        (Effect::ReadOnly, "tool_retry", 2, "succeeded"),
        (Effect::Idempotent, "{ name: tool_retry, tools: [fl*] }", 2, "succeeded"),
        (Effect::Idempotent, "{ name: tool_retry, tools: [other] }", 1, "failed"),
        (Effect::Idempotent, "{ name: tool_retry, attempts: 1 }", 1, "failed"),
        (Effect::AtMostOnce, "tool_retry", 1, "failed"),
    ] {
        let script =
            "answers: [{ calls: [{ name: flaky, arguments: { order: A } }] }, { text: Done. }]";
        let plan =
            FixtureOptions::new(&format!("tools: [flaky]\nmiddleware: [{settings}]\n"), script);
        let counted = failing(&plan, "flaky", effect, 1);
        let fixture = plan.open().await;
        let run = fixture.begin("Do it.").await;
        let (rendered, _) = fixture.output(&run.id, 0).await;
        assert_eq!(counted.load(Ordering::SeqCst), attempts, "{settings} {effect:?} {rendered}");
        let sql = "SELECT status, attempt FROM tool_calls";
        let row: Vec<(String, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        let expected = i64::try_from(attempts).expect("it is small");
        assert_eq!(row, [(status.to_owned(), expected)], "{settings} {effect:?}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn model_fallback_asks_the_next_model() {
    let definition = "config: { provider: first }\n\
                      middleware: [{ name: model_fallback, models: [{ provider: second }] }]\n";
    let models = providers(&[
        ("first", "answers: [{ error: { kind: unauthorized } }]"),
        ("second", "answers: [{ text: Hello. }]"),
    ]);
    let plan = FixtureOptions { models, ..FixtureOptions::new(definition, "answers: []") };
    let fixture = plan.open().await;
    let run = fixture.begin("Hello?").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "Hello.", "{rendered}");
    fixture.close().await;
}

#[tokio::test]
async fn tool_security_denies_a_tool_that_the_model_sees() {
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: OK. }]";
    let definition = "tools: [pay]\nmiddleware: [{ name: tool_security, blocked_tools: ['p*'] }]\n";
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Pay.").await;
    let (rendered, _) = fixture.output(&run.id, 0).await;
    assert_eq!(fixture.ledger(), [""; 0], "{rendered}");
    fixture.close().await;
}

/// The counters of a run, one a line, without durations.
async fn counted(fixture: RuntimeFixture, counts_runs: bool) -> String {
    let metrics = fixture.metrics.clone();
    let mut runs = metrics.runs();
    let is_counted = || {
        let families = metrics.families();
        families.iter().any(|it| it.metric.name == "agent_runs_total" && !it.samples.is_empty())
    };
    // A run is counted after its end.
    while counts_runs && !is_counted() {
        runs.changed().await.expect("the metrics exist");
    }
    fixture.close().await;
    let mut lines = Vec::new();
    for family in metrics.families() {
        let Metric { name, kind, .. } = family.metric;
        if ["agent_step_seconds", "model_call_seconds"].contains(&name) {
            // They are of all agents.
            continue;
        }
        for MetricSample { suffix, labels, value } in family.samples {
            if kind == MetricKind::Counter || suffix == "_count" {
                let labels: Vec<&str> = labels.iter().map(|(_, value)| value.as_str()).collect();
                lines.push(format!("{name}{suffix} {} {value}", labels.join(" ")));
            }
        }
    }
    lines.join("\n")
}

/// Attempts that fail, other models, tokens, cost, tools that succeed and fail: each by agent, model and tool. The requests
/// of a guardrail's model count, too.
#[tokio::test]
async fn observability_counts_models_and_tools() {
    let definition = "\
tools: [look, flaky]
config: { provider: first }
middleware:
  - observability
  - { name: model_fallback, models: [{ provider: second }] }
  - { name: guardrail, at: response, verdict: { instructions: x, provider: judge }, message: no }
";
    let answers = "
answers:
  - calls: [{ name: look, arguments: { order: A } }, { name: flaky, arguments: { order: A } }]
    usage: { input_tokens: 10, output_tokens: 4 }
  - text: Done.
    usage: { input_tokens: 20, output_tokens: 6 }
";
    let fails = "answers: [{ error: { kind: unauthorized } }, { error: { kind: unauthorized } }]";
    let judge = "answers: [{ text: '{\"allow\": true}' }, { text: '{\"allow\": true}' }]";
    let models = || providers(&[("first", fails), ("second", answers), ("judge", judge)]);
    let run = async |definition: &str| {
        let plan =
            FixtureOptions { models: models(), ..FixtureOptions::new(definition, "answers: []") };
        failing(&plan, "flaky", Effect::AtMostOnce, 9);
        let fixture = plan.open().await;
        let run = fixture.begin("Look.").await;
        let (rendered, last) = fixture.output(&run.id, 0).await;
        assert_eq!(last.data["assistant_data"]["content"], "Done.", "{rendered}");
        counted(fixture, definition.contains("- observability\n")).await
    };
    expect![[r#"
        agent_runs_total clerk done 1
        agent_run_seconds_count clerk 1
        agent_model_calls_total clerk first first-model unauthorized 2
        agent_model_calls_total clerk judge judge-model answered 1
        agent_model_calls_total clerk second second-model answered 2
        agent_model_tokens_total clerk first first-model input 0
        agent_model_tokens_total clerk first first-model output 0
        agent_model_tokens_total clerk judge judge-model input 0
        agent_model_tokens_total clerk judge judge-model output 0
        agent_model_tokens_total clerk second second-model input 30
        agent_model_tokens_total clerk second second-model output 10
        agent_model_cost_dollars_total clerk first first-model 0
        agent_model_cost_dollars_total clerk judge judge-model 0
        agent_model_cost_dollars_total clerk second second-model 0
        agent_model_call_seconds_count clerk first first-model 2
        agent_model_call_seconds_count clerk judge judge-model 1
        agent_model_call_seconds_count clerk second second-model 2
        agent_tool_calls_total clerk flaky tool 1
        agent_tool_calls_total clerk look succeeded 1
        agent_tool_call_seconds_count clerk flaky 1
        agent_tool_call_seconds_count clerk look 1"#]]
    .assert_eq(&run(definition).await);
    let tools = definition.replace("- observability", "- { name: observability, at: tools }");
    expect![[r#"
        agent_tool_calls_total clerk flaky tool 1
        agent_tool_calls_total clerk look succeeded 1
        agent_tool_call_seconds_count clerk flaky 1
        agent_tool_call_seconds_count clerk look 1"#]]
    .assert_eq(&run(&tools).await);
    assert_eq!(run(&definition.replace("  - observability\n", "")).await, "");
}

/// The runs of a program and of a remote agent, with what is known of them: tokens, cost, and the calls of the program's own
/// tools. No other middleware applies to them.
#[tokio::test]
async fn observability_counts_programs_and_remote_agents() {
    let lines = [
        r#"{"kind":"call","id":"1","tool":"sh"}"#,
        r#"{"kind":"result","id":"1","code":0}"#,
        r#"{"kind":"call","id":"2","tool":"sh"}"#,
        r#"{"kind":"result","id":"2","code":3}"#,
        r#"{"kind":"call","id":"3","tool":"edit"}"#,
        r#"{"kind":"used","in":10,"out":5,"usd":0.25}"#,
        r#"{"kind":"done","say":"Done."}"#,
    ];
    let script =
        format!("cat > /dev/null; printf '%s\\n' {}", lines.map(|it| format!("'{it}'")).join(" "));
    let program = format!(
        "cli:
  command: [sh, -c, {}]
  program: generic
  parser:
    tool_call: {{ when: {{ /kind: call }}, id: /id, name: /tool }}
    tool_result: {{ when: {{ /kind: result }}, id: /id, exit_code: /code }}
    usage: {{ input_tokens: /in, output_tokens: /out, cost_usd: /usd }}
    terminal: {{ when: {{ /kind: done }}, text: /say }}
",
        json!(script)
    );
    let remote =
        "a2a: { url: 'http://127.0.0.1:1/', allow_private: [127.0.0.1], unreachable_seconds: 0 }\n";
    let run = async |definition: &str| {
        let fixture = FixtureOptions::new(definition, "answers: []").open().await;
        let run = fixture.begin("Look.").await;
        fixture.output(&run.id, 0).await;
        counted(fixture, definition.contains("observability")).await
    };
    expect![[r#"
        agent_runs_total clerk done 1
        agent_run_seconds_count clerk 1
        agent_model_tokens_total clerk cli clerk input 10
        agent_model_tokens_total clerk cli clerk output 5
        agent_model_cost_dollars_total clerk cli clerk 0.25
        agent_tool_calls_total clerk edit lost 1
        agent_tool_calls_total clerk sh succeeded 1
        agent_tool_calls_total clerk sh tool 1
        agent_tool_call_seconds_count clerk edit 1
        agent_tool_call_seconds_count clerk sh 2"#]]
    .assert_eq(&run(&format!("middleware: [observability]\n{program}")).await);
    let at = "middleware: [{ name: observability, at: [runs] }]\n";
    expect![[r#"
        agent_runs_total clerk done 1
        agent_run_seconds_count clerk 1"#]]
    .assert_eq(&run(&format!("{at}{program}")).await);
    expect![[r#"
        agent_runs_total clerk remote_agent_unavailable 1
        agent_run_seconds_count clerk 1"#]]
    .assert_eq(&run(&format!("middleware: [observability]\n{remote}")).await);
    assert_eq!(run(&program).await, "");
    for other in ["pii", "streaming"] {
        let plan = FixtureOptions::new(&format!("middleware: [{other}]\n{program}"), "answers: []");
        let catalog = Catalog::new(plan.folder.path(), plan.tools.clone());
        let refused = catalog.read().1[0].error.to_string();
        let expected = "an agent with cli takes only the middleware observability, because its \
                        output cannot be held back";
        assert_eq!(refused, expected);
    }
}

/// The client's view of an answer while it is made, by the settings of `streaming`.
#[tokio::test]
async fn streaming_publishes_steps_pieces_and_reasoning() {
    let script = "
token_ms: 1
answers:
  - text: I look now.
    reasoning: It is there.
    calls: [{ name: look, arguments: { order: A } }]
  - text: It is fine, really.
";
    let run = async |middleware: &str| {
        let definition = format!("tools: [look]\nmiddleware: {middleware}\n");
        let fixture = RuntimeFixture::start(&definition, script).await;
        let run = fixture.begin("Look.").await;
        fixture.output(&run.id, 0).await;
        let sql = "SELECT kind || CASE kind WHEN 'status' THEN ' ' || (data ->> '$.status') || \
                   coalesce(' ' || (data ->> '$.iteration'), '') || \
                   coalesce(' ' || (data ->> '$.tools'), '') ELSE '' END FROM run_events \
                   WHERE kind IN ('token', 'reasoning', 'status') ORDER BY number";
        let rows: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        let mut kinds: Vec<String> = rows.into_iter().map(|(kind,)| kind).collect();
        let tokens = kinds.iter().filter(|kind| *kind == "token").count();
        kinds.dedup();
        let sql = "SELECT group_concat(data ->> '$.content', '') FROM run_events \
                   WHERE kind = 'token'";
        let text: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        assert_eq!(text[0].0, "I look now.It is fine, really.", "{middleware}");
        fixture.close().await;
        (kinds.join(", "), tokens)
    };
    let (plain, tokens) = run("[]").await;
    assert_eq!(plain, "status thinking, reasoning, token, status idle");
    assert!(tokens > 2, "the text arrives in pieces");
    let (steps, _) = run("[streaming]").await;
    assert_eq!(
        steps,
        "status thinking, status thinking 1, reasoning, token, status working [\"look\"], \
         status thinking 2, token, status idle"
    );
    let less = "[{ name: streaming, tokens: false, reasoning: false, status: false }]";
    assert_eq!(run(less).await, ("status thinking, token, status idle".to_owned(), 2));
}

/// With `tokens: false` an answer that is stopped leaves its text, too.
#[tokio::test]
async fn streaming_in_one_piece_keeps_the_text_of_a_stopped_answer() {
    let script = "token_ms: 400\nanswers: [{ text: one two three four five six seven eight }]";
    let definition = "middleware: [{ name: streaming, tokens: false }]\n\
                      limits: { wall_clock_seconds: 1 }\n";
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Count.").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["code"], "execution_timeout", "{rendered}");
    assert!(rendered.contains("says \"one"), "{rendered}");
    let transcript = fixture.transcript().await;
    assert!(transcript.contains("assistant: one"), "{transcript}");
    fixture.close().await;
}

/// An unknown setting, and one of another middleware, are errors that list the known ones.
#[test]
fn unknown_settings_of_observability_and_streaming_are_refused() {
    for (middleware, why) in [
        (
            "{ name: observability, models: [{ provider: x }] }",
            "unknown setting `models` of the middleware observability, expected one of `at`",
        ),
        (
            "{ name: observability, at: agents }",
            "unknown value `agents`, expected one of `models`, `tools`, `runs`",
        ),
        (
            "{ name: streaming, pieces: true }",
            "unknown setting `pieces` of the middleware streaming, expected one of `tokens`, \
             `reasoning`, `status`",
        ),
    ] {
        let text = format!("middleware:\n  - {middleware}\n");
        let refused = AgentDefinition::from_yaml(&text).expect_err("it is refused");
        assert_eq!(refused.to_string(), why);
    }
    let both = "middleware:\n- observability\n- name: streaming\n  tokens: false\n";
    let read = AgentDefinition::from_yaml(both).expect("it is valid");
    let json = serde_json::to_value(&read.middleware).expect("it is JSON");
    assert_eq!(json, json!([{"name": "observability"}, {"name": "streaming", "tokens": false}]));
}

/// Changes what it gets, and denies what contains the word in its settings.
struct Audit;

fn word<'a>(context: &'a MiddlewareContext<'_>) -> &'a str {
    context.settings.get("deny").and_then(Value::as_str).unwrap_or("-")
}

fn allowed(context: &MiddlewareContext<'_>, text: &str) -> Result<(), String> {
    let tenant = context.context.scope["tenant"].as_str().unwrap_or_default();
    if text.contains(word(context)) { Err(format!("denied for {tenant}")) } else { Ok(()) }
}

impl AgentMiddleware for Audit {
    fn check(&self, settings: &Map<String, Value>) -> Result<(), String> {
        match settings.keys().find(|name| *name != "deny") {
            Some(name) => Err(format!("unknown setting `{name}`, expected `deny`")),
            None => Ok(()),
        }
    }

    fn before_model(
        &self,
        context: &MiddlewareContext<'_>,
        request: &mut ModelRequest,
    ) -> Result<(), String> {
        request.system = Some("Be audited.".to_owned());
        allowed(context, &serde_json::to_string(&request.messages).unwrap_or_default())
    }

    fn after_model(
        &self,
        context: &MiddlewareContext<'_>,
        answer: &mut ModelResponse,
    ) -> Result<(), String> {
        answer.text = answer.text.to_uppercase();
        allowed(context, &answer.text)
    }

    fn before_tool(
        &self,
        context: &MiddlewareContext<'_>,
        tool: &str,
        arguments: &mut Value,
    ) -> Result<(), String> {
        arguments["order"] = json!(format!("{tool}-{}", arguments["order"].as_str().unwrap_or("")));
        allowed(context, &arguments.to_string())
    }

    fn after_tool(
        &self,
        context: &MiddlewareContext<'_>,
        _: &str,
        outcome: &mut ToolOutcome,
    ) -> Result<(), String> {
        outcome.text.push('!');
        allowed(context, &outcome.text)
    }
}

async fn audited(deny: &str) -> (String, RuntimeFixture, String) {
    let script = "answers: [{ text: I look. So., calls: [{ name: look, \
                  arguments: { order: A } }] }, { text: It is fine. Bye. }]";
    let definition =
        format!("tools: [look]\nmiddleware: [{{ name: audit, settings: {{ deny: {deny} }} }}]\n");
    let (models, requests) = recording(script);
    let plan = FixtureOptions { models, ..FixtureOptions::new(&definition, "answers: []") };
    let catalog = Catalog::new(plan.folder.path(), plan.tools.clone()).middleware("audit", Audit);
    let fixture = plan.open_with(catalog).await;
    let scope = json!({"tenant": "acme"});
    let session = CreateSession::new("clerk").id("s1");
    let session = CreateSession { scope: scope.as_object().cloned(), ..session };
    fixture.abide.call(session).await.expect("it is created");
    fixture.abide.call(StartRun::new("s1").id("r1").input("Look.")).await.expect("it starts");
    fixture.output("r1", 0).await;
    let requests = requests.lock().expect("no test panics meanwhile").concat();
    (fixture.transcript().await, fixture, requests)
}

/// Each function of middleware in Rust changes what it gets, or denies it.
#[tokio::test]
async fn middleware_in_rust_changes_and_denies_at_each_place() {
    for (deny, transcript, ledger) in [
        (
            "nothing",
            "user: Look. \nassistant: I LOOK. SO. \"r1~1.1\" \"look\"\n\
             tool [r1~1.1]: look look-A is done! \nassistant: IT IS FINE. BYE. \n",
            vec!["look look-A"],
        ),
        ("Look", "user: Look. \nassistant: denied for acme \n", vec![]),
        ("SO", "user: Look. \nassistant: denied for acme \n", vec![]),
        (
            "look-A",
            "user: Look. \nassistant: I LOOK. SO. \"r1~1.1\" \"look\"\n\
             tool [r1~1.1]: denied for acme \nassistant: IT IS FINE. BYE. \n",
            vec![],
        ),
        (
            "done!",
            "user: Look. \nassistant: I LOOK. SO. \"r1~1.1\" \"look\"\n\
             tool [r1~1.1]: denied for acme \nassistant: IT IS FINE. BYE. \n",
            vec!["look look-A"],
        ),
    ] {
        let (found, fixture, requests) = audited(deny).await;
        assert_eq!(found, transcript, "{deny}");
        assert_eq!(fixture.ledger(), ledger, "{deny}");
        assert!(deny == "Look" || requests.contains("Be audited."), "{requests}");
        let events = rows(&fixture.abide).await;
        assert!(deny == "SO" || !events.contains("So."), "an original left: {events}");
        fixture.close().await;
    }
}

/// Middleware that is not registered fails a run whose definition was registered by another process.
#[tokio::test]
async fn middleware_that_is_not_registered_is_refused() {
    let plan =
        FixtureOptions::new("middleware: [{ name: audit, settings: { x: 1 } }]", "answers: []");
    let here = || Catalog::new(plan.folder.path(), plan.tools.clone());
    let why = |catalog: Catalog| catalog.read().1[0].error.to_string();
    let known =
        "guardrail, tool_security, tool_retry, model_fallback, pii, observability, streaming";
    assert_eq!(why(here()), format!("unknown middleware audit; available: {known}"));
    let refused = why(here().middleware("audit", Audit));
    assert_eq!(refused, "middleware audit: unknown setting `x`, expected `deny`");
    let fixture = plan.open().await;
    let session = CreateSession::new("other").id("s1");
    let definition = json!({"name": "other", "middleware": ["audit"]});
    let definition = definition.as_object().cloned().expect("it is an object");
    let registered = abide_client::arguments::RegisterAgent::new("other", definition);
    fixture.abide.call(registered).await.expect("it is registered");
    fixture.abide.call(session).await.expect("it is created");
    fixture.abide.call(StartRun::new("s1").id("r1").input("Go.")).await.expect("it starts");
    let (_, last) = fixture.output("r1", 0).await;
    assert_eq!(last.data["code"], "unknown_middleware", "{}", last.data);
    fixture.close().await;
}

/// The parts of a range are not personal data for the rules, so the model could read a number in two halves.
#[tokio::test]
async fn pii_is_redacted_before_a_range_is_taken() {
    let fetch = |offset: usize| {
        format!(
            "{{ name: get_tool_response, arguments: {{ id: r1~1.1, offset: {offset}, length: 10 }} }}"
        )
    };
    let script = format!(
        "answers:\n  - calls: [{{ name: long, arguments: {{ order: A }} }}]\n  \
         - calls: [{}, {}]\n  - text: Done.\n",
        fetch(0),
        fetch(10)
    );
    for middleware in ["pii", "{ name: pii, at: [request] }"] {
        let definition = format!("tools: [long]\nmiddleware: [{middleware}]\n");
        let (models, requests) = recording(&script);
        let plan = FixtureOptions { models, ..FixtureOptions::new(&definition, "answers: []") };
        let long = |_: Order, _: ToolContext| async {
            Ok::<_, String>(format!("4111 1111 1111 1111 {}", "x".repeat(60_000)))
        };
        let long = Function::new("long", "Is long.", long).effect(Effect::ReadOnly);
        plan.tools.add(long).expect("the tool is valid");
        let fixture = plan.open().await;
        let run = fixture.begin("Read.").await;
        let (rendered, _) = fixture.output(&run.id, 0).await;
        assert!(rendered.contains("get_tool_response"), "{rendered}");
        let requests = requests.lock().expect("no test panics meanwhile").concat();
        assert!(requests.contains("characters 10 to 20"), "{requests}");
        assert!(!requests.contains("1111"), "{middleware}");
        fixture.close().await;
    }
}
