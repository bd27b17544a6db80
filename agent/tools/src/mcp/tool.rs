//! One tool of an MCP server.

use std::error::Error;
use std::sync::Arc;

use abide_client::Effect;
use abide_json_integers as integers;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::connection::Connection;
use super::{Server, rendering};
use crate::outcome::{Failure, ToolOutcome};
use crate::registry::{NAME_CHARS, matches_any};
use crate::tool::{Invocation, Tool, ToolDeclaration};

/// A tool of a server.
pub(super) struct McpTool {
    declaration: ToolDeclaration,
    /// What the server calls it.
    name: String,
    server: Arc<Server>,
}

impl McpTool {
    pub(super) fn of(server: Arc<Server>, tool: rmcp::model::Tool) -> McpTool {
        let name = tool.name.into_owned();
        let annotations = tool.annotations.map(|annotations| json!(annotations));
        let said = annotations.as_ref().map(Effect::of_annotations);
        let effect = server.effects.get(&name).copied().or(said).unwrap_or(Effect::AtMostOnce);
        let description = tool.description.map(|text| text.into_owned()).or(tool.title);
        let parameters = Value::Object(tool.input_schema.as_ref().clone());
        let declaration = ToolDeclaration {
            effect,
            needs_approval: matches_any(&server.needs_approval, &name),
            timeout: server.timeout,
            annotations,
            ..ToolDeclaration::new(
                name_here(&server.prefix, &name),
                description.unwrap_or_default(),
                parameters,
            )
        };
        McpTool { declaration, name, server }
    }
}

/// A tool's name as models can be told it: what they do not take becomes `_`, and what is too long ends in a hash of the
/// whole instead.
fn name_here(prefix: &str, name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let whole: String =
        format!("{prefix}{name}").chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if whole.len() <= NAME_CHARS {
        return whole;
    }
    let hash = Sha256::digest(format!("{prefix}{name}"));
    let hash: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}_{hash}", &whole[..NAME_CHARS - hash.len() - 1])
}

impl Tool for McpTool {
    fn declaration(&self) -> &ToolDeclaration {
        &self.declaration
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome> {
        let (server, name) = (Arc::clone(&self.server), self.name.clone());
        let known_as = self.declaration.name.clone();
        async move {
            let cancel = invocation.cancel.clone();
            let call = call(&server, name, invocation.arguments);
            // Dropping the call tells the server that it is cancelled.
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    ToolOutcome::failed(Failure::Cancelled, format!("{known_as} was cancelled"))
                }
                done = tokio::time::timeout(server.timeout, call) => {
                    done.unwrap_or_else(|_| crate::function::timed_out(&known_as, server.timeout))
                }
            }
        }
        .boxed()
    }
}

async fn call(server: &Arc<Server>, name: String, arguments: Value) -> ToolOutcome {
    let connection = match server.connection().await {
        Ok(connection) => connection,
        Err(why) => {
            let text = format!("the MCP server {} is not there: {why}", server.name);
            return ToolOutcome::failed(Failure::Unavailable, text);
        }
    };
    let arguments = match arguments {
        Value::Object(members) => members,
        Value::Null => Map::new(),
        _ => {
            let text = "an MCP tool takes an object of arguments".to_owned();
            return ToolOutcome::failed(Failure::Arguments, text);
        }
    };
    let params = CallToolRequestParams::new(name).with_arguments(arguments);
    match connection.peer().call_tool_once(params).await {
        Ok(CallToolResponse::Complete(result)) => outcome(server, &result),
        Ok(_) => {
            let text = format!(
                "the MCP server {} wants to be answered before it is done, which is not supported",
                server.name
            );
            ToolOutcome::failed(Failure::Tool, text)
        }
        Err(error) => failure(server, &connection, error).await,
    }
}

