//! A message of a session: its row, and the data that the driver of a run stores in the row.

use std::collections::BTreeSet;
use std::ops::Deref;

use abide_client::Json;
use abide_client::rows::{AgentState, Run};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A message with its parsed data. The data is parsed once, because a driver reads it in each step.
#[derive(Clone, Debug)]
pub(crate) struct SessionEntry {
    row: AgentState,
    data: EntryData,
    is_denied: bool,
    /// Outcomes of the calls of an answer that no message has, see `tools::undelivered`.
    undelivered: Vec<UndeliveredResult>,
}

/// The outcome of a call whose run ended before it gave the result to the model.
#[derive(Clone, Debug)]
pub(crate) struct UndeliveredResult {
    pub(crate) call_id: String,
    /// As the model reads it.
    pub(crate) text: String,
    pub(crate) is_error: bool,
    /// Whether it cannot change any more.
    pub(crate) is_final: bool,
}

/// What a model reads in place of a message that a request guardrail has denied.
const DENIED: &str = "[A rule has removed this message.]";

/// The parsed data of a message.
#[derive(Clone, Debug)]
enum EntryData {
    Answer(AssistantEntry),
    Result(ToolEntry),
    /// [`data`] parses it for each reader.
    Unparsed,
}

impl From<AgentState> for SessionEntry {
    fn from(row: AgentState) -> SessionEntry {
        let data = match row.role.as_str() {
            "assistant" => EntryData::Answer(data(&row)),
            "tool" => EntryData::Result(data(&row)),
            _ => EntryData::Unparsed,
        };
        SessionEntry { row, data, is_denied: false, undelivered: Vec::new() }
    }
}

impl Deref for SessionEntry {
    type Target = AgentState;

    fn deref(&self) -> &AgentState {
        &self.row
    }
}

impl SessionEntry {
    /// Replaces the text of a message that a request guardrail has denied. The stored row keeps it.
    pub(crate) fn deny(&mut self) {
        self.is_denied = true;
        self.row.content = Some(DENIED.to_owned());
    }

    /// Returns `true` if a request guardrail has denied the message.
    pub(crate) fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// Returns the outcome of a call of the answer, if it is known and no message has it.
    pub(crate) fn undelivered(&self, call_id: &str) -> Option<&UndeliveredResult> {
        self.undelivered.iter().find(|result| result.call_id == call_id)
    }

    /// Sets the outcome of a call of the answer that no message has.
    pub(crate) fn set_undelivered(&mut self, result: UndeliveredResult) {
        self.undelivered.retain(|known| known.call_id != result.call_id);
        self.undelivered.push(result);
    }

    /// Returns the data of an assistant message. It is the default if no driver wrote the message, or if it cannot be
    /// parsed.
    pub(crate) fn assistant(&self) -> Option<&AssistantEntry> {
        match &self.data {
            EntryData::Answer(answer) => Some(answer),
            EntryData::Result(_) | EntryData::Unparsed => None,
        }
    }

    /// Returns the data of a tool message. It is the default if no driver wrote the message, or if it cannot be parsed.
    pub(crate) fn tool(&self) -> Option<&ToolEntry> {
        match &self.data {
            EntryData::Result(result) => Some(result),
            EntryData::Answer(_) | EntryData::Unparsed => None,
        }
    }
}

/// Returns the row of a message for tests. The driver of run `r` wrote it if it has data.
#[cfg(test)]
pub(crate) fn test_row(id: i64, role: &str, content: &str, data: Option<&Value>) -> AgentState {
    AgentState {
        id,
        session_id: "s".to_owned(),
        role: role.to_owned(),
        kind: "message".to_owned(),
        content: Some(content.to_owned()),
        data: data.map(Json::from),
        created_at: abide_client::Micros(0),
        seq: abide_client::Seq(id),
        run_id: data.map(|_| "r".to_owned()),
    }
}

/// The data of an assistant message, besides its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AssistantEntry {
    /// The run that the message belongs to.
    pub(crate) run_id: String,
    /// The number of the answer in the run, from 1.
    pub(crate) iteration: i64,
    /// The tool calls that it requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) calls: Vec<RequestedCall>,
    /// The model's reasoning, if the provider returns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    /// Opaque data for the same provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) carry: Option<Value>,
    /// The provider that answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) provider: String,
    /// The model that answered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) model: String,
    /// How many answers the model had given since the tool call limit was reached, including this one.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) past_limit: i64,
    /// The tokens of the request, as the provider reported them.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) input_tokens: i64,
    /// The tokens of the request as they were estimated before. The quotient corrects later estimates.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) estimated_tokens: i64,
    /// How many results were cut in the request, so that it fits into the window. They can be fetched.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) cut_results: i64,
    /// Why the model stopped, in the provider's term, if the answer is not simply complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop: Option<String>,
    /// Whether a rule denies the messages since the answer before, and this is its message.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) denies_request: bool,
    /// Whether a guardrail has replaced the text. The original is in `withheld_answers`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) withheld: bool,
}

