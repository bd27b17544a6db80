//! Timers through SIGKILL: each fires once, whenever the server is killed and however long it is
//! down.

use std::time::Duration;

use abide_client::{NewSession, NewTimer};
use tokio::time::timeout;

use crate::program::{PATIENCE, run};
use crate::server::Server;

const TIMERS: u64 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_timer_fires_once_through_many_kills() {
    let mut server = Server::start();
    let abide = server.client().await;
    let session = NewSession { id: Some("s1".to_owned()), ..NewSession::of("support") };
    abide.create_session(session).await.unwrap();
    for n in 0..TIMERS {
        let timer = NewTimer::after(Duration::from_millis(n * 10));
        let (session_id, message) = (Some("s1".to_owned()), Some(format!("timer {n}")));
        abide.set_timer(NewTimer { session_id, message, ..timer }).await.unwrap();
    }
    let told = "SELECT count(*) FROM agent_state WHERE kind = 'timer'";
    let mut live = abide.subscribe(told).await.unwrap();
    let mut kills = 0;
    let mut seen = 0;
    while seen < TIMERS {
        timeout(PATIENCE, live.next()).await.expect("timers stopped firing").unwrap();
        seen = live.typed_rows::<u64>().unwrap()[0];
        if kills < 12 && seen > kills * (TIMERS / 12) {
            server.kill();
            server.start_again();
            kills += 1;
        }
    }
    assert!(kills > 5, "{kills} kills");
    let fired = "SELECT count(*), count(DISTINCT json_extract(arguments, '$.id')) FROM events
        WHERE reducer = 'fire_timer' AND caller = 'system'";
    let fired: Vec<(u64, u64)> = abide.sql(fired).fetch().await.unwrap();
    assert_eq!(fired, [(TIMERS, TIMERS)]);
    let early = "SELECT count(*) FROM timers WHERE status <> 'fired' OR fired_at < due_at";
    assert_eq!(abide.sql(early).fetch::<u64>().await.unwrap(), [0]);
    abide.close().await;
    server.stop();
    let replayed = run(["verify", "--replay", "--json", server.db().to_str().unwrap()]).json();
    assert_eq!(replayed["verified"], true, "{replayed}");
}
