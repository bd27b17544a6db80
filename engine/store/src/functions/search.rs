//! Search in the texts and vectors of rows: `fts_match`, `fts_rank` and `vector_similarity`.
//!
//! `fts_match` and `fts_rank` use FTS5: each call indexes one text in memory, looks the query up, and drops the index.
//! There is no index in the file, so nothing can differ from the rows after a replay, a recovery or a backup, and
//! a live query evaluates the function for the rows that change. The result depends on one text only. A ranking with
//! statistics of all texts, such as BM25, would reveal the words of rows that the caller does not see.
//!
//! The cost is linear in the texts that are searched. The rows of a memory are few (`MEMORIES_OF_A_SPACE`).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_schema::limits;
use rusqlite::{Connection, OptionalExtension as _, Result};

const INDEX: &str = "CREATE VIRTUAL TABLE texts USING fts5(
  text, content = '', tokenize = 'porter unicode61 remove_diacritics 2')";

const ADD: &str = "INSERT INTO texts(rowid, text) VALUES (1, ?1)";

const FIND: &str = "SELECT 1 FROM texts WHERE texts MATCH ?1";

/// Words of a query that `fts_rank` looks up; it ignores further ones.
const WORDS: usize = 64;

/// Bytes of work for a call, apart from its text: the index is empty at first.
const CALL_WORK: usize = 256;

/// Work for a byte of an indexed text, in bytes.
const BYTE_WORK: usize = 4;

/// The work of looking up some terms in a text, in bytes.
pub(super) fn work(text: &[u8], terms: usize) -> usize {
    CALL_WORK + text.len().saturating_mul(BYTE_WORK + terms)
}

/// The number of terms of a query, or more.
pub(super) fn terms(query: &str) -> usize {
    query.split(|c: char| !c.is_alphanumeric()).count()
}

/// The distinct words of a query.
pub(super) fn words(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.take(WORDS).map(str::to_lowercase).collect()
}

/// The index of one text, opened on first use.
#[derive(Clone, Default)]
pub(super) struct TextIndex(Arc<Mutex<Option<Loaded>>>);

impl fmt::Debug for TextIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TextIndex")
    }
}

struct Loaded {
    connection: Connection,
    /// The text in the index. `WHERE` and `ORDER BY` often ask for the same row.
    text: Option<Vec<u8>>,
}

impl TextIndex {
    /// Whether a text matches a query of FTS5.
    pub(super) fn matches(&self, text: &[u8], query: &str) -> Result<bool> {
        self.with(text, |index| index.matches(query))
    }

    /// The share of these words that a text contains, from 0 to 1.
    pub(super) fn rank(&self, text: &[u8], words: &BTreeSet<String>) -> Result<f64> {
        if words.is_empty() {
            return Ok(0.0);
        }
        self.with(text, |index| {
            let mut found = 0_u32;
            for word in words {
                found += u32::from(index.matches(&format!("\"{word}\""))?);
            }
            Ok(f64::from(found) / words.len() as f64)
        })
    }

    fn with<T>(&self, text: &[u8], look: impl FnOnce(&Loaded) -> Result<T>) -> Result<T> {
        let mut index = self.lock();
        let index = match &mut *index {
            Some(index) => index,
            none => none.insert(Loaded::open()?),
        };
        index.load(text)?;
        look(index)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Loaded>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loaded {
    fn open() -> Result<Loaded> {
        let connection = Connection::open_in_memory()?;
        crate::interrupt::set_value_bytes(&connection, limits::QUERY_VALUE_BYTES)?;
        connection.execute_batch(INDEX)?;
        Ok(Loaded { connection, text: None })
    }

    /// Puts a text in the index, in place of the last one. The transaction is never committed.
    fn load(&mut self, text: &[u8]) -> Result<()> {
        if self.text.as_deref() == Some(text) {
            return Ok(());
        }
        if self.text.take().is_some() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        self.connection.execute_batch("BEGIN")?;
        // From here on there is a transaction to roll back, whatever happens.
        self.text = Some(Vec::new());
        self.connection.prepare_cached(ADD)?.execute([String::from_utf8_lossy(text)])?;
        self.text = Some(text.to_vec());
        Ok(())
    }

    fn matches(&self, query: &str) -> Result<bool> {
        let mut find = self.connection.prepare_cached(FIND)?;
        Ok(find.query_row([query], |_| Ok(())).optional()?.is_some())
    }
}

/// The cosine of two vectors of 32-bit floats, little-endian, from -1 to 1. `None` if they cannot be compared.
pub(super) fn similarity(one: &[u8], other: &[u8]) -> Option<f64> {
    if one.len() != other.len() || !one.len().is_multiple_of(4) {
        return None;
    }
    let (mut product, mut squares) = (0.0, (0.0, 0.0));
    for (a, b) in numbers(one).zip(numbers(other)) {
        product += a * b;
        squares.0 += a * a;
        squares.1 += b * b;
    }
    let length: f64 = f64::sqrt(squares.0 * squares.1);
    // A result that is not a number is NULL in SQLite.
    (length > 0.0 && f64::is_finite(product)).then(|| (product / length).clamp(-1.0, 1.0))
}

fn numbers(vector: &[u8]) -> impl Iterator<Item = f64> {
    vector.chunks_exact(4).map(|it| f64::from(f32::from_le_bytes([it[0], it[1], it[2], it[3]])))
}
