//! Timers: a notification of a session at a requested time.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# set_timer
set_timer {"session_id":"big","in_ms":80000}
# cancel_timer
cancel_timer {"id":"tm7"}
# fire_timer
set_timer {"session_id":"big","in_ms":5,"message":"x"}
+10
"#;

#[test]
fn a_timer_fires() {
    check(
        r#"
        set_timer in_ms=60000 name=tea data={"cups":2} as=ann
        +59999ms
        sql SELECT status FROM timers
        +1ms
        sql SELECT status, fired_at - due_at, due_at - created_at, created_seq, seq FROM timers
        sql SELECT seq, at - 1795269600000000, reducer, caller, session_id FROM events
        sql SELECT json_extract(arguments, '$.id') = (SELECT id FROM timers), json_extract(arguments, '$.due_at') FROM events WHERE seq = 2
        +1h
        sql SELECT count(*) FROM events
        "#,
        expect![[r#"
            seq 1 {id: tm#1, name: tea, status: pending, due_at: 14:01:00}
            ("pending")
            ("fired", 0, 60000000, 1, 2)
            (1, 0, "set_timer", "ann", null) (2, 60000000, "fire_timer", "system", null)
            (1, 1795269660000000)
            (2)
        "#]],
    );
}

#[test]
fn a_session_is_notified() {
    check(
        r#"
        create_session agent=support id=s1
        set_timer in_ms=1000 session_id=s1 name=nudge message="Any news?" data=[1]
        sql SELECT status, seq FROM sessions
        suspend_session session_id=s1 reason="waits for a mail"
        +1s
        sql SELECT role, kind, content, json_extract(data, '$.name'), json_extract(data, '$.data'), json_extract(data, '$.timer_id') = (SELECT id FROM timers) FROM agent_state
        sql SELECT status, reason, seq FROM sessions
        set_timer in_ms=1000 session_id=s1 resume=true
        +1s
        sql SELECT status, reason, seq FROM sessions
        sql SELECT seq, reducer, caller, session_id FROM events WHERE caller = 'system'
        set_timer in_ms=1000 session_id=s1 resume=true
        complete_session session_id=s1
        sql SELECT status, seq FROM timers ORDER BY created_seq
        +1s
        sql SELECT count(*) FROM events
        set_timer in_ms=1000 session_id=s1
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: tm#1, name: nudge, status: pending, due_at: 14:00:01, message: Any news?}
            ("created", 2)
            seq 3 {id: s1, status: suspended, reason: waits for a mail}
            ("system", "timer", "Any news?", "nudge", "[1]", 1)
            ("suspended", "waits for a mail", 4)
            seq 5 {id: tm#2, status: pending, due_at: 14:00:02}
            ("active", null, 6)
            (4, "fire_timer", "system", "s1") (6, "fire_timer", "system", "s1")
            seq 7 {id: tm#3, status: pending, due_at: 14:00:03}
            seq 8 {id: s1, status: completed}
            ("fired", 4) ("fired", 6) ("cancelled", 8)
            (8)
            refused bad_transition: session s1 is completed and accepts nothing more (hint: create a new session)
        "#]],
    );
}

#[test]
fn a_timer_is_cancelled() {
    check(
        r#"
        set_timer id=t1 in_ms=1000
        cancel_timer id=t1
        cancel_timer id=t1
        +1s
        sql SELECT status FROM timers
        set_timer id=t2 in_ms=1000
        +1s
        cancel_timer id=t2
        cancel_timer id=t_nobody
        "#,
        expect![[r#"
            seq 1 {id: t1, status: pending, due_at: 14:00:01}
            seq 2 {id: t1, status: cancelled, due_at: 14:00:01}
            seq 2 again {id: t1, status: cancelled, due_at: 14:00:01}
            ("cancelled")
            seq 3 {id: t2, status: pending, due_at: 14:00:02}
            refused conflict: timer t2 fired at 2026-11-21T14:00:02Z (hint: only a pending timer can be cancelled)
            refused not_found: there is no timer t_nobody (hint: the query `SELECT id, status, due_at FROM timers` lists them)
        "#]],
    );
}

#[test]
fn a_timer_with_an_existing_id() {
    check(
        r#"
        set_timer id=t1 in_ms=1000 name=a
        +500ms
        set_timer id=t1 in_ms=1000 name=a
        set_timer id=t1 in_ms=1000 name=b
        set_timer id=t1 in_ms=999 name=a
        set_timer id=t1 due_at=1795269601000000 name=a
        +500ms
        set_timer id=t1 in_ms=1000 name=a
        "#,
        expect![[r#"
            seq 1 {id: t1, name: a, status: pending, due_at: 14:00:01}
            seq 1 again {id: t1, name: a, status: pending, due_at: 14:00:01}
            refused conflict: timer t1 already exists with other attributes, due at 2026-11-21T14:00:01Z (hint: cancel it with `abide call cancel_timer id=t1` and set one with a new id)
            refused conflict: timer t1 already exists with other attributes, due at 2026-11-21T14:00:01Z (hint: cancel it with `abide call cancel_timer id=t1` and set one with a new id)
            seq 1 again {id: t1, name: a, status: pending, due_at: 14:00:01}
            seq 1 again {id: t1, name: a, status: fired, due_at: 14:00:01, fired_at: 14:00:01}
        "#]],
    );
}

#[test]
fn invalid_timers_are_refused() {
    check(
        r#"
        set_timer
        set_timer in_ms=1 due_at=1
        set_timer in_ms=-1
        set_timer in_ms=315360000001
        set_timer due_at=-1
        set_timer due_at=9223372036854775807
        set_timer in_ms=1 id=""
        set_timer in_ms=1 name=""
        set_timer in_ms=1 message=hello
        set_timer in_ms=1 resume=true
        set_timer in_ms=1 session_id=s_nobody
        sql SELECT count(*) FROM timers
        set_timer due_at=0 id=long_ago
        +0s
        sql SELECT status FROM timers
        "#,
        expect![[r#"
            refused bad_arguments: exactly one of in_ms and due_at is required (hint: in_ms is a delay in milliseconds; due_at is a time in microseconds since 1970)
            refused bad_arguments: exactly one of in_ms and due_at is required (hint: in_ms is a delay in milliseconds; due_at is a time in microseconds since 1970)
            refused bad_arguments: in_ms must be between 0 and 315360000000, not -1
            refused bad_arguments: in_ms must be between 0 and 315360000000, not 315360000001
            refused bad_arguments: due_at must be a time between 1970 and 2036-11-18T14:00:00Z (hint: due_at is in microseconds since 1970; in_ms is a delay from now)
            refused bad_arguments: due_at must be a time between 1970 and 2036-11-18T14:00:00Z (hint: due_at is in microseconds since 1970; in_ms is a delay from now)
            refused bad_arguments: id is empty
            refused bad_arguments: name is empty
            refused bad_arguments: message and resume require session_id (hint: give session_id, or omit message and resume)
            refused bad_arguments: message and resume require session_id (hint: give session_id, or omit message and resume)
            refused not_found: there is no session s_nobody (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            (0)
            seq 1 {id: long_ago, status: pending, due_at: 1970-01-01T00:00:00}
            ("fired")
        "#]],
    );
}

/// Only the engine's timer calls system reducers.
#[test]
fn callers_cannot_call_timer_reducers() {
    check(
        r#"
        set_timer id=t1 in_ms=1000
        fire_timer id=t1 due_at=1795269601000000
        fire_timer id=t1 due_at=1795269601000000 as=system
        lapse_tool_call
        retry_tool_call
        expire_approval
        lapse_handoff
        expire_run
        expire_wait
        escalate_handoff
        expire_handoff
        fire_timers id=t1
        batch: fire_timer id=t1 due_at=1795269601000000
        create_session agent=support as=system
        "#,
        expect![[r#"
            seq 1 {id: t1, status: pending, due_at: 14:00:01}
            refused denied: fire_timer can only be called by the engine
            refused denied: fire_timer can only be called by the engine
            refused denied: lapse_tool_call can only be called by the engine
            refused denied: retry_tool_call can only be called by the engine
            refused denied: expire_approval can only be called by the engine
            refused denied: lapse_handoff can only be called by the engine
            refused denied: expire_run can only be called by the engine
            refused denied: expire_wait can only be called by the engine
            refused denied: escalate_handoff can only be called by the engine
            refused denied: expire_handoff can only be called by the engine
            refused unknown_reducer: there is no reducer "fire_timers" (hint: the schema lists the reducers)
            refused denied: call 1 of the batch: fire_timer can only be called by the engine
            refused denied: system is reserved for the engine
        "#]],
    );
}
