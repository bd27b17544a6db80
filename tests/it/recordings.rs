//! Recorded conversations are stored as an app would store them, and read back: every content byte
//! for byte, every message in its place, every tool call with its original arguments.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abide_engine::{Config, Engine, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Row, Value, canonical, limits};
use abide_tests::{conversations, files_under, fixture, lines, recordings};
use serde_json::{Map, Value as JsonValue, json};
use tempfile::TempDir;

/// Reports on the terminal what cannot be tested without the recordings. (`println!` is captured.)
pub(crate) fn left_out(what: &str) {
    let mut terminal = std::io::stdout();
    writeln!(terminal, "skipped: {what}").unwrap();
}

struct EngineFixture {
    engine: Engine,
    folder: TempDir,
}

impl EngineFixture {
    fn new() -> EngineFixture {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("abide.db"), config).unwrap();
        EngineFixture { engine, folder }
    }

    fn rows(&self, sql: &str, session_id: &str) -> Vec<Row> {
        let params = Map::from_iter([("sid".to_owned(), session_id.into())]);
        on_this_thread(self.engine.query(&Caller::local(), sql, &params, None)).unwrap().rows
    }

    fn verified(self) {
        self.engine.close();
        verify_file(&self.folder.path().join("abide.db"), abide_reducers::modules(), &mut |_| {})
            .unwrap();
    }
}

/// Several threads store conversations concurrently; each waits for its own responses only.
fn on_this_thread<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Calls sent together in batches of the maximum size.
struct Batch<'a> {
    engine: &'a Engine,
    calls: Vec<BatchCall>,
    bytes: usize,
}

impl Batch<'_> {
    fn push(&mut self, reducer: &str, args: JsonValue) {
        self.bytes += args.to_string().len();
        self.calls.push(BatchCall { reducer: reducer.to_owned(), args });
        if self.calls.len() == limits::BATCH_CALLS || self.bytes > 4 << 20 {
            self.send();
        }
    }

    fn send(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        self.bytes = 0;
        if !calls.is_empty() {
            on_this_thread(self.engine.batch(&Caller::new("app"), &calls, None)).unwrap();
        }
    }
}

/// The fields of a message other than its role and content.
fn rest_of(message: &JsonValue) -> JsonValue {
    let mut rest = message.as_object().unwrap().clone();
    rest.remove("role");
    rest.remove("content");
    rest.into()
}

/// The calls of a message: key, name, arguments as text, the provider's id.
fn calls_of(session_id: &str, position: usize, message: &JsonValue) -> Vec<[Option<String>; 4]> {
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &JsonValue| value.as_str().map(str::to_owned);
    let call = |(nth, call): (usize, &JsonValue)| {
        let key = format!("{session_id}/{position}/{nth}");
        [Some(key), text(&call["name"]), text(&call["arguments"]), text(&call["id"])]
    };
    calls.iter().enumerate().map(call).collect()
}

/// The arguments of a call: JSON if the text round-trips exactly, otherwise the text itself.
fn arguments(text: &str) -> JsonValue {
    match serde_json::from_str::<JsonValue>(text) {
        Ok(value) if canonical::to_text(&value) == text && !value.is_string() => value,
        _ => text.into(),
    }
}

fn put_in(batch: &mut Batch<'_>, session_id: &str, conversation: &JsonValue) {
    let metadata = json!({"source": conversation["source"], "model": conversation["model"]});
    let args = json!({"agent": "recorded", "id": session_id, "metadata": metadata});
    batch.push("create_session", args);
    for (position, message) in conversation["messages"].as_array().unwrap().iter().enumerate() {
        let args = json!({
            "session_id": session_id,
            "role": message["role"],
            "content": message["content"],
            "data": rest_of(message),
        });
        batch.push("append_message", args);
        for [call_id, name, text, provider_call_id] in calls_of(session_id, position, message) {
            batch.push("register_tool", json!({"name": name}));
            let args = json!({
                "call_id": call_id,
                "session_id": session_id,
                "tool_name": name,
                "arguments": arguments(&text.unwrap()),
                "provider_call_id": provider_call_id,
            });
            batch.push("request_tool_call", args);
        }
    }
    batch.push("complete_session", json!({"session_id": session_id}));
}

fn text_or_null(text: Option<&str>) -> Value {
    text.map_or(Value::Null, Value::from)
}

