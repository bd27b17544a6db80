//! Time that really passes. A test waits for an event; a siege is made of time: how long somebody dawdles, a network is
//! gone, a disk is full. All of it passes here.

use std::time::Duration;

/// Lets it pass for a task.
pub(crate) async fn pause(time: Duration) {
    // tidy: what is measured or done to the server takes real time, see above.
    tokio::time::sleep(time).await;
}

/// Lets it pass for a thread.
pub(crate) fn pause_thread(time: Duration) {
    // tidy: likewise.
    std::thread::sleep(time);
}
