//! The API behaves the same with both backends.

use std::time::Duration;

use abide_client::arguments::{
    AppendMessage, CancelSession, ClaimHandoff, ClaimToolCall, CompleteSession, CompleteToolCall,
    CreateSession, DecideApproval, Decision, FailSession, FailToolCall, HeartbeatToolCall, Outcome,
    RegisterTool, RejectHandoff, ReleaseHandoff, RequestSupervisorHandoff, RequestToolCall,
    ResolveHandoff, ResumeSession, SettleToolCall, SuspendSession,
};
use abide_client::rows::{
    AgentState, Approval, HandoffRequest, HandoffStatus, Session, SessionStatus, Tool, ToolCall,
    ToolCallStatus,
};
use abide_client::{Abide, Call, Code, Error, Seq, Value};
use abide_server::AccessConfig;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};

use crate::world::{Sample, World, connect};

/// Runs a scenario twice: with an embedded engine, and with a server.
macro_rules! stories {
    ($($name:ident)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test]
            async fn embedded() {
                let world = World::new();
                let abide = world.embedded();
                super::$name(&abide).await;
                assert_eq!(abide.mismatches(), 0, "rows that differ from the server's");
                abide.close().await;
            }

            #[tokio::test]
            async fn remote() {
                let world = World::new();
                let server = world.serve(None, AccessConfig::loopback()).await;
                let abide = connect(&server).await;
                super::$name(&abide).await;
                assert_eq!(abide.mismatches(), 0, "rows that differ from the server's");
                abide.close().await;
                server.stop().await;
            }
        }
    )*};
}

stories! {
    a_session_from_its_first_message_to_its_end
    a_tool_call_runs_once
    approvals_are_decided
    handoffs_go_to_one_supervisor
    a_call_with_a_request_id_takes_effect_once
    a_batch_is_all_or_nothing
    rows_are_decoded_or_returned_unchanged
    a_subscription_holds_the_result
    a_query_for_one_row_returns_the_first
    a_stream_of_updates_has_no_gap
    a_typed_subscription_has_typed_rows_and_changes
    a_subscription_from_a_seq_gets_the_changes_since
    refusals_keep_their_code_and_hint
    a_query_without_a_key_is_maintained
    joins_and_groups_are_maintained
    hidden_sort_columns_are_not_returned
    a_top_n_result_holds_the_visible_rows
    large_results_are_complete
    concurrent_tasks_share_one_client
    a_subscription_can_start_as_of_a_seq
    a_resumed_subscription_gets_the_columns
    a_query_is_explained
    a_dropped_query_frees_its_reader
}

async fn new_session(abide: &Abide) -> Session {
    abide.call(CreateSession::new("support")).await.expect("it is made").into_inner()
}

async fn a_session_from_its_first_message_to_its_end(abide: &Abide) {
    let new = CreateSession::new("support")
        .title("a parcel")
        .metadata(serde_json::Map::from_iter([("order".to_owned(), json!(7))]));
    let session = abide.call(new).await.expect("it is made");
    assert_eq!((session.seq, session.duplicate), (session.value.seq, false));
    assert_eq!(session.value.metadata.value(), json!({"order": 7}));

    let messages = [
        AppendMessage::new(&session.value.id, "user", "Where is my parcel?"),
        AppendMessage::new(&session.value.id, "assistant", None)
            .data(json!({"calls": [1.5, null]})),
        AppendMessage::new(&session.value.id, "tool", "{\"at\": \"the depot\"}")
            .kind("observation"),
    ];
    for message in messages.clone() {
        abide.call(message).await.expect("it is appended");
    }
    let rows: Vec<AgentState> = abide
        .sql("SELECT * FROM agent_state WHERE session_id = :sid ORDER BY id")
        .param("sid", &session.value.id)
        .fetch()
        .await
        .expect("it is read");
    for (rows, message) in rows.iter().zip(&messages) {
        assert_eq!((&rows.role, &rows.content), (&message.role, &message.content.0));
        assert_eq!(rows.data.as_ref().map(|data| data.value()), message.data);
    }
    assert_eq!(rows[2].kind, "observation");

    let id = &session.value.id;
    let suspended =
        abide.call(SuspendSession::new(id).reason("lunch")).await.expect("it is suspended");
    assert_eq!(
        (suspended.value.status, suspended.value.reason.as_deref()),
        (SessionStatus::Suspended, Some("lunch"))
    );
    abide.call(ResumeSession::new(id)).await.expect("it is resumed");
    let done =
        abide.call(CompleteSession::new(id).result(json!({"found": true}))).await.expect("it ends");
    assert_eq!(done.value.result.as_ref().map(|json| json.value()), Some(json!({"found": true})));

    let failed = new_session(abide).await;
    let failed = FailSession::new(&failed.id, "lost", "the parcel is lost");
    let failed = abide.call(failed).await.expect("it ends");
    assert_eq!(failed.value.error_code.as_deref(), Some("lost"));
    let cancelled = new_session(abide).await;
    let cancelled =
        abide.call(CancelSession::new(&cancelled.id).reason("no")).await.expect("it ends");
    assert_eq!(cancelled.value.error_code.as_deref(), Some("cancelled"));
}

