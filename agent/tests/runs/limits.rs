//! One test for each limit of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use abide_agent::Settings;
use abide_client::arguments::{DecideApproval, Decision, StartRun};
use abide_client::embedded::{Clock, SystemClock};
use abide_client::{Abide, Config, Micros};
use abide_models::{ConfigContext, Models};
use abide_tools::{Effect, Function, ToolContext};
use expect_test::expect;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Barrier;

use crate::fixture::{FixtureOptions, RuntimeFixture, providers};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// The run's last event, and the ledger.
async fn ends(definition: &str, script: &str) -> (String, Vec<String>) {
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Go on.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    let output = format!("{} {}", last.kind, last.data);
    let ledger = fixture.ledger();
    fixture.close().await;
    (output, ledger)
}

const FOR_EVER: &str =
    "repeat: true\nanswers: [{ calls: [{ name: look, arguments: { order: A } }] }]\n";

#[tokio::test]
async fn the_recursion_limit_ends_a_run() {
    let (output, ledger) = ends("tools: [look]\nconfig: { recursion_limit: 3 }\n", FOR_EVER).await;
    assert_eq!(
        output,
        r#"error {"code":"recursion_limit","message":"the model has answered 3 times"}"#
    );
    assert_eq!(ledger, ["look A"; 3]);
}

#[tokio::test]
async fn the_token_limit_ends_a_run() {
    let script = "repeat: true\nanswers: [{ calls: [{ name: look, arguments: { order: A } }], \
                  usage: { input_tokens: 5, output_tokens: 5 } }]\n";
    let (output, ledger) = ends("tools: [look]\nlimits: { tokens: 20 }\n", script).await;
    assert_eq!(
        output,
        r#"error {"code":"token_limit","message":"the run has reached its limit of 20 tokens"}"#
    );
    assert_eq!(ledger, ["look A"; 2]);
}

/// Models with one scripted provider, at two dollars per million input tokens and eight per million output tokens.
fn priced(plan: &FixtureOptions, script: &str) -> Models {
    let folder = plan.folder.path();
    std::fs::write(folder.join("answers.yaml"), script).expect("the file can be written");
    let config = "providers: [{ id: script, kind: script, script: answers.yaml, \
                  models: [scripted], price: { input_per_million: 2, output_per_million: 8 } }]";
    let config = abide_yaml::from_str(config).expect("it is a configuration");
    Models::new(config, &ConfigContext { environment: &|_| None, folder }).expect("it is valid")
}

