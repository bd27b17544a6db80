//! What a driver knows of its run: rows, and what follows from them alone. Nothing here reads, writes or waits, so every rule about
//! a run can be tested with rows.
//!
//! Rows enter by [`RunState::apply`] only: those that `run/read.rs` has read, and those that a step of this driver has written
//! (`run/step_batch.rs`). The next action is [`RunState::decide`] in `run/decide.rs`.

use abide_client::Seq;
use abide_client::rows::{Pause, Run, Session, ToolCall};
use abide_definitions::profile_settings::ContextSettings;
use abide_models::ModelMessage;

use crate::context::entry::{self, AssistantEntry, HandoffEntry, SessionEntry};
use crate::context::session_entries::SessionEntries;
use crate::context::summarized::SummarizedContext;
use crate::context::transcript;
use crate::run::step_batch::RecordedStep;

/// The rows of a run.
#[derive(Debug)]
pub(crate) struct RunState {
    pub(crate) run: Run,
    /// The session as it was last read; `None` before that. Its `seq` can be older than the driver's own writes.
    pub(crate) session: Option<Session>,
    /// The last pause of the run, as of `known_seq`.
    pub(crate) pause: Option<Pause>,
    /// The summary that stands for older messages; `None` before the rows were first read.
    pub(crate) context: Option<SummarizedContext>,
    /// The session's messages that the model sees. Messages are append-only, so only new ones are read; those that a
    /// summary stands for are omitted.
    pub(crate) entries: SessionEntries,
    /// The handoffs that are in effect. The agent of the last one is active.
    pub(crate) handoffs: Vec<HandoffEntry>,
    /// The rows of the calls of the last answer, if one of them has no result yet.
    pub(crate) calls: Vec<ToolCall>,
    /// Those runs started by these calls that wait for a decision.
    pub(crate) waiting: Vec<Run>,
    /// Whether the model has seen a result that was cut.
    pub(crate) has_cut_results: bool,
    /// Whether nothing has to be read before the next action: the last step has changed the rows, on the condition that nothing else
    /// had.
    is_current: bool,
    /// The event as of which the session, the pause and the messages are known; `None` if they are not.
    known_seq: Option<Seq>,
    /// The last event of the last recorded step, which may not be durable yet.
    recorded_seq: Seq,
}

/// Rows that a driver has read, or that a step of it has written.
pub(crate) enum NewRows {
    /// The summary of a session, and the messages that it keeps, before anything else is read.
    Context { context: SummarizedContext, kept: Vec<SessionEntry> },
    /// The run, its session and what is new in it, as they are now.
    Current(Box<CurrentRows>),
    /// The calls of the last answer.
    Calls(Vec<ToolCall>),
    /// What a step of this driver has written.
    Step(RecordedStep),
    /// A summary that a step has written.
    Summary(SummarizedContext),
}

/// The rows of a run at one time.
pub(crate) struct CurrentRows {
    pub(crate) run: Run,
    pub(crate) session: Session,
    pub(crate) pause: Option<Pause>,
    /// The messages after those that are known.
    pub(crate) new: Vec<SessionEntry>,
    /// The oldest event as of which one of them was read.
    pub(crate) seq: Option<Seq>,
}

impl RunState {
    /// Returns the state of a claimed run of which nothing else is known.
    pub(crate) fn claimed(run: Run) -> RunState {
        RunState {
            run,
            session: None,
            pause: None,
            context: None,
            entries: SessionEntries::default(),
            handoffs: Vec::new(),
            calls: Vec::new(),
            waiting: Vec::new(),
            has_cut_results: false,
            is_current: false,
            known_seq: None,
            recorded_seq: Seq::ZERO,
        }
    }

    /// Takes over rows. Returns `true` if another agent is active now.
    pub(crate) fn apply(&mut self, rows: NewRows) -> bool {
        match rows {
            NewRows::Context { context, kept } => {
                self.handoffs = context.handoffs(&self.run);
                self.entries = SessionEntries::with_kept(kept);
                self.context = Some(context);
                !self.handoffs.is_empty()
            }
            NewRows::Current(current) => {
                self.run = current.run;
                self.session = Some(current.session);
                self.pause = current.pause;
                self.known_seq = current.seq;
                self.is_current = false;
                self.extend(current.new)
            }
            NewRows::Calls(calls) => {
                self.calls = calls;
                false
            }
            NewRows::Step(step) => {
                self.run = step.run;
                self.recorded_seq = step.seq;
                self.known_seq = step.known_seq;
                self.is_current = step.known_seq.is_some();
                if !self.is_current {
                    // The condition of the step did not hold: the rows are read again before they are used.
                    return false;
                }
                self.calls = step.calls;
                self.extend(step.entries)
            }
            NewRows::Summary(context) => {
                self.entries.retain(|id| context.shows(id));
                self.context = Some(context);
                false
            }
        }
    }

