//! Partial indexes: SQLite must still use them after a literal is lifted out of the text, or if a
//! key may be NULL.

use std::sync::Arc;

use abide_live::{Catalog, Planner};
use abide_schema::TableSpec;
use abide_schema::table::{ColumnSpec, IndexSpec, Kind};
use expect_test::{Expect, expect};
use rusqlite::Connection;
use serde_json::Map;

use crate::world::Database;

const fn column(name: &'static str, nullable: bool) -> ColumnSpec {
    let kind = Kind::Text;
    let json = false;
    let unique = false;
    ColumnSpec {
        name,
        doc: "",
        kind,
        nullable,
        json,
        one_of: &[],
        references: None,
        unique,
        scope: false,
    }
}

static TASKS: TableSpec = TableSpec {
    name: "tasks",
    doc: "",
    columns: &[
        column("id", false),
        column("status", false),
        column("owner", true),
        column("parent", true),
    ],
    key: &[0],
    without_rowid: false,
    shared: false,
    indexes: &[
        IndexSpec { columns: &["owner"], unique: false, condition: Some("status = 'pending'") },
        IndexSpec {
            columns: &["owner", "id"],
            unique: false,
            condition: Some("status IN ('claimed', 'unknown')"),
        },
        IndexSpec { columns: &["parent"], unique: false, condition: Some("parent IS NOT NULL") },
    ],
    constraints: &[],
    triggers: &[],
};

/// Every query with its rule, its route, and the tables that it scans.
fn check(queries: &[&str], expected: Expect) {
    let catalog = Arc::new(Catalog::new(vec![&TASKS], Vec::new()));
    let mut db = Database(Connection::open_in_memory().expect("an in-memory database opens"));
    for statement in TASKS.ddl().into_iter().chain(catalog.setup_sql()) {
        db.0.execute_batch(&statement).expect("the schema is valid");
    }
    let planner = Planner::new(catalog);
    let mut output = String::new();
    for sql in queries {
        let binding = planner.bind(sql, &Map::new()).expect("the query can be live");
        let scans = binding.scans(&mut db).expect("SQLite explains its plans").len();
        let explanation = binding.explain();
        let keys = explanation.routed_by.join("; ");
        let plan = format!("EXPLAIN QUERY PLAN {}", binding.snapshot_sql());
        let mut statement = db.0.prepare(&plan).expect("it is valid");
        for at in 0..binding.params().len() {
            statement.raw_bind_parameter(at + 1, "x").expect("it is bound");
        }
        let mut rows = statement.raw_query();
        let row = rows.next().expect("a plan is made").expect("it has a line");
        let snapshot: String = row.get(3).expect("a detail");
        output += &format!(
            "{sql}\n    {}\n    {keys}, {scans} scans\n    {snapshot}\n",
            explanation.cost
        );
    }
    expected.assert_eq(&output);
}

#[test]
fn a_literal_still_finds_its_partial_index() {
    check(
        &[
            "SELECT id FROM tasks WHERE status = 'pending' AND owner = 'a'",
            "SELECT id FROM tasks WHERE status IN ('claimed', 'unknown') AND owner = 'a'",
            "SELECT id, rank() OVER (PARTITION BY owner ORDER BY id) FROM tasks WHERE status = \
             'pending'",
            "SELECT parent, rank() OVER (PARTITION BY parent ORDER BY owner) FROM tasks",
            "SELECT t.id, c.n FROM tasks t LEFT JOIN (SELECT parent, count(*) AS n FROM tasks GROUP \
             BY parent) c ON c.parent = t.id",
        ],
        expect![[r#"
            SELECT id FROM tasks WHERE status = 'pending' AND owner = 'a'
                the changed rows that match its keys
                tasks: status, owner, 0 scans
                SEARCH tasks USING INDEX tasks_owner (owner=?)
            SELECT id FROM tasks WHERE status IN ('claimed', 'unknown') AND owner = 'a'
                the changed rows that match its keys
                tasks: status, owner, 0 scans
                SEARCH tasks USING INDEX tasks_owner_id (owner=?)
            SELECT id, rank() OVER (PARTITION BY owner ORDER BY id) FROM tasks WHERE status = 'pending'
                the touched partitions, twice
                tasks: status, 0 scans
                CO-ROUTINE (subquery-2)
            SELECT parent, rank() OVER (PARTITION BY parent ORDER BY owner) FROM tasks
                the touched partitions, twice
                tasks: every change, 1 scans
                CO-ROUTINE (subquery-2)
            SELECT t.id, c.n FROM tasks t LEFT JOIN (SELECT parent, count(*) AS n FROM tasks GROUP BY parent) c ON c.parent = t.id
                the rows that the changed rows reach, twice
                tasks: every change; tasks: every change, 0 scans
                MATERIALIZE c
        "#]],
    );
}
