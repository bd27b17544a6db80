//! Writing to stdout, where the reader may leave at any time.

use std::fmt::Display;
use std::io::{self, Write as _};

use serde::Serialize;

use crate::failure::Failure;

/// Prints one line, or several.
///
/// # Errors
/// The reader has gone, or the output is full.
pub(crate) fn say(line: impl Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// Prints something as one line of JSON.
///
/// # Errors
/// As [`say`].
pub(crate) fn say_json(what: &impl Serialize) -> Result<(), Failure> {
    say(serde_json::to_string(what).map_err(io::Error::from)?)
}
