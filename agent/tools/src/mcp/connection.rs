//! A connection to an MCP server: setup, state, and the reason of its end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationCapability,
    FormElicitationCapability, Implementation, PaginatedRequestParams, ProtocolVersion,
    ServerNotification, SubscriptionFilter, TASKS_EXTENSION_ID, Tool, UrlElicitationCapability,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, RequestContext, RoleClient,
    RunningService, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ErrorData, Peer};
use serde::Serialize;
use tokio::process::{Child, ChildStderr};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::authorized::{AuthorizedClient, oauth_cause};
use super::lines::{BoundedLines, StreamError};
use super::open_calls::OpenCalls;
use crate::config::ConfigError;
use crate::error_text::describe;
use crate::oauth::{Authorizer, OAuthError};
use abide_sandbox::{Launch, OutputTail, ProcessGroup, exit_code};

/// Grace period after the server's stdin is closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// Maximum time to read the last output of a server. It is in the pipe when the server has exited.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Maximum number of redirects of an HTTP server, within its own host.
const REDIRECTS: usize = 3;

/// The address of a server.
pub(super) enum Endpoint {
    Program { launch: Launch, max: usize },
    Address { client: AuthorizedClient, config: StreamableHttpClientTransportConfig },
}

impl Endpoint {
    pub(super) fn program(
        argv: Vec<String>,
        folder: Option<PathBuf>,
        environment: BTreeMap<String, String>,
        max: usize,
    ) -> Endpoint {
        let launch = Launch { argv, folder, environment, supervised: None };
        Endpoint::Program { launch, max }
    }

    pub(super) fn address(
        name: &str,
        url: &str,
        headers: HeaderMap,
        authorizer: Option<Authorizer>,
        max: usize,
    ) -> Result<Endpoint, ConfigError> {
        let url = parse_url(name, url)?;
        let client = crate::http::client(REDIRECTS)
            .map_err(|why| ConfigError::new(name, why.to_string()))?;
        // A duplicate header in a `HeaderMap` has no name the second time; ours are unique.
        let headers: HashMap<HeaderName, HeaderValue> =
            headers.into_iter().filter_map(|(name, value)| Some((name?, value))).collect();
        let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
            .custom_headers(headers)
            .max_sse_event_size(max);
        let client = AuthorizedClient::new(client, authorizer);
        Ok(Endpoint::Address { client, config })
    }
}

/// Returns the address of a server.
pub(super) fn parse_url(server: &str, url: &str) -> Result<reqwest::Url, ConfigError> {
    reqwest::Url::parse(url)
        .map_err(|why| ConfigError::new(server, format!("its url is invalid: {why}")))
}

/// The status of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum McpStatus {
    /// It is connected.
    Up {
        /// The protocol version.
        protocol: String,
        /// The server's own name and version.
        server: String,
    },
    /// It is disconnected. The next call starts it.
    Down {
        /// The last error.
        why: String,
    },
}

/// Bounds of a list whose end only the server knows.
#[derive(Clone, Copy)]
pub(super) struct ListLimits {
    pub(super) max_pages: usize,
    pub(super) max_bytes: usize,
}

/// An open or closed connection.
pub(super) struct Connection {
    running: RunningService<RoleClient, Listener>,
    process: Option<Process>,
    note: StreamError,
    changed: watch::Sender<u64>,
    pub(super) open_calls: OpenCalls,
}

/// The client side of the protocol: the server may report changes of its tools, and ask for input during a call.
struct Listener {
    config: ClientConfig,
    changed: watch::Sender<u64>,
    open_calls: OpenCalls,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.send_modify(|changes| *changes += 1);
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let refused = |why: String| ErrorData::invalid_request(why, None);
        let answer = self.open_calls.ask(params).map_err(refused)?;
        tokio::select! {
            answer = answer => answer.map_err(|_| refused("the call has ended".to_owned())),
            () = context.ct.cancelled() => Err(refused("the question was withdrawn".to_owned())),
        }
    }
}

