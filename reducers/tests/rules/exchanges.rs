//! Calls whose tool asks for input, or whose server continues them as a task: they wait without a worker.

use expect_test::expect;

use crate::play;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# record_exchange
claim_tool_call@admin {"call_id":"pending7"}
record_exchange@admin {"call_id":"pending7","fencing_token":"$seq","entries":[{"kind":"task","data":{"task_id":"x"}}]}
# suspend_tool_call
register_tool {"name":"tool_input"}
claim_tool_call@admin {"call_id":"pending7"}
suspend_tool_call@admin {"call_id":"pending7","fencing_token":"$seq","entries":[{"kind":"asked","data":1}],"inputs":[{"message":"x"}]}
# close_exchange
claim_tool_call@admin {"call_id":"pending7"}
close_exchange@admin {"call_id":"pending7","fencing_token":"$seq"}
"#;

const BEGUN: &str = r#"
    register_tool name=tool_input
    register_tool name=book needs_approval=false approval={"required_capability":"travel"}
    create_session agent=support id=s1
    request_tool_call call_id=c1 session_id=s1 tool_name=book arguments={} claim_lease_ms=60000
"#;

/// Expects the responses after those of `BEGUN`.
fn check_begun(script: &str, expected: expect_test::Expect) {
    let received = play(&format!("{BEGUN}{script}"));
    let after: String = received.split_inclusive('\n').skip(4).collect();
    expected.assert_eq(&after);
}

const ASK: &str = concat!(
    "suspend_tool_call call_id=c1 fencing_token=4 ",
    r#"entries=[{"kind":"asked","data":{"state":"x"}}] inputs=[{"message":"Who?","schema":"#,
    r#"{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}]"#
);

