//! Runs that move: at every pause, and with everything that a turn can have, the run is exported and continues in
//! another file under another runtime. It ends with the same conversation, and nothing runs twice.

use abide_client::arguments::{DecideApproval, Decision, ExportRun, ImportRun};
use abide_client::rows::{RunSnapshot, RunStatus};
use abide_client::{Abide, Code};
use serde_json::json;

use crate::fixture::RuntimeFixture;
use crate::pauses::{EVERYWHERE, SCENARIOS, attend, strip_time};

/// Approves calls until the run is paused or waits for a paused run. Returns whether it has; else it has ended.
pub(crate) async fn until_paused(abide: &Abide, run_id: &str) -> bool {
    let sql = "SELECT id FROM approvals WHERE status = 'pending'";
    let mut asked = abide.subscribe(sql).await.expect("the subscription starts");
    let sql = "SELECT id, status, reason, turn FROM runs WHERE id = :id OR reason = 'pause'";
    let runs = abide.subscribe(sql).param("id", run_id);
    let mut runs = runs.await.expect("the subscription starts");
    loop {
        tokio::select! {
            update = asked.try_next() => {
                update.expect("the file is open");
                for (id,) in asked.typed_rows::<(String,)>().expect("they are rows") {
                    let _ = abide.call(DecideApproval::new(Decision::Approve).id(id)).await;
                }
            }
            update = runs.try_next() => {
                update.expect("the file is open");
                let rows = runs.typed_rows::<(String, RunStatus, Option<String>, i64)>();
                let rows = rows.expect("they are rows");
                let paused = rows.iter().any(|(_, _, why, _)| why.as_deref() == Some("pause"));
                let own = rows.iter().find(|(id, ..)| id == run_id).map(|(_, status, ..)| *status);
                match own {
                    Some(RunStatus::Waiting) if paused => return true,
                    Some(status) if status.is_terminal() => return false,
                    _ => {}
                }
            }
        }
    }
}

/// The conversation and the calls of the run, without what belongs to a file. The sessions of delegated runs that have
/// ended stay where they ended.
async fn rendered(abide: &Abide) -> Vec<String> {
    let mut rendered = Vec::new();
    for sql in [
        "SELECT session_id, role, kind, content, data FROM agent_state \
         WHERE session_id IN ('s1', 'r1') ORDER BY id",
        "SELECT call_id, session_id, tool_name, arguments, status, result, error FROM tool_calls \
         WHERE session_id IN ('s1', 'r1') ORDER BY call_id",
        "SELECT id, session_id, agent, status, iterations, tool_calls, input_tokens, \
         output_tokens, usage_missing, output ->> '$.content', error_code FROM runs WHERE parent_id IS NULL",
    ] {
        let found = abide.sql(sql).rows().await.expect("the query succeeds");
        rendered.extend(found.rows.iter().map(|row| format!("{row:?}")));
    }
    // The session of a moved run has the id of the run, and so has the space of its facts.
    rendered.iter_mut().for_each(|row| {
        *row = row.replace("Text(\"s1\")", "Text(\"r1\")").replace("clerk@/s1", "clerk@/r1");
        strip_time(row);
    });
    rendered
}

#[tokio::test]
async fn a_run_that_moves_at_every_pause_ends_as_if_it_had_stayed() {
    for scenario in &SCENARIOS {
        let name = scenario.name;
        let fixture = scenario.open("").await;
        fixture.begin("Pay order A.").await;
        attend(&fixture.abide, "r1").await;
        let expected = (rendered(&fixture.abide).await, fixture.ledger());
        fixture.close().await;

        let mut fixture = scenario.open(EVERYWHERE).await;
        fixture.begin("Pay order A.").await;
        let mut moves = 0;
        let mut ledger = Vec::new();
        while until_paused(&fixture.abide, "r1").await {
            let export = fixture.abide.call(ExportRun::new("r1")).await;
            let snapshot = match export {
                Ok(snapshot) => snapshot.into_inner(),
                // The parent of a paused run looks once more before it waits.
                Err(error) if error.code() == Some(Code::BadTransition) => continue,
                Err(error) => panic!("{name}: {error}"),
            };
            // As text, as it is in a file.
            let text = serde_json::to_string(&snapshot).expect("it is JSON");
            let snapshot: RunSnapshot = serde_json::from_str(&text).expect("it is a snapshot");
            ledger.extend(fixture.ledger());
            fixture.close().await;
            fixture = scenario.open(EVERYWHERE).await;
            let import = fixture.abide.call(ImportRun::new(snapshot)).await;
            import.unwrap_or_else(|error| panic!("{name}: {error}"));
            moves += 1;
        }
        ledger.extend(fixture.ledger());
        assert_eq!(rendered(&fixture.abide).await, expected.0, "{name}");
        assert_eq!(ledger, expected.1, "{name}: a tool has run twice, or not at all");
        assert!(moves > 1, "{name}: it has moved {moves} times");
        fixture.close().await;
    }
}