    /// Adds new messages. Returns `true` if one of them changes the active agent.
    fn extend(&mut self, new: Vec<SessionEntry>) -> bool {
        let count = self.handoffs.len();
        let last = self.handoffs.last().cloned();
        entry::apply_handoffs(&mut self.handoffs, &self.run, &new);
        self.has_cut_results |= new.iter().any(entry::is_cut);
        self.entries.extend(new);
        count != self.handoffs.len() || last.as_ref() != self.handoffs.last()
    }

    /// Returns `true` if nothing has to be read before the next action. What follows may change the rows, so it is true once for each
    /// step.
    pub(crate) fn take_current(&mut self) -> bool {
        std::mem::take(&mut self.is_current) && self.run.abort_requested_at.is_none()
    }

    /// Notes that the rows change without this driver's knowledge, for example because calls run now. They are read before the
    /// next action.
    pub(crate) fn mark_outdated(&mut self) {
        self.is_current = false;
    }

    /// Returns the event as of which the session, the pause and the messages are known; `None` if they are not.
    pub(crate) fn known_seq(&self) -> Option<Seq> {
        self.known_seq
    }

    /// Returns the last event of the last recorded step.
    pub(crate) fn recorded_seq(&self) -> Seq {
        self.recorded_seq
    }

    /// Returns the id of the newest message that is known, also of one that a summary stands for.
    pub(crate) fn newest_id(&self) -> i64 {
        let folded = self.context.as_ref().map_or(0, SummarizedContext::folded_id);
        self.entries.last().map_or(0, |entry| entry.id).max(folded)
    }

    /// Returns the run's last answer and its position, if only its own tool results follow it.
    pub(crate) fn last_answer(&self) -> Option<(usize, &AssistantEntry)> {
        entry::last_answer(&self.run, &self.entries)
    }

    /// Returns the handoff that made the active agent active; `None` for the run's own agent.
    pub(crate) fn handoff(&self) -> Option<&HandoffEntry> {
        self.handoffs.last()
    }

    /// Returns what the run has consumed since the active agent took over.
    pub(crate) fn consumed(&self) -> Consumption {
        let run = &self.run;
        let before = self.handoff();
        let since = |now: i64, then: fn(&HandoffEntry) -> i64| now - before.map_or(0, then);
        Consumption {
            iterations: since(run.iterations, |it| it.iterations),
            tool_calls: since(run.tool_calls, |it| it.tool_calls),
            tokens: since(run.input_tokens + run.output_tokens, |it| it.tokens),
            cost_micros: since(run.cost_micros.unwrap_or(0), |it| it.cost_micros),
        }
    }

    /// Returns when the run would have begun if it had never waited, in microseconds since 1970.
    pub(crate) fn work_began(&self) -> i64 {
        self.run.created_at.0.saturating_add(self.run.waited_us.unwrap_or(0))
    }

    /// Returns the conversation as the model sees it: what always stays, the summary of older messages, and the newer ones.
    pub(crate) fn conversation(&self, settings: &ContextSettings) -> Vec<ModelMessage> {
        let Some(context) = &self.context else { return transcript::messages(&self.entries) };
        let folded = context.folded_id();
        let first = self.entries.iter().position(|entry| entry.id > folded);
        let (kept, rest) = self.entries.split_at(first.unwrap_or(self.entries.len()));
        let mut messages = transcript::messages(kept);
        let kept = messages.len();
        messages.extend(transcript::reduced_messages(rest, context.through_id(), settings));
        if let Some(summary) = context.message() {
            // The task comes first, even while it is not omitted yet.
            let after_task = messages
                .iter()
                .position(|message| matches!(message, ModelMessage::User { .. }))
                .map_or(0, |at| at + 1);
            messages.insert(if kept > 0 { kept } else { after_task }, summary);
        }
        messages
    }
}

/// What a run has consumed.
pub(crate) struct Consumption {
    pub(crate) iterations: i64,
    pub(crate) tool_calls: i64,
    pub(crate) tokens: i64,
    pub(crate) cost_micros: i64,
}

#[cfg(test)]
mod tests;
