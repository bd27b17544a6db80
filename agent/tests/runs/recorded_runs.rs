//! Recorded runs: a run is recorded, and repeated offline with the same or with other definitions.

use std::path::Path;

use abide_agent::{CallStatus, Catalog, RecordedMessage, RecordedRun, Tools};
use abide_client::arguments::{
    AbortRun, CancelToolCall, ClaimHandoff, DecideApproval, Decision, NewMemory, RejectHandoff,
    SaveMemories,
};
use abide_client::{Abide, Call};
use abide_tools::{Effect, Function, Invocation, ToolDeclaration, ToolOutcome};
use expect_test::{Expect, expect};
use serde_json::json;

use crate::fixture::{FixtureOptions, RemotePrompts, define, providers, temporary_folder, tools};
use crate::pauses::{SCENARIOS, attend};

const CLERK: &str = "tools: [look, pay]\ninterrupt_on: { pay: true }\n";

const SCRIPT: &str = "answers: [{ text: Look., calls: [{ name: look, arguments: { order: A } }], \
    usage: { input_tokens: 5, output_tokens: 2 } }, \
    { calls: [{ name: pay, arguments: { order: A } }] }, { text: Order A is paid. }]";

/// A recording of a run of `clerk`.
async fn recorded() -> RecordedRun {
    let fixture = FixtureOptions::new(CLERK, SCRIPT).open().await;
    fixture.begin("Pay order A.").await;
    attend(&fixture.abide, "r1").await;
    let recorded = RecordedRun::record(&fixture.abide, "r1", "refund").await.expect("it has ended");
    fixture.close().await;
    recorded
}

/// Repeats a recording with the definitions of a folder. Its tools must not run.
async fn repeat(recorded: &RecordedRun, folder: &Path) -> RecordedRun {
    let place = temporary_folder();
    let ledger = folder.join("ledger");
    let declared = tools(ledger.clone());
    let abide = Abide::open(place.path().join("repeated.db")).expect("the file opens");
    let now =
        recorded.repeat(&declared, |tools| Catalog::new(folder, tools), &abide, place.path()).await;
    let now = now.expect("it is repeated");
    abide.close().await;
    assert!(!ledger.exists(), "no tool has run");
    now
}

/// The changes with another definition of `clerk`.
async fn check(definition: &str, expected: Expect) {
    let recorded = recorded().await;
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{definition}"));
    let now = repeat(&recorded, folder.path()).await;
    let changes = recorded.changes(&now);
    let output = changes.iter().map(|it| format!("{} {it}\n", it.kind.as_str()));
    expected.assert_eq(&output.collect::<String>());
    // The accepted recording is the same the next time.
    assert_eq!(now.changes(&repeat(&now, folder.path()).await), []);
}

#[tokio::test]
async fn the_same_definitions_change_nothing() {
    check(CLERK, expect![[""]]).await;
}

/// Regression: an agent that names tools of an MCP server, or a prompt on an MLflow server, could only be repeated if the run
/// had called all of them, and never with such a prompt: no server is asked.
#[tokio::test]
async fn tools_that_were_not_called_and_remote_prompts_come_from_the_recording() {
    let definition = "tools: [look, files_read, 'mail_*']\nplanning: true\n";
    let script = "answers: [{ calls: [{ name: look, arguments: { order: A } }] }, { text: So. }]";
    let plan = FixtureOptions::new(definition, script);
    for name in ["files_read", "mail_send"] {
        let declaration = ToolDeclaration::new(name, "Of a server.", json!({"type": "object"}));
        plan.tools
            .add(Function::untyped(declaration, |_| async { ToolOutcome::text("never") }))
            .expect("the name is free");
    }
    let fixture = plan.open().await;
    let run = fixture.begin("Look.").await;
    fixture.output(&run.id, 0).await;
    let mut recorded = RecordedRun::record(&fixture.abide, "r1", "look").await.expect("it ended");
    fixture.close().await;
    let names: Vec<&str> = recorded.conversations[0].tools.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["files_read", "look", "mail_send"]);
    let folder = temporary_folder();
    let prompt = "system_prompt: { mlflow: clerk@3, variables: { firm: us } }\nskills: [gone]\n";
    define(folder.path(), "clerk.yaml", &format!("{prompt}{definition}"));
    let instructions = recorded.conversations[0].instructions.get_or_insert_default();
    *instructions = format!("You work for us.\n\n{instructions}");
    let now = repeat(&recorded, folder.path()).await;
    assert_eq!(recorded.changes(&now), []);
    assert_eq!(now.conversations[0].instructions, recorded.conversations[0].instructions);
}

