//! Response guardrails hold text back.
//!
//! Regression: the denied text was stored as `token` events, streamed, and printed by `abide agent run`; only `done`
//! had the replacement.

use abide_agent::{Catalog, RunEvents};
use abide_client::arguments::{AbortRun, AppendMessage, CreateSession, SetPolicy, StartRun};
use abide_client::rows::RunEventKind;
use abide_client::{Abide, Scope};
use abide_models::{ModelEvent, ModelProvider, ModelRequest, ModelStream};
use futures_util::{StreamExt as _, stream};

use crate::fixture::{FixtureOptions, RuntimeFixture, answering, providers};

const SECRET: &str = "swordfish";

const DENIES: &str = "\
tools: [look]
middleware:
  - { name: guardrail, at: response, deny: swordfish, message: I may not say that. }
";

const SAYS: &str = "
answers:
  - text: Let me think. It is swordfish. Good bye.
    reasoning: The password is swordfish.
    calls: [{ name: look, arguments: { order: swordfish } }]
";

/// Everything that these queries return, as one text.
async fn text(abide: &Abide, queries: &[&str]) -> String {
    let mut text = String::new();
    for sql in queries {
        let rows: Vec<(Option<String>,)> = abide.sql(*sql).fetch().await.expect("it can be read");
        text.extend(rows.into_iter().flat_map(|(cell,)| cell));
    }
    text
}

/// Where text could leave.
const ROWS: [&str; 6] = [
    "SELECT data FROM run_events",
    "SELECT content FROM agent_state",
    "SELECT data FROM agent_state",
    "SELECT output FROM runs",
    "SELECT arguments FROM tool_calls",
    "SELECT result FROM tool_calls",
];

#[tokio::test]
async fn denied_text_leaves_nowhere() {
    let fixture = RuntimeFixture::start(DENIES, SAYS).await;
    let run = fixture.begin("What is the password?").await;
    let (rendered, last) = fixture.output(&run.id, 0).await;
    assert!(rendered.contains("1 says \"Let me think. I may not say that.\"\n"), "{rendered}");
    assert_eq!(last.data["assistant_data"]["content"], "I may not say that.");
    let stored = text(&fixture.abide, &ROWS).await;
    assert!(!stored.contains(SECRET), "{stored}");
    assert_eq!(fixture.ledger(), [""; 0], "a call of a denied answer does not run");
    let original = text(&fixture.abide, &["SELECT original FROM withheld_answers"]).await;
    for part in ["It is swordfish", "password is swordfish", "look"] {
        assert!(original.contains(part), "{original}");
    }
    fixture.close().await;
}

#[tokio::test]
async fn the_original_is_for_those_whom_a_policy_permits() {
    let fixture = RuntimeFixture::start(DENIES, SAYS).await;
    let scope = serde_json::json!({"tenant": "a"});
    let session = CreateSession::new("clerk").id("s1");
    let session = CreateSession { scope: scope.as_object().cloned(), ..session };
    fixture.abide.call(session).await.expect("it is created");
    let run = StartRun::new("s1").id("r1").input("What is the password?");
    fixture.abide.call(run).await.expect("the run starts");
    fixture.output("r1", 0).await;
    let scope: Scope = [("tenant".to_owned(), "a".to_owned())].into();
    let tenant = fixture.abide.acting_for(&scope).await.expect("it is narrowed");
    let seen = text(
        &tenant,
        &[&ROWS[..], &["SELECT arguments FROM events", "SELECT outcome FROM events"]].concat(),
    )
    .await;
    assert!(seen.contains("I may not say that.") && !seen.contains(SECRET), "{seen}");
    let sql = "SELECT original FROM withheld_answers";
    let closed = tenant.sql(sql).rows().await.expect_err("the table is closed");
    assert!(closed.to_string().contains("no such table"), "{closed}");
    // `acting_for` keeps the role of the embedding program.
    let opened = SetPolicy::new("withheld_answers", "*");
    fixture.abide.call(opened).await.expect("the policy is valid");
    assert!(text(&tenant, &[sql]).await.contains(SECRET));
    let other: Scope = [("tenant".to_owned(), "b".to_owned())].into();
    let other = fixture.abide.acting_for(&other).await.expect("it is narrowed");
    assert_eq!(text(&other, &[sql]).await, "", "another tenant sees nothing");
    fixture.close().await;
}

