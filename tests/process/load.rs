//! Programs that write to a server, and a ledger of all responses.
//!
//! Each call has its own request id and is retried until it gets a response, so the final ledger
//! must equal the log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use abide_client::{Abide, Call};
use rusqlite::Connection;
use serde_json::{Value as JsonValue, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::program::PATIENCE;
use crate::server::Server;

/// The number of concurrent writers.
pub(crate) const WRITERS: usize = 8;

/// One call as it was acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AcknowledgedCall {
    pub(crate) seq: i64,
    pub(crate) request_id: String,
    pub(crate) reducer: String,
    pub(crate) arguments: JsonValue,
    pub(crate) result: JsonValue,
}

/// A claim that is not released.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeldClaim {
    pub(crate) fencing_token: i64,
    pub(crate) attempt: i64,
}

/// The acknowledged calls.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    output: Mutex<Vec<AcknowledgedCall>>,
    held: Mutex<BTreeMap<String, HeldClaim>>,
    count: watch::Sender<usize>,
    stop: AtomicBool,
}

impl Ledger {
    /// All calls in the order of the log.
    pub(crate) fn output(&self) -> Vec<AcknowledgedCall> {
        let mut output = self.output.lock().unwrap().clone();
        output.sort_by_key(|output| output.seq);
        output
    }

    /// The held claims, by call.
    pub(crate) fn claims(&self) -> BTreeMap<String, HeldClaim> {
        self.held.lock().unwrap().clone()
    }

    /// The number of acknowledged requests.
    pub(crate) fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until this many requests are acknowledged.
    pub(crate) async fn wait_for_count(&self, count: usize) {
        let mut output = self.count.subscribe();
        let reached = output.wait_for(|output| *output >= count);
        let reached = timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "no more responses");
    }

    /// Stops the writers after their current operation.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn add(&self, output: impl IntoIterator<Item = AcknowledgedCall>) {
        self.output.lock().unwrap().extend(output);
        self.count.send_modify(|count| *count += 1);
    }
}

/// A program that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    name: String,
    abide: Abide,
    ledger: Arc<Ledger>,
    requests: u64,
}

impl Writer {
    pub(crate) async fn new(server: &Server, name: &str, ledger: &Arc<Ledger>) -> Writer {
        let abide = server.client().await;
        let ledger = Arc::clone(ledger);
        Writer { name: name.to_owned(), abide, ledger, requests: 0 }
    }

    fn request_id(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.name, self.requests)
    }

    pub(crate) async fn call(&mut self, reducer: &str, arguments: JsonValue) -> JsonValue {
        let request_id = self.request_id();
        let request = self.abide.call_by_name(reducer, &arguments).request_id(&request_id);
        let called = request.await.unwrap_or_else(|why| panic!("{reducer} {arguments}: {why}"));
        let seq = called.seq.0;
        let result = called.value;
        let output = AcknowledgedCall {
            seq,
            request_id,
            reducer: reducer.to_owned(),
            arguments,
            result: result.clone(),
        };
        self.ledger.add([output]);
        result
    }

    async fn batch(&mut self, calls: &[(&str, JsonValue)]) {
        let request_id = self.request_id();
        let batch = calls.iter().map(|(reducer, arguments)| Call::new(*reducer, arguments));
        let called = self.abide.batch(batch).request_id(&request_id).await.unwrap();
        assert_eq!(called.value.len(), calls.len());
        let output = calls.iter().zip(&called.value).map(|((reducer, arguments), result)| {
            AcknowledgedCall {
                seq: result.seq.0,
                request_id: request_id.clone(),
                reducer: (*reducer).to_owned(),
                arguments: arguments.clone(),
                result: serde_json::to_value(&result.result).unwrap(),
            }
        });
        self.ledger.add(output);
    }

    /// Turns of an agent, until it must stop.
    async fn write(mut self) -> u64 {
        let session = self.name.clone();
        self.call("create_session", json!({"id": session, "agent": "load"})).await;
        let mut turn = 0;
        while !self.ledger.stop.load(Ordering::Relaxed) {
            turn += 1;
            self.turn(&session, turn).await;
        }
        let reconnects = self.abide.reconnects();
        self.abide.close().await;
        reconnects
    }

    async fn turn(&mut self, session: &str, turn: u64) {
        let call = format!("{session}/{turn}");
        // One text that the log stores whole, and one that the result only marks.
        let question = format!("{turn}. Where is my parcel? {}", "It was to come. ".repeat(5));
        self.call("append_message", message(session, "user", &question)).await;
        let request = json!({
            "call_id": call, "session_id": session, "tool_name": "track",
            "arguments": {"parcel": turn, "note": question},
        });
        self.call("request_tool_call", request).await;
        let claim = json!({"call_id": call, "lease_ms": 3_600_000});
        let claimed = self.call("claim_tool_call", claim).await;
        let token = claimed["fencing_token"].as_i64().unwrap();
        if turn % 3 == 1 {
            let attempt = claimed["attempt"].as_i64().unwrap();
            let held = HeldClaim { fencing_token: token, attempt };
            self.ledger.held.lock().unwrap().insert(call.clone(), held);
        } else {
            let done = json!({"call_id": call, "fencing_token": token, "result": {"at": "Bonn"}});
            self.call("complete_tool_call", done).await;
        }
        self.batch(&[
            ("append_message", message(session, "tool", "Bonn")),
            ("append_message", message(session, "assistant", "It is in Bonn.")),
        ])
        .await;
    }
}

