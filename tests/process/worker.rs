//! A worker program for the tests of real processes: it races for calls and handoffs, or runs one
//! call whose effect is a line in a file. Between its steps it reports its position on stdout and
//! waits for a line on stdin, so that the test can kill it in between.
//!
//! ```text
//! worker open BINARY FILE                   shares a file, creates sessions, prints the id of each
//! worker URL race NAME                      claims all pending calls, prints what it won
//! worker URL run NAME CALL FILE LEASE_MS    claims one call and runs it step by step
//! ```

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

use std::env;
use std::fs::OpenOptions;
use std::io::{BufRead as _, Write as _};

use abide_client::arguments::{ClaimHandoff, ClaimToolCall, CompleteToolCall, CreateSession};
use abide_client::rows::ToolCall;
use abide_client::{Abide, Code, Error};
use futures_util::StreamExt as _;
use futures_util::stream::iter;

/// Claims in flight at a time.
const AT_A_TIME: usize = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["open", binary, file] => {
            create(&Abide::open_shared(file).binary(binary).await.unwrap()).await;
        }
        [url, "race", name] => race(&Abide::connect(url).await.unwrap(), name).await,
        [url, "run", name, call, file, lease_ms] => {
            let claimed = Abide::connect(url).await.unwrap();
            run(&claimed, name, call, file, lease_ms.parse().unwrap()).await;
        }
        _ => panic!(
            "usage: open BINARY FILE, or: URL race NAME, or: URL run NAME CALL FILE LEASE_MS"
        ),
    }
}

/// Reports its position, and waits for a line to continue.
fn wait_at(place: &str) {
    print_line(place);
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

fn print_line(what: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{what}").unwrap();
    stdout.flush().unwrap();
}

/// Creates sessions, until it is killed.
async fn create(abide: &Abide) {
    loop {
        print_line(&abide.call(CreateSession::new("a")).await.unwrap().value.id);
    }
}

/// All workers race for the calls and handoffs that are pending at the start.
async fn race(abide: &Abide, name: &str) {
    let calls = "SELECT call_id FROM tool_calls WHERE status = 'pending' ORDER BY call_id";
    let calls: Vec<String> = abide.sql(calls).fetch().await.unwrap();
    let handoffs = "SELECT id FROM handoff_requests WHERE status = 'pending' ORDER BY id";
    let handoffs: Vec<String> = abide.sql(handoffs).fetch().await.unwrap();
    wait_at("ready");
    let claims = iter(&calls).map(|call_id| async move {
        let claim = ClaimToolCall::new(call_id).worker(name);
        won(abide.call(claim).await.map(|_| format!("call {call_id}")))
    });
    tell(claims.buffer_unordered(AT_A_TIME)).await;
    let claims = iter(&handoffs).map(|id| async move {
        won(abide.call(ClaimHandoff::new(id)).await.map(|_| format!("handoff {id}")))
    });
    tell(claims.buffer_unordered(AT_A_TIME)).await;
    abide.close().await;
}

async fn tell(claims: impl futures_util::Stream<Item = Option<String>>) {
    let mut claims = std::pin::pin!(claims);
    while let Some(claim) = claims.next().await {
        claim.iter().for_each(|won| print_line(won));
    }
}

/// The claim if it was won; `None` if another worker was first.
fn won(claim: Result<String, Error>) -> Option<String> {
    match claim {
        Err(error) if error.code() == Some(Code::Conflict) => None,
        claim => Some(claim.unwrap()),
    }
}

async fn run(abide: &Abide, name: &str, call: &str, file: &str, lease_ms: i64) {
    let claim = ClaimToolCall::new(call).worker(name).lease_ms(lease_ms);
    let claimed = match abide.call(claim).await {
        Err(error) => return print_line(&format!("refused {}", error.code().unwrap())),
        Ok(claimed) => claimed.into_inner(),
    };
    wait_at("claimed");
    effect(file, "began", &claimed);
    wait_at("began");
    effect(file, "done", &claimed);
    wait_at("done");
    let token = claimed.fencing_token.unwrap();
    match abide.call(CompleteToolCall::new(call, token, "done")).await {
        Ok(_) => print_line("completed"),
        Err(error) => print_line(&format!("refused {}", error.code().unwrap())),
    }
    abide.close().await;
}

/// The external effect: a line that survives this process.
fn effect(file: &str, what: &str, claimed: &ToolCall) {
    let mut file = OpenOptions::new().append(true).create(true).open(file).unwrap();
    writeln!(file, "{what} {}", claimed.call_id).unwrap();
    file.sync_all().unwrap();
}
