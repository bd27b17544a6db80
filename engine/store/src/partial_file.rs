//! A new file under a temporary name, until it is complete: a copy that was interrupted must not be taken for a good
//! one.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::companions::{companion, numbered, remove};
use crate::connect::{check_folder, check_length};
use crate::error::OpenError;
use crate::private;

/// The text between the final name and a random number. The id of the process would not do: in containers, each process
/// has the same one, so that a file that a killed process has left would be in the way of the next one.
const PARTIAL: &str = "-partial-";

/// Removes what killed processes have left of a file. No process may be writing it.
pub(crate) fn remove_left_behind(target: &Path) {
    for path in numbered(target, PARTIAL).unwrap_or_default() {
        remove(&path);
    }
}

/// Whether a file has the name of one that is incomplete.
pub(crate) fn is_partial(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = name.rsplit_once(PARTIAL).map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// An incomplete file next to its final name. It is removed when it is dropped.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    target: PathBuf,
}

impl PartialFile {
    /// Creates an empty file.
    ///
    /// # Errors
    /// [`OpenError::Exists`], [`OpenError::LeftBehind`] if the target exists, [`OpenError::NoFolder`], and the errors of
    /// the system.
    pub fn create(target: &Path) -> Result<PartialFile, OpenError> {
        check_folder(target)?;
        private::check_absent(target)?;
        // 32 bits: the name should stay short.
        let number = RandomState::new().hash_one(std::process::id()) >> 32;
        let path = companion(target, &format!("{PARTIAL}{number}"));
        // The caller knows only the target.
        let target = target.to_owned();
        match check_length(&path).and_then(|()| private::create(&path)) {
            Ok(path) => Ok(PartialFile { path, target }),
            Err(OpenError::TooLong(_)) => Err(OpenError::TooLong(target)),
            Err(OpenError::ReadOnly(_)) => Err(OpenError::ReadOnly(target)),
            Err(OpenError::Io { why, .. }) => Err(OpenError::Io { path: target, why }),
            Err(other) => Err(other),
        }
    }

    /// Returns its temporary path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name, durably. It must be complete and closed. Nothing is overwritten, if the file system can
    /// check that.
    ///
    /// # Errors
    /// As [`PartialFile::create`].
    pub fn put_in_place(self) -> Result<(), OpenError> {
        self.rename().map_err(|why| match why.kind() {
            ErrorKind::AlreadyExists => OpenError::Exists(self.target.clone()),
            _ => OpenError::Io { path: self.target.clone(), why },
        })
    }

    fn rename(&self) -> io::Result<()> {
        match renameat_with(CWD, &self.path, CWD, &self.target, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::rename(&self.path, &self.target)?;
            }
            renamed => renamed?,
        }
        let folder = self.target.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Also after `put_in_place`: a store that has written the file leaves a lock file next to the temporary name.
        remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command in a container failed as long as the file was there that the killed process of the same id had left.
    #[test]
    fn files_of_one_process_id_have_different_names() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let target = folder.path().join("copy.db");
        let left_behind = PartialFile::create(&target).expect("it is created");
        let next = PartialFile::create(&target).expect("it is created");
        for file in [&left_behind, &next] {
            assert!(file.path().exists() && is_partial(file.path()), "{file:?}");
        }
        remove_left_behind(&target);
        assert!(!left_behind.path().exists() && !next.path().exists());
    }
}
