//! Compaction: long runs in small windows, models that do not cooperate, and what the rows say about it.

use std::collections::BTreeSet;

use abide_client::Abide;
use abide_client::arguments::{AppendMessage, CreateSession, StartRun};
use abide_client::rows::{ArchivedResult, ContextSummary, Run, RunStatus};
use abide_models::{ModelMessage, ModelRequest, RequestPurpose, TokenEstimate};
use serde_json::json;

use crate::fixture::{FixtureOptions, RuntimeFixture, answering, scripted};
use crate::scripted_model::{Summaries, Walker, add_read};

/// The window of these tests: 2,000 tokens.
const SMALL: &str = "tools: [read, note]
limits: { tool_calls: 100000 }
config: { recursion_limit: 100000 }
profile:
  memory: { enabled: false }
  context: { window_tokens: 2000, compact_above_tokens: 1500, compact_to_tokens: 900, summary_token_limit: 200, \
chunk_tokens: 600, last_answers: 3 }
";

const WINDOW: u64 = 2_000;

/// The window of these tests, without a watchdog that would warn or stop the model.
fn unwatched() -> String {
    SMALL.replace("profile:", "profile:\n  watchdog: { enabled: false }")
}

/// The first task.
const TASK: &str = "Read all pages and remember the word swordfish.";

/// A finished run of a model.
struct Walked {
    fixture: RuntimeFixture,
    walker: Walker,
    run: Run,
}

/// Runs a model to the end of the turn. A result of `read` has this many characters.
async fn walk(definition: &str, walker: Walker, chars: usize) -> Walked {
    let mut options = FixtureOptions::new(definition, "answers: []");
    options.models = answering(walker.clone());
    add_read(&options.tools, chars);
    let fixture = options.open().await;
    assert_eq!(*fixture.problems.borrow(), []);
    let run = fixture.begin(TASK).await;
    let run = ended(&fixture, &run.id).await;
    Walked { fixture, walker, run }
}

/// Waits for the end of a run.
async fn ended(fixture: &RuntimeFixture, id: &str) -> Run {
    fixture.until(&format!("SELECT 1 FROM runs WHERE id = '{id}' AND ended_at IS NOT NULL")).await;
    let sql = "SELECT * FROM runs WHERE id = :id";
    let runs: Vec<Run> = fixture.abide.sql(sql).param("id", id).fetch().await.expect("it is read");
    runs.into_iter().next().expect("the run exists")
}

async fn summaries(abide: &Abide) -> Vec<ContextSummary> {
    let sql = "SELECT * FROM context_summaries ORDER BY number";
    abide.sql(sql).fetch().await.expect("they are read")
}

async fn count(abide: &Abide, sql: &str) -> i64 {
    let count: Vec<(i64,)> = abide.sql(sql).fetch().await.expect("it is counted");
    count[0].0
}

fn tokens(request: &ModelRequest) -> u64 {
    TokenEstimate::for_model(&request.model).request(request)
}

/// Checks what providers require: every call has exactly one result, directly after its answer.
fn check_groups(request: &ModelRequest) {
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for message in &request.messages {
        match message {
            ModelMessage::Tool { call_id, .. } => {
                assert!(open.remove(call_id.as_str()), "a result without a call: {request:?}");
            }
            other => {
                assert!(open.is_empty(), "calls without results: {open:?} in {request:?}");
                if let ModelMessage::Assistant { calls, .. } = other {
                    open.extend(calls.iter().map(|call| call.id.as_str()));
                }
            }
        }
    }
    assert!(open.is_empty(), "calls without results: {open:?}");
}

/// Checks every request of a run: it fits into the window, the task is in it, and groups are whole.
fn check_requests(walker: &Walker) -> Vec<ModelRequest> {
    let requests = walker.requests(RequestPurpose::Answer);
    for (at, request) in requests.iter().enumerate() {
        assert!(tokens(request) <= WINDOW, "request {at} has {} tokens", tokens(request));
        let task = ModelMessage::user(TASK);
        assert_eq!(request.messages.first(), Some(&task), "request {at} begins with the task");
        check_groups(request);
    }
    for request in walker.requests(RequestPurpose::Summary) {
        assert!(tokens(&request) <= WINDOW, "a summary takes {} tokens", tokens(&request));
    }
    requests
}

