//! Tool calls: requested once, claimed under a lease, ended by the holder, never run twice by
//! accident.

use expect_test::{Expect, expect};

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# request_tool_call
request_tool_call {"call_id":"new","session_id":"kid","tool_name":"paced","arguments":{}}
# claim_tool_call
claim_tool_call {"call_id":"pending7"}
# claim_next_tool_call
request_tool_call {"call_id":"last","session_id":"big","tool_name":"queued","arguments":{}}
claim_next_tool_call {"tools":["queued"]}
# heartbeat_tool_call
claim_tool_call@admin {"call_id":"pending7"}
heartbeat_tool_call@admin {"call_id":"pending7","fencing_token":"$seq"}
# complete_tool_call
claim_tool_call@admin {"call_id":"pending7"}
complete_tool_call@admin {"call_id":"pending7","fencing_token":"$seq","result":1}
# fail_tool_call
claim_tool_call@admin {"call_id":"pending7"}
fail_tool_call@admin {"call_id":"pending7","fencing_token":"$seq","error":"x","retryable":true}
# settle_tool_call
register_tool {"name":"once"}
request_tool_call {"call_id":"once","session_id":"big","tool_name":"once","arguments":{},"claim_lease_ms":5}
+10
settle_tool_call {"call_id":"once","outcome":"failed"}
# lapse_tool_call
claim_tool_call {"call_id":"pending7","lease_ms":5}
+10
# claim_tool_call
abort_run {"id":"grown"}
claim_tool_call {"call_id":"pending7"}
"#;

/// Three tools with the three effects, a session, and a call of each.
const ASKED: &str = r#"
    register_tool name=look effect=read_only
    register_tool name=put effect=idempotent
    register_tool name=pay
    create_session agent=support id=s1
    request_tool_call call_id=look1 session_id=s1 tool_name=look arguments={}
    request_tool_call call_id=put1 session_id=s1 tool_name=put arguments={}
    request_tool_call call_id=pay1 session_id=s1 tool_name=pay arguments={}
"#;

/// Expects the responses after those of `ASKED`.
fn check_asked(script: &str, expected: Expect) {
    let received = crate::play(&format!("{ASKED}{script}"));
    let after: String = received.split_inclusive('\n').skip(7).collect();
    expected.assert_eq(&after);
}

#[test]
fn requested_claimed_completed() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 as=worker-1
        +10s
        heartbeat_tool_call call_id=pay1 fencing_token=8 as=worker-1
        heartbeat_tool_call call_id=pay1 fencing_token=8 lease_ms=1 as=worker-1
        complete_tool_call call_id=pay1 fencing_token=8 result={"paid":true,"amount":1.0} as=worker-1
        sql SELECT status, attempt, result, claimed_by, created_seq, seq, updated_at - created_at FROM tool_calls WHERE call_id = 'pay1'
        sql SELECT seq, session_id, reducer, caller FROM events WHERE seq > 7
        sql SELECT status, seq FROM sessions
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            seq 9 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:40}
            seq 10 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:40}
            seq 11 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:40, result: {"amount":1.0,"paid":true}}
            ("succeeded", 1, "{\"amount\":1.0,\"paid\":true}", "worker-1", 7, 11, 10000000)
            (8, "s1", "claim_tool_call", "worker-1") (9, "s1", "heartbeat_tool_call", "worker-1") (10, "s1", "heartbeat_tool_call", "worker-1") (11, "s1", "complete_tool_call", "worker-1")
            ("created", 7)
        "#]],
    );
}

