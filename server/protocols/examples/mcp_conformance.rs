//! The MCP server with the tools, resources and prompts that the conformance suite of MCP expects
//! (`@modelcontextprotocol/conformance`). Prints its address. `cargo xtask mcp-conformance` runs the suite against it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use abide_engine::{Config, Engine};
use abide_protocols::{
    AgentProtocols, McpFailure, McpFuture, McpHandler, McpItems, McpReply, McpRequest, McpRevisions,
};
use abide_server::{AccessConfig, Services};
use serde_json::{Map, Value as JsonValue, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A PNG with one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAE\
    hQGAhKmMIQAAAABJRU5ErkJggg==";

/// A WAV without samples.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

/// Between two notifications, as the suite wants it.
const PAUSE: Duration = Duration::from_millis(50);

/// The version of the suite.
#[derive(Debug)]
struct Fixtures {
    revisions: watch::Sender<McpRevisions>,
}

/// The tools, with the names of their arguments.
const TOOLS: [(&str, &[&str]); 28] = [
    ("test_simple_text", &[]),
    ("test_image_content", &[]),
    ("test_audio_content", &[]),
    ("test_embedded_resource", &[]),
    ("test_multiple_content_types", &[]),
    ("test_tool_with_logging", &[]),
    ("test_logging_tool", &[]),
    ("test_tool_with_progress", &[]),
    ("test_error_handling", &[]),
    ("test_sampling", &["prompt"]),
    ("test_missing_capability", &[]),
    ("test_elicitation", &["message"]),
    ("test_streaming_elicitation", &[]),
    ("test_elicitation_sep1034_defaults", &[]),
    ("test_elicitation_sep1330_enums", &[]),
    ("test_trigger_tool_change", &[]),
    ("test_trigger_prompt_change", &[]),
    ("test_input_required_result_elicitation", &[]),
    ("test_input_required_result_sampling", &[]),
    ("test_input_required_result_list_roots", &[]),
    ("test_input_required_result_request_state", &[]),
    ("test_input_required_result_multiple_inputs", &[]),
    ("test_input_required_result_multi_round", &[]),
    ("test_input_required_result_tampered_state", &[]),
    ("test_input_required_result_capabilities", &[]),
    ("test_reconnection", &[]),
    ("json_schema_2020_12_tool", &[]),
    ("test_header_tool", &[]),
];

fn tool(name: &str, arguments: &[&str]) -> JsonValue {
    let properties: Map<String, JsonValue> = arguments
        .iter()
        .map(|argument| ((*argument).to_owned(), json!({"type": "string"})))
        .collect();
    json!({"name": name, "description": format!("Fixture {name}."),
        "inputSchema": {"type": "object", "properties": properties, "required": arguments}})
}

/// A tool whose schema has the keywords of JSON Schema that a server must keep.
fn with_every_keyword(name: &str) -> JsonValue {
    json!({"name": name, "description": "A fixture.", "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"}},
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false}})
}

fn prompt(name: &str, arguments: &[&str]) -> JsonValue {
    let arguments: Vec<JsonValue> = arguments
        .iter()
        .map(|argument| json!({"name": argument, "description": argument, "required": true}))
        .collect();
    json!({"name": name, "description": format!("Fixture {name}."), "arguments": arguments})
}

impl McpHandler for Fixtures {
    fn items(&self, items: McpItems) -> Vec<JsonValue> {
        let resource = |uri: &str, mime: &str| {
            json!({
                "uri": uri, "name": uri, "description": "A fixture.", "mimeType": mime,
            })
        };
        match items {
            McpItems::Tools => TOOLS
                .iter()
                .map(|(name, arguments)| match *name {
                    "json_schema_2020_12_tool" => with_every_keyword(name),
                    name => tool(name, arguments),
                })
                .collect(),
            McpItems::Resources => vec![
                resource("test://static-text", "text/plain"),
                resource("test://static-binary", "image/png"),
                resource("test://watched-resource", "text/plain"),
            ],
            McpItems::ResourceTemplates => vec![json!({"uriTemplate": "test://template/{id}/data",
                "name": "template", "description": "A fixture.", "mimeType": "application/json"})],
            McpItems::Prompts => vec![
                prompt("test_simple_prompt", &[]),
                prompt("test_prompt_with_arguments", &["arg1", "arg2"]),
                prompt("test_prompt_with_embedded_resource", &["resourceUri"]),
                prompt("test_prompt_with_image", &[]),
                prompt("test_input_required_result_prompt", &[]),
            ],
        }
    }