/// A model that sends these chunks and then nothing.
struct StallingModel(&'static [&'static str]);

impl ModelProvider for StallingModel {
    fn id(&self) -> &str {
        "stalls"
    }

    fn stream(&self, _: ModelRequest) -> ModelStream {
        let chunks = self.0.iter().map(|chunk| Ok(ModelEvent::Text((*chunk).to_owned())));
        stream::iter(chunks).chain(stream::pending()).boxed()
    }
}

#[tokio::test]
async fn a_sentence_leaves_before_the_answer_is_complete() {
    let models = answering(StallingModel(&["One", ". Two", ". It is sword"]));
    let fixture = FixtureOptions { models, ..FixtureOptions::new(DENIES, "answers: []") };
    let fixture = fixture.open().await;
    let run = fixture.begin("Count.").await;
    let mut events = RunEvents::subscribe(&fixture.abide, &run.id, 0).await.expect("it starts");
    let mut text = String::new();
    while text != "One. Two. " {
        let event = events.next().await.expect("it continues").expect("the run has not ended");
        if event.kind == RunEventKind::Token {
            text.push_str(event.data["content"].as_str().expect("it is text"));
        }
        assert!("One. Two. ".starts_with(&text), "{text}");
    }
    // The cleared part of an interrupted answer stays.
    fixture.abide.call(AbortRun::new(&run.id).reason("enough")).await.expect("it is aborted");
    fixture.output(&run.id, 0).await;
    assert_eq!(fixture.transcript().await, "user: Count. \nassistant: One. Two.  \n");
    fixture.close().await;
}

const SCHEMA: &str = "\
middleware:
  - { name: guardrail, at: response, schema: { type: object, required: [ok] }, message: '{}' }
";

#[tokio::test]
async fn an_answer_that_does_not_match_a_schema_is_withheld() {
    for (says, content) in [("'{\"ok\": 1}'", "{\"ok\": 1}"), ("It is fine. So.", "{}")] {
        let fixture =
            RuntimeFixture::start(SCHEMA, &format!("answers: [{{ text: {says} }}]")).await;
        let run = fixture.begin("Is it?").await;
        let (rendered, last) = fixture.output(&run.id, 0).await;
        assert_eq!(last.data["assistant_data"]["content"], content);
        assert_eq!(rendered.matches(" says ").count(), 1, "{rendered}");
        assert!(rendered.contains(&format!("1 says {content:?}\n")), "{rendered}");
        fixture.close().await;
    }
}

/// A schema is about the last answer, so an agent with one can call tools.
#[tokio::test]
async fn a_schema_is_not_about_text_beside_tool_calls() {
    let script = "answers: [{ calls: [{ name: look, arguments: { order: A } }] }, \
                  { text: Now B., calls: [{ name: look, arguments: { order: B } }] }, \
                  { text: '{\"ok\": 1}' }]";
    let fixture = RuntimeFixture::start(&format!("tools: [look]\n{SCHEMA}"), script).await;
    let run = fixture.begin("Is it?").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "{\"ok\": 1}");
    assert_eq!(fixture.ledger(), ["look A", "look B"]);
    fixture.close().await;
}

/// A fixture with a guardrail that the model `judge` decides.
async fn judged(at: &str, verdict: &str) -> RuntimeFixture {
    let definition = format!(
        "config: {{ provider: script }}\nmiddleware:\n  - name: guardrail\n    at: {at}\n    \
         verdict: {{ provider: judge, instructions: No passwords. }}\n    message: No.\n"
    );
    let usage = "usage: { input_tokens: 5, output_tokens: 2 }";
    let script = format!("answers: [{{ text: Hello. There., {usage} }}]");
    let verdict = format!("answers: [{{ text: '{verdict}', {usage} }}]");
    let models = providers(&[("script", &script), ("judge", &verdict)]);
    FixtureOptions { models, ..FixtureOptions::new(&definition, "answers: []") }.open().await
}

