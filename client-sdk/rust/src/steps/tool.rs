//! The step `tool`: a call that runs in this program, once.

use std::time::Duration;

use abide_reducers::arguments::{ClaimToolCall, RegisterTool, RequestToolCall};
use abide_reducers::{Effect, ToolCall, ToolCallStatus};
use abide_schema::{Code, Json, Micros};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use super::DurableSession;
use super::lease::{LEASE, millis, worker_name};
use super::outcome::{Attempt, Recording, ToolError, run_attempt};
use super::stored_row::LiveRow;
use crate::Error;
use crate::request::Call;

const CALL: &str = "SELECT status, retry_at, result, error FROM tool_calls WHERE call_id = :id";

#[derive(Deserialize)]
struct State {
    status: ToolCallStatus,
    retry_at: Option<Micros>,
    result: Option<Json>,
    error: Option<String>,
}

impl DurableSession {
    /// Returns a call of a tool that runs in this program: [`ToolStep::run`] runs it.
    pub fn tool(&self, name: impl Into<String>, args: impl Serialize, key: &str) -> ToolStep {
        let args = super::json("the arguments", args);
        let request =
            args.map(|args| RequestToolCall::new(self.call_id(key), &self.id, name, args));
        ToolStep { session: self.clone(), request, effect: None, lease: LEASE }
    }
}

/// A call of a tool.
#[must_use = "a tool runs with `run`"]
#[derive(Debug)]
pub struct ToolStep {
    session: DurableSession,
    request: Result<RequestToolCall, Error>,
    effect: Option<Effect>,
    lease: Duration,
}

/// A call that was requested, now or by an earlier run of the step.
struct Requested {
    call: ToolCall,
    /// Whether this step has claimed it.
    is_claimed: bool,
}

/// A call that this step has claimed, or its recorded result.
enum Claim {
    Held(Box<ToolCall>),
    Result(JsonValue),
}

impl ToolStep {
    /// Registers the tool with this effect if it is unknown. Tools that only read, and idempotent ones, run again when
    /// their worker disappears; others do not.
    pub fn effect(mut self, effect: Effect) -> ToolStep {
        self.effect = Some(effect);
        self
    }

    /// Requires an approval, even if the tool does not.
    pub fn needs_approval(mut self) -> ToolStep {
        self.request = self.request.map(|request| request.needs_approval(true));
        self
    }

    /// Sets the lease; heartbeats extend it while the function runs. If the program ends without an outcome, the call
    /// runs again or becomes unknown after this time. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> ToolStep {
        self.lease = lease;
        self
    }

    /// Runs the tool once: requests the call, waits for an approval if one is needed, claims it, runs the function with
    /// heartbeats, and records its result. The function gets the arguments, which an approver may have changed. Repeated
    /// with the same key, the step returns the recorded result. The function is called again only if it returns
    /// [`ToolError::retryable`] and the retry policy permits it.
    ///
    /// # Errors
    /// [`Error::UnknownOutcome`] if the worker of an earlier attempt disappeared, and the tool must not run twice;
    /// [`Error::ToolFailed`] if the function failed, now or in an earlier attempt, or the call was rejected or cancelled;
    /// [`Error::Refused`] if the tool is unknown and has no [`effect`](ToolStep::effect), or the session has ended.
    pub async fn run<A, R, F, W>(self, mut function: F) -> Result<R, Error>
    where
        A: DeserializeOwned,
        R: Serialize + DeserializeOwned,
        F: FnMut(A) -> W,
        W: Future<Output = Result<R, ToolError>>,
    {
        let ToolStep { session, request, effect, lease } = self;
        let request = request?;
        let Requested { call, is_claimed } =
            session.request_and_claim(request, effect, lease).await?;
        // Queries have the stored id.
        let call_id = call.call_id.clone();
        let mut held = is_claimed.then_some(call);
        let result = loop {
            let call = match held.take() {
                Some(call) => call,
                None => match session.claim_or_result(&call_id, lease).await? {
                    Claim::Held(call) => *call,
                    Claim::Result(result) => break result,
                },
            };
            let work = async {
                let args = serde_json::from_value(call.arguments.value())
                    .map_err(|why| format!("the arguments have another type: {why}"));
                let result = function(args.map_err(ToolError::new)?).await?;
                serde_json::to_value(result).map_err(ToolError::from)
            };
            let recording = Recording::UntilDeadline;
            match run_attempt(&session.abide, &call, lease, &recording, work).await? {
                Attempt::Succeeded(result) => break result,
                Attempt::Again => {}
            }
        };
        serde_json::from_value(result).map_err(|why| Error::decode("the result of the tool", why))
    }
}

