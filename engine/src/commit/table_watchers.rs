//! Watches for table changes, notified before any reply to the commit: the server keeps its cache of
//! credentials exact with them.

use std::sync::{Mutex, PoisonError};

use abide_schema::{Module, Seq};
use tokio::sync::watch;

use crate::commit::overlay::NetChange;

/// The watched tables.
#[derive(Debug)]
pub(crate) struct TableWatchers {
    /// The credential tables: the writer uses them too.
    credentials: Watch,
    watched: Mutex<Vec<Watch>>,
}

/// Tables, and the seq of the last commit that changed any of them.
#[derive(Debug)]
struct Watch {
    tables: &'static [&'static str],
    changed: watch::Sender<Seq>,
}

impl TableWatchers {
    pub(crate) fn new(modules: &[Module]) -> TableWatchers {
        let credential_queries = modules.iter().find_map(|module| module.credential_queries);
        let tables: &[&str] = credential_queries.map_or(&[], |queries| queries.tables);
        let credentials = Watch { tables, changed: watch::Sender::new(Seq::ZERO) };
        TableWatchers { credentials, watched: Mutex::default() }
    }

    /// Returns the seq of the last commit that changed a credential table.
    pub(crate) fn credentials(&self) -> Seq {
        *self.credentials.changed.borrow()
    }

    /// Returns a receiver with the seq of the last commit that changed any of these tables.
    pub(crate) fn add(&self, tables: &'static [&'static str]) -> watch::Receiver<Seq> {
        if tables == self.credentials.tables {
            return self.credentials.changed.subscribe();
        }
        let (changed, receiver) = watch::channel(Seq::ZERO);
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.push(Watch { tables, changed });
        receiver
    }

    /// Returns the watches that these changes affect.
    pub(crate) fn touched(&self, changes: &[NetChange]) -> PendingNotifications {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|watch| !watch.changed.is_closed());
        let all = watched.iter().chain([&self.credentials]);
        let touched = all
            .filter(|watch| changes.iter().any(|change| watch.tables.contains(&change.table.name)));
        PendingNotifications(touched.map(|watch| watch.changed.clone()).collect())
    }
}

/// Watches to notify after the transaction is committed, and before its callers.
pub(crate) struct PendingNotifications(Vec<watch::Sender<Seq>>);

impl PendingNotifications {
    pub(crate) fn notify(self, to: Seq) {
        for sender in self.0 {
            sender.send_replace(to);
        }
    }
}
