//! Subscriptions: a client's state equals its query at every seq, through disconnects and restarts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use abide_engine::{
    Budget, Engine, EngineThread, FaultPoint, Start, StepScheduler, SubscribeRequest, Update,
};
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Code, Seq, limits};
use abide_tests::world::{World, run};
use serde_json::{Map, Value as JsonValue, json};

use crate::replica::{Client, Replica};
use crate::traffic::{Random, Traffic, for_seeds};

/// Every order is total: two runs of one query may order ties differently.
const QUERIES: &[&str] = &[
    "SELECT * FROM sessions",
    "SELECT id, status FROM sessions WHERE status = 'active'",
    "SELECT id, title, updated_at FROM sessions ORDER BY updated_at DESC, id",
    "SELECT id FROM sessions WHERE title LIKE '%long%' OR json_extract(scope, '$.tenant') = :sid",
    "SELECT * FROM sessions WHERE parent_id = :sid OR id = :sid",
    "SELECT * FROM agent_state WHERE session_id = :sid",
    "SELECT id, content FROM agent_state WHERE role = 'user' ORDER BY content DESC, id",
    "SELECT id, length(content) AS n FROM agent_state WHERE data IS NOT NULL ORDER BY n, id DESC",
    "SELECT role FROM agent_state WHERE content IS NULL",
    "SELECT * FROM tools ORDER BY effect, name DESC",
    "SELECT call_id, status, attempt FROM tool_calls WHERE status IN ('pending', 'claimed')",
    "SELECT * FROM tool_calls WHERE tool_name = 'search' ORDER BY seq DESC, call_id",
    "SELECT call_id, lease_expires_at IS NULL FROM tool_calls WHERE attempt > 0",
    "SELECT * FROM approvals WHERE status = 'pending'",
    "SELECT * FROM handoff_requests WHERE status = 'pending'",
    "SELECT id, reason FROM handoff_requests WHERE claimed_by = 'ann' OR status = 'resolved'",
    "SELECT * FROM events WHERE caller = 'ann'",
    "SELECT seq, reducer, request_id FROM events WHERE session_id = :sid ORDER BY seq DESC",
    "SELECT seq FROM events WHERE request_id IS NOT NULL",
    "SELECT status, count(*) AS n FROM sessions GROUP BY status",
    "SELECT count(*), max(id), min(content) FROM agent_state",
    "SELECT session_id, count(*) FROM agent_state GROUP BY session_id HAVING count(*) > 2",
    "SELECT s.id, m.id AS message, m.role FROM sessions s JOIN agent_state m
        ON m.session_id = s.id WHERE s.status = 'active'",
    "SELECT c.call_id, t.effect, a.status FROM tool_calls c JOIN tools t ON t.name = c.tool_name
        LEFT JOIN approvals a ON a.call_id = c.call_id",
    "SELECT t.name, count(c.call_id) AS n FROM tools t LEFT JOIN tool_calls c
        ON c.tool_name = t.name GROUP BY t.name",
    "SELECT id FROM sessions WHERE id IN (SELECT session_id FROM tool_calls WHERE attempt > 1)",
    "SELECT id, status FROM sessions ORDER BY updated_at DESC, id LIMIT 3",
    "SELECT seq, reducer FROM events ORDER BY seq DESC LIMIT 5",
];

fn params(sql: &str, session_id: &str) -> Map<String, JsonValue> {
    let mut params = Map::new();
    if sql.contains(":sid") {
        params.insert("sid".to_owned(), session_id.into());
    }
    params
}

/// Compares every replica of a client with its query at the replica's state.
async fn check_client(world: &World, client: &Client, what: &str) {
    for (id, replica) in &client.replicas {
        let fresh = world
            .engine()
            .query(&Caller::local(), &replica.sql, &replica.params, Some(replica.seq))
            .await
            .unwrap();
        let names: Vec<&String> = (replica.shape.columns.iter())
            .filter(|column| !column.hidden)
            .map(|column| &column.name)
            .collect();
        assert_eq!(names, fresh.columns.iter().collect::<Vec<_>>(), "{}", replica.sql);
        let held = replica.visible_rows();
        let fresh = replica.format_rows(&fresh.rows);
        assert_eq!(held, fresh, "{what}: {id} at {}: {}", replica.seq, replica.sql);
    }
}

/// Three clients with random actions over random traffic.
struct RandomRun {
    world: World,
    traffic: Traffic,
    random: Random,
    clients: Vec<Client>,
    next_id: usize,
}

impl RandomRun {
    fn new(seed: u64, world: World) -> RandomRun {
        let clients =
            (0..3).map(|_| Client::new(world.engine().connect(&Caller::local()))).collect();
        let traffic = Traffic::new(seed);
        let random = Random::new(!seed);
        RandomRun { world, traffic, random, clients, next_id: 0 }
    }