impl DurableSession {
    /// Requests a call and claims it in the same transaction. It is not claimed if that is impossible at once: it exists,
    /// waits for an approval, or a limit of the tool holds it back.
    async fn request_and_claim(
        &self,
        request: RequestToolCall,
        effect: Option<Effect>,
        lease: Duration,
    ) -> Result<Requested, Error> {
        let made = self.try_request_and_claim(&request, lease).await;
        match (made, effect) {
            (Err(error), Some(effect)) if error.code() == Some(Code::NotFound) => {
                let tool = RegisterTool::new(&request.tool_name).effect(effect);
                self.abide.call(tool).await?;
                self.try_request_and_claim(&request, lease).await
            }
            (made, _) => made,
        }
    }

    async fn try_request_and_claim(
        &self,
        request: &RequestToolCall,
        lease: Duration,
    ) -> Result<Requested, Error> {
        let claim = claim(&request.call_id, lease);
        match self.abide.batch([Call::from(request.clone()), Call::from(claim)]).await {
            Ok(mut done) => {
                let claimed = done.value.pop().map(|done| done.result).unwrap_or_default();
                let call = serde_json::from_value(claimed)
                    .map_err(|why| Error::decode("the claimed call", why))?;
                Ok(Requested { call, is_claimed: true })
            }
            Err(error)
                if error.code().is_some_and(|it| it == Code::Conflict || it.is_temporary()) =>
            {
                let call = self.abide.call(request.clone()).await?.into_inner();
                Ok(Requested { call, is_claimed: false })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until the call can be claimed, or has ended.
    async fn claim_or_result(&self, call_id: &str, lease: Duration) -> Result<Claim, Error> {
        let mut row = LiveRow::subscribe(&self.abide, CALL, call_id).await?;
        loop {
            let State { status, retry_at, result, error } = row.next().await?;
            match status {
                ToolCallStatus::Succeeded => {
                    return Ok(Claim::Result(
                        result.map(|result| result.value()).unwrap_or_default(),
                    ));
                }
                ToolCallStatus::Unknown => {
                    return Err(Error::UnknownOutcome { call_id: call_id.to_owned(), error });
                }
                status if status.is_terminal() => {
                    let call_id = call_id.to_owned();
                    return Err(Error::ToolFailed { call_id, status, error });
                }
                ToolCallStatus::Pending if retry_at.is_none() => {
                    if let Some(call) = self.claim(call_id, lease).await? {
                        return Ok(Claim::Held(Box::new(call)));
                    }
                }
                _ => {}
            }
        }
    }

    /// Claims a call. `None` if another worker was first; then the row changes.
    async fn claim(&self, call_id: &str, lease: Duration) -> Result<Option<ToolCall>, Error> {
        loop {
            match self.abide.call(claim(call_id, lease)).await {
                Ok(claimed) => return Ok(Some(claimed.into_inner())),
                Err(error) if error.code() == Some(Code::Conflict) => return Ok(None),
                // A limit of the tool holds the call back; each request waits some time for it.
                Err(error) if error.code().is_some_and(Code::is_temporary) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn claim(call_id: &str, lease: Duration) -> ClaimToolCall {
    ClaimToolCall::new(call_id).lease_ms(millis(lease)).worker(worker_name())
}
