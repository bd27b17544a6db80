//! Golden files for stable interfaces: messages, problem documents, the OpenAPI document.

use abide_schema::wire::ServerMessage;
use abide_schema::{Code, Refusal};
use abide_server::AccessConfig;
use expect_test::expect_file;
use serde_json::Value as JsonValue;

use crate::test_server::TestServer;
use crate::ws::Socket;

/// Receives a message, and compares the form that the server borrows from its rows with that of the shared types.
async fn receive(socket: &mut Socket) -> String {
    let text = socket.receive_text().await;
    let message: ServerMessage = serde_json::from_str(&text).expect("a message of the protocol");
    // As values: the members of a reducer's result keep the order in which they were written, which a JSON
    // value does not preserve.
    let value = |text: &str| serde_json::from_str::<JsonValue>(text).expect("it is JSON");
    assert_eq!(value(&message.to_text()), value(&text), "the server's form and the shared one");
    format!("← {text}\n")
}

/// Sends a message and receives a number of replies. A reply and a delta of the same commit may arrive in
/// either order, so they are sorted.
async fn say(socket: &mut Socket, message: &str, received: usize, into: &mut String) {
    into.push_str("→ ");
    into.push_str(message);
    into.push('\n');
    socket.say(message).await;
    let mut messages = Vec::new();
    for _ in 0..received {
        messages.push(receive(socket).await);
    }
    messages.sort();
    into.push_str(&messages.concat());
}

/// The script: messages, each with the number of replies.
const SCRIPT: &str = r#"
1 {"op":"call","id":"c1","reducer":"write_note","args":{"book":"a","text":"é\n"}}
1 {"op":"subscribe","id":"q1","sql":"SELECT id, text FROM notes WHERE book = :book ORDER BY weight DESC","params":{"book":"a"}}
1 {"op":"subscribe","id":"q2","sql":"SELECT * FROM notes"}
2 {"op":"batch","id":"b1","calls":[{"reducer":"write_note","args":{"book":"a","text":null}},{"reducer":"edit_note","args":{"id":1,"text":"new"}}]}
2 {"op":"call","id":"c2","reducer":"edit_note","args":{"id":2,"text":"x"},"request_id":"r"}
1 {"op":"call","id":"c3","reducer":"edit_note","args":{"id":2,"text":"x"},"request_id":"r"}
1 {"op":"sql","id":"s1","sql":"SELECT 1 AS a, 1.0 AS b, 'c' AS c, x'00' AS d, NULL AS e"}
2 {"op":"subscribe","id":"q3","sql":"SELECT id FROM notes","after_seq":99}
1 {"op":"subscribe","id":"q4","sql":"SELECT id FROM notes ORDER BY weight LIMIT 1","checksum":true,"explain":true}
2 {"op":"subscribe","id":"q5","sql":"SELECT id, text FROM notes","as_of":3,"checksum":true}
1 {"op":"subscribe","id":"q6","sql":"SELECT id FROM notes","as_of":3,"after_seq":3}
1 {"op":"subscribe","id":"q7","sql":"SELECT id FROM notes","as_of":99}
1 {"op":"subscribe","id":"q8","sql":"SELECT n.id, o.id FROM notes n JOIN notes o ON o.text = n.text"}
1 {"op":"subscribe","id":"q9","sql":"SELECT id FROM notes","after_seq":3}
1 {"op":"explain","id":"e1","sql":"SELECT id FROM notes WHERE book = :book ORDER BY weight"}
1 {"op":"explain","id":"e2","sql":"SELECT n.id, o.id FROM notes n JOIN notes o ON o.text = n.text LIMIT :n","params":{"n":3}}
1 {"op":"explain","id":"e3","sql":"SELECT random() FROM notes"}
1 {"op":"ping"}
1 {"op":"sing","id":"x"}
1 {"#;

#[tokio::test]
async fn websocket_messages_are_unchanged() {
    let server = TestServer::open().await;
    let mut socket = server.try_socket("/v1/ws", &[]).await.expect("a WebSocket");
    let mut log = receive(&mut socket).await;
    for line in SCRIPT.trim().lines() {
        let (received, message) = line.split_once(' ').expect("a number and a message");
        say(&mut socket, message, received.parse().expect("a number"), &mut log).await;
    }
    expect_file!["golden/websocket.txt"].assert_eq(&log);
}

#[tokio::test]
async fn the_openapi_document_is_unchanged() {
    let server = TestServer::open().await;
    let document = server.get("/openapi.json").await.json();
    every_reference_leads_somewhere(&document, &document);
    let text = serde_json::to_string_pretty(&document).expect("it is JSON") + "\n";
    expect_file!["golden/openapi.json"].assert_eq(&text);
}

/// The document of the built-in reducers, as a real server has it, is consistent.
#[tokio::test]
async fn openapi_of_the_built_in_reducers() {
    let server = TestServer::serving(AccessConfig::loopback(), abide_reducers::modules()).await;
    let document = server.get("/openapi.json").await.json();
    every_reference_leads_somewhere(&document, &document);
    let paths = document["paths"].as_object().expect("paths");
    let arguments = "/components/schemas/create_session_arguments/properties/agent";
    assert!(paths.contains_key("/v1/call/create_session"));
    assert!(document.pointer(arguments).is_some(), "{document:#}");
    assert_eq!(document.to_string().find("$defs"), None);
}

fn every_reference_leads_somewhere(root: &JsonValue, part: &JsonValue) {
    if let Some(reference) = part.get("$ref").and_then(|reference| reference.as_str()) {
        let pointer = reference.strip_prefix('#').expect("a place in this document");
        assert!(root.pointer(pointer).is_some(), "{reference}");
    }
    let object = part.as_object();
    let array = part.as_array();
    let parts = object.into_iter().flat_map(|object| object.values());
    for part in parts.chain(array.into_iter().flatten()) {
        every_reference_leads_somewhere(root, part);
    }
}

#[test]
fn problem_documents_are_unchanged() {
    let problems = Code::ALL.iter().map(|code| {
        let refusal = Refusal::new(*code, "one lowercase sentence").hint("what to do");
        refusal.problem().to_string() + "\n"
    });
    expect_file!["golden/problems.txt"].assert_eq(&problems.collect::<String>());
}

/// A client of the WebSocket has only this page.
#[test]
fn the_protocol_page_lists_all_error_codes() {
    let page = include_str!("../../../docs/protocol.md");
    for code in Code::ALL {
        let row = format!("\n| `{code}` | {} | ", code.http_status());
        assert!(page.contains(&row), "docs/protocol.md has no row {row}");
    }
}
