//! Names of the files next to a database.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The path of a companion file: `abide.db-wal` and the like.
pub(crate) fn companion(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The text between the name of the database and the number in the name of a segment.
const SEGMENT: &str = "-redo-";

/// The path of a segment of the journal.
pub(crate) fn segment(database: &Path, number: u64) -> PathBuf {
    companion(database, &format!("{SEGMENT}{number}"))
}

/// The segments next to a database.
///
/// # Errors
/// An I/O error of the system.
pub(crate) fn segments_of(database: &Path) -> io::Result<Vec<PathBuf>> {
    numbered(database, SEGMENT)
}

/// The files next to a database whose names are its name, a text, and a number.
///
/// # Errors
/// An I/O error of the system.
pub(crate) fn numbered(database: &Path, text: &str) -> io::Result<Vec<PathBuf>> {
    let prefix = companion(database, text);
    let Some(prefix) = prefix.file_name().map(|name| name.as_encoded_bytes().to_vec()) else {
        return Ok(Vec::new());
    };
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.as_encoded_bytes().strip_prefix(prefix.as_slice());
        if number.is_some_and(|it| !it.is_empty() && it.iter().all(u8::is_ascii_digit)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a database and the files next to it, as far as they are there. No process may have it open.
pub(crate) fn remove(database: &Path) {
    let beside = ["-wal", "-shm", "-journal", "-lock"].map(|suffix| companion(database, suffix));
    let segments = segments_of(database).unwrap_or_default();
    for path in beside.into_iter().chain(segments).chain([database.to_owned()]) {
        // What cannot be removed is reported by the next attempt to create the file.
        let _ = std::fs::remove_file(path);
    }
}
