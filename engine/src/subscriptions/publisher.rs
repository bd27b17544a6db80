//! The thread that passes the deltas of durable commits on to the outboxes of connections ([`publish`]). Which
//! outboxes get a delta is decided in `hub`.

use std::time::{Duration, Instant};

use abide_schema::Seq;

use crate::commit::queue::Queue;
use crate::fault_points::FaultPoint;
use crate::metrics::Metrics;
use crate::ports::{EngineThread, StepScheduler};
use crate::subscriptions::hub::Hub;
use crate::subscriptions::shared_delta::Deltas;

/// A durable commit for the publisher, or several without deltas.
#[derive(Debug)]
pub(crate) struct Publication {
    /// The last seq of the log after it.
    pub(crate) to: Seq,
    pub(crate) deltas: Deltas,
    /// When its sync began.
    pub(crate) begun: Instant,
}

/// The cost of waking a connection and writing to its socket, independent of the size. Measured
/// (`abide-bench -- live`): five to ten microseconds, most of it in the kernel.
const DELIVERY: Duration = Duration::from_micros(10);
/// Shorter pauses are skipped.
const PAUSE_LEAST: Duration = Duration::from_micros(100);
/// The longest time that a commit waits for the delivery of the previous one.
const PAUSE_MOST: Duration = Duration::from_millis(10);

/// The thread that fills the outboxes. Separate from the sync thread, so that ten thousand subscribers do
/// not delay the next acknowledgement.
///
/// If commits come faster than deliveries to all subscribers, it reserves half of the CPU time for
/// deliveries and lets commits accumulate meanwhile: their frames then leave in one write per
/// connection. Otherwise deliveries would slow down callers, and thereby the commits themselves. A
/// commit without a close predecessor never waits.
pub(crate) fn publish(
    queue: &Queue<Publication>,
    hub: &Hub,
    metrics: &Metrics,
    scheduler: &dyn StepScheduler,
) {
    let mut commits = Vec::new();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    loop {
        scheduler.wait(EngineThread::Publish);
        queue.take(usize::MAX, &mut commits);
        if commits.is_empty() {
            return;
        }
        scheduler.at_fault_point(FaultPoint::Publish);
        let mut widest = 0;
        for Publication { to, deltas, begun } in commits.drain(..) {
            let connections = hub.publish_in(to, &deltas, metrics, &|| {
                scheduler.at_fault_point(FaultPoint::Frames);
            });
            widest = widest.max(connections);
            if !deltas.is_empty() {
                metrics.delta_seconds.add(begun.elapsed());
            }
        }
        let pause = pause(widest, processors);
        if pause >= PAUSE_LEAST {
            std::thread::sleep(pause);
        }
    }
}

/// Returns twice the time of the deliveries.
fn pause(connections: usize, processors: usize) -> Duration {
    let connections = u32::try_from(connections).unwrap_or(u32::MAX);
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    (DELIVERY.saturating_mul(2).saturating_mul(connections) / processors).min(PAUSE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_depend_on_the_number_of_deliveries() {
        for (connections, processors, expected) in [
            (0, 2, Duration::ZERO),
            (1, 2, DELIVERY),
            (100, 2, 100 * DELIVERY),
            (100, 8, 25 * DELIVERY),
            (10_000, 2, PAUSE_MOST),
            (usize::MAX, 1, PAUSE_MOST),
        ] {
            let pause_time = pause(connections, processors);
            assert_eq!(pause_time, expected, "{connections} connections, {processors} processors");
        }
    }
}
