[
    case("create_session", r#"create_session {"agent":"support","id":"new","parent_id":"kid"}"#),
    case("suspend_session", r#"suspend_session {"session_id":"big"}"#),
    case("resume_session", r#"suspend_session {"session_id":"big"}
        resume_session {"session_id":"big"}"#),
    case("complete_session", r#"complete_session {"session_id":"big"}"#),
    case("fail_session", r#"fail_session {"session_id":"big","code":"x","message":"x"}"#),
    case("cancel_session", r#"cancel_session {"session_id":"big"}"#),
    case("append_message", r#"append_message {"session_id":"big","role":"user","content":"x"}"#),
    case("register_tool", r#"register_tool {"name":"put","description":"new"}"#),
    case("request_tool_call", r#"request_tool_call {"call_id":"new","session_id":"kid","tool_name":"paced","arguments":{}}"#),
    case("claim_tool_call", r#"claim_tool_call {"call_id":"pending7"}"#),
    case("claim_next_tool_call", r#"request_tool_call {"call_id":"last","session_id":"big","tool_name":"queued","arguments":{}}
        claim_next_tool_call {"tools":["queued"]}"#),
    case("heartbeat_tool_call", r#"claim_tool_call@admin {"call_id":"pending7"}
        heartbeat_tool_call@admin {"call_id":"pending7","fencing_token":"$seq"}"#),
    case("complete_tool_call", r#"claim_tool_call@admin {"call_id":"pending7"}
        complete_tool_call@admin {"call_id":"pending7","fencing_token":"$seq","result":1}"#),
    case("fail_tool_call", r#"claim_tool_call@admin {"call_id":"pending7"}
        fail_tool_call@admin {"call_id":"pending7","fencing_token":"$seq","error":"x","retryable":true}"#),
    case("settle_tool_call", r#"register_tool {"name":"once"}
        request_tool_call {"call_id":"once","session_id":"big","tool_name":"once","arguments":{},"claim_lease_ms":5}
        +10
        settle_tool_call {"call_id":"once","outcome":"failed"}"#),
    case("cancel_tool_call", r#"cancel_tool_call {"call_id":"asks7"}"#),
    case("acknowledge_cancel", r#"claim_tool_call@admin {"call_id":"pending7"}
        +0
        cancel_tool_call {"call_id":"pending7"}
        acknowledge_cancel@admin {"call_id":"pending7","fencing_token":"$first"}"#),
    case("lapse_tool_call", r#"claim_tool_call {"call_id":"pending7","lease_ms":5}
        +10"#),
    case("retry_tool_call", r#"claim_tool_call {"call_id":"pending7","lease_ms":5}
        +10
        claim_tool_call {"call_id":"pending7","lease_ms":5}
        +10
        +1100"#),
    case("decide_approval", r#"decide_approval {"call_id":"asks7","decision":"approve"}"#),
    case("expire_approval", r#"register_tool {"name":"soon","approval":{"expires_after_ms":5}}
        request_tool_call {"call_id":"soon","session_id":"big","tool_name":"soon","arguments":{}}
        +10"#),
    case("request_supervisor_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}"#),
    case("claim_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
        claim_handoff {"id":"$id"}"#),
    case("heartbeat_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
        claim_handoff@admin {"id":"$id"}
        heartbeat_handoff@admin {"id":"$id"}"#),
    case("release_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
        claim_handoff@admin {"id":"$id"}
        release_handoff@admin {"id":"$id"}"#),
    case("resolve_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
        claim_handoff@admin {"id":"$id"}
        resolve_handoff@admin {"id":"$id","resolution":"x"}"#),
    case("reject_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
        claim_handoff@admin {"id":"$id"}
        reject_handoff@admin {"id":"$id","reason":"x"}"#),
    case("lapse_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x"}
        claim_handoff {"id":"$id","lease_ms":5}
        +10"#),
    case("escalate_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x","escalate_after_ms":5}
        +10"#),
    case("expire_handoff", r#"request_supervisor_handoff {"session_id":"big","reason":"x","required_capability":"x","expires_after_ms":5}
        +10"#),
    case("register_agent", r#"register_agent {"name":"support","definition":{"subagents":["agent7"]},"mode":"all"}"#),
    case("retire_agent", r#"retire_agent {"name":"support"}"#),
    case("start_run", r#"start_run {"session_id":"big","input":"x"}"#),
    case("claim_run", r#"start_run {"session_id":"big"}
        claim_run {"id":"$id","driver":"d","lease_ms":5000}"#),
    case("claim_next_run", r#"start_run {"session_id":"big"}
        claim_next_run {"driver":"d","lease_ms":5000}"#),
    case("heartbeat_run", r#"start_run {"session_id":"big","id":"mine"}
        claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
        heartbeat_run@admin {"id":"mine","fencing_token":"$seq","lease_ms":5000}"#),
    case("record_run", r#"start_run {"session_id":"big","id":"mine"}
        claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
        record_run@admin {"id":"mine","fencing_token":"$seq","events":[{"kind":"token","data":{}}]}"#),
    case("wait_run", r#"start_run {"session_id":"big","id":"mine"}
        claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
        wait_run@admin {"id":"mine","fencing_token":"$seq","interrupt":{}}"#),
    case("finish_run", r#"start_run {"session_id":"big","id":"mine"}
        claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
        finish_run@admin {"id":"mine","fencing_token":"$seq","end":"done"}"#),
    case("abort_run", r#"start_run {"session_id":"big"}
        abort_run {"id":"$id"}"#),
    case("lapse_run", r#"start_run {"session_id":"big"}
        claim_run {"id":"$id","driver":"d","lease_ms":5}
        +10"#),
    case("start_child_run", r#"start_run {"session_id":"big","id":"mine"}
        claim_run@admin {"id":"mine","driver":"d","lease_ms":5000}
        request_tool_call@admin {"call_id":"mine~1","session_id":"big","tool_name":"put","arguments":{},"run_id":"mine","run_fencing_token":"$seq","claim_lease_ms":5000}
        start_child_run@admin {"call_id":"mine~1","fencing_token":"$seq","agent":"support","input":"x"}"#),
    case("set_timer", r#"set_timer {"session_id":"big","in_ms":80000}"#),
    case("cancel_timer", r#"cancel_timer {"id":"tm7"}"#),
    case("fire_timer", r#"set_timer {"session_id":"big","in_ms":5,"message":"x"}
        +10"#),
    case("set_policy", r#"set_policy {"table":"timers","role":"none7","name":"q","condition":"1"}"#),
    case("drop_policy", r#"drop_policy {"table":"timers","role":"none7","name":"p"}"#),
    case("set_role", r#"set_role {"name":"clerk","reducers":["set_timer"]}"#),
    case("remove_role", r#"remove_role {"name":"clerk"}"#),
    case("create_identity", r#"create_identity {"id":"new","role":"app"}"#),
    case("change_identity", r#"create_identity@admin {"id":"new","role":"app"}
        change_identity@admin {"id":"new","role":"worker"}"#),
    case("disable_identity", r#"create_identity@admin {"id":"new","role":"app"}
        disable_identity@admin {"id":"new"}"#),
    case("enable_identity", r#"create_identity@admin {"id":"new","role":"app"}
        disable_identity@admin {"id":"new"}
        enable_identity@admin {"id":"new"}"#),
    case("create_token", r#"create_identity@admin {"id":"new","role":"app"}
        create_token@admin {"id":"bbbbbbbb","identity_id":"new","hash":"0000000000000000000000000000000000000000000000000000000000000000","last_four":"abcd"}"#),
    case("revoke_token", r#"create_identity@admin {"id":"new","role":"app"}
        create_token@admin {"id":"bbbbbbbb","identity_id":"new","hash":"0000000000000000000000000000000000000000000000000000000000000000","last_four":"abcd"}
        revoke_token@admin {"id":"bbbbbbbb"}"#),
    case("record_denied", r#"append_message@auditor {"session_id":"big","role":"user","content":"x"}"#),
    case("continue_cleanup", r#"cancel_session {"session_id":"big"}
        +1"#),
]
