//! Recorded runs: a run that has ended, kept as a recording. The replay provider reads the same file. `super::repeat` repeats
//! it offline, and `super::diff` says what has changed.
//!
//! A file has one line for the run, and one for each run that it delegated. Their ids are derived as those of runs:
//! `NAME`, `NAME~1.1~run`. So the result of a call is found by the id of the call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use abide_client::rows::{
    AgentState, Approval, ApprovalStatus, Effect, Run, RunStatus, ToolCall, ToolCallStatus,
};
use abide_client::rules::DERIVED;
use abide_client::{Abide, Error, Json};
use abide_definitions::agent::AgentDefinition;
use abide_definitions::agent_tool::GET_TOOL_RESPONSE;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::catalog;
use crate::context::entry::{AssistantEntry, CallStatus, MEMORY, ToolEntry, data};
use crate::run::error::RuntimeError;

/// A recorded run with the runs that it delegated.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRun {
    /// The conversations: of the run, then of the runs that it delegated.
    pub conversations: Vec<RecordedConversation>,
}

/// One run, as a line of a recording. The replay provider reads `id`, `model` and `messages`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedConversation {
    /// The name of the recording, or that and the position of the delegating call.
    pub id: String,
    /// The model of the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The agent.
    #[serde(default)]
    pub agent: String,
    /// Its instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// How many messages were in the session before the run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub earlier: usize,
    /// The messages.
    pub messages: Vec<RecordedMessage>,
    /// The tools that the run has called, and those that its agent names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<RecordedTool>,
    /// How it ended.
    #[serde(default)]
    pub outcome: RecordedOutcome,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A message of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedMessage {
    /// `system`, `user`, `assistant`, `tool`, or another author.
    pub role: String,
    /// The text.
    #[serde(default)]
    pub content: Option<String>,
    /// The calls of an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<RecordedCall>,
    /// The provider's id of the call of a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool of a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether a result is an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub error: bool,
    /// The position of a call in the run: number of the answer, number of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// What became of a call; if omitted, `error` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<CallStatus>,
    /// The exit code of the tool's program, or 128 plus its signal; for other tools 0 or 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The result of a tool that succeeded, before it was shortened for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why the tool failed, or why the call was rejected, before it was shortened for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The decision on the call, if it needed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<RecordedApproval>,
    /// `false` if the call was refused before its tool was asked, for example because the tool was blocked. So the recording has no
    /// result of the tool. Recordings of earlier versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<bool>,
    /// How the recorded call ended, if the accepted definitions end it in another way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<RecordedEnding>,
    /// The usage of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<RecordedUsage>,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEnding {
    /// What became of it.
    pub status: CallStatus,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The text that the model read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

impl RecordedMessage {
    /// What became of the call of a result, with the definitions of the recording.
    #[must_use]
    pub fn status(&self) -> CallStatus {
        let by_error = if self.error { CallStatus::Failed } else { CallStatus::Succeeded };
        self.status.unwrap_or(by_error)
    }

    /// Returns how the call ended when it was recorded, also if definitions that were accepted later end it in another way.
    #[must_use]
    pub fn ending(&self) -> RecordedEnding {
        self.kept.clone().unwrap_or_else(|| RecordedEnding {
            status: self.status(),
            exit_code: self.exit_code,
            content: self.content.clone(),
        })
    }

    /// Returns why a supervisor has rejected the call. Without an approval, only a supervisor can.
    pub(super) fn supervisor_rejection(&self) -> Option<&str> {
        let is_rejected = self.ending().status == CallStatus::Rejected;
        let by_approval = self.approval.as_ref().is_some_and(|decision| !decision.approved);
        self.failure.as_deref().filter(|_| is_rejected && !by_approval)
    }

    /// Takes over what tools and people have done from the recorded message of the same call. This message is the result of the
    /// call in a repetition: what the current definitions make of it.
    pub(super) fn keep_facts(&mut self, recorded: &RecordedMessage) {
        let is_requested = self.ran != Some(false);
        if recorded.ran != Some(false) {
            let ending = recorded.ending();
            let is_same = (self.status(), self.exit_code) == (ending.status, ending.exit_code);
            if !is_requested || !is_same {
                self.kept = Some(ending);
            } else if ending.status == CallStatus::Cancelled {
                // The repetition cancels a call at another moment. The text says whether it had begun.
                self.content = ending.content;
            }
        } else if self.status() == CallStatus::Succeeded {
            // A tool of the runtime has really run: only they succeed without a recorded result.
            return;
        }
        self.ran = recorded.ran;
        self.result.clone_from(&recorded.result);
        self.failure.clone_from(&recorded.failure);
        if let Some(decision) = &recorded.approval {
            let omitted = self.approval.is_none();
            self.approval = Some(RecordedApproval { omitted, ..decision.clone() });
        }
    }
}

/// A call of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedCall {
    /// The provider's id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments, as the model wrote them.
    pub arguments: String,
    /// What the definitions do with the call, if the run ended before the model had its result. Otherwise the result says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<CallGate>,
}

