//! Landlock: the kernel limits the files that a process and its descendants can reach, and the processes that they
//! can signal.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, LandlockStatus, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

/// The newest version of the interface that is used: with it, signals cannot leave the sandbox.
const NEWEST: ABI = ABI::V6;

/// Restricts the calling thread and the processes that it becomes or starts. An older kernel applies the part that it
/// has.
pub(super) fn restrict(readable: &[PathBuf], writable: &[PathBuf]) -> Result<(), RulesetError> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(writable, AccessFs::from_all(NEWEST)))?;
    ruleset.restrict_self().map(drop)
}

/// The support of this kernel, in words.
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
