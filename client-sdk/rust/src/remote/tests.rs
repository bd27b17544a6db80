//! The client against a scripted server, over pipes and in virtual time: lost connections, gaps,
//! duplicates, silence.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_schema::{Checksum, Value, wire};
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use serde_json::{Value as Json, json};
use tokio::io::DuplexStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message as Said;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::handshake::server;

use super::dial::{Io, handshake};
use super::*;
use crate::{Abide, Subscription};

/// Accepts connections. While it is closed, they are refused.
#[derive(Clone)]
struct Port {
    arrivals: UnboundedSender<DuplexStream>,
    open: Arc<Mutex<bool>>,
}

impl Port {
    fn new() -> (Port, UnboundedReceiver<DuplexStream>) {
        let (arrivals, listener) = unbounded_channel();
        (Port { arrivals, open: Arc::new(Mutex::new(true)) }, listener)
    }

    fn set_open(&self, open: bool) {
        *self.open.lock().expect("not poisoned") = open;
    }

    fn dial(&self) -> Dial {
        let port = self.clone();
        Arc::new(move || {
            let port = port.clone();
            Box::pin(async move {
                let unreachable = |why: &str| Err(Error::unreachable("test", why));
                if !*port.open.lock().expect("not poisoned") {
                    return unreachable("no server is listening");
                }
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                if port.arrivals.send(theirs).is_err() {
                    return unreachable("the test is over");
                }
                let address =
                    Address::parse("http://test", Some("secret"), &TlsOptions::default())?;
                let request: Request = address.request();
                let stream: Box<dyn Io> = Box::new(ours);
                handshake(request, stream, "test").await
            })
        })
    }
}

/// The server's end of one connection.
struct Peer(WebSocketStream<DuplexStream>);

impl Peer {
    #[expect(clippy::result_large_err, reason = "the handshake's callback has this signature")]
    async fn accept(listener: &mut UnboundedReceiver<DuplexStream>) -> Peer {
        let stream = listener.recv().await.expect("the client comes");
        let socket = tokio_tungstenite::accept_hdr_async(
            stream,
            |request: &server::Request, mut response: server::Response| {
                assert_eq!(request.uri().path(), "/v1/ws");
                assert_eq!(request.headers()["authorization"], "Bearer secret");
                let protocol = request.headers()["sec-websocket-protocol"].clone();
                assert_eq!(protocol, "abide.v1");
                response.headers_mut().insert("sec-websocket-protocol", protocol);
                Ok(response)
            },
        )
        .await
        .expect("a handshake");
        let mut peer = Peer(socket);
        peer.send(json!({"op": "hello", "server": "abide", "version": "0", "seq": 0})).await;
        peer
    }

    async fn send(&mut self, message: Json) {
        self.0.send(Said::text(message.to_string())).await.expect("the client is there");
    }

    /// The next message that is not a ping.
    async fn receive(&mut self) -> Json {
        loop {
            let message = self.0.next().await.expect("the client is there").expect("it is sound");
            let Said::Text(text) = message else { continue };
            let message: Json = serde_json::from_str(&text).expect("it is JSON");
            if message["op"] != "ping" {
                return message;
            }
        }
    }

    /// Receives a subscribe; returns its id and `after_seq`.
    async fn receive_subscribe(&mut self) -> (String, Json) {
        let message = self.receive().await;
        assert_eq!(message["op"], "subscribe", "{message}");
        let id = message["id"].as_str().expect("an id").to_owned();
        (id, message["after_seq"].clone())
    }

    async fn send_snapshot(&mut self, id: &str, seq: i64, rows: Json) {
        self.send(json!({
            "op": "snapshot", "id": id, "seq": seq,
            "columns": [{"name": "id", "type": "INTEGER"}, {"name": "v", "type": "TEXT"}],
            "key": ["id"], "order": [], "rows": rows,
        }))
        .await;
    }

    async fn send_insert(&mut self, ids: &[&str], from: i64, to: i64, row: Json) {
        let changes: Vec<Json> = ids
            .iter()
            .map(|id| json!({"id": id, "deletes": [], "inserts": [row], "updates": []}))
            .collect();
        self.send(json!({"op": "delta", "from": from, "to": to, "changes": changes})).await;
    }

    async fn answer(&mut self, call: &Json, seq: i64) {
        let id = &call["id"];
        let result = json!({"ok": seq});
        let answer =
            json!({"op": "result", "id": id, "seq": seq, "result": result, "duplicate": false});
        self.send(answer).await;
    }
}

