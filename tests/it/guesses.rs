//! A caller with restricted visibility cannot confirm guesses of hidden data.
//!
//! Once a scoped caller could read `prev_hash` and `hash` of its own events. If one foreign event
//! lay between two of them, the caller could compute the hash of each candidate content and
//! compare: a four-digit PIN was found in seconds. Generated ids followed from the same hashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_engine::Entropy;
use abide_log::{Digests, event_hash};
use abide_schema::event::{Event, Hash};
use abide_schema::id::ulid;
use abide_schema::{Caller, Checksum, Micros, Row, Seq, Value};
use abide_tests::world::{World, run};
use serde_json::{Map, Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use crate::replica::Client;
use crate::traffic::{Random, for_seeds};

fn tenant(name: &str) -> Caller {
    let scope = [("tenant".to_owned(), name.to_owned())];
    Caller::with(name, "app", ["*".to_owned()].into(), scope.into())
}

async fn ask(
    world: &World,
    caller: &Caller,
    sql: &str,
    as_of: Option<Seq>,
) -> (Vec<String>, Vec<Row>) {
    let answer = world.engine().query(caller, sql, &Map::new(), as_of).await.unwrap();
    (answer.columns, answer.rows)
}

/// The tables that `/v1/schema` returns to a caller.
fn tables(world: &World, caller: &Caller) -> Vec<String> {
    let schema = world.engine().describe_for(caller);
    let names = schema["tables"].as_array().unwrap().iter();
    names.map(|table| table["name"].as_str().unwrap().to_owned()).collect()
}

/// Every cell that a caller can read, as text; bytes in hexadecimal.
async fn cells(world: &World, caller: &Caller) -> BTreeSet<String> {
    let mut cells = BTreeSet::new();
    for table in tables(world, caller) {
        let (_, rows) = ask(world, caller, &format!("SELECT * FROM {table}"), None).await;
        cells.extend(rows.iter().flat_map(|row| row.iter()).map(|cell| match cell {
            Value::Blob(bytes) => hex(bytes),
            Value::Text(text) => text.clone(),
            cell => cell.to_json().to_string(),
        }));
    }
    cells
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Values that earlier versions derived from an event: its hash, and the ids that the next call
/// generated.
fn derived(hash: &Hash, at: Micros) -> Vec<String> {
    let drawn = (0..3_u32).map(|nth| {
        let digest = Sha256::new().chain_update(hash).chain_update(nth.to_be_bytes());
        let digest: [u8; 32] = digest.finalize().into();
        ulid(at, *digest.first_chunk().unwrap())
    });
    [hex(hash)].into_iter().chain(drawn).collect()
}

/// The schema listed no views, and a view is readable only if its columns are.
#[test]
fn the_schema_lists_the_views_that_a_caller_can_read() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let hide = json!({"table": "tool_calls", "role": "app", "hidden": ["error"]});
        let views = |caller: &Caller| {
            let schema = world.engine().describe_for(caller);
            let names = schema["views"].as_array().unwrap().iter();
            names.map(|view| view["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let local = Caller::local();
        let bounded = tenant("zeta");
        for hides in [false, true] {
            for caller in [&local, &bounded] {
                for view in ["unknown_tool_calls", "undelivered_results"] {
                    let sql = format!("SELECT * FROM {view}");
                    let read = world.engine().query(caller, &sql, &Map::new(), None).await;
                    assert_eq!(views(caller).contains(&view.to_owned()), read.is_ok(), "{view}");
                }
            }
            assert_eq!(views(&bounded).contains(&"undelivered_results".to_owned()), !hides);
            world.call("set_policy", hide.clone()).await.unwrap();
        }
        let schema = world.engine().describe();
        let view = &schema["views"][0];
        assert_eq!(
            (&view["name"], &view["columns"][0]),
            (&json!("unknown_tool_calls"), &json!("call_id"))
        );
    });
}

#[test]
fn a_hidden_pin_cannot_be_guessed_from_an_event_hash() {
    let mut world = World::new(abide_reducers::modules);
    let acme = tenant("acme");
    let zeta = tenant("zeta");
    let seen = run(async {
        let engine = world.engine();
        let args = json!({"name": "pay", "needs_approval": true});
        world.call("register_tool", args).await.unwrap();
        let session = |id: &str| json!({"agent": "a", "id": id});
        engine.call(&zeta, "create_session", &session("z"), None).await.unwrap();
        engine.call(&acme, "create_session", &session("m"), None).await.unwrap();
        let message = json!({"session_id": "m", "role": "user", "content": "PIN 8302"});
        engine.call(&acme, "append_message", &message, None).await.unwrap();
        let wanted =
            json!({"call_id": "c", "session_id": "z", "tool_name": "pay", "arguments": {}});
        engine.call(&zeta, "request_tool_call", &wanted, None).await.unwrap();
        engine.call(&zeta, "create_session", &json!({"agent": "a"}), None).await.unwrap();
        let columns = ask(&world, &zeta, "SELECT * FROM events", None).await.0;
        for hidden in ["prev_hash", "hash", "salt", "rows_hash"] {
            assert!(!columns.iter().any(|column| column == hidden), "{columns:?}");
        }
        cells(&world, &zeta).await
    });
    world.close();
    // The attacker gets more than it can read: all of the foreign event except the PIN and the
    // salt.
    let sql = "SELECT at, reducer, caller, session_id, arguments, outcome, prev_hash, authority, rows_hash
        FROM events WHERE arguments LIKE '%PIN 8302%'";
    let (mut event, pin_at) = world
        .raw()
        .query_row(sql, [], |row| {
            let event = Event {
                seq: Seq(4),
                at: Micros(row.get(0)?),
                reducer: row.get(1)?,
                caller: row.get(2)?,
                session_id: row.get(3)?,
                request_id: None,
                arguments: row.get(4)?,
                outcome: row.get(5)?,
                prev_hash: row.get(6)?,
                hash: [0; 32],
                authority: row.get(7)?,
                salt: [0; 16],
                rows_hash: row.get(8)?,
            };
            let pin_at = event.arguments.find("8302").unwrap();
            Ok((event, pin_at))
        })
        .unwrap();
    for pin in 0..10_000 {
        event.arguments.replace_range(pin_at..pin_at + 4, &format!("{pin:04}"));
        let hash = event_hash(&event, &Digests::from_event(&event));
        for output in derived(&hash, event.at) {
            assert!(!seen.iter().any(|cell| cell.contains(&output)), "{pin:04}: {output}");
        }
        let plain = hex(&Sha256::digest(event.arguments.as_bytes()));
        assert!(!seen.iter().any(|cell| cell.contains(&plain)), "{pin:04}");
    }
}

/// The digest of an approval's arguments can be guessed if the arguments are hidden, unless it is
/// salted.
#[test]
fn a_digest_of_hidden_arguments_confirms_no_guess() {
    let world = World::new(abide_reducers::modules);
    run(async {
        let args = json!({"name": "pay", "needs_approval": true});
        world.call("register_tool", args).await.unwrap();
        world.session("s").await;
        let wanted = json!({"call_id": "c", "session_id": "s", "tool_name": "pay",
            "arguments": {"pin": 8302}});
        world.call("request_tool_call", wanted).await.unwrap();
        let hash = world.rows("SELECT arguments_hash FROM approvals").await;
        let plain = hex(&Sha256::digest(r#"{"pin":8302}"#));
        assert_ne!(hash[0][0], Value::Text(plain));
        let Value::Text(hash) = &hash[0][0] else { panic!("{hash:?}") };
        let decision = json!({"call_id": "c", "decision": "approve",
            "arguments_hash": hash.to_ascii_uppercase()});
        world.call("decide_approval", decision).await.unwrap();
    });
}

/// Returns the same random bytes in every world.
#[derive(Debug, Default)]
struct FixedEntropy(AtomicU64);

impl Entropy for FixedEntropy {
    fn fill(&self, buffer: &mut [u8]) -> std::io::Result<()> {
        for block in buffer.chunks_mut(32) {
            let drawn = self.0.fetch_add(1, Ordering::Relaxed);
            let bytes: [u8; 32] = Sha256::digest(drawn.to_be_bytes()).into();
            block.copy_from_slice(&bytes[..block.len()]);
        }
        Ok(())
    }
}

struct Step {
    by: &'static str,
    reducer: &'static str,
    args: JsonValue,
}

/// A text of a tenant; that of the hidden one differs in each world.
fn text(random: &mut Random, by: &str, world: u64) -> String {
    let drawn = random.draw();
    if by == "acme" {
        format!("{:x}", Random::new(drawn ^ world).draw())
    } else {
        format!("{drawn:x}")
    }
}

fn step(random: &mut Random, world: u64) -> Step {
    let by = if random.one_in(2) { "acme" } else { "zeta" };
    let session = format!("s-{by}-{}", random.below(3));
    let call = format!("c-{by}-{}", random.below(4));
    let text_of_call = text(random, by, world);
    let (reducer, args) = match random.below(9) {
        0 => ("create_session", json!({"agent": "a", "id": session, "title": text_of_call})),
        1 => ("create_session", json!({"agent": "a", "metadata": {"note": text_of_call}})),
        2..=4 => (
            "append_message",
            json!({"session_id": session, "role": "user", "content": text_of_call}),
        ),
        5 => {
            let args = json!({"call_id": call, "session_id": session, "tool_name": "pay",
                "arguments": {"pin": text_of_call}});
            ("request_tool_call", args)
        }
        6 => (
            "decide_approval",
            json!({"call_id": call, "decision": "approve", "comment": text_of_call}),
        ),
        7 => ("claim_tool_call", json!({"call_id": call, "lease_ms": 60_000})),
        _ => {
            let args = json!({"session_id": session, "in_ms": 1 + random.below(5_000),
                "message": text_of_call});
            ("set_timer", args)
        }
    };
    Step { by, reducer, args }
}

/// All responses and readable data of zeta in a world.
async fn received_by_zeta(seed: u64, version: u64) -> Vec<String> {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    let mut config = world.config(abide_reducers::modules());
    config.entropy = Arc::new(FixedEntropy::default());
    world.open_with(config);
    let zeta = tenant("zeta");
    world.call("register_tool", json!({"name": "pay", "needs_approval": true})).await.unwrap();
    let tables = tables(&world, &zeta);
    let mut client = Client::new(world.engine().connect(&zeta));
    for table in &tables {
        client.subscribe(table, &format!("SELECT * FROM {table}"), &Map::new()).await.unwrap();
    }
    let mut random = Random::new(seed);
    let mut received = Vec::new();
    for _ in 0..60 {
        let Step { by, reducer, args } = step(&mut random, version);
        let done = world.engine().call(&tenant(by), reducer, &args, None).await;
        if by == "zeta" {
            received.push(format!("{reducer} {args} {done:?}"));
        }
        if random.one_in(6) {
            world.pass_ms(1_000).await;
        }
        client.read_to(world.engine().durable_seq()).await;
        for (table, replica) in &client.replicas {
            received.push(format!(
                "{table} {} {:?}",
                Checksum::from_rows(&replica.rows),
                replica.rows
            ));
        }
    }
    received.push(world.engine().describe_for(&zeta).to_string());
    for seq in (1..=world.engine().durable_seq().0).step_by(5) {
        for table in &tables {
            let sql = format!("SELECT * FROM {table}");
            received.push(format!("{:?}", ask(&world, &zeta, &sql, Some(Seq(seq))).await));
        }
    }
    received
}

/// Two worlds that differ only in what the other tenant writes.
#[test]
fn two_worlds_that_differ_in_hidden_data_read_the_same() {
    for_seeds("guesses::two_worlds", 0..4, |seed| {
        let (one, other) =
            run(async { (received_by_zeta(seed, 1).await, received_by_zeta(seed, 2).await) });
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(one, other);
        }
        assert_eq!(one.len(), other.len());
    });
}

/// An auditor sees that a token was created and for whom, but not its stored hash. Once
/// `events.arguments` contained it.
#[test]
fn auditors_see_no_hash_of_a_token() {
    let mut world = World::new(abide_reducers::modules);
    let hash = "0123456789abcdef".repeat(4);
    run(async {
        let identity = json!({"id": "bot", "role": "app"});
        world.call("create_identity", identity).await.unwrap();
        let token =
            json!({"id": "abcdefgh", "identity_id": "bot", "hash": hash, "last_four": "wxyz"});
        world.call("create_token", token).await.unwrap();
        world.call("revoke_token", json!({"id": "abcdefgh"})).await.unwrap();
        let auditor = Caller::with("ada", "auditor", BTreeSet::new(), BTreeMap::new());
        let mut client = Client::new(world.engine().connect(&auditor));
        let sql = "SELECT reducer, arguments, outcome FROM events ORDER BY seq";
        client.subscribe("log", sql, &Map::new()).await.unwrap();
        let live: Vec<Row> = client.replicas["log"].rows.clone();
        let (_, now) = ask(&world, &auditor, sql, None).await;
        let (_, past) = ask(&world, &auditor, sql, Some(Seq(3))).await;
        for rows in [live, now, past] {
            let text = format!("{rows:?}");
            assert!(!text.contains(&hash) && text.contains("wxyz"), "{text}");
        }
        assert!(!cells(&world, &auditor).await.iter().any(|cell| cell.contains(&hash)));
    });
    // The log contains it: a replay gives the same row.
    world.close();
    let into = world.folder.path().join("replayed.db");
    let modules = abide_reducers::modules();
    abide_engine::replay(&world.path(), &into, modules, None, &mut |_| {}).unwrap();
}

/// `revoke_token` returned the stored hash of the token to a tenant's admin, and so did a retry.
#[test]
fn token_hashes_are_not_returned_to_a_tenants_admins() {
    let mut world = World::new(abide_reducers::modules);
    let hash = "0123456789abcdef".repeat(4);
    run(async {
        let scope: BTreeMap<String, String> = [("tenant".to_owned(), "acme".to_owned())].into();
        let all = BTreeSet::from(["*".to_owned()]);
        let admin = Caller::with("ada", "admin", all, scope);
        let ask = async |reducer: &str, args: JsonValue, request: Option<&str>| {
            let done = world.engine().call(&admin, reducer, &args, request).await.unwrap();
            serde_json::from_str::<JsonValue>(&done.result).unwrap()
        };
        let bot = ask("create_identity", json!({"id": "bot", "role": "app"}), None).await;
        let token = json!({"id": "abcdefgh", "identity_id": bot["id"], "hash": hash,
            "last_four": "wxyz"});
        let revoke = json!({"id": "abcdefgh"});
        for output in [
            ask("create_token", token.clone(), Some("k1")).await,
            ask("create_token", token.clone(), Some("k1")).await,
            ask("create_token", token, None).await,
            ask("revoke_token", revoke.clone(), Some("k2")).await,
            ask("revoke_token", revoke.clone(), Some("k2")).await,
            ask("revoke_token", revoke.clone(), None).await,
        ] {
            assert_eq!((&output["hash"], &output["last_four"]), (&json!(""), &json!("wxyz")));
        }
        let operator = world.call("revoke_token", revoke).await.unwrap();
        assert!(operator.result.contains(&hash), "an admin without a scope reads the row");
    });
    world.close();
    let into = world.folder.path().join("replayed.db");
    let modules = abide_reducers::modules();
    abide_engine::replay(&world.path(), &into, modules, None, &mut |_| {}).unwrap();
}

/// The log's columns that cover hidden data are visible only to auditors without restrictions.
#[test]
fn hashes_and_salts_are_visible_to_unrestricted_auditors_only() {
    let world = World::new(abide_reducers::modules);
    run(async {
        world.session("s").await;
        let caller = |role: &str, scope: &[(&str, &str)]| {
            let scope: BTreeMap<String, String> =
                scope.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Caller::with("reader", role, BTreeSet::new(), scope)
        };
        let read_shown = async |caller: &Caller| {
            let columns = ask(&world, caller, "SELECT * FROM events LIMIT 0", None).await.0;
            let hashes = ["prev_hash", "hash", "salt"];
            columns.iter().filter(|name| hashes.contains(&name.as_str())).count()
        };
        assert_eq!(read_shown(&Caller::local()).await, 3);
        assert_eq!(read_shown(&caller("auditor", &[])).await, 3);
        for role in ["admin", "auditor", "app", "agent", "worker", "supervisor", "clerk"] {
            assert_eq!(read_shown(&caller(role, &[("tenant", "acme")])).await, 0, "{role}");
        }
        for role in ["app", "agent", "worker", "supervisor", "clerk"] {
            assert_eq!(read_shown(&caller(role, &[])).await, 0, "{role}");
        }
        // Whatever a policy of the log permits, hashes cover data that another policy hides.
        let narrow = json!({"table": "sessions", "role": "auditor", "hidden": ["title"]});
        world.call("set_policy", narrow).await.unwrap();
        let permit = json!({"table": "events", "role": "auditor"});
        world.call("set_policy", permit).await.unwrap();
        assert_eq!(read_shown(&caller("auditor", &[])).await, 0);
    });
}
