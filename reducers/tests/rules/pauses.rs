//! Pauses: requested, reached, resumed; only the driver reaches a stage, and only a resumption continues the run.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# pause_run
start_run {"session_id":"big","id":"mine"}
pause_run {"id":"mine"}
# record_pause
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
record_pause@admin {"id":"mine","fencing_token":"$seq","stage":"after_agent","reason":"x"}
# resume_run
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
record_pause@admin {"id":"mine","fencing_token":"$seq","stage":"after_agent","reason":"x"}
resume_run {"id":"mine"}
"#;

#[test]
fn a_run_pauses_when_it_reaches_the_requested_stage() {
    check(
        r#"
        register_agent name=support definition={"prompt":"be kind"}
        create_session agent=support id=s1
        start_run session_id=s1 id=r1 input=hello
        claim_run id=r1 driver=d lease_ms=60000
        record_pause id=r1 fencing_token=4 stage=after_agent
        sql SELECT status FROM runs
        pause_run id=r1 stage=after_tools reason=review
        pause_run id=r1 stage=after_tools reason=review
        record_pause id=r1 fencing_token=4 stage=after_agent
        record_pause id=r1 fencing_token=3 stage=after_tools
        record_pause id=r1 fencing_token=4 stage=after_tools
        pause_run id=r1
        claim_run id=r1 driver=d lease_ms=60000
        suspend_session session_id=s1
        resume_session session_id=s1
        sql SELECT status, reason, turn FROM runs
        resume_run id=r1
        resume_run id=r1
        sql SELECT number, turn, kind, data FROM run_events ORDER BY id
        sql SELECT status, requested_stage, stage, iteration, reason, requested_by FROM pauses
        pause_run id=r1
        resume_run id=r1
        abort_run id=r1
        pause_run id=r1
        resume_run id=r1
        pause_run id=r9
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:01:00}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:01:00}
            ("running")
            seq 6 {status: requested, reason: review}
            seq 6 again {status: requested, reason: review}
            seq 7 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:01:00}
            refused lease_lost: run r1 is driven by d under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            seq 8 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 4, reason: pause}
            seq 8 again {status: paused, reason: review}
            refused bad_transition: run r1 is waiting and cannot be claimed (hint: it can be claimed when the decision that it waits for is made)
            seq 9 {id: s1, status: suspended}
            seq 10 {id: s1, status: active}
            ("waiting", "pause", 1)
            seq 11 {id: r1, revision: 1, status: running, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4}
            seq 11 again {id: r1, revision: 1, status: running, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4}
            (1, 1, "status", "{\"status\":\"thinking\"}") (2, 1, "interrupt", "{\"action_requests\":[],\"iteration\":0,\"reason\":\"pause\",\"run_id\":\"r1\",\"session_id\":\"s1\",\"stage\":\"after_tools\",\"why\":\"review\"}") (3, 2, "status", "{\"status\":\"resuming\"}")
            ("resumed", "after_tools", "after_tools", 0, "review", "local")
            seq 12 {status: requested}
            seq 13 {id: r1, revision: 1, status: running, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4}
            seq 14 {id: r1, revision: 1, status: aborted, turn: 2, iterations: 0, tool_calls: 0, events: 5, fencing_token: 4, reason: the run was aborted, error_code: aborted, error_message: the run was aborted}
            refused bad_transition: run r1 is aborted and cannot be paused (hint: `abide agent run --session s1 support MESSAGE` starts another run in the session)
            refused bad_transition: run r1 is aborted, not paused (hint: `abide agent run --session s1 support MESSAGE` starts another run in the session)
            refused not_found: there is no run r9 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            the same up to 14
        "#]],
    );
}

#[test]
fn pauses_of_another_scope_are_not_found() {
    check(
        r#"
        who tom app tenant=acme
        who ann app tenant=zeta
        who sue supervisor tenant=acme
        who wim worker tenant=acme
        register_agent name=support definition={}
        create_session agent=support id=s1 as=tom
        start_run session_id=s1 id=r1 as=tom
        pause_run id=r1 as=ann
        pause_run id=tenant=acme/r1 as=ann
        pause_run id=r1 as=wim
        pause_run id=r1 as=sue
        resume_run id=r1 as=ann
        resume_run id=r1 as=sue
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: tenant=acme/s1, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=acme/r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused not_found: there is no run r1 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            refused not_found: there is no run tenant=acme/r1 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            refused denied: the role worker may not call pause_run (hint: `abide role list` shows what each role may call; an admin can assign another role)
            seq 5 {status: requested}
            refused not_found: there is no run r1 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            seq 6 {id: tenant=acme/r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
        "#]],
    );
}

/// A driver that knows the state as of an event records its next step without reading, unless others have changed it.
#[test]
fn a_step_is_refused_if_others_have_changed_the_session() {
    check(
        r#"
        register_agent name=support definition={"prompt":"be kind"}
        create_session agent=support id=s1
        start_run session_id=s1 id=r1 input=hello
        claim_run id=r1 driver=d lease_ms=1000
        record_run id=r1 fencing_token=4 unchanged_since=4
        heartbeat_run id=r1 fencing_token=4 lease_ms=1000
        record_run id=r1 fencing_token=4 unchanged_since=4
        append_message session_id=s1 role=user content=wait
        record_run id=r1 fencing_token=4 unchanged_since=7
        record_run id=r1 fencing_token=4 unchanged_since=8
        pause_run id=r1
        record_run id=r1 fencing_token=4 unchanged_since=9
        record_run id=r1 fencing_token=4 unchanged_since=10
        record_run id=r1 fencing_token=4
        sql SELECT events FROM runs
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 7 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 8 {id: 2}
            refused conflict: session s1 has changed in event 8 (hint: read the session and the pause of the run, then repeat the call with a newer unchanged_since, or without it)
            seq 9 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 10 {status: requested}
            refused conflict: the pause of run r1 has changed in event 10 (hint: read the session and the pause of the run, then repeat the call with a newer unchanged_since, or without it)
            seq 11 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 12 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            (1)
            the same up to 12
        "#]],
    );
}
