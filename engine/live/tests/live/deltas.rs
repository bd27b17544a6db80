//! Random commits, random queries: deltas by the router, by the binding itself, and over spans.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_live::{Binding, BindingId, Delta, LiveError, Planner, Router};
use abide_schema::Row;
use serde_json::{Map, Value as JsonValue, json};

use crate::client::Client;
use crate::world::{Random, State, World, net};

/// One table. `:v` and `:w` are random values.
const FILTERS: &[&str] = &[
    "SELECT * FROM r",
    "SELECT * FROM r WHERE a = :v",
    "SELECT * FROM r WHERE :v = a AND c = :w",
    "SELECT id, c FROM r WHERE c = :v",
    "SELECT id FROM r WHERE x = :v",
    "SELECT id, z FROM r WHERE z = :v",
    "SELECT * FROM r WHERE a IS :v",
    "SELECT * FROM r WHERE a IS :v AND b = :w",
    "SELECT a, b FROM r WHERE a = 2",
    "SELECT c FROM r WHERE c COLLATE NOCASE = :v",
    "SELECT id, c FROM r WHERE c = :v COLLATE NOCASE",
    "SELECT id, c FROM r WHERE c = :v COLLATE RTRIM",
    "SELECT id, a FROM r WHERE a IN (1, 2, :v)",
    "SELECT id, c FROM r WHERE c IN ('a', :v, NULL) AND b IN (:w, 2)",
    "SELECT id, c FROM r WHERE c COLLATE NOCASE IN ('A', :v)",
    "SELECT id FROM r WHERE a = :v OR b = :w",
    "SELECT id FROM r WHERE (a = :v OR c = 'a') AND (b = 2 OR b = :w)",
    "SELECT id FROM r WHERE a = :v OR x > 1",
    "SELECT id FROM r WHERE +a = :v",
    "SELECT id FROM r WHERE a + 0 = :v",
    "SELECT id FROM r WHERE NOT a = :v",
    "SELECT id FROM r WHERE a <> :v AND c = :w",
    "SELECT id FROM r WHERE a BETWEEN :v AND 3",
    "SELECT id, c LIKE 'a%' AS like_a FROM r WHERE c LIKE :v || '%' OR c GLOB 'B*'",
    "SELECT id, CASE a WHEN 1 THEN 'one' WHEN 2 THEN 2 ELSE x END AS mixed FROM r",
    "SELECT id, CAST(c AS INTEGER), typeof(x), coalesce(a, b, 'none') FROM r WHERE b = :v",
    "SELECT a, x FROM r WHERE a IS NOT NULL",
    "SELECT a FROM r WHERE b ISNULL OR x NOTNULL",
    "SELECT id, a + b AS sum FROM r WHERE sum > :v",
    "SELECT id AS one, id AS two FROM r WHERE rowid = :v",
    "SELECT * FROM r WHERE a = :v AND a = :w",
    "SELECT * FROM r WHERE id = :v",
    "SELECT * FROM r WHERE id IN (:v, :w, 3, '4')",
    "SELECT r.* FROM main.r WHERE main.r.a = :v",
    "SELECT t.id, t.c || '!' FROM r AS t WHERE t.c >= :v",
    "SELECT * FROM s WHERE k = :v",
    "SELECT * FROM s WHERE b = :v AND n = :w",
    "SELECT k, json_extract(c, '$.a') FROM s WHERE json_valid(c)",
    "SELECT n FROM s",
    "SELECT * FROM p WHERE g = :v",
    "SELECT n, v FROM p WHERE g = 'k' AND n = :v",
    "SELECT g, n, v FROM p WHERE v = :v OR r_id = :w",
    "SELECT g, n FROM p WHERE (g, n) = (:v, :w)",
    "SELECT * FROM r ORDER BY a",
    "SELECT * FROM r WHERE b = :v ORDER BY a DESC, c COLLATE NOCASE",
    "SELECT id FROM r ORDER BY c COLLATE NOCASE DESC NULLS FIRST, x NULLS LAST",
    "SELECT id, c AS name FROM r ORDER BY name COLLATE RTRIM, 1 DESC",
    "SELECT id, a AS b FROM r ORDER BY b DESC",
    "SELECT id, a AS b FROM r ORDER BY b + 0 DESC",
    "SELECT id, -a FROM r ORDER BY abs(a), -a, x",
    "SELECT c FROM r ORDER BY c",
    "SELECT k FROM s WHERE b = :v ORDER BY n DESC, c",
    "SELECT g, n FROM p ORDER BY v DESC NULLS LAST, r_id",
    "SELECT id, z FROM r ORDER BY z DESC, x DESC",
    "SELECT id, strftime('%Y', a, 'unixepoch') AS year FROM r WHERE a = :v",
];

const VALUES: &[&str] = &[
    "null",
    "0",
    "1",
    "2",
    "3",
    "1.0",
    "2.5",
    "true",
    "\"\"",
    "\"a\"",
    "\"A\"",
    "\"b\"",
    "\"B \"",
    "\"1\"",
    "\" 1\"",
    "\"2.0\"",
    "\"2e0\"",
    "\"k\"",
    "\"é\"",
    "\"a\\u0000b\"",
    "9007199254740992",
    "9007199254740993",
    "9007199254740992.0",
    "{\"$blob\":\"YQ==\"}",
    "{\"$blob\":\"\"}",
    "1e300",
];

