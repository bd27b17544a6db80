//! The interface of both backends (single requests and subscriptions), and the retry loop for requests.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_schema::wire::{BatchCall, Explanation, SubscriptionInfo};
use abide_schema::{Checksum, Code, Row, Seq};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value as JsonValue};
use tokio::time::{Instant, sleep_until, timeout_at};
use uuid::Uuid;

use crate::Error;
use crate::live_result::Changes;

/// A request with one reply.
#[derive(Clone, Debug)]
pub(crate) enum BackendRequest {
    Call {
        reducer: String,
        args: JsonValue,
        request_id: String,
    },
    Batch {
        calls: Vec<BatchCall>,
        request_id: String,
    },
    /// A batch that an engine in this process answers before it is durable.
    Apply {
        calls: Vec<BatchCall>,
        request_id: String,
        /// Whether the request id was generated. An engine in this process does not store it then.
        generated: bool,
    },
    Sql {
        sql: String,
        params: Map<String, JsonValue>,
        as_of: Option<Seq>,
    },
    Explain {
        sql: String,
        params: Map<String, JsonValue>,
    },
}

impl BackendRequest {
    /// The request id with which a caller can repeat the request later.
    fn request_id(&self) -> Option<&str> {
        match self {
            BackendRequest::Call { request_id, .. }
            | BackendRequest::Batch { request_id, .. }
            | BackendRequest::Apply { request_id, generated: false, .. } => Some(request_id),
            BackendRequest::Apply { .. }
            | BackendRequest::Sql { .. }
            | BackendRequest::Explain { .. } => None,
        }
    }

    /// Whether it only reads, so that it can be cancelled.
    pub(crate) fn is_query(&self) -> bool {
        matches!(self, BackendRequest::Sql { .. } | BackendRequest::Explain { .. })
    }

    /// The request as named in error messages.
    fn describe(&self) -> String {
        match self {
            BackendRequest::Call { reducer, .. } => format!("the call of {reducer}"),
            BackendRequest::Batch { calls, .. } | BackendRequest::Apply { calls, .. } => {
                format!("the batch of {} calls", calls.len())
            }
            BackendRequest::Sql { .. } => "the query".to_owned(),
            BackendRequest::Explain { .. } => "the explanation".to_owned(),
        }
    }
}

/// The reply to a request.
#[derive(Debug)]
pub(crate) enum BackendReply {
    Called { seq: Seq, duplicate: bool, result: RawResult },
    Batch { seq: Seq, duplicate: bool, results: Vec<AppliedCall> },
    Rows { seq: Seq, columns: Vec<String>, rows: Vec<Row> },
    Explained(Box<Explanation>),
}

/// A reducer's result as JSON text.
#[derive(Debug)]
pub(crate) struct RawResult(pub(crate) String);

impl RawResult {
    /// A result in a message of a server.
    pub(crate) fn from_wire(result: Option<Box<RawValue>>) -> RawResult {
        RawResult(result.map_or_else(|| "null".to_owned(), |text| Box::<str>::from(text).into()))
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

/// The result of one call of a batch, not decoded yet.
#[derive(Debug)]
pub struct AppliedCall {
    /// The position of the call in the log.
    pub seq: Seq,
    pub(crate) result: RawResult,
}

impl AppliedCall {
    /// Returns what the reducer returned.
    ///
    /// # Errors
    /// [`Error::Decode`] if the result is not a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.result.decode().map_err(|why| Error::decode("the result of a call", why))
    }
}

/// One attempt at a request.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) outcome: Result<BackendReply, Error>,
    /// An earlier attempt was sent and its reply lost: a refusal does not imply that nothing was written.
    pub(crate) uncertain: bool,
}

/// A subscription request.
#[derive(Clone, Debug)]
pub(crate) struct SubscriptionQuery {
    pub(crate) sql: String,
    pub(crate) params: Map<String, JsonValue>,
    /// Request a checksum of the result with the snapshot and with each delta.
    pub(crate) checksum: bool,
    /// Request the SQL statements that produce the deltas.
    pub(crate) explain: bool,
}

/// Where a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the current result.
    Now,
    /// With the changes after a seq.
    After(Seq),
    /// With the result as of a seq, followed by the changes since.
    AsOf(Seq),
}

impl Start {
    /// The seq up to which the subscriber has everything.
    pub(crate) fn seq(self) -> Option<Seq> {
        match self {
            Start::After(seq) => Some(seq),
            Start::Now | Start::AsOf(_) => None,
        }
    }
}

/// An event of a subscription.
#[derive(Debug)]
pub(crate) enum Event {
    /// The whole result. It is the first event unless the subscription starts after a seq; a later
    /// snapshot replaces everything before it.
    Snapshot {
        seq: Seq,
        info: Arc<SubscriptionInfo>,
        rows: Vec<Row>,
        checksum: Option<Checksum>,
        /// Earlier events are from a history that the server does not have.
        history_changed: bool,
    },
    /// The changes up to a seq; includes the result's shape if it answers a resume.
    Delta {
        to: Seq,
        changes: Changes,
        checksum: Option<Checksum>,
        info: Option<Arc<SubscriptionInfo>>,
    },
    /// Nothing changed up to a seq.
    Progress(Seq),
    /// The subscription has ended.
    Ended(Error),
}

/// Source of a subscription's events. Bounded: a slow consumer is caught up when it reads again.
pub(crate) trait Source: Send + Sync {
    /// Polls the next event. Consecutive events leave no gap.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event>;

    /// Restarts with a snapshot. Events from before the restart may still arrive first.
    fn restart(&mut self);
}

/// Retries until there is a reply or the deadline has passed; temporary refusals ([`Code::is_temporary`]) are retried.
pub(crate) async fn retry_until_deadline<F: Future<Output = Attempt>>(
    ask: &BackendRequest,
    patience: Duration,
    attempt: impl Fn() -> F,
) -> Result<BackendReply, Error> {
    // `Duration::MAX` would overflow the clock: limit it to a year.
    let patience = patience.min(Duration::from_secs(365 * 24 * 3600));
    let deadline = Instant::now() + patience;
    let mut backoff = Backoff::new();
    let mut uncertain = false;
    let timed_out = |why: Option<String>| Error::TimedOut {
        what: ask.describe(),
        waited: patience,
        request_id: ask.request_id().map(str::to_owned),
        why,
    };
    loop {
        let Ok(attempt) = timeout_at(deadline, attempt()).await else {
            return Err(timed_out(None));
        };
        uncertain |= attempt.uncertain;
        let error = match attempt.outcome {
            Err(error) if error.code().is_some_and(Code::is_temporary) => error,
            outcome => return outcome,
        };
        // If the caller's own rate limit refuses, the server knows when to retry.
        let retry_after = error.retry_after().unwrap_or_default();
        let again = Instant::now() + backoff.next().max(retry_after);
        if again >= deadline {
            return Err(if uncertain { timed_out(Some(error.to_string())) } else { error });
        }
        sleep_until(again).await;
    }
}

/// Exponential backoff with jitter, each pause between half and all of its length, so that the clients of
/// one server do not retry in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const MIN_DELAY: Duration = Duration::from_millis(50);
    const MAX_DELAY: Duration = Duration::from_secs(2);

    pub(crate) fn new() -> Backoff {
        Backoff { next: Backoff::MIN_DELAY }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(Backoff::MAX_DELAY);
        let chance = f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        whole.mul_f64(0.5 + chance / 2.0)
    }
}