    fn answer<'a>(&'a self, request: McpRequest<'a>) -> McpFuture<'a> {
        Box::pin(async move {
            match request.method {
                "tools/call" => self.call(request).await,
                "resources/read" => read(request.params["uri"].as_str().unwrap_or_default()),
                "prompts/get" => get_prompt(&request),
                _ => Ok(McpReply::Complete(
                    json!({"completion": {"values": ["paris", "park"], "total": 2,
                        "hasMore": false}}),
                )),
            }
        })
    }

    fn revisions(&self) -> Option<watch::Receiver<McpRevisions>> {
        Some(self.revisions.subscribe())
    }
}

fn read(uri: &str) -> Result<McpReply, McpFailure> {
    let contents = match uri {
        "test://static-text" => {
            json!({"text": "This is the content of the static text resource.",
                "mimeType": "text/plain"})
        }
        "test://static-binary" => json!({"blob": PNG, "mimeType": "image/png"}),
        "test://watched-resource" => json!({"text": "watched", "mimeType": "text/plain"}),
        uri => {
            let id = uri.trim_start_matches("test://template/").trim_end_matches("/data");
            let text =
                json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            json!({"text": text.to_string(), "mimeType": "application/json"})
        }
    };
    let mut contents = contents;
    contents["uri"] = json!(uri);
    Ok(McpReply::Complete(json!({"contents": [contents]})))
}

fn get_prompt(request: &McpRequest<'_>) -> Result<McpReply, McpFailure> {
    let argument = |name: &str| {
        request.params.get("arguments").and_then(|all| all[name].as_str()).unwrap_or_default()
    };
    let user = |content: JsonValue| json!({"role": "user", "content": content});
    let text = |text: &str| user(json!({"type": "text", "text": text}));
    let messages = match request.params["name"].as_str().unwrap_or_default() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let one = argument("arg1");
            let two = argument("arg2");
            vec![text(&format!("Prompt with arguments: arg1='{one}', arg2='{two}'"))]
        }
        "test_prompt_with_embedded_resource" => vec![
            user(json!({"type": "resource", "resource": {"uri": argument("resourceUri"),
                "mimeType": "text/plain", "text": "Embedded resource content for testing."}})),
            text("Please process the embedded resource above."),
        ],
        "test_prompt_with_image" => vec![
            user(json!({"type": "image", "data": PNG, "mimeType": "image/png"})),
            text("Please analyze the image above."),
        ],
        _ => match request.responses.get("user_context") {
            Some(response) => {
                let context = response["content"]["context"].as_str().unwrap_or_default();
                vec![text(&format!("Use this context: {context}"))]
            }
            None => {
                let asked = form("What context should the prompt use?", "context", "string");
                return Ok(ask([("user_context", asked)], None));
            }
        },
    };
    Ok(McpReply::Complete(json!({"messages": messages})))
}

fn complete(content: JsonValue) -> Result<McpReply, McpFailure> {
    Ok(McpReply::Complete(json!({"content": content})))
}

fn say(text: &str) -> Result<McpReply, McpFailure> {
    complete(json!([{"type": "text", "text": text}]))
}

fn ask<const N: usize>(requests: [(&str, JsonValue); N], state: Option<JsonValue>) -> McpReply {
    let requests = requests.into_iter().map(|(name, request)| (name.to_owned(), request)).collect();
    McpReply::InputRequired { requests, state }
}

fn elicit(message: &str, properties: &JsonValue, required: &[&str]) -> JsonValue {
    json!({"method": "elicitation/create", "params": {"message": message,
        "requestedSchema": {"type": "object", "properties": properties, "required": required}}})
}

fn form(message: &str, field: &str, kind: &str) -> JsonValue {
    elicit(message, &json!({field: {"type": kind}}), &[field])
}

