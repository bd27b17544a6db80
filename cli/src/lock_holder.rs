//! The process that has a database file open, as its lock file names it. Commands find every server and every shared engine
//! of a file here.

use std::path::{Path, PathBuf};

use abide_engine::{Holder, LockState};

/// Returns the process of this user that has a file open. The lock file of another user is not believed: a token would be
/// sent to the address that it names.
pub(crate) fn find_holder(file: &Path) -> Option<Holder> {
    match LockState::read(file) {
        Ok(LockState::Held(Some(holder))) if !holder.is_foreign => Some(holder),
        _ => None,
    }
}

/// Returns `true` if a process is a server, which runs until it is stopped, and not the engine of `abide open`. Such an engine
/// has a socket or an address, and a token in both cases.
pub(crate) fn is_server(holder: &Holder) -> bool {
    holder.url.is_some() && (holder.socket.is_some() || !holder.is_shared())
}

/// A server with TLS on this machine. Its certificate has the name that its clients use, so commands reach it by its private
/// socket.
#[derive(Clone, Debug)]
pub(crate) struct LocalServer {
    /// The file that it serves.
    pub(crate) file: PathBuf,
    /// What its lock file says.
    pub(crate) holder: Holder,
}

impl LocalServer {
    /// Returns the holder of a file as a server with TLS, if it is one.
    pub(crate) fn from_holder(file: &Path, holder: &Holder) -> Option<LocalServer> {
        let has_socket = is_server(holder) && holder.socket.is_some();
        has_socket.then(|| LocalServer { file: file.to_owned(), holder: holder.clone() })
    }
}
