//! The watchdog: models that misbehave on purpose. They are warned by a message that they see, and stopped with a
//! clear code. The measurements are rows.

use abide_client::rows::{RunHealth, RunStatus};

use crate::fixture::RuntimeFixture;

/// A model that calls one tool for ever.
fn script(order: &str) -> String {
    format!(
        "repeat: true\nanswers: [{{ calls: [{{ name: look, arguments: {{ order: {order} }} }}], \
         usage: {{ input_tokens: 100, output_tokens: 10 }} }}]"
    )
}

async fn rows(fixture: &RuntimeFixture) -> Vec<RunHealth> {
    let sql = "SELECT * FROM run_health ORDER BY iteration";
    fixture.abide.sql(sql).fetch().await.expect("it is read")
}

async fn actions(fixture: &RuntimeFixture) -> Vec<String> {
    rows(fixture).await.iter().map(|row| row.action.to_string()).collect()
}

#[tokio::test]
async fn a_model_that_repeats_itself_is_warned_and_stopped() {
    let definition = "tools: [look]\nprofile: { base: balanced, memory: { enabled: false } }\n";
    let fixture = RuntimeFixture::start(definition, &script("A")).await;
    fixture.begin("Go.").await;
    let (_, end) = fixture.output("r1", 0).await;
    assert_eq!(end.data["code"], "unhealthy", "{:?}", end.data);
    assert_eq!(end.data["message"], "the model has requested the same tool calls 6 times in a row");
    assert_eq!(actions(&fixture).await, ["none", "none", "warn", "none", "none", "stop"]);
    let transcript = fixture.transcript().await;
    let warning = "system: You have requested the same tool calls 3 times, and the results are the \
                   same. Use these results, or do something else. Do not repeat the calls.";
    assert_eq!(transcript.matches(warning).count(), 1, "{transcript}");
    // The last calls have results: a provider accepts the conversation of the next run.
    assert!(transcript.contains("[r1~6.1]: look A is done"), "{transcript}");
    assert_eq!(fixture.ledger().len(), 6);
    fixture.close().await;
}

#[tokio::test]
async fn a_model_that_never_stops_calling_tools_is_stopped() {
    let answers: Vec<String> = (0..30)
        .map(|n| {
            let call = |m: i32| format!("{{ name: look, arguments: {{ order: \"{n}-{m}\" }} }}");
            format!("{{ calls: [{}, {}] }}", call(1), call(2))
        })
        .collect();
    let script = format!("answers: [{}]", answers.join(", "));
    let definition = "tools: [look]\nlimits: { tool_calls: 1000 }\nprofile: { base: balanced, \
                      memory: { enabled: false }, watchdog: { warn_after: 3, stop_after: 8, \
                      auto_compaction: false } }\n";
    let fixture = RuntimeFixture::start(definition, &script).await;
    fixture.begin("Go.").await;
    let (_, end) = fixture.output("r1", 0).await;
    assert_eq!(end.data["code"], "unhealthy", "{:?}", end.data);
    let message = "8 consecutive answers have reached a threshold of the watchdog: over_tooling";
    assert_eq!(end.data["message"], message);
    // The first answer has no results before it.
    let health = rows(&fixture).await;
    let over: Vec<f64> = health.iter().map(|row| row.over_tooling).collect();
    assert_eq!(over[..3], [0.0, 2.0 / 3.0, 2.0 / 3.0]);
    let output: Vec<String> = health.iter().map(|row| row.action.to_string()).collect();
    assert_eq!(output, ["none", "none", "none", "warn", "none", "none", "warn", "none", "stop"]);
    fixture.close().await;
}

/// The signs of a healthy run are recorded, too, and nothing happens.
#[tokio::test]
async fn a_healthy_run_is_measured_and_left_alone() {
    let script = "answers: [{ calls: [{ name: look, arguments: { order: A } }], usage: { \
                  input_tokens: 100, output_tokens: 10 } }, { text: Done., usage: { input_tokens: \
                  150, output_tokens: 10 } }]";
    let definition = "tools: [look]\nprofile: { base: balanced, memory: { enabled: false } }\n";
    let fixture = RuntimeFixture::start(definition, script).await;
    fixture.begin("Go.").await;
    let (_, end) = fixture.output("r1", 0).await;
    assert_eq!(end.kind.to_string(), "done");
    let health = rows(&fixture).await;
    let output: Vec<(i64, i64, i64, i64, i64)> = health
        .iter()
        .map(|row| (row.tokens, row.token_drift, row.messages, row.new_messages, row.tool_messages))
        .collect();
    assert_eq!(output, [(100, 0, 1, 2, 0), (150, 50, 3, 2, 1)]);
    assert!(health.iter().all(|row| row.action.to_string() == "none"));
    fixture.close().await;
}

