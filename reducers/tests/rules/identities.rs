//! Identities, tokens and roles: who may create whom. No caller can grant more than it has.

use abide_schema::reducer::BuiltInRole;
use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# set_policy
set_role {"name":"none7","reducers":["set_timer"]}
set_policy {"table":"timers","role":"none7","name":"q","condition":"1"}
# drop_policy
drop_policy {"table":"timers","role":"none7","name":"p"}
# set_role
set_role {"name":"clerk","reducers":["set_timer"]}
# remove_role
remove_role {"name":"clerk"}
# create_identity
create_identity {"id":"new","role":"app"}
# change_identity
create_identity@admin {"id":"new","role":"app"}
change_identity@admin {"id":"new","role":"worker"}
# disable_identity
create_identity@admin {"id":"new","role":"app"}
disable_identity@admin {"id":"new"}
# enable_identity
create_identity@admin {"id":"new","role":"app"}
disable_identity@admin {"id":"new"}
enable_identity@admin {"id":"new"}
# create_token
create_identity@admin {"id":"new","role":"app"}
create_token@admin {"id":"bbbbbbbb","identity_id":"new","hash":"0000000000000000000000000000000000000000000000000000000000000000","last_four":"abcd"}
# revoke_token
create_identity@admin {"id":"new","role":"app"}
create_token@admin {"id":"bbbbbbbb","identity_id":"new","hash":"0000000000000000000000000000000000000000000000000000000000000000","last_four":"abcd"}
revoke_token@admin {"id":"bbbbbbbb"}
# record_denied
append_message@auditor {"session_id":"big","role":"user","content":"x"}
"#;

