//! Statements that evaluate a query, or a part of it, over the tables after or before the changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::catalog::Catalog;
use crate::plan::fragment::{Fragment, Renderer, SourceForm, Statement};
use crate::plan::query::Query;

/// The part of a query to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EvaluationExtent {
    /// All of it.
    Whole,
    /// One group, given by the values of its expressions.
    Group,
    /// One row of each of the outermost inner tables, given by their cells. A condition between
    /// tables becomes one with a constant, for which SQLite uses an index even when it reads a
    /// table as it was before.
    Row,
}

/// Statements that evaluate a query, by extent and by which sources are read as they were before.
/// Rendered on first use.
#[derive(Debug, Default)]
pub(crate) struct Evaluations(Mutex<HashMap<Evaluation, Arc<Statement>>>);

/// An extent, and which sources are read as they were before.
type Evaluation = (EvaluationExtent, Vec<bool>);

impl Evaluations {
    pub(crate) fn get(
        &self,
        catalog: &Catalog,
        query: &Query,
        extent: EvaluationExtent,
        before: Vec<bool>,
    ) -> Arc<Statement> {
        // Rendering again after a panic in another thread is harmless.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let statement = known
            .entry((extent, before))
            .or_insert_with_key(|(_, before)| Arc::new(evaluate(catalog, query, extent, before)));
        Arc::clone(statement)
    }
}

pub(crate) fn evaluate(
    catalog: &Catalog,
    query: &Query,
    extent: EvaluationExtent,
    before: &[bool],
) -> Statement {
    let mut out = Renderer::new(catalog, &query.sources);
    for (form, before) in out.forms.iter_mut().zip(before) {
        *form = if *before { SourceForm::Before } else { SourceForm::After };
    }
    match extent {
        EvaluationExtent::Whole if query.limit.is_some() => out.push(&query.text()),
        EvaluationExtent::Whole => out.push(&query.body(&[])),
        EvaluationExtent::Group => out.push(&query.body(&restricted_to_group(query))),
        EvaluationExtent::Row => {
            let mut first = 0;
            for source in query.blocks[0].inner_sources() {
                out.forms[source] = SourceForm::Given(first);
                first += catalog.table(query.sources[source].table).columns.len();
            }
            out.push(&query.body(&[]));
        }
    }
    out.finish()
}

/// Returns the conditions that fix each group expression to a given value.
pub(crate) fn restricted_to_group(query: &Query) -> Vec<Fragment> {
    let core = query.first_core();
    let groups = core.group.iter().flatten();
    groups.enumerate().map(|(at, by)| core.shielded(by, by.not_distinct_from_given(at))).collect()
}
