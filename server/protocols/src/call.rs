//! Tool calls as protocols show them: what became of a call, and the interrupt that asks for a decision on one. Each protocol puts
//! the same texts and the same object where it has a place for them.

use abide_schema::{Micros, TextEnum};
use serde_json::{Map, Value as JsonValue, json};

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallItem {
    pub(super) call_id: String,
    pub(super) name: String,
    /// The arguments that ran, as far as it is known; before a decision those of the model.
    pub(super) arguments: JsonValue,
    /// The approver has changed the arguments.
    pub(super) is_edited: bool,
    pub(super) outcome: Option<CallOutcome>,
    /// It was requested in an earlier turn.
    pub(super) is_earlier: bool,
    /// An interrupt has asked for its approval.
    pub(super) needed_approval: bool,
    /// Why its outcome is unknown, if a worker has reported a reason.
    pub(super) why_unknown: Option<String>,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallOutcome {
    pub(super) output: String,
    pub(super) status: CallStatus,
    /// The exit code of the tool's program, or 128 plus its signal; for other tools 0 or 1.
    exit_code: Option<i64>,
}

/// The status of a `tool_result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub(super) enum CallStatus {
    Succeeded,
    Failed,
    /// By a person or by middleware. The call did not run.
    Rejected,
    /// Past a limit. The call did not run.
    Skipped,
    Cancelled,
}

impl CallItem {
    /// Returns the call of a `tool_call` event.
    pub(super) fn from_event(data: &JsonValue) -> CallItem {
        CallItem::new(
            text_or_empty(&data["id"]),
            text_or_empty(&data["name"]),
            data["args"].clone(),
        )
    }

    /// Returns the calls of an `interrupt` event whose outcome is unknown.
    pub(super) fn unsettled(interrupt: &JsonValue) -> impl Iterator<Item = CallItem> {
        requests_with_status(interrupt, "unknown").map(|request| {
            let [id, name] =
                ["tool_call_id", "tool_name"].map(|name| text_or_empty(&request[name]));
            let why_unknown = request["error"].as_str().map(str::to_owned);
            CallItem { why_unknown, ..CallItem::new(id, name, request["args"].clone()) }
        })
    }

    /// Returns why the outcome of the call is unknown. A call without a reported reason has lost its worker.
    pub(super) fn why_unknown(&self) -> &str {
        self.why_unknown.as_deref().unwrap_or("its process disappeared")
    }

    fn new(call_id: &str, name: &str, arguments: JsonValue) -> CallItem {
        CallItem {
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments,
            is_edited: false,
            outcome: None,
            is_earlier: false,
            needed_approval: false,
            why_unknown: None,
        }
    }

    /// Returns `true` if it has ended without success.
    pub(super) fn has_failed(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.status != CallStatus::Succeeded)
    }

    /// Returns what the output of a call that has ended does not say: its status, its exit code, and the arguments that an
    /// approver has changed. `None` for a call that succeeded with the arguments of the model.
    pub(super) fn result_details(&self) -> Option<JsonValue> {
        let outcome = self.outcome.as_ref()?;
        if outcome.status == CallStatus::Succeeded && !self.is_edited {
            return None;
        }
        let mut result = json!({"callId": self.call_id, "tool": self.name,
            "status": outcome.status.as_str()});
        if let Some(code) = outcome.exit_code.filter(|_| outcome.status.has_run()) {
            result["exitCode"] = json!(code);
        }
        if self.is_edited {
            result["arguments"] = self.arguments.clone();
        }
        Some(result)
    }
}

impl CallOutcome {
    /// Returns the outcome of a `tool_result` event. An event of another driver may have no status.
    pub(super) fn from_event(data: &JsonValue) -> CallOutcome {
        let output = match &data["output"] {
            JsonValue::String(text) => text.clone(),
            other => other.to_string(),
        };
        let exit_code = data["exit_code"].as_i64();
        let status = data["status"].as_str().and_then(CallStatus::from_text);
        CallOutcome {
            output,
            status: status.unwrap_or(match exit_code {
                None | Some(0) => CallStatus::Succeeded,
                Some(_) => CallStatus::Failed,
            }),
            exit_code,
        }
    }

    /// Returns the outcome of a call whose run has ended before it. Whether it had an effect is in its row.
    pub(super) fn without_result() -> CallOutcome {
        let output = "The run ended before the call had a result.".to_owned();
        CallOutcome { output, status: CallStatus::Cancelled, exit_code: None }
    }

    /// Returns the status in words, such as `failed (exit code 3)`. A failure without an exit code of its own counts as 1.
    pub(super) fn label(&self) -> String {
        match self.exit_code {
            Some(code) if self.status == CallStatus::Failed && code != 1 => {
                format!("failed (exit code {code})")
            }
            _ => self.status.to_string(),
        }
    }

    /// Returns the output for a protocol that has only a text. Texts of calls that did not run say so; the output of a tool that
    /// failed can look like that of one that succeeded.
    pub(super) fn labelled_output(&self) -> String {
        match self.status {
            CallStatus::Failed => format!("failed: {}", self.output),
            _ => self.output.clone(),
        }
    }
}

