//! The queries of a connection that have no answer yet, so that the client can cancel them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The queries by id. Clones share them. The room for requests in flight bounds their number.
#[derive(Clone, Debug, Default)]
pub(super) struct RunningQueries(Arc<Mutex<HashMap<String, Arc<Notify>>>>);

/// A query, until it is dropped.
#[derive(Debug)]
pub(super) struct RunningQuery {
    all: RunningQueries,
    id: String,
    cancelled: Arc<Notify>,
}

impl RunningQueries {
    /// Begins a query. Of several with one id only the last can be cancelled.
    pub(super) fn begin(&self, id: &str) -> RunningQuery {
        let id = id.to_owned();
        let cancelled = Arc::<Notify>::default();
        self.lock().insert(id.clone(), Arc::clone(&cancelled));
        RunningQuery { all: self.clone(), id, cancelled }
    }

    /// Cancels a query, if it runs.
    pub(super) fn cancel(&self, id: &str) {
        if let Some(cancelled) = self.lock().get(id) {
            cancelled.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningQuery {
    /// Returns when the client has cancelled the query.
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if all.get(&self.id).is_some_and(|one| Arc::ptr_eq(one, &self.cancelled)) {
            all.remove(&self.id);
        }
    }
}
