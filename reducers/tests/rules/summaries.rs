//! Summaries and plans: who may record them, and what the database refuses.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# record_summary
start_run {"session_id":"big","id":"mine","input":"x"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
record_summary@admin {"id":"mine","fencing_token":"$seq","summary":{"number":1,"through_id":1,"folded_id":1,"goal_id":1,"goal_folded_id":1,"summary":{},"kept":[],"answers":0,"handoffs":[],"origin":"model","tokens_before":1},"archived":[{"entry_id":1,"call_id":"x","tool_name":"put","characters":1}]}
# write_plan
start_run {"session_id":"big","id":"mine"}
claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
write_plan@admin {"id":"mine","fencing_token":"$seq","expected_version":0,"steps":[{"title":"one","status":"in_progress"},{"title":"two","status":"not_started"}]}
"#;

/// Only the holder of the run records a summary. It covers more than the last one, and archives messages of its own
/// session only.
#[test]
fn a_summary_covers_messages_of_its_own_session() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1 scope={"tenant":"a"}
        create_session agent=lead id=s2 scope={"tenant":"b"}
        append_message session_id=s2 role=tool content=secret
        append_message session_id=s1 role=user content=hello
        append_message session_id=s1 role=tool content=result
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        record_summary id=r1 fencing_token=8 summary={"number":1,"through_id":1,"folded_id":1,"goal_id":1,"goal_folded_id":1,"summary":{},"kept":[],"answers":0,"handoffs":[],"origin":"model","tokens_before":9}
        record_summary id=r1 fencing_token=8 summary={"number":1,"through_id":3,"folded_id":2,"goal_id":3,"goal_folded_id":2,"summary":{},"kept":[2],"answers":0,"handoffs":[],"origin":"model","tokens_before":9} archived=[{"entry_id":1,"call_id":"c","tool_name":"t","characters":6}]
        record_summary id=r1 fencing_token=8 summary={"number":1,"through_id":3,"folded_id":4,"goal_id":3,"goal_folded_id":2,"summary":{},"kept":[],"answers":0,"handoffs":[],"origin":"model","tokens_before":9}
        record_summary id=r1 fencing_token=8 summary={"number":1,"through_id":3,"folded_id":2,"goal_id":3,"goal_folded_id":2,"summary":{"raw_summary":"x"},"kept":[2],"answers":0,"handoffs":[],"origin":"model","tokens_before":9} archived=[{"entry_id":3,"call_id":"c","tool_name":"t","characters":6}]
        record_summary id=r1 fencing_token=8 summary={"number":2,"through_id":3,"folded_id":3,"goal_id":3,"goal_folded_id":3,"summary":{},"kept":[],"answers":0,"handoffs":[],"origin":"model","tokens_before":9}
        record_summary id=r1 fencing_token=7 summary={"number":2,"through_id":3,"folded_id":3,"goal_id":3,"goal_folded_id":3,"summary":{},"kept":[],"answers":0,"handoffs":[],"origin":"model","tokens_before":9}
        who tom app +* tenant=b
        sql SELECT session_id, number, through_id, folded_id, summary, kept, origin FROM context_summaries
        sql SELECT entry_id, session_id, call_id, number, characters FROM archived_results
        raw UPDATE context_summaries SET summary = '{}'
        replay
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created, scope: {"tenant":"a"}}
            seq 3 {id: s2, status: created, scope: {"tenant":"b"}}
            seq 4 {id: 1}
            seq 5 {id: 2}
            seq 6 {id: 3}
            seq 7 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 8 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 8, lease_expires_at: 14:00:01}
            refused not_found: session s1 has no message 1 (hint: the query `SELECT id, role FROM agent_state` lists them)
            refused not_found: session s1 has no message 1 (hint: the query `SELECT id, role FROM agent_state` lists them)
            refused bad_arguments: folded_id must be between 0 and 3, not 4
            seq 9 {}
            refused conflict: the last summary of the session is number 1, through message 3 (hint: record the next number, for messages after that one)
            refused lease_lost: run r1 is driven by d under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            ("s1", 1, 3, 2, "{\"raw_summary\":\"x\"}", "[2]", "model")
            (3, "s1", "c", 1, 6)
            aborted: conflict: a summary cannot be changed; record the next one
            the same up to 9
        "#]],
    );
}

/// The rules of plans hold for every driver, and in the database itself.
#[test]
fn a_plan_has_one_step_in_progress() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        write_plan id=r1 fencing_token=4 expected_version=1 steps=[]
        write_plan id=r1 fencing_token=4 expected_version=0 steps=[{"title":"a","status":"completed"},{"title":"b","status":"not_started"}]
        write_plan id=r1 fencing_token=4 expected_version=0 steps=[{"title":"a","status":"in_progress"},{"title":"b","status":"in_progress"}]
        write_plan id=r1 fencing_token=4 expected_version=0 steps=[{"title":" ","status":"not_started"}]
        write_plan id=r1 fencing_token=4 expected_version=0 steps=[{"title":"a","status":"completed"},{"title":"b","status":"in_progress"}]
        write_plan id=r1 fencing_token=4 expected_version=1 steps=[{"title":"b","status":"completed"}]
        sql SELECT step, title, status FROM plan_steps
        sql SELECT version, steps, completed FROM plans
        sql SELECT version, steps FROM plan_versions
        raw UPDATE plans SET version = 9
        raw UPDATE plan_versions SET steps = '[]'
        replay
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            refused conflict: the plan is at version 0, not 1 (hint: read the plan and repeat the change)
            refused bad_transition: no step is in progress, but steps are left and work has begun (hint: exactly one step is in progress while steps are left and work has begun)
            refused bad_transition: 2 steps are in progress (hint: exactly one step is in progress while steps are left and work has begun)
            refused bad_arguments: step 1 has no title
            seq 5 {version: 1}
            seq 6 {version: 2}
            (1, "b", "completed")
            (2, 1, 1)
            (1, "[{\"status\":\"completed\",\"title\":\"a\"},{\"status\":\"in_progress\",\"title\":\"b\"}]") (2, "[{\"status\":\"completed\",\"title\":\"b\"}]")
            aborted: conflict: a plan changes one version at a time
            aborted: conflict: a version of a plan cannot be changed
            the same up to 6
        "#]],
    );
}
