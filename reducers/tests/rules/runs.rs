//! Runs: one at a time per session, with one driver at a time; each turn ends once.

use std::fmt::Write as _;

use expect_test::expect;

use crate::{check, play};

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# start_run
start_run {"session_id":"big","input":"x"}
# claim_run
start_run {"session_id":"big"}
claim_run {"id":"$id","driver":"d","lease_ms":5000}
# claim_next_run
start_run {"session_id":"big"}
claim_next_run {"driver":"d","lease_ms":5000}
# heartbeat_run
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
heartbeat_run@admin {"id":"mine","fencing_token":"$seq","lease_ms":5000}
# record_run
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
record_run@admin {"id":"mine","fencing_token":"$seq","events":[{"kind":"token","data":{}}]}
# reserve_usage
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
reserve_usage@admin {"id":"mine","fencing_token":"$seq","tokens":10}
# withhold_answer
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
withhold_answer@admin {"id":"mine","fencing_token":"$seq","iteration":1,"original":{"text":"x"}}
# record_trace
start_run {"session_id":"big","id":"mine"}
abort_run {"id":"mine"}
record_trace {"id":"mine","trace_id":"x","spans":1,"status":"complete"}
# wait_run
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
wait_run@admin {"id":"mine","fencing_token":"$seq","interrupt":{}}
# finish_run
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
finish_run@admin {"id":"mine","fencing_token":"$seq","end":"done"}
# abort_run
start_run {"session_id":"big"}
abort_run {"id":"$id"}
# lapse_run
start_run {"session_id":"big"}
claim_run {"id":"$id","driver":"d","lease_ms":5}
+10
# expire_run
create_session {"agent":"support","id":"new","scope":{"tenant":"a"}}
start_run {"session_id":"new","id":"mine","deadline_ms":5}
suspend_session {"session_id":"new"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
wait_run@admin {"id":"mine","fencing_token":"$seq","interrupt":{}}
+10
# expire_wait
create_session {"agent":"support","id":"new","scope":{"tenant":"a"}}
start_run {"session_id":"new","id":"mine"}
suspend_session {"session_id":"new"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
wait_run@admin {"id":"mine","fencing_token":"$seq","interrupt":{},"ends_at":1}
+10
# start_child_run
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
request_tool_call@admin {"call_id":"mine~1","session_id":"big","tool_name":"put","arguments":{},"run_id":"mine","run_fencing_token":"$seq","claim_lease_ms":5000}
start_child_run@admin {"call_id":"mine~1","fencing_token":"$seq","agent":"support","input":"x"}
# abort_run
abort_run {"id":"grown"}
# finish_run
claim_run@local {"id":"grown","driver":"d","lease_ms":5000}
finish_run@local {"id":"grown","fencing_token":"$seq","end":"done"}
# start_child_run
claim_run@local {"id":"grown","driver":"d","lease_ms":5000}
request_tool_call@local {"call_id":"grown~2","session_id":"grown","tool_name":"put","arguments":{},"run_id":"grown","run_fencing_token":"$seq","claim_lease_ms":5000}
start_child_run@local {"call_id":"grown~2","fencing_token":"$seq","agent":"support","input":"x"}
# claim_run
abort_run {"id":"grown"}
start_run {"session_id":"big"}
claim_run {"id":"$id","driver":"d","lease_ms":5000}
# claim_next_run
abort_run {"id":"grown"}
start_run {"session_id":"big"}
claim_next_run {"driver":"d","lease_ms":5000}
"#;

const BEGUN: &str = r#"
    register_agent name=support definition={"prompt":"be kind"}
    create_session agent=support id=s1
    start_run session_id=s1 id=r1 input=hello
"#;

fn check_begun(script: &str, expected: expect_test::Expect) {
    check(&format!("{BEGUN}{script}"), expected);
}

#[test]
fn a_run_is_started_driven_and_completed() {
    check_begun(
        r#"
        sql SELECT role, content FROM agent_state
        start_run session_id=s1 id=r1 input=hello
        start_run session_id=s1 id=r2
        claim_run id=r1 driver=d lease_ms=1000
        record_run id=r1 fencing_token=4 events=[{"kind":"token","data":{"content":"hi"}}] spent={"iteration":true,"tool_calls":0,"input_tokens":9,"output_tokens":1}
        record_run id=r1 fencing_token=4 events=[{"kind":"done","data":{}}]
        record_run id=r1 fencing_token=4 events=[{"kind":"cheer","data":{}}]
        record_run id=r1 fencing_token=4 spent={"iteration":true,"tool_calls":-1}
        finish_run id=r1 fencing_token=4 end=done output={"content":"hi"} code=x
        finish_run id=r1 fencing_token=4 end=failed
        finish_run id=r1 fencing_token=4 end=done output={"content":"hi"}
        finish_run id=r1 fencing_token=4 end=done output={"content":"hi"}
        finish_run id=r1 fencing_token=4 end=aborted
        record_run id=r1 fencing_token=4
        abort_run id=r1
        sql SELECT number, turn, kind, data FROM run_events ORDER BY id
        sql SELECT input_tokens, output_tokens, usage_missing, output FROM runs
        start_run session_id=s1 id=r2 input=again
        raw UPDATE run_events SET data = '{}' WHERE number = 1
        raw UPDATE runs SET status = 'running' WHERE id = 'r1'
        raw INSERT INTO runs SELECT 'r3', session_id, agent, revision, parent_id, status, reason, driver, fencing_token, lease_expires_at, turn, iterations, tool_calls, input_tokens, output_tokens, usage_missing, cost_micros, events, deadline_at, abort_requested_at, output, error_code, error_message, created_at, ended_at, updated_at, seq, waited_us, waiting_since FROM runs WHERE id = 'r2'
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            ("user", "hello")
            seq 3 again {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused conflict: session s1 has run r1, which is running (hint: wait until it ends; `abide agent abort r1` ends it)
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 1, tool_calls: 0, events: 2, fencing_token: 4, lease_expires_at: 14:00:01}
            refused bad_arguments: done is recorded by finish_run and wait_run, once per turn (hint: omit it, and end the turn with one of these calls)
            refused bad_arguments: record_run: argument events[0].kind: "cheer" is not one of token, tool_call, tool_result, planning, step_complete, delegation, interrupt, status, usage, done, error, reasoning, restart, line (hint: record_run takes id, fencing_token, events?, spent?, lease_ms?, unchanged_since?)
            refused bad_arguments: tool_calls must be between 0 and 4294967295, not -1
            refused bad_arguments: code is valid only with end=failed (hint: omit code)
            refused bad_arguments: end=failed requires code (hint: code is the error code of the run, such as code=timeout)
            seq 6 {id: r1, revision: 1, status: done, turn: 1, iterations: 1, tool_calls: 0, events: 4, fencing_token: 4}
            seq 6 again {id: r1, revision: 1, status: done, turn: 1, iterations: 1, tool_calls: 0, events: 4, fencing_token: 4}
            refused lease_lost: run r1 is done and has no driver (hint: start_run starts another run in the session)
            refused lease_lost: run r1 is done and has no driver (hint: start_run starts another run in the session)
            refused bad_transition: run r1 is done and cannot be aborted
            (1, 1, "status", "{\"status\":\"thinking\"}") (2, 1, "token", "{\"content\":\"hi\"}") (3, 1, "status", "{\"status\":\"idle\"}") (4, 1, "done", "{\"assistant_data\":{\"content\":\"hi\"}}")
            (9, 1, 0, "{\"content\":\"hi\"}")
            seq 7 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            aborted: conflict: an event of a run cannot be changed
            aborted: bad_transition: the run has ended
            aborted: UNIQUE constraint failed: runs.session_id
            the same up to 7
        "#]],
    );
}

/// The token of any event of a caller made it a holder whose lease was lost, and the refusal
/// revealed the driver.
#[test]
fn only_the_claimant_of_a_run_learns_how_its_lease_was_lost() {
    check_begun(
        r#"
        who tom app +*
        claim_run id=r1 driver=d lease_ms=1000
        create_session id=s2 agent=support as=tom
        heartbeat_run id=r1 fencing_token=5 lease_ms=1000 as=tom
        heartbeat_run id=r1 fencing_token=5 lease_ms=1000
        heartbeat_run id=r1 fencing_token=4 lease_ms=1000
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: s2, status: created}
            refused denied: the lease on run r1 is held by another identity (hint: claim it with this identity first, when that lease has expired)
            refused lease_lost: run r1 is driven by d under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            seq 7 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            the same up to 7
        "#]],
    );
}

/// The cycle check stopped after 1,000 agents and accepted the definition.
#[test]
fn a_definition_that_delegates_to_too_many_agents_is_refused() {
    let world = abide_tests::world::World::new(abide_reducers::modules);
    abide_tests::world::run(async {
        let register = async |count: usize| {
            let names: Vec<String> = (0..count).map(|nth| format!("a{nth}")).collect();
            let definition = serde_json::json!({"subagents": names});
            let args = serde_json::json!({"name": "top", "definition": definition});
            world.call("register_agent", args).await.map(drop)
        };
        let refused = register(1_001).await.expect_err("over the limit");
        assert_eq!(refused.code, abide_schema::Code::LimitExceeded);
        register(1_000).await.expect("within the limit");
    });
}

#[test]
fn a_crashed_driver_is_replaced_and_refused() {
    check_begun(
        r#"
        claim_run id=r1 driver=one lease_ms=1000
        claim_run id=r1 driver=two lease_ms=1000
        claim_next_run driver=two lease_ms=1000
        +900ms
        heartbeat_run id=r1 fencing_token=4 lease_ms=1000
        +900ms
        claim_run id=r1 driver=two lease_ms=1000
        +200ms
        sql SELECT driver, lease_expires_at FROM runs
        heartbeat_run id=r1 fencing_token=4 lease_ms=1000
        claim_next_run driver=two lease_ms=1000
        record_run id=r1 fencing_token=4 events=[]
        finish_run id=r1 fencing_token=4 end=done
        claim_run id=r1 driver=two lease_ms=1000
        heartbeat_run id=r1 fencing_token=7 lease_ms=1000
        heartbeat_run id=r1 fencing_token=8 lease_ms=1000
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: one, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            refused conflict: run r1 is claimed by one (hint: it can be claimed when that lease expires)
            refused not_found: there is no run to claim (hint: watch for runs: `abide watch "SELECT id, agent FROM runs WHERE status = 'running' AND driver IS NULL"`)
            seq 5 {id: r1, revision: 1, status: running, driver: one, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01.900}
            refused conflict: run r1 is claimed by one (hint: it can be claimed when that lease expires)
            (null, null)
            refused lease_lost: run r1 is running and has no driver (hint: another driver may have claimed the run; stop, and claim it again to continue)
            seq 7 {id: r1, revision: 1, status: running, driver: two, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 7, lease_expires_at: 14:00:03}
            refused lease_lost: run r1 is driven by two under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            refused lease_lost: run r1 is driven by two under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            seq 8 {id: r1, revision: 1, status: running, driver: two, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 8, lease_expires_at: 14:00:03}
            refused lease_lost: run r1 is driven by two under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            seq 9 {id: r1, revision: 1, status: running, driver: two, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 8, lease_expires_at: 14:00:03}
            the same up to 9
        "#]],
    );
}

const NEEDS_APPROVAL: &str = r#"
    register_tool name=refund needs_approval=true
    request_tool_call call_id=c1 session_id=s1 tool_name=refund arguments={}
    request_tool_call call_id=c2 session_id=s1 tool_name=refund arguments={}
    claim_run id=r1 driver=d lease_ms=1000
"#;

#[test]
fn a_run_waits_for_every_decision_and_resumes() {
    check_begun(
        &format!(
            r#"{NEEDS_APPROVAL}
        wait_run id=r1 fencing_token=7 interrupt={{"tool_call_id":"c1"}}
        sql SELECT status, reason FROM sessions
        claim_run id=r1 driver=d lease_ms=1000
        decide_approval call_id=c1 decision=approve
        sql SELECT status, turn FROM runs
        resume_session session_id=s1
        sql SELECT status, turn FROM runs
        decide_approval call_id=c2 decision=reject
        sql SELECT r.status, r.turn, s.status FROM runs r JOIN sessions s
        claim_next_run driver=d lease_ms=1000
        wait_run id=r1 fencing_token=12 interrupt={{}}
        sql SELECT number, turn, kind, data FROM run_events ORDER BY id
        replay
        "#
        ),
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {name: refund, version: 1, effect: at_most_once}
            seq 5 {call_id: c1, status: awaiting_approval, attempt: 0}
            seq 6 {call_id: c2, status: awaiting_approval, attempt: 0}
            seq 7 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 7, lease_expires_at: 14:00:01}
            seq 8 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 7, reason: approval}
            ("suspended", "run r1 waits for approval")
            refused bad_transition: run r1 is waiting and cannot be claimed (hint: it can be claimed when the decision that it waits for is made)
            seq 9 {id: ap#1, call_id: c1, status: approved, decided_by: local}
            ("waiting", 1)
            seq 10 {id: s1, status: active}
            ("waiting", 1)
            seq 11 {id: ap#2, call_id: c2, status: rejected, decided_by: local}
            ("running", 2, "active")
            seq 12 {id: r1, revision: 1, status: running, driver: d, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 12, lease_expires_at: 14:00:01}
            seq 13 {id: r1, revision: 1, status: running, driver: d, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 12, lease_expires_at: 14:00:01}
            (1, 1, "status", "{\"status\":\"thinking\"}") (2, 1, "interrupt", "{\"tool_call_id\":\"c1\"}") (3, 2, "status", "{\"status\":\"resuming\"}")
            the same up to 13
        "#]],
    );
}

#[test]
fn a_run_waits_while_its_session_is_handed_off() {
    check_begun(
        r#"
        claim_run id=r1 driver=d lease_ms=1000
        suspend_session session_id=s1
        wait_run id=r1 fencing_token=4 interrupt={}
        resume_session session_id=s1
        sql SELECT status, turn FROM runs
        claim_run id=r1 driver=d lease_ms=1000
        request_supervisor_handoff session_id=s1 reason=angry required_capability=refunds
        start_run session_id=s1
        wait_run id=r1 fencing_token=8 interrupt={}
        claim_handoff id=ho#1 as=ann
        resolve_handoff id=ho#1 resolution=done as=ann
        sql SELECT status, turn FROM runs
        sql SELECT turn, kind, data FROM run_events ORDER BY id
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: s1, status: suspended}
            seq 6 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 4, reason: resume}
            seq 7 {id: s1, status: active}
            ("running", 2)
            seq 8 {id: r1, revision: 1, status: running, driver: d, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 8, lease_expires_at: 14:00:01}
            seq 9 {id: ho#1, status: pending, reason: angry}
            refused conflict: session s1 has run r1, which is running (hint: wait until it ends; `abide agent abort r1` ends it)
            seq 10 {id: r1, revision: 1, status: waiting, turn: 2, iterations: 0, tool_calls: 0, events: 4, fencing_token: 8, reason: handoff}
            seq 11 {id: ho#1, status: claimed, fencing_token: 11, claimed_by: ann, lease_expires_at: 14:15:00, reason: angry}
            seq 12 {id: ho#1, status: resolved, fencing_token: 11, claimed_by: ann, lease_expires_at: 14:15:00, reason: angry, resolution: done}
            ("running", 3)
            (1, "status", "{\"status\":\"thinking\"}") (1, "interrupt", "{}") (2, "status", "{\"status\":\"resuming\"}") (2, "interrupt", "{}") (3, "status", "{\"status\":\"resuming\"}")
        "#]],
    );
}

#[test]
fn aborted_at_once_without_a_driver() {
    check_begun(
        &format!(
            r#"{NEEDS_APPROVAL}
        wait_run id=r1 fencing_token=7 interrupt={{"tool_call_id":"c1"}}
        abort_run id=r1 reason="changed my mind"
        abort_run id=r1
        sql SELECT status, reason FROM sessions
        sql SELECT call_id, status FROM tool_calls
        sql SELECT turn, kind, data FROM run_events ORDER BY id
        "#
        ),
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {name: refund, version: 1, effect: at_most_once}
            seq 5 {call_id: c1, status: awaiting_approval, attempt: 0}
            seq 6 {call_id: c2, status: awaiting_approval, attempt: 0}
            seq 7 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 7, lease_expires_at: 14:00:01}
            seq 8 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 7, reason: approval}
            seq 9 {id: r1, revision: 1, status: aborted, turn: 2, iterations: 0, tool_calls: 0, events: 4, fencing_token: 7, reason: changed my mind, error_code: aborted, error_message: changed my mind}
            seq 9 again {id: r1, revision: 1, status: aborted, turn: 2, iterations: 0, tool_calls: 0, events: 4, fencing_token: 7, reason: changed my mind, error_code: aborted, error_message: changed my mind}
            ("active", null)
            ("c1", "cancelled") ("c2", "cancelled")
            (1, "status", "{\"status\":\"thinking\"}") (1, "interrupt", "{\"tool_call_id\":\"c1\"}") (2, "status", "{\"status\":\"idle\"}") (2, "error", "{\"code\":\"aborted\",\"message\":\"changed my mind\"}")
        "#]],
    );
}