#[test]
fn identities_are_created_changed_disabled_and_enabled() {
    check(
        r#"
        create_identity id=ann role=supervisor capabilities=["refunds"] scope={"tenant":"acme"}
        create_identity id=ann role=supervisor capabilities=["refunds"] scope={"tenant":"acme"}
        create_identity id=ann role=worker
        create_identity id=bob role=noname
        create_identity id=system role=admin
        create_identity id="" role=admin
        create_identity id=rated role=app limits={"rate":{"calls":0,"per_ms":1}}
        change_identity id=ann role=worker
        change_identity id=ann role=worker
        change_identity id=bob role=worker
        disable_identity id=ann reason="left"
        disable_identity id=ann
        enable_identity id=ann
        sql SELECT id, role, capabilities, scope, disabled_at, created_by FROM identities
        replay
        "#,
        expect![[r#"
            seq 1 {id: ann, scope: {"tenant":"acme"}}
            seq 1 again {id: ann, scope: {"tenant":"acme"}}
            refused conflict: identity ann already exists with other attributes (hint: `abide identity change` changes it)
            refused not_found: there is no role noname (hint: the roles are admin, app, agent, worker, supervisor, auditor; `abide role set` creates others)
            refused bad_arguments: id system is reserved (hint: choose another id)
            refused bad_arguments: id is empty
            refused bad_arguments: limits.rate.calls must be between 1 and 1000000000, not 0
            seq 2 {id: ann, scope: {"tenant":"acme"}}
            seq 2 again {id: ann, scope: {"tenant":"acme"}}
            refused not_found: there is no identity bob (hint: `abide identity list` lists them; `abide identity create` creates one)
            seq 3 {id: ann, scope: {"tenant":"acme"}}
            seq 3 again {id: ann, scope: {"tenant":"acme"}}
            seq 4 {id: ann, scope: {"tenant":"acme"}}
            ("ann", "worker", "[\"refunds\"]", "{\"tenant\":\"acme\"}", null, "local")
            the same up to 4
        "#]],
    );
}

/// Such an identity was stored in the admin's namespace. Disabling it succeeded, but the subject
/// stayed admitted.
#[test]
fn an_admin_with_a_scope_cannot_create_an_identity_for_a_subject() {
    check(
        r#"
        who root admin +*
        who tom admin +* tenant=acme
        create_identity id=jwt:https://id.example#ann role=app as=tom
        create_identity id=tenant=acme/jwt:https://id.example#ann role=app as=tom
        disable_identity id=jwt:https://id.example#ann as=tom
        create_identity id=jwt:https://id.example#ann role=app scope={"tenant":"acme"} as=root
        disable_identity id=jwt:https://id.example#ann as=tom
        "#,
        expect![[r#"
            refused denied: jwt:https://id.example#ann belongs to the token issuer; an admin with a scope cannot manage it (hint: ask an admin without a scope to create an identity with that id and disable it)
            refused denied: jwt:https://id.example#ann belongs to the token issuer; an admin with a scope cannot manage it (hint: ask an admin without a scope to create an identity with that id and disable it)
            refused not_found: there is no identity jwt:https://id.example#ann (hint: `abide identity list` lists them; `abide identity create` creates one)
            seq 3 {id: jwt:https://id.example#ann, scope: {"tenant":"acme"}}
            seq 4 {id: jwt:https://id.example#ann, scope: {"tenant":"acme"}}
        "#]],
    );
}

#[test]
fn no_caller_can_grant_more_than_it_has() {
    check(
        r#"
        who root admin +*
        who tom admin +refunds tenant=acme
        who clerk clerks +refunds
        set_role name=clerks reducers=["create_identity","create_token","change_identity","append_message"] as=root
        set_role name=clerks reducers=["*"] as=clerk
        set_role name=kings reducers=["*"] as=tom
        create_identity id=a1 role=app as=tom
        create_identity id=a2 role=app scope={"tenant":"zeta"} as=tom
        create_identity id=a3 role=admin capabilities=["refunds"] as=tom
        create_identity id=a4 role=app capabilities=["wires"] as=tom
        create_identity id=a5 role=app capabilities=["*"] as=tom
        create_identity id=c1 role=clerks as=clerk
        create_identity id=c2 role=admin as=clerk
        create_identity id=c3 role=clerks capabilities=["refunds"] as=clerk
        change_identity id=c3 role=admin as=clerk
        create_identity id=z role=app scope={"tenant":"zeta"}
        change_identity id=z role=worker as=tom
        disable_identity id=z as=tom
        disable_identity id=nowhere as=tom
        change_identity id=a1 scope={"tenant":"zeta"} as=tom
        sql SELECT id, role, capabilities, scope, created_by FROM identities ORDER BY id
        sql SELECT caller, what, why FROM denied_attempts
        replay
        "#,
        expect![[r#"
            seq 1 {name: clerks}
            refused denied: the role clerks may not call set_role (hint: `abide role list` shows what each role may call; an admin can assign another role)
            refused denied: roles are shared, and a caller with a scope cannot change them (hint: use an identity without a scope)
            seq 4 {id: tenant=acme/a1, scope: {"tenant":"acme"}}
            refused denied: scope.tenant is outside the caller's own scope (hint: omit tenant; it is filled in)
            seq 6 {id: tenant=acme/a3, scope: {"tenant":"acme"}}
            refused denied: only a caller with the capability wires can manage identity tenant=acme/a4, which has it (hint: ask an admin who has it; with the file, --db needs no capability)
            refused denied: only a caller with the capability * can manage identity tenant=acme/a5, which has it (hint: ask an admin who has it; with the file, --db needs no capability)
            seq 9 {id: c1}
            refused denied: only an admin or a caller with the role admin can manage identity c2, which has that role (hint: ask an admin)
            seq 11 {id: c3}
            refused denied: only an admin or a caller with the role admin can manage identity c3, which has that role (hint: ask an admin)
            seq 13 {id: z, scope: {"tenant":"zeta"}}
            refused not_found: there is no identity z (hint: `abide identity list` lists them; `abide identity create` creates one)
            refused not_found: there is no identity z (hint: `abide identity list` lists them; `abide identity create` creates one)
            refused not_found: there is no identity nowhere (hint: `abide identity list` lists them; `abide identity create` creates one)
            refused denied: scope.tenant is outside the caller's own scope (hint: omit tenant; it is filled in)
            ("c1", "clerks", "[]", "{}", "clerk") ("c3", "clerks", "[\"refunds\"]", "{}", "clerk") ("tenant=acme/a1", "app", "[]", "{\"tenant\":\"acme\"}", "tom") ("tenant=acme/a3", "admin", "[\"refunds\"]", "{\"tenant\":\"acme\"}", "tom") ("z", "app", "[]", "{\"tenant\":\"zeta\"}", "local")
            ("clerk", "set_role", "the role clerks may not call set_role") ("tom", "set_role", "roles are shared, and a caller with a scope cannot change them") ("tom", "create_identity", "scope.tenant is outside the caller's own scope") ("tom", "create_identity", "only a caller with the capability wires can manage identity tenant=acme/a4, which has it") ("tom", "create_identity", "only a caller with the capability * can manage identity tenant=acme/a5, which has it") ("clerk", "create_identity", "only an admin or a caller with the role admin can manage identity c2, which has that role") ("clerk", "change_identity", "only an admin or a caller with the role admin can manage identity c3, which has that role") ("tom", "change_identity", "scope.tenant is outside the caller's own scope")
            the same up to 14
        "#]],
    );
}

#[test]
fn tokens_are_identified_by_their_hash() {
    check(
        r#"
        who tom admin +* tenant=acme
        who clerk clerks
        set_role name=clerks reducers=["create_token","revoke_token"]
        create_identity id=ann role=app scope={"tenant":"acme"}
        create_identity id=zoe role=app scope={"tenant":"zeta"}
        create_token id=annannann identity_id=ann last_four=abcd hash=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa expires_in_ms=1000
        create_token id=annannann identity_id=ann last_four=abcd hash=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        create_token id=annannann identity_id=ann last_four=abcd hash=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
        create_token id=annannann2 identity_id=ann last_four=abcd hash=abide_annannann2_secret
        create_token id=zoezoezoe identity_id=zoe last_four=abcd hash=cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
        create_token id=zoezoezo2 identity_id=zoe last_four=abcd hash=cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc as=tom
        create_token id=annannan2 identity_id=ann last_four=abcd hash=dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd as=tom
        create_token id=annannan3 identity_id=ann last_four=abcd hash=dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd as=clerk
        create_token id=nonamex1 identity_id=noname last_four=abcd hash=dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd
        revoke_token id=zoezoezoe as=tom
        revoke_token id=nowhere as=tom
        revoke_token id=annannann as=tom
        revoke_token id=annannann
        sql SELECT id, identity_id, expires_at IS NULL, revoked_at IS NULL, created_by FROM tokens ORDER BY id
        replay
        "#,
        expect![[r#"
            seq 1 {name: clerks}
            seq 2 {id: ann, scope: {"tenant":"acme"}}
            seq 3 {id: zoe, scope: {"tenant":"zeta"}}
            seq 4 {id: annannann, expires_at: 14:00:01}
            seq 4 again {id: annannann, expires_at: 14:00:01}
            refused conflict: token annannann already exists (hint: `abide token create ann` chooses an unused id)
            refused bad_arguments: hash must be a SHA-256 in 64 lower-case hexadecimal digits (hint: `abide token create` creates a token and shows it once)
            seq 5 {id: zoezoezoe}
            refused not_found: there is no identity zoe (hint: `abide identity list` lists them; `abide identity create` creates one)
            seq 6 {id: annannan2}
            refused denied: only an admin or a caller with the role app can manage identity ann, which has that role (hint: ask an admin)
            refused not_found: there is no identity noname (hint: `abide identity list` lists them; `abide identity create` creates one)
            refused not_found: there is no token zoezoezoe (hint: `abide token list` lists them)
            refused not_found: there is no token nowhere (hint: `abide token list` lists them)
            seq 8 {id: annannann, expires_at: 14:00:01}
            seq 8 again {id: annannann, expires_at: 14:00:01}
            ("annannan2", "ann", 1, 1, "tom") ("annannann", "ann", 0, 0, "local") ("zoezoezoe", "zoe", 1, 1, "local")
            the same up to 8
        "#]],
    );
}

/// A change of the roles of a reducer is a change of this list.
#[test]
fn the_reducers_of_each_role() {
    let mut output = String::new();
    let modules = abide_reducers::modules();
    for role in BuiltInRole::ALL {
        let reducers = modules.iter().flat_map(|module| &module.reducers);
        let may = reducers.filter(|reducer| role.may_call(reducer.roles));
        let may: Vec<&str> = may.map(|reducer| reducer.name).collect();
        output.push_str(&format!("{}: {}\n", role.name(), may.join(" ")));
    }
    expect![[r#"
        admin: create_session open_session update_session suspend_session resume_session complete_session fail_session cancel_session append_message register_tool request_tool_call claim_tool_call claim_next_tool_call heartbeat_tool_call complete_tool_call fail_tool_call settle_tool_call cancel_tool_call acknowledge_cancel decide_approval request_supervisor_handoff claim_handoff heartbeat_handoff release_handoff resolve_handoff reject_handoff register_agent retire_agent start_run claim_run claim_next_run heartbeat_run record_run reserve_usage wait_run finish_run abort_run start_child_run set_timer cancel_timer set_policy drop_policy set_role remove_role create_identity change_identity disable_identity enable_identity create_token revoke_token write_entries delete_entries withhold_answer correct_run pause_run record_pause resume_run export_run import_run fork_session record_trace save_memories forget_memories embed_memories record_health record_summary write_plan put_prompt label_prompt unlabel_prompt put_webhook delete_webhook record_delivery record_exchange suspend_tool_call close_exchange
        app: create_session open_session update_session suspend_session resume_session complete_session fail_session cancel_session append_message register_tool request_tool_call claim_tool_call claim_next_tool_call heartbeat_tool_call complete_tool_call fail_tool_call settle_tool_call cancel_tool_call acknowledge_cancel decide_approval request_supervisor_handoff claim_handoff heartbeat_handoff release_handoff resolve_handoff reject_handoff register_agent retire_agent start_run claim_run claim_next_run heartbeat_run record_run reserve_usage wait_run finish_run abort_run start_child_run set_timer cancel_timer write_entries delete_entries withhold_answer correct_run pause_run record_pause resume_run export_run import_run fork_session record_trace save_memories forget_memories embed_memories record_health record_summary write_plan put_prompt label_prompt unlabel_prompt put_webhook delete_webhook record_delivery record_exchange suspend_tool_call close_exchange
        agent: create_session open_session suspend_session resume_session complete_session fail_session append_message request_tool_call claim_tool_call heartbeat_tool_call complete_tool_call fail_tool_call cancel_tool_call acknowledge_cancel request_supervisor_handoff start_run claim_run claim_next_run heartbeat_run record_run reserve_usage wait_run finish_run abort_run start_child_run set_timer cancel_timer write_entries delete_entries withhold_answer pause_run record_pause resume_run fork_session record_trace save_memories forget_memories embed_memories record_health record_summary write_plan put_webhook delete_webhook record_exchange suspend_tool_call close_exchange
        worker: register_tool claim_tool_call claim_next_tool_call heartbeat_tool_call complete_tool_call fail_tool_call acknowledge_cancel record_exchange suspend_tool_call close_exchange
        supervisor: update_session suspend_session resume_session cancel_session append_message settle_tool_call cancel_tool_call decide_approval claim_handoff heartbeat_handoff release_handoff resolve_handoff reject_handoff pause_run resume_run
        auditor: 
    "#]].assert_eq(&output);
}
