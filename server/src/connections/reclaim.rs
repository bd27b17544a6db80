//! Returns memory to the system after clients with large buffers have left.
//!
//! The allocator keeps freed memory. Buffered bytes ([`Buffers`]) indicate how much that is: they are most of the
//! memory that a server holds temporarily.

use std::convert::Infallible;

use abide_engine::buffers::Buffers;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::limits;

/// Returns memory each time the buffered bytes have dropped far below their peak.
pub(crate) async fn run(buffers: &Buffers) -> Infallible {
    loop {
        buffers.fallen().await;
        sleep(limits::RECLAIM_DELAY).await;
        // First, so that a drop during the release triggers the next one.
        buffers.restart_peak();
        if spawn_blocking(abide_heap::release).await.is_err() {
            tracing::warn!("unused memory could not be returned to the system");
        }
    }
}
