//! `abide serve`: runs the engine with its HTTP server until it is stopped.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use abide_engine::buffers::BufferLimits;
use abide_engine::{Engine, Holder, LockState, Retention};
use abide_protocols::{AgentProtocols, SigningKey};
use abide_schema::reducer::Caller;
use abide_schema::wire::SUBPROTOCOL;
use abide_schema::{Code, Refusal, limits};
use abide_server::{
    AccessConfig, Drain, Jwt, PublicUrl, ServerListener, Services, Tls, TlsFiles, check_listens,
};
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::service_manager::ServiceManager;
use self::webhooks::Webhooks;

use crate::agent::{
    AgentHost, FOLDER, LoadedProject, agents_file, agents_option, check_folder_exists,
    open_project, quote,
};
use crate::cells;
use crate::connect::check_folder;
use crate::failure::Failure;
use crate::global_options::{DEFAULT_DB, DEFAULT_LISTEN, Options};
use crate::logging::LogFormat;
use crate::open::engine_listener::{self, EngineListener};
use crate::output::{print_json, print_line};
use crate::signals::{ServerSignals, StopSignals};
use crate::stderr;
use crate::units;

/// Arguments of `abide serve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The address to listen on; port 0 takes a free port and prints it
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_LISTEN, value_parser = parse_listen)]
    listen: String,

    /// Serve https and wss with this certificate, followed by those of its authorities: a PEM file, which is
    /// read again when it changes; see docs/tls.md
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate: a PEM file without a passphrase
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Also accept client certificates that an authority in this PEM file has signed, as credentials of
    /// identities: `abide token create --certificate`
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// Keep the change log for so many events, for resumes and --as-of  [default: 1000000, unless
    /// --retention-time is given]
    #[arg(long, value_name = "EVENTS")]
    retention_events: Option<u64>,

    /// Keep the change log for so long: 90s, 30m, 12h, 7d, 4w; with both, the smaller span applies
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    retention_time: Option<Duration>,

    /// Accept JSON Web Tokens of an issuer; the JSON file has its name, its keys and the meaning of its
    /// claims
    #[arg(long, value_name = "FILE")]
    jwt: Option<PathBuf>,

    /// The most memory for data that clients have not read or not finished sending; beyond it requests
    /// get `overloaded`: 512kB, 96MB, 2GB. The last quarter is for callers that use little
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_BUFFER, value_parser = buffer_size)]
    buffer_limit: usize,

    /// The most memory for unread and unfinished data of one caller, or of all callers of one scope  [default: 96MB, or
    /// 3/8 of --buffer-limit if that is less]
    #[arg(long, value_name = "SIZE", value_parser = buffer_size)]
    buffer_limit_per_caller: Option<usize>,

    /// A host whose address need not be public, for push notifications: host or host:port; can be repeated
    #[arg(long, value_name = "HOST")]
    webhook_allow_private: Vec<String>,

    /// The address of the server as clients know it, in cards of agents and in metadata of OAuth; without it, a client
    /// chooses the host: https://agents.example
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// The Ed25519 key that signs the cards of agents and push notifications: a PEM file, see docs/a2a.md
    #[arg(long, value_name = "FILE")]
    signing_key: Option<PathBuf>,

    /// Also drive runs of agents, with the models, tools and definitions of this folder. Without --db the
    /// file is agents.db in it
    #[arg(long, value_name = "FOLDER")]
    agents: Option<PathBuf>,

    /// How long running tools and programs may take to end when the server is asked to stop
    #[arg(long, value_name = "TIME", default_value = "25s", value_parser = units::parse_duration)]
    drain: Duration,

    /// The form of log records on stderr; also as ABIDE_LOG_FORMAT  [default: text on a terminal, json elsewhere]
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    log_format: Option<LogFormat>,

    /// On the first start, create an administrator with all rights, and write its token to this new file,
    /// for this user only
    #[arg(long, value_name = "FILE")]
    first_token: Option<PathBuf>,

    /// Refuse to start if this folder is not on a volume: a container would lose its data
    #[arg(long, value_name = "FOLDER")]
    require_volume: Option<PathBuf>,

    /// Do not copy the file before a migration after which older programs refuse it; see docs/upgrade.md
    #[arg(long)]
    no_backup: bool,

    /// The socket that systemd has passed; it replaces --listen.
    #[arg(skip)]
    passed_listener: Option<std::net::TcpListener>,

    /// Whether a developer reads the greeting.
    #[arg(skip)]
    is_development: bool,
}