/// Regression: after the abort of a waiting run, its session stayed suspended. A session that someone else suspended
/// stays so.
#[test]
fn an_abort_leaves_a_session_suspended_that_its_run_did_not_suspend() {
    check_begun(
        r#"
        claim_run id=r1 driver=d lease_ms=1000
        suspend_session session_id=s1 reason="until Monday"
        wait_run id=r1 fencing_token=4 interrupt={}
        abort_run id=r1
        sql SELECT status, reason FROM sessions
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: s1, status: suspended, reason: until Monday}
            seq 6 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 4, reason: resume}
            seq 7 {id: r1, revision: 1, status: aborted, turn: 2, iterations: 0, tool_calls: 0, events: 4, fencing_token: 4, reason: the run was aborted, error_code: aborted, error_message: the run was aborted}
            ("suspended", "until Monday")
            the same up to 7
        "#]],
    );
}

#[test]
fn aborted_by_its_driver() {
    check_begun(
        r#"
        claim_run id=r1 driver=d lease_ms=1000
        abort_run id=r1 reason="changed my mind"
        heartbeat_run id=r1 fencing_token=4 lease_ms=1000
        finish_run id=r1 fencing_token=4 end=aborted
        sql SELECT turn, kind, data FROM run_events ORDER BY id
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01, reason: changed my mind}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01, reason: changed my mind}
            seq 7 {id: r1, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4, reason: changed my mind, error_code: aborted, error_message: changed my mind}
            (1, "status", "{\"status\":\"thinking\"}") (1, "status", "{\"status\":\"idle\"}") (1, "error", "{\"code\":\"aborted\",\"message\":\"changed my mind\"}")
        "#]],
    );
}

