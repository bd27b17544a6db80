//! Visibility for restricted callers: random identities, scopes, policies, queries and writes. Each
//! response and each delta is compared with the same query over a database that contains only what
//! the caller may see.
//!
//! `declared` policies in tables of a user's module · `desk` a user's module · `copy` computes in plain Rust what is
//! visible, and builds that database · `attack` what a caller might try · `reach` what its reducers can access.

mod attack;
mod copy;
mod declared;
mod desk;
mod narrowed;
mod reach;

use std::collections::BTreeSet;
use std::time::Duration;

use abide_engine::{Engine, QueryResult, Start};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal, Scope, Seq};
use abide_tests::world::{World, run};
use serde_json::{Map, json};

use crate::replica::Client;
use crate::traffic::{Random, for_seeds};
use copy::AllRows;
use desk::{BODIES, CONDITIONS, MARK, QUERIES};

/// A caller by name, role, capabilities and scope.
pub(crate) fn caller(
    id: &str,
    role: &str,
    capabilities: &[&str],
    scope: &[(&str, &str)],
) -> Caller {
    let capabilities: BTreeSet<String> = capabilities.iter().map(|c| (*c).to_owned()).collect();
    let scope: Scope = scope.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Caller::with(id, role, capabilities, scope)
}

/// All reading callers.
fn callers() -> Vec<Caller> {
    vec![
        caller("ann", "agent", &["a", "b"], &[("tenant", "a")]),
        caller("bob", "agent", &[], &[("tenant", "b")]),
        caller("eve", "app", &["b"], &[("tenant", "a"), ("team", "red")]),
        caller("tom", "worker", &[], &[]),
        caller("aud", "auditor", &[], &[]),
        caller("sub", "admin", &["*"], &[("tenant", "b")]),
    ]
}

pub(crate) async fn ask(
    engine: &Engine,
    who: &Caller,
    sql: &str,
    as_of: Option<Seq>,
) -> Result<QueryResult, Refusal> {
    engine.query(who, sql, &Map::new(), as_of).await
}

/// A world with a desk in it.
pub(crate) fn world() -> World {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    let mut modules = abide_reducers::modules();
    modules.push(desk::module());
    world.open_with(world.config(modules));
    world
}

/// Random actions of a few restricted clients.
struct RandomRun {
    world: World,
    random: Random,
    clients: Vec<(Caller, Client)>,
    next_id: usize,
    asked: usize,
    output: usize,
}

impl RandomRun {
    fn new(seed: u64, world: World) -> RandomRun {
        let clients = callers()
            .into_iter()
            .map(|caller| {
                let client = Client::new(world.engine().connect(&caller));
                (caller, client)
            })
            .collect();
        let random = Random::new(seed);
        RandomRun { world, random, clients, next_id: 0, asked: 0, output: 0 }
    }

    /// One action of an unrestricted caller.
    fn action(&mut self) -> BatchCall {
        let random = &mut self.random;
        let session = format!("s{}", random.below(5));
        let scope = |random: &mut Random| match random.below(5) {
            0 => json!({}),
            1 => json!({"tenant": "a", "team": "red"}),
            2 => json!({"tenant": "b", "team": "red"}),
            3 => json!({"tenant": ["a"]}),
            _ => json!({"tenant": *random.pick(&["a", "b"])}),
        };
        let tenant = *random.pick(&["a", "b", "c"]);
        let (reducer, args) = match random.below(16) {
            0 => ("create_session", json!({"agent": "x", "id": session, "scope": scope(random)})),
            1 => ("set_scope", json!({"session_id": session, "scope": scope(random)})),
            2 => (
                "append_message",
                json!({"session_id": session, "role": *random.pick(&["user", "system"]),
                       "content": format!("{MARK} said")}),
            ),
            3 => ("put_member", json!({"tenant": tenant, "user": *random.pick(&["ann", "bob"])})),
            4 => ("drop_member", json!({"tenant": tenant, "user": *random.pick(&["ann", "bob"])})),
            5..=7 => return self.policy(),
            8 => ("drop_note", json!({"id": 1 + random.below(8)})),
            9 => ("put_remark", json!({"id": 1 + random.below(5), "session_id": session})),
            _ => (
                "put_note",
                json!({"id": 1 + random.below(8), "tenant": tenant,
                       "session_id": session, "owner": *random.pick(&["ann", "bob", "tom"]),
                       "secret": format!("{MARK} {}", random.below(100)),
                       "body": *random.pick(BODIES),
                       "n": *random.pick(&[i64::MIN, 0, 1, 2, 3, 4])}),
            ),
        };
        BatchCall { reducer: reducer.to_owned(), args }
    }

