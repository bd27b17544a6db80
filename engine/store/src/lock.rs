//! Locks a file for this process, so that there is one writer.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::error::OpenError;
use crate::holder::{Holder, read_holder};
use crate::private;

/// How often to try a lock that is held, and the time between tries.
const LOCK_TRIES: u32 = 25;
const LOCK_TRY_APART: Duration = Duration::from_millis(10);

/// A lock on a database file, held until this is dropped or the process ends.
///
/// It is a file next to the database. SQLite's locks on the database itself are per process, and
/// closing any handle of ours would drop them.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Drop for Lock {
    /// Unlocks explicitly, not only by closing the file. When another thread starts a program, the
    /// child holds copies of all handles until exec, and a lock lasts as long as any copy
    /// (flock(2)).
    fn drop(&mut self) {
        if let Err(why) = announce(&mut self.0, None) {
            tracing::warn!(
                name: "lock_file_not_cleared",
                %why,
                "the lock file still names this process"
            );
        }
        if let Err(why) = self.0.unlock() {
            tracing::warn!(
                name: "file_not_unlocked",
                %why,
                "the file was not unlocked; closing it releases the lock"
            );
        }
    }
}

/// Locks the file for this process. The holder may be about to release it: a killed process that
/// was starting a program leaves the lock with the child for a moment. So the lock is retried for a
/// while. The lock file then says how other processes reach this one.
pub(crate) fn lock(path: &Path, holder: Option<&Holder>) -> Result<Lock, OpenError> {
    let mut tries = 1..LOCK_TRIES;
    lock_while(path, holder, &mut || {
        let has_another = tries.next().is_some();
        if has_another {
            std::thread::sleep(LOCK_TRY_APART);
        }
        has_another
    })
}

/// Like [`lock`], without a second try.
pub(crate) fn lock_once(path: &Path, holder: Option<&Holder>) -> Result<Lock, OpenError> {
    lock_while(path, holder, &mut || false)
}

/// Like `lock`; retries while `again` returns true.
fn lock_while(
    path: &Path,
    holder: Option<&Holder>,
    again: &mut dyn FnMut() -> bool,
) -> Result<Lock, OpenError> {
    let mut file = private::open_lock(path).map_err(|why| match why.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly(path.to_owned())
        }
        _ => OpenError::Io { path: path.to_owned(), why },
    })?;
    loop {
        match file.try_lock() {
            Ok(()) => {
                if let Err(why) = announce(&mut file, holder) {
                    tracing::warn!(
                        name: "lock_file_not_written",
                        %why,
                        "the lock file does not name this process"
                    );
                }
                return Ok(Lock(file));
            }
            Err(TryLockError::WouldBlock) if again() => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path: path.to_owned(),
                    holder: holder_of(path).map(Box::new),
                });
            }
            Err(TryLockError::Error(why)) => {
                return Err(OpenError::Io { path: path.to_owned(), why });
            }
        }
    }
}

/// Replaces the contents of the lock file, which this process has locked.
///
/// # Errors
/// An I/O error of the system.
fn announce(file: &mut File, holder: Option<&Holder>) -> io::Result<()> {
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    let Some(holder) = holder else { return Ok(()) };
    if holder.token.is_some() && !private::is_private(file)? {
        // A process that has opened it before could read the token, whatever its mode is from now on.
        let why = "other users could read it: remove it while no process has the file open";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    // A command of a user who does not own the lock file names only itself.
    if holder.is_reachable() {
        private::restrict(file)?;
    }
    file.write_all(serde_json::to_string(holder)?.as_bytes())
}

/// The holder of a locked file, if it has announced itself.
fn holder_of(path: &Path) -> Option<Holder> {
    private::read_lock(path).ok().as_ref().and_then(read_holder)
}

/// Whether a process has a file open for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// No process has it open. The holder is that of a process that was killed.
    Free(Option<Holder>),
    /// A process has it open. It is unknown which one if it is about to open or close the file, or does not announce
    /// itself, as a program that embeds the engine.
    Held(Option<Holder>),
}

