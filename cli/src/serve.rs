//! `abide serve`: runs the engine with its HTTP server until it is stopped.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use abide_engine::buffers::BufferLimits;
use abide_engine::{Engine, Holder, LockState, Retention};
use abide_protocols::{AgentProtocols, SigningKey};
use abide_schema::reducer::Caller;
use abide_schema::wire::SUBPROTOCOL;
use abide_schema::{Code, Refusal, limits};
use abide_server::{AccessConfig, Jwt, PublicUrl, Services, check_listens};
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;

use self::webhooks::Webhooks;

use crate::agent::{AgentHost, LoadedProject, agents_file, check_folder_exists, open_project};
use crate::cells;
use crate::connect::check_folder;
use crate::failure::Failure;
use crate::global_options::{DEFAULT_LISTEN, Options};
use crate::output::{print_json, print_line};
use crate::{signals, units};

/// Arguments of `abide serve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The address to listen on; port 0 takes a free port and prints it
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_LISTEN)]
    listen: String,

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

    /// On the first start, create an administrator with all rights, and write its token to this new file,
    /// for this user only
    #[arg(long, value_name = "FILE")]
    first_token: Option<PathBuf>,

    /// Refuse to start if this folder is not on a volume: a container would lose its data
    #[arg(long, value_name = "FOLDER")]
    require_volume: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn drives_agents(&self) -> bool {
        self.agents.is_some()
    }

    /// The file: the one that is named, that of the folder of agents, or the default one.
    fn file(&self, options: &Options) -> PathBuf {
        options
            .db
            .clone()
            .or_else(|| self.agents.as_deref().filter(|it| it.is_dir()).map(agents_file))
            .unwrap_or_else(|| options.db_or_default())
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
  abide serve --retention-time 7d                  # clients can resume for a week
  abide serve --buffer-limit 1GB --buffer-limit-per-caller 200MB
                                                   # for a machine with much memory
  abide serve --agents .abide                      # also drive runs of agents, on .abide/agents.db

SIGTERM and Ctrl-C stop it gracefully: accepted calls are answered and durable. The exit code is 1
if the engine had failed (see /ready); it is safe to start the server again.
ABIDE_LOG=info logs more on stderr. Libraries log only warnings, unless the variable names their
targets: ABIDE_LOG=info,tungstenite=debug.";

#[cfg(debug_assertions)]
pub(crate) mod fault;
mod first_start;
#[cfg(test)]
mod tests;
mod webhooks;

/// Serves until a signal.
///
/// # Errors
/// The server cannot listen at the address, or the file cannot be opened.
pub(crate) async fn run(options: &Options, args: Serve) -> Result<(), Failure> {
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
    let webhooks = Arc::new(Webhooks::new(&args.webhook_allow_private)?);
    let public_url = args.public_url.as_deref().map(PublicUrl::parse).transpose()?;
    let signing_key = args.signing_key.as_deref().map(SigningKey::open).transpose()?;
    if let Some(folder) = &args.require_volume {
        first_start::check_volume(folder)?;
    }
    let (listener, address) = bind(&args.listen, &db).await?;
    check_new_file(&db, &access, address, of_file.as_deref(), args.first_token.as_deref())?;
    check_folder(&db)?;
    let project = match &args.agents {
        Some(folder) => {
            check_folder_exists(folder)?;
            Some(open_project(options, folder).await?)
        }
        None => None,
    };
    let stop = signals::stop_requested()?;
    let config = abide_client::Config { retention: args.retention(), buffers, ..options.config() };
    let mut config = abide_engine::Config::from(config);
    config.tuning.holder = Some(lock_file_entry(address));
    #[cfg(debug_assertions)]
    let config = fault::arm_requested_panic(config);
    let engine = Engine::open(&db, config).map_err(|error| error.to_refusal())?;
    if let Some(file) = &args.first_token
        && let Err(failure) = first_start::create_token(&engine, &access, file).await
    {
        close(&engine).await;
        return Err(failure);
    }
    let checked = check_access(&engine, &access, address, of_file.as_deref(), &db).await;
    let Ok(requires_token) = checked else {
        close(&engine).await;
        return Ok(checked.map(drop)?);
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
    print_greeting(options, &engine, address, &db, loaded, requires_token)?;
    let registry = agents.as_ref().map(AgentHost::registry);
    let protocols = Arc::new(AgentProtocols {
        mcp_handler: agents.as_ref().and_then(AgentHost::mcp_handler),
        webhooks: Some(webhooks),
        signing_key,
    });
    let services = Services { agents: registry, protocols: Some(protocols), public_url };
    let served = abide_server::serve_with(engine.clone(), listener, access, services, stop).await;
    if let Some(agents) = agents {
        agents.close().await;
    }
    let head = engine.durable_seq();
    let healthy = engine.ready();
    close(&engine).await;
    served.map_err(|why| Refusal::new(Code::Internal, format!("the server failed: {why}")))?;
    // The exit code is 1 if the engine has failed, so that a supervisor restarts it.
    healthy?;
    if !options.json {
        let events = cells::pluralize(head.0.unsigned_abs(), "event");
        print_line(format!("stopped  ·  {events} in the log"))?;
    }
    Ok(())
}

/// The entry of this server in the lock file.
fn lock_file_entry(address: SocketAddr) -> Holder {
    Holder {
        protocol: SUBPROTOCOL.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        url: Some(format!("http://{address}")),
        ..Holder::default()
    }
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
        tracing::error!("closing the engine panicked");
    }
}

/// The first output, once requests are accepted.
fn print_greeting(
    options: &Options,
    engine: &Engine,
    address: SocketAddr,
    db: &Path,
    agents: Option<(&Path, &LoadedProject)>,
    requires_token: bool,
) -> Result<(), Failure> {
    let seq = engine.durable_seq();
    if options.json {
        let db = db.display().to_string();
        let listening = address.to_string();
        let mut greeting = json!({"listening": listening, "db": db, "seq": seq,
                "requires_token": requires_token});
        if let Some((_, agents)) = agents {
            greeting["agents"] = json!(agents);
        }
        return print_json(&greeting);
    }
    let at = match reachable_address(address).to_string() {
        usual if usual == DEFAULT_LISTEN => String::new(),
        other => format!(" --url http://{other}"),
    };
    let with_token = if requires_token { "export ABIDE_TOKEN=…;  " } else { "" };
    let access = match (&options.token, requires_token) {
        (None, false) => format!(
            "no token yet: programs on this machine only; `{}` creates one",
            create_token_command(&at)
        ),
        (None, true) => "with a token".to_owned(),
        (Some(_), _) => {
            "with the server's token (as an admin), or with a token of the file".to_owned()
        }
    };
    let then = match agents {
        // The session of another agent name would be refused.
        Some((_, loaded)) => match &loaded.first {
            Some(name) => format!("agent run{at} {name} \"Hello\""),
            None => "agent init --help".to_owned(),
        },
        None => format!("call{at} create_session agent=support"),
    };
    print_line(format!(
        "abide {version}  ·  http://{address}\n  \
           file     {db}, {events}\n  \
           access   {access}{agents}\n  \
           try:     {with_token}abide watch{at} \"SELECT id, agent, status FROM sessions\"\n  \
           then     abide {then}",
        version = env!("CARGO_PKG_VERSION"),
        db = db.display(),
        agents = agents.map(|(folder, it)| it.greeting_lines(folder)).unwrap_or_default(),
        events = cells::pluralize(seq.0.unsigned_abs(), "event"),
    ))
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
async fn bind(listen: &str, db: &Path) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind(listen).await.map_err(|why| bind_refusal(listen, db, &why))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Whether the process that has the file open listens at this address.
fn is_served_at(db: &Path, listen: &str) -> bool {
    let Ok(LockState::Held(Some(holder))) = LockState::read(db) else { return false };
    let port = listen.rsplit(':').next().unwrap_or(listen);
    holder.url.is_some_and(|url| url.rsplit(':').next() == Some(port))
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
        }
    }
}
