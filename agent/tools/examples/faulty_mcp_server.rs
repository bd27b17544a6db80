//! An MCP server over pipes that produces faults on demand, for the tests of this crate.
//!
//! `faulty_mcp_server` runs until its stdin is closed; `faulty_mcp_server refuse` prints an error and exits with
//! code 7. With `pages MODE`, its list of tools has pages: `again` repeats a cursor, `new` and `large` never end.

use std::borrow::Cow;
use std::io::Write;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, DiscoverResult,
    ElicitRequest, ErrorCode, ErrorData, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
    ServerCapabilities, ServerConfig, ServerRequest, Tool,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt};
use rmcp::{ServerHandler, ServiceError, transport};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Size of the large result and of the stderr flood.
const TEN_MEGABYTES: usize = 10_000_000;

/// A server with a tool for each fault.
#[derive(Clone)]
struct Faulty {
    grown: Arc<AtomicBool>,
    cancelled: watch::Sender<u64>,
    era: Era,
    /// How the list of tools goes on.
    pages: Option<String>,
}

/// The protocol versions that it supports.
#[derive(Clone, Copy, PartialEq)]
enum Era {
    /// All versions.
    Both,
    /// Versions without discovery.
    Old,
    /// It supports discovery, but requires `initialize`.
    OldButDiscovered,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mode = std::env::args().nth(1);
    if mode.as_deref() == Some("refuse") {
        eprintln!("no licence for this server was found");
        process::exit(7);
    }
    if mode.as_deref() == Some("silent") {
        std::future::pending::<()>().await;
    }
    let (cancelled, _) = watch::channel(0);
    let era = match mode.as_deref() {
        Some("old") => Era::Old,
        Some("old-but-discovered") => Era::OldButDiscovered,
        _ => Era::Both,
    };
    let pages = std::env::args().nth(2).filter(|_| mode.as_deref() == Some("pages"));
    let faulty = Faulty { grown: Arc::default(), cancelled, era, pages };
    let running = faulty.serve(transport::stdio()).await.expect("the client speaks MCP");
    running.waiting().await.expect("the server does not panic");
}

impl ServerHandler for Faulty {
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.era {
            Era::Both => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Era::Old | Era::OldButDiscovered => Cow::Borrowed(&[ProtocolVersion::V_2025_11_25]),
        }
    }

    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        if self.era == Era::Old {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "Method not found", None));
        }
        let versions = self.supported_protocol_versions().into_owned();
        Ok(DiscoverResult::from_server_info(versions, self.get_info()))
    }

    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        ServerConfig::new(capabilities)
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        if let Some(pages) = &self.pages {
            return Ok(page_of(pages, page.and_then(|page| page.cursor)));
        }
        let mut names = vec!["die", "flood", "fail", "refuse", "grow", "hang", "cancelled", "big"];
        names.extend(["nonsense", "kinds", "unsigned", "long", "context", "ask", "hasty"]);
        names.extend(["half", "hologram", "nan"]);
        if self.grown.load(Ordering::Relaxed) {
            names.push("late");
        }
        let mut tools: Vec<Tool> = names.into_iter().map(|name| tool(name, &json!({}))).collect();
        tools.push(tool("pid", &json!({"readOnlyHint": true, "title": "Process id"})));
        tools.push(tool("again", &json!({"idempotentHint": true, "destructiveHint": false})));
        tools.push(tool("odd name.with/characters", &json!({"readOnlyHint": false})));
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match request.name.as_ref() {
            "die" => {
                eprintln!("the disk of this server is full");
                process::exit(3);
            }
            "hang" => {
                context.ct.cancelled().await;
                self.cancelled.send_modify(|count| *count += 1);
                std::future::pending().await
            }
            "cancelled" => {
                let mut count = self.cancelled.subscribe();
                let count = *count.wait_for(|count| *count > 0).await.expect("the sender is alive");
                Ok(text_result(&count.to_string()))
            }
            "flood" => {
                let flood = "x".repeat(TEN_MEGABYTES);
                std::io::stderr().write_all(flood.as_bytes()).expect("stderr is drained");
                Ok(text_result("it is drained"))
            }
            "nonsense" => {
                println!("{{\"jsonrpc\": \"2.0\", \"id\":");
                println!("Listening on port 8080");
                Ok(text_result("all the same"))
            }
            "grow" => {
                self.grown.store(true, Ordering::Relaxed);
                context.peer.notify_tool_list_changed().await.expect("the client is there");
                Ok(text_result("there is one more"))
            }
            "big" => Ok(text_result(&"x".repeat(TEN_MEGABYTES))),
            "fail" => {
                let output = vec![ContentBlock::text("there is no such file")];
                Ok(CallToolResponse::Complete(CallToolResult::error(output)))
            }
            "refuse" => {
                Err(ErrorData::invalid_params("the path is outside of what is allowed", None))
            }
            "kinds" => Ok(CallToolResponse::Complete(kinds())),
            "unsigned" => Ok(structured(&json!({"a/b": [u64::MAX]}))),
            // The SDK cannot write such an integer, so the server writes the line itself.
            "long" => {
                let n = format!("1{}", "0".repeat(23));
                let result = format!(r#"{{"content":[],"structuredContent":{{"n":{n}}}}}"#);
                println!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, context.id);
                std::future::pending().await
            }
            // Nor half a surrogate pair, a content block of another kind, or a number that is none.
            name @ ("half" | "hologram" | "nan") => {
                let content = match name {
                    "half" => r#"{"type":"text","text":"cut \ud83d"}"#,
                    "hologram" => r#"{"type":"text","text":"seen"},{"type":"hologram","beam":7}"#,
                    _ => r#"{"type":"text","text":"x"}],"_meta":{"n":NaN},"content":["#,
                };
                let result = format!(r#"{{"content":[{content}]}}"#);
                println!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, context.id);
                std::future::pending().await
            }
            "context" => {
                let meta = serde_json::to_value(&context.meta).expect("it is JSON");
                Ok(text_result(&meta["abide/context"].to_string()))
            }
            "ask" => Ok(text_result(&ask(&context).await.unwrap_or_else(|why| why.message.into()))),
            // It does not wait for the answer.
            "hasty" => {
                tokio::select! {
                    answer = ask(&context) => Ok(text_result(&format!("{answer:?}"))),
                    () = tokio::time::sleep(Duration::from_millis(200)) => {
                        Ok(text_result("there was no time for an answer"))
                    }
                }
            }
            "pid" => Ok(text_result(&process::id().to_string())),
            other => Ok(text_result(other)),
        }
    }
}

