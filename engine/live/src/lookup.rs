//! How a change finds the bindings whose parameter sits on another table: join the changed rows to that
//! table once for the whole template, and look its column's values up among the parameters.

use abide_schema::Value;

use crate::catalog::Catalog;
use crate::fragment::{Collation, Fragment, Piece};
use crate::reach::{Reach, way};
use crate::route::{Equality, Test, canonical};
use crate::rule::{JOINED, Show, Term, terms};
use crate::select::Query;

/// The way from the changes of one source to the parameters on another.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Show, for every changed row, the cells that are compared with parameters.
    pub(crate) terms: Vec<Term>,
    /// What each of those cells is compared with.
    compared: Vec<Compared>,
    /// Whether it finds fewer bindings than the source's own keys do.
    pub(crate) is_better: bool,
}

/// What a cell is compared with: one parameter.
#[derive(Debug)]
enum Compared {
    /// The cell is a column.
    Column(Equality),
    /// It is a value out of a JSON column, which has no affinity; the parameter's slot.
    Value(usize),
}

/// A value out of a JSON column, of which a condition says that it equals a parameter.
struct Sought {
    source: usize,
    value: Fragment,
    slot: usize,
}

impl Lookup {
    /// The way from a source that has no key of its own, or whose keys say little: all tenants ask for
    /// what is pending.
    pub(crate) fn find(catalog: &Catalog, query: &Query, source: usize) -> Option<Lookup> {
        let has_key = query.routes[source].of_source(source).is_some();
        let by_column = || Lookup::by_column(catalog, query, source);
        let found = if has_key { None } else { by_column() };
        let found = found.or_else(|| Lookup::by_scope(catalog, query, source))?;
        Some(Lookup { is_better: has_key, ..found })
    }

    fn by_column(catalog: &Catalog, query: &Query, source: usize) -> Option<Lookup> {
        let reach = way(&query.blocks, source)?.reach;
        let with_params = reach.sources.iter().filter(|other| **other != source);
        let equalities = with_params.filter_map(|other| single(query, *other)).next()?;
        let conditions = free(&reach).cloned().collect();
        let reach = Reach { sources: reach.sources, conditions };
        if reach.sources.len() > JOINED || reach.conditions.is_empty() {
            return None;
        }
        let shown: Vec<Fragment> = equalities
            .iter()
            .map(|equality| Fragment::column(equality.source, equality.column))
            .collect();
        let terms = terms(catalog, query, &reach, Some(source), &shown, Show::Distinct);
        let compared = equalities.into_iter().map(Compared::Column).collect();
        Some(Lookup { terms, compared, is_better: false })
    }

    /// By the values that a scope must have, on the source or on the row that it belongs to.
    fn by_scope(catalog: &Catalog, query: &Query, source: usize) -> Option<Lookup> {
        let reach = way(&query.blocks, source)?.reach;
        let sought: Vec<Sought> = reach.conditions.iter().filter_map(Sought::of).collect();
        let owner = sought.first()?.source;
        let sought: Vec<Sought> = sought.into_iter().filter(|one| one.source == owner).collect();
        if says_much(catalog, query, source)
            || (owner != source && says_much(catalog, query, owner))
        {
            return None;
        }
        let reach = path_to(&reach, source, owner)?;
        let shown: Vec<Fragment> = sought.iter().map(|one| one.value.clone()).collect();
        let terms = terms(catalog, query, &reach, Some(source), &shown, Show::Distinct);
        let compared = sought.iter().map(|one| Compared::Value(one.slot)).collect();
        Some(Lookup { terms, compared, is_better: false })
    }

    /// The cells of a binding's key: nothing where they are not certain, none where nothing matches.
    pub(crate) fn key(
        &self,
        catalog: &Catalog,
        query: &Query,
        params: &[Value],
    ) -> Option<Option<Vec<Value>>> {
        let mut key = Vec::new();
        for compared in &self.compared {
            let equality = match compared {
                Compared::Column(equality) => equality,
                Compared::Value(slot) if params[*slot] == Value::Null => return Some(None),
                Compared::Value(slot) => {
                    key.push(canonical(Collation::Binary, &params[*slot]));
                    continue;
                }
            };
            let table = catalog.table(query.sources[equality.source].table);
            let cells = equality.cells(table.columns[equality.column].kind, params)?;
            let [cell] = cells.as_slice() else { return Some(None) };
            key.push(cell.clone());
        }
        Some(Some(key))
    }

