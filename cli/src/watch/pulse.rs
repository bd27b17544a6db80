//! Whether the server is there, as a person who watches wants to know it.

use std::time::Duration;

use abide_client::Abide;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// How often the server is asked, and how long it may take.
const BEAT: Duration = Duration::from_millis(1_000);

/// Asks the server every second whether it is there.
#[derive(Debug)]
pub(super) struct Pulse {
    there: watch::Receiver<bool>,
    asking: JoinHandle<()>,
}

impl Pulse {
    /// Of a server that just answered.
    pub(super) fn of(abide: &Abide) -> Pulse {
        let (tell, there) = watch::channel(true);
        let abide = abide.clone();
        let asking = tokio::spawn(async move {
            let mut beats = interval(BEAT);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                beats.tick().await;
                let answers = abide.sql("SELECT 1").deadline(BEAT).rows().await.is_ok();
                tell.send_if_modified(|there| std::mem::replace(there, answers) != answers);
            }
        });
        Pulse { there, asking }
    }

    /// Whether it is there.
    pub(super) fn is_there(&self) -> bool {
        *self.there.borrow()
    }

    /// Waits until it went or came.
    pub(super) async fn turned(&mut self) {
        if self.there.changed().await.is_err() {
            // Nobody asks any more, so nothing will turn.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.asking.abort();
    }
}
