//! The errors with which a function ends its statement.

use rusqlite::{Error, ffi};

/// The error of a statement that is interrupted in a function.
pub(super) fn interrupted() -> Error {
    failure(ffi::SQLITE_INTERRUPT, None)
}

pub(super) fn too_big() -> Error {
    failure(ffi::SQLITE_TOOBIG, None)
}

pub(super) fn failed(message: &str) -> Error {
    failure(ffi::SQLITE_ERROR, Some(message.to_owned()))
}

fn failure(code: i32, message: Option<String>) -> Error {
    Error::SqliteFailure(ffi::Error::new(code), message)
}
