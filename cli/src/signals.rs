//! Signals that stop the process.

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Completes when the process receives SIGINT (Ctrl-C) or SIGTERM.
///
/// # Errors
/// The system's error.
pub(crate) fn asked_to_stop() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