    fn policy(&mut self) -> BatchCall {
        let random = &mut self.random;
        let (table, conditions) = *random.pick(CONDITIONS);
        let role = *random.pick(&["agent", "app", "worker", "auditor", "admin", "*"]);
        let name = *random.pick(&["one", "two"]);
        if random.one_in(3) {
            let args = json!({"table": table, "role": role, "name": name});
            return BatchCall { reducer: "drop_policy".to_owned(), args };
        }
        let hidden: &[&str] = if table == "notes" && random.one_in(3) { &["secret"] } else { &[] };
        let args = json!({"table": table, "role": role, "name": name, "hidden": hidden,
            "condition": *random.pick(conditions)});
        BatchCall { reducer: "set_policy".to_owned(), args }
    }

    async fn step(&mut self) {
        let count = if self.random.one_in(4) { 3 } else { 1 };
        let calls: Vec<BatchCall> = (0..count).map(|_| self.action()).collect();
        // A refused batch has no effect, and counts as a step.
        let _ = self.world.engine().batch(&Caller::local(), &calls, None).await;
        let nth = self.random.below(self.clients.len());
        match self.random.below(8) {
            0..=3 => self.subscribe(nth).await,
            4 => self.reconnect(nth).await,
            _ => {}
        }
        self.ask(nth).await;
        reach::attack(self).await;
        let head = self.world.engine().durable_seq();
        // Some clients read at once, others let updates accumulate.
        let whole = AllRows::read(&self.world, None).await;
        for at in 0..self.clients.len() {
            if !self.random.one_in(3) {
                let (caller, client) = &mut self.clients[at];
                client.read_to(head).await;
                self.output += check_client(caller, client, &whole);
            }
        }
    }

    async fn subscribe(&mut self, nth: usize) {
        self.next_id += 1;
        let id = format!("q{}", self.next_id);
        let sql = *self.random.pick(QUERIES);
        let (_, client) = &mut self.clients[nth];
        if client.replicas.len() < 8 {
            let begun = client.subscribe_from(&id, sql, &Map::new(), Start::Now).await;
            if let Err(refusal) = begun {
                said_nothing(sql, &refusal);
            }
        }
    }

    /// Resumes all subscriptions on a new connection.
    async fn reconnect(&mut self, nth: usize) {
        let (caller, client) = &mut self.clients[nth];
        let mut again = Client::new(self.world.engine().connect(caller));
        for (id, kept) in std::mem::take(&mut client.replicas) {
            let sql = kept.sql.clone();
            if let Err(refusal) = again.resume(&id, kept).await {
                said_nothing(&sql, &refusal);
            }
        }
        *client = again;
    }

    /// Runs a query, on the present or a past state.
    async fn ask(&mut self, nth: usize) {
        let caller = self.clients[nth].0.clone();
        let sql = *self.random.pick(QUERIES);
        let head = self.world.engine().durable_seq();
        let past = Seq(self.random.below(head.0 as usize + 1) as i64);
        let as_of = if self.random.one_in(3) { Some(past) } else { None };
        let answer = ask(self.world.engine(), &caller, sql, as_of).await;
        let at = answer.as_ref().map_or(as_of, |answer| as_of.map(|_| answer.seq));
        let copy = AllRows::read(&self.world, at).await.copy_for(&caller);
        match (copy.rows(sql), answer) {
            (Ok((columns, rows)), Ok(answer)) => {
                self.asked += 1;
                assert_eq!(answer.columns, columns, "{sql}");
                let found = copy::texts(sql, &answer.rows);
                assert_eq!(found, copy::texts(sql, &rows), "{caller:?} runs {sql} at {at:?}");
            }
            (Ok(_), Err(refusal)) => panic!("{caller:?} runs {sql}: {refusal:?}"),
            (Err(_), Err(refusal)) => said_nothing(sql, &refusal),
            // An expression that can fail may be evaluated on fewer rows by the engine than by the
            // copy.
            (Err(why), Ok(answer)) => assert!(copy::fails_at_a_row(&why), "{sql}: {answer:?}"),
        }
    }
}