/// Regression: the run of a driver that was gone stayed `running` after an abort until another driver claimed it, and where agents are
/// not served nobody does.
#[test]
fn an_aborted_run_ends_when_the_lease_of_its_driver_expires() {
    check_begun(
        r#"
        claim_run id=r1 driver=d lease_ms=1000
        abort_run id=r1 reason="changed my mind"
        +2s
        finish_run id=r1 fencing_token=4 end=aborted
        sql SELECT status, driver, error_message FROM runs
        start_run session_id=s1 id=r2
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01, reason: changed my mind}
            seq 6 again {id: r1, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4, reason: changed my mind, error_code: aborted, error_message: changed my mind}
            ("aborted", null, "changed my mind")
            seq 7 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            the same up to 7
        "#]],
    );
}

/// A driver that did not know of the abort left a call that nothing ended: it stayed pending for ever, and a thousand of them hid the
/// calls of other tenants from the workers of the tool.
#[test]
fn a_call_that_is_requested_after_the_abort_of_its_run_is_cancelled() {
    check_begun(
        r#"
        register_tool name=pay
        claim_run id=r1 driver=d lease_ms=1000
        abort_run id=r1
        request_tool_call call_id=r1~1.1 session_id=s1 tool_name=pay arguments={} run_id=r1 run_fencing_token=5
        sql SELECT call_id, status, error FROM tool_calls
        claim_next_tool_call tools=["pay"]
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {name: pay, version: 1, effect: at_most_once}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 5, lease_expires_at: 14:00:01}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 5, lease_expires_at: 14:00:01}
            seq 7 {call_id: r1~1.1, status: cancelled, attempt: 0, cancel_requested_at: 14:00:00, error: the run was aborted before the call was requested}
            ("r1~1.1", "cancelled", "the run was aborted before the call was requested")
            refused not_found: there is no pending call of pay (hint: watch for calls: `abide watch "SELECT call_id, tool_name FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL"`)
            the same up to 7
        "#]],
    );
}

