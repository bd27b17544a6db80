//! What a text comes to with its views, CTEs and policies written out, counted while it is built: each of
//! them is read again wherever it is named, so a text of a few hundred bytes can stand for 2^30 SELECTs.
//!
//! *Invariant:* understanding a text takes work linear in these bounds, whatever the text.

use abide_schema::{Code, Refusal};

use crate::fragment::Fragment;

/// SELECTs, each mention of a view, CTE or policy counted: as many as SQLite takes in one compound.
const SELECTS: usize = 500;

/// Bytes of views, CTEs and policies that are read, each mention counted.
const READ_BYTES: usize = 1 << 20;

/// Expressions and result columns. A text without CTEs and views that is as long as one may be stays below.
const EXPRESSIONS: usize = 100_000;

/// Bytes of expressions that are copied into other ones: the name of a column of a CTE stands for the whole
/// expression, so that a column can double with every CTE.
const COPIED_BYTES: usize = 16 << 20;

/// Bytes of the statement that SQLite is given.
const TEXT_BYTES: usize = 512 << 10;

/// Columns of one SELECT, as SQLite has it.
const COLUMNS: usize = 2_000;

/// The counters of one text.
#[derive(Debug, Default)]
pub(crate) struct Expansion {
    selects: usize,
    read: usize,
    expressions: usize,
    copied: usize,
}

impl Expansion {
    /// One more SELECT.
    pub(crate) fn select(&mut self) -> Result<(), Refusal> {
        self.selects += 1;
        within(self.selects, SELECTS, "SELECTs")
    }

    /// The text of a view, CTE or policy.
    pub(crate) fn read(&mut self, text: &str) -> Result<(), Refusal> {
        self.read += text.len();
        within(self.read, READ_BYTES, "bytes of views, CTEs and policies")
    }

    /// One more expression, as it is copied into the one around it.
    pub(crate) fn expression(&mut self, expression: &Fragment) -> Result<(), Refusal> {
        self.expressions += 1;
        within(self.expressions, EXPRESSIONS, "expressions")?;
        self.copied += expression.bytes();
        within(self.copied, COPIED_BYTES, "bytes of expressions")
    }

    /// A column of a SELECT that has so many by now.
    pub(crate) fn column(&mut self, column: &Fragment, columns: usize) -> Result<(), Refusal> {
        if columns > COLUMNS {
            let detail = format!("a SELECT has more than {COLUMNS} columns");
            return Err(Refusal::new(Code::LimitExceeded, detail).hint("name the columns you need"));
        }
        self.expression(column)
    }
}

/// Whether the statement that SQLite is to be given is short enough.
pub(crate) fn check_text(text: &Fragment) -> Result<(), Refusal> {
    within(text.bytes(), TEXT_BYTES, "bytes of SQL")
}

fn within(count: usize, most: usize, what: &str) -> Result<(), Refusal> {
    if count <= most {
        return Ok(());
    }
    let detail = format!("the query comes to more than {most} {what}");
    Err(Refusal::new(Code::LimitExceeded, detail).hint(
        "each mention of a view, CTE or column of a subquery counts again: name them less often",
    ))
}
