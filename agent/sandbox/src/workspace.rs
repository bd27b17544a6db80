//! The files of a workspace, for tools that run in the server's process. Every path is resolved by the kernel below the
//! open root folder, so neither `..` nor a symlink leads out of it, even if it is replaced during the call.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fchmod, fstat, mkdirat, open, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::database_files::DatabaseFiles;

/// An open workspace.
#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
    /// The path of the root without symlinks.
    path: PathBuf,
    /// A folder below the root that tools do not reach.
    hidden: Option<PathBuf>,
    /// Databases whose files tools do not reach.
    databases: Vec<DatabaseFiles>,
}

/// Why a file cannot be used: one sentence for the model.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkspaceError(String);

impl fmt::Display for WorkspaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl WorkspaceError {
    /// Creates an error with this reason.
    #[must_use]
    pub fn new(why: impl Into<String>) -> WorkspaceError {
        WorkspaceError(why.into())
    }

    /// Creates the error of an operation on a file.
    #[must_use]
    pub fn io(path: &str, why: &io::Error) -> WorkspaceError {
        WorkspaceError(format!("{path:?}: {why}"))
    }

    fn from_errno(path: &Path, why: Errno) -> WorkspaceError {
        let path = path.display();
        WorkspaceError(match why {
            Errno::XDEV => format!("{path} leaves the workspace: use a path below it"),
            Errno::NOENT => format!("{path} does not exist: glob finds files by name"),
            Errno::LOOP => format!("{path} contains a symbolic link that is not followed"),
            Errno::NOTDIR => format!("a part of {path} is not a folder"),
            Errno::ISDIR => format!("{path} is a folder"),
            Errno::ACCESS | Errno::PERM => format!("{path}: permission denied"),
            Errno::NAMETOOLONG => "the path is too long".to_owned(),
            other => format!("{path}: {}", io::Error::from(other)),
        })
    }
}

/// The content of a folder.
#[derive(Clone, Debug)]
pub struct FolderEntry {
    /// The name.
    pub name: OsString,
    /// The kind.
    pub kind: EntryKind,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

impl Workspace {
    pub(crate) fn open(
        path: &Path,
        hidden: Option<PathBuf>,
        databases: Vec<DatabaseFiles>,
    ) -> Result<Workspace, WorkspaceError> {
        let root = open(path, FOLDER, Mode::empty());
        let root = root.map_err(|why| WorkspaceError::from_errno(path, why))?;
        Ok(Workspace { root, path: path.to_owned(), hidden, databases })
    }

    /// Returns a path as a model writes it, relative to the root.
    ///
    /// # Errors
    /// The path is absolute and outside of the workspace, or invalid.
    pub fn relative(&self, path: &str) -> Result<PathBuf, WorkspaceError> {
        if path.contains('\0') {
            return Err(WorkspaceError::new("the path contains a zero byte"));
        }
        let path = Path::new(path);
        let below = if path.is_absolute() {
            path.strip_prefix(&self.path).map_err(|_| {
                WorkspaceError::new(format!(
                    "{} is outside of the workspace: use a path relative to it",
                    path.display()
                ))
            })?
        } else {
            path
        };
        Ok(if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() })
    }

