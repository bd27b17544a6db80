//! Abide as one crate: the engine, the Rust SDK, the vocabulary of modules, and the command line.
//!
//! It changes when the command line changes. The rest is re-exported: a package with its own tables and reducers depends
//! on this crate alone.
//!
//! `examples/own-module` is such a package. Its module:
//!
//! ```no_run
#![doc = include_str!("../../examples/own-module/src/notes.rs")]
//! # fn main() {}
//! ```
//!
//! The body of its `main` is `abide::main(vec![notes::module()])`: the complete command line, with the table `notes` and
//! the reducer `add_note`.
//!
//! A program that embeds the engine, or that connects to a server, calls the same reducers:
//!
//! ```
//! use abide::arguments::{AppendMessage, CreateSession};
//! use abide::{Abide, Config};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("agents.db");
//! let abide = Abide::open_with(path, Config::default())?; // or Abide::connect("http://127.0.0.1:7341").await?
//! let session = abide.call(CreateSession::new("support").title("A lost parcel")).await?.into_inner();
//! abide.call(AppendMessage::new(&session.id, "user", "Where is it?")).await?;
//! abide.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: [`prelude`] the names that a module needs · [`Program`] the command line · [`Abide`] the SDK ·
//! [`arguments`] the calls of the built-in reducers · [`agents`] the agent runtime · [`schema`] · [`reducers`] · [`engine`] ·
//! [`server`].

#![warn(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all output is printable: see `output`"
)]

// The example's module names this crate, as a package of a user does.
#[cfg(test)]
extern crate self as abide;

mod agent;
mod backup;
mod call;
mod cells;
mod command_line;
mod completions;
mod config;
mod configuration;
mod connect;
mod db;
#[cfg(feature = "demo")]
mod demo;
mod dev;
mod environment;
mod events;
mod explain;
mod failure;
mod global_options;
mod grants;
mod health;
mod http_client;
mod identity;
mod init;
mod lock_holder;
mod log_pages;
mod log_progress;
mod logging;
mod mcp;
mod open;
mod output;
mod own_program;
mod pairs;
mod printable;
mod prompt;
mod reconnect;
mod replay;
mod role;
mod serve;
mod signals;
mod sql;
mod statement_hints;
mod stderr;
mod table;
mod terminal;
mod text_file;
mod token;
mod token_source;
#[cfg(test)]
mod typed_calls;
mod units;
mod upgrade;
mod usage;
mod user_info;
mod verify;
mod watch;

pub use abide_agent as agents;
pub use abide_client::*;
pub use abide_engine as engine;
pub use abide_protocols as protocols;
pub use abide_reducers as reducers;
pub use abide_schema as schema;
pub use abide_schema::{Abort, Context, Module};
pub use abide_schema::{
    FacadeTextEnum as TextEnum, facade_reducer as reducer, facade_table as table,
};
pub use abide_server as server;

pub use command_line::{Program, main};

/// The allocator of the program `abide`, for the `#[global_allocator]` of other programs. Values are allocated on one
/// thread and freed on another, which it does better than the allocators of C libraries.
pub use mimalloc::MiMalloc as Allocator;

/// The names that a module needs: `use abide::prelude::*;`.
pub mod prelude {
    pub use abide_client::Abide;
    pub use abide_client::rows::Session;
    pub use abide_schema::reducer::{Nullable, ReducerResult, RowVisibility};
    pub use abide_schema::{
        Abort, Code, Context, FacadeTextEnum as TextEnum, Json, Micros, Module, Refusal, Seq,
        facade_reducer as reducer, facade_table as table,
    };
}
