//! `abide serve`: the engine behind its doors, until somebody asks it to stop.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use abide_engine::{Config, Engine, Retention};
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

    /// Keep what is needed to resume and to ask the past for so many events  [default: 1000000, unless
    /// --keep-changes-for is given]
    #[arg(long, value_name = "EVENTS")]
    keep_changes: Option<u64>,

    /// Keep it for so long: 90s, 30m, 12h, 7d, 4w; with both, what is past either is forgotten
    #[arg(long, value_name = "TIME", value_parser = time)]
    keep_changes_for: Option<Duration>,
}

/// A length of time as people write it.
fn time(text: &str) -> Result<Duration, String> {
    let (count, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err("a number and a unit: 90s, 30m, 12h, 7d or 4w".to_owned()),
    };
    let count: u64 = count.parse().map_err(|_| format!("{count:?} is no number of {unit}"))?;
    let time = count.checked_mul(seconds).map(Duration::from_secs);
    time.ok_or_else(|| "that is longer than anything lasts".to_owned())
}

impl Serve {
    fn retention(&self) -> Retention {
        match (self.keep_changes, self.keep_changes_for) {
            (None, None) => Retention::default(),
            (events, age) => Retention { events, age },
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  abide serve                                      # abide.db, made if need be
  abide serve --db agents.db --listen 127.0.0.1:0  # any free port
  ABIDE_TOKEN=… abide serve --listen 0.0.0.0:7341  # for other machines
  abide serve --keep-changes-for 7d                # clients may be away for a week

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
    let retention = args.retention();
    let engine = Engine::open(&db, Config { retention, ..Config::new(abide_reducers::modules()) });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        let seconds = [("0s", 0), ("90s", 90), ("30m", 1_800), ("12h", 43_200), ("7d", 604_800)];
        for (text, seconds) in seconds {
            assert_eq!(time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "7", "d", "-7d", "7 d", "1.5h", "7days", "99999999999999999999s", "é"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(time(&format!("{}w", u64::MAX)).is_err());
    }
}