    /// Opens a regular file for reading. Returns its path without symlinks.
    ///
    /// # Errors
    /// The file does not exist, is not a regular one, or is outside of the workspace.
    pub fn open_file(&self, path: &Path) -> Result<(File, PathBuf), WorkspaceError> {
        // Opening a named pipe would block otherwise.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = self.resolve(path, flags)?;
        let stat = fstat(&opened).map_err(|why| WorkspaceError::from_errno(path, why))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => {
                let why = format!("{} is a folder: ls lists it", path.display());
                return Err(WorkspaceError(why));
            }
            _ => return Err(WorkspaceError(format!("{} is not a regular file", path.display()))),
        }
        let real = self.real_path(&opened, path)?;
        Ok((File::from(opened), real))
    }

    /// Opens a folder. Returns its path without symlinks; the root is the empty path.
    ///
    /// # Errors
    /// The folder does not exist, or is outside of the workspace.
    pub fn open_folder(&self, path: &Path) -> Result<(OwnedFd, PathBuf), WorkspaceError> {
        let opened = self.resolve(path, FOLDER)?;
        let real = self.real_path(&opened, path)?;
        Ok((opened, real))
    }

    /// Opens a folder of an open folder, without following a symlink. `path` is its path below the root.
    #[must_use]
    pub fn open_child(&self, parent: &OwnedFd, path: &Path) -> Option<OwnedFd> {
        if self.is_hidden(path) {
            return None;
        }
        openat(parent, path.file_name()?, FOLDER | OFlags::NOFOLLOW, Mode::empty()).ok()
    }

    /// Replaces or creates a file, completely or not at all. Missing folders are created. Returns its path without
    /// symlinks, and whether the file existed.
    ///
    /// # Errors
    /// The file cannot be written, or is outside of the workspace.
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<(PathBuf, bool), WorkspaceError> {
        let name = match path.components().next_back() {
            Some(Component::Normal(name)) => name.to_owned(),
            _ => return Err(WorkspaceError(format!("{} is not a file name", path.display()))),
        };
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        self.create_folders(parent)?;
        let (folder, real) = self.open_folder(parent)?;
        let real = real.join(&name);
        self.check_visible(&real)?;
        let failed = |why: Errno| WorkspaceError::from_errno(path, why);
        let before = match statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(why) => return Err(failed(why)),
        };
        if let Some(stat) = &before {
            check_replaceable(path, stat)?;
        }
        // A file that other names share keeps its content: this name gets a new file.
        let mode = before.as_ref().map_or(0o644, |stat| stat.st_mode & 0o777);
        replace(&folder, &name, content, Mode::from_raw_mode(mode)).map_err(failed)?;
        Ok((real, before.is_some()))
    }

    fn create_folders(&self, path: &Path) -> Result<(), WorkspaceError> {
        let mut below = PathBuf::new();
        for part in path.components() {
            let folder = if below.as_os_str().is_empty() { Path::new(".") } else { &below };
            if let Component::Normal(name) = part {
                let (parent, real) = self.open_folder(folder)?;
                self.check_visible(&real.join(name))?;
                match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(why) => return Err(WorkspaceError::from_errno(path, why)),
                }
            }
            below.push(part);
        }
        Ok(())
    }

    /// Returns at most `max` entries of an open folder, sorted by name, without the hidden one.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn entries(
        &self,
        folder: &OwnedFd,
        path: &Path,
        max: usize,
    ) -> Result<Vec<FolderEntry>, WorkspaceError> {
        let failed = |why: Errno| WorkspaceError::from_errno(path, why);
        let mut found = Vec::new();
        for entry in Dir::read_from(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." || self.is_hidden(&path.join(&name)) {
                continue;
            }
            if found.len() >= max {
                break;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                known => known,
            };
            found.push(FolderEntry { name, kind: EntryKind::from_file_type(kind) });
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Opens a path below the root.
    fn resolve(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, WorkspaceError> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{ResolveFlags, openat2};
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            // EAGAIN: a folder was moved meanwhile.
            for _ in 0..16 {
                match openat2(&self.root, path, flags, Mode::empty(), resolve) {
                    Err(Errno::AGAIN) => {}
                    Err(Errno::NOSYS) => break,
                    opened => return opened.map_err(|why| WorkspaceError::from_errno(path, why)),
                }
            }
        }
        self.walk(path, flags).map_err(|why| WorkspaceError::from_errno(path, why))
    }

    /// Opens a path below the root without help of the kernel: symlinks are not followed, and `..` is refused.
    fn walk(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut parts = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => parts.push(name),
                Component::CurDir => {}
                _ => return Err(Errno::XDEV),
            }
        }
        let Some((last, folders)) = parts.split_last() else {
            return openat(&self.root, ".", flags, Mode::empty());
        };
        let mut at: Option<OwnedFd> = None;
        for folder in folders {
            let parent = at.as_ref().unwrap_or(&self.root);
            at = Some(openat(parent, *folder, FOLDER | OFlags::NOFOLLOW, Mode::empty())?);
        }
        let parent = at.as_ref().unwrap_or(&self.root);
        openat(parent, *last, flags | OFlags::NOFOLLOW, Mode::empty())
    }

    /// Returns the path of an open file below the root, as the kernel knows it.
    fn real_path(&self, opened: impl AsFd, asked: &Path) -> Result<PathBuf, WorkspaceError> {
        use std::os::fd::AsRawFd as _;
        let link = format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd());
        let real = match std::fs::read_link(link) {
            Ok(real) => real.strip_prefix(&self.path).map(Path::to_owned).ok(),
            Err(_) => None,
        };
        let real = real.unwrap_or_else(|| {
            let parts = asked.components().filter(|part| *part != Component::CurDir);
            parts.collect()
        });
        self.check_visible(&real)?;
        Ok(real)
    }

    fn check_visible(&self, path: &Path) -> Result<(), WorkspaceError> {
        match self.owner(path) {
            Some(owner) => Err(WorkspaceError(format!(
                "{} belongs to {owner} and is not accessible",
                path.display()
            ))),
            None => Ok(()),
        }
    }

    fn is_hidden(&self, path: &Path) -> bool {
        self.owner(path).is_some()
    }

    /// What a path belongs to that tools do not reach.
    fn owner(&self, path: &Path) -> Option<&'static str> {
        if self.hidden.as_ref().is_some_and(|hidden| path.starts_with(hidden)) {
            return Some("the configuration of the agents");
        }
        let path = self.path.join(path);
        let is_theirs = self.databases.iter().any(|database| database.contains(&path));
        is_theirs.then_some("the database")
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl EntryKind {
    fn from_file_type(kind: FileType) -> EntryKind {
        match kind {
            FileType::Directory => EntryKind::Folder,
            FileType::RegularFile => EntryKind::File,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::Other,
        }
    }
}

fn check_replaceable(path: &Path, stat: &Stat) -> Result<(), WorkspaceError> {
    let path = path.display();
    let why = match EntryKind::from_file_type(FileType::from_raw_mode(stat.st_mode)) {
        EntryKind::File => return Ok(()),
        EntryKind::Folder => format!("{path} is a folder"),
        EntryKind::Link => format!("{path} is a symbolic link: write to its target"),
        EntryKind::Other => format!("{path} is not a regular file"),
    };
    Err(WorkspaceError(why))
}

/// Writes a new file and gives it the name of the old one.
fn replace(folder: &OwnedFd, name: &OsString, content: &[u8], mode: Mode) -> Result<(), Errno> {
    let mut temporary = OsString::from(".abide-");
    temporary.push(format!("{:x}-{:x}", std::process::id(), unique()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let created = openat(folder, &temporary, flags, Mode::from_raw_mode(0o600))?;
    let mut file = File::from(created);
    let written = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))
        .and_then(|()| fchmod(&file, mode))
        .and_then(|()| renameat(folder, &temporary, folder, name));
    if written.is_err() {
        let _ = unlinkat(folder, &temporary, AtFlags::empty());
    }
    written
}

fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
