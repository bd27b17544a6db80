//! Every field of a snapshot with every kind of forged value: it is refused, or limited, or it gives the importing caller nothing.
//!
//! Regression: a counter of a snapshot could name a place after all later pauses of the run, so none of them took effect. The class:
//! a value that an import stores as it is, although this file decides on it. The complete snapshot below has no `..`, so a new field
//! does not compile until it is there, and each of its values is a row of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use abide_reducers::health::{HealthAction, NewHealth};
use abide_reducers::pause::PauseStage;
use abide_reducers::plan::{NewPlanStep, PlanStepStatus};
use abide_reducers::snapshot::{
    RunSnapshot, SnapshotAgent, SnapshotArchivedResult, SnapshotCall, SnapshotCallStatus,
    SnapshotContext, SnapshotFact, SnapshotHealth, SnapshotMessage, SnapshotPlan, SnapshotRun,
    SnapshotSummary,
};
use abide_schema::Micros;
use abide_schema::reducer::Caller;
use abide_tests::world::{World, run};
use expect_test::expect_file;
use serde_json::{Map, Value as JsonValue, json};

use super::snapshots::{call, file, of_tenant, paused};

/// When the snapshot says that its run began. The clock of a file starts later.
const BEGAN_AT: i64 = 1_000;

fn object(value: JsonValue) -> Map<String, JsonValue> {
    value.as_object().cloned().unwrap()
}

/// A snapshot with all members, and at least one element in each list.
fn complete() -> RunSnapshot {
    let clerk = json!({"tools": ["pay", "look"], "limits": {"tokens": 1000},
        "subagents": ["helper"]});
    RunSnapshot {
        format: "abide-run".to_owned(),
        version: 4,
        id: "snap".to_owned(),
        created_at: Micros(BEGAN_AT),
        tag: Some("for review".to_owned()),
        is_copy: false,
        tools: vec!["pay".to_owned()],
        agents: vec![
            SnapshotAgent {
                name: "clerk".to_owned(),
                revision: 1,
                definition: Some(object(clerk)),
            },
            SnapshotAgent { name: "helper".to_owned(), revision: 1, definition: Some(Map::new()) },
        ],
        runs: vec![first_run(), delegated_run()],
    }
}

fn first_run() -> SnapshotRun {
    SnapshotRun {
        id: "r1".to_owned(),
        session_id: "s1".to_owned(),
        agent: "clerk".to_owned(),
        revision: 1,
        parent_id: None,
        title: Some("A parcel".to_owned()),
        scope: object(json!({"team": "blue"})),
        metadata: object(json!({"note": "x"})),
        reason: Some("pause".to_owned()),
        turn: Some(2),
        iterations: 2,
        tool_calls: 3,
        input_tokens: 40,
        output_tokens: 2,
        usage_missing: 1,
        cost_micros: Some(7),
        budget_tokens: 50,
        budget_cost_micros: 9,
        deadline_at: Some(Micros(4_000_000_000_000_000)),
        began_at: Micros(BEGAN_AT),
        worked_us: Some(60_000_000),
        stage: Some(PauseStage::AfterAgent),
        stage_iteration: Some(2),
        messages: messages(),
        calls: vec![
            call_of("r1~1.1", "look", SnapshotCallStatus::Succeeded),
            call_of("r1~1.2", "pay", SnapshotCallStatus::Failed),
            call_of("r1~1.3", "task", SnapshotCallStatus::Delegated),
        ],
        context: SnapshotContext {
            summary: Some(summary()),
            plan: Some(SnapshotPlan { version: 3, steps: vec![step()] }),
            facts: vec![SnapshotFact {
                namespace: "clerk".to_owned(),
                key: "language".to_owned(),
                value: "German".to_owned(),
                confidence: 0.5,
            }],
            health: vec![SnapshotHealth {
                iteration: 1,
                measured: measured(),
                action: HealthAction::None,
            }],
        },
    }
}

