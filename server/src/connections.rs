//! Connections: their number, their lifetime, and their resources.

pub(crate) mod authenticated;
pub(crate) mod descriptors;
pub(crate) mod lifecycle;
pub(crate) mod read_limiter;
pub(crate) mod reclaim;
pub(crate) mod unauthenticated;
pub(crate) mod write_timeout;
