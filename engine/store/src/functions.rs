//! Replacements of SQLite's functions with more than linear cost in one call. SQLite checks for an
//! interrupt between steps of its virtual machine, and a call is one step: `instr` of two megabytes
//! takes 17 s and cannot be interrupted. The replacements have the same results, count their work,
//! and stop when the statement is interrupted.
//!
//! `json_patch` is SQLite's, for documents with so few keys that it takes a short time; others are `too big`.
//!
//! All other functions are linear in values whose size is limited; see [`crate::interrupt`].
//!
//! *Invariant:* every replacement returns the same bytes and the same type as SQLite's function.
//!
//! SQLite does not use an index range for a replaced LIKE or GLOB. (For LIKE it could only do so
//! with a NOCASE index; the router of live queries has its own ranges.)
//!
//! `search` adds functions that SQLite does not have.

mod glob;
mod search;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use abide_schema::limits;
use memchr::memmem;
use rusqlite::functions::{Context, FunctionFlags, SubType};
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, Result, ffi};

use crate::interrupt::Interrupt;

/// SQLite's subtype of JSON values: the letter J.
const JSON: u32 = 74;

/// Work of one call of SQLite's `json_patch`, in bytes: some 20 ms, in which nothing can interrupt it.
const PATCH_WORK: usize = 64 << 20;

const PRETTY: &str = "SELECT json_pretty(?1, ?2)";

/// The maximum nesting of JSON, as in SQLite.
const JSON_DEPTH: usize = 1_000;

/// The shared state of one connection's functions.
#[derive(Clone, Debug)]
struct FunctionContext {
    interrupt: Interrupt,
    /// A connection with SQLite's own functions, opened on first use.
    own: Arc<OnceLock<Mutex<Connection>>>,
    /// For `fts_match` and `fts_rank`.
    index: search::TextIndex,
}

/// A text, not necessarily UTF-8.
struct Text(Vec<u8>);

