//! What anybody may send or hand us, as fuzzers make it up: one module for each kind of input, with one function
//! that takes bytes and panics where something is wrong.
//!
//! Changes when another kind of input is taken from strangers. The functions know nothing of the fuzzer that
//! drives them: `cargo xtask fuzz` does, guided by coverage, and `tests/kept.rs` with every input that is kept.
//!
//! `sql` texts of queries · `message` of `abide.v1` · `http` bytes at the door, WebSocket frames among them ·
//! `event` what is decoded from a file or a frame · `file` databases that were tampered with · `arguments` of calls ·
//! `bench` an engine to try them on.

pub mod arguments;
mod bench;
pub mod event;
pub mod file;
pub mod http;
pub mod message;
pub mod sql;

/// A kind of input, and what is done with it.
#[derive(Debug)]
pub struct Target {
    /// Its name, and that of the folder with its inputs.
    pub name: &'static str,
    /// Takes an input; panics where something is wrong.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target { name: "sql", run: sql::run },
    Target { name: "message", run: message::run },
    Target { name: "http", run: http::run },
    Target { name: "event", run: event::run },
    Target { name: "file", run: file::run },
    Target { name: "arguments", run: arguments::run },
];
