//! A run as a task: its state, its artifacts, and the events of its stream. All of them depend on the events of the run
//! only, so all subscribers get the same.

use std::collections::HashSet;
use std::iter;

use abide_schema::{Caller, Code, Refusal};
use serde_json::{Value as JsonValue, json};

use super::error::A2aError;
use super::params::format_time;
use super::{legacy, legacy_http};
use crate::follow::Encoder;
use crate::start::{self, RunRow};
use crate::turn::{Change, ItemState, Turn, TurnEnd};

/// The ids of a task, as its client knows them.
#[derive(Clone, Debug)]
pub(super) struct TaskIds {
    pub(super) task: String,
    pub(super) context: String,
}

impl TaskIds {
    pub(super) fn for_run(by: &Caller, run: &RunRow) -> TaskIds {
        TaskIds {
            task: start::id_for_caller(by, &run.id).to_owned(),
            context: start::id_for_caller(by, &run.session_id).to_owned(),
        }
    }
}

pub(super) const SUBMITTED: &str = "TASK_STATE_SUBMITTED";
pub(super) const WORKING: &str = "TASK_STATE_WORKING";
pub(super) const INPUT_REQUIRED: &str = "TASK_STATE_INPUT_REQUIRED";
pub(super) const COMPLETED: &str = "TASK_STATE_COMPLETED";
pub(super) const FAILED: &str = "TASK_STATE_FAILED";
pub(super) const CANCELED: &str = "TASK_STATE_CANCELED";

/// Returns the state of a run after the events that were read.
fn task_state(turn: &Turn) -> &'static str {
    match &turn.end {
        Some(TurnEnd::Done) => COMPLETED,
        Some(TurnEnd::Failed { code, .. }) if code == "aborted" => CANCELED,
        Some(TurnEnd::Failed { .. }) => FAILED,
        _ if !turn.awaited_approvals().is_empty() => INPUT_REQUIRED,
        _ if turn.event > 1 => WORKING,
        _ => SUBMITTED,
    }
}

/// Returns the status of a run after the events that were read.
fn task_status(ids: &TaskIds, turn: &Turn, state: &str) -> JsonValue {
    let mut status = json!({"state": state, "timestamp": format_time(turn.event_at)});
    let parts = match (&turn.end, &turn.waits) {
        (Some(TurnEnd::Failed { code, message }), _) => {
            vec![json!({"text": format!("{message} ({code})")})]
        }
        (_, Some(wait)) => match approval_questions(turn) {
            parts if parts.is_empty() => {
                let text = if wait.handoff.is_some() || !wait.unsettled.is_empty() {
                    wait.message()
                } else {
                    format!("the task waits for: {}", wait.reason)
                };
                let data =
                    wait.handoff.as_ref().map(|it| json!({"data": {"handoff": it.to_json()}}));
                iter::once(json!({"text": text})).chain(data).collect()
            }
            parts => parts,
        },
        _ => return status,
    };
    let id = format!("{}.{}", ids.task, turn.event);
    status["message"] = json!({"messageId": id, "role": "ROLE_AGENT", "parts": parts,
        "taskId": ids.task, "contextId": ids.context});
    status
}

/// Returns the decisions of a message to the task: for people, and for programs.
fn approval_questions(turn: &Turn) -> Vec<JsonValue> {
    let calls = turn.awaited_approvals();
    if calls.is_empty() {
        return Vec::new();
    }
    let questions: Vec<String> = calls.iter().map(|call| call.description()).collect();
    let text = format!("{} Answer approve, or why not.", questions.join("\n"));
    let calls: Vec<JsonValue> = calls.iter().map(|call| call.to_json()).collect();
    vec![json!({"text": text}), json!({"data": {"approvals": calls}})]
}

/// Returns the metadata of a task: the results of its tool calls that its text does not say.
fn task_metadata(turn: &Turn) -> Option<JsonValue> {
    let results = turn.call_results();
    (!results.is_empty()).then(|| json!({"toolResults": results}))
}

/// Returns the id of the artifact with the text of an item. Text that replaces a void item is the same artifact.
fn answer_id(turn: &Turn, at: usize) -> String {
    let before = turn.items[..at].iter();
    let answers = before.filter(|item| item.is_message() && item.state != ItemState::Void);
    format!("answer-{}", answers.count() + 1)
}

/// Returns the artifact of a piece of text.
fn answer_artifact(turn: &Turn, at: usize, text: &str) -> JsonValue {
    text_artifact(&answer_id(turn, at), text)
}

