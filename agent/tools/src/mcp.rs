//! MCP servers as tools: every tool that a server lists becomes one of ours, under a prefix.
//!
//! A server is a program that speaks over its pipes, or an address that speaks streamable HTTP; both eras of the
//! protocol are spoken, 2026-07-28 and the ones that begin with `initialize`. A server that dies costs the calls that it
//! was at, which say so, and is started again for the next one: at once the first time, and no sooner than its backoff
//! says while it keeps failing. When it says that its tools have changed, they are listed anew.

mod connection;
mod lines;
mod rendering;
mod tool;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use abide_client::Effect;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{self, ConfigError};
use crate::environment::{Environment, Inherit, Setting};
use crate::registry::{Tools, ToolsError, matches_any};
use crate::tool::Tool;
use connection::{Connection, Door};
use tool::McpTool;

/// The wait after a second failure in a row, and the longest one; each is twice the one before.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Tools that are taken of one server. What lists more is no list for a model.
const TOOLS_MAX: usize = 1_000;

/// An MCP server, as a definition has it: `command` or `url`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServerConfig {
    /// Its name.
    pub name: String,
    /// The program that speaks over its pipes, with its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The folder that it runs in; that of the worker unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Variables that are set for it, on top of what it inherits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Setting>,
    /// Variables that it inherits.
    #[serde(default)]
    pub inherit_env: Inherit,
    /// The address that speaks streamable HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers of every request to it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Setting>,
    /// What its tools' names begin with here; its name and `_` unless said. It may be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Whether there is no point in starting without it; there is none unless said. An optional server that is not there
    /// is tried again until it is.
    #[serde(default = "yes")]
    pub required: bool,
    /// Its tools that are taken, by its own names; a name that ends in `*` stands for all that begin so. All unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
    /// Its tools whose calls somebody must approve, by its own names, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_approval: Vec<String>,
    /// What running a tool twice would mean, by its own name, where its annotations do not say it or are not believed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub effects: BTreeMap<String, Effect>,
    /// How long one call may take, in milliseconds; 60,000 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long it has to start and to list its tools, in milliseconds; 30,000 unless said.
    #[serde(default = "half_a_minute")]
    pub connect_timeout_ms: u64,
    /// Bytes of one message that are taken of it: 32 MiB unless said. One that is longer ends the connection.
    #[serde(default = "message_bytes")]
    pub max_message_bytes: usize,
}

fn yes() -> bool {
    true
}

fn half_a_minute() -> u64 {
    30_000
}

fn message_bytes() -> usize {
    32 << 20
}

impl McpServerConfig {
    /// A server that is a program.
    #[must_use]
    pub fn program<S: Into<String>>(
        name: &str,
        command: impl IntoIterator<Item = S>,
    ) -> McpServerConfig {
        let command = command.into_iter().map(Into::into).collect();
        McpServerConfig { command, ..McpServerConfig::named(name) }
    }

    /// A server at an address.
    #[must_use]
    pub fn at(name: &str, url: &str) -> McpServerConfig {
        McpServerConfig { url: Some(url.to_owned()), ..McpServerConfig::named(name) }
    }

    fn named(name: &str) -> McpServerConfig {
        McpServerConfig {
            name: name.to_owned(),
            command: Vec::new(),
            folder: None,
            env: BTreeMap::new(),
            inherit_env: Inherit::default(),
            url: None,
            headers: BTreeMap::new(),
            prefix: None,
            required: true,
            only: None,
            needs_approval: Vec::new(),
            effects: BTreeMap::new(),
            timeout_ms: None,
            connect_timeout_ms: half_a_minute(),
            max_message_bytes: message_bytes(),
        }
    }
}

/// Why a server cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// Its definition is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is another of its name.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// It is required and not there.
    #[error("the MCP server {name} is not there: {why}")]
    Unavailable {
        /// The server.
        name: String,
        /// What happened.
        why: String,
    },
}

