//! All queues are bounded: those of the threads and those of the clients.

use abide_engine::Backlog;
use abide_schema::limits;

use super::Finding;

const NAME: &str = "nothing unbounded";

/// Frames in flight to a client that does not read, before the server stops to fetch more.
pub const FRAMES: usize = 8;

/// Checks the queues against their limits.
///
/// # Errors
/// The first exceeded limit.
pub fn check(waiting: Backlog, backlog: usize, frames: usize) -> Result<(), Finding> {
    let bounds = [
        ("commits waiting for the sync", waiting.commits, limits::UNSYNCED_COMMITS + 1),
        // Between two publications with deltas there may be one without.
        (
            "commits waiting for the publisher",
            waiting.publications,
            2 * (limits::UNSYNCED_COMMITS + 1),
        ),
        ("waiting queries", waiting.reads, 2 * limits::READER_QUEUE),
        ("bytes of waiting calls", backlog, 2 * limits::WRITER_QUEUE_BYTES + limits::CALL_BYTES),
        // Responses to the client's own calls come in addition.
        ("frames waiting for a client", frames, FRAMES + 64),
    ];
    match bounds.into_iter().find(|(_, found, bound)| found > bound) {
        Some((what, found, bound)) => {
            Err(Finding::new(NAME, format!("{found} {what}, limit {bound}")))
        }
        None => Ok(()),
    }
}
