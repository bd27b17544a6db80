//! The storage: the only crate that uses rusqlite.
//!
//! Changes when the on-disk format changes, or how data is written. It knows nothing of threads,
//! HTTP or specific reducers.
//!
//! One file is opened as one [`Store`], which creates the four objects that use it: one [`Writer`],
//! several [`Reader`]s, a [`Checkpointer`] and a [`WalSync`].
//!
//! *Invariant:* this crate acknowledges nothing. A commit of the [`Writer`] is in the WAL but not
//! yet on the disk. It is durable when a [`WalSync::sync`] that started after it has returned.

mod backup;
mod cell;
pub mod change_log;
mod checkpoint;
mod disk;
mod error;
mod functions;
mod interrupt;
mod layout;
mod lock;
mod migrate;
mod open;
mod private;
mod reader;
mod system;
mod timelines;
mod verify;
mod writer;

pub use backup::backup;
pub use checkpoint::{Checkpointer, WalSync};
pub use disk::{Disk, SyncData, SystemDisk};
pub use error::{OpenError, StoreError};
pub use interrupt::QueryLimits;
pub use layout::{APPLICATION_ID, FORMAT_VERSION, Layout};
pub use migrate::LastBefore;
pub use open::{Store, Tuning, blank};
pub use reader::{Bind, InterruptHandle, Reader, Rows, Snapshot};
pub use system::{ChangeLogRow, EventRow, RequestIdRow, event_row};
pub use timelines::Timelines;
pub use verify::{LogFile, Verified, VerifyError, verify_file};
pub use writer::{LogHead, Writer};

/// The version of the bundled SQLite.
#[must_use]
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}
