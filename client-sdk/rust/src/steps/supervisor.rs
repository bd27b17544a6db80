//! A supervisor: answers the handoffs of sessions.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_reducers::HandoffRequest;
use abide_reducers::arguments::{
    ClaimHandoff, HeartbeatHandoff, RejectHandoff, ReleaseHandoff, ResolveHandoff,
};
use abide_schema::Code;
use tokio::task::JoinSet;

use super::lease::{self, LEASE, WorkEnd, millis};
use super::outcome::{Recording, ToolError};
use crate::{Abide, Error};

/// A handoff that is pending again has another seq.
const PENDING: &str = "SELECT id, seq FROM handoff_requests
WHERE status = 'pending' AND required_capability = :capability";

/// The answer of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandoffResolution {
    /// The text becomes a message of the session, which continues.
    Resolved(String),
    /// The reason becomes a message of the session, which continues.
    Rejected(String),
}

impl Abide {
    /// Returns a supervisor for handoffs.
    ///
    /// ```no_run
    /// use abide_client::HandoffResolution;
    /// use abide_client::rows::HandoffRequest;
    ///
    /// # async fn example(abide: abide_client::Abide) -> Result<(), abide_client::Error> {
    /// let answer = |handoff: HandoffRequest| async move {
    ///     Ok(HandoffResolution::Resolved(format!("{}: a refund is on its way", handoff.reason)))
    /// };
    /// let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    /// abide.supervisor().serve("refunds", answer, stop).await
    /// # }
    /// ```
    pub fn supervisor(&self) -> Supervisor {
        Supervisor { abide: self.clone(), concurrency: 8, lease: LEASE }
    }
}

/// A supervisor for handoffs.
#[must_use = "a supervisor works with `serve`"]
#[derive(Clone, Debug)]
pub struct Supervisor {
    abide: Abide,
    concurrency: usize,
    lease: Duration,
}

impl Supervisor {
    /// Sets how many handoffs it answers at a time. Default: 8.
    pub fn concurrency(mut self, handoffs: usize) -> Supervisor {
        self.concurrency = handoffs.max(1);
        self
    }

    /// Sets the lease; heartbeats extend it while the function runs. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Supervisor {
        self.lease = lease;
        self
    }

    /// Answers handoffs that require this capability until `stop` completes; then it claims no more, and returns when the
    /// running ones have ended. If the function fails, the handoff is released to other supervisors, and this one does
    /// not claim it again. What the function answered is reported until the server answers; after `stop`, until the
    /// deadline of the client.
    ///
    /// # Errors
    /// [`Error::Refused`] if the caller may not read handoffs; [`Error::Closed`] if the client was closed.
    pub async fn serve<F, W>(
        self,
        capability: &str,
        function: F,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error>
    where
        F: Fn(HandoffRequest) -> W + Send + Sync + 'static,
        W: Future<Output = Result<HandoffResolution, ToolError>> + Send + 'static,
    {
        let handoffs = self.abide.subscribe(PENDING).param("capability", capability);
        let mut handoffs = handoffs.await?;
        let function = Arc::new(function);
        let mut stop = pin!(stop);
        let is_stopping = Arc::new(AtomicBool::new(false));
        let recording = Recording::UntilAnswered(Arc::clone(&is_stopping));
        let mut running = JoinSet::new();
        // Those that this supervisor has looked at, answers at the moment, or could not answer.
        let mut taken = BTreeSet::new();
        let mut active = BTreeSet::new();
        let mut failed = BTreeSet::new();
        let served = loop {
            let pending: Vec<(String, i64)> = handoffs.typed_rows()?;
            taken.retain(|handoff| pending.contains(handoff));
            for (id, seq) in pending {
                let is_free = !active.contains(&id) && !failed.contains(&id);
                let has_room = running.len() < self.concurrency;
                if is_free && has_room && taken.insert((id.clone(), seq)) {
                    active.insert(id.clone());
                    let supervisor = self.clone();
                    let function = Arc::clone(&function);
                    let recording = recording.clone();
                    running.spawn(async move {
                        let may_claim_again =
                            supervisor.claim_and_answer(&id, &*function, &recording).await;
                        (id, may_claim_again)
                    });
                }
            }
            tokio::select! {
                () = &mut stop => break Ok(()),
                changed = handoffs.next() => match changed {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break Err(error),
                    None => break Err(Error::Closed),
                },
                Some(ended) = running.join_next() => if let Ok((id, may_claim_again)) = ended {
                    active.remove(&id);
                    if !may_claim_again {
                        failed.insert(id);
                    }
                },
            }
        };
        is_stopping.store(true, Ordering::Release);
        while running.join_next().await.is_some() {}
        served
    }

    /// Claims and answers a handoff. Returns whether this supervisor may claim it again.
    async fn claim_and_answer<F, W>(&self, id: &str, function: &F, recording: &Recording) -> bool
    where
        F: Fn(HandoffRequest) -> W,
        W: Future<Output = Result<HandoffResolution, ToolError>>,
    {
        let claim = ClaimHandoff::new(id).lease_ms(millis(self.lease));
        let handoff = match self.abide.call(claim).await {
            Ok(claimed) => claimed.into_inner(),
            // Another supervisor was first.
            Err(error) if error.code() == Some(Code::Conflict) => return true,
            Err(error) => {
                tracing::warn!(
                    name: "handoff_not_claimed",
                    id,
                    error = format_args!("{error:#}"),
                    "the handoff cannot be claimed"
                );
                return false;
            }
        };
        match self.answer(handoff, function, recording).await {
            Ok(is_answered) => is_answered,
            Err(error) => {
                tracing::warn!(
                    name: "handoff_not_recorded",
                    id,
                    error = format_args!("{error:#}"),
                    "the answer to the handoff is not recorded"
                );
                true
            }
        }
    }

    /// Whether the function answered.
    async fn answer<F, W>(
        &self,
        handoff: HandoffRequest,
        function: &F,
        recording: &Recording,
    ) -> Result<bool, Error>
    where
        F: Fn(HandoffRequest) -> W,
        W: Future<Output = Result<HandoffResolution, ToolError>>,
    {
        let abide = &self.abide;
        let id = handoff.id.clone();
        let token = handoff.fencing_token;
        let heartbeat = || async {
            let mut extend = HeartbeatHandoff::new(&id).lease_ms(millis(self.lease));
            extend.fencing_token = token;
            abide.call(extend).deadline(self.lease).await.map(|_| true)
        };
        match lease::run(function(handoff), self.lease, heartbeat).await? {
            WorkEnd::Done(Ok(HandoffResolution::Resolved(text))) => {
                let resolve =
                    ResolveHandoff { fencing_token: token, ..ResolveHandoff::new(&id, text) };
                recording.record(abide, resolve).await?;
            }
            WorkEnd::Done(Ok(HandoffResolution::Rejected(why))) => {
                let reject = RejectHandoff { fencing_token: token, ..RejectHandoff::new(&id, why) };
                recording.record(abide, reject).await?;
            }
            WorkEnd::Done(Err(why)) => {
                tracing::warn!(
                    name: "supervisor_failed",
                    id,
                    %why,
                    "the supervisor failed; the handoff is released"
                );
                let release = ReleaseHandoff { fencing_token: token, ..ReleaseHandoff::new(&id) };
                recording.record(abide, release).await?;
                return Ok(false);
            }
            WorkEnd::Cancelled => {}
        }
        Ok(true)
    }
}
