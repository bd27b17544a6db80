//! Search in the texts and vectors of rows: `fts_match`, `fts_rank` and `vector_similarity`.
//!
//! FTS5 reads the words of a text and checks the syntax of a query; both are short calls with bounded input. The
//! matching is our own, because that of FTS5 is one step of SQLite's virtual machine: `NEAR` with 200 phrases in a text of
//! 10,000 words took 6 s in one call, and nothing could interrupt it. Here each word that is visited counts as work.
//!
//! There is no index in the file, so nothing can differ from the rows after a replay, a recovery or a backup, and
//! a live query evaluates the function for the rows that change. The result depends on one text only. A ranking with
//! statistics of all texts, such as BM25, would reveal the words of rows that the caller does not see.
//!
//! *Invariant:* `fts_match` returns what a table of FTS5 with this text and the tokenizer of [`INDEX`] returns.
//!
//! The cost is linear in the texts that are searched. The rows of a memory are few (`MEMORIES_OF_A_SPACE`).

mod query;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_schema::limits;
use rusqlite::{Connection, OptionalExtension as _, Result};

use self::query::{Expression, Phrase, Term};
use super::{failed, interrupted};
use crate::interrupt::Interrupt;

const INDEX: &str = "CREATE VIRTUAL TABLE texts USING fts5(
  text, content = '', tokenize = 'porter unicode61 remove_diacritics 2');
  CREATE VIRTUAL TABLE words USING fts5vocab(texts, instance);";

const ADD: &str = "INSERT INTO texts(rowid, text) VALUES (?1, ?2)";

const FIND: &str = "SELECT 1 FROM texts WHERE texts MATCH ?1";

/// All words of all texts: each with the number of its text and its position in it. Ordered by word.
const WORDS: &str = "SELECT term, doc, \"offset\" FROM words";

/// Words and quoted strings of a query.
const STRINGS: usize = 256;

/// Words of a query that `fts_rank` looks up; it ignores further ones.
const RANKED_WORDS: usize = 64;

/// Bytes of work for a call, apart from its text: the index is empty at first.
const CALL_WORK: usize = 256;

/// Work for a byte of a text whose words are read, in bytes.
const BYTE_WORK: usize = 4;

/// Work for a word of such a text, in bytes.
const WORD_WORK: usize = 64;

/// Work for comparing two numbers, in bytes.
const COMPARISON_WORK: usize = 2;

/// The text that FTS5 reads in one call, unless a longer part has no separator.
const PART_BYTES: usize = 4 << 10;

/// Larger texts are not kept for the next call.
const KEPT_BYTES: usize = 64 << 10;

/// Counted work between two checks of the limits, in bytes.
const WORK_BETWEEN_CHECKS: usize = 16 << 10;

/// Counts the work of one call.
pub(super) struct Work<'a> {
    interrupt: &'a Interrupt,
    uncounted: usize,
}

impl<'a> Work<'a> {
    /// Begins a call.
    ///
    /// # Errors
    /// The statement must end here.
    pub(super) fn begin(interrupt: &'a Interrupt) -> Result<Work<'a>> {
        let mut work = Work { interrupt, uncounted: 0 };
        work.add(CALL_WORK)?;
        Ok(work)
    }

    /// Counts work, in bytes.
    ///
    /// # Errors
    /// The statement must end here.
    fn add(&mut self, bytes: usize) -> Result<()> {
        self.uncounted = self.uncounted.saturating_add(bytes);
        if self.uncounted < WORK_BETWEEN_CHECKS {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.uncounted) as u64;
        if self.interrupt.charge(bytes) { Ok(()) } else { Err(interrupted()) }
    }

    /// Counts the rest.
    ///
    /// # Errors
    /// The statement must end here.
    fn end(self) -> Result<()> {
        if self.interrupt.charge(self.uncounted as u64) { Ok(()) } else { Err(interrupted()) }
    }
}

/// The distinct words of a query.
fn ranked_words(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.take(RANKED_WORDS).map(str::to_lowercase).collect()
}

/// Reads texts and queries; opened on first use.
#[derive(Clone, Default)]
pub(super) struct TextIndex(Arc<Mutex<Option<Searcher>>>);

impl fmt::Debug for TextIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TextIndex")
    }
}

impl TextIndex {
    /// Whether a text matches a query of FTS5.
    ///
    /// # Errors
    /// The query is invalid, or the statement is interrupted.
    pub(super) fn matches(&self, mut work: Work<'_>, text: &[u8], query: &str) -> Result<bool> {
        let mut searcher = self.lock();
        let searcher = Searcher::opened(&mut searcher)?;
        let expression = searcher.expression(query, &mut work)?;
        let document = searcher.document(text, &mut work)?;
        let is_match = document.matches(&expression, &mut work)?;
        work.end()?;
        Ok(is_match)
    }

