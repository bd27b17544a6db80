//! Who wants to know that a table has changed, before anybody is told so: doors keep what they know of
//! credentials exact by it.

use std::sync::{Mutex, PoisonError};

use abide_schema::Seq;
use tokio::sync::watch;

use crate::overlay::NetChange;

/// The tables that somebody watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watched: Mutex<Vec<(&'static [&'static str], watch::Sender<Seq>)>>,
}

impl Watches {
    /// A receiver that holds the seq of the last commit which changed any of these tables.
    pub(crate) fn add(&self, tables: &'static [&'static str]) -> watch::Receiver<Seq> {
        let (sender, receiver) = watch::channel(Seq::ZERO);
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push((tables, sender));
        receiver
    }

    /// What of these changes somebody watches.
    pub(crate) fn touched(&self, changes: &[NetChange]) -> Touched {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|(_, sender)| !sender.is_closed());
        let concerns =
            |tables: &[&str]| changes.iter().any(|change| tables.contains(&change.table.name));
        let touched = watched.iter().filter(|(tables, _)| concerns(tables));
        Touched(touched.map(|(_, sender)| sender.clone()).collect())
    }
}

/// Those to be told once the transaction is committed, and before its callers are.
pub(crate) struct Touched(Vec<watch::Sender<Seq>>);

impl Touched {
    pub(crate) fn tell(self, to: Seq) {
        for sender in self.0 {
            sender.send_replace(to);
        }
    }
}
