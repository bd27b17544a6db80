//! Expensive requests of one tenant, one at a time: each is repeated on two connections, or subscribed to, while a caller
//! without scope writes and another reads. No single call or subscription may delay them by more than
//! [`bounds::EXPENSIVE_MS`].

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value as JsonValue, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::bounds;
use super::stage::{OverloadFixture, subscribe};
use crate::CheckResult;
use crate::figures::figure;
use crate::pace::pause;
use crate::socket::Socket;

/// Queries, each with a name. Most are refused or interrupted, and use resources until then.
const QUERIES: [(&str, &str); 12] = [
    (
        "instr of long texts",
        "SELECT instr(printf('%.*c', 1500000, 'a'), printf('%.*c', 750000, 'a') || 'b')",
    ),
    (
        "replace in a long text",
        "SELECT length(replace(printf('%.*c', 1500000, 'a'), printf('%.*c', 700000, 'a') || 'b', 'c'))",
    ),
    (
        "LIKE with a long pattern",
        "SELECT printf('%.*c', 1500000, 'a') LIKE replace(printf('%.*c', 1300, 'x'), 'x', '%a_') || 'b'",
    ),
    (
        "GLOB with many stars",
        "SELECT printf('%.*c', 100000, 'a') GLOB replace(printf('%.*c', 100, 'x'), 'x', '*a') || 'b'",
    ),
    ("one value of 17 MB", "SELECT hex(zeroblob(8900000)) AS big"),
    (
        "a query without an end",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
    ),
    (
        "a large sort",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 3000000)
         SELECT x FROM n ORDER BY (x * 7919) % 1000003 DESC LIMIT 1",
    ),
    (
        "a large group",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 3000000)
         SELECT length(group_concat(x)) FROM n",
    ),
    (
        "a large JSON array",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1000000)
         SELECT json_pretty(json_group_array(json_object('x', x))) FROM n",
    ),
    (
        "many long rows",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 40)
         SELECT x, printf('%.*c', 1000000, 'a') AS long FROM n",
    ),
    (
        "a chain of CTEs that doubles",
        "WITH a0 AS (SELECT 1 x UNION ALL SELECT 2), a1 AS (SELECT p.x FROM a0 p, a0 q),
         a2 AS (SELECT p.x FROM a1 p, a1 q), a3 AS (SELECT p.x FROM a2 p, a2 q),
         a4 AS (SELECT p.x FROM a3 p, a3 q), a5 AS (SELECT p.x FROM a4 p, a4 q),
         a6 AS (SELECT p.x FROM a5 p, a5 q) SELECT count(*) FROM a6",
    ),
    (
        "a cross join",
        "SELECT count(*) FROM sessions a, sessions b, sessions c, sessions d, sessions e, sessions f,
         sessions g, sessions h, sessions i, sessions j, sessions k, sessions l, sessions m",
    ),
];

/// A subscription that computes with long values, for sessions that the attacker creates afterwards.
const LIVE: &str = "SELECT id, CASE WHEN title LIKE 'boom%' THEN
    instr(printf('%.*c', 1500000, 'a'), printf('%.*c', 750000, 'a') || 'b') ELSE 0 END AS n
    FROM sessions";

/// How many times as long as a query large calls are repeated.
const LARGE_CALL_STAGES: u32 = 4;

/// Connections that repeat a request.
const CONNECTIONS: usize = 2;

