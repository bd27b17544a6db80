//! Real time. A test waits for an event, but load and fault tests depend on durations: how long a
//! client is slow, a network is down or a disk is full. All real sleeps are here.

use std::time::Duration;

/// Sleeps in a task.
pub(crate) async fn pause(time: Duration) {
    // tidy: load and faults take real time, see above.
    tokio::time::sleep(time).await;
}

/// Sleeps in a thread.
pub(crate) fn pause_thread(time: Duration) {
    // tidy: load and faults take real time, see above.
    std::thread::sleep(time);
}
