//! Guardrails and redaction apply to summaries, which are answers of a model, too.
//!
//! Regression: a denied text in a summary was in `context_summaries`, in the streamed event, in the log, and in the facts
//! that other sessions read.

use std::sync::Arc;

use abide_agent::{AgentMiddleware, Catalog, MiddlewareContext};
use abide_client::Abide;
use abide_client::rows::Run;
use abide_models::{ModelProvider, ModelRequest, ModelResponse, ModelStream, Script};
use serde_json::{Value, json};

use crate::fixture::{FixtureOptions, RuntimeFixture, providers};

const SECRET: &str = "swordfish";

/// A small window, and a memory that keeps all facts of summaries.
const PROFILE: &str = "profile:
  base: balanced
  context: { window_tokens: 6000, compact_above_tokens: 3000, compact_to_tokens: 1000, summary_token_limit: 200, \
chunk_tokens: 2000 }
  memory: { write: always }
  watchdog: { enabled: false }
config: { provider: script }
";

/// A summary with a text in each of its fields.
fn summary_with(text: &str) -> Value {
    json!({"stable_facts": [
            {"key": format!("key {text}"), "value": "It is known.", "confidence": 0.9},
            {"key": "word", "value": format!("It is {text}."), "confidence": 0.9}],
        "active_goals": [format!("Ask {text}.")], "open_questions": [format!("Is it {text}?")],
        "discarded_obsolete": [format!("Not {text}.")], "raw_summary": format!("They said {text}.")})
}

/// A run that was compacted, whose model writes a text into each summary.
struct Compacted {
    fixture: RuntimeFixture,
    run: Run,
    /// The origins of the summaries.
    origins: Vec<String>,
    /// All rows, events and the log, as one text.
    stored: String,
}

/// Shortens the name of a person, and denies texts with the word.
struct Names;

impl AgentMiddleware for Names {
    fn after_model(
        &self,
        _: &MiddlewareContext<'_>,
        answer: &mut ModelResponse,
    ) -> Result<(), String> {
        answer.text = answer.text.replace("Bob", "B.");
        if answer.text.contains(SECRET) { Err("denied".to_owned()) } else { Ok(()) }
    }
}

/// A model that denies texts with the word. An answer takes 7 tokens.
struct Judge;

impl ModelProvider for Judge {
    fn id(&self) -> &str {
        "judge"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let allow = !json!(request.messages).to_string().contains(SECRET);
        let script = format!(
            "answers: [{{ text: '{}', usage: {{ input_tokens: 5, output_tokens: 2 }} }}]",
            json!({"allow": allow})
        );
        Script::from_text(&script).expect("the script is valid").stream(request)
    }
}

/// Runs an agent with this middleware. Its model writes `text` into summaries.
async fn compacted(middleware: &str, text: &str) -> Compacted {
    let answer = format!(
        "{{ text: \"{}\", calls: [{{ name: look, arguments: {{ order: A }} }}] }}",
        "word ".repeat(150)
    );
    let answers = vec![answer; 18].join(", ");
    let script =
        format!("summary: '{}'\nanswers: [{answers}, {{ text: Done. }}]", summary_with(text));
    let definition = format!("{PROFILE}tools: [look]\nmiddleware:\n  - {middleware}\n");
    let mut models = providers(&[("script", &script)]);
    models.add(Arc::new(Judge), vec!["judge-model".to_owned()], 0).expect("the id is unique");
    let plan = FixtureOptions { models, ..FixtureOptions::new(&definition, "answers: []") };
    let catalog = Catalog::new(plan.folder.path(), plan.tools.clone());
    let catalog = catalog
        .guardrail("no_word", |text| {
            if text.contains(SECRET) { Err("it has the word".to_owned()) } else { Ok(()) }
        })
        .middleware("names", Names);
    let fixture = plan.open_with(catalog).await;
    assert_eq!(*fixture.problems.borrow(), [], "{middleware}");
    let run = fixture.begin("Let us plan.").await;
    let (rendered, _) = fixture.output(&run.id, 0).await;
    let runs: Vec<Run> = fixture.abide.sql("SELECT * FROM runs").fetch().await.expect("read");
    let sql = "SELECT origin FROM context_summaries ORDER BY number";
    let origins: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("they are read");
    assert!(origins.len() > 1, "{middleware}: {rendered}");
    let stored = format!("{rendered}{}", stored(&fixture.abide).await);
    let run = runs.into_iter().next().expect("there is a run");
    let origins = origins.into_iter().map(|(origin,)| origin).collect();
    Compacted { fixture, run, origins, stored }
}

