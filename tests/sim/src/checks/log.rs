//! The log is dense and verifies: seqs 1, 2, 3 … with no gap, each event chained to the one before, no
//! row that speaks of an event that is not there, and a file that SQLite finds sound.

use std::path::Path;

use abide_engine::{Verified, verify_file};

use super::Finding;

const NAME: &str = "the log verifies";

/// Walks a closed file.
///
/// # Errors
/// What `abide verify` would say.
pub fn check(file: &Path) -> Result<Verified, Finding> {
    verify_file(file, &mut |_| {}).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|why| format!(": {why}"));
        Finding::new(NAME, format!("{error}{}", cause.unwrap_or_default()))
    })
}
