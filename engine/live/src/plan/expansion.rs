//! Limits on the size of a query after views, CTEs and policies are expanded, counted during the
//! expansion. Each mention is expanded again, so a text of a few hundred bytes can stand for 2^30
//! SELECTs.
//!
//! *Invariant:* planning any text takes work linear in these limits.

use abide_schema::{Code, Refusal};

use crate::plan::fragment::Fragment;

/// SELECTs; each mention of a view, CTE or policy counts. SQLite has the same limit for one
/// compound.
const SELECTS: usize = 500;

/// Bytes of views, CTEs and policies; each mention counts.
const READ_BYTES: usize = 1 << 20;

/// Expressions and result columns. A text of the maximum length without CTEs and views stays below.
const EXPRESSIONS: usize = 100_000;

/// Bytes of expressions that are copied into others. The name of a CTE column stands for its whole
/// expression, so a column can double with every CTE.
const COPIED_BYTES: usize = 16 << 20;

/// Bytes of the statement for SQLite.
const TEXT_BYTES: usize = 512 << 10;

/// Columns of one SELECT; SQLite's limit.
const COLUMNS: usize = 2_000;

/// The counters of one query.
#[derive(Debug, Default)]
pub(crate) struct Expansion {
    selects: usize,
    read: usize,
    expressions: usize,
    copied: usize,
}

impl Expansion {
    /// Counts a SELECT.
    pub(crate) fn count_select(&mut self) -> Result<(), Refusal> {
        self.selects += 1;
        check_limit(self.selects, SELECTS, "SELECTs")
    }

    /// Counts the text of a view, CTE or policy.
    pub(crate) fn count_read(&mut self, text: &str) -> Result<(), Refusal> {
        self.read += text.len();
        check_limit(self.read, READ_BYTES, "bytes of views, CTEs and policies")
    }

    /// Counts an expression that is copied into its parent.
    pub(crate) fn count_expression(&mut self, expression: &Fragment) -> Result<(), Refusal> {
        self.expressions += 1;
        check_limit(self.expressions, EXPRESSIONS, "expressions")?;
        self.copied += expression.bytes();
        check_limit(self.copied, COPIED_BYTES, "bytes of expressions")
    }

    /// Counts a column of a SELECT that has `columns` columns so far.
    pub(crate) fn count_column(
        &mut self,
        column: &Fragment,
        columns: usize,
    ) -> Result<(), Refusal> {
        if columns > COLUMNS {
            let detail = format!("a SELECT has more than {COLUMNS} columns");
            return Err(Refusal::new(Code::LimitExceeded, detail).hint("name the columns you need"));
        }
        self.count_expression(column)
    }
}

/// Checks the length of the statement for SQLite.
pub(crate) fn check_text(text: &Fragment) -> Result<(), Refusal> {
    check_limit(text.bytes(), TEXT_BYTES, "bytes of SQL")
}

fn check_limit(count: usize, max: usize, what: &str) -> Result<(), Refusal> {
    if count <= max {
        return Ok(());
    }
    let detail = format!("the query expands to more than {max} {what}");
    Err(Refusal::new(Code::LimitExceeded, detail).hint(
        "each mention of a view, CTE or subquery column is expanded again: mention them less often",
    ))
}
