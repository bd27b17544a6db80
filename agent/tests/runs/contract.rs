//! The runtime contract for clients: stream, invoke, state, abort, checkpoints. A client that connects after the
//! end sees the same as one that was connected from the start.

use abide_agent::{
    AgentEvent, RunEvents, abort, begin, checkpoints, invoke, state, state_at, until_turn_ends,
};
use abide_client::Code;
use abide_client::arguments::{DecideApproval, Decision};
use abide_client::rows::{RunEventKind, RunStatus, SessionStatus};
use futures_util::poll;

use crate::fixture::RuntimeFixture;

const PAYS: &str = "tools: [look, pay]\ninterrupt_on: { pay: true }\n";

const SCRIPT: &str = r#"
answers:
  - { text: Let me see., calls: [{ name: look, arguments: { order: A } }] }
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: It is paid.
"#;

const HELLO: &str = "answers: [{ text: Hello to you. }]\n";

/// The remaining events of a run that is over. Reading past the end always returns `None`.
async fn rest(fixture: &RuntimeFixture, run_id: &str, after: i64) -> Vec<AgentEvent> {
    let mut events =
        RunEvents::subscribe(&fixture.abide, run_id, after).await.expect("the subscription starts");
    let mut output = Vec::new();
    while let Some(event) = events.next().await.expect("the event can be read") {
        output.push(event);
    }
    assert_eq!(
        events.next().await.expect("the event can be read"),
        None,
        "no event after the last"
    );
    output
}

/// The event that ends the turn after an event of this number.
async fn turn_end(fixture: &RuntimeFixture, run_id: &str, after: i64) -> AgentEvent {
    let end = until_turn_ends(&fixture.abide, run_id, after).await.expect("the events can be read");
    end.expect("an event ends the turn")
}

async fn approve(fixture: &RuntimeFixture, interrupt: &AgentEvent) {
    let call =
        interrupt.data["tool_call_id"].as_str().expect("the event has the call id").to_owned();
    let decided = fixture.abide.call(DecideApproval::new(Decision::Approve).call_id(call)).await;
    decided.expect("the decision succeeds");
}

/// Regression: `RunEvents::next` returned the last event and then waited forever. A client that subscribed after the
/// end of the run, past its last event, received nothing at all.
#[tokio::test]
async fn a_finished_run_yields_its_remaining_events_and_then_none() {
    let fixture = RuntimeFixture::start("", HELLO).await;
    let run = fixture.begin("Hello.").await;
    let mut there_from_the_beginning =
        RunEvents::subscribe(&fixture.abide, &run.id, 0).await.expect("the subscription starts");
    let mut all = Vec::new();
    while let Some(event) = there_from_the_beginning.next().await.expect("the event can be read") {
        all.push(event);
    }
    let again = there_from_the_beginning.next().await.expect("the event can be read");
    assert_eq!(again, None, "the stream stays at its end");
    let numbers: Vec<i64> = all.iter().map(|event| event.number).collect();
    let last = i64::try_from(all.len()).expect("the count fits");
    assert_eq!(numbers, (1..=last).collect::<Vec<i64>>(), "each number once, in order");
    assert!(all.last().is_some_and(AgentEvent::ends_run), "{all:?}");
    assert_eq!(rest(&fixture, &run.id, 0).await, all, "a later client receives the same events");
    assert_eq!(rest(&fixture, &run.id, 2).await, all[2..]);
    assert_eq!(rest(&fixture, &run.id, last).await, []);
    assert_eq!(rest(&fixture, &run.id, last + 1_000).await, [], "a number beyond the last event");
    assert_eq!(rest(&fixture, &run.id, -7).await, all);
    fixture.close().await;
}

#[tokio::test]
async fn the_event_stream_waits_while_the_run_waits() {
    let fixture = RuntimeFixture::start(PAYS, SCRIPT).await;
    let run = fixture.begin("Pay order A.").await;
    let interrupt = turn_end(&fixture, &run.id, 0).await;
    assert_eq!(interrupt.kind, RunEventKind::Interrupt);
    let mut events = RunEvents::subscribe(&fixture.abide, &run.id, interrupt.number)
        .await
        .expect("the subscription starts");
    {
        let mut next = std::pin::pin!(events.next());
        assert!(poll!(next.as_mut()).is_pending(), "no new event");
        approve(&fixture, &interrupt).await;
        let resumed = next.await.expect("the event can be read").expect("the stream continues");
        assert_eq!((resumed.turn, resumed.number), (2, interrupt.number + 1));
    }
    let done = turn_end(&fixture, &run.id, interrupt.number).await;
    assert_eq!((done.kind, done.turn), (RunEventKind::Done, 2));
    let none = until_turn_ends(&fixture.abide, &run.id, done.number).await;
    assert_eq!(none.expect("the run can be read"), None, "there is no further turn");
    fixture.close().await;
}