    async fn step(&mut self) {
        let nth = self.random.below(self.clients.len());
        match self.random.below(40) {
            0..=4 => self.subscribe(nth).await,
            5 => self.unsubscribe(nth),
            6 => self.reconnect(nth).await,
            7 => self.restart().await,
            _ => drop(self.traffic.step(&self.world).await),
        }
        // Some clients read at once, others let updates accumulate.
        let head = self.world.engine().durable_seq();
        for client in &mut self.clients {
            if self.random.one_in(3) {
                client.read_to(head).await;
                check_client(&self.world, client, "live").await;
            }
        }
    }

    async fn subscribe(&mut self, nth: usize) {
        let sql = self.random.pick(QUERIES);
        let session_id = format!("s{}", self.random.below(12));
        self.next_id += 1;
        let id = format!("q{}", self.next_id);
        let params = params(sql, &session_id);
        let head = self.world.engine().durable_seq().0;
        let start = if self.random.one_in(3) {
            Start::AsOf(Seq(self.random.below(head as usize + 1) as i64))
        } else {
            Start::Now
        };
        self.clients[nth].subscribe_from(&id, sql, &params, start).await.unwrap();
    }

    fn unsubscribe(&mut self, nth: usize) {
        let first = self.clients[nth].replicas.keys().next().cloned();
        if let Some(id) = first {
            self.clients[nth].unsubscribe(&id);
        }
    }

    /// The connection breaks, and the client resumes.
    async fn reconnect(&mut self, nth: usize) {
        let fresh = Client::new(self.world.engine().connect(&Caller::local()));
        let kept = std::mem::replace(&mut self.clients[nth], fresh).replicas;
        self.resume(nth, kept).await;
    }

    /// The engine restarts.
    async fn restart(&mut self) {
        let kept: Vec<BTreeMap<String, Replica>> =
            self.clients.drain(..).map(|client| client.replicas).collect();
        // Running reruns end with their connection, once they are polled.
        tokio::task::yield_now().await;
        if self.random.one_in(2) {
            self.world.reopen();
        } else {
            self.world.drop_engine();
            self.world.open();
        }
        for (nth, kept) in kept.into_iter().enumerate() {
            self.clients.push(Client::new(self.world.engine().connect(&Caller::local())));
            self.resume(nth, kept).await;
        }
    }

    async fn resume(&mut self, nth: usize, kept: BTreeMap<String, Replica>) {
        for (id, replica) in kept {
            self.clients[nth].resume(&id, replica).await.unwrap();
        }
        assert_eq!(self.clients[nth].refusals, [], "all missed changes are still kept");
        check_client(&self.world, &self.clients[nth], "resumed").await;
    }
}

#[test]
fn a_subscription_equals_its_query() {
    for_seeds("live::a_subscription_equals", 0..12, |seed| {
        run(async {
            let mut play = RandomRun::new(seed, World::new(abide_reducers::modules));
            for _ in 0..150 {
                play.step().await;
            }
            let head = play.world.engine().durable_seq();
            for client in &mut play.clients {
                client.read_to(head).await;
                check_client(&play.world, client, "at the end").await;
            }
        });
    });
}

/// No delta may cost a commit anything: all but the first are made by reruns.
#[test]
fn a_subscription_over_budget_equals_its_query() {
    let reruns = AtomicUsize::new(0);
    for_seeds("live::a_subscription_over_budget", 0..6, |seed| {
        run(async {
            let mut world = World::new(abide_reducers::modules);
            world.live_budget =
                Some(Budget { average: 1, max: 100, commit: 1_000_000, ..Budget::UNLIMITED });
            world.reopen();
            let mut play = RandomRun::new(seed, world);
            for _ in 0..100 {
                play.step().await;
            }
            let head = play.world.engine().durable_seq();
            for client in &mut play.clients {
                client.read_to(head).await;
                check_client(&play.world, client, "at the end").await;
                reruns.fetch_add(client.reruns, Ordering::Relaxed);
            }
        });
    });
    assert!(reruns.into_inner() > 0, "no query was rerun");
}

/// Counting a large group exceeds the budget of a commit. A reader counts it once; from then on the
/// group's accumulators are kept, and each further commit costs as much as the rows that it
/// changes.
#[test]
fn a_large_group_is_counted_once_and_then_kept() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.live_budget =
            Some(Budget { average: 1_000, max: 2_000, commit: 1_000_000, ..Budget::UNLIMITED });
        world.reopen();
        world.session("s").await;
        for _ in 0..5 {
            let args = json!({"session_id": "s", "role": "user", "content": "hello"});
            let call = BatchCall { reducer: "append_message".to_owned(), args };
            world.engine().batch(&Caller::new("local"), &vec![call; 1_000], None).await.unwrap();
        }
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        let sql = "SELECT role, count(*) AS n, sum(id) AS ids, max(id) AS last
            FROM agent_state GROUP BY role";
        client.subscribe("q", sql, &Map::new()).await.unwrap();
        for nth in 0..100 {
            let done = world.append_message("s", &format!("message {nth}")).await.unwrap();
            client.read_to(done.seq).await;
            check_client(&world, &client, "live").await;
        }
        let reruns = world.engine().metrics().live_reruns_total.get();
        assert!((1..20).contains(&reruns), "{reruns} reruns");
        let templates = world.engine().live_templates().await.unwrap();
        let [template] = templates.as_slice() else { panic!("{templates:?}") };
        assert_eq!((template.bindings, template.deltas), (1, 100));
        assert_eq!(client.refusals.len(), 1, "one refusal says why: {:?}", client.refusals);
    });
}

