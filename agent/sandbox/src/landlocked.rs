//! Landlock: the kernel limits the files that a process and its descendants can reach, and the processes that they
//! can signal.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, LandlockStatus, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::geteuid;

use crate::supervision::LandlockPaths;

/// The newest version of the interface that is used: with it, signals cannot leave the sandbox.
const NEWEST: ABI = ABI::V6;

/// Restricts the calling thread and the processes that it becomes or starts. An older kernel applies the part that it
/// has. Returns whether it applies any.
pub(super) fn restrict(paths: &LandlockPaths) -> Result<bool, RulesetError> {
    let (readable, listed) = without_secrets(&paths.readable);
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(listed, AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(&paths.writable, AccessFs::from_all(NEWEST)))?;
    ruleset.restrict_self().map(|status| status.ruleset != RulesetStatus::NotEnforced)
}

/// The settings of the system. Root owns them, also those that are secrets.
const SETTINGS: &str = "/etc";

/// Splits paths into those to read, and those of which only the names of files can be read. For root, of the settings of
/// the system only that remains readable which other users can read.
fn without_secrets(readable: &[PathBuf]) -> (Vec<PathBuf>, Option<PathBuf>) {
    let settings = Path::new(SETTINGS);
    if !geteuid().is_root() || !readable.iter().any(|path| path == settings) {
        return (readable.to_vec(), None);
    }
    let mut paths: Vec<PathBuf> =
        readable.iter().filter(|path| *path != settings).cloned().collect();
    if readable_by_others(settings, &mut paths) {
        (readable.to_vec(), None)
    } else {
        (paths, Some(settings.to_owned()))
    }
}

/// Returns `true` if other users can read all that is in a folder. If not, the parts that they can read are added to
/// `parts`.
fn readable_by_others(folder: &Path, parts: &mut Vec<PathBuf>) -> bool {
    let mut whole = Vec::new();
    let mut is_whole = true;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, Ok(meta)) = (entry.path(), entry.metadata()) else { continue };
        let can_read = match meta.file_type() {
            // The target has rules of its own.
            kind if kind.is_symlink() => continue,
            kind if kind.is_dir() => {
                meta.mode() & 0o005 == 0o005 && readable_by_others(&path, parts)
            }
            _ => meta.mode() & 0o004 != 0,
        };
        is_whole &= can_read;
        whole.extend(can_read.then_some(path));
    }
    if !is_whole {
        parts.append(&mut whole);
    }
    is_whole
}

/// Returns the support of this kernel, in words.
pub(super) fn support() -> String {
    // Only the new thread is restricted, and it ends.
    let tried = std::thread::spawn(|| {
        Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
            .and_then(Ruleset::create)
            .and_then(|ruleset| ruleset.restrict_self())
    });
    match tried.join() {
        Ok(Ok(status)) => match (status.ruleset, status.landlock) {
            (RulesetStatus::FullyEnforced, _) => "Landlock".to_owned(),
            (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { .. }) => {
                "Landlock of an older kernel: a program can signal other processes".to_owned()
            }
            _ => NO_LANDLOCK.to_owned(),
        },
        _ => NO_LANDLOCK.to_owned(),
    }
}

const NO_LANDLOCK: &str =
    "no Landlock in this kernel: programs reach every file that the server's user reaches";
