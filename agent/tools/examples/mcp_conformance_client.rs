//! The MCP client as the conformance suite runs it: it calls the tools of the server whose URL is its last argument, and accepts
//! every question with the defaults of its form. `cargo xtask mcp-conformance` runs it.

use std::env;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_tools::{
    Environment, Exchange, ExchangeError, ExchangeLog, ExchangeStep, Failure, InputAnswer,
    Invocation, McpServer, McpServerConfig, NewExchange, NewInput, Tool, ToolContext, ToolOutcome,
    Tools,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

/// Rounds of one call: a server that asks more often does not end.
const ROUNDS: usize = 10;

#[tokio::main]
async fn main() -> ExitCode {
    let url = env::args().next_back().unwrap_or_default();
    let tools = Tools::new();
    let mut config = McpServerConfig::at("suite", &url);
    config.prefix = Some(String::new());
    config.timeout_ms = Some(20_000);
    let environment: Environment = env::vars().collect();
    let server = match McpServer::start(config, &environment, &tools).await {
        Ok(server) => server,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for (name, arguments) in calls(&tools) {
        let Some(tool) = tools.get(&name) else { continue };
        let outcome = call(&*tool, &arguments).await;
        println!("{name} {arguments}: {} {}", outcome.exit_code, outcome.text);
    }
    server.close().await;
    ExitCode::SUCCESS
}

/// The calls that the scenario asks for, or else one of each tool.
fn calls(tools: &Tools) -> Vec<(String, Value)> {
    let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    if let Some(calls) = context["toolCalls"].as_array() {
        let name = |call: &Value| call["name"].as_str().unwrap_or_default().to_owned();
        return calls.iter().map(|call| (name(call), call["arguments"].clone())).collect();
    }
    let all = tools.declarations().into_iter();
    all.map(|tool| (tool.name.clone(), sample(&tool.parameters))).collect()
}

/// A value for each property of a schema.
fn sample(schema: &Value) -> Value {
    let mut members = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let value = match (property.get("default"), property["type"].as_str()) {
            (Some(default), _) => default.clone(),
            (None, Some("integer" | "number")) => json!(2),
            (None, Some("boolean")) => json!(true),
            (None, Some("string")) => property["enum"].get(0).cloned().unwrap_or(json!("x")),
            _ => continue,
        };
        members.insert(name.clone(), value);
    }
    Value::Object(members)
}

/// Runs a call, and answers the questions of its server.
async fn call(tool: &dyn Tool, arguments: &Value) -> ToolOutcome {
    let log = Arc::new(Answers::default());
    let mut outcome = ToolOutcome::text("");
    for _ in 0..ROUNDS {
        let mut invocation = Invocation::new("call", arguments.clone(), ToolContext::default());
        invocation.exchange = log.exchange();
        outcome = tool.run(invocation).await;
        if outcome.failure != Some(Failure::Suspended) {
            break;
        }
    }
    outcome
}

/// A log in memory that has an answer to each question at once.
#[derive(Default)]
struct Answers {
    state: Mutex<(Vec<NewExchange>, Vec<NewInput>)>,
}

impl Answers {
    fn state(&self) -> MutexGuard<'_, (Vec<NewExchange>, Vec<NewInput>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchange(self: &Arc<Answers>) -> Exchange {
        let state = self.state();
        let step = |step: &NewExchange| ExchangeStep {
            kind: step.kind,
            data: step.data.clone(),
            is_open: true,
            age: Duration::ZERO,
        };
        let answer = |input: &NewInput| InputAnswer::Accepted(input.schema.as_ref().map(sample));
        Exchange {
            steps: state.0.iter().map(step).collect(),
            answers: state.1.iter().map(answer).collect(),
            log: Some(Arc::clone(self) as Arc<dyn ExchangeLog>),
        }
    }
}

impl ExchangeLog for Answers {
    fn record(&self, steps: Vec<NewExchange>) -> BoxFuture<'_, Result<(), ExchangeError>> {
        self.state().0.extend(steps);
        std::future::ready(Ok(())).boxed()
    }

    fn suspend(
        &self,
        steps: Vec<NewExchange>,
        inputs: Vec<NewInput>,
        _: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), ExchangeError>> {
        self.state().1 = inputs;
        self.record(steps)
    }

    fn withdraw(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    fn wants_cancel(&self) -> BoxFuture<'_, bool> {
        std::future::ready(false).boxed()
    }

    fn until_ended(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }
}