fn text_artifact(id: &str, text: &str) -> JsonValue {
    json!({"artifactId": id, "name": "answer", "parts": [{"text": text}]})
}

/// Returns the artifacts of a run besides its texts: `structured` and `files` of its output.
fn output_artifacts(turn: &Turn) -> Vec<JsonValue> {
    let mut all = Vec::new();
    if let Some(value) = turn.output.get("structured") {
        all.push(json!({"artifactId": "structured", "name": "structured",
            "parts": [{"data": value, "mediaType": "application/json"}]}));
    }
    let files = turn.output.get("files").and_then(JsonValue::as_array);
    for (n, file) in files.into_iter().flatten().enumerate() {
        let name = file["name"].as_str().unwrap_or("file");
        let mut part = json!({"filename": name});
        match (file["url"].as_str(), file["base64"].as_str()) {
            (Some(url), _) => part["url"] = json!(url),
            (None, Some(bytes)) => part["raw"] = json!(bytes),
            (None, None) => continue,
        }
        if let Some(media_type) = file["media_type"].as_str() {
            part["mediaType"] = json!(media_type);
        }
        all.push(json!({"artifactId": format!("file-{}", n + 1), "name": name, "parts": [part]}));
    }
    all
}

fn task_artifacts(turn: &Turn) -> Vec<JsonValue> {
    let mut all = Vec::new();
    let mut before = 0;
    for item in turn.items.iter().filter(|item| item.is_message()) {
        if !item.text().is_empty() {
            all.push(text_artifact(&format!("answer-{}", before + 1), item.text()));
        }
        before += usize::from(item.state != ItemState::Void);
    }
    all.extend(output_artifacts(turn));
    all
}

/// Returns the task after the events that were read.
pub(super) fn task_to_json(
    ids: &TaskIds,
    turn: &Turn,
    history: &[JsonValue],
    with_artifacts: bool,
) -> JsonValue {
    let mut task = json!({"id": ids.task, "contextId": ids.context,
        "status": task_status(ids, turn, task_state(turn))});
    if with_artifacts {
        task["artifacts"] = json!(task_artifacts(turn));
    }
    if let Some(metadata) = task_metadata(turn) {
        task["metadata"] = metadata;
    }
    if !history.is_empty() {
        task["history"] = json!(history);
    }
    task
}

/// How the events of a stream are written.
#[derive(Clone, Debug)]
pub(super) enum Framing {
    /// JSON-RPC responses with this id, as server-sent events.
    Rpc(JsonValue),
    /// JSON-RPC responses as server-sent events, in the form of version 0.3.
    LegacyRpc(JsonValue),
    /// Server-sent events.
    Http,
    /// Server-sent events in the form of version 0.3.
    LegacyHttp,
    /// One object per line, with an error as `error`, for gRPC.
    Lines,
}

impl Framing {
    fn write(&self, event: JsonValue, out: &mut String) {
        let text = match self {
            Framing::Rpc(id) => json!({"jsonrpc": "2.0", "id": id, "result": event}),
            Framing::LegacyRpc(id) => {
                json!({"jsonrpc": "2.0", "id": id, "result": legacy::event_to_legacy(&event)})
            }
            Framing::Http => event,
            Framing::LegacyHttp => legacy_http::event_to_legacy(&event),
            Framing::Lines => return out.push_str(&format!("{event}\n")),
        };
        out.push_str(&format!("data: {text}\n\n"));
    }

    fn write_error(&self, error: &A2aError, out: &mut String) {
        let text = match self {
            Framing::Rpc(id) | Framing::LegacyRpc(id) => {
                json!({"jsonrpc": "2.0", "id": id, "error": error.to_rpc()})
            }
            Framing::Http => error.to_http(),
            Framing::LegacyHttp => legacy_http::error_to_legacy(error),
            Framing::Lines => return out.push_str(&format!("{}\n", error.to_line())),
        };
        out.push_str(&format!("data: {text}\n\n"));
    }
}

/// Encodes the events of a task: the task itself, then what changes.
pub(super) struct TaskEncoder {
    pub(super) ids: TaskIds,
    pub(super) history: Vec<JsonValue>,
    pub(super) framing: Framing,
    /// The turns before this one are in the first event.
    pub(super) first_turn: i64,
    /// Each piece of a text is an event. Otherwise the whole text is one.
    pub(super) has_pieces: bool,
    begun: bool,
    /// The task is in the state of its first event.
    submitted: bool,
    /// The items whose text the client has a part of.
    shown: HashSet<usize>,
}

