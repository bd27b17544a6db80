//! Tool calls: requested once, claimed under a lease, ended by whoever holds it, never run twice by
//! accident.

use expect_test::{Expect, expect};

use crate::script::check;

/// Three tools of the three effects, a session, and a call of each.
const ASKED: &str = r#"
    register_tool name=look effect=read_only
    register_tool name=put effect=idempotent
    register_tool name=pay
    create_session agent=support id=s1
    request_tool_call call_id=look1 session_id=s1 tool_name=look arguments={}
    request_tool_call call_id=put1 session_id=s1 tool_name=put arguments={}
    request_tool_call call_id=pay1 session_id=s1 tool_name=pay arguments={}
"#;

/// What is expected are the answers after those of `ASKED`.
fn check_asked(script: &str, expected: Expect) {
    let heard = crate::script::play(&format!("{ASKED}{script}"));
    let after: String = heard.split_inclusive('\n').skip(7).collect();
    expected.assert_eq(&after);
}

#[test]
fn asked_claimed_done() {
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
fn a_call_is_asked_for_once() {
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
            refused call_id_conflict: call id c1 stands for a call with other arguments (hint: make call ids from session and position; a provider's id is not unique)
            refused call_id_conflict: call id c1 stands for a call with other session (hint: make call ids from session and position; a provider's id is not unique)
            refused call_id_conflict: call id c1 stands for a call with other tool (hint: make call ids from session and position; a provider's id is not unique)
            refused call_id_conflict: call id c1 stands for a call with other session, tool, arguments (hint: make call ids from session and position; a provider's id is not unique)
            seq 7 {id: s1, status: completed}
            seq 5 again {call_id: c1, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:30, cancel_requested_at: 14:00:00, arguments: {"a":[1.0],"b":1}}
            (7, 7)
        "#]],
    );
}

/// A model provider's id is an attribute: recordings reuse it for other calls, and some have none.
#[test]
fn a_providers_id_is_no_key() {
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
        request_tool_call call_id=c3 session_id=s1 tool_name=search arguments=[1,1.0,18446744073709551615,"\u0000"]
        sql SELECT arguments FROM tool_calls ORDER BY call_id
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: pending, attempt: 0, arguments: null}
            seq 4 {call_id: c2, status: pending, attempt: 0, arguments: "{'not': 'JSON'}"}
            seq 5 {call_id: c3, status: pending, attempt: 0, arguments: [1,1.0,18446744073709551615,"\u0000"]}
            ("null") ("\"{'not': 'JSON'}\"") ("[1,1.0,18446744073709551615,\"\\u0000\"]")
        "#]],
    );
}

#[test]
fn what_is_no_call() {
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
            refused not_found: there is no tool nothing (hint: register_tool makes it known)
            refused not_found: there is no session s_nobody (hint: create_session makes one)
            refused bad_arguments: call_id is empty
            refused bad_arguments: request_tool_call: missing field `arguments` (hint: request_tool_call takes call_id, session_id, tool_name, arguments, provider_call_id?, claim_lease_ms?)
            refused bad_arguments: a lease of 0 ms is not between 1 and 86400000
            refused not_found: there is no tool call c1
            refused not_found: there is no tool call c1
            refused not_found: there is no tool call c1
            refused not_found: there is no tool call c1
            refused not_found: there is no tool call c1
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
            refused conflict: call pay1 was claimed by worker-1 and its lease runs until 2026-11-21T14:00:30Z (hint: watch it with  abide watch "SELECT status FROM tool_calls WHERE call_id = 'pay1'")
            refused conflict: call pay1 was claimed by worker-1 and its lease runs until 2026-11-21T14:00:30Z (hint: watch it with  abide watch "SELECT status FROM tool_calls WHERE call_id = 'pay1'")
            seq 9 {call_id: look1, status: claimed, attempt: 1, fencing_token: 9, claimed_by: by-name, lease_expires_at: 14:00:30}
            refused bad_arguments: a lease of 0 ms is not between 1 and 86400000
            refused bad_arguments: a lease of 86400001 ms is not between 1 and 86400000
            seq 10 {call_id: put1, status: claimed, attempt: 1, fencing_token: 10, claimed_by: local, lease_expires_at: 2026-11-22T14:00:00}
            seq 11 {call_id: own, status: claimed, attempt: 1, fencing_token: 11, claimed_by: agent, lease_expires_at: 14:00:01}
            refused conflict: call own was claimed by agent and its lease runs until 2026-11-21T14:00:01Z (hint: watch it with  abide watch "SELECT status FROM tool_calls WHERE call_id = 'own'")
        "#]],
    );
}

#[test]
fn only_the_holder_ends_a_call() {
    check_asked(
        r#"
        complete_tool_call call_id=pay1 fencing_token=1 result=1
        claim_tool_call call_id=pay1 as=worker-1
        heartbeat_tool_call call_id=pay1 fencing_token=7
        complete_tool_call call_id=pay1 fencing_token=9 result=1
        fail_tool_call call_id=pay1 fencing_token=7 error=x
        settle_tool_call call_id=pay1 outcome=failed
        complete_tool_call call_id=pay1 fencing_token=8 result=1
        complete_tool_call call_id=pay1 fencing_token=8 result=1
        complete_tool_call call_id=pay1 fencing_token=8 result=2
        fail_tool_call call_id=pay1 fencing_token=8 error=x
        heartbeat_tool_call call_id=pay1 fencing_token=8
        claim_tool_call call_id=pay1 as=worker-2
        settle_tool_call call_id=pay1 outcome=failed
        "#,
        expect![[r#"
            refused lease_lost: call pay1 is pending, nobody holds it (hint: what this attempt did may be done again by another; do not report it as done)
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            refused lease_lost: call pay1 is claimed by worker-1 under another token (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: call pay1 is claimed by worker-1 under another token (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: call pay1 is claimed by worker-1 under another token (hint: what this attempt did may be done again by another; do not report it as done)
            refused conflict: call pay1 is claimed, there is nothing to settle
            seq 9 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30, result: 1}
            seq 9 again {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30, result: 1}
            refused conflict: call pay1 is succeeded already
            refused conflict: call pay1 is succeeded already
            refused conflict: call pay1 is succeeded already
            refused conflict: call pay1 is succeeded (hint: watch it with  abide watch "SELECT status FROM tool_calls WHERE call_id = 'pay1'")
            refused conflict: call pay1 is succeeded, there is nothing to settle
        "#]],
    );
}

#[test]
fn a_lease_runs_out_and_the_call_may_run_again() {
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
            refused conflict: call put1 was claimed by worker-1 and its lease runs until 2026-11-21T14:00:01Z (hint: watch it with  abide watch "SELECT status FROM tool_calls WHERE call_id = 'put1'")
            seq 10 {call_id: put1, status: claimed, attempt: 2, fencing_token: 10, claimed_by: worker-2, lease_expires_at: 14:00:31}
            refused lease_lost: the lease on call put1 ran out at 2026-11-21T14:00:01Z; the call is claimed (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: call put1 is claimed by worker-2 under another token (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: the lease on call put1 ran out at 2026-11-21T14:00:01Z; the call is claimed (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: call put1 is claimed by worker-2 under another token (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: the lease on call put1 ran out at 2026-11-21T14:00:01Z; the call is claimed (hint: what this attempt did may be done again by another; do not report it as done)
            seq 12 {call_id: look1, status: claimed, attempt: 1, fencing_token: 12, claimed_by: worker-1, lease_expires_at: 14:00:02}
            seq 14 {call_id: look1, status: claimed, attempt: 2, fencing_token: 14, claimed_by: worker-2, lease_expires_at: 14:00:32}
        "#]],
    );
}

#[test]
fn a_lease_runs_out_and_the_call_must_not_run_again() {
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
            refused conflict: call pay1 is claimed, there is nothing to settle
            refused conflict: call pay1 was claimed by worker-1, whose lease has run out; whether it ran is unknown, and pay must not run twice (hint: find out, and tell with settle_tool_call)
            refused conflict: call pay1 was claimed by worker-1, whose lease has run out; whether it ran is unknown, and pay must not run twice (hint: find out, and tell with settle_tool_call)
            refused bad_arguments: settle_tool_call: "maybe" is not one of succeeded, failed (hint: settle_tool_call takes call_id, outcome, result?, error?, evidence?)
            seq 10 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01, result: {"paid":true}, settled_by: ann}
            refused conflict: call pay1 was settled as succeeded by ann
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is succeeded (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T14:00:01Z; the call is succeeded (hint: what this attempt did may be done again by another; do not report it as done)
            ("succeeded", "{\"paid\":true}", "{\"receipt\":\"r-7\"}", 1)
            seq 12 {call_id: pay2, status: claimed, attempt: 1, fencing_token: 12, claimed_by: local, lease_expires_at: 14:00:02}
            seq 14 {call_id: pay2, status: failed, attempt: 1, fencing_token: 12, claimed_by: local, lease_expires_at: 14:00:02, error: never left the house, settled_by: ann}
        "#]],
    );
}

/// The lease is for others to claim after; while nobody has, its holder may still finish.
#[test]
fn late_but_nobody_else_came() {
    check_asked(
        r#"
        claim_tool_call call_id=pay1 lease_ms=1000 as=worker-1
        +1h
        heartbeat_tool_call call_id=pay1 fencing_token=8 as=worker-1
        +1h
        complete_tool_call call_id=pay1 fencing_token=8 result=1 as=worker-1
        "#,
        expect![[r#"
            seq 8 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:01}
            refused lease_lost: the lease of worker-1 on call pay1 has run out (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: the lease on call pay1 ran out at 2026-11-21T15:00:00Z; the call is unknown (hint: what was reported is kept in unknown_tool_calls; settle_tool_call makes it count)
        "#]],
    );
}

#[test]
fn failed_and_tried_again() {
    check_asked(
        r#"
        claim_tool_call call_id=put1 as=worker-1
        fail_tool_call call_id=put1 fencing_token=8 error=busy retryable=true as=worker-1
        fail_tool_call call_id=put1 fencing_token=8 error=busy retryable=true as=worker-1
        complete_tool_call call_id=put1 fencing_token=8 result=1 as=worker-1
        claim_tool_call call_id=put1 as=worker-2
        fail_tool_call call_id=put1 fencing_token=10 error=busy retryable=true as=worker-2
        claim_tool_call call_id=put1 as=worker-1
        fail_tool_call call_id=put1 fencing_token=12 error="still busy" retryable=true as=worker-1
        fail_tool_call call_id=put1 fencing_token=12 error="still busy" retryable=true as=worker-1
        claim_tool_call call_id=put1 as=worker-2
        claim_tool_call call_id=pay1 as=worker-1
        fail_tool_call call_id=pay1 fencing_token=14 error=declined as=worker-1
        "#,
        expect![[r#"
            seq 8 {call_id: put1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: worker-1, lease_expires_at: 14:00:30}
            seq 9 {call_id: put1, status: pending, attempt: 1, fencing_token: 8, claimed_by: worker-1, error: busy}
            seq 9 again {call_id: put1, status: pending, attempt: 1, fencing_token: 8, claimed_by: worker-1, error: busy}
            refused lease_lost: call put1 is pending, nobody holds it (hint: what this attempt did may be done again by another; do not report it as done)
            seq 10 {call_id: put1, status: claimed, attempt: 2, fencing_token: 10, claimed_by: worker-2, lease_expires_at: 14:00:30, error: busy}
            seq 11 {call_id: put1, status: pending, attempt: 2, fencing_token: 10, claimed_by: worker-2, retry_at: 14:00:01, error: busy}
            refused conflict: call put1 waits until 2026-11-21T14:00:01Z for its attempt 3 (hint: watch it with  abide watch "SELECT status FROM tool_calls WHERE call_id = 'put1'")
            refused lease_lost: call put1 is pending, nobody holds it (hint: what this attempt did may be done again by another; do not report it as done)
            refused lease_lost: call put1 is pending, nobody holds it (hint: what this attempt did may be done again by another; do not report it as done)
            refused conflict: call put1 waits until 2026-11-21T14:00:01Z for its attempt 3 (hint: watch it with  abide watch "SELECT status FROM tool_calls WHERE call_id = 'put1'")
            seq 12 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 12, claimed_by: worker-1, lease_expires_at: 14:00:30}
            refused lease_lost: call pay1 is claimed by worker-1 under another token (hint: what this attempt did may be done again by another; do not report it as done)
        "#]],
    );
}

#[test]
fn a_tool_says_how_often() {
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