async fn connect(port: &Port, listener: &mut UnboundedReceiver<DuplexStream>) -> (Abide, Peer) {
    let (remote, peer) = tokio::join!(Remote::connect_with(port.dial()), Peer::accept(listener));
    (Abide::remote(remote.expect("it connects"), Duration::from_secs(60)), peer)
}

/// Starts a subscription with one row at a seq.
async fn subscribe(abide: &Abide, peer: &mut Peer, seq: i64) -> (Subscription, String) {
    let server = async {
        let (id, from) = peer.receive_subscribe().await;
        assert_eq!(from, Json::Null);
        peer.send_snapshot(&id, seq, json!([[1, "one"]])).await;
        id
    };
    let (subscription, id) = tokio::join!(abide.subscribe("SELECT * FROM t").start(), server);
    let mut subscription = subscription.expect("it begins");
    let first = subscription.try_next().await.expect("it is live").expect("the first update");
    assert!(first.reset);
    assert_eq!(first.inserts::<(i64, String)>().expect("rows"), [(1, "one".to_owned())]);
    (subscription, id)
}

fn current_ids(subscription: &Subscription) -> Vec<i64> {
    let rows: Vec<(i64, String)> = subscription.typed_rows().expect("rows");
    rows.into_iter().map(|(id, _)| id).collect()
}

/// Asserts that no update is pending.
#[track_caller]
fn is_quiet(subscription: &mut Subscription) {
    assert!(subscription.next().now_or_never().is_none(), "no update is pending");
}

#[tokio::test(start_paused = true)]
async fn a_call_with_a_lost_answer_is_resent_with_its_request_id() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let server = async {
        let first = peer.receive().await;
        assert_eq!(first["reducer"], "note");
        drop(peer);
        let mut peer = Peer::accept(&mut listener).await;
        let again = peer.receive().await;
        assert_eq!(again, first, "the same message, the same request id");
        let id = first["request_id"].as_str().expect("a request id");
        assert_eq!(uuid::Uuid::parse_str(id).expect("a UUID").get_version_num(), 7);
        peer.answer(&again, 7).await;
        peer
    };
    let (answer, _peer) =
        tokio::join!(abide.call_by_name("note", json!({"text": "hi"})).send(), server);
    let answer = answer.expect("it is answered");
    assert_eq!((answer.seq, answer.value["ok"].as_i64()), (Seq(7), Some(7)));
    assert_eq!(abide.reconnects(), 1);
}

#[test]
fn requests_match_the_wire_types() {
    let args = json!({"a": 1.0});
    let request_id = "r".to_owned();
    let call = BatchCall { reducer: "note".to_owned(), args: args.clone() };
    let params = Map::from_iter([("x".to_owned(), json!("y"))]);
    for ask in [
        BackendRequest::Call { reducer: "note".to_owned(), args, request_id: request_id.clone() },
        BackendRequest::Batch { calls: vec![call], request_id },
        BackendRequest::Sql {
            sql: "SELECT :x".to_owned(),
            params: params.clone(),
            as_of: Some(Seq(3)),
        },
        BackendRequest::Explain { sql: "SELECT :x".to_owned(), params },
    ] {
        let text = encode_request(7, &ask).expect("it is short");
        let read: wire::ClientMessage = serde_json::from_str(&text).expect("it is of the wire");
        let again = serde_json::to_value(read).expect("it serialises");
        assert_eq!(again, serde_json::from_str::<Json>(&text).expect("it is JSON"));
    }
    let args = Json::String("x".repeat(MESSAGE_BYTES));
    let large =
        BackendRequest::Call { reducer: "note".to_owned(), args, request_id: "r".to_owned() };
    assert_eq!(encode_request(7, &large).expect_err("too large").code(), Some(Code::LimitExceeded));
}