impl Serve {
    /// Takes the socket that systemd has passed, if it has. Call it before a second thread starts.
    ///
    /// # Errors
    /// What was passed is not a listening TCP socket.
    pub(crate) fn take_passed_listener(&mut self) -> Result<(), Refusal> {
        self.passed_listener = activation::take_listener()?;
        Ok(())
    }

    pub(crate) fn drives_agents(&self) -> bool {
        self.agents.is_some()
    }

    /// Returns these arguments for a developer: with the agents of the project.
    pub(crate) fn for_development(mut self) -> Serve {
        self.agents.get_or_insert_with(|| PathBuf::from(FOLDER));
        self.is_development = true;
        self
    }

    /// Returns the form of log records, if it is given.
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        self.log_format
    }

    /// The file: the one that is named, that of the folder of agents, or the default one.
    fn file(&self, options: &Options) -> PathBuf {
        options
            .db
            .clone()
            .or_else(|| self.agents.as_deref().filter(|it| it.is_dir()).map(agents_file))
            .unwrap_or_else(|| options.db_or_default())
    }

    /// # Errors
    /// A file of TLS cannot be used, or one is missing. The parser does not know that: the others can be in the file of the
    /// configuration.
    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (certificate, key) = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if self.tls_client_ca.is_none() => return Ok(None),
            (None, None) => {
                let detail = "--tls-client-ca needs the certificate of the server and its key";
                let hint = "give also --tls-cert FILE --tls-key FILE";
                return Err(Failure::usage(detail, hint));
            }
            _ => {
                let detail = "the certificate of a server needs its key";
                return Err(Failure::usage(detail, "give both: --tls-cert FILE --tls-key FILE"));
            }
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: self.tls_client_ca.clone(),
        };
        Ok(Some(Tls::open(files)?))
    }

    fn retention(&self) -> Retention {
        match (self.retention_events, self.retention_time) {
            (None, None) => Retention::default(),
            (events, age) => Retention { events, age },
        }
    }

    /// # Errors
    /// The limit per caller is larger than the limit of all callers.
    fn buffers(&self) -> Result<BufferLimits, Refusal> {
        let total = self.buffer_limit;
        let usual = limits::BUFFERED_BYTES_PER_CALLER.min(total / 8 * 3);
        let per_caller = self.buffer_limit_per_caller.unwrap_or(usual);
        if per_caller > total {
            let detail = "--buffer-limit-per-caller is more than --buffer-limit";
            return Err(Refusal::new(Code::BadArguments, detail)
                .hint("--buffer-limit is the limit of all callers together; raise it too"));
        }
        Ok(BufferLimits { total, per_caller })
    }
}

/// [`limits::BUFFERED_BYTES`].
const DEFAULT_BUFFER: &str = "256MB";

/// The minimum: every result may be that large.
const LEAST_BUFFER: usize = 1 << 20;

/// Returns the address if it has a host and a port. So a mistake is found with the other mistakes of a configuration.
fn parse_listen(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("expected an address and a port: 127.0.0.1:7341".to_owned()),
    }
}

fn buffer_size(text: &str) -> Result<usize, String> {
    let bytes = units::parse_size(text)?;
    if bytes < LEAST_BUFFER { Err("at least 1MB".to_owned()) } else { Ok(bytes) }
}

const EXAMPLES: &str = "\
Examples:
  abide serve                                      # abide.db, created if it does not exist
  abide serve --db agents.db --listen 127.0.0.1:0  # any free port
  abide serve --listen 0.0.0.0:7341                # for other machines; needs a token
  abide serve --listen 0.0.0.0:7341 --first-token admin.token
                                                   # creates the first token
  abide serve --jwt issuer.json                    # see docs/authority.md
  abide serve --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem
                                                   # https; see docs/tls.md
  abide serve --retention-time 7d                  # clients can resume for a week
  abide serve --buffer-limit 1GB --buffer-limit-per-caller 200MB
                                                   # for a machine with much memory
  abide serve --agents .abide                      # also drive runs of agents, on .abide/agents.db
  abide serve --config /etc/abide/abide.toml       # options from a file, see docs/configuration.md

