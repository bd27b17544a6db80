//! Text that a request guardrail has denied is in no request of any purpose.
//!
//! Regression: the conversation left the text out, and the search of the memory sent it to the embedding model before the
//! guardrail was asked; a forged answer kept it; and messages of kinds that models do not see, and guardrails do not check,
//! reached the summary and the remote agent.

use std::sync::{Arc, Mutex, PoisonError};

use abide_client::arguments::{AppendMessage, StartRun};
use abide_models::{
    EmbeddingModel, EmbeddingRequest, Embeddings, ModelCall, ModelError, ModelEvent, ModelMessage,
    ModelProvider, ModelRequest, ModelResponse, ModelStream, RequestPurpose, Stop, Usage,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use serde_json::{Value, json};

use crate::fixture::{FixtureOptions, RuntimeFixture, answering, define};
use crate::remote_agents::RemoteAgent;

const SECRET: &str = "swordfish";

/// What has left, with its purpose.
type Sent = Arc<Mutex<Vec<(&'static str, String)>>>;

/// A model that takes one step after another after the last message of a user, and then says that it is done. It calls only
/// tools that it has.
#[derive(Clone)]
struct Recorder {
    steps: Vec<(String, Vec<(&'static str, Value)>)>,
    sent: Sent,
}

impl Recorder {
    fn note(&self, purpose: &'static str, text: String) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).push((purpose, text));
    }

    /// The texts that have left for a purpose.
    fn sent(&self, purpose: &str) -> Vec<String> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.iter().filter(|(of, _)| *of == purpose).map(|(_, text)| text.clone()).collect()
    }

    fn answer(&self, request: &ModelRequest) -> (String, Vec<ModelCall>) {
        let since = request
            .messages
            .iter()
            .rposition(|message| matches!(message, ModelMessage::User { .. }))
            .unwrap_or_default();
        let answers = request.messages[since..].iter();
        let answers =
            answers.filter(|message| matches!(message, ModelMessage::Assistant { .. })).count();
        let Some((text, calls)) = self.steps.get(request.omitted_answers + answers) else {
            return ("Done.".to_owned(), Vec::new());
        };
        let calls = calls
            .iter()
            .filter(|(name, _)| request.tools.iter().any(|tool| tool.name == *name))
            .map(|(name, arguments)| {
                let arguments = arguments.to_string();
                ModelCall { id: "c".to_owned(), name: (*name).to_owned(), arguments }
            });
        (text.clone(), calls.collect())
    }
}

impl ModelProvider for Recorder {
    fn id(&self) -> &str {
        "recorder"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let system = request.system.as_deref().unwrap_or_default();
        let (purpose, (text, calls)) = if request.purpose == RequestPurpose::Summary {
            ("summary", (json!({"raw_summary": "They talked."}).to_string(), Vec::new()))
        } else if system.starts_with("You decide whether a text is allowed.") {
            ("verdict", (json!({"allow": true}).to_string(), Vec::new()))
        } else {
            ("answer", self.answer(&request))
        };
        self.note(purpose, json!(request).to_string());
        let answer = ModelResponse {
            text,
            reasoning: None,
            stop: if calls.is_empty() { Stop::End } else { Stop::ToolUse },
            calls,
            usage: Usage::default(),
            cost_micros: None,
            provider: "recorder".to_owned(),
            model: request.model,
            carry: None,
        };
        stream::iter([Ok(ModelEvent::Answer(answer))]).boxed()
    }

    fn embed(
        &self,
        request: EmbeddingRequest,
    ) -> BoxFuture<'static, Result<Embeddings, ModelError>> {
        let vectors = request.texts.iter().map(|_| vec![1.0]).collect();
        self.note("embedding", json!(request.texts).to_string());
        async move { Ok(Embeddings { vectors, input_tokens: None }) }.boxed()
    }
}

/// A way in which text leaves.
struct Case {
    /// `Purpose` in `agent/src/model/outgoing.rs`, or a variant of it.
    name: &'static str,
    /// The purpose as the recorder names it, and how often it must occur.
    occurs: (&'static str, usize),
    definition: String,
    steps: Vec<(String, Vec<(&'static str, Value)>)>,
}

const DENIES: &str = "\
middleware:
  - { name: guardrail, at: request, deny: swordfish, message: I do not talk about that. }
";

const JUDGED: &str = "  - { name: guardrail, at: request, message: No., \
                      verdict: { provider: recorder, instructions: Be polite. } }\n";

const NO_MEMORY: &str = "profile: { base: balanced, memory: { enabled: false } }\n";

const MEMORY: &str = "profile: { base: balanced, memory: { read: semantic } }\n";

const SMALL: &str = "tools: [look]
limits: { tool_calls: 100 }
profile:
  base: balanced
  context: { window_tokens: 6000, compact_above_tokens: 3000, compact_to_tokens: 1000, summary_token_limit: 200, \
chunk_tokens: 2000 }
  memory: { enabled: false }
  watchdog: { enabled: false }
";

fn cases() -> Vec<Case> {
    let say = |text: &str| (text.to_owned(), Vec::new());
    let call = |name: &'static str, arguments: Value| (String::new(), vec![(name, arguments)]);
    let long = ("word ".repeat(150), vec![("look", json!({"order": "A"}))]);
    let case = |name, occurs, definition: &str, steps| Case {
        name,
        occurs,
        definition: format!("{definition}{DENIES}"),
        steps,
    };
    let schema = "response_format: { type: object, required: [ok] }\n";
    let judged = Case {
        name: "Verdict",
        occurs: ("verdict", 1),
        definition: format!("{NO_MEMORY}{DENIES}{JUDGED}"),
        steps: Vec::new(),
    };
    vec![
        case("Answer", ("answer", 1), NO_MEMORY, Vec::new()),
        case("Answer, again", ("answer", 2), &format!("{NO_MEMORY}{schema}"), vec![say("no")]),
        case("Summary", ("summary", 1), SMALL, vec![long; 18]),
        judged,
        case("Recall", ("embedding", 1), MEMORY, Vec::new()),
        case(
            "Search",
            ("embedding", 2),
            MEMORY,
            vec![call("search_memories", json!({"query": "what was said"}))],
        ),
        case(
            "Answer, of a subagent",
            ("answer", 3),
            &format!("{NO_MEMORY}subagents: [helper]\n"),
            vec![call("task", json!({"agent": "helper", "task": "Help."}))],
        ),
        case(
            "Answer, after a handoff",
            ("answer", 2),
            &format!("{NO_MEMORY}subagents: [other]\n"),
            vec![call("handoff_to_other", json!({}))],
        ),
    ]
}

/// Starts the agent, lets its guardrail deny a message, and stores what it must not see.
async fn denied(definition: &str, recorder: &Recorder) -> RuntimeFixture {
    let mut models = answering(recorder.clone());
    let embedding = EmbeddingModel { provider: "recorder".to_owned(), model: "vectors".to_owned() };
    models.set_embedding(embedding).expect("the provider exists");
    let options = FixtureOptions { models, ..FixtureOptions::new(definition, "answers: []") };
    options.define("helper.yaml", &format!("mode: subagent\n{NO_MEMORY}"));
    options.define("other.yaml", &format!("mode: subagent\nas_handoff: {{}}\n{NO_MEMORY}"));
    let fixture = options.open().await;
    assert_eq!(*fixture.problems.borrow(), [], "{definition}");
    let run = fixture.begin("The password is swordfish.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "I do not talk about that.");
    assert_eq!(*recorder.sent.lock().expect("no test panics with it"), [], "nothing leaves");
    // A message for other programs: no model reads it, so no guardrail checks it.
    let note = AppendMessage::new("s1", "user", SECRET.to_owned()).kind("note");
    fixture.abide.call(note).await.expect("it is appended");
    fixture
}

/// Runs the session's agent again.
async fn go_on(fixture: &RuntimeFixture) {
    let run = StartRun::new("s1").id("r2").input("Go on.");
    fixture.abide.call(run).await.expect("the run starts");
    fixture.output("r2", 0).await;
}

#[tokio::test]
async fn denied_text_is_in_no_request_of_any_purpose() {
    for case in cases() {
        let recorder = Recorder { steps: case.steps, sent: Sent::default() };
        let fixture = denied(&case.definition, &recorder).await;
        go_on(&fixture).await;
        let (purpose, least) = case.occurs;
        let sent = recorder.sent(purpose);
        assert!(sent.len() >= least, "{}: {sent:?}", case.name);
        let all = recorder.sent.lock().expect("no test panics with it").clone();
        let with_secret = all.iter().find(|(_, text)| text.contains(SECRET));
        assert_eq!(with_secret, None, "{}", case.name);
        fixture.close().await;
    }
}

/// An answer that a caller has written does not make older messages checked, and its own text is removed as well.
#[tokio::test]
async fn denied_text_around_a_forged_answer_is_in_no_request() {
    let long = ("word ".repeat(150), vec![("look", json!({"order": "A"}))]);
    let recorder = Recorder { steps: vec![long; 18], sent: Sent::default() };
    let fixture = denied(&format!("{SMALL}{DENIES}"), &recorder).await;
    for (role, text) in [("user", "It is swordfish."), ("assistant", "Yes, swordfish.")] {
        let message = AppendMessage::new("s1", role, text.to_owned());
        fixture.abide.call(message).await.expect("it is appended");
    }
    go_on(&fixture).await;
    let run = StartRun::new("s1").id("r3").input("And now?");
    fixture.abide.call(run).await.expect("the run starts");
    fixture.output("r3", 0).await;
    assert!(!recorder.sent("summary").is_empty());
    let all = recorder.sent.lock().expect("no test panics with it").clone();
    assert_eq!(all.iter().find(|(_, text)| text.contains(SECRET)), None);
    fixture.close().await;
}

/// The session's agent becomes a program, or a remote agent: neither gets what was denied before.
#[tokio::test]
async fn denied_text_is_in_no_prompt_of_a_program_or_remote_agent() {
    let remote = RemoteAgent::start(true).await;
    let address = &remote.address;
    let a2a = format!("a2a: {{ url: 'http://{address}', allow_private: ['{address}'] }}\n");
    for purpose in ["Program", "RemoteTask"] {
        let recorder = Recorder { steps: Vec::new(), sent: Sent::default() };
        let fixture = denied(&format!("{NO_MEMORY}{DENIES}"), &recorder).await;
        let folder = fixture.folder.path();
        let prompt = folder.join("prompt");
        let cli = format!(
            "cli: {{ command: [sh, -c, 'cat > {}; echo \"{{}}\"'], terminal: exit_zero }}\n",
            prompt.display()
        );
        let definition = if purpose == "Program" { &cli } else { &a2a };
        define(folder, "clerk.yaml", &format!("name: clerk\n{definition}"));
        fixture.until("SELECT name FROM agents WHERE name = 'clerk' AND revision = 2").await;
        go_on(&fixture).await;
        let sent = match purpose {
            "Program" => std::fs::read_to_string(&prompt).expect("the program has a prompt"),
            _ => remote.messages().concat().join("\n"),
        };
        assert!(sent.contains("Go on.") && !sent.contains(SECRET), "{purpose}: {sent}");
        fixture.close().await;
    }
}
