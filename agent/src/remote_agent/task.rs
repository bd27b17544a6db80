//! A task of a remote agent, as the agent has described it so far: what its events add up to.

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
    /// A description of the task did not have it.
    is_omitted: bool,
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
    completeness: Completeness,
}

/// Whether the events have all artifacts of the task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Completeness {
    #[default]
    Complete,
    /// A description of the task did not have an artifact that events had. Some agents describe a task without its artifacts.
    Unconfirmed,
    /// An event continued an artifact whose beginning is not known: it was sent on a stream that was lost, or never.
    Gap,
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

impl RemoteTask {
    /// A task of which nothing is known. Its artifacts have at most this many bytes together.
    pub(crate) fn new(max_bytes: usize) -> RemoteTask {
        RemoteTask { max_bytes, ..RemoteTask::default() }
    }

    /// Adds an event of a stream, or the result of an operation. Events of other tasks are ignored.
    ///
    /// # Errors
    /// Its state is unknown. Or its artifacts are too large: each event costs as much as all of them.
    pub(crate) fn apply(&mut self, result: &Value) -> Result<(), String> {
        self.add(result);
        self.check()
    }

    /// Whether the events have all artifacts of the completed task. If not, they are to be read with the task.
    pub(crate) fn completeness(&self) -> Completeness {
        match self.answer {
            Some(_) => Completeness::Complete,
            None => self.completeness,
        }
    }

    /// Takes the artifacts over from the task as the agent describes it when it is asked for it. A description without artifacts
    /// changes nothing: some agents do not keep them.
    ///
    /// # Errors
    /// The artifacts are too large.
    pub(crate) fn confirm(&mut self, task: &Value) -> Result<(), String> {
        let task = task.get("task").unwrap_or(task);
        let artifacts = task["artifacts"].as_array().map(Vec::as_slice).unwrap_or_default();
        if artifacts.is_empty() {
            return Ok(());
        }
        self.artifacts.clear();
        self.completeness = Completeness::Complete;
        artifacts.iter().for_each(|artifact| self.add_artifact(artifact, false));
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        if state_of(&self.state).is_none() {
            let state: String = self.state.chars().take(SHOWN_CHARS).collect();
            return Err(format!("the task has the state {state:?}, which A2A does not have"));
        }
        let bytes: usize = self.artifacts.iter().map(|artifact| artifact.bytes).sum();
        if bytes > self.max_bytes {
            let max = self.max_bytes;
            return Err(format!("the artifacts of the task have more than {max} bytes"));
        }
        let parts = self.artifacts.iter().map(|artifact| artifact.parts.len()).max().unwrap_or(0);
        match self.artifacts.len().max(parts) > ARTIFACTS {
            true => Err(format!("the task has more than {ARTIFACTS} artifacts, or parts of one")),
            false => Ok(()),
        }
    }

    fn add(&mut self, result: &Value) {
        if let Some(task) = result.get("task") {
            self.replace(task);
        } else if let Some(message) = result.get("message") {
            self.answer = Some(parts(message));
        } else if let Some(update) = result.get("statusUpdate") {
            if self.is_of(update) {
                self.set_status(&update["status"]);
            }
        } else if let Some(update) = result.get("artifactUpdate") {
            if self.is_of(update) {
                self.add_artifact(&update["artifact"], update["append"] == true);
            }
        } else if result.get("status").is_some() {
            self.replace(result);
        }
    }

    fn is_of(&mut self, update: &Value) -> bool {
        let id = text(&update["taskId"]);
        if self.id.is_empty() {
            self.id = id.to_owned();
            self.context_id = text(&update["contextId"]).to_owned();
        }
        id == self.id
    }

    /// Takes over a description of the task. Artifacts that it does not have are kept.
    fn replace(&mut self, task: &Value) {
        let id = text(&task["id"]);
        if !self.id.is_empty() && id != self.id {
            return;
        }
        self.id = id.to_owned();
        self.context_id = text(&task["contextId"]).to_owned();
        for artifact in &mut self.artifacts {
            artifact.is_omitted = true;
        }
        for artifact in task["artifacts"].as_array().into_iter().flatten() {
            self.add_artifact(artifact, false);
        }
        if self.artifacts.iter().any(|artifact| artifact.is_omitted) {
            self.completeness = self.completeness.max(Completeness::Unconfirmed);
        }
        self.set_status(&task["status"]);
    }

    fn set_status(&mut self, status: &Value) {
        self.state = match &status["state"] {
            Value::Null => String::new(),
            Value::String(state) => canonical(state),
            other => other.to_string(),
        };
        self.message = status["message"].clone();
        self.timestamp = text(&status["timestamp"]).to_owned();
    }

    fn add_artifact(&mut self, artifact: &Value, appends: bool) {
        let id = text(&artifact["artifactId"]);
        let known = self.artifacts.iter().position(|known| known.id == id);
        // After a description without the artifact, the piece may be a new one, or a repeated one.
        if appends && known.is_none_or(|at| self.artifacts[at].is_omitted) {
            self.completeness = Completeness::Gap;
        }
        let at = known.unwrap_or_else(|| {
            self.artifacts.push(Artifact { id: id.to_owned(), ..Artifact::default() });
            self.artifacts.len() - 1
        });
        let Artifact { parts: known, bytes, is_omitted, .. } = &mut self.artifacts[at];
        if !appends {
            known.clear();
            *bytes = 0;
            *is_omitted = false;
        }
        for part in parts(artifact) {
            *bytes += part.to_string().len();
            // A text continues the text before it, even in a snapshot: some agents keep each piece as a part.
            match (known.last_mut(), part["text"].as_str()) {
                (Some(last), Some(more)) if last["text"].is_string() => {
                    let whole = format!("{}{more}", text(&last["text"]));
                    last["text"] = Value::from(whole);
                }
                _ => known.push(part),
            }
        }
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
        format!("{} {} {}", self.state, text(&self.message["messageId"]), self.timestamp)
    }