SIGTERM and Ctrl-C stop it gracefully: it begins no new work, /ready answers 503, running tools and
programs end within --drain, and accepted calls are answered and durable. A second signal does not
wait. The exit code is 1 if the engine had failed (see /ready); it is safe to start the server
again. docs/deploy.md has the order, and a unit of systemd.
SIGHUP does not stop it, except on a terminal, where it means that the terminal was closed; after
`nohup` it is ignored. A reload needs no signal: certificates, keys, abide.yaml and definitions are
read again when they change.
ABIDE_LOG=info logs more on stderr, with a record for each request (docs/logs.md). Libraries log
only warnings, unless the variable names their targets: ABIDE_LOG=info,tungstenite=debug.";

mod activation;
#[cfg(debug_assertions)]
pub(crate) mod fault;
mod first_start;
mod service_manager;
#[cfg(test)]
mod tests;
mod webhooks;

/// For how long after the start leases do not expire because the server was down: the default lease of workers.
const LEASE_GRACE: Duration = Duration::from_secs(30);

/// Serves until a signal.
///
/// # Errors
/// The server cannot listen at the address, or the file cannot be opened.
pub(crate) async fn run(options: &Options, mut args: Serve) -> Result<(), Failure> {
    let db = args.file(options);
    let buffers = args.buffers()?;
    // A token of the file, which the shell has for other commands, is looked up like any other. As the server's own
    // token it could not be revoked.
    let (of_file, token) = match options.token.clone() {
        Some(token) if token.starts_with(OF_FILE) => (Some(token), None),
        token => (None, token),
    };
    let options = &Options { token, ..options.clone() };
    let mut access = match &options.token {
        Some(token) => AccessConfig::bearer(token.clone())?,
        None => AccessConfig::loopback(),
    };
    if let Some(file) = &args.jwt {
        access = access.with_jwt(Jwt::open(file)?);
    }
    // An authority alone lets nobody in: an identity must have a certificate, which an administrator gives it.
    let first_access = access.clone();
    let tls = args.tls()?;
    if tls.as_ref().is_some_and(Tls::accepts_client_certificates) {
        access = access.with_client_certificates();
    }
    let webhooks = Arc::new(Webhooks::new(&args.webhook_allow_private)?);
    let public_url = args.public_url.as_deref().map(PublicUrl::parse).transpose()?;
    let signing_key = args.signing_key.as_deref().map(SigningKey::open).transpose()?;
    if let Some(folder) = &args.require_volume {
        first_start::check_volume(folder)?;
    }
    let listener = match args.passed_listener.take() {
        Some(passed) => TcpListener::from_std(passed).map_err(|why| cannot_listen(&why))?,
        None => bind(&args.listen, &db).await?,
    };
    let address = listener.local_addr().map_err(|why| cannot_listen(&why))?;
    check_new_file(&db, &access, address, of_file.as_deref(), args.first_token.as_deref())?;
    check_folder(&db)?;
    let project = match &args.agents {
        Some(folder) => {
            check_folder_exists(folder)?;
            Some(open_project(options, folder).await?)
        }
        None => None,
    };
    let manager = Arc::new(ServiceManager::of_process());
    let ServerSignals { stop: mut signals, reload } = ServerSignals::new(manager.is_present())?;
    let config = abide_client::Config { retention: args.retention(), buffers, ..options.config() };
    let mut config = abide_engine::Config::from(config);
    let local = match &tls {
        Some(_) => listen_locally().await,
        None => None,
    };
    config.lease_grace = LEASE_GRACE;
    config.tuning.holder = Some(lock_file_entry(address, tls.is_some(), local.as_ref()));
    config.tuning.migration_backup = !args.no_backup;
    let former = LockState::read(&db);
    #[cfg(debug_assertions)]
    let config = fault::arm_requested_panic(config);
    let engine = Engine::open(&db, config).map_err(|error| error.to_refusal())?;
    engine_listener::remove_after_kill(&former);
    if let Some(file) = &args.first_token
        && let Err(failure) = first_start::create_token(&engine, &first_access, file).await
    {
        close(&engine).await;
        return Err(failure);
    }
    let checked = check_access(&engine, &access, address, of_file.as_deref(), &db).await;
    let requires_token = match checked {
        Ok(requires_token) => requires_token,
        Err(refusal) => {
            close(&engine).await;
            return Err(refusal.into());
        }
    };
    let agents = match project {
        Some(project) => match AgentHost::for_server(options, project, &engine).await {
            Ok(agents) => Some(agents),
            Err(failure) => {
                close(&engine).await;
                return Err(failure);
            }
        },
        None => None,
    };
    let loaded = args.agents.as_deref().zip(agents.as_ref().map(AgentHost::loaded));
    let greeting = Greeting {
        options,
        engine: &engine,
        address,
        db: &db,
        agents: loaded,
        requires_token,
        tls: tls.as_ref(),
        is_development: args.is_development,
    };
    if let Err(failure) = greeting.print() {
        // A supervisor that has closed stdout, or whose disk is full, still wants the server.
        let why = failure.refusal().map_or("stdout is closed", |refusal| refusal.detail.as_str());
        tracing::warn!(name: "greeting_not_printed", %address, why, "the server runs, and its address could not be printed on stdout");
    }
    let registry = agents.as_ref().map(AgentHost::registry);
    let protocols = Arc::new(AgentProtocols {
        mcp_handler: agents.as_ref().and_then(AgentHost::mcp_handler),
        webhooks: Some(webhooks),
        signing_key,
    });
    let drain = Drain::default();
    let services = Services {
        agents: registry,
        protocols: Some(protocols),
        public_url,
        drain: drain.clone(),
        dropped_log_records: stderr::dropped_lines(),
    };
    let mut listener = ServerListener::from(listener);
    if let Some(tls) = tls {
        listener = listener.with_tls(tls);
    }
    let mut folder = None;
    if let Some(local) = local {
        listener = listener.with_local(local.listener);
        folder = local.folder;
    }
    let close_sockets = CancellationToken::new();
    let serving = abide_server::serve_with(
        engine.clone(),
        listener,
        access,
        services,
        close_sockets.clone().cancelled_owned(),
    );
    manager.tell_ready();
    let attending_manager = Arc::clone(&manager);
    let attended_engine = engine.clone();
    let attending = tokio::spawn(async move {
        attending_manager.attend(&attended_engine, reload).await;
    });
    let stopping = Stopping { drain, within: args.drain, close_sockets };
    let served =
        serve_until_stopped(serving, &mut signals, &manager, &engine, agents, stopping).await;
    // Commands on this machine that begin from now on wait until the file is closed.
    drop(folder);
    let head = engine.durable_seq();
    let healthy = engine.ready();
    close(&engine).await;
    attending.abort();
    served.map_err(|why| Refusal::new(Code::Internal, format!("the server failed: {why}")))?;
    // The exit code is 1 if the engine has failed, so that a supervisor restarts it.
    healthy?;
    if !options.json {
        let events = cells::pluralize(head.0.unsigned_abs(), "event");
        let line = format!("stopped  ·  {events} in the log");
        let printed = tokio::task::spawn_blocking(move || print_line(line));
        // A program that does not read stdout, or has closed it, does not hold up the end or make it a failure.
        let _ = timeout(LAST_LINE_TIMEOUT, printed).await;
    }
    Ok(())
}