#[test]
fn a_run_ends_with_its_session() {
    check_begun(
        r#"
        complete_session session_id=s1
        sql SELECT status, error_message FROM runs
        create_session agent=support id=s2
        start_run session_id=s2 id=r2
        claim_run id=r2 driver=d lease_ms=1000
        cancel_session session_id=s2
        heartbeat_run id=r2 fencing_token=7 lease_ms=1000
        finish_run id=r2 fencing_token=7 end=aborted
        sql SELECT id, status, error_code FROM runs
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: s1, status: completed}
            ("aborted", "the session has ended")
            seq 5 {id: s2, status: created}
            seq 6 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 7 {id: r2, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 7, lease_expires_at: 14:00:01}
            seq 8 {id: s2, status: failed, cancel_requested_at: 14:00:00, error_code: cancelled}
            seq 9 {id: r2, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 7, lease_expires_at: 14:00:01, reason: the session has ended}
            seq 10 {id: r2, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 7, reason: the session has ended, error_code: aborted, error_message: the session has ended}
            ("r1", "aborted", "aborted") ("r2", "aborted", "aborted")
        "#]],
    );
}

#[test]
fn runs_of_another_scope_are_not_found() {
    check_begun(
        r#"
        who eve app tenant=evil
        start_run session_id=s1 as=eve
        claim_run id=r1 driver=d lease_ms=1000 as=eve
        claim_next_run driver=d lease_ms=1000 as=eve
        abort_run id=r1 as=eve
        start_run session_id=s1 id=r1 as=eve
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused not_found: there is no session s1 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no run r1 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            refused not_found: there is no run to claim (hint: watch for runs: `abide watch "SELECT id, agent FROM runs WHERE status = 'running' AND driver IS NULL"`)
            refused not_found: there is no run r1 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            refused not_found: there is no session s1 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
        "#]],
    );
}

/// Usage is reserved in the budgets of a run and of the runs above it, and settled with what was reported.
#[test]
fn usage_is_reserved_before_a_model_is_asked() {
    check(
        r#"
        register_tool name=task
        register_agent name=lead definition={"limits":{"tokens":100,"cost_usd":0.001}}
        register_agent name=clerk definition={} mode=subagent
        create_session agent=lead id=s1
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        request_tool_call call_id=r1~1 session_id=s1 tool_name=task arguments={} run_id=r1 run_fencing_token=6 claim_lease_ms=1000
        start_child_run call_id=r1~1 fencing_token=7 agent=clerk input=x
        claim_run id=r1~1~run driver=d lease_ms=1000
        reserve_usage id=r1 fencing_token=6 tokens=-1
        reserve_usage id=r1 fencing_token=6 tokens=60 cost_micros=10
        reserve_usage id=r1~1~run fencing_token=9 tokens=50
        reserve_usage id=r1~1~run fencing_token=9 tokens=40
        reserve_usage id=r1~1~run fencing_token=9 tokens=30
        sql SELECT run_id, tokens, cost_micros FROM reservations ORDER BY 1
        sql SELECT run_id, token_limit, cost_limit_micros, tokens, cost_micros, reserved_tokens, reserved_cost_micros FROM run_budgets
        record_run id=r1~1~run fencing_token=9 spent={"iteration":true,"input_tokens":20,"output_tokens":5,"cost_micros":7}
        record_run id=r1 fencing_token=6 spent={"iteration":true}
        sql SELECT run_id, token_limit, cost_limit_micros, tokens, cost_micros, reserved_tokens, reserved_cost_micros FROM run_budgets
        reserve_usage id=r1~1~run fencing_token=9 tokens=500
        record_run id=r1~1~run fencing_token=9 spent={"iteration":true,"input_tokens":20,"output_tokens":5}
        reserve_usage id=r1~1~run fencing_token=9 tokens=1
        finish_run id=r1~1~run fencing_token=9 end=failed code=token_limit
        sql SELECT count(*) FROM reservations
        replay
        "#,
        expect![[r#"
            seq 1 {name: task, version: 1, effect: at_most_once}
            seq 2 {name: lead, revision: 1, mode: primary}
            seq 3 {name: clerk, revision: 1, mode: subagent}
            seq 4 {id: s1, status: created}
            seq 5 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 6, lease_expires_at: 14:00:01}
            seq 7 {call_id: r1~1, status: claimed, attempt: 1, fencing_token: 7, claimed_by: local, lease_expires_at: 14:00:01}
            seq 8 {id: r1~1~run, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1, parent_id: r1}
            seq 9 {id: r1~1~run, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 9, lease_expires_at: 14:00:01, parent_id: r1}
            refused bad_arguments: tokens must be between 0 and 4294967295, not -1
            seq 10 {}
            refused rate_limited: run r1 has 100 tokens left, of which 60 are reserved by other requests (hint: reserve again when run_budgets has changed)
            seq 11 {}
            seq 12 {}
            ("r1", 60, 10) ("r1~1~run", 30, 0)
            ("r1", 100, 1000, 0, 0, 90, 10)
            seq 13 {id: r1~1~run, revision: 1, status: running, driver: d, turn: 1, iterations: 1, tool_calls: 0, events: 1, fencing_token: 9, lease_expires_at: 14:00:01, parent_id: r1}
            seq 14 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 1, tool_calls: 0, events: 3, fencing_token: 6, lease_expires_at: 14:00:01}
            ("r1", 100, 1000, 85, 17, 0, 0)
            seq 15 {}
            seq 16 {id: r1~1~run, revision: 1, status: running, driver: d, turn: 1, iterations: 2, tool_calls: 0, events: 1, fencing_token: 9, lease_expires_at: 14:00:01, parent_id: r1}
            refused limit_exceeded: run r1 has reached its limit of 100 tokens (hint: limits.tokens and limits.cost_usd of its agent include delegated runs)
            seq 17 {id: r1~1~run, revision: 1, status: failed, turn: 1, iterations: 2, tool_calls: 0, events: 3, fencing_token: 9, parent_id: r1, error_code: token_limit, error_message: token_limit}
            (0)
            the same up to 17
        "#]],
    );
}

#[test]
fn a_reservation_ends_with_the_lease_of_its_run() {
    check(
        r#"
        register_agent name=lead definition={"limits":{"tokens":100}}
        create_session agent=lead id=s1
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        reserve_usage id=r1 fencing_token=4 tokens=60
        reserve_usage id=r1 fencing_token=4 tokens=70
        sql SELECT reserved_tokens FROM run_budgets
        +1s
        sql SELECT reserved_tokens, (SELECT count(*) FROM reservations) FROM run_budgets
        reserve_usage id=r1 fencing_token=4 tokens=60
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {}
            seq 6 {}
            (70)
            (0, 0)
            refused lease_lost: run r1 is running and has no driver (hint: another driver may have claimed the run; stop, and claim it again to continue)
        "#]],
    );
}