/// Compares a session with the recording; returns the number of messages and calls.
fn store_conversation(
    place: &EngineFixture,
    session_id: &str,
    conversation: &JsonValue,
) -> [usize; 2] {
    let messages = conversation["messages"].as_array().unwrap();
    let sql = "SELECT role, content, data FROM agent_state WHERE session_id = :sid ORDER BY id";
    let rows = place.rows(sql, session_id);
    assert_eq!(rows.len(), messages.len(), "{session_id}");
    let mut calls = Vec::new();
    for (position, (row, message)) in rows.iter().zip(messages).enumerate() {
        assert_eq!(row[0], text_or_null(message["role"].as_str()), "{session_id} {position}");
        assert_eq!(row[1], text_or_null(message["content"].as_str()), "{session_id} {position}");
        let Value::Text(data) = &row[2] else { panic!("{session_id} {position}: no data") };
        let data: JsonValue = serde_json::from_str(data).unwrap();
        assert_eq!(data, rest_of(message), "{session_id} {position}");
        calls.extend(calls_of(session_id, position, message));
    }
    let sql = "SELECT call_id, tool_name, arguments, provider_call_id FROM tool_calls
        WHERE session_id = :sid ORDER BY rowid";
    let rows = place.rows(sql, session_id);
    assert_eq!(rows.len(), calls.len(), "{session_id}");
    for (row, [call_id, name, text, provider_call_id]) in rows.iter().zip(&calls) {
        assert_eq!(row[0], text_or_null(call_id.as_deref()));
        assert_eq!(row[1], text_or_null(name.as_deref()));
        let Value::Text(stored) = &row[2] else { panic!("{call_id:?}: no arguments") };
        let stored: JsonValue = serde_json::from_str(stored).unwrap();
        let back = stored.as_str().map_or_else(|| stored.to_string(), str::to_owned);
        assert_eq!(Some(back), *text, "{call_id:?}");
        assert_eq!(row[3], text_or_null(provider_call_id.as_deref()), "{call_id:?}");
    }
    [messages.len(), calls.len()]
}

/// Stores conversations from several threads, and checks all of them afterwards.
fn there_and_back(all: Vec<JsonValue>) -> [usize; 3] {
    let place = EngineFixture::new();
    let all = Arc::new(all);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut batch = Batch { engine: &place.engine, calls: Vec::new(), bytes: 0 };
                while let Some((nth, conversation)) = taken(&next, &all) {
                    put_in(&mut batch, &format!("c{nth}"), conversation);
                }
                batch.send();
            });
        }
    });
    let [mut messages, mut calls] = [0, 0];
    for (nth, conversation) in all.iter().enumerate() {
        let [of_messages, of_calls] = store_conversation(&place, &format!("c{nth}"), conversation);
        messages += of_messages;
        calls += of_calls;
    }
    place.verified();
    [all.len(), messages, calls]
}

fn taken<'a, T>(next: &AtomicUsize, all: &'a [T]) -> Option<(usize, &'a T)> {
    let nth = next.fetch_add(1, Ordering::Relaxed);
    all.get(nth).map(|one| (nth, one))
}

#[test]
fn the_published_recordings_are_stored_unchanged() {
    assert_eq!(there_and_back(conversations(&fixture())), [24, 731, 188]);
}

#[test]
fn every_recorded_conversation() {
    let Some(folder) = recordings() else {
        return left_out("the 1,734 recorded conversations, which are next to the repository");
    };
    let files = files_under(&folder.join("conversations"));
    let all = files.iter().flat_map(|file| conversations(file)).collect();
    assert_eq!(there_and_back(all), [1_734, 51_437, 11_784]);
}

/// Output of real agent programs, including lines of a megabyte, as message contents.
#[test]
fn every_recorded_line() {
    let Some(folder) = recordings() else {
        return left_out("the recorded lines of real agents, which are next to the repository");
    };
    let files = files_under(&folder.join("recordings"));
    let files: BTreeMap<String, Vec<String>> =
        (files.iter().enumerate()).map(|(nth, file)| (format!("f{nth}"), lines(file))).collect();
    let longest = files.values().flatten().map(String::len).max().unwrap();
    assert!(longest > 1_000_000, "the longest line has {longest} bytes");
    let place = EngineFixture::new();
    let mut batch = Batch { engine: &place.engine, calls: Vec::new(), bytes: 0 };
    for (id, lines) in &files {
        batch.push("create_session", json!({"agent": "recorded", "id": id}));
        for line in lines {
            let args = json!({"session_id": id, "role": "line", "content": line});
            batch.push("append_message", args);
        }
    }
    batch.send();
    for (id, lines) in &files {
        let sql = "SELECT content FROM agent_state WHERE session_id = :sid ORDER BY id";
        let rows = place.rows(sql, id);
        assert_eq!(rows.len(), lines.len(), "{id}");
        for (row, line) in rows.iter().zip(lines) {
            assert!(row[0] == Value::from(line.as_str()), "{id}: {}…", &line[..40]);
        }
    }
    place.verified();
}
