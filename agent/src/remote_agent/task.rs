//! A task of a remote agent, as the agent has described it so far: what its events add up to.

use std::collections::BTreeSet;

use serde_json::Value;

/// Maximum number of artifacts of a task, and of parts of an artifact: each event looks at all of them.
const ARTIFACTS: usize = 1_000;

/// Maximum length of an unknown state in an error.
const SHOWN_CHARS: usize = 80;

/// An artifact.
#[derive(Clone, Debug, Default, PartialEq)]
struct Artifact {
    id: String,
    parts: Vec<Value>,
    /// Of its parts.
    bytes: usize,
    /// Its content is known on the present stream, so that an event can continue it.
    is_current: bool,
    /// The last description of the task did not have it. Some agents describe a task without its artifacts.
    is_omitted: bool,
    /// An event continued it although what precedes is not known: that was sent on a stream that was lost, or never.
    has_gap: bool,
    /// Its last piece said that another one follows (`lastChunk: false`).
    is_open: bool,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RemoteTask {
    /// Its id; empty before the agent has named it.
    pub(crate) id: String,
    pub(crate) context_id: String,
    state: String,
    /// The message of its status.
    message: Value,
    /// When the agent set its status.
    timestamp: String,
    /// In the order in which they appeared.
    artifacts: Vec<Artifact>,
    /// Maximum number of bytes of all artifacts together.
    max_bytes: usize,
    /// The parts of an answer without a task.
    answer: Option<Vec<Value>>,
    /// Events may have been sent between two streams, and nothing since has described the completed task.
    may_lack_events: bool,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// It is running.
    Works,
    /// It waits for an answer or an approval.
    NeedsInput,
    /// It waits for a permission that the user gives elsewhere.
    NeedsAuthorization,
    /// It has completed.
    Completed,
    /// It has failed; the code for the run.
    Failed(&'static str),
}

impl Artifact {
    /// Forgets its content: what follows is all of it.
    fn begin(&mut self, is_open: bool) {
        let id = std::mem::take(&mut self.id);
        *self = Artifact { id, is_current: true, is_open, ..Artifact::default() };
    }

    fn extend(&mut self, parts: Vec<Value>) {
        for part in parts {
            self.bytes += part.to_string().len();
            // A text continues the text before it, even in a snapshot: some agents keep each piece as a part.
            match (self.parts.last_mut(), part["text"].as_str()) {
                (Some(last), Some(more)) if last["text"].is_string() => {
                    let whole = format!("{}{more}", as_text(&last["text"]));
                    last["text"] = Value::from(whole);
                }
                _ => self.parts.push(part),
            }
        }
    }
}

impl RemoteTask {
    /// Creates a task of which nothing is known. Its artifacts have at most this many bytes together.
    pub(crate) fn new(max_bytes: usize) -> RemoteTask {
        RemoteTask { max_bytes, ..RemoteTask::default() }
    }

    /// A stream of the task was opened. It may not continue where the last one ended.
    pub(crate) fn new_stream(&mut self) {
        self.may_lack_events = !self.id.is_empty();
        for artifact in &mut self.artifacts {
            artifact.is_current = false;
        }
    }

    /// Adds an event of a stream, or the result of a message. Returns whether it is of this task: events of other tasks are ignored.
    ///
    /// # Errors
    /// The event cannot be read, or its state is unknown. Or its artifacts are too large: each event costs as much as all of them.
    pub(crate) fn apply(&mut self, result: &Value) -> Result<bool, String> {
        let is_own = self.add(result)?;
        self.check()?;
        Ok(is_own)
    }

    /// Takes over the answer to a request for the task.
    ///
    /// # Errors
    /// As [`RemoteTask::apply`]. Or the answer is another task: it is never taken for this one.
    pub(crate) fn describe(&mut self, result: &Value) -> Result<(), String> {
        let task = member(result, "task").unwrap_or(result);
        self.require_own(task)?;
        self.take_description(task)?;
        if self.state() == TaskState::Completed {
            self.mark_confirmed();
        }
        self.check()
    }

    /// Returns `true` if the artifacts of the completed task are to be read with the task, because the events may not
    /// have all of them.
    pub(crate) fn needs_confirmation(&self) -> bool {
        self.answer.is_none()
            && (self.may_lack_events
                || self.artifacts.iter().any(|it| it.is_omitted || it.has_gap || it.is_open)
                || self.answer().is_empty())
    }

    /// Takes over the artifacts of the completed task as the agent describes it when it is asked for it. Artifacts that the
    /// description does not have are kept: some agents do not store them.
    ///
    /// # Errors
    /// As [`RemoteTask::describe`]. Or the agent describes a task that has not completed.
    pub(crate) fn confirm(&mut self, result: &Value) -> Result<(), String> {
        let task = member(result, "task").unwrap_or(result);
        self.require_own(task)?;
        let mut described = self.clone();
        described.take_description(task)?;
        if state_of(&described.state) != Some(TaskState::Completed) {
            return Err(format!(
                "the task had completed, and the agent then described it with the state {:?}",
                truncate_word(&described.state)
            ));
        }
        // The answer of some agents is the message of an event.
        if described.message.is_null() {
            described.message.clone_from(&self.message);
        }
        *self = described;
        self.mark_confirmed();
        self.check()
    }

    /// Why a part of the answer of the completed task is missing, after the task was asked for.
    pub(crate) fn missing(&self) -> Option<String> {
        self.artifacts.iter().find_map(|Artifact { id, has_gap, is_open, .. }| {
            let id = truncate_word(id);
            let what = match (has_gap, is_open) {
                (true, _) => {
                    format!("the agent continued artifact {id:?} whose beginning it did not send")
                }
                (_, true) => format!("more of artifact {id:?} was to follow (lastChunk: false)"),
                _ => return None,
            };
            Some(format!(
                "{what}, and the task that it describes does not have it: a part of the answer is missing"
            ))
        })
    }

    /// What the events lacked is read: nothing is uncertain any more but gaps and open artifacts.
    fn mark_confirmed(&mut self) {
        self.may_lack_events = false;
        for artifact in &mut self.artifacts {
            artifact.is_omitted = false;
        }
    }

    fn check(&self) -> Result<(), String> {
        if state_of(&self.state).is_none() {
            let state = truncate_word(&self.state);
            return Err(format!("the task has the state {state:?}, which A2A does not have"));
        }
        let bytes: usize = self.artifacts.iter().map(|artifact| artifact.bytes).sum();
        if bytes > self.max_bytes {
            let max = self.max_bytes;
            return Err(format!("the artifacts of the task have more than {max} bytes"));
        }
        let parts = self.artifacts.iter().map(|artifact| artifact.parts.len()).max().unwrap_or(0);
        if self.artifacts.len().max(parts) > ARTIFACTS {
            Err(format!("the task has more than {ARTIFACTS} artifacts, or parts of one"))
        } else {
            Ok(())
        }
    }

    fn add(&mut self, result: &Value) -> Result<bool, String> {
        if let Some(task) = member(result, "task") {
            self.add_description(task)
        } else if let Some(message) = member(result, "message") {
            let task_id = as_text(&message["taskId"]);
            if !self.id.is_empty() && !task_id.is_empty() && task_id != self.id {
                return Ok(false);
            }
            self.answer = Some(read_parts(message, "the message")?);
            Ok(true)
        } else if let Some(update) = member(result, "statusUpdate") {
            let is_own = self.is_of(update)?;
            if is_own {
                self.set_status(&update["status"])?;
            }
            Ok(is_own)
        } else if let Some(update) = member(result, "artifactUpdate") {
            let is_own = self.is_of(update)?;
            if is_own {
                self.update_artifact(update)?;
            }
            Ok(is_own)
        } else if result.get("status").is_some() {
            self.add_description(result)
        } else {
            // An event of another kind. What it has may be in the task.
            self.may_lack_events |= result.as_object().is_some_and(|event| !event.is_empty());
            Ok(true)
        }
    }

    fn is_of(&mut self, update: &Value) -> Result<bool, String> {
        let id = required_text(update, "taskId", "an update")?;
        if self.id.is_empty() {
            self.id = id.to_owned();
            self.context_id = as_text(&update["contextId"]).to_owned();
        }
        Ok(id == self.id)
    }

    /// Adds a description of a task in a stream.
    fn add_description(&mut self, task: &Value) -> Result<bool, String> {
        let id = required_text(task, "id", "a task")?;
        if !self.id.is_empty() && id != self.id {
            return Ok(false);
        }
        let has_artifacts = self.take_description(task)?;
        if has_artifacts && self.state() == TaskState::Completed {
            self.may_lack_events = false;
        }
        Ok(true)
    }

    fn require_own(&self, task: &Value) -> Result<(), String> {
        let id = required_text(task, "id", "the task that was asked for")?;
        if self.id.is_empty() || id == self.id {
            Ok(())
        } else {
            Err(format!(
                "the agent was asked for the task {:?} and answered with the task {:?}",
                truncate_word(&self.id),
                truncate_word(id)
            ))
        }
    }

    /// Takes over a description of the task. Artifacts that it does not have are kept. Returns whether it has any.
    fn take_description(&mut self, task: &Value) -> Result<bool, String> {
        self.id = as_text(&task["id"]).to_owned();
        self.context_id = as_text(&task["contextId"]).to_owned();
        self.set_status(&task["status"])?;
        let has_completed = state_of(&self.state) == Some(TaskState::Completed);
        let artifacts = read_list(task, "artifacts", "the task")?;
        for artifact in &mut self.artifacts {
            artifact.is_omitted = true;
        }
        let mut described = BTreeSet::new();
        for artifact in artifacts {
            let id = required_text(artifact, "artifactId", "an artifact")?;
            if !described.insert(id) {
                return Err(format!(
                    "the task has two artifacts with the id {:?}",
                    truncate_word(id)
                ));
            }
            let parts = read_parts(artifact, "an artifact")?;
            let known = self.artifact(id);
            // A task that works may describe what it has so far: the next piece still follows.
            let is_open = known.is_open && !has_completed;
            known.begin(is_open);
            known.extend(parts);
        }
        Ok(!artifacts.is_empty())
    }

    fn set_status(&mut self, status: &Value) -> Result<(), String> {
        let message = &status["message"];
        if !message.is_null() && !message.is_object() {
            return Err("the message of the status is not an object".to_owned());
        }
        read_parts(message, "the message of the status")?;
        self.state = match &status["state"] {
            Value::Null => String::new(),
            Value::String(state) => canonical(state),
            other => other.to_string(),
        };
        self.message = message.clone();
        self.timestamp = as_text(&status["timestamp"]).to_owned();
        Ok(())
    }

    fn update_artifact(&mut self, update: &Value) -> Result<(), String> {
        let artifact = &update["artifact"];
        let id = required_text(artifact, "artifactId", "an artifact")?;
        let parts = read_parts(artifact, "an artifact")?;
        let appends = read_flag(update, "append")? == Some(true);
        let is_open = read_flag(update, "lastChunk")? == Some(false);
        let known = self.artifact(id);
        if appends {
            known.has_gap |= !known.is_current;
            known.is_open = is_open;
        } else {
            known.begin(is_open)
        }
        known.extend(parts);
        Ok(())
    }

    /// Returns the artifact with an id; a new one if it is not known.
    fn artifact(&mut self, id: &str) -> &mut Artifact {
        let known = self.artifacts.iter().position(|known| known.id == id);
        let at = known.unwrap_or_else(|| {
            self.artifacts.push(Artifact { id: id.to_owned(), ..Artifact::default() });
            self.artifacts.len() - 1
        });
        &mut self.artifacts[at]
    }

    /// Its current need.
    pub(crate) fn state(&self) -> TaskState {
        if self.answer.is_some() {
            return TaskState::Completed;
        }
        state_of(&self.state).unwrap_or(TaskState::Works)
    }

    /// Forgets the state: a message was sent, so the task may no longer need input.
    pub(crate) fn forget_state(&mut self) {
        self.state.clear();
    }

    /// Differs between two questions of a task, and is the same for one.
    pub(crate) fn question_key(&self) -> String {
        format!("{} {} {}", self.state, as_text(&self.message["messageId"]), self.timestamp)
    }

    /// Returns the text of its status: a question, or why it failed. Data counts only if there is no text.
    pub(crate) fn status_text(&self) -> String {
        let all = self.status_parts();
        let texts: Vec<Value> =
            all.iter().filter(|part| part["text"].is_string()).cloned().collect();
        text_of(if texts.is_empty() { &all } else { &texts })
    }

    /// Returns the parts of its status.
    pub(crate) fn status_parts(&self) -> Vec<Value> {
        self.message["parts"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the text of its artifacts, and of an answer without a task.
    pub(crate) fn text(&self) -> String {
        let artifacts = self.artifacts.iter().map(|artifact| text_of(&artifact.parts));
        let texts = artifacts.chain(self.answer.as_deref().map(text_of));
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        texts.join("\n\n")
    }

    /// Returns the text of a completed task. Some agents put it into the status.
    pub(crate) fn answer(&self) -> String {
        match self.text() {
            text if text.is_empty() => self.status_text(),
            text => text,
        }
    }

    /// Returns the data of the last part with data.
    pub(crate) fn data(&self) -> Option<Value> {
        let all =
            self.artifacts.iter().flat_map(|it| &it.parts).chain(self.answer.iter().flatten());
        all.filter_map(|part| part.get("data").filter(|data| !data.is_null())).next_back().cloned()
    }
}

/// Returns the name of a state in A2A 1.0. Agents of 1.0 with a library of 0.3 write `completed`.
fn canonical(state: &str) -> String {
    let name = state.to_ascii_uppercase().replace('-', "_");
    if name.is_empty() || name.starts_with("TASK_STATE_") {
        name
    } else {
        format!("TASK_STATE_{name}")
    }
}

/// Returns the meaning of a state; `None` if A2A has no such state. A status without a state changes nothing.
fn state_of(name: &str) -> Option<TaskState> {
    Some(match name {
        "TASK_STATE_COMPLETED" => TaskState::Completed,
        "TASK_STATE_INPUT_REQUIRED" => TaskState::NeedsInput,
        "TASK_STATE_AUTH_REQUIRED" => TaskState::NeedsAuthorization,
        "TASK_STATE_FAILED" => TaskState::Failed("remote_agent_failed"),
        "TASK_STATE_CANCELED" | "TASK_STATE_CANCELLED" => {
            TaskState::Failed("remote_agent_canceled")
        }
        "TASK_STATE_REJECTED" => TaskState::Failed("remote_agent_rejected"),
        "" | "TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING" => TaskState::Works,
        // The agent does not know either.
        "TASK_STATE_UNSPECIFIED" | "TASK_STATE_UNKNOWN" => TaskState::Works,
        _ => return None,
    })
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a text that must be there.
fn required_text<'v>(of: &'v Value, name: &str, what: &str) -> Result<&'v str, String> {
    of[name].as_str().filter(|text| !text.is_empty()).ok_or_else(|| format!("{what} has no {name}"))
}

/// Returns a member that is there.
fn member<'v>(of: &'v Value, name: &str) -> Option<&'v Value> {
    of.get(name).filter(|value| !value.is_null())
}

/// Returns the beginning of a word of the agent, for errors.
fn truncate_word(word: &str) -> String {
    word.chars().take(SHOWN_CHARS).collect()
}

fn read_flag(of: &Value, name: &str) -> Result<Option<bool>, String> {
    match &of[name] {
        Value::Null => Ok(None),
        Value::Bool(value) => Ok(Some(*value)),
        _ => Err(format!("{name} of an artifact's update is neither true nor false")),
    }
}

/// Returns a list; one that is not there is empty.
fn read_list<'v>(of: &'v Value, name: &str, what: &str) -> Result<&'v [Value], String> {
    match &of[name] {
        Value::Null => Ok(&[]),
        Value::Array(items) => Ok(items),
        _ => Err(format!("the {name} of {what} are not a list")),
    }
}

