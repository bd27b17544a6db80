//! Renewal of the leases that a runtime holds: those of its runs, and those of the calls that it runs.
//!
//! It happens on a thread of its own, with an async runtime and a connection of its own. A tool that blocks, or a machine with too
//! much load, can keep all workers of the program's async runtime busy for longer than a lease: then another driver would take
//! over its runs, and a call that must not run twice would become `unknown` while it runs.
//!
//! Leases are renewed together, many in a batch: ten thousand runs take twenty transactions instead of ten thousand. Those that
//! expire first are in the first batch.
//!
//! While a renewal has failed, no run is claimed, and no call of no run: its lease would not be renewed either, and another
//! runtime can take it. Calls of a run go on as long as the run: after the loss of its lease, its driver can record nothing.
//! Claims are possible again after an answer of the server: a renewal, or that of a query if no lease is left to renew.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use abide_client::arguments::HeartbeatToolCall;
use abide_client::rows::ToolCall;
use abide_client::{Abide, Call, Code, Error, Refusal};
use futures_util::FutureExt as _;
use tokio::sync::{oneshot, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::run::lease::{RunLease, fencing_token, millis};

/// Leases in one batch: half of the permitted batch size, because a batch blocks all other writes.
const LEASES_PER_BATCH: usize = 500;

/// Renewals in the time of a lease. A lease that was just taken is renewed after a third of it at most, so two more renewals can be
/// late or fail.
const RENEWALS: u32 = 3;

/// Renewals in a row without an answer after which there is another connection: the server may be gone without closing this one.
const UNANSWERED: u32 = 2;

/// Pause before another attempt to connect, or to renew.
const RECONNECT: Duration = Duration::from_secs(1);

/// The leases that a runtime holds.
#[derive(Default)]
pub(crate) struct HeldLeases {
    /// The active runs, as they were claimed. Only the claim returns the fencing token; it cannot be read later.
    runs: Mutex<BTreeMap<String, Held<RunLease>>>,
    calls: Mutex<BTreeMap<String, Held<CallLease>>>,
    /// Whether the last renewals have failed.
    is_failing: watch::Sender<bool>,
}

/// A lease, and when it was taken or renewed last.
#[derive(Clone)]
struct Held<L> {
    lease: L,
    renewed_at: Instant,
}

impl<L> Held<L> {
    fn new(lease: L) -> Held<L> {
        Held { lease, renewed_at: Instant::now() }
    }
}

/// The lease of a call that runs.
#[derive(Clone, Debug)]
struct CallLease {
    call_id: String,
    fencing_token: i64,
    /// Asks the tool to stop.
    cancel: CancellationToken,
}

/// A lease to renew.
#[derive(Clone, Debug)]
enum Lease {
    Run(RunLease),
    Call(CallLease),
}

/// A call whose lease is renewed until this is dropped.
pub(crate) struct HeldCall<'a> {
    leases: &'a HeldLeases,
    lease: CallLease,
}

impl Drop for HeldCall<'_> {
    fn drop(&mut self) {
        self.leases.release_call(&self.lease);
    }
}

impl HeldLeases {
    pub(crate) fn hold_run(&self, lease: RunLease) {
        self.runs().insert(lease.run_id.clone(), Held::new(lease));
    }

    pub(crate) fn release_run(&self, run_id: &str) {
        self.runs().remove(run_id);
    }

