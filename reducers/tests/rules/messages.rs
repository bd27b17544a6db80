//! Messages: stored exactly as sent.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# append_message
append_message {"session_id":"big","role":"user","content":"x"}
"#;

#[test]
fn messages_are_stored_exactly() {
    check(
        r#"
        create_session agent=support id=s1
        append_message session_id=s1 role=system content=""
        append_message session_id=s1 role=assistant content=null data={"tool_calls":[{"id":null,"arguments":"{'a': 1}"}]}
        append_message session_id=s1 role=subtask_creator content="a\u0000b \ud83d\ude42 \u2028" kind=note
        append_message session_id=s1 role=user content="{\"$argument\":\"text\"}"
        sql SELECT id, session_id, role, kind, content, data, seq FROM agent_state ORDER BY id
        sql SELECT status, seq FROM sessions
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: 2}
            seq 4 {id: 3}
            seq 5 {id: 4}
            (1, "s1", "system", "message", "", null, 2) (2, "s1", "assistant", "message", null, "{\"tool_calls\":[{\"arguments\":\"{'a': 1}\",\"id\":null}]}", 3) (3, "s1", "subtask_creator", "note", "a\u0000b 🙂  ", null, 4) (4, "s1", "user", "message", "{\"$argument\":\"text\"}", null, 5)
            ("active", 5)
        "#]],
    );
}

#[test]
fn equal_texts_are_two_messages() {
    check(
        r#"
        create_session agent=support id=s1
        append_message session_id=s1 role=user content=again
        append_message session_id=s1 role=user content=again
        sql SELECT id, content FROM agent_state
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: 2}
            (1, "again") (2, "again")
        "#]],
    );
}

#[test]
fn invalid_messages_are_refused() {
    check(
        r#"
        create_session agent=support id=s1
        append_message session_id=s_nobody role=user content=hello
        append_message session_id=s1 role="" content=hello
        append_message session_id=s1 role=user content=hello kind=""
        append_message session_id=s1 role=user
        append_message session_id=s1 role=user content=7
        append_message session_id=s1 role=user content=hello tool=search
        sql SELECT count(*) FROM agent_state
        sql SELECT status FROM sessions
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            refused not_found: there is no session s_nobody (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused bad_arguments: role is empty
            refused bad_arguments: kind is empty
            refused bad_arguments: append_message: missing argument content (hint: append_message takes session_id, role, content, kind?, data?, run_id?, run_fencing_token?)
            refused bad_arguments: append_message: argument content: expected a string, found the integer 7 (hint: append_message takes session_id, role, content, kind?, data?, run_id?, run_fencing_token?)
            refused bad_arguments: append_message: unexpected argument tool (hint: append_message takes session_id, role, content, kind?, data?, run_id?, run_fencing_token?)
            (0)
            ("created")
        "#]],
    );
}

#[test]
fn messages_do_not_resume_a_session() {
    check(
        r#"
        create_session agent=support id=s1
        suspend_session session_id=s1 reason=rest
        append_message session_id=s1 role=user content=hello
        sql SELECT status, reason, seq FROM sessions
        resume_session session_id=s1
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds
        append_message session_id=s1 role=user content="still there?"
        sql SELECT status, seq FROM sessions
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: s1, status: suspended, reason: rest}
            seq 3 {id: 1}
            ("suspended", "rest", 3)
            seq 4 {id: s1, status: active}
            seq 5 {id: ho#1, status: pending, reason: help}
            seq 6 {id: 2}
            ("handed_off", 6)
        "#]],
    );
}

/// The data of a driver's entries decides which tools a run calls, so other callers cannot write such entries. Instructions
/// to the model come from callers that can do everything within their scope.
#[test]
fn the_author_of_an_entry_is_checked() {
    check(
        r#"
        create_session agent=support id=s1
        create_session agent=support id=s2
        register_agent name=support definition={}
        start_run session_id=s1 id=r1 input=hello
        claim_run id=r1 driver=d lease_ms=60000
        who sue supervisor
        who ann app tenant=acme
        append_message session_id=s1 role=system content="Obey." as=sue
        append_message session_id=s1 role=assistant content=forged run_id=r1 as=sue
        append_message session_id=s1 role=assistant content=forged run_id=r1 run_fencing_token=5 as=sue
        append_message session_id=s1 role=assistant content=forged run_fencing_token=5
        append_message session_id=s2 role=assistant content=forged run_id=r1 run_fencing_token=5
        append_message session_id=s1 role=assistant content=yes run_id=r1 run_fencing_token=5
        append_message session_id=s1 role=assistant content=restored run_id=earlier
        append_message session_id=s1 role=assistant content=plain as=sue
        create_session agent=support id=s3 as=ann
        append_message session_id=s3 role=system content="Be kind." as=ann
        sql SELECT role, content, run_id FROM agent_state
        replay
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: s2, status: created}
            seq 3 {name: support, revision: 1, mode: primary}
            seq 4 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 5 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 5, lease_expires_at: 14:01:00}
            refused denied: the role supervisor may not write system messages (hint: use the role user, or the name of the author)
            refused bad_arguments: run_id and run_fencing_token must be given together (hint: the driver of a run gives both; other callers omit both)
            refused denied: the lease on run r1 is held by another identity (hint: claim it with this identity first, when that lease has expired)
            refused bad_arguments: run_id and run_fencing_token must be given together (hint: the driver of a run gives both; other callers omit both)
            refused conflict: run r1 belongs to another session (hint: a driver writes to the session of its run only)
            seq 8 {id: 2}
            seq 9 {id: 3}
            seq 10 {id: 4}
            seq 11 {id: tenant=acme/s3, status: created, scope: {"tenant":"acme"}}
            seq 12 {id: 5}
            ("user", "hello", null) ("assistant", "yes", "r1") ("assistant", "restored", "earlier") ("assistant", "plain", null) ("system", "Be kind.", null)
            the same up to 12
        "#]],
    );
}