/// How long the end of a server waits until its last line is printed.
const LAST_LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// How a server stops.
struct Stopping {
    drain: Drain,
    /// How long tools and programs may take to end.
    within: Duration,
    /// Ends the server when it is cancelled.
    close_sockets: CancellationToken,
}

/// Serves until a signal, and then stops in this order: nothing new begins; tools and programs end; then the sockets, over which
/// others report results meanwhile. The caller closes the engine. A second signal ends the wait, wherever it is.
async fn serve_until_stopped(
    serving: impl Future<Output = io::Result<()>>,
    signals: &mut StopSignals,
    manager: &ServiceManager,
    engine: &Engine,
    agents: Option<AgentHost>,
    stopping: Stopping,
) -> io::Result<()> {
    let mut serving = pin!(serving);
    let shutdown = agents.as_ref().map(AgentHost::shutdown);
    tokio::select! {
        served = &mut serving => {
            if let Some(agents) = agents {
                agents.close().await;
            }
            return served;
        }
        () = signals.recv() => {}
    }
    manager.tell_stopping();
    let Stopping { drain, within, close_sockets } = stopping;
    drain.begin(engine);
    let drained = async {
        if let Some(agents) = agents {
            agents.drain(within).await;
        }
        close_sockets.cancel();
    };
    let served = async { tokio::join!(serving, drained).0 };
    tokio::select! {
        served = served => served,
        () = signals.recv_second() => {
            tracing::warn!(name: "stop_forced", "a second signal: what runs is stopped, and connections are closed");
            if let Some(shutdown) = shutdown {
                shutdown.stop();
            }
            Ok(())
        }
    }
}