#[test]
fn a_call_is_requested_once() {
    check(
        r#"
        register_tool name=search
        register_tool name=other
        create_session agent=support id=s1
        create_session agent=support id=s2
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={"b":1,"a":[1.0]}
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={"a":[1.0],"b":1}
        claim_tool_call call_id=c1
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={"a":[1.0],"b":1} as=bob
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={"a":[1],"b":1}
        request_tool_call call_id=c1 session_id=s2 tool_name=search arguments={"a":[1.0],"b":1}
        request_tool_call call_id=c1 session_id=s1 tool_name=other arguments={"a":[1.0],"b":1}
        request_tool_call call_id=c1 session_id=s_nobody tool_name=nothing arguments=null
        complete_session session_id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={"a":[1.0],"b":1}
        sql SELECT count(*), max(seq) FROM events
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {name: other, version: 1, effect: at_most_once}
            seq 3 {id: s1, status: created}
            seq 4 {id: s2, status: created}
            seq 5 {call_id: c1, status: pending, attempt: 0, arguments: {"a":[1.0],"b":1}}
            seq 5 again {call_id: c1, status: pending, attempt: 0, arguments: {"a":[1.0],"b":1}}
            seq 6 {call_id: c1, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:30, arguments: {"a":[1.0],"b":1}}
            seq 5 again {call_id: c1, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:30, arguments: {"a":[1.0],"b":1}}
            refused call_id_conflict: call id c1 is already used by a call with other arguments (hint: make call ids from session and position; a provider's id is not unique)
            refused call_id_conflict: call id c1 is already used by a call with other session (hint: make call ids from session and position; a provider's id is not unique)
            refused call_id_conflict: call id c1 is already used by a call with other tool (hint: make call ids from session and position; a provider's id is not unique)
            refused call_id_conflict: call id c1 is already used by a call with other session, tool, arguments (hint: make call ids from session and position; a provider's id is not unique)
            seq 7 {id: s1, status: completed}
            seq 5 again {call_id: c1, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:30, cancel_requested_at: 14:00:00, arguments: {"a":[1.0],"b":1}}
            (7, 7)
        "#]],
    );
}

/// A model provider's id is an attribute, not a key: recordings reuse it for other calls, and some
/// have none.
#[test]
fn a_providers_id_is_not_a_key() {
    check(
        r#"
        register_tool name=search
        create_session agent=support id=s1
        request_tool_call call_id=s1/0 session_id=s1 tool_name=search arguments={"q":"a"} provider_call_id=call_1
        request_tool_call call_id=s1/1 session_id=s1 tool_name=search arguments={"q":"b"} provider_call_id=call_1
        request_tool_call call_id=s1/2 session_id=s1 tool_name=search arguments={"q":"a"} provider_call_id=null
        request_tool_call call_id=s1/3 session_id=s1 tool_name=search arguments={"q":"a"}
        request_tool_call call_id=s1/0 session_id=s1 tool_name=search arguments={"q":"a"} provider_call_id=call_2
        sql SELECT call_id, arguments, provider_call_id FROM tool_calls ORDER BY call_id
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: s1/0, status: pending, attempt: 0, arguments: {"q":"a"}}
            seq 4 {call_id: s1/1, status: pending, attempt: 0, arguments: {"q":"b"}}
            seq 5 {call_id: s1/2, status: pending, attempt: 0, arguments: {"q":"a"}}
            seq 6 {call_id: s1/3, status: pending, attempt: 0, arguments: {"q":"a"}}
            seq 3 again {call_id: s1/0, status: pending, attempt: 0, arguments: {"q":"a"}}
            ("s1/0", "{\"q\":\"a\"}", "call_1") ("s1/1", "{\"q\":\"b\"}", "call_1") ("s1/2", "{\"q\":\"a\"}", null) ("s1/3", "{\"q\":\"a\"}", null)
        "#]],
    );
}

#[test]
fn arguments_are_any_json() {
    check(
        r#"
        register_tool name=search
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments=null
        request_tool_call call_id=c2 session_id=s1 tool_name=search arguments="{'not': 'JSON'}"
        request_tool_call call_id=c3 session_id=s1 tool_name=search arguments=[1,1.0,9223372036854775807,"\u0000"]
        sql SELECT arguments FROM tool_calls ORDER BY call_id
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: pending, attempt: 0, arguments: null}
            seq 4 {call_id: c2, status: pending, attempt: 0, arguments: "{'not': 'JSON'}"}
            seq 5 {call_id: c3, status: pending, attempt: 0, arguments: [1,1.0,9223372036854775807,"\u0000"]}
            ("null") ("\"{'not': 'JSON'}\"") ("[1,1.0,9223372036854775807,\"\\u0000\"]")
        "#]],
    );
}

#[test]
fn invalid_calls_are_refused() {
    check_asked(
        r#"
        request_tool_call call_id=c1 session_id=s1 tool_name=nothing arguments={}
        request_tool_call call_id=c1 session_id=s_nobody tool_name=pay arguments={}
        request_tool_call call_id="" session_id=s1 tool_name=pay arguments={}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={} claim_lease_ms=0
        claim_tool_call call_id=c1
        heartbeat_tool_call call_id=c1 fencing_token=1
        complete_tool_call call_id=c1 fencing_token=1 result=1
        fail_tool_call call_id=c1 fencing_token=1 error=x
        settle_tool_call call_id=c1 outcome=failed
        sql SELECT count(*) FROM events
        "#,
        expect![[r#"
            refused not_found: there is no tool nothing (hint: register it with `abide call register_tool name=nothing`)
            refused not_found: there is no session s_nobody (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused bad_arguments: call_id is empty
            refused bad_arguments: request_tool_call: missing argument arguments (hint: request_tool_call takes call_id, session_id, tool_name, arguments, provider_call_id?, claim_lease_ms?, needs_approval?, run_id?, run_fencing_token?, worker?)
            refused bad_arguments: lease_ms must be between 1 and 86400000, not 0 (hint: lease_ms is in milliseconds; a heartbeat extends a lease)
            refused not_found: there is no tool call c1 (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call c1 (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call c1 (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call c1 (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call c1 (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            (7)
        "#]],
    );
}

#[test]
fn one_claimant_wins() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 as=worker-1
        claim_tool_call call_id=pay1 as=worker-2
        claim_tool_call call_id=pay1 as=worker-1
        claim_tool_call call_id=look1 worker=by-name as=worker-1
        claim_tool_call call_id=put1 lease_ms=0
        claim_tool_call call_id=put1 lease_ms=86400001
        claim_tool_call call_id=put1 lease_ms=86400000
        request_tool_call call_id=own session_id=s1 tool_name=pay arguments={} claim_lease_ms=1000 as=agent
        claim_tool_call call_id=own as=worker-1
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            refused conflict: call pay1 was claimed by worker-1 and its lease runs until 2026-11-21T14:00:30Z (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'pay1'"`)
            refused conflict: call pay1 was claimed by worker-1 and its lease runs until 2026-11-21T14:00:30Z (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'pay1'"`)
            seq 9 {call_id: look1, status: claimed, attempt: 1, fencing_token: 9, claimed_by: by-name, lease_expires_at: 14:00:30}
            refused bad_arguments: lease_ms must be between 1 and 86400000, not 0 (hint: lease_ms is in milliseconds; a heartbeat extends a lease)
            refused bad_arguments: lease_ms must be between 1 and 86400000, not 86400001 (hint: lease_ms is in milliseconds; a heartbeat extends a lease)
            seq 10 {call_id: put1, status: claimed, attempt: 1, fencing_token: 10, claimed_by: local, lease_expires_at: 2026-11-22T14:00:00}
            seq 11 {call_id: own, status: claimed, attempt: 1, fencing_token: 11, claimed_by: agent, lease_expires_at: 14:00:01}
            refused conflict: call own was claimed by agent and its lease runs until 2026-11-21T14:00:01Z (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'own'"`)
        "#]],
    );
}

#[test]
fn only_the_holder_ends_a_call() {
    check_asked(
        r#"
        complete_tool_call call_id=pay1 fencing_token=1 result=1
        claim_tool_call call_id=pay1 as=worker-1
        heartbeat_tool_call call_id=pay1 fencing_token=7 as=worker-1
        complete_tool_call call_id=pay1 fencing_token=9 result=1 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=7 error=x as=worker-1
        settle_tool_call call_id=pay1 outcome=failed
        complete_tool_call call_id=pay1 fencing_token=8 result=1 as=worker-1
        complete_tool_call call_id=pay1 fencing_token=8 result=1 as=worker-1
        complete_tool_call call_id=pay1 fencing_token=8 result=2 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=8 error=x as=worker-1
        heartbeat_tool_call call_id=pay1 fencing_token=8 as=worker-1
        claim_tool_call call_id=pay1 as=worker-2
        settle_tool_call call_id=pay1 outcome=failed
        "#,
        expect![[r#"
            refused conflict: call pay1 is pending and was never claimed (hint: claim it first, when it is pending)
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            refused lease_lost: call pay1 is claimed by worker-1 under another token (hint: another worker may repeat this call; discard this result)
            refused lease_lost: call pay1 is claimed by worker-1 under another token (hint: another worker may repeat this call; discard this result)
            refused lease_lost: call pay1 is claimed by worker-1 under another token (hint: another worker may repeat this call; discard this result)
            refused conflict: call pay1 is claimed; only an unknown call can be settled
            seq 9 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30, result: 1}
            seq 9 again {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30, result: 1}
            refused conflict: call pay1 is succeeded already
            refused conflict: call pay1 is succeeded already
            refused conflict: call pay1 is succeeded already
            refused conflict: call pay1 is succeeded (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'pay1'"`)
            refused conflict: call pay1 is succeeded; only an unknown call can be settled
        "#]],
    );
}

#[test]
fn an_expired_idempotent_call_may_run_again() {
    check_asked(
        r#"
        claim_tool_call call_id=put1 lease_ms=1000 as=worker-1
        +999ms
        claim_tool_call call_id=put1 as=worker-2
        +1ms
        claim_tool_call call_id=put1 as=worker-2
        complete_tool_call call_id=put1 fencing_token=8 result=late as=worker-1
        heartbeat_tool_call call_id=put1 fencing_token=8 as=worker-1
        fail_tool_call call_id=put1 fencing_token=8 error=late as=worker-1
        complete_tool_call call_id=put1 fencing_token=9 result=done as=worker-2
        complete_tool_call call_id=put1 fencing_token=8 result=done as=worker-1
        claim_tool_call call_id=look1 lease_ms=1000 as=worker-1
        +1s
        claim_tool_call call_id=look1 as=worker-2
        "#,
        expect![[r#"
            seq 8 {call_id: put1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01}
            refused conflict: call put1 was claimed by worker-1 and its lease runs until 2026-11-21T14:00:01Z (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'put1'"`)
            seq 10 {call_id: put1, status: claimed, attempt: 2, fencing_token: 10, claimed_by: worker-2, lease_expires_at: 14:00:31}
            refused lease_lost: the lease on call put1 ran out at 2026-11-21T14:00:01Z; the call is claimed (hint: another worker may repeat this call; discard this result)
            refused lease_lost: call put1 is claimed by worker-2 under another token (hint: another worker may repeat this call; discard this result)
            refused lease_lost: the lease on call put1 ran out at 2026-11-21T14:00:01Z; the call is claimed (hint: another worker may repeat this call; discard this result)
            refused lease_lost: call put1 is claimed by worker-2 under another token (hint: another worker may repeat this call; discard this result)
            refused lease_lost: the lease on call put1 ran out at 2026-11-21T14:00:01Z; the call is claimed (hint: another worker may repeat this call; discard this result)
            seq 12 {call_id: look1, status: claimed, attempt: 1, fencing_token: 12, claimed_by: worker-1, lease_expires_at: 14:00:02}
            seq 14 {call_id: look1, status: claimed, attempt: 2, fencing_token: 14, claimed_by: worker-2, lease_expires_at: 14:00:32}
        "#]],
    );
}

#[test]
fn an_expired_at_most_once_call_does_not_run_again() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 lease_ms=1000 as=worker-1
        settle_tool_call call_id=pay1 outcome=failed
        +1s
        claim_tool_call call_id=pay1 as=worker-2
        claim_tool_call call_id=pay1 as=worker-1
        settle_tool_call call_id=pay1 outcome=maybe
        settle_tool_call call_id=pay1 outcome=succeeded result={"paid":true} evidence={"receipt":"r-7"} as=ann
        settle_tool_call call_id=pay1 outcome=failed error=no as=bob
        complete_tool_call call_id=pay1 fencing_token=8 result={"paid":true} as=worker-1
        complete_tool_call call_id=pay1 fencing_token=8 result=late as=worker-1
        sql SELECT status, result, evidence, attempt FROM tool_calls WHERE call_id = 'pay1'
        request_tool_call call_id=pay2 session_id=s1 tool_name=pay arguments={} claim_lease_ms=1000
        +1s
        settle_tool_call call_id=pay2 outcome=failed error="never left the house" as=ann
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01}
            refused conflict: call pay1 is claimed; only an unknown call can be settled
            refused conflict: call pay1 was claimed by worker-1; whether it ran is unknown, and pay must not run twice (hint: find out whether it ran, then record the outcome with `abide call settle_tool_call call_id=pay1 outcome=succeeded` or `abide call settle_tool_call call_id=pay1 outcome=failed`)
            refused conflict: call pay1 was claimed by worker-1; whether it ran is unknown, and pay must not run twice (hint: find out whether it ran, then record the outcome with `abide call settle_tool_call call_id=pay1 outcome=succeeded` or `abide call settle_tool_call call_id=pay1 outcome=failed`)
            refused bad_arguments: settle_tool_call: argument outcome: "maybe" is not one of succeeded, failed (hint: settle_tool_call takes call_id, outcome, result?, error?, evidence?)
            seq 10 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, result: {"paid":true}, settled_by: ann}
            refused conflict: call pay1 was settled as succeeded by ann
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is succeeded (hint: another worker may repeat this call; discard this result)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is succeeded (hint: another worker may repeat this call; discard this result)
            ("succeeded", "{\"paid\":true}", "{\"receipt\":\"r-7\"}", 1)
            seq 12 {call_id: pay2, status: claimed, attempt: 1, fencing_token: 12, claimed_by: local, lease_expires_at: 14:00:02}
            seq 14 {call_id: pay2, status: failed, attempt: 1, fencing_token: 12, claimed_by: local, lease_expires_at: 14:00:02, error: never left the house, settled_by: ann}
        "#]],
    );
}

/// Class: the reason of an unknown outcome is thrown away. A worker whose server had answered "bank is down, refund 77 queued" could only
/// let its lease expire, and the person who settled the call was told that the worker had disappeared.
#[test]
fn a_holder_reports_that_the_outcome_is_unknown() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 lease_ms=1000 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=8 error="HTTP 503: refund 77 queued" may_have_run=true retryable=true exit_code=3 as=worker-2
        fail_tool_call call_id=pay1 fencing_token=8 error="HTTP 503: refund 77 queued" may_have_run=true retryable=true exit_code=3 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=8 error="HTTP 503: refund 77 queued" may_have_run=true retryable=true exit_code=3 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=8 error="HTTP 503: refund 77 queued" as=worker-1
        complete_tool_call call_id=pay1 fencing_token=8 result={"paid":true} as=worker-1
        claim_tool_call call_id=pay1 as=worker-2
        +1h
        sql SELECT call_id, error, lost_at, late_error FROM unknown_tool_calls
        settle_tool_call call_id=pay1 outcome=succeeded result={"paid":true} evidence="the bank's list" as=ann
        sql SELECT status, result, error FROM tool_calls WHERE call_id = 'pay1'
        sql SELECT count(*) FROM lost_leases
        claim_tool_call call_id=put1 as=worker-1
        fail_tool_call call_id=put1 fencing_token=12 error="HTTP 503" may_have_run=true retryable=true as=worker-1
        claim_tool_call call_id=look1 as=worker-1
        fail_tool_call call_id=look1 fencing_token=14 error="HTTP 503" may_have_run=true as=worker-1
        request_tool_call call_id=pay2 session_id=s1 tool_name=pay arguments={} claim_lease_ms=1000
        +1s
        fail_tool_call call_id=pay2 fencing_token=16 error="HTTP 503" may_have_run=true
        sql SELECT call_id, error, late_outcome, late_error FROM unknown_tool_calls
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01}
            refused denied: the lease on call pay1 is held by another identity (hint: claim it with this identity first, when that lease has expired)
            seq 10 {call_id: pay1, status: unknown, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, result: {"exit_code":3}, error: HTTP 503: refund 77 queued}
            seq 10 again {call_id: pay1, status: unknown, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, result: {"exit_code":3}, error: HTTP 503: refund 77 queued}
            refused lease_lost: the lease of worker-1 on call pay1 has ended (hint: another worker may repeat this call; discard this result)
            refused lease_lost: the lease of worker-1 on call pay1 has ended (hint: another worker may repeat this call; discard this result)
            refused conflict: call pay1 was claimed by worker-1; whether it ran is unknown, and pay must not run twice (hint: find out whether it ran, then record the outcome with `abide call settle_tool_call call_id=pay1 outcome=succeeded` or `abide call settle_tool_call call_id=pay1 outcome=failed`)
            ("pay1", "HTTP 503: refund 77 queued", null, null)
            seq 11 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, result: {"paid":true}, settled_by: ann}
            ("succeeded", "{\"paid\":true}", null)
            (0)
            seq 12 {call_id: put1, status: claimed, attempt: 1, fencing_token: 12, claimed_by: worker-1, lease_expires_at: 15:00:30}
            seq 13 {call_id: put1, status: pending, attempt: 1, fencing_token: 12, claimed_by: worker-1, error: HTTP 503}
            seq 14 {call_id: look1, status: claimed, attempt: 1, fencing_token: 14, claimed_by: worker-1, lease_expires_at: 15:00:30}
            seq 15 {call_id: look1, status: failed, attempt: 1, fencing_token: 14, claimed_by: worker-1, lease_expires_at: 15:00:30, error: HTTP 503}
            seq 16 {call_id: pay2, status: claimed, attempt: 1, fencing_token: 16, claimed_by: local, lease_expires_at: 15:00:01}
            refused lease_lost: the lease on call pay2 ran out at 2026-11-21T15:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
            ("pay2", null, null, "HTTP 503")
        "#]],
    );
}

/// The error of an attempt that did not run was the reason of an unknown outcome.
#[test]
fn an_expired_lease_leaves_no_error_of_an_earlier_attempt() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=8 error="the server cannot be reached" retryable=true as=worker-1
        +1h
        claim_tool_call call_id=pay1 lease_ms=1000 as=worker-1
        +1s
        sql SELECT status, error FROM tool_calls WHERE call_id = 'pay1'
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            seq 9 {call_id: pay1, status: pending, attempt: 1, fencing_token: 8, claimed_by: worker-1, error: the server cannot be reached}
            seq 10 {call_id: pay1, status: claimed, attempt: 2, fencing_token: 10, claimed_by: worker-1, lease_expires_at: 15:00:01, error: the server cannot be reached}
            ("unknown", null)
        "#]],
    );
}

/// A lease that expired stays expired, even without another claim.
#[test]
fn late_without_another_claim() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 lease_ms=1000 as=worker-1
        +1h
        sql SELECT seq, session_id, reducer, caller, arguments, at - 1795269600000000 FROM events WHERE seq > 8
        heartbeat_tool_call call_id=pay1 fencing_token=8 as=worker-1
        complete_tool_call call_id=pay1 fencing_token=8 result={"paid":true} as=worker-1 request_id=r1
        complete_tool_call call_id=pay1 fencing_token=8 result={"paid":true} as=worker-1 request_id=r1
        complete_tool_call call_id=pay1 fencing_token=8 result={"paid":true} as=worker-1
        fail_tool_call call_id=pay1 fencing_token=8 error="after all" as=worker-1
        complete_tool_call call_id=pay1 fencing_token=7 result=forged as=worker-1
        complete_tool_call call_id=pay1 fencing_token=8 result=forged
        sql SELECT call_id, attempt, claimed_by, lost_at - 1795269600000000, late_outcome, late_result, late_error FROM unknown_tool_calls
        sql SELECT seq, reducer, caller, outcome FROM events WHERE seq > 9
        settle_tool_call call_id=pay1 outcome=succeeded result={"paid":true} evidence="the worker's late word" as=ann
        sql SELECT count(*) FROM unknown_tool_calls
        sql SELECT call_id, fencing_token, outcome, result FROM lost_leases
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01}
            (9, "s1", "lapse_tool_call", "system", "{\"call_id\":\"pay1\",\"lease_expires_at\":1795269601000000}", 3600000000)
            refused lease_lost: the lease of worker-1 on call pay1 has ended (hint: another worker may repeat this call; discard this result)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
            refused lease_lost: the lease of worker-1 on call pay1 has ended (hint: another worker may repeat this call; discard this result)
            refused denied: call pay1 is unknown, and its lease was held by another identity (hint: find out whether it ran, then record the outcome with `abide call settle_tool_call call_id=pay1 outcome=succeeded` or `abide call settle_tool_call call_id=pay1 outcome=failed`)
            ("pay1", 1, "worker-1", 1000000, "succeeded", "{\"paid\":true}", null)
            (10, "complete_tool_call", "worker-1", "{\"$refused\":{\"code\":\"lease_lost\",\"detail\":\"the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown\",\"hint\":\"the report is stored in unknown_tool_calls; record an outcome with settle_tool_call\"}}") (11, "record_denied", "system", "{\"id\":1,\"caller\":\"local\",\"what\":\"complete_tool_call\",\"why\":{\"$argument\":\"text\"},\"missed\":0,\"at\":1795273200000000,\"seq\":11}")
            seq 12 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, result: {"paid":true}, settled_by: ann}
            (0)
            ("pay1", 8, "succeeded", "{\"paid\":true}")
        "#]],
    );
}

/// A batch is all or nothing: a late report in it is not even kept.
#[test]
fn a_late_result_in_a_batch() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 lease_ms=1000 as=worker-1
        +1s
        batch as=worker-1: suspend_session session_id=s1 | complete_tool_call call_id=pay1 fencing_token=8 result=1
        sql SELECT status FROM sessions
        sql SELECT outcome FROM lost_leases
        batch as=worker-1: complete_tool_call call_id=pay1 fencing_token=8 result=1
        sql SELECT outcome FROM lost_leases
        batch as=worker-1: complete_tool_call call_id=pay1 fencing_token=8 result=1
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01}
            refused lease_lost: call 2 of the batch: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
            ("suspended")
            (null)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
            ("succeeded")
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is unknown (hint: the report is stored in unknown_tool_calls; record an outcome with settle_tool_call)
        "#]],
    );
}

