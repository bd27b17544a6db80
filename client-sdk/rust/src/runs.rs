//! Agents and runs: the calls that an agent runtime needs, and those with which an application starts
//! and stops runs.

use std::fmt;
use std::time::Duration;

use abide_reducers::run::RunEnd;
use abide_reducers::run::drive::ModelUsage;
use abide_reducers::{Agent, AgentMode, Run, ToolCall};
use abide_schema::reducer::DERIVED;
use serde::Serialize;
use serde_json::{Map, Value as JsonValue, json};

use crate::abide::Abide;
use crate::builtin::{NewToolCall, millis, options};
use crate::request::{Call, Request};

/// Arguments of `register_agent`. Start with [`NewAgent::of`], then set other fields.
#[derive(Clone, Debug, Serialize)]
pub struct NewAgent {
    /// Its name.
    pub name: String,
    /// Its definition, which the runtime interprets.
    pub definition: Map<String, JsonValue>,
    /// How it can be used; default `primary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<AgentMode>,
    /// Its purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether lists omit it.
    pub hidden: bool,
    /// Whether it comes with the runtime.
    pub native: bool,
    /// The revision that it replaces: a conflict if that is no longer the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_revision: Option<i64>,
}

impl NewAgent {
    /// A primary agent.
    pub fn of(name: impl Into<String>, definition: Map<String, JsonValue>) -> NewAgent {
        NewAgent {
            name: name.into(),
            definition,
            mode: None,
            description: None,
            hidden: false,
            native: false,
            expected_revision: None,
        }
    }
}

/// Arguments of `start_run`. Start with [`NewRun::of`] a session, then set other fields.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NewRun {
    /// The session.
    pub session_id: String,
    /// The agent, if it is not the session's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The user's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// An id chosen by the caller. The same id means the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Time limit of the run in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
}

impl NewRun {
    /// A run of the session's agent.
    pub fn of(session_id: impl Into<String>) -> NewRun {
        NewRun { session_id: session_id.into(), ..NewRun::default() }
    }

    /// Sets the user's message.
    #[must_use]
    pub fn input(mut self, input: impl Into<String>) -> NewRun {
        self.input = Some(input.into());
        self
    }
}

/// Proof of a claimed run; each step of the run must present it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLease {
    /// The run.
    pub run_id: String,
    /// The claim's fencing token.
    pub fencing_token: i64,
}

impl RunLease {
    /// From a claimed run; `None` if the run is not claimed.
    #[must_use]
    pub fn of(run: &Run) -> Option<RunLease> {
        Some(RunLease { run_id: run.id.clone(), fencing_token: run.fencing_token? })
    }

    /// The call that records events of the run, for a batch: if the claim was lost, nothing of the batch takes
    /// effect.
    #[must_use]
    pub fn record(
        &self,
        events: &[JsonValue],
        spent: Option<&ModelUsage>,
        lease: Duration,
    ) -> Call {
        let call = Call::new("record_run", self.args()).arg("events", events);
        let call = call.arg("lease_ms", millis(lease));
        match spent {
            Some(spent) => call.arg("spent", spent),
            None => call,
        }
    }

    /// The id of a tool call of the run. Only the holder of the run can request a call with it.
    #[must_use]
    pub fn call_id(&self, rest: impl fmt::Display) -> String {
        format!("{}{DERIVED}{rest}", self.run_id)
    }

    /// The call that requests a tool call of the run; its id must come from [`RunLease::call_id`].
    #[must_use]
    pub fn request(&self, wanted: &NewToolCall) -> Call {
        let call = Call::new("request_tool_call", wanted).arg("run_id", &self.run_id);
        call.arg("run_fencing_token", self.fencing_token)
    }

    /// The call that completes the run.
    #[must_use]
    pub fn done(&self, output: &Map<String, JsonValue>) -> Call {
        Call::new("finish_run", self.args()).arg("end", RunEnd::Done).arg("output", output)
    }

    /// The call that fails the run.
    #[must_use]
    pub fn failed(&self, code: &str, message: &str) -> Call {
        let call = Call::new("finish_run", self.args()).arg("end", RunEnd::Failed);
        call.arg("code", code).arg("message", message)
    }

    /// The call that ends the run after an abort request.
    #[must_use]
    pub fn aborted(&self, message: &str) -> Call {
        Call::new("finish_run", self.args()).arg("end", RunEnd::Aborted).arg("message", message)
    }

    /// The call that records what the run waits for.
    #[must_use]
    pub fn wait(&self, interrupt: &Map<String, JsonValue>) -> Call {
        Call::new("wait_run", self.args()).arg("interrupt", interrupt)
    }

    fn args(&self) -> JsonValue {
        json!({"id": self.run_id, "fencing_token": self.fencing_token})
    }
}

/// Agents and runs.
impl Abide {
    /// Registers an agent, or a new revision of one. Registering an identical agent changes nothing.
    pub fn register_agent(&self, agent: NewAgent) -> Request<Agent> {
        Request::new(self, "register_agent", agent)
    }

    /// Retires an agent: it can start no more runs.
    pub fn retire_agent(&self, name: &str) -> Request<Agent> {
        Request::new(self, "retire_agent", json!({"name": name}))
    }

    /// Starts a run.
    pub fn start_run(&self, run: NewRun) -> Request<Run> {
        Request::new(self, "start_run", run)
    }

    /// Starts a run of another agent for a tool call that the caller has claimed. The same arguments return
    /// the same run.
    pub fn start_child_run(&self, claimed: &ToolCall, agent: &str, input: &str) -> Request<Run> {
        let args = json!({"call_id": claimed.call_id, "fencing_token": claimed.fencing_token,
            "agent": agent, "input": input});
        Request::new(self, "start_child_run", args)
    }

    /// Claims a run that has no driver, or that this driver held before.
    pub fn claim_run(&self, id: &str, driver: &str, lease: Duration) -> Request<Run> {
        let args = json!({"id": id, "driver": driver, "lease_ms": millis(lease)});
        Request::new(self, "claim_run", args)
    }

    /// Extends the lease on a run; the result shows whether an abort was requested.
    pub fn heartbeat_run(&self, hold: &RunLease, lease: Duration) -> Request<Run> {
        Request::new(self, "heartbeat_run", hold.args()).arg("lease_ms", millis(lease))
    }

    /// Requests the abort of a run.
    pub fn abort_run(&self, id: &str) -> Request<Run, options::Reason> {
        Request::new(self, "abort_run", json!({"id": id}))
    }
}
