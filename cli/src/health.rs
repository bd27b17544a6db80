//! `abide health`: asks a server whether it accepts calls. It needs no token and no other program, so it is the check of a
//! container without a shell.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use abide_engine::LockState;
use abide_schema::{Code, Refusal, lowercase_first};
use clap::Args;
use reqwest::redirect::Policy;
use reqwest::{Response, StatusCode};
use serde_json::{Value as JsonValue, json};
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::global_options::Options;
use crate::http_client::HttpServer;
use crate::output::{print_json, print_line};
use crate::printable::one_line;
use crate::units;

/// Arguments of `abide health`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Health {
    /// Ask again until the server accepts calls, for at most so long: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    wait: Option<Duration>,
}

const EXAMPLES: &str = "\
The exit code is 0 if the server accepts calls, 1 if it answers and does not (it is about to stop,
or its storage has failed), and 3 if no server answers. It is the answer of GET /ready. With --db it
asks the server that has the file open, whatever its address is.

Examples:
  abide health                                # the server at 127.0.0.1:7341
  abide health --db /data/abide.db            # the check of a container
  abide health --url http://127.0.0.1:7342 --wait 20s";

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time between two questions.
const PAUSE: Duration = Duration::from_millis(200);

/// Maximum bytes of an answer.
const ANSWER_BYTES: usize = 64 << 10;

/// Asks, and prints one line.
///
/// # Errors
/// The server does not accept calls, or no server answers.
pub(crate) async fn run(options: &Options, args: Health) -> Result<(), Failure> {
    let begun = Instant::now();
    let place = loop {
        match ask(options).await {
            Ok(place) => break place,
            // Another question does not help.
            Err(failure @ Failure::Usage(_)) => return Err(failure),
            Err(failure) if args.wait.is_none_or(|wait| begun.elapsed() + PAUSE > wait) => {
                return Err(failure);
            }
            Err(_) => sleep(PAUSE).await,
        }
    };
    if options.json {
        return print_json(&json!({"ready": true, "url": place}));
    }
    print_line(one_line(&format!("ready  ·  {place}")))
}

/// A server, and how people know it: its address, or its socket.
struct Target {
    server: HttpServer,
    place: String,
}

/// Returns the place of a server that accepts calls.
async fn ask(options: &Options) -> Result<String, Failure> {
    let Target { server, place } = match &options.db {
        Some(file) => find_server(file)?,
        None => Target { server: HttpServer::named(options)?, place: options.place() },
    };
    // Like the SDKs, it uses no proxy. It sends no token: the answer does not depend on one, and for the engine of
    // `abide open` a request with the token counts as a use.
    let mut client = server.client.timeout(PATIENCE).no_proxy().redirect(Policy::none());
    if server.url.starts_with("http://") {
        // The authorities of the system, which a small image can lack, are not needed.
        client = client.tls_certs_only([]);
    }
    let client = client
        .build()
        .map_err(|why| Refusal::new(Code::Internal, format!("there is no HTTP client: {why}")))?;
    let request = client.get(format!("{}/ready", server.url));
    let response = request.send().await.map_err(|why| send_failure(&why, &place))?;
    check_answer(response, &place).await?;
    Ok(place)
}

/// Finds the process that has a file open and serves it.
fn find_server(file: &Path) -> Result<Target, Failure> {
    let shown = file.display();
    let state = LockState::read(file).map_err(|why| {
        let why = lowercase_first(&why.to_string());
        Refusal::new(Code::BadRequest, format!("the lock of {shown} cannot be read: {why}"))
            .hint("name the server with --url, or run the command as the user of the server")
    })?;
    let LockState::Held(holder) = state else {
        return Err(unreachable(format!("no process has {shown} open"), START));
    };
    let Some(holder) = holder else {
        let detail = format!("{shown} is open in a process that does not serve it");
        return Err(unreachable(detail, START));
    };
    let pid = holder.pid;
    if holder.is_foreign {
        // Its lock file could name any address.
        let detail = format!("{shown} is open in process {pid} of another user");
        return Err(unreachable(detail, "name the server with --url"));
    }
    let Some(server) = HttpServer::of_holder(&holder)? else {
        let detail = format!("{shown} is open in process {pid}, which does not serve it");
        return Err(unreachable(detail, START));
    };
    let place = holder.url.or(holder.socket).unwrap_or_default();
    Ok(Target { server, place })
}

const START: &str = "start the server with `abide serve`";

fn unreachable(detail: impl Into<String>, hint: &str) -> Failure {
    Failure::Unreachable(Refusal::new(Code::Unavailable, detail).hint(hint))
}

fn send_failure(why: &reqwest::Error, place: &str) -> Failure {
    if why.is_builder() {
        return Failure::usage(
            format!("{place:?} is not a valid server URL"),
            "for example http://127.0.0.1:7341 or https://agents.example",
        );
    }
    if why.is_timeout() {
        let seconds = PATIENCE.as_secs();
        return unreachable(
            format!("{place} did not answer within {seconds} s"),
            "if it has just started, it may be migrating its file; its log says so",
        );
    }
    let mut cause: &dyn Error = why;
    while let Some(below) = cause.source() {
        cause = below;
    }
    let cause = lowercase_first(&cause.to_string());
    unreachable(
        format!("{place} cannot be reached: {cause}"),
        "start the server with `abide serve`, or check the address",
    )
}

/// Checks the answer of a server.
async fn check_answer(response: Response, place: &str) -> Result<(), Failure> {
    let status = response.status();
    let body = read_body(response).await.map_err(|why| send_failure(&why, place))?;
    let body: JsonValue = serde_json::from_slice(&body).unwrap_or_default();
    if status == StatusCode::OK && body["status"] == "ready" {
        return Ok(());
    }
    let code = body["code"].as_str().and_then(Code::parse);
    match (code, body["detail"].as_str()) {
        (Some(code), Some(detail)) => {
            let hint = body["hint"].as_str().map(str::to_owned);
            Err(Refusal { hint, ..Refusal::new(code, detail) }.into())
        }
        _ => Err(unreachable(
            format!("{place} is not an Abide server: it answered with status {}", status.as_u16()),
            "check the URL: another program listens there",
        )),
    }
}

/// Reads an answer, without what is beyond [`ANSWER_BYTES`].
async fn read_body(mut response: Response) -> Result<Vec<u8>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() > ANSWER_BYTES {
            break;
        }
    }
    Ok(body)
}
