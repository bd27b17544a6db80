//! Refusals: a stable code, one lowercase sentence, and a hint.

use std::{fmt, io};

use abide_json_integers::{self as integers, OutOfRange, ReservedName, TooDeep, UnpairedSurrogate};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

macro_rules! codes {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident = $text:literal, $status:literal, $title:literal, $retryable:literal;
    )+) => {
        /// The stable codes of the protocol. Programs branch on these, never on texts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[doc = $doc])+ $name,)+ }

        impl Code {
            /// All codes, in the order of the documentation.
            pub const ALL: &'static [Code] = &[$(Code::$name),+];

            /// Returns the code on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text),+ }
            }

            /// Returns its HTTP status.
            #[must_use]
            pub fn http_status(self) -> u16 {
                match self { $(Code::$name => $status),+ }
            }

            /// Returns the short title of its problem document (RFC 9457).
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Code::$name => $title),+ }
            }

            /// Returns `true` if the same call may succeed later, unchanged.
            #[must_use]
            pub fn retryable(self) -> bool {
                match self { $(Code::$name => $retryable),+ }
            }
        }
    };
}

codes! {
    /// The request itself is malformed: not JSON, a missing envelope field, a wrong method.
    BadRequest = "bad_request", 400, "Bad request", false;
    /// The reducer's arguments are missing, unknown or of the wrong type.
    BadArguments = "bad_arguments", 422, "Bad arguments", false;
    /// SQLite cannot parse the statement, or it is not a single read-only statement.
    BadSql = "bad_sql", 400, "Bad SQL", false;
    /// The statement is valid, but does not support the request, such as a live query.
    UnsupportedSql = "unsupported_sql", 422, "Unsupported SQL", false;
    /// The credentials are missing or invalid.
    Unauthenticated = "unauthenticated", 401, "Not authenticated", false;
    /// The caller is authenticated but lacks permission.
    Denied = "denied", 403, "Denied", false;
    /// The object does not exist, or the caller may not see it.
    NotFound = "not_found", 404, "Not found", false;
    /// No reducer has this name.
    UnknownReducer = "unknown_reducer", 404, "Unknown reducer", false;
    /// The state of the row does not allow it; another caller was first.
    Conflict = "conflict", 409, "Conflict", false;
    /// Another process has the database file open.
    FileLocked = "file_locked", 409, "File locked", false;
    /// The session's status does not allow it.
    BadTransition = "bad_transition", 409, "Bad transition", false;
    /// The `call_id` is already used by a different call.
    CallIdConflict = "call_id_conflict", 409, "Call id conflict", false;
    /// The request id is already used by a different request.
    RequestIdConflict = "request_id_conflict", 409, "Request id conflict", false;
    /// The caller no longer holds the lease.
    LeaseLost = "lease_lost", 409, "Lease lost", false;
    /// The request exceeds a limit.
    LimitExceeded = "limit_exceeded", 413, "Limit exceeded", false;
    /// A rate, a quota or a limit of concurrent work holds the request back: of the caller, a tool or a run.
    RateLimited = "rate_limited", 429, "Rate limited", true;
    /// A queue or a buffer of the server is full, or a long query was ended so that the write-ahead log can start again.
    Overloaded = "overloaded", 503, "Overloaded", true;
    /// The engine closes, or the file is in use.
    Unavailable = "unavailable", 503, "Unavailable", true;
    /// The changes that a subscription needs are not available; a snapshot follows.
    ResyncRequired = "resync_required", 410, "Resync required", true;
    /// The requested past state is no longer available.
    HistoryExpired = "history_expired", 410, "History expired", false;
    /// The disk is full; nothing was written.
    DiskFull = "disk_full", 507, "Disk full", true;
    /// A write or a sync to disk failed, or the engine panicked; all calls are refused until the file is reopened.
    EngineFailed = "engine_failed", 503, "Engine failed", false;
    /// An error of the engine or the server. Details are in its log.
    Internal = "internal", 500, "Internal error", false;
}

