//! Deferred calls: readers do expensive work for a call, then the unit returns to the writer.
//!
//! Each piece of work is one job of a reader, so it counts against its caller's limits of concurrent and queued
//! queries. *Invariant:* whatever happens to a job, its caller gets a reply.

use std::sync::Arc;
use std::thread;

use abide_schema::work::{FinishedWork, SharedWork, WHOLE};
use abide_schema::{Code, Refusal, SEE_LOG, limits};
use abide_store::Reader;

use crate::commit::fair_queue::Turn;
use crate::commit::jobs::WriterJob;
use crate::commit::queue::{Queue, Rejected, closing};
use crate::commit::registry::PreparedCall;
use crate::commit::unit::Unit;
use crate::queries::readers::ReaderJob;

/// A unit while readers work for it.
pub(crate) struct DeferredUnit {
    /// `None` once it is back at the writer or answered.
    unit: Option<Unit>,
    /// The remaining work, last first.
    work: Vec<(usize, SharedWork)>,
    /// Whose turn the work takes on the readers, and then the unit at the writer.
    turn: Turn,
    jobs: Arc<Queue<WriterJob>>,
    readers: Arc<Queue<ReaderJob>>,
}

impl DeferredUnit {
    /// Queues work for readers; afterwards the unit returns to the writer.
    pub(crate) fn start(
        mut unit: Unit,
        mut work: Vec<(usize, SharedWork)>,
        turn: Turn,
        jobs: &Arc<Queue<WriterJob>>,
        readers: &Arc<Queue<ReaderJob>>,
    ) {
        work.reverse();
        unit.deferrals += 1;
        let is_too_often = unit.deferrals > limits::DEFERRALS;
        let mut deferred = DeferredUnit {
            unit: Some(unit),
            work,
            turn,
            jobs: Arc::clone(jobs),
            readers: Arc::clone(readers),
        };
        if is_too_often {
            deferred.reply(changed_meanwhile());
        } else {
            deferred.queue();
        }
    }

    /// Queues the next piece of work for a reader, in the caller's turn.
    fn queue(self) {
        let Some(unit) = &self.unit else { return };
        let weight = 1 + unit.bytes() / limits::READER_QUEUE_UNIT_BYTES;
        let turn = self.turn.clone();
        let readers = Arc::clone(&self.readers);
        let job: ReaderJob = Box::new(move |_: &mut Reader| self.run());
        // A refused job is dropped, and its `drop` answers the caller: with the queue full, or with the engine closing.
        let _ = readers.push(Some(&turn), job, weight);
    }

    /// Does one piece of the work.
    fn run(mut self) {
        let Some(unit) = &mut self.unit else { return };
        if let Some((call, work)) = self.work.pop() {
            let verdict = work.attempt(WHOLE).unwrap_or(Ok(()));
            unit.finished.push(FinishedWork { call, work, verdict });
        }
        if self.work.is_empty() { self.resubmit() } else { self.queue() }
    }

    fn resubmit(mut self) {
        let Some(unit) = self.unit.take() else { return };
        unit.calls.iter().for_each(PreparedCall::decode_again);
        let weight = unit.weight();
        let refusal = match self.jobs.push(Some(&self.turn), WriterJob::Unit(unit), weight) {
            Ok(()) => return,
            Err(Rejected::Full(WriterJob::Unit(unit))) => {
                self.unit = Some(unit);
                full()
            }
            Err(Rejected::Closed(WriterJob::Unit(unit))) => {
                self.unit = Some(unit);
                closing()
            }
            Err(_) => return,
        };
        self.reply(refusal);
    }

    fn reply(&mut self, refusal: Refusal) {
        if let Some(unit) = self.unit.take() {
            // The caller may have disconnected.
            let _ = unit.reply.send(Err(refusal));
        }
    }
}

impl Drop for DeferredUnit {
    fn drop(&mut self) {
        self.reply(if thread::panicking() {
            failed()
        } else if self.readers.is_closed() {
            closing()
        } else {
            full()
        });
    }
}

fn failed() -> Refusal {
    let detail = "the arguments could not be validated because of an internal error";
    Refusal::new(Code::Internal, detail).hint(SEE_LOG)
}

fn full() -> Refusal {
    Refusal::new(Code::Overloaded, "too many calls wait for validation")
        .hint("nothing was written; try again in a moment")
}

fn changed_meanwhile() -> Refusal {
    let detail = "the schema of the arguments changed repeatedly during validation";
    Refusal::new(Code::Overloaded, detail).hint("nothing was written; try again in a moment")
}
