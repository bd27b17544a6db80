//! Small tests: subscriptions, explicit commits, and the delta of each.

use std::sync::Arc;

use abide_live::{Binding, BindingId, Changes, Delta, LiveError, Planner, Router, Sql as _};
use abide_schema::share::ShareKey;
use abide_schema::{Row, TableSpec, Value};
use expect_test::Expect;
use serde_json::{Value as JsonValue, json};

use crate::world::{TABLES, World};

/// Subscriptions over tables that the test changes.
pub(crate) struct RouterFixture {
    world: World,
    planner: Planner,
    pub(crate) router: Router,
    bindings: Vec<(BindingId, Binding)>,
}

impl RouterFixture {
    pub(crate) fn new(queries: &[&str]) -> RouterFixture {
        let queries: Vec<(&str, JsonValue)> = queries.iter().map(|sql| (*sql, json!({}))).collect();
        RouterFixture::with(&queries)
    }

    /// Each query with its parameters.
    pub(crate) fn with(queries: &[(&str, JsonValue)]) -> RouterFixture {
        let world = World::new(1);
        let planner = Planner::new(Arc::clone(&world.catalog));
        let router = Router::new(Arc::clone(&world.catalog));
        let mut fixture = RouterFixture { world, planner, router, bindings: Vec::new() };
        for (sql, params) in queries {
            let params = params.as_object().expect("an object");
            let binding = fixture.planner.bind(sql, params).expect("the query can be live");
            let id = fixture
                .router
                .attach(&binding, &ShareKey::Operator)
                .expect("the router has a free slot");
            fixture.bindings.push((id, binding));
        }
        fixture
    }

    /// Commits rows, written `table: old -> new` as JSON arrays or `-`, and compares all deltas.
    pub(crate) fn commit(&mut self, lines: &[&str], expected: Expect) {
        let mut changes = Changes::new();
        for line in lines {
            let (name, images) = line.split_once(": ").expect("table: old -> new");
            let (old, new) = images.split_once(" -> ").expect("old -> new");
            let table = TABLES.into_iter().find(|table| table.name == name).expect("a table");
            let old = row(table, old);
            let new = row(table, new);
            self.write(table, old.as_ref(), new.as_ref());
            changes.push(table.name, old, new);
        }
        let deltas = self.router.commit(&changes, &mut self.world.db);
        let output = deltas.iter().map(|(id, delta)| {
            let at =
                self.bindings.iter().position(|(known, _)| known == id).expect("it is attached");
            format!("{at}: {}\n", output(delta))
        });
        expected.assert_eq(&output.collect::<String>());
    }

    fn write(&mut self, table: &TableSpec, old: Option<&Row>, new: Option<&Row>) {
        let db = &mut self.world.db;
        if let Some(old) = old {
            let key = table.key.iter().map(|at| format!("{} = ?", table.columns[*at].name));
            let condition = key.collect::<Vec<_>>().join(" AND ");
            let delete = format!("DELETE FROM {} WHERE {condition}", table.name);
            db.run(&delete, &table.key_of(old), &mut |_| {}).expect("a row is deleted");
        }
        if let Some(new) = new {
            let marks = vec!["?"; new.len()].join(", ");
            let insert = format!("INSERT INTO {} VALUES ({marks})", table.name);
            db.run(&insert, new, &mut |_| {}).expect("a row is inserted");
        }
    }
}

fn output(delta: &Result<Delta, LiveError>) -> String {
    match delta {
        Ok(delta) => serde_json::to_string(&delta.to_json()).expect("JSON is text"),
        Err(error) => error.to_string(),
    }
}

/// The leading cells; the others are NULL.
fn row(table: &TableSpec, text: &str) -> Option<Row> {
    if text == "-" {
        return None;
    }
    let cells: Vec<JsonValue> = serde_json::from_str(text).expect("an array of cells");
    let mut cells: Vec<Value> =
        cells.iter().map(|cell| Value::from_json(cell).expect("a cell")).collect();
    cells.resize(table.columns.len(), Value::Null);
    Some(cells.into())
}