fn sample(text: &str, max: u32) -> JsonValue {
    json!({"method": "sampling/createMessage", "params": {"maxTokens": max,
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}]}})
}

fn roots() -> JsonValue {
    json!({"method": "roots/list", "params": {}})
}

/// The text of a field of an accepted form.
fn field<'a>(request: &'a McpRequest<'_>, name: &str, field: &str) -> Option<&'a str> {
    let response = request.responses.get(name)?;
    (response["action"] == "accept").then(|| response["content"][field].as_str())?
}

impl Fixtures {
    async fn call(&self, request: McpRequest<'_>) -> Result<McpReply, McpFailure> {
        let name = request.params["name"].as_str().unwrap_or_default();
        let resource = |uri: &str, mime: &str, text: &str| {
            json!({
                "type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text},
            })
        };
        let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
        match name {
            "test_simple_text" => say("This is a simple text response for testing."),
            "test_image_content" => complete(json!([image])),
            "test_audio_content" => {
                complete(json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]))
            }
            "test_embedded_resource" => {
                let text = "This is an embedded resource content.";
                complete(json!([resource("test://embedded-resource", "text/plain", text)]))
            }
            "test_multiple_content_types" => complete(json!([
                {"type": "text", "text": "Multiple content types test:"},
                image,
                resource("test://mixed-content-resource", "application/json",
                    r#"{"test":"data","value":123}"#),
            ])),
            "test_error_handling" => {
                let text = "This tool intentionally returns an error for testing";
                let content = json!([{"type": "text", "text": text}]);
                Ok(McpReply::Complete(json!({"isError": true, "content": content})))
            }
            "test_tool_with_logging" | "test_logging_tool" => {
                for text in
                    ["Tool execution started", "Tool processing data", "Tool execution completed"]
                {
                    request.notifier.log("info", json!(text)).await;
                    // tidy: the suite asks for pauses
                    tokio::time::sleep(PAUSE).await;
                }
                say("logged")
            }
            "test_tool_with_progress" => {
                for progress in [0.0, 50.0, 100.0] {
                    request.notifier.progress(progress, Some(100.0), None).await;
                    // tidy: the suite asks for pauses
                    tokio::time::sleep(PAUSE).await;
                }
                say("done")
            }
            "test_trigger_tool_change" => {
                self.revisions.send_modify(|revisions| revisions.tools += 1);
                say("changed")
            }
            "test_trigger_prompt_change" => {
                self.revisions.send_modify(|revisions| revisions.prompts += 1);
                say("changed")
            }
            name if name.starts_with("test_input_required") => input_required(name, &request),
            name => asks(name, &request),
        }
    }
}

/// Tools that ask the client once.
fn asks(name: &str, request: &McpRequest<'_>) -> Result<McpReply, McpFailure> {
    let argument = |name: &str| {
        request.params.get("arguments").and_then(|all| all[name].as_str()).unwrap_or_default()
    };
    if let Some(response) = request.responses.get("answer") {
        let action = response["action"].as_str();
        let content = &response["content"];
        return match (name, action) {
            ("test_sampling", _) => {
                say(&format!("LLM response: {}", content["text"].as_str().unwrap_or_default()))
            }
            ("test_elicitation", Some(action)) => {
                say(&format!("User response: action={action}, content={content}"))
            }
            (_, action) => {
                let action = action.unwrap_or_default();
                say(&format!("Elicitation completed: action={action}, content={content}"))
            }
        };
    }
    let asked = match name {
        "test_sampling" => sample(argument("prompt"), 100),
        "test_missing_capability" => sample("x", 1),
        "test_elicitation" => {
            let fields = json!({
                "username": {"type": "string", "description": "User's response"},
                "email": {"type": "string", "description": "User's email address"}});
            elicit(argument("message"), &fields, &["username", "email"])
        }
        "test_streaming_elicitation" => form("Go on?", "ok", "boolean"),
        "test_elicitation_sep1034_defaults" => {
            let fields = json!({
                "name": {"type": "string", "default": "John Doe"},
                "age": {"type": "integer", "default": 30},
                "score": {"type": "number", "default": 95.5},
                "status": {"type": "string", "enum": ["active", "inactive", "pending"],
                    "default": "active"},
                "verified": {"type": "boolean", "default": true}});
            elicit("Defaults", &fields, &[])
        }
        "test_elicitation_sep1330_enums" => {
            let fields = json!({
                "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
                "titledSingle": {"type": "string", "oneOf": [
                    {"const": "value1", "title": "First Option"},
                    {"const": "value2", "title": "Second Option"},
                    {"const": "value3", "title": "Third Option"}]},
                "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"]},
                "untitledMulti": {"type": "array", "items":
                    {"type": "string", "enum": ["option1", "option2", "option3"]}},
                "titledMulti": {"type": "array", "items": {"anyOf": [
                    {"const": "value1", "title": "First Choice"},
                    {"const": "value2", "title": "Second Choice"},
                    {"const": "value3", "title": "Third Choice"}]}}});
            elicit("Enums", &fields, &[])
        }
        _ => return say("done"),
    };
    Ok(ask([("answer", asked)], None))
}

