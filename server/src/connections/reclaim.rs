//! Returns memory to the system after clients with large buffers, large queries or many connections have ended.
//!
//! The allocator keeps freed memory. Buffered bytes, queries ([`Buffers`]) and connections ([`Lifecycle`]) indicate how much
//! that is: they are most of the memory that a server holds temporarily.

use std::convert::Infallible;

use abide_engine::buffers::Buffers;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::connections::lifecycle::Lifecycle;
use crate::limits;

/// Returns memory each time much of it was freed.
pub(crate) async fn run(buffers: &Buffers, lifecycle: &Lifecycle) -> Infallible {
    loop {
        tokio::select! {
            () = buffers.fallen() => {}
            () = lifecycle.fallen() => {}
        }
        sleep(limits::RECLAIM_DELAY).await;
        // First, so that a drop during the release triggers the next one.
        buffers.restart_peak();
        lifecycle.restart_peak();
        if spawn_blocking(abide_heap::release).await.is_err() {
            tracing::warn!("unused memory could not be returned to the system");
        }
    }
}
