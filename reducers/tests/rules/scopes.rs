//! Two tenants in one file: other tenants get the same `not_found` as for an unknown id.

use expect_test::expect;

use crate::check;

const TENANTS: &str = r#"
    who ann admin +* tenant=acme
    who zoe admin +* tenant=zeta
    register_tool name=refund effect=idempotent
    create_session agent=support id=a as=ann
    create_session agent=support id=z as=zoe
    request_tool_call call_id=ca session_id=a tool_name=refund arguments={"of":"acme"} as=ann
    request_tool_call call_id=cz session_id=z tool_name=refund arguments={"of":"zeta"} as=zoe
"#;

fn check_tenants(script: &str, expected: expect_test::Expect) {
    check(&format!("{TENANTS}{script}"), expected);
}

#[test]
fn a_new_session_gets_the_scope_of_its_creator() {
    check(
        r#"
        who ann admin +* tenant=acme
        create_session agent=support id=plain as=ann
        create_session agent=support id=narrow scope={"team":"blue"} as=ann
        create_session agent=support id=same scope={"tenant":"acme"} as=ann
        create_session agent=support id=other scope={"tenant":"zeta"} as=ann
        create_session agent=support id=number scope={"tenant":7} as=ann
        create_session agent=support id=child parent_id=narrow as=ann
        create_session agent=support id=child2 parent_id=narrow scope={"team":"red"} as=ann
        create_session agent=support id=grandchild parent_id=tenant=acme/child scope={"desk":"4"}
        create_session agent=support id=escaped parent_id=tenant=acme/child scope={"tenant":"zeta"}
        "#,
        expect![[r#"
            seq 1 {id: tenant=acme/plain, status: created, scope: {"tenant":"acme"}}
            seq 2 {id: tenant=acme/narrow, status: created, scope: {"team":"blue","tenant":"acme"}}
            seq 3 {id: tenant=acme/same, status: created, scope: {"tenant":"acme"}}
            refused denied: scope.tenant is outside the caller's own scope (hint: omit tenant; it is filled in)
            refused denied: scope.tenant is outside the caller's own scope (hint: omit tenant; it is filled in)
            seq 6 {id: tenant=acme/child, status: created, parent_id: tenant=acme/narrow, scope: {"team":"blue","tenant":"acme"}}
            refused bad_arguments: scope.team differs from the scope of the parent session tenant=acme/narrow (hint: omit it: a session inherits the scope of its parent and can add keys)
            seq 7 {id: grandchild, status: created, parent_id: tenant=acme/child, scope: {"desk":"4","team":"blue","tenant":"acme"}}
            refused bad_arguments: scope.tenant differs from the scope of the parent session tenant=acme/child (hint: omit it: a session inherits the scope of its parent and can add keys)
        "#]],
    );
}

#[test]
fn rows_of_another_tenant_are_not_found() {
    check_tenants(
        r#"
        append_message session_id=z role=user content=hello as=ann
        append_message session_id=nowhere role=user content=hello as=ann
        complete_session session_id=z as=ann
        cancel_session session_id=z as=ann
        create_session agent=support parent_id=z as=ann
        request_tool_call call_id=new session_id=z tool_name=refund arguments={} as=ann
        request_supervisor_handoff session_id=z reason=help required_capability=x as=ann
        claim_tool_call call_id=cz as=ann
        claim_tool_call call_id=nowhere as=ann
        cancel_tool_call call_id=cz as=ann
        complete_tool_call call_id=cz fencing_token=1 result=1 as=ann
        settle_tool_call call_id=cz outcome=failed as=ann
        set_timer in_ms=1000 session_id=z message=boo as=ann
        sql SELECT status, claimed_by FROM tool_calls WHERE call_id = 'tenant=zeta/cz'
        sql SELECT count(*) FROM agent_state
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=zeta/z, status: created, scope: {"tenant":"zeta"}}
            seq 4 {call_id: tenant=acme/ca, status: pending, attempt: 0, arguments: {"of":"acme"}}
            seq 5 {call_id: tenant=zeta/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            refused not_found: there is no session z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session nowhere (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no tool call cz (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call nowhere (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call cz (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call cz (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no tool call cz (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused not_found: there is no session z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            ("pending", null)
            (0)
        "#]],
    );
}

#[test]
fn each_tenant_has_its_own_ids() {
    check_tenants(
        r#"
        create_session agent=support id=z as=ann
        create_session agent=support id=a as=ann
        request_tool_call call_id=cz session_id=a tool_name=refund arguments={"of":"zeta"} as=ann
        request_tool_call call_id=ca session_id=a tool_name=refund arguments={"of":"other"} as=ann
        set_timer in_ms=1000 id=t session_id=z as=zoe
        set_timer in_ms=1000 id=t session_id=a as=ann
        cancel_timer id=t as=ann
        cancel_timer id=nowhere as=ann
        append_message session_id=z role=user content=mine as=ann
        append_message session_id=tenant=zeta/z role=user content=theirs as=ann
        create_session agent=support id=tenant=zeta/new as=ann
        create_session agent=support id=tenant=acme/own as=ann
        create_session agent=support id=own as=ann
        create_session agent=support id=r~1.1 as=ann
        create_session agent=support id=r~1.1
        sql SELECT id, scope FROM sessions ORDER BY id
        replay
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=zeta/z, status: created, scope: {"tenant":"zeta"}}
            seq 4 {call_id: tenant=acme/ca, status: pending, attempt: 0, arguments: {"of":"acme"}}
            seq 5 {call_id: tenant=zeta/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            seq 6 {id: tenant=acme/z, status: created, scope: {"tenant":"acme"}}
            refused conflict: session tenant=acme/a already exists (hint: omit id to get a generated one)
            seq 7 {call_id: tenant=acme/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            refused call_id_conflict: call id tenant=acme/ca is already used by a call with other arguments (hint: make call ids from session and position; a provider's id is not unique)
            seq 8 {id: tenant=zeta/t, status: pending, due_at: 14:00:01}
            seq 9 {id: tenant=acme/t, status: pending, due_at: 14:00:01}
            seq 10 {id: tenant=acme/t, status: cancelled, due_at: 14:00:01}
            refused not_found: there is no timer nowhere (hint: the query `SELECT id, status, due_at FROM timers` lists them)
            seq 11 {id: 1}
            refused not_found: there is no session tenant=zeta/z (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            seq 12 {id: tenant=acme/tenant=zeta/new, status: created, scope: {"tenant":"acme"}}
            seq 13 {id: tenant=acme/own, status: created, scope: {"tenant":"acme"}}
            refused conflict: session tenant=acme/own already exists (hint: omit id to get a generated one)
            refused bad_arguments: the id "r~1.1" contains ~, which is reserved (hint: ids with ~ are derived from the run that they belong to)
            refused bad_arguments: the id "r~1.1" contains ~, which is reserved (hint: ids with ~ are derived from the run that they belong to)
            ("tenant=acme/a", "{\"tenant\":\"acme\"}") ("tenant=acme/own", "{\"tenant\":\"acme\"}") ("tenant=acme/tenant=zeta/new", "{\"tenant\":\"acme\"}") ("tenant=acme/z", "{\"tenant\":\"acme\"}") ("tenant=zeta/z", "{\"tenant\":\"zeta\"}")
            the same up to 13
        "#]],
    );
}

#[test]
fn a_worker_gets_the_next_call_of_its_own_tenant() {
    check_tenants(
        r#"
        request_tool_call call_id=ca2 session_id=a tool_name=refund arguments={} as=ann
        claim_next_tool_call tools=["refund"] as=zoe
        claim_next_tool_call tools=["refund"] as=zoe
        claim_next_tool_call tools=["refund"] as=ann
        claim_next_tool_call tools=["refund"]
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=zeta/z, status: created, scope: {"tenant":"zeta"}}
            seq 4 {call_id: tenant=acme/ca, status: pending, attempt: 0, arguments: {"of":"acme"}}
            seq 5 {call_id: tenant=zeta/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            seq 6 {call_id: tenant=acme/ca2, status: pending, attempt: 0}
            seq 7 {call_id: tenant=zeta/cz, status: claimed, attempt: 1, fencing_token: 7, claimed_by: zoe, lease_expires_at: 14:00:30, arguments: {"of":"zeta"}}
            refused not_found: there is no pending call of refund (hint: watch for calls: `abide watch "SELECT call_id, tool_name FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL"`)
            seq 8 {call_id: tenant=acme/ca, status: claimed, attempt: 1, fencing_token: 8, claimed_by: ann, lease_expires_at: 14:00:30, arguments: {"of":"acme"}}
            seq 9 {call_id: tenant=acme/ca2, status: claimed, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:00:30}
        "#]],
    );
}

#[test]
fn approvals_and_handoffs_of_another_tenant_are_not_found() {
    check_tenants(
        r#"
        register_tool name=wire needs_approval=true
        request_tool_call call_id=w session_id=z tool_name=wire arguments={} as=zoe
        decide_approval call_id=w decision=approve as=ann
        decide_approval id=ap#1 decision=approve as=ann
        decide_approval id=nowhere decision=approve as=ann
        request_supervisor_handoff session_id=z reason=help required_capability=x as=zoe
        claim_handoff id=ho#1 as=ann
        claim_handoff id=nowhere as=ann
        claim_handoff id=ho#1 as=zoe
        resolve_handoff id=ho#1 resolution=done as=ann
        resolve_handoff id=ho#1 resolution=done as=zoe
        decide_approval call_id=w decision=approve as=zoe
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=zeta/z, status: created, scope: {"tenant":"zeta"}}
            seq 4 {call_id: tenant=acme/ca, status: pending, attempt: 0, arguments: {"of":"acme"}}
            seq 5 {call_id: tenant=zeta/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            seq 6 {name: wire, version: 1, effect: at_most_once}
            seq 7 {call_id: tenant=zeta/w, status: awaiting_approval, attempt: 0}
            refused not_found: there is no approval for w (hint: the query `SELECT id, call_id, status FROM approvals` lists them)
            refused not_found: there is no approval for ap#1 (hint: the query `SELECT id, call_id, status FROM approvals` lists them)
            refused not_found: there is no approval for nowhere (hint: the query `SELECT id, call_id, status FROM approvals` lists them)
            seq 8 {id: ho#1, status: pending, reason: help}
            refused not_found: there is no handoff ho#1 (hint: the query `SELECT id, status FROM handoff_requests` lists them)
            refused not_found: there is no handoff nowhere (hint: the query `SELECT id, status FROM handoff_requests` lists them)
            seq 9 {id: ho#1, status: claimed, fencing_token: 9, claimed_by: zoe, lease_expires_at: 14:15:00, reason: help}
            refused not_found: there is no handoff ho#1 (hint: the query `SELECT id, status FROM handoff_requests` lists them)
            seq 10 {id: ho#1, status: resolved, fencing_token: 9, claimed_by: zoe, lease_expires_at: 14:15:00, reason: help, resolution: done}
            seq 11 {id: ap#1, call_id: tenant=zeta/w, status: approved, decided_by: zoe}
        "#]],
    );
}

#[test]
fn shared_rows_need_a_caller_without_a_scope() {
    check_tenants(
        r#"
        register_tool name=refund effect=idempotent as=ann
        register_tool name=refund effect=read_only as=ann
        register_tool name=mine as=ann
        set_timer in_ms=1000 as=ann
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=zeta/z, status: created, scope: {"tenant":"zeta"}}
            seq 4 {call_id: tenant=acme/ca, status: pending, attempt: 0, arguments: {"of":"acme"}}
            seq 5 {call_id: tenant=zeta/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            seq 1 again {name: refund, version: 1, effect: idempotent}
            refused denied: tools are shared, and a caller with a scope cannot change them (hint: use an identity without a scope)
            refused denied: tools are shared, and a caller with a scope cannot change them (hint: use an identity without a scope)
            refused denied: a row of timers without session_id would have no scope (hint: give session_id)
        "#]],
    );
}

#[test]
fn required_capabilities_are_enforced() {
    check(
        r#"
        who ann worker
        who bob worker +money
        register_tool name=refund required_capability=money approval={"required_capability":"money"}
        register_tool name=wire required_capability=money
        create_session agent=support id=s
        request_tool_call call_id=c session_id=s tool_name=refund arguments={}
        decide_approval call_id=c decision=approve as=ann
        decide_approval call_id=c decision=approve as=bob
        claim_tool_call call_id=c as=ann
        claim_next_tool_call tools=["refund"] as=ann
        claim_next_tool_call tools=["refund"] as=bob
        request_tool_call call_id=d session_id=s tool_name=wire arguments={} claim_lease_ms=1000 as=ann
        request_tool_call call_id=e session_id=s tool_name=wire arguments={} claim_lease_ms=1000 as=bob
        +2s
        settle_tool_call call_id=e outcome=failed as=ann
        settle_tool_call call_id=e outcome=failed as=bob
        request_supervisor_handoff session_id=s reason=help required_capability=money escalate_after_ms=1000 escalate_to=law
        claim_handoff id=ho#1 as=ann
        +2s
        claim_handoff id=ho#1 as=bob
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: at_most_once}
            seq 2 {name: wire, version: 1, effect: at_most_once}
            seq 3 {id: s, status: created}
            seq 4 {call_id: c, status: awaiting_approval, attempt: 0}
            refused denied: the role worker may not call decide_approval (hint: `abide role list` shows what each role may call; an admin can assign another role)
            refused denied: the role worker may not call decide_approval (hint: `abide role list` shows what each role may call; an admin can assign another role)
            refused conflict: call c is awaiting_approval (hint: watch it with `abide watch "SELECT status FROM tool_calls WHERE call_id = 'c'"`)
            refused not_found: there is no pending call of refund (hint: watch for calls: `abide watch "SELECT call_id, tool_name FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL"`)
            refused not_found: there is no pending call of refund (hint: watch for calls: `abide watch "SELECT call_id, tool_name FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL"`)
            refused denied: the role worker may not call request_tool_call (hint: `abide role list` shows what each role may call; an admin can assign another role)
            refused denied: the role worker may not call request_tool_call (hint: `abide role list` shows what each role may call; an admin can assign another role)
            refused denied: the role worker may not call settle_tool_call (hint: `abide role list` shows what each role may call; an admin can assign another role)
            refused denied: the role worker may not call settle_tool_call (hint: `abide role list` shows what each role may call; an admin can assign another role)
            seq 11 {id: ho#1, status: pending, escalate_at: 14:00:03, reason: help}
            refused denied: the role worker may not call claim_handoff (hint: `abide role list` shows what each role may call; an admin can assign another role)
            refused denied: the role worker may not call claim_handoff (hint: `abide role list` shows what each role may call; an admin can assign another role)
        "#]],
    );
}

#[test]
fn the_log_records_the_authority_of_a_call_and_a_replay_uses_it() {
    check_tenants(
        r#"
        sql SELECT seq, caller, authority FROM events WHERE seq < 4
        sql SELECT id, scope FROM sessions
        replay
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=zeta/z, status: created, scope: {"tenant":"zeta"}}
            seq 4 {call_id: tenant=acme/ca, status: pending, attempt: 0, arguments: {"of":"acme"}}
            seq 5 {call_id: tenant=zeta/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            (1, "local", null) (2, "ann", "{\"capabilities\":[\"*\"],\"role\":\"admin\",\"scope\":{\"tenant\":\"acme\"}}") (3, "zoe", "{\"capabilities\":[\"*\"],\"role\":\"admin\",\"scope\":{\"tenant\":\"zeta\"}}")
            ("tenant=acme/a", "{\"tenant\":\"acme\"}") ("tenant=zeta/z", "{\"tenant\":\"zeta\"}")
            the same up to 5
        "#]],
    );
}

/// The call with which an SDK finds or creates a session. It is never refused to learn something.
#[test]
fn a_session_is_opened_by_the_id_that_was_chosen_and_by_the_stored_id() {
    check_tenants(
        r#"
        open_session agent=support id=a as=ann
        open_session agent=other id=tenant=acme/a title=late metadata={"n":1} as=ann
        open_session agent=support id=z as=ann
        open_session agent=support id=tenant=zeta/z as=ann
        open_session agent=support as=ann
        open_session agent=support id=s#1 as=ann
        open_session agent=support id=s#1 as=zoe
        open_session agent=support id=child parent_id=a as=ann
        open_session agent=support id=child parent_id=nowhere as=ann
        open_session agent=support id=child2 parent_id=nowhere as=ann
        open_session agent=support id=a
        open_session agent=support id="" as=ann
        open_session agent="" id=a as=ann
        open_session agent=support id=r~1.1 as=ann
        complete_session session_id=a as=ann
        open_session agent=support id=a as=ann
        batch as=ann: open_session agent=support id=b | open_session agent=support id=b | append_message session_id=b role=user content=hello
        sql SELECT id, agent, title FROM sessions ORDER BY id
        sql SELECT count(*) FROM events WHERE reducer = 'open_session'
        replay
        "#,
        expect![[r#"
            seq 1 {name: refund, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=zeta/z, status: created, scope: {"tenant":"zeta"}}
            seq 4 {call_id: tenant=acme/ca, status: pending, attempt: 0, arguments: {"of":"acme"}}
            seq 5 {call_id: tenant=zeta/cz, status: pending, attempt: 0, arguments: {"of":"zeta"}}
            seq 4 again {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 4 again {id: tenant=acme/a, status: created, scope: {"tenant":"acme"}}
            seq 6 {id: tenant=acme/z, status: created, scope: {"tenant":"acme"}}
            seq 7 {id: tenant=acme/tenant=zeta/z, status: created, scope: {"tenant":"acme"}}
            seq 8 {id: s#1, status: created, scope: {"tenant":"acme"}}
            seq 8 again {id: s#1, status: created, scope: {"tenant":"acme"}}
            seq 9 {id: tenant=zeta/s#1, status: created, scope: {"tenant":"zeta"}}
            seq 10 {id: tenant=acme/child, status: created, parent_id: tenant=acme/a, scope: {"tenant":"acme"}}
            seq 10 again {id: tenant=acme/child, status: created, parent_id: tenant=acme/a, scope: {"tenant":"acme"}}
            refused not_found: there is no session nowhere (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            seq 11 {id: a, status: created}
            refused bad_arguments: id is empty
            refused bad_arguments: agent is empty
            refused bad_arguments: the id "r~1.1" contains ~, which is reserved (hint: ids with ~ are derived from the run that they belong to)
            seq 12 {id: tenant=acme/a, status: completed, scope: {"tenant":"acme"}}
            seq 12 again {id: tenant=acme/a, status: completed, scope: {"tenant":"acme"}}
            batch 14: seq 13 {id: tenant=acme/b, status: created, scope: {"tenant":"acme"}} | seq 13 again {id: tenant=acme/b, status: created, scope: {"tenant":"acme"}} | seq 14 {id: 1}
            ("a", "support", null) ("s#1", "support", null) ("tenant=acme/a", "support", null) ("tenant=acme/b", "support", null) ("tenant=acme/child", "support", null) ("tenant=acme/tenant=zeta/z", "support", null) ("tenant=acme/z", "support", null) ("tenant=zeta/s#1", "support", null) ("tenant=zeta/z", "support", null)
            (7)
            the same up to 14
        "#]],
    );
}