/// A reader that counts a large group has a limit too. Nothing checked it, and a fill without a limit holds one of few
/// readers. The class: a limit that no test reaches.
#[test]
fn a_group_that_cannot_be_counted_in_time_is_left_to_reruns() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        let budget = Budget { average: 1_000, max: 2_000, commit: 1_000_000, ..Budget::UNLIMITED };
        world.live_budget = Some(Budget { fill_time: Duration::ZERO, ..budget });
        world.reopen();
        world.session("s").await;
        let args = json!({"session_id": "s", "role": "user", "content": "hello"});
        let call = BatchCall { reducer: "append_message".to_owned(), args };
        for _ in 0..5 {
            world
                .engine()
                .batch(&Caller::new("local"), &vec![call.clone(); 1_000], None)
                .await
                .unwrap();
        }
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        let sql = "SELECT role, count(*) AS n FROM agent_state GROUP BY role";
        client.subscribe("q", sql, &Map::new()).await.unwrap();
        for nth in 0..20 {
            let done = world.append_message("s", &format!("message {nth}")).await.unwrap();
            client.read_to(done.seq).await;
            check_client(&world, &client, "live").await;
        }
        // Two commits can share one run.
        let reruns = client.reruns;
        assert!(reruns >= 15, "the group was counted: only {reruns} reruns");
    });
}

#[test]
fn every_query_resumes_from_every_past_seq() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let mut traffic = Traffic::new(99);
        let mut output = vec![Seq::ZERO];
        let mut kept: BTreeMap<(usize, Seq), Replica> = BTreeMap::new();
        for _ in 0..60 {
            let _ = traffic.step(&world).await;
            let head = world.engine().durable_seq();
            if output.last() == Some(&head) || head.0 % 3 != 0 {
                continue;
            }
            output.push(head);
            let mut client = Client::new(world.engine().connect(&Caller::local()));
            for (nth, sql) in QUERIES.iter().enumerate() {
                client.subscribe("q", sql, &params(sql, "s1")).await.unwrap();
                kept.insert((nth, head), client.unsubscribe("q").unwrap());
            }
        }
        assert!(output.len() > 5);
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        for ((nth, from), replica) in kept {
            client.resume("q", replica).await.unwrap();
            check_client(&world, &client, &format!("query {nth} from {from}")).await;
            client.unsubscribe("q");
        }
    });
}

#[test]
fn a_resume_from_a_forgotten_or_a_future_seq() {
    run(async {
        let mut world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        client.subscribe("q", "SELECT * FROM agent_state", &Map::new()).await.unwrap();
        let old = client.unsubscribe("q").unwrap();
        world.append_message("s1", "more").await.unwrap();
        let mut ahead = old.clone();
        ahead.seq = Seq(1_000);
        client.resume("ahead", ahead).await.unwrap();
        let (id, refusal) = client.refusals.pop().unwrap();
        assert_eq!((id.as_str(), refusal.code), ("ahead", Code::ResyncRequired));
        assert_eq!(refusal.detail, "seq 1000 is ahead of the log, which ends at 3");
        assert_eq!(refusal.hint.as_deref(), Some("a whole snapshot follows"));
        check_client(&world, &client, "from the future").await;

        drop(client);
        world.close();
        let forget = "DELETE FROM change_log WHERE seq <= 3;
            UPDATE meta SET value = '3' WHERE name = 'change_log_floor'";
        world.raw().execute_batch(forget).unwrap();
        world.open();
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        client.resume("old", old).await.unwrap();
        let (_, refusal) = client.refusals.pop().unwrap();
        assert_eq!(refusal.detail, "changes are kept from seq 3 on, not from 2");
        check_client(&world, &client, "from before the floor").await;
        world.append_message("s1", "and on").await.unwrap();
        client.read_to(Seq(4)).await;
        check_client(&world, &client, "after it").await;
    });
}