/// Compares each of a client's results with the copy. Returns the number of queries.
fn check_client(caller: &Caller, client: &Client, whole: &AllRows) -> usize {
    let copy = whole.copy_for(caller);
    for replica in client.replicas.values().filter(|replica| !replica.stale) {
        let (_, rows) = match copy.rows(&replica.sql) {
            Ok(found) => found,
            Err(why) if copy::fails_at_a_row(&why) => continue,
            Err(why) => panic!("{caller:?} still has {}: {why}", replica.sql),
        };
        let expected = replica.format_rows(&rows);
        assert_eq!(
            replica.visible_rows(),
            expected,
            "{caller:?} at {}: {}",
            replica.seq,
            replica.sql
        );
    }
    for (id, refusal) in &client.refusals {
        said_nothing(id, refusal);
    }
    client.replicas.len()
}

/// Checks that a refusal reveals nothing about any row, and is one of the query: all of them are small enough to be planned.
pub(crate) fn said_nothing(what: &str, refusal: &Refusal) {
    let message = format!("{refusal:?}");
    assert!(!message.contains("cannot plan"), "{what}: {message}");
    assert!(!message.contains(MARK) && refusal.code != Code::Internal, "{what}: {message}");
}

#[test]
fn every_identity_sees_exactly_what_it_may_see() {
    let seeds = std::env::var("VISIBILITY_SEEDS").map_or(12, |seeds| seeds.parse().unwrap());
    for_seeds("every_identity", 0..seeds, |seed| {
        run(async {
            let mut play = RandomRun::new(seed, world());
            for _ in 0..70 {
                play.step().await;
            }
            assert!(play.asked > 5 && play.output > 30, "{} {}", play.asked, play.output);
        });
    });
}

/// A narrowing policy, and a row hidden by it in the same transaction: the client sees neither the
/// row nor a trace of it.
#[test]
fn a_policy_change_sends_the_exact_difference() {
    let world = world();
    run(async {
        let ann = caller("ann", "agent", &[], &[("tenant", "a")]);
        let admin = Caller::local();
        let note = |id: i64, tenant: &str| {
            json!({"id": id, "tenant": tenant, "session_id": null, "owner": "x",
                   "secret": MARK, "body": null, "n": id})
        };
        let all = json!({"table": "notes", "role": "agent"});
        world.call("set_policy", all.clone()).await.unwrap();
        world.call("put_note", note(1, "a")).await.unwrap();
        world.call("put_note", note(2, "b")).await.unwrap();
        let mut client = Client::new(world.engine().connect(&ann));
        client
            .subscribe("q", "SELECT id, tenant FROM notes ORDER BY id", &Map::new())
            .await
            .unwrap();
        assert_eq!(client.replicas["q"].rows.len(), 2);

        let mut narrow = all.clone();
        narrow["condition"] = json!("tenant = :scope_tenant");
        let calls = [
            BatchCall { reducer: "put_note".into(), args: note(3, "b") },
            BatchCall { reducer: "set_policy".into(), args: narrow },
            BatchCall { reducer: "put_note".into(), args: note(4, "b") },
            BatchCall { reducer: "put_note".into(), args: note(5, "a") },
        ];
        let done = world.engine().batch(&admin, &calls, None).await.unwrap();
        let frames = client.frames;
        client.read_to(done.seq).await;
        let ids: Vec<String> =
            client.replicas["q"].rows.iter().map(|row| format!("{:?}", row[0])).collect();
        assert_eq!(ids, ["Integer(1)", "Integer(5)"]);
        assert_eq!(client.frames, frames + 1, "one frame with deletes and inserts");

        // Widened again: the hidden rows are inserted.
        let done = world.call("set_policy", all).await.unwrap();
        client.read_to(done.seq).await;
        assert_eq!(client.replicas["q"].rows.len(), 5);
        // A policy that hides a selected column replaces the subscription by a snapshot without it.
        let hides = json!({"table": "notes", "role": "agent", "name": "h", "hidden": ["secret"]});
        client.subscribe("all", "SELECT * FROM notes", &Map::new()).await.unwrap();
        client.subscribe("s", "SELECT secret FROM notes", &Map::new()).await.unwrap();
        let done = world.call("set_policy", hides).await.unwrap();
        client.read_to(done.seq).await;
        let columns = &client.replicas["all"].shape.columns;
        assert!(columns.iter().all(|column| column.name != "secret"), "{columns:?}");
        assert!(!client.replicas.contains_key("s"));
        let (_, refusal) = client.refusals.iter().find(|(id, _)| id == "s").unwrap();
        assert_eq!((refusal.code, &*refusal.detail), (Code::BadSql, "no such column: secret"));
    });
}

