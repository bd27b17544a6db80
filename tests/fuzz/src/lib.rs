//! Fuzz targets for untrusted input: one module for each kind of input, with one function that
//! takes bytes and panics on a violation.
//!
//! Changes when another kind of untrusted input exists. The functions are independent of the
//! fuzzer: `cargo xtask fuzz` runs them guided by coverage, and `tests/kept.rs` with every stored
//! input.
//!
//! `sql` texts of queries · `message` messages of `abide.v1` · `http` raw bytes, including
//! WebSocket frames · `protocol` messages of A2A, MCP, AG-UI, the AI SDK and Open Responses · `event` decoders of
//! files and frames · `file` modified databases · `arguments` arguments of calls · `engine` an engine to run them on.

pub mod arguments;
mod engine;
pub mod event;
pub mod file;
pub mod http;
pub mod message;
pub mod protocol;
pub mod sql;

/// A kind of input and its test.
#[derive(Debug)]
pub struct Target {
    /// The name of the target and of its input folder.
    pub name: &'static str,
    /// Runs an input; panics on a violation.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 7] = [
    Target { name: "sql", run: sql::run },
    Target { name: "message", run: message::run },
    Target { name: "http", run: http::run },
    Target { name: "protocol", run: protocol::run },
    Target { name: "event", run: event::run },
    Target { name: "file", run: file::run },
    Target { name: "arguments", run: arguments::run },
];
