//! A server on a new file with an admin, a caller who is timed and one who floods.

use std::time::Duration;

use abide_schema::limits;
use serde_json::Value as JsonValue;
use serde_json::json;
use tempfile::TempDir;

use super::bounds;
use crate::Told;
use crate::caller::{Caller, Waits};
use crate::figures::{count, figure, megabytes};
use crate::http::Http;
use crate::pace::pause_thread;
use crate::server::{Server, abide, output, raise_open_files};

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Connections that stand at a time.
    pub(crate) connections: usize,
    /// Of these, such that never read.
    pub(crate) mutes: usize,
    /// Messages that all of those are sent.
    pub(crate) messages: usize,
    /// Clients that send a byte a second, of each kind.
    pub(crate) lorises: usize,
    /// Messages beyond any size, of each kind.
    pub(crate) oversize: usize,
    /// How long somebody floods.
    pub(crate) flood: Duration,
    /// How long the quiet is measured.
    pub(crate) quiet: Duration,
    /// How long each expensive query is repeated.
    pub(crate) query: Duration,
}

impl Size {
    /// All that the server takes in (`CONNECTIONS` in `server/src/limits.rs`).
    pub(crate) const WHOLE: Size = Size {
        connections: 10_000,
        mutes: 1_000,
        messages: 600,
        lorises: 100,
        oversize: 16,
        flood: Duration::from_secs(8),
        quiet: Duration::from_secs(5),
        query: Duration::from_secs(4),
    };
    /// What CI has time for.
    pub(crate) const SHARE: Size = Size {
        connections: 2_000,
        mutes: 200,
        messages: 200,
        lorises: 20,
        oversize: 4,
        flood: Duration::from_secs(3),
        quiet: Duration::from_secs(3),
        query: Duration::from_secs(1),
    };
}

/// Files that are open beside sockets.
const OTHER_FILES: u64 = 200;

/// See the [module](self).
pub(crate) struct Stage {
    pub(crate) size: Size,
    pub(crate) server: Server,
    /// An admin's token.
    pub(crate) admin: String,
    /// The token of the caller who is timed. He has a name of his own, so that he is another caller than
    /// whoever floods.
    timed: String,
    /// The token of somebody with an allowance, which floods.
    pub(crate) flooder: String,
    /// The token of another tenant, which runs expensive queries.
    pub(crate) attacker: String,
    quiet: Waits,
    _folder: TempDir,
}

impl Stage {
    /// Makes the file, and starts the server.
    pub(crate) async fn set(size: Size) -> Told<Stage> {
        let files = raise_open_files();
        let wanted = size.connections as u64 + OTHER_FILES;
        if files < wanted {
            return Err(format!("a process may open {files} files here, and {wanted} are needed"));
        }
        let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
        let db = folder.path().join("abide.db");
        let token = |args: &[&str]| -> Told<String> {
            let told = output(abide()?.args(["token", "create"]).args(args).arg("--db").arg(&db))?;
            Ok(told.trim().to_owned())
        };
        let admin = token(&["root", "--role", "admin", "--can", "*"])?;
        let timed = token(&["timed", "--role", "app"])?;
        let flooder = token(&["flooder", "--role", "app", "--rate", "50/1s"])?;
        let attacker = token(&["zeta", "--role", "app", "--scope", "tenant=zeta"])?;
        let server = Server::start(&db)?;
        let (quiet, _folder) = (Waits::default(), folder);
        let stage = Stage { size, server, admin, timed, flooder, attacker, quiet, _folder };
        let mut http = stage.http(&stage.admin).await?;
        for id in ["timed", "loud", "board", "flooded"] {
            let session = json!({"agent": "siege", "id": id}).to_string();
            let made = http.post("/v1/call/create_session", &session).await;
            let made = made.map_err(|why| why.to_string())?;
            if made.status != 200 {
                return Err(format!("create_session was answered {made}"));
            }
        }
        Ok(stage)
    }

    /// A connection for requests.
    pub(crate) async fn http(&self, token: &str) -> Told<Http> {
        Http::connect(self.server.address, token).await.map_err(|why| why.to_string())
    }

    /// Somebody whose calls are timed.
    pub(crate) fn caller(&self) -> Caller {
        Caller::start(self.server.address, &self.timed, "timed")
    }

    /// A caller that repeats a short query and is timed.
    pub(crate) fn reader(&self) -> Caller {
        let query = r#"{"sql": "SELECT id, status FROM sessions WHERE id = 'timed'"}"#.to_owned();
        Caller::repeat(self.server.address, &self.timed, "/v1/sql", query)
    }

    /// What a call takes when nothing else goes on.
    pub(crate) fn quiet(&mut self) -> Told {
        let caller = self.caller();
        pause_thread(self.size.quiet);
        self.quiet = caller.stop()?;
        let (p50, p99) = (self.quiet.p50(), self.quiet.p99());
        println!(
            "quiet     {} calls, p50 {p50:.2} ms, p99 {p99:.2} ms",
            count(self.quiet.ms.len() as u64)
        );
        Ok(())
    }

    /// Holds what a caller waited to what it waited when it was quiet.
    pub(crate) fn hold_waits(&self, what: &str, waits: &Waits, most: f64) -> Told {
        let (p50, p99, quiet) = (waits.p50(), waits.p99(), self.quiet.p99());
        let factor = p99 / quiet;
        println!(
            "{what:<9} {} calls of another caller, p50 {p50:.2} ms, p99 {p99:.2} ms, {factor:.1} times the \
             quiet one; {} refused, {} connections lost",
            count(waits.ms.len() as u64),
            waits.refused,
            waits.lost
        );
        figure(
            &format!("another caller's p99 in the {what}, against quiet"),
            format!("{factor:.1} times ({p99:.1} ms), at most {most:.0} times"),
        );
        if waits.ms.is_empty() {
            return Err(format!("{what}: another caller was not answered at all"));
        }
        if factor > most && p99 > bounds::NOTICED_MS {
            return Err(format!("{what}: another caller waits {factor:.1} times as long"));
        }
        Ok(())
    }

    /// Holds the server's memory to a bound.
    pub(crate) fn hold_memory(&self, what: &str, most: u64) -> Told {
        let (now, peak) = self.server.memory()?;
        println!("{what:<9} server's memory {} at most, now {}", megabytes(peak), megabytes(now));
        figure(
            &format!("server's memory in the {what}"),
            format!("{}, at most {}", megabytes(peak), megabytes(most)),
        );
        if peak > most {
            return Err(format!("{what}: {} of memory, at most {most}", megabytes(peak)));
        }
        Ok(())
    }

    /// Stops the server, and holds its file to what it must be.
    pub(crate) fn end(mut self) -> Told {
        self.server.stop()?;
        let events = self.server.verify()?;
        println!("verified  {} events, and their replay", count(events));
        Ok(())
    }
}

/// The message that begins a subscription.
pub(crate) fn subscribe(sql: &str, params: JsonValue, from: Option<i64>) -> JsonValue {
    let mut message = json!({"op": "subscribe", "id": "q", "sql": sql, "params": params});
    if let Some(seq) = from {
        message["from"] = seq.into();
    }
    message
}

/// How large the messages are that everybody hears who does not read: a few fill the outbox.
pub(crate) const LOUD_BYTES: usize = limits::OUTBOX_BYTES / 128;
