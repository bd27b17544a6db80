//! Locks a file for this process, so that there is one writer.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::error::OpenError;
use crate::private;

/// How often to try a lock that is held, and the time between tries.
const LOCK_TRIES: u32 = 25;
const LOCK_TRY_APART: Duration = Duration::from_millis(10);

/// A lock on a database file, held until this is dropped or the process ends.
///
/// It is a file beside the database. SQLite's locks on the database itself are per process, and
/// closing any handle of ours would drop them.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Drop for Lock {
    /// Unlocks explicitly, not only by closing the file. When another thread starts a program, the
    /// child holds copies of all handles until exec, and a lock lasts as long as any copy
    /// (flock(2)).
    fn drop(&mut self) {
        if let Err(why) = self.0.unlock() {
            tracing::warn!(%why, "the file was not unlocked; closing it releases the lock");
        }
    }
}

/// Locks the file for this process. The holder may be about to release it: a killed process that
/// was starting a program leaves the lock with the child for a moment. So the lock is retried for a
/// while.
pub(crate) fn lock(path: &Path) -> Result<Lock, OpenError> {
    let mut tries = 1..LOCK_TRIES;
    lock_while(path, &mut || tries.next().map(|_| std::thread::sleep(LOCK_TRY_APART)).is_some())
}

/// Like [`lock`], without a second try.
pub(crate) fn lock_once(path: &Path) -> Result<Lock, OpenError> {
    lock_while(path, &mut || false)
}

/// Like `lock`; retries while `again` returns true.
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

    /// A reopen failed with "in use" while another thread of the same process was starting a
    /// program. The child has a copy of every handle until exec; the test makes such a copy.
    #[test]
    fn a_program_being_started_keeps_no_lock() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let lock = lock_while(&path, &mut || false).expect("the lock is free");
        let copy = lock.0.try_clone().expect("the handle is copied");
        assert!(matches!(lock_while(&path, &mut || false), Err(OpenError::InUse(_))));
        drop(lock);
        lock_while(&path, &mut || false).expect("the lock is free");
        drop(copy);
    }

    /// A process that is killed while it starts a program does not unlock explicitly.
    #[test]
    fn a_lock_that_is_about_to_be_released_is_retried() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let (mut left_behind, mut tries) =
            (Some(lock_while(&path, &mut || false).expect("the lock is free")), 0);
        lock_while(&path, &mut || {
            tries += 1;
            if tries == 3 {
                left_behind = None;
            }
            tries < 5
        })
        .expect("the lock is released at the third try");
        assert_eq!(tries, 3);
    }
}
