//! The final checks: no call stays claimed, subscribers converge, every acknowledged call is in the
//! log and a retry returns the same result, at-most-once effects ran once, leases did not overlap,
//! the log verifies, and its replay gives the same rows.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use abide_client::{Abide, Value};
use abide_sim::checks::leases;
use serde_json::Value as JsonValue;

use super::clients::ClientPool;
use super::faults::FaultInjector;
use super::ledger::Acknowledged;
use super::watching::{Printer, Watcher};
use crate::CheckResult;
use crate::figures::count;
use crate::pace::pause;

/// The time for leases to expire, with a margin for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// One of this many acknowledged calls is retried, and all of the last ones.
const ASKED_AGAIN: usize = 23;
/// See [`ASKED_AGAIN`].
const LAST: usize = 200;
/// Events to read at a time.
const PAGE: i64 = 20_000;

/// The result of the checks.
pub(crate) struct Counted {
    pub(crate) output: u64,
    /// Bytes of their arguments.
    pub(crate) bytes: u64,
    pub(crate) events: u64,
    pub(crate) effects: u64,
    pub(crate) converged: usize,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} acknowledged calls, all in the log; {} events verified and replayed; {} effects, at-most-once \
             ones never twice; {} subscriptions converged",
            count(self.output),
            count(self.events),
            count(self.effects),
            self.converged
        )
    }
}

/// Runs all checks.
pub(crate) async fn reach(
    faults: &mut FaultInjector,
    client_pool: &ClientPool,
    watchers: Vec<Watcher>,
    printers: Vec<Printer>,
) -> CheckResult<Counted> {
    let root = client_pool.connect("root").await?;
    nothing_stays_claimed(&root).await?;
    let converged = watchers.len() + printers.len();
    for watcher in watchers {
        watcher.converge().await?;
    }
    for printer in printers {
        printer.converge(client_pool).await?;
    }
    let output = client_pool.ledger.output();
    let log = log(&root).await?;
    let bytes = acknowledged_is_there(&output, &log)?;
    asked_again(client_pool, &output).await?;
    let effects = client_pool.ledger.effects();
    effects.check().map_err(|found| found.to_string())?;
    leases::check(&log.values().map(Event::step).collect::<Vec<_>>())
        .map_err(|found| found.to_string())?;
    root.close().await;
    faults.server.stop()?;
    let events = faults.server.verify()?;
    if events < log.len() as u64 {
        return Err(format!("{} events were read, but the file has {events}", log.len()));
    }
    let effects = effects.count().into();
    Ok(Counted { output: output.len() as u64, bytes, events, effects, converged })
}

async fn nothing_stays_claimed(root: &Abide) -> CheckResult {
    let sql = "SELECT call_id FROM tool_calls WHERE status = 'claimed'
        UNION ALL SELECT id FROM handoff_requests WHERE status = 'claimed'";
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let claimed: Vec<String> = root.sql(sql).fetch().await.map_err(|why| why.to_string())?;
        if claimed.is_empty() {
            return Ok(());
        }
        if tokio::time::Instant::now() > until {
            return Err(format!("still claimed after {PATIENCE:?}: {claimed:?}"));
        }
        pause(Duration::from_millis(200)).await;
    }
}

/// The checked part of an event.
struct Event {
    seq: i64,
    at: i64,
    caller: String,
    request_id: Option<String>,
    reducer: String,
    arguments: JsonValue,
    outcome: JsonValue,
}

impl Event {
    fn read(row: &[Value]) -> CheckResult<Event> {
        let cells: Vec<JsonValue> = row.iter().map(Value::to_json).collect();
        let text = |at: usize| cells[at].as_str().unwrap_or_default().to_owned();
        let number = |at: usize| cells[at].as_i64().ok_or("an event has no number");
        Ok(Event {
            seq: number(0)?,
            at: number(1)?,
            caller: text(2),
            request_id: cells[3].as_str().map(str::to_owned),
            reducer: text(4),
            arguments: serde_json::from_str(&text(5)).unwrap_or_default(),
            outcome: serde_json::from_str(&text(6)).unwrap_or_default(),
        })
    }

    fn step(&self) -> leases::Step {
        leases::Step {
            seq: self.seq,
            at: self.at,
            reducer: self.reducer.clone(),
            arguments: self.arguments.clone(),
            outcome: self.outcome.clone(),
        }
    }
}

/// The whole log, in order.
async fn log(root: &Abide) -> CheckResult<BTreeMap<i64, Event>> {
    let sql = "SELECT seq, at, caller, request_id, reducer, arguments, outcome FROM events
        WHERE seq > :after AND seq <= :last ORDER BY seq";
    let mut log = BTreeMap::new();
    let mut after = 0;
    loop {
        let page = root
            .sql(sql)
            .param("after", after)
            .param("last", after + PAGE)
            .rows()
            .await
            .map_err(|why| why.to_string())?;
        if page.rows.is_empty() {
            return Ok(log);
        }
        for row in &page.rows {
            let event = Event::read(row)?;
            if event.seq != after + 1 {
                return Err(format!("event {after} is followed by {}", event.seq));
            }
            after = event.seq;
            log.insert(event.seq, event);
        }
    }
}

/// Checks that each acknowledged call is in the log at its reported seq with its arguments, and
/// that no request is there twice. Returns the bytes of arguments.
fn acknowledged_is_there(output: &[Acknowledged], log: &BTreeMap<i64, Event>) -> CheckResult<u64> {
    let mut seen: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for event in log.values() {
        // Request ids of clients contain a colon; the command line's batches are several events
        // each.
        let own = event.request_id.as_deref().filter(|id| id.contains(':'));
        let Some(request_id) = own else { continue };
        if let Some(first) = seen.insert((&event.caller, request_id), event.seq) {
            return Err(format!("{request_id} is in the log twice: {first} and {}", event.seq));
        }
    }
    let mut bytes = 0;
    for output in output {
        let is_whole = |event: &&Event| {
            let mut arguments = output
                .arguments
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, value)| !value.is_null());
            event.reducer == output.reducer
                && arguments.all(|(name, value)| event.arguments[name] == *value)
        };
        if log.get(&output.seq).filter(is_whole).is_none() {
            return Err(format!("acknowledged but not in the log: {output:?}"));
        }
        bytes += output.arguments.to_string().len() as u64;
    }
    Ok(bytes)
}

/// Checks that a retry returns the same result without running again.
async fn asked_again(client_pool: &ClientPool, output: &[Acknowledged]) -> CheckResult {
    let mut clients = BTreeMap::new();
    let last = output.len().saturating_sub(LAST);
    let chosen = output.iter().enumerate().filter(|(at, _)| *at >= last || at % ASKED_AGAIN == 0);
    for (_, output) in chosen {
        if !clients.contains_key(output.identity) {
            clients.insert(output.identity, client_pool.connect(output.identity).await?);
        }
        let abide = &clients[output.identity];
        let again = abide
            .call_by_name(&output.reducer, &output.arguments)
            .request_id(&output.request_id)
            .await
            .map_err(|why| format!("retry of {output:?} failed: {why}"))?;
        if !again.duplicate || again.seq.0 != output.seq || again.value != output.result {
            return Err(format!("retry of {output:?} returned {again:?}"));
        }
    }
    Ok(())
}
