//! The shared vocabulary: values, tables, events, errors, wire messages and the reducer contract, with pure functions
//! over them.
//!
//! It changes when the vocabulary changes, or the contract between a reducer and its engine. It does not depend on
//! SQLite, HTTP, threads or clocks, so every other crate can use it.
//!
//! In reading order: [`value`] a table cell · [`mod@table`] table declarations · [`row_values`] rows in JSON ·
//! [`mod@reducer`] the reducer contract · [`work`] deferred work of a call · [`caller`] the caller · [`share`] shares of
//! limits · [`event`] log records · [`refusal`] refusals · [`wire`] the wire format · [`canonical`] canonical JSON ·
//! `call_arguments` the arguments of a call in that form · [`arguments`] those of a reducer, decoded from it · [`id`] ids ·
//! [`json_values`] the number of values in JSON · [`mod@checksum`] checksums of results · [`template`] texts with
//! variables · [`mod@nearest`] suggestions for misspelled names · [`seeded`] faults that tests must find · `module` modules
//! of tables and reducers · [`metrics`] the numbers of `/metrics` and their format · [`limits`] all limits.

// The macros name this crate `::abide_schema`, even from inside it.
extern crate self as abide_schema;

mod argument_error;
pub mod arguments;
mod call_arguments;
pub mod caller;
pub mod canonical;
pub mod checksum;
pub mod event;
pub mod id;
pub mod json_values;
pub mod limits;
pub mod metrics;
mod module;
pub mod nearest;
pub mod reducer;
pub mod refusal;
pub mod row_values;
pub mod seeded;
pub mod share;
pub mod table;
pub mod template;
pub mod value;
pub mod wire;
pub mod work;

/// Range checks for integers in all incoming JSON.
pub use abide_json_integers as integers;
/// For the crate `abide`, which exports them under their usual names.
#[doc(hidden)]
pub use abide_macros::{FacadeTextEnum, facade_reducer, facade_table};
pub use abide_macros::{TextEnum, reducer, table};

pub use call_arguments::{CallArgument, CallArguments};
pub use caller::{Caller, Scope};
pub use checksum::Checksum;
pub use event::Event;
pub use id::{Micros, Seq};
pub use nearest::nearest;
pub use reducer::{Abort, Context, Module};
pub use refusal::{Code, Listing, Refusal, SEE_LOG, has_too_many_files, lowercase_first};
pub use table::{Json, Table, TableSpec};
pub use value::{Row, Value, ValueRef, json_text_bytes};

/// Names used by the macros' output; not a public API.
#[doc(hidden)]
pub mod private {
    pub use schemars;
    pub use serde;
    pub use serde_json;
}