impl TaskEncoder {
    /// From the first turn of the task.
    pub(super) fn new(ids: TaskIds, history: Vec<JsonValue>, framing: Framing) -> TaskEncoder {
        TaskEncoder {
            ids,
            history,
            framing,
            first_turn: 1,
            has_pieces: true,
            begun: false,
            submitted: false,
            shown: HashSet::new(),
        }
    }

    fn write_status(&self, turn: &Turn, state: &str, out: &mut String) {
        let mut update = json!({"taskId": self.ids.task, "contextId": self.ids.context,
            "status": task_status(&self.ids, turn, state)});
        if let Some(metadata) = task_metadata(turn) {
            update["metadata"] = metadata;
        }
        self.framing.write(json!({"statusUpdate": update}), out);
    }

    fn write_artifact(&self, artifact: JsonValue, append: bool, is_last: bool, out: &mut String) {
        let update = json!({"taskId": self.ids.task, "contextId": self.ids.context,
            "artifact": artifact, "append": append, "lastChunk": is_last});
        self.framing.write(json!({"artifactUpdate": update}), out);
    }

    fn write_task(&mut self, turn: &Turn, out: &mut String) {
        self.begun = true;
        self.submitted = turn.event <= 1;
        let texts = 0..turn.items.len();
        self.shown.extend(texts.filter(|at| !turn.items[*at].text().is_empty()));
        let task = task_to_json(&self.ids, turn, &self.history, !turn.items.is_empty());
        self.framing.write(json!({"task": task}), out);
    }

    fn write_end(&self, turn: &Turn, out: &mut String) {
        match turn.end {
            None | Some(TurnEnd::Waits(_)) => {}
            _ => {
                for artifact in output_artifacts(turn) {
                    self.write_artifact(artifact, false, true, out);
                }
                self.write_status(turn, task_state(turn), out);
            }
        }
    }
}

impl TaskEncoder {
    /// Appends the events for a change.
    pub(super) fn encode_change(&mut self, turn: &Turn, change: &Change, out: &mut String) {
        if !self.begun {
            // The first event of a turn; an aborted run has only its end.
            if turn.event_turn >= self.first_turn || *change == Change::Ended {
                self.write_task(turn, out);
            }
            return;
        }
        if self.submitted && *change != Change::Ended {
            self.submitted = false;
            self.write_working_status(turn, out);
        }
        match change {
            Change::Text(at, text) if self.has_pieces && turn.items[*at].is_message() => {
                let append = !self.shown.insert(*at);
                self.write_artifact(answer_artifact(turn, *at, text), append, false, out);
            }
            Change::Closed(at) if !self.has_pieces && turn.items[*at].is_message() => {
                let text = turn.items[*at].text();
                if turn.items[*at].state != ItemState::Void && !text.is_empty() {
                    self.write_artifact(answer_artifact(turn, *at, text), false, true, out);
                }
            }
            Change::Closed(at) if turn.items[*at].is_message() && self.shown.contains(at) => {
                if turn.items[*at].state != ItemState::Void {
                    self.write_artifact(answer_artifact(turn, *at, ""), true, true, out);
                }
            }
            Change::Waits => self.write_status(turn, task_state(turn), out),
            Change::Continues => self.write_working_status(turn, out),
            Change::Ended => self.write_end(turn, out),
            Change::Started
            | Change::Opened(_)
            | Change::Text(..)
            | Change::Edited(_)
            | Change::Closed(_)
            | Change::CallsRun => {}
        }
    }
}

impl Encoder for TaskEncoder {
    fn encode(&mut self, turn: &Turn, change: &Change, out: &mut String) {
        self.encode_change(turn, change, out);
    }

    fn refuse(&mut self, refusal: &Refusal, out: &mut String) {
        self.framing.write_error(&A2aError::from(refusal.clone()), out);
    }

    /// The end of a stream of gRPC would have the status OK, as if the task had ended. The streams of the other bindings have no
    /// status.
    fn stop(&mut self, out: &mut String) {
        if matches!(self.framing, Framing::Lines) {
            let why = Refusal::new(Code::Unavailable, "the server stops before the task has ended");
            self.refuse(&why.hint("subscribe to the task again"), out);
        }
    }
}

impl TaskEncoder {
    /// The task works. What it waits for next, or how it ended, has an event of its own.
    fn write_working_status(&self, turn: &Turn, out: &mut String) {
        let status = json!({"state": WORKING, "timestamp": format_time(turn.event_at)});
        let update = json!({"taskId": self.ids.task, "contextId": self.ids.context,
            "status": status});
        self.framing.write(json!({"statusUpdate": update}), out);
    }
}
