//! The exchange of a claimed call with the server of its tool, in rows: what former workers have recorded, and the log that the tool
//! writes to. Questions of the server are calls of `tool_input` with approvals.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_client::arguments::{
    CancelToolCall, CloseExchange, NewExchange, NewInput, RecordExchange, SuspendToolCall,
};
use abide_client::rows::{ApprovalStatus, ExchangeKind, ToolCall, ToolCallStatus};
use abide_client::rules::{INPUT_TOOL, asked_by, input_id};
use abide_client::{Abide, Call, Code, Error, Json};
use abide_tools::{
    Effect, Exchange, ExchangeError, ExchangeLog, ExchangeStep, Failure, InputAnswer,
    ToolDeclaration, ToolOutcome,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::delegation::supervisor;
use crate::run::lease::{fencing_token, millis};
use crate::run::settings::Settings;

/// Returns the declaration of the tool whose calls are questions, to register.
pub(crate) fn declaration() -> ToolDeclaration {
    let text = |description: &str| json!({"type": "string", "description": description});
    let properties = json!({
        "tool": text("The tool whose server asks."),
        "call_id": text("The call that waits for the answer."),
        "message": text("What the server asks."),
        "schema": {"description": "The form of the answer, a JSON Schema."},
        "url": text("Where the question is answered, if not here."),
        "answer": {"description": "The answer, in the arguments of the approval."}});
    let required = ["tool", "call_id", "message"];
    let schema = json!({"type": "object", "required": required, "properties": properties});
    let description = "A question that the server of a tool asks during a call.";
    let mut declaration = ToolDeclaration::new(INPUT_TOOL, description, schema);
    declaration.effect = Effect::Idempotent;
    declaration.needs_approval = true;
    declaration
}

/// The log of one claim.
pub(crate) struct CallLog {
    abide: Abide,
    call_id: String,
    session_id: String,
    fencing_token: i64,
    /// Whether there is a step in the log.
    is_used: AtomicBool,
}

impl CallLog {
    /// Returns the log of a claimed call.
    pub(crate) fn for_call(abide: &Abide, claimed: &ToolCall) -> Arc<CallLog> {
        Arc::new(CallLog {
            abide: abide.clone(),
            call_id: claimed.call_id.clone(),
            session_id: claimed.session_id.clone(),
            fencing_token: fencing_token(claimed),
            is_used: AtomicBool::new(false),
        })
    }

    /// Returns the call that closes the exchange together with the outcome; `None` if there was no exchange. The task
    /// of a cancelled call may go on.
    pub(crate) fn closing(&self, failure: Option<Failure>) -> Option<Call> {
        let goes_on = failure.is_some_and(|failure| self.goes_on(failure));
        let closes = self.is_used.load(Ordering::Relaxed) && !goes_on;
        let close = CloseExchange::new(&self.call_id).fencing_token(self.fencing_token);
        closes.then(|| close.into())
    }

    /// Returns `true` if the exchange goes on after this failure: the server still works on the task of a call that was
    /// only cancelled here.
    pub(crate) fn goes_on(&self, failure: Failure) -> bool {
        failure == Failure::Cancelled && self.is_used.load(Ordering::Relaxed)
    }

    /// Returns the exchange so far. A first attempt has none.
    ///
    /// # Errors
    /// [`Error`] if the rows cannot be read. The inner error is the outcome of the call, if it cannot be continued.
    pub(crate) async fn load(
        self: &Arc<CallLog>,
        settings: &Settings,
        claimed: &ToolCall,
    ) -> Result<Result<Exchange, ToolOutcome>, Error> {
        let log: Arc<dyn ExchangeLog> = Arc::clone(self) as _;
        let mut exchange = Exchange { log: Some(log), ..Exchange::default() };
        if claimed.attempt <= 1 {
            return Ok(Ok(exchange));
        }
        // Steps of another identity could name a task of another tenant, or hide that an effect has happened.
        let sql = "SELECT x.number, x.kind, x.data, x.ended_at IS NULL, x.created_at, \
                   e.caller = (SELECT caller FROM events WHERE seq = :token) \
                   FROM tool_exchanges x JOIN events e ON e.seq = x.seq \
                   WHERE x.call_id = :id ORDER BY x.number";
        let query = self.abide.sql(sql).param("id", &self.call_id);
        let query = query.param("token", self.fencing_token);
        let found: Vec<(i64, String, Json, bool, i64, Option<bool>)> = query.fetch().await?;
        self.is_used.store(!found.is_empty(), Ordering::Relaxed);
        let now = settings.now();
        let mut asked = None;
        for (number, kind, data, is_open, created_at, is_own) in found {
            if is_own != Some(true) {
                let why = "another identity has recorded steps of the exchange with the server";
                return Ok(Err(ToolOutcome::failed(Failure::Lost, why)));
            }
            let kind = match kind.as_str() {
                "asked" => ExchangeKind::Asked,
                "answered" => ExchangeKind::Answered,
                _ => ExchangeKind::Task,
            };
            asked = (kind == ExchangeKind::Asked).then_some(number);
            let age = Duration::from_micros((now - created_at).max(0).unsigned_abs());
            exchange.steps.push(ExchangeStep { kind, data: data.value(), is_open, age });
        }
        if let Some(number) = asked {
            exchange.answers = self.read_answers(number).await?;
        }
        Ok(Ok(exchange))
    }

    /// Returns the answers to the questions of a step, in their order.
    async fn read_answers(&self, step: i64) -> Result<Vec<InputAnswer>, Error> {
        let mut answers = Vec::new();
        for index in 1.. {
            let sql = "SELECT c.status, c.result, a.status FROM tool_calls c \
                       LEFT JOIN approvals a ON a.call_id = c.call_id WHERE c.call_id = :id";
            let query = self.abide.sql(sql).param("id", input_id(&self.call_id, step, index));
            let found: Vec<(String, Option<Json>, Option<String>)> = query.fetch().await?;
            let Some((status, result, decision)) = found.into_iter().next() else { break };
            let content = || result.as_ref().and_then(|it| it.value().get("content").cloned());
            answers.push(match (status.as_str(), decision.as_deref()) {
                (status, _) if status == ToolCallStatus::Succeeded.as_str() => {
                    InputAnswer::Accepted(content())
                }
                (_, Some(decision)) if decision == ApprovalStatus::Rejected.as_str() => {
                    InputAnswer::Declined
                }
                _ => InputAnswer::Cancelled,
            });
        }
        Ok(answers)
    }
}

impl ExchangeLog for CallLog {
    fn record(&self, steps: Vec<NewExchange>) -> BoxFuture<'_, Result<(), ExchangeError>> {
        self.is_used.store(true, Ordering::Relaxed);
        let record = RecordExchange::new(&self.call_id, self.fencing_token, steps);
        async move { self.abide.call(record).await.map(drop).map_err(not_recorded) }.boxed()
    }

    fn suspend(
        &self,
        steps: Vec<NewExchange>,
        inputs: Vec<NewInput>,
        retry: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), ExchangeError>> {
        let mut suspend = SuspendToolCall::new(&self.call_id, self.fencing_token);
        suspend.entries = Some(steps);
        suspend.inputs = Some(inputs);
        suspend.retry_ms = retry.map(millis);
        async move { self.abide.call(suspend).await.map(drop).map_err(not_recorded) }.boxed()
    }

    fn withdraw(&self) -> BoxFuture<'_, ()> {
        async move {
            let sql = "SELECT call_id FROM tool_calls WHERE session_id = :sid \
                       AND status = 'awaiting_approval' AND tool_name = :tool";
            let query = self.abide.sql(sql).param("sid", &self.session_id);
            let open: Result<Vec<(String,)>, Error> = query.param("tool", INPUT_TOOL).fetch().await;
            for (call_id,) in open.unwrap_or_default() {
                if asked_by(&call_id) == Some(&self.call_id) {
                    let why = "the server no longer waits for the answer";
                    let cancel = CancelToolCall::new(&call_id).reason(why);
                    if let Err(error) = self.abide.call(cancel).await {
                        tracing::debug!(
                            error = format_args!("{error:#}"),
                            call_id,
                            "a question is not withdrawn"
                        );
                    }
                }
            }
        }
        .boxed()
    }

    fn wants_cancel(&self) -> BoxFuture<'_, bool> {
        async move {
            let sql = "SELECT cancel_requested_at IS NOT NULL FROM tool_calls WHERE call_id = :id";
            let found: Result<Vec<(bool,)>, Error> =
                self.abide.sql(sql).param("id", &self.call_id).fetch().await;
            found.is_ok_and(|found| found == [(true,)])
        }
        .boxed()
    }

    fn until_ended(&self) -> BoxFuture<'_, ()> {
        async move {
            let sql = "SELECT call_id FROM tool_calls WHERE call_id = :id AND status IN \
                       ('pending', 'awaiting_approval', 'claimed', 'unknown')";
            let open = self.abide.subscribe(sql).param("id", &self.call_id).await;
            let Ok(mut open) = open else { return };
            while let Some(Ok(_)) = open.next().await {
                if open.rows().len() == 0 {
                    return;
                }
            }
        }
        .boxed()
    }
}