    /// The share of a query's words that a text contains, from 0 to 1.
    ///
    /// # Errors
    /// The statement is interrupted.
    pub(super) fn rank(&self, mut work: Work<'_>, text: &[u8], query: &str) -> Result<f64> {
        let words = ranked_words(query);
        if words.is_empty() {
            return Ok(0.0);
        }
        let mut searcher = self.lock();
        let searcher = Searcher::opened(&mut searcher)?;
        let pieces: Vec<&str> = words.iter().map(String::as_str).collect();
        let phrases = searcher.read_words(&pieces, &mut work)?;
        let document = searcher.document(text, &mut work)?;
        let mut found = 0_u32;
        for words in phrases.into_iter().filter(|words| !words.is_empty()) {
            let terms = words.into_iter().map(|word| Term { word, is_prefix: false }).collect();
            let phrase = Phrase { terms, is_first: false };
            found += u32::from(document.contains(&phrase, &mut work)?);
        }
        work.end()?;
        Ok(f64::from(found) / words.len() as f64)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Searcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Searcher {
    connection: Connection,
    /// `WHERE` and `ORDER BY` often ask for the same row.
    document: Option<(Vec<u8>, Arc<Document>)>,
    /// The query of a statement is mostly the same for each row.
    expression: Option<(String, Arc<Expression>)>,
}

impl Searcher {
    fn opened(searcher: &mut Option<Searcher>) -> Result<&mut Searcher> {
        match searcher {
            Some(searcher) => Ok(searcher),
            none => {
                let connection = Connection::open_in_memory()?;
                crate::interrupt::set_value_bytes(&connection, limits::QUERY_VALUE_BYTES)?;
                connection.execute_batch(INDEX)?;
                Ok(none.insert(Searcher { connection, document: None, expression: None }))
            }
        }
    }

    /// Parses a query.
    ///
    /// # Errors
    /// FTS5 does not accept the query, it is too long, or the statement is interrupted.
    fn expression(&mut self, query: &str, work: &mut Work<'_>) -> Result<Arc<Expression>> {
        if let Some((known, expression)) = &self.expression
            && known == query
        {
            return Ok(Arc::clone(expression));
        }
        work.add(query.len() * (BYTE_WORK + WORD_WORK))?;
        let syntax = query::parse(query);
        let strings = syntax.as_ref().map_or(0, |syntax| syntax.strings.len());
        if strings > STRINGS {
            let message =
                format!("the query of fts_match has more than {STRINGS} words and strings");
            return Err(failed(&message));
        }
        // FTS5 checks the syntax: it knows all errors and their messages. The table is empty, so nothing is found.
        let mut find = self.connection.prepare_cached(FIND)?;
        find.query_row([query], |_| Ok(())).optional()?;
        drop(find);
        let Some(syntax) = syntax else {
            return Err(failed("fts_match has no columns to choose from"));
        };
        let strings: Vec<&str> = syntax.strings.iter().map(String::as_str).collect();
        let words = self.read_words(&strings, work)?;
        let expression = Arc::new(syntax.expression(words));
        self.expression = Some((query.to_owned(), Arc::clone(&expression)));
        Ok(expression)
    }

    fn document(&mut self, text: &[u8], work: &mut Work<'_>) -> Result<Arc<Document>> {
        if let Some((known, document)) = &self.document
            && known == text
        {
            return Ok(Arc::clone(document));
        }
        let lossy = String::from_utf8_lossy(text);
        let document = Arc::new(Document::new(self.read_words(&parts(&lossy), work)?, work)?);
        self.document = (text.len() <= KEPT_BYTES).then(|| (text.to_vec(), Arc::clone(&document)));
        Ok(document)
    }

    /// Returns the words of each text in their order, as the tokenizer of FTS5 makes them.
    fn read_words(&self, texts: &[&str], work: &mut Work<'_>) -> Result<Vec<Vec<Arc<[u8]>>>> {
        // Dropped at the end, and never committed: the table is empty again for the next call.
        let transaction = self.connection.unchecked_transaction()?;
        let mut add = transaction.prepare_cached(ADD)?;
        for (number, text) in texts.iter().enumerate() {
            work.add(WORD_WORK + text.len() * BYTE_WORK)?;
            add.execute((number as i64, text))?;
        }
        let mut words_of_texts: Vec<Vec<(i64, Arc<[u8]>)>> = vec![Vec::new(); texts.len()];
        // The rows are ordered by word, so all places of a word follow each other and share one copy of it.
        let mut shared_word: Arc<[u8]> = Arc::default();
        let mut words = transaction.prepare_cached(WORDS)?;
        let mut rows = words.query([])?;
        while let Some(row) = rows.next()? {
            work.add(WORD_WORK)?;
            let word = row.get_ref(0)?.as_bytes()?;
            if *word != *shared_word {
                shared_word = word.into();
            }
            let number: i64 = row.get(1)?;
            let offset: i64 = row.get(2)?;
            words_of_texts[number as usize].push((offset, Arc::clone(&shared_word)));
        }
        let in_order = words_of_texts.into_iter().map(|mut words| {
            words.sort_unstable_by_key(|(offset, _)| *offset);
            words.into_iter().map(|(_, word)| word).collect()
        });
        Ok(in_order.collect())
    }
}

/// Splits a text between two words into parts that FTS5 reads in a short time.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while rest.len() > PART_BYTES {
        let tail = &rest.as_bytes()[PART_BYTES..];
        let Some(end) = tail.iter().position(u8::is_ascii_whitespace) else { break };
        let (part, next) = rest.split_at(PART_BYTES + end);
        parts.push(part);
        rest = next;
    }
    parts.push(rest);
    parts
}

