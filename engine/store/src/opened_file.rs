//! A file as it was opened, to notice that it is removed or replaced: what is written to it then is lost when the process
//! ends.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::private;

/// A path, and the file that it named.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    path: PathBuf,
    /// Device and number.
    identity: (u64, u64),
}

impl OpenedFile {
    /// The file that a path names now; `None` if there is none.
    pub(crate) fn at(path: PathBuf) -> Option<OpenedFile> {
        let identity = private::identity(&path).ok()?;
        Some(OpenedFile { path, identity })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still names it. A file that cannot be looked at is taken to be in its place.
    pub(crate) fn is_in_place(&self) -> bool {
        match private::identity(&self.path) {
            Ok(identity) => identity == self.identity,
            Err(why) => !matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }
}
