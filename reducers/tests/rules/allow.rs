//! Who may start runs of an agent, for each kind of caller and agent and each way to start or continue a run.
//!
//! Regression: the agents that come with the runtime were open to every tenant. A token of the role `agent` with a scope ran
//! `default` with all program tools of the folder, without the approvals that the folder's own agent demands. The class:
//! a rule about an agent that one way of starting a run checks and another does not.

use std::fmt::Write as _;

use abide_schema::Code;
use abide_schema::reducer::Caller;
use abide_tests::world::{World, run};
use expect_test::{Expect, expect};
use serde_json::{Map, Value as JsonValue, json};

use crate::{check, play};

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
    lines[lines.len() - count..]
        .iter()
        .map(|line| match line.strip_prefix("refused ") {
            Some(refusal) => refusal.split(':').next().unwrap_or_default().to_owned(),
            None => "starts".to_owned(),
        })
        .collect()
}

/// Plays a script after [`WORLD`], and compares its own answers.
fn check_in_world(script: &str, expected: Expect) {
    let output = play(&format!("{WORLD}{script}"));
    let answers: Vec<&str> = output.lines().skip(AGENTS.len()).collect();
    expected.assert_eq(&format!("{}\n", answers.join("\n")));
}

#[test]
fn each_caller_starts_the_agents_that_admit_it() {
    let mut table = String::new();
    for caller in ["ann", "zoe", "tom", "bob", "eve", "local"] {
        let by = if caller == "local" { String::new() } else { format!(" as={caller}") };
        let mut script = WORLD.to_owned();
        for agent in AGENTS {
            writeln!(script, "create_session agent={agent} id={agent}{by}").unwrap();
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
    check_in_world(
        r#"
        create_session agent=acme id=a scope={"tenant":"acme"} as=bob
        create_session agent=acme id=z scope={"tenant":"zeta"} as=bob
        create_session agent=blue id=b scope={"team":"blue"} as=ann
        start_run session_id=a agent=acme id=r as=bob
        start_run session_id=z agent=acme as=bob
        start_run session_id=b agent=blue as=ann
        "#,
        expect![[r#"
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
    check_in_world(
        r#"
        create_session agent=open id=s as=zoe
        start_run session_id=s agent=acme as=zoe
        start_run session_id=s agent=builtin as=zoe
        start_run session_id=s agent=acmes as=zoe
        start_run session_id=s agent=opem as=zoe
        "#,
        expect![[r#"
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

/// The ways to continue a run after the rule has changed, each with a supervisor who may do everything. Regression: the resolution
/// of a handoff and a settlement continued a run whose starter was no longer admitted, and only the run's own agent was checked, not
/// the agent that had taken over.
#[test]
fn each_way_to_continue_a_run_checks_the_rule() {
    const RUN: &str = r#"
        who ann agent tenant=acme
        register_tool name=pay effect=at_most_once needs_approval=true
        register_tool name=send effect=at_most_once
        register_agent name=desk definition={"subagents":["clerk"]}
        register_agent name=clerk mode=all definition={}
        create_session agent=desk id=s as=ann
        start_run session_id=s id=r as=ann
        claim_run id=tenant=acme/r driver=d lease_ms=60000
    "#;
    const TAKEN_OVER: &str = r#"
        append_message session_id=tenant=acme/s role=tool content=ok run_id=tenant=acme/r run_fencing_token=7 data={"call_id":"tenant=acme/r~1","handoff":{"run_id":"tenant=acme/r","agent":"clerk"}}
    "#;
    const WAYS: [(&str, &str, &str); 5] = [
        (
            "approval",
            r#"request_tool_call call_id=tenant=acme/r~2 session_id=tenant=acme/s tool_name=pay arguments={} run_id=tenant=acme/r run_fencing_token=7
            wait_run id=tenant=acme/r fencing_token=7 interrupt={}"#,
            "decide_approval call_id=tenant=acme/r~2 decision=approve",
        ),
        (
            "settlement",
            r#"request_tool_call call_id=tenant=acme/r~2 session_id=tenant=acme/s tool_name=send arguments={} run_id=tenant=acme/r run_fencing_token=7 claim_lease_ms=1000
            +1s
            wait_run id=tenant=acme/r fencing_token=7 interrupt={}"#,
            "settle_tool_call call_id=tenant=acme/r~2 outcome=succeeded",
        ),
        (
            "handoff",
            r#"request_supervisor_handoff session_id=tenant=acme/s reason=x required_capability=y
            wait_run id=tenant=acme/r fencing_token=7 interrupt={}
            claim_handoff id=ho#1"#,
            "resolve_handoff id=ho#1 resolution=x",
        ),
        (
            "suspension",
            r#"suspend_session session_id=tenant=acme/s
            wait_run id=tenant=acme/r fencing_token=7 interrupt={}"#,
            "resume_session session_id=tenant=acme/s",
        ),
        (
            "pause",
            r#"pause_run id=tenant=acme/r
            record_pause id=tenant=acme/r fencing_token=7 stage=after_agent"#,
            "resume_run id=tenant=acme/r",
        ),
    ];
    let deny = |agent: &str| {
        let subagents = if agent == "desk" { r#""subagents":["clerk"],"# } else { "" };
        format!(
            "register_agent name={agent} mode=all definition={{{subagents}\"allow\":{{\"roles\":[\"app\"]}}}}\n"
        )
    };
    let mut table = String::new();
    for (name, waits, continues) in WAYS {
        for (agent, taken_over) in [("desk", ""), ("clerk", TAKEN_OVER), ("desk", TAKEN_OVER)] {
            let script = format!("{RUN}{taken_over}{waits}\n{}{continues}\n", deny(agent));
            let answer = play(&script);
            let last = answer.lines().last().unwrap_or_default();
            let of_active = if taken_over.is_empty() { "" } else { ", clerk is active" };
            writeln!(table, "{name}, {agent} denied{of_active}: {last}").unwrap();
        }
    }
    expect![[r#"
        approval, desk denied: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        approval, clerk denied, clerk is active: refused denied: the role agent may not start runs of agent clerk (hint: an operator can extend `allow` in the definition of the agent)
        approval, desk denied, clerk is active: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        settlement, desk denied: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        settlement, clerk denied, clerk is active: refused denied: the role agent may not start runs of agent clerk (hint: an operator can extend `allow` in the definition of the agent)
        settlement, desk denied, clerk is active: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        handoff, desk denied: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        handoff, clerk denied, clerk is active: refused denied: the role agent may not start runs of agent clerk (hint: an operator can extend `allow` in the definition of the agent)
        handoff, desk denied, clerk is active: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        suspension, desk denied: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        suspension, clerk denied, clerk is active: refused denied: the role agent may not start runs of agent clerk (hint: an operator can extend `allow` in the definition of the agent)
        suspension, desk denied, clerk is active: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        pause, desk denied: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
        pause, clerk denied, clerk is active: refused denied: the role agent may not start runs of agent clerk (hint: an operator can extend `allow` in the definition of the agent)
        pause, desk denied, clerk is active: refused denied: the role agent may not start runs of agent desk (hint: an operator can extend `allow` in the definition of the agent)
    "#]].assert_eq(&table);
}

fn of_tenant(tenant: &str) -> Caller {
    let scope = [("tenant".to_owned(), tenant.to_owned())];
    Caller::with(tenant, "app", [].into(), scope.into())
}

/// An import starts a run for the caller that imports, so the rule of each agent in the snapshot is checked for that caller: of the
/// run, of a run that it delegated, and of an agent that took over.
#[test]
fn an_import_is_for_callers_that_the_agents_admit() {
    run(async {
        let admits = |tenant: &str| json!({"allow": {"scopes": [{"tenant": tenant}]}});
        let snapshot = json!({"format": "abide-run", "version": 4, "id": "snap", "created_at": 0,
            "is_copy": false, "tools": ["task"], "runs": [
                run_of("r", "desk", None),
                run_of("r~1~run", "helper", Some("r")),
            ], "agents": [
                {"name": "desk", "revision": 1}, {"name": "helper", "revision": 1},
                {"name": "clerk", "revision": 1}]});
        let mut output = String::new();
        for denies in ["nothing", "desk", "helper", "clerk"] {
            let world = World::new(abide_reducers::modules);
            world.call("register_tool", json!({"name": "task"})).await.unwrap();
            for (agent, mode) in [("desk", "primary"), ("helper", "subagent"), ("clerk", "all")] {
                let mut definition = if agent == denies { admits("zeta") } else { admits("acme") };
                definition["subagents"] = match agent {
                    "desk" => json!(["helper", "clerk"]),
                    _ => json!([]),
                };
                let agent = json!({"name": agent, "mode": mode, "definition": definition});
                world.call("register_agent", agent).await.unwrap();
            }
            let before = world.state(None).await;
            let args = json!({"snapshot": snapshot, "any_definition": true});
            let answer = world.engine().call(&of_tenant("acme"), "import_run", &args, None).await;
            match answer {
                Ok(_) => writeln!(output, "{denies}: imported").unwrap(),
                Err(refusal) => {
                    writeln!(output, "{denies}: {}: {refusal}", refusal.code).unwrap();
                    assert_eq!(before, world.state(None).await, "{denies}");
                }
            }
        }
        expect![[r#"
            nothing: imported
            desk: not_found: there is no agent desk
            helper: not_found: there is no agent helper
            clerk: not_found: there is no agent clerk
        "#]]
        .assert_eq(&output);
    });
}

/// A run of a snapshot. The first one has delegated a run, and has handed its turn over to `clerk`.
fn run_of(id: &str, agent: &str, parent: Option<&str>) -> JsonValue {
    let is_first = parent.is_none();
    let session_id = id.strip_suffix("~run").unwrap_or("s");
    let calls = json!([{"call_id": "r~1", "tool_name": "task", "arguments": {},
        "status": "delegated", "attempt": 1}]);
    let messages = json!([{"role": "tool", "kind": "message", "content": "ok", "is_of_run": true,
        "data": {"call_id": "r~2", "handoff": {"run_id": "r", "agent": "clerk"}}}]);
    let (calls, messages) = if is_first { (calls, messages) } else { (json!([]), json!([])) };
    let mut run = json!({"id": id, "session_id": session_id, "agent": agent, "revision": 1,
        "scope": {}, "metadata": {}, "iterations": 0, "tool_calls": 0, "input_tokens": 0,
        "output_tokens": 0, "usage_missing": 0, "budget_tokens": 0, "budget_cost_micros": 0,
        "began_at": 0, "messages": messages, "calls": calls});
    if let Some(parent) = parent {
        run["parent_id"] = json!(parent);
    }
    run
}

/// Regression: the name of an agent that a tenant may not know was in the list of tools, as the tool that stands for it.
#[test]
fn a_tool_of_a_hidden_agent_is_hidden() {
    run(async {
        let world = World::new(abide_reducers::modules);
        for (name, allow) in [("ours", "acme"), ("theirs", "zeta")] {
            let definition = json!({"allow": {"scopes": [{"tenant": allow}]}});
            let agent = json!({"name": name, "mode": "subagent", "definition": definition});
            world.call("register_agent", agent).await.unwrap();
            let tool = json!({"name": format!("ask_{name}"), "annotations": {"agent": name}});
            world.call("register_tool", tool).await.unwrap();
        }
        world.call("register_tool", json!({"name": "pay"})).await.unwrap();
        let mut output = String::new();
        for (who, caller) in [("acme", of_tenant("acme")), ("local", Caller::local())] {
            for table in ["tools", "tool_versions"] {
                let sql = format!("SELECT name FROM {table} ORDER BY name");
                let rows =
                    world.engine().query(&caller, &sql, &Map::new(), None).await.unwrap().rows;
                let names: Vec<JsonValue> = rows.iter().map(|row| row[0].to_json()).collect();
                writeln!(output, "{who} {table}: {}", json!(names)).unwrap();
            }
        }
        expect![[r#"
            acme tools: ["ask_ours","pay"]
            acme tool_versions: ["ask_ours","ask_theirs","pay"]
            local tools: ["ask_ours","ask_theirs","pay"]
            local tool_versions: ["ask_ours","ask_theirs","pay"]
        "#]]
        .assert_eq(&output);
        let acme = of_tenant("acme");
        let session = json!({"agent": "desk", "id": "s"});
        world.engine().call(&acme, "create_session", &session, None).await.unwrap();
        for (tool, call_id) in [("ask_theirs", "c1"), ("missing", "c2")] {
            let request =
                json!({"call_id": call_id, "session_id": "s", "tool_name": tool, "arguments": {}});
            let refused = world.engine().call(&acme, "request_tool_call", &request, None).await;
            let refused = refused.unwrap_err();
            assert_eq!(refused.code, Code::NotFound);
            assert_eq!(refused.detail, format!("there is no tool {tool}"));
        }
    });
}
