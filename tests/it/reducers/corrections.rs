//! Corrections of the results of runs: rows of their own, next to runs that stay as they happened.

use expect_test::expect;

use crate::script::check;

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
        expect![[""]],
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
        expect![[""]],
    );
}
