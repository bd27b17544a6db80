//! Timers through SIGKILL: each fires once, whenever the server is killed and however long it is
//! down.

use abide_client::arguments::{CreateSession, SetTimer};
use tokio::time::timeout;

use crate::program::{PATIENCE, run};
use crate::server::Server;

const TIMERS: i64 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_timer_fires_once_through_many_kills() {
    let mut server = Server::start();
    let abide = server.client().await;
    abide.call(CreateSession::new("support").id("s1")).await.unwrap();
    for n in 0..TIMERS {
        let timer = SetTimer::new().in_ms(n * 10).session_id("s1").message(format!("timer {n}"));
        abide.call(timer).await.unwrap();
    }
    let output = "SELECT count(*) FROM agent_state WHERE kind = 'timer'";
    let mut live = abide.subscribe(output).await.unwrap();
    let mut kills = 0;
    let mut seen = 0;
    while seen < TIMERS {
        timeout(PATIENCE, live.try_next()).await.expect("timers stopped firing").unwrap();
        seen = live.typed_rows::<i64>().unwrap()[0];
        if kills < 12 && seen > kills * (TIMERS / 12) {
            server.kill();
            server.start_again();
            kills += 1;
        }
    }
    assert!(kills > 5, "{kills} kills");
    let fired = "SELECT count(*), count(DISTINCT json_extract(arguments, '$.id')) FROM events
        WHERE reducer = 'fire_timer' AND caller = 'system'";
    let fired: Vec<(i64, i64)> = abide.sql(fired).fetch().await.unwrap();
    assert_eq!(fired, [(TIMERS, TIMERS)]);
    let early = "SELECT count(*) FROM timers WHERE status <> 'fired' OR fired_at < due_at";
    assert_eq!(abide.sql(early).fetch::<u64>().await.unwrap(), [0]);
    abide.close().await;
    server.stop();
    let replayed = run(["verify", "--replay", "--json", server.db().to_str().unwrap()]).json();
    assert_eq!(replayed["verified"], true, "{replayed}");
}
