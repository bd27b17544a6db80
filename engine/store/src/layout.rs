//! The content of a file: its format, and the tables of the engine and of its modules.

use abide_schema::{Module, TableSpec};

use crate::error::OpenError;
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

    /// Refuses a module with a trigger that keeps the row which it refuses.
    ///
    /// # Errors
    /// [`OpenError::Trigger`].
    pub(crate) fn check_triggers(&self) -> Result<(), OpenError> {
        for table in self.tables() {
            if table.triggers.iter().any(|trigger| keeps_refused_row(trigger)) {
                return Err(OpenError::Trigger { table: table.name });
            }
        }
        Ok(())
    }
}

/// The words with which the time or the event of a trigger begins, after its name.
const TIMES_AND_EVENTS: [&str; 6] = ["BEFORE", "AFTER", "INSTEAD", "INSERT", "UPDATE", "DELETE"];

/// Whether a trigger runs after its row is written, and ends the statement with RAISE(FAIL). SQLite then keeps the row,
/// and no record of the journal has it.
fn keeps_refused_row(trigger: &str) -> bool {
    let mut words = trigger.split(|c: char| !c.is_alphanumeric() && c != '_');
    let first = words.find(|word| TIMES_AND_EVENTS.iter().any(|it| word.eq_ignore_ascii_case(it)));
    let without_spaces: String = trigger.split_whitespace().collect();
    first.is_some_and(|word| word.eq_ignore_ascii_case("AFTER"))
        && without_spaces.to_ascii_uppercase().contains("RAISE(FAIL,")
}

/// The statement that makes a view.
pub(crate) fn create_view(name: &str, select: &str) -> String {
    format!("CREATE VIEW {name} AS {select}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_after_its_row_may_not_fail() {
        for (trigger, is_refused) in [
            ("CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT RAISE(FAIL, 'no'); END", true),
            (
                "create trigger t\nafter update of b on a\nbegin select raise( fail, 'no'); end",
                true,
            ),
            ("CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT RAISE(ABORT, 'no'); END", false),
            ("CREATE TRIGGER t BEFORE INSERT ON a BEGIN SELECT RAISE(FAIL, 'no'); END", false),
            // Without a word, a trigger runs before.
            ("CREATE TRIGGER after_a INSERT ON a BEGIN SELECT RAISE(FAIL, 'no'); END", false),
            ("CREATE TRIGGER t DELETE ON a BEGIN SELECT RAISE(FAIL, 'AFTER'); END", false),
        ] {
            assert_eq!(keeps_refused_row(trigger), is_refused, "{trigger}");
        }
    }
}
