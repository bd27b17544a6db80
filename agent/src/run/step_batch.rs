//! The batch that records a step of a run, and what its driver knows afterwards.
//!
//! A driver does not read its own writes. A step has a condition: the session, its messages and the pause of the run have
//! not changed since `known_seq`. If the condition holds, the driver adds the entries of the batch to the rows that it
//! has. If it does not hold, the step is recorded without the condition, and the driver reads the rows again.
//!
//! A driver continues before the step is durable, and waits before the next effect: a request to a model, or a tool that
//! does more than read in this process ([`crate::run::driver::Driver::until_durable`]).

use abide_client::arguments::{AppendMessage, RecordRun, RequestToolCall};
use abide_client::rows::{Run, ToolCall};
use abide_client::{Abide, AppliedCall, Call, Code, Error, Seq};

use crate::context::entry::SessionEntry;

/// A call of a batch.
#[derive(Clone, Debug)]
pub(crate) enum StepCall {
    /// Appends an entry to the session.
    Append(AppendMessage),
    /// Requests a tool call.
    Request(RequestToolCall),
    /// A call whose result the driver does not need.
    Other(Call),
}

impl From<AppendMessage> for StepCall {
    fn from(message: AppendMessage) -> StepCall {
        StepCall::Append(message)
    }
}

impl From<RequestToolCall> for StepCall {
    fn from(request: RequestToolCall) -> StepCall {
        StepCall::Request(request)
    }
}

impl From<Call> for StepCall {
    fn from(call: Call) -> StepCall {
        StepCall::Other(call)
    }
}

/// The batch of a step.
#[derive(Clone, Debug)]
pub(crate) struct StepBatch {
    /// Calls before `record_run`: the completion of the tool call whose result the step delivers.
    pub(crate) before: Vec<Call>,
    /// What is recorded of the run. `unchanged_since` is the condition.
    pub(crate) recording: RecordRun,
    /// Calls after the recording.
    pub(crate) after: Vec<StepCall>,
}

/// A recorded step.
#[derive(Debug)]
pub(crate) struct RecordedStep {
    /// The run afterwards.
    pub(crate) run: Run,
    /// The last event of the batch. It may not be durable yet.
    pub(crate) seq: Seq,
    /// `seq` if the condition held: nothing but this batch has changed the known rows.
    pub(crate) known_seq: Option<Seq>,
    /// The entries of the batch.
    pub(crate) entries: Vec<SessionEntry>,
    /// The rows of the tool calls that the batch has requested.
    pub(crate) calls: Vec<ToolCall>,
}

impl StepBatch {
    /// Records the step. It may not be durable yet.
    ///
    /// # Errors
    /// [`Error`]; nothing was written.
    pub(crate) async fn send(&self, abide: &Abide) -> Result<RecordedStep, Error> {
        if self.recording.unchanged_since.is_some() {
            match abide.batch(self.calls(&self.recording)).apply().await {
                Err(error) if error.code() == Some(Code::Conflict) => {}
                sent => {
                    let sent = sent?;
                    return self.recorded(&sent.value, sent.seq, Some(sent.seq));
                }
            }
        }
        let recording = RecordRun { unchanged_since: None, ..self.recording.clone() };
        let sent = abide.batch(self.calls(&recording)).apply().await?;
        self.recorded(&sent.value, sent.seq, None)
    }

    fn calls(&self, recording: &RecordRun) -> Vec<Call> {
        let after = self.after.iter().map(|call| match call {
            StepCall::Append(message) => Call::from(message),
            StepCall::Request(request) => Call::from(request),
            StepCall::Other(call) => call.clone(),
        });
        self.before.iter().cloned().chain([Call::from(recording)]).chain(after).collect()
    }

    fn recorded(
        &self,
        results: &[AppliedCall],
        seq: Seq,
        known_seq: Option<Seq>,
    ) -> Result<RecordedStep, Error> {
        // The results are in the order of the calls: those before the recording, the recording, those after it.
        let (recording, results) = results
            .get(self.before.len()..)
            .and_then(<[_]>::split_first)
            .ok_or_else(|| Error::Protocol { why: "a batch has too few results".to_owned() })?;
        let run: Run = recording.decode()?;
        let mut entries = Vec::new();
        let mut calls = Vec::new();
        for (call, result) in self.after.iter().zip(results) {
            match call {
                StepCall::Append(message) => {
                    // One transaction writes all rows, so they have the time of the run.
                    let row = message.row(&result.decode()?, run.updated_at, result.seq);
                    entries.push(SessionEntry::from(row));
                }
                StepCall::Request(_) => calls.push(result.decode()?),
                StepCall::Other(_) => {}
            }
        }
        Ok(RecordedStep { run, seq, known_seq, entries, calls })
    }
}
