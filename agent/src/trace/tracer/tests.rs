//! Regression: a run that had waited for an approval was queued when it began to wait and when it had ended. If the task that sends
//! traces was late, both entries found the run ended, and its spans were sent twice.

use std::sync::Arc;
use std::sync::mpsc::channel;

use abide_client::Abide;
use abide_client::arguments::{ClaimRun, CreateSession, RegisterAgent, StartRun};
use serde_json::Map;

use super::Tracer;
use crate::run::lease::RunLease;

#[tokio::test]
async fn the_trace_of_a_run_is_sent_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let abide = Abide::open(folder.path().join("abide.db")).expect("the file opens");
    abide.call(RegisterAgent::new("clerk", Map::new())).await.expect("the agent is valid");
    abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    abide.call(StartRun::new("s1").id("r1")).await.expect("it starts");
    let claimed = abide.call(ClaimRun::new("r1", "me", 60_000)).await.expect("it is claimed");
    let lease = RunLease::from_run(&claimed.value).expect("it is claimed");
    abide.call(lease.finish(Map::new())).await.expect("it ends");
    let (sender, sent) = channel();
    let tracer = Tracer::new(false)
        .sink(move |spans| sender.send(spans.len()).map_err(|why| why.to_string()));
    // The task finds the run without a trace, and twice in its queue.
    let (queue, task) = Arc::new(tracer).start(abide.clone(), 0);
    queue.add("r1");
    queue.add("r1");
    drop(queue);
    task.await.expect("no panic");
    assert_eq!(sent.try_iter().collect::<Vec<_>>(), [1]);
    abide.close().await;
}
