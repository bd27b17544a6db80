//! Handoffs: from the agent to a supervisor and back.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# request_supervisor_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
# claim_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
claim_handoff {"id":"$id"}
# heartbeat_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
claim_handoff@admin {"id":"$id"}
heartbeat_handoff@admin {"id":"$id"}
# release_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
claim_handoff@admin {"id":"$id"}
release_handoff@admin {"id":"$id"}
# resolve_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
claim_handoff@admin {"id":"$id"}
resolve_handoff@admin {"id":"$id","resolution":"x"}
# reject_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
claim_handoff@admin {"id":"$id"}
reject_handoff@admin {"id":"$id","reason":"x"}
# lapse_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
claim_handoff {"id":"$id","lease_ms":5}
+10
# escalate_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x","escalate_after_ms":5}
+10
# expire_handoff
request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x","expires_after_ms":5}
+10
"#;

const HANDED_OFF: &str = r#"
    create_session agent=support id=s1
    append_message session_id=s1 role=user content=hello
    request_supervisor_handoff session_id=s1 reason="wants a refund" required_capability=refunds data={"order":7}
"#;

fn check_handed_off(script: &str, expected: expect_test::Expect) {
    check(&format!("{HANDED_OFF}{script}"), expected);
}

#[test]
fn claimed_and_resolved() {
    check_handed_off(
        r#"
        sql SELECT status FROM sessions
        sql SELECT session_id, reason, required_capability, data, status FROM handoff_requests
        claim_handoff id=ho#1 as=ann
        resolve_handoff id=ho#1 resolution="refunded" as=ann
        sql SELECT status, seq FROM sessions
        sql SELECT role, kind, content, seq FROM agent_state ORDER BY id DESC LIMIT 1
        sql SELECT data = json_object('handoff_id', (SELECT id FROM handoff_requests), 'status', 'resolved') FROM agent_state WHERE kind = 'handoff'
        resolve_handoff id=ho#1 resolution="refunded" as=ann
        claim_handoff id=ho#1 as=bob
        release_handoff id=ho#1 as=ann
        reject_handoff id=ho#1 reason=no as=ann
        sql SELECT seq, session_id, caller, reducer FROM events WHERE seq > 3
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: ho#1, status: pending, reason: wants a refund}
            ("handed_off")
            ("s1", "wants a refund", "refunds", "{\"order\":7}", "pending")
            seq 4 {id: ho#1, status: claimed, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:15:00, reason: wants a refund}
            seq 5 {id: ho#1, status: resolved, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:15:00, reason: wants a refund, resolution: refunded}
            ("active", 5)
            ("supervisor", "handoff", "refunded", 5)
            (1)
            refused conflict: handoff ho#1 is resolved, not claimed
            refused conflict: handoff ho#1 is resolved (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            refused conflict: handoff ho#1 is resolved, not claimed
            refused conflict: handoff ho#1 is resolved, not claimed
            (4, "s1", "ann", "claim_handoff") (5, "s1", "ann", "resolve_handoff")
        "#]],
    );
}

#[test]
fn claimed_and_rejected() {
    check_handed_off(
        r#"
        claim_handoff id=ho#1 as=ann
        reject_handoff id=ho#1 reason="not my department" as=ann
        sql SELECT role, kind, content FROM agent_state ORDER BY id DESC LIMIT 1
        sql SELECT status FROM sessions
        request_supervisor_handoff session_id=s1 reason=again required_capability=refunds
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: ho#1, status: pending, reason: wants a refund}
            seq 4 {id: ho#1, status: claimed, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:15:00, reason: wants a refund}
            seq 5 {id: ho#1, status: rejected, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:15:00, reason: wants a refund, resolution: not my department}
            ("supervisor", "handoff", "not my department")
            ("active")
            seq 6 {id: ho#2, status: pending, reason: again}
        "#]],
    );
}

#[test]
fn one_supervisor_wins() {
    check_handed_off(
        r#"
        claim_handoff id=ho#1 as=ann
        claim_handoff id=ho#1 as=bob
        claim_handoff id=ho#1 as=ann
        resolve_handoff id=ho#1 resolution=mine as=bob
        reject_handoff id=ho#1 reason=mine as=bob
        release_handoff id=ho#1 as=bob
        release_handoff id=ho#1 as=ann
        release_handoff id=ho#1 as=ann
        resolve_handoff id=ho#1 resolution=late as=ann
        claim_handoff id=ho#1 as=bob
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: ho#1, status: pending, reason: wants a refund}
            seq 4 {id: ho#1, status: claimed, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:15:00, reason: wants a refund}
            refused conflict: handoff ho#1 was claimed by ann and its lease runs until 2026-11-21T14:15:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            refused conflict: handoff ho#1 was claimed by ann and its lease runs until 2026-11-21T14:15:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            refused conflict: handoff ho#1 was claimed by ann and its lease runs until 2026-11-21T14:15:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            refused conflict: handoff ho#1 was claimed by ann and its lease runs until 2026-11-21T14:15:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            refused conflict: handoff ho#1 was claimed by ann and its lease runs until 2026-11-21T14:15:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            seq 5 {id: ho#1, status: pending, fencing_token: 4, reason: wants a refund}
            refused conflict: handoff ho#1 is pending, not claimed (hint: claim it first with `abide call claim_handoff id=ho#1`)
            refused conflict: handoff ho#1 is pending, not claimed (hint: claim it first with `abide call claim_handoff id=ho#1`)
            seq 6 {id: ho#1, status: claimed, fencing_token: 6, claimed_by: bob, lease_expires_at: 14:15:00, reason: wants a refund}
        "#]],
    );
}

#[test]
fn a_claim_expires() {
    check_handed_off(
        r#"
        claim_handoff id=ho#1 lease_ms=60000 as=ann
        +59s
        claim_handoff id=ho#1 as=bob
        +1s
        sql SELECT status, claimed_by, fencing_token, lease_expires_at FROM handoff_requests
        resolve_handoff id=ho#1 resolution=late as=ann
        resolve_handoff id=ho#1 resolution=late fencing_token=4 as=ann
        claim_handoff id=ho#1 as=bob
        resolve_handoff id=ho#1 resolution=late as=ann
        resolve_handoff id=ho#1 resolution=late fencing_token=4 as=bob
        +14m
        heartbeat_handoff id=ho#1 as=bob
        heartbeat_handoff id=ho#1 lease_ms=1 as=bob
        heartbeat_handoff id=ho#1 as=ann
        +14m
        resolve_handoff id=ho#1 resolution="in time" fencing_token=6 as=bob
        heartbeat_handoff id=ho#1 as=bob
        sql SELECT seq, reducer, caller, session_id FROM events WHERE caller = 'system'
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: ho#1, status: pending, reason: wants a refund}
            seq 4 {id: ho#1, status: claimed, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:01:00, reason: wants a refund}
            refused conflict: handoff ho#1 was claimed by ann and its lease runs until 2026-11-21T14:01:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            ("pending", null, 4, null)
            refused conflict: handoff ho#1 is pending, not claimed (hint: claim it first with `abide call claim_handoff id=ho#1`)
            refused lease_lost: the claim of handoff ho#1 has expired; the handoff is pending (hint: claim it again with `abide call claim_handoff id=ho#1`)
            seq 6 {id: ho#1, status: claimed, fencing_token: 6, claimed_by: bob, lease_expires_at: 14:16:00, reason: wants a refund}
            refused conflict: handoff ho#1 was claimed by bob and its lease runs until 2026-11-21T14:16:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            refused lease_lost: the claim of handoff ho#1 has expired; the handoff is claimed (hint: claim it again with `abide call claim_handoff id=ho#1`)
            seq 7 {id: ho#1, status: claimed, fencing_token: 6, claimed_by: bob, lease_expires_at: 14:30:00, reason: wants a refund}
            seq 8 {id: ho#1, status: claimed, fencing_token: 6, claimed_by: bob, lease_expires_at: 14:30:00, reason: wants a refund}
            refused conflict: handoff ho#1 was claimed by bob and its lease runs until 2026-11-21T14:30:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            seq 9 {id: ho#1, status: resolved, fencing_token: 6, claimed_by: bob, lease_expires_at: 14:30:00, reason: wants a refund, resolution: in time}
            refused conflict: handoff ho#1 is resolved, not claimed
            (5, "lapse_handoff", "system", "s1")
        "#]],
    );
}

#[test]
fn an_unclaimed_handoff_expires() {
    check(
        r#"
        create_session agent=support id=s1
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds escalate_after_ms=60000 escalate_to=managers expires_after_ms=120000
        +1m
        sql SELECT status, required_capability, escalate_at, escalated_at - created_at FROM handoff_requests
        +1m
        sql SELECT status, resolution FROM handoff_requests
        sql SELECT status FROM sessions
        sql SELECT role, kind, content, json_extract(data, '$.status') FROM agent_state
        claim_handoff id=ho#1
        sql SELECT seq, reducer, caller, session_id FROM events WHERE caller = 'system'
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: ho#1, status: pending, escalate_at: 14:01:00, expires_at: 14:02:00, reason: help}
            ("pending", "managers", null, 60000000)
            ("expired", "there was no answer in time")
            ("active")
            ("system", "handoff", "there was no answer in time", "expired")
            refused conflict: handoff ho#1 is expired (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            (3, "escalate_handoff", "system", "s1") (4, "expire_handoff", "system", "s1")
        "#]],
    );
}

/// A holder may take longer than the deadline; a release after the deadline ends the handoff.
#[test]
fn a_deadline_waits_for_the_holder() {
    check(
        r#"
        create_session agent=support id=s1
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds escalate_after_ms=60000 expires_after_ms=120000
        claim_handoff id=ho#1 lease_ms=90000 as=ann
        +1m
        sql SELECT status, escalated_at FROM handoff_requests
        +30s
        sql SELECT status, escalated_at - created_at, required_capability FROM handoff_requests
        claim_handoff id=ho#1 as=bob
        +1m
        sql SELECT status FROM handoff_requests
        release_handoff id=ho#1 as=bob
        +0s
        sql SELECT status FROM handoff_requests
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: ho#1, status: pending, escalate_at: 14:01:00, expires_at: 14:02:00, reason: help}
            seq 3 {id: ho#1, status: claimed, fencing_token: 3, claimed_by: ann, lease_expires_at: 14:01:30, escalate_at: 14:01:00, expires_at: 14:02:00, reason: help}
            ("claimed", null)
            ("pending", 90000000, "refunds")
            seq 6 {id: ho#1, status: claimed, fencing_token: 6, claimed_by: bob, lease_expires_at: 14:16:30, escalated_at: 14:01:30, expires_at: 14:02:00, reason: help}
            ("claimed")
            seq 7 {id: ho#1, status: pending, fencing_token: 6, escalated_at: 14:01:30, expires_at: 14:02:00, reason: help}
            ("expired")
        "#]],
    );
}

#[test]
fn invalid_handoffs_are_refused() {
    check_handed_off(
        r#"
        request_supervisor_handoff session_id=s1 reason=again required_capability=refunds
        request_supervisor_handoff session_id=s_nobody reason=help required_capability=refunds
        request_supervisor_handoff session_id=s1 reason=help required_capability=""
        request_supervisor_handoff session_id=s1 reason=help
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds escalate_to=managers
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds escalate_after_ms=-1
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds escalate_after_ms=1 escalate_to=""
        request_supervisor_handoff session_id=s1 reason=help required_capability=refunds expires_after_ms=315360000001
        claim_handoff id=ho_nobody
        claim_handoff id=ho#1 lease_ms=0
        claim_handoff id=ho#1 lease_ms=86400001
        release_handoff id=ho#1
        resolve_handoff id=ho#1
        reject_handoff id=ho#1
        suspend_session session_id=s1
        complete_session session_id=s1
        sql SELECT status, seq FROM handoff_requests
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: ho#1, status: pending, reason: wants a refund}
            refused conflict: session s1 is already handed off, by ho#1 (hint: a session has one handoff at a time; wait for the answer of the supervisor)
            refused not_found: there is no session s_nobody (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused bad_arguments: required_capability is empty
            refused bad_arguments: request_supervisor_handoff: missing argument required_capability (hint: request_supervisor_handoff takes session_id, reason, required_capability, data?, escalate_after_ms?, escalate_to?, expires_after_ms?, call_id?, call_fencing_token?)
            refused bad_arguments: escalate_to requires escalate_after_ms (hint: give escalate_after_ms too)
            refused bad_arguments: escalate_after_ms must be between 0 and 315360000000, not -1
            refused bad_arguments: escalate_to is empty
            refused bad_arguments: expires_after_ms must be between 0 and 315360000000, not 315360000001
            refused not_found: there is no handoff ho_nobody (hint: the query `SELECT id, status FROM handoff_requests` lists them)
            refused bad_arguments: lease_ms must be between 1 and 86400000, not 0 (hint: lease_ms is in milliseconds; a heartbeat extends a lease)
            refused bad_arguments: lease_ms must be between 1 and 86400000, not 86400001 (hint: lease_ms is in milliseconds; a heartbeat extends a lease)
            refused conflict: handoff ho#1 is pending, not claimed (hint: claim it first with `abide call claim_handoff id=ho#1`)
            refused bad_arguments: resolve_handoff: missing argument resolution (hint: resolve_handoff takes id, resolution, fencing_token?)
            refused bad_arguments: reject_handoff: missing argument reason (hint: reject_handoff takes id, reason, fencing_token?)
            refused bad_transition: session s1 is handed_off and cannot be suspended (hint: it continues when a supervisor resolves or rejects its handoff)
            refused bad_transition: session s1 is handed_off and cannot be completed (hint: it continues when a supervisor resolves or rejects its handoff)
            ("pending", 3)
        "#]],
    );
}

#[test]
fn the_end_of_a_session_ends_its_handoff() {
    check_handed_off(
        r#"
        claim_handoff id=ho#1 as=ann
        cancel_session session_id=s1
        sql SELECT status, claimed_by, seq FROM handoff_requests
        resolve_handoff id=ho#1 resolution=late as=ann
        claim_handoff id=ho#1 as=bob
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: ho#1, status: pending, reason: wants a refund}
            seq 4 {id: ho#1, status: claimed, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:15:00, reason: wants a refund}
            seq 5 {id: s1, status: failed, cancel_requested_at: 14:00:00, error_code: cancelled}
            ("cancelled", "ann", 5)
            refused conflict: handoff ho#1 is cancelled, not claimed
            refused conflict: handoff ho#1 is cancelled (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
        "#]],
    );
}

#[test]
fn the_agent_continues_meanwhile() {
    check_handed_off(
        r#"
        register_tool name=search
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={} claim_lease_ms=1000
        complete_tool_call call_id=c1 fencing_token=5 result=1
        sql SELECT status, seq FROM sessions
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: ho#1, status: pending, reason: wants a refund}
            seq 4 {name: search, version: 1, effect: at_most_once}
            seq 5 {call_id: c1, status: claimed, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:01}
            seq 6 {call_id: c1, status: succeeded, attempt: 1, fencing_token: 5, claimed_by: local, lease_expires_at: 14:00:01, result: 1}
            ("handed_off", 5)
        "#]],
    );
}

/// Class: a row that refers to one that is written after it. A caller without a scope may write them in any order; for one with a scope
/// the second row does not exist yet, so the request was `not_found`.
#[test]
fn a_call_in_a_session_with_a_scope_waits_for_a_supervisor() {
    check(
        r#"
        who ann admin +* tenant=acme
        register_tool name=ask effect=idempotent
        create_session agent=support id=s1 as=ann
        request_tool_call call_id=c1 session_id=s1 tool_name=ask arguments={} as=ann
        claim_tool_call call_id=c1 as=ann
        request_supervisor_handoff session_id=s1 reason=help required_capability=x call_id=c1 call_fencing_token=4 as=ann
        claim_handoff id=ho#1 as=ann
        resolve_handoff id=ho#1 resolution=yes as=ann
        sql SELECT c.status, c.result ->> '$.text', s.status FROM tool_calls AS c JOIN sessions AS s ON s.id = c.session_id
        replay
        "#,
        expect![[r#"
            seq 1 {name: ask, version: 1, effect: idempotent}
            seq 2 {id: tenant=acme/s1, status: created, scope: {"tenant":"acme"}}
            seq 3 {call_id: tenant=acme/c1, status: pending, attempt: 0}
            seq 4 {call_id: tenant=acme/c1, status: claimed, attempt: 1, fencing_token: 4, claimed_by: ann, lease_expires_at: 14:00:30}
            seq 5 {id: ho#1, status: pending, reason: help}
            seq 6 {id: ho#1, status: claimed, fencing_token: 6, claimed_by: ann, lease_expires_at: 14:15:00, reason: help}
            seq 7 {id: ho#1, status: resolved, fencing_token: 6, claimed_by: ann, lease_expires_at: 14:15:00, reason: help, resolution: yes}
            ("succeeded", "yes", "active")
            the same up to 7
        "#]],
    );
}