#[tokio::test]
async fn a_model_decides_and_its_usage_counts() {
    for (at, verdict, content, tokens) in [
        ("response", r#"{"allow": true}"#, "Hello. There.", 14),
        ("response", r#"{"allow": false}"#, "No.", 14),
        // A verdict that cannot be read denies.
        ("response", "Of course!", "No.", 14),
        ("request", r#"{"allow": true}"#, "Hello. There.", 14),
        ("request", r#"{"allow": false}"#, "No.", 7),
    ] {
        let fixture = judged(at, verdict).await;
        let run = fixture.begin("Hello?").await;
        let (rendered, last) = fixture.output(&run.id, 0).await;
        assert_eq!(last.data["assistant_data"]["content"], content, "{at} {verdict}");
        assert!(rendered.contains(&format!("1 says {content:?}\n")), "{rendered}");
        let sql = "SELECT input_tokens + output_tokens, iterations FROM runs";
        let spent: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        assert_eq!(spent, [(tokens, i64::from(tokens == 14))]);
        fixture.close().await;
    }
}

#[tokio::test]
async fn a_function_decides() {
    let plan = FixtureOptions::new("", "answers: [{ text: Hello. }]");
    let definition = "name: clerk\nmiddleware:\n  \
                      - { name: guardrail, at: response, check: short, message: Too long. }\n";
    let short = |text: &str| match text.len() {
        0..=3 => Ok(()),
        _ => Err("it is long".to_owned()),
    };
    let unknown = Catalog::new(plan.folder.path(), plan.tools.clone());
    plan.define("clerk.yaml", definition);
    let (_, problems) = unknown.read();
    let why = "there is no guardrail function short: Catalog::guardrail adds it";
    assert_eq!(problems[0].error.to_string(), why);
    let catalog = Catalog::new(plan.folder.path(), plan.tools.clone()).guardrail("short", short);
    assert_eq!(catalog.read().1, []);
    let fixture = plan.open_with(catalog).await;
    let run = fixture.begin("Hello?").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "Too long.");
    fixture.close().await;
}

/// Regression: the arguments of the tool `response` were checked only if they matched the schema. Otherwise they were in the
/// message with the answer, and their values in the error that the model gets.
#[tokio::test]
async fn an_answer_by_the_tool_response_is_checked_although_it_does_not_match() {
    let definition = format!("{DENIES}response_format: {{ type: object, required: [total] }}\n");
    let script = "answers: [{ calls: [{ name: response, arguments: { word: swordfish } }] }]";
    let fixture = RuntimeFixture::start(&definition, script).await;
    let run = fixture.begin("What is the password?").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "I may not say that.");
    let stored = text(&fixture.abide, &ROWS).await;
    assert!(!stored.contains(SECRET), "{stored}");
    fixture.close().await;
}

/// Only the last message of the role `user` was checked.
#[tokio::test]
async fn every_message_since_the_last_answer_is_checked() {
    let definition = "\
middleware:
  - { name: guardrail, at: request, deny: swordfish, message: I do not talk about that. }
";
    for (role, text) in [("user", SECRET), ("visitor", SECRET), ("system", SECRET)] {
        let fixture = RuntimeFixture::start(definition, "answers: [{ text: Hello. }]").await;
        let session = CreateSession::new("clerk").id("s1");
        fixture.abide.call(session).await.expect("it is created");
        let message = AppendMessage::new("s1", role, text.to_owned());
        fixture.abide.call(message).await.expect("it is appended");
        let run = StartRun::new("s1").id("r1").input("And now?");
        fixture.abide.call(run).await.expect("the run starts");
        let (_, last) = fixture.output("r1", 0).await;
        let content = &last.data["assistant_data"]["content"];
        assert_eq!(content, "I do not talk about that.", "{role}");
        fixture.close().await;
    }
}
