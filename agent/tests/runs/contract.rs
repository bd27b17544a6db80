//! The runtime contract as its callers see it: stream, invoke, state, abort, checkpoints. What is true for who was
//! there from the beginning is true for who comes when all is over.

use abide_agent::{
    AgentEvent, Events, abort, begin, checkpoints, invoke, state, state_at, until_turn_ends,
};
use abide_client::{ApprovalOf, Code, Decision, RunEventKind, RunStatus, SessionStatus};
use futures_util::poll;

use crate::house::House;

const PAYS: &str = "tools: [look, pay]\ninterrupt_on: { pay: true }\n";

const SCRIPT: &str = r#"
answers:
  - { text: Let me see., calls: [{ name: look, arguments: { order: A } }] }
  - calls: [{ name: pay, arguments: { order: A } }]
  - text: It is paid.
"#;

const HELLO: &str = "answers: [{ text: Hello to you. }]\n";

/// All that is left of a run that is over. Reading past the end says the same each time.
async fn rest(house: &House, run_id: &str, after: i64) -> Vec<AgentEvent> {
    let mut events = Events::of(&house.abide, run_id, after).await.expect("it can be followed");
    let mut told = Vec::new();
    while let Some(event) = events.next().await.expect("it can be read") {
        told.push(event);
    }
    assert_eq!(events.next().await.expect("it can be read"), None, "nothing comes after the last");
    told
}

async fn approve(house: &House, interrupt: &AgentEvent) {
    let call = interrupt.data["tool_call_id"].as_str().expect("it names the call").to_owned();
    let decided = house.abide.decide_approval(ApprovalOf::Call(call), Decision::Approve).await;
    decided.expect("it is decided");
}

/// `Events::next` gave the last event and then waited for ever for one that could not come; who subscribed
/// when the run was over, and had all of it, never heard anything.
#[tokio::test]
async fn a_run_that_is_over_gives_what_is_left_and_then_nothing() {
    let house = House::of("", HELLO).await;
    let run = house.begin("Hello.").await;
    let mut there_from_the_beginning =
        Events::of(&house.abide, &run.id, 0).await.expect("it can be followed");
    let mut all = Vec::new();
    while let Some(event) = there_from_the_beginning.next().await.expect("it can be read") {
        all.push(event);
    }
    let again = there_from_the_beginning.next().await.expect("it can be read");
    assert_eq!(again, None, "it stays over");
    let numbers: Vec<i64> = all.iter().map(|event| event.number).collect();
    let last = i64::try_from(all.len()).expect("they are few");
    assert_eq!(numbers, (1..=last).collect::<Vec<i64>>(), "in order, each once");
    assert!(all.last().is_some_and(AgentEvent::ends_run), "{all:?}");
    assert_eq!(rest(&house, &run.id, 0).await, all, "who comes later hears the same");
    assert_eq!(rest(&house, &run.id, 2).await, all[2..]);
    assert_eq!(rest(&house, &run.id, last).await, []);
    assert_eq!(rest(&house, &run.id, last + 1_000).await, [], "a number that it has not come to");
    assert_eq!(rest(&house, &run.id, -7).await, all);
    house.close().await;
}

#[tokio::test]
async fn a_run_that_waits_is_waited_for() {
    let house = House::of(PAYS, SCRIPT).await;
    let run = house.begin("Pay order A.").await;
    let interrupt = until_turn_ends(&house.abide, &run.id, 0).await.expect("the turn ends");
    assert_eq!(interrupt.kind, RunEventKind::Interrupt);
    let mut events = Events::of(&house.abide, &run.id, interrupt.number).await.expect("it can");
    {
        let mut next = std::pin::pin!(events.next());
        assert!(poll!(next.as_mut()).is_pending(), "nothing has happened");
        approve(&house, &interrupt).await;
        let resumed = next.await.expect("it can be read").expect("it goes on");
        assert_eq!((resumed.turn, resumed.number), (2, interrupt.number + 1));
    }
    let done = until_turn_ends(&house.abide, &run.id, interrupt.number).await.expect("it ends");
    assert_eq!((done.kind, done.turn), (RunEventKind::Done, 2));
    let none = until_turn_ends(&house.abide, &run.id, done.number).await;
    assert!(none.is_err(), "no turn comes after the last: {none:?}");
    house.close().await;
}