#[test]
fn a_call_waits_for_an_answer_without_a_worker() {
    check_begun(
        &format!(
            r#"
        {ASK}
        claim_tool_call call_id=c1
        complete_tool_call call_id=c1 fencing_token=4 result=late
        sql SELECT call_id, tool_name, status, arguments FROM tool_calls
        sql SELECT call_id, status, prompt, required_capability FROM approvals
        who ann supervisor
        who bea supervisor +travel
        decide_approval call_id=c1~input.1.1 decision=approve comment=Ada as=ann
        decide_approval call_id=c1~input.1.1 decision=approve as=bea
        decide_approval call_id=c1~input.1.1 decision=approve approved_arguments={{"answer":{{"name":7}}}} as=bea
        decide_approval call_id=c1~input.1.1 decision=approve approved_arguments={{"answer":{{"name":"Ada"}},"tool":"pay"}} as=bea
        decide_approval call_id=c1~input.1.1 decision=approve approved_arguments={{"answer":{{"name":"Ada"}}}} as=bea
        decide_approval call_id=c1~input.1.1 decision=approve approved_arguments={{"answer":{{"name":"Ada"}}}} as=bea
        sql SELECT call_id, status, result FROM tool_calls
        claim_tool_call call_id=c1
        sql SELECT number, kind, data FROM tool_exchanges
        replay
        "#
        ),
        expect![[r#"
            seq 5 {call_id: c1, status: awaiting_approval, attempt: 1, fencing_token: 4, claimed_by: local}
            refused conflict: call c1 is awaiting_approval (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'c1'"`)
            refused lease_lost: call c1 is awaiting_approval and not claimed (hint: another worker may repeat this call; discard this result)
            ("c1", "book", "awaiting_approval", "{}") ("c1~input.1.1", "tool_input", "awaiting_approval", "{\"call_id\":\"c1\",\"message\":\"Who?\",\"schema\":{\"properties\":{\"name\":{\"type\":\"string\"}},\"required\":[\"name\"],\"type\":\"object\"},\"tool\":\"book\"}")
            ("c1~input.1.1", "pending", "Who?", "travel")
            refused denied: deciding on a call of tool_input requires the capability travel, which the caller lacks (hint: an admin can grant it: `abide identity change ID --capability …`)
            refused bad_arguments: invalid answer: "name" is a required property (hint: approve with `approved_arguments='{"answer": {…}}'` that fits the schema in the arguments of c1~input.1.1)
            refused bad_arguments: invalid answer: at /name: 7 is not of type "string" (hint: approve with `approved_arguments='{"answer": {…}}'` that fits the schema in the arguments of c1~input.1.1)
            refused bad_arguments: approved_arguments.tool differs from the question (hint: give only answer)
            seq 7 {id: ap#1, call_id: c1~input.1.1, status: approved, arguments: {"call_id":"c1","message":"Who?","schema":{"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"},"tool":"book"}, approved_arguments: {"answer":{"name":"Ada"}}, prompt: Who?, decided_by: bea}
            seq 7 again {id: ap#1, call_id: c1~input.1.1, status: approved, arguments: {"call_id":"c1","message":"Who?","schema":{"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"},"tool":"book"}, approved_arguments: {"answer":{"name":"Ada"}}, prompt: Who?, decided_by: bea}
            ("c1", "pending", null) ("c1~input.1.1", "succeeded", "{\"action\":\"accept\",\"content\":{\"name\":\"Ada\"}}")
            seq 8 {call_id: c1, status: claimed, attempt: 2, fencing_token: 8, claimed_by: local, lease_expires_at: 14:00:30}
            (1, "asked", "{\"state\":\"x\"}")
            the same up to 8
        "#]],
    );
}

#[test]
fn a_question_is_declined_or_cancelled_or_expires() {
    for (decision, status) in [
        ("decide_approval call_id=c1~input.1.1 decision=reject", "rejected"),
        ("cancel_tool_call call_id=c1~input.1.1", "cancelled"),
    ] {
        let received = play(&format!(
            "{BEGUN}{ASK}\n{decision}\nsql SELECT call_id, status FROM tool_calls\nreplay"
        ));
        let expected = format!("(\"c1\", \"pending\") (\"c1~input.1.1\", \"{status}\")");
        assert!(received.contains(&expected), "{received}");
    }
    // The end of the call ends its questions.
    let received = play(&format!(
        "{BEGUN}{ASK}\ncancel_tool_call call_id=c1\nsql SELECT status FROM tool_calls\n\
         sql SELECT status FROM approvals\nreplay"
    ));
    assert!(received.contains("(\"cancelled\") (\"cancelled\")\n(\"cancelled\")"), "{received}");
    let received = play(&format!(
        "{BEGUN}{ASK}\ncancel_session session_id=s1\nsql SELECT status FROM tool_calls\nreplay"
    ));
    assert!(received.contains("(\"cancelled\") (\"cancelled\")"), "{received}");
}

/// The next worker continues with the task, even if the tool must not run twice.
#[test]
fn a_call_with_a_task_is_not_unknown() {
    check_begun(
        r#"
        record_exchange call_id=c1 fencing_token=4 entries=[{"kind":"task","data":{"task_id":"7"}}]
        +2m
        sql SELECT status, attempt FROM tool_calls
        claim_tool_call call_id=c1 lease_ms=60000
        suspend_tool_call call_id=c1 fencing_token=7 retry_ms=5000
        claim_tool_call call_id=c1
        +6s
        claim_tool_call call_id=c1 lease_ms=60000
        close_exchange call_id=c1
        close_exchange call_id=c1 fencing_token=10
        sql SELECT kind, ended_at IS NULL FROM tool_exchanges
        +2m
        sql SELECT status FROM tool_calls
        replay
        "#,
        expect![[r#"
            seq 5 {call_id: c1, status: claimed, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00}
            ("pending", 1)
            seq 7 {call_id: c1, status: claimed, attempt: 2, fencing_token: 7, claimed_by: local, lease_expires_at: 14:03:00}
            seq 8 {call_id: c1, status: pending, attempt: 2, fencing_token: 7, claimed_by: local, retry_at: 14:02:05}
            refused conflict: call c1 waits until 2026-11-21T14:02:05Z for its attempt 3 (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'c1'"`)
            seq 10 {call_id: c1, status: claimed, attempt: 3, fencing_token: 10, claimed_by: local, lease_expires_at: 14:03:06}
            refused conflict: call c1 is claimed and has not ended (hint: its holder gives fencing_token; others wait for the end of the call)
            seq 11 {call_id: c1, status: claimed, attempt: 3, fencing_token: 10, claimed_by: local, lease_expires_at: 14:03:06}
            ("task", 0)
            ("unknown")
            the same up to 12
        "#]],
    );
}

#[test]
fn messages_of_a_tool_server_are_bounded() {
    let long = "x".repeat(9_000);
    check_begun(
        &format!(
            r#"
        suspend_tool_call call_id=c1 fencing_token=4
        suspend_tool_call call_id=c1 fencing_token=4 retry_ms=5 inputs=[{{"message":"Who?"}}] entries=[{{"kind":"asked","data":{{}}}}]
        suspend_tool_call call_id=c1 fencing_token=4 inputs=[{{"message":"Who?"}}]
        suspend_tool_call call_id=c1 fencing_token=4 inputs=[{{"message":"{long}"}}] entries=[{{"kind":"asked","data":{{}}}}]
        suspend_tool_call call_id=c1 fencing_token=4 inputs=[{{"message":"Who?","schema":{{"type":"string"}}}}] entries=[{{"kind":"asked","data":{{}}}}]
        suspend_tool_call call_id=c1 fencing_token=4 inputs=[{{"message":"Who?","schema":{{"type":"object","$ref":"https://evil.example/"}}}}] entries=[{{"kind":"asked","data":{{}}}}]
        suspend_tool_call call_id=c1 fencing_token=4 inputs=[{{"message":"Look","url":"javascript:alert(1)"}}] entries=[{{"kind":"asked","data":{{}}}}]
        suspend_tool_call call_id=c1 fencing_token=4 inputs=[{{"message":"1"}},{{"message":"2"}},{{"message":"3"}},{{"message":"4"}},{{"message":"5"}},{{"message":"6"}},{{"message":"7"}},{{"message":"8"}},{{"message":"9"}}] entries=[{{"kind":"asked","data":{{}}}}]
        record_exchange call_id=c1 fencing_token=5 entries=[]
        sql SELECT status FROM tool_calls
        sql SELECT count(*) FROM tool_exchanges
        "#
        ),
        expect![[r#"
            refused bad_arguments: exactly one of inputs and retry_ms is required (hint: inputs are questions of the server; retry_ms is for a task of the server)
            refused bad_arguments: exactly one of inputs and retry_ms is required (hint: inputs are questions of the server; retry_ms is for a task of the server)
            refused limit_exceeded: inputs requires a step in entries that records the questions (hint: give entries with the request of the server)
            refused limit_exceeded: message or url of an input has more than 8192 bytes (hint: fail the call)
            refused bad_arguments: schema of an input must have the type object (hint: put other values into a property of an object)
            refused bad_arguments: unsupported input_schema of tool_input: unknown reference "https://evil.example/" (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: url of an input must begin with https:// or http://
            refused limit_exceeded: inputs has 9 questions; the limit is 8 (hint: fail the call)
            refused lease_lost: call c1 is claimed by local under another token (hint: another worker may repeat this call; discard this result)
            ("claimed")
            (0)
        "#]],
    );
}

/// An id that looks like that of a question belongs to no other call.
#[test]
fn a_question_cannot_be_forged() {
    check_begun(
        &format!(
            r#"
        {ASK}
        request_tool_call call_id=c1~input.1.2 session_id=s1 tool_name=tool_input arguments={{}}
        request_tool_call call_id=c1.input.1.1 session_id=s1 tool_name=tool_input arguments={{}} needs_approval=true
        decide_approval call_id=c1.input.1.1 decision=approve
        sql SELECT call_id, status FROM tool_calls
        "#
        ),
        expect![[r#"
            seq 5 {call_id: c1, status: awaiting_approval, attempt: 1, fencing_token: 4, claimed_by: local}
            refused bad_arguments: the id "c1~input.1.2" contains ~, which is reserved (hint: ids with ~ are derived from the run that they belong to)
            seq 6 {call_id: c1.input.1.1, status: awaiting_approval, attempt: 0}
            seq 7 {id: ap#1, call_id: c1.input.1.1, status: approved, decided_by: local}
            ("c1", "awaiting_approval") ("c1~input.1.1", "awaiting_approval") ("c1.input.1.1", "pending")
        "#]],
    );
}