async fn requested(abide: &Abide, session: &Session, call_id: &str, tool: &str) -> ToolCall {
    let call = RequestToolCall::new(call_id, &session.id, tool, json!({"order": 7}));
    let first = abide.call(call.clone()).await.expect("it is asked for");
    let again = abide.call(call).await.expect("it is asked for again");
    assert_eq!((first.duplicate, again.duplicate, again.seq), (false, true, first.seq));
    first.into_inner()
}

async fn a_tool_call_runs_once(abide: &Abide) {
    let session = new_session(abide).await;
    let tool = abide.call(RegisterTool::new("refund")).await.expect("it is registered");
    assert!(!tool.value.needs_approval);
    let tools: Vec<Tool> = abide.sql("SELECT * FROM tools").fetch().await.expect("read");
    assert_eq!(tools, [tool.into_inner()], "a row reads the same as a result, bools too");

    let call = requested(abide, &session, "c1", "refund").await;
    let claim = ClaimToolCall::new(&call.call_id).lease_ms(5_000).worker("w1");
    let token =
        abide.call(claim).await.expect("it is claimed").value.fencing_token.expect("a token");
    let lost = abide.call(ClaimToolCall::new(&call.call_id)).await.expect_err("one claimant wins");
    assert_eq!(lost.code(), Some(Code::Conflict));
    let heartbeat = HeartbeatToolCall::new(&call.call_id, token).lease_ms(9_000);
    abide.call(heartbeat).await.expect("it goes on");
    let done = CompleteToolCall::new(&call.call_id, token, json!({"refunded": 12}));
    let done = abide.call(done).await.expect("it ends");
    assert_eq!(done.value.status, ToolCallStatus::Succeeded);

    requested(abide, &session, "c2", "refund").await;
    let claim = ClaimToolCall::new("c2");
    let claimed = abide.call(claim.clone()).await.expect("it is claimed");
    let token = claimed.value.fencing_token.expect("a token");
    let busy = FailToolCall::new("c2", token, "busy").retryable(true);
    let back = abide.call(busy).await.expect("it goes back");
    assert_eq!(back.value.status, ToolCallStatus::Pending);
    let claimed = abide.call(claim).await.expect("it is claimed");
    let token = claimed.value.fencing_token.expect("a token");
    let failed = abide.call(FailToolCall::new("c2", token, "no")).await.expect("it fails");
    assert_eq!((failed.value.status, failed.value.attempt), (ToolCallStatus::Failed, 2));

    let settled = SettleToolCall::new("c2", Outcome::Succeeded)
        .result(json!(1))
        .evidence(json!({"by": "hand"}));
    let settled = abide.call(settled).await.expect_err("there is nothing to settle");
    assert_eq!(settled.code(), Some(Code::Conflict));
}

async fn approvals_are_decided(abide: &Abide) {
    let session = new_session(abide).await;
    let tool = RegisterTool::new("refund").needs_approval(true);
    abide.call(tool).await.expect("it is registered");
    let call = requested(abide, &session, "c1", "refund").await;
    assert_eq!(call.status, ToolCallStatus::AwaitingApproval);
    let pending: Vec<Approval> =
        abide.sql("SELECT * FROM approvals WHERE status = 'pending'").fetch().await.expect("read");
    let approval = DecideApproval::new(Decision::Approve)
        .id(&pending[0].id)
        .comment("up to 10")
        .approved_arguments(json!({"order": 7, "most": 10}));
    let approved = abide.call(approval).await.expect("it is decided");
    assert_eq!(approved.value.comment.as_deref(), Some("up to 10"));
    let other = requested(abide, &session, "c2", "refund").await;
    let decide = |decision| abide.call(DecideApproval::new(decision).call_id(&other.call_id));
    decide(Decision::Reject).await.expect("it is decided");
    let again = decide(Decision::Approve).await.expect_err("the first decider wins");
    assert_eq!(again.code(), Some(Code::Conflict));
}

