//! Sessions: created, moved from status to status, and ended.

use abide_reducers::SessionStatus;
use expect_test::expect;

use crate::{check, play};

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# create_session
create_session {"agent":"support","id":"new","parent_id":"kid"}
# open_session
open_session {"agent":"support","id":"new","parent_id":"kid"}
# open_session
open_session@local {"agent":"support","id":"new","parent_id":"kid"}
open_session {"agent":"support","id":"new"}
# update_session
update_session {"session_id":"big","title":"New","metadata":{"a":1}}
# suspend_session
suspend_session {"session_id":"big"}
# resume_session
suspend_session {"session_id":"big"}
resume_session {"session_id":"big"}
# complete_session
complete_session {"session_id":"big"}
# fail_session
fail_session {"session_id":"big","code":"x","message":"x"}
# cancel_session
cancel_session {"session_id":"big"}
# complete_session
complete_session {"session_id":"grown"}
# cancel_session
cancel_session {"session_id":"grown"}
"#;

#[test]
fn a_session_is_created() {
    check(
        r#"
        create_session agent=support id=s1 title="A question" scope={"tenant":"t1"} metadata={"b":1,"a":[]}
        create_session agent=support
        create_session agent=support parent_id=s1
        sql SELECT id, agent, status, parent_id, title, scope, metadata, created_at = updated_at, seq FROM sessions WHERE id = 's1'
        sql SELECT count(*) FROM sessions WHERE id LIKE 's!_01%' ESCAPE '!' AND length(id) = 28
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created, scope: {"tenant":"t1"}, metadata: {"a":[],"b":1}, title: A question}
            seq 2 {id: s#1, status: created}
            seq 3 {id: s#2, status: created, parent_id: s1, scope: {"tenant":"t1"}}
            ("s1", "support", "created", null, "A question", "{\"tenant\":\"t1\"}", "{\"a\":[],\"b\":1}", 1, 1)
            (2)
        "#]],
    );
}

#[test]
fn invalid_or_duplicate_sessions_are_refused() {
    check(
        r#"
        create_session agent=support id=s1
        create_session agent=support id=s1
        create_session agent=other id=s1
        create_session agent=support id=""
        create_session agent="" id=s2
        create_session agent=support parent_id=s_nobody
        complete_session session_id=s1
        create_session agent=support parent_id=s1
        create_session agent=support scope=[1]
        sql SELECT count(*), max(seq) FROM events
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            refused conflict: session s1 already exists (hint: omit id to get a generated one)
            refused conflict: session s1 already exists (hint: omit id to get a generated one)
            refused bad_arguments: id is empty
            refused bad_arguments: agent is empty
            refused not_found: there is no session s_nobody (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            seq 2 {id: s1, status: completed}
            refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
            refused bad_arguments: create_session: argument scope: expected an object, found an array (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            (2, 2)
        "#]],
    );
}

#[test]
fn ids_have_a_maximum_length() {
    let long = "x".repeat(513);
    check(
        &format!("create_session agent=support id={long}"),
        expect![[r#"
        refused limit_exceeded: id has 513 bytes; the limit is 512
    "#]],
    );
    let longest = "x".repeat(512);
    let received = play(&format!("create_session agent=support id={longest}"));
    assert!(received.starts_with("seq 1 "), "{received}");
}

#[test]
fn the_life_of_a_session() {
    check(
        r#"
        create_session agent=support id=s1
        append_message session_id=s1 role=user content=hello
        sql SELECT status, seq FROM sessions
        +1s
        suspend_session session_id=s1 reason="waits for a mail"
        +1s
        resume_session session_id=s1
        +1s
        complete_session session_id=s1 result={"answer":42}
        sql SELECT status, result, reason, updated_at - created_at, seq FROM sessions
        sql SELECT seq, session_id, reducer, caller, at - (SELECT at FROM events WHERE seq = 1) FROM events
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            ("active", 2)
            seq 3 {id: s1, status: suspended, reason: waits for a mail}
            seq 4 {id: s1, status: active}
            seq 5 {id: s1, status: completed, result: {"answer":42}}
            ("completed", "{\"answer\":42}", null, 3000000, 5)
            (1, "s1", "create_session", "local", 0) (2, "s1", "append_message", "local", 0) (3, "s1", "suspend_session", "local", 1000000) (4, "s1", "resume_session", "local", 2000000) (5, "s1", "complete_session", "local", 3000000)
        "#]],
    );
}

#[test]
fn failing_and_cancelling() {
    check(
        r#"
        create_session agent=support id=s1
        fail_session session_id=s1 code=out_of_budget message="no money left"
        create_session agent=support id=s2
        cancel_session session_id=s2 reason="not needed"
        create_session agent=support id=s3
        cancel_session session_id=s3
        fail_session session_id=s_nobody code=x message=y
        fail_session session_id=s3 code="" message=y
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: s1, status: failed, error_code: out_of_budget, error_message: no money left}
            seq 3 {id: s2, status: created}
            seq 4 {id: s2, status: failed, cancel_requested_at: 14:00:00, reason: not needed, error_code: cancelled, error_message: not needed}
            seq 5 {id: s3, status: created}
            seq 6 {id: s3, status: failed, cancel_requested_at: 14:00:00, error_code: cancelled}
            refused not_found: there is no session s_nobody (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused bad_arguments: code is empty
        "#]],
    );
}

#[test]
fn an_ended_session_accepts_no_calls() {
    check(
        r#"
        register_tool name=search
        create_session agent=support id=s1
        complete_session session_id=s1
        append_message session_id=s1 role=user content=hello
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={}
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds
        suspend_session session_id=s1
        resume_session session_id=s1
        complete_session session_id=s1
        fail_session session_id=s1 code=x message=y
        cancel_session session_id=s1
        sql SELECT status, seq FROM sessions
        sql SELECT count(*) FROM events
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {id: s1, status: completed}
            refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
            refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
            refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
            refused bad_transition: session s1 is completed and cannot be suspended (hint: an ended session cannot change; create a new one)
            refused bad_transition: session s1 is completed and cannot be resumed (hint: an ended session cannot change; create a new one)
            refused bad_transition: session s1 is completed and cannot be completed (hint: an ended session cannot change; create a new one)
            refused bad_transition: session s1 is completed and cannot be failed (hint: an ended session cannot change; create a new one)
            refused bad_transition: session s1 is completed and cannot be cancelled (hint: an ended session cannot change; create a new one)
            ("completed", 3)
            (3)
        "#]],
    );
}

#[test]
fn an_end_cancels_work_that_has_not_started() {
    check(
        r#"
        register_tool name=search
        register_tool name=pay needs_approval=true
        create_session agent=support id=s1
        request_tool_call call_id=waiting session_id=s1 tool_name=search arguments={}
        request_tool_call call_id=asked session_id=s1 tool_name=pay arguments={}
        request_tool_call call_id=begun session_id=s1 tool_name=search arguments={} claim_lease_ms=1000
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds
        cancel_session session_id=s1
        sql SELECT call_id, status, seq FROM tool_calls ORDER BY call_id
        sql SELECT status, seq FROM approvals
        sql SELECT status, seq FROM handoff_requests
        decide_approval call_id=asked decision=approve
        claim_handoff id=ho#1
        claim_tool_call call_id=waiting
        complete_tool_call call_id=begun fencing_token=6 result="it was under way"
        sql SELECT count(*) FROM events
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {name: pay, version: 1, effect: at_most_once}
            seq 3 {id: s1, status: created}
            seq 4 {call_id: waiting, status: pending, attempt: 0}
            seq 5 {call_id: asked, status: awaiting_approval, attempt: 0}
            seq 6 {call_id: begun, status: claimed, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:01}
            seq 7 {id: ho#1, status: pending, reason: help}
            seq 8 {id: s1, status: active, cancel_requested_at: 14:00:00}
            ("asked", "cancelled", 8) ("begun", "claimed", 8) ("waiting", "cancelled", 8)
            ("cancelled", 8)
            ("cancelled", 8)
            refused conflict: approval ap#1 is cancelled
            refused conflict: handoff ho#1 is cancelled (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            refused conflict: call waiting is cancelled (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'waiting'"`)
            seq 9 {call_id: begun, status: succeeded, attempt: 1, fencing_token: 6, claimed_by: local, lease_expires_at: 14:00:01, cancel_requested_at: 14:00:00, result: "it was under way"}
            (9)
        "#]],
    );
}

/// The calls that bring a session to a status.
fn way_to(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Created => "",
        SessionStatus::Active => "append_message session_id=s1 role=user content=hello",
        SessionStatus::Suspended => "suspend_session session_id=s1",
        SessionStatus::HandedOff => {
            "request_supervisor_handoff session_id=s1 reason=help required_capability=refunds"
        }
        SessionStatus::Completed => "complete_session session_id=s1",
        SessionStatus::Failed => "fail_session session_id=s1 code=x message=y",
    }
}

#[test]
fn every_reducer_from_every_status() {
    let moves = [
        "append_message session_id=s1 role=user content=hello",
        "suspend_session session_id=s1",
        "resume_session session_id=s1",
        "request_supervisor_handoff session_id=s1 reason=help required_capability=refunds",
        "complete_session session_id=s1",
        "fail_session session_id=s1 code=x message=y",
    ];
    let mut table = String::new();
    for from in SessionStatus::ALL {
        for call in moves {
            let way = way_to(from);
            let received = play(&format!(
                "create_session agent=support id=s1\n{way}\n{call}\nsql SELECT status FROM sessions"
            ));
            let received: Vec<&str> = received.lines().collect();
            let [.., answer, status] = received.as_slice() else { panic!("{received:?}") };
            let reducer = call.split(' ').next().unwrap();
            let answer = if answer.starts_with("seq ") { status } else { answer };
            table.push_str(&format!("{from} {reducer}: {answer}\n"));
        }
    }
    expect![[r#"
        created append_message: ("active")
        created suspend_session: ("suspended")
        created resume_session: refused bad_transition: session s1 is created and cannot be resumed
        created request_supervisor_handoff: ("handed_off")
        created complete_session: ("completed")
        created fail_session: ("failed")
        active append_message: ("active")
        active suspend_session: ("suspended")
        active resume_session: refused bad_transition: session s1 is active and cannot be resumed
        active request_supervisor_handoff: ("handed_off")
        active complete_session: ("completed")
        active fail_session: ("failed")
        suspended append_message: ("suspended")
        suspended suspend_session: refused bad_transition: session s1 is suspended and cannot be suspended
        suspended resume_session: ("active")
        suspended request_supervisor_handoff: ("handed_off")
        suspended complete_session: ("completed")
        suspended fail_session: ("failed")
        handed_off append_message: ("handed_off")
        handed_off suspend_session: refused bad_transition: session s1 is handed_off and cannot be suspended (hint: it continues when a supervisor resolves or rejects its handoff)
        handed_off resume_session: refused bad_transition: session s1 is handed_off and cannot be resumed (hint: it continues when a supervisor resolves or rejects its handoff)
        handed_off request_supervisor_handoff: refused conflict: session s1 is already handed off, by ho#1 (hint: a session has one handoff at a time; wait for the answer of the supervisor)
        handed_off complete_session: refused bad_transition: session s1 is handed_off and cannot be completed (hint: it continues when a supervisor resolves or rejects its handoff)
        handed_off fail_session: ("failed")
        completed append_message: refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
        completed suspend_session: refused bad_transition: session s1 is completed and cannot be suspended (hint: an ended session cannot change; create a new one)
        completed resume_session: refused bad_transition: session s1 is completed and cannot be resumed (hint: an ended session cannot change; create a new one)
        completed request_supervisor_handoff: refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
        completed complete_session: refused bad_transition: session s1 is completed and cannot be completed (hint: an ended session cannot change; create a new one)
        completed fail_session: refused bad_transition: session s1 is completed and cannot be failed (hint: an ended session cannot change; create a new one)
        failed append_message: refused bad_transition: session s1 is failed and accepts nothing more (hint: create a new session)
        failed suspend_session: refused bad_transition: session s1 is failed and cannot be suspended (hint: an ended session cannot change; create a new one)
        failed resume_session: refused bad_transition: session s1 is failed and cannot be resumed (hint: an ended session cannot change; create a new one)
        failed request_supervisor_handoff: refused bad_transition: session s1 is failed and accepts nothing more (hint: create a new session)
        failed complete_session: refused bad_transition: session s1 is failed and cannot be completed (hint: an ended session cannot change; create a new one)
        failed fail_session: refused bad_transition: session s1 is failed and cannot be failed (hint: an ended session cannot change; create a new one)
    "#]].assert_eq(&table);
}

/// The trigger alone, without our code.
#[test]
fn every_pair_of_statuses_without_the_engine() {
    let mut table = String::new();
    for from in SessionStatus::ALL {
        let mut allowed = Vec::new();
        for to in SessionStatus::ALL {
            let way = way_to(from);
            let received = play(&format!(
                "create_session agent=support id=s1\n{way}\nraw UPDATE sessions SET status = '{to}'"
            ));
            let answer = received.lines().last().unwrap();
            match answer {
                "taken" => allowed.push(to.as_str()),
                _ => assert!(answer.starts_with("aborted: bad_transition: "), "{answer}"),
            }
            let may = from.may_become(to) || (from == to && !from.is_terminal());
            assert_eq!(answer == "taken", may, "{from} > {to}: {answer}");
        }
        table.push_str(&format!("{from} > {}\n", allowed.join(", ")));
    }
    expect![[r#"
        created > created, active, suspended, handed_off, completed, failed
        active > active, suspended, handed_off, completed, failed
        suspended > active, suspended, handed_off, completed, failed
        handed_off > active, handed_off, failed
        completed > 
        failed > 
    "#]]
    .assert_eq(&table);
}

/// The title and the metadata of a session could not be changed after it was created.
#[test]
fn a_session_is_updated() {
    check(
        r#"
        create_session agent=support id=s1 title=Old metadata={"a":1,"b":{"c":2}}
        update_session session_id=s1 title=New
        update_session session_id=s1 metadata={"a":null,"b":{"d":3},"e":{"f":null}}
        update_session session_id=s1 title=""
        update_session session_id=s1
        update_session session_id=s2 title=New
        complete_session session_id=s1
        update_session session_id=s1 metadata={"rating":5}
        sql SELECT title, metadata, status, seq FROM sessions
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created, metadata: {"a":1,"b":{"c":2}}, title: Old}
            seq 2 {id: s1, status: created, metadata: {"a":1,"b":{"c":2}}, title: New}
            seq 3 {id: s1, status: created, metadata: {"b":{"c":2,"d":3},"e":{}}, title: New}
            seq 4 {id: s1, status: created, metadata: {"b":{"c":2,"d":3},"e":{}}}
            refused bad_arguments: at least one of title and metadata is required
            refused not_found: there is no session s2 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            seq 5 {id: s1, status: completed, metadata: {"b":{"c":2,"d":3},"e":{}}}
            refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
            (null, "{\"b\":{\"c\":2,\"d\":3},\"e\":{}}", "completed", 5)
        "#]],
    );
}
