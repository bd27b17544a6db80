//! The commands of handles and consumers to the actor.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::mailbox::Mailbox;
use crate::backend::{Attempt, Start, SubscriptionQuery};

/// Commands of handles.
#[derive(Debug)]
pub(crate) enum Command {
    Ask { id: u64, text: String, is_query: bool, reply: oneshot::Sender<Attempt> },
    Cancel { id: u64 },
    Subscribe { key: u64, query: SubscriptionQuery, start: Start, mailbox: Arc<Mailbox> },
    Resume { key: u64, start: Start },
    Unsubscribe { key: u64 },
    Close { done: oneshot::Sender<()> },
}