/// Returns the capabilities of this client: it asks a person, and follows tasks.
fn capabilities() -> ClientCapabilities {
    let mut capabilities = ClientCapabilities::default();
    let form = FormElicitationCapability::new().with_schema_validation(true);
    let elicitation = ElicitationCapability::new().with_form(form);
    capabilities.elicitation = Some(elicitation.with_url(UrlElicitationCapability::default()));
    let tasks = [(TASKS_EXTENSION_ID.to_owned(), serde_json::Map::new())];
    capabilities.extensions = Some(tasks.into_iter().collect());
    capabilities
}

impl Connection {
    /// Connects with discovery (the newest protocol) or `initialize` (earlier ones).
    ///
    /// # Errors
    /// Why there is no connection, with the server's last output.
    pub(super) async fn open(
        endpoint: &Endpoint,
        within: Duration,
    ) -> Result<Connection, Unavailable> {
        let either = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        match Connection::attempt(endpoint, within, either).await {
            // It supports discovery, but requires `initialize`.
            Err(failed) if failed.is_of_older_era => {
                let initialize = ClientLifecycleMode::Initialize;
                Connection::attempt(endpoint, within, initialize).await.map_err(|failed| failed.how)
            }
            other => other.map_err(|failed| failed.how),
        }
    }

    async fn attempt(
        endpoint: &Endpoint,
        within: Duration,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Connection, ConnectError> {
        let (changed, _) = watch::channel(0);
        let us = Implementation::new("abide", env!("CARGO_PKG_VERSION"));
        // Used for `initialize`, which the newest protocol does not have.
        let config = ClientConfig::new(capabilities(), us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE);
        let open_calls = OpenCalls::default();
        let listener =
            Listener { config, changed: changed.clone(), open_calls: open_calls.clone() };
        let note = StreamError::default();
        let (process, made) = match endpoint {
            Endpoint::Program { launch, max } => {
                let (mut child, group) = launch.spawn().map_err(|why| {
                    let program = launch.argv.first().map_or("", String::as_str);
                    ConnectError::because(format!("cannot start {program}: {why}"))
                })?;
                let stdin = child.stdin.take().expect("stdin is piped");
                let stdout = child.stdout.take().expect("stdout is piped");
                let stdout = BoundedLines::new(stdout, *max, note.clone());
                let process = Process::tend(child, group);
                let transport = AsyncRwTransport::new_client(stdout, stdin);
                let transport = transport.with_max_line_length(usize::MAX);
                let made = serve_client_with_lifecycle(listener, transport, lifecycle);
                (Some(process), timeout(within, made).await)
            }
            Endpoint::Address { client, config } => {
                let transport =
                    StreamableHttpClientTransport::with_client(client.clone(), config.clone());
                let made = serve_client_with_lifecycle(listener, transport, lifecycle);
                (None, timeout(within, made).await)
            }
        };
        let mut failed = match made {
            Ok(Ok(running)) => {
                let connection = Connection { running, process, note, changed, open_calls };
                connection.subscribe();
                return Ok(connection);
            }
            Ok(Err(error)) => ConnectError::from_initialize(&error, process.is_some()),
            Err(_) => ConnectError::because(format!(
                "it did not respond within {} s",
                within.as_secs_f64()
            )),
        };
        if let Some(process) = process {
            failed.how.why.push_str(&process.last_words().await);
        }
        Err(failed)
    }

    /// Servers with the newest protocol report changes only to subscribers.
    fn subscribe(&self) {
        let peer = self.peer().clone();
        let Some(info) = peer.peer_info() else { return };
        let tools = info.capabilities.tools.as_ref();
        let tells = tools.and_then(|tools| tools.list_changed).unwrap_or(false);
        if !tells || info.protocol_version < ProtocolVersion::NO_INITIALIZE {
            return;
        }
        let changed = self.changed.clone();
        tokio::spawn(async move {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let Ok(mut subscription) = peer.listen(filter).await else { return };
            while let Ok(Some(notification)) = subscription.next().await {
                if matches!(notification, ServerNotification::ToolListChangedNotification(_)) {
                    changed.send_modify(|changes| *changes += 1);
                }
            }
        });
    }

    pub(super) fn peer(&self) -> &Peer<RoleClient> {
        self.running.peer()
    }

    /// Returns a counter that increases when the server's tools change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns the server's current tools. A cursor that the server has sent before ends the list, because its pages would
    /// repeat.
    ///
    /// # Errors
    /// Why they cannot be listed.
    pub(super) async fn list(&self, limits: ListLimits) -> Result<Vec<Tool>, Unavailable> {
        let mut tools = Vec::new();
        let mut bytes = 0;
        let mut cursors = BTreeSet::new();
        let mut cursor: Option<String> = None;
        for _ in 0..limits.max_pages {
            let params = PaginatedRequestParams::default().with_cursor(cursor.take());
            let page = self.peer().list_tools(Some(params)).await.map_err(|why| {
                oauth_cause(&why).map_or_else(|| why.to_string().into(), Unavailable::from_oauth)
            })?;
            let next = page.next_cursor;
            bytes += serde_json::to_string(&page.tools).map_or(0, |text| text.len());
            bytes += next.as_ref().map_or(0, String::len);
            if bytes > limits.max_bytes {
                let max = limits.max_bytes;
                let why =
                    format!("its list of tools has more than {max} bytes (max_message_bytes)");
                return Err(why.into());
            }
            tools.extend(page.tools);
            let Some(next) = next else { return Ok(tools) };
            if !cursors.insert(next.clone()) {
                tracing::warn!(
                    name: "mcp_list_cut",
                    tools = tools.len(),
                    "an MCP server has sent a cursor again: its list of tools ends there"
                );
                return Ok(tools);
            }
            cursor = Some(next);
        }
        let max = limits.max_pages;
        Err(format!("its list of tools has more than {max} pages (max_list_pages)").into())
    }

    pub(super) fn is_open(&self) -> bool {
        let runs = self.process.as_ref().is_none_or(Process::runs);
        runs && !self.running.is_closed() && !self.peer().is_transport_closed()
    }

    pub(super) fn status(&self) -> McpStatus {
        let info = self.peer().peer_info();
        let protocol =
            info.as_ref().map(|info| info.protocol_version.to_string()).unwrap_or_default();
        let server = info.as_ref().and_then(|info| info.server_info.as_ref());
        let server = server.map(|server| format!("{} {}", server.name, server.version));
        McpStatus::Up { protocol, server: server.unwrap_or_default() }
    }

    /// Returns the reason, if the connection was closed because of an oversized message.
    pub(super) fn too_large(&self) -> Option<String> {
        self.note.read()
    }

    /// Returns how the connection ended, as far as known.
    pub(super) async fn how_it_ended(&self) -> String {
        match (self.note.read(), &self.process) {
            (Some(why), _) => why,
            (None, Some(process)) => {
                let ended = process.wait_for_end(LAST_WORDS).await;
                let how = ended.unwrap_or_else(|| "it closed its output".to_owned());
                format!("{how}{}", process.stderr.as_suffix())
            }
            (None, None) => "the connection was closed".to_owned(),
        }
    }

    /// Stops the server and waits for it.
    pub(super) async fn end(&self) {
        self.running.cancellation_token().cancel();
        if let Some(process) = &self.process {
            process.stop.cancel();
            process.wait_for_end(GRACE * 3).await;
        }
    }
}

/// Why a server cannot be used.
#[derive(Clone, Debug, Default)]
pub(super) struct Unavailable {
    pub(super) why: String,
    /// Whether a person has to act first, such as to log in.
    pub(super) needs_person: bool,
}

impl Unavailable {
    fn from_oauth(error: &OAuthError) -> Unavailable {
        Unavailable { why: error.to_string(), needs_person: error.needs_person() }
    }
}

impl From<String> for Unavailable {
    fn from(why: String) -> Unavailable {
        Unavailable { why, needs_person: false }
    }
}

/// Why an attempt to connect failed.
struct ConnectError {
    how: Unavailable,
    /// Whether the server requires `initialize`.
    is_of_older_era: bool,
}

impl ConnectError {
    fn because(how: impl Into<Unavailable>) -> ConnectError {
        ConnectError { how: how.into(), is_of_older_era: false }
    }