    /// Renews the lease of a claimed call. If the lease is lost or the call is cancelled, `cancel` asks its tool to stop.
    #[must_use]
    pub(crate) fn hold_call(&self, claimed: &ToolCall, cancel: &CancellationToken) -> HeldCall<'_> {
        let lease = CallLease {
            call_id: claimed.call_id.clone(),
            fencing_token: fencing_token(claimed),
            cancel: cancel.clone(),
        };
        self.calls().insert(lease.call_id.clone(), Held::new(lease.clone()));
        HeldCall { leases: self, lease }
    }

    /// Forgets the lease of a call, unless the call was claimed again.
    fn release_call(&self, lease: &CallLease) {
        let mut calls = self.calls();
        if calls.get(&lease.call_id).is_some_and(|held| held.lease.is_same(lease)) {
            calls.remove(&lease.call_id);
        }
    }

    /// Waits until leases can be renewed. Call it before each claim.
    pub(crate) async fn until_renewed(&self) {
        // The sender is a field of `self`.
        let _ = self.is_failing.subscribe().wait_for(|fails| !fails).await;
    }

    /// Returns the leases, those that expire first at the beginning. Runs come before calls of the same age: without its run,
    /// a call is of no use.
    fn by_expiry(&self) -> Vec<Lease> {
        let runs: Vec<_> = self.runs().values().cloned().collect();
        let calls: Vec<_> = self.calls().values().cloned().collect();
        let runs = runs.into_iter().map(|held| (held.renewed_at, Lease::Run(held.lease)));
        let calls = calls.into_iter().map(|held| (held.renewed_at, Lease::Call(held.lease)));
        let mut all: Vec<(Instant, Lease)> = runs.chain(calls).collect();
        all.sort_by_key(|(renewed_at, _)| *renewed_at);
        all.into_iter().map(|(_, lease)| lease).collect()
    }

    /// Records that a lease was renewed by a call that was sent at this time.
    fn renewed(&self, lease: &Lease, sent_at: Instant) {
        match lease {
            Lease::Run(run) => {
                if let Some(held) = self.runs().get_mut(&run.run_id)
                    && held.lease == *run
                {
                    held.renewed_at = sent_at;
                }
            }
            Lease::Call(call) => {
                if let Some(held) = self.calls().get_mut(&call.call_id)
                    && held.lease.is_same(call)
                {
                    held.renewed_at = sent_at;
                }
            }
        }
    }

    /// Renews all leases. If there is none, but the last renewal has failed, a query shows whether the server answers.
    ///
    /// A refused renewal of a run is ignored: the driver of that run gets the same refusal at its next step.
    ///
    /// A batch is atomic. If the batch is refused, its two halves are tried separately, so that one ended run does not
    /// cost other runs their leases.
    ///
    /// # Errors
    /// [`Error`]: the connection is lost, or the engine has too much load.
    pub(crate) async fn renew(&self, abide: &Abide, duration: Duration) -> Result<(), Error> {
        let held = self.by_expiry();
        if held.is_empty() && *self.is_failing.borrow() {
            let answer = abide.sql("SELECT 1").deadline(duration / RENEWALS).rows().await;
            return answer.map(drop);
        }
        let mut waiting: Vec<&[Lease]> = held.chunks(LEASES_PER_BATCH).rev().collect();
        while let Some(together) = waiting.pop() {
            let sent_at = Instant::now();
            let heartbeats = together.iter().map(|lease| lease.heartbeat(duration));
            // No longer than until the next renewals.
            let batch = abide.batch(heartbeats).deadline(duration / RENEWALS);
            match (batch.await, together) {
                (Ok(renewed), _) => {
                    for (lease, row) in together.iter().zip(renewed.into_inner()) {
                        self.renewed(lease, sent_at);
                        if let Lease::Call(call) = lease
                            && !row.result["cancel_requested_at"].is_null()
                        {
                            call.cancel.cancel();
                        }
                    }
                }
                (Err(error), _) if error.code().is_none_or(Code::retryable) => return Err(error),
                (Err(_), [Lease::Call(call)]) => {
                    self.release_call(call);
                    call.cancel.cancel();
                }
                (Err(_), [] | [_]) => {}
                (Err(_), several) => {
                    let (first, second) = several.split_at(several.len() / 2);
                    waiting.extend([second, first]);
                }
            }
        }
        Ok(())
    }

    /// Returns a connection that the async runtime of this thread drives. Until there is one, for example because the server
    /// accepts no further connection, the leases are renewed over the connection of the runtime.
    async fn connect(&self, abide: &Abide, duration: Duration) -> Abide {
        loop {
            match abide.separate().await {
                Ok(separate) => return separate,
                Err(error) => {
                    tracing::warn!(
                        name: "lease_connection_failed",
                        error = format_args!("{error:#}"),
                        "no connection of its own to renew leases"
                    );
                }
            }
            let renewed = self.renew(abide, duration).await;
            self.note_renewal(renewed.as_ref().err());
            // tidy: the pause before another attempt to connect
            tokio::time::sleep(RECONNECT.min(duration / RENEWALS)).await;
        }
    }

    /// Renews all leases each third of their duration, until the connection is closed, or does not answer any more. Returns why.
    async fn renew_until_closed(&self, abide: &Abide, duration: Duration) -> Error {
        let mut beat = tokio::time::interval((duration / RENEWALS).max(Duration::from_millis(1)));
        // After a late renewal, the next one has its full time.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unanswered = 0;
        loop {
            beat.tick().await;
            let renewed = self.renew(abide, duration).await;
            self.note_renewal(renewed.as_ref().err());
            let timed_out = matches!(renewed, Err(Error::TimedOut { .. }));
            unanswered = if timed_out { unanswered + 1 } else { 0 };
            match renewed {
                Ok(()) => {}
                Err(error) if matches!(error, Error::Closed) || unanswered == UNANSWERED => {
                    return error;
                }
                // Not only at the next beat: then others may be lost.
                Err(_) => beat.reset_after(RECONNECT.min(duration / RENEWALS)),
            }
        }
    }

    /// Renews leases until this is dropped. If an attempt ends, because its connection is closed or because it panics, another
    /// one begins.
    async fn renew_for_ever(&self, pause: Duration, mut attempt: impl AsyncFnMut() -> Error) {
        loop {
            // `AssertUnwindSafe` is sound: each change of the leases is complete before anything that can panic.
            match AssertUnwindSafe(attempt()).catch_unwind().await {
                Ok(error) => self.note_renewal(Some(&error)),
                Err(_) => {
                    self.is_failing.send_replace(true);
                    tracing::error!(
                        name: "lease_renewal_panicked",
                        "the renewal of leases panicked; no run is claimed until leases are renewed again"
                    );
                }
            }
            // tidy: the pause before another attempt
            tokio::time::sleep(pause).await;
        }
    }

    /// Records whether a renewal has failed, and tells it.
    fn note_renewal(&self, error: Option<&Error>) {
        let failed = self.is_failing.send_replace(error.is_some());
        match error {
            Some(error) => {
                tracing::warn!(
                    name: "leases_not_renewed",
                    error = format_args!("{error:#}"),
                    "leases could not be renewed; no run is claimed until the server answers"
                );
            }
            None if failed => tracing::info!(
                name: "leases_renewed",
                "the server answers again; runs are claimed again"
            ),
            None => {}
        }
    }

    fn runs(&self) -> MutexGuard<'_, BTreeMap<String, Held<RunLease>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn calls(&self) -> MutexGuard<'_, BTreeMap<String, Held<CallLease>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallLease {
    /// Returns `true` if another lease is that of the same claim.
    fn is_same(&self, other: &CallLease) -> bool {
        self.call_id == other.call_id && self.fencing_token == other.fencing_token
    }
}

