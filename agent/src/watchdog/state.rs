//! The driver's knowledge about the health of its run.

use abide_client::rows::{HealthAction, RunHealth};

impl HealthState {
    /// Notes measurements that have been recorded.
    pub(crate) fn note(&mut self, health: RunHealth) {
        self.before = self.last.replace(health);
    }

    /// Notes that a compaction after the last answer has begun and is recorded as the action.
    pub(crate) fn note_compaction(&mut self) {
        if let Some(last) = &mut self.last {
            last.action = HealthAction::Compact;
            self.compacted = Some(last.iteration);
        }
        self.wants_compaction = false;
    }
}

/// The measurements of a run so far.
#[derive(Debug, Default)]
pub(crate) struct HealthState {
    /// Whether the rows have been read.
    pub(crate) is_read: bool,
    /// The newest row.
    pub(crate) last: Option<RunHealth>,
    /// The row of the answer before that.
    pub(crate) before: Option<RunHealth>,
    /// The answer after which the context was last compacted by the watchdog.
    pub(crate) compacted: Option<i64>,
    /// Whether the watchdog wants a compaction before the model is asked again.
    pub(crate) wants_compaction: bool,
}
