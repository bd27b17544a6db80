//! A server on a new file with an admin, a timed caller and a flooding caller.

use std::io::Write as _;
use std::time::{Duration, Instant};

use abide_schema::limits;
use serde_json::Value as JsonValue;
use serde_json::json;
use tempfile::TempDir;

use super::bounds;
use crate::CheckResult;
use crate::caller::{Caller, Latencies};
use crate::figures::{count, figure, megabytes, percentile};
use crate::http::Http;
use crate::pace::pause_thread;
use crate::server::{Server, abide, output, raise_open_files};

/// The amount of load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverloadSize {
    /// Concurrent connections.
    pub(crate) connections: usize,
    /// Connections that never read.
    pub(crate) silent: usize,
    /// Messages written for them.
    pub(crate) messages: usize,
    /// Clients that send one byte of a head per second, and as many of a body.
    pub(crate) slow_clients: usize,
    /// Clients that send one byte of a WebSocket message per second. The server takes a minute to close them.
    pub(crate) slow_messages: usize,
    /// Oversized messages, of each kind.
    pub(crate) oversize: usize,
    /// The duration of a flood.
    pub(crate) flood: Duration,
    /// The duration of the idle measurement.
    pub(crate) quiet: Duration,
    /// How long each expensive query is repeated.
    pub(crate) query: Duration,
}

impl OverloadSize {
    /// The full load, up to the server's connection limit (`CONNECTIONS` in
    /// `server/src/limits.rs`).
    pub(crate) const WHOLE: OverloadSize = OverloadSize {
        connections: 10_000,
        silent: 1_000,
        messages: 600,
        slow_clients: 100,
        slow_messages: 100,
        oversize: 16,
        flood: Duration::from_secs(8),
        quiet: Duration::from_secs(5),
        query: Duration::from_secs(4),
    };
    /// The load for CI. `server/tests/api/sockets.rs` has a slow message, with virtual time.
    pub(crate) const SHARE: OverloadSize = OverloadSize {
        connections: 2_000,
        silent: 200,
        messages: 200,
        slow_clients: 20,
        slow_messages: 0,
        oversize: 4,
        flood: Duration::from_secs(3),
        quiet: Duration::from_secs(3),
        query: Duration::from_secs(1),
    };
}

/// Open files other than sockets.
const OTHER_FILES: u64 = 200;

/// See the [module](self).
pub(crate) struct OverloadFixture {
    pub(crate) size: OverloadSize,
    pub(crate) server: Server,
    /// An admin's token.
    pub(crate) admin: String,
    /// The token of the timed caller. Its identity differs from that of the flooding caller.
    timed: String,
    /// The token of the rate-limited caller that floods.
    pub(crate) flooder: String,
    /// The token of another tenant, which runs expensive queries.
    pub(crate) attacker: String,
    quiet: Latencies,
    /// The time of a large sync on a quiet machine, see [`bounds::FLOOD_SYNCS`].
    pub(crate) sync_ms: f64,
    _folder: TempDir,
}

impl OverloadFixture {
    /// Creates the file and starts the server.
    pub(crate) async fn set(size: OverloadSize) -> CheckResult<OverloadFixture> {
        let files = raise_open_files();
        let wanted = size.connections as u64 + OTHER_FILES;
        if files < wanted {
            return Err(format!("the limit of open files is {files}, but {wanted} are needed"));
        }
        let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
        let sync_ms = sync_ms(&folder).map_err(|why| why.to_string())?;
        let db = folder.path().join("abide.db");
        let token = |args: &[&str]| -> CheckResult<String> {
            let token = output(abide()?.args(["token", "create"]).args(args).arg("--db").arg(&db))?;
            Ok(token.trim().to_owned())
        };
        let admin = token(&["root", "--role", "admin", "--capability", "*"])?;
        let timed = token(&["timed", "--role", "app"])?;
        let flooder = token(&["flooder", "--role", "app", "--rate", "50/1s"])?;
        let attacker = token(&["zeta", "--role", "app", "--scope", "tenant=zeta"])?;
        let server = Server::start(&db)?;
        let quiet = Latencies::default();
        let _folder = folder;
        let fixture = OverloadFixture {
            size,
            server,
            admin,
            timed,
            flooder,
            attacker,
            quiet,
            sync_ms,
            _folder,
        };
        let mut http = fixture.http(&fixture.admin).await?;
        for id in ["timed", "loud", "board", "flooded"] {
            let session = json!({"agent": "stress", "id": id}).to_string();
            let made = http
                .post("/v1/call/create_session", &session)
                .await
                .map_err(|why| why.to_string())?;
            if made.status != 200 {
                return Err(format!("unexpected response to create_session: {made}"));
            }
        }
        Ok(fixture)
    }