#[test]
fn one_frame_per_commit_over_all_queries() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        for (id, sql) in [
            ("messages", "SELECT * FROM agent_state"),
            ("sessions", "SELECT id, status FROM sessions"),
            ("log", "SELECT seq FROM events"),
            ("idle", "SELECT * FROM tools"),
        ] {
            client.subscribe(id, sql, &Map::new()).await.unwrap();
        }
        client.read_to(Seq(2)).await;
        let calls = [
            ("append_message", json!({"session_id": "s1", "role": "user", "content": "a"})),
            ("append_message", json!({"session_id": "s1", "role": "user", "content": "b"})),
            ("complete_session", json!({"session_id": "s1"})),
        ]
        .map(|(reducer, args)| BatchCall { reducer: reducer.to_owned(), args });
        world.engine().batch(&Caller::new("local"), &calls, None).await.unwrap();
        match client.connection.next().await {
            Update::Delta { from: Seq(2), to: Seq(5), changes } => {
                let output = changes.iter().map(|change| {
                    let delta = change.delta.rows();
                    (&*change.id, delta.deletes.len(), delta.inserts.len(), delta.updates.len())
                });
                let expected = [("messages", 0, 2, 0), ("sessions", 0, 0, 1), ("log", 0, 3, 0)];
                assert_eq!(output.collect::<Vec<_>>(), expected);
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn pending_updates_are_available_without_waiting() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let mut early = Client::new(world.engine().connect(&Caller::local()));
        let mut late = Client::new(world.engine().connect(&Caller::local()));
        for client in [&mut early, &mut late] {
            client.subscribe("log", "SELECT seq FROM events", &Map::new()).await.unwrap();
            client.read_to(Seq(2)).await;
        }
        assert!(early.connection.try_next().is_none());
        for content in ["a", "b", "c"] {
            world.append_message("s1", content).await.unwrap();
        }
        // A commit's frames go to connections in the order of their creation.
        late.read_to(Seq(5)).await;
        let mut output = Vec::new();
        while let Some(update) = early.connection.try_next() {
            match update {
                Update::Delta { from, to, .. } => output.push((from, to)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(output, [(Seq(2), Seq(3)), (Seq(3), Seq(4)), (Seq(4), Seq(5))]);
    });
}

#[test]
fn an_idle_connection_receives_progress() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        client.subscribe("q", "SELECT * FROM tools", &Map::new()).await.unwrap();
        world.session("s1").await;
        client.read_to(Seq(2)).await;
        assert_eq!((client.output, client.frames), (Seq(2), 0));
        let kept = client.unsubscribe("q").unwrap();
        assert_eq!(kept.seq, Seq(2), "a resume starts near the head");
    });
}

#[test]
fn a_client_that_does_not_read_costs_little_and_catches_up() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let mut slow = Client::new(world.engine().connect(&Caller::local()));
        let sql = "SELECT * FROM agent_state";
        slow.subscribe("all", sql, &Map::new()).await.unwrap();
        slow.subscribe("n", "SELECT count(*) FROM agent_state", &Map::new()).await.unwrap();
        let message = "x".repeat(100_000);
        for _ in 0..40 {
            world.append_message("s1", &message).await.unwrap();
        }
        // Four megabytes were sent; the queue of a connection holds one.
        let mut other = Client::new(world.engine().connect(&Caller::local()));
        other.subscribe("log", "SELECT seq FROM events", &Map::new()).await.unwrap();
        world.append_message("s1", "last").await.unwrap();
        let head = world.engine().durable_seq();
        other.read_to(head).await;
        assert!(world.engine().metrics().slow_consumers_total.get() >= 1);
        slow.read_to(head).await;
        assert!(slow.frames < 40, "{} frames: not caught up in one step", slow.frames);
        check_client(&world, &slow, "caught up").await;
        world.append_message("s1", "and on").await.unwrap();
        slow.read_to(world.engine().durable_seq()).await;
        check_client(&world, &slow, "live again").await;
    });
}

#[test]
fn a_thousand_subscriptions_on_one_connection() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        let sql = "SELECT * FROM agent_state WHERE session_id = :sid";
        for nth in 0..1_000 {
            let params = params(sql, &format!("s{}", nth % 100));
            client.subscribe(&format!("q{nth}"), sql, &params).await.unwrap();
        }
        for session in ["s7", "s42", "s_nobody_watches"] {
            world.session(session).await;
        }
        client.read_to(world.engine().durable_seq()).await;
        check_client(&world, &client, "a thousand").await;
        let row_count = |id: &str| client.replicas[id].rows.len();
        assert_eq!(
            [row_count("q7"), row_count("q907"), row_count("q42"), row_count("q8")],
            [1, 1, 1, 0]
        );
        assert_eq!(client.frames, 2, "one for each watched session");
    });
}

#[test]
fn a_refused_subscription_changes_nothing() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        client.subscribe("q", "SELECT * FROM tools", &Map::new()).await.unwrap();
        let cases = [
            ("q", "SELECT * FROM tools", "subscription \"q\" exists already on this connection"),
            ("r", "SELECT * FROM nowhere", "no such table: nowhere"),
            ("r", "DELETE FROM tools", ""),
            ("r", "SELECT * FROM tools WHERE name = :name", ""),
            ("r", "SELECT random() FROM tools", ""),
            ("r", "SELEC", ""),
            ("r", "SELECT * FROM tools; SELECT 1", ""),
        ];
        for (id, sql, detail) in cases {
            let refusal = client.subscribe(id, sql, &Map::new()).await.expect_err(sql);
            assert!(detail.is_empty() || refusal.detail == detail, "{sql}: {refusal}");
            assert_ne!(refusal.code, Code::Internal, "{sql}: {refusal}");
        }
        world.session("s1").await;
        client.read_to(Seq(2)).await;
        check_client(&world, &client, "the first one continues").await;
    });
}