/// The words of a text.
struct Document {
    /// The different words, in order. A number is an index into them.
    words: Vec<Arc<[u8]>>,
    /// The number of each word of the text.
    numbers: Vec<u32>,
}

impl Document {
    fn new(parts: Vec<Vec<Arc<[u8]>>>, work: &mut Work<'_>) -> Result<Document> {
        let all: Vec<Arc<[u8]>> = parts.into_iter().flatten().collect();
        let mut words = BTreeSet::new();
        for word in &all {
            work.add(WORD_WORK)?;
            words.insert(Arc::clone(word));
        }
        let words: Vec<Arc<[u8]>> = words.into_iter().collect();
        let known: HashMap<&[u8], u32> =
            words.iter().zip(0..).map(|(word, number)| (&**word, number)).collect();
        let numbers = all.iter().map(|word| known[&**word]).collect();
        Ok(Document { words, numbers })
    }

    fn matches(&self, expression: &Expression, work: &mut Work<'_>) -> Result<bool> {
        work.add(COMPARISON_WORK)?;
        Ok(match expression {
            Expression::Nothing => false,
            Expression::Near { phrases, distance } => match &phrases[..] {
                [phrase] => self.contains(phrase, work)?,
                phrases => self.has_near(phrases, *distance, work)?,
            },
            Expression::And(all) => {
                for one in all {
                    if !self.matches(one, work)? {
                        return Ok(false);
                    }
                }
                true
            }
            Expression::Or(one, other) => self.matches(one, work)? || self.matches(other, work)?,
            Expression::Not(one, other) => {
                self.matches(one, work)? && !self.matches(other, work)?
            }
        })
    }

    fn contains(&self, phrase: &Phrase, work: &mut Work<'_>) -> Result<bool> {
        let Some(terms) = self.numbers_of(phrase, work)? else { return Ok(false) };
        for at in self.places_of(phrase) {
            if self.is_at(at, &terms, work)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether each phrase begins at most `distance` words before the place where the last one begins, not counting its own
    /// words. It looks at each place of the text once for each phrase.
    fn has_near(&self, phrases: &[Phrase], distance: usize, work: &mut Work<'_>) -> Result<bool> {
        let mut is_possible = vec![true; self.numbers.len()];
        for phrase in phrases {
            let Some(terms) = self.numbers_of(phrase, work)? else { return Ok(false) };
            let reach = distance.saturating_add(terms.len());
            let places = self.places_of(phrase);
            let mut last = None;
            for (at, is_possible) in is_possible.iter_mut().enumerate() {
                if places.contains(&at) && self.is_at(at, &terms, work)? {
                    last = Some(at);
                }
                *is_possible &= last.is_some_and(|last| at - last <= reach);
            }
        }
        Ok(is_possible.contains(&true))
    }

    /// The places where a phrase may begin.
    fn places_of(&self, phrase: &Phrase) -> Range<usize> {
        let places = (self.numbers.len() + 1).saturating_sub(phrase.terms.len());
        0..if phrase.is_first { places.min(1) } else { places }
    }

    /// Whether the terms are at this place.
    fn is_at(&self, at: usize, terms: &[Range<u32>], work: &mut Work<'_>) -> Result<bool> {
        let pairs = self.numbers[at..].iter().zip(terms);
        let equal = pairs.take_while(|(number, term)| term.contains(number)).count();
        work.add((equal + 1) * COMPARISON_WORK)?;
        Ok(equal == terms.len())
    }

    /// The numbers of the words that each term of a phrase stands for; `None` if there is no word for one of them.
    fn numbers_of(&self, phrase: &Phrase, work: &mut Work<'_>) -> Result<Option<Vec<Range<u32>>>> {
        let mut all = Vec::with_capacity(phrase.terms.len());
        for Term { word, is_prefix } in &phrase.terms {
            work.add(WORD_WORK)?;
            let first = self.words.partition_point(|known| known < word);
            let count = self.words[first..].partition_point(|known| {
                if *is_prefix { known.starts_with(word) } else { known == word }
            });
            if count == 0 {
                return Ok(None);
            }
            all.push(first as u32..(first + count) as u32);
        }
        Ok(Some(all))
    }
}

/// The cosine of two vectors of 32-bit floats, little-endian, from -1 to 1. `None` if they cannot be compared.
pub(super) fn similarity(one: &[u8], other: &[u8]) -> Option<f64> {
    if one.len() != other.len() || !one.len().is_multiple_of(4) {
        return None;
    }
    let mut product = 0.0;
    let mut squares = (0.0, 0.0);
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
