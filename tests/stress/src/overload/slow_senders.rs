//! Clients that send one byte per second: heads, bodies and WebSocket messages that never end. The
//! server closes each after the timeout of its kind (`server/src/limits.rs`), regardless of other
//! load.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::stage::OverloadFixture;
use crate::CheckResult;
use crate::figures::{count, figure};
use crate::pace::pause;
use crate::socket::Socket;

/// The time between two bytes.
const DRIP: Duration = Duration::from_secs(1);
/// The longest allowed time: 65 s for a silent WebSocket, plus a margin for a busy machine.
const MOST: Duration = Duration::from_secs(90);

/// The running clients.
pub(crate) struct SlowClients {
    all: JoinSet<CheckResult<(&'static str, f64)>>,
}

/// Starts the clients.
pub(crate) async fn begin(fixture: &OverloadFixture) -> CheckResult<SlowClients> {
    let address = fixture.server.address;
    let token = fixture.admin.clone();
    let mut all = JoinSet::new();
    for _ in 0..fixture.size.slow_clients {
        let head = "POST /v1/sql HTTP/1.1\r\nHost: abide\r\n".to_owned();
        let plain = fixture.http(&token).await?;
        let body = plain.head("/v1/sql", 1 << 20);
        all.spawn(async move { drip("head", plain.stream, head.as_bytes()).await });
        let plain = fixture.http(&token).await?;
        all.spawn(async move { drip("body", plain.stream, body.as_bytes()).await });
    }
    for _ in 0..fixture.size.slow_messages {
        let socket = Socket::connect(address, &token)
            .await
            .map_err(|why| format!("a slow client failed to connect: {why}"))?;
        // A text message of a megabyte, masked with zeros.
        let mut message = vec![0x81, 0xff];
        message.extend((1_u64 << 20).to_be_bytes());
        message.extend([0; 4]);
        all.spawn(async move { drip("message", socket.into_stream(), &message).await });
    }
    Ok(SlowClients { all })
}

impl SlowClients {
    /// Waits until the server has closed all of them.
    pub(crate) async fn end(mut self) -> CheckResult {
        let number = self.all.len();
        let mut longest = [("head", 0.0), ("body", 0.0), ("message", 0.0)];
        while let Some(ended) = self.all.join_next().await {
            let (kind, seconds) = ended.map_err(|why| why.to_string())??;
            for (other, max) in &mut longest {
                if *other == kind {
                    *max = seconds.max(*max);
                }
            }
        }
        let longest = longest.iter().filter(|(_, seconds)| *seconds > 0.0);
        let output: Vec<String> =
            longest.map(|(kind, seconds)| format!("{kind} {seconds:.0} s")).collect();
        let output = output.join(", ");
        println!(
            "slow      {} clients of one byte per second were disconnected: {output}",
            count(number as u64)
        );
        figure(
            "clients of one byte per second, disconnected after at most",
            format!("{number}: {output}"),
        );
        Ok(())
    }
}

/// Sends the beginning, then one byte per second until the server closes the connection.
async fn drip(
    kind: &'static str,
    stream: TcpStream,
    beginning: &[u8],
) -> CheckResult<(&'static str, f64)> {
    let begun = Instant::now();
    let (mut read, mut write) = stream.into_split();
    let gone = async move {
        let mut piece = [0; 4 << 10];
        while read.read(&mut piece).await.is_ok_and(|length| length > 0) {}
    };
    let dripping = async move {
        let mut sent = write.write_all(beginning).await;
        while sent.is_ok() {
            pause(DRIP).await;
            sent = write.write_all(b"x").await;
        }
    };
    let until = async {
        tokio::select! { () = gone => {}, () = dripping => {} }
    };
    timeout(MOST, until)
        .await
        .map_err(|_| format!("a slow {kind} was not disconnected within {MOST:?}"))?;
    Ok((kind, begun.elapsed().as_secs_f64()))
}
