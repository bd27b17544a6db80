//! Jobs of the writer's queue: units of calls, and what live queries, readers and the checkpointer need between two
//! transactions. `queue` decides which job has room, `writer` does them.

use std::sync::Arc;

use abide_live::{BackfillRequest, BackfilledGroup, Binding, BindingId, TemplateWork};
use abide_schema::Seq;
use abide_schema::share::ShareKey;
use tokio::sync::oneshot;

use crate::access::denials::Denial;
use crate::commit::open_rows::CommitReply;
use crate::commit::queue::Queue;
use crate::commit::unit::Unit;
use crate::queries::failure::QueryFailure;
use crate::queries::reader_drain::DrainedReaders;
use crate::subscriptions::hub::Hub;
use crate::subscriptions::outbox::{Outbox, SubscriptionKey};

/// Jobs of the writer.
#[derive(Debug)]
pub(crate) enum WriterJob {
    /// Calls to run, all or nothing.
    Unit(Unit),
    /// A subscription to attach, between two transactions.
    Attach(Attach),
    /// A subscription that ended.
    Detach(EndedSubscription),
    /// Accumulators that a reader has filled.
    Backfill(BackfillResult),
    /// A request was denied by the server.
    Denied(Denial),
    /// A reader needs the rows of all finished groups.
    CommitRows(CommitReply),
    /// Little of the WAL is left to checkpoint. If it is long, no query begins until this is done.
    Checkpoint(Option<DrainedReaders>),
    /// Asks for the cost of each template.
    Templates(oneshot::Sender<Vec<TemplateWork>>),
}

/// Accumulators that a reader has filled for a live query.
#[derive(Debug)]
pub(crate) struct BackfillResult {
    pub(crate) request: BackfillRequest,
    /// `None` if they could not be read.
    pub(crate) filled: Option<FilledGroup>,
}

/// The accumulators of a group as of a seq.
#[derive(Debug)]
pub(crate) struct FilledGroup {
    pub(crate) seq: Seq,
    pub(crate) group: BackfilledGroup,
}

/// A subscription to attach.
#[derive(Debug)]
pub(crate) struct Attach {
    pub(crate) binding: Binding,
    /// Counts it in the limits of live queries.
    pub(crate) by: ShareKey,
    /// The memory that the subscription holds.
    pub(crate) bytes: usize,
    pub(crate) connection: u64,
    pub(crate) key: SubscriptionKey,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) reply: oneshot::Sender<Result<Registration, QueryFailure>>,
}

/// A subscription to detach.
#[derive(Debug)]
pub(crate) struct EndedSubscription {
    pub(crate) binding: BindingId,
    pub(crate) by: ShareKey,
    pub(crate) bytes: usize,
}

/// A subscription's registration at the writer and in the hub. Dropping it releases both.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) jobs: Arc<Queue<WriterJob>>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) binding: BindingId,
    pub(crate) by: ShareKey,
    pub(crate) bytes: usize,
    pub(crate) connection: u64,
    pub(crate) key: SubscriptionKey,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.hub.unlisten(self.binding, self.connection, self.key);
        // Only a closed queue refuses an item without weight, and then there is nothing to detach from.
        let ended =
            EndedSubscription { binding: self.binding, by: self.by.clone(), bytes: self.bytes };
        let _ = self.jobs.push(None, WriterJob::Detach(ended), 0);
    }
}
