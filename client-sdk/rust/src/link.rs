//! Whether the server is there, for those who want to show it.

use tokio::sync::watch;

/// The state of the connection, made by [`Abide::link`](crate::Abide::link). It keeps nothing open.
#[derive(Clone, Debug)]
pub struct Link(pub(crate) watch::Receiver<bool>);

impl Link {
    /// Whether there is a connection.
    #[must_use]
    pub fn connected(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the connection was lost or made since this was last waited on, or since the link was
    /// made. For ever, once nobody holds the client any more.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
