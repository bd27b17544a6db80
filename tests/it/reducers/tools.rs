//! Tools: registered by name, in versions.

use expect_test::expect;

use crate::script::check;

#[test]
fn a_tool_is_registered_and_changed() {
    check(
        r#"
        register_tool name=search
        register_tool name=search
        register_tool name=search effect=at_most_once needs_approval=false
        register_tool name=search effect=read_only
        register_tool name=search effect=idempotent description="Looks for things" input_schema={"type":"object"} timeout_ms=5000 retry={"max_attempts":2} required_capability=web needs_approval=true
        +1s
        register_tool name=search effect=idempotent description="Looks for things" input_schema={"type":"object"} timeout_ms=5000 retry={"max_attempts":2} required_capability=web needs_approval=true
        sql SELECT name, version, description, input_schema, effect, needs_approval, timeout_ms, retry, required_capability, updated_at - created_at, seq FROM tools
        sql SELECT count(*) FROM events
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 1 again {name: search, version: 1, effect: at_most_once}
            seq 1 again {name: search, version: 1, effect: at_most_once}
            seq 2 {name: search, version: 2, effect: read_only}
            seq 3 {name: search, version: 3, effect: idempotent}
            seq 3 again {name: search, version: 3, effect: idempotent}
            ("search", 3, "Looks for things", "{\"type\":\"object\"}", "idempotent", 1, 5000, "{\"max_attempts\":2}", "web", 0, 3)
            (3)
        "#]],
    );
}

#[test]
fn what_is_no_tool() {
    check(
        r#"
        register_tool name=""
        register_tool name=search effect=sometimes
        register_tool name=search timeout_ms=0
        register_tool name=search timeout_ms="5"
        register_tool
        sql SELECT count(*) FROM tools
        "#,
        expect![[r#"
            refused bad_arguments: name is empty
            refused bad_arguments: register_tool: "sometimes" is not one of read_only, idempotent, at_most_once (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: a timeout of 0 ms leaves no time to run
            refused bad_arguments: register_tool: invalid type: string "5", expected i64 (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: register_tool: missing field `name` (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            (0)
        "#]],
    );
}

#[test]
fn a_call_bears_the_version_it_was_asked_under() {
    check(
        r#"
        register_tool name=search
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=search arguments={}
        register_tool name=search effect=read_only
        request_tool_call call_id=c2 session_id=s1 tool_name=search arguments={}
        sql SELECT call_id, tool_version FROM tool_calls
        "#,
        expect![[r#"
            seq 1 {name: search, version: 1, effect: at_most_once}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: pending, attempt: 0}
            seq 4 {name: search, version: 2, effect: read_only}
            seq 5 {call_id: c2, status: pending, attempt: 0}
            ("c1", 1) ("c2", 2)
        "#]],
    );
}