async fn handoffs_go_to_one_supervisor(abide: &Abide) {
    let session = new_session(abide).await;
    let mut pending = abide
        .subscribe("SELECT * FROM handoff_requests WHERE status = 'pending'")
        .checksum()
        .await
        .expect("it begins");
    let request = |reason: &str| RequestSupervisorHandoff::new(&session.id, reason, "refunds");
    abide.call(request("angry").data(json!({"order": 7}))).await.expect("it is handed off");

    let mut claimed_at = Seq::ZERO;
    while claimed_at == Seq::ZERO {
        let update = pending.try_next().await.expect("it is live").expect("an update");
        for handoff in update.inserts::<HandoffRequest>().expect("rows") {
            let claim = abide.call(ClaimHandoff::new(&handoff.id)).await.expect("it is claimed");
            abide.call(ClaimHandoff::new(&handoff.id)).await.expect_err("one winner");
            let released =
                abide.call(ReleaseHandoff::new(&claim.value.id)).await.expect("it is given back");
            assert_eq!(released.value.status, HandoffStatus::Pending);
            let claim = ClaimHandoff::new(&handoff.id).lease_ms(60_000);
            let claim = abide.call(claim).await.expect("it is claimed");
            let answer = ResolveHandoff::new(&claim.value.id, "approved");
            abide.call(answer).await.expect("it is answered");
            claimed_at = claim.seq;
        }
    }
    while pending.seq() < claimed_at {
        pending.try_next().await.expect("an update");
    }
    assert_eq!(pending.rows().len(), 0);
    abide.call(request("again")).await.expect("handed off");
    let again = pending.try_next().await.expect("it is live").expect("an update");
    let again: Vec<HandoffRequest> = again.inserts().expect("rows");
    abide.call(ClaimHandoff::new(&again[0].id)).await.expect("it is claimed");
    let rejected =
        abide.call(RejectHandoff::new(&again[0].id, "no")).await.expect("it is declined");
    assert_eq!(rejected.value.status, HandoffStatus::Rejected);
}

async fn a_call_with_a_request_id_takes_effect_once(abide: &Abide) {
    let keep = || abide.call_by_name("keep", json!({"name": "a"})).request_id("once");
    let first = keep().await.expect("it is kept");
    let again = keep().await.expect("it was kept");
    assert_eq!((first.duplicate, again.duplicate), (false, true));
    assert_eq!((first.seq, &first.value), (again.seq, &again.value));
    let other = abide.call_by_name("keep", json!({"name": "b"})).request_id("once").await;
    assert_eq!(other.expect_err("it is another").code(), Some(Code::RequestIdConflict));
    let without = abide
        .call_by_name("keep", json!({"name": "a"}))
        .deadline(Duration::MAX)
        .await
        .expect("it is kept");
    assert_ne!(without.value["id"], first.value["id"], "calls without a request id are distinct");
}

async fn a_batch_is_all_or_nothing(abide: &Abide) {
    let session = new_session(abide).await;
    let batch = abide
        .batch([
            Call::new("keep", json!({"name": "a"})),
            AppendMessage::new(&session.id, "user", "hi").into(),
        ])
        .request_id("both");
    let done = batch.await.expect("both happen");
    let seqs: Vec<Seq> = done.value.iter().map(|one| one.seq).collect();
    assert_eq!(seqs, [Seq(done.seq.0 - 1), done.seq]);
    assert_eq!(done.value[0].result["name"], "a");

    let calls = [Call::new("keep", json!({"name": "b"})), Call::new("keep", json!({"no": 1}))];
    let refused = abide.batch(calls).await.expect_err("the second is wrong");
    assert_eq!(refused.code(), Some(Code::BadArguments));
    let count: Vec<i64> = abide.sql("SELECT count(*) FROM samples").fetch().await.expect("read");
    assert_eq!(count, [1]);
}

