//! Who may start runs of an agent, for each kind of caller and agent and each way to start or continue a run.
//!
//! Regression: the agents that come with the runtime were open to every tenant. A token of the role `agent` with a scope ran
//! `default` with all program tools of the folder, without the approvals that the folder's own agent demands. The class:
//! a rule about an agent that one way of starting a run checks and another does not.

use std::fmt::Write as _;

use expect_test::expect;

use crate::script::{check, play};

/// Callers of several roles and scopes, and agents with every kind of rule. `bob` and `eve` have no scope.
const WORLD: &str = r#"
    who ann agent tenant=acme
    who zoe agent tenant=zeta
    who tom admin +* tenant=acme
    who bob app
    who eve agent +refunds
    register_agent name=builtin definition={} native=true
    register_agent name=open definition={}
    register_agent name=acme definition={"allow":{"scopes":[{"tenant":"acme"}]}}
    register_agent name=blue definition={"allow":{"scopes":[{"tenant":"acme","team":"blue"},{"tenant":"zeta"}]}}
    register_agent name=apps definition={"allow":{"roles":["app"]}}
    register_agent name=able definition={"allow":{"capabilities":["wires","refunds"]}}
    register_agent name=nobody definition={"allow":{"roles":[]}}
"#;

const AGENTS: [&str; 7] = ["builtin", "open", "acme", "blue", "apps", "able", "nobody"];

/// The last answers of a script, shortened to whether each call was accepted.
fn outcomes(script: &str, count: usize) -> Vec<String> {
    let output = play(script);
    let lines: Vec<&str> = output.lines().collect();
    let short = |line: &&str| match line.strip_prefix("refused ") {
        Some(refusal) => refusal.split(':').next().unwrap_or_default().to_owned(),
        None => "starts".to_owned(),
    };
    lines[lines.len() - count..].iter().map(short).collect()
}