/// A connection is read beside other work, so its wait ends at any point. In the middle of planning again, after a change of policies, a
/// subscription was lost: it got no update any more, and no error. The class: a wait that is cancelled after it has taken something.
#[test]
fn a_cancelled_wait_loses_no_subscription() {
    let world = world();
    run(async {
        let policy = |round: i64| {
            let condition = format!("tenant = :scope_tenant AND id <> {}", -round);
            json!({"table": "notes", "role": "agent", "condition": condition})
        };
        world.call("set_policy", policy(0)).await.unwrap();
        let ann = caller("ann", "agent", &[], &[("tenant", "a")]);
        let mut client = Client::new(world.engine().connect(&ann));
        for id in ["one", "two", "three", "four"] {
            client.subscribe(id, "SELECT id FROM notes", &Map::new()).await.unwrap();
        }
        for round in 1..80 {
            world.call("set_policy", policy(round)).await.unwrap();
            for cancelled in 0..6 {
                let micros = (round.unsigned_abs() * 7 + cancelled * 31) % 400;
                client.take_next_within(Duration::from_micros(micros)).await;
            }
            let note = json!({"id": round, "tenant": "a", "session_id": null, "owner": "x",
                "secret": MARK, "body": null, "n": round});
            let done = world.call("put_note", note).await.unwrap();
            client.read_to(done.seq).await;
            for (id, replica) in &client.replicas {
                assert_eq!(replica.rows.len() as i64, round, "{id}");
            }
            assert_eq!(client.replicas.len(), 4);
        }
    });
}

/// When a session moves to another tenant, its rows become visible there and hidden here.
#[test]
fn rows_follow_the_scope_of_their_session() {
    let world = world();
    run(async {
        let ann = caller("ann", "agent", &[], &[("tenant", "a")]);
        let bob = caller("bob", "agent", &[], &[("tenant", "b")]);
        let make = json!({"agent": "x", "id": "s1", "scope": {"tenant": "a"}});
        world.call("create_session", make).await.unwrap();
        world.append_message("s1", "one").await.unwrap();
        let sql = "SELECT id, content FROM agent_state ORDER BY id";
        let mut clients = Vec::new();
        for who in [&ann, &bob] {
            let mut client = Client::new(world.engine().connect(who));
            client.subscribe("q", sql, &Map::new()).await.unwrap();
            clients.push(client);
        }
        let count_rows = |clients: &[Client]| -> Vec<usize> {
            clients.iter().map(|client| client.replicas["q"].rows.len()).collect()
        };
        assert_eq!(count_rows(&clients), [1, 0]);
        let moved = json!({"session_id": "s1", "scope": {"tenant": "b"}});
        let done = world.call("set_scope", moved).await.unwrap();
        for client in &mut clients {
            client.read_to(done.seq).await;
        }
        assert_eq!(count_rows(&clients), [0, 1]);
        // Of a past state each caller sees its rows of that time, by the current policies.
        let then = Some(Seq(done.seq.0 - 1));
        assert_eq!(ask(world.engine(), &ann, sql, then).await.unwrap().rows.len(), 1);
        assert_eq!(ask(world.engine(), &bob, sql, then).await.unwrap().rows.len(), 0);
    });
}

