//! MCP servers as tools: each tool of a server becomes a tool of the registry, with a prefix.
//!
//! A server is a program with pipes, or a URL with streamable HTTP. Both generations of the protocol are supported:
//! 2026-07-28, and earlier ones that start with `initialize`. When a server dies, the calls in progress fail with
//! that reason, and the server is restarted for the next call: immediately the first time, then with a backoff
//! while it keeps failing. When it reports that its tools have changed, they are listed again.

mod authorized;
mod call;
mod connection;
mod lines;
mod open_calls;
mod outcome;
mod parked;
mod post;
mod received;
mod rendering;
mod server;
mod tool;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use abide_client::rows::Effect;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::{self, ConfigError};
use crate::environment::{Inherit, Setting};
use crate::oauth::{Authorizer, McpLogin, OAuthConfig, OAuthError};
use crate::registry::{Tools, ToolsError};
use abide_sandbox::Environment;
pub use connection::McpStatus;
use connection::{Endpoint, ListLimits};
use parked::ParkedCalls;
use server::Server;
pub use server::UnlistedName;

/// The definition of an MCP server: with `command` or `url`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an MCP server: a map with name and command, or name and url"
)]
pub struct McpServerConfig {
    /// The name.
    pub name: String,
    /// The program and its arguments, for a server with pipes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The working directory; the default is that of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<PathBuf>,
    /// Environment variables to set, in addition to the inherited ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Setting>,
    /// The environment variables to inherit.
    #[serde(default)]
    pub inherit_env: Inherit,
    /// The URL, for a server with streamable HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers of every request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Setting>,
    /// How a client of a server with OAuth gets tokens. Without it a person logs in when the server asks for a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth: Option<OAuthConfig>,
    /// The folder with the logins of persons. A program sets it; it is no setting of a definition.
    #[serde(skip)]
    pub login_folder: Option<PathBuf>,
    /// The prefix of its tools' names; the default is the server's name and `_`. It may be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Whether the start fails without the server. Default: true. An optional server that is unavailable is
    /// retried.
    #[serde(default = "yes")]
    pub required: bool,
    /// The tools to use, by the server's names or by the names that they have here; `*` at the end of a name matches any suffix.
    /// The default is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
    /// The tools whose calls need approval, in the same format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_approval: Vec<String>,
    /// The effects of tools, by the same names, if annotations are missing or not trusted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub effects: BTreeMap<String, Effect>,
    /// Timeout of a call, in milliseconds; the default is 60,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Maximum time for a task of the server, in milliseconds; the default is one day.
    #[serde(default = "one_day")]
    pub task_timeout_ms: u64,
    /// Timeout for the start and the listing of tools, in milliseconds; the default is 30,000.
    #[serde(default = "half_a_minute")]
    pub connect_timeout_ms: u64,
    /// Whether each call has its context in `_meta`, as `abide/context`. The default is true for a program, and false
    /// for a URL, whose server may belong to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_context: Option<bool>,
    /// Maximum size in bytes of a message, and of the list of its tools; the default is 32 MiB. A larger message ends the
    /// connection.
    #[serde(default = "message_bytes")]
    pub max_message_bytes: usize,
    /// Maximum number of pages of the list of its tools; the default is 1,000.
    #[serde(default = "list_pages")]
    pub max_list_pages: usize,
}

fn yes() -> bool {
    true
}

fn one_day() -> u64 {
    24 * 3600 * 1_000
}

fn half_a_minute() -> u64 {
    30_000
}

fn message_bytes() -> usize {
    32 << 20
}

fn list_pages() -> usize {
    1_000
}

impl McpServerConfig {
    /// Returns a server that is a program.
    #[must_use]
    pub fn program<S: Into<String>>(
        name: &str,
        command: impl IntoIterator<Item = S>,
    ) -> McpServerConfig {
        let command = command.into_iter().map(Into::into).collect();
        McpServerConfig { command, ..McpServerConfig::named(name) }
    }

    /// Returns a server at a URL.
    #[must_use]
    pub fn at(name: &str, url: &str) -> McpServerConfig {
        McpServerConfig { url: Some(url.to_owned()), ..McpServerConfig::named(name) }
    }

    fn named(name: &str) -> McpServerConfig {
        McpServerConfig {
            name: name.to_owned(),
            command: Vec::new(),
            working_dir: None,
            env: BTreeMap::new(),
            inherit_env: Inherit::default(),
            url: None,
            headers: BTreeMap::new(),
            oauth: None,
            login_folder: None,
            prefix: None,
            required: true,
            only: None,
            needs_approval: Vec::new(),
            effects: BTreeMap::new(),
            timeout_ms: None,
            task_timeout_ms: one_day(),
            connect_timeout_ms: half_a_minute(),
            send_context: None,
            max_message_bytes: message_bytes(),
            max_list_pages: list_pages(),
        }
    }

    /// Begins a login of a person to the server. The redirect URI is that of this login: `http://127.0.0.1:PORT/callback`.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub async fn login(
        &self,
        environment: &Environment,
        redirect_uri: &str,
    ) -> Result<McpLogin, OAuthError> {
        let authorizer = self.authorizer(environment)?.ok_or_else(|| {
            let why = "only a server with url and without the header Authorization has logins";
            ConfigError::new(&self.name, why)
        })?;
        McpLogin::start(authorizer, redirect_uri).await
    }

    /// What requests tokens of the server; `None` for a program, and if the headers authenticate.
    fn authorizer(&self, environment: &Environment) -> Result<Option<Authorizer>, ConfigError> {
        let url = match &self.url {
            Some(url)
                if !self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) =>
            {
                url
            }
            _ if self.oauth.is_some() => {
                let why = "oauth needs url, and no header Authorization";
                return Err(ConfigError::new(&self.name, why));
            }
            _ => return Ok(None),
        };
        let url = connection::parse_url(&self.name, url)?;
        let config = self.oauth.clone().unwrap_or_default();
        let folder = self.login_folder.as_deref();
        Authorizer::new(&self.name, &url, &config, environment, folder).map(Some)
    }
}