fn params(sql: &str, random: &mut Random) -> Map<String, JsonValue> {
    let mut params = Map::new();
    for name in ["v", "w"] {
        if sql.contains(&format!(":{name}")) {
            let json = serde_json::from_str::<JsonValue>(random.pick::<&str>(VALUES))
                .expect("a value is JSON");
            params.insert(name.to_owned(), json);
        }
    }
    params
}

struct Subscription {
    sql: &'static str,
    binding: Binding,
    id: BindingId,
    client: Client,
    /// A client that was last told everything then.
    behind: (State, Client),
    dead: bool,
}

fn subscribe(
    world: &mut World,
    planner: &Planner,
    router: &mut Router,
    sql: &'static str,
) -> Subscription {
    let params = params(sql, &mut world.random);
    let binding = planner.bind(sql, &params).unwrap_or_else(|refusal| {
        panic!("{sql} is refused: {refusal}");
    });
    let id = router.attach(&binding).expect("there is room");
    let rows = world.query(binding.snapshot_sql(), binding.params());
    let client = Client::new(binding.shape(), rows.clone().unwrap_or_default());
    let behind = (world.state.clone(), client.clone());
    Subscription { sql, binding, id, client, behind, dead: rows.is_err() }
}

/// Commits, and holds every client against a fresh query.
fn run(seed: u64, commits: usize, queries: &[&'static str]) {
    let mut world = World::new(seed);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let mut router = Router::new(Arc::clone(&world.catalog));
    for _ in 0..6 {
        world.commit();
    }
    let mut subscriptions: Vec<Subscription> =
        queries.iter().map(|sql| subscribe(&mut world, &planner, &mut router, sql)).collect();
    for commit in 0..commits {
        let changes = world.commit();
        let routed: BTreeMap<BindingId, Result<Delta, LiveError>> =
            router.commit(&changes, &mut world.db).into_iter().collect();
        for (at, subscription) in subscriptions.iter_mut().enumerate() {
            if subscription.dead {
                continue;
            }
            let what = format!(
                "seed {seed}, commit {commit}: {} with {:?}",
                subscription.sql,
                subscription.binding.params()
            );
            let fresh =
                world.query(subscription.binding.snapshot_sql(), subscription.binding.params());
            let alone = subscription.binding.delta(&changes, &mut world.db);
            let Ok(fresh) = fresh else {
                subscription.dead = true;
                continue;
            };
            let routed = routed.get(&subscription.id).cloned().unwrap_or(Ok(Delta::default()));
            assert_eq!(routed, alone, "the router disagrees: {what}");
            match routed {
                Ok(delta) => subscription.client.apply(&delta),
                Err(error) => panic!("{error}: {what}"),
            }
            check(&subscription.client, &fresh, &what);
            if (commit + at) % 7 == 0 {
                catch_up(subscription, &mut world, &fresh, &what);
            }
        }
    }
    for subscription in &subscriptions {
        router.detach(subscription.id);
    }
    assert!(router.is_empty());
}

/// A client that was away gets one delta over all that happened meanwhile.
fn catch_up(subscription: &mut Subscription, world: &mut World, fresh: &[Row], what: &str) {
    let (state, client) = &mut subscription.behind;
    let span = net(state, &world.state);
    let delta = subscription.binding.delta(&span, &mut world.db).expect("the statements run");
    client.apply(&delta);
    check(client, fresh, &format!("resumed, {what}"));
    *state = world.state.clone();
}

fn check(client: &Client, fresh: &[Row], what: &str) {
    assert!(client.holds(fresh), "{what}\nclient {:#?}\nfresh {fresh:#?}", client.rows);
}

#[test]
fn filters_projections_and_orders_follow_every_commit() {
    for seed in 0..12 {
        run(seed, 40, FILTERS);
    }
}

#[test]
fn a_second_binding_of_the_same_values_is_the_same() {
    let world = World::new(1);
    let planner = Planner::new(Arc::clone(&world.catalog));
    let bind = |sql: &str, params: JsonValue| {
        let params = params.as_object().expect("an object").clone();
        planner.bind(sql, &params).expect("it can be live")
    };
    let literal = bind("SELECT id FROM r WHERE c = 'a'", json!({}));
    let named = bind("select id from r where c = :name", json!({"name": "a"}));
    assert_eq!(literal, named);
    let other = bind("SELECT id FROM r WHERE c = 'b'", json!({}));
    assert_ne!(literal, other);
    assert_eq!(literal.snapshot_sql(), other.snapshot_sql(), "they share a template");
    let one = bind("SELECT id FROM r WHERE x = ?", json!({"1": 1}));
    assert_ne!(one, bind("SELECT id FROM r WHERE x = ?", json!({"1": 1.0})), "1 is not 1.0");
}