impl ToSql for Text {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// Installs the limits of caller statements on a connection, and the replacements of functions that
/// could not be interrupted. `value_bytes` is the default limit of a value.
pub(crate) fn install(connection: &mut Connection, value_bytes: usize) -> Result<Interrupt> {
    let interrupt = Interrupt::install(connection, value_bytes)?;
    let state = FunctionContext {
        interrupt: interrupt.clone(),
        own: Arc::default(),
        index: search::TextIndex::default(),
    };
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    macro_rules! define {
        ($name:expr, $arguments:literal, $flags:expr, $function:expr) => {{
            let state = state.clone();
            let function = move |context: &Context<'_>| ($function)(&state, context);
            connection.create_scalar_function($name, $arguments, $flags, function)?;
        }};
    }
    define!("instr", 2, flags, FunctionContext::instr);
    define!("replace", 3, flags, FunctionContext::replace);
    define!("like", 2, flags, FunctionContext::like);
    define!("like", 3, flags, FunctionContext::like);
    define!("glob", 2, flags, FunctionContext::glob);
    define!("trim", 2, flags, |state: &FunctionContext, context: &_| {
        state.trim(context, TrimmedEnds { start: true, end: true })
    });
    define!("ltrim", 2, flags, |state: &FunctionContext, context: &_| {
        state.trim(context, TrimmedEnds { start: true, end: false })
    });
    define!("rtrim", 2, flags, |state: &FunctionContext, context: &_| {
        state.trim(context, TrimmedEnds { start: false, end: true })
    });
    define!("unhex", 2, flags, FunctionContext::unhex);
    let json = flags | FunctionFlags::SQLITE_RESULT_SUBTYPE;
    define!("json_patch", 2, json, |state: &FunctionContext, context: &_| {
        let patched = state.patch("SELECT json_patch(?1, ?2)", context)?;
        let subtype: SubType = Some(JSON).filter(|_| patched.is_some());
        Ok((patched.map(Text), subtype))
    });
    define!("jsonb_patch", 2, flags, |state: &FunctionContext, context: &_| {
        state.patch("SELECT jsonb_patch(?1, ?2)", context)
    });
    define!("fts_match", 2, flags, FunctionContext::fts_match);
    define!("fts_rank", 2, flags, FunctionContext::fts_rank);
    let same = json | FunctionFlags::from_bits_retain(ffi::SQLITE_SUBTYPE);
    define!(READ_FUNCTION, 2, same, FunctionContext::read);
    define!(VISIBLE_READ_FUNCTION, 2, same, FunctionContext::visible_read);
    // Not deterministic: SQLite calls it for each row.
    let per_row = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    define!(VISIBLE_FUNCTION, -1, per_row, |state: &FunctionContext, _: &_| state.visible());
    define!("vector_similarity", 2, flags, FunctionContext::vector_similarity);
    define!("json_pretty", 1, flags, FunctionContext::pretty);
    define!("json_pretty", 2, flags, FunctionContext::pretty);
    Ok(interrupt)
}

/// The name of the function `abide_read(value, times)`. It returns its first argument, and counts its
/// bytes as often as the second one says: the work of the function that gets the result. So a function of
/// SQLite does not begin if the statement cannot afford it.
pub const READ_FUNCTION: &str = "abide_read";

/// The name of the function `abide_visible_read(value, times)`: [`READ_FUNCTION`] in an expression of a restricted
/// caller, which is evaluated on rows that the caller sees only. It also counts the bytes as work for such rows.
pub const VISIBLE_READ_FUNCTION: &str = "abide_visible_read";

/// The name of the function `abide_visible(key, …)`. It returns 1, and counts a row that a restricted caller sees. It does not
/// read its arguments: they make a condition depend on the row.
pub const VISIBLE_FUNCTION: &str = "abide_visible";

/// The ends of a text from which characters are trimmed.
#[derive(Clone, Copy)]
struct TrimmedEnds {
    start: bool,
    end: bool,
}

/// A value as it was given.
struct SameValue(SqlValue);

enum SqlValue {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl ToSql for SameValue {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match &self.0 {
            SqlValue::Null => ValueRef::Null,
            SqlValue::Integer(number) => ValueRef::Integer(*number),
            SqlValue::Real(number) => ValueRef::Real(*number),
            SqlValue::Text(bytes) => ValueRef::Text(bytes),
            SqlValue::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl FunctionContext {
    /// Counts work, in bytes.
    fn charge(&self, bytes: usize) -> Result<()> {
        if self.interrupt.charge(bytes as u64) { Ok(()) } else { Err(interrupted()) }
    }

    /// See [`VISIBLE_FUNCTION`].
    fn visible(&self) -> Result<i64> {
        if self.interrupt.charge_visible(1, 0) { Ok(1) } else { Err(interrupted()) }
    }

    /// See [`VISIBLE_READ_FUNCTION`].
    fn visible_read(&self, context: &Context<'_>) -> Result<(SameValue, SubType)> {
        let times = u64::try_from(context.get::<i64>(1)?).unwrap_or(u64::MAX);
        let bytes = match context.get_raw(0) {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len() as u64,
            ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => 0,
        };
        if !self.interrupt.charge_visible(0, bytes.saturating_mul(times)) {
            return Err(interrupted());
        }
        self.read(context)
    }

    /// See [`READ_FUNCTION`].
    fn read(&self, context: &Context<'_>) -> Result<(SameValue, SubType)> {
        let times = usize::try_from(context.get::<i64>(1)?).unwrap_or(usize::MAX);
        let value = match context.get_raw(0) {
            ValueRef::Null => SqlValue::Null,
            ValueRef::Integer(number) => SqlValue::Integer(number),
            ValueRef::Real(number) => SqlValue::Real(number),
            ValueRef::Text(bytes) => {
                self.charge(bytes.len().saturating_mul(times))?;
                SqlValue::Text(bytes.to_vec())
            }
            ValueRef::Blob(bytes) => {
                self.charge(bytes.len().saturating_mul(times))?;
                SqlValue::Blob(bytes.to_vec())
            }
        };
        let subtype: SubType = Some(context.get_subtype(0)).filter(|subtype| *subtype != 0);
        Ok((SameValue(value), subtype))
    }

    /// An argument as text; `None` if it is NULL.
    fn text_argument<'a>(
        &self,
        context: &'a Context<'_>,
        at: usize,
    ) -> Result<Option<Cow<'a, [u8]>>> {
        Ok(match context.get_raw(at) {
            ValueRef::Null => None,
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(Cow::Borrowed(bytes)),
            ValueRef::Integer(number) => Some(Cow::Owned(number.to_string().into_bytes())),
            // The number of digits is up to SQLite.
            ValueRef::Real(number) => {
                let text: Option<String> = self.native_connection()?.query_row(
                    "SELECT CAST(?1 AS TEXT)",
                    [number],
                    |row| row.get(0),
                )?;
                text.map(|text| Cow::Owned(text.into_bytes()))
            }
        })
    }

