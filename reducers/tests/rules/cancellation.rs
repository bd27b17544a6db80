//! Cancellation: it is recorded; work that has not started ends at once, running work ends when it
//! stops.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# cancel_tool_call
cancel_tool_call {"call_id":"asks7"}
# acknowledge_cancel
claim_tool_call@admin {"call_id":"pending7"}
cancel_tool_call {"call_id":"pending7"}
acknowledge_cancel@admin {"call_id":"pending7","fencing_token":"$first"}
# continue_cleanup
cancel_session {"session_id":"big"}
+1
# continue_cleanup
abort_run {"id":"grown"}
+1
# continue_cleanup
cancel_session {"session_id":"grown"}
+1
"#;

#[test]
fn an_idle_session_ends_at_once() {
    check(
        r#"
        register_tool name=search
        register_tool name=pay needs_approval=true
        create_session agent=support id=s1
        request_tool_call call_id=waiting session_id=s1 tool_name=search arguments={}
        request_tool_call call_id=asked session_id=s1 tool_name=pay arguments={}
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds
        set_timer id=t1 in_ms=1000 session_id=s1 message=hello
        cancel_session session_id=s1 reason="not needed"
        cancel_session session_id=s1 reason="not needed"
        cancel_session session_id=s1
        sql SELECT call_id, status, error FROM tool_calls
        sql SELECT status FROM approvals UNION ALL SELECT status FROM handoff_requests UNION ALL SELECT status FROM timers
        +1h
        sql SELECT count(*) FROM events
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {name: pay, version: 1, effect: at_most_once}
            seq 3 {id: s1, status: created}
            seq 4 {call_id: waiting, status: pending, attempt: 0}
            seq 5 {call_id: asked, status: awaiting_approval, attempt: 0}
            seq 6 {id: ho#1, status: pending, reason: help}
            seq 7 {id: t1, status: pending, due_at: 14:00:01, message: hello}
            seq 8 {id: s1, status: failed, cancel_requested_at: 14:00:00, reason: not needed, error_code: cancelled, error_message: not needed}
            seq 8 again {id: s1, status: failed, cancel_requested_at: 14:00:00, reason: not needed, error_code: cancelled, error_message: not needed}
            seq 8 again {id: s1, status: failed, cancel_requested_at: 14:00:00, reason: not needed, error_code: cancelled, error_message: not needed}
            ("waiting", "cancelled", null) ("asked", "cancelled", null)
            ("cancelled") ("cancelled") ("cancelled")
            (8)
        "#]],
    );
}

const AT_WORK: &str = r#"
    register_tool name=put effect=idempotent
    register_tool name=pay
    create_session agent=support id=s1
    request_tool_call call_id=put1 session_id=s1 tool_name=put arguments={} claim_lease_ms=60000
    request_tool_call call_id=pay1 session_id=s1 tool_name=pay arguments={} claim_lease_ms=60000
    request_tool_call call_id=put2 session_id=s1 tool_name=put arguments={}
"#;

/// Expects the responses after those of `AT_WORK`.
fn check_at_work(script: &str, expected: expect_test::Expect) {
    let received = crate::play(&format!("{AT_WORK}{script}"));
    let after: String = received.split_inclusive('\n').skip(6).collect();
    expected.assert_eq(&after);
}

#[test]
fn a_session_ends_when_its_workers_have_stopped() {
    check_at_work(
        r#"
        cancel_session session_id=s1 reason="not needed"
        cancel_session session_id=s1
        sql SELECT call_id, status, cancel_requested_at IS NOT NULL FROM tool_calls
        append_message session_id=s1 role=assistant content="half a sen"
        request_tool_call call_id=put3 session_id=s1 tool_name=put arguments={}
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds
        create_session agent=support parent_id=s1
        set_timer in_ms=1 session_id=s1
        heartbeat_tool_call call_id=put1 fencing_token=4
        acknowledge_cancel call_id=put1 fencing_token=3
        acknowledge_cancel call_id=put1 fencing_token=4
        acknowledge_cancel call_id=put1 fencing_token=4
        sql SELECT status FROM sessions
        complete_tool_call call_id=pay1 fencing_token=5 result={"paid":true}
        sql SELECT status, error_code, error_message, cancel_reason, seq FROM sessions
        sql SELECT call_id, status, result FROM tool_calls
        sql SELECT call_id FROM undelivered_results
        "#,
        expect![[r#"
            seq 7 {id: s1, status: created, cancel_requested_at: 14:00:00}
            seq 7 again {id: s1, status: created, cancel_requested_at: 14:00:00}
            ("put1", "claimed", 1) ("pay1", "claimed", 1) ("put2", "cancelled", 1)
            seq 8 {id: 1}
            refused bad_transition: session s1 is being cancelled and accepts no new work (hint: create a new session)
            refused bad_transition: session s1 is being cancelled and accepts no new work (hint: create a new session)
            refused bad_transition: session s1 is being cancelled and accepts no new work (hint: create a new session)
            refused bad_transition: session s1 is being cancelled and accepts no new work (hint: create a new session)
            seq 9 {call_id: put1, status: claimed, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            refused lease_lost: call put1 is claimed by local under another token (hint: another worker may repeat this call; discard this result)
            seq 10 {call_id: put1, status: cancelled, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            seq 10 again {call_id: put1, status: cancelled, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            ("active")
            seq 11 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, result: {"paid":true}}
            ("failed", "cancelled", "not needed", "not needed", 11)
            ("put1", "cancelled", null) ("pay1", "succeeded", "{\"paid\":true}") ("put2", "cancelled", null)
            ("pay1")
        "#]],
    );
}

/// Also when workers crash: a repeatable call is cancelled, any other becomes unknown.
#[test]
fn a_session_ends_when_its_workers_have_crashed() {
    check_at_work(
        r#"
        cancel_session session_id=s1
        +1m
        sql SELECT call_id, status FROM tool_calls
        sql SELECT status, error_code FROM sessions
        sql SELECT seq, reducer, session_id FROM events WHERE caller = 'system'
        settle_tool_call call_id=pay1 outcome=succeeded result=1
        sql SELECT call_id, result FROM undelivered_results
        "#,
        expect![[r#"
            seq 7 {id: s1, status: created, cancel_requested_at: 14:00:00}
            ("put1", "cancelled") ("pay1", "unknown") ("put2", "cancelled")
            ("failed", "cancelled")
            (8, "lapse_tool_call", "s1") (9, "lapse_tool_call", "s1")
            seq 10 {call_id: pay1, status: succeeded, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, result: 1, settled_by: local}
            ("pay1", "1")
        "#]],
    );
}

#[test]
fn a_cancelled_call_is_not_retried() {
    check_at_work(
        r#"
        cancel_session session_id=s1
        fail_tool_call call_id=put1 fencing_token=4 error=busy retryable=true
        fail_tool_call call_id=pay1 fencing_token=5 error=declined
        sql SELECT status, error_code FROM sessions
        "#,
        expect![[r#"
            seq 7 {id: s1, status: created, cancel_requested_at: 14:00:00}
            seq 8 {call_id: put1, status: cancelled, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, error: busy}
            seq 9 {call_id: pay1, status: failed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, error: declined}
            ("failed", "cancelled")
        "#]],
    );
}

/// A call that completed before its worker learned of the cancellation is complete.
#[test]
fn completed_before_the_worker_learned_of_it() {
    check_at_work(
        r#"
        cancel_session session_id=s1
        complete_session session_id=s1 result=done
        complete_tool_call call_id=put1 fencing_token=4 result=1
        acknowledge_cancel call_id=pay1 fencing_token=5
        sql SELECT status, error_code FROM sessions
        cancel_session session_id=s1
        "#,
        expect![[r#"
            seq 7 {id: s1, status: created, cancel_requested_at: 14:00:00}
            seq 8 {id: s1, status: completed, cancel_requested_at: 14:00:00, result: "done"}
            seq 9 {call_id: put1, status: succeeded, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, result: 1}
            seq 10 {call_id: pay1, status: cancelled, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            ("completed", null)
            refused bad_transition: session s1 is completed and cannot be cancelled (hint: an ended session cannot change; create a new one)
        "#]],
    );
}

/// When a session ends in any way, its work ends too; late results are kept but not delivered.
#[test]
fn results_after_the_end() {
    check_at_work(
        r#"
        complete_session session_id=s1
        heartbeat_tool_call call_id=put1 fencing_token=4
        complete_tool_call call_id=put1 fencing_token=4 result={"put":true}
        fail_tool_call call_id=pay1 fencing_token=5 error=declined
        sql SELECT call_id, status, result, error FROM undelivered_results
        sql SELECT status, seq FROM sessions
        sql SELECT count(*) FROM agent_state
        "#,
        expect![[r#"
            seq 7 {id: s1, status: completed}
            seq 8 {call_id: put1, status: claimed, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            seq 9 {call_id: put1, status: succeeded, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, result: {"put":true}}
            seq 10 {call_id: pay1, status: failed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, error: declined}
            ("pay1", "failed", null, "declined") ("put1", "succeeded", "{\"put\":true}", null)
            ("completed", 7)
            (0)
        "#]],
    );
}

#[test]
fn children_are_cancelled_too() {
    check(
        r#"
        register_tool name=put effect=idempotent
        create_session agent=support id=s1
        create_session agent=support id=child parent_id=s1
        create_session agent=support id=busy parent_id=s1
        create_session agent=support id=grandchild parent_id=child
        create_session agent=support id=done parent_id=child
        complete_session session_id=done
        create_session agent=support id=under_busy parent_id=busy
        request_tool_call call_id=c1 session_id=busy tool_name=put arguments={} claim_lease_ms=60000
        request_tool_call call_id=c2 session_id=grandchild tool_name=put arguments={}
        cancel_session session_id=s1 reason=enough
        sql SELECT id, status, error_code, cancel_reason FROM sessions ORDER BY id
        sql SELECT session_id FROM events WHERE reducer = 'cancel_session'
        acknowledge_cancel call_id=c1 fencing_token=9
        sql SELECT id, status FROM sessions WHERE id = 'busy'
        "#,
        expect![[r#"
            seq 1 {name: put, version: 1, effect: idempotent}
            seq 2 {id: s1, status: created}
            seq 3 {id: child, status: created, parent_id: s1}
            seq 4 {id: busy, status: created, parent_id: s1}
            seq 5 {id: grandchild, status: created, parent_id: child}
            seq 6 {id: done, status: created, parent_id: child}
            seq 7 {id: done, status: completed, parent_id: child}
            seq 8 {id: under_busy, status: created, parent_id: busy}
            seq 9 {call_id: c1, status: claimed, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:01:00}
            seq 10 {call_id: c2, status: pending, attempt: 0}
            seq 11 {id: s1, status: failed, cancel_requested_at: 14:00:00, reason: enough, error_code: cancelled, error_message: enough}
            ("busy", "created", null, "enough") ("child", "failed", "cancelled", "enough") ("done", "completed", null, null) ("grandchild", "failed", "cancelled", "enough") ("s1", "failed", "cancelled", "enough") ("under_busy", "failed", "cancelled", "enough")
            ("s1")
            seq 12 {call_id: c1, status: cancelled, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            ("busy", "failed")
        "#]],
    );
}

/// A cancellation withdraws the session from a supervisor.
#[test]
fn a_handed_off_session_with_running_work() {
    check_at_work(
        r#"
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds
        claim_handoff id=ho#1
        cancel_session session_id=s1
        sql SELECT status FROM handoff_requests
        acknowledge_cancel call_id=put1 fencing_token=4
        acknowledge_cancel call_id=pay1 fencing_token=5
        sql SELECT status, error_code FROM sessions
        "#,
        expect![[r#"
            seq 7 {id: ho#1, status: pending, reason: help}
            seq 8 {id: ho#1, status: claimed, fencing_token: 8, claimed_by: local, lease_expires_at: 14:15:00, reason: help}
            seq 9 {id: s1, status: active, cancel_requested_at: 14:00:00}
            ("cancelled")
            seq 10 {call_id: put1, status: cancelled, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            seq 11 {call_id: pay1, status: cancelled, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            ("failed", "cancelled")
        "#]],
    );
}

#[test]
fn one_call_is_cancelled() {
    check_at_work(
        r#"
        acknowledge_cancel call_id=put1 fencing_token=4
        cancel_tool_call call_id=put2 reason="asked twice"
        cancel_tool_call call_id=put2
        claim_tool_call call_id=put2
        cancel_tool_call call_id=put1
        cancel_tool_call call_id=put1
        cancel_tool_call call_id=pay1
        complete_tool_call call_id=put1 fencing_token=4 result=1
        cancel_tool_call call_id=put1
        +1m
        cancel_tool_call call_id=pay1
        cancel_tool_call call_id=noname
        sql SELECT call_id, status FROM tool_calls
        sql SELECT status FROM sessions
        "#,
        expect![[r#"
            refused conflict: no cancellation of call put1 was requested (hint: use fail_tool_call; with retryable=true another worker can retry it)
            seq 7 {call_id: put2, status: cancelled, attempt: 0, cancel_requested_at: 14:00:00, error: asked twice}
            seq 7 again {call_id: put2, status: cancelled, attempt: 0, cancel_requested_at: 14:00:00, error: asked twice}
            refused conflict: call put2 is cancelled (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'put2'"`)
            seq 8 {call_id: put1, status: claimed, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            seq 8 again {call_id: put1, status: claimed, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            seq 9 {call_id: pay1, status: claimed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00}
            seq 10 {call_id: put1, status: succeeded, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:01:00, cancel_requested_at: 14:00:00, result: 1}
            refused conflict: call put1 is succeeded and cannot be cancelled (hint: only a call that has not ended can be cancelled)
            refused conflict: call pay1 cannot be cancelled: it may have run (hint: find out whether it ran, then record the outcome with `abide call settle_tool_call call_id=pay1 outcome=succeeded` or `abide call settle_tool_call call_id=pay1 outcome=failed`)
            refused not_found: there is no tool call noname (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            ("put1", "succeeded") ("pay1", "unknown") ("put2", "cancelled")
            ("suspended")
        "#]],
    );
}

#[test]
fn a_call_that_awaits_approval_is_cancelled() {
    check(
        r#"
        register_tool name=pay needs_approval=true
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={}
        cancel_tool_call call_id=c1
        decide_approval call_id=c1 decision=approve
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: awaiting_approval, attempt: 0}
            seq 4 {call_id: c1, status: cancelled, attempt: 0, cancel_requested_at: 14:00:00}
            refused conflict: approval ap#1 is cancelled
        "#]],
    );
}
