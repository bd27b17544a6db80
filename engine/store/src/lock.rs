//! Taking a file for this process, so that there is one writer.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::error::OpenError;
use crate::private;

/// How often a lock that somebody has is tried for, and how long apart.
const LOCK_TRIES: u32 = 25;
const LOCK_TRY_APART: Duration = Duration::from_millis(10);

/// A file of ours, taken for this process until this is dropped or the process ends, however it does.
///
/// A file of its own beside the database: SQLite's locks on the database itself are per process and
/// would be lost with any handle that we close.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Drop for Lock {
    /// Lets go by name and not only by closing: a program that another thread is just starting has
    /// every handle of this process until it is that program, and a lock lasts as long as any of them
    /// (flock(2)).
    fn drop(&mut self) {
        if let Err(why) = self.0.unlock() {
            tracing::warn!(%why, "the lock goes when its file is closed");
        }
    }
}

/// Takes the file for this process. Who has it may be about to go: a killed process that was just
/// starting a program leaves the lock with it for a moment. So it is tried for a while.
pub(crate) fn lock(path: &Path) -> Result<Lock, OpenError> {
    let mut tries = 1..LOCK_TRIES;
    lock_while(path, &mut || tries.next().map(|_| std::thread::sleep(LOCK_TRY_APART)).is_some())
}

/// As `lock`; tried again as long as this says so.
fn lock_while(path: &Path, again: &mut dyn FnMut() -> bool) -> Result<Lock, OpenError> {
    let file = private::open_lock(path).map_err(|why| match why.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly(path.to_owned())
        }
        _ => OpenError::Io { path: path.to_owned(), why },
    })?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock(file)),
            Err(TryLockError::WouldBlock) if again() => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path.to_owned())),
            Err(TryLockError::Error(why)) => {
                return Err(OpenError::Io { path: path.to_owned(), why });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reopen was refused as "in use" where another thread of the same process was just starting a
    /// program: until that runs it has a copy of every handle, and here is such a copy.
    #[test]
    fn a_program_that_is_being_started_keeps_no_lock() {
        let folder = tempfile::tempdir().expect("a folder can be had");
        let path = folder.path().join("abide.db");
        let lock = lock_while(&path, &mut || false).expect("nobody has it");
        let copy = lock.0.try_clone().expect("a handle can be copied");
        assert!(matches!(lock_while(&path, &mut || false), Err(OpenError::InUse(_))));
        drop(lock);
        lock_while(&path, &mut || false).expect("nobody has it");
        drop(copy);
    }

    /// Nobody unlocks for a process that was killed while it started a program.
    #[test]
    fn a_lock_that_is_about_to_go_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder can be had");
        let path = folder.path().join("abide.db");
        let (mut left_behind, mut tries) =
            (Some(lock_while(&path, &mut || false).expect("nobody has it")), 0);
        lock_while(&path, &mut || {
            tries += 1;
            if tries == 3 {
                left_behind = None;
            }
            tries < 5
        })
        .expect("it goes at the third try");
        assert_eq!(tries, 3);
    }
}