/// However many tenants watch the same query, a commit is checked only for the bindings of its
/// tenant.
#[test]
fn a_commit_of_one_tenant_does_not_cost_the_others() {
    let world = world();
    run(async {
        let queries = [
            "SELECT * FROM sessions",
            "SELECT id FROM sessions WHERE status = 'active'",
            "SELECT * FROM handoff_requests WHERE status = 'pending'",
            "SELECT s.id, m.content FROM sessions s JOIN agent_state m ON m.session_id = s.id",
            "SELECT count(*) FROM agent_state",
            "SELECT id FROM agent_state WHERE role = 'user' ORDER BY id DESC LIMIT 3",
        ];
        let mut clients = Vec::new();
        for tenant in 0..40 {
            let name = format!("t{tenant}");
            let make = json!({"agent": "x", "id": format!("s{tenant}"), "scope": {"tenant": name}});
            world.call("create_session", make).await.unwrap();
            world.append_message(&format!("s{tenant}"), "hello").await.unwrap();
            let who = caller(&name, "agent", &[], &[("tenant", &name)]);
            let mut client = Client::new(world.engine().connect(&who));
            for (nth, sql) in queries.iter().enumerate() {
                client.subscribe(&format!("q{nth}"), sql, &Map::new()).await.unwrap();
            }
            clients.push((who, client));
        }
        let probed = || world.engine().metrics().live_bindings_probed_total.get();
        let before = probed();
        world.append_message("s7", "again").await.unwrap();
        let ask = json!({"session_id": "s7", "reason": "r", "required_capability": "c"});
        let done = world.call("request_supervisor_handoff", ask).await.unwrap();
        let asked = probed() - before;
        assert!(asked <= 2 * queries.len() as u64, "{asked} bindings were checked for two commits");
        let whole = AllRows::read(&world, None).await;
        for (who, client) in &mut clients {
            client.read_to(done.seq).await;
            client.replicas.remove("q2");
            assert_eq!(check_client(who, client, &whole), queries.len() - 1);
        }
    });
}

/// An invalid policy is refused with its error and changes nothing.
#[test]
fn a_policy_is_validated_before_it_is_stored() {
    let world = world();
    run(async {
        let cases = [
            ("nowhere", json!("1"), "there is no table nowhere"),
            ("notes", json!("absent = 1"), "no such column: absent"),
            ("notes", json!("id IN (SELECT id FROM nowhere)"), "no such table: nowhere"),
            ("notes", json!("random() > 0"), "random() is not deterministic"),
            ("notes", json!("1) OR (1"), "unmatched closing parenthesis"),
            ("notes", json!("1; DROP TABLE notes"), "contains a semicolon"),
            ("notes", json!("id = :whom"), "has no parameter :whom"),
            ("notes", json!("id = ?1"), "has no parameter ?1"),
            ("notes", json!(""), "incomplete"),
            ("notes", json!("count(*) > 1"), "misuse of aggregate"),
            ("notes", json!("/*"), "unterminated block comment"),
            ("notes", json!("tenant ="), "the condition is incomplete"),
            ("notes", json!("tenant = 'a' ORDER BY id"), "near \"ORDER\": syntax error"),
        ];
        for (table, condition, why) in cases {
            let args = json!({"table": table, "role": "agent", "condition": condition});
            let refusal = world.call("set_policy", args).await.expect_err(why);
            assert!(refusal.detail.contains(why), "{condition}: {}", refusal.detail);
        }
        let args = json!({"table": "notes", "role": "agent", "hidden": ["nothing"]});
        let refusal = world.call("set_policy", args).await.unwrap_err();
        assert_eq!(refusal.detail, "table notes has no column nothing");
        let tenant = caller("sub", "admin", &["*"], &[("tenant", "b")]);
        let args = json!({"table": "notes", "role": "agent"});
        let denied = world.engine().call(&tenant, "set_policy", &args, None).await.unwrap_err();
        assert_eq!(denied.code, Code::Denied);
        assert_eq!(world.rows("SELECT * FROM policies").await.len(), 0);
    });
}

