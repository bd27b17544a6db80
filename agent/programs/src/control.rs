//! State shared by a handle and a driver: the requests to the driver, and the pending approvals.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::Signal;
use serde_json::Value;

use crate::dialogue::Decision;

/// The pending approvals, with the requested arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenApprovals(Arc<Mutex<BTreeMap<String, Value>>>);

impl OpenApprovals {
    pub(crate) fn insert(&self, request_id: String, input: Value) {
        self.lock().insert(request_id, input);
    }

    /// Removes an approval. Only the caller that gets it may decide it.
    pub(crate) fn take(&self, request_id: &str) -> Option<Value> {
        self.lock().remove(request_id)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests to a driver.
#[derive(Debug)]
pub(crate) enum ControlRequest {
    /// Write what was held back, except the prompt of a program that reports its session first.
    OpenSession,
    /// Write the prompt that was held back.
    SendPrompt,
    /// Answer an approval that was taken from [`OpenApprovals`].
    Decide {
        request_id: String,
        /// The arguments that the program has requested.
        input: Value,
        decision: Decision,
    },
    /// Ask the program to stop its turn.
    Interrupt,
    /// End the program.
    Cancel(EndSignal),
}

/// The signal that asks a program to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndSignal {
    /// SIGTERM.
    #[default]
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP.
    Hangup,
}

impl From<EndSignal> for Signal {
    fn from(signal: EndSignal) -> Signal {
        match signal {
            EndSignal::Terminate => Signal::TERM,
            EndSignal::Interrupt => Signal::INT,
            EndSignal::Hangup => Signal::HUP,
        }
    }
}
