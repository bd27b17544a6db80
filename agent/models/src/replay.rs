//! A provider that answers from recorded conversations.
//!
//! The next answer depends only on the request. A run that is killed and resumed therefore continues in the
//! recording, and any number of sessions can use it concurrently:
//!
//! - **By content** (the model is not the name of a recording): a recording whose first messages equal those of the
//!   request gives its next answer. Texts, results, call ids and argument texts must be equal, and the system
//!   prompt if one was recorded; such a recording takes precedence over those without. Tool names on results,
//!   errors and reasoning are ignored. If two recordings continue differently, or none continues, the error is
//!   `no_recording` and shows where the nearest one differs.
//! - **By name** (the model is the id of a recording): the answer whose index is the number of answers in the
//!   request. The rest of the request is ignored, so tools may give other results than recorded. With the suffix
//!   `@n`, it is the n-th answer, regardless of the request.
//!
//! To run a whole recording as an agent, a driver reads [`Conversation::messages`]: it sends the recorded user
//! messages, and its tools return the results that [`Conversation::results`] matches with their calls, in the order
//! of the calls. A call without a recorded result ends the run.
//!
//! Nothing is sent over the network. Recordings have no token counts, so none are reported.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;

use crate::recording::{is_answer, joined};
use crate::{
    Conversation, ModelError, ModelErrorKind, ModelEvent, ModelMessage, ModelProvider,
    ModelRequest, ModelResponse, ModelStream, RequestPurpose, Stop, Usage,
};

/// The speed of the output; the default is no delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaySpeed {
    /// Delay before the first chunk.
    pub first: Duration,
    /// Delay before each later chunk.
    pub token: Duration,
}

/// A provider that answers from recorded conversations.
#[derive(Clone, Debug)]
pub struct Replay {
    id: String,
    speed: ReplaySpeed,
    recorded: Arc<Recorded>,
}

#[derive(Debug)]
struct Recorded {
    conversations: Vec<Conversation>,
    by_id: HashMap<String, usize>,
    /// Index: for each hash of leading messages, the recordings that start with them.
    by_beginning: HashMap<u64, Vec<usize>>,
}

impl Replay {
    /// A provider with these recordings.
    #[must_use]
    pub fn new(id: impl Into<String>, conversations: Vec<Conversation>) -> Self {
        let mut by_id = HashMap::new();
        let mut by_beginning: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, conversation) in conversations.iter().enumerate() {
            by_id.entry(conversation.id.clone()).or_insert(at);
            for beginning in beginnings(&conversation.messages) {
                by_beginning.entry(beginning).or_default().push(at);
            }
        }
        let recorded = Arc::new(Recorded { conversations, by_id, by_beginning });
        Self { id: id.into(), speed: ReplaySpeed::default(), recorded }
    }

    /// Sets the speed.
    #[must_use]
    pub fn at_speed(self, speed: ReplaySpeed) -> Self {
        Self { speed, ..self }
    }

    /// The recordings, in order.
    #[must_use]
    pub fn conversations(&self) -> &[Conversation] {
        &self.recorded.conversations
    }
}

impl ModelProvider for Replay {
    fn id(&self) -> &str {
        &self.id
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let answer = self.recorded.next(&request);
        tell(answer.map(|answer| ModelResponse { provider: self.id.clone(), ..answer }), self.speed)
    }
}

impl Recorded {
    fn next(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        if request.purpose == RequestPurpose::Summary {
            let message = "recordings have no summaries";
            return Err(ModelError::new(ModelErrorKind::NoRecording, message));
        }
        match self.find_named(&request.model) {
            Some((conversation, Some(position))) => self.answer(conversation, position),
            Some((conversation, None)) => {
                let seen = request.messages.iter().filter(|message| is_answer(message));
                self.answer(conversation, request.omitted_answers + seen.count())
            }
            None => self.answer_to(request),
        }
    }

    /// The recording that a model's name refers to, and the number of the answer if the name has one.
    fn find_named(&self, model: &str) -> Option<(&Conversation, Option<usize>)> {
        if let Some(conversation) = self.conversation(model) {
            return Some((conversation, None));
        }
        let (id, number) = model.rsplit_once('@')?;
        let number: usize = number.parse().ok()?;
        Some((self.conversation(id)?, Some(number.checked_sub(1)?)))
    }

