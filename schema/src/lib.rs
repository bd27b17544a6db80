//! The vocabulary of Abide, and nothing that acts on it.
//!
//! Changes when the words change: ids, values, tables and their rows, events, error codes, wire
//! messages, limits, and the contract between a reducer and whoever runs it. It knows nothing of
//! SQLite, HTTP, threads or clocks, so every other room can speak it.
//!
//! In reading order: [`value`] what a cell holds · [`mod@table`] how a table is declared ·
//! [`mod@reducer`] what a rule is given and gives back · [`work`] what it has done before it runs · [`caller`] who calls · [`event`] what the log
//! keeps · [`refusal`] how a "no" is said · [`wire`] what travels · [`mod@checksum`] how both ends know
//! that they agree · [`limits`] every bound · [`mod@nearest`] which known name was probably meant.

// The macros name this crate `::abide_schema`, also from inside it.
extern crate self as abide_schema;

pub mod caller;
pub mod canonical;
pub mod checksum;
pub mod event;
pub mod id;
pub mod limits;
pub mod nearest;
mod nullable;
pub mod reducer;
pub mod refusal;
pub mod seeded;
pub mod table;
pub mod value;
pub mod wire;
pub mod work;

/// What is checked of every JSON text that comes in, next to where it is parsed.
pub use abide_json_integers as integers;
pub use abide_macros::{TextEnum, reducer, table};

pub use caller::{Caller, Scope};
pub use checksum::Checksum;
pub use event::Event;
pub use id::{Micros, Seq};
pub use nearest::nearest;
pub use reducer::{Abort, Context, Module};
pub use refusal::{Code, Refusal};
pub use table::{Json, Table, TableSpec};
pub use value::{Row, Value};

/// What the macros' output names; not for people.
#[doc(hidden)]
pub mod private {
    pub use schemars;
    pub use serde;
    pub use serde_json;
}
