//! Rows equal replay: a replay of the log into an empty file gives the same rows.

use std::path::Path;

use abide_engine::replay;

use super::Finding;

const NAME: &str = "rows equal replay";

/// Replays a closed file into a folder.
///
/// # Errors
/// The first event or row that differs.
pub fn check(file: &Path, into: &Path) -> Result<(), Finding> {
    let into = into.join("replayed.db");
    let replayed = replay(file, &into, abide_reducers::modules(), None, &mut |_| {});
    replayed.map(drop).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|why| format!(": {why}"));
        Finding::new(NAME, format!("{error}{}", cause.unwrap_or_default()))
    })
}
