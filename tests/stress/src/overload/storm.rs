//! A reconnect storm: the server is killed with all clients connected and started again, and all of
//! them reconnect and resume from their last seq.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use tokio_tungstenite::tungstenite::Error;

use super::bounds;
use super::connection_limit::{SQL, SubscriberPool};
use super::stage::{OverloadFixture, subscribe};
use crate::CheckResult;
use crate::figures::{count, figure, percentile};
use crate::pace::pause;
use crate::socket::Socket;

/// After this time a client gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// The result of one reconnect.
struct Reconnection {
    /// Seconds from the restart to the response to its subscription.
    after_s: f64,
    /// Attempts that the system or the server rejected.
    attempts: u64,
    /// Refusals with 503 and Retry-After, or because the readers are overloaded.
    refused: u64,
    /// Kept open until all are back.
    _socket: Socket,
}

/// Kills the server, starts it again, and waits for all clients.
pub(crate) async fn run(fixture: &mut OverloadFixture, subscribers: SubscriberPool) -> CheckResult {
    fixture.server.kill();
    fixture.server.start_again()?;
    let begun = Instant::now();
    let caller = fixture.caller();
    let address = fixture.server.address;
    let token = fixture.admin.clone();
    let number = subscribers.seqs.len();
    let all = subscribers.seqs.iter().map(|seq| seq.load(Ordering::Relaxed));
    let backs = stream::iter(all).map(|seq| reconnect(address, &token, seq, begun));
    let backs: Vec<CheckResult<Reconnection>> = backs.buffer_unordered(number).collect().await;
    let backs = backs.into_iter().collect::<CheckResult<Vec<Reconnection>>>()?;
    let waits = caller.stop()?;
    let seconds: Vec<f64> = backs.iter().map(|back| back.after_s).collect();
    let attempts: u64 = backs.iter().map(|back| back.attempts).sum();
    let refused: u64 = backs.iter().map(|back| back.refused).sum();
    let half = percentile(&seconds, 50.0);
    let last = percentile(&seconds, 100.0);
    println!(
        "storm     {} reconnected after a restart: half after {half:.1} s, the last after {last:.1} s; {} more \
         attempts, {refused} refused due to overload",
        count(number as u64),
        count(attempts)
    );
    figure(
        "subscribe storm after a restart",
        format!("{} subscriptions, the last response after {last:.1} s", count(number as u64)),
    );
    fixture.hold_waits("storm", &waits, bounds::STORM_FACTOR)?;
    fixture.hold_memory("storm", bounds::REST_BYTES + number as u64 * bounds::CONNECTION_BYTES)
}

async fn reconnect(
    address: std::net::SocketAddr,
    token: &str,
    seq: i64,
    begun: Instant,
) -> CheckResult<Reconnection> {
    let mut attempts = 0;
    let mut refused = 0;
    loop {
        if begun.elapsed() > PATIENCE {
            return Err(format!(
                "a client did not reconnect within {PATIENCE:?} and {attempts} attempts"
            ));
        }
        match Socket::connect(address, token).await {
            Ok(socket) => match resume(socket, seq, &mut refused).await? {
                Some(_socket) => {
                    let after_s = begun.elapsed().as_secs_f64();
                    return Ok(Reconnection { after_s, attempts, refused, _socket });
                }
                None => attempts += 1,
            },
            Err(Error::Http(answer)) if answer.status() == 503 => {
                if !answer.headers().contains_key("retry-after") {
                    return Err("a 503 without Retry-After".to_owned());
                }
                refused += 1;
                pause(Duration::from_secs(1)).await;
            }
            Err(_) => {
                attempts += 1;
                pause(Duration::from_millis(50 + attempts * 7 % 100)).await;
            }
        }
    }
}

/// Resumes the subscription, and retries while the readers' queue is full; `None` if the socket
/// broke meanwhile.
async fn resume(mut socket: Socket, seq: i64, refused: &mut u64) -> CheckResult<Option<Socket>> {
    let resume = subscribe(SQL, json!({"id": "board"}), Some(seq));
    if socket.send(&resume).await.is_err() {
        return Ok(None);
    }
    loop {
        match socket.receive().await {
            Ok(Some(output)) if output["op"] == "delta" || output["op"] == "snapshot" => {
                return Ok(Some(socket));
            }
            Ok(Some(output)) if output["op"] == "error" && output["code"] == "overloaded" => {
                *refused += 1;
                // With growing delays, as the SDK does.
                pause(Duration::from_millis(100 * *refused)).await;
                if socket.send(&resume).await.is_err() {
                    return Ok(None);
                }
            }
            Ok(Some(output)) if output["op"] == "error" && output["code"] != "resync_required" => {
                return Err(format!("unexpected response to a resume: {output}"));
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return Ok(None),
        }
    }
}