/// What definitions do with a call that a model asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallGate {
    /// It waits for an approval.
    Approval,
    /// It is requested without an approval.
    Open,
    /// It is refused before its tool is asked.
    Refused,
}

/// A decision on a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedApproval {
    /// Whether it was approved.
    pub approved: bool,
    /// The approver's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The arguments, if the approver changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Value>,
    /// Whether the accepted definitions do not ask for it. The decision is kept for definitions that do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub omitted: bool,
}

/// The reported usage of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedUsage {
    /// Tokens of the request.
    pub input_tokens: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: Option<u64>,
}

/// A tool, as it was registered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedTool {
    /// Its name.
    pub name: String,
    /// Its description.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of its arguments.
    #[serde(default)]
    pub parameters: Value,
    /// The effect of a repeated call.
    pub effect: Effect,
    /// Whether each call needs an approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_approval: bool,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedOutcome {
    /// `done`, `failed` or `aborted`.
    #[serde(default)]
    pub status: String,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The structured answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Number of answers.
    #[serde(default)]
    pub answers: i64,
    /// Number of requested tool calls.
    #[serde(default)]
    pub tool_calls: i64,
    /// Input tokens.
    #[serde(default)]
    pub input_tokens: i64,
    /// Output tokens.
    #[serde(default)]
    pub output_tokens: i64,
}

/// The codes of runs that the clock or a price has ended. A repetition has no such limits.
const INTERRUPTED: [&str; 2] = ["execution_timeout", "cost_limit"];

impl RecordedOutcome {
    /// Returns `true` if the run was ended from outside: by a person, the clock or a price.
    pub(super) fn is_interrupted(&self) -> bool {
        let code = self.error_code.as_deref();
        self.status == RunStatus::Aborted.as_str()
            || code.is_some_and(|code| INTERRUPTED.contains(&code))
    }
}

/// The code of a run that was exported: `end_moved` of the reducers sets it.
const MOVED: &str = "moved";