impl Lease {
    fn heartbeat(&self, duration: Duration) -> Call {
        match self {
            Lease::Run(run) => Call::from(run.heartbeat(duration)),
            Lease::Call(CallLease { call_id, fencing_token, .. }) => {
                let heartbeat = HeartbeatToolCall::new(call_id, *fencing_token);
                Call::from(heartbeat.lease_ms(millis(duration)))
            }
        }
    }
}

/// The thread that renews leases. It ends when this is dropped.
pub(crate) struct LeaseKeeper {
    stop: DropGuard,
    /// Is dropped by the thread at its end.
    ended: oneshot::Receiver<()>,
    thread: thread::JoinHandle<()>,
}

impl LeaseKeeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The process has no further thread, or no further file for its async runtime.
    pub(crate) fn start(
        abide: &Abide,
        leases: &Arc<HeldLeases>,
        duration: Duration,
    ) -> Result<LeaseKeeper, Error> {
        let stop = CancellationToken::new();
        let (ending, ended) = oneshot::channel();
        let abide = abide.clone();
        let leases = Arc::clone(leases);
        let stopped = stop.clone();
        let (runtime_sender, runtime_receiver) = mpsc::channel::<tokio::runtime::Runtime>();
        let thread = thread::Builder::new().name("abide-leases".to_owned()).spawn(move || {
            let _ending = ending;
            // Without it, it could not be created.
            let Ok(runtime) = runtime_receiver.recv() else { return };
            runtime.block_on(async {
                let pause = RECONNECT.min(duration / RENEWALS);
                let renews = leases.renew_for_ever(pause, async || {
                    let separate = leases.connect(&abide, duration).await;
                    leases.renew_until_closed(&separate, duration).await
                });
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = renews => {}
                }
            });
        });
        let thread = thread.map_err(|why| not_started(&why))?;
        // After the thread, because an async task may not drop an async runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| not_started(&why))?;
        runtime_sender.send(runtime).expect("the thread waits for it");
        Ok(LeaseKeeper { stop: stop.drop_guard(), ended, thread })
    }

    /// Ends the thread, and waits for its end.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        // It is never sent.
        let _ = self.ended.await;
        if self.thread.join().is_err() {
            tracing::error!(
                name: "lease_thread_panicked",
                "the thread that renews leases panicked"
            );
        }
    }
}

/// Returns the error of a thread that cannot be started.
fn not_started(why: &io::Error) -> Error {
    let detail = format!("the thread that renews leases cannot be started: {why}");
    Refusal::new(Code::Unavailable, detail)
        .hint("raise the limits of the process: threads (ulimit -u), open files (ulimit -n)")
        .into()
}

#[cfg(test)]
mod tests;