async fn rows_are_decoded_or_returned_unchanged(abide: &Abide) {
    let kept = abide
        .call_by_name("keep", json!({"name": "a\u{0}é", "weight": 1.0, "bytes": [0, 255]}))
        .returning::<Sample>()
        .await
        .expect("it is kept");
    abide.call_by_name("keep", json!({"name": "b"})).await.expect("it is kept");

    let sql = || abide.sql("SELECT * FROM samples ORDER BY id");
    let samples: Vec<Sample> = sql().fetch().await.expect("read");
    assert_eq!(samples[0], kept.value);
    assert_eq!(samples[1].weight, None);
    let as_json: Vec<JsonValue> = sql().fetch().await.expect("read");
    assert_eq!(as_json[0]["bytes"], json!({"$blob": "AP8="}));
    let raw = sql().rows().await.expect("read");
    assert_eq!(raw.columns, ["id", "name", "weight", "bytes", "seq"]);
    assert_eq!(raw.rows[0][2], Value::Real(1.0));
    assert_eq!(raw.rows[0][3], Value::Blob(vec![0, 255]));
    assert_eq!(raw.seq, Seq(2));

    let past: Vec<String> = abide
        .sql("SELECT name FROM samples WHERE id = :id")
        .param("id", 1)
        .as_of(kept.seq)
        .fetch()
        .await
        .expect("read");
    assert_eq!(past, ["a\u{0}é"]);

    #[derive(Debug, Deserialize)]
    struct Parsed {
        list: Vec<i64>,
        object: std::collections::BTreeMap<String, bool>,
        flag: bool,
    }
    let sql = "SELECT '[1,2]' AS list, '{\"a\":true}' AS object, 1 AS flag";
    let parsed: Vec<Parsed> = abide.sql(sql).fetch().await.expect("read");
    assert_eq!(
        (&*parsed[0].list, parsed[0].object["a"], parsed[0].flag),
        (&[1, 2][..], true, true)
    );

    let wrong = abide.sql("SELECT 'x' AS id").fetch::<Sample>().await.expect_err("no sample");
    assert!(matches!(wrong, Error::Decode { .. }));
    assert!(format!("{wrong:#}").contains("column id"), "{wrong:#}");
}

async fn a_subscription_holds_the_result(abide: &Abide) {
    let keep = |name: &str| abide.call_by_name("keep", json!({"name": name}));
    for name in ["b", "C", "a"] {
        keep(name).await.expect("it is kept");
    }
    let sql = "SELECT id, name FROM samples WHERE id < :most ORDER BY name COLLATE NOCASE DESC";
    let mut sub = abide.subscribe(sql).checksum().param("most", 100).await.expect("it begins");
    let names = |sub: &abide_client::Subscription| -> String {
        let rows: Vec<(i64, String)> = sub.typed_rows().expect("rows");
        rows.into_iter().map(|(_, name)| name).collect()
    };
    assert_eq!(names(&sub), "Cba", "the rows are available after the start");
    assert_eq!(sub.columns().len(), 2);
    let first = sub.try_next().await.expect("it is live").expect("an update");
    assert!(first.reset);
    assert_eq!(first.insert_rows().len(), 3);

    keep("B2").await.expect("it is kept");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert_eq!((names(&sub).as_str(), update.insert_rows().len()), ("CB2ba", 1));
    abide.call_by_name("rename", json!({"id": 1, "name": "z"})).await.expect("it is renamed");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    let renamed: Vec<(i64, String)> = update.updates().expect("rows");
    assert_eq!((names(&sub).as_str(), renamed), ("zCB2a", vec![(1, "z".to_owned())]));
    let forgot = abide.call_by_name("forget", json!({"id": 2})).await.expect("it is forgotten");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert_eq!(update.deletes::<i64>().expect("keys"), [2]);
    assert_eq!((names(&sub).as_str(), sub.seq(), update.seq), ("zB2a", forgot.seq, forgot.seq));
}

async fn a_stream_of_updates_has_no_gap(abide: &Abide) {
    let sub = abide.subscribe("SELECT id FROM samples").checksum().await.expect("it begins");
    let writer = async {
        for n in 0..200 {
            abide.call_by_name("keep", json!({"name": n.to_string()})).await.expect("it is kept");
        }
    };
    let reader = async {
        let mut seen = Vec::new();
        let mut at = None;
        let mut updates = std::pin::pin!(sub.map(|update| update.expect("it is live")));
        while seen.len() < 200 {
            let update = updates.next().await.expect("an update");
            assert!(at.is_none_or(|at| at == update.from), "{at:?} {update:?}");
            at = Some(update.seq);
            seen.extend(update.inserts::<i64>().expect("ids"));
        }
        seen
    };
    let (_, seen) = tokio::join!(writer, reader);
    assert_eq!(seen, (1..=200).collect::<Vec<i64>>());
}

