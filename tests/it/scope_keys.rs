//! Scopes whose keys are no identifiers.

use std::collections::BTreeSet;

use abide_reducers::modules;
use abide_schema::{Caller, Scope};
use abide_tests::world::{World, run};
use serde_json::{Map, json};

use crate::replica::Client;

/// Regression: all tables disappeared for a caller with a key that is no identifier, such as `tenant-id`.
#[test]
fn a_scope_may_have_any_key() {
    const KEYS: [&str; 16] = [
        "tenant-id",
        "a b",
        "a.b",
        "é",
        "a:b",
        "a,b=c",
        "a'b",
        "a\"b",
        "a\\b",
        "$a",
        "a|b",
        "?1",
        "select",
        "[0]",
        "a\"'); --",
        "\u{1F600}",
    ];
    run(async {
        let mut world = World::new(modules);
        for key in KEYS {
            let caller = |id: &str, value: &str| {
                let scope = Scope::from([(key.to_owned(), value.to_owned())]);
                Caller::with(id, "app", BTreeSet::new(), scope)
            };
            let acme = caller("ann", "acme");
            let zeta = caller("zoe", "zeta");
            let engine = world.engine();
            let none = Map::new();
            let mut client = Client::new(engine.connect(&acme));
            let sql = "SELECT scope FROM sessions";
            client.subscribe("q", sql, &none).await.unwrap_or_else(|why| panic!("{key}: {why}"));
            let args = json!({"agent": "support"});
            engine.call(&acme, "create_session", &args, None).await.unwrap();
            let last = engine.call(&zeta, "create_session", &args, None).await.unwrap();
            let seen = engine
                .query(&acme, sql, &none, None)
                .await
                .unwrap_or_else(|why| panic!("{key}: {why}"))
                .rows;
            let own = json!({ key: "acme" }).to_string();
            assert_eq!(
                json!(seen.iter().map(|row| row[0].to_json()).collect::<Vec<_>>()),
                json!([own])
            );
            client.read_to(last.seq).await;
            assert_eq!(client.replicas["q"].rows, seen, "{key}");
            let events = engine.query(&acme, "SELECT seq FROM events", &none, None).await.unwrap();
            assert_eq!(events.rows.len(), 1, "{key}");
        }
        world.close();
    });
}
