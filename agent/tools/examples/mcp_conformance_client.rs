//! The MCP client as the conformance suite runs it: it calls the tools of the server whose URL is its last argument,
//! accepts every question with the defaults of its form, and logs in when the server asks for it.
//! `cargo xtask mcp-conformance` runs it.

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_tools::{
    Environment, Exchange, ExchangeError, ExchangeLog, ExchangeStep, Failure, InputAnswer,
    Invocation, McpError, McpServer, McpServerConfig, NewExchange, NewInput, OAuthConfig, Setting,
    Tool, ToolContext, ToolDeclaration, ToolOutcome, Tools, http_client,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

/// Rounds of one call: a server that asks more often does not end.
const ROUNDS: usize = 10;

/// Maximum number of logins.
const LOGINS: usize = 3;

/// The client id metadata document that the suite knows.
const CLIENT_METADATA: &str = "https://conformance-test.local/client-metadata.json";

/// The address to which a login redirects. Nothing listens there: the client reads it from the answer.
const REDIRECT_URI: &str = "http://127.0.0.1:3000/callback";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = env::args().next_back().unwrap_or_default();
    let folder = tempfile::tempdir()?;
    let client = Client { config: config(&url, folder.path()).await?, logins: AtomicUsize::new(0) };
    let tools = Tools::new();
    let server = client.connect(&tools).await?;
    for (name, arguments) in calls(&tools) {
        let Some(tool) = tools.get(&name) else { continue };
        let outcome = client.call(&*tool, &arguments).await?;
        println!("{name} {arguments}: {} {}", outcome.exit_code, outcome.text);
    }
    server.close().await;
    Ok(())
}

/// What the scenario gives to the client.
fn context() -> Value {
    let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    serde_json::from_str(&context).unwrap_or_default()
}

async fn config(url: &str, folder: &Path) -> Result<McpServerConfig, Box<dyn Error>> {
    let context = context();
    let scenario = env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    let setting = |name: &str| context[name].as_str().map(|it| Setting::Literal(it.to_owned()));
    let mut oauth = OAuthConfig {
        client_id: setting("client_id"),
        client_secret: setting("client_secret"),
        private_key: setting("private_key_pem"),
        client_credentials: scenario.starts_with("auth/client-credentials"),
        client_metadata_url: Some(CLIENT_METADATA.to_owned()),
        issuer: context["issuer"].as_str().map(str::to_owned),
        ..OAuthConfig::default()
    };
    if oauth.client_secret.is_some() && oauth.issuer.is_none() {
        oauth.issuer = Some(issuer_of(url).await?);
    }
    let mut config = McpServerConfig::at("suite", url);
    config.prefix = Some(String::new());
    config.timeout_ms = Some(20_000);
    config.oauth = Some(oauth);
    config.login_folder = Some(folder.to_owned());
    Ok(config)
}

/// The issuer, which a user of the client knows, and the suite does not always give.
async fn issuer_of(url: &str) -> Result<String, Box<dyn Error>> {
    let mut url = reqwest::Url::parse(url)?;
    url.set_path(&format!("/.well-known/oauth-protected-resource{}", url.path()));
    let answer = http_client().build()?.get(url).send().await?.text().await?;
    let metadata: Value = serde_json::from_str(&answer)?;
    Ok(metadata["authorization_servers"][0].as_str().unwrap_or_default().to_owned())
}

/// A client whose person logs in when it is necessary.
struct Client {
    config: McpServerConfig,
    logins: AtomicUsize,
}

impl Client {
    async fn connect(&self, tools: &Tools) -> Result<McpServer, Box<dyn Error>> {
        loop {
            let environment: Environment = env::vars().collect();
            match McpServer::start(self.config.clone(), &environment, tools).await {
                Err(McpError::Unavailable { why, .. })
                    if needs_login(&why) && self.login().await? => {}
                other => return Ok(other?),
            }
        }
    }

