//! Nothing grows without bound: what waits for a thread, and what waits for a client.

use abide_engine::Waiting;
use abide_schema::limits;

use super::Finding;

const NAME: &str = "nothing unbounded";

/// Frames that the door hands to a client that does not read: it stops asking for more.
pub const FRAMES: usize = 8;

/// Holds the queues to their bounds.
///
/// # Errors
/// The first that is beyond.
pub fn check(waiting: Waiting, backlog: usize, frames: usize) -> Result<(), Finding> {
    let bounds = [
        ("commits that wait for the sync", waiting.commits, limits::UNSYNCED_COMMITS + 1),
        // Between two with deltas there may be one without.
        (
            "commits that wait for the publisher",
            waiting.publications,
            2 * (limits::UNSYNCED_COMMITS + 1),
        ),
        ("queries that wait", waiting.reads, 2 * limits::READER_QUEUE),
        ("bytes of calls that wait", backlog, 2 * limits::WRITER_QUEUE_BYTES + limits::CALL_BYTES),
        // Answers to calls of its own come on top.
        ("frames that wait for a client", frames, FRAMES + 64),
    ];
    match bounds.into_iter().find(|(_, found, bound)| found > bound) {
        Some((what, found, bound)) => {
            Err(Finding::new(NAME, format!("{found} {what}, at most {bound}")))
        }
        None => Ok(()),
    }
}
