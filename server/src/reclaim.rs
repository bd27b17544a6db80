//! Gives memory back to the system after clients have left with what waited for them.
//!
//! The allocator keeps what is freed. How much that is follows from the bytes that waited for clients
//! ([`Buffers`]): they are most of what a server holds for a time and then no more.

use std::convert::Infallible;

use abide_engine::buffers::Buffers;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::limits;

/// Gives memory back each time that far fewer bytes wait than before.
pub(crate) async fn run(buffers: &Buffers) -> Infallible {
    loop {
        buffers.fallen().await;
        sleep(limits::RECLAIM_AFTER).await;
        // First, so that a fall during the release leads to the next one.
        buffers.restart_peak();
        if spawn_blocking(abide_heap::release).await.is_err() {
            tracing::warn!("unused memory was not given back");
        }
    }
}
