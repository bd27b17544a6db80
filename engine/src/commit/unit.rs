//! Units of the writer's queue, the groups that they run in, and their answers.
//!
//! A *unit* is the calls of one caller that run together. A *group* is the units that share one record in the journal,
//! so that one sync makes all of them durable. A group is not SQLite's transaction, which holds many groups
//! (`open_rows`). `run_unit` runs the units; `writer` runs groups, and runs a group again in smaller ones if necessary.

use std::cell::{Cell, RefCell};

use abide_schema::reducer::Caller;
use abide_schema::work::{FinishedWork, SharedWork, WorkBudget};
use abide_schema::{Code, Refusal, Seq, limits};
use tokio::sync::oneshot;

use crate::commit::registry::PreparedCall;
use crate::commit::request_ids::Request;
use crate::commit::timers::{ContinuedCall, DueRow};

/// One or more calls of one caller, all or nothing.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) caller: Caller,
    pub(crate) calls: Vec<PreparedCall>,
    /// The caller's id for the request; `None` if the caller gave none.
    pub(crate) request: Option<Request>,
    /// The due row, for a deadline call.
    pub(crate) due: Option<Box<DueRow>>,
    /// Work that readers have done for it.
    pub(crate) finished: Vec<FinishedWork>,
    /// How often it was given to readers.
    pub(crate) deferrals: usize,
    /// Why it must not run, unless it repeats a request: the process is about to stop.
    pub(crate) refusal_if_new: Option<Box<Refusal>>,
    pub(crate) answer_at: AnswerAt,
    /// The rows that its calls have changed in their last attempt, even if they were refused.
    pub(crate) rows_changed: Cell<u64>,
    /// Where `Inner::submit` waits. Nobody does for a call of the engine itself.
    pub(crate) reply: oneshot::Sender<Result<UnitResult, Refusal>>,
}

impl Unit {
    pub(crate) fn new(
        caller: Caller,
        calls: Vec<PreparedCall>,
        request: Option<Request>,
        reply: oneshot::Sender<Result<UnitResult, Refusal>>,
    ) -> Unit {
        Unit {
            caller,
            calls,
            request,
            due: None,
            finished: Vec::new(),
            deferrals: 0,
            refusal_if_new: None,
            answer_at: AnswerAt::Durable,
            rows_changed: Cell::default(),
            reply,
        }
    }

    /// Creates the unit of a due row, whose reply nobody waits for.
    pub(crate) fn from_due_row(call: PreparedCall, due: DueRow) -> Unit {
        let caller = due.caller.clone();
        Unit { caller, ..Unit::internal(vec![call], Some(due)) }
    }

    /// Creates a unit of the engine itself, whose reply nobody waits for.
    pub(crate) fn internal(calls: Vec<PreparedCall>, due: Option<DueRow>) -> Unit {
        Unit {
            due: due.map(Box::new),
            ..Unit::new(Caller::system(), calls, None, oneshot::channel().0)
        }
    }

    /// Returns the work budget of one of its calls; unlimited for deadline calls, whose arguments are not from a
    /// caller.
    pub(crate) fn work_budget<'a>(
        &'a self,
        call: usize,
        deferred: &'a RefCell<Vec<(usize, SharedWork)>>,
    ) -> Option<WorkBudget<'a>> {
        let is_from_caller = self.caller.id() != Caller::SYSTEM && self.due.is_none();
        is_from_caller.then(|| WorkBudget {
            steps: limits::WRITER_STEPS,
            call,
            finished: &self.finished,
            deferred,
            goes_on: self.calls.len() > 1,
        })
    }

    /// Returns how many calls it counts as in addition to those that its caller was charged for, by the rows that it
    /// has changed.
    pub(crate) fn further_calls(&self) -> usize {
        let worth = usize::try_from(self.rows_changed.get() / limits::ROWS_PER_CALL);
        let charged = if self.due.is_some() { 0 } else { self.calls.len() };
        worth.unwrap_or(usize::MAX).saturating_sub(charged)
    }

    /// Returns its weight in the queue of the writer.
    pub(crate) fn weight(&self) -> usize {
        self.calls.len() * limits::CALL_OVERHEAD_BYTES + self.bytes()
    }

    /// Returns the bytes of the arguments.
    pub(crate) fn bytes(&self) -> usize {
        self.calls.iter().map(|call| call.arguments.text().len()).sum()
    }
}

/// When a unit that succeeds is answered. A refusal is answered when all that it depends on is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerAt {
    /// When its record is in the journal, before the sync.
    Applied,
    /// When it is durable.
    Durable,
}

