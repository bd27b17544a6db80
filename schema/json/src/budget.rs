//! The steps that are left for an evaluation.

use crate::mismatch::BudgetExhausted;

/// Bytes of text processed in a step.
pub(crate) const BYTES_PER_STEP: usize = 16;

/// The steps that are left.
pub(crate) struct Budget {
    pub(crate) left: u64,
}

impl Budget {
    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), BudgetExhausted> {
        self.left = self.left.checked_sub(steps as u64).ok_or(BudgetExhausted)?;
        Ok(())
    }
}