/// The number of live queries of one tenant, each with a long text, was limited for each connection only.
#[test]
fn the_texts_of_live_queries_are_bounded() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let ann = crate::visibility::caller("ann", "worker", &[], &[("tenant", "a")]);
        let bob = crate::visibility::caller("bob", "worker", &[], &[("tenant", "b")]);
        let sql = format!("SELECT id FROM sessions WHERE id = 's' /* {} */", "x".repeat(60_000));
        let none = Map::new();
        let mut connection = world.engine().connect(&ann);
        let mut open = Vec::new();
        let refusal = loop {
            let id = open.len().to_string();
            match connection.subscribe(&SubscribeRequest::new(&id, &sql, &none)).await {
                Ok(()) => open.push(id),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refusal.code, Code::LimitExceeded, "{refusal}");
        let share = limits::SUBSCRIPTIONS_BYTES / 4;
        assert!((share / 62_000..share / 61_000).contains(&open.len()), "{}", open.len());
        let request = SubscribeRequest::new("q", &sql, &none);
        let mut other = world.engine().connect(&bob);
        other.subscribe(&request).await.expect("another tenant has its own share");
        assert_eq!(connection.subscribe(&request).await.unwrap_err().code, Code::LimitExceeded);
        connection.unsubscribe(&open[7]);
        connection.subscribe(&request).await.expect("there is room again");
    });
}

#[test]
fn an_ended_subscription_receives_nothing_more() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let mut connection = world.engine().connect(&Caller::local());
        for nth in 0..50 {
            let sql = "SELECT * FROM tools";
            let id = nth.to_string();
            let nothing = Map::new();
            connection.subscribe(&SubscribeRequest::new(&id, sql, &nothing)).await.unwrap();
        }
        for nth in 0..50 {
            connection.unsubscribe(&nth.to_string());
        }
        world.call("register_tool", json!({"name": "search"})).await.unwrap();
        match connection.next().await {
            Update::Progress { seq } => assert_eq!(seq, Seq(1)),
            other => panic!("{other:?}"),
        }
    });
}

/// A subscription that is ended before its first reply is read receives nothing more, neither under
/// its id nor when the id is reused for another query.
#[test]
fn a_subscription_ended_before_its_first_reply_receives_nothing() {
    run(async {
        let world = World::new(abide_reducers::modules);
        world.session("s1").await;
        let mut connection = world.engine().connect(&Caller::local());
        let nothing = Map::new();
        let messages = SubscribeRequest::new("q", "SELECT * FROM agent_state", &nothing);
        for start in [Start::After(Seq(1)), Start::AsOf(Seq(1))] {
            connection.subscribe(&SubscribeRequest { start, ..messages }).await.unwrap();
            connection.unsubscribe("q");
        }
        let sessions = SubscribeRequest::new("q", "SELECT id FROM sessions", &nothing);
        connection.subscribe(&sessions).await.unwrap();
        loop {
            match connection.next().await {
                Update::Snapshot(part) => {
                    break assert_eq!(part.info.shape.columns[0].name, "id");
                }
                Update::Delta { changes, .. } if changes.is_empty() => {}
                other => panic!("a message of the ended subscription: {other:?}"),
            }
        }
    });
}