    fn conversation(&self, id: &str) -> Option<&Conversation> {
        self.by_id.get(id).map(|at| &self.conversations[*at])
    }

    /// The answer of a recording after the given number of answers.
    fn answer(
        &self,
        conversation: &Conversation,
        position: usize,
    ) -> Result<ModelResponse, ModelError> {
        let answers = conversation.messages.iter().filter(|message| is_answer(message));
        let Some(message) = answers.into_iter().nth(position) else {
            let id = &conversation.id;
            let holds = conversation.answers();
            let wanted = position + 1;
            let message =
                format!("recording `{id}` has {holds} answers, but number {wanted} is requested");
            return Err(no_recording(message));
        };
        Ok(recorded_answer(conversation, message))
    }

    /// The answer of the recording that starts like the request.
    fn answer_to(&self, request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        let (system, messages) = parted(request);
        let beginning = beginnings(messages).last();
        let begin_so = beginning.and_then(|hash| self.by_beginning.get(&hash));
        let candidates = begin_so.into_iter().flatten().filter(|at| {
            let conversation = &self.conversations[**at];
            let goes_on = conversation.messages.get(messages.len()).is_some_and(is_answer);
            goes_on && begins_with(conversation, system.as_deref(), messages)
        });
        let mut candidates: Vec<&Conversation> =
            candidates.map(|at| &self.conversations[*at]).collect();
        // A matching system prompt is more specific than none.
        if candidates.iter().any(|conversation| conversation.system.is_some()) {
            candidates.retain(|conversation| conversation.system.is_some());
        }
        let Some(first) = candidates.first() else {
            return Err(no_recording(self.nearest(system.as_deref(), messages)));
        };
        let next = &first.messages[messages.len()];
        let other = candidates.iter().find(|other| !same(&other.messages[messages.len()], next));
        match other {
            None => Ok(recorded_answer(first, next)),
            Some(other) => Err(no_recording(format!(
                "recordings `{}` and `{}` continue differently from here: name one as the model",
                first.id, other.id
            ))),
        }
    }

    /// Describes the first difference to the recording with the longest common prefix.
    fn nearest(&self, system: Option<&str>, messages: &[ModelMessage]) -> String {
        let hashes: Vec<u64> = beginnings(messages).collect();
        let agreed = (0..hashes.len()).rev().find_map(|agreed| {
            let begin_so = self.by_beginning.get(&hashes[agreed])?;
            Some((agreed, &self.conversations[*begin_so.first()?]))
        });
        let (agreed, conversation) = match (agreed, messages.first()) {
            (Some(nearest), None) => nearest,
            (Some(nearest @ (1.., _)), _) => nearest,
            (_, first) => {
                let first = first.map_or("nothing".to_owned(), rendered);
                return format!("no recording starts with {}", excerpt(&first, 0));
            }
        };
        let id = &conversation.id;
        let number = agreed + 1;
        match (messages.get(agreed), conversation.messages.get(agreed)) {
            (None, Some(next)) if is_answer(next) => {
                let ours = system.unwrap_or("");
                let theirs = conversation.system.as_deref();
                let (ours, theirs) = excerpts_around_difference(ours, theirs.unwrap_or(""));
                format!("the system prompt is {ours}, but {theirs} in recording `{id}`")
            }
            (None, Some(next)) => format!(
                "recording `{id}` has no answer here; its message {number} is {}",
                excerpt(&rendered(next), 0)
            ),
            (None, None) => format!("recording `{id}` ends here"),
            (Some(ours), None) => format!(
                "message {number} is {}, but recording `{id}` ends before it",
                excerpt(&rendered(ours), 0)
            ),
            (Some(ours), Some(theirs)) => {
                let (ours, theirs) = excerpts_around_difference(&rendered(ours), &rendered(theirs));
                format!("message {number} is {ours}, but {theirs} in recording `{id}`")
            }
        }
    }
}

/// The system prompt of a request, and the other messages.
fn parted(request: &ModelRequest) -> (Option<String>, &[ModelMessage]) {
    let mut system = request.system.clone();
    let mut messages = &request.messages[..];
    while let [ModelMessage::System { text }, rest @ ..] = messages {
        system = Some(joined(system, text.clone()));
        messages = rest;
    }
    (system, messages)
}