/// Asks for a name, with a request of its own.
async fn ask(context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
    let form = json!({"mode": "form", "message": "Who travels?", "requestedSchema":
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}});
    let params = serde_json::from_value(form).expect("it is a form");
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
    match context.peer.send_request(request).await {
        Ok(answer) => Ok(serde_json::to_string(&answer).expect("it is JSON")),
        Err(ServiceError::McpError(error)) => Err(error),
        Err(error) => Err(ErrorData::internal_error(error.to_string(), None)),
    }
}

fn structured(value: &Value) -> CallToolResponse {
    CallToolResponse::Complete(CallToolResult::structured(value.clone()))
}

/// A page of a list without an end.
fn page_of(pages: &str, cursor: Option<String>) -> ListToolsResult {
    let number: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let mut result = ListToolsResult::with_all_items(vec![tool(&format!("t{number}"), &json!({}))]);
    result.next_cursor = Some(match pages {
        "again" => (number + 1).min(2).to_string(),
        "empty" => String::new(),
        "large" => format!("{}{}", "0".repeat(1_000_000), number + 1),
        _ => (number + 1).to_string(),
    });
    result
}

fn text_result(text: &str) -> CallToolResponse {
    CallToolResponse::Complete(CallToolResult::success(vec![ContentBlock::text(text)]))
}

fn tool(name: &str, annotations: &Value) -> Tool {
    let tool = json!({"name": name, "inputSchema": {"type": "object"}, "annotations": annotations});
    serde_json::from_value(tool).expect("it is a tool")
}

/// Content of every kind.
fn kinds() -> CallToolResult {
    let result = json!({
        "content": [
            {"type": "text", "text": "words"},
            {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
            {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
            {"type": "resource",
                "resource": {"uri": "file:///a.txt", "text": "inside", "mimeType": "text/plain"}},
            {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": "AAEC"}},
            {"type": "resource_link", "uri": "file:///c", "name": "c", "description": "the third"},
        ],
        "structuredContent": {"three": 3},
        "isError": false,
        "_meta": {"dev.abide/test": true},
    });
    serde_json::from_value(result).expect("it is a result")
}