/// The tools for input requests of 2026-07-28.
fn input_required(name: &str, request: &McpRequest<'_>) -> Result<McpReply, McpFailure> {
    let responses = &request.responses;
    match name.trim_start_matches("test_input_required_result_") {
        "elicitation" => match field(request, "user_name", "name") {
            Some(name) => say(&format!("Hello, {name}!")),
            None => Ok(ask([("user_name", form("What is your name?", "name", "string"))], None)),
        },
        "sampling" => match responses.get("capital_question") {
            Some(response) => say(response["content"]["text"].as_str().unwrap_or_default()),
            None => {
                let asked = sample("What is the capital of France?", 100);
                Ok(ask([("capital_question", asked)], None))
            }
        },
        "list_roots" => match responses.get("client_roots") {
            Some(response) => say(&response["roots"].to_string()),
            None => Ok(ask([("client_roots", roots())], None)),
        },
        "request_state" | "tampered_state" => match (&request.state, responses.get("confirm")) {
            (Some(state), Some(_)) if *state == json!("round-1") => say("state-ok"),
            _ => {
                let asked = form("Please confirm", "ok", "boolean");
                Ok(ask([("confirm", asked)], Some(json!("round-1"))))
            }
        },
        "multiple_inputs" => {
            let all = ["user_name", "greeting", "client_roots"];
            if request.state.is_some() && all.iter().all(|name| responses.contains_key(*name)) {
                return say("All is there.");
            }
            let requests = [
                ("user_name", form("What is your name?", "name", "string")),
                ("greeting", sample("Generate a greeting", 50)),
                ("client_roots", roots()),
            ];
            Ok(ask(requests, Some(json!("round-1"))))
        }
        "multi_round" => match request.state.as_ref().and_then(JsonValue::as_str) {
            Some("round-1") if responses.contains_key("step1") => {
                let asked = form("Step 2: What is your favorite color?", "color", "string");
                Ok(ask([("step2", asked)], Some(json!("round-2"))))
            }
            Some("round-2") if responses.contains_key("step2") => say("Both steps are done."),
            _ => {
                let asked = form("Step 1: What is your name?", "name", "string");
                Ok(ask([("step1", asked)], Some(json!("round-1"))))
            }
        },
        _ => {
            let mut requests = Map::new();
            if request.capabilities["sampling"].is_object() {
                requests.insert("sampled".to_owned(), sample("x", 10));
            }
            if request.capabilities["elicitation"].is_object() {
                requests.insert("asked".to_owned(), form("Name?", "name", "string"));
            }
            if requests.is_empty() || requests.keys().all(|name| responses.contains_key(name)) {
                return say("done");
            }
            Ok(McpReply::InputRequired { requests, state: None })
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let config = Config::new(abide_reducers::modules());
    let engine = Engine::open(folder.path().join("conformance.db"), config)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    let fixtures = Arc::new(Fixtures { revisions: watch::Sender::default() });
    let access = AccessConfig::loopback();
    let never = std::future::pending();
    let protocols = AgentProtocols { mcp_handler: Some(fixtures), ..AgentProtocols::default() };
    let services = Services { protocols: Some(Arc::new(protocols)), ..Services::default() };
    abide_server::serve_with(engine, listener, access, services, never).await?;
    Ok(())
}
