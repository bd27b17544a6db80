//! The memory that subscriptions hold: the callers of one tenant have a share of it.

use abide_schema::share::{CommonScopeKeys, NoRoom, ShareKey, Shares};
use abide_schema::{Code, Refusal, limits};

use crate::subscriptions::buffers::Buffers;

/// Bytes of the attached subscriptions.
pub(crate) struct HeldSubscriptions {
    bytes: Shares,
    common: CommonScopeKeys,
    /// The largest total since memory was returned last.
    peak: usize,
    /// Notified of the memory that subscriptions have freed.
    buffers: Buffers,
}

impl HeldSubscriptions {
    pub(crate) fn new(buffers: Buffers) -> HeldSubscriptions {
        let bytes = Shares::new(limits::SUBSCRIPTIONS_BYTES);
        let common = CommonScopeKeys::default();
        HeldSubscriptions { bytes, common, peak: 0, buffers }
    }

    /// Whether there is room for a subscription.
    ///
    /// # Errors
    /// `limit_exceeded` if the caller's tenant has used its share, `overloaded` if others have used the rest.
    pub(crate) fn check(&mut self, by: &ShareKey, bytes: usize) -> Result<(), Refusal> {
        self.common.include(by);
        let (code, detail, hint) = match self.bytes.check(by, bytes, &self.common) {
            Ok(()) => return Ok(()),
            Err(NoRoom::Own) => (
                Code::LimitExceeded,
                "your live queries hold too much memory",
                "end some of them, or use shorter parameters",
            ),
            Err(NoRoom::Others) => {
                (Code::Overloaded, "live queries hold too much memory", "try again in a moment")
            }
        };
        Err(Refusal::new(code, detail).hint(hint))
    }

    pub(crate) fn add(&mut self, by: &ShareKey, bytes: usize) {
        self.bytes.add(by, bytes);
        self.peak = self.peak.max(self.bytes.total());
    }

    pub(crate) fn remove(&mut self, by: &ShareKey, bytes: usize) {
        self.bytes.remove(by, bytes);
        let left = self.bytes.total();
        let peak = self.peak;
        if left <= peak / 2 && peak - left >= limits::RECLAIMED_BYTES {
            self.buffers.freed((peak - left) as u64);
            self.peak = left;
        }
    }
}
