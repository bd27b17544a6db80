//! Servers that restart, and servers that require a token.

use std::time::Duration;

use abide_client::arguments::{AppendMessage, CreateSession};
use abide_client::{Abide, Code, Error, Seq};
use abide_server::AccessConfig;
use serde_json::json;

use crate::world::{Server, World, connect};

/// Stores samples one after the other until it is stopped; returns the count.
async fn keep_going(abide: &Abide, stop: &std::sync::atomic::AtomicBool) -> i64 {
    let mut kept = 0;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let name = kept.to_string();
        abide
            .call_by_name("keep", json!({"name": name}))
            .await
            .expect("it is kept, sooner or later");
        kept += 1;
    }
    kept
}

#[tokio::test]
async fn clients_continue_after_a_server_restart() {
    let world = World::new();
    let mut server = Some(world.serve(None, AccessConfig::loopback()).await);
    let address = server.as_ref().expect("it runs").address;
    let abide = connect(server.as_ref().expect("it runs")).await;
    let mut all = abide
        .subscribe("SELECT id, name FROM samples ORDER BY id")
        .checksum()
        .await
        .expect("begun");
    let mut even =
        abide.subscribe("SELECT id FROM samples WHERE id % 2 = 0").checksum().await.expect("begun");
    let stop = std::sync::atomic::AtomicBool::new(false);

    let restarts = async {
        for round in 1..=3_u64 {
            while abide.reconnects() < round - 1 || all.rows().len() < 20 * round as usize {
                let update = all.try_next().await.expect("it is live").expect("an update");
                assert!(!update.reset || round == 1, "a resume is a difference");
            }
            server.take().map(Server::stop).expect("it runs").await;
            server = Some(world.serve(Some(address), AccessConfig::loopback()).await);
        }
        while abide.reconnects() < 3 {
            all.try_next().await.expect("an update");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (kept, ()) = tokio::join!(keep_going(&abide, &stop), restarts);

    // The effect of the last call arrives before its reply or soon after.
    while (all.rows().len() as i64) < kept {
        all.try_next().await.expect("an update");
    }
    while (even.rows().len() as i64) < kept / 2 {
        even.try_next().await.expect("an update");
    }
    let rows: Vec<(i64, String)> = all.typed_rows().expect("rows");
    let expected: Vec<(i64, String)> = (1..=kept).map(|id| (id, (id - 1).to_string())).collect();
    assert_eq!(rows, expected, "each once, in order");
    let truth: Vec<(i64, String)> =
        abide.sql("SELECT id, name FROM samples ORDER BY id").fetch().await.expect("read");
    assert_eq!(truth, expected, "and in the file too");
    assert_eq!(abide.mismatches(), 0, "every resumed result matches");
    server.take().map(Server::stop).expect("it runs").await;
}

/// Many subscriptions of one connection resume at once while others write: each must end with the
/// rows in the file. (See the exception in `remote/subscriptions.rs`.)
#[tokio::test]
async fn concurrent_resumes_lose_no_updates() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let address = server.address;
    let abide = connect(&server).await;
    let mut subs = Vec::new();
    for n in 0..30 {
        let sql = "SELECT id FROM samples WHERE id % :n = 0";
        let mut sub = abide.subscribe(sql).checksum().param("n", n + 1).await.expect("it begins");
        sub.try_next().await.expect("an update");
        subs.push(sub);
    }
    server.stop().await;
    let server = world.serve(Some(address), AccessConfig::loopback()).await;
    let writer = connect(&server).await;
    for n in 0..300 {
        writer.call_by_name("keep", json!({"name": n.to_string()})).await.expect("it is kept");
    }
    for (n, sub) in subs.iter_mut().enumerate() {
        while sub.rows().len() < 300 / (n + 1) {
            sub.try_next().await.expect("an update");
        }
    }
    assert_eq!(abide.mismatches(), 0, "every resumed result matches");
    server.stop().await;
}

#[tokio::test]
async fn access_requires_a_token() {
    let world = World::new();
    let access = AccessConfig::bearer("open-sesame").expect("a token");
    let server = world.serve(None, access).await;
    let url = format!("http://{}", server.address);
    let stranger = Abide::connect(&url).await.expect_err("no token");
    assert_eq!(stranger.code(), Some(Code::Unauthenticated));
    assert!(stranger.hint().is_some());
    let wrong = Abide::builder(&url).token("sesame").connect().await.expect_err("a wrong token");
    assert_eq!(wrong.code(), Some(Code::Unauthenticated));
    let abide = Abide::builder(&url).token("open-sesame").connect().await.expect("it connects");
    let session = abide.call(CreateSession::new("a")).await.expect("it is made");
    abide.call(AppendMessage::new(&session.value.id, "user", "hi")).await.expect("it is appended");
    server.stop().await;
}

#[tokio::test]
async fn a_missing_server_is_reported_immediately() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let url = format!("http://{}", server.address);
    server.stop().await;
    let error = Abide::connect(&url).await.expect_err("no server listens");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(error.hint(), Some("start the server with `abide serve`, or check the address"));
}

#[tokio::test]
async fn a_slow_consumer_gets_one_coalesced_update() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    for abide in [connect(&server).await, Abide::embed(server.engine.clone())] {
        let mut slow =
            abide.subscribe("SELECT id, name FROM samples").checksum().await.expect("it begins");
        slow.try_next().await.expect("an update");
        let before = slow.rows().len();
        let mut last = Seq::ZERO;
        for _ in 0..40 {
            let name = "x".repeat(100_000);
            last = abide.call_by_name("keep", json!({"name": name})).await.expect("it is kept").seq;
        }
        let mut updates = 0;
        while slow.seq() < last {
            slow.try_next().await.expect("an update");
            updates += 1;
        }
        assert_eq!(slow.rows().len(), before + 40);
        assert!(updates < 40, "{updates} updates: nothing was coalesced");
        abide.call_by_name("keep", json!({"name": "and on"})).await.expect("it is kept");
        slow.try_next().await.expect("an update");
        assert_eq!(slow.rows().len(), before + 41);
        assert_eq!(abide.mismatches(), 0, "coalesced updates match");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_deadline_can_be_short() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let abide = Abide::builder(&format!("http://{}", server.address))
        .deadline(Duration::from_millis(200))
        .connect()
        .await
        .expect("it connects");
    server.stop().await;
    let late =
        abide.call_by_name("keep", json!({"name": "a"})).await.expect_err("no server answers");
    assert!(matches!(late, Error::TimedOut { request_id: Some(_), .. }), "{late}");
    let late =
        abide.subscribe("SELECT * FROM samples").checksum().await.expect_err("no server answers");
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
}

#[tokio::test]
async fn the_connection_state_is_reported() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let address = server.address;
    let abide = connect(&server).await;
    let mut link = abide.link();
    assert!(abide.connected() && link.connected());
    server.stop().await;
    link.changed().await;
    assert!(!link.connected() && !abide.connected());
    let server = world.serve(Some(address), AccessConfig::loopback()).await;
    link.changed().await;
    assert!(abide.connected());
    abide.close().await;
    link.changed().await;
    assert!(!abide.connected());
    server.stop().await;

    let embedded = world.embedded();
    assert!(embedded.connected());
    embedded.close().await;
    assert!(!embedded.connected());
}
