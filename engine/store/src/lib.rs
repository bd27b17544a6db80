//! The storage: the only crate that uses rusqlite.
//!
//! Changes when the on-disk format changes, or how data is written. It knows nothing of threads,
//! HTTP or specific reducers.
//!
//! One file is opened as one [`Store`], which creates the objects that use it: one [`Writer`] with its [`Journal`],
//! several [`Reader`]s and a [`Checkpointer`].
//!
//! *Invariant:* this crate acknowledges nothing. A group of the [`Writer`] is durable when its record is in the
//! [`Journal`] and a [`Segment::sync`] that started after that has returned.

mod backup;
mod cell;
mod cell_bytes;
pub mod change_log;
mod checkpoint;
mod companions;
mod connect;
mod deferred;
mod disk;
mod error;
mod file_sync;
mod functions;
mod history;
mod holder;
mod interrupt;
mod journal;
mod layout;
mod leftover;
mod lock;
mod memory;
mod migrate;
mod migration_backup;
mod migration_plan;
mod open;
mod opened_file;
mod partial_file;
mod private;
mod read_only;
mod readable_views;
mod reader;
mod schema_check;
mod stored_schema;
mod system;
mod timelines;
mod upgrade;
mod verify;
mod vfs;
mod writer;

pub use backup::{BackupError, backup};
pub use checkpoint::{Checkpointer, WalSize};
pub use connect::check_not_lost;
pub use disk::{Disk, DiskFile, SystemDisk};
pub use error::{OpenError, StoreError};
pub use functions::{READ_FUNCTION, VISIBLE_FUNCTION, VISIBLE_READ_FUNCTION};
pub use holder::Holder;
pub use interrupt::{QueryLimits, processor_time};
pub use journal::frame::RecordPosition;
pub use journal::{Journal, Segment};
pub use layout::{APPLICATION_ID, FORMAT_VERSION, Layout};
pub use lock::LockState;
pub use migrate::VersionStart;
pub use migration_plan::{PlannedMigration, PlannedStep};
pub use open::{Store, Tuning, blank};
pub use partial_file::PartialFile;
pub use readable_views::readable_views;
pub use reader::{Bind, InterruptHandle, Query, Reader, RowRef, Snapshot};
pub use system::{ChangeLogRow, EventRow, RequestIdRow, event_row};
pub use timelines::Timelines;
pub use upgrade::{PageLayout, UpgradePlan, convert, migrate_file, plan_upgrade};
pub use verify::{LogFile, Verified, VerifiedTable, VerifyError, verify_file};
pub use writer::{LogHead, RunSteps, Writer};

/// The version of the bundled SQLite.
#[must_use]
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}
