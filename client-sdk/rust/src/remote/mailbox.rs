//! Pending events of one subscription. Bounded: on overflow all of them are dropped, and the
//! subscription resumes after the last consumed event when its consumer reads again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use abide_schema::{Row, Seq};
use tokio::sync::mpsc::UnboundedSender;

use super::actor::Command;
use crate::Error;
use crate::backend::{Event, Source, Start};

/// Maximum bytes of events that wait for one consumer. One event is always accepted, however large.
const BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<(Event, usize)>,
    bytes: usize,
    /// Nothing changed up to here, after all pending events.
    seen: Option<Seq>,
    dropped: bool,
    ended: Option<Error>,
    waker: Option<Waker>,
}

/// The events overflowed and were dropped: the subscription must be resumed.
#[derive(Debug)]
pub(crate) struct Overflow;

impl Mailbox {
    pub(crate) fn push(&self, event: Event) -> Result<(), Overflow> {
        let weight = weight(&event);
        let mut state = self.lock();
        if state.dropped {
            return Err(Overflow);
        }
        state.seen = None;
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
    pub(crate) fn seen(&self, seq: Seq) {
        let mut state = self.lock();
        if !state.dropped {
            state.seen = Some(seq);
            wake(state);
        }
    }

    pub(crate) fn end(&self, error: Error) {
        let mut state = self.lock();
        state.ended.get_or_insert(error);
        wake(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
fn weight(event: &Event) -> usize {
    let of_rows = |rows: &[Row]| -> usize {
        rows.iter().map(|row| 32 + row.iter().map(|cell| 24 + cell.size()).sum::<usize>()).sum()
    };
    match event {
        Event::Snapshot { rows, .. } => 64 + of_rows(rows),
        Event::Delta { changes, .. } => {
            let placed = changes.window.inserts.iter().chain(&changes.window.updates);
            let placed = placed.map(|placed| of_rows(std::slice::from_ref(&placed.row)));
            64 + [&changes.deletes, &changes.inserts, &changes.updates]
                .map(|rows| of_rows(rows))
                .iter()
                .sum::<usize>()
                + placed.sum::<usize>()
        }
        Event::Seen(_) | Event::Ended(_) => 64,
    }
}

/// The consumer's end. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) key: u64,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) commands: UnboundedSender<Command>,
    /// Where it resumes, after what the consumer has taken.
    pub(crate) goes_on: Start,
}

impl Source for Inbox {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let mut state = self.mailbox.lock();
        if let Some((event, weight)) = state.events.pop_front() {
            state.bytes -= weight;
            match &event {
                Event::Snapshot { seq: to, .. } | Event::Delta { to, .. } => {
                    self.goes_on = Start::After(*to);
                }
                Event::Seen(_) | Event::Ended(_) => {}
            }
            return Poll::Ready(event);
        }
        if let Some(seq) = state.seen.take() {
            self.goes_on = match self.goes_on {
                Start::After(taken) => Start::After(taken.max(seq)),
                start => start,
            };
            return Poll::Ready(Event::Seen(seq));
        }
        if let Some(error) = state.ended.clone() {
            return Poll::Ready(Event::Ended(error));
        }
        state.waker = Some(context.waker().clone());
        if std::mem::take(&mut state.dropped) {
            drop(state);
            let resume = Command::Resume { key: self.key, start: self.goes_on };
            if self.commands.send(resume).is_err() {
                return Poll::Ready(Event::Ended(Error::Closed));
            }
        }
        Poll::Pending
    }

    fn begin_again(&mut self) {
        let mut state = self.mailbox.lock();
        state.events.clear();
        (state.bytes, state.seen, state.dropped) = (0, None, false);
        drop(state);
        self.goes_on = Start::Now;
        // If the actor has ended, the mailbox is ended too and the next poll reports it.
        let _ = self.commands.send(Command::Resume { key: self.key, start: Start::Now });
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // If the actor has ended, so has the subscription.
        let _ = self.commands.send(Command::Unsubscribe { key: self.key });
    }
}
