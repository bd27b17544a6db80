//! A unit of the writer's queue: calls that run together.

use std::cell::RefCell;

use abide_schema::reducer::Caller;
use abide_schema::work::{Effort, Settled, SharedWork};
use abide_schema::{Refusal, limits};
use tokio::sync::oneshot;

use crate::durable::UnitDone;
use crate::registry::ReadyCall;
use crate::requests::Request;
use crate::timers::Due;

/// One or more calls of one caller, all or nothing.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) caller: Caller,
    pub(crate) calls: Vec<ReadyCall>,
    pub(crate) request: Option<Request>,
    /// The due row, for a deadline call.
    pub(crate) due: Option<Due>,
    /// Work that readers have done for it, and the number of deferrals.
    pub(crate) settled: Vec<Settled>,
    pub(crate) deferrals: usize,
    pub(crate) reply: oneshot::Sender<Result<UnitDone, Refusal>>,
}

impl Unit {
    pub(crate) fn new(
        caller: Caller,
        calls: Vec<ReadyCall>,
        request: Option<Request>,
        reply: oneshot::Sender<Result<UnitDone, Refusal>>,
    ) -> Unit {
        Unit { caller, calls, request, due: None, settled: Vec::new(), deferrals: 0, reply }
    }

    /// A call of the engine itself, without a reply.
    pub(crate) fn of_engine(calls: Vec<ReadyCall>, due: Option<Due>) -> Unit {
        Unit { due, ..Unit::new(Caller::system(), calls, None, oneshot::channel().0) }
    }

    /// The work budget of one of its calls. Deadline calls have no caller-supplied arguments.
    pub(crate) fn effort<'a>(
        &'a self,
        call: usize,
        deferred: &'a RefCell<Vec<(usize, SharedWork)>>,
    ) -> Option<Effort<'a>> {
        let (steps, settled, goes_on) =
            (limits::WRITER_STEPS, &*self.settled, self.calls.len() > 1);
        let of_caller = self.caller.id() != Caller::SYSTEM;
        of_caller.then_some(Effort { steps, call, settled, deferred, goes_on })
    }

    /// Bytes of the arguments.
    pub(crate) fn bytes(&self) -> usize {
        self.calls.iter().map(|call| call.arguments.len()).sum()
    }
}
