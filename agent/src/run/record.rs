//! What a driver records: events, usage, messages and calls, each as one batch under the lease of the run. If the lease is lost,
//! the whole batch is refused (`record_run` in `reducers/src/run/drive.rs`).
//!
//! There are two ways. [`Driver::record_step`] records a step of the loop: it does not wait for the disk, and the driver knows the
//! rows afterwards without reading them (`run/step_batch.rs`). [`Driver::record`] records what may happen in the middle of a step,
//! such as chunks of an answer: it waits for the disk, and what it writes is read with the next action.

use abide_client::Call;
use abide_client::arguments::{AppendMessage, ModelUsage, NewRunEvent, RecordRun};
use abide_client::rows::{RunEventKind, ToolCall};
use serde_json::json;

use crate::context::entry::{CallResult, HandoffEntry, RequestedCall, ToolEntry};
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::state::NewRows;
use crate::run::step::Step;
use crate::run::step_batch::{StepBatch, StepCall};

impl Driver {
    /// Records events, usage and the given calls in one batch, under the run's lease, and waits until they are durable.
    pub(crate) async fn record(
        &self,
        events: &[NewRunEvent],
        spent: Option<&ModelUsage>,
        calls: Vec<Call>,
    ) -> Step {
        let mut batch = vec![Call::from(self.recording(events, spent))];
        batch.extend(calls);
        self.abide.batch(batch).await?;
        Ok(())
    }

    /// Records a step: events, usage and the given calls in one batch, under the run's lease. Takes over the rows afterwards. Returns
    /// those of the tool calls that it has requested. The step may not be durable yet, see [`Driver::until_durable`].
    pub(crate) async fn record_step(
        &mut self,
        events: &[NewRunEvent],
        spent: Option<&ModelUsage>,
        after: Vec<StepCall>,
    ) -> Step<Vec<ToolCall>> {
        let batch = self.step_batch(events, spent, after);
        self.send_step(&batch).await
    }

    /// Sends the batch of a step, and takes over the state afterwards like [`Driver::record_step`].
    pub(crate) async fn send_step(&mut self, batch: &StepBatch) -> Step<Vec<ToolCall>> {
        let recorded = batch.send(&self.abide).await?;
        let calls = recorded.calls.clone();
        self.apply(NewRows::Step(recorded)).await?;
        Ok(calls)
    }

    /// Returns a batch that records a step. The condition is that the known state has not changed.
    pub(crate) fn step_batch(
        &self,
        events: &[NewRunEvent],
        spent: Option<&ModelUsage>,
        after: Vec<StepCall>,
    ) -> StepBatch {
        let unchanged_since = self.state.known_seq().map(|seq| seq.0);
        let recording = RecordRun { unchanged_since, ..self.recording(events, spent) };
        StepBatch { before: Vec::new(), recording, after }
    }

    /// Waits until all recorded steps are durable. A crash then does not undo what the next effect depends on.
    pub(crate) async fn until_durable(&self) -> Step {
        Ok(self.abide.until_durable(self.state.recorded_seq()).await?)
    }

    /// Returns the call that records events and usage of the run, and renews its lease.
    fn recording(&self, events: &[NewRunEvent], spent: Option<&ModelUsage>) -> RecordRun {
        self.run_lease.record(events, spent, self.shared.settings.lease)
    }

    /// Returns the reducer call that appends a message to the session.
    pub(crate) fn message(
        &self,
        role: &str,
        text: impl Into<String>,
        data: &impl serde::Serialize,
    ) -> AppendMessage {
        let data = serde_json::to_value(data).unwrap_or_default();
        let lease = &self.run_lease;
        AppendMessage::new(&self.state.run.session_id, role, text.into())
            .data(data)
            .run_id(&lease.run_id)
            .run_fencing_token(lease.fencing_token)
    }

    /// Returns the event and the message for the result of a call.
    pub(crate) fn result_records(
        &self,
        call: &RequestedCall,
        result: &CallResult,
    ) -> (NewRunEvent, AppendMessage) {
        self.result_records_with_handoff(call, result, None)
    }

    /// Returns the event and the message for the result of a call that may change the active agent.
    pub(crate) fn result_records_with_handoff(
        &self,
        call: &RequestedCall,
        result: &CallResult,
        handoff: Option<HandoffEntry>,
    ) -> (NewRunEvent, AppendMessage) {
        let CallResult { text, status, exit_code, approved_arguments } = result;
        let mut data = json!({"tool_call_id": call.call_id, "output": text, "status": status,
            "exit_code": exit_code});
        if let Some(arguments) = approved_arguments {
            data["approved_args"] = arguments.clone();
        }
        let entry = ToolEntry {
            call_id: call.call_id.clone(),
            provider_call_id: call.provider_call_id.clone(),
            name: call.name.clone(),
            is_error: result.is_error(),
            exit_code: *exit_code,
            approved_arguments: approved_arguments.clone(),
            status: Some(*status),
            handoff,
        };
        (run_event(RunEventKind::ToolResult, data), self.message("tool", text, &entry))
    }

    /// Gives the model the result of a call that has no row.
    pub(crate) async fn record_result(&self, call: &RequestedCall, result: &CallResult) -> Step {
        let (event, message) = self.result_records(call, result);
        self.record(&[event], None, vec![message.into()]).await
    }
}