/// A client that returns with another scope gets a new result without rows of the old one.
#[test]
fn a_client_with_another_scope_starts_anew() {
    let world = world();
    run(async {
        for tenant in ["a", "b"] {
            let make = json!({"agent": "x", "id": tenant, "scope": {"tenant": tenant}});
            world.call("create_session", make).await.unwrap();
        }
        let make = json!({"id": "ann", "role": "agent", "scope": {"tenant": "a"}});
        world.call("create_identity", make).await.unwrap();
        let ann = |tenant| caller("ann", "agent", &[], &[("tenant", tenant)]);
        let mut client = Client::new(world.engine().connect(&ann("a")));
        client.subscribe("q", "SELECT id FROM sessions", &Map::new()).await.unwrap();
        let kept = client.replicas["q"].clone();

        // A change that does not concern this caller: a delta is enough.
        let other = json!({"id": "bob", "role": "agent"});
        world.call("create_identity", other).await.unwrap();
        let mut again = Client::new(world.engine().connect(&ann("a")));
        again.resume("q", kept.clone()).await.unwrap();
        assert_eq!((again.refusals.len(), again.replicas["q"].rows.len()), (0, 1));

        let moved = json!({"id": "ann", "scope": {"tenant": "b"}});
        world.call("change_identity", moved).await.unwrap();
        let mut again = Client::new(world.engine().connect(&ann("b")));
        again.resume("q", kept).await.unwrap();
        assert_eq!(again.refusals[0].1.code, Code::ResyncRequired);
        assert_eq!(again.replicas["q"].rows, [vec!["b".into()].into()]);
    });
}

/// A restricted caller can watch every built-in table as a whole.
#[test]
fn every_visible_table_can_be_live() {
    let world = world();
    run(async {
        let who = caller("ann", "agent", &[], &[("tenant", "a")]);
        let output = world.engine().describe_for(&who);
        let mut client = Client::new(world.engine().connect(&who));
        let tables = output["tables"].as_array().unwrap();
        assert!(tables.len() > 8, "{output}");
        for table in tables {
            let name = table["name"].as_str().unwrap();
            for sql in [
                format!("SELECT * FROM {name}"),
                format!("SELECT count(*) FROM {name}"),
                format!("SELECT * FROM {name} ORDER BY 1 LIMIT 3"),
            ] {
                let begun = client.subscribe(&sql, &sql, &Map::new()).await;
                begun.unwrap_or_else(|refusal| panic!("{sql}: {refusal:?}"));
            }
        }
    });
}

/// A row policy of sessions hid the sessions but left their messages, calls and runs readable; a
/// hidden column left its copies in other tables.
/// An id without the caller's namespace was completed if the row exists, before the policies were asked. So the refusal named a
/// hidden row by its whole id, and an unknown one as the caller had written it.
#[test]
fn a_hidden_row_is_refused_like_an_unknown_one() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let scope: [(&str, &str); 1] = [("tenant", "acme")];
        let app = caller("app", "app", &[], &scope);
        for id in ["shown", "hid"] {
            let args = json!({"agent": "a", "id": id, "title": id});
            world.engine().call(&app, "create_session", &args, None).await.unwrap();
            let timer = json!({"session_id": id, "in_ms": 60_000, "id": format!("{id}-timer")});
            world.engine().call(&app, "set_timer", &timer, None).await.unwrap();
        }
        let may = json!({"name": "clerk", "reducers": ["append_message", "fork_session", "cancel_timer"]});
        world.call("set_role", may).await.unwrap();
        let rule = json!({"table": "sessions", "role": "clerk", "condition": "title IS NOT 'hid'"});
        world.call("set_policy", rule).await.unwrap();
        let clerk = caller("ann", "clerk", &[], &scope);
        for (reducer, args) in [
            ("append_message", json!({"session_id": "hid", "role": "user", "content": "x"})),
            ("fork_session", json!({"session_id": "hid"})),
            ("cancel_timer", json!({"id": "hid-timer"})),
        ] {
            let hidden = world.engine().call(&clerk, reducer, &args, None).await.unwrap_err();
            let unknown: serde_json::Value =
                serde_json::from_str(&args.to_string().replace("hid", "nix")).unwrap();
            let unknown = world.engine().call(&clerk, reducer, &unknown, None).await.unwrap_err();
            let hidden = (hidden.code, hidden.detail.replace("hid", "nix"), hidden.hint);
            assert_eq!(hidden, (unknown.code, unknown.detail, unknown.hint), "{reducer}");
        }
        let shown = json!({"session_id": "shown", "role": "user", "content": "x"});
        world.engine().call(&clerk, "append_message", &shown, None).await.unwrap();
    });
}