#[tokio::test(start_paused = true)]
async fn overload_is_retried_and_other_refusals_are_returned() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let server = async {
        let first = peer.receive().await;
        let no = |code: &str, call: &Json| {
            let id = &call["id"];
            json!({"op": "error", "id": id, "code": code, "detail": "no", "hint": "h"})
        };
        peer.send(no("overloaded", &first)).await;
        let again = peer.receive().await;
        assert_eq!(again["request_id"], first["request_id"]);
        peer.send(no("conflict", &again)).await;
    };
    let (answer, ()) = tokio::join!(abide.call_by_name("note", json!({})).send(), server);
    let error = answer.expect_err("it is refused");
    assert_eq!((error.code(), error.hint()), (Some(Code::Conflict), Some("h")));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_error_names_the_request_id() {
    let (port, mut listener) = Port::new();
    let (abide, peer) = connect(&port, &mut listener).await;
    port.set_open(false);
    drop(peer);
    let begun = Instant::now();
    let error =
        abide.call_by_name("note", json!({})).request_id("mine").send().await.expect_err("late");
    assert_eq!(begun.elapsed().as_secs(), 60);
    let text = error.to_string();
    let Error::TimedOut { request_id, .. } = error else { panic!("{error}") };
    assert_eq!(request_id.as_deref(), Some("mine"));
    assert!(text.contains("no server is listening"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_resumes_from_its_seq_on_a_new_connection() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (mut subscription, id) = subscribe(&abide, &mut peer, 42).await;
    peer.send_insert(&[&id], 42, 43, json!([2, "two"])).await;
    subscription.try_next().await.expect("an update");
    port.set_open(false);
    drop(peer);
    is_quiet(&mut subscription);
    // tidy: the clock is virtual; the server is away for long.
    tokio::time::sleep(Duration::from_secs(100)).await;
    port.set_open(true);

    let mut peer = Peer::accept(&mut listener).await;
    let (new_id, from) = peer.receive_subscribe().await;
    assert_eq!(from, 43);
    assert_ne!(new_id, id, "frames of the old start must not match the new one");
    peer.send_insert(&[&new_id], 43, 50, json!([3, "three"])).await;
    peer.send_insert(&[&new_id], 48, 51, json!([4, "four"])).await;
    let update =
        subscription.try_next().await.expect("it is live").expect("what was missed, in one");
    assert_eq!((update.from, update.seq, update.reset), (Seq(43), Seq(50), false));
    subscription.try_next().await.expect("and then live");
    assert_eq!((current_ids(&subscription), subscription.seq()), (vec![1, 2, 3, 4], Seq(51)));
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_skipped_and_a_gap_restarts_from_the_seq() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (mut subscription, id) = subscribe(&abide, &mut peer, 42).await;
    peer.send_insert(&[&id], 41, 42, json!([1, "a duplicate"])).await;
    peer.send_insert(&[&id], 42, 43, json!([2, "two"])).await;
    peer.send_insert(&[&id], 42, 43, json!([2, "a duplicate"])).await;
    subscription.try_next().await.expect("an update");
    assert_eq!(current_ids(&subscription), [1, 2]);

    peer.send_insert(&[&id], 44, 45, json!([4, "after a gap"])).await;
    assert_eq!(peer.receive().await, json!({"op": "unsubscribe", "id": id}));
    let (new_id, from) = peer.receive_subscribe().await;
    assert_eq!(from, 43);
    peer.send_insert(&[&id], 45, 46, json!([9, "of the old one"])).await;
    let changes = json!([{"id": new_id, "inserts": [[3, "three"], [4, "four"]]}]);
    peer.send(json!({"op": "delta", "from": 43, "to": 46, "changes": changes})).await;
    subscription.try_next().await.expect("an update");
    assert_eq!((current_ids(&subscription), subscription.seq()), (vec![1, 2, 3, 4], Seq(46)));
}

/// The answer to a subscribe with `after_seq` is a delta of one subscription. If it were treated as a commit's
/// frame, the others would advance to its end and skip their frames of that span as duplicates.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_resume_advances_the_connection() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (mut quiet, _) = subscribe(&abide, &mut peer, 40).await;
    let (mut busy, _) = subscribe(&abide, &mut peer, 40).await;
    drop(peer);

    let mut peer = Peer::accept(&mut listener).await;
    let (first, _) = peer.receive_subscribe().await;
    let (second, _) = peer.receive_subscribe().await;
    peer.send_insert(&[&first], 40, 45, json!([2, "two"])).await;
    // The second resumes at 47 without changes. Earlier changes for the first arrive before that
    // answer.
    peer.send_insert(&[&first], 45, 46, json!([3, "three"])).await;
    let nothing = json!({"id": second, "deletes": [], "inserts": [], "updates": []});
    peer.send(json!({"op": "delta", "from": 40, "to": 47, "changes": [nothing]})).await;
    // The next frame begins there, so it leaves no gap for either.
    peer.send_insert(&[&first, &second], 47, 48, json!([4, "four"])).await;
    while quiet.seq() < Seq(48) {
        quiet.try_next().await.expect("an update");
    }
    assert_eq!(current_ids(&quiet), [1, 2, 3, 4]);
    busy.try_next().await.expect("an update");
    assert_eq!((current_ids(&busy), busy.seq()), (vec![1, 4], Seq(48)));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_snapshot_is_reported_as_a_difference() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (mut subscription, _) = subscribe(&abide, &mut peer, 42).await;
    drop(peer);
    let mut peer = Peer::accept(&mut listener).await;
    let (id, _) = peer.receive_subscribe().await;
    peer.send(
        json!({"op": "error", "id": id, "code": "resync_required", "detail": "too long ago"}),
    )
    .await;
    let shape = json!([{"name": "id", "type": "INTEGER"}, {"name": "v", "type": "TEXT"}]);
    for (rows, more) in [(json!([[3, "c"]]), true), (json!([[1, "uno"]]), false)] {
        peer.send(json!({
            "op": "snapshot", "id": id, "seq": 90, "columns": shape, "key": ["id"], "order": [],
            "rows": rows, "more": more, "reset": true,
        }))
        .await;
    }
    let update = subscription.try_next().await.expect("it is live").expect("an update");
    assert_eq!((update.from, update.seq, update.reset), (Seq(42), Seq(90), false));
    assert_eq!(update.inserts::<(i64, String)>().expect("rows"), [(3, "c".to_owned())]);
    assert_eq!(update.updates::<(i64, String)>().expect("rows"), [(1, "uno".to_owned())]);
    assert_eq!(current_ids(&subscription), [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_delays_no_other_and_is_caught_up() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (mut slow, slow_id) = subscribe(&abide, &mut peer, 10).await;
    let (mut fast, fast_id) = subscribe(&abide, &mut peer, 10).await;
    let large = "x".repeat(1 << 18);
    for n in 0..8 {
        let row = json!([2 + n, large]);
        peer.send_insert(&[&slow_id, &fast_id], 10 + n, 11 + n, row).await;
        fast.try_next().await.expect("an update");
    }
    assert_eq!(fast.rows().len(), 9);
    assert_eq!(peer.receive().await, json!({"op": "unsubscribe", "id": slow_id}));

    let caught_up = async {
        let (id, from) = peer.receive_subscribe().await;
        assert_eq!(from, 10, "pending events were dropped");
        peer.send_insert(&[&id], 10, 18, json!([5, "all in one"])).await;
    };
    let (update, ()) = tokio::join!(slow.try_next(), caught_up);
    assert_eq!(update.expect("it is live").expect("an update").seq, Seq(18));
    assert_eq!(current_ids(&slow), [1, 5]);
    is_quiet(&mut fast);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_pinged_and_then_dropped() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let begun = Instant::now();
    let ping = peer.0.next().await.expect("the client is there").expect("it is sound");
    assert_eq!(ping, Said::text(r#"{"op":"ping"}"#));
    assert_eq!(begun.elapsed().as_secs(), 10);
    let _again = Peer::accept(&mut listener).await;
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert!(timeout(Duration::from_secs(1), abide.close()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_refused_query_is_an_error_and_overload_is_not() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let server = async {
        let (id, _) = peer.receive_subscribe().await;
        let no =
            |id: &str, code: &str| json!({"op": "error", "id": id, "code": code, "detail": "no"});
        peer.send(no(&id, "overloaded")).await;
        let (id, _) = peer.receive_subscribe().await;
        peer.send(no(&id, "bad_sql")).await;
    };
    let (begun, ()) = tokio::join!(abide.subscribe("SELEC").start(), server);
    assert_eq!(begun.expect_err("it is refused").code(), Some(Code::BadSql));
}

/// Regression: a subscription that resumed while the disk was full ended, because a query then cannot see the latest
/// calls. It waits for space. A new one fails.
#[tokio::test(start_paused = true)]
async fn a_subscription_with_rows_survives_a_full_disk() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let full = |id: &str| json!({"op": "error", "id": id, "code": "disk_full", "detail": "no"});
    let (mut subscription, id) = subscribe(&abide, &mut peer, 1).await;
    peer.send(full(&id)).await;
    let (again, after_seq) = peer.receive_subscribe().await;
    assert_eq!((again != id, after_seq), (true, json!(1)));
    is_quiet(&mut subscription);
    let server = async {
        let (id, _) = peer.receive_subscribe().await;
        peer.send(full(&id)).await;
    };
    let (begun, ()) = tokio::join!(abide.subscribe("SELECT 1").start(), server);
    assert_eq!(begun.expect_err("there is no space").code(), Some(Code::DiskFull));
}

#[tokio::test(start_paused = true)]
async fn closing_answers_all_pending_requests() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (mut subscription, _) = subscribe(&abide, &mut peer, 1).await;
    let call = abide.call_by_name("note", json!({})).send();
    let close = async {
        peer.receive().await;
        abide.close().await;
    };
    let (answer, ()) = tokio::join!(call, close);
    assert!(matches!(answer, Err(Error::Closed)));
    assert!(matches!(subscription.next().await, Some(Err(Error::Closed))));
    assert!(subscription.next().await.is_none());
    assert!(matches!(abide.call_by_name("note", json!({})).await, Err(Error::Closed)));
    assert!(matches!(abide.subscribe("SELECT 1").await, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_message_ends_the_connection_with_an_error() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let call = abide.call_by_name("note", json!({})).send();
    let (answer, ()) = tokio::join!(call, async {
        peer.receive().await;
        peer.send(json!({"op": "result", "seq": "high"})).await;
    });
    assert!(matches!(answer, Err(Error::Protocol { .. })), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn dropping_everything_closes_the_connection() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (subscription, id) = subscribe(&abide, &mut peer, 1).await;
    drop(abide);
    drop(subscription);
    assert_eq!(peer.receive().await, json!({"op": "unsubscribe", "id": id}));
    let end = peer.0.next().await.expect("a close frame").expect("it is sound");
    assert!(end.is_close(), "{end:?}");
}

/// Checksum of rows, in its wire form.
fn checksum(rows: &[(i64, &str)]) -> Json {
    let rows = rows.iter().map(|(id, v)| [Value::Integer(*id), Value::from(*v)]);
    json!(Checksum::from_rows(rows))
}

impl Peer {
    /// Sends a snapshot with a checksum.
    async fn send_summed(&mut self, id: &str, seq: i64, rows: Json, sum: Json) {
        self.send(json!({
            "op": "snapshot", "id": id, "seq": seq,
            "columns": [{"name": "id", "type": "INTEGER"}, {"name": "v", "type": "TEXT"}],
            "key": ["id"], "order": [], "rows": rows, "checksum": sum,
        }))
        .await;
    }
}

/// A delta was tampered with: it applies, and only the checksum reveals it. Nothing of it is shown,
/// and the result is fetched again.
#[tokio::test(start_paused = true)]
async fn rows_that_differ_from_the_servers_are_never_shown() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let server = async {
        let subscribe = peer.receive().await;
        assert_eq!(subscribe["checksum"], true, "{subscribe}");
        let id = subscribe["id"].as_str().expect("an id").to_owned();
        peer.send_summed(&id, 42, json!([[1, "one"]]), checksum(&[(1, "one")])).await;
        id
    };
    let begin = abide.subscribe("SELECT * FROM t").checksum().start();
    let (subscription, id) = tokio::join!(begin, server);
    let mut subscription = subscription.expect("it begins");
    subscription.try_next().await.expect("the first update");

    let tampered = json!([{"id": id, "inserts": [[2, "tvo"]],
        "checksum": checksum(&[(1, "one"), (2, "two")])}]);
    peer.send(json!({"op": "delta", "from": 42, "to": 43, "changes": tampered})).await;
    // Later frames of the old start are ignored.
    peer.send_insert(&[&id], 43, 44, json!([3, "three"])).await;
    let server = async {
        assert_eq!(peer.receive().await, json!({"op": "unsubscribe", "id": id}));
        let (id, from) = peer.receive_subscribe().await;
        assert_eq!(from, Json::Null, "it restarts from a snapshot: the held rows are not trusted");
        let rows = [(1, "one"), (2, "two"), (3, "three")];
        peer.send_summed(&id, 44, json!(rows), checksum(&rows)).await;
        id
    };
    let (update, id) = tokio::join!(subscription.try_next(), server);
    let update = update.expect("it is live").expect("a difference to the correct rows");
    assert_eq!((update.from, update.seq, update.reset), (Seq(42), Seq(44), false));
    let came: Vec<(i64, String)> = update.inserts().expect("rows");
    assert_eq!(came, [(2, "two".to_owned()), (3, "three".to_owned())]);
    assert_eq!((subscription.mismatches(), abide.mismatches()), (1, 1));

    let all = checksum(&[(1, "one"), (2, "two"), (3, "three"), (4, "four")]);
    let sound = json!([{"id": id, "inserts": [[4, "four"]], "checksum": all}]);
    peer.send(json!({"op": "delta", "from": 44, "to": 45, "changes": sound})).await;
    subscription.try_next().await.expect("an update");
    assert_eq!((current_ids(&subscription), subscription.mismatches()), (vec![1, 2, 3, 4], 1));
}

/// A server whose own checksums are wrong is not retried for ever.
#[tokio::test(start_paused = true)]
async fn repeated_mismatches_end_the_subscription() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let server = async {
        for asked in 1.. {
            let message = peer.receive().await;
            if message["op"] == "subscribe" {
                let id = message["id"].as_str().expect("an id");
                peer.send_summed(id, 42, json!([[1, "one"]]), checksum(&[])).await;
            }
            assert!(asked < 10, "{message}");
        }
    };
    let begin = abide.subscribe("SELECT * FROM t").checksum().start();
    let error = tokio::select! {
        begun = begin => begun.expect_err("it never fits"),
        () = server => unreachable!(),
    };
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    assert_eq!(abide.mismatches(), 4);
}

/// The snapshot is older than what the connection has received, and the changes since follow: neither is
/// a gap. After a lost connection in between, the subscription resumes from the past seq.
#[tokio::test(start_paused = true)]
async fn a_subscription_as_of_a_seq_starts_with_snapshot_and_delta() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let (mut other, _) = subscribe(&abide, &mut peer, 45).await;
    peer.send(json!({"op": "progress", "seq": 45})).await;
    let server = async {
        let message = peer.receive().await;
        assert_eq!((&message["as_of"], &message["after_seq"]), (&json!(40), &Json::Null));
        let id = message["id"].as_str().expect("an id").to_owned();
        peer.send_snapshot(&id, 39, json!([[1, "one"]])).await;
        peer.send_insert(&[&id], 39, 46, json!([2, "two"])).await;
        peer.send_insert(&[&id], 46, 47, json!([3, "three"])).await;
    };
    let (subscription, ()) =
        tokio::join!(abide.subscribe("SELECT * FROM t").as_of(40).start(), server);
    let mut past = subscription.expect("it begins");
    assert_eq!((current_ids(&past), past.seq()), (vec![1], Seq(39)));
    past.try_next().await.expect("the result of then");
    past.try_next().await.expect("what changed since");
    assert_eq!((current_ids(&past), past.seq()), (vec![1, 2], Seq(46)));
    past.try_next().await.expect("and on");
    assert_eq!(current_ids(&past), [1, 2, 3]);
    is_quiet(&mut other);

    let server = async {
        let message = peer.receive().await;
        let id = message["id"].as_str().expect("an id").to_owned();
        peer.send_snapshot(&id, 39, json!([[1, "one"]])).await;
        drop(peer);
        let mut peer = Peer::accept(&mut listener).await;
        let mut asked = Vec::new();
        for _ in 0..3 {
            let message = peer.receive().await;
            asked.push((message["after_seq"].clone(), message["as_of"].clone()));
        }
        asked
    };
    let (begun, asked) = tokio::join!(abide.subscribe("SELECT * FROM t").as_of(40).start(), server);
    begun.expect("it begins");
    let from = |seq: i64| json!(seq);
    let none = Json::Null;
    // The connection has received everything up to 47.
    assert_eq!(asked, [(from(47), none.clone()), (from(47), none.clone()), (from(39), none)]);
}

/// A past state that is gone has no result: unlike a resume, the request is refused.
#[tokio::test(start_paused = true)]
async fn an_unavailable_past_state_is_refused() {
    let (port, mut listener) = Port::new();
    let (abide, mut peer) = connect(&port, &mut listener).await;
    let server = async {
        let message = peer.receive().await;
        let id = &message["id"];
        let detail = "changes are kept from seq 50 on, not from 40";
        peer.send(json!({"op": "error", "id": id, "code": "history_expired", "detail": detail}))
            .await;
    };
    let (refused, ()) = tokio::join!(abide.subscribe("SELECT * FROM t").as_of(40).start(), server);
    assert_eq!(refused.expect_err("it is gone").code(), Some(Code::HistoryExpired));
}