/// Why a run cannot be recorded, or a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// A query or a call failed.
    #[error(transparent)]
    Abide(#[from] Error),
    /// There is no such run.
    #[error("there is no run {0}")]
    Missing(String),
    /// The run has not ended.
    #[error("run {0} is {1}; only a run that has ended can be recorded")]
    Active(String, RunStatus),
    /// The run was exported and continues in another file.
    #[error("run {0} was moved to another file; record it in that file")]
    Moved(String),
    /// The agent of the run, or of a run that it delegated, works outside of the runtime.
    #[error(
        "run {run} cannot be recorded: its agent {agent} is {kind}, which cannot be repeated offline"
    )]
    External {
        /// The run.
        run: String,
        /// Its agent.
        agent: String,
        /// A program or a remote agent.
        kind: &'static str,
    },
    /// The run is a part of another one.
    #[error("run {0} was delegated; record run {1}, which includes it")]
    Delegated(String, String),
    /// The file is not a recording.
    #[error("{0}")]
    Malformed(String),
    /// The definition or the runtime cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl RecordedRun {
    /// Records a run that has ended, under a name.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub async fn record(
        abide: &Abide,
        run_id: &str,
        name: &str,
    ) -> Result<RecordedRun, RecordingError> {
        let mut recorded = RecordedRun::with_all_gates(abide, run_id, name).await?;
        recorded.drop_gates_of_results();
        Ok(recorded)
    }

    /// Records a run, with the gates of all calls.
    pub(super) async fn with_all_gates(
        abide: &Abide,
        run_id: &str,
        name: &str,
    ) -> Result<RecordedRun, RecordingError> {
        let sql = "SELECT * FROM runs WHERE id = :id";
        let found: Vec<Run> = abide.sql(sql).param("id", run_id).fetch().await?;
        let run = found.into_iter().next();
        let run = run.ok_or_else(|| RecordingError::Missing(run_id.to_owned()))?;
        if !run.status.is_terminal() {
            return Err(RecordingError::Active(run.id, run.status));
        }
        if run.error_code.as_deref() == Some(MOVED) {
            return Err(RecordingError::Moved(run.id));
        }
        if let Some(parent) = run.parent_id {
            return Err(RecordingError::Delegated(run.id, parent));
        }
        let sql = "SELECT r.* FROM delegations AS d JOIN runs AS r ON r.id = d.run_id \
                   WHERE d.root_id = :id ORDER BY d.depth, d.run_id";
        let below: Vec<Run> = abide.sql(sql).param("id", &run.id).fetch().await?;
        let root = run.id.clone();
        let mut conversations = Vec::new();
        for run in std::iter::once(run).chain(below) {
            let position = run.id.strip_prefix(root.as_str()).unwrap_or_default();
            let id = format!("{name}{position}");
            conversations.push(conversation(abide, run, id).await?);
        }
        Ok(RecordedRun { conversations })
    }

    /// Drops the gates of calls that have a result, which says more.
    pub(super) fn drop_gates_of_results(&mut self) {
        for conversation in &mut self.conversations {
            let results = conversation.messages.iter().filter_map(|it| it.tool_call_id.clone());
            let results: BTreeSet<String> = results.collect();
            let calls = conversation.messages.iter_mut().flat_map(|it| &mut it.tool_calls);
            for call in calls.filter(|call| results.contains(&call.id)) {
                call.gate = None;
            }
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.conversations.first().map_or("", |first| &first.id)
    }

    /// Returns the text of its file: one line of JSON for each conversation.
    #[must_use]
    pub fn to_text(&self) -> String {
        let lines = self.conversations.iter().filter_map(|it| serde_json::to_string(it).ok());
        lines.map(|line| line + "\n").collect()
    }

    /// Reads the file of a recording.
    ///
    /// # Errors
    /// [`RecordingError::Malformed`].
    pub fn from_file(path: &Path) -> Result<RecordedRun, RecordingError> {
        let wrong = |why: String| RecordingError::Malformed(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|why| wrong(why.to_string()))?;
        RecordedRun::from_text(&text).map_err(|why| wrong(why.to_string()))
    }

    /// Parses the text of a recording.
    ///
    /// # Errors
    /// [`RecordingError::Malformed`].
    pub fn from_text(text: &str) -> Result<RecordedRun, RecordingError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let mut conversations = Vec::new();
        for (at, line) in lines {
            let parsed: Result<RecordedConversation, _> = serde_json::from_str(line);
            let wrong = |why: String| RecordingError::Malformed(format!("line {}: {why}", at + 1));
            conversations.push(parsed.map_err(|why| wrong(why.to_string()))?);
        }
        let Some(first) = conversations.first() else {
            return Err(RecordingError::Malformed("there is no recording".to_owned()));
        };
        let is_below = |it: &RecordedConversation| {
            it.id.strip_prefix(first.id.as_str()).is_some_and(|rest| rest.starts_with(DERIVED))
        };
        if first.agent.is_empty() || !conversations.iter().skip(1).all(is_below) {
            let why = "not a recording of abide agent record: one run, with its agent".to_owned();
            return Err(RecordingError::Malformed(why));
        }
        Ok(RecordedRun { conversations })
    }
}