/// The parent of a run that waits can wait, too; it continues when the child does.
#[test]
fn a_waiting_child_makes_its_parent_wait() {
    check(
        r#"
        register_tool name=task effect=idempotent
        register_tool name=pay needs_approval=true
        register_agent name=lead definition={"limits":{"wall_clock_seconds":60,"wall_clock_counts_waits":true}}
        register_agent name=clerk definition={} mode=subagent
        create_session agent=lead id=s1
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        request_tool_call call_id=r1~1 session_id=s1 tool_name=task arguments={} run_id=r1 run_fencing_token=7 claim_lease_ms=1000
        start_child_run call_id=r1~1 fencing_token=8 agent=clerk input=x deadline_ms=90000
        sql SELECT deadline_at - created_at FROM runs WHERE parent_id = 'r1'
        claim_run id=r1~1~run driver=d lease_ms=1000
        wait_run id=r1 fencing_token=7 interrupt={}
        request_tool_call call_id=r1~1~run~1 session_id=r1~1 tool_name=pay arguments={} run_id=r1~1~run run_fencing_token=10
        wait_run id=r1~1~run fencing_token=10 interrupt={}
        wait_run id=r1 fencing_token=7 interrupt={}
        sql SELECT id, status, reason, turn FROM runs ORDER BY id
        sql SELECT id, status, reason FROM sessions ORDER BY id
        decide_approval call_id=r1~1~run~1 decision=approve
        sql SELECT id, status, reason, turn FROM runs ORDER BY id
        sql SELECT number, kind, data FROM run_events WHERE run_id = 'r1' ORDER BY number
        replay
        "#,
        expect![[r#"
            seq 1 {name: task, version: 1, effect: idempotent}
            seq 2 {name: pay, version: 1, effect: at_most_once}
            seq 3 {name: lead, revision: 1, mode: primary}
            seq 4 {name: clerk, revision: 1, mode: subagent}
            seq 5 {id: s1, status: created}
            seq 6 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 7 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 7, lease_expires_at: 14:00:01}
            seq 8 {call_id: r1~1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: local, lease_expires_at: 14:00:01}
            seq 9 {id: r1~1~run, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1, parent_id: r1}
            (60000000)
            seq 10 {id: r1~1~run, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 10, lease_expires_at: 14:00:01, parent_id: r1}
            seq 11 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 7, lease_expires_at: 14:00:01}
            seq 12 {call_id: r1~1~run~1, status: awaiting_approval, attempt: 0}
            seq 13 {id: r1~1~run, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 10, parent_id: r1, reason: approval}
            seq 14 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 5, fencing_token: 7, reason: approval}
            ("r1", "waiting", "approval", 1) ("r1~1~run", "waiting", "approval", 1)
            ("r1~1", "suspended", "run r1~1~run waits for approval") ("s1", "suspended", "run r1 waits for approval")
            seq 15 {id: ap#1, call_id: r1~1~run~1, status: approved, decided_by: local}
            ("r1", "running", null, 2) ("r1~1~run", "running", null, 2)
            (1, "status", "{\"status\":\"thinking\"}") (2, "delegation", "{\"from_agent\":\"lead\",\"run_id\":\"r1~1~run\",\"session_id\":\"r1~1\",\"task\":\"x\",\"to_agent\":\"clerk\"}") (3, "status", "{\"child\":{\"agent\":\"clerk\",\"data\":{\"status\":\"thinking\"},\"event\":\"status\",\"number\":1,\"run_id\":\"r1~1~run\",\"session_id\":\"r1~1\",\"turn\":1},\"status\":\"delegating\"}") (4, "status", "{\"child\":{\"agent\":\"clerk\",\"data\":{},\"event\":\"interrupt\",\"number\":2,\"run_id\":\"r1~1~run\",\"session_id\":\"r1~1\",\"turn\":1},\"status\":\"delegating\"}") (5, "interrupt", "{}") (6, "status", "{\"child\":{\"agent\":\"clerk\",\"data\":{\"status\":\"resuming\"},\"event\":\"status\",\"number\":3,\"run_id\":\"r1~1~run\",\"session_id\":\"r1~1\",\"turn\":2},\"status\":\"delegating\"}") (7, "status", "{\"status\":\"resuming\"}")
            the same up to 15
        "#]],
    );
}

/// Only the holder of the run records it, and its event does not name the session: events of a session are visible to
/// everyone in its scope.
#[test]
fn the_original_of_a_withheld_answer_is_not_in_the_events_of_its_session() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1 scope={"tenant":"a"}
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        withhold_answer id=r1 fencing_token=4 iteration=1 original={"text":"swordfish"}
        withhold_answer id=r1 fencing_token=4 iteration=1 original={"text":"swordfish"}
        withhold_answer id=r1 fencing_token=4 iteration=1 original={"text":"other"}
        withhold_answer id=r1 fencing_token=3 iteration=2 original={"text":"other"}
        sql SELECT session_id, arguments FROM events WHERE reducer = 'withhold_answer'
        who tom app +* tenant=a
        withhold_answer id=r1 fencing_token=4 iteration=2 original={"text":"other"} as=tom
        sql SELECT run_id, iteration, original FROM withheld_answers
        replay
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created, scope: {"tenant":"a"}}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {}
            seq 5 again {}
            refused conflict: answer 1 of run r1 is stored with another original text (hint: the first original stands; record the next answer under its own number)
            refused lease_lost: run r1 is driven by d under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            (null, "{\"fencing_token\":4,\"id\":\"r1\",\"iteration\":1,\"original\":{\"text\":\"swordfish\"}}")
            refused denied: the lease on run r1 is held by another identity (hint: claim it with this identity first, when that lease has expired)
            ("r1", 1, "{\"text\":\"swordfish\"}")
            the same up to 6
        "#]],
    );
}

/// A program reports its tool calls while it runs. They consumed its whole reservation, and its usage counted again at
/// its end. An answer of unknown usage, such as that of a guardrail, counts as reserved.
#[test]
fn calls_alone_settle_no_reservation() {
    check(
        r#"
        register_agent name=lead definition={"limits":{"tokens":1000}}
        create_session agent=lead id=s1
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        reserve_usage id=r1 fencing_token=4 tokens=500
        record_run id=r1 fencing_token=4 spent={"tool_calls":1}
        sql SELECT tokens, reserved_tokens FROM run_budgets
        record_run id=r1 fencing_token=4 spent={"iteration":true,"input_tokens":20,"output_tokens":10}
        sql SELECT tokens, reserved_tokens FROM run_budgets
        reserve_usage id=r1 fencing_token=4 tokens=500
        record_run id=r1 fencing_token=4 spent={}
        sql SELECT tokens, reserved_tokens FROM run_budgets
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 1, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            (0, 500)
            seq 7 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 1, tool_calls: 1, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            (30, 0)
            seq 8 {}
            seq 9 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 1, tool_calls: 1, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            (530, 0)
        "#]],
    );
}

