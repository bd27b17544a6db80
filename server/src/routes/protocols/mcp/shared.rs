//! What all requests share: sessions, and the key that signs states.

use super::sessions::McpSessions;
use super::state_seal::StateSeal;

/// What all requests share.
#[derive(Debug, Default)]
pub(crate) struct McpState {
    pub(super) sessions: McpSessions,
    pub(super) seal: StateSeal,
}