/// Returns the recording of one run.
async fn conversation(
    abide: &Abide,
    run: Run,
    id: String,
) -> Result<RecordedConversation, RecordingError> {
    let definition = catalog::revision::load_definition(abide, &run.agent, run.revision).await?;
    let kind = match (&definition.cli, &definition.a2a) {
        (Some(_), _) => Some("a program (cli)"),
        (_, Some(_)) => Some("a remote agent (a2a)"),
        (None, None) => None,
    };
    if let Some(kind) = kind {
        return Err(RecordingError::External { run: run.id, agent: run.agent, kind });
    }
    let sql = "SELECT * FROM agent_state WHERE session_id = :sid \
               AND id <= (SELECT coalesce(max(id), 0) FROM agent_state WHERE session_id = :sid \
                          AND created_at <= :until) ORDER BY id";
    let entries = abide.sql(sql).param("sid", &run.session_id);
    let mut entries: Vec<AgentState> =
        entries.param("until", run.ended_at.map_or(i64::MAX, |at| at.0)).fetch().await?;
    // The facts of a file are not part of what was said. The repetition has its own.
    entries.retain(|entry| entry.kind != MEMORY);
    let sql = "SELECT * FROM tool_calls WHERE session_id = :sid";
    let calls: Vec<ToolCall> = abide.sql(sql).param("sid", &run.session_id).fetch().await?;
    let sql = "SELECT * FROM approvals WHERE session_id = :sid";
    let approvals: Vec<Approval> = abide.sql(sql).param("sid", &run.session_id).fetch().await?;
    let sql = "SELECT data FROM run_events WHERE run_id = :id AND kind = 'usage' ORDER BY number";
    let usages: Vec<(Json,)> = abide.sql(sql).param("id", &run.id).fetch().await?;
    let calls: BTreeMap<&str, &ToolCall> = calls.iter().map(|it| (&*it.call_id, it)).collect();
    let approvals: BTreeMap<&str, &Approval> =
        approvals.iter().map(|it| (&*it.call_id, it)).collect();
    let is_own = |entry: &AgentState| {
        entry.role == "assistant" && data::<AssistantEntry>(entry).run_id == run.id
    };
    let first = entries.iter().position(is_own).unwrap_or(entries.len());
    // The input of the run is the message before its first answer.
    let input = entries[..first].iter().rposition(|entry| entry.role == "user");
    let answers = entries.iter().filter(|entry| is_own(entry)).count();
    let mut usages = if usages.len() == answers {
        usages.iter().map(|(usage,)| usage_of(&usage.value())).collect::<Vec<_>>()
    } else {
        vec![RecordedUsage {
            input_tokens: u64::try_from(run.input_tokens).ok(),
            output_tokens: u64::try_from(run.output_tokens).ok(),
        }]
    }
    .into_iter();
    // Middleware and the runtime answer some calls without a request to the tool.
    let tool_entries = entries.iter().filter(|entry| entry.role == "tool");
    let refused: BTreeSet<String> = tool_entries
        .map(data::<ToolEntry>)
        .filter(|result| result.is_error && !calls.contains_key(result.call_id.as_str()))
        .map(|result| result.call_id)
        .collect();
    let mut messages = Vec::new();
    for entry in &entries {
        let mut message = message_of(entry, &run.id, &calls, &approvals);
        if entry.role == "assistant" {
            let answer: AssistantEntry = data(entry);
            for (recorded, call) in message.tool_calls.iter_mut().zip(&answer.calls) {
                let call_id = call.call_id.as_str();
                recorded.gate = if !calls.contains_key(call_id) {
                    refused.contains(call_id).then_some(CallGate::Refused)
                } else if approvals.contains_key(call_id) {
                    Some(CallGate::Approval)
                } else {
                    Some(CallGate::Open)
                };
            }
        }
        rename_calls(&mut message, &run.id, &id, &calls);
        if is_own(entry) {
            message.usage = usages.next();
        }
        messages.push(message);
    }
    let last = entries.iter().rev().find(|entry| is_own(entry));
    let model = last.map(|entry| data::<AssistantEntry>(entry).model);
    let tools = tools_of(abide, &run, &definition).await?;
    Ok(RecordedConversation {
        id,
        model: model.filter(|model| !model.is_empty()),
        agent: run.agent.clone(),
        instructions: definition.instructions,
        earlier: input.unwrap_or(first),
        messages,
        tools,
        outcome: outcome_of(&run),
    })
}

/// Replaces ids of the run's calls in texts that name them: the mark in a result that was cut, and the arguments of the tool that
/// fetches the rest. In the repetition, the calls have ids of the recording.
fn rename_calls(
    message: &mut RecordedMessage,
    run_id: &str,
    id: &str,
    calls: &BTreeMap<&str, &ToolCall>,
) {
    if let (Some(position), Some(content)) = (&message.position, &mut message.content) {
        let own = format!("{run_id}{DERIVED}{position}");
        *content = content.replace(&own, &format!("{id}{DERIVED}{position}"));
    }
    let fetches = message.tool_calls.iter_mut().filter(|call| call.name == GET_TOOL_RESPONSE);
    for arguments in fetches.map(|call| &mut call.arguments) {
        // The last one: an id can begin with another.
        let named = calls.keys().rev().find_map(|call_id| {
            let position = call_id.strip_prefix(run_id)?.strip_prefix(DERIVED)?;
            arguments.contains(call_id).then_some((call_id, position))
        });
        if let Some((call_id, position)) = named {
            *arguments = arguments.replace(*call_id, &format!("{id}{DERIVED}{position}"));
        }
    }
}