/// Why a server cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// Its definition is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its name is already in use.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// It is required but unavailable.
    #[error("MCP server {name} is unavailable: {why}")]
    Unavailable {
        /// The server.
        name: String,
        /// The reason.
        why: String,
    },
}

impl McpError {
    /// Returns a stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            McpError::Config(why) => why.code(),
            McpError::Tools(why) => why.code(),
            McpError::Unavailable { .. } => "mcp_unavailable",
        }
    }
}

/// An MCP server whose tools are in a registry. Dropping it removes the tools and stops the server.
pub struct McpServer {
    server: Arc<Server>,
    /// Whether the registry has removed its tools, possibly in favour of another server of the same name.
    has_left: bool,
}

/// An MCP server with a valid definition that is not connected yet.
pub struct PreparedMcpServer {
    server: Arc<Server>,
    required: bool,
}

impl PreparedMcpServer {
    /// Checks a definition. It starts nothing.
    ///
    /// # Errors
    /// The definition is invalid.
    pub fn new(
        config: McpServerConfig,
        environment: &Environment,
        tools: &Tools,
    ) -> Result<PreparedMcpServer, ConfigError> {
        let authorizer = config.authorizer(environment)?;
        let name = config.name.clone();
        let required = config.required;
        let prefix = config.prefix.unwrap_or_else(|| format!("{name}_"));
        let timeout = config::timeout(&name, config.timeout_ms)?;
        let is_program = config.url.is_none();
        let endpoint = match (config.command.is_empty(), config.url) {
            (false, None) => Endpoint::program(
                config.command,
                config.working_dir,
                config.inherit_env.variables(&name, environment, &config.env)?,
                config.max_message_bytes,
            ),
            (true, Some(url)) => {
                let headers = crate::http::headers(&name, &config.headers, environment)?;
                Endpoint::address(&name, &url, headers, authorizer, config.max_message_bytes)?
            }
            _ => return Err(ConfigError::new(&name, "it needs either command or url")),
        };
        let server = Arc::new(Server {
            endpoint,
            only: config.only,
            needs_approval: config.needs_approval,
            effects: config.effects,
            sends_context: config.send_context.unwrap_or(is_program),
            timeout,
            task_timeout: Duration::from_millis(config.task_timeout_ms),
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
            list_limits: ListLimits {
                max_pages: config.max_list_pages,
                max_bytes: config.max_message_bytes,
            },
            tools: tools.clone(),
            link: Mutex::default(),
            parked: ParkedCalls::default(),
            unlisted: std::sync::Mutex::default(),
            closing: CancellationToken::new(),
            prefix,
            name,
        });
        Ok(PreparedMcpServer { server, required })
    }

    /// Returns the name of the server and the prefix of its tools, as a registry announces them.
    #[must_use]
    pub fn source(&self) -> (String, String) {
        (self.server.name.clone(), self.server.prefix.clone())
    }

    /// Connects to the server, which the registry has announced ([`Tools::announce`], [`Tools::configure`]), and adds its
    /// tools. If it is unavailable, it is tried again; the status has the reason.
    pub async fn connect(self) -> McpServer {
        let handle = McpServer { server: self.server, has_left: false };
        if handle.server.connection().await.is_err() {
            handle.server.keep_trying();
        }
        handle
    }
}

impl McpServer {
    /// Connects to a server and adds its tools to a registry.
    ///
    /// # Errors
    /// The definition is invalid, or the server is required but unavailable.
    pub async fn start(
        config: McpServerConfig,
        environment: &Environment,
        tools: &Tools,
    ) -> Result<McpServer, McpError> {
        let PreparedMcpServer { server, required } =
            PreparedMcpServer::new(config, environment, tools)?;
        tools.announce(&server.name, &server.prefix)?;
        let handle = McpServer { server, has_left: false };
        match handle.server.connection().await {
            Ok(_) => {}
            Err(error) if required => {
                let name = handle.server.name.clone();
                return Err(McpError::Unavailable { name, why: error.why });
            }
            Err(_) => handle.server.keep_trying(),
        }
        Ok(handle)
    }

    /// Stops it after the registry has removed its tools ([`Tools::configure`]). The tools of another server of the same
    /// name stay. Calls in progress end first.
    pub fn leave(mut self) {
        self.has_left = true;
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.server.name
    }

    /// Returns the names in its definition that are those of none of the tools which it has listed last.
    #[must_use]
    pub fn unlisted(&self) -> Vec<UnlistedName> {
        self.server.unlisted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the status.
    pub async fn status(&self) -> McpStatus {
        let link = self.server.link.lock().await;
        match link.open() {
            Some(connection) => connection.status(),
            None => {
                let why = match &link.connection {
                    Some(connection) => connection.how_it_ended().await,
                    None => link.last_error.why.clone(),
                };
                McpStatus::Down { why }
            }
        }
    }

    /// Removes its tools and stops it: its stdin is closed, and it is killed if it does not exit.
    pub async fn close(self) {
        self.server.closing.cancel();
        self.server.parked.clear();
        let connection = self.server.link.lock().await.connection.take();
        if let Some(connection) = connection {
            connection.end().await;
        }
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        // The tools hold references to the server, so they are removed first.
        self.server.closing.cancel();
        self.server.parked.clear();
        if !self.has_left {
            self.server.tools.withdraw(&self.server.name);
        }
    }
}
