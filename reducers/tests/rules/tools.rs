//! Tools: registered by name, in versions.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# register_tool
register_tool {"name":"put","description":"new"}
"#;

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
fn invalid_tools_are_refused() {
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
            refused bad_arguments: register_tool: argument effect: "sometimes" is not one of read_only, idempotent, at_most_once (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: timeout_ms must be at least 1, not 0 (hint: omit timeout_ms for no time limit)
            refused bad_arguments: register_tool: argument timeout_ms: expected an integer, found the string "5" (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: register_tool: missing argument name (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            (0)
        "#]],
    );
}

#[test]
fn a_call_keeps_the_version_of_its_request() {
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

#[test]
fn the_fields_of_a_manifest() {
    check(
        r#"
        register_tool name=a annotations={"readOnlyHint":true,"title":"Look"}
        register_tool name=b annotations={"idempotentHint":true} approval={"prompt":"Sure?","defaults":{"amount":1},"expires_after_ms":60000,"required_capability":"refunds"}
        register_tool name=c annotations={"readOnlyHint":true} effect=at_most_once needs_approval=false approval={}
        register_tool name=d retry={"backoff_max_ms":5,"backoff_ms":1,"max_attempts":9} limits={"rate":{"calls":1,"per_ms":1000},"concurrency":4,"calls_per_session":5}
        register_tool name=d retry={"max_attempts":9,"backoff_ms":1,"backoff_max_ms":5} limits={"calls_per_session":5,"concurrency":4,"rate":{"per_ms":1000,"calls":1}}
        sql SELECT name, effect, annotations, needs_approval, approval, retry, limits FROM tools
        register_tool name=d
        sql SELECT version, seq, created_at = (SELECT at FROM events WHERE seq = tool_versions.seq), json_extract(manifest, '$.retry') FROM tool_versions WHERE name = 'd'
        "#,
        expect![[r#"
            seq 1 {name: a, version: 1, effect: read_only}
            seq 2 {name: b, version: 1, effect: idempotent}
            seq 3 {name: c, version: 1, effect: at_most_once}
            seq 4 {name: d, version: 1, effect: at_most_once}
            seq 4 again {name: d, version: 1, effect: at_most_once}
            ("a", "read_only", "{\"readOnlyHint\":true,\"title\":\"Look\"}", 0, null, null, null) ("b", "idempotent", "{\"idempotentHint\":true}", 1, "{\"defaults\":{\"amount\":1},\"expires_after_ms\":60000,\"prompt\":\"Sure?\",\"required_capability\":\"refunds\"}", null, null) ("c", "at_most_once", "{\"readOnlyHint\":true}", 0, "{}", null, null) ("d", "at_most_once", null, 0, null, "{\"backoff_max_ms\":5,\"backoff_ms\":1,\"max_attempts\":9}", "{\"calls_per_session\":5,\"concurrency\":4,\"rate\":{\"calls\":1,\"per_ms\":1000}}")
            seq 5 {name: d, version: 2, effect: at_most_once}
            (1, 4, 1, "{\"backoff_max_ms\":5,\"backoff_ms\":1,\"max_attempts\":9}") (2, 5, 1, null)
        "#]],
    );
}

#[test]
fn invalid_manifests_are_refused() {
    check(
        r#"
        register_tool name=a retry={"max_attempts":0}
        register_tool name=a retry={"max_attempts":"3"}
        register_tool name=a retry={"attempts":3}
        register_tool name=a retry={"backoff_ms":-1}
        register_tool name=a limits={"concurrency":0}
        register_tool name=a limits={"rate":{"calls":5}}
        register_tool name=a limits={"rate":{"calls":5,"per_ms":0}}
        register_tool name=a limits={"calls_per_session":10001}
        register_tool name=a approval={"expires_after_ms":-1}
        register_tool name=a approval=true
        register_tool name=a annotations=[1]
        sql SELECT count(*) FROM tools
        "#,
        expect![[r#"
            refused bad_arguments: max_attempts must be between 1 and 1000, not 0
            refused bad_arguments: register_tool: argument retry.max_attempts: expected an integer, found the string "3" (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: register_tool: unexpected argument retry.attempts (hint: did you mean retry.max_attempts?)
            refused bad_arguments: backoff_ms must be between 0 and 315360000000, not -1
            refused bad_arguments: concurrency must be between 1 and 10000, not 0
            refused bad_arguments: register_tool: missing argument limits.rate.per_ms (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: rate.per_ms must be between 1 and 86400000, not 0
            refused bad_arguments: calls_per_session must be between 1 and 10000, not 10001
            refused bad_arguments: expires_after_ms must be between 0 and 315360000000, not -1
            refused bad_arguments: register_tool: argument approval: expected an object, found true (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: register_tool: argument annotations: expected an object, found an array (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            (0)
        "#]],
    );
}

/// A schema runs on the writer's thread: schemas that could fetch, loop or run for very long are
/// refused.
#[test]
fn invalid_schemas_are_refused() {
    check(
        r##"
        register_tool name=a input_schema=7
        register_tool name=a input_schema={"type":"nonsense"}
        register_tool name=a input_schema={"$ref":"http://127.0.0.1:9/x"}
        register_tool name=a input_schema={"$ref":"file:///etc/passwd"}
        register_tool name=a input_schema={"$ref":"#/$defs/nowhere"}
        register_tool name=a input_schema={"$ref":"#anchor"}
        register_tool name=a input_schema={"$dynamicRef":"#x"}
        register_tool name=a input_schema={"pattern":"^(a+)\\1$"}
        register_tool name=a input_schema={"pattern":"^(?!con$)[a-z]+$"}
        sql SELECT count(*) FROM tools
        "##,
        expect![[r##"
            refused bad_arguments: unsupported input_schema of a: 7 is not a schema (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: type must be the name of a type, not "nonsense" (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: unknown reference "http://127.0.0.1:9/x" (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: unknown reference "file:///etc/passwd" (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: unknown reference "#/$defs/nowhere" (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: unknown reference "#anchor" (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: $dynamicRef is not supported (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: the pattern "^(a+)\\1$" cannot be matched in linear time (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: lookaround in the pattern "^(?!con$)[a-z]+$" is not supported (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            (0)
        "##]],
    );
    let doubled: String = (0..14)
        .map(|n| {
            let next = format!(r##"{{"$ref":"#/$defs/d{}"}}"##, n + 1);
            format!(r#""d{n}":{{"anyOf":[{next},{next}]}},"#)
        })
        .collect();
    let chained: String =
        (0..70).map(|n| format!(r##""d{n}":{{"$ref":"#/$defs/d{}"}},"##, n + 1)).collect();
    let long = "x".repeat(abide_schema::limits::TOOL_SCHEMA_BYTES);
    let deep = format!("{}true{}", r#"{"not":"#.repeat(65), "}".repeat(65));
    let script = format!(
        r##"
        register_tool name=a input_schema={{"$defs":{{{doubled}"d14":true}},"$ref":"#/$defs/d0"}}
        register_tool name=a input_schema={{"$defs":{{{chained}"d70":true}},"$ref":"#/$defs/d0"}}
        register_tool name=a input_schema={{"description":"{long}"}}
        register_tool name=a input_schema={deep}
        "##
    );
    check(
        &script,
        expect![[r#"
            refused bad_arguments: unsupported input_schema of a: more than 10000 subschemas with all references expanded (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused bad_arguments: unsupported input_schema of a: references are nested more than 64 deep (hint: JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…)
            refused limit_exceeded: the input_schema of a has 65554 bytes; the limit is 65536 (hint: shorten descriptions, or register several tools)
            refused limit_exceeded: register_tool: the argument input_schema is nested more than 64 levels deep (hint: send deeply nested parts as a string of JSON)
        "#]],
    );
}

/// Recursive schemas, and patterns that make backtracking matchers run forever.
#[test]
fn recursive_schemas_are_evaluated_within_bounds() {
    let a = "a".repeat(5_000);
    let script = format!(
        r##"
        create_session agent=support id=s1
        register_tool name=tree input_schema={{"type":"object","properties":{{"children":{{"type":"array","items":{{"$ref":"#"}}}}}},"additionalProperties":false}}
        register_tool name=self input_schema={{"$ref":"#"}}
        register_tool name=redos input_schema={{"pattern":"^(a+)+$"}}
        request_tool_call call_id=c1 session_id=s1 tool_name=tree arguments={{"children":[{{"children":[]}},{{}}]}}
        request_tool_call call_id=c2 session_id=s1 tool_name=tree arguments={{"children":[{{"children":[{{"x":1}}]}}]}}
        request_tool_call call_id=c3 session_id=s1 tool_name=self arguments=1
        request_tool_call call_id=c4 session_id=s1 tool_name=redos arguments="{a}!"
        "##
    );
    check(
        &script,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {name: tree, version: 1, effect: at_most_once}
            seq 3 {name: self, version: 1, effect: at_most_once}
            seq 4 {name: redos, version: 1, effect: at_most_once}
            seq 5 {call_id: c1, status: pending, attempt: 0, arguments: {"children":[{"children":[]},{}]}}
            refused bad_arguments: invalid arguments for tree: at /children/0/children/0: Additional properties are not allowed ('x' was unexpected) (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'tree' AND version = 1"`)
            seq 6 {call_id: c3, status: pending, attempt: 0, arguments: 1}
            refused bad_arguments: invalid arguments for redos: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa… does not match "^(a+)+$" (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'redos' AND version = 1"`)
        "#]],
    );
}

/// Generators write `unevaluatedProperties` for combined types.
#[test]
fn unevaluated_properties_are_refused() {
    check(
        r#"
        create_session agent=support id=s1
        register_tool name=find input_schema={"unevaluatedProperties":false,"allOf":[{"properties":{"path":{}}}],"anyOf":[{"required":["name"],"properties":{"name":{}}},true]}
        request_tool_call call_id=c1 session_id=s1 tool_name=find arguments={"name":1,"path":1}
        request_tool_call call_id=c2 session_id=s1 tool_name=find arguments={"nane":1,"path":1}
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {name: find, version: 1, effect: at_most_once}
            seq 3 {call_id: c1, status: pending, attempt: 0, arguments: {"name":1,"path":1}}
            refused bad_arguments: invalid arguments for find: Additional properties are not allowed ('nane' was unexpected) (hint: see `abide sql "SELECT json_extract(manifest, '$.input_schema') FROM tool_versions WHERE name = 'find' AND version = 1"`)
        "#]],
    );
}

/// A filter whose alternatives refer to the whole schema. Each alternative tried each level of
/// nesting: 296 bytes of arguments blocked the writer for four seconds and took gigabytes.
/// Arguments edited by an approval had the same effect.
#[test]
fn arguments_that_take_too_long_to_validate_are_refused() {
    let ways = ["a", "b", "c", "d"].map(|name| {
        format!(
            r##"{{"properties":{{"not":{{"$ref":"#/$defs/f"}},"{name}":{{"type":"string"}}}}}}"##
        )
    });
    let schema =
        format!(r##"{{"$defs":{{"f":{{"oneOf":[{}]}}}},"$ref":"#/$defs/f"}}"##, ways.join(","));
    let nested = format!("{}{{}}{}", r#"{"not":"#.repeat(36), "}".repeat(36));
    let script = format!(
        r##"
        create_session agent=support id=s1
        register_tool name=find input_schema={schema} needs_approval=true
        request_tool_call call_id=c1 session_id=s1 tool_name=find arguments={nested}
        request_tool_call call_id=c2 session_id=s1 tool_name=find arguments={{"a":1,"b":1,"c":1}}
        decide_approval call_id=c2 decision=approve approved_arguments={nested}
        "##
    );
    check(
        &script,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {name: find, version: 1, effect: at_most_once}
            refused limit_exceeded: validating the arguments for find takes more than 500000 steps (hint: send a smaller value, or register a schema with fewer alternatives)
            seq 3 {call_id: c2, status: awaiting_approval, attempt: 0, arguments: {"a":1,"b":1,"c":1}}
            refused limit_exceeded: validating the arguments for find takes more than 500000 steps (hint: send a smaller value, or register a schema with fewer alternatives)
        "#]],
    );
}

/// A worker could register a tool of the host anew, without its approval, and its capability: the next call ran without a
/// person. Only an admin or an app lifts these terms.
#[test]
fn a_worker_cannot_lift_the_terms_of_a_tool() {
    check(
        r#"
        who w worker
        who custom tooling
        who site app
        set_role name=tooling reducers=["register_tool"]
        create_session agent=support id=s1
        register_tool name=pay approval={"prompt":"Pay?","required_capability":"money"} required_capability=bank
        register_tool name=pay as=w effect=idempotent description=faster
        register_tool name=pay as=w needs_approval=false approval={"prompt":"Yes?"} required_capability=mine effect=idempotent description=faster
        register_tool name=pay as=custom needs_approval=false
        sql SELECT version, manifest ->> '$.needs_approval', manifest ->> '$.approval', manifest ->> '$.required_capability' FROM tool_versions WHERE name = 'pay'
        request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={}
        register_tool name=free as=w
        register_tool name=free as=w needs_approval=true
        register_tool name=free as=w needs_approval=false
        sql SELECT needs_approval FROM tools WHERE name = 'free'
        register_tool name=pay as=site needs_approval=false
        sql SELECT needs_approval, required_capability FROM tools WHERE name = 'pay'
        replay
        "#,
        expect![[r#"
            seq 1 {name: tooling}
            seq 2 {id: s1, status: created}
            seq 3 {name: pay, version: 1, effect: at_most_once}
            seq 4 {name: pay, version: 2, effect: idempotent}
            seq 4 again {name: pay, version: 2, effect: idempotent}
            seq 5 {name: pay, version: 3, effect: at_most_once}
            (1, 1, "{\"prompt\":\"Pay?\",\"required_capability\":\"money\"}", "bank") (2, 1, "{\"prompt\":\"Pay?\",\"required_capability\":\"money\"}", "bank") (3, 1, "{\"prompt\":\"Pay?\",\"required_capability\":\"money\"}", "bank")
            seq 6 {call_id: c1, status: awaiting_approval, attempt: 0}
            seq 7 {name: free, version: 1, effect: at_most_once}
            seq 8 {name: free, version: 2, effect: at_most_once}
            seq 8 again {name: free, version: 2, effect: at_most_once}
            (1)
            seq 9 {name: pay, version: 4, effect: at_most_once}
            (0, null)
            the same up to 9
        "#]],
    );
}
