//! A long fork through SIGKILL: its steps are transactions of their own, so a process can end between any two of them. A
//! fork that did not continue by itself would leave a session that refuses all calls for ever.

use abide_client::arguments::{AppendMessage, CreateSession, ForkSession};
use abide_client::{Abide, Call, Code};
use serde_json::{Value as JsonValue, json};
use tokio::time::timeout;

use crate::program::{PATIENCE, run};
use crate::server::Server;

/// Rounds of a question, an answer with a call, and its result: some forty steps copy them.
const ROUNDS: usize = 2_000;

const FACTS: usize = 300;

/// The messages of the copy after which the server is killed, in hundredths.
const KILLS: [usize; 5] = [1, 8, 16, 24, 32];

/// A session `s` with messages, outcomes of calls and facts.
async fn history(abide: &Abide) {
    let tool = json!({"name": "look", "effect": "read_only"});
    abide.call_by_name("register_tool", tool).await.unwrap();
    abide.call(CreateSession::new("clerk").id("s")).await.unwrap();
    let mut calls = Vec::new();
    for nth in 0..ROUNDS {
        let call_id = format!("c{nth}");
        let data = json!({"calls": [{"call_id": call_id, "name": "look"}]});
        let request = json!({"call_id": call_id, "session_id": "s", "tool_name": "look", "arguments": {"n": nth}});
        calls.extend([
            Call::new(
                "append_message",
                json!({"session_id": "s", "role": "user", "content": nth.to_string()}),
            ),
            Call::new("request_tool_call", request),
            Call::new(
                "append_message",
                json!({"session_id": "s", "role": "assistant", "content": "I look.", "data": data}),
            ),
            Call::new("cancel_tool_call", json!({"call_id": call_id})),
            Call::new("append_message", json!({"session_id": "s", "role": "tool", "content": "none", "data": {"call_id": call_id}})),
        ]);
    }
    let facts: Vec<JsonValue> =
        (0..FACTS).map(|nth| json!({"key": format!("k{nth}"), "value": "v"})).collect();
    for facts in facts.chunks(100) {
        let facts = json!({"namespace": "clerk", "session_id": "s", "facts": facts});
        calls.push(Call::new("save_memories", facts));
    }
    for calls in calls.chunks(200) {
        abide.batch(calls.to_vec()).await.unwrap();
    }
}

/// All that a session has, without what differs in a copy: ids, times and events.
async fn contents(abide: &Abide, session: &str) -> Vec<Vec<JsonValue>> {
    let mut all = Vec::new();
    for sql in [
        "SELECT e.role, e.kind, e.content, e.data ->> '$.calls[0].name', c.tool_name, c.arguments, c.status, c.error, c.attempt
         FROM agent_state AS e
         LEFT JOIN tool_calls AS c ON c.call_id = coalesce(e.data ->> '$.call_id', e.data ->> '$.calls[0].call_id') AND c.session_id = e.session_id
         WHERE e.session_id = :session ORDER BY e.id",
        "SELECT namespace, key, value, confidence FROM memories WHERE session_id = :session ORDER BY key",
        "SELECT count(*), count(DISTINCT call_id) FROM tool_calls WHERE session_id = :session",
        "SELECT agent, status, reason, scope, metadata FROM sessions WHERE id = :session",
    ] {
        let found = abide.sql(sql).param("session", session).rows().await.unwrap().rows;
        let row = |row: &abide_client::Row| row.iter().map(abide_client::Value::to_json).collect();
        all.push(found.iter().map(row).collect());
    }
    all
}

/// The fork is killed between many of its steps. Its caller still waits: its client repeats the request with the same id
/// after each restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_fork_is_completed_through_many_kills() {
    let mut server = Server::start();
    let abide = server.client().await;
    history(&abide).await;
    let mut live = abide.subscribe("SELECT session_id, messages FROM session_forks").await.unwrap();
    let fork = ForkSession::new("s").id("f");
    let caller = server.client().await;
    let waiting = tokio::spawn(caller.call(fork.clone()).request_id("once").send());
    let total = 3 * ROUNDS;
    for hundredths in KILLS {
        while live
            .typed_rows::<(String, usize)>()
            .unwrap()
            .first()
            .is_none_or(|row| row.1 < total * hundredths / 100)
        {
            timeout(PATIENCE, live.try_next()).await.expect("the fork goes on").unwrap();
        }
        server.kill();
        server.start_again();
        // How many of these calls are refused depends on the speed of the machine: a restart can take longer than all the steps
        // that are left. `tests/it/forks.rs` stops at each step and counts the refusals. A title is no part of the history.
        let at_once = server.client().await;
        let call = at_once.call_by_name("update_session", json!({"session_id": "f", "title": "x"}));
        match call.await {
            Ok(_) => assert_eq!(
                abide.sql("SELECT count(*) FROM session_copies").fetch::<i64>().await.unwrap(),
                [0]
            ),
            Err(error) => assert_eq!(error.code(), Some(Code::Conflict), "{error}"),
        }
    }
    let first = timeout(PATIENCE, waiting).await.expect("the fork is completed").unwrap().unwrap();
    let fork_row = &first.value;
    assert_eq!((fork_row.messages, fork_row.calls), (total as i64, ROUNDS as i64));
    assert!(fork_row.ended_at.is_some());
    assert_eq!(contents(&abide, "f").await, contents(&abide, "s").await);
    let again = abide.call(fork).request_id("once").await.unwrap();
    assert!(again.duplicate, "it was forked again");
    assert_eq!((again.seq, again.value), (first.seq, first.value));
    let counts = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM session_forks), (SELECT count(*) FROM session_copies),
        (SELECT count(*) FROM events WHERE reducer = 'fork_session')";
    assert_eq!(abide.sql(counts).fetch::<(i64, i64, i64, i64)>().await.unwrap(), [(2, 1, 0, 1)]);
    abide.call(AppendMessage::new("f", "user", Some("Go on.".to_owned()))).await.unwrap();
    abide.close().await;
    caller.close().await;
    server.stop();
    let replayed = run(["verify", "--replay", "--json", server.db().to_str().unwrap()]).json();
    assert_eq!(replayed["verified"], true, "{replayed}");
}