/// Regression: without configured prices, the limit had no effect.
#[tokio::test]
async fn the_cost_limit_ends_a_run() {
    let script = "repeat: true\nanswers: [{ calls: [{ name: look, arguments: { order: A } }], \
                  usage: { input_tokens: 1000, output_tokens: 100 } }]\n";
    let plan = FixtureOptions::new("tools: [look]\nlimits: { cost_usd: 0.005 }\n", "answers: []");
    let models = priced(&plan, script);
    let fixture = FixtureOptions { models, ..plan }.open().await;
    let run = fixture.begin("Go on.").await;
    let (output, last) = fixture.output(&run.id, 0).await;
    let why = "the run has reached its limit of 0.005 dollars";
    assert_eq!(last.data, json!({"code": "cost_limit", "message": why}));
    assert_eq!(output.matches(r#""estimated_cost":0.0028"#).count(), 2, "{output}");
    let sql = "SELECT cost_micros FROM runs";
    let cost: Vec<(Option<i64>,)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    assert_eq!(cost, [(Some(5_600),)]);
    fixture.close().await;
}

#[tokio::test]
async fn cost_limit_without_a_price_is_refused() {
    let (output, _) = ends("limits: { cost_usd: 1 }\n", "answers: [{ text: hi }]\n").await;
    let why = "the run has a cost limit, but script/scripted has no price";
    assert_eq!(output, format!("error {}", json!({"code": "price_unknown", "message": why})));
}

#[tokio::test]
async fn parallel_tools_run_up_to_the_limit() {
    let call = "{ name: meet, arguments: {} }";
    let calls = [call; 6].join(", ");
    let script = format!("answers: [{{ calls: [{calls}] }}, {{ text: All met. }}]\n");
    let plan = FixtureOptions::new("tools: [\"*\"]\nlimits: { parallel_tools: 2 }\n", &script);
    let pair = Arc::new(Barrier::new(2));
    let at_once = Arc::new(AtomicUsize::new(0));
    let max = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&max);
    // Each call waits for another one, so a sequential execution would hang.
    let meet = move |_: Nothing, _: ToolContext| {
        let pair = pair.clone();
        let at_once = at_once.clone();
        let max = max.clone();
        async move {
            max.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            pair.wait().await;
            at_once.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, String>("met")
        }
    };
    plan.tools.add(Function::new("meet", "Meets another.", meet)).expect("it is a tool");
    let fixture = plan.open().await;
    let run = fixture.begin("Meet.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "All met.");
    assert_eq!(seen.load(Ordering::SeqCst), 2);
    fixture.close().await;
}

#[tokio::test]
async fn tool_token_limit_before_evict_shortens_only_the_models_view() {
    let script = "answers: [{ calls: [{ name: long, arguments: {} }] }, { text: Long. }]\n";
    let definition = "tools: [\"*\"]\nconfig: { tool_token_limit_before_evict: 100 }\n";
    let plan = FixtureOptions::new(definition, script);
    let long = |_: Nothing, _: ToolContext| async { Ok::<_, String>("word ".repeat(1_000)) };
    plan.tools.add(Function::new("long", "Says much.", long)).expect("it is a tool");
    let fixture = plan.open().await;
    let run = fixture.begin("Say much.").await;
    fixture.output(&run.id, 0).await;
    let sql = "SELECT length(content), (SELECT length(result ->> '$.text') FROM tool_calls) \
               FROM agent_state WHERE role = 'tool'";
    let found: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    let [(shown, kept)] = found[..] else { panic!("{found:?}") };
    assert!(shown < 1_000 && kept == 5_000, "{shown} of {kept}");
    fixture.close().await;
}

#[tokio::test]
async fn tool_call_limit_skips_further_calls() {
    let script = r#"
answers:
  - calls:
      - { name: look, arguments: { order: A } }
      - { name: look, arguments: { order: B } }
      - { name: look, arguments: { order: C } }
  - text: Two are enough.
"#;
    let (output, mut ledger) = ends("tools: [look]\nlimits: { tool_calls: 2 }\n", script).await;
    ledger.sort();
    assert_eq!(ledger, ["look A", "look B"]);
    assert!(output.contains("Two are enough."), "{output}");
}

/// Regression: the model was reminded and called again each time, up to the recursion limit.
#[tokio::test]
async fn tool_call_limit_is_repeated_once_before_the_run_ends() {
    let fixture =
        RuntimeFixture::start("tools: [look]\nlimits: { tool_calls: 1 }\n", FOR_EVER).await;
    let run = fixture.begin("Go on.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    let why = "the run has reached its limit of 1 tool calls, and the model gave no answer";
    assert_eq!(last.data, json!({"code": "tool_call_limit", "message": why}));
    assert_eq!(fixture.ledger(), ["look A"]);
    expect![[r#"
        user: Go on. 
        assistant:  "r1~1.1" "look"
        tool [r1~1.1]: look A is done 
        assistant:  "r1~2.1" "look"
        tool [r1~2.1]: This call was skipped: the run has reached its tool call limit. 
        assistant:  "r1~3.1" "look"
        tool [r1~3.1]: This call was skipped: the run has reached its tool call limit. 
    "#]]
    .assert_eq(&fixture.transcript().await);
    fixture.close().await;
}

#[tokio::test]
async fn tool_call_limit_ends_with_the_text_of_the_last_answer() {
    let script = "repeat: true\nanswers: [{ text: Well then., calls: [{ name: look, arguments: \
                  { order: A } }] }]\n";
    let (output, ledger) = ends("tools: [look]\nlimits: { tool_calls: 1 }\n", script).await;
    assert!(output.starts_with(r#"done {"assistant_data":{"content":"Well then.""#), "{output}");
    assert_eq!(ledger, ["look A"]);
}

/// The end of a call that never returns, in a run with a limit of one second.
async fn overtime(effect: Effect) -> (String, Option<String>) {
    let script = "answers: [{ calls: [{ name: wait, arguments: {} }] }, { text: late }]\n";
    let plan = FixtureOptions::new("limits: { wall_clock_seconds: 1 }\ntools: [\"*\"]\n", script);
    let run = |_: Nothing, _: ToolContext| std::future::pending::<Result<(), String>>();
    let wait = Function::new("wait", "Waits.", run).effect(effect);
    plan.tools.add(wait).expect("it is a tool");
    let settings = Settings { lease: Duration::from_secs(1), ..plan.settings.clone() };
    let fixture = FixtureOptions { settings, ..plan }.open().await;
    let run = fixture.begin("Wait.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["code"], "execution_timeout");
    fixture.until("SELECT call_id FROM tool_calls WHERE status <> 'claimed'").await;
    let sql = "SELECT status, error FROM tool_calls";
    let mut calls: Vec<(String, Option<String>)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    fixture.close().await;
    calls.remove(0)
}

/// Regression: the limit was not checked while tools ran, so a hanging tool blocked its run.
#[tokio::test]
async fn wall_clock_limit_cancels_a_read_only_call() {
    assert_eq!(overtime(Effect::ReadOnly).await, ("cancelled".to_owned(), None));
}

const STOPPED: &str =
    "wait was cancelled. It may have taken effect: find out before you repeat it.";

/// Class: an unknown outcome that reads like a known one. The call had begun, and the model read only `wait was cancelled`.
#[tokio::test]
async fn wall_clock_limit_fails_an_idempotent_call() {
    let failed = ("failed".to_owned(), Some(STOPPED.to_owned()));
    assert_eq!(overtime(Effect::Idempotent).await, failed);
}

/// The call may have taken effect, so it must not be recorded as failed.
#[tokio::test]
async fn wall_clock_limit_leaves_an_at_most_once_call_unknown() {
    let unknown = ("unknown".to_owned(), Some(STOPPED.to_owned()));
    assert_eq!(overtime(Effect::AtMostOnce).await, unknown);
}

#[tokio::test]
async fn wall_clock_limit_ends_a_foreign_program() {
    let definition = "cli: { command: [sh, -c, \"echo '{\\\"a\\\":1}'; exec sleep 600\"] }\n\
                      limits: { wall_clock_seconds: 1 }\n";
    let (output, _) = ends(definition, "answers: []\n").await;
    assert!(output.contains("execution_timeout"), "{output}");
}

#[tokio::test]
async fn wall_clock_limit_ends_a_stalled_answer() {
    let script = "first_token_ms: 600000\nanswers: [{ text: late }]\n";
    let (output, _) = ends("limits: { wall_clock_seconds: 1 }\n", script).await;
    assert!(output.contains("execution_timeout"), "{output}");
}

/// A clock that a test moves.
#[derive(Debug, Default)]
pub(crate) struct MovedClock(pub(crate) AtomicI64);

impl Clock for MovedClock {
    fn now(&self) -> Micros {
        Micros(SystemClock.now().0 + self.0.load(Ordering::SeqCst))
    }
}

/// A run that waits for an approval of `pay` is at its end after ten minutes, the time limit.
async fn ends_while_it_waits(plan: FixtureOptions) {
    let clock = Arc::new(MovedClock::default());
    let config = Config { clock: clock.clone(), ..Config::default() };
    let file = plan.folder.path().join("abide.db");
    let fixture = plan.open_file(Abide::open_with(file, config).expect("the file opens")).await;
    assert_eq!(*fixture.problems.borrow(), []);
    let run = fixture.begin("Pay.").await;
    let (output, interrupt) = fixture.output(&run.id, 0).await;
    assert_eq!(interrupt.data["reason"], "approval", "{output}");
    fixture.until("SELECT id FROM runs WHERE status = 'waiting'").await;
    clock.0.store(601_000_000, Ordering::SeqCst);
    fixture.abide.engine().expect("it is embedded").fire_due().await.expect("it is open");
    let (output, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.data["code"], "execution_timeout", "{output}");
    let sql = "SELECT (SELECT status FROM tool_calls), (SELECT status FROM sessions)";
    let found: Vec<(String, String)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(found, [("cancelled".to_owned(), "active".to_owned())]);
    assert_eq!(fixture.ledger(), [""; 0]);
    fixture.close().await;
}

/// Regression: the limit had no effect on a run that waits for a decision.
#[tokio::test]
async fn wall_clock_limit_ends_a_run_that_waits() {
    let definition = "tools: [pay]\ninterrupt_on: { pay: true }\nlimits: { wall_clock_seconds: 600, wall_clock_counts_waits: true }\n";
    let script = "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }]\n";
    ends_while_it_waits(FixtureOptions::new(definition, script)).await;
}

/// Regression: that of an agent that has taken over the turn still had none.
#[tokio::test]
async fn wall_clock_limit_of_an_agent_that_took_over_ends_a_run_that_waits() {
    let script = "answers: [{ calls: [{ name: handoff_to_other }] }]\n";
    let other = "answers: [{}, { calls: [{ name: pay, arguments: { order: A } }] }]\n";
    let plan = FixtureOptions {
        models: providers(&[("script", script), ("other", other)]),
        ..FixtureOptions::new("config: { provider: script }\nsubagents: [other]\n", "answers: []")
    };
    plan.define(
        "other.yaml",
        "mode: subagent\nas_handoff: {}\nconfig: { provider: other }\ntools: [pay]\n\
         interrupt_on: { pay: true }\nlimits: { wall_clock_seconds: 600, wall_clock_counts_waits: true }\n",
    );
    ends_while_it_waits(plan).await;
}

/// The count includes calls of unknown tools, with wrong arguments, that are rejected, and that are skipped.
#[tokio::test]
async fn every_requested_call_counts() {
    let script = r#"
answers:
  - calls:
      - { name: nothing, arguments: {} }
      - { name: look, arguments: { order: 7 } }
      - { name: pay, arguments: { order: A } }
      - { name: look, arguments: { order: B } }
  - text: Done.
"#;
    let definition = "tools: [look, pay]\ninterrupt_on: { pay: true }\nlimits: { tool_calls: 3 }\n";
    let fixture = RuntimeFixture::start(definition, script).await;
    let run = fixture.begin("Go on.").await;
    let (_, interrupt) = fixture.output(&run.id, 0).await;
    let reject = DecideApproval::new(Decision::Reject).call_id("r1~1.3");
    fixture.abide.call(reject).await.expect("it is pending");
    let (_, last) = fixture.output(&run.id, interrupt.number).await;
    assert_eq!(last.data["assistant_data"]["content"], "Done.");
    let sql = "SELECT tool_calls, (SELECT count(*) FROM agent_state WHERE role = 'tool') FROM runs";
    let counts: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(counts, [(4, 4)], "each call has a result");
    assert_eq!(fixture.ledger(), [""; 0]);
    fixture.close().await;
}

/// A limit is that of one run. The session's total is the sum over its runs.
#[tokio::test]
async fn the_tool_call_limit_counts_per_run() {
    let call = "{ calls: [{ name: look, arguments: { order: A } }] }";
    let script = format!("answers: [{call}, {{ text: One. }}, {call}, {{ text: Two. }}]");
    let fixture =
        RuntimeFixture::start("tools: [look]\nlimits: { tool_calls: 1 }\n", &script).await;
    fixture.begin("Go on.").await;
    fixture.output("r1", 0).await;
    let again = StartRun::new("s1").id("r2").input("Again.");
    fixture.abide.call(again).await.expect("it starts");
    let (_, last) = fixture.output("r2", 0).await;
    assert_eq!(last.data["assistant_data"]["content"], "Two.");
    let sql = "SELECT max(tool_calls), sum(tool_calls) FROM runs WHERE session_id = 's1'";
    let counts: Vec<(i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
    assert_eq!(counts, [(1, 2)]);
    assert_eq!(fixture.ledger(), ["look A"; 2]);
    fixture.close().await;
}

#[tokio::test]
async fn an_unknown_model_is_an_error_that_lists_the_models() {
    let script = "answers: [{ text: hi }]\n";
    let (output, _) = ends("config: { model: other }\n", script).await;
    assert!(output.starts_with("error") && output.contains("scripted"), "{output}");
}

/// Regression: a result of 20 MB could not be recorded, and the call stayed claimed. It ran three times, and ended
/// like a call whose worker had crashed.
#[tokio::test]
async fn a_result_that_is_too_large_fails_its_call() {
    let script = "answers:\n  - { calls: [{ name: big, arguments: {} }] }\n  \
                  - { calls: [{ name: wrong, arguments: {} }] }\n  \
                  - { text: Done. }\n";
    let plan = FixtureOptions::new("tools: [big, wrong]\n", script);
    let big = Function::new("big", "Answers.", |_: Nothing, _: ToolContext| async {
        Ok::<_, String>("x".repeat(20 << 20))
    })
    .effect(Effect::Idempotent);
    plan.tools.add(big).expect("the tool is valid");
    plan.tools
        .add(Function::new("wrong", "Fails.", |_: Nothing, _: ToolContext| async {
            Err::<String, _>("x".repeat(20 << 20))
        }))
        .expect("the tool is valid");
    let fixture = plan.open().await;
    let run = fixture.begin("Go on.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.kind.as_str(), "done", "{}", last.data);
    let sql = "SELECT tool_name, status, attempt, substr(error, 1, 80), length(error) \
               FROM tool_calls ORDER BY call_id";
    let calls: Vec<(String, String, i64, String, i64)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    let [big, wrong] = &calls[..] else { panic!("two calls: {calls:?}") };
    assert_eq!((big.0.as_str(), big.1.as_str(), big.2), ("big", "failed", 1), "{big:?}");
    assert!(big.3.starts_with("big ran, but its result of 4"), "{big:?}");
    assert_eq!((wrong.0.as_str(), wrong.1.as_str(), wrong.2), ("wrong", "failed", 1), "{wrong:?}");
    assert_eq!(wrong.4, 256 << 10, "the beginning is stored");
    fixture.close().await;
}

/// It reached the tool as the double `1e+23`, and was stored as that.
#[tokio::test]
async fn integers_of_64_bits() {
    let arguments = r#"{"order": "A", "n": 100000000000000000000000}"#;
    let script = format!(
        "answers:\n  - calls: [{{ name: pay, arguments: '{arguments}' }}]\n  - text: I give up.\n"
    );
    let fixture = RuntimeFixture::start("tools: [pay]\n", &script).await;
    let run = fixture.begin("Go on.").await;
    let (output, _) = fixture.output(&run.id, 0).await;
    assert_eq!(fixture.ledger(), [""; 0], "the tool did not run");
    let why = "the integer 100000000000000000000000 at /n does not fit a signed 64-bit integer";
    assert!(output.contains(why) && output.ends_with('\n'), "{output}");
    let transcript = fixture.transcript().await;
    assert!(
        transcript.contains(why) && transcript.contains("assistant: I give up."),
        "{transcript}"
    );
    let sql = "SELECT arguments FROM events UNION ALL SELECT data FROM agent_state";
    let stored: Vec<Option<String>> = fixture.abide.sql(sql).fetch().await.expect("it can be read");
    fixture.close().await;
    let stored: String = stored.into_iter().flatten().collect();
    assert!(!stored.contains("1e+23") && !stored.contains("1e23"), "{stored}");
}

/// Regression: a result of some 125 levels was recorded within events, and the log of the file could not be replayed any more.
#[tokio::test]
async fn a_result_that_is_too_deep_fails_its_call() {
    for (levels, is_stored) in [(1, true), (63, true), (64, false), (127, false), (300, false)] {
        let script = "answers: [{ calls: [{ name: dig, arguments: {} }] }, { text: done }]\n";
        let plan = FixtureOptions::new("tools: [\"*\"]\n", script);
        let run = move |_: Nothing, _: ToolContext| async move {
            Ok::<_, String>((1..levels).fold(json!([]), |inner, _| json!([inner])))
        };
        let dig = Function::new("dig", "Digs.", run).effect(Effect::ReadOnly);
        plan.tools.add(dig).expect("it is a tool");
        let fixture = plan.open().await;
        let run = fixture.begin("Dig.").await;
        let (_, last) = fixture.output(&run.id, 0).await;
        let sql = "SELECT status, error FROM tool_calls";
        let calls: Vec<(String, Option<String>)> =
            fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
        fixture.close().await;
        let reason =
            "dig ran, but its result cannot be stored: it is nested more than 64 levels deep";
        let expected = if is_stored {
            ("succeeded".to_owned(), None)
        } else {
            ("failed".to_owned(), Some(reason.to_owned()))
        };
        assert_eq!(calls, [expected], "{levels}");
        assert_eq!(last.data["assistant_data"]["content"], "done", "{levels}");
    }
}

/// A result with the name that `serde_json` gives to raw JSON cannot be stored. The call has ended: it must not look like one whose
/// worker has crashed, which would run again for ever.
#[tokio::test]
async fn a_result_with_a_reserved_name_fails_its_call() {
    let script = "answers: [{ calls: [{ name: dig, arguments: {} }] }, { text: done }]\n";
    let plan = FixtureOptions::new("tools: [\"*\"]\n", script);
    let run = async move |_: Nothing, _: ToolContext| {
        Ok::<_, String>(json!({"!": 2, "$serde_json::private::RawValue": "1"}))
    };
    let dig = Function::new("dig", "Digs.", run).effect(Effect::Idempotent);
    plan.tools.add(dig).expect("it is a tool");
    let fixture = plan.open().await;
    let run = fixture.begin("Dig.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    let sql = "SELECT status, attempt, error FROM tool_calls";
    let calls: Vec<(String, i64, String)> =
        fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    fixture.close().await;
    let reason = "dig ran, but its result cannot be stored: \
        the name $serde_json::private::RawValue is reserved";
    assert_eq!(calls, [("failed".to_owned(), 1, reason.to_owned())]);
    assert_eq!(last.data["assistant_data"]["content"], "done");
}