impl AssistantEntry {
    /// Whether the text is the model's own.
    pub(crate) fn is_of_the_model(&self) -> bool {
        self.iteration > 0 && !self.withheld
    }
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A tool call that a model requested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RequestedCall {
    /// Our id: derived from run, iteration and position, so a repeated request has the same id.
    pub(crate) call_id: String,
    /// The tool.
    pub(crate) name: String,
    /// The arguments, as the text that the model produced.
    pub(crate) arguments: String,
    /// The provider's id. The provider expects it with the result; it is not used as a key.
    pub(crate) provider_call_id: String,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// The tool succeeded.
    Succeeded,
    /// The tool failed, or the call was not valid.
    Failed,
    /// A person or middleware has rejected it. It did not run.
    Rejected,
    /// It exceeded a limit. It did not run.
    Skipped,
    /// It was cancelled before it began, or while it ran.
    Cancelled,
}

/// The result of a call, as the model reads it.
pub(crate) struct CallResult {
    pub(crate) text: String,
    pub(crate) status: CallStatus,
    /// The exit code of the tool's program, or 128 plus its signal; for other tools 0 or 1.
    pub(crate) exit_code: i32,
    /// The arguments that ran, if the approver changed those of the model.
    pub(crate) approved_arguments: Option<Value>,
}

impl CallResult {
    pub(crate) fn ok(text: impl Into<String>, exit_code: i32) -> CallResult {
        let status = CallStatus::Succeeded;
        CallResult { text: text.into(), status, exit_code, approved_arguments: None }
    }

    pub(crate) fn error(text: impl Into<String>) -> CallResult {
        CallResult::without_success(CallStatus::Failed, text)
    }

    pub(crate) fn without_success(status: CallStatus, text: impl Into<String>) -> CallResult {
        CallResult { text: text.into(), status, exit_code: 1, approved_arguments: None }
    }

    pub(crate) fn is_error(&self) -> bool {
        self.status != CallStatus::Succeeded
    }
}

/// The data of a tool message, besides its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ToolEntry {
    /// The call.
    pub(crate) call_id: String,
    /// The provider's id of the call.
    pub(crate) provider_call_id: String,
    /// The tool.
    pub(crate) name: String,
    /// Whether the call failed.
    pub(crate) is_error: bool,
    /// A program's exit code, else 0 or 1.
    pub(crate) exit_code: i32,
    /// The arguments that ran, if the approver changed those of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) approved_arguments: Option<Value>,
    /// What became of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<CallStatus>,
    /// The change of the active agent that the call makes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handoff: Option<HandoffEntry>,
}

/// A change of the active agent, in the data of a tool message. The counters are those of the run at that time: the
/// limits of the agent apply from there on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HandoffEntry {
    /// The run.
    pub(crate) run_id: String,
    /// The agent that takes over; `None` to hand back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<String>,
    /// Its revision.
    pub(crate) revision: i64,
    /// Microseconds since 1970.
    pub(crate) at: i64,
    /// Microseconds in which the run had not waited.
    pub(crate) worked_us: i64,
    pub(crate) iterations: i64,
    pub(crate) tool_calls: i64,
    pub(crate) tokens: i64,
    pub(crate) cost_micros: i64,
}

impl HandoffEntry {
    /// A change now. `target` is part of the result of the call.
    pub(crate) fn now(run: &Run, at: i64, target: &Value) -> HandoffEntry {
        HandoffEntry {
            run_id: run.id.clone(),
            agent: target["agent"].as_str().map(str::to_owned),
            revision: target["revision"].as_i64().unwrap_or_default(),
            at,
            worked_us: (at - run.created_at.0 - run.waited_us.unwrap_or(0)).max(0),
            iterations: run.iterations,
            tool_calls: run.tool_calls,
            tokens: run.input_tokens + run.output_tokens,
            cost_micros: run.cost_micros.unwrap_or(0),
        }
    }
}

/// Whether the driver of a run wrote the entry. Others can write entries of the same form, which have no effect on runs.
pub(crate) fn is_of_run(entry: &AgentState) -> bool {
    entry.run_id.is_some()
}

