//! SIGKILL at many moments: no acknowledged call is lost, no effect runs twice, and all clients
//! recover by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use abide_client::{Abide, Code, Subscription, Update};
use rusqlite::Connection;
use serde_json::{Value as JsonValue, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::load::{AcknowledgedCall, HeldClaim, Ledger, Load, assert_log_is};
use crate::program::{PATIENCE, run};
use crate::server::Server;

/// The number of acknowledged requests between a start and the next kill.
const KILLS: [usize; 25] =
    [1, 1, 2, 3, 1, 4, 5, 6, 2, 7, 8, 9, 1, 10, 12, 15, 3, 18, 22, 27, 5, 33, 40, 50, 60];

/// Queries that are watched throughout, two on a connection.
const WATCHED: [[&str; 2]; 2] = [
    [
        "SELECT * FROM agent_state ORDER BY id",
        "SELECT * FROM tool_calls WHERE status = 'claimed' ORDER BY call_id",
    ],
    [
        "SELECT id, content FROM agent_state WHERE session_id = 'w1' AND role = 'user' ORDER BY id",
        "SELECT seq, reducer, request_id FROM events ORDER BY seq",
    ],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing_and_does_nothing_twice() {
    let mut server = Server::start();
    let (done, is_done) = watch::channel(false);
    let mut watchers = JoinSet::new();
    for both in WATCHED {
        let abide = server.client().await;
        for sql in both {
            watchers.spawn(watch_throughout(abide.clone(), sql, is_done.clone()));
        }
    }
    let mut load = Load::start(&server).await;
    let ledger = Arc::clone(&load.ledger);
    for answers in KILLS {
        ledger.wait_for_count(ledger.count() + answers).await;
        server.kill();
        let output = ledger.output();
        let held = ledger.claims();
        server.start_again();
        assert_is_there(&server, &output);
        assert_held(&server.client().await, &held).await;
    }
    let reconnects = load.finish().await;
    assert!(reconnects >= KILLS.len() as u64, "{reconnects} reconnects");

    assert_log_is(&server.raw(), &ledger.output());
    assert_answers_are_remembered(&server.client().await, &ledger).await;
    done.send(true).unwrap();
    while let Some(watched) = timeout(PATIENCE, watchers.join_next()).await.unwrap() {
        watched.unwrap();
    }
    assert_claims_still_count(&server.client().await, &ledger.claims()).await;
    let events = server.verify();
    assert!(events > i64::try_from(ledger.output().len()).unwrap(), "the claims were completed");
    server.stop();
    assert_eq!(server.verify(), events);
}

/// The journal of a killed server is applied to the database as whoever opens it finds it. Each state of the database
/// leads to the same rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_recover_from_different_states_have_the_same_rows() {
    let mut server = Server::start();
    let abide = server.client().await;
    abide.call_by_name("create_session", json!({"agent": "a", "id": "early"})).await.unwrap();
    abide.close().await;
    // A clean end leaves a complete file.
    server.stop();
    server.start_again();
    let earlier = server.sibling("earlier.db");
    fs::copy(server.db(), &earlier).unwrap();
    let load = Load::start(&server).await;
    load.ledger.wait_for_count(150).await;
    // The database then has a part of the rows without its WAL.
    let other_program = Connection::open(server.db()).unwrap();
    other_program.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
    drop(other_program);
    load.ledger.wait_for_count(300).await;
    server.kill();
    let acknowledged = load.ledger.output().last().unwrap().seq;
    drop(load);
    assert!(fs::read(server.db()).unwrap() != fs::read(&earlier).unwrap());

    let wal = server.sibling("abide.db-wal");
    let states = [
        ("as it was left", server.db(), true),
        ("without its WAL", server.db(), false),
        ("from before", earlier, false),
    ];
    let mut found = Vec::new();
    for (name, database, has_wal) in states {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("abide.db");
        copy_with_journal(&server, &database, &copy);
        if has_wal {
            fs::copy(&wal, folder.path().join("abide.db-wal")).unwrap();
        }
        let verified = run(["verify", "--rows", "--json", copy.to_str().unwrap()]).json();
        assert!(verified["events"].as_i64().unwrap() >= acknowledged, "{name}: {verified}");
        assert!(verified["tables"].as_array().is_some_and(|it| !it.is_empty()), "{verified}");
        found.push((name, [&verified["head"], &verified["tables"]].map(JsonValue::to_string)));
    }
    for (name, rows) in &found {
        assert_eq!(*rows, found[0].1, "{name}");
    }
}

/// Copies a database, and next to it the journal of the server.
fn copy_with_journal(server: &Server, database: &Path, into: &Path) {
    fs::copy(database, into).unwrap();
    let mut segments = 0;
    for entry in fs::read_dir(server.folder()).unwrap() {
        let segment = entry.unwrap();
        if segment.file_name().to_string_lossy().starts_with("abide.db-redo-") {
            fs::copy(segment.path(), into.with_file_name(segment.file_name())).unwrap();
            segments += 1;
        }
    }
    assert!(segments > 0, "the server has left no journal");
}

/// Right after a restart: calls acknowledged before the kill are in the file.
fn assert_is_there(server: &Server, output: &[AcknowledgedCall]) {
    let log = crate::load::log(&server.raw());
    for output in output {
        let event = usize::try_from(output.seq - 1).ok().and_then(|at| log.get(at));
        assert_eq!(event, Some(output), "acknowledged but lost");
    }
}

async fn assert_held(abide: &Abide, held: &BTreeMap<String, HeldClaim>) {
    let sql = "SELECT call_id, fencing_token, attempt FROM tool_calls WHERE status = 'claimed'";
    let rows: Vec<(String, i64, i64)> = abide.sql(sql).fetch().await.unwrap();
    let claimed: BTreeMap<String, HeldClaim> = rows
        .into_iter()
        .map(|(call, fencing_token, attempt)| (call, HeldClaim { fencing_token, attempt }))
        .collect();
    for (call, held) in held {
        assert_eq!(claimed.get(call), Some(held), "the claim of {call}");
    }
    abide.close().await;
}

/// A retry with the same request id returns the same result.
async fn assert_answers_are_remembered(abide: &Abide, ledger: &Ledger) {
    let output = ledger.output();
    let mut by_request: BTreeMap<&str, Vec<&AcknowledgedCall>> = BTreeMap::new();
    for output in &output {
        by_request.entry(&output.request_id).or_default().push(output);
    }
    for output in by_request.values().filter(|output| output.len() == 1).map(|output| output[0]) {
        let again = abide
            .call_by_name(&output.reducer, &output.arguments)
            .request_id(&output.request_id)
            .await
            .unwrap();
        assert!(again.duplicate, "{output:?} ran again");
        assert_eq!((again.seq.0, &again.value), (output.seq, &output.result), "{output:?}");
    }
    let other = abide.call_by_name("create_session", json!({"agent": "other"})).request_id("w1-1");
    assert_eq!(other.await.unwrap_err().code(), Some(Code::RequestIdConflict));
    let count: Vec<i64> = abide.sql("SELECT max(seq) FROM events").fetch().await.unwrap();
    assert_eq!(count, [i64::try_from(output.len()).unwrap()], "retries write nothing");
}

/// A claim from before the kills still excludes others, and its token completes the call.
async fn assert_claims_still_count(abide: &Abide, held: &BTreeMap<String, HeldClaim>) {
    assert!(!held.is_empty(), "nothing was claimed");
    for (call, HeldClaim { fencing_token, .. }) in held {
        let claim = abide.call_by_name("claim_tool_call", json!({"call_id": call})).await;
        assert_eq!(claim.unwrap_err().code(), Some(Code::Conflict), "{call} can be claimed again");
        let complete = |token: i64| {
            let args = json!({"call_id": call, "fencing_token": token, "result": "done"});
            abide.call_by_name("complete_tool_call", args)
        };
        let wrong = complete(fencing_token + 1).await;
        assert_eq!(wrong.unwrap_err().code(), Some(Code::LeaseLost));
        assert_eq!(complete(*fencing_token).await.unwrap().value["status"], "succeeded");
    }
}

/// Watches a query to the end: no insert of a present row, no delete of an absent one, and finally
/// the result of a fresh query.
async fn watch_throughout(abide: Abide, sql: &'static str, mut done: watch::Receiver<bool>) {
    let mut live = abide.subscribe(sql).checksum().await.unwrap();
    let mut copy = BTreeSet::new();
    loop {
        tokio::select! {
            update = live.try_next() => apply(&mut copy, &live, &update.unwrap().unwrap()),
            _ = done.wait_for(|done| *done) => break,
        }
    }
    let fresh = abide.sql(sql).rows().await.unwrap().rows;
    let fresh: Vec<&[abide_client::Value]> = fresh.iter().map(|row| &**row).collect();
    while !live.rows().eq(fresh.iter().copied()) {
        let update = timeout(PATIENCE, live.try_next())
            .await
            .unwrap_or_else(|_| panic!("{sql} does not converge"));
        apply(&mut copy, &live, &update.unwrap().unwrap());
    }
    assert_eq!(copy.len(), fresh.len(), "{sql}");
    assert!(!fresh.is_empty(), "{sql}: the result is empty");
    assert_eq!(abide.mismatches(), 0, "{sql}: rows that the server does not hold");
    assert!(abide.reconnects() > 0, "{sql}");
}

/// Applies an update to a copy of the rows' keys.
fn apply(copy: &mut BTreeSet<String>, live: &Subscription, update: &Update) {
    let columns: Vec<usize> = (live.key().iter())
        .map(|name| live.columns().iter().position(|column| column.name == *name).unwrap())
        .collect();
    let text = |key: &[abide_client::Value]| {
        JsonValue::Array(key.iter().map(abide_client::Value::to_json).collect()).to_string()
    };
    let key = |row: &[abide_client::Value]| {
        text(&columns.iter().map(|at| row[*at].clone()).collect::<Vec<_>>())
    };
    assert!(update.from <= update.seq);
    for gone in update.delete_keys() {
        assert!(copy.remove(&text(gone)), "delete of an absent row {gone:?}");
    }
    for row in update.insert_rows() {
        assert!(copy.insert(key(row)), "insert of a present row {row:?}");
    }
    for row in update.update_rows() {
        assert!(copy.contains(&key(row)), "update of an absent row {row:?}");
    }
}