async fn a_query_for_one_row_returns_the_first(abide: &Abide) {
    let none = || abide.sql("SELECT id FROM samples");
    assert!(matches!(none().fetch_one::<i64>().await, Err(Error::RowNotFound)));
    assert_eq!(none().fetch_optional::<i64>().await.expect("a query"), None);
    for name in ["a", "b"] {
        abide.call_by_name("keep", json!({"name": name})).await.expect("it is kept");
    }
    let all = || abide.sql("SELECT id, name FROM samples ORDER BY id DESC");
    let first: (i64, String) = all().fetch_one().await.expect("a row");
    assert_eq!(first, (2, "b".to_owned()));
    let sample: Option<Sample> =
        abide.sql("SELECT * FROM samples").fetch_optional().await.expect("a query");
    assert_eq!(sample.expect("a row").name, "a");
    let wrong = all().fetch_one::<i64>().await.expect_err("two columns are not a number");
    assert!(matches!(wrong, Error::Decode { .. }), "{wrong}");
}

async fn a_typed_subscription_has_typed_rows_and_changes(abide: &Abide) {
    let keep = |name: &str| abide.call_by_name("keep", json!({"name": name}));
    keep("a").await.expect("it is kept");
    let sql = "SELECT * FROM samples WHERE id < :end ORDER BY id";
    let mut samples =
        abide.subscribe_as::<Sample>(sql).param("end", 9).checksum().await.expect("it begins");
    assert_eq!(samples.as_untyped().key(), ["id"]);
    let first = samples.try_next().await.expect("it is live").expect("the result");
    assert!(first.reset && first.inserts == samples.rows().expect("samples"));
    keep("b").await.expect("it is kept");
    let update = samples.try_next().await.expect("it is live").expect("an update");
    assert_eq!((update.inserts.len(), update.inserts[0].name.as_str()), (1, "b"));
    abide.call_by_name("rename", json!({"id": 1, "name": "c"})).await.expect("it is renamed");
    let update = samples.try_next().await.expect("it is live").expect("an update");
    assert_eq!((update.updates[0].name.as_str(), update.seq), ("c", samples.seq()));
    abide.call_by_name("forget", json!({"id": 2})).await.expect("it is forgotten");
    let update = samples.try_next().await.expect("it is live").expect("an update");
    assert_eq!(update.deletes::<i64>().expect("a key"), [2]);
    assert_eq!(update.as_untyped().delete_keys().len(), 1);

    // Rows of another type are errors, after which the stream goes on.
    let mut numbers = abide.subscribe_as::<i64>("SELECT name FROM samples").await.expect("begun");
    assert!(matches!(numbers.next().await, Some(Err(Error::Decode { .. }))));
    keep("d").await.expect("it is kept");
    assert!(matches!(numbers.next().await, Some(Err(Error::Decode { .. }))));
    assert_eq!(numbers.into_untyped().rows().len(), 2);
}

async fn a_subscription_from_a_seq_gets_the_changes_since(abide: &Abide) {
    let keep = |name: &str| abide.call_by_name("keep", json!({"name": name}));
    let known = keep("a").await.expect("it is kept").seq;
    keep("b").await.expect("it is kept");
    keep("c").await.expect("it is kept");
    let sql = "SELECT id, name FROM samples; ";
    let mut sub = abide.subscribe(sql).checksum().after(known).await.expect("it begins");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    let rows: Vec<(i64, String)> = update.inserts().expect("rows");
    assert_eq!(rows, [(2, "b".to_owned()), (3, "c".to_owned())]);
    assert_eq!((update.from, update.reset, sub.rows().len()), (known, false, 0));
    abide.call_by_name("forget", json!({"id": 1})).await.expect("it is forgotten");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert_eq!(update.deletes::<i64>().expect("keys"), [1]);

    // A seq beyond the end of the log: the whole result, marked as such.
    let mut sub = abide.subscribe(sql).checksum().after(1_000_000).await.expect("it begins");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert!(update.reset);
    assert_eq!(update.inserts::<(i64, String)>().expect("rows").len(), 2);
}

async fn refusals_keep_their_code_and_hint(abide: &Abide) {
    let unknown = abide.call_by_name("keeep", json!({})).await.expect_err("there is none");
    assert_eq!(unknown.code(), Some(Code::UnknownReducer));
    assert_eq!(unknown.hint(), Some("did you mean keep?"));
    let wrong = abide.call_by_name("keep", json!({"name": 1})).await.expect_err("a number");
    assert_eq!(wrong.code(), Some(Code::BadArguments));
    let large = json!({"name": "a", "weight": u64::MAX});
    for error in [
        abide.call_by_name("keep", large.clone()).await.expect_err("it would lose digits"),
        abide.batch([Call::new("keep", large)]).await.expect_err("it would lose digits"),
    ] {
        assert_eq!(error.code(), Some(Code::BadArguments), "{error}");
        let output = error.to_string();
        assert!(output.contains("the integer 18446744073709551615"), "{output}");
    }
    let writes = abide.sql("DELETE FROM samples").rows().await.expect_err("it writes");
    assert_eq!(writes.code(), Some(Code::BadSql));
    let missing = abide.sql("SELECT :x").rows().await.expect_err("no x");
    assert_eq!(missing.code(), Some(Code::BadArguments));
    let live = abide.subscribe("SELECT * FROM samples ORDER BY random()").checksum().await;
    assert_eq!(live.expect_err("not live").code(), Some(Code::UnsupportedSql));
    let syntax = abide.subscribe("SELEC").checksum().after(1).await.expect_err("no SQL");
    assert_eq!(syntax.code(), Some(Code::BadSql));
    let not_an_object = abide.call_by_name("keep", json!([1])).await.expect_err("a list");
    assert!(matches!(not_an_object, Error::Refused(_)), "{not_an_object}");
}