/// Where a summary could leave.
async fn stored(abide: &Abide) -> String {
    let mut text = String::new();
    for sql in [
        "SELECT summary || coalesce(repaired, '') FROM context_summaries",
        "SELECT key || ': ' || value FROM memories",
        "SELECT data FROM run_events",
        "SELECT content FROM agent_state",
        // The definition has the pattern of its guardrail.
        "SELECT arguments FROM events WHERE reducer <> 'register_agent'",
        "SELECT outcome FROM events",
    ] {
        let rows: Vec<(Option<String>,)> = abide.sql(sql).fetch().await.expect("it can be read");
        text.extend(rows.into_iter().flat_map(|(cell,)| cell));
    }
    text
}

const JUDGED: &str = "{ name: guardrail, at: response, message: No., \
                      verdict: { provider: judge, instructions: No passwords. } }";

#[tokio::test]
async fn a_denied_summary_is_replaced_and_leaves_nowhere() {
    for middleware in [
        "{ name: guardrail, at: response, deny: swordfish, message: No. }",
        "{ name: guardrail, at: response, check: no_word, message: No. }",
        JUDGED,
        "names",
    ] {
        let Compacted { fixture, origins, stored, .. } = compacted(middleware, SECRET).await;
        assert!(origins.iter().all(|origin| origin == "fallback"), "{middleware}: {origins:?}");
        assert!(stored.contains("agent: word word"), "{middleware}: {stored}");
        assert!(!stored.contains(SECRET), "{middleware}: {stored}");
        fixture.close().await;
    }
}

#[tokio::test]
async fn an_allowed_summary_is_the_models() {
    for middleware in [
        "{ name: guardrail, at: response, deny: swordfish, message: No. }",
        JUDGED,
        // A summary is not an answer with a format.
        "{ name: guardrail, at: response, schema: { type: string }, message: '\"\"' }",
    ] {
        let Compacted { fixture, run, origins, stored } = compacted(middleware, "tuna").await;
        assert!(origins.iter().all(|origin| origin == "model"), "{middleware}: {origins:?}");
        assert!(stored.contains("word: It is tuna."), "a fact is saved: {stored}");
        if middleware == JUDGED {
            // Each answer with a text and each summary has a verdict of 7 tokens.
            let verdicts = i64::try_from(19 + origins.len()).expect("it is small");
            assert_eq!(run.input_tokens + run.output_tokens, 7 * verdicts);
        }
        fixture.close().await;
    }
}

#[tokio::test]
async fn personal_data_in_a_summary_is_redacted() {
    for middleware in ["pii", "{ name: pii, at: [response] }"] {
        let Compacted { fixture, origins, stored, .. } =
            compacted(middleware, "bob@example.com").await;
        assert!(origins.iter().all(|origin| origin == "model"), "{origins:?}");
        assert!(!stored.contains("bob@"), "{middleware}: {stored}");
        for part in [
            r#""active_goals":["Ask [email]."]"#,
            r#""open_questions":["Is it [email]?"]"#,
            r#""discarded_obsolete":["Not [email]."]"#,
            r#""raw_summary":"They said [email].""#,
            "key [email]: It is known.",
            "word: It is [email].",
        ] {
            assert!(stored.contains(part), "{middleware}: {part} in {stored}");
        }
        fixture.close().await;
    }
}

#[tokio::test]
async fn middleware_in_rust_changes_a_summary() {
    let Compacted { fixture, origins, stored, .. } = compacted("names", "Bob").await;
    assert!(origins.iter().all(|origin| origin == "model"), "{origins:?}");
    assert!(!stored.contains("Bob") && stored.contains("word: It is B.."), "{stored}");
    fixture.close().await;
}