#[test]
fn failed_and_retried() {
    check_asked(
        r#"
        claim_tool_call call_id=put1 as=worker-1
        fail_tool_call call_id=put1 fencing_token=8 error=busy retryable=true as=worker-1
        fail_tool_call call_id=put1 fencing_token=8 error=busy retryable=true as=worker-1
        fail_tool_call call_id=put1 fencing_token=8 error=other retryable=true as=worker-1
        complete_tool_call call_id=put1 fencing_token=8 result=1 as=worker-1
        claim_tool_call call_id=put1 as=worker-2
        fail_tool_call call_id=put1 fencing_token=10 error=busy retryable=true as=worker-2
        claim_tool_call call_id=put1 as=worker-1
        +999ms
        claim_tool_call call_id=put1 as=worker-1
        +1ms
        sql SELECT seq, reducer, caller, arguments FROM events WHERE seq = 12
        sql SELECT status, retry_at FROM tool_calls WHERE call_id = 'put1'
        claim_tool_call call_id=put1 as=worker-1
        fail_tool_call call_id=put1 fencing_token=13 error="still busy" retryable=true as=worker-1
        fail_tool_call call_id=put1 fencing_token=13 error="still busy" retryable=true as=worker-1
        claim_tool_call call_id=put1 as=worker-2
        claim_tool_call call_id=pay1 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=15 error=declined as=worker-1
        "#,
        expect![[r#"
            seq 8 {call_id: put1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            seq 9 {call_id: put1, status: pending, attempt: 1, fencing_token: 8, claimed_by: worker-1, error: busy}
            seq 9 again {call_id: put1, status: pending, attempt: 1, fencing_token: 8, claimed_by: worker-1, error: busy}
            refused lease_lost: call put1 is pending and not claimed (hint: another worker may repeat this call; discard this result)
            refused lease_lost: call put1 is pending and not claimed (hint: another worker may repeat this call; discard this result)
            seq 10 {call_id: put1, status: claimed, attempt: 2, fencing_token: 10, claimed_by: worker-2, lease_expires_at: 14:00:30, error: busy}
            seq 11 {call_id: put1, status: pending, attempt: 2, fencing_token: 10, claimed_by: worker-2, retry_at: 14:00:01, error: busy}
            refused conflict: call put1 waits until 2026-11-21T14:00:01Z for its attempt 3 (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'put1'"`)
            refused conflict: call put1 waits until 2026-11-21T14:00:01Z for its attempt 3 (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'put1'"`)
            (12, "retry_tool_call", "system", "{\"call_id\":\"put1\",\"retry_at\":1795269601000000}")
            ("pending", null)
            seq 13 {call_id: put1, status: claimed, attempt: 3, fencing_token: 13, claimed_by: worker-1, lease_expires_at: 14:00:31, error: busy}
            seq 14 {call_id: put1, status: failed, attempt: 3, fencing_token: 13, claimed_by: worker-1, lease_expires_at: 14:00:31, error: still busy}
            seq 14 again {call_id: put1, status: failed, attempt: 3, fencing_token: 13, claimed_by: worker-1, lease_expires_at: 14:00:31, error: still busy}
            refused conflict: call put1 is failed (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'put1'"`)
            seq 15 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 15, claimed_by: worker-1, lease_expires_at: 14:00:31}
            seq 16 {call_id: pay1, status: failed, attempt: 1, fencing_token: 15, claimed_by: worker-1, lease_expires_at: 14:00:31, error: declined}
        "#]],
    );
}

/// A worker crash counts as an attempt, with the same delays and the same limit.
#[test]
fn a_crash_of_a_worker_counts_as_an_attempt() {
    check(
        r#"
        register_tool name=put effect=idempotent retry={"max_attempts":3,"backoff_ms":5000}
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=put arguments={} claim_lease_ms=1000
        +1s
        sql SELECT status, attempt, retry_at, lease_expires_at FROM tool_calls
        claim_tool_call call_id=c1 lease_ms=1000
        +1s
        claim_tool_call call_id=c1 lease_ms=1000
        +5s
        claim_tool_call call_id=c1 lease_ms=1000
        +1s
        sql SELECT status, attempt, error FROM tool_calls
        sql SELECT attempt, claimed_by, outcome FROM lost_leases
        sql SELECT seq, reducer, caller FROM events WHERE seq > 3
        "#,
        expect![[r#"
            seq 1 {name: put, version: 1, effect: idempotent}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:01}
            ("pending", 1, null, null)
            seq 5 {call_id: c1, status: claimed, attempt: 2, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:02}
            refused conflict: call c1 waits until 2026-11-21T14:00:07Z for its attempt 3 (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'c1'"`)
            seq 8 {call_id: c1, status: claimed, attempt: 3, fencing_token: 8, claimed_by: local, lease_expires_at: 14:00:08}
            ("failed", 3, "the worker vanished in attempt 3 of 3")
            (1, "local", null) (2, "local", null) (3, "local", null)
            (4, "lapse_tool_call", "system") (5, "claim_tool_call", "local") (6, "lapse_tool_call", "system") (7, "retry_tool_call", "system") (8, "claim_tool_call", "local") (9, "lapse_tool_call", "system")
        "#]],
    );
}

#[test]
fn an_attempt_is_limited_by_its_tools_timeout() {
    check(
        r#"
        register_tool name=put effect=idempotent timeout_ms=10000
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=put arguments={} claim_lease_ms=60000
        +9s
        heartbeat_tool_call call_id=c1 fencing_token=3
        +1s
        sql SELECT status, attempt FROM tool_calls
        claim_tool_call call_id=c1 lease_ms=4000
        +3s
        heartbeat_tool_call call_id=c1 fencing_token=6 lease_ms=4000
        +3s
        heartbeat_tool_call call_id=c1 fencing_token=6 lease_ms=60000
        "#,
        expect![[r#"
            seq 1 {name: put, version: 1, effect: idempotent}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:10}
            seq 4 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:10}
            ("pending", 1)
            seq 6 {call_id: c1, status: claimed, attempt: 2, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:14}
            seq 7 {call_id: c1, status: claimed, attempt: 2, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:17}
            seq 8 {call_id: c1, status: claimed, attempt: 2, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:20}
        "#]],
    );
}

/// A call runs by the manifest at its request, even if the tool has changed.
#[test]
fn the_manifest_of_a_call_is_pinned() {
    check(
        r#"
        register_tool name=pay effect=at_most_once input_schema={"required":["amount"]}
        create_session agent=support id=s1
        request_tool_call call_id=old session_id=s1 tool_name=pay arguments={"amount":1} claim_lease_ms=1000
        register_tool name=pay effect=idempotent timeout_ms=2000
        request_tool_call call_id=new session_id=s1 tool_name=pay arguments={} claim_lease_ms=60000
        +1s
        +1s
        sql SELECT call_id, tool_version, status FROM tool_calls
        sql SELECT name, version, json_extract(manifest, '$.effect') FROM tool_versions
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: old, status: claimed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:01, arguments: {"amount":1}}
            seq 4 {name: pay, version: 2, effect: idempotent}
            seq 5 {call_id: new, status: claimed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:02}
            ("old", 1, "unknown") ("new", 2, "pending")
            ("pay", 1, "at_most_once") ("pay", 2, "idempotent")
        "#]],
    );
}

#[test]
fn the_concurrency_limit() {
    check(
        r#"
        register_tool name=crawl effect=read_only limits={"concurrency":2}
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=crawl arguments={} claim_lease_ms=1000
        request_tool_call call_id=c2 session_id=s1 tool_name=crawl arguments={}
        request_tool_call call_id=c3 session_id=s1 tool_name=crawl arguments={}
        claim_tool_call call_id=c2
        claim_tool_call call_id=c3
        request_tool_call call_id=c4 session_id=s1 tool_name=crawl arguments={} claim_lease_ms=1000
        claim_next_tool_call tools=["crawl"]
        complete_tool_call call_id=c2 fencing_token=6 result=1
        claim_tool_call call_id=c3
        claim_tool_call call_id=c4
        +1s
        claim_next_tool_call tools=["crawl"]
        register_tool name=crawl effect=read_only limits={"concurrency":3}
        claim_next_tool_call tools=["crawl"]
        "#,
        expect![[r#"
            seq 1 {name: crawl, version: 1, effect: read_only}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:01}
            seq 4 {call_id: c2, status: pending, attempt: 0}
            seq 5 {call_id: c3, status: pending, attempt: 0}
            seq 6 {call_id: c2, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:30}
            refused rate_limited: crawl allows 2 concurrent calls, and all are running (hint: claim again when one of them has ended)
            seq 7 {call_id: c4, status: pending, attempt: 0}
            refused rate_limited: crawl allows 2 concurrent calls, and all are running (hint: claim again when one of them has ended)
            seq 8 {call_id: c2, status: succeeded, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:30, result: 1}
            seq 9 {call_id: c3, status: claimed, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:00:30}
            refused rate_limited: crawl allows 2 concurrent calls, and all are running (hint: claim again when one of them has ended)
            seq 11 {call_id: c1, status: claimed, attempt: 2, fencing_token: 11, claimed_by: local, lease_expires_at: 14:00:31}
            seq 12 {name: crawl, version: 2, effect: read_only}
            seq 13 {call_id: c4, status: claimed, attempt: 1, fencing_token: 13, claimed_by: local, lease_expires_at: 14:00:31}
        "#]],
    );
}

#[test]
fn the_rate_limit() {
    check(
        r#"
        register_tool name=mail effect=idempotent limits={"rate":{"calls":2,"per_ms":10000}}
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=mail arguments={} claim_lease_ms=1000
        +4s
        claim_tool_call call_id=c1 lease_ms=60000
        request_tool_call call_id=c2 session_id=s1 tool_name=mail arguments={}
        claim_tool_call call_id=c2
        +5999ms
        claim_next_tool_call tools=["mail"]
        +1ms
        claim_next_tool_call tools=["mail"]
        request_tool_call call_id=c3 session_id=s1 tool_name=mail arguments={} claim_lease_ms=1000
        +3999ms
        claim_tool_call call_id=c3
        +1ms
        claim_tool_call call_id=c3
        sql SELECT tool_name, seq FROM tool_claims
        "#,
        expect![[r#"
            seq 1 {name: mail, version: 1, effect: idempotent}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:01}
            seq 5 {call_id: c1, status: claimed, attempt: 2, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:04}
            seq 6 {call_id: c2, status: pending, attempt: 0}
            refused rate_limited: mail allows 2 attempts in 10000 ms, the next at 2026-11-21T14:00:10Z (hint: claim again at that time)
            refused rate_limited: mail allows 2 attempts in 10000 ms, the next at 2026-11-21T14:00:10Z (hint: claim again at that time)
            seq 7 {call_id: c2, status: claimed, attempt: 1, fencing_token: 7, claimed_by: local, lease_expires_at: 14:00:40}
            seq 8 {call_id: c3, status: pending, attempt: 0}
            refused rate_limited: mail allows 2 attempts in 10000 ms, the next at 2026-11-21T14:00:14Z (hint: claim again at that time)
            seq 9 {call_id: c3, status: claimed, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:00:44}
            ("mail", 7) ("mail", 9)
        "#]],
    );
}

#[test]
fn the_limit_per_session() {
    check(
        r#"
        register_tool name=search limits={"calls_per_session":2}
        create_session agent=support id=s1
        create_session agent=support id=s2
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={}
        request_tool_call call_id=c2 session_id=s1 tool_name=search arguments={}
        request_tool_call call_id=c3 session_id=s1 tool_name=search arguments={}
        request_tool_call call_id=c2 session_id=s1 tool_name=search arguments={}
        request_tool_call call_id=c3 session_id=s2 tool_name=search arguments={}
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {id: s2, status: created}
            seq 4 {call_id: c1, status: pending, attempt: 0}
            seq 5 {call_id: c2, status: pending, attempt: 0}
            refused limit_exceeded: session s1 has already requested search 2 times (hint: the limit is 2 calls per session; `abide call register_tool` changes it)
            seq 5 again {call_id: c2, status: pending, attempt: 0}
            seq 6 {call_id: c3, status: pending, attempt: 0}
        "#]],
    );
}

#[test]
fn the_longest_waiting_call_is_next() {
    check_asked(
        r#"
        claim_next_tool_call tools=["pay","put"] as=worker-1
        claim_next_tool_call tools=["pay","put","put"] worker=by-name
        claim_next_tool_call tools=["pay","put"]
        claim_next_tool_call tools=["pay","look","put"] lease_ms=1000
        +1s
        claim_next_tool_call tools=["look"]
        fail_tool_call call_id=look1 fencing_token=12 error=busy retryable=true
        claim_next_tool_call tools=["look"]
        +1s
        claim_next_tool_call tools=["look"]
        claim_next_tool_call tools=[]
        claim_next_tool_call tools=["unheard_of"]
        claim_next_tool_call tools=["look"] lease_ms=0
        sql SELECT reducer, session_id FROM events WHERE seq = 8
        "#,
        expect![[r#"
            seq 8 {call_id: put1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            seq 9 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 9, claimed_by: by-name, lease_expires_at: 14:00:30}
            refused not_found: there is no pending call of pay, put (hint: watch for calls: `abide watch "SELECT call_id, tool_name FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL"`)
            seq 10 {call_id: look1, status: claimed, attempt: 1, fencing_token: 10, claimed_by: local, lease_expires_at: 14:00:01}
            seq 12 {call_id: look1, status: claimed, attempt: 2, fencing_token: 12, claimed_by: local, lease_expires_at: 14:00:31}
            seq 13 {call_id: look1, status: pending, attempt: 2, fencing_token: 12, claimed_by: local, retry_at: 14:00:02, error: busy}
            refused not_found: there is no pending call of look (hint: watch for calls: `abide watch "SELECT call_id, tool_name FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL"`)
            seq 15 {call_id: look1, status: claimed, attempt: 3, fencing_token: 15, claimed_by: local, lease_expires_at: 14:00:32, error: busy}
            refused bad_arguments: tools must have 1 to 100 names, not 0 (hint: name the tools that this worker runs, in several calls if there are more)
            refused not_found: there is no tool unheard_of (hint: register it with `abide call register_tool name=unheard_of`)
            refused bad_arguments: lease_ms must be between 1 and 86400000, not 0 (hint: lease_ms is in milliseconds; a heartbeat extends a lease)
            ("claim_next_tool_call", "s1")
        "#]],
    );
}

#[test]
fn settled_by_the_first_report() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 lease_ms=1000 as=worker-1
        +1s
        settle_tool_call call_id=pay1 outcome=succeeded error=x
        settle_tool_call call_id=pay1 outcome=failed result=x
        settle_tool_call call_id=pay1 outcome=failed error="no money left" evidence={"statement":7} as=ann
        settle_tool_call call_id=pay1 outcome=failed error="no money left" evidence={"statement":7} as=bob
        settle_tool_call call_id=pay1 outcome=failed error="no money left" evidence={"statement":8} as=bob
        settle_tool_call call_id=pay1 outcome=failed error="no money left" as=bob
        settle_tool_call call_id=pay1 outcome=failed error="no card" as=bob
        settle_tool_call call_id=pay1 outcome=succeeded as=bob
        settle_tool_call call_id=put1 outcome=failed
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01}
            refused bad_arguments: error is not valid with outcome=succeeded (hint: give result, or outcome=failed)
            refused bad_arguments: result is not valid with outcome=failed (hint: give error, or outcome=succeeded)
            seq 10 {call_id: pay1, status: failed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, error: no money left, settled_by: ann}
            seq 10 again {call_id: pay1, status: failed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, error: no money left, settled_by: ann}
            refused conflict: call pay1 was settled as failed by ann, with other evidence (hint: the first settlement stands; tool_calls has its evidence)
            refused conflict: call pay1 was settled as failed by ann, with other evidence (hint: the first settlement stands; tool_calls has its evidence)
            refused conflict: call pay1 was settled as failed by ann
            refused conflict: call pay1 was settled as failed by ann
            refused conflict: call put1 is pending; only an unknown call can be settled
        "#]],
    );
}

#[test]
fn arguments_are_checked_against_the_schema() {
    check(
        r##"
        register_tool name=pay input_schema={"type":"object","properties":{"amount":{"type":"integer","minimum":1},"to":{"$ref":"#/$defs/iban"}},"required":["amount"],"additionalProperties":false,"$defs":{"iban":{"pattern":"^[A-Z]{2}[0-9]+$"}}}
        register_tool name=never input_schema=false
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":0}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":1.5}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":1,"to":"elsewhere"}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":1,"note":"x"}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments="pay one"
        request_tool_call call_id=c1 session_id=s1 tool_name=never arguments={}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":1,"to":"DE02"}
        sql SELECT count(*) FROM tool_calls
        "##,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {name: never, version: 1, effect: at_most_once}
            seq 3 {id: s1, status: created}
            refused bad_arguments: invalid arguments for pay: "amount" is a required property (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'pay' AND version = 1"`)
            refused bad_arguments: invalid arguments for pay: at /amount: 0 is less than the minimum of 1 (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'pay' AND version = 1"`)
            refused bad_arguments: invalid arguments for pay: at /amount: 1.5 is not of type "integer" (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'pay' AND version = 1"`)
            refused bad_arguments: invalid arguments for pay: at /to: "elsewhere" does not match "^[A-Z]{2}[0-9]+$" (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'pay' AND version = 1"`)
            refused bad_arguments: invalid arguments for pay: Additional properties are not allowed ('note' was unexpected) (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'pay' AND version = 1"`)
            refused bad_arguments: invalid arguments for pay: "pay one" is not of type "object" (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'pay' AND version = 1"`)
            refused bad_arguments: invalid arguments for never: False schema does not allow {} (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'never' AND version = 1"`)
            seq 4 {call_id: c1, status: pending, attempt: 0, arguments: {"amount":1,"to":"DE02"}}
            (1)
        "#]],
    );
}

#[test]
fn a_tool_limits_its_attempts() {
    check(
        r#"
        register_tool name=once retry={"max_attempts":1}
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=once arguments={} claim_lease_ms=1000
        fail_tool_call call_id=c1 fencing_token=3 error=busy retryable=true
        "#,
        expect![[r#"
            seq 1 {name: once, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:01}
            seq 4 {call_id: c1, status: failed, attempt: 1, fencing_token: 3, claimed_by: local, lease_expires_at: 14:00:01, error: busy}
        "#]],
    );
}
