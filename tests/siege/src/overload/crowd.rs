//! As many connections as the server takes in, a tenth of which never read.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::bounds;
use super::stage::{LOUD_BYTES, Stage, subscribe};
use crate::Told;
use crate::figures::{count, figure};
use crate::http::Http;
use crate::pace::pause;
use crate::socket::Socket;

/// What every listener watches: a row that is changed by the side.
pub(crate) const SQL: &str = "SELECT id, status FROM sessions WHERE id = :id";
/// What the mutes are told and do not hear.
const LOUD: &str = "SELECT id, content FROM agent_state WHERE session_id = 'loud'";

/// Connections that are made at a time.
const AT_A_TIME: usize = 64;
/// Connections that are left for who calls.
const SPARE: usize = 20;
/// How long anything may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// Those who listen, each with the last seq that it was told.
pub(crate) struct Crowd {
    pub(crate) seqs: Vec<Arc<AtomicI64>>,
}

/// Gathers it, is loud to those who do not read, and sees to it that all others hear.
pub(crate) async fn gather(stage: &mut Stage) -> Told<Crowd> {
    let size = stage.size;
    let listeners = size.connections - size.mutes - SPARE;
    let begun = Instant::now();
    let mutes = connect(stage, size.mutes, LOUD).await?;
    let sockets = connect(stage, listeners, SQL).await?;
    println!(
        "crowd     {} connections, {} of which never read, in {:.1} s",
        count((mutes.len() + sockets.len()) as u64),
        count(mutes.len() as u64),
        begun.elapsed().as_secs_f64()
    );
    let caller = stage.caller();
    let (crowd, heard) =
        (Crowd { seqs: sockets.iter().map(|_| Arc::default()).collect() }, Arc::default());
    let mut listening = JoinSet::new();
    for (socket, seq) in sockets.into_iter().zip(&crowd.seqs) {
        listening.spawn(listen(socket, Arc::clone(seq), Arc::clone(&heard)));
    }
    be_loud(stage).await?;
    // One that is inside already: of those turned away some may still be counted when they are gone.
    let mut inside = stage.http(&stage.admin).await?;
    turn_away(stage).await?;
    everybody_hears(&mut inside, &heard, listeners).await?;
    let waits = caller.stop()?;
    stage.hold_waits("crowd", &waits, bounds::CROWD_FACTOR)?;
    let most = bounds::REST_BYTES
        + listeners as u64 * bounds::CONNECTION_BYTES
        + mutes.len() as u64 * bounds::MUTE_BYTES;
    figure(
        "connections at a time, of which never read",
        format!("{}, {}", count(size.connections as u64), count(size.mutes as u64)),
    );
    stage.hold_memory("crowd", most)?;
    listening.abort_all();
    Ok(crowd)
}

/// So many connections that listen to a query.
async fn connect(stage: &Stage, number: usize, sql: &str) -> Told<Vec<Socket>> {
    let (address, token) = (stage.server.address, stage.admin.as_str());
    let made = stream::iter(0..number).map(|_| async move {
        let socket = Socket::connect(address, token).await;
        let mut socket = socket.map_err(|why| format!("a connection is not made: {why}"))?;
        let params = if sql == SQL { json!({"id": "board"}) } else { json!({}) };
        let asked = socket.say(&subscribe(sql, params, None)).await;
        asked.map_err(|why| format!("a subscription is not asked for: {why}"))?;
        let told = socket.hear_of("snapshot").await;
        match told {
            Ok(told) if told["op"] == "snapshot" => Ok(socket),
            other => Err(format!("a subscription is answered {other:?}")),
        }
    });
    let made: Vec<Told<Socket>> = made.buffer_unordered(AT_A_TIME).collect().await;
    made.into_iter().collect()
}

/// Takes in what it is told; counts once when it hears of the end.
async fn listen(mut socket: Socket, seq: Arc<AtomicI64>, heard: Arc<AtomicUsize>) {
    while let Ok(Some(message)) = socket.hear().await {
        if let Some(to) = message["to"].as_i64() {
            seq.store(to, Ordering::Relaxed);
        }
        let rows = &message["changes"][0]["updates"];
        if rows.as_array().is_some_and(|rows| rows.iter().any(|row| row[1] == "suspended")) {
            heard.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// More than the outboxes of those hold who do not read.
async fn be_loud(stage: &Stage) -> Told {
    let mut http = stage.http(&stage.admin).await?;
    let body = json!({"session_id": "loud", "role": "user", "content": "m".repeat(LOUD_BYTES)});
    let body = body.to_string();
    for _ in 0..stage.size.messages {
        let said = http.post("/v1/call/append_message", &body).await;
        let said = said.map_err(|why| format!("the loud one is cut off: {why}"))?;
        if said.status != 200 {
            return Err(format!("the loud one is answered {said}"));
        }
    }
    Ok(())
}

/// Who comes when the house is full is told so, and when to come again.
async fn turn_away(stage: &Stage) -> Told {
    let (mut kept, mut away) = (Vec::new(), 0);
    if stage.size.connections < abide_house() {
        return Ok(()); // It is not full.
    }
    for _ in 0..4 * SPARE {
        let Ok(mut http) = Http::connect(stage.server.address, &stage.admin).await else {
            continue;
        };
        // Beyond those that are told so, connections are closed without a word.
        let Ok(answer) = http.post("/v1/sql", r#"{"sql":"SELECT 1"}"#).await else { continue };
        match (answer.status, answer.retry_after) {
            (200, _) => kept.push(http),
            (503, Some(_)) => away += 1,
            _ => return Err(format!("one too many is answered {answer}")),
        }
    }
    println!("crowd     {away} beyond were refused with 503 and Retry-After");
    figure("connections beyond the bound, refused with 503 and Retry-After", away);
    if away == 0 { Err("nobody was turned away".to_owned()) } else { Ok(()) }
}

/// Connections that the server takes in, see `server/src/limits.rs`.
fn abide_house() -> usize {
    10_000
}

/// A last change: everybody who reads hears of it.
async fn everybody_hears(http: &mut Http, heard: &AtomicUsize, listeners: usize) -> Told {
    let begun = Instant::now();
    let body = r#"{"session_id":"board","reason":"everybody hears"}"#;
    let done = http.post("/v1/call/suspend_session", body).await.map_err(|why| why.to_string())?;
    if done.status != 200 {
        return Err(format!("suspend_session is answered {done}"));
    }
    let all = async {
        while heard.load(Ordering::Relaxed) < listeners {
            pause(Duration::from_millis(5)).await;
        }
    };
    let all = timeout(PATIENCE, all).await;
    let heard = heard.load(Ordering::Relaxed);
    all.map_err(|_| format!("only {heard} of {listeners} who listen heard of the last change"))?;
    println!(
        "crowd     all {heard} who read heard of a change, the last after {:.2} s",
        begun.elapsed().as_secs_f64()
    );
    let body = r#"{"session_id":"board"}"#;
    http.post("/v1/call/resume_session", body).await.map_err(|why| why.to_string())?;
    Ok(())
}
