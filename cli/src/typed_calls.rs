//! Test of typed calls, of the reducer of `examples/own-module` and of built-in ones, and of the module with a deadline of the page.

use crate::arguments::{AppendMessage, CreateSession};
use crate::{Abide, Call, Config};

#[path = "../../examples/own-module/src/notes.rs"]
#[expect(unreachable_pub, reason = "the file is as a program has it")]
mod notes;

#[expect(unreachable_pub, reason = "the file is as a program has it")]
mod reminders;

use notes::AddNote;
use reminders::{EndReminder, SetReminder};

#[tokio::test]
async fn a_typed_call_names_its_reducer_and_returns_its_result() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let path = folder.path().join("agents.db");
    let config = Config { modules: vec![notes::module()], ..Config::default() };
    let abide = Abide::open_with(path, config).expect("the file opens");

    let session = abide
        .call(CreateSession::new("support").id("s1"))
        .await
        .expect("it is created")
        .into_inner();
    assert_eq!((session.id.as_str(), session.title.as_deref()), ("s1", None));
    let session_id = "s1".to_owned();
    let body = "Call back on Monday".to_owned();
    let note = abide.call(AddNote { session_id, body }).await.expect("it is added").into_inner();
    assert_eq!((note.id, note.body.as_str()), (1, "Call back on Monday"));

    let calls = [
        Call::from(AppendMessage::new("s1", "user", "Where is it?").kind("question")),
        Call::from(AddNote::new("s1", "Asked again")),
    ];
    abide.batch(calls).await.expect("both are done");
    let message = abide.call(AppendMessage::new("s1", "assistant", None)).await;
    assert_eq!(message.expect("it is appended").value.id, 2);

    let arguments: Vec<String> =
        abide.sql("SELECT arguments FROM events ORDER BY seq").fetch().await.expect("it is read");
    let expected = [
        r#"{"agent":"support","id":"s1"}"#,
        r#"{"body":"Call back on Monday","session_id":"s1"}"#,
        r#"{"content":"Where is it?","kind":"question","role":"user","session_id":"s1"}"#,
        r#"{"body":"Asked again","session_id":"s1"}"#,
        r#"{"content":null,"role":"assistant","session_id":"s1"}"#,
    ];
    assert_eq!(arguments, expected);
    abide.close().await;
}

/// `docs/own-modules.md` shows this module: its rows end when they are due, and then stay as they are.
#[tokio::test]
async fn a_module_has_a_deadline_and_a_trigger() {
    let page = include_str!("../../docs/own-modules.md");
    assert!(page.contains(include_str!("typed_calls/reminders.rs")));
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let config = Config { modules: vec![reminders::module()], ..Config::default() };
    let abide = Abide::open_with(folder.path().join("agents.db"), config).expect("the file opens");
    abide.call(CreateSession::new("support").id("s1")).await.expect("it is created");
    let set = abide.call(SetReminder::new("s1", 3_600_000)).await.expect("it is set");
    let early = abide.call(EndReminder::new(set.value.id, set.value.due_at)).await;
    let refusal = early.expect_err("its time has not come").to_string();
    assert!(refusal.contains("reminder 1 is not due"), "{refusal}");
    let mut done =
        abide.subscribe("SELECT id FROM reminders WHERE done = 1").await.expect("it is valid");
    abide.call(SetReminder::new("s1", 1)).await.expect("it is set");
    while done.rows().next().is_none() {
        done.try_next().await.expect("the file is open").expect("it does not end");
    }
    assert_eq!(done.rows().len(), 1);
    abide.close().await;
}