/// A run that the first one has delegated.
fn delegated_run() -> SnapshotRun {
    SnapshotRun {
        id: "r1~1.3~run".to_owned(),
        session_id: "r1~1.3".to_owned(),
        agent: "helper".to_owned(),
        parent_id: Some("r1".to_owned()),
        messages: Vec::new(),
        calls: Vec::new(),
        context: SnapshotContext::default(),
        stage: None,
        stage_iteration: None,
        ..first_run()
    }
}

fn messages() -> Vec<SnapshotMessage> {
    let calls = json!([{"call_id": "r1~1.1", "name": "look"}, {"call_id": "r1~1.2", "name": "pay"},
        {"call_id": "r1~1.3", "name": "task"}]);
    let answer = json!({"run_id": "r1", "iteration": 1, "calls": calls, "past_limit": 1,
        "input_tokens": 40, "estimated_tokens": 41, "cut_results": 1});
    let handoff = json!({"run_id": "r1", "agent": "helper", "revision": 1, "at": BEGAN_AT,
        "worked_us": 30_000_000, "iterations": 1, "tool_calls": 3, "tokens": 42, "cost_micros": 7});
    let result = json!({"call_id": "r1~1.1", "handoff": handoff});
    let message = |role: &str, content: &str, data: Option<JsonValue>| SnapshotMessage {
        role: role.to_owned(),
        kind: "message".to_owned(),
        content: Some(content.to_owned()),
        is_of_run: data.is_some(),
        data,
    };
    vec![
        message("user", "Pay it.", None),
        message("assistant", "I look.", Some(answer)),
        message("tool", "ok", Some(result)),
    ]
}

fn call_of(call_id: &str, tool_name: &str, status: SnapshotCallStatus) -> SnapshotCall {
    let has_succeeded = status == SnapshotCallStatus::Succeeded;
    SnapshotCall {
        call_id: call_id.to_owned(),
        tool_name: tool_name.to_owned(),
        arguments: json!({"order": "A"}),
        provider_call_id: Some("toolu_1".to_owned()),
        status,
        attempt: 1,
        result: has_succeeded.then(|| json!({"text": "there"})),
        error: (status == SnapshotCallStatus::Failed).then(|| "no".to_owned()),
    }
}

fn summary() -> SnapshotSummary {
    SnapshotSummary {
        number: 2,
        through: 2,
        folded: 1,
        goal: 3,
        goal_folded: 2,
        summary: json!({"text": "x"}),
        kept: vec![1],
        answers: 1,
        handoffs: Vec::new(),
        origin: "model".to_owned(),
        repaired: Some(json!({"n": "x"})),
        tokens_before: 100,
        archived: vec![SnapshotArchivedResult {
            message: 2,
            call_id: "r1~1.1".to_owned(),
            provider_call_id: Some("toolu_1".to_owned()),
            tool_name: "look".to_owned(),
            number: 1,
            characters: 900,
        }],
    }
}

fn step() -> NewPlanStep {
    NewPlanStep {
        title: "Look".to_owned(),
        status: PlanStepStatus::InProgress,
        description: Some("d".to_owned()),
        owner: Some("clerk".to_owned()),
        exit_criteria: Some("e".to_owned()),
        evidence: Some("v".to_owned()),
    }
}

fn measured() -> NewHealth {
    NewHealth {
        tokens: 10,
        token_drift: 1,
        messages: 3,
        new_messages: 1,
        tool_messages: 1,
        over_tooling: 0.5,
        context_rot: 0.25,
        repeats: 1,
        signals: vec!["token_drift".to_owned()],
        unhealthy: 1,
    }
}

/// Members with any JSON, which an import stores as they are or ignores.
const FREE: [&str; 6] = ["definition", "arguments", "result", "repaired", "metadata", "text"];

/// Members with an id or a name of something in this file.
const NAMES: [&str; 8] =
    ["id", "session_id", "run_id", "call_id", "parent_id", "agent", "tool_name", "name"];

fn name_of(at: &str) -> &str {
    at.rsplit('/').next().unwrap_or_default()
}