#[tokio::test]
async fn a_blocked_tool_changes_the_result() {
    let definition = "tools: [look, pay]\nblocked_tools: [pay]\n";
    check(
        definition,
        expect![[r#"
        tool_result result of pay (2.1)
          - pay A is done
          + error: calls of pay are blocked for this agent: continue without it
        approval call of pay (2.1)
          - needs an approval: approved
          + needs no approval
    "#]],
    )
    .await;
}

#[tokio::test]
async fn another_prompt_is_a_note_and_a_guardrail_replaces_an_answer() {
    let definition = "tools: [look, pay]\nsystem_prompt: Be kind.\nmiddleware:\n\
        - { name: guardrail, at: response, deny: paid, message: I cannot say. }\n";
    check(
        definition,
        expect![[r#"
        instructions instructions
          + Be kind.
        approval call of pay (2.1)
          - needs an approval: approved
          + needs no approval
        answer answer 3
          - Order A is paid.
          + I cannot say.
        outcome outcome
          - done: Order A is paid.
          + done: I cannot say.
    "#]],
    )
    .await;
}

#[tokio::test]
async fn a_limit_ends_the_run_earlier() {
    check(
        "tools: [look, pay]\nlimits: { tool_calls: 1 }\n",
        expect![[r#"
        tool_result result of pay (2.1)
          - pay A is done
          + error: This call was skipped: the run has reached its tool call limit.
        approval call of pay (2.1)
          - needs an approval: approved
          + needs no approval
    "#]],
    )
    .await;
}

/// Each kind of run is repeated without a change, and its recording survives its text form.
#[tokio::test]
async fn every_kind_of_run_is_repeated() {
    for scenario in &SCENARIOS {
        let fixture = scenario.open("").await;
        fixture.begin("Pay order A.").await;
        attend(&fixture.abide, "r1").await;
        let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
        let text = recorded.to_text();
        let recorded = RecordedRun::from_text(&text).expect("it is a recording");
        assert_eq!(recorded.to_text(), text);
        let place = temporary_folder();
        let declared = tools(place.path().join("ledger"));
        let folder = fixture.folder.path();
        let abide = Abide::open(place.path().join("repeated.db")).expect("the file opens");
        let now = recorded
            .repeat(&declared, |tools| Catalog::new(folder, tools), &abide, place.path())
            .await;
        abide.close().await;
        let now = now.unwrap_or_else(|why| panic!("{}: {why}", scenario.name));
        assert_eq!(recorded.changes(&now), [], "{}", scenario.name);
        fixture.close().await;
    }
}

/// Regression: the folder was read on the thread that drives the connection of a store of prompts, which waited for ever.
#[tokio::test]
async fn a_run_is_repeated_while_a_store_of_prompts_needs_the_thread() {
    let recorded = recorded().await;
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("system_prompt: {{ store: clerk@1 }}\n{CLERK}"));
    let declared = tools(folder.path().join("ledger"));
    let place = temporary_folder();
    let abide = Abide::open(place.path().join("repeated.db")).expect("the file opens");
    let catalog = |tools| Catalog::new(folder.path(), tools).store(RemotePrompts);
    let repeated = recorded.repeat(&declared, catalog, &abide, place.path()).await;
    abide.close().await;
    repeated.expect("it is repeated");
}

/// Regression: a recording differed from its own repetition if an agent delegated the message that it got, remembered
/// facts, or was compacted.
#[tokio::test]
async fn a_run_that_delegates_its_question_remembers_and_is_compacted_is_repeated() {
    let long = "A ".repeat(300);
    let clerk = "name: clerk\nsubagents: [helper]\nconfig: { provider: script }\nprofile: fast\n";
    let helper = "name: helper\nmode: subagent\nas_tool: { name: arrange }\ntools: [look, note]\n\
        config: { provider: helps }\nprofile:\n  memory: { namespace: clerk }\n  context: { window_tokens: 3000, \
        compact_above_tokens: 700, compact_to_tokens: 600, summary_token_limit: 100, chunk_tokens: 300, last_answers: 1 }\n";
    let question = "Pay order A.";
    let script = format!(
        "answers: [{{ calls: [{{ name: arrange, arguments: {{ input: {question} }} }}] }}, {{ text: Paid. }}]"
    );
    let call =
        |name: &str| format!("{{ calls: [{{ name: {name}, arguments: {{ order: {long} }} }}] }}");
    let helps = format!(
        "summary: '{{\"raw_summary\": \"Looked.\"}}'\nanswers: [{}, {}, {}, {{ text: It is paid. }}]",
        call("look"),
        call("note"),
        call("look"),
    );
    let options = FixtureOptions::new("", "answers: []");
    options.define("clerk.yaml", clerk);
    options.define("helper.yaml", helper);
    let models = providers(&[("script", &script), ("helps", &helps)]);
    let fixture = FixtureOptions { models, ..options }.open().await;
    assert_eq!(*fixture.problems.borrow(), []);
    fixture.begin(question).await;
    attend(&fixture.abide, "r1").await;
    let sql = "SELECT count(*) FROM context_summaries";
    let summaries: Vec<(i64,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert!(summaries[0].0 > 0, "it was compacted");
    let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", clerk);
    define(folder.path(), "helper.yaml", helper);
    let now = repeat(&recorded, folder.path()).await;
    assert_eq!(recorded.changes(&now), []);
    fixture.close().await;
}

/// Regression: the tools of the memory were repeated in an empty file, so searches found nothing, and no fact could be
/// forgotten.
#[tokio::test]
async fn calls_of_the_memory_are_repeated_with_what_the_recording_holds() {
    let definition = "profile: fast\n";
    let call = |name: &str, arguments: &str| {
        format!("{{ calls: [{{ name: {name}, arguments: {{ {arguments} }} }}] }}")
    };
    let script = format!(
        "answers: [{}, {}, {}, {}, {}, {{ text: Done. }}]",
        call("search_memories", "query: window seat"),
        call("save_memory", "key: aisle, value: Not on the aisle."),
        call("forget_memory", "key: seat"),
        call("search_memories", "query: seat aisle"),
        call("forget_memory", "key: seat"),
    );
    let fixture = FixtureOptions::new(definition, &script).open().await;
    let fact = |key: &str, value: &str| NewMemory {
        key: key.to_owned(),
        value: value.to_owned(),
        confidence: None,
        source_seq: None,
    };
    let facts = vec![fact("seat", "She wants a window seat.")];
    fixture.abide.call(SaveMemories::new("clerk", facts)).await.expect("it is saved");
    fixture.begin("Where does she sit?").await;
    attend(&fixture.abide, "r1").await;
    let transcript = fixture.transcript().await;
    for known in ["window seat", "saved", "forgotten", "Not on the aisle.", "there is no fact seat"]
    {
        assert!(transcript.contains(known), "{known}: {transcript}");
    }
    let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
    let now = repeat(&recorded, fixture.folder.path()).await;
    assert_eq!(recorded.changes(&now), []);
    fixture.close().await;
}

/// Regression: the repetition of a tool that had failed with an exit code succeeded, and `--accept` wrote that into the recording.
/// The class: what a tool did, as the repetition guesses it from a part of the recording. Each status, exit code and result comes
/// from the recording.
#[tokio::test]
async fn what_tools_did_is_repeated_and_never_changes() {
    let definition = "tools: [look, pay, fail, lost]\ninterrupt_on: { pay: true }\n";
    let call = |name: &str| format!("{{ name: {name}, arguments: {{ order: A }} }}");
    let names = ["look", "fail", "pay", "lost", "look"];
    let calls = names.map(|name| format!("{{ calls: [{}] }}", call(name))).join(", ");
    let both = format!("{{ calls: [{}, {}] }}", call("fail"), call("gone"));
    let script = format!("answers: [{calls}, {both}, {{ text: Done. }}]");
    let fixture = FixtureOptions::new(definition, &script);
    add_failing_tools(&fixture.tools);
    let fixture = fixture.open().await;
    fixture.begin("Pay order A.").await;
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    fixture
        .abide
        .call(DecideApproval::new(Decision::Reject).call_id("r1~3.1"))
        .await
        .expect("it waits");
    // Its worker cannot say whether it has done anything.
    let lost = "SELECT 1 FROM tool_calls WHERE call_id = 'r1~4.1' AND status = 'claimed'";
    fixture.until(lost).await;
    fixture.abide.call(CancelToolCall::new("r1~4.1")).await.expect("it runs");
    attend(&fixture.abide, "r1").await;
    let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
    let messages = &recorded.conversations[0].messages;
    let results = messages.iter().filter(|message| message.role == "tool").map(|message| {
        let RecordedMessage { status, exit_code, failure, content, .. } = message;
        let length = failure.as_ref().map(String::len);
        format!(
            "{status:?} {exit_code:?} {length:?} {:.20}\n",
            content.as_deref().unwrap_or_default()
        )
    });
    expect![[r#"
        Some(Succeeded) None None look A is done
        Some(Failed) Some(3) Some(80000) no. no. no. no. no. 
        Some(Rejected) Some(1) Some(20) Rejected: rejected b
        Some(Cancelled) Some(1) None The call was cancell
        Some(Succeeded) None None look A is done
        Some(Failed) Some(1) None unknown tool gone; a
        Some(Failed) Some(3) Some(80000) no. no. no. no. no. 
    "#]]
    .assert_eq(&results.collect::<String>());
    let place = temporary_folder();
    let again = async |recorded: &RecordedRun, definition: &str| {
        define(place.path(), "clerk.yaml", &format!("name: clerk\n{definition}"));
        let declared = tools(place.path().join("ledger"));
        add_failing_tools(&declared);
        let folder = temporary_folder();
        let abide = Abide::open(folder.path().join("repeated.db")).expect("the file opens");
        let now = recorded
            .repeat(&declared, |tools| Catalog::new(place.path(), tools), &abide, folder.path())
            .await;
        abide.close().await;
        now.expect("it is repeated")
    };
    let same = again(&recorded, definition).await;
    assert_eq!(recorded.changes(&same), []);
    assert_eq!(same.to_text(), recorded.to_text());
    // A definition that does not run the tools leaves what they did in the recording.
    let blocked = again(&recorded, &format!("{definition}blocked_tools: [look, fail]\n")).await;
    assert_ne!(recorded.changes(&blocked), []);
    let accepted = again(&blocked, definition).await;
    assert_eq!(recorded.changes(&accepted), []);
    assert_eq!(accepted.to_text(), recorded.to_text());
    fixture.close().await;
}

/// `fail` is a program that fails with an exit code and a long text; `lost` ends when its call is cancelled.
fn add_failing_tools(tools: &Tools) {
    let schema = json!({"type": "object", "properties": {"order": {"type": "string"}}});
    let mut declaration = ToolDeclaration::new("fail", "Fails.", schema.clone());
    declaration.effect = Effect::ReadOnly;
    let fail = |_| async {
        let failed = ToolOutcome::failed(abide_tools::Failure::Tool, "no. ".repeat(20_000));
        ToolOutcome { exit_code: 3, ..failed }
    };
    tools.add(Function::untyped(declaration, fail)).expect("it is valid");
    let mut declaration = ToolDeclaration::new("lost", "Waits.", schema);
    declaration.effect = Effect::ReadOnly;
    let lost = |invocation: Invocation| async move {
        invocation.cancel.cancelled().await;
        ToolOutcome::failed(abide_tools::Failure::Cancelled, "it was stopped")
    };
    tools.add(Function::untyped(declaration, lost)).expect("it is valid");
}

#[test]
fn a_file_that_is_not_a_recording_is_refused() {
    for text in ["", "\n", "{}", "[1]", "{\"id\": \"a\", \"messages\": []}"] {
        RecordedRun::from_text(text).expect_err(text);
    }
}

/// Regression: a recording of a run that a person had aborted differed from its own repetition, which went on.
#[tokio::test]
async fn a_run_that_was_aborted_while_it_waited_is_repeated_up_to_there() {
    let fixture = FixtureOptions::new(CLERK, SCRIPT).open().await;
    fixture.begin("Pay order A.").await;
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    fixture.abide.call(AbortRun::new("r1").reason("too late")).await.expect("it is active");
    let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{CLERK}"));
    let now = repeat(&recorded, folder.path()).await;
    assert_eq!(recorded.changes(&now), []);
    let outcome = &now.conversations[0].outcome;
    assert_eq!((&*outcome.status, outcome.answers), ("aborted", 2));
    fixture.close().await;
}

/// Regression: the recording of a run that was aborted while a call waited for its approval did not say that the call waited. So it
/// passed with definitions that do not ask, and with definitions that refuse the call. The class: what the definitions do with a
/// call whose result the model has not read.
#[tokio::test]
async fn a_call_that_waited_when_its_run_was_aborted_has_to_wait_again() {
    let fixture = FixtureOptions::new(CLERK, SCRIPT).open().await;
    fixture.begin("Pay order A.").await;
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    fixture.abide.call(AbortRun::new("r1").reason("too late")).await.expect("it is active");
    let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
    fixture.close().await;
    assert!(recorded.to_text().contains(r#""gate":"approval""#), "{}", recorded.to_text());
    for (other, expected) in [
        ("tools: [look, pay]\n", "needs no approval"),
        ("tools: [look, pay]\nblocked_tools: [pay]\ninterrupt_on: { pay: true }\n", "is refused"),
        ("tools: [look]\n", "is refused"),
        (LIMITED, "is refused"),
    ] {
        let changes = accept_and_restore(&recorded, CLERK, other).await;
        let change = "approval answer 2, call 1\n  - needs an approval: not decided\n";
        assert!(changes.contains(&format!("{change}  + {expected}\n")), "{other}: {changes}");
    }
}

/// Regression: a call that a person had settled as succeeded, without a result, failed in the repetition.
#[tokio::test]
async fn a_call_that_was_settled_without_a_result_is_repeated() {
    let mut recorded = recorded().await;
    let messages = recorded.conversations[0].messages.iter_mut();
    let mut paid = messages.filter(|message| message.name.as_deref() == Some("pay"));
    paid.next().expect("it has paid").result = None;
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{CLERK}"));
    assert_eq!(recorded.changes(&repeat(&recorded, folder.path()).await), []);
}

/// A repetition has no clock and no prices, so it goes on where they have ended the run.
#[tokio::test]
async fn a_run_that_the_clock_or_a_price_has_ended_is_repeated_up_to_there() {
    let mut recorded = recorded().await;
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{CLERK}"));
    let conversation = &mut recorded.conversations[0];
    conversation.messages.pop().expect("the last answer");
    conversation.outcome.status = "failed".to_owned();
    for (code, is_same) in [("execution_timeout", true), ("cost_limit", true), ("gone", false)] {
        recorded.conversations[0].outcome.error_code = Some(code.to_owned());
        let now = repeat(&recorded, folder.path()).await;
        assert_eq!(recorded.changes(&now).is_empty(), is_same, "{code}");
    }
}

/// A definition that does not run the second call.
const LIMITED: &str = "tools: [look, pay]\nlimits: { tool_calls: 1 }\n";

/// Repeats a recording of `clerk` with another definition, accepts that, and repeats the accepted recording with the first
/// definition. Returns the changes of the first repetition.
async fn accept_and_restore(recorded: &RecordedRun, definition: &str, other: &str) -> String {
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{definition}"));
    assert_eq!(recorded.changes(&repeat(recorded, folder.path()).await), [], "{definition}");
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{other}"));
    let accepted = repeat(recorded, folder.path()).await;
    let changes = recorded.changes(&accepted);
    let accepted = RecordedRun::from_text(&accepted.to_text()).expect("it is a recording");
    let again = repeat(&accepted, folder.path()).await;
    assert_eq!(accepted.changes(&again), [], "{other}");
    assert_eq!(again.to_text(), accepted.to_text(), "{other}");
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{definition}"));
    let restored = repeat(&accepted, folder.path()).await;
    assert_eq!(recorded.changes(&restored), [], "{other}");
    assert_eq!(restored.to_text(), recorded.to_text(), "{other}");
    changes.iter().map(|it| format!("{} {it}\n", it.kind.as_str())).collect()
}

/// Returns the recorded result of a call of a tool.
fn result_of<'a>(recorded: &'a mut RecordedRun, tool: &str) -> &'a mut RecordedMessage {
    let messages = recorded.conversations[0].messages.iter_mut();
    let mut results = messages.filter(|message| message.name.as_deref() == Some(tool));
    results.next().expect("the tool was called")
}

/// Regression: the repetition asked for a supervisor again, waited for a minute, and was aborted. `--accept` then deleted the
/// rejection and the answer. The class: a decision of a person that only a person can repeat.
#[tokio::test]
async fn a_request_that_a_supervisor_has_rejected_is_repeated() {
    let definition = "supervisor: { capability: boss }\n";
    let script = "answers:\n  \
        - calls: [{ name: request_supervisor, arguments: { reason: May I? } }]\n  - text: No.\n";
    let fixture = FixtureOptions::new(definition, script).open().await;
    fixture.begin("Pay order A.").await;
    let handoff = "SELECT id FROM handoff_requests WHERE status = 'pending'";
    fixture.until(handoff).await;
    let open: Vec<(String,)> = fixture.abide.sql(handoff).fetch().await.expect("it is read");
    let claim = Call::from(ClaimHandoff::new(&open[0].0));
    let reject = Call::from(RejectHandoff::new(&open[0].0, "Not today."));
    fixture.abide.batch([claim, reject]).await.expect("it is rejected");
    fixture.until("SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
    let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
    fixture.close().await;
    let changes = accept_and_restore(&recorded, definition, "tools: [look]\n").await;
    assert!(changes.contains("- error: Rejected: Not today."), "{changes}");

    // The agent could not ask at that time, so nobody knows what a supervisor would have answered.
    let mut refused = recorded.clone();
    let message = result_of(&mut refused, "request_supervisor");
    message.content = Some("it is blocked".to_owned());
    message.status = Some(CallStatus::Failed);
    message.failure = None;
    message.ran = Some(false);
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{definition}"));
    let mut now = repeat(&refused, folder.path()).await;
    let message = result_of(&mut now, "request_supervisor");
    assert_eq!(message.content.as_deref(), Some("the recording has no result of this call"));
}

/// The worker of any tool can ask a supervisor for its call.
#[tokio::test]
async fn a_call_of_a_tool_that_a_supervisor_has_rejected_is_repeated() {
    let mut recorded = recorded().await;
    let message = result_of(&mut recorded, "pay");
    message.content = Some("Rejected: Not today.".to_owned());
    message.error = true;
    message.status = Some(CallStatus::Rejected);
    message.exit_code = Some(1);
    message.result = None;
    message.failure = Some("Not today.".to_owned());
    let blocked = format!("{CLERK}blocked_tools: [pay]\n");
    accept_and_restore(&recorded, CLERK, &blocked).await;
}

/// Regression: a recording of a run whose call was refused was the same without the refusal, as if the tool had failed. So no test
/// noticed that a protection was gone.
#[tokio::test]
async fn a_call_that_was_refused_has_no_result_if_it_runs_now() {
    let script = "answers: [{ calls: [{ name: look, arguments: { order: A } }] }, \
        { calls: [{ name: pay, arguments: { order: A } }] }, \
        { calls: [{ name: note, arguments: { order: A } }] }, \
        { calls: [{ name: look, arguments: { number: 1 } }] }, { text: Done. }]";
    let definition = "tools: [look, pay]\nblocked_tools: [pay]\n";
    let fixture = FixtureOptions::new(definition, script).open().await;
    let run = fixture.begin("Pay order A.").await;
    fixture.output(&run.id, 0).await;
    let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it has ended");
    fixture.close().await;
    let messages = recorded.conversations[0].messages.iter();
    let ran: Vec<_> = messages.filter(|it| it.role == "tool").map(|it| it.ran).collect();
    assert_eq!(ran, [None, Some(false), Some(false), Some(false)]);
    let changes = accept_and_restore(&recorded, definition, "tools: [look, pay, note]\n").await;
    expect![[r#"
        tool_result result of pay (2.1)
          - error: calls of pay are blocked for this agent: continue without it
          + error: the recording has no result of this call
        tool_result result of note (3.1)
          - error: unknown tool note; available: look, pay
          + error: the recording has no result of this call
    "#]]
    .assert_eq(&changes);
}

/// Regression: `--accept` with a definition that does not ask for an approval deleted the decision, its comment and the changed
/// arguments. With the first definition again, a rejected call had failed and was approved.
#[tokio::test]
async fn decisions_survive_definitions_that_do_not_ask_for_them() {
    let decide = |decision| DecideApproval::new(decision).call_id("r1~2.1");
    let decisions = [
        decide(Decision::Reject).comment("too expensive"),
        decide(Decision::Reject),
        decide(Decision::Approve).comment("for B").approved_arguments(json!({"order": "B"})),
    ];
    for decision in decisions {
        let fixture = FixtureOptions::new(CLERK, SCRIPT).open().await;
        fixture.begin("Pay order A.").await;
        fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
        fixture.abide.call(decision).await.expect("it waits");
        fixture.until("SELECT id FROM runs WHERE ended_at IS NOT NULL").await;
        let recorded = RecordedRun::record(&fixture.abide, "r1", "it").await.expect("it ended");
        fixture.close().await;
        for other in ["tools: [look, pay]\n", "tools: [look]\n", LIMITED] {
            let changes = accept_and_restore(&recorded, CLERK, other).await;
            assert!(changes.contains("+ needs no approval"), "{changes}");
        }
    }
}

/// Regression: the decision was refused, and the repetition waited for a minute.
#[tokio::test]
async fn a_call_is_rejected_if_the_schema_refuses_the_arguments_of_its_approval() {
    let mut recorded = recorded().await;
    let approval = result_of(&mut recorded, "pay").approval.as_mut().expect("it was approved");
    approval.arguments = Some(json!({"number": 1}));
    let folder = temporary_folder();
    define(folder.path(), "clerk.yaml", &format!("name: clerk\n{CLERK}"));
    let mut now = repeat(&recorded, folder.path()).await;
    let message = result_of(&mut now, "pay");
    let text = message.content.as_deref().unwrap_or_default();
    assert!(text.contains("the arguments of the recorded approval are refused"), "{text}");
    assert_eq!(message.approval, result_of(&mut recorded, "pay").approval);
}

/// Regression: `--accept` with a definition that blocks the tool deleted how a call had ended without a result and an error text.
#[tokio::test]
async fn endings_without_a_result_survive_definitions_that_do_not_run_the_call() {
    let before = "The call was cancelled before it began: it did not run.";
    for (status, text) in [
        (CallStatus::Cancelled, before),
        (CallStatus::Failed, "The call failed."),
        (CallStatus::Succeeded, "It was confirmed later that it has succeeded."),
    ] {
        let mut recorded = recorded().await;
        let message = result_of(&mut recorded, "pay");
        message.content = Some(text.to_owned());
        message.result = None;
        message.status = Some(status);
        message.error = status != CallStatus::Succeeded;
        message.exit_code = message.error.then_some(1);
        for other in ["tools: [look, pay]\nblocked_tools: [pay]\n", LIMITED] {
            let changes = accept_and_restore(&recorded, CLERK, other).await;
            assert!(changes.contains(text), "{changes}");
        }
    }
}

/// Regression: a run of a program could be recorded, but its test always failed, because a repetition runs no program.
#[tokio::test]
async fn a_run_of_a_program_cannot_be_recorded() {
    let options = FixtureOptions::new("", "answers: []");
    let program = "cli: { command: [sh, '-c', 'exit 1'], program: claude }\n";
    options.define("clerk.yaml", program);
    let fixture = options.open().await;
    let run = fixture.begin("Go.").await;
    fixture.output(&run.id, 0).await;
    let refused = RecordedRun::record(&fixture.abide, "r1", "it").await;
    expect![["run r1 cannot be recorded: its agent clerk is a program (cli), which cannot be repeated offline"]]
        .assert_eq(&refused.expect_err("it is refused").to_string());
    fixture.close().await;
}
