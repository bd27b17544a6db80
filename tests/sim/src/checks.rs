//! The checkers: one file each, named by what it holds the engine to. A checker that catches none of the
//! seeded bugs is to be rewritten, or removed.

pub mod acknowledged;
pub mod bounds;
pub mod effects;
pub mod leases;
pub mod log;
pub mod rows;
pub mod sight;
pub mod subscribers;

use std::fmt;

/// What a checker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whose it is.
    pub checker: &'static str,
    /// What is wrong.
    pub what: String,
}

impl Finding {
    /// One of a checker.
    pub fn new(checker: &'static str, what: impl fmt::Display) -> Finding {
        Finding { checker, what: what.to_string() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.what)
    }
}
