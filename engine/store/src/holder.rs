//! The holder of a file: what the lock file says about the process that has the file open.
//!
//! The process writes it when it has locked the file, and removes it before it unlocks. A process that is killed leaves
//! it, so it is valid only while the file is locked.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

/// Maximum bytes that are read from a lock file.
const HOLDER_BYTES: u64 = 4 << 10;

/// The process that has a file open, and how other processes reach it. It is one JSON object in the lock file.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The protocol that it speaks, such as `abide.v1`.
    pub protocol: String,
    /// Its version of Abide.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The path of the Unix socket on which processes of the same user share its engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The address on which it serves HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Whether it is a command that ends by itself within seconds, so that others can wait for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_brief: bool,
    /// Whether the lock file is of another user. What it says is then not believed, except for display.
    #[serde(skip)]
    pub is_foreign: bool,
    /// The token with which processes of the same user share its engine, at the socket or the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl Holder {
    /// Whether other processes of its user can share its engine.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.socket.is_some() || self.token.is_some()
    }

    /// Whether it says how to reach the process, and not only which one it is.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.is_shared() || self.url.is_some()
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret.
        let Holder { protocol, version, pid, socket, url, is_brief, is_foreign, token: _ } = self;
        let mut shown = f.debug_struct("Holder");
        shown.field("protocol", protocol).field("version", version).field("pid", pid);
        shown.field("socket", socket).field("url", url);
        shown.field("is_brief", is_brief).field("is_foreign", is_foreign);
        shown.finish_non_exhaustive()
    }
}

/// The holder that a lock file names. A file that is being written names none.
pub(crate) fn read_holder(file: &File) -> Option<Holder> {
    let mut text = String::new();
    file.take(HOLDER_BYTES).read_to_string(&mut text).ok()?;
    let mut holder: Holder = serde_json::from_str(&text).ok()?;
    // Another user who can write the lock file could name an address of its own, or the socket of another database
    // of this user.
    let meta = file.metadata().ok()?;
    holder.is_foreign = meta.uid() != geteuid().as_raw();
    if holder.is_foreign || meta.mode() & 0o022 != 0 {
        holder.socket = None;
        holder.url = None;
        holder.token = None;
    }
    Some(holder)
}