/// Returns the tools of the session's calls and those that the definition names, without those that stand for agents.
async fn tools_of(
    abide: &Abide,
    run: &Run,
    definition: &AgentDefinition,
) -> Result<Vec<RecordedTool>, RecordingError> {
    let sql = "SELECT * FROM tools WHERE (annotations IS NULL OR annotations ->> '$.agent' IS NULL) \
               AND (name IN (SELECT tool_name FROM tool_calls WHERE session_id = :sid) \
                    OR name IN (SELECT value FROM json_each(:names)) \
                    OR EXISTS (SELECT 1 FROM json_each(:prefixes) \
                               WHERE substr(name, 1, length(value)) = value)) ORDER BY name";
    let named = definition.named_tools();
    let (patterns, names): (Vec<&String>, Vec<&String>) =
        named.iter().partition(|name| name.ends_with('*'));
    // `*` alone selects what there is, also nothing.
    let prefixes: Vec<&str> = patterns
        .into_iter()
        .filter_map(|pattern| pattern.strip_suffix('*'))
        .filter(|prefix| !prefix.is_empty())
        .collect();
    let tools: Vec<abide_client::rows::Tool> = abide
        .sql(sql)
        .param("sid", &run.session_id)
        .param("names", json!(names).to_string())
        .param("prefixes", json!(prefixes).to_string())
        .fetch()
        .await?;
    let recorded = tools.into_iter().map(|tool| RecordedTool {
        name: tool.name,
        description: tool.description.unwrap_or_default(),
        parameters: tool.input_schema.map(|schema| schema.value()).unwrap_or_default(),
        effect: tool.effect,
        needs_approval: tool.needs_approval,
    });
    Ok(recorded.collect())
}

fn outcome_of(run: &Run) -> RecordedOutcome {
    let output = run.output.as_ref().map(Json::value).unwrap_or_default();
    RecordedOutcome {
        status: run.status.as_str().to_owned(),
        content: output["content"].as_str().map(str::to_owned),
        structured: output.get("structured").cloned(),
        error_code: run.error_code.clone(),
        answers: run.iterations,
        tool_calls: run.tool_calls,
        input_tokens: run.input_tokens,
        output_tokens: run.output_tokens,
    }
}

fn usage_of(usage: &Value) -> RecordedUsage {
    RecordedUsage {
        input_tokens: usage["input_tokens"].as_u64(),
        output_tokens: usage["output_tokens"].as_u64(),
    }
}

fn message_of(
    entry: &AgentState,
    run_id: &str,
    calls: &BTreeMap<&str, &ToolCall>,
    approvals: &BTreeMap<&str, &Approval>,
) -> RecordedMessage {
    let message = RecordedMessage {
        role: entry.role.clone(),
        content: entry.content.clone(),
        ..RecordedMessage::default()
    };
    match entry.role.as_str() {
        "assistant" => {
            let answer: AssistantEntry = data(entry);
            let asked = answer.calls.into_iter().map(|call| RecordedCall {
                id: call.provider_call_id,
                name: call.name,
                arguments: call.arguments,
                gate: None,
            });
            RecordedMessage { tool_calls: asked.collect(), ..message }
        }
        "tool" => {
            let entry: ToolEntry = data(entry);
            let row = calls.get(entry.call_id.as_str());
            let succeeded = row.filter(|row| row.status == ToolCallStatus::Succeeded);
            let failed = row.filter(|row| {
                matches!(row.status, ToolCallStatus::Failed | ToolCallStatus::Rejected)
            });
            let position =
                entry.call_id.strip_prefix(run_id).and_then(|it| it.strip_prefix(DERIVED));
            // Middleware and the runtime answer some calls without a request to the tool.
            let is_refused = position.is_some() && row.is_none() && entry.is_error;
            RecordedMessage {
                tool_call_id: Some(entry.provider_call_id),
                name: Some(entry.name),
                error: entry.is_error,
                position: position.map(str::to_owned),
                status: entry.status,
                exit_code: (entry.exit_code != 0).then_some(entry.exit_code),
                result: succeeded.and_then(|row| row.result.as_ref()).map(Json::value),
                failure: failed.and_then(|row| row.error.clone()),
                approval: approvals.get(entry.call_id.as_str()).and_then(|it| decision(it)),
                ran: is_refused.then_some(false),
                ..message
            }
        }
        _ => message,
    }
}

fn decision(approval: &Approval) -> Option<RecordedApproval> {
    let approved = match approval.status {
        ApprovalStatus::Approved => true,
        ApprovalStatus::Rejected | ApprovalStatus::Expired => false,
        ApprovalStatus::Pending | ApprovalStatus::Cancelled => return None,
    };
    let comment = approval.comment.clone();
    let arguments = approval.approved_arguments.as_ref().map(Json::value);
    Some(RecordedApproval { approved, comment, arguments, omitted: false })
}
