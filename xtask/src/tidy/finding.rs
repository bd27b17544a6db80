//! The finding of a rule.

use std::fmt;

/// A violation of a rule, and its location.
#[derive(Debug)]
pub(crate) struct Finding {
    place: String,
    what: String,
}

impl Finding {
    pub(crate) fn new(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Self { place: place.to_string(), what: what.to_string() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