impl CallStatus {
    /// Returns `true` if the call can have an exit code of its own.
    fn has_run(self) -> bool {
        matches!(self, CallStatus::Succeeded | CallStatus::Failed)
    }
}

/// The tool whose calls are questions of other tools. Their arguments have the form of the answer as `schema`.
pub(super) const QUESTION: &str = "tool_input";

/// A call that waits for a decision, from an `interrupt` event. What a caller may see of it follows from the event, which a policy
/// can hide.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interrupt {
    /// The entry of `action_requests`, with the agent and the session of the call.
    request: JsonValue,
}

impl Interrupt {
    /// Returns the calls for whose decision an `interrupt` event asks.
    pub(super) fn from_event(data: &JsonValue) -> impl Iterator<Item = Interrupt> {
        requests_with_status(data, "awaiting_approval").map(|request| {
            let mut request = request.clone();
            // Only calls of delegated runs name theirs.
            for name in ["agent", "session_id"] {
                if request[name].is_null() && !data[name].is_null() {
                    request[name] = data[name].clone();
                }
            }
            Interrupt::new(request)
        })
    }

    /// Returns the interrupt for a call, in the form of an entry of `action_requests`.
    pub(super) fn new(request: JsonValue) -> Interrupt {
        Interrupt { request }
    }

    pub(super) fn call_id(&self) -> &str {
        text_or_empty(&self.request["tool_call_id"])
    }

    pub(super) fn tool(&self) -> &str {
        text_or_empty(&self.request["tool_name"])
    }

    /// Returns the interrupt in the form of the event, for a client that reads runs.
    pub(super) fn request(&self) -> &JsonValue {
        &self.request
    }

    /// Returns the arguments of the model.
    pub(super) fn arguments(&self) -> &JsonValue {
        &self.request["args"]
    }

    /// Returns the form of the answer, if a tool asks a question that has one.
    pub(super) fn form(&self) -> Option<&JsonValue> {
        let schema = &self.arguments()["schema"];
        (self.tool() == QUESTION && schema.is_object()).then_some(schema)
    }

    /// Returns the call itself.
    pub(super) fn call(&self) -> CallItem {
        let call = CallItem::new(self.call_id(), self.tool(), self.arguments().clone());
        CallItem { needed_approval: true, ..call }
    }

    /// Returns the question, for clients that show the call too: that of the tool's approval, if it has one.
    pub(super) fn message(&self) -> String {
        match (self.question(), self.request["prompt"].as_str()) {
            (Some(question), _) => question,
            (None, Some(prompt)) => prompt.to_owned(),
            (None, None) => format!("{} needs an approval", self.tool()),
        }
    }

    /// Returns the question with the call and the suggested values, for clients that show a text only.
    pub(super) fn description(&self) -> String {
        if let Some(question) = self.question() {
            return question;
        }
        let agent = self.request["agent"].as_str().unwrap_or("the agent");
        let mut said = match self.request["prompt"].as_str() {
            Some(prompt) => format!("{prompt} "),
            None => String::new(),
        };
        said += &format!("May {agent} call {} with {}?", self.tool(), self.arguments());
        if !self.request["defaults"].is_null() {
            said += &format!(" Suggested values: {}.", self.request["defaults"]);
        }
        said
    }

    /// Returns the question of a tool.
    fn question(&self) -> Option<String> {
        let [tool, message] =
            ["tool", "message"].map(|name| text_or_empty(&self.arguments()[name]));
        (self.tool() == QUESTION).then(|| format!("{tool} asks: {message}"))
    }

    /// Returns when the approval expires, as ISO 8601.
    pub(super) fn expires_at(&self) -> Option<String> {
        self.request["expires_at"].as_i64().map(|at| Micros(at).to_string())
    }

    /// Returns the interrupt as programs read it. Members without a value are absent.
    pub(super) fn to_json(&self) -> JsonValue {
        let expires_at = self.expires_at().map_or(JsonValue::Null, JsonValue::from);
        let members = [
            ("callId", &self.request["tool_call_id"]),
            ("tool", &self.request["tool_name"]),
            ("arguments", &self.request["args"]),
            ("approvalId", &self.request["approval_id"]),
            ("prompt", &self.request["prompt"]),
            ("defaults", &self.request["defaults"]),
            ("agent", &self.request["agent"]),
            ("sessionId", &self.request["session_id"]),
            ("expiresAt", &expires_at),
        ];
        let known = members.into_iter().filter(|(_, value)| !value.is_null());
        let object: Map<String, JsonValue> =
            known.map(|(name, value)| (name.to_owned(), value.clone())).collect();
        JsonValue::Object(object)
    }
}

/// Returns the entries with this status of `action_requests` of an `interrupt` event.
fn requests_with_status<'a>(
    data: &'a JsonValue,
    status: &str,
) -> impl Iterator<Item = &'a JsonValue> {
    let requests = data["action_requests"].as_array().into_iter().flatten();
    requests.filter(move |request| request["status"] == status)
}

fn text_or_empty(value: &JsonValue) -> &str {
    value.as_str().unwrap_or_default()
}
