//! What an agent may call, on the side of the worker that runs it: Rust functions, HTTP requests, programs,
//! and the tools of MCP servers, all behind one trait.
//!
//! Changes when it changes what a tool can be, or what a model is told of one. It knows nothing of models and loops,
//! and it never calls Abide: whoever runs a tool claims the call and puts its outcome on record.
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
//! let admitted = of_the_agent.admit("track", r#"{"number": "A-7"}"#).expect("it fits");
//! let outcome = admitted.run("call-1", ToolContext::default()).await;
//! assert_eq!(outcome.text, "A-7 is in Vienna");
//! # Ok(())
//! # }
//! ```
//!
//! **A tool never throws.** Whatever goes wrong, a panic included, is an outcome that says so, with what is known of
//! whether the tool had its effect ([`Failure`]).
//!
//! **Nothing is cut but for the model.** An outcome is whole.
//!
//! In reading order: `tool` what a tool is · `outcome` what comes of a call · `registry` which there are, and which
//! an agent may use · `arguments` what a model wrote, held to a schema · the kinds of tools: `function`, `http`,
//! `subprocess`, `mcp` · `cut` what a model is shown of a long result.

mod arguments;
mod config;
mod cut;
mod environment;
mod function;
mod http;
mod mcp;
mod outcome;
mod process;
mod registry;
mod subprocess;
mod template;
mod tool;

pub use abide_client::{ApprovalPolicy, Effect, Rate, Retry, ToolLimits};
pub use arguments::{Fitted, Misfit, Parameters};
pub use config::ConfigError;
pub use cut::{Cut, Shown};
pub use environment::{Environment, INHERITED, Inherit, Named, Preset, Setting};
pub use function::{Function, Returned};
pub use http::{HttpBody, HttpTool, HttpToolConfig};
pub use mcp::{McpError, McpServer, McpServerConfig, McpStatus};
pub use outcome::{Failure, ToolOutcome};
pub use registry::{Admitted, Selection, ToolView, Tools, ToolsError};
pub use subprocess::{Output, Stdin, SubprocessTool, SubprocessToolConfig};
pub use tool::{DEFAULT_TIMEOUT, Invocation, Tool, ToolContext, ToolDeclaration};
