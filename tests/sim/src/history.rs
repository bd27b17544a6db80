//! The requests and responses of a run, for the checkers.

use crate::rig::{SimReply, SimRequest};

/// In order.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Acknowledged requests.
    pub acknowledged: Vec<(SimRequest, SimReply)>,
    /// Requests without a response, or with an error that leaves the result unknown.
    pub open: Vec<SimRequest>,
    /// Requests with the response that nothing was written.
    pub unwritten: Vec<SimRequest>,
}
