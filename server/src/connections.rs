//! Connections: their number, their lifetime, and their resources.

pub(crate) mod descriptors;
pub(crate) mod lifecycle;
pub(crate) mod pending;
pub(crate) mod read_limiter;
pub(crate) mod reclaim;
pub(crate) mod write_timeout;