impl Code {
    /// Returns `true` if the request had no effect and may succeed after a pause. SDKs repeat it.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Code::RateLimited | Code::Overloaded | Code::Unavailable)
    }

    /// Parses a code.
    #[must_use]
    pub fn parse(text: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Code, D::Error> {
        let text = String::deserialize(deserializer)?;
        // A newer server may know more codes; the sentence still explains.
        Ok(Code::parse(&text).unwrap_or(Code::Internal))
    }
}

/// The text around the query in [`Refusal::hint_query`].
const QUERY_HINT: [&str; 2] = ["the query `", "` lists them"];

/// Names that the schema of a database lists. Each interface shows the schema in its own way, so hints have a neutral
/// text, which an interface can replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The tables and views.
    Tables,
    /// The columns of each table.
    Columns,
    /// The reducers.
    Reducers,
}

impl Listing {
    /// All listings.
    pub const ALL: [Listing; 3] = [Listing::Tables, Listing::Columns, Listing::Reducers];

    /// Returns the text of a hint.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        match self {
            Listing::Tables => "the schema lists the tables",
            Listing::Columns => "the schema lists the columns of every table",
            Listing::Reducers => "the schema lists the reducers",
        }
    }
}

/// The hint of a failure whose cause is in the log of the process that runs the engine.
pub const SEE_LOG: &str = "see the engine's log for the cause";

/// A refusal of a request. No row changed, except where the reducer records the refusal (a late result).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{detail}", in_batch(*batch_position))]
pub struct Refusal {
    /// The code that programs branch on.
    pub code: Code,
    /// One lowercase sentence without a full stop.
    pub detail: String,
    /// How to fix it, if there is advice.
    pub hint: Option<String>,
    /// How long to wait before a retry, if the caller's own rate limit or quota refused the request.
    pub retry_after_ms: Option<u64>,
    /// The position of the refused call in its batch, from 1. The displayed sentence begins with it.
    pub batch_position: Option<usize>,
}

/// Returns the sentence of a library, or of the operating system, as part of a refusal: its first letter becomes lowercase.
/// Abbreviations such as "UNIQUE", and what the sentence quotes, stay as they are.
#[must_use]
pub fn lowercase_first(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            first.to_lowercase().collect::<String>() + &text[first.len_utf8()..]
        }
        _ => text.to_owned(),
    }
}

fn in_batch(position: Option<usize>) -> String {
    position.map_or_else(String::new, |position| format!("call {position} of the batch: "))
}

/// Returns `true` if the process or the system has too many open files: `EMFILE` or `ENFILE`, whose numbers are the same on
/// Linux, macOS and the BSDs. The standard library has no name for them.
#[must_use]
pub fn has_too_many_files(why: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    cfg!(unix) && matches!(why.raw_os_error(), Some(ENFILE | EMFILE))
}

