//! A model that works for a given number of turns, and misbehaves on purpose if configured so. Its next answer depends only
//! on the request: the call that follows the last one that it sees. It records what each request looked like.

use std::sync::{Arc, Mutex, PoisonError};

use abide_models::{
    Completeness, ModelCall, ModelError, ModelErrorKind, ModelEvent, ModelMessage, ModelProvider,
    ModelRequest, ModelResponse, ModelStream, RequestPurpose, Stop, StructuredOutput,
    TokenEstimate, Usage,
};
use abide_tools::{Effect, Function, ToolContext, Tools};
use futures_util::StreamExt as _;
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// The model's answer to a request for a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Summaries {
    /// A summary with a fact for each part.
    Good,
    /// No answer at all.
    Fail,
    /// Text that is not a summary.
    Garbage,
    /// A summary that forgets everything and revives what is obsolete.
    Forgetful,
}

/// The model.
#[derive(Clone, Debug)]
pub(crate) struct Walker {
    /// The number of turns; then it answers.
    pub(crate) turns: usize,
    /// The number of calls in a turn.
    pub(crate) calls: usize,
    pub(crate) summaries: Summaries,
    /// Whether it fetches the first archived or cut result that it sees, again and again.
    pub(crate) fetches: bool,
    /// Input tokens that it reports, for each one estimated.
    pub(crate) reports: Option<f64>,
    pub(crate) seen: Arc<Mutex<Vec<ModelRequest>>>,
}

impl Walker {
    pub(crate) fn new(turns: usize) -> Walker {
        Walker {
            turns,
            calls: 1,
            summaries: Summaries::Good,
            fetches: false,
            reports: None,
            seen: Arc::default(),
        }
    }

    /// The requests so far.
    pub(crate) fn requests(&self, purpose: RequestPurpose) -> Vec<ModelRequest> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|request| request.purpose == purpose).cloned().collect()
    }

    fn summary(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let ModelMessage::User { text } = &request.messages[0] else { panic!("it is data") };
        let data: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        let mut summary = data["summary_so_far"].clone();
        let facts = summary["stable_facts"].as_array_mut().expect("a list");
        let number = facts.len() + 1;
        let text = match self.summaries {
            Summaries::Fail => {
                return Err(ModelError::new(ModelErrorKind::BadRequest, "no summaries"));
            }
            Summaries::Garbage => "I would rather not.".to_owned(),
            Summaries::Forgetful => {
                let revived = summary["discarded_obsolete"].clone();
                json!({"stable_facts": [{"key": format!("part {number}"), "value": "done",
                    "confidence": 0.9}], "active_goals": revived,
                    "discarded_obsolete": ["plan A"], "raw_summary": "Forgot."})
                .to_string()
            }
            Summaries::Good => {
                facts.push(json!({"key": format!("part {number}"), "value": "done",
                    "confidence": 0.9}));
                summary["raw_summary"] = json!(format!("{number} parts are done."));
                summary.to_string()
            }
        };
        Ok(self.response(request, text, Vec::new()))
    }

    fn answer(&self, request: &ModelRequest) -> ModelResponse {
        let turn = request.omitted_answers
            + request
                .messages
                .iter()
                .filter(|message| matches!(message, ModelMessage::Assistant { .. }))
                .count();
        if turn >= self.turns {
            return self.response(request, "It is done.".to_owned(), Vec::new());
        }
        let marker = request.messages.iter().find_map(|message| match message {
            ModelMessage::Tool { content, .. } => {
                let marker = content.split_once("executionId:'");
                let marker = marker.and_then(|(_, rest)| rest.split_once('\''));
                marker.or_else(|| {
                    content
                        .split_once(" bytes of the result of call ")
                        .and_then(|(_, rest)| rest.split_once(' '))
                })
            }
            _ => None,
        });
        if let Some((id, _)) = marker.filter(|_| self.fetches) {
            let arguments = json!({"id": id, "length": 300}).to_string();
            let call = ModelCall {
                id: format!("fetch_{turn}"),
                name: "get_tool_response".to_owned(),
                arguments,
            };
            return self.response(request, String::new(), vec![call]);
        }
        let calls = (0..self.calls).map(|at| ModelCall {
            id: format!("call_{turn}_{at}"),
            name: "read".to_owned(),
            arguments: json!({"page": turn * self.calls + at}).to_string(),
        });
        self.response(request, format!("Page {turn}."), calls.collect())
    }

    fn response(
        &self,
        request: &ModelRequest,
        text: String,
        calls: Vec<ModelCall>,
    ) -> ModelResponse {
        let estimated = TokenEstimate::for_model(&request.model).request(request);
        let reported = self.reports.map(|times| (estimated as f64 * times) as u64);
        ModelResponse {
            text,
            reasoning: None,
            stop: if calls.is_empty() { Stop::End } else { Stop::ToolUse },
            calls,
            usage: Usage {
                input_tokens: reported,
                output_tokens: reported.map(|_| 10),
                completeness: match reported {
                    Some(_) => Completeness::Complete,
                    None => Completeness::Unavailable,
                },
                ..Usage::default()
            },
            cost_micros: None,
            provider: "walker".to_owned(),
            model: request.model.clone(),
            carry: None,
        }
    }
}

impl ModelProvider for Walker {
    fn id(&self) -> &str {
        "walker"
    }

    fn structured_output(&self) -> StructuredOutput {
        StructuredOutput::Native
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let answer = match request.purpose {
            RequestPurpose::Summary => self.summary(&request),
            RequestPurpose::Answer => Ok(self.answer(&request)),
        };
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        stream::iter([answer.map(ModelEvent::Answer)]).boxed()
    }
}

/// A provider that records the requests to another one.
#[derive(Clone)]
pub(crate) struct Watched {
    inner: Arc<dyn ModelProvider>,
    seen: Arc<Mutex<Vec<ModelRequest>>>,
}

impl Watched {
    pub(crate) fn new(inner: impl ModelProvider) -> Watched {
        Watched { inner: Arc::new(inner), seen: Arc::default() }
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<ModelRequest> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ModelProvider for Watched {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        self.inner.stream(request)
    }
}

/// The arguments of `read`.
#[derive(Deserialize, JsonSchema)]
struct Page {
    /// The number of the page.
    page: usize,
}

/// Adds the tool `read`: a page has this many characters.
pub(crate) fn add_read(tools: &Tools, chars: usize) {
    let read = move |page: Page, _: ToolContext| async move {
        let line = format!("line of page {}. ", page.page);
        Ok::<_, String>(line.repeat(chars / line.len() + 1)[..chars].to_owned())
    };
    let function = Function::new("read", "Reads a page.", read).effect(Effect::ReadOnly);
    tools.add(function).expect("the tool is valid");
}
