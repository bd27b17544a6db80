//! Connection state, for display.

use tokio::sync::watch;

/// The connection state, from [`Abide::link`](crate::Abide::link). It keeps no connection open.
#[derive(Clone, Debug)]
pub struct Link(pub(crate) watch::Receiver<bool>);

impl Link {
    /// Returns `true` if the client is connected.
    #[must_use]
    pub fn connected(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the connection was lost or made since the last wait, or since the link was created.
    /// Never returns after the client is dropped.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
