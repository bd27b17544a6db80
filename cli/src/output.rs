//! Writing to stdout, where the reader may leave at any time, and to stderr. Nothing else of this program writes to
//! either, so that all text is [`Printable`].

use std::io::{self, Write as _};

use serde::Serialize;

use crate::failure::Failure;
use crate::printable::Printable;

/// Prints one line, or several.
///
/// # Errors
/// The reader has gone, or the output is full.
pub(crate) fn say(text: impl Into<Printable>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.into())?;
    Ok(stdout.flush()?)
}

/// Prints a part of a line.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_part(text: impl Into<Printable>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{}", text.into())?;
    Ok(stdout.flush()?)
}

/// Prints something as one line of JSON.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_json(what: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(what).map_err(io::Error::from)?;
    say(Printable::json(&text))
}

/// Prints a line on stderr, for the person. A stderr that is closed is ignored: there is no other place to say so.
pub(crate) fn note(text: impl Into<Printable>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.into());
}