/// The values of a JSON value, by their JSON pointer.
fn leaves(at: &str, value: &JsonValue, into: &mut BTreeMap<String, JsonValue>) {
    match value {
        JsonValue::Object(members) if !members.is_empty() && !FREE.contains(&name_of(at)) => {
            members.iter().for_each(|(name, value)| leaves(&format!("{at}/{name}"), value, into));
        }
        JsonValue::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(n, it)| leaves(&format!("{at}/{n}"), it, into));
        }
        _ => drop(into.insert(at.to_owned(), value.clone())),
    }
}

/// The forged values for a value: each kind of number, of status, and the ids of another tenant's rows.
fn forgeries(at: &str, value: &JsonValue) -> Vec<JsonValue> {
    let name = name_of(at);
    match value {
        JsonValue::Number(number) if number.is_f64() => vec![json!(-1.0), json!(0.0), json!(1e300)],
        JsonValue::Number(_) if name.ends_with("_at") || name == "at" => {
            [-1, 0, IN_A_DAY, i64::MAX].map(JsonValue::from).to_vec()
        }
        JsonValue::Number(_) => {
            [-1, 0, i64::from(u32::MAX), i64::MAX].map(JsonValue::from).to_vec()
        }
        JsonValue::Bool(is) => vec![json!(!is)],
        JsonValue::String(_) if name == "status" || name == "action" || name == "stage" => [
            "succeeded",
            "failed",
            "rejected",
            "cancelled",
            "unknown",
            "delegated",
            "pending",
            "claimed",
            "awaiting_approval",
            "completed",
            "blocked",
            "not_started",
            "stop",
            "warn",
            "compact",
            "after_loop",
            "before_guardrails",
            "after_tools",
        ]
        .map(JsonValue::from)
        .to_vec(),
        JsonValue::String(_) if NAMES.contains(&name) => {
            ["", "tenant=v/r1", "tenant=v/s1", "tenant=v/r1~1.1", "vault"]
                .map(JsonValue::from)
                .to_vec()
        }
        JsonValue::String(_) => vec![json!(""), json!("a\u{0}b")],
        other => vec![json!(null), json!({"forged": other})],
    }
}

/// A day after the clock of a file starts.
const IN_A_DAY: i64 = 1_795_269_600_000_000 + 86_400_000_000;

/// What an import writes, by table, row and column.
async fn written(world: &World) -> BTreeMap<String, JsonValue> {
    let mut written = BTreeMap::new();
    for (table, columns, key) in [
        ("sessions", "agent, status, parent_id, title, scope, metadata", "id"),
        (
            "runs",
            "session_id, agent, revision, parent_id, status, turn, iterations, tool_calls, \
             input_tokens, output_tokens, usage_missing, cost_micros, deadline_at, created_at, \
             waited_us",
            "id",
        ),
        ("run_budgets", "tokens, cost_micros", "run_id"),
        ("pauses", "status, stage, iteration", "run_id"),
        (
            "tool_calls",
            "tool_name, arguments, provider_call_id, status, attempt, result, error, settled_by",
            "call_id",
        ),
        ("agent_state", "role, kind, content, data, run_id", "id"),
        (
            "context_summaries",
            "through_id, folded_id, goal_id, goal_folded_id, summary, kept, answers, handoffs, \
             origin, repaired, tokens_before",
            "number",
        ),
        (
            "archived_results",
            "call_id, provider_call_id, tool_name, number, characters",
            "entry_id",
        ),
        ("plan_versions", "steps", "version"),
        ("memories", "space, namespace, value, confidence", "key"),
        (
            "run_health",
            "tokens, token_drift, messages, new_messages, tool_messages, over_tooling, \
             context_rot, repeats, signals, unhealthy, action",
            "iteration",
        ),
        ("run_imports", "snapshot_id, origin_run_id, is_copy", "run_id"),
        ("active_agents", "agents", "run_id"),
        ("run_starters", "caller", "run_id"),
    ] {
        for row in world.rows(&format!("SELECT {key}, {columns} FROM {table}")).await {
            let key = row[0].to_json();
            for (name, value) in columns.split(", ").zip(&row[1..]) {
                written.insert(format!("{table}[{key}].{name}"), value.to_json());
            }
        }
    }
    written
}