impl McpError {
    /// A name that does not change, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            McpError::Config(why) => why.code(),
            McpError::Tools(why) => why.code(),
            McpError::Unavailable { .. } => "mcp_unavailable",
        }
    }
}

/// How a server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum McpStatus {
    /// It is there.
    Up {
        /// The revision of the protocol that is spoken.
        protocol: String,
        /// What it calls itself, with its version.
        server: String,
    },
    /// It is not there, and why. It is started for the next call.
    Down {
        /// What happened last.
        why: String,
    },
}

/// An MCP server whose tools are in a registry. When this is dropped, they are taken back and it is ended.
pub struct McpServer {
    server: Arc<Server>,
}

/// What a server's tools share.
struct Server {
    name: String,
    prefix: String,
    door: Door,
    only: Option<Vec<String>>,
    needs_approval: Vec<String>,
    effects: BTreeMap<String, Effect>,
    timeout: Duration,
    connect_timeout: Duration,
    tools: Tools,
    link: Mutex<Link>,
    closing: CancellationToken,
}

/// The connection, if there is one.
#[derive(Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    /// Attempts to connect in a row that failed.
    failures: u32,
    /// Before then it is not tried again.
    rests_until: Option<Instant>,
    why: String,
}

impl McpServer {
    /// Connects to a server and puts its tools into a registry.
    ///
    /// # Errors
    /// Its definition is wrong, or it is required and not there.
    pub async fn start(
        config: McpServerConfig,
        environment: &Environment,
        tools: &Tools,
    ) -> Result<McpServer, McpError> {
        let name = config.name.clone();
        let required = config.required;
        let prefix = config.prefix.unwrap_or_else(|| format!("{name}_"));
        let timeout = config::timeout(&name, config.timeout_ms)?;
        let door = match (config.command.is_empty(), config.url) {
            (false, None) => Door::program(
                config.command,
                config.folder,
                environment.for_program(&name, &config.inherit_env, &config.env)?,
                config.max_message_bytes,
            ),
            (true, Some(url)) => {
                let headers = crate::http::headers(&name, &config.headers, environment)?;
                Door::address(&name, &url, headers, config.max_message_bytes)?
            }
            _ => return Err(ConfigError::new(&name, "it has either a command or a url").into()),
        };
        let server = Arc::new(Server {
            door,
            only: config.only,
            needs_approval: config.needs_approval,
            effects: config.effects,
            timeout,
            connect_timeout: Duration::from_millis(config.connect_timeout_ms),
            tools: tools.clone(),
            link: Mutex::default(),
            closing: CancellationToken::new(),
            prefix,
            name,
        });
        tools.announce(&server.name, &server.prefix)?;
        let handle = McpServer { server };
        match handle.server.connection().await {
            Ok(_) => {}
            Err(why) if required => {
                let name = handle.server.name.clone();
                return Err(McpError::Unavailable { name, why });
            }
            Err(_) => handle.server.keep_trying(),
        }
        Ok(handle)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.server.name
    }

    /// How it is.
    pub async fn status(&self) -> McpStatus {
        let link = self.server.link.lock().await;
        match link.open() {
            Some(connection) => connection.status(),
            None => {
                let why = match &link.connection {
                    Some(connection) => connection.how_it_ended().await,
                    None => link.why.clone(),
                };
                McpStatus::Down { why }
            }
        }
    }

    /// Takes its tools back and ends it: its input is closed, and what does not end by that is made to.
    pub async fn close(self) {
        self.server.closing.cancel();
        let connection = self.server.link.lock().await.connection.take();
        if let Some(connection) = connection {
            connection.end().await;
        }
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        // Its tools hold the server, so they have to go for it to go.
        self.server.closing.cancel();
        self.server.tools.withdraw(&self.server.name);
    }
}

impl Link {
    fn open(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|connection| connection.is_open())
    }
}