/// Subscriptions start under write load: none may miss or duplicate a row.
#[test]
fn starting_under_load_leaves_no_gap() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(async {
        let world = Arc::new(World::new(abide_reducers::modules));
        for nth in 0..4 {
            world.session(&format!("s{nth}")).await;
        }
        let writing = Arc::new(AtomicBool::new(true));
        let subscribers: Vec<_> = (0..4)
            .map(|nth| {
                let world = Arc::clone(&world);
                let writing = Arc::clone(&writing);
                tokio::spawn(async move { come_and_go(&world, &writing, nth).await })
            })
            .collect();
        let writers: Vec<_> = (0..4)
            .map(|nth| {
                let engine = world.engine().clone();
                tokio::spawn(async move { write(&engine, nth).await })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        writing.store(false, Ordering::Release);
        world.append_message("s0", "last").await.unwrap();
        let mut begun = 0;
        for subscriber in subscribers {
            begun += subscriber.await.unwrap();
        }
        assert!(begun > 20, "only {begun} subscriptions were started under load");
    });
}

async fn write(engine: &Engine, nth: usize) {
    for round in 0..250 {
        let args = json!({"session_id": format!("s{nth}"), "role": "user",
            "content": format!("{nth}.{round}")});
        engine.call(&Caller::new("writer"), "append_message", &args, None).await.unwrap();
    }
}

/// Subscribes, reads a little, compares, disconnects and resumes; returns how often.
async fn come_and_go(world: &World, writing: &AtomicBool, nth: usize) -> usize {
    let all = "SELECT * FROM agent_state";
    let one = "SELECT id, content FROM agent_state WHERE session_id = :sid ORDER BY id DESC";
    let mut kept: Option<Replica> = None;
    let mut begun: usize = 0;
    while writing.load(Ordering::Acquire) {
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        match kept.take() {
            Some(replica) => client.resume("all", replica).await.unwrap(),
            None => client.subscribe("all", all, &Map::new()).await.unwrap(),
        }
        client.subscribe("one", one, &params(one, &format!("s{nth}"))).await.unwrap();
        client.read_to(world.engine().durable_seq()).await;
        check_client(world, &client, "under load").await;
        begun += 2;
        kept = client.unsubscribe("all");
    }
    let mut client = Client::new(world.engine().connect(&Caller::local()));
    client.subscribe("one", one, &params(one, &format!("s{nth}"))).await.unwrap();
    client.resume("all", kept.unwrap_or_default()).await.unwrap();
    check_client(world, &client, "at the end").await;
    begun
}

/// One subscription of a few lines delayed every write by 17.5 s: the writer evaluates it, and
/// could not be interrupted within `instr`. Work of a commit now counts as steps, also within
/// functions, and a query over the limit is evaluated by a reader.
#[test]
fn no_subscription_blocks_the_writer() {
    run(async {
        for sql in [
            "SELECT id, CASE WHEN title = 'boom' THEN instr(printf('%.*c', 1500000, 'a'),
                printf('%.*c', 750000, 'a') || 'b') ELSE 0 END AS n FROM sessions",
            "SELECT id, CASE WHEN title = 'boom' THEN printf('%.*c', 2000000, 'a') LIKE
                '%' || printf('%.*c', 4000, 'a') || 'b' ELSE 0 END AS n FROM sessions",
            "SELECT id, length(replace(printf('%.*c', iif(title = 'boom', 8000000, 1), 'a'),
                'a', 'bb')) AS n FROM sessions",
            "SELECT id, length(trim(printf('%.*c', iif(title = 'boom', 2000000, 1), 'a'),
                printf('%.*c', 100000, 'b') || 'a')) AS n FROM sessions",
            "SELECT id, length(printf('%.*c', iif(title = 'boom', 30000000, 1), 'a') ||
                printf('%.*c', iif(title = 'boom', 30000000, 1), 'a')) AS n FROM sessions",
        ] {
            let world = World::new(abide_reducers::modules);
            let mut connection = world.engine().connect(&Caller::local());
            let params = Map::new();
            let wanted = SubscribeRequest::new("q", sql, &params);
            if connection.subscribe(&wanted).await.is_err() {
                continue;
            }
            let before = world.engine().metrics().live_steps_total.get();
            let boom = json!({"id": "s1", "agent": "a", "title": "boom"});
            world.engine().call(&Caller::local(), "create_session", &boom, None).await.unwrap();
            let steps = world.engine().metrics().live_steps_total.get() - before;
            // A function counts its arguments before it starts, and then does not run.
            assert!(steps <= 2 * limits::LIVE_DELTA_MOST_STEPS, "{sql}: {steps}");
        }
    });
}

/// Four queries of one caller took all readers, so no credential could be checked, including the
/// administrator's.
#[test]
fn one_tenant_cannot_use_all_readers() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap().block_on(async {
        let world = World::new(abide_reducers::modules);
        let long = "SELECT count(*) FROM json_each(:all) a, json_each(:all) b, json_each(:all) c";
        let all = serde_json::json!({"all": format!("[{}0]", "0,".repeat(5_000))});
        let all = all.as_object().unwrap().clone();
        let of =
            |id: &str, scope: &[(&str, &str)]| crate::visibility::caller(id, "admin", &[], scope);
        // A further scope key gave an identity further readers.
        let flood = [
            of("flood", &[("tenant", "b")]),
            of("desk one", &[("tenant", "b"), ("desk", "1")]),
            of("desk two", &[("tenant", "b"), ("desk", "2")]),
        ];
        let others = of("another", &[]);
        let ask = |caller: &Caller| {
            let engine = world.engine().clone();
            let caller = caller.clone();
            let all = all.clone();
            tokio::spawn(async move { engine.query(&caller, long, &all, None).await })
        };
        let mut asked: Vec<_> = (0..9).map(|nth| ask(&flood[nth % 3])).collect();
        let ann = Caller::local();
        // All of them are queued. If they could use all readers, they would after the first of these queries.
        tokio::task::yield_now().await;
        for _ in 0..5 {
            world.engine().query(&ann, "SELECT 1", &Map::new(), None).await.unwrap();
        }
        assert!(
            asked.iter().all(|asked| !asked.is_finished()),
            "the other caller did not wait for them"
        );
        asked.extend((0..8).map(|_| ask(&others)));
        world.engine().look_up("SELECT 1", &Map::new()).await.unwrap();
        assert!(asked.iter().all(|asked| !asked.is_finished()), "credential checks do not wait");
        // Running and waiting queries end with the engine.
        let engine = world.engine().clone();
        tokio::task::spawn_blocking(move || engine.close()).await.unwrap();
        for asked in asked {
            let output = asked.await.unwrap().unwrap_err();
            assert_eq!(output.code, Code::Unavailable, "{output}");
        }
    });
}