    /// The cells that a row of the terms is looked up by.
    pub(crate) fn canonical(&self, row: &[Value]) -> Vec<Value> {
        let cells = self.compared.iter().zip(row).map(|(compared, cell)| match compared {
            Compared::Column(equality) => canonical(equality.collation, cell),
            Compared::Value(_) => canonical(Collation::Binary, cell),
        });
        cells.collect()
    }
}

impl Sought {
    /// `json_extract(column, 'path') = ?`, as conditions on scopes are written.
    fn of(condition: &Fragment) -> Option<Sought> {
        let [Piece::Text(call), column, Piece::Text(path), Piece::Param(slot)] =
            condition.pieces.as_slice()
        else {
            return None;
        };
        let Piece::Column(source, _) = column else { return None };
        let path = path.strip_suffix('=')?.trim_end();
        let literal = path.starts_with(',') && path.ends_with(')') && !path.contains(['|', '+']);
        if call.trim() != "json_extract(" || !literal {
            return None;
        }
        let mut value = Fragment::text(call);
        value.pieces.push(column.clone());
        value.push_text(path);
        Some(Sought { source: *source, value, slot: *slot })
    }
}

/// The conditions that are the same for all bindings.
fn free(reach: &Reach) -> impl Iterator<Item = &Fragment> {
    let named = |piece: &Piece| matches!(piece, Piece::Param(_));
    reach.conditions.iter().filter(move |condition| !condition.pieces.iter().any(named))
}

/// Whether each of a source's keys is a whole primary key.
fn says_much(catalog: &Catalog, query: &Query, source: usize) -> bool {
    let Some(alternatives) = query.routes[source].of_source(source) else { return false };
    let key = catalog.table(query.sources[source].table).key;
    alternatives.iter().all(|equalities| {
        let named = |column: &usize| {
            let here = |equality: &&&Equality| equality.column == *column;
            equalities.iter().find(here).is_some_and(|equality| equality.test == Test::Among)
        };
        key.iter().all(named)
    })
}

/// The fewest sources that lead from one to another, each by a condition that joins it to one before.
fn path_to(reach: &Reach, from: usize, to: usize) -> Option<Reach> {
    let mut paths = vec![vec![from]];
    let mut seen = vec![from];
    let found = loop {
        if let Some(found) = paths.iter().find(|path| path.last() == Some(&to)) {
            break found.clone();
        }
        let mut longer = Vec::new();
        for path in &paths {
            let last = path.last().copied()?;
            for condition in free(reach) {
                let named: Vec<usize> = condition.columns().map(|(source, _)| source).collect();
                let next = named.iter().find(|source| !seen.contains(*source));
                if let (true, [_, _], Some(next)) = (named.contains(&last), &*named, next) {
                    seen.push(*next);
                    longer.push([&path[..], &[*next]].concat());
                }
            }
        }
        if longer.is_empty() || longer[0].len() > JOINED {
            return None;
        }
        paths = longer;
    };
    let within = |condition: &&Fragment| {
        condition.is_flat() && condition.columns().all(|(source, _)| found.contains(&source))
    };
    let conditions = free(reach).filter(within).cloned().collect();
    Some(Reach { sources: found, conditions })
}

/// The equalities of a source that demands just one key.
fn single(query: &Query, source: usize) -> Option<Vec<Equality>> {
    let alternatives = query.routes[source].of_source(source)?;
    let [equalities] = alternatives.as_slice() else { return None };
    let one = |equality: &&Equality| equality.test == Test::Among && equality.values.len() == 1;
    let whole = !equalities.is_empty() && equalities.iter().all(one);
    whole.then(|| equalities.iter().map(|equality| (*equality).clone()).collect())
}