    /// The text of its status: a question, or why it failed. Data counts only if there is no text.
    pub(crate) fn status_text(&self) -> String {
        let all = parts(&self.message);
        let texts: Vec<Value> =
            all.iter().filter(|part| part["text"].is_string()).cloned().collect();
        text_of(if texts.is_empty() { &all } else { &texts })
    }

    /// The parts of its status.
    pub(crate) fn status_parts(&self) -> Vec<Value> {
        parts(&self.message)
    }

    /// The text of its artifacts, or of its answer.
    pub(crate) fn text(&self) -> String {
        if let Some(answer) = &self.answer {
            return text_of(answer);
        }
        let texts = self.artifacts.iter().map(|artifact| text_of(&artifact.parts));
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        texts.join("\n\n")
    }

    /// The text of a completed task. Some agents put it into the status.
    pub(crate) fn answer(&self) -> String {
        match self.text() {
            text if text.is_empty() => self.status_text(),
            text => text,
        }
    }

    /// The data of the last part with data.
    pub(crate) fn data(&self) -> Option<Value> {
        let all =
            self.artifacts.iter().flat_map(|it| &it.parts).chain(self.answer.iter().flatten());
        all.filter_map(|part| part.get("data").filter(|data| !data.is_null())).next_back().cloned()
    }
}

/// Returns the name of a state in A2A 1.0. Agents of 1.0 with a library of 0.3 write `completed`.
fn canonical(state: &str) -> String {
    let name = state.to_ascii_uppercase().replace('-', "_");
    match name.starts_with("TASK_STATE_") {
        _ if name.is_empty() => name,
        true => name,
        false => format!("TASK_STATE_{name}"),
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

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn parts(of: &Value) -> Vec<Value> {
    of["parts"].as_array().cloned().unwrap_or_default()
}

/// The text of parts. A file is only named: it is never fetched.
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
        let (state, answer, data) = (task.state(), task.answer(), task.data());
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

    /// Class: events that do not have all of an answer. A piece of an artifact that had never begun, on a stream that was taken up
    /// again, was the whole answer; and a description of the task without artifacts removed those that were known.
    #[test]
    fn what_events_do_not_have_is_read_with_the_task() {
        let working = json!({"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}});
        let completed = status("TASK_STATE_COMPLETED");
        let of = |events: &[&Value]| {
            let mut task = RemoteTask::new(1_000);
            for event in events {
                task.apply(event).expect("it is small");
            }
            (task.completeness(), task.text(), task)
        };
        let begun = of(&[&chunk("It ", false), &chunk("is.", true), &completed]);
        assert_eq!((begun.0, begun.1.as_str()), (Completeness::Complete, "It is."));
        let unconfirmed = of(&[&chunk("It is.", false), &working, &completed]);
        assert_eq!((unconfirmed.0, unconfirmed.1.as_str()), (Completeness::Unconfirmed, "It is."));
        let repeated =
            of(&[&chunk("It ", false), &working, &chunk("It ", false), &chunk("is.", true)]);
        assert_eq!((repeated.0, repeated.1.as_str()), (Completeness::Unconfirmed, "It is."));
        let never_begun = of(&[&working, &chunk("is.", true), &completed]);
        assert_eq!((never_begun.0, never_begun.1.as_str()), (Completeness::Gap, "is."));
        let new_or_repeated = of(&[&chunk("It ", false), &working, &chunk("is.", true)]);
        assert_eq!(new_or_repeated.0, Completeness::Gap);

        let mut task = never_begun.2;
        task.confirm(&working["task"]).expect("it is small");
        assert_eq!(task.completeness(), Completeness::Gap, "the agent does not have it either");
        let artifacts = json!([{"artifactId": "a", "parts": [{"text": "It is."}]}]);
        task.confirm(&json!({"id": "t", "artifacts": artifacts})).expect("it is small");
        assert_eq!(
            (task.completeness(), task.text()),
            (Completeness::Complete, "It is.".to_owned())
        );
    }

    /// An agent could send artifacts without an end, and each event costs as much as all of them.
    #[test]
    fn artifacts_are_limited() {
        let mut task = RemoteTask::new(100);
        for _ in 0..3 {
            assert_eq!(task.apply(&chunk(&"x".repeat(60), false)), Ok(()), "it replaces itself");
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
        assert_eq!(applied(Value::Null), Ok(()));
    }

    #[test]
    fn other_tasks_and_malformed_events_change_nothing() {
        let other =
            json!({"statusUpdate": {"taskId": "other", "status": {"state": "TASK_STATE_FAILED"}}});
        let odd = [
            json!({}),
            json!({"task": 7}),
            json!({"artifactUpdate": []}),
            json!({"statusUpdate": {"taskId": 7}}),
        ];
        let first = json!({"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}});
        let results: Vec<Value> = [first, other].into_iter().chain(odd).collect();
        check(&results, expect![[r#"t Works "" None"#]]);
    }
}
