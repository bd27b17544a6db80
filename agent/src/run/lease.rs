//! The lease of a claimed run, and the calls of its holder. Each of them presents the claim's fencing token: after the
//! lease is lost, all of them are refused. A thread of its own renews it (`run/heartbeat.rs`).

use std::fmt;
use std::time::Duration;

use abide_client::Micros;
use abide_client::arguments::{
    FinishRun, HeartbeatRun, ModelUsage, NewRunEvent, RecordRun, RequestToolCall, RunEnd, WaitRun,
    WithholdAnswer,
};
use abide_client::rows::{Run, RunEventKind, ToolCall};
use abide_client::rules::DERIVED;
use serde_json::{Map, Value};

/// Proof of a claimed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunLease {
    /// The run.
    pub(crate) run_id: String,
    /// The claim's fencing token.
    pub(crate) fencing_token: i64,
}

impl RunLease {
    /// From a claimed run; `None` if the run is not claimed.
    pub(crate) fn from_run(run: &Run) -> Option<RunLease> {
        Some(RunLease { run_id: run.id.clone(), fencing_token: run.fencing_token? })
    }

    /// Returns the call that extends the lease.
    pub(crate) fn heartbeat(&self, lease: Duration) -> HeartbeatRun {
        HeartbeatRun::new(&self.run_id, self.fencing_token, millis(lease))
    }

    /// Returns the call that records events of the run and extends the lease. In a batch: if the claim was lost,
    /// nothing of the batch takes effect.
    pub(crate) fn record(
        &self,
        events: &[NewRunEvent],
        spent: Option<&ModelUsage>,
        lease: Duration,
    ) -> RecordRun {
        RecordRun {
            spent: spent.cloned(),
            ..RecordRun::new(&self.run_id, self.fencing_token)
                .events(events)
                .lease_ms(millis(lease))
        }
    }

    /// Returns the id of a tool call of the run. Only the holder of the run can request a call with it.
    pub(crate) fn call_id(&self, rest: impl fmt::Display) -> String {
        format!("{}{DERIVED}{rest}", self.run_id)
    }

    /// Returns the request for a tool call of the run; its id must come from [`RunLease::call_id`].
    pub(crate) fn request(&self, request: RequestToolCall) -> RequestToolCall {
        request.run_id(&self.run_id).run_fencing_token(self.fencing_token)
    }

    /// Returns the call that completes the run.
    pub(crate) fn finish(&self, output: Map<String, Value>) -> FinishRun {
        self.end(RunEnd::Done).output(output)
    }

    /// Returns the call that fails the run.
    pub(crate) fn fail(&self, code: impl Into<String>, message: impl Into<String>) -> FinishRun {
        let code: String = code.into();
        // The message can quote what the user or the model has written.
        tracing::warn!(name: "run_failed", run = self.run_id, code, "a run of an agent failed");
        self.end(RunEnd::Failed).code(code).message(message)
    }

    /// Returns the call that ends the run after an abort request.
    pub(crate) fn abort(&self, message: impl Into<String>) -> FinishRun {
        self.end(RunEnd::Aborted).message(message)
    }

    /// Returns the call that records what the run waits for, and a time limit of the wait.
    pub(crate) fn wait(&self, interrupt: Map<String, Value>, ends_at: Option<Micros>) -> WaitRun {
        WaitRun { ends_at, ..WaitRun::new(&self.run_id, self.fencing_token, interrupt) }
    }

    /// Returns the call that keeps what a guardrail has denied of an answer.
    pub(crate) fn withhold(&self, iteration: i64, original: Value) -> WithholdAnswer {
        WithholdAnswer::new(&self.run_id, self.fencing_token, iteration, original)
    }

    fn end(&self, end: RunEnd) -> FinishRun {
        FinishRun::new(&self.run_id, self.fencing_token, end)
    }
}

/// Returns an event of the run. Its data is a JSON object.
pub(crate) fn run_event(kind: RunEventKind, data: Value) -> NewRunEvent {
    let data = match data {
        Value::Object(data) => data,
        other => Map::from_iter([("value".to_owned(), other)]),
    };
    NewRunEvent { kind, data }
}

/// Returns the fencing token of a tool call that this runtime has claimed.
pub(crate) fn fencing_token(claimed: &ToolCall) -> i64 {
    claimed.fencing_token.unwrap_or_default()
}

/// Returns a time as an argument of a reducer.
pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
