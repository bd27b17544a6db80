//! A model that answers as recorded, summarises, and records the size of each request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use abide_models::{
    Conversation, ModelEvent, ModelMessage, ModelProvider, ModelRequest, ModelResponse,
    ModelStream, Replay, RequestPurpose, Stop, TokenEstimate, Usage,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenRequest {
    pub(crate) purpose: RequestPurpose,
    /// Its size in tokens.
    pub(crate) tokens: u64,
    /// The size of what is around the messages: instructions and tools.
    pub(crate) around: u64,
    /// Whether it has the first task; always for a summary.
    pub(crate) has_task: bool,
}

/// The model. Its models are the ids of the conversations.
#[derive(Clone, Debug)]
pub(crate) struct RecordedModel {
    replay: Replay,
    /// The first task of each conversation.
    tasks: Arc<HashMap<String, String>>,
    seen: Arc<Mutex<HashMap<String, Vec<SeenRequest>>>>,
}

impl RecordedModel {
    pub(crate) fn new(conversations: Vec<Conversation>, tasks: HashMap<String, String>) -> Self {
        let replay = Replay::new("replay", conversations);
        RecordedModel { replay, tasks: Arc::new(tasks), seen: Arc::default() }
    }

    /// The requests of a conversation, in order.
    pub(crate) fn seen(&self, id: &str) -> Vec<SeenRequest> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(id).cloned().unwrap_or_default()
    }

    fn record(&self, request: &ModelRequest) {
        let estimate = TokenEstimate::for_model(&request.model);
        let task = self.tasks.get(&request.model).map(String::as_str);
        let is_summary = request.purpose == RequestPurpose::Summary;
        let seen = SeenRequest {
            purpose: request.purpose,
            tokens: estimate.request(request),
            around: estimate.around(request),
            has_task: is_summary
                || request.messages.iter().any(|message| match message {
                    ModelMessage::User { text } => Some(text.as_str()) == task,
                    _ => false,
                }),
        };
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(request.model.clone()).or_default().push(seen);
    }
}

impl ModelProvider for RecordedModel {
    fn id(&self) -> &str {
        "replay"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        self.record(&request);
        match request.purpose {
            RequestPurpose::Summary => {
                stream::iter([Ok(ModelEvent::Answer(summary(&request)))]).boxed()
            }
            RequestPurpose::Answer => self.replay.stream(request),
        }
    }
}

/// Facts of a summary, and characters of its text, as a model might write.
const FACTS: usize = 12;
const TEXT_CHARS: usize = 1_200;

/// A summary: a fact for each of the last parts, and the beginnings of the messages.
fn summary(request: &ModelRequest) -> ModelResponse {
    let text = match request.messages.first() {
        Some(ModelMessage::User { text }) => text.as_str(),
        _ => "",
    };
    let data: Value = serde_json::from_str(text).unwrap_or_default();
    let mut summary = data["summary_so_far"].clone();
    let lines = data["conversation"].as_array().into_iter().flatten();
    let beginnings: Vec<String> =
        lines.filter_map(Value::as_str).map(|line| line.chars().take(100).collect()).collect();
    if let Some(facts) = summary["stable_facts"].as_array_mut() {
        let value: String = beginnings.first().cloned().unwrap_or_default();
        // Facts of little confidence may be forgotten.
        facts.push(json!({"key": format!("part {}", facts.len()), "value": value,
            "confidence": 0.5}));
        let old = facts.len().saturating_sub(FACTS);
        facts.drain(..old);
    }
    let raw: String = beginnings.join(" ").chars().take(TEXT_CHARS).collect();
    summary["raw_summary"] = json!(raw);
    ModelResponse {
        text: summary.to_string(),
        reasoning: None,
        stop: Stop::End,
        calls: Vec::new(),
        usage: Usage::default(),
        cost_micros: None,
        provider: "replay".to_owned(),
        model: request.model.clone(),
        carry: None,
    }
}