    fn from_initialize(error: &ClientInitializeError, is_program: bool) -> ConnectError {
        use ClientInitializeError as Error;
        match error {
            // A server of an earlier era can answer a discovery that it does not know with any result.
            Error::NoCompatibleProtocolVersion { .. } | Error::ExpectedInitResult(_) => {
                ConnectError { how: error.to_string().into(), is_of_older_era: true }
            }
            Error::LegacyFallbackFailed { fallback, .. } => {
                ConnectError::from_initialize(fallback, is_program)
            }
            // Whether the pipe is reported as broken or at its end depends on timing.
            Error::ConnectionClosed(_) | Error::TransportError { .. } if is_program => {
                ConnectError::because("it closed the connection".to_owned())
            }
            Error::TransportError { error, .. } => {
                let error = error.error.as_ref();
                let refusal = OAuthError::among_causes(error).map(Unavailable::from_oauth);
                ConnectError::because(refusal.unwrap_or_else(|| describe(error).into()))
            }
            other => ConnectError::because(describe(other)),
        }
    }
}

/// The process of a server. Dropping it kills the process.
struct Process {
    stderr: OutputTail,
    /// How the process ended, if it has.
    exit: watch::Receiver<Option<String>>,
    stop: CancellationToken,
    _stop_when_dropped: DropGuard,
}

impl Process {
    fn tend(mut child: Child, group: ProcessGroup) -> Process {
        let (described, exit) = watch::channel(None);
        let stop = CancellationToken::new();
        let tail = OutputTail::default();
        let stderr = child.stderr.take().expect("stderr is piped");
        tokio::spawn(tend(child, group, stderr, tail.clone(), stop.clone(), described));
        Process { stderr: tail, exit, _stop_when_dropped: stop.clone().drop_guard(), stop }
    }

