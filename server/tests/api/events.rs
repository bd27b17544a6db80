//! Server-sent events: one live query over plain HTTP.

use expect_test::expect;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;

use crate::http::{self, check, escaped};
use crate::test_server::{TIMELINE, TestServer};

/// An event stream.
pub(crate) struct Stream(BufReader<TcpStream>);

impl Stream {
    async fn of(server: &TestServer, query: &str, last_event_id: Option<&str>) -> Stream {
        let request = server.request("GET", &format!("/v1/subscribe?{query}"));
        Stream::by(request, last_event_id).await
    }

    pub(crate) async fn by(mut request: http::Request<'_>, last_event_id: Option<&str>) -> Stream {
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let mut socket = request.begin().await;
        let head = http::head(&mut socket).await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        Stream(socket)
    }

    /// The next event, its lines joined by spaces; `None` at the end. Chunk sizes, which differ from all
    /// field names, are skipped.
    pub(crate) async fn next(&mut self) -> Option<String> {
        let mut event: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await.expect("text") == 0 {
                return None;
            }
            let line = line.trim_end();
            if ["event: ", "id: ", "data: "].iter().any(|field| line.starts_with(field)) {
                event.push(line.to_owned());
            } else if line.is_empty() && !event.is_empty() {
                return Some(event.join(" "));
            }
        }
    }
}