/// Returns the parts of a message or of an artifact. One that cannot be read would be missing in the answer.
fn read_parts(of: &Value, what: &str) -> Result<Vec<Value>, String> {
    let parts = read_list(of, "parts", what)?;
    for part in parts {
        if !part.is_object() {
            return Err(format!("a part of {what} is not an object"));
        }
        for name in ["text", "url", "raw"] {
            if member(part, name).is_some_and(|value| !value.is_string()) {
                return Err(format!("{name} of a part of {what} is not a text"));
            }
        }
        let has_content = ["text", "url", "raw"].iter().any(|name| member(part, name).is_some());
        if !has_content && part.get("data").is_none() {
            return Err(format!("a part of {what} has neither text, data, url nor raw"));
        }
    }
    Ok(parts.to_vec())
}

/// Returns the text of parts. A file is only named: it is never fetched.
fn text_of(parts: &[Value]) -> String {
    let texts = parts.iter().filter_map(|part| {
        if let Some(text) = part["text"].as_str() {
            return Some(text.to_owned());
        }
        let name = part["filename"].as_str().unwrap_or("file");
        if let Some(url) = part["url"].as_str() {
            return Some(format!("[{name}: {url}]"));
        }
        if let Some(raw) = part["raw"].as_str() {
            let kind = part["mediaType"].as_str().unwrap_or("unknown type");
            return Some(format!("[{name}: {} bytes of {kind}]", raw.len() / 4 * 3));
        }
        part.get("data").filter(|data| !data.is_null()).map(Value::to_string)
    });
    texts.collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    fn check(results: &[Value], expected: Expect) {
        let mut task = RemoteTask::new(1_000);
        for result in results {
            task.apply(result).expect("it is small");
        }
        let state = task.state();
        let answer = task.answer();
        let data = task.data();
        expected.assert_eq(&format!("{} {state:?} {answer:?} {data:?}", task.id));
    }

    fn chunk(text: &str, append: bool) -> Value {
        let artifact = json!({"artifactId": "a", "parts": [{"text": text}]});
        json!({"artifactUpdate": {"taskId": "t", "artifact": artifact, "append": append}})
    }

    fn status(state: &str) -> Value {
        json!({"statusUpdate": {"taskId": "t", "status": {"state": state,
            "message": {"parts": [{"text": "Which?"}]}}}})
    }

    #[test]
    fn events_add_up() {
        check(
            &[
                json!({"task": {"id": "t", "status": {"state": "TASK_STATE_SUBMITTED"}}}),
                chunk("It ", false),
                chunk("is 42.", true),
                status("TASK_STATE_COMPLETED"),
            ],
            expect![[r#"t Completed "It is 42." None"#]],
        );
        let pieces = json!([{"artifactId": "a", "parts": [{"text": "It "}, {"text": "is"}]}]);
        check(
            &[
                json!({"id": "t", "status": {"state": "TASK_STATE_WORKING"}, "artifacts": pieces}),
                chunk(" 42.", true),
            ],
            expect![[r#"t Works "It is 42." None"#]],
        );
        // The first piece of a repeated stream replaces what was known.
        check(
            &[
                chunk("It ", false),
                json!({"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}}),
                chunk("It ", false),
                chunk("is.", true),
            ],
            expect![[r#"t Works "It is." None"#]],
        );
    }

    fn task_after(events: &[&Value]) -> RemoteTask {
        let mut task = RemoteTask::new(1_000);
        for event in events {
            task.apply(event).expect("it can be read");
        }
        task
    }

    fn described(state: &str, artifacts: &[(&str, &str)]) -> Value {
        let artifacts = artifacts.iter();
        let artifacts = artifacts
            .map(|(id, text)| json!({"artifactId": id, "parts": [{"text": text}]}))
            .collect::<Vec<Value>>();
        json!({"task": {"id": "t", "status": {"state": state}, "artifacts": artifacts}})
    }

    fn open_chunk(text: &str) -> Value {
        let mut event = chunk(text, false);
        event["artifactUpdate"]["lastChunk"] = json!(false);
        event
    }

    /// Class: events that do not have all of an answer. A piece of an artifact that had never begun, on a stream that was taken up
    /// again, was the whole answer; and a description of the task without artifacts removed those that were known.
    #[test]
    fn what_events_do_not_have_is_read_with_the_task() {
        let working = described("working", &[]);
        let completed = status("completed");
        let begun = task_after(&[&chunk("It ", false), &chunk("is.", true), &completed]);
        assert_eq!((begun.needs_confirmation(), begun.text().as_str()), (false, "It is."));
        let omitted = task_after(&[&chunk("It is.", false), &working, &completed]);
        assert_eq!((omitted.needs_confirmation(), omitted.text().as_str()), (true, "It is."));
        assert_eq!(omitted.missing(), None);
        // On one stream, a description without artifacts says nothing about their content.
        let continued =
            task_after(&[&chunk("It ", false), &working, &chunk("is.", true), &completed]);
        assert_eq!((continued.needs_confirmation(), continued.text().as_str()), (true, "It is."));
        assert_eq!(continued.missing(), None);
        let mut never_begun = task_after(&[&working, &chunk("is.", true), &completed]);
        assert!(never_begun.needs_confirmation() && never_begun.missing().is_some());

        never_begun.confirm(&described("completed", &[])).expect("it has completed");
        assert!(never_begun.missing().is_some(), "the agent does not have it either");
        never_begun.confirm(&described("completed", &[("b", "So.")])).expect("it has completed");
        assert!(never_begun.missing().is_some(), "another artifact does not close the gap");
        never_begun.confirm(&described("completed", &[("a", "It is.")])).expect("it has completed");
        assert!(!never_begun.needs_confirmation());
        assert_eq!((never_begun.missing(), never_begun.text().as_str()), (None, "It is.\n\nSo."));
    }

    /// Class: events that do not have all of an answer. What was sent between two streams was not asked for, and a piece continued
    /// what an earlier stream had begun.
    #[test]
    fn an_artifact_is_continued_on_its_own_stream_only() {
        let completed = status("completed");
        let resumed = |first: &Value, then: &[&Value]| {
            let mut task = task_after(&[first]);
            task.new_stream();
            for event in then {
                task.apply(event).expect("it can be read");
            }
            task
        };
        let continued = resumed(&chunk("It ", false), &[&chunk("is.", true), &completed]);
        assert!(continued.missing().is_some());
        let repeated =
            resumed(&chunk("It ", false), &[&chunk("It ", false), &chunk("is.", true), &completed]);
        assert_eq!((repeated.missing(), repeated.text().as_str()), (None, "It is."));
        let described_again = described("working", &[("a", "It ")]);
        let read =
            resumed(&chunk("It ", false), &[&described_again, &chunk("is.", true), &completed]);
        assert_eq!((read.missing(), read.text().as_str()), (None, "It is."));

        // Whether more was sent between the streams is not known, unless the last piece has said that it follows.
        let nothing = described("completed", &[]);
        let mut kept = resumed(&chunk("It ", false), &[&completed]);
        assert!(kept.needs_confirmation());
        kept.confirm(&nothing).expect("it has completed");
        assert_eq!((kept.missing(), kept.text().as_str()), (None, "It "));
        let mut open = resumed(&open_chunk("It "), &[&completed]);
        open.confirm(&nothing).expect("it has completed");
        assert!(open.missing().is_some_and(|why| why.contains("lastChunk")));
        // The task had only the beginning when it was described.
        let still = resumed(&open_chunk("It "), &[&described_again, &completed]);
        assert!(still.missing().is_some());
        open.confirm(&described("completed", &[("a", "It is.")])).expect("it has completed");
        assert_eq!((open.missing(), open.text().as_str()), (None, "It is."));
        // Artifacts of which no event is known.
        let mut lost = RemoteTask { id: "t".to_owned(), ..RemoteTask::new(1_000) };
        lost.new_stream();
        lost.apply(&completed).expect("it can be read");
        assert!(lost.needs_confirmation());
    }

    /// Class: success when something is missing. A message replaced the artifacts before it, and a task that completed without an
    /// artifact was not read.
    #[test]
    fn a_message_does_not_replace_artifacts() {
        let message = json!({"message": {"parts": [{"text": "So."}]}});
        let both = task_after(&[&chunk("It is.", false), &message]);
        assert_eq!((both.missing(), both.text().as_str()), (None, "It is.\n\nSo."));
        assert!(task_after(&[&open_chunk("It "), &message]).missing().is_some());
        let bare = json!({"statusUpdate": {"taskId": "t", "status": {"state": "completed"}}});
        assert!(task_after(&[&bare]).needs_confirmation());
        assert!(
            !task_after(&[&status("completed")]).needs_confirmation(),
            "the status has the answer"
        );
    }

    /// Class: a foreign task is taken. The answer to a request for the task was taken whatever its id was.
    #[test]
    fn only_this_task_is_taken_and_only_a_completed_one_confirms() {
        let mut task = task_after(&[&chunk("It ", true), &status("completed")]);
        let mut other = described("completed", &[("a", "Secret.")]);
        for id in [json!("other"), json!(7), json!(""), Value::Null] {
            other["task"]["id"] = id;
            for read in [task.clone().describe(&other), task.clone().describe(&other["task"])] {
                assert!(read.is_err(), "{other}");
            }
            assert!(task.confirm(&other).is_err(), "{other}");
        }
        assert!(task.describe(&json!({})).is_err());
        for state in ["working", "failed", "input-required", "", "unknown"] {
            let early = described(state, &[("a", "It is.")]);
            assert!(task.confirm(&early).is_err_and(|why| why.contains("state")), "{state}");
        }
        assert_eq!(task.text(), "It ", "nothing was taken");
        // On a stream, events of other tasks are ignored.
        other["task"]["id"] = json!("other");
        let message = json!({"message": {"taskId": "other", "parts": [{"text": "Secret."}]}});
        for event in [other, message] {
            assert_eq!(task.apply(&event), Ok(false));
        }
        assert_eq!(task.text(), "It ");
    }

    /// Class: what cannot be read vanishes. The run was done without it.
    #[test]
    fn an_event_that_cannot_be_read_is_an_error() {
        let update = |artifact: Value| json!({"taskId": "t", "artifact": artifact});
        let with_parts = |parts: Value| update(json!({"artifactId": "a", "parts": parts}));
        let mut odd = vec![update(Value::Null), update(json!("a")), update(json!({"parts": []}))];
        odd.extend([json!([]), json!("x"), json!({"artifact": {"artifactId": "a"}})]);
        for name in ["append", "lastChunk"] {
            let mut update = with_parts(json!([]));
            update[name] = json!("true");
            odd.push(update);
        }
        let odd_parts = [
            json!([{"kind": "hologram"}]),
            json!([{"text": "It "}, {"text": 5}]),
            json!([{"url": {}}]),
            json!([{"raw": [1]}]),
            json!([{}]),
            json!(["is."]),
            json!([null]),
            json!("is."),
            json!({"text": "is."}),
        ];
        odd.extend(odd_parts.iter().cloned().map(with_parts));
        for update in odd {
            let read = RemoteTask::new(1_000).apply(&json!({"artifactUpdate": update}));
            assert!(read.is_err(), "{update}");
        }
        for parts in odd_parts {
            let status = json!({"state": "completed", "message": {"parts": parts}});
            let artifact = json!({"artifactId": "a", "parts": parts});
            for event in [
                json!({"message": {"parts": parts}}),
                json!({"statusUpdate": {"taskId": "t", "status": status}}),
                json!({"task": {"id": "t", "status": {}, "artifacts": [artifact]}}),
            ] {
                assert!(RemoteTask::new(1_000).apply(&event).is_err(), "{event}");
            }
        }
        let same = json!({"artifactId": "a", "parts": [{"text": "It is."}]});
        for artifacts in [json!({}), json!([7]), json!([{}]), json!([same, same])] {
            let task = json!({"id": "t", "status": {}, "artifacts": artifacts});
            assert!(RemoteTask::new(1_000).describe(&task).is_err(), "{artifacts}");
        }
        let fine = json!([{"text": "It is.", "metadata": {"n": 1}, "kind": "text"}, {"data": null},
            {"url": "http://x/", "raw": null}, {"raw": ""}]);
        for parts in [fine, Value::Null] {
            let read = RemoteTask::new(1_000).apply(&json!({"artifactUpdate": with_parts(parts)}));
            assert_eq!(read, Ok(true));
        }
    }

    /// An agent could send artifacts without an end, and each event costs as much as all of them.
    #[test]
    fn artifacts_are_limited() {
        let mut task = RemoteTask::new(100);
        for _ in 0..3 {
            assert_eq!(task.apply(&chunk(&"x".repeat(60), false)), Ok(true), "it replaces itself");
        }
        let why = "the artifacts of the task have more than 100 bytes";
        assert_eq!(task.apply(&chunk(&"x".repeat(60), true)), Err(why.to_owned()));
        let mut task = RemoteTask::new(1_000_000);
        let artifact = |n: usize| {
            json!({"artifactUpdate": {"taskId": "t", "artifact":
            {"artifactId": n.to_string(), "parts": [{"text": "x"}]}}})
        };
        let refused = (0..2_000).position(|n| task.apply(&artifact(n)).is_err());
        assert_eq!(refused, Some(1_000));
    }

    #[test]
    fn all_forms_of_an_answer_are_read() {
        check(&[status("TASK_STATE_INPUT_REQUIRED")], expect![[r#"t NeedsInput "Which?" None"#]]);
        check(
            &[status("TASK_STATE_REJECTED")],
            expect![[r#"t Failed("remote_agent_rejected") "Which?" None"#]],
        );
        check(
            &[json!({"message": {"parts": [{"text": "Hello."}, {"data": {"n": 1}}]}})],
            expect![[r#" Completed "Hello.\n{\"n\":1}" Some(Object {"n": Number(1)})"#]],
        );
        let files = json!([{"url": "http://x/", "filename": "a.txt"}, {"raw": "AAAA"}]);
        check(
            &[json!({"id": "t", "status": {"state": "TASK_STATE_COMPLETED"},
                "artifacts": [{"artifactId": "f", "parts": files}]})],
            expect![[r#"t Completed "[a.txt: http://x/]\n[file: 3 bytes of unknown type]" None"#]],
        );
    }

    /// Class: a word of a peer that is not known. Each unknown state counted as working, also `completed` under a card of 1.0, so that
    /// the run waited for a day.
    #[test]
    fn a_state_is_known_or_an_error() {
        check(&[status("completed")], expect![[r#"t Completed "Which?" None"#]]);
        check(&[status("input-required")], expect![[r#"t NeedsInput "Which?" None"#]]);
        check(&[status("TASK_STATE_UNSPECIFIED")], expect![[r#"t Works "Which?" None"#]]);
        let applied = |state: Value| {
            let update = json!({"taskId": "t", "status": {"state": state}});
            RemoteTask::new(1_000).apply(&json!({"statusUpdate": update}))
        };
        let why =
            |state: &str| Err(format!("the task has the state {state:?}, which A2A does not have"));
        assert_eq!(applied(json!("done")), why("TASK_STATE_DONE"));
        assert_eq!(applied(json!(3)), why("3"));
        assert_eq!(applied(Value::Null), Ok(true));
    }

    #[test]
    fn events_of_other_tasks_and_of_unknown_kinds_change_nothing() {
        let other =
            json!({"statusUpdate": {"taskId": "other", "status": {"state": "TASK_STATE_FAILED"}}});
        let odd = [json!({}), json!({"task": null}), json!({"hologram": {"n": 1}})];
        let first = json!({"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}});
        let results: Vec<Value> = [first, other].into_iter().chain(odd).collect();
        check(&results, expect![[r#"t Works "" None"#]]);
        assert!(task_after(&[&results[0], &results[4], &status("completed")]).needs_confirmation());
        for malformed in [json!({"task": 7}), json!({"statusUpdate": {"taskId": 7}})] {
            assert!(RemoteTask::new(1_000).apply(&malformed).is_err(), "{malformed}");
        }
    }
}