    /// A connection with SQLite's own functions.
    fn native_connection(&self) -> Result<MutexGuard<'_, Connection>> {
        if self.own.get().is_none() {
            let connection = Connection::open_in_memory()?;
            crate::interrupt::set_value_bytes(&connection, limits::QUERY_VALUE_BYTES)?;
            let _ = self.own.set(Mutex::new(connection));
        }
        let own = self.own.get().expect("it was just set");
        Ok(own.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn instr(&self, context: &Context<'_>) -> Result<Option<i64>> {
        let blobs = [0, 1].map(|at| matches!(context.get_raw(at), ValueRef::Blob(_)));
        let (Some(text), Some(wanted)) =
            (self.text_argument(context, 0)?, self.text_argument(context, 1)?)
        else {
            return Ok(None);
        };
        self.charge(text.len() + wanted.len())?;
        let text = &*text;
        let wanted = &*wanted;
        let Some(first) = wanted.first() else { return Ok(Some(1)) };
        let is_text = blobs != [true, true];
        let found = if is_text && is_within_character(*first) {
            // SQLite advances by whole characters, and no continuation byte can start a match.
            text.starts_with(wanted).then_some(0)
        } else {
            memmem::find(text, wanted)
        };
        let Some(found) = found else { return Ok(Some(0)) };
        let before = if is_text {
            text.get(1..=found)
                .map_or(0, |text| text.iter().filter(|byte| !is_within_character(**byte)).count())
        } else {
            found
        };
        Ok(Some(1 + i64::try_from(before).unwrap_or(i64::MAX)))
    }

    fn replace(&self, context: &Context<'_>) -> Result<Option<Text>> {
        let Some(text) = self.text_argument(context, 0)? else { return Ok(None) };
        let Some(wanted) = self.text_argument(context, 1)? else { return Ok(None) };
        if wanted.first().is_none_or(|first| *first == 0) {
            return Ok(Some(Text(text.into_owned())));
        }
        let Some(other) = self.text_argument(context, 2)? else { return Ok(None) };
        self.charge(text.len() + wanted.len() + other.len())?;
        let found: Vec<usize> = memmem::find_iter(&text, &*wanted).collect();
        let bytes = text.len() - found.len() * wanted.len() + found.len() * other.len();
        if bytes > limits::QUERY_VALUE_BYTES {
            return Err(too_big());
        }
        self.charge(bytes)?;
        let mut out = Vec::with_capacity(bytes);
        let mut copied = 0;
        for at in found {
            out.extend_from_slice(&text[copied..at]);
            out.extend_from_slice(&other);
            copied = at + wanted.len();
        }
        out.extend_from_slice(&text[copied..]);
        Ok(Some(Text(out)))
    }

    fn like(&self, context: &Context<'_>) -> Result<Option<bool>> {
        let escape = if context.len() == 3 {
            let Some(escape) = self.text_argument(context, 2)? else {
                // SQLite checks the length of the pattern first.
                self.pattern_argument(context)?;
                return Ok(None);
            };
            self.pattern_argument(context)?;
            let single = glob::single_character(&escape);
            Some(single.ok_or_else(|| failed("ESCAPE expression must be a single character"))?)
        } else {
            None
        };
        self.matches(context, &glob::Dialect::like(escape))
    }

    fn glob(&self, context: &Context<'_>) -> Result<Option<bool>> {
        self.matches(context, &glob::Dialect::glob())
    }

    /// The pattern, if it is not too long.
    fn pattern_argument<'a>(&self, context: &'a Context<'_>) -> Result<Option<Cow<'a, [u8]>>> {
        let pattern = self.text_argument(context, 0)?;
        if pattern.as_ref().is_some_and(|pattern| pattern.len() > limits::PATTERN_BYTES) {
            return Err(failed("LIKE or GLOB pattern too complex"));
        }
        Ok(pattern)
    }

    fn matches(&self, context: &Context<'_>, dialect: &glob::Dialect) -> Result<Option<bool>> {
        let pattern = self.pattern_argument(context)?;
        let (Some(pattern), Some(text)) = (pattern, self.text_argument(context, 1)?) else {
            return Ok(None);
        };
        let mut charge = |steps| self.interrupt.charge(steps);
        let matched = dialect.matches(&pattern, &text, &mut charge);
        matched.map(Some).ok_or_else(interrupted)
    }

    /// `fts_match(text, query)`: whether a text matches a query of FTS5.
    fn fts_match(&self, context: &Context<'_>) -> Result<Option<bool>> {
        let (Some(text), Some(query)) =
            (self.text_argument(context, 0)?, self.query_argument(context)?)
        else {
            return Ok(None);
        };
        if query.trim_start().starts_with('*') {
            // FTS5 would return facts about the index.
            return Err(failed("fts5: syntax error near \"*\""));
        }
        if query.trim().is_empty() {
            return Ok(Some(false));
        }
        let work = search::Work::begin(&self.interrupt)?;
        self.index.matches(work, &text, &query).map(Some)
    }

    /// `fts_rank(text, query)`: the share of the words of a query that a text contains, from 0 to 1.
    fn fts_rank(&self, context: &Context<'_>) -> Result<Option<f64>> {
        let (Some(text), Some(query)) =
            (self.text_argument(context, 0)?, self.query_argument(context)?)
        else {
            return Ok(None);
        };
        let work = search::Work::begin(&self.interrupt)?;
        self.index.rank(work, &text, &query).map(Some)
    }

    /// The query of a search, if it is not too long.
    fn query_argument(&self, context: &Context<'_>) -> Result<Option<String>> {
        let query = self.text_argument(context, 1)?;
        if query.as_ref().is_some_and(|query| query.len() > limits::PATTERN_BYTES) {
            return Err(failed("the query of fts_match or fts_rank is too long"));
        }
        Ok(query.map(|query| String::from_utf8_lossy(&query).into_owned()))
    }

    /// `vector_similarity(a, b)`: the cosine of two vectors, from -1 to 1. NULL if they cannot be compared.
    fn vector_similarity(&self, context: &Context<'_>) -> Result<Option<f64>> {
        let (ValueRef::Blob(one), ValueRef::Blob(other)) = (context.get_raw(0), context.get_raw(1))
        else {
            return Ok(None);
        };
        self.charge(one.len() + other.len())?;
        Ok(search::similarity(one, other))
    }

    fn trim(&self, context: &Context<'_>, ends: TrimmedEnds) -> Result<Option<Text>> {
        let Some(text) = self.text_argument(context, 0)? else { return Ok(None) };
        let Some(set) = self.text_argument(context, 1)? else { return Ok(None) };
        self.charge(text.len() + set.len())?;
        let set = glob::characters(&set);
        let mut text = &*text;
        while ends.start && !text.is_empty() {
            let found = self.find_character(&set, &|character| text.starts_with(character))?;
            let Some(character) = found else { break };
            text = &text[character.len()..];
        }
        while ends.end && !text.is_empty() {
            let found = self.find_character(&set, &|character| text.ends_with(character))?;
            let Some(character) = found else { break };
            text = &text[..text.len() - character.len()];
        }
        Ok(Some(Text(text.to_vec())))
    }

    /// Returns the first character of a set that fits. For text that is not UTF-8, several may.
    fn find_character<'s>(
        &self,
        set: &[&'s [u8]],
        fits: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<&'s [u8]>> {
        let at = set.iter().position(|character| fits(character));
        self.charge(16 * at.unwrap_or(set.len()))?;
        Ok(at.map(|at| set[at]))
    }

    fn unhex(&self, context: &Context<'_>) -> Result<Option<Vec<u8>>> {
        let (Some(text), Some(passed)) =
            (self.text_argument(context, 0)?, self.text_argument(context, 1)?)
        else {
            return Ok(None);
        };
        self.charge(text.len() + passed.len())?;
        let text = glob::until_nul(&text);
        let mut out = Vec::with_capacity(text.len() / 2);
        let mut at = 0;
        while at < text.len() {
            match (hex_digit(text, at), hex_digit(text, at + 1)) {
                (Some(high), Some(low)) => {
                    out.push(u8::try_from(high << 4 | low).expect("two digits are a byte"));
                    at += 2;
                }
                (Some(_), None) => return Ok(None),
                (None, _) => {
                    let (character, next) = glob::read_character(text, at);
                    let mut passes = 0;
                    let mut known = false;
                    while passes < passed.len() && !known {
                        let (other, next) = glob::read_character_or_nul(&passed, passes);
                        known = other == character;
                        passes = next;
                    }
                    self.charge(16 * passes)?;
                    if !known {
                        return Ok(None);
                    }
                    at = next;
                }
            }
        }
        Ok(Some(out))
    }

    /// Calls SQLite's function, if it does not take too long: for each key of the patch it searches the keys of the document,
    /// those included that it has added.
    fn patch(&self, sql: &str, context: &Context<'_>) -> Result<Option<Vec<u8>>> {
        let values = [context.get_raw(0), context.get_raw(1)];
        let keys = values.map(|value| match value {
            ValueRef::Text(text) => memchr::memchr_iter(b':', text).count(),
            // In JSONB a key takes at least two bytes and its value one.
            ValueRef::Blob(blob) => blob.len() / 3,
            _ => 0,
        });
        let bytes = values.map(|value| match value {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
            _ => 0,
        });
        let mut work = patch_work(keys, bytes);
        if work > PATCH_WORK {
            // Most of the colons can be those of texts.
            self.charge(bytes[0] + bytes[1])?;
            let Some(document) = self.canonical_json(values[0])? else { return Ok(None) };
            let Some(patch) = self.canonical_json(values[1])? else { return Ok(None) };
            work = patch_work([count_keys(&document), count_keys(&patch)], bytes);
            if work > PATCH_WORK {
                return Err(too_big());
            }
        }
        self.charge(work)?;
        self.call_native(sql, values)
    }

    /// A JSON value as canonical text.
    fn canonical_json(&self, value: ValueRef<'_>) -> Result<Option<Vec<u8>>> {
        self.call_native("SELECT json(?1) WHERE ?2 IS NULL", [value, ValueRef::Null])
    }

    /// The result of SQLite's own function.
    fn call_native(&self, sql: &str, values: [ValueRef<'_>; 2]) -> Result<Option<Vec<u8>>> {
        let own = self.native_connection()?;
        let mut statement = own.prepare_cached(sql)?;
        statement.query_row(values.map(ToSqlOutput::Borrowed), |row| {
            Ok(row.get_ref(0)?.as_bytes_or_null()?.map(<[u8]>::to_vec))
        })
    }

    /// Calls SQLite's function, if the result is not too large: each line is indented by its depth.
    fn pretty(&self, context: &Context<'_>) -> Result<Option<Text>> {
        let indent = if context.len() == 2 { self.text_argument(context, 1)? } else { None };
        let indent = indent.as_deref().map_or(&b"    "[..], glob::until_nul);
        let given = context.get_raw(0);
        // This function checks JSONB less strictly than `json` does; as text it cannot be larger
        // than this.
        if let ValueRef::Blob(blob) = given
            && blob
                .len()
                .saturating_mul(blob.len().min(JSON_DEPTH))
                .saturating_mul(indent.len() + 8)
                <= limits::QUERY_VALUE_BYTES
        {
            self.charge(blob.len())?;
            return Ok(self.call_native(PRETTY, [given, ValueRef::Text(indent)])?.map(Text));
        }
        let Some(json) = self.canonical_json(given)? else { return Ok(None) };
        let bytes = pretty_bytes(&json, indent.len());
        if bytes > limits::QUERY_VALUE_BYTES {
            return Err(too_big());
        }
        self.charge(bytes)?;
        let values = [ValueRef::Text(&json), ValueRef::Text(indent)];
        Ok(self.call_native(PRETTY, values)?.map(Text))
    }
}

/// The work of patching a document, in bytes. A key of the patch that is missing in the document moves the content after it.
fn patch_work([of_document, of_patch]: [usize; 2], bytes: [usize; 2]) -> usize {
    of_patch.saturating_mul(16 * (of_document + of_patch) + bytes[0] + bytes[1])
}

/// The number of keys in a JSON text without errors.
fn count_keys(json: &[u8]) -> usize {
    let mut keys = 0;
    let mut quoted = false;
    let mut escaped = false;
    for byte in json.iter().copied() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b':' if !quoted => keys += 1,
            _ => {}
        }
    }
    keys
}

/// The length of a JSON text with each element on its own line.
fn pretty_bytes(json: &[u8], indent: usize) -> usize {
    let mut bytes = json.len();
    let mut depth = 0_usize;
    let mut quoted = false;
    let mut escaped = false;
    for byte in json.iter().copied() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' => {}
            _ => continue,
        }
        if !quoted && matches!(byte, b'[' | b'{' | b']' | b'}' | b',' | b':') {
            bytes = bytes.saturating_add(1).saturating_add(indent.saturating_mul(depth));
        }
    }
    bytes
}

/// The value of the hexadecimal digit at a position; `None` for anything else.
fn hex_digit(text: &[u8], at: usize) -> Option<u32> {
    text.get(at).and_then(|byte| char::from(*byte).to_digit(16))
}

/// The error of a statement that is interrupted in a function.
fn interrupted() -> Error {
    failure(ffi::SQLITE_INTERRUPT, None)
}

fn too_big() -> Error {
    failure(ffi::SQLITE_TOOBIG, None)
}

fn failed(message: &str) -> Error {
    failure(ffi::SQLITE_ERROR, Some(message.to_owned()))
}

fn failure(code: i32, message: Option<String>) -> Error {
    Error::SqliteFailure(ffi::Error::new(code), message)
}

/// Whether a byte is a UTF-8 continuation byte.
fn is_within_character(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

#[cfg(test)]
mod tests;
