//! The state of a connection, as its handles see it.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock};

use tokio::sync::watch;

use crate::Error;

/// State that the actor shares with its handles.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(super) reconnects: AtomicU64,
    pub(super) connected: watch::Sender<bool>,
    /// Why there is no connection at the moment.
    pub(super) last_error: Mutex<Option<String>>,
    /// The namespace of the caller, from the first message of the last connection.
    pub(super) namespace: Mutex<Option<String>>,
    /// Why the client has ended.
    pub(super) close_reason: OnceLock<Error>,
}
