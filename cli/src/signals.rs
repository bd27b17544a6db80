//! Signals that stop the process.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use abide_agent::EndSignal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::failure::Failure;

/// How long signals after the first one are part of the same request to end. `timeout` signals the process and then its process
/// group, which it belongs to; a launcher that passes a signal on does so, too, when both are in one group.
pub(crate) const BURST: Duration = Duration::from_millis(500);

/// The signals that end a command: SIGINT, SIGTERM, and SIGHUP. Those that the parent had ignored stay ignored, as `nohup` and a
/// shell's background jobs require; but Ctrl-C on a terminal always ends it.
pub(crate) struct EndSignals([Option<Signal>; 3]);

impl EndSignals {
    /// # Errors
    /// The system's error.
    pub(crate) fn new() -> io::Result<EndSignals> {
        let mut ignored = ignored_signals();
        if io::stdin().is_terminal() {
            ignored &= !(1 << (SignalKind::interrupt().as_raw_value() - 1));
        }
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(|kind| {
            let bit = 1_u64 << (kind.as_raw_value() - 1);
            if ignored & bit != 0 { Ok(None) } else { signal(kind).map(Some) }
        });
        Ok(EndSignals([interrupt?, terminate?, hangup?]))
    }

    /// Returns the next signal.
    pub(crate) async fn recv(&mut self) -> EndSignal {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            () = recv_if_handled(interrupt) => EndSignal::Interrupt,
            () = recv_if_handled(terminate) => EndSignal::Terminate,
            () = recv_if_handled(hangup) => EndSignal::Hangup,
        }
    }
}

async fn recv_if_handled(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns the signals that this process ignores, one bit each. Linux reports them; elsewhere none.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// The signals that stop a server: SIGINT (Ctrl-C) and SIGTERM.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// # Errors
    /// The system's error.
    pub(crate) fn new() -> io::Result<StopSignals> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(StopSignals { terminate, interrupt })
    }

    /// Completes with the next signal.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Completes with a signal that is not part of the [`BURST`] of the one before.
    pub(crate) async fn recv_second(&mut self) {
        let burst_end = Instant::now() + BURST;
        loop {
            self.recv().await;
            if Instant::now() >= burst_end {
                return;
            }
        }
    }
}

/// Completes when the process receives SIGINT (Ctrl-C) or SIGTERM.
///
/// # Errors
/// The system's error.
pub(crate) fn stop_requested() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let mut signals =
        StopSignals::new().map_err(|why| Failure::system("signals cannot be handled", &why))?;
    Ok(async move { signals.recv().await })
}
