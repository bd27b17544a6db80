//! Approvals: a call waits for a decision, which is bound to its arguments.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# decide_approval
decide_approval {"call_id":"asks7","decision":"approve"}
# expire_approval
register_tool {"name":"soon","approval":{"expires_after_ms":5}}
request_tool_call {"call_id":"soon","session_id":"big","tool_name":"soon","arguments":{}}
+10
"#;

const ASKED: &str = r#"
    register_tool name=pay needs_approval=true
    create_session agent=support id=s1
    request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":100}
"#;

fn check_asked(script: &str, expected: expect_test::Expect) {
    check(&format!("{ASKED}{script}"), expected);
}

#[test]
fn an_approval_counts_once() {
    check_asked(
        r#"
        sql SELECT id, call_id, session_id, status, arguments, decided_by FROM approvals
        claim_tool_call call_id=c1
        decide_approval call_id=c1 decision=approve comment=fine as=ann
        decide_approval call_id=c1 decision=approve as=ann
        decide_approval call_id=c1 decision=approve as=bob
        claim_tool_call call_id=c1
        sql SELECT status, seq FROM approvals
        sql SELECT session_id, reducer FROM events WHERE reducer = 'decide_approval'
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            ("ap#1", "c1", "s1", "pending", "{\"amount\":100}", null)
            refused conflict: call c1 is awaiting_approval (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'c1'"`)
            seq 4 {id: ap#1, call_id: c1, status: approved, arguments: {"amount":100}, decided_by: ann, comment: fine}
            seq 4 again {id: ap#1, call_id: c1, status: approved, arguments: {"amount":100}, decided_by: ann, comment: fine}
            seq 4 again {id: ap#1, call_id: c1, status: approved, arguments: {"amount":100}, decided_by: ann, comment: fine}
            seq 5 {call_id: c1, status: claimed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:30, arguments: {"amount":100}}
            ("approved", 4)
            ("s1", "decide_approval")
        "#]],
    );
}

#[test]
fn an_approval_with_changed_arguments() {
    check_asked(
        r#"
        sql SELECT id FROM approvals
        decide_approval id=ap#1 decision=approve approved_arguments={"amount":50} as=ann
        claim_tool_call call_id=c1
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":100}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":50}
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":70}
        sql SELECT arguments, approved_arguments FROM approvals
        decide_approval call_id=c1 decision=approve approved_arguments={"amount":50} as=bob
        decide_approval call_id=c1 decision=approve as=bob
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            ("ap#1")
            seq 4 {id: ap#1, call_id: c1, status: approved, arguments: {"amount":100}, approved_arguments: {"amount":50}, decided_by: ann}
            seq 5 {call_id: c1, status: claimed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:30, arguments: {"amount":50}}
            seq 3 again {call_id: c1, status: claimed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:30, arguments: {"amount":50}}
            seq 3 again {call_id: c1, status: claimed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:30, arguments: {"amount":50}}
            refused call_id_conflict: call id c1 is already used by a call with other arguments (hint: make call ids from session and position; a provider's id is not unique)
            ("{\"amount\":100}", "{\"amount\":50}")
            seq 4 again {id: ap#1, call_id: c1, status: approved, arguments: {"amount":100}, approved_arguments: {"amount":50}, decided_by: ann}
            refused conflict: approval ap#1 was approved by ann
        "#]],
    );
}

#[test]
fn a_rejection_counts_once() {
    check_asked(
        r#"
        decide_approval call_id=c1 decision=reject approved_arguments={} as=ann
        decide_approval call_id=c1 decision=reject comment="too much" as=ann
        decide_approval call_id=c1 decision=reject as=bob
        decide_approval call_id=c1 decision=approve as=bob
        claim_tool_call call_id=c1
        sql SELECT status FROM tool_calls
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            refused bad_arguments: approved_arguments is not valid with decision=reject (hint: omit approved_arguments, or give decision=approve)
            seq 4 {id: ap#1, call_id: c1, status: rejected, arguments: {"amount":100}, decided_by: ann, comment: too much}
            seq 4 again {id: ap#1, call_id: c1, status: rejected, arguments: {"amount":100}, decided_by: ann, comment: too much}
            refused conflict: approval ap#1 was rejected by ann
            refused conflict: call c1 is rejected (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'c1'"`)
            ("rejected")
        "#]],
    );
}

#[test]
fn a_decision_on_an_unknown_or_decided_approval() {
    check_asked(
        r#"
        sql SELECT id FROM approvals
        decide_approval decision=approve
        decide_approval id=ap#1 call_id=c1 decision=approve
        decide_approval id=ap_nobody decision=approve
        decide_approval call_id=c2 decision=approve
        decide_approval call_id=c1 decision=perhaps
        register_tool name=search
        request_tool_call call_id=c3 session_id=s1 tool_name=search arguments={}
        decide_approval call_id=c3 decision=approve
        sql SELECT status FROM approvals
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            ("ap#1")
            refused bad_arguments: exactly one of id and call_id is required (hint: id names the approval, call_id the tool call)
            refused bad_arguments: exactly one of id and call_id is required (hint: id names the approval, call_id the tool call)
            refused not_found: there is no approval for ap_nobody (hint: the query `SELECT id, call_id, status FROM approvals` lists them)
            refused not_found: there is no approval for c2 (hint: the query `SELECT id, call_id, status FROM approvals` lists them)
            refused bad_arguments: decide_approval: argument decision: "perhaps" is not one of approve, reject (hint: decide_approval takes id?, call_id?, decision, approved_arguments?, comment?, arguments_hash?)
            seq 4 {name: search, version: 1, effect: at_most_once}
            seq 5 {call_id: c3, status: pending, attempt: 0}
            refused not_found: there is no approval for c3 (hint: the query `SELECT id, call_id, status FROM approvals` lists them)
            ("pending")
        "#]],
    );
}

#[test]
fn a_call_that_needs_approval_cannot_be_claimed_with_its_request() {
    check(
        r#"
        register_tool name=pay needs_approval=true
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={} claim_lease_ms=1000
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0}
        "#]],
    );
}

#[test]
fn the_information_for_the_decider() {
    check(
        r#"
        register_tool name=pay needs_approval=true approval={"prompt":"Pay this?","defaults":{"amount":50},"expires_after_ms":60000,"required_capability":"refunds"}
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":100}
        sql SELECT id, tool_name, prompt, defaults, required_capability, expires_at - created_at FROM approvals
        sql SELECT length(arguments_hash) FROM approvals
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            ("ap#1", "pay", "Pay this?", "{\"amount\":50}", "refunds", 60000000)
            (64)
        "#]],
    );
}

/// A decision applies to the arguments that the decider saw. (A decision with the right hash:
/// `guesses.rs`.)
#[test]
fn a_decision_is_bound_to_the_arguments() {
    check_asked(
        r#"
        decide_approval call_id=c1 decision=approve arguments_hash=0000000000000000000000000000000000000000000000000000000000000000
        raw UPDATE approvals SET arguments = '{"amount":1000}'
        decide_approval call_id=c1 decision=approve
        sql SELECT status FROM approvals
        raw UPDATE tool_calls SET arguments = '{"amount":1000}'
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            refused conflict: approval ap#1 concerns other arguments (hint: read its arguments and arguments_hash again)
            aborted: conflict: the approval is bound to its arguments
            seq 4 {id: ap#1, call_id: c1, status: approved, arguments: {"amount":100}, decided_by: local}
            ("approved")
            aborted: conflict: the arguments of the tool call stand
        "#]],
    );
}

#[test]
fn edited_arguments_are_checked_against_the_schema() {
    check(
        r#"
        register_tool name=pay needs_approval=true input_schema={"properties":{"amount":{"maximum":100}}}
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={"amount":100}
        register_tool name=pay needs_approval=true
        decide_approval call_id=c1 decision=approve approved_arguments={"amount":101}
        decide_approval call_id=c1 decision=approve approved_arguments={"amount":99}
        sql SELECT arguments FROM tool_calls
        claim_tool_call call_id=c1
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            seq 4 {name: pay, version: 2, effect: at_most_once}
            refused bad_arguments: invalid arguments for pay: at /amount: 101 is greater than the maximum of 100 (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'pay' AND version = 1"`)
            seq 5 {id: ap#1, call_id: c1, status: approved, arguments: {"amount":100}, approved_arguments: {"amount":99}, decided_by: local}
            ("{\"amount\":99}")
            seq 6 {call_id: c1, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:30, arguments: {"amount":99}}
        "#]],
    );
}

#[test]
fn an_approval_expires() {
    check(
        r#"
        register_tool name=pay approval={"expires_after_ms":60000}
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={}
        request_tool_call call_id=c2 session_id=s1 tool_name=pay arguments={}
        +59s
        decide_approval call_id=c2 decision=approve as=ann
        +1s
        sql SELECT call_id, status, error FROM tool_calls
        sql SELECT call_id, status, decided_by FROM approvals ORDER BY call_id
        decide_approval call_id=c1 decision=approve as=ann
        decide_approval call_id=c2 decision=approve as=bob
        sql SELECT seq, reducer, caller, session_id FROM events WHERE caller = 'system'
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0}
            seq 4 {call_id: c2, status: awaiting_approval, attempt: 0}
            seq 5 {id: ap#1, call_id: c2, status: approved, expires_at: 14:01:00, decided_by: ann}
            ("c1", "rejected", "there was no decision in time") ("c2", "pending", null)
            ("c1", "expired", null) ("c2", "approved", "ann")
            refused conflict: approval ap#2 expired at 2026-11-21T14:01:00Z
            seq 5 again {id: ap#1, call_id: c2, status: approved, expires_at: 14:01:00, decided_by: ann}
            (6, "expire_approval", "system", "s1")
        "#]],
    );
}

/// Each call is decided separately, in any order; several decisions in one batch are all or
/// nothing.
#[test]
fn several_decisions_at_once() {
    check_asked(
        r#"
        request_tool_call call_id=c2 session_id=s1 tool_name=pay arguments={"amount":2}
        request_tool_call call_id=c3 session_id=s1 tool_name=pay arguments={"amount":3}
        decide_approval call_id=c2 decision=reject as=bob
        batch as=ann: decide_approval call_id=c1 decision=approve | decide_approval call_id=c2 decision=approve | decide_approval call_id=c3 decision=approve
        sql SELECT call_id, status FROM approvals ORDER BY call_id
        batch as=ann: decide_approval call_id=c1 decision=approve | decide_approval call_id=c3 decision=approve
        sql SELECT call_id, status, decided_by FROM approvals ORDER BY call_id
        sql SELECT call_id, status, error FROM tool_calls
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0, arguments: {"amount":100}}
            seq 4 {call_id: c2, status: awaiting_approval, attempt: 0, arguments: {"amount":2}}
            seq 5 {call_id: c3, status: awaiting_approval, attempt: 0, arguments: {"amount":3}}
            seq 6 {id: ap#1, call_id: c2, status: rejected, arguments: {"amount":2}, decided_by: bob}
            refused conflict: call 2 of the batch: approval ap#1 was rejected by bob
            ("c1", "pending") ("c2", "rejected") ("c3", "pending")
            batch 8: seq 7 {id: ap#2, call_id: c1, status: approved, arguments: {"amount":100}, decided_by: ann} | seq 8 {id: ap#3, call_id: c3, status: approved, arguments: {"amount":3}, decided_by: ann}
            ("c1", "approved", "ann") ("c2", "rejected", "bob") ("c3", "approved", "ann")
            ("c1", "pending", null) ("c2", "rejected", "rejected by bob") ("c3", "pending", null)
        "#]],
    );
}
