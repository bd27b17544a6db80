//! Durable steps, workers and supervisors, with both backends. Crashes are in `tests/process/steps.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use abide_client::arguments::{
    CancelToolCall, ClaimToolCall, DecideApproval, Decision, FailToolCall, Outcome, RegisterTool,
    RequestToolCall, Retry, SettleToolCall,
};
use abide_client::rows::{
    Approval, Effect, HandoffRequest, HandoffStatus, ToolCall, ToolCallStatus,
};
use abide_client::{Abide, Code, DurableSession, Error, HandoffResolution, ToolError};
use abide_server::AccessConfig;
use serde_json::{Value as JsonValue, json};
use tokio::sync::{Notify, oneshot};

use crate::world::{World, connect};

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
                abide.close().await;
            }

            #[tokio::test]
            async fn remote() {
                let world = World::new();
                let server = world.serve(None, AccessConfig::loopback()).await;
                let abide = connect(&server).await;
                super::$name(&abide).await;
                abide.close().await;
                server.stop().await;
            }
        }
    )*};
}

stories! {
    a_step_runs_once
    a_failed_step_stays_failed
    a_retryable_failure_is_tried_again
    a_step_waits_for_its_approval
    a_cancelled_step_is_dropped
    an_unknown_outcome_is_settled
    messages_approvals_and_timers_are_recorded
    a_supervisor_answers
    a_supervisor_that_fails_releases_the_handoff
    a_worker_runs_calls_and_stops_gracefully
}

async fn session(abide: &Abide) -> DurableSession {
    let first = abide.session("support").id("s1");
    let again = abide.session("support").id("s1");
    let first = first.title("a parcel").await.expect("it is made");
    let again = again.await.expect("it is found");
    assert_eq!(first.id(), again.id());
    again
}

async fn call(abide: &Abide, id: &str) -> ToolCall {
    let sql = "SELECT * FROM tool_calls WHERE call_id = :id";
    let found = abide.sql(sql).param("id", id).fetch().await.expect("it is a query");
    found.into_iter().next().expect("there is a call")
}

