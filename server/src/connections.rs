//! Connections: their number, their lifetime, and their resources.
//!
//! In reading order: `descriptors` how many the process can have · `unauthenticated` before a caller is known · `authenticated`
//! the share of each tenant · `lifecycle` the phases of the server · `write_timeout` peers that do not read; it also counts
//! what arrives · `parse_turns` turns of large messages.

pub(crate) mod authenticated;
pub(crate) mod descriptors;
pub(crate) mod lifecycle;
pub(crate) mod parse_turns;
pub(crate) mod unauthenticated;
pub(crate) mod write_timeout;