/// Regression: a limit of the agent ended a run only while it had a driver, so a run that waited for a decision had no
/// limit. Its end frees the session, cancels the call that waits, and ends what it delegated.
#[test]
fn a_run_that_waits_ends_at_the_limit_of_its_agent() {
    check(
        r#"
        register_tool name=pay needs_approval=true
        register_agent name=clerk definition={"limits":{"wall_clock_seconds":60,"wall_clock_counts_waits":true}}
        create_session agent=clerk id=s1
        start_run session_id=s1 id=r1 deadline_ms=90000
        sql SELECT deadline_at - created_at FROM runs
        claim_run id=r1 driver=d lease_ms=1000
        request_tool_call call_id=r1~1 session_id=s1 tool_name=pay arguments={} run_id=r1 run_fencing_token=5
        wait_run id=r1 fencing_token=5 interrupt={}
        expire_run id=r1 deadline_at=1795269660000000
        +59s
        sql SELECT status FROM runs
        +1s
        sql SELECT status, reason, error_code, error_message, turn FROM runs
        sql SELECT status FROM sessions
        sql SELECT status FROM tool_calls
        sql SELECT turn, kind, data FROM run_events ORDER BY number
        sql SELECT seq, caller, session_id, arguments FROM events WHERE reducer = 'expire_run'
        decide_approval call_id=r1~1 decision=approve
        start_run session_id=s1 id=r2
        replay
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {name: clerk, revision: 1, mode: primary}
            seq 3 {id: s1, status: created}
            seq 4 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            (60000000)
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 5, lease_expires_at: 14:00:01}
            seq 6 {call_id: r1~1, status: awaiting_approval, attempt: 0}
            seq 7 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 5, reason: approval}
            refused denied: expire_run can only be called by the engine
            ("waiting")
            ("failed", null, "execution_timeout", "the run has reached its time limit", 2)
            ("active")
            ("cancelled")
            (1, "status", "{\"status\":\"thinking\"}") (1, "interrupt", "{}") (2, "status", "{\"status\":\"idle\"}") (2, "error", "{\"code\":\"execution_timeout\",\"message\":\"the run has reached its time limit\"}")
            (8, "system", "s1", "{\"deadline_at\":1795269660000000,\"id\":\"r1\"}")
            refused conflict: call r1~1 was cancelled, because run r1 has ended (failed): the run has reached its time limit (hint: start another run in the session; a new call asks for a new approval)
            seq 9 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            the same up to 9
        "#]],
    );
}

/// Regression: the limit of an agent that has taken over a turn had no effect while the run waited. The driver knows it, and
/// reports it with each wait: it ends that wait, and no later one.
#[test]
fn a_run_that_waits_ends_at_the_limit_of_the_agent_that_has_taken_over() {
    check(
        r#"
        register_tool name=pay needs_approval=true
        register_agent name=clerk definition={}
        create_session agent=clerk id=s1
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        request_tool_call call_id=r1~1 session_id=s1 tool_name=pay arguments={} run_id=r1 run_fencing_token=5
        wait_run id=r1 fencing_token=5 interrupt={} ends_at=1795269660000000
        sql SELECT run_id, session_id, ends_at FROM wait_limits
        expire_wait run_id=r1 ends_at=1795269660000000
        decide_approval call_id=r1~1 decision=approve
        +60s
        sql SELECT status, (SELECT count(*) FROM wait_limits) FROM runs
        claim_run id=r1 driver=d lease_ms=1000
        request_tool_call call_id=r1~2 session_id=s1 tool_name=pay arguments={} run_id=r1 run_fencing_token=10
        wait_run id=r1 fencing_token=10 interrupt={} ends_at=1795269720000000
        +59s
        sql SELECT status FROM runs
        +1s
        sql SELECT status, reason, error_code, error_message, turn FROM runs
        sql SELECT status FROM sessions
        sql SELECT call_id, status FROM tool_calls ORDER BY call_id
        sql SELECT count(*) FROM wait_limits
        start_run session_id=s1 id=r2
        claim_run id=r2 driver=d lease_ms=1000
        record_pause id=r2 fencing_token=15 stage=after_agent reason=x ends_at=1795269730000000
        +10s
        sql SELECT id, status, error_code FROM runs ORDER BY id
        replay
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: at_most_once}
            seq 2 {name: clerk, revision: 1, mode: primary}
            seq 3 {id: s1, status: created}
            seq 4 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 5, lease_expires_at: 14:00:01}
            seq 6 {call_id: r1~1, status: awaiting_approval, attempt: 0}
            seq 7 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 5, reason: approval}
            ("r1", "s1", 1795269660000000)
            refused denied: expire_wait can only be called by the engine
            seq 8 {id: ap#1, call_id: r1~1, status: approved, decided_by: local}
            ("running", 0)
            seq 10 {id: r1, revision: 1, status: running, driver: d, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 10, lease_expires_at: 14:01:01}
            seq 11 {call_id: r1~2, status: awaiting_approval, attempt: 0}
            seq 12 {id: r1, revision: 1, status: waiting, turn: 2, iterations: 0, tool_calls: 0, events: 4, fencing_token: 10, reason: approval}
            ("waiting")
            ("failed", null, "execution_timeout", "the run has reached its time limit", 3)
            ("active")
            ("r1~1", "cancelled") ("r1~2", "cancelled")
            (0)
            seq 14 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 15 {id: r2, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 15, lease_expires_at: 14:02:01}
            seq 16 {id: r2, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 15, reason: pause}
            ("r1", "failed", "execution_timeout") ("r2", "failed", "execution_timeout")
            the same up to 17
        "#]],
    );
}