fn begins_with(
    conversation: &Conversation,
    system: Option<&str>,
    messages: &[ModelMessage],
) -> bool {
    let recorded = conversation.system.as_deref();
    let beginning = &conversation.messages[..messages.len()];
    (recorded.is_none() || recorded == system)
        && beginning.iter().zip(messages).all(|(recorded, message)| same(recorded, message))
}

/// The hashes of the first 0, 1, 2, … messages.
fn beginnings(messages: &[ModelMessage]) -> impl Iterator<Item = u64> {
    let mut hasher = DefaultHasher::new();
    let none = hasher.finish();
    let begun = messages.iter().map(move |message| {
        rendered(message).hash(&mut hasher);
        hasher.finish()
    });
    std::iter::once(none).chain(begun)
}

/// Whether two messages are equal in all relevant fields.
fn same(one: &ModelMessage, other: &ModelMessage) -> bool {
    rendered(one) == rendered(other)
}

/// The relevant fields of a message, as text.
fn rendered(message: &ModelMessage) -> String {
    match message {
        ModelMessage::System { text } => format!("system: {text}"),
        ModelMessage::User { text } => format!("user: {text}"),
        ModelMessage::Assistant { text, calls, .. } => {
            let calls = calls
                .iter()
                .map(|call| format!("\ncall {:?} {:?} {}", call.id, call.name, call.arguments));
            format!("assistant: {text}{}", calls.collect::<String>())
        }
        ModelMessage::Tool { call_id, content, .. } => format!("result of {call_id:?}: {content}"),
    }
}

/// Excerpts of both texts around their first difference.
fn excerpts_around_difference(one: &str, other: &str) -> (String, String) {
    let pairs = one.chars().zip(other.chars());
    let agreed = pairs.take_while(|(one, other)| one == other).count();
    let from = agreed.saturating_sub(20);
    (excerpt(one, from), excerpt(other, from))
}

/// An excerpt of a text, in quotes.
fn excerpt(text: &str, from: usize) -> String {
    const CHARS: usize = 60;
    let some = text.chars().skip(from).take(CHARS);
    let rest = text.chars().nth(from + CHARS);
    let some: String = some.collect();
    let before = if from > 0 { "…" } else { "" };
    let after = if rest.is_some() { "…" } else { "" };
    format!("`{before}{}{after}`", some.replace('\n', "\\n"))
}

fn recorded_answer(conversation: &Conversation, message: &ModelMessage) -> ModelResponse {
    let (text, calls) = match message.clone() {
        ModelMessage::Assistant { text, calls, .. } => (text, calls),
        _ => Default::default(),
    };
    ModelResponse {
        stop: if calls.is_empty() { Stop::End } else { Stop::ToolUse },
        text,
        reasoning: None,
        calls,
        usage: Usage::default(),
        provider: String::new(),
        model: conversation.model.clone().unwrap_or_else(|| conversation.id.clone()),
        carry: None,
        cost_micros: None,
    }
}

fn no_recording(message: String) -> ModelError {
    ModelError::new(ModelErrorKind::NoRecording, message)
}

/// Streams an answer in chunks: reasoning, text by words, calls, and the complete answer.
pub(crate) fn tell(answer: Result<ModelResponse, ModelError>, speed: ReplaySpeed) -> ModelStream {
    let events = match answer {
        Ok(answer) => events(answer),
        Err(error) => vec![Err(error)],
    };
    if speed == ReplaySpeed::default() {
        return stream::iter(events).boxed();
    }
    let paced = stream::iter(events).enumerate().then(move |(at, event)| async move {
        // The complete answer follows its last chunk without delay.
        let wait = match (at, &event) {
            (0, _) => speed.first,
            (_, Ok(ModelEvent::Answer(_))) => Duration::ZERO,
            _ => speed.token,
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        event
    });
    paced.boxed()
}

fn events(answer: ModelResponse) -> Vec<Result<ModelEvent, ModelError>> {
    let thoughts = answer.reasoning.as_deref().unwrap_or_default();
    let thoughts = thoughts.split_inclusive(' ').map(str::to_owned).map(ModelEvent::Reasoning);
    let words = answer.text.split_inclusive(' ').map(str::to_owned).map(ModelEvent::Text);
    let calls = answer.calls.iter().cloned().map(ModelEvent::Call);
    let mut events: Vec<_> = thoughts.chain(words).chain(calls).map(Ok).collect();
    events.push(Ok(ModelEvent::Answer(answer)));
    events
}
