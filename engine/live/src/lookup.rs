//! How a change finds the bindings whose parameter sits on another table: join the changed rows to that
//! table once for the whole template, and look its column's values up among the parameters.

use abide_schema::Value;

use crate::catalog::Catalog;
use crate::fragment::{Fragment, Piece};
use crate::reach::{Reach, way};
use crate::route::{Equality, Test, canonical};
use crate::rule::{JOINED, Show, Term, terms};
use crate::select::Query;

/// The way from the changes of one source to the parameters on another.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Show, for every changed row, the cells that are compared with parameters.
    pub(crate) terms: Vec<Term>,
    /// The comparisons, each with one parameter.
    pub(crate) equalities: Vec<Equality>,
}

impl Lookup {
    /// The way from a source that has no key of its own.
    pub(crate) fn find(catalog: &Catalog, query: &Query, source: usize) -> Option<Lookup> {
        if query.routes[source].of_source(source).is_some() {
            return None;
        }
        let reach = way(&query.blocks, source)?.reach;
        let with_params = reach.sources.iter().filter(|other| **other != source);
        let equalities = with_params.filter_map(|other| single(query, *other)).next()?;
        let free = |condition: &&Fragment| {
            !condition.pieces.iter().any(|piece| matches!(piece, Piece::Param(_)))
        };
        let conditions = reach.conditions.iter().filter(free).cloned().collect();
        let reach = Reach { sources: reach.sources, conditions };
        if reach.sources.len() > JOINED || reach.conditions.is_empty() {
            return None;
        }
        let shown: Vec<Fragment> = equalities
            .iter()
            .map(|equality| Fragment::column(equality.source, equality.column))
            .collect();
        let terms = terms(catalog, query, &reach, Some(source), &shown, Show::Distinct);
        Some(Lookup { terms, equalities })
    }

    /// The cells of a binding's key: nothing where they are not certain, none where nothing matches.
    pub(crate) fn key(
        &self,
        catalog: &Catalog,
        query: &Query,
        params: &[Value],
    ) -> Option<Option<Vec<Value>>> {
        let mut key = Vec::new();
        for equality in &self.equalities {
            let table = catalog.table(query.sources[equality.source].table);
            let cells = equality.cells(table.columns[equality.column].kind, params)?;
            let [cell] = cells.as_slice() else { return Some(None) };
            key.push(cell.clone());
        }
        Some(Some(key))
    }

    /// The cells that a row of the terms is looked up by.
    pub(crate) fn canonical(&self, row: &[Value]) -> Vec<Value> {
        let cells = self.equalities.iter().zip(row);
        cells.map(|(equality, cell)| canonical(equality.collation, cell)).collect()
    }
}

/// The equalities of a source that demands just one key.
fn single(query: &Query, source: usize) -> Option<Vec<Equality>> {
    let alternatives = query.routes[source].of_source(source)?;
    let [equalities] = alternatives.as_slice() else { return None };
    let one = |equality: &&Equality| equality.test == Test::Among && equality.values.len() == 1;
    let whole = !equalities.is_empty() && equalities.iter().all(one);
    whole.then(|| equalities.iter().map(|equality| (*equality).clone()).collect())
}
