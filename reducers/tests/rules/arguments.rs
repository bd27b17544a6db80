//! Invalid arguments, and errors that name the valid ones.

use expect_test::{expect, expect_file};

use crate::{check, play};

#[test]
fn unknown_reducers_are_refused() {
    check(
        r#"
        create_sesion agent=support
        frobnicate
        batch: frobnicate | create_session agent=support
        "#,
        expect![[r#"
            refused unknown_reducer: there is no reducer "create_sesion" (hint: did you mean create_session?)
            refused unknown_reducer: there is no reducer "frobnicate" (hint: the schema lists the reducers)
            refused unknown_reducer: call 1 of the batch: there is no reducer "frobnicate" (hint: the schema lists the reducers)
        "#]],
    );
}

#[test]
fn wrong_missing_and_superfluous_arguments() {
    check(
        r#"
        create_session
        create_session agent=7
        create_session agent=null
        create_session agent=support color=red
        create_session args=[1,2]
        create_session args="text"
        claim_tool_call call_id=c1 lease_ms="1000"
        claim_tool_call call_id=c1 lease_ms=1.5
        register_tool name=search effect=maybe
        register_tool name=search needs_approval=1
        complete_tool_call call_id=c1 fencing_token=1
        "#,
        expect![[r#"
            refused bad_arguments: create_session: missing argument agent (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: argument agent: expected a string, found the integer 7 (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: argument agent: expected a string, found null (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: unexpected argument color (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: the arguments are not a JSON object (hint: arguments are named: {"session_id": "…"})
            refused bad_arguments: create_session: the arguments are not a JSON object (hint: arguments are named: {"session_id": "…"})
            refused bad_arguments: claim_tool_call: argument lease_ms: expected an integer, found the string "1000" (hint: claim_tool_call takes call_id, lease_ms?, worker?)
            refused bad_arguments: claim_tool_call: argument lease_ms: expected an integer, found the number 1.5 (hint: claim_tool_call takes call_id, lease_ms?, worker?)
            refused bad_arguments: register_tool: argument effect: "maybe" is not one of read_only, idempotent, at_most_once (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: register_tool: argument needs_approval: expected a boolean, found the integer 1 (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: complete_tool_call: missing argument result (hint: complete_tool_call takes call_id, fencing_token, result)
        "#]],
    );
}

/// `reducers/src/arguments.rs` has the arguments of each reducer that callers may call.
#[test]
fn the_types_of_all_arguments_are_exported() {
    let modules = abide_reducers::modules();
    let reducers = modules.iter().flat_map(|module| &module.reducers);
    let mut exports: Vec<String> = reducers.map(|reducer| export(reducer.path)).collect();
    // The order of rustfmt.
    exports.sort_by(|one, other| one.split("::").cmp(other.split("::")));
    let file = format!(
        "//! The arguments of the built-in reducers, for typed calls: `abide.call(ClaimHandoff::new(\"ho_1\"))`. Reducers \
         that only\n//! the engine calls, when a deadline has passed, are not here.\n//!\n//! `cargo xtask generate` \
         writes this file.\n\n{}",
        exports.concat()
    );
    expect_file!["../../src/arguments.rs"].assert_eq(&file);
}

/// Returns the line that exports the arguments of the reducer at a path such as `abide_reducers::timer::set_timer`.
fn export(path: &str) -> String {
    let (module, name) = path.rsplit_once("::").unwrap();
    let module = module.strip_prefix("abide_reducers").expect("a built-in reducer");
    let words = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    format!("pub use crate{module}::{};\n", words.collect::<String>())
}

/// Every reducer documents its arguments.
#[test]
fn the_arguments_of_each_reducer() {
    let reducers = abide_reducers::modules().into_iter().flat_map(|module| module.reducers);
    let script: String = reducers.map(|reducer| format!("{} nonsense=1\n", reducer.name)).collect();
    expect_file!["arguments.txt"].assert_eq(&play(&script));
}

#[test]
fn arguments_over_the_limits() {
    let content = "x".repeat(abide_schema::limits::CALL_BYTES);
    check(
        &format!(
            "create_session agent=support id=s1
            append_message session_id=s1 role=user content={content}
            sql SELECT count(*) FROM agent_state"
        ),
        expect![[r#"
            seq 1 {id: s1, status: created}
            refused limit_exceeded: append_message: the arguments have 8388654 bytes; the limit is 8388608 (hint: keep large content elsewhere and append a reference to it)
            (0)
        "#]],
    );
    let script = "frobnicate | ".repeat(abide_schema::limits::BATCH_CALLS) + "frobnicate";
    let received = play(&format!("batch: {script}"));
    expect![[r#"
        refused limit_exceeded: the batch has 1001 calls; the limit is 1000 (hint: send several batches)
    "#]]
    .assert_eq(&received);
}

/// `null` for an optional argument equals omitting it.
#[test]
fn null_equals_omitted() {
    check(
        r#"
        create_session agent=support id=s1 title=null parent_id=null scope=null metadata=null
        append_message session_id=s1 role=user content=hello kind=null data=null
        sql SELECT kind, data FROM agent_state
        "#,
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            ("message", null)
        "#]],
    );
}
