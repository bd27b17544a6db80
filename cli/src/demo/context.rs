//! Shared state of all clients: the script, the ledger, and the server's address.

use std::sync::{Mutex, PoisonError};

use abide_client::{Abide, Error, Subscription, Update};
use serde::de::DeserializeOwned;
use serde_json::Value as JsonValue;
use tokio::sync::watch;

use super::ledger::Ledger;
use super::script::Script;
use crate::failure::Failure;

/// The shared state.
#[derive(Debug)]
pub(crate) struct DemoContext {
    /// The conversations.
    pub(crate) script: Script,
    /// The acknowledged writes.
    pub(crate) ledger: Ledger,
    url: String,
    /// Number of server starts.
    starts: watch::Sender<u64>,
    clients: Mutex<Vec<Abide>>,
}

impl DemoContext {
    /// For a running server.
    pub(crate) fn new(script: Script, url: String) -> DemoContext {
        let starts = watch::Sender::new(1);
        let ledger = Ledger::default();
        DemoContext { script, ledger, url, starts, clients: Mutex::default() }
    }

    /// The server has restarted.
    pub(crate) fn announce_restart(&self) {
        self.starts.send_modify(|starts| *starts += 1);
    }

    /// A client with its own connection. While the server is down, waits for it.
    pub(crate) async fn connect(&self) -> Result<Client<'_>, Failure> {
        let mut starts = self.starts.subscribe();
        loop {
            let tried = *starts.borrow_and_update();
            match Abide::connect(&self.url).await {
                Ok(abide) => {
                    self.lock_clients().push(abide.clone());
                    return Ok(Client { abide, ledger: &self.ledger });
                }
                Err(Error::Unreachable { .. } | Error::NotAbide { .. }) => {
                    // `self` holds the sender.
                    let _ = starts.wait_for(|starts| *starts > tried).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Number of clients, and number of them that reconnected.
    pub(crate) fn count_clients(&self) -> (u64, u64) {
        let clients = self.lock_clients();
        let resumed = clients.iter().filter(|client| client.reconnects() > 0).count();
        (clients.len() as u64, resumed as u64)
    }

    /// Closes the remaining clients.
    pub(crate) async fn close(&self) {
        let clients = std::mem::take(&mut *self.lock_clients());
        for client in clients {
            client.close().await;
        }
    }

    fn lock_clients(&self) -> std::sync::MutexGuard<'_, Vec<Abide>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client. Every acknowledged write is recorded in the ledger.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    abide: Abide,
    ledger: &'a Ledger,
}

impl<'a> Client<'a> {
    /// Calls a reducer.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        reducer: &'static str,
        arguments: JsonValue,
    ) -> Result<T, Error> {
        let called = self.abide.call_by_name(reducer, &arguments).returning::<T>().send().await?;
        self.ledger.acknowledge(called.seq, reducer, arguments);
        Ok(called.value)
    }

    /// Subscribes to a query, with this value for `:session` if it has that parameter.
    pub(crate) async fn watch(&self, sql: &str, session: Option<&str>) -> Result<Live<'a>, Error> {
        let mut subscribe = self.abide.subscribe(sql);
        if let Some(session) = session {
            subscribe = subscribe.param("session", session);
        }
        Ok(Live { subscription: subscribe.await?, ledger: self.ledger })
    }

    /// Closes the connection.
    pub(crate) async fn close(self) {
        self.abide.close().await;
    }
}

/// A live query.
#[derive(Debug)]
pub(crate) struct Live<'a> {
    subscription: Subscription,
    ledger: &'a Ledger,
}

impl Live<'_> {
    /// Waits for the next change; the first update is the current result.
    pub(crate) async fn next(&mut self) -> Result<Update, Error> {
        let update = self.subscription.try_next().await?.ok_or(Error::Closed)?;
        self.ledger.update_counts(|counts| counts.deltas += 1);
        Ok(update)
    }

    /// The current rows.
    pub(crate) fn rows<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        self.subscription.typed_rows()
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.subscription.rows().len()
    }
}
