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
    credentials: (&'static [&'static str], watch::Sender<Seq>),
    watched: Mutex<Vec<(&'static [&'static str], watch::Sender<Seq>)>>,
}

impl TableWatchers {
    pub(crate) fn new(modules: &[Module]) -> TableWatchers {
        let credential_queries = modules.iter().find_map(|module| module.credential_queries);
        let tables = credential_queries
            .map_or(&[] as &[&str], |credential_queries| credential_queries.tables);
        let credentials = (tables, watch::Sender::new(Seq::ZERO));
        TableWatchers { credentials, watched: Mutex::default() }
    }

    /// The seq of the last commit that changed a credential table.
    pub(crate) fn credentials(&self) -> Seq {
        *self.credentials.1.borrow()
    }

    /// A receiver with the seq of the last commit that changed any of these tables.
    pub(crate) fn add(&self, tables: &'static [&'static str]) -> watch::Receiver<Seq> {
        if tables == self.credentials.0 {
            return self.credentials.1.subscribe();
        }
        let (sender, receiver) = watch::channel(Seq::ZERO);
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push((tables, sender));
        receiver
    }

    /// The watches that these changes affect.
    pub(crate) fn touched(&self, changes: &[NetChange]) -> PendingNotifications {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|(_, sender)| !sender.is_closed());
        let all = watched.iter().chain([&self.credentials]);
        let touched = all
            .filter(|(tables, _)| changes.iter().any(|change| tables.contains(&change.table.name)));
        PendingNotifications(touched.map(|(_, sender)| sender.clone()).collect())
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