async fn a_query_without_a_key_is_maintained(abide: &Abide) {
    for name in ["a", "a", "b"] {
        abide.call_by_name("keep", json!({"name": name})).await.expect("it is kept");
    }
    let Ok(mut sub) = abide.subscribe("SELECT name FROM samples ORDER BY name").checksum().await
    else {
        return; // Not live in this version.
    };
    sub.try_next().await.expect("an update");
    abide.call_by_name("forget", json!({"id": 1})).await.expect("it is forgotten");
    sub.try_next().await.expect("an update");
    assert_eq!(sub.typed_rows::<String>().expect("rows"), ["a", "b"]);
}

async fn joins_and_groups_are_maintained(abide: &Abide) {
    let session = new_session(abide).await;
    let joined = "SELECT a.id, s.id, a.content FROM agent_state AS a JOIN sessions AS s \
                  ON s.id = a.session_id ORDER BY a.id DESC";
    let grouped = "SELECT role, count(*) AS n FROM agent_state GROUP BY role";
    let mut joined = abide.subscribe(joined).checksum().await.expect("it begins");
    let mut grouped = abide.subscribe(grouped).checksum().await.expect("it begins");
    let mut last = Seq::ZERO;
    for (role, text) in [("user", "a"), ("assistant", "b"), ("user", "c")] {
        last = abide
            .call(AppendMessage::new(&session.id, role, text))
            .await
            .expect("it is appended")
            .seq;
    }
    for sub in [&mut joined, &mut grouped] {
        while sub.seq() < last {
            sub.try_next().await.expect("an update");
        }
    }
    let rows: Vec<(i64, String, String)> = joined.typed_rows().expect("rows");
    let text: String = rows.into_iter().map(|(_, _, content)| content).collect();
    assert_eq!(text, "cba");
    let rows: Vec<(String, i64)> = grouped.typed_rows().expect("rows");
    assert_eq!(rows, [("assistant".to_owned(), 1), ("user".to_owned(), 2)]);
}

async fn hidden_sort_columns_are_not_returned(abide: &Abide) {
    for (name, weight) in [("a", 3.0), ("b", 2.0), ("c", 1.0)] {
        let args = json!({"name": name, "weight": weight});
        abide.call_by_name("keep", args).await.expect("it is kept");
    }
    let sql = "SELECT id, name FROM samples ORDER BY weight";
    let mut sub = abide.subscribe(sql).checksum().await.expect("it begins");
    let first = sub.try_next().await.expect("it is live").expect("an update");
    assert!(first.insert_rows().all(|row| row.len() == 2));
    let names: Vec<&str> = sub.columns().iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["id", "name"]);
    abide.call_by_name("keep", json!({"name": "d"})).await.expect("it is kept");
    sub.try_next().await.expect("an update");
    let rows: Vec<(i64, String)> = sub.typed_rows().expect("rows");
    let names: String = rows.into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, "dcba", "NULL is first");
    assert!(sub.rows().all(|row| row.len() == 2));
}

async fn a_top_n_result_holds_the_visible_rows(abide: &Abide) {
    for name in ["d", "b", "c"] {
        abide.call_by_name("keep", json!({"name": name})).await.expect("it is kept");
    }
    let sql = "SELECT id, name FROM samples ORDER BY name LIMIT 2";
    let mut sub = abide.subscribe(sql).checksum().await.expect("it begins");
    sub.try_next().await.expect("an update");
    abide.call_by_name("keep", json!({"name": "a"})).await.expect("it is kept");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert_eq!(update.inserts::<(i64, String)>().expect("rows"), [(4, "a".to_owned())]);
    assert_eq!(update.deletes::<i64>().expect("keys"), [3]);
    let positions = update.positions().expect("a top-N result");
    assert_eq!((&*positions.deletes, &*positions.inserts), (&[1][..], &[0][..]));
    abide.call_by_name("rename", json!({"id": 4, "name": "bb"})).await.expect("it is renamed");
    sub.try_next().await.expect("an update");
    let rows: Vec<(i64, String)> = sub.typed_rows().expect("rows");
    assert_eq!(rows, [(2, "b".to_owned()), (4, "bb".to_owned())]);
}

