//! A caller that narrows its scope sees no more than before: policies apply with both scopes.

use std::collections::BTreeSet;

use abide_engine::replay;
use abide_schema::Code;
use abide_schema::caller::{Caller, Scope};
use abide_tests::world::{World, run};
use serde_json::json;

use super::{ask, caller, world};

async fn put_row(world: &World, who: &Caller, id: i64, owner: &str) -> bool {
    let note = json!({"id": id, "tenant": "a", "session_id": null, "owner": owner,
                      "secret": "s", "body": null, "n": id});
    world.engine().call(who, "put_note", &note, None).await.is_ok()
}

async fn set(world: &World, condition: &str) {
    let policy = json!({"table": "notes", "role": "app", "condition": condition});
    world.call("set_policy", policy).await.unwrap();
}

async fn seen_owners(world: &World, who: &Caller) -> BTreeSet<String> {
    let answer = ask(world.engine(), who, "SELECT owner FROM notes", None).await.unwrap();
    answer.rows.iter().map(|row| row[0].to_json().as_str().unwrap().to_owned()).collect()
}

fn owners(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_narrowed_caller_sees_no_more_by_policies() {
    let world = world();
    run(async {
        let local = Caller::local();
        for (id, owner) in [(1, "blue"), (2, "red"), (3, "ann")] {
            assert!(put_row(&world, &local, id, owner).await);
        }
        let team: Scope = [("team".to_owned(), "blue".to_owned())].into();
        let ann = caller("ann", "app", &[], &[("tenant", "a")]);
        let narrowed = ann.acting_for(&team).unwrap();
        // The same principal, with a credential for the whole scope.
        let blue = caller("ann", "app", &[], &[("tenant", "a"), ("team", "blue")]);
        assert_eq!(narrowed.principal(), blue.principal());
        for condition in [
            "owner = :scope_team -- as the scope says",
            "owner = json_extract(:caller_scope, '$.team')",
            "EXISTS (SELECT 1 FROM notes AS n WHERE n.owner = notes.owner AND n.owner = :scope_team)",
        ] {
            set(&world, condition).await;
            for _ in 0..2 {
                assert_eq!(seen_owners(&world, &blue).await, owners(&["blue"]), "{condition}");
                assert_eq!(seen_owners(&world, &narrowed).await, owners(&[]), "{condition}");
            }
            assert_eq!(seen_owners(&world, &ann).await, owners(&[]), "{condition}");
        }
        // Rows that both scopes permit stay visible.
        set(&world, "owner = :caller_id OR owner = :scope_team").await;
        assert_eq!(seen_owners(&world, &narrowed).await, owners(&["ann"]));
        // Rows that only the wider scope permits are hidden.
        set(&world, ":scope_team IS NULL").await;
        assert_eq!(seen_owners(&world, &ann).await.len(), 3);
        assert_eq!(seen_owners(&world, &narrowed).await, owners(&[]));
        // A caller that saw everything can only lose by narrowing, so the narrower scope alone
        // decides.
        let policy = json!({"table": "notes", "role": "*", "condition": "owner = :scope_team"});
        world.call("set_policy", policy).await.unwrap();
        let driver = local.acting_for(&team).unwrap();
        assert_eq!(seen_owners(&world, &driver).await, owners(&["blue"]));
    });
}

/// Reducers can access what queries show, and so can a replay of the log.
#[test]
fn reducers_of_a_narrowed_caller_can_access_no_more() {
    let mut world = World::new(abide_reducers::modules);
    run(async {
        let scope = json!({"tenant": "a", "team": "blue"});
        for id in ["blue", "ann"] {
            let session = json!({"id": id, "agent": id, "scope": scope});
            world.call("create_session", session).await.unwrap();
        }
        let condition = "agent = :caller_id OR agent = :scope_team";
        let policy = json!({"table": "sessions", "role": "app", "condition": condition});
        world.call("set_policy", policy).await.unwrap();
        let team: Scope = [("team".to_owned(), "blue".to_owned())].into();
        let narrowed = caller("ann", "app", &[], &[("tenant", "a")]).acting_for(&team).unwrap();
        let blue = caller("ann", "app", &[], &[("tenant", "a"), ("team", "blue")]);
        let append_message = async |who: &Caller, session: &str| {
            let message = json!({"session_id": session, "role": "user", "content": "hi"});
            let outcome = world.engine().call(who, "append_message", &message, None).await;
            outcome.map(drop).map_err(|refusal| refusal.code)
        };
        for _ in 0..2 {
            assert_eq!(append_message(&blue, "blue").await, Ok(()));
            assert_eq!(append_message(&narrowed, "blue").await, Err(Code::NotFound));
            assert_eq!(append_message(&narrowed, "ann").await, Ok(()));
        }
        let sql = "SELECT DISTINCT json_extract(authority, '$.own_scope.tenant') FROM events
                   WHERE authority IS NOT NULL ORDER BY 1";
        let output = ask(world.engine(), &Caller::local(), sql, None).await.unwrap();
        let output: Vec<_> = output.rows.iter().map(|row| row[0].to_json()).collect();
        assert_eq!(output, [json!(null), json!("a")]);
    });
    world.close();
    let from = world.path();
    let into = world.path().with_extension("again");
    replay(&from, &into, abide_reducers::modules(), None, &mut |_| {}).expect("the same rows");
}
