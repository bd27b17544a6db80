//! Retries with a request id, and batches: all or nothing.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# retry_tool_call
claim_tool_call {"call_id":"pending7","lease_ms":5}
+10
claim_tool_call {"call_id":"pending7","lease_ms":5}
+10
+1100
"#;

#[test]
fn a_retry_gets_the_first_result() {
    check(
        r#"
        create_session agent=support request_id=r1
        create_session agent=support request_id=r1
        +1h
        append_message session_id=s#1 role=user content=hello request_id=r2
        append_message content=hello role=user session_id=s#1 request_id=r2
        suspend_session session_id=s#1 request_id=r3
        resume_session session_id=s#1
        suspend_session session_id=s#1 request_id=r3
        sql SELECT status FROM sessions
        reopen
        create_session agent=support request_id=r1
        sql SELECT seq, reducer, request_id FROM events
        "#,
        expect![[r#"
            seq 1 {id: s#1, status: created}
            seq 1 again {id: s#1, status: created}
            seq 2 {id: 1}
            seq 2 again {id: 1}
            seq 3 {id: s#1, status: suspended}
            seq 4 {id: s#1, status: active}
            seq 3 again {id: s#1, status: suspended}
            ("active")
            seq 1 again {id: s#1, status: created}
            (1, "create_session", "r1") (2, "append_message", "r2") (3, "suspend_session", "r3") (4, "resume_session", null)
        "#]],
    );
}

#[test]
fn a_different_request_with_the_same_id() {
    check(
        r#"
        create_session agent=support id=s1 request_id=r1
        create_session agent=support id=s2 request_id=r1
        create_session agent=support request_id=r1
        suspend_session session_id=s1 request_id=r1
        batch request_id=r1: suspend_session session_id=s1 | resume_session session_id=s1
        create_session agent=support id=s2 request_id=r1 as=bob
        create_session agent=support id=s2 request_id=""
        sql SELECT id FROM sessions
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            refused request_id_conflict: request id "r1" was already used for another request (hint: a retry must repeat reducer and arguments exactly; use a new id for a new request)
            refused request_id_conflict: request id "r1" was already used for another request (hint: a retry must repeat reducer and arguments exactly; use a new id for a new request)
            refused request_id_conflict: request id "r1" was already used for another request (hint: a retry must repeat reducer and arguments exactly; use a new id for a new request)
            refused request_id_conflict: request id "r1" was already used for another request (hint: a retry must repeat reducer and arguments exactly; use a new id for a new request)
            seq 2 {id: s2, status: created}
            refused bad_request: a request id must have 1 to 512 bytes
            ("s1") ("s2")
        "#]],
    );
}

#[test]
fn a_refused_call_may_be_retried() {
    check(
        r#"
        append_message session_id=s1 role=user content=hello request_id=r1
        create_session agent=support id=s1
        append_message session_id=s1 role=user content=hello request_id=r1
        append_message session_id=s1 role=user content=hello request_id=r1
        "#,
        expect![[r#"
            refused not_found: there is no session s1 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 2 again {id: 1}
        "#]],
    );
}

/// The log stores long texts of a result once; a retry must return them exactly.
#[test]
fn long_results_are_returned_in_full() {
    let long = "x".repeat(200);
    let script = format!(
        r#"
        register_tool name=search
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={{"q":"{long}"}} request_id=r1
        claim_tool_call call_id=c1
        complete_tool_call call_id=c1 fencing_token=4 result="{long}" request_id=r2
        "#
    );
    let retries = format!(
        r#"
        complete_tool_call call_id=c1 fencing_token=4 result="{long}" request_id=r2
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={{"q":"{long}"}} request_id=r1
        "#
    );
    let received = crate::play(&format!("{script}{retries}"));
    let lines: Vec<String> = received.lines().map(|line| line.replace(" again", "")).collect();
    assert_eq!(lines[5], lines[4], "the retry equals the first result");
    assert_eq!(lines[6], lines[2], "the state of the first call, not the current one");
}

#[test]
fn a_batch_is_atomic() {
    check(
        r#"
        batch: create_session agent=support id=s1 | append_message session_id=s1 role=user content=hello | suspend_session session_id=s1
        sql SELECT status, seq FROM sessions
        sql SELECT seq, reducer FROM events
        batch request_id=b1: resume_session session_id=s1 | append_message session_id=s1 role=user content=again
        batch request_id=b1: resume_session session_id=s1 | append_message session_id=s1 role=user content=again
        batch request_id=b1: resume_session session_id=s1
        batch request_id=b1: append_message session_id=s1 role=user content=again | resume_session session_id=s1
        sql SELECT seq, request_id FROM events WHERE seq > 3
        "#,
        expect![[r#"
            batch 3: seq 1 {id: s1, status: created} | seq 2 {id: 1} | seq 3 {id: s1, status: suspended}
            ("suspended", 3)
            (1, "create_session") (2, "append_message") (3, "suspend_session")
            batch 5: seq 4 {id: s1, status: active} | seq 5 {id: 2}
            batch 5 again: seq 4 again {id: s1, status: active} | seq 5 again {id: 2}
            refused request_id_conflict: request id "b1" was already used for another request (hint: a retry must repeat reducer and arguments exactly; use a new id for a new request)
            refused request_id_conflict: request id "b1" was already used for another request (hint: a retry must repeat reducer and arguments exactly; use a new id for a new request)
            (4, "b1") (5, "b1")
        "#]],
    );
}

#[test]
fn a_refusal_in_a_batch_has_no_effect() {
    check(
        r#"
        register_tool name=search
        batch: create_session agent=support id=s1 | request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={} | claim_tool_call call_id=c1 | complete_tool_call call_id=c1 fencing_token=99 result=1 | create_session agent=support id=s2
        batch: create_session agent=support id=s1 | no_such_reducer
        batch: create_session agent=support id=s1 | append_message session_id=s1
        batch request_id=b1: create_session agent=support id=s1 | create_session agent=support id=s1
        batch
        sql SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM tool_calls), (SELECT count(*) FROM events)
        create_session agent=support id=s1
        batch request_id=b1: create_session agent=support id=s2 | create_session agent=support id=s3
        sql SELECT seq FROM events
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            refused lease_lost: call 4 of the batch: call c1 is claimed by local under another token (hint: another worker may repeat this call; discard this result)
            refused unknown_reducer: call 2 of the batch: there is no reducer "no_such_reducer" (hint: the schema lists the reducers)
            refused bad_arguments: call 2 of the batch: append_message: missing argument role (hint: append_message takes session_id, role, content, kind?, data?, run_id?, run_fencing_token?)
            refused conflict: call 2 of the batch: session s1 already exists (hint: omit id to get a generated one)
            refused bad_request: the batch is empty
            (0, 0, 1)
            seq 2 {id: s1, status: created}
            batch 4: seq 3 {id: s2, status: created} | seq 4 {id: s3, status: created}
            (1) (2) (3) (4)
        "#]],
    );
}

#[test]
fn a_batch_with_calls_that_were_made_before() {
    check(
        r#"
        register_tool name=search
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={}
        batch: request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={} | request_tool_call call_id=c2 session_id=s1 tool_name=search arguments={}
        batch: request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={} | request_tool_call call_id=c2 session_id=s1 tool_name=search arguments={}
        sql SELECT count(*) FROM events
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: pending, attempt: 0}
            batch 4: seq 3 again {call_id: c1, status: pending, attempt: 0} | seq 4 {call_id: c2, status: pending, attempt: 0}
            batch 4: seq 3 again {call_id: c1, status: pending, attempt: 0} | seq 4 again {call_id: c2, status: pending, attempt: 0}
            (4)
        "#]],
    );
}