/// The longest value in the table.
const VALUE_CHARS: usize = 60;

/// The first two differences, in one line.
fn difference(before: &BTreeMap<String, JsonValue>, after: &BTreeMap<String, JsonValue>) -> String {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let mut parts = Vec::new();
    for name in names.into_iter().filter(|name| before.get(*name) != after.get(*name)) {
        match (before.get(name), after.get(name)) {
            (_, Some(now)) => {
                let now: String = now.to_string().chars().take(VALUE_CHARS).collect();
                parts.push(format!("{name} = {now}"));
            }
            _ => parts.push(format!("no {name}")),
        }
    }
    let others = parts.len().saturating_sub(2);
    parts.truncate(2);
    match (parts.is_empty(), others) {
        (true, _) => "has no effect".to_owned(),
        (_, 0) => parts.join("; "),
        _ => format!("{}; and {others} others", parts.join("; ")),
    }
}

/// A file in which another tenant has a run with the ids that forged snapshots name.
async fn target() -> World {
    let world = file().await;
    paused(&world, &of_tenant("v", "app")).await;
    world
}

async fn import(world: &World, by: &Caller, snapshot: &JsonValue) -> Result<JsonValue, String> {
    let args = json!({"snapshot": snapshot, "any_definition": true});
    call(world, by, "import_run", args)
        .await
        .map_err(|refusal| format!("{}: {}", refusal.code, refusal.detail))
}

#[test]
fn each_value_of_a_snapshot_is_refused_or_limited() {
    run(async {
        let good = serde_json::to_value(complete()).unwrap();
        let mallory = of_tenant("m", "app");
        let mut world = target().await;
        let victim = written(&world).await;
        import(&world, &mallory, &good).await.unwrap();
        let imported = written(&world).await;
        world = target().await;
        let mut before = world.state(None).await;
        let mut table = String::new();
        for (at, value) in &values(&good) {
            for forged_value in forgeries(at, value) {
                let mut forged = good.clone();
                *forged.pointer_mut(at).unwrap() = forged_value.clone();
                if forged == good {
                    continue;
                }
                let what = format!("{at} = {forged_value}");
                let effect = match import(&world, &mallory, &forged).await {
                    Err(refused) => {
                        let is_same = world.state(None).await.into_iter().all(|(table, rows)| {
                            ["events", "denied_attempts"].contains(&table) || before[table] == rows
                        });
                        assert!(is_same, "{what} is refused and writes rows");
                        format!("refused {refused}")
                    }
                    Ok(_) => {
                        let after = written(&world).await;
                        check_limited(&what, &forged_value, &after);
                        for (name, value) in &victim {
                            assert_eq!(after.get(name), Some(value), "{what} changes {name}");
                        }
                        world = target().await;
                        before = world.state(None).await;
                        difference(&imported, &after)
                    }
                };
                writeln!(table, "{what}: {effect}").unwrap();
            }
        }
        expect_file!["./forged_snapshots.txt"].assert_eq(&table);
    });
}

/// The values of the snapshot that are forged. Of the delegated run only those that identify it.
fn values(snapshot: &JsonValue) -> BTreeMap<String, JsonValue> {
    let mut all = BTreeMap::new();
    leaves("", snapshot, &mut all);
    all.retain(|at, _| {
        let identifies = ["id", "session_id", "agent", "parent_id"].contains(&name_of(at));
        !at.starts_with("/runs/1/") || identifies
    });
    all
}

/// An accepted number beyond all limits is not stored as it is.
fn check_limited(what: &str, forged: &JsonValue, after: &BTreeMap<String, JsonValue>) {
    if [json!(-1), json!(-1.0), json!(i64::MAX), json!(1e300)].contains(forged) {
        let stored = after.iter().find(|(_, value)| *value == forged);
        assert_eq!(stored, None, "{what} is stored");
    }
}