/// Listens at a private socket for commands on this machine. The certificate of a server has the name that its clients
/// use, which is often none of this machine.
async fn listen_locally() -> Option<EngineListener> {
    match EngineListener::new(false).await {
        Ok(local) => Some(local),
        Err(why) => {
            tracing::warn!(name: "local_socket_failed", %why, "commands on this machine need --url and --ca to use this server");
            None
        }
    }
}

/// The entry of this server in the lock file.
fn lock_file_entry(address: SocketAddr, has_tls: bool, local: Option<&EngineListener>) -> Holder {
    let local = local.map(|local| local.holder().clone()).unwrap_or_default();
    Holder {
        protocol: SUBPROTOCOL.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        url: Some(format!("{}://{address}", scheme(has_tls))),
        ..local
    }
}

fn scheme(has_tls: bool) -> &'static str {
    if has_tls { "https" } else { "http" }
}

/// Refuses to create a file that could not be served.
fn check_new_file(
    db: &Path,
    access: &AccessConfig,
    address: SocketAddr,
    token: Option<&str>,
    first_token: Option<&Path>,
) -> Result<(), Refusal> {
    if db.exists() {
        return Ok(());
    }
    if token.is_some() {
        return Err(foreign_token_refusal(db));
    }
    if let Some(file) = first_token {
        return first_start::find_token(file).map(drop);
    }
    access.check_alone(address).map_err(|refusal| add_token_hint(refusal, db))
}

/// Whether the server requires credentials; refuses what [`check_token`] and [`check_listens`] refuse.
async fn check_access(
    engine: &Engine,
    access: &AccessConfig,
    address: SocketAddr,
    token: Option<&str>,
    db: &Path,
) -> Result<bool, Refusal> {
    check_token(engine, token, db).await?;
    check_listens(engine, access, address).await.map_err(|refusal| add_token_hint(refusal, db))
}

/// Tokens that begin so are rows of a file.
const OF_FILE: &str = "abide_";

/// Refuses a token of another file. The operator expects that the server requires it, and without it the server could
/// accept requests without a token. A revoked or expired token is not an error: its file requires another one.
async fn check_token(engine: &Engine, token: Option<&str>, db: &Path) -> Result<(), Refusal> {
    let Some(token) = token else { return Ok(()) };
    let id = token.strip_prefix(OF_FILE).unwrap_or(token).split('_').next().unwrap_or_default();
    let params = [("id".to_owned(), id.into())].into_iter().collect();
    let sql = "SELECT id FROM tokens WHERE id = :id";
    let found = engine.query(&Caller::local(), sql, &params, None).await?;
    if found.rows.is_empty() { Err(foreign_token_refusal(db)) } else { Ok(()) }
}

