//! The reported cost of live queries, and which are refused because of it. Both depend on the
//! schema only.

use abide_engine::SubscribeRequest;
use abide_schema::Code;
use abide_schema::reducer::Caller;
use abide_tests::world::{World, run};
use serde_json::Map;

use crate::traffic::Traffic;

/// Each query with the table and column of its missing index, if any.
const QUERIES: [(&str, Option<(&str, &str)>); 8] = [
    ("SELECT * FROM agent_state WHERE role = 'user'", None),
    ("SELECT s.id, m.role FROM sessions s JOIN agent_state m ON m.session_id = s.id", None),
    ("SELECT c.call_id, t.effect FROM tool_calls c JOIN tools t ON t.name = c.tool_name", None),
    ("SELECT e.seq, s.title FROM events e JOIN sessions s ON s.id = e.session_id", None),
    (
        "SELECT p.id, c.id FROM sessions p JOIN sessions c ON c.agent = p.agent",
        Some(("sessions", "agent")),
    ),
    (
        "SELECT c.call_id FROM tool_calls c WHERE c.claimed_by IN (SELECT s.id FROM sessions s)",
        Some(("tool_calls", "claimed_by")),
    ),
    (
        "SELECT m.kind, count(*) FROM agent_state m JOIN tools t ON t.name = m.role GROUP BY 1",
        Some(("agent_state", "role")),
    ),
    ("SELECT s.id FROM sessions s FULL JOIN tools t ON t.effect = s.agent", None),
];

async fn check(world: &World, what: &str) {
    let mut connection = world.engine().connect(&Caller::local());
    for (nth, (sql, lacks)) in QUERIES.iter().enumerate() {
        let id = nth.to_string();
        let nothing = Map::new();
        let subscribed = connection.subscribe(&SubscribeRequest::new(&id, sql, &nothing)).await;
        let explained = world.engine().explain(&Caller::local(), sql, &nothing).await.unwrap();
        assert_eq!(explained.refused.is_some(), lacks.is_some(), "{what}: {sql}");
        match (subscribed, lacks) {
            (Ok(()), None) => {}
            (Err(refusal), Some((table, column))) => {
                assert_eq!(refusal.code, Code::UnsupportedSql);
                let named = format!("would scan {table}, which has no index on {column}");
                assert!(refusal.detail.contains(&named), "{what}: {sql}: {refusal}");
                let create = format!("CREATE INDEX {table}_{column} ON {table} ({column})");
                let declare = format!("#[table(name = \"{table}\", index({column}))]");
                let hint = refusal.hint.clone().unwrap();
                assert!(hint.contains(&create) && hint.contains(&declare), "{hint}");
                assert_eq!(explained.refused.unwrap(), refusal.problem());
                let scan = explained.scans.iter().find(|scan| scan.declare.is_some()).unwrap();
                assert_eq!((&*scan.table, &*scan.columns), (*table, &[(*column).to_owned()][..]));
            }
            (subscribed, lacks) => panic!("{what}: {sql}: {subscribed:?}, not {lacks:?}"),
        }
    }
}

/// An empty file, one with a few rows, and one with SQLite statistics that favour a scan of a small
/// table: the verdict is the same.
#[test]
fn the_verdict_depends_on_the_schema_only() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        check(&world, "empty").await;
        let mut traffic = Traffic::new(7);
        for _ in 0..200 {
            let _ = traffic.step(&world).await;
        }
        check(&world, "with known templates").await;
        world.reopen();
        check(&world, "with some rows").await;
        world.close();
        world.raw().execute_batch("ANALYZE").unwrap();
        world.open();
        check(&world, "with statistics").await;
    });
}

/// The snapshot statement of an explanation is the query, with its literals as parameters.
#[test]
fn the_snapshot_is_the_query() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let mut traffic = Traffic::new(8);
        for _ in 0..100 {
            let _ = traffic.step(&world).await;
        }
        let sql =
            "SELECT id, role FROM agent_state WHERE role IN ('user', 'tool') ORDER BY id DESC";
        let explained = world.engine().explain(&Caller::local(), sql, &Map::new()).await.unwrap();
        assert_eq!(explained.params, ["user", "tool"]);
        let params = (explained.params.into_iter().enumerate())
            .map(|(at, value)| ((at + 1).to_string(), value))
            .collect();
        let snapshot = explained.snapshot.replace("main.", "");
        let rows =
            world.engine().query(&Caller::local(), &snapshot, &params, None).await.unwrap().rows;
        assert!(!rows.is_empty());
        assert_eq!(rows, world.rows(sql).await);
        assert_eq!(explained.plan.statements.len(), 1);
        assert_eq!(explained.routed_by, ["agent_state: role"]);
    });
}
