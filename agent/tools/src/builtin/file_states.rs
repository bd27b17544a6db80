//! The state of all files of a workspace before and after a program, so that the log names the files that it changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Stat, statat};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::touched::{Touch, touched};
use abide_sandbox::{EntryKind, Workspace};

/// Maximum number of files that are compared.
const FILES: usize = 50_000;

/// Maximum depth of folders.
const DEPTH: usize = 64;

/// Maximum number of files in a list.
const LISTED: usize = 1_000;

fn state_of(stat: &Stat) -> State {
    // The types of these fields differ between systems.
    #[expect(clippy::useless_conversion, reason = "on some systems the fields are narrower")]
    let size = i64::from(stat.st_size);
    let inode = stat.st_ino;
    let nanos = |nanos| i64::try_from(nanos).unwrap_or(0);
    (
        size,
        inode,
        (stat.st_mtime, nanos(stat.st_mtime_nsec)),
        (stat.st_ctime, nanos(stat.st_ctime_nsec)),
    )
}

/// Size, inode, and times of the last change of content and status in nanoseconds. A program cannot set the last one.
type State = (i64, u64, (i64, i64), (i64, i64));

#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct FileStates {
    #[serde(with = "by_name")]
    files: BTreeMap<PathBuf, State>,
    is_cut: bool,
}

impl FileStates {
    pub(super) fn read(workspace: &Workspace) -> FileStates {
        let mut states = FileStates::default();
        let Ok(root) = workspace.open_folder(Path::new(".")) else { return states };
        let mut open = vec![root];
        while let Some((folder, path)) = open.pop() {
            let left = FILES.saturating_sub(states.files.len());
            let Ok(entries) = workspace.entries(&folder, &path, left) else { continue };
            if entries.len() >= left {
                states.is_cut = true;
                break;
            }
            for entry in entries {
                let below = path.join(&entry.name);
                if entry.kind == EntryKind::Folder {
                    let is_deep = below.components().count() > DEPTH || open.len() > 512;
                    states.is_cut |= is_deep;
                    if !is_deep {
                        let child = workspace.open_child(&folder, &below);
                        open.extend(child.map(|child| (child, below)));
                    }
                } else if let Ok(stat) = statat(&folder, &entry.name, AtFlags::SYMLINK_NOFOLLOW) {
                    let state = state_of(&stat);
                    states.files.insert(below, state);
                }
            }
        }
        states
    }

    /// Returns the files that differ in a later states, and whether the list is complete.
    pub(super) fn changes(&self, later: &FileStates) -> (Vec<Value>, bool) {
        let mut changes = Vec::new();
        for (path, state) in &later.files {
            match self.files.get(path) {
                None => changes.push((path, Touch::Created)),
                Some(before) if before != state => changes.push((path, Touch::Modified)),
                Some(_) => {}
            }
        }
        let gone = self.files.keys().filter(|path| !later.files.contains_key(*path));
        changes.extend(gone.map(|path| (path, Touch::Deleted)));
        changes.sort();
        let is_complete = !self.is_cut && !later.is_cut && changes.len() <= LISTED;
        let listed = changes.into_iter().take(LISTED);
        (listed.map(|(path, touch)| touched(path, touch, None)).collect(), is_complete)
    }
}

/// Paths as text. A name that is not Unicode is replaced in part.
mod by_name {
    use serde::{Deserializer, Serializer};

    use super::{BTreeMap, Deserialize, PathBuf, State};

    pub(super) fn serialize<S: Serializer>(
        files: &BTreeMap<PathBuf, State>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(files.iter().map(|(path, state)| (path.to_string_lossy(), state)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<PathBuf, State>, D::Error> {
        BTreeMap::deserialize(deserializer)
    }
}
