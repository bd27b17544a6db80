//! Tools that an agent may call, for the worker that runs them: Rust functions, HTTP requests, programs, and the
//! tools of MCP servers, behind one trait.
//!
//! This crate changes when the kinds of tools or their presentation to models change. It does not depend on models
//! or agent loops, and it never calls Abide: the worker claims calls and records their outcomes.
//!
//! ```
//! use abide_tools::{Selection, ToolContext, Tools};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Parcel {
//!     /// The number on the label.
//!     number: String,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tools = Tools::new();
//! tools.function("track", "Where a parcel is.", |parcel: Parcel, _: ToolContext| async move {
//!     Ok::<_, String>(format!("{} is in Vienna", parcel.number))
//! })?;
//!
//! let of_the_agent = tools.view(Selection::default())?;
//! let admitted = of_the_agent.admit("track", r#"{"number": "A-7"}"#).expect("the arguments are valid");
//! let outcome = admitted.run("call-1", ToolContext::default()).await;
//! assert_eq!(outcome.text, "A-7 is in Vienna");
//! # Ok(())
//! # }
//! ```
//!
//! **A tool never fails with an error or a panic.** Every failure, including a panic, is an outcome that states
//! whether the tool may have had an effect ([`Failure`]).
//!
//! **Outcomes are complete.** They are shortened only for the model.
//!
//! In reading order: `tool` the trait · `outcome` the result of a call · `exchange` calls of more than one request ·
//! `registry` all tools, and those that an agent may use · `arguments` validation of a model's arguments · the kinds
//! of tools: `function`, `http`, `subprocess`, `mcp` · `oauth` tokens of MCP servers · `a2a` remote agents ·
//! `http_client`, `public_address` how and to which addresses requests are sent · `webhook` requests to them that the
//! server makes. Programs run in the sandboxes of `abide-sandbox`.

mod a2a;
mod arguments;
mod builtin;
mod capture;
mod config;
mod environment;
mod error_text;
mod exchange;
mod function;
mod http;
mod http_client;
mod mcp;
mod media_type;
mod oauth;
mod outcome;
mod public_address;
mod registry;
mod subprocess;
mod template;
mod tool;
mod webhook;

pub use a2a::{A2aClient, A2aConfig, A2aEvent, A2aEvents, A2aFailure, a2a_id};
pub use abide_client::arguments::{ApprovalPolicy, NewExchange, NewInput, Rate, Retry, ToolLimits};
pub use abide_client::rows::{Effect, ExchangeKind};
pub use abide_sandbox::{
    Availability, BackendName, Concurrency, Environment, IsolatedCommand, LandlockPaths, Launcher,
    Network, ProtectedPaths, Sandbox, SandboxBackend, SandboxConfig, SandboxError, SandboxJob,
    SandboxLimits, ScopeLimiter, ScopePermit, available_backends, sandbox_exec, unreadable_on_path,
};
pub use arguments::{ArgumentsError, CheckedArguments, Parameters};
pub use builtin::{
    BrowserConfig, BuiltinError, BuiltinToolsConfig, ExecuteConfig, PackagesConfig, SearchConfig,
    SearchProvider, add_builtin_tools,
};
pub use config::ConfigError;
pub use environment::{INHERITED, Inherit, Named, Preset, Setting};
pub use exchange::{Exchange, ExchangeError, ExchangeLog, ExchangeStep, InputAnswer, LOGIN_FIELD};
pub use function::{Function, IntoOutcome};
pub use http::{HttpBody, HttpTool, HttpToolConfig};
pub use http_client::http_client;
pub use mcp::{McpError, McpServer, McpServerConfig, McpStatus, PreparedMcpServer, UnlistedName};
pub use media_type::media_type;
pub use oauth::{McpLogin, OAuthConfig, OAuthError, TokenEndpointAuth, forget_mcp_login};
pub use outcome::{Failure, ToolOutcome};
pub use registry::{
    AdmittedCall, ConfiguredTools, Selection, ToolView, Tools, ToolsError, tool_matches,
};
pub use subprocess::{Output, Stdin, SubprocessTool, SubprocessToolConfig};
pub use tool::{DEFAULT_TIMEOUT, Invocation, Tool, ToolContext, ToolDeclaration};
pub use webhook::WebhookClient;
