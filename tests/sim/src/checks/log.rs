//! The log verifies: seqs 1, 2, 3 … without gaps, each event chained to the previous one, no row
//! that refers to a missing event, and an intact SQLite file.

use std::path::Path;

use abide_engine::{Verified, verify_file};

use super::Finding;

const NAME: &str = "the log verifies";

/// Verifies a closed file.
///
/// # Errors
/// The error of `abide verify`.
pub fn check(file: &Path) -> Result<Verified, Finding> {
    verify_file(file, abide_reducers::modules(), &mut |_| {}).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|why| format!(": {why}"));
        Finding::new(NAME, format!("{error}{}", cause.unwrap_or_default()))
    })
}
