//! Abide as one crate: the engine, the Rust SDK, the vocabulary of modules, and the command line.
//!
//! It changes when the command line changes. The rest is re-exported: a package with its own tables and reducers depends
//! on this crate alone.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! mod notes {
//!     use abide::prelude::*;
//!
//!     /// A note on a session.
//!     #[table(name = "notes", index(session_id))]
//!     pub struct Note {
//!         /// Its number. A row that is inserted with 0 gets the next one.
//!         #[column(key)]
//!         pub id: i64,
//!         /// The session that it belongs to.
//!         #[column(references = "sessions(id)")]
//!         pub session_id: String,
//!         /// The text.
//!         pub body: String,
//!     }
//!
//!     /// Adds a note to a session.
//!     #[reducer]
//!     pub fn add_note(
//!         ctx: &mut Context<'_>,
//!         #[id(Session)] session_id: String,
//!         body: String,
//!     ) -> Result<Note, Abort> {
//!         ctx.insert(Note { id: 0, session_id, body })
//!     }
//!
//!     /// The module.
//!     pub fn module() -> Module {
//!         Module::new("notes").table::<Note>().reducer(add_note::definition())
//!     }
//! }
//!
//! /// The complete command line, with the table `notes` and the reducer `add_note`.
//! fn main() -> ExitCode {
//!     abide::main(vec![notes::module()])
//! }
//! ```
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
//! let session = abide.call(CreateSession::new("support").title("A lost parcel")).await?;
//! abide.call(AppendMessage::new(&session.id, "user", "Where is it?")).await?;
//! abide.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: [`prelude`] the names that a module needs · [`main`] the command line · [`Abide`] the SDK ·
//! [`arguments`] the calls of the built-in reducers · [`schema`] · [`reducers`] · [`engine`] · [`server`].

#![warn(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all output is printable: see `output`"
)]

mod agent;
mod backup;
mod call;
mod cells;
mod command_line;
mod connect;
#[cfg(feature = "demo")]
mod demo;
mod duration;
mod environment;
mod events;
mod explain;
mod failure;
mod global_options;
mod grants;
mod identity;
mod init;
mod log_pages;
mod log_progress;
mod output;
mod pairs;
mod printable;
mod reconnect;
mod replay;
mod role;
mod serve;
mod signals;
mod size;
mod sql;
mod table;
mod terminal;
mod token;
mod verify;
mod watch;

pub use abide_client::*;
pub use abide_engine as engine;
pub use abide_reducers as reducers;
pub use abide_schema as schema;
pub use abide_schema::{Abort, Context, Module};
pub use abide_schema::{
    FacadeTextEnum as TextEnum, facade_reducer as reducer, facade_table as table,
};
pub use abide_server as server;

pub use command_line::main;

/// The names that a module needs: `use abide::prelude::*;`.
pub mod prelude {
    pub use abide_client::{Abide, Session};
    pub use abide_schema::reducer::{Nullable, ReducerResult, RowVisibility};
    pub use abide_schema::{
        Abort, Code, Context, FacadeTextEnum as TextEnum, Json, Micros, Module, Refusal, Seq,
        facade_reducer as reducer, facade_table as table,
    };
}
