//! Agents: revisions only increase, and registering the same definition changes nothing.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# register_agent
register_agent {"name":"support","definition":{"subagents":["agent7"]},"mode":"all"}
# retire_agent
retire_agent {"name":"support"}
"#;

#[test]
fn every_change_of_a_definition_is_a_revision() {
    check(
        r#"
        register_agent name=support definition={"prompt":"be kind"}
        register_agent name=support definition={"prompt":"be kind"}
        register_agent name=support definition={"prompt":"be brief"}
        register_agent name=support definition={"prompt":"be brief"} hidden=true
        register_agent name=support definition={"prompt":"be kind"} expected_revision=1
        register_agent name=support definition={"prompt":"be kind"} expected_revision=2
        register_agent name=other definition={} expected_revision=1
        register_agent name=other definition="be kind"
        sql SELECT revision, definition, seq FROM agent_revisions ORDER BY revision
        replay
        "#,
        expect![[r#"
            seq 1 {name: support, revision: 1, mode: primary}
            seq 1 again {name: support, revision: 1, mode: primary}
            seq 2 {name: support, revision: 2, mode: primary}
            seq 3 {name: support, revision: 2, mode: primary}
            refused conflict: agent support is at revision 2, not 1 (hint: read it again and retry the change)
            seq 4 {name: support, revision: 3, mode: primary}
            refused conflict: agent other is at revision 0, not 1 (hint: read it again and retry the change)
            refused bad_arguments: register_agent: argument definition: expected an object, found the string "be kind" (hint: register_agent takes name, definition, mode?, description?, hidden?, native?, expected_revision?)
            (1, "{\"prompt\":\"be kind\"}", 1) (2, "{\"prompt\":\"be brief\"}", 2) (3, "{\"prompt\":\"be kind\"}", 4)
            the same up to 4
        "#]],
    );
}

/// An inline subagent belongs to its parent, so it is no delegation to an agent of the same name.
#[test]
fn an_inline_subagent_is_not_the_agent_of_its_name() {
    check(
        r#"
        register_agent name=boss definition={"subagents":["clerk"]}
        register_agent name=clerk definition={"subagents":[{"name":"boss"},{"name":"clerk"}]}
        register_agent name=clerk definition={"subagents":[{"name":"helper","subagents":["boss"]}]}
        register_agent name=clerk/helper definition={"subagents":["boss"]}
        replay
        "#,
        expect![[r#"
            seq 1 {name: boss, revision: 1, mode: primary}
            seq 2 {name: clerk, revision: 1, mode: primary}
            refused bad_arguments: agent clerk would delegate to itself (hint: remove the agent from the subagents of every agent that it delegates to)
            seq 3 {name: clerk/helper, revision: 1, mode: primary}
            the same up to 3
        "#]],
    );
}

#[test]
fn a_mode_restricts_the_use_of_an_agent() {
    check(
        r#"
        create_session agent=clerk id=s2
        register_agent name=lead definition={}
        register_agent name=clerk definition={} mode=subagent
        register_agent name=both definition={} mode=all
        register_agent name=odd definition={} mode=sometimes
        create_session agent=lead id=s1
        create_session agent=clerk id=s0
        open_session agent=clerk id=s0
        create_session agent=both id=s3
        create_session agent=noname id=s4
        start_run session_id=s2 id=r2
        start_run session_id=s4 id=r4
        start_run session_id=s1 id=r1
        start_run session_id=s3 id=r3
        start_run session_id=s2 id=r5 parent_id=r1
        create_session agent=lead id=s5
        start_run session_id=s5 id=r8 agent=clerk
        "#,
        expect![[r#"
            seq 1 {id: s2, status: created}
            seq 2 {name: lead, revision: 1, mode: primary}
            seq 3 {name: clerk, revision: 1, mode: subagent}
            seq 4 {name: both, revision: 1, mode: all}
            refused bad_arguments: register_agent: argument mode: "sometimes" is not one of primary, subagent, all (hint: register_agent takes name, definition, mode?, description?, hidden?, native?, expected_revision?)
            seq 5 {id: s1, status: created}
            refused bad_transition: agent clerk is subagent and cannot own a session (hint: set mode to primary or all)
            refused bad_transition: agent clerk is subagent and cannot own a session (hint: set mode to primary or all)
            seq 6 {id: s3, status: created}
            seq 7 {id: s4, status: created}
            refused bad_transition: agent clerk is subagent and cannot own a session (hint: set mode to primary or all)
            refused not_found: there is no agent noname (hint: the query `SELECT name FROM agents` lists them)
            seq 8 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 9 {id: r3, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused bad_arguments: start_run: unexpected argument parent_id (hint: start_run takes session_id, agent?, input?, id?, deadline_ms?)
            seq 10 {id: s5, status: created}
            refused bad_transition: agent clerk is subagent and cannot own a session (hint: set mode to primary or all)
        "#]],
    );
}

#[test]
fn a_retired_agent_starts_no_more_runs() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1
        create_session agent=lead id=s2
        start_run session_id=s1 id=r1
        retire_agent name=lead
        retire_agent name=lead
        retire_agent name=noname
        start_run session_id=s2 id=r2
        claim_run id=r1 driver=d lease_ms=1000
        register_agent name=lead definition={}
        start_run session_id=s2 id=r2
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: s2, status: created}
            seq 4 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 5 {name: lead, revision: 1, mode: primary}
            seq 5 again {name: lead, revision: 1, mode: primary}
            refused not_found: there is no agent noname (hint: the query `SELECT name FROM agents` lists them)
            refused bad_transition: agent lead is retired and cannot start runs (hint: use another agent, or restore its file; `register_agent` registers it again)
            seq 6 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 6, lease_expires_at: 14:00:01}
            seq 7 {name: lead, revision: 1, mode: primary}
            seq 8 {id: r2, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
        "#]],
    );
}