#[tokio::test]
async fn unknown_ids_are_errors() {
    let fixture = RuntimeFixture::start("", HELLO).await;
    let events = RunEvents::subscribe(&fixture.abide, "noname", 0).await.map(drop);
    assert_eq!(events.expect_err("there is none").code(), Some(Code::NotFound));
    let state = state(&fixture.abide, "noname").await.map(drop);
    assert_eq!(state.expect_err("there is none").code(), Some(Code::NotFound));
    assert!(!abort(&fixture.abide, "noname").await.expect("the request succeeds"));
    fixture.close().await;
}

#[tokio::test]
async fn begin_creates_a_session_and_state_reads_it() {
    let fixture = RuntimeFixture::start(PAYS, SCRIPT).await;
    let run = begin(&fixture.abide, "clerk", "Pay order A.").await.expect("the run starts");
    let interrupt = turn_end(&fixture, &run.id, 0).await;
    let waits = state(&fixture.abide, &run.session_id).await.expect("it can be read");
    let now = waits.run.expect("there is at least one");
    assert_eq!((now.id.as_str(), now.status), (run.id.as_str(), RunStatus::Waiting));
    assert_eq!(now.reason.as_deref(), Some("approval"));
    assert_eq!(waits.session.status, SessionStatus::Suspended);
    approve(&fixture, &interrupt).await;
    turn_end(&fixture, &run.id, interrupt.number).await;
    let over = state(&fixture.abide, &run.session_id).await.expect("it can be read");
    assert_eq!(over.run.expect("there is at least one").status, RunStatus::Done);
    let roles: Vec<&str> = over.messages.iter().map(|entry| entry.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool", "assistant"]);
    fixture.close().await;
}

#[tokio::test]
async fn invoke_returns_the_answer() {
    let fixture = RuntimeFixture::start("", HELLO).await;
    let done = invoke(&fixture.abide, "clerk", "Hello.").await.expect("there is an answer");
    assert_eq!(done.kind, RunEventKind::Done);
    assert_eq!(done.data["assistant_data"]["content"], "Hello to you.");
    let unknown = invoke(&fixture.abide, "noname", "Hello.").await;
    assert_eq!(unknown.expect_err("there is none").code(), Some(Code::NotFound));
    fixture.close().await;
}

#[tokio::test]
async fn an_abort_ends_a_waiting_run_immediately() {
    let fixture = RuntimeFixture::start(PAYS, SCRIPT).await;
    let run = fixture.begin("Pay order A.").await;
    let interrupt = turn_end(&fixture, &run.id, 0).await;
    assert!(abort(&fixture.abide, &run.session_id).await.expect("the request succeeds"));
    let output = rest(&fixture, &run.id, interrupt.number).await;
    let last = output.last().expect("there is a last event");
    assert_eq!((last.kind, last.turn), (RunEventKind::Error, 2));
    assert_eq!(last.data["code"], "aborted");
    let again = abort(&fixture.abide, &run.session_id).await.expect("the request succeeds");
    assert!(!again, "there is no active run");
    assert!(fixture.ledger().iter().all(|what| what != "pay A"), "the call is not approved");
    fixture.close().await;
}

#[tokio::test]
async fn a_checkpoint_has_the_state_of_its_time() {
    let fixture = RuntimeFixture::start(PAYS, SCRIPT).await;
    let run = fixture.begin("Pay order A.").await;
    let interrupt = turn_end(&fixture, &run.id, 0).await;
    approve(&fixture, &interrupt).await;
    turn_end(&fixture, &run.id, interrupt.number).await;
    let found = checkpoints(&fixture.abide, &run.id).await.expect("the query succeeds");
    let all = state(&fixture.abide, &run.session_id).await.expect("it can be read").messages;
    let mut lengths = Vec::new();
    for checkpoint in &found {
        let then = state_at(&fixture.abide, &run.session_id, checkpoint.seq).await;
        let then = then.expect("the history is available");
        let at = then.run.expect("the run exists");
        assert_eq!((at.turn, at.events), (checkpoint.turn, checkpoint.events));
        assert_eq!(then.messages, all[..then.messages.len()], "messages are append-only");
        lengths.push((at.status.as_str(), then.messages.len()));
    }
    let expected = [
        ("running", 2), // the first answer
        ("running", 3), // its result
        ("running", 4), // the second answer
        ("waiting", 4),
        ("running", 5),
        ("running", 6), // the last answer
        ("done", 6),
    ];
    assert_eq!(lengths, expected);
    fixture.close().await;
}
