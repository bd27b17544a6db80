//! What was asked and what was told: what the checkers hold a file to.

use crate::rig::{Ask, Told};

/// Of one run, in order.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What was answered with a yes.
    pub told: Vec<(Ask, Told)>,
    /// What was asked and not answered, or with an error after which nobody knows.
    pub open: Vec<Ask>,
    /// What was answered with the word that nothing was written.
    pub unwritten: Vec<Ask>,
}