impl Refusal {
    /// A refusal without a hint.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Refusal {
        Refusal {
            code,
            detail: detail.into(),
            hint: None,
            retry_after_ms: None,
            batch_position: None,
        }
    }

    /// Adds a hint. Commands and queries in it have backticks.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Refusal {
        self.hint = Some(hint.into());
        self
    }

    /// Replaces the code and the hint if an error of the system is that it has no more space or open files. The path and the
    /// permissions of a file are not the reason then.
    #[must_use]
    pub fn explain_exhaustion(self, why: &io::Error) -> Refusal {
        let (code, hint) = match why.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                (Code::DiskFull, "free some space, and try again")
            }
            _ if has_too_many_files(why) => {
                let hint =
                    "raise the limit of open files: `ulimit -n`, or fs.file-max of the system";
                (Code::Unavailable, hint)
            }
            _ => return self,
        };
        Refusal { code, ..self }.hint(hint)
    }

    /// Adds the query that lists the objects to choose from. The command line shows it as a command.
    #[must_use]
    pub fn hint_query(self, sql: &str) -> Refusal {
        let [before, after] = QUERY_HINT;
        self.hint(format!("{before}{sql}{after}"))
    }

    /// Returns the query of [`Refusal::hint_query`].
    #[must_use]
    pub fn hinted_query(&self) -> Option<&str> {
        let [before, after] = QUERY_HINT;
        self.hint.as_deref()?.strip_prefix(before)?.strip_suffix(after)
    }

    /// Replaces each listing in the hint by the text of an interface.
    #[must_use]
    pub fn show_listings(self, text: impl Fn(Listing) -> &'static str) -> Refusal {
        Refusal {
            hint: self.hint.map(|hint| {
                let all = Listing::ALL.into_iter();
                all.fold(hint, |hint, listing| hint.replace(listing.hint(), text(listing)))
            }),
            ..self
        }
    }

    /// Adds how long to wait before a retry.
    #[must_use]
    pub fn retry_after_ms(mut self, ms: u64) -> Refusal {
        self.retry_after_ms = Some(ms);
        self
    }

    /// Returns the refusal without the position of the call in its batch: for a batch that the program made, not its
    /// user.
    #[must_use]
    pub fn outside_batch(self) -> Refusal {
        Refusal { batch_position: None, ..self }
    }

    /// Returns the problem document of RFC 9457, with our `code`, `hint` and `retryable`.
    #[must_use]
    pub fn problem(&self) -> Value {
        let mut problem = json!({
            "type": "about:blank",
            "title": self.code.title(),
            "status": self.code.http_status(),
            "code": self.code.as_str(),
            "detail": self.detail,
            "retryable": self.code.retryable(),
        });
        if let Some(hint) = &self.hint {
            problem["hint"] = hint.as_str().into();
        }
        if let Some(ms) = self.retry_after_ms {
            problem["retry_after_ms"] = ms.into();
        }
        if let Some(position) = self.batch_position {
            problem["batch_position"] = position.into();
        }
        problem
    }
}

impl From<UnpairedSurrogate> for Refusal {
    fn from(found: UnpairedSurrogate) -> Refusal {
        Refusal::new(Code::BadArguments, found.to_string()).hint(
            "send whole characters: a text was cut by UTF-16 units; in JavaScript, \
                 toWellFormed() repairs it",
        )
    }
}

impl From<TooDeep> for Refusal {
    fn from(found: TooDeep) -> Refusal {
        Refusal::new(Code::LimitExceeded, format!("the JSON {found}")).hint(integers::DEPTH_HINT)
    }
}

impl From<ReservedName> for Refusal {
    fn from(found: ReservedName) -> Refusal {
        Refusal::new(Code::BadArguments, found.to_string()).hint("rename the member")
    }
}

impl From<OutOfRange> for Refusal {
    fn from(found: OutOfRange) -> Refusal {
        Refusal::new(Code::BadArguments, found.to_string()).hint(integers::HINT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk, and too many open files, had the hint to check the path.
    #[test]
    fn an_exhausted_system_is_not_a_mistake_in_a_path() {
        let explain = |errno: i32| {
            let refusal = Refusal::new(Code::BadRequest, "a.db cannot be written");
            let why = io::Error::from_raw_os_error(errno);
            let refusal = refusal.hint("check the path").explain_exhaustion(&why);
            (refusal.code, refusal.hint.unwrap_or_default())
        };
        // ENOENT, EACCES.
        for errno in [2, 13] {
            assert_eq!(explain(errno), (Code::BadRequest, "check the path".to_owned()), "{errno}");
        }
        // ENFILE, EMFILE, ENOSPC.
        for (errno, code, part) in [
            (23, Code::Unavailable, "ulimit -n"),
            (24, Code::Unavailable, "ulimit -n"),
            (28, Code::DiskFull, "free some space"),
        ] {
            let (found, hint) = explain(errno);
            assert!(found == code && hint.contains(part), "{errno}: {found:?} {hint}");
        }
    }

    #[test]
    fn codes_round_trip() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
        assert_eq!(Code::parse("no_such_code"), None);
    }

    #[test]
    fn only_the_first_letter_of_a_sentence_becomes_lowercase() {
        for (text, expected) in [
            ("Unknown field `JWKS`", "unknown field `JWKS`"),
            ("UNIQUE constraint failed", "UNIQUE constraint failed"),
            ("no such file", "no such file"),
            ("A", "A"),
            ("", ""),
        ] {
            assert_eq!(lowercase_first(text), expected);
        }
    }
}
