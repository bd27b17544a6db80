//! The status of an MCP server.

use serde::Serialize;

/// The status of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum McpStatus {
    /// It is connected.
    Up {
        /// The protocol version.
        protocol: String,
        /// The server's own name and version.
        server: String,
    },
    /// It is disconnected. The next call starts it.
    Down {
        /// The last error.
        why: String,
    },
}
