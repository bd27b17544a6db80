//! Invalid arguments, and errors that name the valid ones.

use expect_test::expect;

use crate::script::{check, play};

#[test]
fn unknown_reducers() {
    check(
        r#"
        create_sesion agent=support
        frobnicate
        batch: frobnicate | create_session agent=support
        "#,
        expect![[r#"
            refused unknown_reducer: there is no reducer "create_sesion" (hint: did you mean create_session?)
            refused unknown_reducer: there is no reducer "frobnicate" (hint: GET /v1/schema lists them)
            refused unknown_reducer: call 1 of the batch: there is no reducer "frobnicate" (hint: GET /v1/schema lists them)
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
            refused bad_arguments: create_session: argument agent is missing (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: argument agent: expected a string, found the integer 7 (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: argument agent: expected a string, found null (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: there is no argument color (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: create_session: the arguments are not a JSON object (hint: arguments are named: {"session_id": "…"})
            refused bad_arguments: create_session: the arguments are not a JSON object (hint: arguments are named: {"session_id": "…"})
            refused bad_arguments: claim_tool_call: argument lease_ms: expected an integer, found the string "1000" (hint: claim_tool_call takes call_id, lease_ms?, worker?)
            refused bad_arguments: claim_tool_call: argument lease_ms: expected an integer, found the number 1.5 (hint: claim_tool_call takes call_id, lease_ms?, worker?)
            refused bad_arguments: register_tool: argument effect: "maybe" is not one of read_only, idempotent, at_most_once (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: register_tool: argument needs_approval: expected a boolean, found the integer 1 (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: complete_tool_call: argument result is missing (hint: complete_tool_call takes call_id, fencing_token, result)
        "#]],
    );
}

/// Every reducer documents its arguments.
#[test]
fn the_arguments_of_each_reducer() {
    let reducers = abide_reducers::modules().into_iter().flat_map(|module| module.reducers);
    let script: String = reducers.map(|reducer| format!("{} nonsense=1\n", reducer.name)).collect();
    check(
        &script,
        expect![[r#"
            refused bad_arguments: create_session: there is no argument nonsense (hint: create_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: open_session: there is no argument nonsense (hint: open_session takes agent, id?, title?, parent_id?, scope?, metadata?)
            refused bad_arguments: suspend_session: there is no argument nonsense (hint: suspend_session takes session_id, reason?)
            refused bad_arguments: resume_session: there is no argument nonsense (hint: resume_session takes session_id, reason?)
            refused bad_arguments: complete_session: there is no argument nonsense (hint: complete_session takes session_id, result?)
            refused bad_arguments: fail_session: there is no argument nonsense (hint: fail_session takes session_id, code, message)
            refused bad_arguments: cancel_session: there is no argument nonsense (hint: cancel_session takes session_id, reason?)
            refused bad_arguments: append_message: there is no argument nonsense (hint: append_message takes session_id, role, content, kind?, data?)
            refused bad_arguments: register_tool: there is no argument nonsense (hint: register_tool takes name, description?, input_schema?, effect?, annotations?, needs_approval?, approval?, timeout_ms?, retry?, required_capability?, limits?)
            refused bad_arguments: request_tool_call: there is no argument nonsense (hint: request_tool_call takes call_id, session_id, tool_name, arguments, provider_call_id?, claim_lease_ms?, needs_approval?, run_id?, run_fencing_token?)
            refused bad_arguments: claim_tool_call: there is no argument nonsense (hint: claim_tool_call takes call_id, lease_ms?, worker?)
            refused bad_arguments: claim_next_tool_call: there is no argument nonsense (hint: claim_next_tool_call takes tools, lease_ms?, worker?)
            refused bad_arguments: heartbeat_tool_call: there is no argument nonsense (hint: heartbeat_tool_call takes call_id, fencing_token, lease_ms?)
            refused bad_arguments: complete_tool_call: there is no argument nonsense (hint: complete_tool_call takes call_id, fencing_token, result)
            refused bad_arguments: fail_tool_call: there is no argument nonsense (hint: fail_tool_call takes call_id, fencing_token, error, retryable?)
            refused bad_arguments: settle_tool_call: there is no argument nonsense (hint: settle_tool_call takes call_id, outcome, result?, error?, evidence?)
            refused bad_arguments: cancel_tool_call: there is no argument nonsense (hint: cancel_tool_call takes call_id, reason?)
            refused bad_arguments: acknowledge_cancel: there is no argument nonsense (hint: acknowledge_cancel takes call_id, fencing_token)
            refused bad_arguments: decide_approval: there is no argument nonsense (hint: decide_approval takes id?, call_id?, decision, approved_arguments?, comment?, arguments_hash?)
            refused bad_arguments: request_supervisor_handoff: there is no argument nonsense (hint: request_supervisor_handoff takes session_id, reason, required_capability, data?, escalate_after_ms?, escalate_to?, expires_after_ms?)
            refused bad_arguments: claim_handoff: there is no argument nonsense (hint: claim_handoff takes id, lease_ms?)
            refused bad_arguments: heartbeat_handoff: there is no argument nonsense (hint: heartbeat_handoff takes id, lease_ms?, fencing_token?)
            refused bad_arguments: release_handoff: there is no argument nonsense (hint: release_handoff takes id, fencing_token?)
            refused bad_arguments: resolve_handoff: there is no argument nonsense (hint: resolve_handoff takes id, resolution, fencing_token?)
            refused bad_arguments: reject_handoff: there is no argument nonsense (hint: reject_handoff takes id, reason, fencing_token?)
            refused bad_arguments: register_agent: there is no argument nonsense (hint: register_agent takes name, definition, mode?, description?, hidden?, native?, expected_revision?)
            refused bad_arguments: retire_agent: there is no argument nonsense (hint: retire_agent takes name)
            refused bad_arguments: start_run: there is no argument nonsense (hint: start_run takes session_id, agent?, input?, id?, deadline_ms?)
            refused bad_arguments: claim_run: there is no argument nonsense (hint: claim_run takes id, driver, lease_ms)
            refused bad_arguments: claim_next_run: there is no argument nonsense (hint: claim_next_run takes driver, lease_ms)
            refused bad_arguments: heartbeat_run: there is no argument nonsense (hint: heartbeat_run takes id, fencing_token, lease_ms)
            refused bad_arguments: record_run: there is no argument nonsense (hint: record_run takes id, fencing_token, events?, spent?, lease_ms?)
            refused bad_arguments: reserve_usage: there is no argument nonsense (hint: reserve_usage takes id, fencing_token, tokens, cost_micros?)
            refused bad_arguments: wait_run: there is no argument nonsense (hint: wait_run takes id, fencing_token, interrupt)
            refused bad_arguments: finish_run: there is no argument nonsense (hint: finish_run takes id, fencing_token, end, output?, code?, message?, events?)
            refused bad_arguments: abort_run: there is no argument nonsense (hint: abort_run takes id, reason?)
            refused bad_arguments: start_child_run: there is no argument nonsense (hint: start_child_run takes call_id, fencing_token, agent, input, deadline_ms?)
            refused bad_arguments: set_timer: there is no argument nonsense (hint: set_timer takes in_ms?, due_at?, id?, session_id?, name?, message?, resume?, data?)
            refused bad_arguments: cancel_timer: there is no argument nonsense (hint: cancel_timer takes id)
            refused bad_arguments: set_policy: there is no argument nonsense (hint: set_policy takes table, role, condition?, hidden?, name?)
            refused bad_arguments: drop_policy: there is no argument nonsense (hint: drop_policy takes table, role, name?)
            refused bad_arguments: set_role: there is no argument nonsense (hint: set_role takes name, reducers, capabilities?, description?, limits?)
            refused bad_arguments: remove_role: there is no argument nonsense (hint: remove_role takes name)
            refused bad_arguments: create_identity: there is no argument nonsense (hint: create_identity takes id, role, capabilities?, scope?, limits?)
            refused bad_arguments: change_identity: there is no argument nonsense (hint: change_identity takes id, role?, capabilities?, scope?, limits?)
            refused bad_arguments: disable_identity: there is no argument nonsense (hint: disable_identity takes id, reason?)
            refused bad_arguments: enable_identity: there is no argument nonsense (hint: enable_identity takes id)
            refused bad_arguments: create_token: there is no argument nonsense (hint: create_token takes id, identity_id, hash, last_four, label?, expires_in_ms?)
            refused bad_arguments: revoke_token: there is no argument nonsense (hint: revoke_token takes id)
            refused bad_arguments: write_entries: there is no argument nonsense (hint: write_entries takes collection_id, puts?, deletes?, kind?, scope?, fencing_token?, call_id?, run_id?, handoff_id?)
            refused bad_arguments: delete_entries: there is no argument nonsense (hint: delete_entries takes collection_id, prefix, fencing_token?, call_id?, run_id?, handoff_id?)
            refused bad_arguments: withhold_answer: there is no argument nonsense (hint: withhold_answer takes id, fencing_token, iteration, original)
            refused bad_arguments: pause_run: there is no argument nonsense (hint: pause_run takes id, stage?, reason?)
            refused bad_arguments: record_pause: there is no argument nonsense (hint: record_pause takes id, fencing_token, stage, reason?)
            refused bad_arguments: resume_run: there is no argument nonsense (hint: resume_run takes id)
            refused bad_arguments: export_run: there is no argument nonsense (hint: export_run takes id, copy?)
            refused bad_arguments: import_run: there is no argument nonsense (hint: import_run takes snapshot, id?, session_id?, any_definition?)
            refused bad_arguments: fork_session: there is no argument nonsense (hint: fork_session takes session_id, at?, id?, title?)
            refused bad_arguments: record_trace: there is no argument nonsense (hint: record_trace takes id, trace_id, spans, status, error?)
            refused bad_arguments: save_memories: there is no argument nonsense (hint: save_memories takes namespace, facts, scope?, session_id?, run_id?, fencing_token?)
            refused bad_arguments: forget_memories: there is no argument nonsense (hint: forget_memories takes space, keys?, run_id?, fencing_token?)
            refused bad_arguments: embed_memories: there is no argument nonsense (hint: embed_memories takes model, vectors)
            refused bad_arguments: record_health: there is no argument nonsense (hint: record_health takes id, fencing_token, iteration, health, action?)
            refused bad_arguments: record_summary: there is no argument nonsense (hint: record_summary takes id, fencing_token, summary, archived?)
            refused bad_arguments: write_plan: there is no argument nonsense (hint: write_plan takes id, fencing_token, expected_version, steps)
        "#]],
    );
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
            refused limit_exceeded: append_message: arguments of 8388654 bytes, at most 8388608 are allowed (hint: keep large content elsewhere and append a reference to it)
            (0)
        "#]],
    );
    let script = "frobnicate | ".repeat(abide_schema::limits::BATCH_CALLS) + "frobnicate";
    let heard = play(&format!("batch: {script}"));
    expect![[r#"
        refused limit_exceeded: a batch of 1001 calls, at most 1000 are allowed (hint: send several batches)
    "#]]
    .assert_eq(&heard);
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
