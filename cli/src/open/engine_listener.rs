//! Where an engine is shared: a Unix socket in a new folder, or a loopback port. Requests need a random token, which the
//! lock file of the database contains: a program in a sandbox belongs to the same user, but cannot read that file.
//!
//! The folder has a random name and mode 0700, and is never one that exists already. So another user cannot prepare it.
//! Other processes find it through the lock file of the database, which names it; they do not have to know the same
//! `TMPDIR`. It is not in `XDG_RUNTIME_DIR`, because that is removed when the user logs out, while programs that use the
//! file may go on.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use abide_engine::{Holder, LockState};
use abide_schema::wire::SUBPROTOCOL;
use abide_schema::{Code, Refusal};
use abide_server::SharedListener;
use rustix::process::geteuid;
use tempfile::{Builder, TempDir};
use uuid::Uuid;

/// The prefix of the names of the folders.
const PREFIX: &str = "abide-";

/// The name of the socket.
const SOCKET: &str = "socket";

/// Maximum bytes of the path of a socket: macOS has 104 with a final NUL, Linux 108.
const PATH_BYTES: usize = 103;

/// A listener, and how other processes find it.
#[derive(Debug)]
pub(crate) struct EngineListener {
    pub(crate) listener: SharedListener,
    holder: Holder,
    /// The folder of the socket. Dropping it removes it.
    pub(crate) folder: Option<TempDir>,
}

impl EngineListener {
    /// Listens at a new socket in a folder of its own; with `loopback` at a free port of 127.0.0.1.
    ///
    /// # Errors
    /// `internal` with the system's error.
    pub(crate) async fn new(loopback: bool) -> Result<EngineListener, Refusal> {
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let holder = Holder {
            protocol: SUBPROTOCOL.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            token: Some(token.clone()),
            ..Holder::default()
        };
        if loopback {
            let listener = SharedListener::at_loopback(&token).await?;
            let holder = Holder { url: listener.url(), ..holder };
            return Ok(EngineListener { listener, holder, folder: None });
        }
        let (listener, folder, socket) = listen(&token).map_err(|why| {
            let detail =
                format!("no socket can be created in the folder for temporary files: {why}");
            let hint =
                "set TMPDIR to a folder with a short path that you can write, or use --loopback";
            Refusal::new(Code::Internal, detail).hint(hint)
        })?;
        let holder = Holder { socket: Some(socket), ..holder };
        Ok(EngineListener { listener, holder, folder: Some(folder) })
    }

    /// The entry of this process in the lock file.
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }
}

/// Listens in a new folder for temporary files. If `TMPDIR` is too long for a socket, `/tmp` is used.
fn listen(token: &str) -> io::Result<(SharedListener, TempDir, String)> {
    listen_in(&std::env::temp_dir(), token).or_else(|_| listen_in(Path::new("/tmp"), token))
}

fn listen_in(base: &Path, token: &str) -> io::Result<(SharedListener, TempDir, String)> {
    let owner = || Permissions::from_mode(0o700);
    let folder =
        Builder::new().prefix(PREFIX).rand_bytes(12).permissions(owner()).tempdir_in(base)?;
    // The umask may have removed some permissions.
    fs::set_permissions(folder.path(), owner())?;
    let path = folder.path().join(SOCKET);
    match path.to_str() {
        Some(text) if text.len() <= PATH_BYTES => {
            Ok((SharedListener::at_socket(&path, token)?, folder, text.to_owned()))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidFilename, "its path is too long")),
    }
}

/// Removes the socket of a process that was killed while it had a file. `former` is the state of the lock before this
/// process opened the file, and thereby replaced the entry that names the socket.
pub(crate) fn remove_after_kill(former: &io::Result<LockState>) {
    if let Ok(LockState::Free(Some(killed))) = former {
        remove_left_behind(killed);
    }
}

/// Removes the socket of a process that was killed. The lock file names it, and could name any path, so nothing but
/// such a socket and its empty folder is removed.
pub(crate) fn remove_left_behind(killed: &Holder) {
    let Some(path) = killed.socket.as_ref().map(PathBuf::from) else { return };
    let Some(folder) = path.parent() else { return };
    let starts = folder.file_name().and_then(|name| name.to_str());
    let is_own = |path: &Path| {
        let meta = fs::symlink_metadata(path).ok();
        meta.filter(|meta| meta.uid() == geteuid().as_raw())
    };
    if path.file_name().is_some_and(|name| name == SOCKET)
        && starts.is_some_and(|name| name.starts_with(PREFIX))
        && is_own(folder).is_some_and(|meta| meta.is_dir())
        && is_own(&path).is_some_and(|meta| meta.file_type().is_socket())
        // Another engine of this user may listen there: the file may be a copy of its lock file.
        && UnixStream::connect(&path)
            .is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused)
    {
        // It may be removed at any time: it is in a folder for temporary files.
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_and_removed() {
        let listening = EngineListener::new(false).await.expect("it listens");
        let path = PathBuf::from(listening.holder().socket.as_ref().expect("a socket"));
        let mode = |path: &Path| fs::metadata(path).expect("it exists").mode() & 0o777;
        let folder = path.parent().expect("a folder").to_owned();
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        drop(listening);
        assert!(!folder.exists());
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_an_error() {
        let long = tempfile::tempdir().expect("a folder");
        let base = long.path().join("x".repeat(PATH_BYTES));
        fs::create_dir(&base).expect("it is created");
        let why = listen_in(&base, "secret").expect_err("the path is too long");
        assert_eq!(why.kind(), io::ErrorKind::InvalidFilename);
        assert_eq!(fs::read_dir(&base).expect("it exists").count(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn only_a_socket_left_behind_is_removed() {
        let base = tempfile::tempdir().expect("a folder");
        let (listener, folder, socket) = listen_in(base.path(), "secret").expect("it listens");
        let folder = folder.keep();
        let killed = |socket: &str| Holder { socket: Some(socket.to_owned()), ..Holder::default() };
        remove_left_behind(&killed(&socket));
        assert!(Path::new(&socket).exists(), "its engine is alive");
        drop(listener);
        let file = folder.join("file");
        fs::write(&file, "kept").expect("it is written");
        remove_left_behind(&killed(file.to_str().expect("a text")));
        assert!(file.exists() && Path::new(&socket).exists());
        fs::remove_file(&file).expect("it exists");
        remove_left_behind(&killed(&socket));
        assert!(!folder.exists());
    }
}