/// A sign at or above its threshold asks for a compaction. The row has the action only if there was something to compact.
///
/// Regression: `compact` was recorded with the answer. If the gain was too small, nothing was compacted, and the next five answers
/// could not ask for a compaction.
#[tokio::test]
async fn token_drift_is_no_action_if_there_is_nothing_to_compact() {
    let answer = |tokens: u32, rest: &str| {
        format!("{{ {rest}, usage: {{ input_tokens: {tokens}, output_tokens: 1 }} }}")
    };
    let call = "calls: [{ name: look, arguments: { order: A } }]";
    let note = "calls: [{ name: note, arguments: { order: A } }]";
    let script = format!(
        "answers: [{}, {}, {}]",
        answer(100, call),
        answer(9_000, note),
        answer(9_100, "text: Done.")
    );
    for auto in [true, false] {
        let definition = format!(
            "tools: [look, note]\nprofile: {{ base: balanced, memory: {{ enabled: false }}, \
             watchdog: {{ auto_compaction: {auto} }} }}\n"
        );
        let fixture = RuntimeFixture::start(&definition, &script).await;
        fixture.begin("Go.").await;
        let (_, end) = fixture.output("r1", 0).await;
        assert_eq!(end.kind.to_string(), "done");
        let health = rows(&fixture).await;
        assert_eq!(health[1].token_drift, 8_900);
        assert_eq!(actions(&fixture).await, ["none", "none", "none"]);
        assert_eq!(health[1].signals.as_str(), r#"["token_drift"]"#);
        fixture.close().await;
    }
}

/// Without a profile nothing is watched.
#[tokio::test]
async fn an_agent_without_a_profile_is_not_watched() {
    let definition = "tools: [look]\nlimits: { tool_calls: 7 }\n";
    let fixture = RuntimeFixture::start(definition, &script("A")).await;
    let run = fixture.begin("Go.").await;
    assert_eq!(run.status, RunStatus::Running);
    let (_, end) = fixture.output("r1", 0).await;
    assert_eq!(end.data["code"], "tool_call_limit", "{:?}", end.data);
    assert_eq!(rows(&fixture).await.len(), 0);
    fixture.close().await;
}

/// The watchdog compacts long before the trigger, and `auto_compaction: false` does not.
#[tokio::test]
async fn over_tooling_compacts_before_the_trigger() {
    let answers: Vec<String> = (0..22)
        .map(|n| {
            let text = "word ".repeat(60);
            format!(
                "{{ text: \"{text}\", calls: [{{ name: look, arguments: {{ order: N{n} }} }}] }}"
            )
        })
        .collect();
    let script = format!(
        "summary: '{{\"raw_summary\": \"They looked.\"}}'\nanswers: [{}, {{ text: Done. }}]",
        answers.join(", ")
    );
    for auto in [true, false] {
        let definition = format!(
            "tools: [look]\nlimits: {{ tool_calls: 100 }}\nprofile:\n  base: balanced\n  \
             memory: {{ enabled: false }}\n  context: {{ window_tokens: 8000, compact_above_tokens: 4000, \
             compact_to_tokens: 800, summary_token_limit: 150, chunk_tokens: 2000 }}\n  \
             watchdog: {{ over_tooling: 0.5, warn_after: 0, auto_compaction: {auto} }}\n"
        );
        let fixture = RuntimeFixture::start(&definition, &script).await;
        fixture.begin("Go.").await;
        let (_, end) = fixture.output("r1", 0).await;
        assert_eq!(end.kind.to_string(), "done", "{:?}", end.data);
        let sql =
            "SELECT tokens_before, through_id, goal_id FROM context_summaries ORDER BY number";
        let made: Vec<(i64, i64, i64)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        assert_eq!(!made.is_empty(), auto, "{made:?}");
        assert!(made.iter().all(|(tokens, ..)| *tokens < 4_000), "{made:?}");
        // Each compaction is an action of the watchdog, and each action is a compaction.
        let ends = made.iter().filter(|(_, through_id, goal_id)| through_id == goal_id).count();
        let actions = actions(&fixture).await;
        let acted = actions.iter().filter(|action| *action == "compact").count();
        assert_eq!(acted, ends, "{actions:?} {made:?}");
        let sql = "SELECT count FROM watchdog_actions WHERE action = 'compact'";
        let counted: Vec<(i64,)> = fixture.abide.sql(sql).fetch().await.expect("it is read");
        assert_eq!(counted.first().map_or(0, |(count,)| *count), acted as i64);
        if auto {
            // Twice the summary, and the markers, are the rot.
            assert!(rows(&fixture).await.iter().any(|row| row.context_rot > 0.0));
        }
        fixture.close().await;
    }
}
