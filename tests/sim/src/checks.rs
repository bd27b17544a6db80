//! The checkers, one file each, named by the property that they check. A checker that finds none of
//! the seeded bugs must be rewritten or removed.

pub mod acknowledged;
pub mod bounds;
pub mod effects;
pub mod leases;
pub mod log;
pub mod rows;
pub mod subscribers;
pub mod visibility;

use std::fmt;

/// A violation that a checker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the checker.
    pub checker: &'static str,
    /// The violation.
    pub what: String,
}

impl Finding {
    /// A finding of a checker.
    pub fn new(checker: &'static str, what: impl fmt::Display) -> Finding {
        Finding { checker, what: what.to_string() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.what)
    }
}
