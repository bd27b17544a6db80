//! The maximum number of connections, a tenth of which never read.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::bounds;
use super::stage::{LOUD_BYTES, OverloadFixture, subscribe};
use crate::CheckResult;
use crate::figures::{count, figure};
use crate::http::Http;
use crate::pace::pause;
use crate::socket::Socket;

/// The query of every reading subscriber: a row that is changed separately.
pub(crate) const SQL: &str = "SELECT id, status FROM sessions WHERE id = :id";
/// The query of the subscribers that do not read.
const LOUD: &str = "SELECT id, content FROM agent_state WHERE session_id = 'loud'";

/// Connections to open concurrently.
const AT_A_TIME: usize = 64;
/// Connections left for callers.
const SPARE: usize = 20;
/// The maximum time of any step.
const PATIENCE: Duration = Duration::from_secs(120);

/// The reading subscribers, each with the last seq that it received.
pub(crate) struct SubscriberPool {
    pub(crate) seqs: Vec<Arc<AtomicI64>>,
}

/// Opens the connections, fills the outboxes of those that do not read, and checks that all others
/// receive changes.
pub(crate) async fn connect_subscribers(
    fixture: &mut OverloadFixture,
) -> CheckResult<SubscriberPool> {
    let size = fixture.size;
    let listeners = size.connections - size.silent - SPARE;
    let begun = Instant::now();
    let silent = connect(fixture, size.silent, LOUD).await?;
    let sockets = connect(fixture, listeners, SQL).await?;
    println!(
        "crowd     {} connections, {} of which never read, in {:.1} s",
        count((silent.len() + sockets.len()) as u64),
        count(silent.len() as u64),
        begun.elapsed().as_secs_f64()
    );
    let caller = fixture.caller();
    let subscribers = SubscriberPool { seqs: sockets.iter().map(|_| Arc::default()).collect() };
    let received = Arc::default();
    let mut listening = JoinSet::new();
    for (socket, seq) in sockets.into_iter().zip(&subscribers.seqs) {
        listening.spawn(listen(socket, Arc::clone(seq), Arc::clone(&received)));
    }
    write_often(fixture).await?;
    // Opened in advance: some of the refused connections may still be counted after they are
    // closed.
    let mut inside = fixture.http(&fixture.admin).await?;
    check_refused_connections(fixture).await?;
    all_receive(&mut inside, &received, listeners).await?;
    let waits = caller.stop()?;
    let to_all_ms = (listeners as f64 * bounds::DELIVERY_MS).max(bounds::NOTICED_MS);
    fixture.hold_percentile("crowd", &waits, 99.0, bounds::CROWD_FACTOR, to_all_ms)?;
    let max = bounds::REST_BYTES
        + listeners as u64 * bounds::CONNECTION_BYTES
        + silent.len() as u64 * bounds::MUTE_BYTES;
    figure(
        "concurrent connections, of which never read",
        format!("{}, {}", count(size.connections as u64), count(size.silent as u64)),
    );
    fixture.hold_memory("crowd", max)?;
    listening.abort_all();
    Ok(subscribers)
}

/// Opens connections that subscribe to a query.
async fn connect(fixture: &OverloadFixture, number: usize, sql: &str) -> CheckResult<Vec<Socket>> {
    let address = fixture.server.address;
    let token = fixture.admin.as_str();
    let made = stream::iter(0..number).map(|_| async move {
        let mut socket = Socket::connect(address, token)
            .await
            .map_err(|why| format!("a connection failed: {why}"))?;
        let params = if sql == SQL { json!({"id": "board"}) } else { json!({}) };
        let asked = socket.send(&subscribe(sql, params, None)).await;
        asked.map_err(|why| format!("a subscription request failed: {why}"))?;
        let output = socket.receive_of("snapshot").await;
        match output {
            Ok(output) if output["op"] == "snapshot" => Ok(socket),
            other => Err(format!("unexpected response to a subscription: {other:?}")),
        }
    });
    let made: Vec<CheckResult<Socket>> = made.buffer_unordered(AT_A_TIME).collect().await;
    made.into_iter().collect()
}

/// Reads updates; increments the counter when the final change arrives.
async fn listen(mut socket: Socket, seq: Arc<AtomicI64>, received: Arc<AtomicUsize>) {
    while let Ok(Some(message)) = socket.receive().await {
        if let Some(to) = message["to"].as_i64() {
            seq.store(to, Ordering::Relaxed);
        }
        let rows = &message["changes"][0]["updates"];
        if rows.as_array().is_some_and(|rows| rows.iter().any(|row| row[1] == "suspended")) {
            received.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes more than the outboxes of the non-reading connections hold.
async fn write_often(fixture: &OverloadFixture) -> CheckResult {
    let mut http = fixture.http(&fixture.admin).await?;
    let body = json!({"session_id": "loud", "role": "user", "content": "m".repeat(LOUD_BYTES)});
    let body = body.to_string();
    for _ in 0..fixture.size.messages {
        let response = http
            .post("/v1/call/append_message", &body)
            .await
            .map_err(|why| format!("the writing connection failed: {why}"))?;
        if response.status != 200 {
            return Err(format!("unexpected response to a write: {response}"));
        }
    }
    Ok(())
}

/// A connection over the limit receives 503 with Retry-After.
async fn check_refused_connections(fixture: &OverloadFixture) -> CheckResult {
    let mut kept = Vec::new();
    let mut away = 0;
    if fixture.size.connections < abide_server() {
        return Ok(()); // The limit is not reached.
    }
    for _ in 0..4 * SPARE {
        let Ok(mut http) = Http::connect(fixture.server.address, &fixture.admin).await else {
            continue;
        };
        // After a number of refusals, further connections are closed without a response.
        let Ok(answer) = http.post("/v1/sql", r#"{"sql":"SELECT 1"}"#).await else { continue };
        match (answer.status, answer.retry_after) {
            (200, _) => kept.push(http),
            (503, Some(_)) => away += 1,
            _ => return Err(format!("unexpected response over the limit: {answer}")),
        }
    }
    println!("crowd     {away} connections over the limit refused with 503 and Retry-After");
    figure("connections over the limit, refused with 503 and Retry-After", away);
    if away == 0 { Err("no connection was refused".to_owned()) } else { Ok(()) }
}

/// The server's connection limit, see `server/src/limits.rs`.
fn abide_server() -> usize {
    10_000
}

/// A final change, which every reading subscriber must receive.
async fn all_receive(http: &mut Http, received: &AtomicUsize, listeners: usize) -> CheckResult {
    let begun = Instant::now();
    let body = r#"{"session_id":"board","reason":"the final change"}"#;
    let done = http.post("/v1/call/suspend_session", body).await.map_err(|why| why.to_string())?;
    if done.status != 200 {
        return Err(format!("unexpected response to suspend_session: {done}"));
    }
    let all = async {
        while received.load(Ordering::Relaxed) < listeners {
            pause(Duration::from_millis(5)).await;
        }
    };
    let all = timeout(PATIENCE, all).await;
    let received = received.load(Ordering::Relaxed);
    all.map_err(|_| {
        format!("only {received} of {listeners} subscribers received the last change")
    })?;
    println!(
        "crowd     all {received} reading subscribers received a change, the last after {:.2} s",
        begun.elapsed().as_secs_f64()
    );
    let body = r#"{"session_id":"board"}"#;
    http.post("/v1/call/resume_session", body).await.map_err(|why| why.to_string())?;
    Ok(())
}
