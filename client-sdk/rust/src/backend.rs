//! What both backends can do: answer a question, and tell of a query. And the patience with which
//! questions are asked.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_schema::wire::{BatchCall, CallResult, Explanation, Opening};
use abide_schema::{Checksum, Code, Row, Seq};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as JsonValue};
use tokio::time::{Instant, sleep_until, timeout_at};
use uuid::Uuid;

use crate::Error;
use crate::rows::Changes;

/// A question with one answer.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Call { reducer: String, args: JsonValue, request_id: String },
    Batch { calls: Vec<BatchCall>, request_id: String },
    Sql { sql: String, params: Map<String, JsonValue>, as_of: Option<Seq> },
    Explain { sql: String, params: Map<String, JsonValue> },
}

impl Ask {
    fn request_id(&self) -> Option<&str> {
        match self {
            Ask::Call { request_id, .. } | Ask::Batch { request_id, .. } => Some(request_id),
            Ask::Sql { .. } | Ask::Explain { .. } => None,
        }
    }

    /// In the words of an error.
    fn name(&self) -> String {
        match self {
            Ask::Call { reducer, .. } => format!("the call of {reducer}"),
            Ask::Batch { calls, .. } => format!("the batch of {} calls", calls.len()),
            Ask::Sql { .. } => "the query".to_owned(),
            Ask::Explain { .. } => "the explanation".to_owned(),
        }
    }
}

/// Its answer.
#[derive(Debug)]
pub(crate) enum Reply {
    Called { seq: Seq, duplicate: bool, result: Outcome },
    Batch { seq: Seq, duplicate: bool, results: Vec<CallResult> },
    Rows { seq: Seq, columns: Vec<String>, rows: Vec<Row> },
    Explained(Box<Explanation>),
}

/// A reducer's result as JSON text.
#[derive(Debug)]
pub(crate) struct Outcome(pub(crate) String);

impl Outcome {
    pub(crate) fn decode<T: DeserializeOwned>(self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }
}

/// One attempt at a question.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) outcome: Result<Reply, Error>,
    /// It was sent before and the answer was lost: a refusal does not say that nothing was written.
    pub(crate) uncertain: bool,
}

/// A subscription as it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) sql: String,
    pub(crate) params: Map<String, JsonValue>,
    /// Tell the checksum of the result with it and with each change.
    pub(crate) checksum: bool,
    /// Tell the statements that make its deltas.
    pub(crate) explain: bool,
}

/// Where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the result.
    Now,
    /// With what changed after a seq.
    After(Seq),
    /// With the result as it was after a seq, and then what changed since.
    AsOf(Seq),
}

impl Start {
    /// The seq up to which everything is known.
    pub(crate) fn seq(self) -> Option<Seq> {
        match self {
            Start::After(seq) => Some(seq),
            Start::Now | Start::AsOf(_) => None,
        }
    }
}

/// What a backend tells of a query.
#[derive(Debug)]
pub(crate) enum Event {
    /// The whole result. The first event of a subscription that does not begin after a seq; later,
    /// what was told before is void.
    Snapshot { seq: Seq, opening: Arc<Opening>, rows: Vec<Row>, checksum: Option<Checksum> },
    /// What changed up to a seq; with what the result looks like where it is the answer to a resume.
    Delta { to: Seq, changes: Changes, checksum: Option<Checksum>, opening: Option<Arc<Opening>> },
    /// Nothing changed up to a seq.
    Seen(Seq),
    /// There will be no more.
    Ended(Error),
}

/// Where a subscription's events come from. Bounded: whoever does not ask is caught up later.
pub(crate) trait Source: Send + Sync {
    /// The next event. Events follow on another without a gap.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event>;

    /// Begins it again with a snapshot. Events from before may still come until then.
    fn begin_again(&mut self);
}

/// Asks until there is an answer or the deadline has passed; `overloaded` is asked again.
pub(crate) async fn persist<F: Future<Output = Attempt>>(
    ask: &Ask,
    patience: Duration,
    attempt: impl Fn() -> F,
) -> Result<Reply, Error> {
    // Whoever says "for ever" gets a year.
    let patience = patience.min(Duration::from_secs(365 * 24 * 3600));
    let deadline = Instant::now() + patience;
    let mut backoff = Backoff::new();
    let mut uncertain = false;
    let timed_out = |why: Option<String>| Error::TimedOut {
        what: ask.name(),
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
            Err(error) if error.code() == Some(Code::Overloaded) => error,
            outcome => return outcome,
        };
        // Where it is the caller's own pace that says no, the server knows when it says yes.
        let told = error.retry_after().unwrap_or_default();
        let again = Instant::now() + backoff.next().max(told);
        if again >= deadline {
            return Err(if uncertain { timed_out(Some(error.to_string())) } else { error });
        }
        sleep_until(again).await;
    }
}

/// Growing pauses, each between half of its length and the whole, so that many clients of one server
/// do not come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const LEAST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(2);

    pub(crate) fn new() -> Backoff {
        Backoff { next: Backoff::LEAST }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(Backoff::MOST);
        let chance = f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        whole.mul_f64(0.5 + chance / 2.0)
    }
}
