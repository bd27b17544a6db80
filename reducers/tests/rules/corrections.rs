//! Corrections of the results of runs: rows of their own, next to runs that stay as they happened.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# correct_run
start_run {"session_id":"big","id":"mine"}
abort_run {"id":"mine"}
correct_run {"id":"mine","result":{"status":"done","answer":"x","tool_calls":1,"input_tokens":1,"output_tokens":1},"lines":[]}
"#;

/// A run that has ended, as a poor parser has read it: no calls, no tokens, the wrong answer.
const ENDED: &str = r#"
    register_agent name=clerk definition={"prompt":"be kind"}
    create_session agent=clerk id=s1
    start_run session_id=s1 id=r1 input=hello
    claim_run id=r1 driver=d lease_ms=1000
    record_run id=r1 fencing_token=4 events=[{"kind":"line","data":{"raw":"{}"}}]
"#;

#[test]
fn a_run_is_corrected_and_stays_as_it_happened() {
    check(
        &format!(
            r#"{ENDED}
        correct_run id=r1 result={{"status":"failed","error_code":"refused","tool_calls":1,"input_tokens":10,"output_tokens":5}} lines=[]
        finish_run id=r1 fencing_token=4 end=done output={{"content":"41"}}
        correct_run id=r1 result={{"status":"done","answer":"41","tool_calls":0,"input_tokens":0,"output_tokens":0}} lines=[]
        correct_run id=r1 result={{"status":"done","answer":"42","tool_calls":1,"input_tokens":10,"output_tokens":5,"cost_micros":250000}} lines=[{{"number":2,"events":[{{"kind":"tool_call","data":{{"id":"7","name":"sh","args":{{}}}}}}]}}] reason="a better parser"
        correct_run id=r1 result={{"status":"done","answer":"42","tool_calls":1,"input_tokens":10,"output_tokens":5,"cost_micros":250000}} lines=[{{"number":2,"events":[{{"kind":"tool_call","data":{{"id":"7","name":"sh","args":{{}}}}}}]}}] reason="again"
        correct_run id=r1 result={{"status":"failed","error_code":"refused","tool_calls":1,"input_tokens":10,"output_tokens":5}} lines=[]
        sql SELECT number, before ->> '$.answer', after ->> '$.answer', after ->> '$.status', lines, reason FROM run_corrections
        sql SELECT corrections, status, error_code, answer, tool_calls, input_tokens, output_tokens, cost_micros FROM run_results
        sql SELECT status, tool_calls, output FROM runs
        sql SELECT reducer, seq FROM events WHERE reducer = 'correct_run'
        raw UPDATE run_corrections SET after = '{{}}'
        replay
        "#
        ),
        expect![[r#"
            seq 1 {name: clerk, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 4, lease_expires_at: 14:00:01}
            refused bad_transition: run r1 is running and has no result yet (hint: correct the run when it has ended)
            seq 6 {id: r1, revision: 1, status: done, turn: 1, iterations: 0, tool_calls: 0, events: 4, fencing_token: 4}
            refused bad_arguments: the correction of run r1 changes nothing
            seq 7 {reason: a better parser}
            seq 7 again {reason: a better parser}
            seq 8 {}
            (1, "41", "42", "done", "[{\"events\":[{\"data\":{\"args\":{},\"id\":\"7\",\"name\":\"sh\"},\"kind\":\"tool_call\"}],\"number\":2}]", "a better parser") (2, "42", null, "failed", "[]", null)
            (2, "failed", "refused", null, 1, 10, 5, null)
            ("done", 0, "{\"content\":\"41\"}")
            ("correct_run", 7) ("correct_run", 8)
            aborted: conflict: a correction is never changed
            the same up to 8
        "#]],
    );
}

#[test]
fn a_correction_has_a_valid_result() {
    let text = |status: &str, rest: &str| {
        format!(
            "correct_run id=r1 result={{\"status\":\"{status}\",\"tool_calls\":0,\"input_tokens\":0,\
             \"output_tokens\":0{rest}}}"
        )
    };
    let scripts = [
        text("running", "") + " lines=[]",
        text("done", r#","error_code":"x""#) + " lines=[]",
        text("failed", "") + " lines=[]",
        text("done", r#","cost_micros":-1"#) + " lines=[]",
        text("done", "") + r#" lines=[{"number":9,"events":[]}]"#,
        text("done", "") + r#" lines=[{"number":2,"events":[]},{"number":2,"events":[]}]"#,
        text("done", "") + r#" lines=[{"number":2,"events":[{"kind":"cheer","data":{}}]}]"#,
        text("done", r#","text":"x""#) + " lines=[]",
        format!("{} lines=[] reason={}", text("done", ""), "x".repeat(4_097)),
        text("done", "").replace("r1", "r9") + " lines=[]",
    ];
    check(
        &format!(
            "{ENDED}
        finish_run id=r1 fencing_token=4 end=done output={{\"content\":\"41\"}}
        {}
        sql SELECT count(*) FROM run_corrections",
            scripts.join("\n        ")
        ),
        expect![[r#"
            seq 1 {name: clerk, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 6 {id: r1, revision: 1, status: done, turn: 1, iterations: 0, tool_calls: 0, events: 4, fencing_token: 4}
            refused bad_arguments: result.status running contradicts the error of the result (hint: status is done without an error, failed with error_code, or aborted)
            refused bad_arguments: result.status done contradicts the error of the result (hint: status is done without an error, failed with error_code, or aborted)
            refused bad_arguments: result.status failed contradicts the error of the result (hint: status is done without an error, failed with error_code, or aborted)
            refused bad_arguments: cost_micros must be between 0 and 9223372036854775807, not -1
            refused bad_arguments: number must be between 1 and 4, not 9
            refused bad_arguments: lines contains the number 2 twice (hint: give each line once, in the order of the numbers)
            refused bad_arguments: correct_run: argument lines[0].events[0].kind: "cheer" is not one of token, tool_call, tool_result, planning, step_complete, delegation, interrupt, status, usage, done, error, reasoning, restart, line (hint: correct_run takes id, result, lines, reason?)
            refused bad_arguments: correct_run: unexpected argument result.text (hint: result has status, error_code, error_message, answer, tool_calls, input_tokens, output_tokens, cost_micros)
            refused limit_exceeded: reason has 4097 bytes; the limit is 4096
            refused not_found: there is no run r9 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            (0)
        "#]],
    );
}