fn message(session: &str, role: &str, content: &str) -> JsonValue {
    json!({"session_id": session, "role": role, "content": content})
}

/// The running writers.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) ledger: Arc<Ledger>,
    writers: JoinSet<u64>,
}

impl Load {
    pub(crate) async fn start(server: &Server) -> Load {
        let ledger = Arc::<Ledger>::default();
        let mut first = Writer::new(server, "first", &ledger).await;
        first.call("register_tool", json!({"name": "track"})).await;
        let mut writers = JoinSet::new();
        for number in 1..=WRITERS {
            let writer = Writer::new(server, &format!("w{number}"), &ledger).await;
            writers.spawn(writer.write());
        }
        Load { ledger, writers }
    }

    /// Waits for the writers; returns how often they lost their connections.
    pub(crate) async fn finish(&mut self) -> u64 {
        self.ledger.stop();
        let mut reconnects = 0;
        while let Some(ended) = timeout(PATIENCE, self.writers.join_next()).await.unwrap() {
            reconnects += ended.unwrap();
        }
        reconnects
    }
}

/// The log of a file in the form of the callers' responses.
pub(crate) fn log(file: &Connection) -> Vec<AcknowledgedCall> {
    let sql = "SELECT seq, request_id, reducer, arguments, outcome FROM events ORDER BY seq";
    let mut statement = file.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| {
        let json = |at: usize| -> JsonValue {
            serde_json::from_str(&row.get::<_, String>(at).unwrap()).unwrap()
        };
        let arguments = json(3);
        Ok(AcknowledgedCall {
            seq: row.get(0)?,
            request_id: row.get(1)?,
            reducer: row.get(2)?,
            result: unmarked(json(4), &arguments),
            arguments,
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// A result as returned: the log only marks parts that repeat a long argument.
fn unmarked(mut outcome: JsonValue, arguments: &JsonValue) -> JsonValue {
    for (name, value) in outcome.as_object_mut().unwrap() {
        match value["$argument"].as_str() {
            Some("text") => *value = arguments[name].clone(),
            Some("json") => *value = arguments[name].to_string().into(),
            _ => {}
        }
    }
    outcome
}

/// Compares the log with the ledger: the same calls, each once, at the same seqs.
#[track_caller]
pub(crate) fn assert_log_is(file: &Connection, output: &[AcknowledgedCall]) {
    let log = log(file);
    for (at, event) in log.iter().enumerate() {
        assert_eq!(event.seq, i64::try_from(at).unwrap() + 1, "the log is dense");
        let Some(output) = output.get(at) else { panic!("{event:?} has no caller") };
        assert_eq!(event, output);
    }
    assert_eq!(log.len(), output.len(), "acknowledged but not in the log");
}