fn foreign_token_refusal(db: &Path) -> Refusal {
    let db = db.display();
    let detail = format!("{db} does not have the token of --token or ABIDE_TOKEN");
    let create = create_token_command(&format!(" --db {db}"));
    let hint = format!(
        "unset ABIDE_TOKEN and ABIDE_TOKEN_FILE, or create a token of this file: `{create}`"
    );
    Refusal::new(Code::Unauthenticated, detail).hint(hint)
}

/// The command that creates the first token, with the option that names the file or the server.
fn create_token_command(option: &str) -> String {
    format!("abide token create root --role admin --capability '*'{option}")
}

/// The refusal of an address that needs a token, with the command that creates one in this file.
fn add_token_hint(refusal: Refusal, db: &Path) -> Refusal {
    if refusal.code != Code::Denied {
        return refusal;
    }
    let create = create_token_command(&format!(" --db {}", db.display()));
    refusal.hint(format!("listen on 127.0.0.1, or create a token first: `{create}`"))
}

/// Closes an engine: the file is complete afterwards.
pub(crate) async fn close(engine: &Engine) {
    let closing = engine.clone();
    if tokio::task::spawn_blocking(move || closing.close()).await.is_err() {
        tracing::error!(name: "close_panicked", "closing the engine panicked");
    }
}

/// The first output, once requests are accepted.
struct Greeting<'a> {
    options: &'a Options,
    engine: &'a Engine,
    address: SocketAddr,
    db: &'a Path,
    agents: Option<(&'a Path, &'a LoadedProject)>,
    requires_token: bool,
    tls: Option<&'a Tls>,
    is_development: bool,
}

impl Greeting<'_> {
    fn print(&self) -> Result<(), Failure> {
        let Greeting { options, address, db, agents, requires_token, .. } = *self;
        if options.json {
            let db = db.display().to_string();
            let listening = address.to_string();
            let mut greeting = json!({"listening": listening, "db": db,
                "seq": self.engine.durable_seq(), "requires_token": requires_token});
            if self.tls.is_some() {
                greeting["tls"] = json!(true);
            }
            if let Some((_, agents)) = agents {
                greeting["agents"] = json!(agents);
            }
            return print_json(&greeting);
        }
        match agents {
            Some((folder, loaded)) if self.is_development => {
                self.print_for_development(folder, loaded)
            }
            _ => self.print_for_operators(),
        }
    }

    fn print_for_operators(&self) -> Result<(), Failure> {
        let at = self.connection_option();
        let with_token = self.token_command();
        let then = match self.agents {
            // The session of another agent name would be refused.
            Some((folder, loaded)) => match &loaded.first {
                Some(name) => format!("agent run{} {name} \"Hello\"", self.agent_options(folder)),
                None => "agent init --help".to_owned(),
            },
            None => format!("call{at} create_session agent=support"),
        };
        print_line(format!(
            "abide {version}  ·  {scheme}://{address}\n  \
               file     {db}, {events}\n  \
               access   {access}{agents}\n  \
               try:     {with_token}abide watch{at} \"SELECT id, agent, status FROM sessions\"\n  \
               then     abide {then}",
            version = env!("CARGO_PKG_VERSION"),
            scheme = scheme(self.tls.is_some()),
            address = self.address,
            db = self.db.display(),
            events = self.events(),
            access = self.access(),
            agents = self.agents.map(|(folder, it)| it.greeting_lines(folder)).unwrap_or_default(),
        ))
    }

    fn print_for_development(&self, folder: &Path, loaded: &LoadedProject) -> Result<(), Failure> {
        let at = self.connection_option();
        let chat = match &loaded.first {
            Some(name) => format!("abide agent chat{} {name}", self.agent_options(folder)),
            None => format!("abide agent check{}", agents_option(folder)),
        };
        let token = match self.token_command() {
            "" => String::new(),
            command => format!("\n  {}", command.trim_end_matches([';', ' '])),
        };
        print_line(format!(
            "abide {version}  ·  {scheme}://{address}\n  \
               folder   {folder}, read again when a file changes\n  \
               file     {db}, {events}\n  \
               access   {access}{agents}\n\
             in another terminal:{token}\n  \
               {chat}\n  \
               abide watch{at} \"SELECT id, agent, status FROM sessions\"\n\
             Ctrl-C stops the server",
            version = env!("CARGO_PKG_VERSION"),
            scheme = scheme(self.tls.is_some()),
            address = self.address,
            folder = folder.display(),
            db = self.db.display(),
            events = self.events(),
            access = self.access(),
            agents = loaded.greeting_lines(folder),
        ))
    }

    fn events(&self) -> String {
        cells::pluralize(self.engine.durable_seq().0.unsigned_abs(), "event")
    }

    /// The option by which other commands reach the server.
    fn connection_option(&self) -> String {
        match reachable_address(self.address).to_string() {
            // Commands on this machine find a server with TLS by the file.
            _ if self.tls.is_some() && self.db == Path::new(DEFAULT_DB) => String::new(),
            _ if self.tls.is_some() => self.db_option(),
            usual if usual == DEFAULT_LISTEN => String::new(),
            other => format!(" --url http://{other}"),
        }
    }

    fn db_option(&self) -> String {
        format!(" --db {}", quote(&self.db.display().to_string()))
    }

    /// The option by which the commands of agents reach the server. They find the one of the file of a folder.
    fn agent_options(&self, folder: &Path) -> String {
        if *self.db == agents_file(folder) {
            agents_option(folder)
        } else if self.tls.is_some() {
            self.db_option()
        } else {
            format!(" --url http://{}", reachable_address(self.address))
        }
    }

    /// What a command needs before it, if the server requires a token. At the socket of a server with TLS none is needed.
    fn token_command(&self) -> &'static str {
        if self.requires_token && self.tls.is_none() { "export ABIDE_TOKEN=…;  " } else { "" }
    }

    fn access(&self) -> String {
        match (&self.options.token, self.requires_token) {
            (None, false) => format!(
                "no token yet: every user of this machine is an admin; `{}` creates one",
                create_token_command(&self.connection_option())
            ),
            (None, true) if self.tls.is_some_and(Tls::accepts_client_certificates) => {
                "with a token, or with a client certificate that an identity has".to_owned()
            }
            (None, true) => "with a token".to_owned(),
            (Some(_), _) => {
                "with the server's token (as an admin), or with a token of the file".to_owned()
            }
        }
    }
}