/// The limit of a delegated run, its own or that of the run above it, ends it while it waits; the run above continues
/// with the error. A limit above ends both. Without `wall_clock_counts_waits` no limit ends a wait, and both runs count theirs.
#[test]
fn a_delegated_run_that_waits_ends_at_its_limit() {
    let script = |waits: bool, limits: &str| {
        format!(
            r#"
        register_tool name=task effect=idempotent
        register_agent name=lead definition={{"limits":{{"wall_clock_seconds":60,"wall_clock_counts_waits":{waits}}}}}
        register_agent name=clerk definition={limits} mode=subagent
        create_session agent=lead id=s1
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        request_tool_call call_id=r1~1 session_id=s1 tool_name=task arguments={{}} run_id=r1 run_fencing_token=6 claim_lease_ms=1000
        start_child_run call_id=r1~1 fencing_token=7 agent=clerk input=x
        claim_run id=r1~1~run driver=d lease_ms=1000
        record_pause id=r1~1~run fencing_token=9 stage=after_agent reason=look
        wait_run id=r1 fencing_token=6 interrupt={{}}
        +30s
        sql SELECT id, status, reason, error_code FROM runs ORDER BY id
        +30s
        sql SELECT id, status, reason, error_code FROM runs ORDER BY id
        resume_run id=r1~1~run
        sql SELECT id, status, waited_us, waiting_since FROM runs ORDER BY id
        replay
        "#
        )
    };
    check(
        &script(true, r#"{"limits":{"wall_clock_seconds":30,"wall_clock_counts_waits":true}}"#),
        expect![[r#"
            seq 1 {name: task, version: 1, effect: idempotent}
            seq 2 {name: lead, revision: 1, mode: primary}
            seq 3 {name: clerk, revision: 1, mode: subagent}
            seq 4 {id: s1, status: created}
            seq 5 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 6, lease_expires_at: 14:00:01}
            seq 7 {call_id: r1~1, status: claimed, attempt: 1, fencing_token: 7, claimed_by: local, lease_expires_at: 14:00:01}
            seq 8 {id: r1~1~run, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1, parent_id: r1}
            seq 9 {id: r1~1~run, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 9, lease_expires_at: 14:00:01, parent_id: r1}
            seq 10 {id: r1~1~run, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 9, parent_id: r1, reason: pause}
            seq 11 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 5, fencing_token: 6, reason: delegation}
            ("r1", "running", null, null) ("r1~1~run", "failed", null, "execution_timeout")
            ("r1", "running", null, null) ("r1~1~run", "failed", null, "execution_timeout")
            refused bad_transition: run r1~1~run is failed, not paused (hint: `abide agent run --session r1~1 clerk MESSAGE` starts another run in the session)
            ("r1", "running", 30000000, null) ("r1~1~run", "failed", 30000000, null)
            the same up to 13
        "#]],
    );
    check(
        &script(true, "{}"),
        expect![[r#"
            seq 1 {name: task, version: 1, effect: idempotent}
            seq 2 {name: lead, revision: 1, mode: primary}
            seq 3 {name: clerk, revision: 1, mode: subagent}
            seq 4 {id: s1, status: created}
            seq 5 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 6, lease_expires_at: 14:00:01}
            seq 7 {call_id: r1~1, status: claimed, attempt: 1, fencing_token: 7, claimed_by: local, lease_expires_at: 14:00:01}
            seq 8 {id: r1~1~run, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1, parent_id: r1}
            seq 9 {id: r1~1~run, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 9, lease_expires_at: 14:00:01, parent_id: r1}
            seq 10 {id: r1~1~run, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 9, parent_id: r1, reason: pause}
            seq 11 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 5, fencing_token: 6, reason: delegation}
            ("r1", "waiting", "delegation", null) ("r1~1~run", "waiting", "pause", null)
            ("r1", "failed", null, "execution_timeout") ("r1~1~run", "aborted", "the run that delegated it has ended", "aborted")
            refused bad_transition: run r1~1~run is aborted, not paused (hint: `abide agent run --session r1~1 clerk MESSAGE` starts another run in the session)
            ("r1", "failed", 60000000, null) ("r1~1~run", "aborted", 60000000, null)
            the same up to 13
        "#]],
    );
    check(
        &script(false, r#"{"limits":{"wall_clock_seconds":30}}"#),
        expect![[r#"
        seq 1 {name: task, version: 1, effect: idempotent}
        seq 2 {name: lead, revision: 1, mode: primary}
        seq 3 {name: clerk, revision: 1, mode: subagent}
        seq 4 {id: s1, status: created}
        seq 5 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
        seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 6, lease_expires_at: 14:00:01}
        seq 7 {call_id: r1~1, status: claimed, attempt: 1, fencing_token: 7, claimed_by: local, lease_expires_at: 14:00:01}
        seq 8 {id: r1~1~run, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1, parent_id: r1}
        seq 9 {id: r1~1~run, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 9, lease_expires_at: 14:00:01, parent_id: r1}
        seq 10 {id: r1~1~run, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 9, parent_id: r1, reason: pause}
        seq 11 {id: r1, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 5, fencing_token: 6, reason: delegation}
        ("r1", "waiting", "delegation", null) ("r1~1~run", "waiting", "pause", null)
        ("r1", "waiting", "delegation", null) ("r1~1~run", "waiting", "pause", null)
        seq 13 {id: r1~1~run, revision: 1, status: running, turn: 2, iterations: 0, tool_calls: 0, events: 3, fencing_token: 9, parent_id: r1}
        ("r1", "running", 60000000, null) ("r1~1~run", "running", 60000000, null)
        the same up to 13
    "#]],
    );
}

/// Regression: a run that waited an hour for a person was at its time limit of one minute. The class: a wait that counts against
/// `wall_clock_seconds`. Each kind of wait, whatever ends it, is counted in the row, and the run has no fixed end.
#[test]
fn no_wait_counts_against_the_time_limit() {
    let call = |tool: &str| {
        format!(
            "request_tool_call call_id=r~1 session_id=s tool_name={tool} arguments={{}} run_id=r \
             run_fencing_token=6"
        )
    };
    let wait = "wait_run id=r fencing_token=6 interrupt={}";
    let approval = format!("{}\n{wait}", call("pay"));
    let mut output = String::new();
    for (what, begin, end) in [
        ("approval", approval.clone(), "decide_approval call_id=r~1 decision=approve"),
        ("approval, aborted", approval, "abort_run id=r"),
        (
            "settlement",
            format!("{} claim_lease_ms=1000\n+1s\n{wait}", call("once")),
            "settle_tool_call call_id=r~1 outcome=succeeded",
        ),
        (
            "handoff",
            format!(
                "request_supervisor_handoff session_id=s reason=x required_capability=y\n{wait}"
            ),
            "claim_handoff id=ho#1 as=ann\nresolve_handoff id=ho#1 resolution=x as=ann",
        ),
        ("resume", format!("suspend_session session_id=s\n{wait}"), "resume_session session_id=s"),
        (
            "pause",
            "record_pause id=r fencing_token=6 stage=after_agent reason=x".to_owned(),
            "resume_run id=r",
        ),
    ] {
        let played = play(&format!(
            r#"
            register_tool name=pay needs_approval=true
            register_tool name=once
            register_agent name=a definition={{"limits":{{"wall_clock_seconds":60}}}}
            create_session agent=a id=s
            start_run session_id=s id=r
            claim_run id=r driver=d lease_ms=60000
            +7s
            {begin}
            sql SELECT status, reason, waited_us, waiting_since - created_at FROM runs
            +59m
            {end}
            sql SELECT status, deadline_at, waited_us, waiting_since FROM runs
            replay
            "#
        ));
        let shown = played.lines().filter(|line| !line.starts_with("seq"));
        writeln!(output, "{what}: {}", shown.collect::<Vec<_>>().join(" ")).unwrap();
    }
    expect![[r#"
        approval: ("waiting", "approval", null, 7000000) ("running", null, 3540000000, null) the same up to 9
        approval, aborted: ("waiting", "approval", null, 7000000) ("aborted", null, 3540000000, null) the same up to 9
        settlement: ("waiting", "settlement", null, 8000000) ("running", null, 3540000000, null) the same up to 10
        handoff: ("waiting", "handoff", null, 7000000) ("running", null, 3540000000, null) the same up to 10
        resume: ("waiting", "resume", null, 7000000) ("running", null, 3540000000, null) the same up to 9
        pause: ("waiting", "pause", null, 7000000) ("running", null, 3540000000, null) the same up to 8
    "#]].assert_eq(&output);
}

/// Regression: the row of a run that was aborted without a driver had no `reason`, and neither had one after its driver had stopped,
/// although the column says why a run was aborted. A run that waited has the reason of the abort, not what it waited for.
#[test]
fn an_aborted_run_says_why() {
    let begin = r#"
        register_agent name=a definition={}
        register_tool name=pay needs_approval=true
        create_session agent=a id=s
        start_run session_id=s id=r
    "#;
    let mut output = String::new();
    for (what, script) in [
        ("without a driver", "abort_run id=r reason=enough"),
        ("without a reason", "abort_run id=r"),
        (
            "by its driver",
            "claim_run id=r driver=d lease_ms=60000
             abort_run id=r reason=enough
             finish_run id=r fencing_token=5 end=aborted",
        ),
        (
            "while it waits",
            "claim_run id=r driver=d lease_ms=60000
             request_tool_call call_id=r~1 session_id=s tool_name=pay arguments={} run_id=r run_fencing_token=5
             wait_run id=r fencing_token=5 interrupt={}
             abort_run id=r reason=enough",
        ),
        (
            "moved",
            "claim_run id=r driver=d lease_ms=60000
             record_pause id=r fencing_token=5 stage=after_agent reason=x
             export_run id=r",
        ),
        ("with its session", "cancel_session session_id=s reason=enough"),
        (
            "not at all",
            "claim_run id=r driver=d lease_ms=60000
             finish_run id=r fencing_token=5 end=failed code=x",
        ),
    ] {
        let row = "sql SELECT status, substr(reason, 1, 20), error_code, reason = error_message FROM runs";
        let answers = play(&format!("{begin}{script}\n{row}\nreplay\n"));
        let last: Vec<&str> = answers.lines().rev().take(2).collect();
        output.push_str(&format!("{what}: {}, {}\n", last[1], last[0]));
    }
    expect![[r#"
        without a driver: ("aborted", "enough", "aborted", 1), the same up to 5
        without a reason: ("aborted", "the run was aborted", "aborted", 1), the same up to 5
        by its driver: ("aborted", "enough", "aborted", 1), the same up to 7
        while it waits: ("aborted", "enough", "aborted", 1), the same up to 8
        moved: ("aborted", "the run was exported", "moved", 1), the same up to 7
        with its session: ("aborted", "the session has ende", "aborted", 1), the same up to 5
        not at all: ("failed", null, "x", null), the same up to 6
    "#]]
    .assert_eq(&output);
}

/// A run that failed left its unclaimed calls to workers. The next run of the session asked for the same, and both took effect. The
/// class: an end of a run that does not end its calls.
#[test]
fn the_calls_of_a_failed_run_do_not_begin() {
    for end in ["failed code=token_limit", "aborted"] {
        let script = format!(
            r#"
            register_tool name=pay
            register_tool name=ask needs_approval=true
            claim_run id=r1 driver=d lease_ms=60000
            request_tool_call call_id=r1~1 session_id=s1 tool_name=pay arguments={{}} run_id=r1 run_fencing_token=6
            request_tool_call call_id=r1~2 session_id=s1 tool_name=pay arguments={{}} run_id=r1 run_fencing_token=6
            request_tool_call call_id=r1~3 session_id=s1 tool_name=ask arguments={{}} run_id=r1 run_fencing_token=6
            claim_tool_call call_id=r1~1
            finish_run id=r1 fencing_token=6 end={end}
            sql SELECT call_id, status, cancel_requested_at IS NOT NULL FROM tool_calls ORDER BY 1
            sql SELECT status FROM approvals
            claim_next_tool_call tools=["pay"]
            complete_tool_call call_id=r1~1 fencing_token=10 result={{}}
            start_run session_id=s1 id=r2
            replay
            "#
        );
        let answers = play(&format!("{BEGUN}{script}"));
        let answers: Vec<&str> = answers.lines().skip(11).collect();
        expect![[r#"
            ("r1~1", "claimed", 1) ("r1~2", "cancelled", 1) ("r1~3", "cancelled", 1)
            ("cancelled")
            refused not_found: there is no pending call of pay (hint: watch for calls: `abide watch "SELECT call_id, tool_name FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL"`)
            seq 12 {call_id: r1~1, status: succeeded, attempt: 1, fencing_token: 10, claimed_by: local, lease_expires_at: 14:00:30, cancel_requested_at: 14:00:00}
            seq 13 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            the same up to 13"#]]
        .assert_eq(&answers.join("\n"));
    }
}

/// The driver could end an aborted run as done, and let it wait or spend on: after an abort was acknowledged, the run gave an answer.
/// The class: the holder of a lease on work that is no longer wanted.
#[test]
fn an_aborted_run_is_not_continued_by_its_driver() {
    check_begun(
        r#"
        claim_run id=r1 driver=d lease_ms=1000
        abort_run id=r1 reason="changed my mind"
        finish_run id=r1 fencing_token=4 end=done output={"content":"hi"}
        wait_run id=r1 fencing_token=4 interrupt={}
        reserve_usage id=r1 fencing_token=4 tokens=10
        finish_run id=r1 fencing_token=4 end=aborted
        finish_run id=r1 fencing_token=4 end=aborted
        sql SELECT status, output FROM runs
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01, reason: changed my mind}
            refused conflict: run r1 is being aborted (hint: end it with `abide call finish_run end=aborted`, with its id and fencing token)
            refused conflict: run r1 is being aborted (hint: end it with `abide call finish_run end=aborted`, with its id and fencing token)
            refused conflict: run r1 is being aborted (hint: end it with `abide call finish_run end=aborted`, with its id and fencing token)
            seq 6 {id: r1, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4, reason: changed my mind, error_code: aborted, error_message: changed my mind}
            seq 6 again {id: r1, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4, reason: changed my mind, error_code: aborted, error_message: changed my mind}
            ("aborted", null)
        "#]],
    );
    check_begun(
        r#"
        claim_run id=r1 driver=d lease_ms=1000
        cancel_session session_id=s1
        finish_run id=r1 fencing_token=4 end=done output={"content":"hi"}
        wait_run id=r1 fencing_token=4 interrupt={}
        finish_run id=r1 fencing_token=4 end=failed code=conflict
        sql SELECT status, output FROM runs
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {id: s1, status: failed, cancel_requested_at: 14:00:00, error_code: cancelled}
            refused conflict: run r1 is being aborted (hint: end it with `abide call finish_run end=aborted`, with its id and fencing token)
            refused conflict: run r1 is being aborted (hint: end it with `abide call finish_run end=aborted`, with its id and fencing token)
            seq 6 {id: r1, revision: 1, status: failed, turn: 1, iterations: 0, tool_calls: 0, events: 3, fencing_token: 4, error_code: conflict, error_message: conflict}
            ("failed", null)
        "#]],
    );
}