fn not_recorded(error: Error) -> ExchangeError {
    match error.code() {
        Some(Code::LimitExceeded | Code::BadArguments | Code::NotFound) => {
            ExchangeError::Refused(error.to_string())
        }
        _ => ExchangeError::Lost(error.to_string()),
    }
}

/// Returns the calls to decide on: a call whose server asks is represented by its questions, and one that waits for a
/// supervisor needs no decision.
///
/// # Errors
/// [`Error`] if the rows cannot be read.
pub(crate) async fn to_decide(
    abide: &Abide,
    session_id: &str,
    mut undecided: Vec<ToolCall>,
) -> Result<Vec<ToolCall>, Error> {
    undecided.retain(|call| !supervisor::waits(call));
    let awaits = |call: &ToolCall| call.status == ToolCallStatus::AwaitingApproval;
    if !undecided.iter().any(awaits) {
        return Ok(undecided);
    }
    let sql = "SELECT * FROM tool_calls WHERE session_id = :sid AND status = 'awaiting_approval' \
               AND tool_name = :tool ORDER BY created_seq, call_id";
    let query = abide.sql(sql).param("sid", session_id).param("tool", INPUT_TOOL);
    let questions: Vec<ToolCall> = query.fetch().await?;
    let mut calls = Vec::new();
    for call in undecided {
        let asked: Vec<ToolCall> = questions
            .iter()
            .filter(|it| asked_by(&it.call_id) == Some(&call.call_id))
            .cloned()
            .collect();
        if asked.is_empty() { calls.push(call) } else { calls.extend(asked) }
    }
    let mut seen = BTreeSet::new();
    calls.retain(|call: &ToolCall| seen.insert(call.call_id.clone()));
    Ok(calls)
}
