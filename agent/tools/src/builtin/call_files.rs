//! The files of a call of `execute`, on the disk of the server: the state of the workspace before the command, and then what
//! it has changed. If the server is killed, an auditor learns from it which files the interrupted command has changed.

use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::file_states::FileStates;

/// Number of calls that are kept. Those that have ended are small.
const KEPT: usize = 256;

/// What is known about the files of a call.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallFiles<'a> {
    /// Its command has begun: the workspace and its files before.
    Before { root: Cow<'a, Path>, files: Cow<'a, FileStates> },
    /// The files that it has changed.
    Changes { files: Cow<'a, [Value]>, is_complete: bool },
}

impl CallFiles<'_> {
    /// Stores it durably, in place of what is stored about the call.
    ///
    /// # Errors
    /// An I/O error of the system.
    pub(super) fn store(&self, folder: &Path, call_id: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = path_of(folder, call_id);
        let new = path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_data()?;
        fs::rename(&new, &path)?;
        remove_oldest(folder);
        File::open(folder)?.sync_all()
    }

    /// What is stored about a call.
    pub(super) fn load(folder: &Path, call_id: &str) -> Option<CallFiles<'static>> {
        serde_json::from_slice(&fs::read(path_of(folder, call_id)).ok()?).ok()
    }
}

fn path_of(folder: &Path, call_id: &str) -> PathBuf {
    let digest = Sha256::digest(call_id);
    folder.join(format!("{}.json", hex::encode(&digest[..16])))
}

/// Removes the oldest files above the number that is kept.
fn remove_oldest(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    for (_, path) in files.iter().rev().skip(KEPT) {
        let _ = fs::remove_file(path);
    }
}
