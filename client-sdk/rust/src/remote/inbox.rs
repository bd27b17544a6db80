//! The consumer's end of a subscription.

use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::mpsc::UnboundedSender;

use super::actor::Command;
use super::mailbox::Mailbox;
use crate::Error;
use crate::backend::{Event, Source, Start};

/// The consumer's end. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) key: u64,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) commands: UnboundedSender<Command>,
    /// Where it resumes, after what the consumer has taken.
    pub(crate) resume_from: Start,
}

impl Source for Inbox {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let mut state = self.mailbox.lock();
        if let Some((mut event, weight)) = state.events.pop_front() {
            state.bytes -= weight;
            match &mut event {
                Event::Snapshot { seq: to, history_changed, .. } => {
                    // It may stand for a dropped one.
                    *history_changed |= std::mem::take(&mut state.history_changed);
                    self.resume_from = Start::After(*to);
                }
                Event::Delta { to, .. } => self.resume_from = Start::After(*to),
                Event::Progress(_) | Event::Ended(_) => {}
            }
            return Poll::Ready(event);
        }
        if let Some(seq) = state.progress.take() {
            self.resume_from = match self.resume_from {
                Start::After(taken) => Start::After(taken.max(seq)),
                start => start,
            };
            return Poll::Ready(Event::Progress(seq));
        }
        if let Some(error) = state.ended.clone() {
            return Poll::Ready(Event::Ended(error));
        }
        state.waker = Some(context.waker().clone());
        if std::mem::take(&mut state.dropped) {
            if state.history_changed {
                self.resume_from = Start::Now;
            }
            drop(state);
            let resume = Command::Resume { key: self.key, start: self.resume_from };
            if self.commands.send(resume).is_err() {
                return Poll::Ready(Event::Ended(Error::Closed));
            }
        }
        Poll::Pending
    }

    fn restart(&mut self) {
        let mut state = self.mailbox.lock();
        state.events.clear();
        (state.bytes, state.progress, state.dropped) = (0, None, false);
        drop(state);
        self.resume_from = Start::Now;
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