/// The result of one call.
#[derive(Debug)]
pub(crate) struct CallOutcome {
    /// Its own event's seq, or that of the original call.
    pub(crate) seq: Seq,
    pub(crate) result: String,
    pub(crate) duplicate: bool,
    /// The refusal for the caller, if the call was refused with a record.
    pub(crate) refusal: Option<Refusal>,
}

/// The result of a unit.
#[derive(Debug)]
pub(crate) struct UnitResult {
    /// One outcome per call.
    pub(crate) calls: Vec<CallOutcome>,
    /// Whether an earlier request had the same id, and this one is a retry.
    pub(crate) duplicate: bool,
}

impl UnitResult {
    /// Returns the refusal for the caller, if one of its calls was refused with a record.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.calls.iter().find_map(|call| call.refusal.as_ref())
    }
}

/// The outcome of a unit in its group. It becomes an answer when the group is durable; see [`AnswerAt`].
#[derive(Debug)]
pub(crate) enum UnitOutcome {
    /// It ran, or it was answered from an earlier request.
    Done(UnitResult),
    /// It changed nothing.
    Refused(Refusal),
    /// It changed nothing yet: readers must do this work for its calls first.
    Deferred(Vec<(usize, SharedWork)>),
}

/// The answer to a unit, and the channel for it.
#[derive(Debug)]
pub(crate) struct ReplyEnvelope {
    pub(crate) reply: oneshot::Sender<Result<UnitResult, Refusal>>,
    pub(crate) outcome: Result<UnitResult, Refusal>,
}

impl ReplyEnvelope {
    pub(crate) fn is_success(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|done| done.refusal().is_none())
    }

    /// Sends the answer. The caller may have disconnected; its calls remain committed.
    pub(crate) fn send(self) {
        let _ = self.reply.send(self.outcome);
    }

    /// Replaces the result of a call with the result of the last step of its work. Work that failed is a refusal of the
    /// call; in a batch the other calls have taken effect, and the row of the work shows that it failed.
    fn complete(&mut self, position: usize, outcome: &Result<(Seq, String), Refusal>) {
        let Ok(done) = &mut self.outcome else { return };
        match outcome {
            Ok((seq, result)) => {
                let call = &mut done.calls[position];
                *call = CallOutcome {
                    seq: *seq,
                    result: result.clone(),
                    duplicate: call.duplicate,
                    refusal: None,
                };
            }
            Err(refusal) if done.calls.len() == 1 => self.outcome = Err(refusal.clone()),
            Err(_) => {}
        }
    }
}

/// Units that become durable together. Each unit has an answer of its own.
#[derive(Debug)]
pub(crate) struct CommitGroup {
    pub(crate) units: Vec<Unit>,
    /// Whether each unit runs on a savepoint of its own: one was refused after it had written.
    pub(crate) on_savepoints: bool,
    /// Answers to refused units of an earlier group, whose refusals the units of this group record.
    ///
    /// *Invariant:* they leave with the commit of the last unit of this group, also if the group is rolled back, split
    /// or put on savepoints. A caller that receives `denied` can then find the record. The groups of one split are
    /// handed to the sync thread in their order, so the last one is durable last.
    pub(crate) pending_answers: Vec<ReplyEnvelope>,
}

impl CommitGroup {
    pub(crate) fn new(units: Vec<Unit>, pending_answers: Vec<ReplyEnvelope>) -> CommitGroup {
        CommitGroup { units, on_savepoints: false, pending_answers }
    }

    /// Returns the same units, each on its own savepoint.
    pub(crate) fn with_savepoints(self) -> CommitGroup {
        CommitGroup { on_savepoints: true, ..self }
    }

    /// Keeps the first `first` units, and returns the other units as a group with the pending answers; `None` if there
    /// are no others. Units of a group with pending answers must not be put back into the queue, where each is alone.
    pub(crate) fn split_off(&mut self, first: usize) -> Option<CommitGroup> {
        let rest = self.units.split_off(first);
        if rest.is_empty() {
            return None;
        }
        Some(CommitGroup {
            units: rest,
            on_savepoints: self.on_savepoints,
            pending_answers: std::mem::take(&mut self.pending_answers),
        })
    }

    /// Takes the calls for due rows out of the group.
    pub(crate) fn take_due(&mut self) -> Vec<DueRow> {
        let due = self.units.extract_if(.., |unit| unit.due.is_some());
        due.filter_map(|unit| unit.due).map(|due| *due).collect()
    }