#[test]
fn each_caller_starts_the_agents_that_admit_it() {
    let mut table = String::new();
    for caller in ["ann", "zoe", "tom", "bob", "eve", "local"] {
        let by = if caller == "local" { String::new() } else { format!(" as={caller}") };
        let mut script = WORLD.to_owned();
        for agent in AGENTS {
            writeln!(script, "create_session agent=open id={agent}{by}").unwrap();
        }
        for agent in AGENTS {
            writeln!(script, "start_run session_id={agent} agent={agent}{by}").unwrap();
        }
        let answers = outcomes(&script, AGENTS.len());
        let row: Vec<String> =
            AGENTS.iter().zip(answers).map(|(agent, it)| format!("{agent} {it}")).collect();
        writeln!(table, "{caller}: {}", row.join(", ")).unwrap();
    }
    expect![[r#"
        ann: builtin not_found, open starts, acme starts, blue not_found, apps denied, able denied, nobody denied
        zoe: builtin not_found, open starts, acme not_found, blue starts, apps denied, able denied, nobody denied
        tom: builtin not_found, open starts, acme starts, blue not_found, apps denied, able starts, nobody denied
        bob: builtin starts, open starts, acme denied, blue denied, apps starts, able denied, nobody denied
        eve: builtin starts, open starts, acme denied, blue denied, apps denied, able starts, nobody denied
        local: builtin starts, open starts, acme starts, blue starts, apps starts, able starts, nobody starts
    "#]].assert_eq(&table);
}

/// A caller without a scope acts for a tenant by the scope of the session. A caller with a scope cannot reach an agent by
/// choosing more keys for a session.
#[test]
fn the_scope_of_a_session_counts_only_for_a_caller_without_one() {
    check(
        &format!(
            "{WORLD}{}",
            r#"
        create_session agent=open id=a scope={"tenant":"acme"} as=bob
        create_session agent=open id=z scope={"tenant":"zeta"} as=bob
        create_session agent=open id=b scope={"team":"blue"} as=ann
        start_run session_id=a agent=acme id=r as=bob
        start_run session_id=z agent=acme as=bob
        start_run session_id=b agent=blue as=ann
        "#
        ),
        expect![[r#"
            seq 1 {name: builtin, revision: 1, mode: primary}
            seq 2 {name: open, revision: 1, mode: primary}
            seq 3 {name: acme, revision: 1, mode: primary}
            seq 4 {name: blue, revision: 1, mode: primary}
            seq 5 {name: apps, revision: 1, mode: primary}
            seq 6 {name: able, revision: 1, mode: primary}
            seq 7 {name: nobody, revision: 1, mode: primary}
            seq 8 {id: a, status: created, scope: {"tenant":"acme"}}
            seq 9 {id: z, status: created, scope: {"tenant":"zeta"}}
            seq 10 {id: tenant=acme/b, status: created, scope: {"team":"blue","tenant":"acme"}}
            seq 11 {id: r, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused denied: agent acme may not work in a session with this scope (hint: an operator can extend `allow` in the definition of the agent)
            refused not_found: there is no agent blue (hint: the query `SELECT name FROM agents` lists them)
        "#]],
    );
}

/// An agent that a caller may not know is answered as one that does not exist, also in a hint.
#[test]
fn a_hidden_agent_is_like_no_agent() {
    check(
        &format!(
            "{WORLD}{}",
            r#"
        create_session agent=open id=s as=zoe
        start_run session_id=s agent=acme as=zoe
        start_run session_id=s agent=builtin as=zoe
        start_run session_id=s agent=acmes as=zoe
        start_run session_id=s agent=opem as=zoe
        "#
        ),
        expect![[r#"
            seq 1 {name: builtin, revision: 1, mode: primary}
            seq 2 {name: open, revision: 1, mode: primary}
            seq 3 {name: acme, revision: 1, mode: primary}
            seq 4 {name: blue, revision: 1, mode: primary}
            seq 5 {name: apps, revision: 1, mode: primary}
            seq 6 {name: able, revision: 1, mode: primary}
            seq 7 {name: nobody, revision: 1, mode: primary}
            seq 8 {id: tenant=zeta/s, status: created, scope: {"tenant":"zeta"}}
            refused not_found: there is no agent acme (hint: the query `SELECT name FROM agents` lists them)
            refused not_found: there is no agent builtin (hint: the query `SELECT name FROM agents` lists them)
            refused not_found: there is no agent acmes (hint: the query `SELECT name FROM agents` lists them)
            refused not_found: there is no agent opem (hint: did you mean open?)
        "#]],
    );
}

#[test]
fn a_malformed_rule_is_not_registered() {
    check(
        r#"
        register_agent name=a definition={"allow":{"role":["app"]}}
        register_agent name=a definition={"allow":{"roles":"app"}}
        register_agent name=a definition={"allow":[]}
        register_agent name=a definition={"allow":{"scopes":[{}]}}
        register_agent name=a definition={"allow":{"scopes":[{"tenant":7}]}}
        register_agent name=a definition={"allow":{"roles":[""]}}
        register_agent name=a definition={"allow":null}
        register_agent name=a definition={"allow":{"roles":null}}
        "#,
        expect![[r#"
            refused bad_arguments: allow is malformed: unknown field `role`, expected one of `roles`, `capabilities`, `scopes` (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
            refused bad_arguments: allow is malformed: allow.roles: invalid type: string "app", expected a sequence (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
            refused bad_arguments: allow is malformed: invalid type: sequence, expected a map (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
            refused bad_arguments: allow.scopes has a scope without keys: omit scopes to allow all (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
            refused bad_arguments: allow is malformed: allow.scopes: invalid type: integer `7`, expected a string (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
            refused bad_arguments: allow has an empty name (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
            refused bad_arguments: allow is malformed: invalid type: null, expected a map (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
            refused bad_arguments: allow is malformed: allow.roles: invalid type: null, expected a sequence (hint: for example {"roles": ["app"], "scopes": [{"tenant": "acme"}]})
        "#]],
    );
}

/// A task is judged by the caller that started the first run, although the driver has every permission.
#[test]
fn a_task_is_for_the_caller_that_started_the_run() {
    check(
        r#"
        who ann agent tenant=acme
        register_tool name=task effect=idempotent
        register_agent name=boss definition={"subagents":["zetas","acmes"]}
        register_agent name=zetas mode=all definition={"allow":{"scopes":[{"tenant":"zeta"}]}}
        register_agent name=acmes mode=all definition={"allow":{"scopes":[{"tenant":"acme"}],"roles":["agent"]}}
        create_session agent=boss id=s as=ann
        start_run session_id=s id=r as=ann
        claim_run id=tenant=acme/r driver=d lease_ms=60000
        request_tool_call call_id=tenant=acme/r~1 session_id=tenant=acme/s tool_name=task arguments={} run_id=tenant=acme/r run_fencing_token=7 claim_lease_ms=60000
        request_tool_call call_id=tenant=acme/r~2 session_id=tenant=acme/s tool_name=task arguments={} run_id=tenant=acme/r run_fencing_token=7 claim_lease_ms=60000
        start_child_run call_id=tenant=acme/r~1 fencing_token=8 agent=zetas input=x
        start_child_run call_id=tenant=acme/r~2 fencing_token=9 agent=acmes input=x
        record_run id=tenant=acme/r fencing_token=7 events=[{"kind":"delegation","data":{"handoff":true,"to_agent":"zetas"}}]
        record_run id=tenant=acme/r fencing_token=7 events=[{"kind":"delegation","data":{"handoff":true,"to_agent":"acmes"}}]
        sql SELECT run_id, caller, authority FROM run_starters ORDER BY run_id
        replay
        "#,
        expect![[r#"
            seq 1 {name: task, version: 1, effect: idempotent}
            seq 2 {name: boss, revision: 1, mode: primary}
            seq 3 {name: zetas, revision: 1, mode: all}
            seq 4 {name: acmes, revision: 1, mode: all}
            seq 5 {id: tenant=acme/s, status: created, scope: {"tenant":"acme"}}
            seq 6 {id: tenant=acme/r, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 7 {id: tenant=acme/r, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 7, lease_expires_at: 14:01:00}
            seq 8 {call_id: tenant=acme/r~1, status: claimed, attempt: 1, fencing_token: 8, claimed_by: local, lease_expires_at: 14:01:00}
            seq 9 {call_id: tenant=acme/r~2, status: claimed, attempt: 1, fencing_token: 9, claimed_by: local, lease_expires_at: 14:01:00}
            refused not_found: there is no agent zetas (hint: the query `SELECT name FROM agents` lists them)
            seq 10 {id: tenant=acme/r~2~run, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1, parent_id: tenant=acme/r}
            refused not_found: there is no agent zetas (hint: the query `SELECT name FROM agents` lists them)
            seq 11 {id: tenant=acme/r, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 4, fencing_token: 7, lease_expires_at: 14:01:00}
            ("tenant=acme/r", "ann", "{\"capabilities\":[],\"role\":\"agent\",\"scope\":{\"tenant\":\"acme\"}}") ("tenant=acme/r~2~run", "ann", "{\"capabilities\":[],\"role\":\"agent\",\"scope\":{\"tenant\":\"acme\"}}")
            the same up to 11
        "#]],
    );
}

/// A run continues only while its agent admits the caller that started it, and `resume_run` only for a caller that it admits.
#[test]
fn the_rule_is_checked_again_when_a_run_continues() {
    check(
        r#"
        who ann agent tenant=acme
        who ben agent +refunds tenant=acme
        register_tool name=pay effect=idempotent needs_approval=true
        register_agent name=desk definition={"allow":{"roles":["agent"]}}
        create_session agent=desk id=s as=ann
        start_run session_id=s id=r as=ann
        claim_run id=tenant=acme/r driver=d lease_ms=60000
        request_tool_call call_id=tenant=acme/r~1 session_id=tenant=acme/s tool_name=pay arguments={} run_id=tenant=acme/r run_fencing_token=5
        pause_run id=r as=ann
        record_pause id=tenant=acme/r fencing_token=5 stage=after_agent
        register_agent name=desk definition={"allow":{"roles":["app"]}}
        resume_run id=r as=ann
        resume_run id=tenant=acme/r
        decide_approval call_id=tenant=acme/r~1 decision=approve
        register_agent name=desk definition={"allow":{"capabilities":["refunds"],"roles":["agent"]}}
        resume_run id=r as=ben
        register_agent name=desk definition={}
        decide_approval call_id=tenant=acme/r~1 decision=approve
        resume_run id=r as=ben
        "#,
        expect![[r#"
            seq 1 {name: pay, version: 1, effect: idempotent}
            seq 2 {name: desk, revision: 1, mode: primary}
            seq 3 {id: tenant=acme/s, status: created, scope: {"tenant":"acme"}}
            seq 4 {id: tenant=acme/r, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 5 {id: tenant=acme/r, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 5, lease_expires_at: 14:01:00}
            seq 6 {call_id: tenant=acme/r~1, status: awaiting_approval, attempt: 0}
            seq 7 {status: requested}
            seq 8 {id: tenant=acme/r, revision: 1, status: waiting, turn: 1, iterations: 0, tool_calls: 0, events: 2, fencing_token: 5, reason: pause}
            seq 9 {name: desk, revision: 2, mode: primary}
            refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
            refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
            refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
            seq 13 {name: desk, revision: 3, mode: primary}
            refused denied: starting runs of agent desk requires a capability that the caller lacks (hint: an operator can extend `allow` in the definition of the agent)
            seq 15 {name: desk, revision: 4, mode: primary}
            seq 16 {id: ap#1, call_id: tenant=acme/r~1, status: approved, decided_by: local}
            seq 17 {id: tenant=acme/r, revision: 1, status: running, turn: 2, iterations: 0, tool_calls: 0, events: 3}
        "#]],
    );
}

/// Regression: the runtime registers its own agents at every start, and so a retired one was back after a restart.
#[test]
fn a_retired_agent_of_the_runtime_stays_retired() {
    check(
        r#"
        register_agent name=default definition={} native=true
        retire_agent name=default
        register_agent name=default definition={} native=true
        register_agent name=default definition={"tools":["*"]} native=true
        create_session agent=default id=s
        start_run session_id=s
        register_agent name=default definition={"tools":["look"]}
        start_run session_id=s id=r
        "#,
        expect![[r#"
            seq 1 {name: default, revision: 1, mode: primary}
            seq 2 {name: default, revision: 1, mode: primary}
            seq 2 again {name: default, revision: 1, mode: primary}
            seq 3 {name: default, revision: 2, mode: primary}
            seq 4 {id: s, status: created}
            refused bad_transition: agent default is retired and cannot start runs (hint: use another agent, or restore its file; `register_agent` registers it again)
            seq 5 {name: default, revision: 3, mode: primary}
            seq 6 {id: r, revision: 3, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
        "#]],
    );
}
