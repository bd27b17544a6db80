//! `abide.yaml`: the models, tools and settings of all agents of a folder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use abide_models::ModelsConfig;
use abide_tools::{
    BuiltinToolsConfig, Concurrency, HttpToolConfig, McpServerConfig, SandboxConfig,
    SubprocessToolConfig,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{self, DefinitionError};
use crate::middleware::Middleware;

/// The content of `abide.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a configuration: a map with models, sandbox, builtin_tools, tool_security, \
                 middleware, http_tools, programs, mcp_servers, mcp, prompts, traces and runs"
)]
pub struct ProjectConfig {
    /// The models.
    pub models: ModelsConfig,
    /// The sandbox of programs and file tools.
    pub sandbox: Option<SandboxConfig>,
    /// The built-in tools.
    pub builtin_tools: BuiltinToolsConfig,
    /// Tools that are denied to all agents.
    pub tool_security: ToolSecurityConfig,
    /// The middleware of all agents, before their own.
    pub middleware: Vec<Middleware>,
    /// Tools over HTTP.
    pub http_tools: Vec<HttpToolConfig>,
    /// Tools that are programs.
    pub programs: Vec<SubprocessToolConfig>,
    /// MCP servers, whose tools agents can use.
    pub mcp_servers: Vec<McpServerConfig>,
    /// What MCP clients can use.
    pub mcp: McpConfig,
    /// Where traces of runs go.
    pub traces: TraceConfig,
    /// The servers of prompts.
    pub prompts: PromptsConfig,
    /// Maximum numbers of runs that are driven at a time.
    pub runs: Option<Concurrency>,
}

/// Tools and reducers for MCP clients, in addition to the agents with `mcp_exposed`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "what MCP clients can use: tools and reducers")]
pub struct McpConfig {
    /// Tools, by name or prefix (`files_*`).
    pub tools: Vec<String>,
    /// Reducers, by name.
    pub reducers: Vec<String>,
}

/// Tools that are denied to all agents.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "tool security: a map with blocked_tools")]
pub struct ToolSecurityConfig {
    /// Tools whose calls are denied, by name or prefix (`files_*`).
    pub blocked_tools: Vec<String>,
}

impl ProjectConfig {
    /// Parses the text of `abide.yaml`. Returns its sections as data too, to compare them with those of a later text.
    ///
    /// # Errors
    /// [`DefinitionError::Malformed`], with the place if it is known.
    pub fn from_yaml(text: &str) -> Result<(ProjectConfig, Map<String, Value>), DefinitionError> {
        let document = error::parse_yaml(text)?;
        let config = error::from_document(&document)?;
        let sections = match error::from_document(&document)? {
            Value::Object(sections) => sections,
            _ => Map::new(),
        };
        Ok((config, sections))
    }

    /// Returns the deny list of the deployment: that of `tool_security`, and those of the middleware of all agents.
    pub fn blocked_tools(&self) -> Vec<String> {
        let of_middleware = self.middleware.iter().filter_map(|it| match it {
            Middleware::ToolSecurity(security) => Some(&security.blocked_tools),
            _ => None,
        });
        of_middleware.flatten().chain(&self.tool_security.blocked_tools).cloned().collect()
    }
}

/// `prompts` in `abide.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "prompts: a map with mlflow")]
pub struct PromptsConfig {
    /// The server for `{mlflow: NAME@VERSION}`.
    pub mlflow: Option<MlflowConfig>,
}

/// An MLflow server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an MLflow server: a map with url")]
pub struct MlflowConfig {
    /// The address, such as `http://127.0.0.1:5000`.
    pub url: String,
    /// The environment variable of the bearer token.
    pub token_env: Option<String>,
}

/// The configuration of traces: `traces` in `abide.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "traces: a map with log_data and sinks")]
pub struct TraceConfig {
    /// Whether spans have the texts of messages, the arguments of tools and their results.
    pub log_data: bool,
    /// Where the traces go.
    pub sinks: Vec<TraceSink>,
}

/// One sink.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TraceSink {
    /// A file with one JSON object for each span.
    File {
        /// The file; relative to the folder.
        path: PathBuf,
    },
    /// A collector that accepts OTLP over HTTP with JSON.
    Otlp {
        /// The address, such as `http://127.0.0.1:4318/v1/traces`.
        url: String,
        /// Headers of every request.
        #[serde(default)]
        headers: BTreeMap<String, String>,
        /// Headers whose values are environment variables.
        #[serde(default)]
        headers_env: BTreeMap<String, String>,
    },
    /// A server that accepts the objects of the file sink as one JSON array.
    Http {
        /// The address.
        url: String,
        /// Headers of every request.
        #[serde(default)]
        headers: BTreeMap<String, String>,
        /// Headers whose values are environment variables.
        #[serde(default)]
        headers_env: BTreeMap<String, String>,
    },
}