#[test]
fn rows_of_a_hidden_row_and_copies_of_a_hidden_column_are_hidden() {
    run(async {
        let world = World::new(abide_reducers::modules);
        for id in ["open", "closed"] {
            world.session(id).await;
            world.append_message(id, "hello").await.unwrap();
        }
        let who = caller("ann", "clerk", &[], &[]);
        let may = json!({"name": "clerk", "reducers": ["append_message"]});
        world.call("set_role", may).await.unwrap();
        let only_open = json!({"table": "sessions", "role": "clerk", "condition": "id = 'open'"});
        world.call("set_policy", only_open).await.unwrap();
        for (sql, count) in [
            ("SELECT id FROM sessions", 1),
            ("SELECT DISTINCT session_id FROM agent_state", 1),
            ("SELECT id FROM agent_state WHERE session_id = 'closed'", 0),
            ("SELECT seq FROM events WHERE session_id = 'closed'", 0),
        ] {
            let rows = ask(world.engine(), &who, sql, None).await.unwrap().rows;
            assert_eq!(rows.len(), count, "{sql}");
        }
        // Reducers do not reach them either.
        let text = json!({"session_id": "closed", "role": "user", "content": "hello"});
        let refusal = world.engine().call(&who, "append_message", &text, None).await.unwrap_err();
        assert_eq!(refusal.code, Code::NotFound);

        let hides = json!({"table": "tool_calls", "role": "clerk", "hidden": ["arguments"]});
        world.call("set_policy", hides).await.unwrap();
        for (table, column) in [
            ("tool_calls", "arguments"),
            ("approvals", "arguments"),
            ("approvals", "arguments_hash"),
            ("run_events", "data"),
            ("agent_state", "data"),
        ] {
            let sql = format!("SELECT {column} FROM {table}");
            let refusal = ask(world.engine(), &who, &sql, None).await.unwrap_err();
            assert_eq!(refusal.detail, format!("no such column: {column}"), "{sql}");
        }

        // What an approver reads and decides is in the events of the run: they gave the question of a hidden column away.
        let who = caller("cy", "viewer", &[], &[]);
        world.call("set_role", json!({"name": "viewer", "reducers": []})).await.unwrap();
        for column in ["prompt", "defaults", "comment", "approved_arguments"] {
            let sql = "SELECT data FROM run_events";
            ask(world.engine(), &who, sql, None).await.unwrap();
            let hides =
                json!({"table": "approvals", "role": "viewer", "name": column, "hidden": [column]});
            world.call("set_policy", hides.clone()).await.unwrap();
            let refusal = ask(world.engine(), &who, sql, None).await.unwrap_err();
            assert_eq!(refusal.detail, "no such column: data", "{column}");
            let drop = json!({"table": "approvals", "role": "viewer", "name": column});
            world.call("drop_policy", drop).await.unwrap();
        }

        // The entries of A2A and of adapters have texts of messages.
        let who = caller("bob", "reader", &[], &[]);
        world.call("set_role", json!({"name": "reader", "reducers": []})).await.unwrap();
        ask(world.engine(), &who, "SELECT data FROM entries", None).await.unwrap();
        let hides = json!({"table": "agent_state", "role": "reader", "hidden": ["content"]});
        world.call("set_policy", hides).await.unwrap();
        let refusal =
            ask(world.engine(), &who, "SELECT data FROM entries", None).await.unwrap_err();
        assert_eq!(refusal.detail, "no such column: data");
    });
}
