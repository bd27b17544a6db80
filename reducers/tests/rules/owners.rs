//! Who owns a session, and how a session ends or rests with the work for which it was made.
//!
//! Regression: `create_session` accepted an agent that cannot own a session, a run of one agent began in the session of another
//! without a word, sessions of delegated runs were active for ever, and only the session of a run was suspended while it waited.
//! The class: a session that says something else about its work than the runs and calls in it.

use expect_test::expect;

use crate::check;

#[test]
fn a_run_begins_in_a_session_of_its_agent() {
    check(
        r#"
        who ann agent tenant=acme
        register_agent name=one definition={}
        register_agent name=two definition={}
        register_agent name=hidden definition={"allow":{"scopes":[{"tenant":"zeta"}]}}
        create_session agent=one id=s
        start_run session_id=s agent=two id=r
        start_run session_id=s agent=nobody id=r
        create_session agent=label id=l
        start_run session_id=l agent=two id=r
        create_session agent=hidden id=h as=ann
        start_run session_id=h agent=two id=r as=ann
        start_run session_id=s agent=one id=r
        start_run session_id=s agent=two id=r
        sql SELECT id, agent, status FROM sessions ORDER BY id
        "#,
        expect![[r#"
            seq 1 {name: one, revision: 1, mode: primary}
            seq 2 {name: two, revision: 1, mode: primary}
            seq 3 {name: hidden, revision: 1, mode: primary}
            seq 4 {id: s, status: created}
            refused bad_transition: session s belongs to agent one, not to agent two (hint: create a session of agent two, or start a run of agent one)
            refused not_found: there is no agent nobody (hint: the query `SELECT name FROM agents` lists them)
            seq 5 {id: l, status: created}
            refused bad_transition: session l belongs to agent label, not to agent two (hint: create a session of agent two, or start a run of agent label)
            seq 6 {id: tenant=acme/h, status: created, scope: {"tenant":"acme"}}
            refused bad_transition: session tenant=acme/h belongs to agent hidden, not to agent two (hint: create a session of agent two, or start a run of agent hidden)
            seq 7 {id: r, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused conflict: run r belongs to another agent or parent (hint: omit id to get a generated one)
            ("l", "label", "created") ("s", "one", "active") ("tenant=acme/h", "hidden", "created")
        "#]],
    );
}

/// The agent to which the last run of a session was handed over may continue the conversation; others may not, nor may it after
/// the turn was handed back.
#[test]
fn an_agent_that_took_over_may_continue_the_session() {
    check(
        r#"
        register_agent name=one definition={"subagents":["two","three"]}
        register_agent name=two mode=all definition={}
        register_agent name=three mode=all definition={}
        create_session agent=one id=s
        start_run session_id=s id=r1
        claim_run id=r1 driver=d lease_ms=60000
        append_message session_id=s role=tool content=ok run_id=r1 run_fencing_token=6 data={"call_id":"r1~1.1","handoff":{"run_id":"r1","agent":"two","revision":1}}
        append_message session_id=s role=tool content=ok data={"call_id":"r1~1.2","handoff":{"run_id":"r1","agent":"three","revision":1}}
        sql SELECT run_id, agents, seq FROM active_agents
        finish_run id=r1 fencing_token=6 end=done
        start_run session_id=s agent=three id=r2
        start_run session_id=s agent=two id=r2
        claim_run id=r2 driver=d lease_ms=60000
        append_message session_id=s role=tool content=ok run_id=r2 run_fencing_token=11 data={"call_id":"r2~1.1","handoff":{"run_id":"r2","agent":"three"}}
        append_message session_id=s role=tool content=ok run_id=r2 run_fencing_token=11 data={"call_id":"r2~1.2","handoff":{"run_id":"r2"}}
        append_message session_id=s role=tool content=ok run_id=r2 run_fencing_token=11 data={"call_id":"r2~1.3","handoff":{"run_id":"r2"}}
        sql SELECT run_id, agents, seq FROM active_agents ORDER BY run_id
        finish_run id=r2 fencing_token=11 end=done
        start_run session_id=s agent=three id=r3
        start_run session_id=s agent=two id=r3
        abort_run id=r3
        start_run session_id=s id=r4
        replay
        "#,
        expect![[r#"
            seq 1 {name: one, revision: 1, mode: primary}
            seq 2 {name: two, revision: 1, mode: all}
            seq 3 {name: three, revision: 1, mode: all}
            seq 4 {id: s, status: created}
            seq 5 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 6, lease_expires_at: 14:01:00}
            seq 7 {id: 1}
            seq 8 {id: 2}
            ("r1", "[\"two\"]", 7)
            seq 9 {id: r1, revision: 1, status: done, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 6}
            refused bad_transition: session s belongs to agent one, not to agent three (hint: create a session of agent three, or start a run of agent one)
            seq 10 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 11 {id: r2, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 11, lease_expires_at: 14:01:00}
            seq 12 {id: 3}
            seq 13 {id: 4}
            seq 14 {id: 5}
            ("r1", "[\"two\"]", 7)
            seq 15 {id: r2, revision: 1, status: done, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 11}
            refused bad_transition: session s belongs to agent one, not to agent three (hint: create a session of agent three, or start a run of agent one)
            seq 16 {id: r3, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 17 {id: r3, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, reason: the run was aborted, error_code: aborted, error_message: the run was aborted}
            seq 18 {id: r4, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            the same up to 18
        "#]],
    );
}

/// A name that is not registered is a label, and so is that of an agent that the caller may not know.
#[test]
fn a_subagent_owns_no_session() {
    check(
        r#"
        who ann agent tenant=acme
        register_agent name=sub mode=subagent definition={}
        register_agent name=secret mode=subagent definition={"allow":{"scopes":[{"tenant":"zeta"}]}}
        create_session agent=sub id=s1
        open_session agent=sub id=s1
        create_session agent=sub id=s1 as=ann
        create_session agent=secret id=s2 as=ann
        create_session agent=missing id=s3 as=ann
        create_session agent=secret id=s4
        "#,
        expect![[r#"
            seq 1 {name: sub, revision: 1, mode: subagent}
            seq 2 {name: secret, revision: 1, mode: subagent}
            refused bad_transition: agent sub is subagent and cannot own a session (hint: set mode to primary or all)
            refused bad_transition: agent sub is subagent and cannot own a session (hint: set mode to primary or all)
            refused bad_transition: agent sub is subagent and cannot own a session (hint: set mode to primary or all)
            seq 3 {id: tenant=acme/s2, status: created, scope: {"tenant":"acme"}}
            seq 4 {id: tenant=acme/s3, status: created, scope: {"tenant":"acme"}}
            refused bad_transition: agent secret is subagent and cannot own a session (hint: set mode to primary or all)
        "#]],
    );
}

const DELEGATED: &str = r#"
    register_tool name=task effect=idempotent
    register_tool name=look effect=read_only
    register_agent name=boss definition={"subagents":["sub"]}
    register_agent name=sub mode=subagent definition={}
    create_session agent=boss id=s
    start_run session_id=s id=r
    claim_run id=r driver=d lease_ms=600000
    request_tool_call call_id=r~1 session_id=s tool_name=task arguments={} run_id=r run_fencing_token=7 claim_lease_ms=600000
    start_child_run call_id=r~1 fencing_token=8 agent=sub input=x
    claim_run id=r~1~run driver=d lease_ms=600000
"#;

fn check_delegated(script: &str, expected: expect_test::Expect) {
    let output = crate::play(&format!("{DELEGATED}{script}"));
    let answers: Vec<&str> = output.lines().skip(10).collect();
    expected.assert_eq(&format!("{}\n", answers.join("\n")));
}

#[test]
fn a_delegated_session_ends_with_its_run() {
    check_delegated(
        r#"
        request_tool_call call_id=c session_id=r~1 tool_name=look arguments={}
        set_timer id=t session_id=r~1 in_ms=60000
        finish_run id=r~1~run fencing_token=10 end=done output={"content":"found"}
        sql SELECT id, status, result FROM sessions ORDER BY id
        sql SELECT call_id, status FROM tool_calls ORDER BY call_id
        sql SELECT id, status FROM timers
        append_message session_id=r~1 role=user content=more
        replay
        "#,
        expect![[r#"
            seq 11 {call_id: c, status: pending, attempt: 0}
            seq 12 {id: t, status: pending, due_at: 14:01:00}
            seq 13 {id: r~1~run, revision: 1, status: done, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 10, parent_id: r}
            ("r~1", "completed", "{\"content\":\"found\"}") ("s", "active", null)
            ("c", "cancelled") ("r~1", "claimed")
            ("t", "cancelled")
            refused bad_transition: session r~1 is completed and accepts nothing more (hint: create a new session)
            the same up to 14
        "#]],
    );
    check_delegated(
        r#"
        finish_run id=r~1~run fencing_token=10 end=failed code=broken message="It broke."
        sql SELECT id, status, error_code, error_message FROM sessions ORDER BY id
        "#,
        expect![[r#"
            seq 11 {id: r~1~run, revision: 1, status: failed, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 10, parent_id: r, error_code: broken, error_message: It broke.}
            ("r~1", "failed", "broken", "It broke.") ("s", "active", null, null)
        "#]],
    );
    check_delegated(
        r#"
        request_supervisor_handoff session_id=r~1 reason=x required_capability=y
        finish_run id=r~1~run fencing_token=10 end=done
        sql SELECT id, status FROM sessions ORDER BY id
        sql SELECT status FROM handoff_requests
        replay
        "#,
        expect![[r#"
            seq 11 {id: ho#1, status: pending, reason: x}
            seq 12 {id: r~1~run, revision: 1, status: done, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 10, parent_id: r}
            ("r~1", "completed") ("s", "active")
            ("cancelled")
            the same up to 12
        "#]],
    );
    check_delegated(
        r#"
        abort_run id=r reason=enough
        sql SELECT id, status FROM sessions ORDER BY id
        finish_run id=r~1~run fencing_token=10 end=aborted
        sql SELECT id, status, error_code, error_message FROM sessions ORDER BY id
        replay
        "#,
        expect![[r#"
            seq 11 {id: r, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 7, lease_expires_at: 14:10:00, reason: enough}
            ("r~1", "active") ("s", "active")
            seq 12 {id: r~1~run, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 10, parent_id: r, reason: the run that delegated it has ended, error_code: aborted, error_message: the run that delegated it has ended}
            ("r~1", "failed", "aborted", "the run that delegated it has ended") ("s", "active", null, null)
            the same up to 12
        "#]],
    );
}

/// A cancelled session ends when its workers have stopped, although its run ends before.
#[test]
fn a_cancelled_delegated_session_waits_for_its_workers() {
    check_delegated(
        r#"
        request_tool_call call_id=c session_id=r~1 tool_name=look arguments={} claim_lease_ms=600000
        request_tool_call call_id=r~1~run~1 session_id=r~1 tool_name=look arguments={} needs_approval=true run_id=r~1~run run_fencing_token=10
        wait_run id=r~1~run fencing_token=10 interrupt={}
        cancel_session session_id=r~1 reason=stop
        sql SELECT s.status, s.error_code, r.status FROM sessions AS s JOIN runs AS r ON r.session_id = s.id WHERE s.id = 'r~1'
        acknowledge_cancel call_id=c fencing_token=11
        sql SELECT s.status, s.error_code, r.status FROM sessions AS s JOIN runs AS r ON r.session_id = s.id WHERE s.id = 'r~1'
        replay
        "#,
        expect![[r#"
            seq 11 {call_id: c, status: claimed, attempt: 1, fencing_token: 11, claimed_by: local, lease_expires_at: 14:10:00}
            seq 12 {call_id: r~1~run~1, status: awaiting_approval, attempt: 0}
            seq 13 {id: r~1~run, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 10, parent_id: r, reason: approval}
            seq 14 {id: r~1, status: suspended, cancel_requested_at: 14:00:00, parent_id: s, metadata: {"call_id":"r~1"}, reason: run r~1~run waits for approval}
            ("suspended", null, "aborted")
            seq 15 {call_id: c, status: cancelled, attempt: 1, fencing_token: 11, claimed_by: local, lease_expires_at: 14:10:00, cancel_requested_at: 14:00:00}
            ("failed", "cancelled", "aborted")
            the same up to 15
        "#]],
    );
}

/// Each decision for which a call can wait suspends a session without a run, and the last one activates it again. A session that
/// was suspended for another reason stays so.
#[test]
fn a_session_without_a_run_rests_while_it_waits() {
    check(
        r#"
        register_tool name=pay effect=at_most_once needs_approval=true
        register_tool name=send effect=at_most_once
        create_session agent=a id=s
        request_tool_call call_id=p1 session_id=s tool_name=pay arguments={}
        sql SELECT status, reason FROM sessions
        request_tool_call call_id=p2 session_id=s tool_name=pay arguments={}
        append_message session_id=s role=user content=hello
        decide_approval call_id=p1 decision=approve
        sql SELECT status, reason FROM sessions
        decide_approval call_id=p2 decision=reject
        sql SELECT status, reason FROM sessions
        request_tool_call call_id=p3 session_id=s tool_name=send arguments={} claim_lease_ms=1000
        +1s
        sql SELECT status, reason FROM sessions
        settle_tool_call call_id=p3 outcome=succeeded
        sql SELECT status, reason FROM sessions
        request_tool_call call_id=p4 session_id=s tool_name=pay arguments={}
        cancel_tool_call call_id=p4
        sql SELECT status, reason FROM sessions
        suspend_session session_id=s reason=lunch
        request_tool_call call_id=p5 session_id=s tool_name=pay arguments={}
        decide_approval call_id=p5 decision=approve
        sql SELECT status, reason FROM sessions
        resume_session session_id=s
        request_tool_call call_id=p6 session_id=s tool_name=pay arguments={}
        suspend_session session_id=s reason=dinner
        decide_approval call_id=p6 decision=approve
        sql SELECT status, reason FROM sessions
        replay
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {name: send, version: 1, effect: at_most_once}
            seq 3 {id: s, status: created}
            seq 4 {call_id: p1, status: awaiting_approval, attempt: 0}
            ("suspended", "a call waits for approval")
            seq 5 {call_id: p2, status: awaiting_approval, attempt: 0}
            seq 6 {id: 1}
            seq 7 {id: ap#1, call_id: p1, status: approved, decided_by: local}
            ("suspended", "a call waits for approval")
            seq 8 {id: ap#2, call_id: p2, status: rejected, decided_by: local}
            ("active", null)
            seq 9 {call_id: p3, status: claimed, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:00:01}
            ("suspended", "a call waits for settlement")
            seq 11 {call_id: p3, status: succeeded, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:00:01, settled_by: local}
            ("active", null)
            seq 12 {call_id: p4, status: awaiting_approval, attempt: 0}
            seq 13 {call_id: p4, status: cancelled, attempt: 0, cancel_requested_at: 14:00:01}
            ("active", null)
            seq 14 {id: s, status: suspended, reason: lunch}
            seq 15 {call_id: p5, status: awaiting_approval, attempt: 0}
            seq 16 {id: ap#3, call_id: p5, status: approved, decided_by: local}
            ("suspended", "lunch")
            seq 17 {id: s, status: active}
            seq 18 {call_id: p6, status: awaiting_approval, attempt: 0}
            seq 19 {id: s, status: suspended, reason: dinner}
            seq 20 {id: ap#4, call_id: p6, status: approved, decided_by: local}
            ("suspended", "dinner")
            the same up to 20
        "#]],
    );
}

/// A call can wait for a supervisor: the answer is its result. No worker claims it meanwhile, and nobody approves or settles it.
#[test]
fn the_answer_of_a_supervisor_is_the_result_of_the_call() {
    check(
        r#"
        register_tool name=ask effect=idempotent
        create_session agent=a id=s
        create_session agent=a id=other
        request_tool_call call_id=c1 session_id=s tool_name=ask arguments={} claim_lease_ms=1000
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_id=c1
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_fencing_token=4
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_id=c1 call_fencing_token=3
        request_supervisor_handoff session_id=other reason=why required_capability=boss call_id=c1 call_fencing_token=4
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_id=c1 call_fencing_token=4
        +5s
        sql SELECT status, lease_expires_at FROM tool_calls
        claim_tool_call call_id=c1
        complete_tool_call call_id=c1 fencing_token=4 result=1
        decide_approval call_id=c1 decision=approve
        settle_tool_call call_id=c1 outcome=succeeded
        claim_handoff id=ho#1
        resolve_handoff id=ho#1 resolution="Pay it."
        sql SELECT status, json_extract(result, '$.text', '$.content.status') FROM tool_calls
        sql SELECT count(*) FROM agent_state
        sql SELECT status FROM sessions WHERE id = 's'
        request_tool_call call_id=c2 session_id=s tool_name=ask arguments={} claim_lease_ms=1000
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_id=c2 call_fencing_token=8
        claim_handoff id=ho#2
        reject_handoff id=ho#2 reason="Not now."
        request_tool_call call_id=c3 session_id=s tool_name=ask arguments={} claim_lease_ms=1000
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_id=c3 call_fencing_token=12 expires_after_ms=1000
        +1s
        request_tool_call call_id=c4 session_id=s tool_name=ask arguments={} claim_lease_ms=1000
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_id=c4 call_fencing_token=15
        cancel_tool_call call_id=c4
        claim_handoff id=ho#4
        resolve_handoff id=ho#4 resolution="Late."
        sql SELECT call_id, status, error FROM tool_calls ORDER BY call_id
        sql SELECT role, kind, content FROM agent_state
        request_tool_call call_id=c5 session_id=s tool_name=ask arguments={} claim_lease_ms=1000
        request_supervisor_handoff session_id=s reason=why required_capability=boss call_id=c5 call_fencing_token=20
        cancel_session session_id=s
        sql SELECT call_id, status FROM tool_calls WHERE call_id = 'c5'
        sql SELECT status FROM handoff_requests ORDER BY seq DESC LIMIT 1
        replay
        "#,
        expect![[r#"
            seq 1 {name: ask, version: 1, effect: idempotent}
            seq 2 {id: s, status: created}
            seq 3 {id: other, status: created}
            seq 4 {call_id: c1, status: claimed, attempt: 1, fencing_token: 4, claimed_by: local, lease_expires_at: 14:00:01}
            refused bad_arguments: call_id and call_fencing_token must be given together (hint: the worker of the tool call gives both; other callers omit both)
            refused bad_arguments: call_id and call_fencing_token must be given together (hint: the worker of the tool call gives both; other callers omit both)
            refused lease_lost: call c1 is claimed by local under another token (hint: another worker may repeat this call; discard this result)
            refused bad_arguments: call c1 belongs to another session (hint: hand off its session, s)
            seq 5 {id: ho#1, status: pending, reason: why}
            ("awaiting_approval", null)
            refused conflict: call c1 is awaiting_approval (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'c1'"`)
            refused lease_lost: call c1 is awaiting_approval and not claimed (hint: another worker may repeat this call; discard this result)
            refused not_found: there is no approval for c1 (hint: the query `SELECT id, call_id, status FROM approvals` lists them)
            refused conflict: call c1 is awaiting_approval; only an unknown call can be settled
            seq 6 {id: ho#1, status: claimed, fencing_token: 6, claimed_by: local, lease_expires_at: 14:15:05, reason: why}
            seq 7 {id: ho#1, status: resolved, fencing_token: 6, claimed_by: local, lease_expires_at: 14:15:05, reason: why, resolution: Pay it.}
            ("succeeded", "[\"Pay it.\",\"resolved\"]")
            (0)
            ("active")
            seq 8 {call_id: c2, status: claimed, attempt: 1, fencing_token: 8, claimed_by: local, lease_expires_at: 14:00:06}
            seq 9 {id: ho#2, status: pending, reason: why}
            seq 10 {id: ho#2, status: claimed, fencing_token: 10, claimed_by: local, lease_expires_at: 14:15:05, reason: why}
            seq 11 {id: ho#2, status: rejected, fencing_token: 10, claimed_by: local, lease_expires_at: 14:15:05, reason: why, resolution: Not now.}
            seq 12 {call_id: c3, status: claimed, attempt: 1, fencing_token: 12, claimed_by: local, lease_expires_at: 14:00:06}
            seq 13 {id: ho#3, status: pending, expires_at: 14:00:06, reason: why}
            seq 15 {call_id: c4, status: claimed, attempt: 1, fencing_token: 15, claimed_by: local, lease_expires_at: 14:00:07}
            seq 16 {id: ho#4, status: pending, reason: why}
            seq 17 {call_id: c4, status: cancelled, attempt: 1, fencing_token: 15, claimed_by: local, cancel_requested_at: 14:00:06}
            seq 18 {id: ho#4, status: claimed, fencing_token: 18, claimed_by: local, lease_expires_at: 14:15:06, reason: why}
            seq 19 {id: ho#4, status: resolved, fencing_token: 18, claimed_by: local, lease_expires_at: 14:15:06, reason: why, resolution: Late.}
            ("c1", "succeeded", null) ("c2", "rejected", "Not now.") ("c3", "failed", "there was no answer in time") ("c4", "cancelled", null)
            ("supervisor", "handoff", "Late.")
            seq 20 {call_id: c5, status: claimed, attempt: 1, fencing_token: 20, claimed_by: local, lease_expires_at: 14:00:07}
            seq 21 {id: ho#5, status: pending, reason: why}
            seq 22 {id: s, status: failed, cancel_requested_at: 14:00:06, error_code: cancelled}
            ("c5", "cancelled")
            ("cancelled")
            the same up to 22
        "#]],
    );
}