/// Runs each query.
pub(crate) async fn run(fixture: &OverloadFixture) -> CheckResult {
    let check_waits = |name: &str, max: f64, waits: [f64; 4]| {
        let [write, read, write_longest, read_longest] = waits;
        println!(
            "expensive {name:<30} p99 of a write {write:>6.1} ms, of a read {read:>6.1} ms; \
             longest {write_longest:>6.1}, {read_longest:>6.1} ms"
        );
        let waited = write.max(read);
        if waited > max {
            return Err(format!(
                "{name}: another caller waits {waited:.1} ms at the 99th percentile"
            ));
        }
        Ok(waited)
    };
    let max = bounds::EXPENSIVE_MS;
    let nothing = async {
        pause(fixture.size.query).await;
        Ok(())
    };
    let quiet = timed(fixture, nothing).await?;
    check_waits("nothing", max, quiet)?;
    // On a busy machine, even an idle server is slow.
    let max = max.max(bounds::EXPENSIVE_FACTOR * quiet[0].max(quiet[1]));
    let mut longest: f64 = 0.0;
    for (name, sql) in QUERIES {
        let body = json!({"sql": sql}).to_string();
        let waits = timed(fixture, repeat(fixture, "/v1/sql", &body, fixture.size.query)).await?;
        longest = longest.max(check_waits(name, max, waits)?);
    }
    let message = json!({"session_id": "zeta", "role": "user", "content": "m".repeat(4 << 20)});
    let session = json!({"agent": "stress", "id": "zeta"}).to_string();
    let made = request(fixture.server.address, &fixture.attacker, CREATE, &session).await;
    made.map_err(|why| why.to_string())?;
    check_large_calls(fixture, &message.to_string()).await?;
    let waits = timed(fixture, listen(fixture)).await?;
    longest = longest.max(check_waits("a live query of long values", max, waits)?);
    figure(
        "another caller's p99 under any expensive query or subscription",
        format!("{longest:.1} ms, at most {max:.0} ms"),
    );
    Ok(())
}

const APPEND: &str = "/v1/call/append_message";
const CREATE: &str = "/v1/call/create_session";

/// Checks the response times of another caller while large calls are repeated. They fill the disk, so each of its calls
/// takes long, and the stage lasts until there are enough of them.
async fn check_large_calls(fixture: &OverloadFixture, body: &str) -> CheckResult {
    let writer = fixture.caller();
    repeat(fixture, APPEND, body, LARGE_CALL_STAGES * fixture.size.query).await?;
    let waits = writer.stop()?;
    let most = bounds::LARGE_CALL_MS.max(bounds::LARGE_CALL_SYNCS * fixture.sync_ms);
    fixture.hold_percentile(
        "messages of 4 MB",
        &waits,
        bounds::FEW_CALLS_PERCENTILE,
        bounds::FACTOR,
        most.min(bounds::LARGE_CALL_MOST_MS),
    )
}

/// The response times of a writer and a reader meanwhile, in milliseconds: p99 of both, then the maximum of both.
async fn timed(
    fixture: &OverloadFixture,
    work: impl Future<Output = CheckResult>,
) -> CheckResult<[f64; 4]> {
    let writer = fixture.caller();
    let reader = fixture.reader();
    work.await?;
    let writes = writer.stop()?;
    let reads = reader.stop()?;
    Ok([writes.p99(), reads.p99(), writes.longest(), reads.longest()])
}

/// Repeats a request, each time on a new connection. A refusal is accepted.
async fn repeat(
    fixture: &OverloadFixture,
    path: &'static str,
    body: &str,
    time: Duration,
) -> CheckResult {
    let until = Instant::now() + time;
    let mut all = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let address = fixture.server.address;
        let token = fixture.attacker.clone();
        let body = body.to_owned();
        all.spawn(async move {
            while Instant::now() < until {
                request(address, &token, path, &body).await.map_err(|why| why.to_string())?;
            }
            Ok::<(), String>(())
        });
    }
    while let Some(ended) = all.join_next().await {
        ended.map_err(|why| why.to_string())??;
    }
    Ok(())
}

/// One request; its response is read to the end and discarded.
async fn request(address: SocketAddr, token: &str, path: &str, body: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: abide\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(drop)
}

/// Subscribes, and then adds rows that make the query expensive.
async fn listen(fixture: &OverloadFixture) -> CheckResult {
    let mut socket = Socket::connect(fixture.server.address, &fixture.attacker)
        .await
        .map_err(|why| why.to_string())?;
    let subscribed = socket.send(&subscribe(LIVE, JsonValue::Null, None)).await;
    subscribed.map_err(|why| why.to_string())?;
    let body = json!({"agent": "stress", "title": "boom"}).to_string();
    repeat(fixture, CREATE, &body, fixture.size.query).await
}
