//! File permissions of a database. Its files are created for their owner only, whatever the umask,
//! and a file that other users can read causes a warning. SQLite gives the WAL, its index and a
//! journal the mode of the database.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::companions::{companion, segments_of};
use crate::error::OpenError;

/// Read and write for the owner.
const OWNER: u32 = 0o600;

/// The largest segment of a journal: one group, whose frame has a length of 32 bits.
const SEGMENT_BYTES: u64 = 5 << 30;

/// Read or write for the group or for all.
const OTHERS: u32 = 0o066;

/// The target of a path: symlinks are resolved, so that each name of a file has the same lock, WAL
/// and index. SQLite resolves the name in the same way.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf, OpenError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => fs::canonicalize(path).map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => OpenError::Dangling(path.to_owned()),
            _ => OpenError::Io { path: path.to_owned(), why },
        }),
        _ => Ok(path.to_owned()),
    }
}

/// Creates an empty file. Fails if the file, a symlink of that name, or one of the files that
/// SQLite puts next to it exists. Returns its path without symlinks.
pub(crate) fn create(path: &Path) -> Result<PathBuf, OpenError> {
    check_absent(path)?;
    create_empty(path)?;
    fs::canonicalize(path).map_err(|why| OpenError::Io { path: path.to_owned(), why })
}

/// Refuses a path if the file, a symlink of that name, or one of the files that SQLite puts next to it exists.
pub(crate) fn check_absent(path: &Path) -> Result<(), OpenError> {
    let companions = ["-wal", "-shm", "-journal", "-lock"].map(|suffix| companion(path, suffix));
    if is_there(path) {
        return Err(OpenError::Exists(path.to_owned()));
    }
    let segments = segments_of(path).unwrap_or_default();
    let companions: Vec<PathBuf> =
        companions.into_iter().filter(|companion| is_there(companion)).chain(segments).collect();
    if !companions.is_empty() {
        return Err(OpenError::LeftBehind { path: path.to_owned(), companions });
    }
    Ok(())
}

/// Returns `true` if there is a file, or a symlink of that name.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Creates an empty file to read and write. Fails if the file, or a symlink of that name, exists.
pub(crate) fn create_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(OWNER).open(path)?;
    // The umask may have removed some permissions.
    file.set_permissions(Permissions::from_mode(OWNER))?;
    Ok(file)
}

/// Creates an empty database file.
pub(crate) fn create_empty(path: &Path) -> Result<(), OpenError> {
    create_file(path).map(drop).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => OpenError::Exists(path.to_owned()),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly(path.to_owned())
        }
        _ => OpenError::Io { path: path.to_owned(), why },
    })
}

/// Opens the lock file next to a database for reading, if it exists. Other kinds of files are refused, as in [`open_lock`].
pub(crate) fn read_lock(path: &Path) -> io::Result<File> {
    let path = companion(path, "-lock");
    open_existing_lock(OpenOptions::new().read(true).custom_flags(lock_flags()), &path)
}

/// Opens no symlink, and does not wait for the other end of a named pipe.
fn lock_flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// Opens a lock file that exists. Refuses what another user can put in its place: a named pipe, a symlink, or a second
/// name of another file, whose contents would be lost.
fn open_existing_lock(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.open(path).map_err(|why| match fs::symlink_metadata(path) {
        // The system's error would not name the lock file: "is a directory", "no such device".
        Ok(meta) if !meta.is_file() => foreign(path, NOT_REGULAR),
        _ => why,
    })?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(foreign(path, NOT_REGULAR));
    }
    if meta.nlink() > 1 {
        return Err(foreign(path, "has several names (hard links)"));
    }
    Ok(file)
}

const NOT_REGULAR: &str = "is not a regular file";

/// The device and the number of a file.
///
/// # Errors
/// An I/O error of the system.
pub(crate) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// Whether only the user of this process can read and write a file.
pub(crate) fn is_private(file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    Ok(meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0)
}

/// Refuses a segment of a journal that another user may have put next to a database: its records would become rows.
///
/// # Errors
/// As [`check_companions`], and a segment that is too large.
pub(crate) fn check_segment(database: &Path, segment: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(segment)?;
    if meta.len() > SEGMENT_BYTES {
        return Err(foreign(segment, "is too large for a segment of the journal"));
    }
    check_writers(database, segment, &meta)
}

/// Refuses files of SQLite that another user may have put next to a database: SQLite would copy the pages of a WAL or a
/// rollback journal into the database, and the user could read what is written to them.
///
/// # Errors
/// `InvalidData` for a file that is not a regular file, that belongs to a user who cannot write the database, or that more
/// users can write; and the errors of the system.
pub(crate) fn check_companions(database: &Path) -> io::Result<()> {
    for suffix in ["-wal", "-shm", "-journal"] {
        let path = companion(database, suffix);
        match fs::symlink_metadata(&path) {
            Ok(meta) => check_writers(database, &path, &meta)?,
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

fn check_writers(database: &Path, path: &Path, meta: &Metadata) -> io::Result<()> {
    if !meta.is_file() {
        return Err(foreign(path, NOT_REGULAR));
    }
    if !is_of_writer(database, meta) {
        return Err(foreign(path, "belongs to a user who cannot write the database"));
    }
    let writers = fs::metadata(database).map_or(0, |it| it.mode() & 0o022);
    if meta.mode() & 0o022 & !writers != 0 {
        return Err(foreign(path, "can be written by users who cannot write the database"));
    }
    Ok(())
}

/// Whether the owner of a file is the user of this process, or can write the database.
fn is_of_writer(database: &Path, meta: &Metadata) -> bool {
    if meta.uid() == geteuid().as_raw() {
        return true;
    }
    let Ok(database) = fs::metadata(database) else { return false };
    database.uid() == meta.uid()
        || (database.mode() & 0o020 != 0 && database.gid() == meta.gid())
        || database.mode() & 0o002 != 0
}

fn foreign(path: &Path, what: &str) -> io::Error {
    let text = format!("{} {what}; if no process uses it, remove it", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Makes a file accessible to its owner only.
pub(crate) fn restrict(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(OWNER))
}

/// Opens the lock file next to a database. A symlink is refused: it could create or lock any file.
pub(crate) fn open_lock(database: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(lock_flags());
    let path = companion(database, "-lock");
    match options.clone().create_new(true).mode(OWNER).open(&path) {
        Ok(file) => {
            file.set_permissions(Permissions::from_mode(OWNER))?;
            Ok(file)
        }
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
            let file = open_existing_lock(&options, &path)?;
            // Its owner could replace it, and a second process would then lock another file.
            if is_of_writer(database, &file.metadata()?) {
                Ok(file)
            } else {
                Err(foreign(&path, "belongs to a user who cannot write the database"))
            }
        }
        Err(why) => Err(why),
    }
}

/// Warns if users other than the owner can read or write a database: once, because a command can open it several times.
pub(crate) fn warn_if_open(path: &Path) {
    /// The device and the number of each file that a warning was about.
    static WARNED: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());
    let Ok(meta) = fs::metadata(path) else { return };
    let mode = meta.mode() & 0o777;
    if mode & OTHERS == 0 {
        return;
    }
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.insert((meta.dev(), meta.ino())) {
        let file = path.display();
        tracing::warn!(
            name: "file_mode_open",
            "{file} has mode {mode:o}: other users can read it; run `chmod 600 {file}`"
        );
    }
}