/// The address by which programs of this machine reach a server that listens on an address: every address of the machine
/// is none to connect to.
fn reachable_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Binds the address, before a file is created: a second server started by mistake must not create one.
async fn bind(listen: &str, db: &Path) -> Result<TcpListener, Refusal> {
    TcpListener::bind(listen).await.map_err(|why| bind_refusal(listen, db, &why))
}

/// Whether the process that has the file open listens at this address.
fn is_served_at(db: &Path, listen: &str) -> bool {
    let Ok(LockState::Held(Some(holder))) = LockState::read(db) else { return false };
    let port = listen.rsplit(':').next().unwrap_or(listen);
    holder.url.is_some_and(|url| url.rsplit(':').next() == Some(port))
}

fn cannot_listen(why: &io::Error) -> Failure {
    Failure::system("the listening socket cannot be used", why)
}

fn bind_refusal(listen: &str, db: &Path, why: &io::Error) -> Refusal {
    match why.kind() {
        io::ErrorKind::AddrInUse if is_served_at(db, listen) => {
            let detail = format!("a server serves {} already, at {listen}", db.display());
            let hint = "use that server; to start it again, stop it first";
            Refusal::new(Code::Conflict, detail).hint(hint)
        }
        io::ErrorKind::AddrInUse => {
            let detail = format!("{listen} is in use by another program");
            let hint = "stop that program, or listen on a free port with --listen 127.0.0.1:0";
            Refusal::new(Code::Conflict, detail).hint(hint)
        }
        io::ErrorKind::PermissionDenied => {
            let detail = format!("this user may not listen on {listen}");
            Refusal::new(Code::Denied, detail).hint("use a port above 1023")
        }
        _ => {
            let detail = format!("cannot listen on {listen}: {why}");
            Refusal::new(Code::BadArguments, detail)
                .hint("give an address of this machine and a port, such as 127.0.0.1:7341")
                .explain_exhaustion(why)
        }
    }
}
