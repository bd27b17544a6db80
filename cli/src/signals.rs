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
        let mut ignored = ignored_signals().unwrap_or_default();
        if io::stdin().is_terminal() {
            ignored &= !bit_of(SignalKind::interrupt());
        }
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(|kind| handle_unless(kind, ignored));
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

/// Handles a signal, unless it is one of the ignored ones.
fn handle_unless(kind: SignalKind, ignored: u64) -> io::Result<Option<Signal>> {
    if ignored & bit_of(kind) != 0 { Ok(None) } else { signal(kind).map(Some) }
}

async fn recv_if_handled(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns the signals that this process ignores, one bit each. `None`: the system does not say, as only Linux does.
fn ignored_signals() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Returns the bit of a signal in [`ignored_signals`].
fn bit_of(kind: SignalKind) -> u64 {
    1 << (kind.as_raw_value() - 1)
}

/// The signals of a server.
pub(crate) struct ServerSignals {
    pub(crate) stop: StopSignals,
    /// SIGHUP, if it asks for a reload.
    pub(crate) reload: Option<Signal>,
}

impl ServerSignals {
    /// SIGHUP asks for a reload, as it does of other servers. On a terminal it stops the server as SIGTERM does, because it
    /// says that the terminal was closed. It stays ignored if the parent had ignored it, as `nohup` does.
    ///
    /// A write beyond the limit of file sizes (`ulimit -f`) fails from here on, and no longer ends the process by SIGXFSZ.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(has_service_manager: bool) -> io::Result<ServerSignals> {
        let mut stop = StopSignals::new()?;
        // The handler stays, and a handled signal has no effect but the error of the write.
        drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
        let kind = SignalKind::hangup();
        // A handler would end what `nohup` has begun, so there is none if it is unknown whether the signal is ignored.
        let is_ignored = ignored_signals().is_none_or(|ignored| ignored & bit_of(kind) != 0);
        if is_ignored && !has_service_manager {
            return Ok(ServerSignals { stop, reload: None });
        }
        let hangup = signal(kind)?;
        if has_service_manager || !io::stdin().is_terminal() {
            return Ok(ServerSignals { stop, reload: Some(hangup) });
        }
        stop.hangup = Some(hangup);
        Ok(ServerSignals { stop, reload: None })
    }
}

/// The signals that stop a server: SIGINT (Ctrl-C), SIGTERM, and SIGHUP if [`ServerSignals`] says so.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl StopSignals {
    /// # Errors
    /// The system's error.
    pub(crate) fn new() -> io::Result<StopSignals> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(StopSignals { terminate, interrupt, hangup: None })
    }

    /// Completes with the next signal.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = recv_if_handled(&mut self.hangup) => {}
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