impl Server {
    /// The connection, made if there is none.
    ///
    /// # Errors
    /// Why there is none. Nothing was sent.
    async fn connection(self: &Arc<Server>) -> Result<Arc<Connection>, String> {
        // In a task of its own, so that a call which is cancelled meanwhile does not break it off for the others.
        let server = Arc::clone(self);
        let connecting = tokio::spawn(async move { server.connect().await });
        connecting.await.unwrap_or_else(|_| Err("connecting to it broke down".to_owned()))
    }

    async fn connect(self: &Arc<Server>) -> Result<Arc<Connection>, String> {
        let mut link = self.link.lock().await;
        if let Some(connection) = link.open() {
            return Ok(Arc::clone(connection));
        }
        if self.closing.is_cancelled() {
            return Err("it was closed".to_owned());
        }
        if let Some(until) = link.rests_until.filter(|until| Instant::now() < *until) {
            let wait = until.duration_since(Instant::now()).as_secs_f64();
            return Err(format!("{}; it is tried again in {wait:.1} s", link.why));
        }
        link.connection = None;
        match self.connect_and_list().await {
            Ok(connection) => {
                *link = Link { connection: Some(Arc::clone(&connection)), ..Link::default() };
                Ok(connection)
            }
            Err(why) => {
                link.failures += 1;
                let doublings = link.failures.saturating_sub(1).min(16);
                let wait = BACKOFF.saturating_mul(1 << doublings).min(BACKOFF_MAX);
                link.rests_until = Some(Instant::now() + wait);
                tracing::warn!(server = self.name, why, ?wait, "an MCP server is not there");
                link.why.clone_from(&why);
                Err(why)
            }
        }
    }

    async fn connect_and_list(self: &Arc<Server>) -> Result<Arc<Connection>, String> {
        let connection = Connection::open(&self.door, self.connect_timeout).await?;
        let listed = match tokio::time::timeout(self.connect_timeout, connection.list()).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(why)) => return Err(format!("it does not list its tools: {why}")),
            Err(_) => return Err("it did not list its tools in time".to_owned()),
        };
        self.publish(listed);
        let connection = Arc::new(connection);
        self.follow(&connection);
        Ok(connection)
    }

    /// Lists the tools again whenever they have changed, as long as the connection is there.
    fn follow(self: &Arc<Server>, connection: &Arc<Connection>) {
        let server = Arc::downgrade(self);
        let mut changes = connection.changes();
        let connection = Arc::downgrade(connection);
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let (Some(server), Some(connection)) = (server.upgrade(), connection.upgrade())
                else {
                    break;
                };
                match tokio::time::timeout(server.connect_timeout, connection.list()).await {
                    Ok(Ok(listed)) => server.publish(listed),
                    Ok(Err(why)) => {
                        tracing::warn!(server = server.name, why, "tools are not listed")
                    }
                    Err(_) => tracing::warn!(server = server.name, "tools are not listed in time"),
                }
            }
        });
    }

    fn publish(self: &Arc<Server>, mut listed: Vec<rmcp::model::Tool>) {
        if self.closing.is_cancelled() {
            return;
        }
        listed.retain(|tool| self.only.as_ref().is_none_or(|only| matches_any(only, &tool.name)));
        if listed.len() > TOOLS_MAX {
            tracing::warn!(server = self.name, "only its first {TOOLS_MAX} tools are taken");
            listed.truncate(TOOLS_MAX);
        }
        let tools = listed
            .into_iter()
            .map(|tool| Arc::new(McpTool::of(Arc::clone(self), tool)) as Arc<dyn Tool>);
        for problem in self.tools.replace(&self.name, tools.collect()) {
            tracing::warn!(server = self.name, problem, "a tool is left out");
        }
    }

    /// Tries to connect until it has worked once, or the server is closed.
    fn keep_trying(self: &Arc<Server>) {
        let server = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let until = server.link.lock().await.rests_until.unwrap_or_else(Instant::now);
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = server.closing.cancelled() => return,
                }
                if server.connection().await.is_ok() {
                    return;
                }
            }
        });
    }
}