/// Approvals are not part of a snapshot: a call that was approved and has not run needs the approval of the file that
/// it runs in.
#[tokio::test]
async fn an_approval_does_not_move() {
    let definition = "tools: [pay]\ninterrupt_on: { pay: true }\n";
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]";
    let fixture = RuntimeFixture::start(definition, script).await;
    fixture.begin("Pay.").await;
    let (_, event) = fixture.output("r1", 0).await;
    assert_eq!(event.data["reason"], "approval");
    let copy =
        fixture.abide.call(ExportRun::new("r1").copy(true)).await.expect("it waits").into_inner();
    let here = fixture.abide.call(ExportRun::new("r1")).await.expect("it waits").into_inner();
    assert!(copy.is_copy && !here.is_copy);
    assert!(here.runs[0].calls.is_empty(), "the call has no outcome");
    let target = RuntimeFixture::start(definition, script).await;
    target.abide.call(ImportRun::new(here)).await.expect("it is whole");
    let (_, event) = target.output("r1", 0).await;
    assert_eq!((event.kind.as_str(), target.ledger().len()), ("interrupt", 0));
    let decide = DecideApproval::new(Decision::Approve).call_id("r1~1.1");
    target.abide.call(decide).await.expect("it is pending");
    let (_, end) = target.output("r1", event.number).await;
    assert_eq!((end.kind.as_str(), target.ledger()), ("done", vec!["pay A".to_owned()]));
    assert_eq!(fixture.ledger(), Vec::<String>::new());
    fixture.close().await;
    target.close().await;
}

/// A forged answer with many calls ran all of them.
#[tokio::test]
async fn an_imported_answer_keeps_the_limit_of_tool_calls() {
    let definition = "tools: [pay, look]\ninterrupt_on: { pay: true }\nlimits: { tool_calls: 1 }\n";
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]";
    let fixture = RuntimeFixture::start(definition, script).await;
    fixture.begin("Pay.").await;
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    let snapshot = fixture.abide.call(ExportRun::new("r1")).await.expect("it waits").into_inner();
    fixture.close().await;
    let mut forged = serde_json::to_value(&snapshot).expect("it is JSON");
    let messages = forged["runs"][0]["messages"].as_array_mut().expect("there are messages");
    let calls = messages.last_mut().expect("the answer")["data"]["calls"].as_array_mut();
    let calls = calls.expect("the answer has a call");
    calls.extend((2..=3).map(|nth| {
        json!({"call_id": format!("r1~1.{nth}"), "name": "look", "arguments": r#"{"order":"B"}"#})
    }));
    let forged: RunSnapshot = serde_json::from_value(forged).expect("it is a snapshot");
    let fixture = RuntimeFixture::start(definition, script).await;
    fixture.abide.call(ImportRun::new(forged)).await.expect("it is imported");
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    let sql = "SELECT call_id FROM tool_calls";
    let calls: Vec<(String,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(calls, [("r1~1.1".to_owned(),)]);
    let sql = "SELECT count(*) FROM agent_state WHERE content LIKE 'This call was skipped%'";
    let skipped: Vec<(i64,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(skipped, [(2,)]);
    assert_eq!(fixture.ledger(), [""; 0]);
    fixture.close().await;
}