#[tokio::test]
async fn what_is_not_there_is_not_waited_for() {
    let house = House::of("", HELLO).await;
    let events = Events::of(&house.abide, "nobody", 0).await.map(drop);
    assert_eq!(events.expect_err("there is none").code(), Some(Code::NotFound));
    let state = state(&house.abide, "nobody").await.map(drop);
    assert_eq!(state.expect_err("there is none").code(), Some(Code::NotFound));
    assert!(!abort(&house.abide, "nobody").await.expect("it is asked"));
    house.close().await;
}

#[tokio::test]
async fn begins_in_a_session_of_its_own_and_tells_its_state() {
    let house = House::of(PAYS, SCRIPT).await;
    let run = begin(&house.abide, "clerk", "Pay order A.").await.expect("it begins");
    let interrupt = until_turn_ends(&house.abide, &run.id, 0).await.expect("the turn ends");
    let waits = state(&house.abide, &run.session_id).await.expect("it can be read");
    let now = waits.run.expect("there is one");
    assert_eq!((now.id.as_str(), now.status), (run.id.as_str(), RunStatus::Waiting));
    assert_eq!(now.reason.as_deref(), Some("approval"));
    assert_eq!(waits.session.status, SessionStatus::Suspended);
    approve(&house, &interrupt).await;
    until_turn_ends(&house.abide, &run.id, interrupt.number).await.expect("the turn ends");
    let over = state(&house.abide, &run.session_id).await.expect("it can be read");
    assert_eq!(over.run.expect("there is one").status, RunStatus::Done);
    let roles: Vec<&str> = over.messages.iter().map(|entry| entry.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool", "assistant"]);
    house.close().await;
}

#[tokio::test]
async fn invoked_it_answers() {
    let house = House::of("", HELLO).await;
    let done = invoke(&house.abide, "clerk", "Hello.").await.expect("it answers");
    assert_eq!(done.kind, RunEventKind::Done);
    assert_eq!(done.data["assistant_data"]["content"], "Hello to you.");
    let unknown = invoke(&house.abide, "nobody", "Hello.").await;
    assert_eq!(unknown.expect_err("there is none").code(), Some(Code::NotFound));
    house.close().await;
}

#[tokio::test]
async fn aborted_while_it_waits_it_is_over_at_once() {
    let house = House::of(PAYS, SCRIPT).await;
    let run = house.begin("Pay order A.").await;
    let interrupt = until_turn_ends(&house.abide, &run.id, 0).await.expect("the turn ends");
    assert!(abort(&house.abide, &run.session_id).await.expect("it is asked"));
    let told = rest(&house, &run.id, interrupt.number).await;
    let last = told.last().expect("it is told how it ended");
    assert_eq!((last.kind, last.turn), (RunEventKind::Error, 2));
    assert_eq!(last.data["code"], "aborted");
    let again = abort(&house.abide, &run.session_id).await.expect("it is asked");
    assert!(!again, "there is nothing to end");
    assert!(house.ledger().iter().all(|what| what != "pay A"), "nobody has said yes");
    house.close().await;
}

#[tokio::test]
async fn a_checkpoint_tells_what_was_on_record_then() {
    let house = House::of(PAYS, SCRIPT).await;
    let run = house.begin("Pay order A.").await;
    let interrupt = until_turn_ends(&house.abide, &run.id, 0).await.expect("the turn ends");
    approve(&house, &interrupt).await;
    until_turn_ends(&house.abide, &run.id, interrupt.number).await.expect("the turn ends");
    let found = checkpoints(&house.abide, &run.id).await.expect("they can be read");
    let all = state(&house.abide, &run.session_id).await.expect("it can be read").messages;
    let mut lengths = Vec::new();
    for checkpoint in &found {
        let then = state_at(&house.abide, &run.session_id, checkpoint.seq).await;
        let then = then.expect("the past reaches so far back");
        let at = then.run.expect("it had begun");
        assert_eq!((at.turn, at.events), (checkpoint.turn, checkpoint.events));
        assert_eq!(then.messages, all[..then.messages.len()], "what was said then stands");
        lengths.push((at.status.as_str(), then.messages.len()));
    }
    let expected = [
        ("running", 2), // its first answer
        ("running", 3), // and its result
        ("running", 4), // the second
        ("waiting", 4),
        ("running", 5),
        ("running", 6), // the last
        ("done", 6),
    ];
    assert_eq!(lengths, expected);
    house.close().await;
}
