//! `abide serve`: the engine behind its doors, until somebody asks it to stop.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use abide_engine::{Config, Engine};
use abide_schema::{Code, Refusal};
use abide_server::Access;
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;

use crate::cells;
use crate::connect::check_folder;
use crate::failure::Failure;
use crate::options::{DEFAULT_LISTEN, Options};
use crate::output::say;
use crate::signals;

/// What `abide serve` is given.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes any that is free and tells which
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_LISTEN)]
    listen: String,
}

const EXAMPLES: &str = "\
Examples:
  abide serve                                      # abide.db, made if need be
  abide serve --db agents.db --listen 127.0.0.1:0  # any free port
  ABIDE_TOKEN=… abide serve --listen 0.0.0.0:7341  # for other machines

SIGTERM or Ctrl-C stops it in order: what was taken in is answered and on disk.
ABIDE_LOG=info tells more on stderr.";

/// Serves until a signal.
///
/// # Errors
/// The address or the file cannot be had.
pub(crate) async fn run(options: &Options, args: Serve) -> Result<(), Failure> {
    let db = options.db_or_default();
    let access = match &options.token {
        Some(token) => Access::bearer(token.clone())?,
        None => Access::loopback(),
    };
    // The address first: a second server started by mistake should leave no file behind.
    let listener =
        TcpListener::bind(&args.listen).await.map_err(|why| taken(&args.listen, &why))?;
    let address = listener.local_addr()?;
    access.check(address)?;
    check_folder(&db)?;
    let stop = signals::asked_to_stop()?;
    let engine = Engine::open(&db, Config::new(abide_reducers::modules()));
    let engine = engine.map_err(|error| error.to_refusal())?;

    greet(options, &engine, address, &db)?;
    let served = abide_server::serve(engine.clone(), listener, access, stop).await;
    let (closing, head) = (engine.clone(), engine.durable_seq());
    if tokio::task::spawn_blocking(move || closing.close()).await.is_err() {
        tracing::error!("the engine did not close in order");
    }
    served.map_err(|why| Refusal::new(Code::Internal, format!("the server failed: {why}")))?;
    if !options.json {
        say(format!("stopped  ·  {} in the log", cells::counted(head.0.unsigned_abs(), "event")))?;
    }
    Ok(())
}

/// The first thing on stdout, when requests are taken.
fn greet(
    options: &Options,
    engine: &Engine,
    address: SocketAddr,
    db: &Path,
) -> Result<(), Failure> {
    let seq = engine.durable_seq();
    if options.json {
        let db = db.display().to_string();
        return say(json!({"listening": address.to_string(), "db": db, "seq": seq}));
    }
    let access = match &options.token {
        None => "no credentials: programs on this machine only",
        Some(_) => "whoever brings the token",
    };
    let at = match address.to_string() {
        usual if usual == DEFAULT_LISTEN => String::new(),
        other => format!(" --url http://{other}"),
    };
    say(format!(
        "abide {version}  ·  http://{address}\n  \
           file     {db}, {events}\n  \
           access   {access}\n  \
           try:     abide watch{at} \"SELECT id, agent, status FROM sessions\"\n  \
           then     abide call{at} create_session agent=support",
        version = env!("CARGO_PKG_VERSION"),
        db = db.display(),
        events = cells::counted(seq.0.unsigned_abs(), "event"),
    ))
}

fn taken(listen: &str, why: &io::Error) -> Refusal {
    match why.kind() {
        io::ErrorKind::AddrInUse => {
            let detail = format!("{listen} is in use by another program");
            let hint = "stop that one, or take a free port with --listen 127.0.0.1:0";
            Refusal::new(Code::Conflict, detail).hint(hint)
        }
        io::ErrorKind::PermissionDenied => {
            let detail = format!("this user may not listen on {listen}");
            Refusal::new(Code::Denied, detail).hint("take a port above 1023")
        }
        _ => {
            let detail = format!("cannot listen on {listen}: {why}");
            Refusal::new(Code::BadArguments, detail)
                .hint("an address of this machine and a port, such as 127.0.0.1:7341")
        }
    }
}