impl LockState {
    /// Returns the state of the file at this moment. It changes nothing on the disk.
    ///
    /// # Errors
    /// An I/O error of the system. A lock file that does not exist is not an error: the file is free.
    pub fn read(path: &Path) -> io::Result<LockState> {
        let Ok(path) = private::resolved(path) else { return Ok(LockState::Free(None)) };
        let file = match private::read_lock(&path) {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(LockState::Free(None)),
            Err(why) => return Err(why),
        };
        // A shared lock: other processes that look at the same time do not see it.
        match file.try_lock_shared() {
            Ok(()) => {
                let left_behind = read_holder(&file);
                file.unlock()?;
                Ok(LockState::Free(left_behind))
            }
            Err(TryLockError::WouldBlock) => Ok(LockState::Held(read_holder(&file))),
            Err(TryLockError::Error(why)) => Err(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::companions::companion;

    /// A reopen failed with "in use" while another thread of the same process was starting a
    /// program. The child has a copy of every handle until exec; the test makes such a copy.
    #[test]
    fn a_program_being_started_keeps_no_lock() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let lock = lock_while(&path, None, &mut || false).expect("the lock is free");
        let copy = lock.0.try_clone().expect("the handle is copied");
        assert!(matches!(lock_while(&path, None, &mut || false), Err(OpenError::InUse { .. })));
        drop(lock);
        lock_while(&path, None, &mut || false).expect("the lock is free");
        drop(copy);
    }

    /// A process that is killed while it starts a program does not unlock explicitly.
    #[test]
    fn a_lock_that_is_about_to_be_released_is_retried() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let mut left_behind =
            Some(lock_while(&path, None, &mut || false).expect("the lock is free"));
        let mut tries = 0;
        lock_while(&path, None, &mut || {
            tries += 1;
            if tries == 3 {
                left_behind = None;
            }
            tries < 5
        })
        .expect("the lock is released at the third try");
        assert_eq!(tries, 3);
    }

    fn holder() -> Holder {
        Holder {
            protocol: "abide.v1".to_owned(),
            pid: 7,
            url: Some("http://127.0.0.1:1".to_owned()),
            token: Some("secret".to_owned()),
            ..Holder::default()
        }
    }

    #[test]
    fn a_holder_is_named_while_it_has_the_lock() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let state = || LockState::read(&path).expect("it can be read");
        assert_eq!(state(), LockState::Free(None));
        let lock = lock_once(&path, Some(&holder())).expect("the lock is free");
        assert_eq!(state(), LockState::Held(Some(holder())));
        assert!(!format!("{:?}", state()).contains("secret"));
        drop(lock);
        assert_eq!(state(), LockState::Free(None));
        assert_eq!(fs::read(companion(&path, "-lock")).expect("it is there"), b"");

        fs::write(companion(&path, "-lock"), serde_json::to_string(&holder()).expect("JSON"))
            .expect("it can be written");
        assert_eq!(state(), LockState::Free(Some(holder())), "of a process that was killed");
        let lock = lock_once(&path, None).expect("the lock is free");
        assert_eq!(state(), LockState::Held(None), "it does not count for the next holder");
        drop(lock);
    }

    /// Another user who can write the lock file could otherwise receive what is sent to the address.
    #[test]
    fn an_address_counts_only_if_no_other_user_can_write_it() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let lock = companion(&path, "-lock");
        fs::write(&lock, serde_json::to_string(&holder()).expect("JSON")).expect("it is written");
        fs::set_permissions(&lock, Permissions::from_mode(0o620)).expect("it is ours");
        let believed = holder_of(&path).expect("it can be read");
        assert_eq!((believed.pid, believed.url, believed.token), (7, None, None));
    }

    /// A process that opened the lock file while others could read it kept its handle, and read the token later.
    #[test]
    fn a_token_is_written_only_to_a_private_lock_file() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let file = companion(&path, "-lock");
        fs::write(&file, "").expect("it is written");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
        let lock = lock_once(&path, Some(&holder())).expect("the lock is free");
        assert_eq!(fs::read(&file).expect("it is there"), b"");
        drop(lock);
    }

    /// Opening a named pipe in the place of a lock file waited for its other end.
    #[test]
    fn a_named_pipe_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        // No function of the standard library creates one.
        let made = std::process::Command::new("mkfifo").arg(companion(&path, "-lock")).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo is here");
        assert!(LockState::read(&path).is_err());
        let Err(OpenError::Io { why, .. }) = lock_once(&path, None) else {
            panic!("it is not a lock file")
        };
        assert!(why.to_string().contains("abide.db-lock is not a regular file"), "{why}");
    }

    /// A second name of another file of the user lost its contents.
    #[test]
    fn a_lock_file_has_one_name() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("abide.db");
        let other = folder.path().join("other");
        fs::write(&other, "kept").expect("it is written");
        fs::hard_link(&other, companion(&path, "-lock")).expect("it is linked");
        assert!(matches!(lock_once(&path, Some(&holder())), Err(OpenError::Io { .. })));
        assert_eq!(fs::read(&other).expect("it is there"), b"kept");
    }
}
