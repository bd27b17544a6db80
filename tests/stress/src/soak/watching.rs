//! Subscribers: SDK subscriptions with checksums, and `abide watch` as a process. Their final
//! state, built only from received updates, must equal the result of their query.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use abide_client::{Abide, Subscription, Value};
use serde_json::Value as JsonValue;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::clients::ClientPool;
use crate::CheckResult;
use crate::pace::pause;
use crate::server::abide;

/// Watched through the SDK, one each, by identities that see everything or one tenant.
const QUERIES: [(&str, &str); 5] = [
    ("root", "SELECT id, status, updated_at FROM sessions"),
    ("supervisor", "SELECT call_id, tool_name FROM tool_calls WHERE status = 'claimed'"),
    ("acme", "SELECT id, session_id, content FROM agent_state"),
    ("root", "SELECT tool_name, status, count(*) FROM tool_calls GROUP BY tool_name, status"),
    ("zeta", "SELECT call_id, status FROM tool_calls ORDER BY call_id DESC LIMIT 20"),
];
/// Watched by `abide watch`; the first column is the key.
const PRINTED: [(&str, &str); 3] = [
    ("root", "SELECT id, status FROM sessions"),
    ("supervisor", "SELECT id, status FROM handoff_requests"),
    ("acme", "SELECT call_id, status FROM tool_calls"),
];
/// How long a subscription may take to match its query.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for one state before checking a later one.
const LEVEL: Duration = Duration::from_secs(2);

/// A running SDK subscription.
pub(crate) struct Watcher {
    sql: &'static str,
    abide: Abide,
    task: JoinHandle<CheckResult<Subscription>>,
}

impl Watcher {
    /// Starts to watch.
    pub(crate) async fn start(client_pool: &ClientPool, nth: u64) -> CheckResult<Watcher> {
        let (identity, sql) = QUERIES[(nth / 10) as usize % QUERIES.len()];
        let abide = client_pool.connect(identity).await?;
        let mut live =
            abide.subscribe(sql).checksum().await.map_err(|why| format!("{sql}: {why}"))?;
        let stopped = Arc::clone(&client_pool.ledger);
        let task = tokio::spawn(async move {
            while !stopped.is_stopped() {
                match timeout(Duration::from_millis(500), live.next()).await {
                    Ok(Some(Err(error))) => return Err(format!("{sql} ended: {error:#}")),
                    Ok(None) => return Err(format!("{sql} ended")),
                    Ok(Some(Ok(_))) | Err(_) => {}
                }
            }
            Ok(live)
        });
        Ok(Watcher { sql, abide, task })
    }

    /// Waits until the state equals the result of its query. Timers that fire meanwhile change
    /// both.
    pub(crate) async fn converge(self) -> CheckResult {
        let mut live = self.task.await.map_err(|why| why.to_string())??;
        let until = Instant::now() + PATIENCE;
        loop {
            let fresh = self
                .abide
                .sql(self.sql)
                .rows()
                .await
                .map_err(|why| format!("{}: {why}", self.sql))?;
            let wanted = sorted(fresh.rows.iter().map(|row| &**row));
            let soon = Instant::now() + LEVEL;
            while sorted(live.rows()) != wanted && timeout_at(soon, live.next()).await.is_ok() {}
            if sorted(live.rows()) == wanted {
                break;
            }
            if Instant::now() > until {
                let held = live.rows().len();
                let wanted = wanted.len();
                return Err(format!("{}: {held} rows at {}, not {wanted}", self.sql, live.seq()));
            }
        }
        match self.abide.mismatches() {
            0 => Ok(()),
            n => Err(format!("{}: {n} results differed from the server's", self.sql)),
        }
    }
}

/// Rows in a fixed order; a query without ORDER BY has none.
fn sorted<'a>(rows: impl Iterator<Item = &'a [Value]>) -> Vec<String> {
    let mut rows: Vec<String> = rows.map(|row| format!("{row:?}")).collect();
    rows.sort();
    rows
}

/// The output of `abide watch` as rows by key.
type Printed = Arc<Mutex<CheckResult<BTreeMap<String, JsonValue>>>>;

/// `abide watch` as a process.
pub(crate) struct Printer {
    sql: &'static str,
    identity: &'static str,
    child: Child,
    printed: Printed,
    /// What it writes to stderr.
    messages: File,
}

impl Printer {
    /// Starts the process, and waits for its first output. It restores a lost connection, but ends if the first one fails,
    /// so it is started again, like [`ClientPool::connect`] connects again.
    pub(crate) async fn start(client_pool: &ClientPool, nth: u64) -> CheckResult<Printer> {
        let (identity, sql) = PRINTED[(nth / 10) as usize % PRINTED.len()];
        let until = Instant::now() + PATIENCE;
        loop {
            let (printer, first) = Printer::spawn(client_pool, identity, sql)?;
            match timeout_at(until, first).await {
                Ok(Ok(())) => return Ok(printer),
                Ok(Err(_)) => pause(Duration::from_millis(100)).await,
                Err(_) => return Err(printer.failure("no first output")),
            }
        }
    }

