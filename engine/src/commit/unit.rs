//! A unit of the writer's queue: calls that run together, and what becomes of them.

use std::cell::{Cell, RefCell};

use abide_schema::reducer::Caller;
use abide_schema::work::{FinishedWork, SharedWork, WorkBudget};
use abide_schema::{Refusal, Seq, limits};
use tokio::sync::oneshot;

use crate::commit::prepared_call::PreparedCall;
use crate::commit::request_ids::Request;
use crate::commit::timers::DueRow;

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
        let due = None;
        let finished = Vec::new();
        let answer_at = AnswerAt::Durable;
        let deferrals = 0;
        let rows_changed = Cell::default();
        Unit { caller, calls, request, due, finished, deferrals, answer_at, rows_changed, reply }
    }

    /// The call for a due row, without a reply.
    pub(crate) fn of_due_row(call: PreparedCall, due: DueRow) -> Unit {
        let caller = due.caller.clone();
        Unit { caller, ..Unit::of_engine(vec![call], Some(due)) }
    }

    /// A call of the engine itself, without a reply.
    pub(crate) fn of_engine(calls: Vec<PreparedCall>, due: Option<DueRow>) -> Unit {
        Unit {
            due: due.map(Box::new),
            ..Unit::new(Caller::system(), calls, None, oneshot::channel().0)
        }
    }

    /// The work budget of one of its calls; unlimited for deadline calls, whose arguments are not from a caller.
    pub(crate) fn work_budget<'a>(
        &'a self,
        call: usize,
        deferred: &'a RefCell<Vec<(usize, SharedWork)>>,
    ) -> Option<WorkBudget<'a>> {
        let of_caller = self.caller.id() != Caller::SYSTEM && self.due.is_none();
        of_caller.then(|| WorkBudget {
            steps: limits::WRITER_STEPS,
            call,
            finished: &self.finished,
            deferred,
            goes_on: self.calls.len() > 1,
        })
    }

    /// Returns how many calls it counts as in addition to those that its caller was charged for, by the rows that it has
    /// changed.
    pub(crate) fn further_calls(&self) -> usize {
        let worth = usize::try_from(self.rows_changed.get() / limits::ROWS_PER_CALL);
        let charged = if self.due.is_some() { 0 } else { self.calls.len() };
        worth.unwrap_or(usize::MAX).saturating_sub(charged)
    }

    /// Its weight in the queue of the writer.
    pub(crate) fn weight(&self) -> usize {
        self.calls.len() * limits::CALL_OVERHEAD_BYTES + self.bytes()
    }

    /// Bytes of the arguments.
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
    /// The refusal for the caller, if one of its calls was refused with a record.
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
}
