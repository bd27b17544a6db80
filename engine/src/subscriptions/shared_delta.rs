//! One change of a live query's result, shared by all subscribers of the query, and its way to one of them.
//! `abide_live` computes the change.

use std::ops::Deref;
use std::sync::{Arc, LazyLock, OnceLock};

use abide_live::{BindingId, Delta, DeltaJson};
use abide_schema::{Checksum, Refusal, limits};

use crate::subscriptions::buffers::{Account, Share, SharedBytes};

/// The changes that commits, or a rerun, made to the result of a live query.
#[derive(Debug)]
pub enum ResultChange {
    /// These rows changed.
    Rows(Delta),
    /// Possibly some rows changed: the delta would have been too expensive, or could not be computed. The new rows
    /// follow in an [`Update::Rerun`](crate::Update::Rerun) or a snapshot.
    Stale,
    /// Visibility has changed: subscriptions are replanned. It is never sent to clients.
    Outdated,
}

/// The rows of a change that contains none.
static NO_ROWS: LazyLock<Delta> = LazyLock::new(Delta::default);

/// The changes of a commit in the results of live queries.
pub(crate) type Deltas = Vec<(BindingId, Arc<SharedDelta>)>;

/// A change of a result, shared by all its subscribers.
#[derive(Debug)]
pub struct SharedDelta {
    change: ResultChange,
    json: OnceLock<DeltaJson>,
    checksum_change: OnceLock<Checksum>,
    weight: OnceLock<usize>,
    /// Set when it is counted.
    bytes: OnceLock<Arc<SharedBytes>>,
}

impl SharedDelta {
    pub(crate) fn new(change: ResultChange) -> Arc<SharedDelta> {
        Arc::new(SharedDelta {
            change,
            json: OnceLock::new(),
            checksum_change: OnceLock::new(),
            weight: OnceLock::new(),
            bytes: OnceLock::new(),
        })
    }

    /// Returns the change itself.
    #[must_use]
    pub fn change(&self) -> &ResultChange {
        &self.change
    }

    /// `true` if it only marks the result as possibly changed; see [`ResultChange::Stale`].
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self.change, ResultChange::Stale)
    }

    /// `true` if it is known to change no row.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.change, ResultChange::Rows(delta) if delta.is_empty())
    }

    /// Returns the known rows; none if the change is not known.
    #[must_use]
    pub fn rows(&self) -> &Delta {
        match &self.change {
            ResultChange::Rows(delta) => delta,
            ResultChange::Stale | ResultChange::Outdated => &NO_ROWS,
        }
    }

    /// Returns the rows as JSON texts, encoded once for all subscribers; `None` if they are not known.
    #[must_use]
    pub fn json(&self) -> Option<&DeltaJson> {
        match &self.change {
            ResultChange::Rows(delta) => Some(self.json.get_or_init(|| delta.to_json())),
            ResultChange::Stale | ResultChange::Outdated => None,
        }
    }

    /// Returns the checksum change of the result, computed once for all subscribers.
    #[must_use]
    pub fn checksum_change(&self) -> Checksum {
        *self.checksum_change.get_or_init(|| self.rows().checksum_change())
    }

    /// Returns an upper bound of its encoded size.
    pub(crate) fn weight(&self) -> usize {
        *self.weight.get_or_init(|| {
            let delta = self.rows();
            let placed = delta.top_n.inserts.iter().chain(&delta.top_n.updates);
            let rows = delta
                .deletes
                .iter()
                .chain(&delta.inserts)
                .chain(&delta.updates)
                .chain(placed.map(|placed| &placed.row));
            64 + 8 * delta.top_n.deletes.len()
                + rows.flat_map(|row| row.iter()).map(|cell| 4 + cell.size()).sum::<usize>()
        })
    }

    /// Returns its counted bytes: the rows and their JSON text.
    fn shared_bytes(&self) -> &Arc<SharedBytes> {
        self.bytes.get_or_init(|| SharedBytes::new(2 * self.weight()))
    }
}

/// A delta on its way to one connection.
#[derive(Clone, Debug)]
pub struct QueuedDelta {
    delta: Arc<SharedDelta>,
    /// Its share of the counted bytes; `None` if it is small.
    share: Option<Arc<Share>>,
}

impl QueuedDelta {
    /// Creates a delta that is small, or that is sent immediately.
    pub(crate) fn uncounted(delta: Arc<SharedDelta>) -> QueuedDelta {
        QueuedDelta { delta, share: None }
    }

    /// Creates a delta that may be queued for long: counted if it is large.
    ///
    /// # Errors
    /// `overloaded`.
    pub(crate) fn counted_if_large(
        delta: Arc<SharedDelta>,
        account: &Account,
    ) -> Result<QueuedDelta, Refusal> {
        let mut queued = QueuedDelta::uncounted(delta);
        if queued.delta.weight() >= limits::COUNTED_BYTES {
            queued.count(account)?;
        }
        Ok(queued)
    }

    /// Counts it, whatever its size.
    pub(crate) fn count(&mut self, account: &Account) -> Result<(), Refusal> {
        self.share = Some(Arc::new(self.delta.shared_bytes().share(account)?));
        Ok(())
    }

    /// Returns its counted bytes; zero if it is small.
    pub(crate) fn counted_bytes(&self) -> usize {
        self.share.as_ref().map_or(0, |share| share.bytes())
    }
}

impl Deref for QueuedDelta {
    type Target = SharedDelta;

    fn deref(&self) -> &SharedDelta {
        &self.delta
    }
}