    /// Also returns the event of the first output, which does not come if the process ends.
    fn spawn(
        client_pool: &ClientPool,
        identity: &'static str,
        sql: &'static str,
    ) -> CheckResult<(Printer, oneshot::Receiver<()>)> {
        let messages = tempfile::tempfile().map_err(|why| why.to_string())?;
        let stderr = messages.try_clone().map_err(|why| why.to_string())?;
        let mut command = abide()?;
        command.args(["watch", sql, "--json", "--url", &client_pool.url]);
        command.args(["--token", client_pool.token(identity)?]);
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(|why| why.to_string())?;
        let stdout = child.stdout.take().ok_or("stdout is piped")?;
        let printed: Printed = Arc::new(Mutex::new(Ok(BTreeMap::new())));
        let into = Arc::clone(&printed);
        let (has_printed, first) = oneshot::channel();
        thread::spawn(move || {
            let mut has_printed = Some(has_printed);
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let mut rows = into.lock().unwrap_or_else(PoisonError::into_inner);
                if let Ok(held) = &mut *rows
                    && let Err(why) = apply_line(held, &line)
                {
                    *rows = Err(why);
                }
                // The receiver is gone after a failed start.
                let _ = has_printed.take().map(|first| first.send(()));
            }
        });
        Ok((Printer { sql, identity, child, printed, messages }, first))
    }

    /// Waits until the printed state equals the result of its query.
    pub(crate) async fn converge(mut self, client_pool: &ClientPool) -> CheckResult {
        let abide = client_pool.connect(self.identity).await?;
        let until = Instant::now() + PATIENCE;
        loop {
            let fresh = abide.sql(self.sql).rows().await.map_err(|why| why.to_string())?;
            let rows = fresh
                .rows
                .iter()
                .map(|row| row.iter().map(Value::to_json).collect())
                .map(|row: Vec<JsonValue>| (row[0].to_string(), row.into()));
            let wanted: BTreeMap<String, JsonValue> = rows.collect();
            let soon = Instant::now() + LEVEL;
            while self.printed_rows()? != wanted && Instant::now() < soon {
                pause(Duration::from_millis(20)).await;
            }
            let held = self.printed_rows()?;
            if held == wanted {
                return self.end();
            }
            if Instant::now() > until {
                let ended = self.child.try_wait().map_err(|why| why.to_string())?;
                let held = held.len();
                let wanted = wanted.len();
                let why = format!("{held} rows, not {wanted}; its end: {ended:?}");
                return Err(self.failure(&why));
            }
        }
    }

    /// An error with what the process has written to stderr.
    fn failure(&self, why: &str) -> String {
        let mut messages = String::new();
        let mut file = &self.messages;
        if let Err(error) = file.rewind().and_then(|()| file.read_to_string(&mut messages)) {
            messages = format!("no messages: {error}");
        }
        format!("abide watch {:?}: {why}\n{messages}", self.sql)
    }

    fn printed_rows(&self) -> CheckResult<BTreeMap<String, JsonValue>> {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(&mut self) -> CheckResult {
        self.child.kill().map_err(|why| format!("abide watch {:?} ended: {why}", self.sql))
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Applies one line to the rows: no insert of a present row, no delete of an absent one.
fn apply_line(held: &mut BTreeMap<String, JsonValue>, line: &str) -> CheckResult {
    let output: JsonValue = serde_json::from_str(line).map_err(|why| format!("{why}: {line}"))?;
    let list = |value: &JsonValue| value.as_array().cloned().unwrap_or_default();
    match output["op"].as_str() {
        Some("snapshot") => {
            held.clear();
            held.extend(list(&output["rows"]).into_iter().map(|row| (row[0].to_string(), row)));
        }
        Some("delta" | "rerun") => {
            for change in list(&output["changes"]) {
                for gone in list(&change["deletes"]) {
                    let key = if gone.is_array() { gone[0].to_string() } else { gone.to_string() };
                    held.remove(&key).ok_or(format!("delete of an absent row: {line}"))?;
                }
                for row in list(&change["inserts"]) {
                    let before = held.insert(row[0].to_string(), row);
                    before.map_or(Ok(()), |_| Err(format!("insert of a present row: {line}")))?;
                }
                for row in list(&change["updates"]) {
                    let before = held.insert(row[0].to_string(), row);
                    before.ok_or(format!("update of an absent row: {line}"))?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}