    fn runs(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// Returns how the process ended, if it does so in time.
    async fn wait_for_end(&self, within: Duration) -> Option<String> {
        let mut exit = self.exit.clone();
        let ended = timeout(within, exit.wait_for(Option::is_some)).await;
        ended.ok()?.ok()?.clone()
    }

    /// Returns the exit status and stderr of a server that never answered.
    async fn last_words(self) -> String {
        let ended = self.wait_for_end(LAST_WORDS).await.map(|how| format!("; {how}"));
        format!("{}{}", ended.unwrap_or_default(), self.stderr.as_suffix())
    }
}

/// Waits for a process to end, or stops it.
async fn tend(
    mut child: Child,
    group: ProcessGroup,
    stderr: ChildStderr,
    tail: OutputTail,
    stop: CancellationToken,
    described: watch::Sender<Option<String>>,
) {
    let mut drained = tokio::spawn(async move { tail.drain(stderr).await });
    let mut status = tokio::select! {
        status = child.wait() => Some(status),
        () = stop.cancelled() => timeout(GRACE, child.wait()).await.ok(),
    };
    if status.is_none() {
        group.terminate();
        status = timeout(GRACE, child.wait()).await.ok();
    }
    group.kill();
    let status = match status {
        Some(status) => status,
        None => child.wait().await,
    };
    if timeout(LAST_WORDS, &mut drained).await.is_err() {
        drained.abort();
    }
    let how = match status {
        Ok(status) => format!("it ended with exit code {}", exit_code(status)),
        Err(why) => format!("cannot wait for it: {why}"),
    };
    described.send_replace(Some(how));
}
