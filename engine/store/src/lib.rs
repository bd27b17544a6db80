//! The disk: the only crate that names rusqlite.
//!
//! Changes when what is on disk, or how it gets there, changes. It knows nothing of threads, HTTP or
//! any particular reducer.
//!
//! One file is opened as one [`Store`], which hands out the four things that use it:
//! a [`Writer`] (one), [`Reader`]s (some), a [`Checkpointer`] and a [`WalSync`].
//!
//! *Invariant:* nothing here acknowledges anything. A commit of the [`Writer`] is in the WAL but not
//! yet on the disk; it is on the disk when a [`WalSync::sync`] that began after it has returned.

mod backup;
mod cell;
pub mod change_log;
mod checkpoint;
mod disk;
mod error;
mod functions;
mod interrupt;
mod lock;
mod migrate;
mod open;
mod private;
mod reader;
mod system;
mod verify;
mod writer;

pub use backup::backup;
pub use checkpoint::{Checkpointer, WalSync};
pub use disk::{Disk, SyncData, SystemDisk};
pub use error::{OpenError, StoreError};
pub use migrate::LastBefore;
pub use open::{APPLICATION_ID, FORMAT_VERSION, Layout, Store, Tuning, blank};
pub use reader::{Bind, QueryLimits, Reader, Rows, Snapshot, Stopper};
pub use system::{ChangeLogRow, EventRow, RequestIdRow, event_row};
pub use verify::{LogFile, Verified, VerifyError, verify_file};
pub use writer::{Head, Writer};

/// The version of the SQLite that is built in.
#[must_use]
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}
