//! The files of a database that is in use: the database, and what SQLite and Abide put beside it. No tool may change them,
//! also if they are inside of the workspace.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// What follows the name of the database in the names of the other files.
const SUFFIXES: [&str; 5] = ["", "-wal", "-shm", "-journal", "-lock"];

/// What follows the name of the database in the names of the segments of the journal, before a number.
const SEGMENT: &str = "-redo-";

/// A database by its folder and name, without symlinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseFiles {
    pub(super) folder: PathBuf,
    name: OsString,
}

impl DatabaseFiles {
    /// Returns the files of a database, which need not exist; `None` if its folder does not exist.
    pub(super) fn locate(database: &Path) -> Option<DatabaseFiles> {
        let path = fs::canonicalize(database).or_else(|_| {
            let path = std::path::absolute(database)?;
            let folder = fs::canonicalize(path.parent().unwrap_or(Path::new("/")))?;
            Ok::<_, std::io::Error>(folder.join(path.file_name().unwrap_or_default()))
        });
        let path = path.ok()?;
        Some(DatabaseFiles {
            folder: path.parent()?.to_owned(),
            name: path.file_name()?.to_owned(),
        })
    }

    /// Returns `true` if an absolute path without symlinks is one of them.
    pub(super) fn contains(&self, path: &Path) -> bool {
        path.parent() == Some(&self.folder) && path.file_name().is_some_and(|it| self.names(it))
    }

    fn names(&self, name: &std::ffi::OsStr) -> bool {
        let rest = name.as_encoded_bytes().strip_prefix(self.name.as_encoded_bytes());
        rest.is_some_and(|rest| {
            let number = rest.strip_prefix(SEGMENT.as_bytes());
            SUFFIXES.iter().any(|suffix| suffix.as_bytes() == rest)
                || number.is_some_and(|it| !it.is_empty() && it.iter().all(u8::is_ascii_digit))
        })
    }

    /// Returns the files that exist.
    pub(super) fn existing(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let own = entries.filter(|entry| self.names(&entry.file_name()));
        let mut found: Vec<PathBuf> = own.map(|entry| entry.path()).collect();
        found.sort();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_database_are_known_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let database =
            DatabaseFiles::locate(&folder.path().join("a.db")).expect("the folder exists");
        let root = folder.path().canonicalize().expect("it exists");
        let own = |name: &str| database.contains(&root.join(name));
        for name in ["a.db", "a.db-wal", "a.db-shm", "a.db-journal", "a.db-lock", "a.db-redo-12"] {
            assert!(own(name), "{name}");
        }
        for name in ["a.dbx", "a.db-redo-", "a.db-redo-x", "b.db", "a.db/x", "x/a.db", "a.db-wal2"]
        {
            assert!(!own(name), "{name}");
        }
    }
}
