//! The requests and responses of a run, for the checkers.

use crate::rig::{Ask, Told};

/// In order.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Acknowledged requests.
    pub told: Vec<(Ask, Told)>,
    /// Requests without a response, or with an error that leaves the result unknown.
    pub open: Vec<Ask>,
    /// Requests with the response that nothing was written.
    pub unwritten: Vec<Ask>,
}
