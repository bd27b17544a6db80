//! Pending events of one subscription. Bounded: on overflow all of them are dropped, and the
//! subscription resumes after the last consumed event when its consumer reads again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use abide_schema::{Row, Seq};

use crate::Error;
use crate::backend::Event;
use crate::live_result::Changes;

/// Maximum bytes of events that wait for one consumer. One event is always accepted, however large.
const BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) events: VecDeque<(Event, usize)>,
    pub(super) bytes: usize,
    /// Nothing changed up to here, after all pending events.
    pub(super) progress: Option<Seq>,
    pub(super) dropped: bool,
    /// A snapshot of another history was pushed and not consumed: what the consumer has is no start to resume from.
    pub(super) history_changed: bool,
    pub(super) ended: Option<Error>,
    pub(super) waker: Option<Waker>,
}

/// The events overflowed and were dropped: the subscription must be resumed.
#[derive(Debug)]
pub(crate) struct Overflow;

impl Mailbox {
    pub(crate) fn push(&self, event: Event) -> Result<(), Overflow> {
        let weight = estimate_bytes(&event);
        let mut state = self.lock();
        if state.dropped {
            return Err(Overflow);
        }
        state.progress = None;
        if let Event::Snapshot { history_changed: true, .. } = event {
            state.history_changed = true;
        }
        let overflow = state.bytes > 0 && state.bytes + weight > BYTES;
        if overflow {
            state.events.clear();
            state.bytes = 0;
            state.dropped = true;
        } else {
            state.bytes += weight;
            state.events.push_back((event, weight));
        }
        wake(state);
        if overflow { Err(Overflow) } else { Ok(()) }
    }

    /// Nothing changed up to here.
    pub(crate) fn push_progress(&self, seq: Seq) {
        let mut state = self.lock();
        if !state.dropped {
            state.progress = Some(seq);
            wake(state);
        }
    }

    pub(crate) fn end(&self, error: Error) {
        let mut state = self.lock();
        state.ended.get_or_insert(error);
        wake(state);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// A bound on the memory of an event: an allocation per row, 24 bytes plus content per cell.
fn estimate_bytes(event: &Event) -> usize {
    let rows: usize = match event {
        Event::Snapshot { rows, .. } => rows.iter().map(estimate_row_bytes).sum(),
        Event::Delta { changes, .. } => {
            let Changes { deletes, inserts, updates, top_n, .. } = changes;
            let rows = deletes.iter().chain(inserts).chain(updates);
            let placed = top_n.inserts.iter().chain(&top_n.updates).map(|placed| &placed.row);
            rows.chain(placed).map(estimate_row_bytes).sum()
        }
        Event::Progress(_) | Event::Ended(_) => 0,
    };
    64 + rows
}

fn estimate_row_bytes(row: &Row) -> usize {
    32 + row.iter().map(|cell| 24 + cell.size()).sum::<usize>()
}
