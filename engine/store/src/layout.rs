//! The content of a file: its format, and the tables of the engine and of its modules.

use abide_schema::{Module, TableSpec};

use crate::system;

/// "ABID" in ASCII, in the file's header. It identifies our files, also to `file`.
pub const APPLICATION_ID: i32 = 0x4142_4944;

/// The version of the engine's own tables and encodings, in the header's `user_version`.
pub const FORMAT_VERSION: i64 = 5;

/// SQLite's mode of free pages in which they can be given back to the system a few at a time: the value of
/// `PRAGMA auto_vacuum`. A file has it from its creation.
pub(crate) const INCREMENTAL: i64 = 2;

/// The tables of a file.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The modules that declare tables.
    pub modules: Vec<Module>,
}

impl Layout {
    /// The modules' tables, in order.
    pub fn tables(&self) -> impl Iterator<Item = &'static TableSpec> {
        self.modules.iter().flat_map(|module| module.tables.iter().copied())
    }

    /// The tables that support live queries: those of the modules, and the log.
    #[must_use]
    pub fn live_tables(&self) -> Vec<&'static TableSpec> {
        use abide_schema::Table as _;
        self.tables().chain([system::EventRow::SPEC]).collect()
    }

    /// The modules' views: name and SELECT.
    #[must_use]
    pub fn views(&self) -> Vec<(&'static str, &'static str)> {
        self.modules.iter().flat_map(|module| module.views.iter().copied()).collect()
    }
}

/// The statement that makes a view.
pub(crate) fn create_view(name: &str, select: &str) -> String {
    format!("CREATE VIEW {name} AS {select}")
}