/// Whether a model sees the entry. Callers can store messages of other kinds, which are for their own programs.
pub(crate) fn is_visible(entry: &AgentState) -> bool {
    entry.role == "system"
        || ["message", "handoff"].contains(&entry.kind.as_str())
        || entry.role == "assistant" && entry.kind == PARTIAL
}

/// Whether the model sees the entry, and a caller wrote it that is not the driver of a run.
pub(crate) fn is_of_others(entry: &AgentState) -> bool {
    is_visible(entry) && !is_of_run(entry)
}

/// Whether the entry is an answer of a model.
pub(crate) fn is_answer(entry: &AgentState) -> bool {
    is_of_run(entry) && entry.role == "assistant" && entry.kind == "message"
}

/// Whether the entry is the result of a tool call.
pub(crate) fn is_result(entry: &AgentState) -> bool {
    is_of_run(entry) && entry.role == "tool" && entry.kind == "message"
}

/// Returns the last answer of a run and its position, if only its own tool results follow it.
pub(crate) fn last_answer<'a>(
    run: &Run,
    entries: &'a [SessionEntry],
) -> Option<(usize, &'a AssistantEntry)> {
    let at = entries.iter().rposition(|entry| is_answer(entry))?;
    let answer = entries[at].assistant()?;
    // The data alone could name a run that begins later.
    let is_own = answer.run_id == run.id && entries[at].run_id.as_ref() == Some(&run.id);
    is_own.then_some((at, answer))
}

/// Returns the calls of an answer that have no result among the entries after it.
pub(crate) fn open_calls<'a>(
    answer: &'a AssistantEntry,
    after: &'a [SessionEntry],
) -> impl Iterator<Item = &'a RequestedCall> {
    let results = after.iter().filter(|entry| is_result(entry));
    let answered: BTreeSet<&str> =
        results.filter_map(|entry| Some(entry.tool()?.call_id.as_str())).collect();
    answer.calls.iter().filter(move |call| !answered.contains(call.call_id.as_str()))
}

/// The kind of an interrupted answer.
pub(crate) const PARTIAL: &str = "partial";

/// The kind of an entry in which a loop in Rust has saved its state.
pub(crate) const CHECKPOINT: &str = "checkpoint";

/// The kind of a message that asks the model to correct its answer.
pub(crate) const REPAIR: &str = "repair";

/// The data of such a message, besides its text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RepairEntry {
    /// The run of the answer.
    pub(crate) run_id: String,
}

/// The kind of a message with the facts that an agent has read.
pub(crate) const MEMORY: &str = "memory";

/// The data of such a message, besides its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MemoryEntry {
    /// The run.
    pub(crate) run_id: String,
    /// The active agent.
    pub(crate) agent: String,
    /// The space that was read.
    pub(crate) space: String,
    /// The facts, each with its number and its version.
    pub(crate) facts: Vec<(i64, i64)>,
}

/// The kind of a message that warns the model.
pub(crate) const WARNING: &str = "warning";

/// The data of such a message, besides its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WarningEntry {
    /// The run.
    pub(crate) run_id: String,
    /// The answer that it is about.
    pub(crate) iteration: i64,
}

/// The `data` of an entry that the driver of a run has written; the default for other entries, and if it cannot be parsed.
pub(crate) fn data<T: for<'de> Deserialize<'de> + Default>(entry: &AgentState) -> T {
    let json = entry.data.as_ref().filter(|_| is_of_run(entry)).map(Json::as_str);
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

/// Applies the handoffs among messages to those in effect in a run. The last one is the active agent; none while the
/// run's own agent is active.
pub(crate) fn apply_handoffs(stack: &mut Vec<HandoffEntry>, run: &Run, entries: &[SessionEntry]) {
    for entry in entries {
        let handoff = entry.tool().and_then(|result| result.handoff.as_ref());
        let Some(handoff) = handoff else { continue };
        if handoff.run_id != run.id || entry.run_id.as_ref() != Some(&run.id) {
            continue;
        }
        match handoff.agent {
            Some(_) => stack.push(handoff.clone()),
            None => drop(stack.pop()),
        }
    }
}

/// Whether a text is a result that was cut because of its size, see `Truncation`.
pub(crate) fn has_cut_result(text: &str) -> bool {
    text.contains(" bytes of the result of call ")
}

/// Whether it is a result that was cut, or an answer to a request with such results.
pub(crate) fn is_cut(entry: &SessionEntry) -> bool {
    is_result(entry) && entry.content.as_deref().is_some_and(has_cut_result)
        || entry.assistant().is_some_and(|answer| answer.cut_results > 0)
}
