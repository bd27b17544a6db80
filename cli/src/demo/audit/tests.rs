//! The audit finds lost writes and differences.

use super::*;
use crate::demo::recording::Recording;
use abide_client::Seq;
use expect_test::{Expect, expect};
use tempfile::TempDir;

const RECORDED: &str = r#"{"id":"c","messages":[
    {"role":"user","content":"Where is it?"},
    {"role":"assistant","content":null,"tool_calls":[
        {"id":"x","name":"look","arguments":"{\"n\": 1}"},
        {"id":"y","name":"look","arguments":"{\"n\": 2}"}]},
    {"role":"tool","content":"here","tool_call_id":"x"}]}"#;

/// A file with a part of the conversation, and its acknowledged writes.
struct RecordedRun {
    script: Script,
    file: Abide,
    acknowledged: Vec<Acknowledged>,
    _folder: TempDir,
}

impl RecordedRun {
    async fn begin() -> RecordedRun {
        let recording = Recording::parse(RECORDED).expect("it is a recording");
        let folder = tempfile::tempdir().expect("there is room");
        let file = Abide::open(folder.path().join("demo.db")).expect("it opens");
        let script = Script::new(vec![recording]);
        let mut played = RecordedRun { script, file, acknowledged: Vec::new(), _folder: folder };
        played.call("create_session", json!({"id": "demo-1", "agent": "agent"})).await;
        played.call("register_tool", json!({"name": "look"})).await;
        played
    }

    async fn call(&mut self, reducer: &'static str, arguments: JsonValue) -> JsonValue {
        let called = self.file.call_by_name(reducer, &arguments).await.expect("it is taken");
        self.acknowledged.push(Acknowledged { seq: called.seq, reducer, arguments });
        called.into_inner()
    }

    async fn append(&mut self, at: usize) {
        let arguments = self.script.parts[0].message_arguments(at);
        self.call("append_message", arguments).await;
    }

    async fn run_call(&mut self, at: usize, result: &str) {
        let part = &self.script.parts[0];
        let call = &part.recording.calls[at];
        let id = call.id(&part.session);
        let arguments = part.call_arguments(call);
        self.call("request_tool_call", arguments).await;
        let claimed = self.call("claim_tool_call", json!({"call_id": id})).await;
        let token = &claimed["fencing_token"];
        let done = json!({"call_id": id, "fencing_token": token, "result": result});
        self.call("complete_tool_call", done).await;
    }

    async fn request(&mut self, at: usize) {
        let part = &self.script.parts[0];
        let arguments = part.call_arguments(&part.recording.calls[at]);
        self.call("request_tool_call", arguments).await;
    }

    async fn check(self, expected: Expect) {
        let path = self.file.engine().expect("it is in this process").path();
        self.file.close().await;
        drop(self.file);
        let audit = audit_file(Config::default(), &path, &self.script, self.acknowledged)
            .await
            .expect("it verifies");
        let Audit { events, lost, differing, pending, .. } = audit;
        let lost = lost.iter().map(|what| format!("\nlost: {what}"));
        let differing = differing.iter().map(|what| format!("\ndiffering: {what}"));
        let found: String = lost.chain(differing).collect();
        expected.assert_eq(&format!("{events} events, {pending} pending{found}"));
    }
}

async fn whole() -> RecordedRun {
    let mut played = RecordedRun::begin().await;
    played.append(0).await;
    played.append(1).await;
    played.run_call(0, "here").await;
    played.request(1).await;
    played.append(2).await;
    played
}

#[tokio::test]
async fn an_audit_accepts_a_complete_run() {
    whole().await.check(expect!["9 events, 1 pending"]).await;
}

#[tokio::test]
async fn an_acknowledged_write_that_is_not_there_is_lost() {
    let mut played = whole().await;
    let arguments = json!({"session_id": "demo-1"});
    let seq = Seq(99);
    played.acknowledged.push(Acknowledged { seq, reducer: "complete_session", arguments });
    played
        .check(expect![[r#"
        9 events, 1 pending
        lost: complete_session at event 99"#]])
        .await;
}

#[tokio::test]
async fn an_acknowledged_write_that_says_something_else_is_lost() {
    let mut played = whole().await;
    played.acknowledged[2].arguments["content"] = "Where was it?".into();
    played.acknowledged[0].reducer = "register_tool";
    played
        .check(expect![[r#"
        9 events, 1 pending
        lost: register_tool at event 1
        lost: append_message at event 3"#]])
        .await;
}

#[tokio::test]
async fn two_writes_cannot_be_the_same_event() {
    let mut played = whole().await;
    let arguments = json!({"name": "look", "description": "twice"});
    let seq = Seq(2);
    played.acknowledged.push(Acknowledged { seq, reducer: "register_tool", arguments });
    played
        .check(expect![[r#"
        9 events, 1 pending
        lost: register_tool at event 2"#]])
        .await;
}

#[tokio::test]
async fn messages_out_of_order_missing_or_beyond_are_found() {
    let mut played = RecordedRun::begin().await;
    played.append(1).await;
    played.append(0).await;
    played.run_call(0, "here").await;
    played.request(1).await;
    for _ in 0..2 {
        played.append(2).await;
    }
    played
        .check(expect![[r#"
        10 events, 1 pending
        differing: message 0 of demo-1
        differing: message 1 of demo-1
        differing: message 3 of demo-1"#]])
        .await;
}

#[tokio::test]
async fn a_call_with_another_result_or_none_is_found() {
    let mut played = RecordedRun::begin().await;
    for at in 0..3 {
        played.append(at).await;
    }
    played.run_call(0, "elsewhere").await;
    played.run_call(1, "where nothing was recorded").await;
    played
        .check(expect![[r#"
        11 events, 1 pending
        differing: tool call demo-1/1/0
        differing: tool call demo-1/1/1"#]])
        .await;
}