/// One connection with the least rights held two gigabytes: each live query keeps its parameters, and they were not
/// counted.
#[test]
fn the_parameters_of_live_queries_are_bounded() {
    run(async {
        let world = World::new(abide_reducers::modules);
        let caller = Caller::local();
        let sql = "SELECT id FROM sessions WHERE id = :id AND title = :title";
        let parameters = |bytes: usize| {
            let mut params = params(sql, "");
            params.extend([
                ("id".to_owned(), "s1".into()),
                ("title".to_owned(), "x".repeat(bytes).into()),
            ]);
            params
        };
        let mut connection = world.engine().connect(&caller);
        let long = parameters(limits::LIVE_PARAMETER_BYTES);
        let refused = connection.subscribe(&SubscribeRequest::new("long", sql, &long)).await;
        assert_eq!(refused.unwrap_err().code, Code::LimitExceeded);

        let large = parameters(limits::LIVE_PARAMETER_BYTES - 1_024);
        let mut held = 0;
        let refused = loop {
            let id = format!("q{held}");
            match connection.subscribe(&SubscribeRequest::new(&id, sql, &large)).await {
                Ok(()) => held += 1,
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refused.code, Code::Overloaded);
        let expected = limits::LIVE_PARAMETER_BYTES_PER_CALLER / limits::LIVE_PARAMETER_BYTES;
        assert!((expected..=expected + 3).contains(&held), "{held}");

        // Ordinary parameters are not counted, and the end of a live query makes room.
        let small = parameters(100);
        connection.subscribe(&SubscribeRequest::new("small", sql, &small)).await.unwrap();
        connection.unsubscribe("q0");
        connection.subscribe(&SubscribeRequest::new("next", sql, &large)).await.unwrap();
    });
}

/// Functions of SQLite counted no steps, so a commit computed hundreds of deltas that took 25 ms of the writer each,
/// and every other tenant waited for 35 s. The class: work of a commit that its budget does not count.
#[test]
fn functions_count_the_bytes_that_they_read() {
    const BYTES: usize = 30_000;
    const PATHS: usize = 98;
    run(async {
        let mut world = World::new(abide_reducers::modules);
        // The steps are the same on every machine; CPU time is not.
        let budget = Budget {
            average: limits::LIVE_DELTA_STEPS,
            max: limits::LIVE_DELTA_MOST_STEPS,
            commit: limits::LIVE_COMMIT_STEPS,
            statement: limits::LIVE_STATEMENT_STEPS,
            ..Budget::UNLIMITED
        };
        world.live_budget = Some(budget);
        world.reopen();
        let zeta = crate::visibility::caller("zeta", "app", &[], &[("tenant", "zeta")]);
        let create = json!({"agent": "x", "id": "z"});
        world.engine().call(&zeta, "create_session", &create, None).await.unwrap();
        let session = "tenant=zeta/z";
        let mut client = Client::new(world.engine().connect(&zeta));
        let paths: String = (0..PATHS).map(|nth| format!(", '$.z{nth}'")).collect();
        let subscribe = |nth: usize| {
            format!(
                "SELECT id, length(json_extract(content{paths})) AS n FROM agent_state
                 WHERE session_id = '{session}' AND id <> -{nth}"
            )
        };
        client.subscribe("q0", &subscribe(0), &Map::new()).await.unwrap();
        let content = json!({"z": "x".repeat(BYTES)}).to_string();
        let message = json!({"session_id": session, "role": "user", "content": content});
        let steps = || world.engine().metrics().live_steps_total.get();
        let append_message = async || {
            let before = steps();
            let done = world.engine().call(&zeta, "append_message", &message, None).await.unwrap();
            (done.seq, steps() - before)
        };
        let (_, one) = append_message().await;
        let least = (BYTES * PATHS / 16) as u64;
        assert!(one >= least, "{one} steps for a function that reads {least} times 16 bytes");
        for nth in 1..300 {
            client.subscribe(&format!("q{nth}"), &subscribe(nth), &Map::new()).await.unwrap();
        }
        let (seq, all) = append_message().await;
        let most = limits::LIVE_COMMIT_STEPS / 4 + 2 * limits::LIVE_DELTA_MOST_STEPS;
        assert!(all <= most, "{all} steps in a commit; the limit is about {most}");
        client.read_to(seq).await;
        check_client(&world, &client, "live").await;
    });
}

/// Counts the fills of accumulators that readers begin.
#[derive(Debug, Default)]
struct CountedFills(AtomicUsize);

impl StepScheduler for CountedFills {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }

    fn at_fault_point(&self, point: FaultPoint) {
        if point == FaultPoint::Fill {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Holds fills before they begin, until they may.
#[derive(Debug, Default)]
struct HeldFills {
    held: AtomicUsize,
    begun: AtomicUsize,
    answered: AtomicUsize,
    may_begin: (Mutex<bool>, Condvar),
}

impl StepScheduler for HeldFills {
    fn wait(&self, _: EngineThread) -> bool {
        false
    }

    fn at_fault_point(&self, point: FaultPoint) {
        match point {
            FaultPoint::Fill => {
                self.held.fetch_add(1, Ordering::SeqCst);
                let (may_begin, changed) = &self.may_begin;
                drop(
                    changed.wait_while(may_begin.lock().unwrap(), |may_begin| !*may_begin).unwrap(),
                );
            }
            FaultPoint::FillBegun => drop(self.begun.fetch_add(1, Ordering::SeqCst)),
            FaultPoint::Backfill => drop(self.answered.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
    }
}

/// A group is not counted for a subscription that ended meanwhile. The class: work for a caller that no longer waits.
#[test]
fn a_group_is_not_counted_without_subscribers() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap().block_on(async {
        let mut world = World::new(abide_reducers::modules);
        world.close();
        world.live_budget =
            Some(Budget { average: 1_000, max: 2_000, commit: 1_000_000, ..Budget::UNLIMITED });
        let fills = Arc::new(HeldFills::default());
        let mut config = world.config(abide_reducers::modules());
        config.scheduler = Arc::clone(&fills) as Arc<dyn StepScheduler>;
        world.open_with(config);
        world.session("s").await;
        let args = json!({"session_id": "s", "role": "user", "content": "hello"});
        let call = BatchCall { reducer: "append_message".to_owned(), args };
        world.engine().batch(&Caller::new("local"), &vec![call; 1_000], None).await.unwrap();
        let mut client = Client::new(world.engine().connect(&Caller::local()));
        client.subscribe("q", "SELECT count(*) AS n FROM agent_state", &Map::new()).await.unwrap();
        world.append_message("s", "one more").await.unwrap();
        // Each call lets the other threads run.
        while fills.held.load(Ordering::SeqCst) == 0 {
            world.engine().live_templates().await.unwrap();
        }
        client.unsubscribe("q").unwrap();
        while !world.engine().live_templates().await.unwrap().is_empty() {}
        let (may_begin, changed) = &fills.may_begin;
        *may_begin.lock().unwrap() = true;
        changed.notify_all();
        while fills.answered.load(Ordering::SeqCst) == 0 {
            world.engine().live_templates().await.unwrap();
        }
        assert_eq!(fills.begun.load(Ordering::SeqCst), 0, "a fill without subscribers");
        let engine = world.engine().clone();
        tokio::task::spawn_blocking(move || engine.close()).await.unwrap();
    });
}

/// A tenant held all readers by fills of accumulators, which counted as the engine's own work. The class: work for a
/// caller that does not wait in its turn.
#[test]
fn a_fill_waits_for_the_readers_of_its_tenant() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap().block_on(async {
        let mut world = World::new(abide_reducers::modules);
        world.close();
        world.live_budget =
            Some(Budget { average: 1_000, max: 2_000, commit: 1_000_000, ..Budget::UNLIMITED });
        let fills = Arc::new(CountedFills::default());
        let mut config = world.config(abide_reducers::modules());
        config.scheduler = Arc::clone(&fills) as Arc<dyn StepScheduler>;
        world.open_with(config);
        let zeta = crate::visibility::caller("zeta", "app", &[], &[("tenant", "zeta")]);
        let create = json!({"agent": "x", "id": "z"});
        world.engine().call(&zeta, "create_session", &create, None).await.unwrap();
        let args = json!({"session_id": "tenant=zeta/z", "role": "user", "content": "hello"});
        let call = BatchCall { reducer: "append_message".to_owned(), args: args.clone() };
        for _ in 0..3 {
            world.engine().batch(&zeta, &vec![call.clone(); 1_000], None).await.unwrap();
        }
        let mut client = Client::new(world.engine().connect(&zeta));
        let count = |other: i64| {
            format!(
                "SELECT count(*) AS n FROM agent_state WHERE session_id = 'tenant=zeta/z' AND id <> {other}"
            )
        };
        let ask = async || {
            let ann = Caller::local();
            world.engine().query(&ann, "SELECT 1", &Map::new(), None).await.unwrap();
        };
        let begun = || fills.0.load(Ordering::Relaxed);
        client.subscribe("q", &count(-1), &Map::new()).await.unwrap();
        world.engine().call(&zeta, "append_message", &args, None).await.unwrap();
        while begun() == 0 {
            ask().await;
        }
        let before = begun();
        let long = "SELECT count(*) FROM json_each(:all) a, json_each(:all) b, json_each(:all) c";
        let all = json!({"all": format!("[{}0]", "0,".repeat(5_000))}).as_object().unwrap().clone();
        client.subscribe("q2", &count(-2), &Map::new()).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..8 {
            let engine = world.engine().clone();
            let zeta = zeta.clone();
            let all = all.clone();
            waiting.push(tokio::spawn(async move { engine.query(&zeta, long, &all, None).await }));
        }
        tokio::task::yield_now().await;
        for _ in 0..6 {
            ask().await;
            world.engine().call(&zeta, "append_message", &args, None).await.unwrap();
        }
        assert_eq!(begun(), before, "readers began fills beyond the turns of the tenant");
        assert!(waiting.iter().all(|query| !query.is_finished()));
        let engine = world.engine().clone();
        tokio::task::spawn_blocking(move || engine.close()).await.unwrap();
    });
}