/// An answer, whole and as text.
fn outcome(server: &Server, result: &CallToolResult) -> ToolOutcome {
    let is_error = result.is_error.unwrap_or(false);
    let content = serde_json::to_value(result).expect("what came as JSON goes as JSON");
    if let Some((pointer, number)) = inexact(&content, String::new()) {
        let text = format!(
            "the tool ran, and the answer of the MCP server {} cannot be kept: the number {number} at {pointer} may be \
             an integer that does not fit 64 bits with sign",
            server.name
        );
        return ToolOutcome::failed(Failure::Tool, text);
    }
    ToolOutcome {
        content,
        text: rendering::text_of(result),
        is_error,
        exit_code: i32::from(is_error),
        failure: is_error.then_some(Failure::Tool),
    }
}

/// The first number of an answer that may have lost digits. The SDK has read the text already, so that an integer beyond 64
/// bits is a double by now, as is a number with an exponent: neither is taken.
fn inexact(value: &Value, pointer: String) -> Option<(String, String)> {
    match value {
        Value::Number(number) => {
            let is_large = |x: f64| x.abs() >= -(i64::MIN as f64);
            let literal = number.to_string();
            let is_lost = number.is_f64() && number.as_f64().is_some_and(is_large);
            let is_out = is_lost || integers::check(&literal).is_err();
            is_out.then_some((pointer, literal))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| inexact(item, format!("{pointer}/{index}")))
        }
        Value::Object(members) => members.iter().find_map(|(name, value)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            inexact(value, format!("{pointer}/{name}"))
        }),
        _ => None,
    }
}

async fn failure(server: &Server, connection: &Connection, error: ServiceError) -> ToolOutcome {
    let name = &server.name;
    match error {
        ServiceError::McpError(error) => {
            let failure = match error.code {
                ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND => Failure::Arguments,
                _ => Failure::Tool,
            };
            let text = format!("the MCP server {name} answered with an error: {}", error.message);
            ToolOutcome { content: json!({ "error": error }), ..ToolOutcome::failed(failure, text) }
        }
        ServiceError::TransportSend(error) if too_large(&error).is_some() => {
            let most = too_large(&error).unwrap_or_default();
            let text = format!("the MCP server {name} answered with more than {most} bytes");
            ToolOutcome::failed(Failure::TooLarge, text)
        }
        ServiceError::TransportSend(error) if refused(&error) => {
            let text = format!("the MCP server {name} cannot be reached");
            ToolOutcome::failed(Failure::Unavailable, text)
        }
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => {
            // What is too large now is too large again: the call is not to be repeated.
            if let Some(why) = connection.too_large() {
                let text = format!("the MCP server {name} was ended: {why}");
                return ToolOutcome::failed(Failure::TooLarge, text);
            }
            let how = connection.how_it_ended().await;
            let text = format!("the MCP server {name} was lost during the call: {how}");
            ToolOutcome::failed(Failure::Lost, text)
        }
        other => {
            let text = format!("the MCP server {name} did not answer as it should: {other}");
            ToolOutcome::failed(Failure::Lost, text)
        }
    }
}

/// The limit that an answer was over, if that is why there is none.
fn too_large(error: &(dyn Error + 'static)) -> Option<usize> {
    let mut cause = Some(error);
    while let Some(one) = cause {
        let of_transport = one.downcast_ref::<StreamableHttpError<reqwest::Error>>();
        if let Some(StreamableHttpError::ResponseBodyTooLarge { max_size }) = of_transport {
            return Some(*max_size);
        }
        cause = one.source();
    }
    None
}

/// Whether nobody was there to take the request.
fn refused(error: &(dyn Error + 'static)) -> bool {
    let is_refusal = |error: &(dyn Error + 'static)| {
        // It has a cause that it does not tell of as one.
        let of_transport = error.downcast_ref::<StreamableHttpError<reqwest::Error>>();
        let client = match of_transport {
            Some(StreamableHttpError::Client(error)) => Some(error),
            _ => error.downcast_ref::<reqwest::Error>(),
        };
        client.is_some_and(reqwest::Error::is_connect)
    };
    let mut cause = Some(error);
    while let Some(one) = cause {
        if is_refusal(one) {
            return true;
        }
        cause = one.source();
    }
    false
}
