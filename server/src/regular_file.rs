//! Opens the files that the server reads again when they change: certificates and keys.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Opens a regular file.
///
/// # Errors
/// The system's error, or that it is something else. A pipe would be waited for, also by a server that stops, and what it
/// has sent cannot be read again.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(path)
}