fn notes_of(book: &str) -> String {
    let sql = escaped("SELECT id, text FROM notes WHERE book = :book");
    format!("sql={sql}&params={}", escaped(&format!(r#"{{"book":"{book}"}}"#)))
}

#[tokio::test]
async fn a_stream_sends_a_snapshot_and_every_change() {
    let server = TestServer::open().await;
    server.post("/v1/call/write_note", r#"{"book":"a","text":"one"}"#).await;
    let mut stream = Stream::of(&server, &notes_of("a"), None).await;
    check(
        &stream.next().await.expect("a snapshot"),
        expect![[r#"
            event: snapshot id: 1@71e11e data: {"op":"snapshot","id":"q","seq":1,"columns":[{"name":"id","type":"INTEGER"},{"name":"text","type":"TEXT"}],"key":["id"],"order":[],"rows":[[1,"one"]],"plan":{"rule":"row_filter","cost":"the changed rows that match its keys","state":"none"}}
        "#]],
    );
    server.post("/v1/call/write_note", r#"{"book":"b","text":"elsewhere"}"#).await;
    server.post("/v1/call/edit_note", r#"{"id":1,"text":"line\nbreak"}"#).await;
    // Its `from` depends on how far the server had published when the stream began: 0 or 1.
    let delta = stream.next().await.expect("a delta").replace(r#""from":0"#, r#""from":1"#);
    check(
        &delta,
        expect![[r#"
            event: delta id: 3@71e11e data: {"op":"delta","from":1,"to":3,"changes":[{"id":"q","deletes":[],"inserts":[],"updates":[[1,"line\nbreak"]]}]}
        "#]],
    );
}

#[tokio::test]
async fn a_reconnect_resumes_from_the_last_event() {
    let server = TestServer::open().await;
    for text in ["one", "two", "three"] {
        let note = format!(r#"{{"book":"a","text":"{text}"}}"#);
        server.post("/v1/call/write_note", &note).await;
    }
    // The header is newer than the address, which an EventSource repeats unchanged.
    let query = format!("{}&after_seq=1", notes_of("a"));
    let mut stream = Stream::of(&server, &query, Some("2")).await;
    check(
        &stream.next().await.expect("what is new"),
        expect![[r#"
            event: delta id: 3@71e11e data: {"op":"delta","from":2,"to":3,"changes":[{"id":"q","deletes":[],"inserts":[[3,"three"]],"updates":[],"columns":[{"name":"id","type":"INTEGER"},{"name":"text","type":"TEXT"}],"key":["id"],"order":[],"plan":{"rule":"row_filter","cost":"the changed rows that match its keys","state":"none"}}]}
        "#]],
    );
    let mut stream = Stream::of(&server, &query, None).await;
    check(
        &stream.next().await.expect("what is new"),
        expect![[r#"
            event: delta id: 3@71e11e data: {"op":"delta","from":1,"to":3,"changes":[{"id":"q","deletes":[],"inserts":[[2,"two"],[3,"three"]],"updates":[],"columns":[{"name":"id","type":"INTEGER"},{"name":"text","type":"TEXT"}],"key":["id"],"order":[],"plan":{"rule":"row_filter","cost":"the changed rows that match its keys","state":"none"}}]}
        "#]],
    );
}

#[tokio::test]
async fn a_resume_beyond_the_history_gets_a_new_snapshot() {
    let server = TestServer::open().await;
    server.post("/v1/call/write_note", r#"{"book":"a","text":"one"}"#).await;
    let mut stream = Stream::of(&server, &notes_of("a"), Some("77")).await;
    check(
        &stream.next().await.expect("an error"),
        expect![[r#"
        event: error data: {"op":"error","id":"q","code":"resync_required","detail":"seq 77 is ahead of the log, which ends at 1","hint":"a whole snapshot follows"}
    "#]],
    );
    check(
        &stream.next().await.expect("a snapshot"),
        expect![[r#"
            event: snapshot id: 1@71e11e data: {"op":"snapshot","id":"q","seq":1,"columns":[{"name":"id","type":"INTEGER"},{"name":"text","type":"TEXT"}],"key":["id"],"order":[],"rows":[[1,"one"]],"plan":{"rule":"row_filter","cost":"the changed rows that match its keys","state":"none"},"reset":true,"history_changed":true}
        "#]],
    );
}

/// A reconnect in the middle of a snapshot must not resume from a seq whose rows it has only in part.
#[tokio::test]
async fn only_the_last_part_of_a_snapshot_has_an_id() {
    let server = TestServer::open().await;
    let note = r#"{"reducer":"write_note","args":{"book":"a","text":"x"}}"#;
    let calls = format!(r#"{{"calls":[{}]}}"#, vec![note; 700].join(","));
    assert_eq!(server.post("/v1/batch", &calls).await.status, 200);
    let mut stream = Stream::of(&server, &notes_of("a"), None).await;
    let first = stream.next().await.expect("a part");
    assert!(first.starts_with("event: snapshot data: "), "{first:.60}");
    assert!(first.contains(r#""more":true"#));
    let last = stream.next().await.expect("a part");
    assert!(last.starts_with("event: snapshot id: 700@71e11e data: "), "{last:.60}");
    assert!(!last.contains(r#""more":"#));
}

/// A seq of another history is not a position in this log, whether it comes as an event's id or as parameters.
#[tokio::test]
async fn a_resume_from_another_timeline_gets_a_new_snapshot() {
    let server = TestServer::open().await;
    for text in ["one", "two"] {
        let note = format!(r#"{{"book":"a","text":"{text}"}}"#);
        server.post("/v1/call/write_note", &note).await;
    }
    let same = format!("1@{TIMELINE}");
    let mut stream = Stream::of(&server, &notes_of("a"), Some(&same)).await;
    let delta = stream.next().await.expect("a delta");
    assert!(delta.starts_with("event: delta id: 2@71e11e data: "), "{delta}");

    let by_parameter = format!("{}&after_seq=1&timeline=other", notes_of("a"));
    for (query, last) in [(notes_of("a"), Some("1@other")), (by_parameter, None)] {
        let mut stream = Stream::of(&server, &query, last).await;
        let error = stream.next().await.expect("an error");
        let why = "the client's rows are from a history that this database does not have";
        assert!(error.contains("resync_required") && error.contains(why), "{error}");
        let snapshot = stream.next().await.expect("a snapshot");
        assert!(snapshot.starts_with("event: snapshot id: 2@71e11e data: "), "{snapshot}");
        assert!(snapshot.contains(r#""reset":true"#), "{snapshot}");
    }
}

/// A reconnect repeats the address with its `as_of`, but resumes from the last event.
#[tokio::test]
async fn a_stream_can_start_as_of_a_seq() {
    let server = TestServer::open().await;
    for text in ["one", "two"] {
        let note = format!(r#"{{"book":"a","text":"{text}"}}"#);
        server.post("/v1/call/write_note", &note).await;
    }
    let query = format!("{}&as_of=1&checksum=true", notes_of("a"));
    let mut stream = Stream::of(&server, &query, None).await;
    check(
        &stream.next().await.expect("a snapshot"),
        expect![[r#"
            event: snapshot id: 1@71e11e data: {"op":"snapshot","id":"q","seq":1,"columns":[{"name":"id","type":"INTEGER"},{"name":"text","type":"TEXT"}],"key":["id"],"order":[],"rows":[[1,"one"]],"plan":{"rule":"row_filter","cost":"the changed rows that match its keys","state":"none"},"checksum":"5f35e4fe2c7ea804"}
        "#]],
    );
    check(
        &stream.next().await.expect("what changed since"),
        expect![[r#"
            event: delta id: 2@71e11e data: {"op":"delta","from":1,"to":2,"changes":[{"id":"q","deletes":[],"inserts":[[2,"two"]],"updates":[],"checksum":"46244b99579b89bf"}]}
        "#]],
    );
    let mut stream = Stream::of(&server, &query, Some("2")).await;
    check(
        &stream.next().await.expect("nothing new"),
        expect![[r#"
            event: delta id: 2@71e11e data: {"op":"delta","from":2,"to":2,"changes":[{"id":"q","deletes":[],"inserts":[],"updates":[],"checksum":"46244b99579b89bf","columns":[{"name":"id","type":"INTEGER"},{"name":"text","type":"TEXT"}],"key":["id"],"order":[],"plan":{"rule":"row_filter","cost":"the changed rows that match its keys","state":"none"}}]}
        "#]],
    );
    let both = server.get(&format!("/v1/subscribe?{query}&after_seq=1")).await;
    check(
        &both.problem(),
        expect![[r#"
        400 bad_request: after_seq and as_of cannot be combined (after_seq: only later changes; as_of: the result then, and later changes)
    "#]],
    );
    let ahead = server.get(&format!("/v1/subscribe?{}&as_of=9", notes_of("a"))).await;
    check(
        &ahead.problem(),
        expect![[r#"
        400 bad_request: there is no state 9: the log ends at 2 (use a seq from 0 to 2)
    "#]],
    );
}