    /// A connection for requests.
    pub(crate) async fn http(&self, token: &str) -> CheckResult<Http> {
        Http::connect(self.server.address, token).await.map_err(|why| why.to_string())
    }

    /// Starts the timed caller.
    pub(crate) fn caller(&self) -> Caller {
        Caller::start(self.server.address, &self.timed, "timed")
    }

    /// A caller that repeats a short query and is timed.
    pub(crate) fn reader(&self) -> Caller {
        let query = r#"{"sql": "SELECT id, status FROM sessions WHERE id = 'timed'"}"#.to_owned();
        Caller::repeat(self.server.address, &self.timed, "/v1/sql", query)
    }

    /// Measures the response times without other load.
    pub(crate) fn quiet(&mut self) -> CheckResult {
        let caller = self.caller();
        pause_thread(self.size.quiet);
        self.quiet = caller.stop()?;
        let p50 = self.quiet.p50();
        let p99 = self.quiet.p99();
        println!(
            "idle      {} calls, p50 {p50:.2} ms, p99 {p99:.2} ms",
            count(self.quiet.ms.len() as u64)
        );
        Ok(())
    }

    /// Checks the p99 of a caller's response times against that of the idle server.
    pub(crate) fn hold_waits(&self, what: &str, waits: &Latencies, max: f64) -> CheckResult {
        self.hold_percentile(what, waits, 99.0, max, bounds::NOTICED_MS)
    }

    /// Checks a percentile of a caller's response times. A time of at most `noticed_ms` is accepted, whatever its factor.
    pub(crate) fn hold_percentile(
        &self,
        what: &str,
        waits: &Latencies,
        percent: f64,
        max: f64,
        noticed_ms: f64,
    ) -> CheckResult {
        let p50 = waits.p50();
        let high = percentile(&waits.ms, percent);
        let quiet = self.quiet.p99();
        let factor = high / quiet;
        println!(
            "{what:<9} {} calls of another caller, p50 {p50:.2} ms, p{percent} {high:.2} ms, {factor:.1} times \
             the idle p99, longest {:.2} ms; {} refused, {} connections lost",
            count(waits.ms.len() as u64),
            waits.longest(),
            waits.refused,
            waits.lost
        );
        figure(
            &format!("p{percent} of another caller ({what}), relative to the idle p99"),
            format!(
                "{factor:.1} times ({high:.1} ms), at most {max:.0} times or {noticed_ms:.0} ms"
            ),
        );
        if waits.ms.is_empty() {
            return Err(format!("{what}: the other caller completed no call"));
        }
        if factor > max && high > noticed_ms {
            return Err(format!("{what}: another caller waits {factor:.1} times as long"));
        }
        Ok(())
    }

    /// Checks the server's memory against a limit.
    pub(crate) fn hold_memory(&self, what: &str, max: u64) -> CheckResult {
        let (now, peak) = self.server.memory()?;
        println!("{what:<9} server memory: peak {}, now {}", megabytes(peak), megabytes(now));
        figure(
            &format!("server memory ({what})"),
            format!("{}, at most {}", megabytes(peak), megabytes(max)),
        );
        if peak > max {
            return Err(format!("{what}: {} of memory, limit {max}", megabytes(peak)));
        }
        Ok(())
    }

    /// Stops the server and verifies its file.
    pub(crate) fn end(mut self) -> CheckResult {
        self.server.stop()?;
        let events = self.server.verify()?;
        println!("verified  {} events and their replay", count(events));
        Ok(())
    }
}

/// The message that opens a subscription.
pub(crate) fn subscribe(sql: &str, params: JsonValue, from: Option<i64>) -> JsonValue {
    let mut message = json!({"op": "subscribe", "id": "q", "sql": sql, "params": params});
    if let Some(seq) = from {
        message["after_seq"] = seq.into();
    }
    message
}

/// The size of the messages for connections that do not read: a few fill the outbox.
pub(crate) const LOUD_BYTES: usize = limits::OUTBOX_BYTES / 128;

/// The time to write and sync a file of [`bounds::FLOOD_SYNC_BYTES`] in this folder, in milliseconds: the median of five.
fn sync_ms(folder: &TempDir) -> std::io::Result<f64> {
    let mut times = Vec::new();
    let bytes = vec![1; bounds::FLOOD_SYNC_BYTES];
    for _ in 0..5 {
        let mut file = tempfile::tempfile_in(folder)?;
        let begun = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1_000.0);
    }
    Ok(percentile(&times, 50.0))
}