    /// Returns a group for each unit, in the same order. The last one gets the pending answers: it becomes durable
    /// last, and the answers may leave only when all units are durable. The groups have no savepoints; the writer adds
    /// them again if a unit needs one.
    pub(crate) fn into_single_units(self) -> Vec<CommitGroup> {
        let mut groups = Vec::with_capacity(self.units.len());
        for unit in self.units {
            groups.push(CommitGroup::new(vec![unit], Vec::new()));
        }
        if let Some(last) = groups.last_mut() {
            last.pending_answers = self.pending_answers;
        }
        groups
    }

    /// Returns the same refusal for every unit.
    pub(crate) fn all_refused(&self, refusal: &Refusal) -> Vec<UnitOutcome> {
        self.units.iter().map(|_| UnitOutcome::Refused(refusal.clone())).collect()
    }

    /// Returns the group's weight in the queue of unsynced commits: one, and more if the group is large, so that a
    /// sync, which all callers wait for, never covers many megabytes.
    pub(crate) fn weight(&self) -> usize {
        1 + self.units.iter().map(Unit::bytes).sum::<usize>() / limits::UNSYNCED_UNIT_BYTES
    }
}

/// An answer, and the work that it waits for.
#[derive(Debug)]
struct PendingAnswer {
    answer: ReplyEnvelope,
    /// The unfinished calls, with their positions in the unit.
    unfinished: Vec<(usize, ContinuedCall)>,
}

/// The end of the work of a call.
#[derive(Debug)]
pub(crate) struct LastStep {
    /// The call that began it.
    pub(crate) call: ContinuedCall,
    /// The event of the last step and its result, or why the work could not be completed.
    pub(crate) outcome: Result<(Seq, String), Refusal>,
}

/// Answers to calls whose work goes on in later transactions: each waits for the last step of its work. If one is lost,
/// its work still goes on: the rows of the work are in the file.
#[derive(Debug, Default)]
pub(crate) struct PendingAnswers(Vec<PendingAnswer>);

impl PendingAnswers {
    /// `true` if no answer waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, answer: ReplyEnvelope, unfinished: Vec<(usize, ContinuedCall)>) {
        self.0.push(PendingAnswer { answer, unfinished });
    }

    /// Returns the answers that wait for nothing more after this step.
    pub(crate) fn release(&mut self, step: &LastStep) -> Vec<ReplyEnvelope> {
        for pending in &mut self.0 {
            pending.unfinished.retain(|(position, call)| {
                let has_ended =
                    call.reducer == step.call.reducer && call.subject == step.call.subject;
                if has_ended {
                    pending.answer.complete(*position, &step.outcome);
                }
                !has_ended
            });
        }
        self.0
            .extract_if(.., |pending| pending.unfinished.is_empty())
            .map(|pending| pending.answer)
            .collect()
    }

    /// Returns all answers. Their work goes on when the file is opened again, so a call is not answered as done. The
    /// calls of a batch have taken effect, except for the work that goes on.
    pub(crate) fn release_all(&mut self) -> Vec<ReplyEnvelope> {
        let mut answers: Vec<ReplyEnvelope> =
            self.0.drain(..).map(|pending| pending.answer).collect();
        for answer in &mut answers {
            if answer.outcome.as_ref().is_ok_and(|done| done.calls.len() == 1) {
                let detail = "the work goes on when the file is opened again";
                answer.outcome = Err(Refusal::new(Code::Unavailable, detail)
                    .hint("send the call again with the same request id"));
            }
        }
        answers
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;

    /// A group that records three denied calls, whose answers wait for it.
    fn group_of_records() -> CommitGroup {
        let mut units = Vec::new();
        let mut pending_answers = Vec::new();
        for _ in 0..3 {
            units.push(Unit::internal(Vec::new(), None));
            let outcome = Err(Refusal::new(Code::Denied, "the caller may not do this"));
            pending_answers.push(ReplyEnvelope { reply: oneshot::channel().0, outcome });
        }
        CommitGroup::new(units, pending_answers)
    }

    fn counts(group: &CommitGroup) -> (usize, usize) {
        (group.units.len(), group.pending_answers.len())
    }

    /// The answers stayed with the first units of a group that took long: they were sent before the other refusals were
    /// recorded.
    #[test]
    fn pending_answers_leave_with_the_last_unit() {
        let mut group = group_of_records();
        let rest = group.split_off(1).expect("two units are left");
        assert_eq!((counts(&group), counts(&rest)), ((1, 0), (2, 3)));
        let mut group = group_of_records();
        assert!(group.split_off(3).is_none());
        assert_eq!(counts(&group), (3, 3));
        let single_units = group.into_single_units();
        assert_eq!(single_units.iter().map(counts).collect::<Vec<_>>(), [(1, 0), (1, 0), (1, 3)]);
    }
}
