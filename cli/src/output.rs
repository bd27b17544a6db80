//! Writing to stdout, where the reader may leave at any time.

use std::fmt::Display;
use std::io::{self, Write as _};

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
