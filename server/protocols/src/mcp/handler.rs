//! Requests that the handler answers.

use abide_schema::Code;
use serde_json::{Map, Value as JsonValue, json};

use super::agent_run;
use super::exchange::McpRequestContext;
use super::input::{self, ClientDecisions};
use super::message::{Request, to_failure};
use super::sessions::identity;
use crate::call::Interrupt;
use crate::decision::Decision;
use crate::mcp_handler::{McpFailure, McpHandler, McpReply, McpRequest};
use crate::start;

/// The prefix of the ids of calls.
const ID: &str = "mcp_";

/// A request to the handler, with what was already answered.
struct HandlerCall<'a> {
    exchange: &'a McpRequestContext,
    handler: &'a dyn McpHandler,
    request: &'a Request,
    /// The purpose for which a signed state is valid.
    audience: String,
    id: String,
    /// The state of the handler, and the responses of the client.
    state: Option<JsonValue>,
    responses: Map<String, JsonValue>,
    /// The responses of the client to forms for approvals.
    decisions: Map<String, JsonValue>,
}

/// Lets the handler answer, and asks the client for the input that it needs.
pub(super) async fn ask_handler(
    exchange: &McpRequestContext,
    handler: &dyn McpHandler,
    request: &Request,
) -> Result<JsonValue, McpFailure> {
    let mut call = HandlerCall::new(exchange, handler, request)?;
    let id = call.id.clone();
    let how = tokio::select! {
        answered = call.answer() => return answered,
        how = exchange.cancellation() => how,
    };
    handler.cancel(exchange.by(), &id, how).await;
    let message = "the request was cancelled".to_owned();
    Err(McpFailure { code: -32800, message, data: None })
}

impl<'a> HandlerCall<'a> {
    fn new(
        exchange: &'a McpRequestContext,
        handler: &'a dyn McpHandler,
        request: &'a Request,
    ) -> Result<HandlerCall<'a>, McpFailure> {
        let name = request.params.get("name").or_else(|| request.params.get("uri"));
        let audience = format!("{} {}", request.method, name.unwrap_or(&JsonValue::Null));
        let key = exchange.key.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        let id = start::derived_id(ID, exchange.by(), &audience, &key);
        let responses = input::read_responses(&request.params)?;
        let mut call = HandlerCall {
            exchange,
            handler,
            request,
            audience,
            id,
            state: None,
            responses,
            decisions: Map::new(),
        };
        match request.params.get("requestState") {
            None => {}
            // The id of a call that waits for approvals. It is looked up and decided with the rights of the caller, so
            // that it is valid after a restart and needs no signature.
            Some(JsonValue::String(id)) if is_id(id) => {
                call.id.clone_from(id);
                call.decisions = std::mem::take(&mut call.responses);
            }
            Some(JsonValue::String(text)) => {
                let opened =
                    exchange.app.mcp.seal.open(&identity(exchange.by()), &call.audience, text);
                call.state = Some(opened?);
            }
            Some(_) => return Err(McpFailure::invalid("requestState must be a string")),
        }
        Ok(call)
    }

    async fn answer(&mut self) -> Result<JsonValue, McpFailure> {
        let exchange = self.exchange;
        let session_id = start::derived_id("mcp_s_", exchange.by(), "session", "");
        let mut form_cancelled = false;
        loop {
            let asked = self.handler.answer(McpRequest {
                method: &self.request.method,
                params: &self.request.params,
                caller: exchange.by(),
                id: &self.id,
                session_id: &session_id,
                capabilities: exchange.capabilities(),
                state: self.state.take(),
                responses: std::mem::take(&mut self.responses),
                notifier: &exchange.notifier,
            });
            match asked.await? {
                McpReply::Complete(result) => return Ok(result),
                McpReply::InputRequired { requests, state } => {
                    input::check_capabilities(exchange, &requests)?;
                    if exchange.is_modern() {
                        let signed = state.map(|state| self.sign_state(state)).transpose()?;
                        return Ok(input::input_required(requests, signed));
                    }
                    self.responses = input::ask_client(exchange, requests).await?;
                    self.state = state;
                }
                McpReply::Waiting { approvals, result } => {
                    let engine = &exchange.app.engine;
                    let by = exchange.by();
                    let approvals = start::load_interrupts(engine, by, approvals).await;
                    let approvals = approvals.map_err(to_failure)?;
                    if self.decisions.is_empty() {
                        if form_cancelled || approvals.is_empty() || !input::has_forms(exchange) {
                            return Ok(add_questions(result, &approvals));
                        }
                        let requests = input::approval_forms(&approvals);
                        if exchange.is_modern() {
                            return Ok(input::input_required(requests, Some(self.id.clone())));
                        }
                        self.decisions = input::ask_client(exchange, requests).await?;
                    }
                    form_cancelled = self.record_decisions(&approvals).await?;
                }
            }
        }
    }

    fn sign_state(&self, state: JsonValue) -> Result<String, McpFailure> {
        self.exchange.app.mcp.seal.sign(&identity(self.exchange.by()), &self.audience, state)
    }

    /// Records the decisions of the client with the rights of the caller. Returns whether a form was closed without one.
    async fn record_decisions(&mut self, approvals: &[Interrupt]) -> Result<bool, McpFailure> {
        let responses = std::mem::take(&mut self.decisions);
        let decided = input::read_decisions(approvals, &responses).map_err(to_failure)?;
        let ClientDecisions { decisions, form_cancelled } = decided;
        let calls: Vec<_> = decisions.into_iter().map(Decision::into_call).collect();
        if calls.is_empty() {
            return Ok(form_cancelled);
        }
        match self.exchange.app.engine.batch(self.exchange.by(), &calls, None).await {
            // It was decided elsewhere; the handler reads the row.
            Err(refusal) if refusal.code == Code::Conflict => Ok(form_cancelled),
            Err(refusal) => Err(to_failure(refusal.outside_batch())),
            Ok(_) => Ok(form_cancelled),
        }
    }
}

/// Returns the result of a call that waits for decisions, with what they are about.
fn add_questions(mut result: JsonValue, approvals: &[Interrupt]) -> JsonValue {
    let requests: Vec<&JsonValue> = approvals.iter().map(Interrupt::request).collect();
    result["structuredContent"]["approvals"] = json!(requests);
    if let Some(content) = result["content"].as_array_mut() {
        content.push(json!({"type": "text", "text": agent_run::describe_calls(approvals)}));
    }
    result
}

/// Returns `true` if a state is the id of a call. A signed state begins otherwise.
fn is_id(state: &str) -> bool {
    let rest = state.strip_prefix(ID);
    rest.is_some_and(|rest| rest.len() == 26 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
