//! A unit of the writer's queue: calls that run together.

use std::cell::RefCell;

use abide_schema::reducer::Caller;
use abide_schema::work::{FinishedWork, SharedWork, WorkBudget};
use abide_schema::{Refusal, limits};
use tokio::sync::oneshot;

use crate::commit::durable::UnitResult;
use crate::commit::registry::PreparedCall;
use crate::commit::request_ids::Request;
use crate::commit::timers::DueRow;

/// One or more calls of one caller, all or nothing.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) caller: Caller,
    pub(crate) calls: Vec<PreparedCall>,
    pub(crate) request: Option<Request>,
    /// The due row, for a deadline call.
    pub(crate) due: Option<DueRow>,
    /// Work that readers have done for it, and the number of deferrals.
    pub(crate) finished: Vec<FinishedWork>,
    pub(crate) deferrals: usize,
    pub(crate) reply: oneshot::Sender<Result<UnitResult, Refusal>>,
}

impl Unit {
    pub(crate) fn new(
        caller: Caller,
        calls: Vec<PreparedCall>,
        request: Option<Request>,
        reply: oneshot::Sender<Result<UnitResult, Refusal>>,
    ) -> Unit {
        Unit { caller, calls, request, due: None, finished: Vec::new(), deferrals: 0, reply }
    }

    /// A call of the engine itself, without a reply.
    pub(crate) fn of_engine(calls: Vec<PreparedCall>, due: Option<DueRow>) -> Unit {
        Unit { due, ..Unit::new(Caller::system(), calls, None, oneshot::channel().0) }
    }

    /// The work budget of one of its calls; unlimited for deadline calls, whose arguments are not from a caller.
    pub(crate) fn work_budget<'a>(
        &'a self,
        call: usize,
        deferred: &'a RefCell<Vec<(usize, SharedWork)>>,
    ) -> Option<WorkBudget<'a>> {
        let (steps, finished, goes_on) =
            (limits::WRITER_STEPS, &*self.finished, self.calls.len() > 1);
        let of_caller = self.caller.id() != Caller::SYSTEM;
        of_caller.then_some(WorkBudget { steps, call, finished, deferred, goes_on })
    }

    /// Bytes of the arguments.
    pub(crate) fn bytes(&self) -> usize {
        self.calls.iter().map(|call| call.arguments.len()).sum()
    }
}