/// The turns of a long run; `ABIDE_TURNS` sets another number.
fn turns() -> usize {
    std::env::var("ABIDE_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(150)
}

/// A run of many turns in a small window: no request exceeds it, each has the task, and the cost of a turn does not
/// grow.
#[tokio::test]
async fn a_long_run_stays_in_its_window_at_linear_cost() {
    let turns = turns();
    let Walked { fixture, walker, run } = walk(SMALL, Walker::new(turns), 500).await;
    assert_eq!(run.status, RunStatus::Done);
    let requests = check_requests(&walker);
    assert_eq!(requests.len(), turns + 1);
    let bytes = |part: &[ModelRequest]| -> usize {
        part.iter().map(|request| json!(request).to_string().len()).sum()
    };
    let quarter = turns / 4;
    let second = &requests[quarter..2 * quarter];
    let last = &requests[turns - quarter..turns];
    assert!(bytes(last) * 10 <= bytes(second) * 11, "{} and {}", bytes(second), bytes(last));
    // Each page is read once: nothing was forgotten and read again.
    assert_eq!(count(&fixture.abide, "SELECT count(*) FROM tool_calls").await, turns as i64);
    let summaries = summaries(&fixture.abide).await;
    assert!(summaries.len() > turns / 10, "{}", summaries.len());
    assert!(summaries.len() < turns, "{} summaries of {turns} turns", summaries.len());
    let messages = "SELECT count(*) FROM agent_state WHERE role = 'tool' AND length(content) = 500";
    assert_eq!(count(&fixture.abide, messages).await, turns as i64, "no message is edited");
    report_time(&fixture.abide, turns).await;
    fixture.close().await;
}

/// Prints the time of an early and of a late turn. It includes this test's own model. In a run of `ABIDE_TURNS` a late
/// turn takes at most 1.3 times as long: a turn once read all calls of the session.
async fn report_time(abide: &Abide, turns: usize) {
    let sql = "SELECT created_at FROM agent_state WHERE role = 'assistant' ORDER BY id";
    let times: Vec<(i64,)> = abide.sql(sql).fetch().await.expect("they are read");
    let span = |from: usize, to: usize| (times[to].0 - times[from].0) / (to - from) as i64;
    let n = (turns / 4).min(200);
    let first = span(10, 10 + n);
    let last = span(turns - n, turns);
    println!("{turns} turns: a turn takes {first} µs at first and {last} µs at the end");
    assert!(turns < 1_000 || last * 10 <= first * 13);
}

#[tokio::test]
async fn summarization_lifecycle_leaves_rows_and_events() {
    let Walked { fixture, walker, run } = walk(SMALL, Walker::new(12), 500).await;
    let rows = summaries(&fixture.abide).await;
    let first = &rows[0];
    let last = &rows[rows.len() - 1];
    assert_eq!((first.number, first.run_id.as_str(), first.origin.as_str()), (1, "r1", "model"));
    assert!(first.tokens_before > 1_500);
    assert_eq!(last.summary.value()["stable_facts"].as_array().map(Vec::len), Some(rows.len()));
    // Every large result that a summary covers is archived, and only those.
    let sql = "SELECT * FROM archived_results ORDER BY entry_id";
    let archived: Vec<ArchivedResult> = fixture.abide.sql(sql).fetch().await.expect("read");
    let covered = format!(
        "SELECT count(*) FROM agent_state WHERE role = 'tool' AND id <= {}",
        last.through_id
    );
    assert_eq!(archived.len() as i64, count(&fixture.abide, &covered).await);
    assert_eq!((archived[0].call_id.as_str(), archived[0].characters), ("r1~1.1", 500));
    // The request has the summary, then markers in the places of results, then the results of the latest turns.
    let requests = walker.requests(RequestPurpose::Answer);
    let after = &requests[requests.len() - 1];
    let ModelMessage::System { text } = &after.messages[1] else { panic!("{after:?}") };
    assert!(text.starts_with("## Summary of the conversation so far"), "{text}");
    assert!(text.contains("- part 1: done"), "{text}");
    let results: Vec<&str> = after
        .messages
        .iter()
        .filter_map(|message| match message {
            ModelMessage::Tool { content, .. } => Some(content.as_str()),
            _ => None,
        })
        .collect();
    assert!(results[0].starts_with("SUMMARIZED executionId:'r1~"), "{results:?}");
    assert!(results.last().is_some_and(|it| it.starts_with("line of page 11")), "{results:?}");
    // Each summary is an event.
    let (output, _) = fixture.output(&run.id, 0).await;
    let events =
        output.lines().filter(|line| line.contains("\"status\":\"summarization\"")).count();
    assert_eq!(events, rows.len(), "{output}");
    fixture.close().await;
}

/// Each message that a summary covers was in the request for one summary, once and in order. Otherwise its text would be lost
/// without a sign: rows and events count messages, and do not show what the model has read.
#[tokio::test]
async fn each_covered_message_is_in_the_request_for_a_summary() {
    for (calls, chars) in [(1, 500), (3, 300), (1, 3_000)] {
        let mut options = FixtureOptions::new(&unwatched(), "answers: []");
        let walker = Walker { calls, ..Walker::new(12) };
        options.models = answering(walker.clone());
        add_read(&options.tools, chars);
        let fixture = options.open().await;
        let session = CreateSession::new("clerk").id("s1");
        fixture.abide.call(session).await.expect("it is created");
        for (role, text) in
            [("user", "I am Ann."), ("reviewer", "Be careful."), ("system", "Be kind.")]
        {
            let message = AppendMessage::new("s1", role, text.to_owned());
            fixture.abide.call(message).await.expect("it is appended");
        }
        let run = StartRun::new("s1").id("r1").input(TASK);
        fixture.abide.call(run).await.expect("it starts");
        ended(&fixture, "r1").await;
        let rows = summaries(&fixture.abide).await;
        let last = rows.last().expect("it was compacted");
        let sql = "SELECT role, content, coalesce(data ->> '$.call_id', '') FROM agent_state \
                   WHERE id <= :id ORDER BY id";
        let covered: Vec<(String, String, String)> =
            fixture.abide.sql(sql).param("id", last.through_id).fetch().await.expect("read");
        let requests = walker.requests(RequestPurpose::Summary);
        assert_eq!(requests.len(), rows.len());
        let mut read: Vec<String> = Vec::new();
        for request in &requests {
            let ModelMessage::User { text } = &request.messages[0] else { panic!("{request:?}") };
            let data: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
            let lines = data["conversation"].as_array().expect("a list").iter();
            read.extend(lines.filter_map(|line| line.as_str().map(str::to_owned)));
        }
        assert_eq!(read.len(), covered.len(), "{calls} {chars}: {read:#?}");
        for (line, (role, content, call_id)) in read.iter().zip(&covered) {
            // The beginning and the end of a long text.
            let begin = &content[..content.len().min(20)];
            let end = &content[content.len() - 7..];
            let begin = match role.as_str() {
                "tool" => format!("result of read {call_id}: {begin}"),
                "assistant" => format!("agent: {begin}"),
                role => format!("{role}: {begin}"),
            };
            assert!(line.starts_with(&begin), "{begin} in {line}");
            assert!(line.contains(end), "{end} in {line}");
        }
        fixture.close().await;
    }
}

/// A model that fails to summarise, or answers nonsense, gets a summary that is made without it. It is not asked twice.
#[tokio::test]
async fn a_local_fallback_summary_if_the_model_fails() {
    for how in [Summaries::Fail, Summaries::Garbage] {
        let walker = Walker { summaries: how, ..Walker::new(15) };
        let Walked { fixture, walker, run } = walk(SMALL, walker, 500).await;
        assert_eq!(run.status, RunStatus::Done);
        check_requests(&walker);
        let rows = summaries(&fixture.abide).await;
        assert!(!rows.is_empty() && rows.iter().all(|row| row.origin == "fallback"), "{how:?}");
        assert_eq!(walker.requests(RequestPurpose::Summary).len(), rows.len(), "{how:?}");
        let raw = rows[0].summary.value()["raw_summary"].clone();
        assert!(raw.as_str().is_some_and(|raw| raw.contains("result of read r1~2.1")), "{raw}");
        fixture.close().await;
    }
}

/// Summaries that forget facts and revive obsolete items are repaired, and the row says what.
#[tokio::test]
async fn integrity_check_repairs_lost_facts_and_revived_items() {
    let walker = Walker { summaries: Summaries::Forgetful, ..Walker::new(15) };
    let Walked { fixture, .. } = walk(SMALL, walker, 500).await;
    let rows = summaries(&fixture.abide).await;
    let repaired = rows[1].repaired.as_ref().expect("it was repaired").value();
    assert_eq!(repaired, json!({"lost": ["part 1"], "revived": ["plan A"]}));
    let summary = rows[1].summary.value();
    let keys: Vec<&str> = summary["stable_facts"]
        .as_array()
        .expect("it succeeds")
        .iter()
        .filter_map(|it| it["key"].as_str())
        .collect();
    assert_eq!(keys, ["part 2", "part 1"]);
    assert_eq!(summary["active_goals"], json!([]));
    fixture.close().await;
}

/// The consumption of summaries counts in the run and its budget, but not as answers.
#[tokio::test]
async fn spending_of_summaries_counts() {
    let walker = Walker { reports: Some(1.0), ..Walker::new(12) };
    let Walked { fixture, walker, run } = walk(SMALL, walker, 500).await;
    let all = [RequestPurpose::Answer, RequestPurpose::Summary].map(|it| walker.requests(it));
    let input: u64 = all.iter().flatten().map(tokens).sum();
    assert_eq!(run.input_tokens, i64::try_from(input).expect("it succeeds"));
    assert_eq!(run.iterations, 13);
    let limited = SMALL.replace("limits: {", "limits: { tokens: 9000,");
    fixture.close().await;
    let walker = Walker { reports: Some(1.0), ..Walker::new(50) };
    let Walked { fixture, run, .. } = walk(&limited, walker, 500).await;
    assert_eq!(run.error_code.as_deref(), Some("token_limit"));
    fixture.close().await;
}

/// A provider that counts twice the estimated tokens makes compaction begin earlier, so that its own window is kept.
#[tokio::test]
async fn token_counts_of_the_provider_correct_the_estimate() {
    let walker = Walker { reports: Some(2.0), ..Walker::new(20) };
    let Walked { fixture, walker, .. } = walk(SMALL, walker, 300).await;
    for (at, request) in walker.requests(RequestPurpose::Answer).iter().enumerate().skip(1) {
        let reported = 2 * tokens(request);
        assert!(reported <= WINDOW + 20, "request {at} has {reported} tokens");
    }
    fixture.close().await;
}

/// A latest turn that alone exceeds the trigger stays, and does not pay for a summary in each turn. One that exceeds
/// the window is shortened.
#[tokio::test]
async fn latest_turn_is_protected_and_compaction_cannot_trigger_itself() {
    let walker = Walker { calls: 3, ..Walker::new(12) };
    let Walked { fixture, walker, .. } = walk(&unwatched(), walker, 2_000).await;
    for request in &check_requests(&walker)[1..] {
        let results = request.messages.iter().rev().take(3);
        for result in results {
            let ModelMessage::Tool { content, .. } = result else { panic!("{request:?}") };
            assert!(content.starts_with("line of page"), "{content}");
        }
    }
    let rows = summaries(&fixture.abide).await;
    assert!(rows.len() <= 36, "{} summaries of 12 turns", rows.len());
    fixture.close().await;
}

/// Small groups in front of a large latest turn gain too little: the request is sent as it is.
#[tokio::test]
async fn tolerance_after_a_fresh_summary() {
    let definition = SMALL.replace("compact_above_tokens: 1500", "compact_above_tokens: 1000");
    let Walked { fixture, walker, .. } = walk(&definition, Walker::new(10), 3_200).await;
    let asked = walker.requests(RequestPurpose::Answer).len();
    let made = summaries(&fixture.abide).await.len();
    assert_eq!(asked, 11);
    assert!(made <= 20, "{made}");
    fixture.close().await;
}

/// The fetch loop of the original: a model that always fetches what was just archived. The limit ends it, and the
/// failures are texts.
#[tokio::test]
async fn nothing_is_fetched_in_circles() {
    let walker = Walker { fetches: true, ..Walker::new(40) };
    let Walked { fixture, walker, run } = walk(&unwatched(), walker, 500).await;
    assert_eq!(run.status, RunStatus::Done);
    check_requests(&walker);
    let fetched =
        "SELECT count(*) FROM tool_calls WHERE tool_name = 'get_tool_response' AND status = ";
    assert_eq!(count(&fixture.abide, &format!("{fetched} 'succeeded'")).await, 8);
    assert!(count(&fixture.abide, &format!("{fetched} 'failed'")).await > 0);
    let refused = "SELECT count(*) FROM agent_state WHERE content LIKE '%has fetched 8 results%'";
    assert!(count(&fixture.abide, refused).await > 0);
    fixture.close().await;
}

/// A script that fetches by execution id, by call id, in ranges, the arguments, and what does not exist.
const FETCHES: &str = r#"
summary: '{"raw_summary": "Read."}'
answers:
  - calls: [{ id: call_a, name: read, arguments: { page: 1 } }]
  - calls: [{ name: read, arguments: { page: 2 } }, { name: read, arguments: { page: x } }]
  - calls: [{ name: read, arguments: { page: 3 } }]
  - calls:
      - { name: get_tool_response, arguments: { id: r1~1.1, offset: 4, length: 9 } }
      - { name: get_tool_response, arguments: { id: call_a, offset: 2490, length: 50 } }
      - { name: get_tool_response, arguments: { id: r1~2.1, part: input } }
      - { name: get_tool_response, arguments: { id: r1~9.9 } }
      - { name: get_tool_response, arguments: { id: foreign } }
      - { name: get_tool_response, arguments: { part: both, id: r1~1.1 } }
  - text: It is done.
"#;

#[tokio::test]
async fn get_tool_response_by_id_part_and_range() {
    let mut options = FixtureOptions::new(SMALL, FETCHES);
    options.models = scripted(FETCHES);
    add_read(&options.tools, 2_500);
    let fixture = options.open().await;
    // A call of another session is not found, even by a caller without a scope.
    let other = json!({"session_id": "s2", "call_id": "foreign", "tool_name": "read",
        "arguments": {"page": 1}});
    fixture
        .abide
        .call_by_name("create_session", json!({"agent": "clerk", "id": "s2"}))
        .await
        .expect("it succeeds");
    fixture.abide.call_by_name("request_tool_call", other).await.expect("it succeeds");
    let run = fixture.begin(TASK).await;
    let run = ended(&fixture, &run.id).await;
    assert_eq!(run.status, RunStatus::Done, "{:?}", run.error_message);
    let transcript = fixture.transcript().await;
    for line in [
        "tool [r1~4.1]:  of page \n[characters 4 to 13 of 2500; continue with offset 13] ",
        "[characters 2490 to 2500 of 2500] ",
        "tool [r1~4.3]: {\"page\":2}\n[characters 0 to 10 of 10] ",
        "tool [r1~4.4]: no result of this session has the id r1~9.9: use an id from a marker ",
        "tool [r1~4.5]: no result of this session has the id foreign: use an id from a marker ",
        "tool [r1~4.6]: get_tool_response: ",
    ] {
        assert!(transcript.contains(line), "{line}\n{transcript}");
    }
    fixture.close().await;
}

/// The tool exists only when there is something to fetch: a result that was cut counts, too.
#[tokio::test]
async fn get_tool_response_is_offered_when_a_result_was_cut() {
    let walker = Walker::new(2);
    let Walked { fixture, walker, .. } = walk("tools: [read]\n", walker, 40_000).await;
    let offered: Vec<bool> = walker
        .requests(RequestPurpose::Answer)
        .iter()
        .map(|request| request.tools.iter().any(|tool| tool.name == "get_tool_response"))
        .collect();
    assert_eq!(offered, [false, true, true]);
    fixture.close().await;
}

/// The messages that always stay exceed the window: the run fails and names the fix.
#[tokio::test]
async fn a_task_larger_than_the_window_fails_with_a_clear_code() {
    let mut options = FixtureOptions::new(SMALL, "answers: [{ text: Hello. }]");
    add_read(&options.tools, 10);
    options.settings.grace = std::time::Duration::from_millis(10);
    let fixture = options.open().await;
    let run = fixture.begin(&"A long task. ".repeat(1_000)).await;
    let run = ended(&fixture, &run.id).await;
    assert_eq!(run.error_code.as_deref(), Some("context_too_long"));
    let message = run.error_message.unwrap_or_default();
    assert!(message.contains("choose a profile with a larger window_tokens"), "{message}");
    fixture.close().await;
}

/// Two runs over the same conversation give the same rows.
#[tokio::test]
async fn two_runs_give_the_same_rows() {
    let mut all = Vec::new();
    for _ in 0..2 {
        let Walked { fixture, .. } = walk(SMALL, Walker::new(15), 500).await;
        all.push(derived(&fixture.abide).await);
        fixture.close().await;
    }
    assert_eq!(all[0], all[1]);
}

/// The derived rows, without times.
pub(crate) async fn derived(abide: &Abide) -> String {
    let sql = "SELECT group_concat(number || ' ' || through_id || ' ' || folded_id || ' ' || \
               goal_id || ' ' || goal_folded_id || ' ' || summary || kept || answers || \
               handoffs || origin, char(10)) FROM context_summaries";
    let rows: Vec<(Option<String>,)> = abide.sql(sql).fetch().await.expect("they are read");
    let sql = "SELECT group_concat(entry_id || ' ' || call_id || ' ' || number || ' ' || \
               characters, char(10)) FROM archived_results";
    let archived: Vec<(Option<String>,)> = abide.sql(sql).fetch().await.expect("they are read");
    format!(
        "{}\n{}",
        rows[0].0.clone().unwrap_or_default(),
        archived[0].0.clone().unwrap_or_default()
    )
}

/// A second run in the same session begins with the summary of the first one, and both tasks stay.
#[tokio::test]
async fn a_later_run_reads_the_summary_and_keeps_both_tasks() {
    let Walked { fixture, walker, .. } = walk(SMALL, Walker::new(30), 500).await;
    let run = json!({"session_id": "s1", "id": "r2", "input": "Now read the rest."});
    fixture.abide.call_by_name("start_run", run).await.expect("it starts");
    let run = ended(&fixture, "r2").await;
    assert_eq!(run.status, RunStatus::Done);
    let requests = walker.requests(RequestPurpose::Answer);
    let last = requests.last().expect("there is one");
    assert_eq!(last.messages.first(), Some(&ModelMessage::user(TASK)));
    assert!(last.messages.contains(&ModelMessage::user("Now read the rest.")));
    assert!(last.messages.iter().any(|message| matches!(message, ModelMessage::System { text }
        if text.contains("Summary of the conversation"))));
    fixture.close().await;
}

/// Without the covered messages the request is shorter: the task, the summary and the latest turns.
#[tokio::test]
async fn context_policy_summary_only_and_hybrid() {
    let mut sizes = Vec::new();
    for policy in ["hybrid", "summary_only"] {
        let definition = SMALL.replace("context: {", &format!("context: {{ policy: {policy},"));
        let Walked { fixture, walker, run } = walk(&definition, Walker::new(30), 500).await;
        assert_eq!(run.status, RunStatus::Done);
        let requests = check_requests(&walker);
        let markers = |request: &&ModelRequest| json!(request).to_string().contains("SUMMARIZED");
        assert_eq!(requests.iter().any(|it| markers(&it)), policy == "hybrid", "{policy}");
        let has_summary = |request: &ModelRequest| {
            json!(request).to_string().contains("## Summary of the conversation so far")
        };
        assert!(has_summary(requests.last().expect("there is one")), "{policy}");
        sizes.push(requests.iter().map(tokens).sum::<u64>());
        fixture.close().await;
    }
    assert!(sizes[1] < sizes[0], "{sizes:?}");
}

/// The conversation is sent as it is, until it exceeds the window.
#[tokio::test]
async fn context_policy_raw() {
    let definition = SMALL.replace("context: {", "context: { policy: raw,");
    let Walked { fixture, walker, run } = walk(&definition, Walker::new(30), 500).await;
    assert_eq!(run.error_code.as_deref(), Some("context_too_long"));
    assert!(walker.requests(RequestPurpose::Summary).is_empty());
    assert!(check_requests(&walker).len() > 3);
    fixture.close().await;
}

/// Regression: without compaction the newest results were halved while the oldest stayed whole, no event said so, the marker had
/// the id of the provider, and the tool that returns the rest was not offered.
#[tokio::test]
async fn results_are_cut_from_the_oldest_on_and_can_be_fetched() {
    for setting in ["policy: raw", "compaction: false"] {
        let definition = unwatched().replace("context: {", &format!("context: {{ {setting},"));
        let walker = Walker { fetches: true, ..Walker::new(6) };
        let Walked { fixture, walker, run } = walk(&definition, walker, 2_000).await;
        assert_eq!(run.status, RunStatus::Done, "{setting}: {:?}", run.error_message);
        let mut has_cut = false;
        for request in check_requests(&walker) {
            let results = request.messages.iter().filter_map(|message| match message {
                ModelMessage::Tool { name, content, .. } if name == "read" => Some(content),
                _ => None,
            });
            let whole: Vec<bool> = results.map(|content| content.len() == 2_000).collect();
            assert!(whole.is_sorted(), "{setting}: {whole:?}");
            let is_cut = whole.contains(&false);
            has_cut |= is_cut;
            let offered = request.tools.iter().any(|tool| tool.name == "get_tool_response");
            assert!(offered || !is_cut, "{setting}");
            if is_cut {
                let shown = json!(request.messages).to_string();
                assert!(
                    shown.contains(" bytes of the result of call r1~1.1 were omitted"),
                    "{shown}"
                );
            }
        }
        assert!(has_cut, "{setting}");
        let fetched = "SELECT count(*) FROM tool_calls WHERE tool_name = 'get_tool_response' \
                       AND status = 'succeeded'";
        assert!(count(&fixture.abide, fetched).await > 0, "{setting}");
        let (output, _) = fixture.output(&run.id, 0).await;
        assert_eq!(output.matches(r#""status":"results_cut""#).count(), 1, "{setting}");
        fixture.close().await;
    }
}

/// The first message of the user is always in the request.
///
/// Regression: if the next messages were too large for the same part, the first summary was about that message alone.
#[tokio::test]
async fn no_part_has_only_messages_that_stay_in_any_case() {
    let walker = Walker { calls: 3, ..Walker::new(12) };
    let Walked { fixture, walker, .. } = walk(&unwatched(), walker, 1_500).await;
    let requests = walker.requests(RequestPurpose::Summary);
    assert!(!requests.is_empty());
    for request in requests {
        let ModelMessage::User { text } = &request.messages[0] else { panic!("{request:?}") };
        let data: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
        let lines = data["conversation"].as_array().expect("a list");
        assert!(lines.iter().any(|line| *line != format!("user: {TASK}")), "{lines:?}");
    }
    fixture.close().await;
}

/// The replacement of the results of a tool that a summary covers, and the text that the summarising model gets.
#[tokio::test]
async fn reduction_policies_per_tool() {
    for (rule, marker, is_summarised) in [
        ("keep_full", None, true),
        ("keep_structured", Some("STRUCTURED"), true),
        ("summarize_archive", Some("SUMMARIZED"), true),
        ("drop", Some("DROPPED"), false),
    ] {
        let rules = format!("context: {{ reduce_results: {{ \"re*\": {rule} }},");
        let definition = SMALL.replace("context: {", &rules);
        // Room for some of the covered messages.
        let definition = definition.replace("compact_to_tokens: 900", "compact_to_tokens: 1300");
        // An outline of a longer text is shorter than the text.
        let Walked { fixture, walker, run } = walk(&definition, Walker::new(20), 1_200).await;
        assert_eq!(run.status, RunStatus::Done, "{rule}: {:?}", run.error_message);
        let shown = json!(check_requests(&walker)).to_string();
        for word in ["STRUCTURED", "SUMMARIZED", "DROPPED"] {
            let is_shown = shown.contains(&format!("{word} executionId:'r1~"));
            assert_eq!(is_shown, marker == Some(word), "{rule}");
        }
        let asked = json!(walker.requests(RequestPurpose::Summary)).to_string();
        assert_eq!(asked.contains("line of page"), is_summarised, "{rule}");
        // The originals stay, whatever the rule.
        let sql = "SELECT count(*) FROM agent_state WHERE role = 'tool' AND length(content) = 1200";
        assert_eq!(count(&fixture.abide, sql).await, 20, "{rule}");
        fixture.close().await;
    }
}
