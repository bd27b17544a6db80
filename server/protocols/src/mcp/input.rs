//! The requests of the server to a client while it answers a request. Approvals that wait are forms. In 2026-07-28 the
//! requests are in the result, and the client calls again with the responses. Before, the server sends them as
//! requests of its own.

use abide_schema::Refusal;
use serde_json::{Map, Value as JsonValue, json};

use super::exchange::McpRequestContext;
use crate::call::Interrupt;
use crate::decision::{self, Decision};
use crate::mcp_handler::McpFailure;

/// Returns the capability that a client must have for a request.
fn required_capability(method: &str) -> &'static str {
    match method {
        "sampling/createMessage" => "sampling",
        "roots/list" => "roots",
        _ => "elicitation",
    }
}

/// Returns `true` if the client shows forms to a person.
pub(super) fn has_forms(exchange: &McpRequestContext) -> bool {
    let can_be_asked = exchange.is_modern() || exchange.session().is_some();
    let elicitation = exchange.capabilities()["elicitation"].as_object();
    let shows = elicitation.is_some_and(|kinds| kinds.is_empty() || kinds.contains_key("form"));
    can_be_asked && shows && (exchange.is_modern() || exchange.accepts_events)
}

/// Checks that the client has declared what the requests need.
pub(super) fn check_capabilities(
    exchange: &McpRequestContext,
    requests: &Map<String, JsonValue>,
) -> Result<(), McpFailure> {
    for request in requests.values() {
        let needed = required_capability(request["method"].as_str().unwrap_or_default());
        if !exchange.capabilities()[needed].is_object() {
            return Err(McpFailure {
                code: -32021,
                message: format!("the client has not declared the capability {needed}"),
                data: Some(json!({"requiredCapabilities": {needed: {}}})),
            });
        }
    }
    Ok(())
}

/// Returns a result that asks.
pub(super) fn input_required(requests: Map<String, JsonValue>, state: Option<String>) -> JsonValue {
    let mut result = json!({"resultType": "input_required", "inputRequests": requests});
    if let Some(state) = state {
        result["requestState"] = json!(state);
    }
    result
}

/// Sends requests to a client with a session, and waits for the responses.
pub(super) async fn ask_client(
    exchange: &McpRequestContext,
    requests: Map<String, JsonValue>,
) -> Result<Map<String, JsonValue>, McpFailure> {
    let session = exchange.session().ok_or_else(|| {
        McpFailure::invalid("the request needs input of the client, which has no session")
    })?;
    let mut asked = Vec::new();
    for (name, request) in requests {
        let waiting = session.ask();
        exchange
            .notifier
            .send(json!({"jsonrpc": "2.0", "id": waiting.id, "method": request["method"],
                "params": request["params"]}))
            .await;
        asked.push((name, waiting));
    }
    let mut responses = Map::new();
    for (name, mut waiting) in asked {
        match waiting.response().await {
            Some(Ok(response)) => {
                responses.insert(name, response);
            }
            Some(Err(error)) => {
                let why = error["message"].as_str().unwrap_or("no reason");
                return Err(McpFailure::invalid(format!("the client did not answer: {why}")));
            }
            None => return Err(McpFailure::invalid("the session has ended")),
        }
    }
    Ok(responses)
}

/// The member of `_meta` of a form with the call that it is about, for clients that show more than its text.
const META_APPROVAL: &str = "abide/approval";

/// Returns the forms for the calls that wait for a decision, by the id of the call.
pub(super) fn approval_forms(pending: &[Interrupt]) -> Map<String, JsonValue> {
    let mut forms = Map::new();
    for interrupt in pending {
        // The form of a question of another server is passed on.
        let schema = interrupt.form().cloned().unwrap_or_else(|| {
            json!({"type": "object", "required": ["approve"], "properties": {
                "approve": {"type": "boolean", "title": "Approve"},
                "comment": {"type": "string", "title": "Comment for the agent"}}})
        });
        let params = json!({"mode": "form", "message": interrupt.description(),
            "requestedSchema": schema, "_meta": {META_APPROVAL: interrupt.to_json()}});
        let request = json!({"method": "elicitation/create", "params": params});
        forms.insert(interrupt.call_id().to_owned(), request);
    }
    forms
}

/// The decisions of a client.
#[derive(Default)]
pub(super) struct ClientDecisions {
    pub(super) decisions: Vec<Decision>,
    /// A person has closed a form without an answer.
    pub(super) form_cancelled: bool,
}

/// Returns the decisions in responses. A declined form is a rejection; responses for other calls are ignored.
///
/// # Errors
/// `bad_arguments`: the content of a form has members that the form does not have.
pub(super) fn read_decisions(
    pending: &[Interrupt],
    responses: &Map<String, JsonValue>,
) -> Result<ClientDecisions, Refusal> {
    let mut all = ClientDecisions::default();
    for interrupt in pending {
        let call_id = interrupt.call_id();
        let Some(response) = responses.get(call_id) else { continue };
        let content = &response["content"];
        let is_form = interrupt.form().is_some();
        let approved = if is_form { Some(true) } else { content["approve"].as_bool() };
        let approve = match (response["action"].as_str(), approved) {
            (Some("accept"), Some(approve)) => approve,
            (Some("decline"), _) => false,
            (Some("cancel"), _) => {
                all.form_cancelled = true;
                continue;
            }
            _ => continue,
        };
        // The form of a question has its own schema, which the reducer checks.
        if !is_form && approve {
            let members = content.as_object().into_iter().flatten();
            decision::check_members("the content of the form", members, &FORM_MEMBERS)?;
        }
        let comment = content["comment"].as_str().filter(|text| !text.is_empty());
        let comment = comment.map(str::to_owned).filter(|_| !is_form);
        let answer = is_form.then(|| content.clone());
        all.decisions.push(Decision {
            call_id: call_id.to_owned(),
            approve,
            comment,
            answer,
            approved_arguments: None,
        });
    }
    Ok(all)
}

/// The members of the form for an approval.
const FORM_MEMBERS: [&str; 2] = ["approve", "comment"];

/// Returns the responses in the parameters of a repeated call.
pub(super) fn read_responses(
    params: &Map<String, JsonValue>,
) -> Result<Map<String, JsonValue>, McpFailure> {
    match params.get("inputResponses") {
        None => Ok(Map::new()),
        Some(JsonValue::Object(responses)) if responses.values().all(JsonValue::is_object) => {
            Ok(responses.clone())
        }
        Some(_) => Err(McpFailure::invalid("inputResponses must be an object of objects")),
    }
}
