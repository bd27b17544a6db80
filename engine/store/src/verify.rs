//! Checking a file without trusting it: is it sound SQLite, is the chain whole, does any row speak of
//! an event that is not there.

use std::path::Path;

use abide_log::{Chain, ChainBreak};
use abide_schema::event::{Event, Hash};
use abide_schema::{Code, Module, Refusal, Seq, Table as _, TableSpec, Value};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::cell;
use crate::error::{OpenError, StoreError};
use crate::migrate::{self, LastBefore};
use crate::open::open_read_only;
use crate::system::{EventRow, event_of};
use crate::writer;

/// What a sound file was found to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many events, which is also the last seq.
    pub events: Seq,
    /// The hash of the last one: who keeps it can tell later whether anything up to it was changed.
    pub hash: Hash,
}

/// Why a file cannot be believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It cannot be opened at all.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The chain breaks.
    #[error(transparent)]
    Chain(#[from] ChainBreak),
    /// An event is not one that Abide writes.
    #[error("event {seq}: it cannot be read")]
    Unreadable {
        /// The event.
        seq: Seq,
        /// What SQLite says, if it is SQLite that cannot read it.
        #[source]
        why: Option<StoreError>,
    },
    /// A row was last written by an event that the log does not hold: the log's end is missing.
    #[error("event {seq}: missing, but a row of {table} was written by it")]
    LostTail {
        /// The event that the row names.
        seq: Seq,
        /// The row's table.
        table: String,
    },
    /// The log is sound, but SQLite finds the file damaged elsewhere.
    #[error("the file is damaged: {0}")]
    Damaged(String),
}

impl VerifyError {
    /// As a person at a terminal is told.
    #[must_use]
    pub fn to_refusal(&self) -> Refusal {
        match self {
            VerifyError::Open(error) => error.to_refusal(),
            VerifyError::Unreadable { why: Some(why), .. } => {
                Refusal::new(Code::Conflict, format!("{self}: {why}"))
            }
            _ => Refusal::new(Code::Conflict, self.to_string())
                .hint("the file is not what Abide wrote; go back to a backup that verifies"),
        }
    }
}

/// Walks the whole log of a file, and looks over the rest of it.
///
/// # Errors
/// [`VerifyError`], with the seq of the first event that cannot be believed.
pub fn verify_file(path: &Path, progress: &mut dyn FnMut(Seq)) -> Result<Verified, VerifyError> {
    let log = LogFile::open(path)?;
    let chain = log.walk::<VerifyError>(&mut |event| {
        progress(event.seq);
        Ok(())
    })?;
    check_tail(&log.connection, &chain)?;
    check_soundness(&log.connection)?;
    Ok(Verified { events: chain.seq, hash: chain.hash })
}

/// A file opened for walking its log, in one state, also while a server writes.
#[derive(Debug)]
pub struct LogFile {
    connection: Connection,
    log_id: String,
}

impl LogFile {
    /// Opens a file. Nothing is written to it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<LogFile, OpenError> {
        let connection = open_read_only(path)?;
        let store =
            |why: rusqlite::Error| OpenError::Store { path: path.to_owned(), why: why.into() };
        connection.execute_batch("BEGIN").map_err(store)?;
        let log_id = migrate::meta(&connection, "log_id").map_err(store)?;
        let log_id = log_id.ok_or_else(|| OpenError::NotOurs(path.to_owned()))?;
        Ok(LogFile { connection, log_id })
    }

    /// The log's own id.
    #[must_use]
    pub fn log_id(&self) -> &str {
        &self.log_id
    }

    /// The last events before the file came to the versions of these modules.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_before(&self, modules: &[Module]) -> Result<Vec<LastBefore>, StoreError> {
        Ok(migrate::last_before(&self.connection, modules)?)
    }

    /// The last event's seq as the file has it; no event is checked.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn end(&self) -> Result<Seq, StoreError> {
        let sql = "SELECT coalesce(max(seq), 0) FROM events";
        Ok(Seq(self.connection.query_row(sql, [], |row| row.get(0))?))
    }

    /// Shows every event, each checked before it is shown. Returns where the chain ends.
    ///
    /// # Errors
    /// [`VerifyError`] at the first event that cannot be believed, or whatever `each` returns.
    pub fn walk<E: From<VerifyError>>(
        &self,
        each: &mut dyn FnMut(&Event) -> Result<(), E>,
    ) -> Result<Chain, E> {
        let mut chain = Chain::start(&self.log_id);
        let unreadable = |seq: Seq| {
            move |why: rusqlite::Error| VerifyError::Unreadable { seq, why: Some(why.into()) }
        };
        let mut statement = self
            .connection
            .prepare("SELECT * FROM events NOT INDEXED ORDER BY seq")
            .map_err(unreadable(Seq(1)))?;
        // A file of format 1 lacks the last column. It is read as it is: nothing is written to it here.
        let columns = statement.column_count().min(EventRow::SPEC.columns.len());
        let mut rows = statement.raw_query();
        loop {
            let seq = chain.seq.next();
            let Some(row) = rows.next().map_err(unreadable(seq))? else {
                return Ok(chain);
            };
            let cells = cell::read_row(row, columns).map_err(unreadable(seq))?;
            // A text that is no UTF-8 reads as a blob, which would hide that a hash became a text.
            let is_text = |at: &usize| matches!(row.get_ref(*at), Ok(ValueRef::Text(_)));
            let hashes_are_blobs = ![8, 9, 11].iter().any(|at| *at < columns && is_text(at));
            let event = event_of(&cells).filter(|_| hashes_are_blobs);
            let event = event.ok_or(VerifyError::Unreadable { seq, why: None })?;
            chain.check(&event).map_err(VerifyError::from)?;
            each(&event)?;
        }
    }

    /// All rows of a table, by primary key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn rows(
        &self,
        table: &TableSpec,
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<(), StoreError> {
        let keys: Vec<&str> = table.key.iter().map(|at| table.columns[*at].name).collect();
        let sql = format!("SELECT * FROM {} ORDER BY {}", table.name, keys.join(", "));
        writer::run(&self.connection, &sql, &[], each).map(drop)
    }
}

/// A chain cannot tell that its own end was cut off, but the rows can.
fn check_tail(connection: &Connection, chain: &Chain) -> Result<(), VerifyError> {
    let damaged = |error: rusqlite::Error| VerifyError::Damaged(error.to_string());
    let tables = "SELECT m.name FROM sqlite_schema m, pragma_table_info(m.name) c
        WHERE m.type = 'table' AND c.name = 'seq' AND m.name <> 'events'";
    let mut statement = connection.prepare(tables).map_err(damaged)?;
    let names = statement.query_map([], |row| row.get::<_, String>(0)).map_err(damaged)?;
    for table in names.collect::<rusqlite::Result<Vec<_>>>().map_err(damaged)? {
        let sql = format!("SELECT max(seq) FROM \"{}\"", table.replace('"', "\"\""));
        let last: Option<i64> =
            connection.query_row(&sql, [], |row| row.get(0)).map_err(damaged)?;
        if let Some(last) = last.filter(|last| *last > chain.seq.0) {
            return Err(VerifyError::LostTail { seq: Seq(last), table });
        }
    }
    Ok(())
}

fn check_soundness(connection: &Connection) -> Result<(), VerifyError> {
    let damaged = |error: rusqlite::Error| VerifyError::Damaged(error.to_string());
    let found: String =
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(damaged)?;
    if found == "ok" { Ok(()) } else { Err(VerifyError::Damaged(found)) }
}