    /// Runs a call, answers the questions of its server, and logs in if it waits for that.
    async fn call(
        &self,
        tool: &dyn Tool,
        arguments: &Value,
    ) -> Result<ToolOutcome, Box<dyn Error>> {
        let log = Arc::new(AnsweringLog::default());
        let mut outcome = ToolOutcome::text("");
        for _ in 0..ROUNDS {
            let mut invocation = Invocation::new("call", arguments.clone(), ToolContext::default());
            invocation.exchange = log.exchange();
            outcome = tool.run(invocation).await;
            if outcome.failure != Some(Failure::Suspended) {
                break;
            }
            if log.asks_for_login() && !self.login().await? {
                break;
            }
        }
        Ok(outcome)
    }

    /// Logs in, as a browser whose user agrees. Returns whether there was a login.
    async fn login(&self) -> Result<bool, Box<dyn Error>> {
        if self.logins.fetch_add(1, Ordering::Relaxed) >= LOGINS {
            return Ok(false);
        }
        let login = self.config.login(&Environment::default(), REDIRECT_URI).await?;
        let answer = http_client().build()?.get(login.url()).send().await?;
        let redirected = answer.headers().get("location").ok_or("the answer is no redirect")?;
        login.finish(redirected.to_str()?).await?;
        Ok(true)
    }
}

fn needs_login(why: &str) -> bool {
    why.contains("abide mcp login")
}

/// Returns the calls that the scenario asks for, or else one of each tool.
fn calls(tools: &Tools) -> Vec<(String, Value)> {
    if let Some(calls) = context()["toolCalls"].as_array() {
        let name = |call: &Value| call["name"].as_str().unwrap_or_default().to_owned();
        return calls.iter().map(|call| (name(call), call["arguments"].clone())).collect();
    }
    let all = tools.declarations();
    // The scenario compares the schema that the client has received.
    let with_schema = all.iter().find(|tool| tool.name == "json_schema_2020_12_tool");
    let arguments = |tool: &ToolDeclaration| match (tool.name.as_str(), with_schema) {
        ("json_schema_echo", Some(tool)) => json!({ "schema": tool.parameters }),
        _ => sample(&tool.parameters),
    };
    all.iter().map(|tool| (tool.name.clone(), arguments(tool))).collect()
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

/// The log of a call in memory. It accepts each question at once, with the defaults of its form.
#[derive(Default)]
struct AnsweringLog {
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    /// All steps of the call.
    steps: Vec<NewExchange>,
    /// The questions of the last suspension.
    questions: Vec<NewInput>,
}

impl AnsweringLog {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if one of the last questions is the request to log in.
    fn asks_for_login(&self) -> bool {
        self.state().questions.iter().any(|input| needs_login(&input.message))
    }

    /// Returns what the next run of the tool gets: the steps so far, and the answers to the last questions.
    fn exchange(self: &Arc<AnsweringLog>) -> Exchange {
        let state = self.state();
        let step = |step: &NewExchange| ExchangeStep {
            kind: step.kind,
            data: step.data.clone(),
            is_open: true,
            age: Duration::ZERO,
        };
        Exchange {
            steps: state.steps.iter().map(step).collect(),
            answers: state
                .questions
                .iter()
                .map(|input| InputAnswer::Accepted(input.schema.as_ref().map(sample)))
                .collect(),
            log: Some(Arc::clone(self) as Arc<dyn ExchangeLog>),
        }
    }
}

impl ExchangeLog for AnsweringLog {
    fn record(&self, steps: Vec<NewExchange>) -> BoxFuture<'_, Result<(), ExchangeError>> {
        self.state().steps.extend(steps);
        std::future::ready(Ok(())).boxed()
    }

    fn suspend(
        &self,
        steps: Vec<NewExchange>,
        inputs: Vec<NewInput>,
        _: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), ExchangeError>> {
        self.state().questions = inputs;
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
