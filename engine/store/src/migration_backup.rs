//! A copy of a file before a change after which there is no other way back, next to the file.
//!
//! The name of the copy follows from the state that it has: a process that is killed and started again makes one copy.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use abide_schema::Seq;
use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use crate::backup::copy_into;
use crate::companions::{companion, remove};
use crate::connect::broken;
use crate::disk::{Disk as _, SystemDisk};
use crate::error::OpenError;
use crate::layout::Layout;
use crate::migrate;
use crate::partial_file::{PartialFile, remove_left_behind};
use crate::verify::{VerifyError, verify_copy};

/// A copy of a file.
#[derive(Debug)]
pub(crate) struct MigrationBackup {
    pub(crate) path: PathBuf,
    /// `false` if a process that was killed has made it.
    is_new: bool,
}

impl MigrationBackup {
    /// Removes the copy, if this process has made it.
    pub(crate) fn remove_if_new(&self) {
        if self.is_new {
            remove(&self.path);
        }
    }
}

/// Copies a file that this process has locked, if its migration ends the use of older programs.
pub(crate) fn make_if_needed(
    connection: &Connection,
    path: &Path,
    layout: &Layout,
) -> Result<Option<MigrationBackup>, OpenError> {
    let is_needed = migrate::ends_older_programs(connection, &layout.modules)
        .map_err(|why| broken(path, why.into()))?;
    if is_needed { make(connection, path, layout).map(Some) } else { Ok(None) }
}

/// Copies a file that this process has locked, and verifies the copy.
pub(crate) fn make(
    connection: &Connection,
    path: &Path,
    layout: &Layout,
) -> Result<MigrationBackup, OpenError> {
    let state = FileState::read(connection).map_err(|why| broken(path, why.into()))?;
    let target = companion(path, &state.suffix());
    let made = if fs::symlink_metadata(&target).is_ok() {
        state.check_existing(&target, layout).map(|()| false)
    } else {
        state.copy(connection, &target, layout).map(|()| true)
    };
    match made {
        Ok(is_new) => Ok(MigrationBackup { path: target, is_new }),
        Err(why) => {
            Err(OpenError::Backup { path: path.to_owned(), backup: target, why: Box::new(why) })
        }
    }
}

/// What distinguishes the states of a file.
struct FileState {
    log_id: String,
    head: Seq,
    /// The versions of the modules and the hash of the last event.
    facts: String,
}

impl FileState {
    fn read(connection: &Connection) -> rusqlite::Result<FileState> {
        let facts = "SELECT coalesce(group_concat(name || '=' || value, ' ' ORDER BY name), '')
            || coalesce((SELECT hex(hash) FROM events ORDER BY seq DESC LIMIT 1), '')
            FROM meta WHERE name GLOB 'module.*'";
        Ok(FileState {
            log_id: migrate::meta(connection, "log_id")?.unwrap_or_default(),
            head: migrate::head(connection)?,
            facts: connection.query_row(facts, [], |row| row.get(0))?,
        })
    }

    /// Returns the end of the name of a copy.
    fn suffix(&self) -> String {
        let digest = Sha256::digest(format!("{} {}", self.log_id, self.facts));
        format!(".backup-{}-{}", self.head.0, hex::encode(&digest[..4]))
    }

    fn copy(
        &self,
        connection: &Connection,
        target: &Path,
        layout: &Layout,
    ) -> Result<(), VerifyError> {
        remove_left_behind(target);
        check_space(connection, target)?;
        let part = PartialFile::create(target)?;
        copy_into(connection, part.path())
            .map_err(|why| OpenError::Store { path: target.to_owned(), why: why.into() })?;
        if !self.is_verified(part.path(), layout)? {
            return Err(VerifyError::Damaged("the copy has another log".to_owned()));
        }
        part.put_in_place()?;
        Ok(())
    }

    /// Accepts a file with the name of a copy only if it is one: not another name of the file itself.
    fn check_existing(&self, target: &Path, layout: &Layout) -> Result<(), VerifyError> {
        let is_a_file =
            fs::symlink_metadata(target).is_ok_and(|it| it.is_file() && it.nlink() == 1);
        if is_a_file && self.is_verified(target, layout).unwrap_or(false) {
            return Ok(());
        }
        Err(OpenError::Exists(target.to_owned()).into())
    }

    fn is_verified(&self, copy: &Path, layout: &Layout) -> Result<bool, VerifyError> {
        let (log_id, head) = verify_copy(copy, layout)?;
        Ok(log_id == self.log_id && head == self.head)
    }
}

/// Refuses a copy for which the disk is too small: it would be full for all other programs meanwhile.
fn check_space(connection: &Connection, target: &Path) -> Result<(), OpenError> {
    let to_open_error = |why: rusqlite::Error| broken(target, why.into());
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = pragma("page_count").map_err(to_open_error)?;
    let page_bytes = pragma("page_size").map_err(to_open_error)?;
    let needed_bytes = pages.unsigned_abs().saturating_mul(page_bytes.unsigned_abs());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let available_bytes = SystemDisk
        .free_bytes(folder.unwrap_or(Path::new(".")))
        .map_err(|why| OpenError::Io { path: target.to_owned(), why })?;
    if available_bytes < needed_bytes {
        return Err(OpenError::NoSpace { path: target.to_owned(), needed_bytes, available_bytes });
    }
    Ok(())
}