async fn a_step_runs_once(abide: &Abide) {
    let session = session(abide).await;
    let runs = AtomicUsize::new(0);
    let step = || {
        let step = session.tool("refund", json!({"order": 8812}), "refund");
        step.effect(Effect::AtMostOnce).run(|args: JsonValue| {
            runs.fetch_add(1, Ordering::Relaxed);
            async move { Ok(format!("receipt of {}", args["order"])) }
        })
    };
    for _ in 0..3 {
        assert_eq!(step().await.expect("it runs"), "receipt of 8812");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let stored = call(abide, "s1/refund").await;
    assert_eq!((stored.status, stored.attempt), (ToolCallStatus::Succeeded, 1));

    let other = session.tool("refund", json!({"order": 1}), "refund");
    let refused = other.run(|_: JsonValue| async { Ok(()) }).await.expect_err("other arguments");
    assert_eq!(refused.code(), Some(Code::CallIdConflict));
    let unknown = session.tool("mail", json!({}), "mail");
    let refused = unknown.run(|_: JsonValue| async { Ok(()) }).await.expect_err("no such tool");
    assert_eq!(refused.code(), Some(Code::NotFound));
}

async fn a_failed_step_stays_failed(abide: &Abide) {
    let session = session(abide).await;
    for run in 1..=2 {
        let step = session.tool("refund", json!({}), "refund").effect(Effect::Idempotent);
        let failed = step.run(|_: JsonValue| async move {
            assert_eq!(run, 1, "it does not run again");
            "many".parse::<i64>()?;
            Ok(())
        });
        let Err(Error::ToolFailed { status, error, .. }) = failed.await else {
            panic!("it has failed")
        };
        let error = error.unwrap_or_default();
        assert_eq!((status, &*error), (ToolCallStatus::Failed, "invalid digit found in string"));
    }
    let step = session.tool("refund", json!({"order": "x"}), "typed");
    let failed =
        step.run(|order: i64| async move { Ok(order) }).await.expect_err("it is an object");
    assert!(failed.to_string().contains("the arguments have another type"), "{failed}");
}

async fn a_retryable_failure_is_tried_again(abide: &Abide) {
    let session = session(abide).await;
    let retry = Retry { max_attempts: Some(3), backoff_ms: Some(1), ..Retry::default() };
    abide.call(RegisterTool::new("fetch").retry(retry)).await.expect("it is registered");
    let mut runs = 0;
    let step = session.tool("fetch", json!({}), "fetch");
    let page =
        step.run(|_: JsonValue| {
            runs += 1;
            let busy = runs < 3;
            async move {
                if busy { Err(ToolError::retryable("it is busy")) } else { Ok("page".to_owned()) }
            }
        });
    assert_eq!(page.await.expect("the third attempt"), "page");
    assert_eq!(runs, 3);
}

async fn a_step_waits_for_its_approval(abide: &Abide) {
    let session = session(abide).await;
    let step = session.tool("refund", json!({"amount": 100}), "refund");
    let step = step.effect(Effect::AtMostOnce).needs_approval();
    let step = step.run(|args: JsonValue| async move { Ok(args["amount"].clone()) });
    let decide = async {
        let sql = "SELECT * FROM approvals WHERE status = 'pending'";
        let mut pending = abide.subscribe(sql).await.expect("it is live");
        while pending.rows().len() == 0 {
            pending.try_next().await.expect("an approval");
        }
        let approval: Vec<Approval> = pending.typed_rows().expect("approvals");
        let decision = DecideApproval::new(Decision::Approve).id(&approval[0].id);
        abide.call(decision.approved_arguments(json!({"amount": 50}))).await.expect("a decision");
    };
    let (amount, ()) = tokio::join!(step, decide);
    assert_eq!(amount.expect("it runs"), 50, "with the arguments of the approver");
}

async fn a_cancelled_step_is_dropped(abide: &Abide) {
    let session = session(abide).await;
    let begun = Notify::new();
    let lease = Duration::from_millis(300);
    let step = session.tool("crawl", json!({}), "crawl").effect(Effect::ReadOnly).lease(lease);
    let step = step.run(|_: JsonValue| async {
        begun.notify_one();
        std::future::pending::<()>().await;
        Ok(())
    });
    let cancel = async {
        begun.notified().await;
        abide.call(CancelToolCall::new("s1/crawl")).await.expect("it is cancelled");
    };
    let (ended, ()) = tokio::join!(step, cancel);
    let status = ToolCallStatus::Cancelled;
    assert!(
        matches!(ended, Err(Error::ToolFailed { status: it, .. }) if it == status),
        "{ended:?}"
    );
    assert_eq!(call(abide, "s1/crawl").await.status, status);
}

async fn an_unknown_outcome_is_settled(abide: &Abide) {
    let session = session(abide).await;
    let step = || {
        let step = session.tool("refund", json!({}), "refund").effect(Effect::AtMostOnce);
        step.lease(Duration::from_millis(50))
    };
    {
        // It is dropped as by a crash: nothing is recorded.
        let begun = Notify::new();
        let lost = step().run(|_: JsonValue| async {
            begun.notify_one();
            std::future::pending::<String>().await;
            Ok(String::new())
        });
        tokio::select! {
            ended = lost => panic!("{ended:?}"),
            () = begun.notified() => {}
        }
    }
    let again = || step().run(|_: JsonValue| async { Ok("it ran twice".to_owned()) });
    let Err(unknown @ Error::UnknownOutcome { .. }) = again().await else {
        panic!("it is unknown")
    };
    assert!(unknown.to_string().contains("s1/refund") && unknown.hint().is_some());
    let reported = session.tool("refund", json!({}), "reported").effect(Effect::AtMostOnce);
    let request = RequestToolCall::new("s1/reported", "s1", "refund", json!({}));
    abide.call(request).await.expect("it is requested");
    let claimed = abide.call(ClaimToolCall::new("s1/reported")).await.expect("it is claimed");
    let token = claimed.value.fencing_token.expect("a token");
    let failure =
        FailToolCall::new("s1/reported", token, "the bank answered 504").may_have_run(true);
    abide.call(failure).await.expect("it is reported");
    let unknown = reported.run(|_: JsonValue| async { Ok("it ran twice".to_owned()) }).await;
    assert_eq!(
        unknown.expect_err("it is unknown").to_string(),
        "it is unknown whether call s1/reported ran: the bank answered 504"
    );
    let settle = SettleToolCall::new("s1/refund", Outcome::Succeeded).result(json!("settled"));
    abide.call(settle).await.expect("it is settled");
    assert_eq!(again().await.expect("the settled outcome"), "settled");
}

async fn messages_approvals_and_timers_are_recorded(abide: &Abide) {
    let session = session(abide).await;
    for _ in 0..2 {
        let number = session.message("user", "Where is it?").key("m1").data(json!({"a": 1}));
        assert_eq!(number.await.expect("it is appended"), 1);
        let due = SystemTime::now() + Duration::from_millis(20);
        // tidy: the durable timer under test
        session.sleep_until(due, "pause").await.expect("it fires");
        let approval = session.approval("Send it?", json!({"to": "ann"}), "send");
        let decide = async {
            let sql = "SELECT id FROM approvals WHERE status = 'pending'";
            let mut pending = abide.subscribe(sql).await.expect("it is live");
            let decided = "SELECT id FROM approvals WHERE status = 'approved'";
            let decided: Vec<String> = abide.sql(decided).fetch().await.expect("it is a query");
            while decided.is_empty() && pending.rows().len() == 0 {
                pending.try_next().await.expect("an approval");
            }
            for id in pending.typed_rows::<String>().expect("ids") {
                let decision = DecideApproval::new(Decision::Approve).id(id).comment("fine");
                let changed = json!({"prompt": "Send it?", "args": {"to": "bob"}});
                let decision = decision.approved_arguments(changed);
                abide.call(decision).await.expect("a decision");
            }
        };
        let (approval, ()) = tokio::join!(approval, decide);
        let approval = approval.expect("it is decided");
        assert!(approval.approved, "{approval:?}");
        assert_eq!(approval.arguments, json!({"to": "bob"}), "as the approver changed them");
        assert_eq!(approval.comment.as_deref(), Some("fine"));
    }
    assert_eq!(call(abide, "s1/send").await.status, ToolCallStatus::Succeeded);
    session.complete(json!("done")).await.expect("it ends");
}

async fn a_supervisor_answers(abide: &Abide) {
    let session = session(abide).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let answer = |handoff: HandoffRequest| async move {
        Ok(HandoffResolution::Rejected(format!("no, {}", handoff.reason)))
    };
    let serve = abide.supervisor().serve("refunds", answer, async { drop(stopped.await) });
    let asks = async {
        for _ in 0..2 {
            let step = session.handoff("angry", "refunds", "angry").data(json!({"order": 1}));
            let answer = step.expires_after(Duration::from_secs(60)).await.expect("an answer");
            let answer = (answer.text.as_deref(), answer.status);
            assert_eq!(answer, (Some("no, angry"), HandoffStatus::Rejected));
        }
        stop.send(()).expect("it serves");
    };
    let (served, ()) = tokio::join!(serve, asks);
    served.expect("it stops");
    let handoffs = abide.sql("SELECT count(*) FROM handoff_requests");
    assert_eq!(handoffs.fetch::<i64>().await.expect("it is a query"), [1], "asked once");
}

/// A supervisor that fails releases the handoff, and does not claim it again.
async fn a_supervisor_that_fails_releases_the_handoff(abide: &Abide) {
    let session = session(abide).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let failed = Arc::new(Notify::new());
    let count = Arc::clone(&runs);
    let notify = Arc::clone(&failed);
    let done = Arc::new(Notify::new());
    let first = abide.supervisor().serve(
        "refunds",
        move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            notify.notify_one();
            async { Err(ToolError::new("it is out of order")) }
        },
        done.notified(),
    );
    let second = async {
        failed.notified().await;
        abide
            .supervisor()
            .serve(
                "refunds",
                |_| async { Ok(HandoffResolution::Resolved("a refund".to_owned())) },
                done.notified(),
            )
            .await
    };
    let asks = async {
        let answer = session.handoff("angry", "refunds", "angry").await.expect("an answer");
        assert_eq!(answer.text.as_deref(), Some("a refund"));
        done.notify_waiters();
    };
    let (first, second, ()) = tokio::join!(first, second, asks);
    first.and(second).expect("they stop");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

async fn a_worker_runs_calls_and_stops_gracefully(abide: &Abide) {
    let session = session(abide).await;
    for tool in ["echo", "fail"] {
        abide.call(RegisterTool::new(tool)).await.expect("it is registered");
    }
    let request = |nth: usize| {
        let tool = if nth == 7 { "fail" } else { "echo" };
        RequestToolCall::new(format!("c{nth}"), session.id(), tool, json!({"nth": nth}))
    };
    for nth in 0..10 {
        abide.call(request(nth)).await.expect("it is requested");
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let max = Arc::new(AtomicUsize::new(0));
    let now = Arc::new(AtomicUsize::new(0));
    let worker = abide.worker().concurrency(3).name("w1");
    let seen = Arc::clone(&max);
    let active = Arc::clone(&now);
    let worker = worker.tool("echo", move |args: JsonValue| {
        let seen = Arc::clone(&seen);
        let active = Arc::clone(&active);
        async move {
            seen.fetch_max(active.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            active.fetch_sub(1, Ordering::SeqCst);
            Ok(args["nth"].clone())
        }
    });
    let worker = worker.tool("fail", |_: JsonValue| async { Err::<(), _>(ToolError::new("no")) });
    // This tool is not registered.
    let worker = worker.tool("absent", |_: JsonValue| async { Ok(()) });
    let serve = worker.serve(async { drop(stopped.await) });
    let watch = async {
        let sql = "SELECT call_id FROM tool_calls WHERE status IN ('succeeded', 'failed')";
        let mut ended = abide.subscribe(sql).await.expect("it is live");
        while ended.rows().len() < 10 {
            ended.try_next().await.expect("calls that end");
        }
        // A call that is requested while the worker waits.
        abide.call(request(10)).await.expect("it is requested");
        while ended.rows().len() < 11 {
            ended.try_next().await.expect("calls that end");
        }
        stop.send(()).expect("it serves");
    };
    let (served, ()) = tokio::join!(serve, watch);
    served.expect("it stops");
    assert!((1..=3).contains(&max.load(Ordering::SeqCst)), "{max:?} at a time");
    assert_eq!(call(abide, "c3").await.result.map(|it| it.value()), Some(json!(3)));
    let failed = call(abide, "c7").await;
    assert_eq!((failed.status, failed.error.as_deref()), (ToolCallStatus::Failed, Some("no")));
    assert_eq!(failed.claimed_by.as_deref(), Some("w1"));
    abide.call(request(11)).await.expect("it is requested");
    assert_eq!(call(abide, "c11").await.status, ToolCallStatus::Pending, "it has stopped");
}
