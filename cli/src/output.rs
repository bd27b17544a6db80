//! Writes to stdout, whose reader may close it at any time, and to stderr. All output goes through this module, so
//! that it is [`Printable`].

use std::io::{self, Write as _};

use serde::Serialize;

use crate::failure::Failure;
use crate::printable::Printable;
use crate::stderr;

/// Prints one or more lines.
///
/// # Errors
/// The reader has closed the output, or the disk is full.
pub(crate) fn print_line(text: impl Into<Printable>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.into())?;
    Ok(stdout.flush()?)
}

/// Prints a part of a line.
///
/// # Errors
/// As [`print_line`].
pub(crate) fn print_part(text: impl Into<Printable>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{}", text.into())?;
    Ok(stdout.flush()?)
}

/// Prints a value as one line of JSON.
///
/// # Errors
/// As [`print_line`].
pub(crate) fn print_json(what: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(what).map_err(io::Error::from)?;
    print_line(Printable::json(&text))
}

/// Prints a line on stderr. Errors are ignored: there is no other output to report them.
pub(crate) fn note(text: impl Into<Printable>) {
    let text: Printable = text.into();
    stderr::write_lines(text.as_str());
}

impl Failure {
    /// Prints it on stderr, as text or as a problem document.
    pub(crate) fn print(&self, as_json: bool) {
        if let Some(text) = self.message(as_json) {
            note(text);
        }
    }
}