async fn large_results_are_complete(abide: &Abide) {
    let calls = (0..1_000).map(|n| Call::new("keep", json!({"name": format!("{n:04}")})));
    abide.batch(calls).await.expect("they are kept");
    let sub = abide
        .subscribe("SELECT id, name FROM samples ORDER BY name DESC")
        .checksum()
        .await
        .expect("it begins");
    assert_eq!(sub.rows().len(), 1_000, "it came in parts");
    assert_eq!(sub.rows().next().expect("a row")[1], Value::from("0999"));
    let long = "x".repeat(1 << 20);
    let kept = abide.call_by_name("keep", json!({"name": long})).returning::<Sample>().await;
    assert_eq!(kept.expect("it is kept").value.name, long);
}

async fn concurrent_tasks_share_one_client(abide: &Abide) {
    let tasks = (0..50).map(|n| {
        let abide = abide.clone();
        tokio::spawn(async move {
            let name = format!("n{n}");
            let sql = "SELECT name FROM samples WHERE name = :name";
            let mut sub =
                abide.subscribe(sql).checksum().param("name", &name).await.expect("it begins");
            for _ in 0..4 {
                abide.call_by_name("keep", json!({"name": name})).await.expect("it is kept");
            }
            while sub.rows().len() < 4 {
                sub.try_next().await.expect("an update");
            }
            assert!(sub.typed_rows::<String>().expect("rows").iter().all(|held| *held == name));
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("it ends well");
    }
}

async fn a_subscription_can_start_as_of_a_seq(abide: &Abide) {
    let keep = |name: &str| abide.call_by_name("keep", json!({"name": name}));
    keep("a").await.expect("it is kept");
    let then = keep("b").await.expect("it is kept").seq;
    abide.call_by_name("forget", json!({"id": 1})).await.expect("it is forgotten");
    let now = keep("c").await.expect("it is kept").seq;
    for sql in [
        "SELECT id, name FROM samples ORDER BY name",
        "SELECT id, name FROM samples ORDER BY name LIMIT 5",
        "SELECT id, name FROM samples UNION ALL SELECT id, name FROM samples ORDER BY name",
    ] {
        let mut sub = abide.subscribe(sql).as_of(then).checksum().await.expect("it begins");
        let names = |sub: &abide_client::Subscription| -> String {
            let rows: Vec<(i64, String)> = sub.typed_rows().expect("rows");
            rows.into_iter().map(|(_, name)| name).collect()
        };
        let twice = sql.contains("UNION");
        assert_eq!(names(&sub), if twice { "aabb" } else { "ab" }, "{sql}");
        assert_eq!(sub.is_top_n(), sql.contains("LIMIT"));
        let first = sub.try_next().await.expect("it is live").expect("the result of then");
        assert_eq!((first.seq, first.reset), (then, true));
        let since = sub.try_next().await.expect("it is live").expect("all that changed since");
        assert_eq!((since.from, since.seq, since.reset), (then, now, false));
        assert_eq!(names(&sub), if twice { "bbcc" } else { "bc" }, "{sql}");
    }
    let mut sub = abide.subscribe("SELECT id FROM samples").as_of(now).await.expect("it begins");
    sub.try_next().await.expect("the result");
    keep("d").await.expect("it is kept");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert_eq!((update.from, update.inserts::<i64>().expect("ids")), (now, vec![4]));

    let ahead =
        abide.subscribe("SELECT id FROM samples").as_of(99).await.expect_err("no such state");
    assert_eq!(ahead.code(), Some(Code::BadRequest), "{ahead}");
    assert!(ahead.hint().is_some());
}

async fn a_resumed_subscription_gets_the_columns(abide: &Abide) {
    let kept = abide.call_by_name("keep", json!({"name": "a"})).await.expect("it is kept").seq;
    let sql = "SELECT * FROM samples ORDER BY weight, name DESC";
    let mut sub =
        abide.subscribe(sql).after(kept).await.expect("it begins, though nothing changed");
    let columns: Vec<&str> = sub.columns().iter().map(|column| column.name.as_str()).collect();
    assert_eq!(columns, ["id", "name", "weight", "bytes", "seq"]);
    assert_eq!((sub.key(), sub.seq()), (&["id".to_owned()][..], kept));
    let order: Vec<(&str, bool)> =
        sub.order().iter().map(|term| (term.column.as_str(), term.desc)).collect();
    assert_eq!(order, [("weight", false), ("name", true)]);
    abide.call_by_name("keep", json!({"name": "b"})).await.expect("it is kept");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert_eq!(update.inserts::<Sample>().expect("by the names of the columns")[0].name, "b");
    abide.call_by_name("forget", json!({"id": 1})).await.expect("it is forgotten");
    let update = sub.try_next().await.expect("it is live").expect("an update");
    assert_eq!(update.deletes::<i64>().expect("by the name of the key"), [1]);
}

async fn a_query_is_explained(abide: &Abide) {
    let plain = "SELECT id, name FROM samples WHERE name = :name";
    let explanation = abide.explain(plain).await.expect("it is explained");
    assert_eq!(explanation.routed_by, ["samples: name"]);
    assert_eq!((&explanation.scans, &explanation.refused), (&vec![], &None));
    assert_eq!(explanation.params, [json!(null)], "omitted parameters are NULL");
    assert_eq!(explanation.shape.key, ["id"]);
    let sub = abide.subscribe(plain).param("name", "a").explain().await.expect("it begins");
    assert_eq!(*sub.plan(), explanation.plan, "a subscription gets the same plan");
    assert!(!sub.plan().statements.is_empty());
    let sub = abide.subscribe(plain).param("name", "b").await.expect("it begins");
    assert_eq!(sub.plan().rule, explanation.plan.rule);
    assert_eq!(sub.plan().statements, [""; 0], "only on request");

    let joined = "SELECT a.id, b.id FROM samples a JOIN samples b ON b.name = a.name";
    let explanation = abide.explain(joined).await.expect("it is explained all the same");
    let scan = explanation.scans.first().expect("a scan");
    assert_eq!((&*scan.table, &*scan.columns), ("samples", &["name".to_owned()][..]));
    assert_eq!(scan.declare.as_deref(), Some("index(name)"));
    assert_eq!(scan.create.as_deref(), Some("CREATE INDEX samples_name ON samples (name)"));
    let refused = abide.subscribe(joined).await.expect_err("it lacks an index");
    assert_eq!(refused.code(), Some(Code::UnsupportedSql));
    assert_eq!(explanation.refused.expect("the same")["detail"], refused.to_string());

    let never = abide.explain("SELECT random() FROM samples").await.expect_err("it cannot be live");
    assert_eq!(never.code(), Some(Code::UnsupportedSql));
}

/// `Subscription` is a stream, and everything can be moved between tasks.
#[tokio::test]
async fn a_subscription_is_a_stream() {
    fn movable<T: Send + Sync + 'static>(thing: T) -> T {
        thing
    }
    let world = World::new();
    let abide = movable(world.embedded());
    let sub = abide.subscribe("SELECT id FROM samples").checksum().await.expect("it begins");
    let mut inserts = movable(sub).map(|update| update.map(|update| update.insert_rows().len()));
    assert!(matches!(inserts.next().await, Some(Ok(0))));
    abide.call_by_name("keep", json!({"name": "a"})).await.expect("it is kept");
    assert!(matches!(inserts.next().await, Some(Ok(1))));
    abide.close().await;
    assert!(matches!(inserts.next().await, Some(Err(Error::Closed))), "why it has ended");
    assert!(inserts.next().await.is_none());
    assert!(matches!(abide.call_by_name("keep", json!({"name": "b"})).await, Err(Error::Closed)));
}

/// It ran to the limit of ten seconds, and the other queries of the caller waited for it.
async fn a_dropped_query_frees_its_reader(abide: &Abide) {
    let endless = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)
        SELECT count(*) FROM n";
    let ask = |sql: &'static str| {
        let abide = abide.clone();
        tokio::spawn(async move { abide.sql(sql).fetch::<i64>().await.expect("it has rows") })
    };
    // The queries of a caller begin in order, and two of them run at a time.
    let first = ask(endless);
    assert_eq!(ask("SELECT 1").await.expect("it ends"), [1]);
    let second = ask(endless);
    let waits = ask("SELECT 2");
    first.abort();
    second.abort();
    let soon = Duration::from_secs(4);
    let found = tokio::time::timeout(soon, async { (waits.await, ask("SELECT 3").await) }).await;
    let (waited, last) = found.expect("the readers are free");
    assert_eq!((waited.expect("it ends"), last.expect("it ends")), (vec![2], vec![3]));
}
