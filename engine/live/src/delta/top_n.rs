//! ORDER BY with LIMIT: the first rows of an ordered result.
//!
//! Its rows are cached. If it has as many rows as the LIMIT, changes of rows that sort after its
//! last row have no effect. After any other change it is read again and compared with the cached
//! rows; with an index in its order this costs as much as it is long.

use abide_schema::{Row, Value};

use crate::catalog::Catalog;
use crate::delta::Delta;
use crate::delta::dependency::DependencyPath;
use crate::delta::rule_context::RuleContext;
use crate::delta::state::RememberedRows;
use crate::delta::term::{Show, Term, terms};
use crate::plan::fragment::{Fragment, Piece, PlainExpr};
use crate::plan::query::{Order, Query, SelectCore};
use crate::sql::LiveError;

/// How a top-N result is maintained.
#[derive(Debug)]
pub(crate) struct TopNRule {
    /// Check whether any changed row meets the conditions.
    pub(crate) terms: Vec<Term>,
    /// Check whether any of those rows sorts before a given row or equal to it.
    pub(crate) up_to: Vec<Term>,
    /// Which outputs of the given row are used.
    given: Vec<usize>,
    max: TopNSize,
}

/// The LIMIT.
#[derive(Debug)]
enum TopNSize {
    Rows(usize),
    /// The value of a parameter.
    Param(usize),
    Unknown,
}

impl TopNRule {
    /// Creates the rule of a top-N result on a plain join.
    pub(crate) fn new(catalog: &Catalog, query: &Query, core: &SelectCore) -> TopNRule {
        let dependency = core.dependency_path();
        let total = query.total_order();
        let mut conditions = dependency.conditions.clone();
        let values = total.iter().map(|term| &query.outputs()[term.output].value);
        let computed = values.clone().find(|value| !value.is_column());
        let not_after = not_after(query, &total);
        conditions.push(match computed {
            Some(value) => core.shielded(value, not_after),
            None => not_after,
        });
        let up_to = DependencyPath::new(dependency.sources.clone(), conditions);
        TopNRule {
            terms: terms(catalog, query, &dependency, None, &[], Show::Distinct),
            up_to: terms(catalog, query, &up_to, None, &[], Show::Distinct),
            given: total.iter().map(|term| term.output).collect(),
            max: TopNSize::from_limit(query),
        }
    }

    /// Returns the delta from changes in the temporary tables.
    pub(crate) fn delta(&self, run: &mut RuleContext) -> Result<Delta, LiveError> {
        let mut met = false;
        match self.last(run) {
            Some(last) => run.terms_given(&self.up_to, &last, &mut |_, _| met = true)?,
            None => run.terms(&self.terms, &mut |_, _| met = true)?,
        }
        if met { run.reevaluate_whole() } else { Ok(Delta::default()) }
    }

    /// Returns the last row of a top-N result that is as long as its LIMIT, if cached.
    fn last(&self, run: &RuleContext) -> Option<Vec<Value>> {
        let RememberedRows::Rows(rows) = &run.state.as_ref()?.memory else { return None };
        let last: &Row = rows.last()?;
        let full = match self.max {
            TopNSize::Rows(max) => rows.len() >= max,
            TopNSize::Param(slot) => match run.params[slot] {
                Value::Integer(max) => usize::try_from(max).is_ok_and(|max| rows.len() >= max),
                _ => false,
            },
            TopNSize::Unknown => false,
        };
        full.then(|| self.given.iter().map(|output| last[*output].clone()).collect())
    }
}

impl TopNSize {
    fn from_limit(query: &Query) -> TopNSize {
        let Some((limit, _)) = &query.limit else { return TopNSize::Unknown };
        match (limit.plain, limit.pieces.as_slice()) {
            (PlainExpr::Param(slot), _) => TopNSize::Param(slot),
            (_, [Piece::Text(text)]) => text.parse().map_or(TopNSize::Unknown, TopNSize::Rows),
            _ => TopNSize::Unknown,
        }
    }
}

/// Returns the condition that a row sorts before a given one or equal to it: `a < ?1 OR a IS ?1 AND
/// (b < ?2 OR …)`.
fn not_after(query: &Query, total: &[Order]) -> Fragment {
    let mut out = Fragment::new();
    for (at, term) in total.iter().enumerate() {
        let value = &query.outputs()[term.output].value;
        let mut collated = Fragment::text("(");
        collated.push(value);
        collated.push_text(&format!(") COLLATE {}", term.collation.sql()));
        out.push_text("((");
        // With NULLS FIRST, NULL sorts before any other value; with NULLS LAST it never does.
        if term.nulls_last {
            out.push(value);
            out.push_text("IS NOT NULL AND (");
            push_given(&mut out, at, "IS NULL OR");
        } else {
            push_given(&mut out, at, "IS NOT NULL AND (");
            out.push(value);
            out.push_text("IS NULL OR");
        }
        out.push(&collated);
        out.push_text(if term.desc { ">" } else { "<" });
        push_given(&mut out, at, ")) OR");
        out.push(&collated);
        out.push_text("IS");
        push_given(&mut out, at, if at + 1 < total.len() { "AND" } else { "" });
    }
    out.push_text(&")".repeat(total.len()));
    out
}

/// Appends a value of the given row, and the text after it.
fn push_given(out: &mut Fragment, at: usize, text: &str) {
    out.pieces.push(Piece::Given(at));
    out.push_text(text);
}
