//! Finds the affected bindings if their parameter restricts another table: the changed rows are
//! joined to that table once for the whole template, and the values of its column are looked up
//! among the parameters.

use abide_schema::Value;

use crate::catalog::Catalog;
use crate::delta::dependency::{DependencyPath, SourcePath, source_path};
use crate::delta::term::{JOINED, Show, Term, terms};
use crate::plan::collation::{Collation, canonical};
use crate::plan::conjunct::{Comparison, Equality};
use crate::plan::fragment::{Fragment, Piece};
use crate::plan::query::Query;

/// The join path from the changes of one source to the parameters on another.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// Statements that return, for every changed row, the cells that are compared with parameters.
    pub(crate) terms: Vec<Term>,
    /// The counterpart of each cell.
    compared: Vec<ComparedWith>,
    /// Whether it finds fewer bindings than the source's own keys.
    pub(crate) is_better: bool,
}

/// The parameter that a cell is compared with.
#[derive(Debug)]
enum ComparedWith {
    /// The cell is a column.
    Column(Equality),
    /// The cell is a value of a JSON column, which has no affinity; this is the parameter's slot.
    Value(usize),
}

/// A value of a JSON column that a condition equates with a parameter.
struct JsonLookup {
    source: usize,
    value: Fragment,
    slot: usize,
}

impl Lookup {
    /// Returns the path from a source that has no key of its own, or whose keys select little (for
    /// example, all tenants query pending tasks).
    pub(crate) fn find(catalog: &Catalog, query: &Query, source: usize) -> Option<Lookup> {
        let has_key = query.routes[source].alternatives_for(source).is_some();
        let by_column = if has_key { None } else { Lookup::by_column(catalog, query, source) };
        let lookup = by_column.or_else(|| Lookup::by_scope(catalog, query, source))?;
        Some(Lookup { is_better: has_key, ..lookup })
    }

    fn by_column(catalog: &Catalog, query: &Query, source: usize) -> Option<Lookup> {
        let dependency = source_path(&query.blocks, source)?.dependency;
        let with_params = dependency.sources.iter().filter(|other| **other != source);
        let equalities = with_params.filter_map(|other| single_key(query, *other)).next()?;
        let conditions = conditions_without_parameters(&dependency).cloned().collect();
        let dependency = DependencyPath::new(dependency.sources, conditions);
        if dependency.sources.len() > JOINED || dependency.conditions.is_empty() {
            return None;
        }
        let shown: Vec<Fragment> = equalities
            .iter()
            .map(|equality| Fragment::column(equality.source, equality.column))
            .collect();
        let terms = terms(catalog, query, &dependency, Some(source), &shown, Show::Distinct);
        let compared = equalities.into_iter().map(ComparedWith::Column).collect();
        Some(Lookup { terms, compared, is_better: false })
    }

    /// By the scope values that a policy requires, on the source or on the row that owns it.
    fn by_scope(catalog: &Catalog, query: &Query, source: usize) -> Option<Lookup> {
        let path = source_path(&query.blocks, source)?;
        let mut scope_values: Vec<JsonLookup> =
            path.dependency.conditions.iter().filter_map(JsonLookup::from_condition).collect();
        let owner = scope_values.first()?.source;
        scope_values.retain(|value| value.source == owner);
        if has_primary_key(catalog, query, source)
            || (owner != source && has_primary_key(catalog, query, owner))
        {
            return None;
        }
        let dependency = direct_path(catalog, query, &path, source, owner)
            .or_else(|| path_to(&path.dependency, source, owner))?;
        let shown: Vec<Fragment> = scope_values.iter().map(|scope| scope.value.clone()).collect();
        let terms = terms(catalog, query, &dependency, Some(source), &shown, Show::Distinct);
        let compared = scope_values.iter().map(|scope| ComparedWith::Value(scope.slot)).collect();
        Some(Lookup { terms, compared, is_better: false })
    }

    /// Returns the cells of a binding's key: `None` if they are not certain, empty if nothing
    /// matches.
    pub(crate) fn key(
        &self,
        catalog: &Catalog,
        query: &Query,
        params: &[Value],
    ) -> Option<Option<Vec<Value>>> {
        let mut key = Vec::new();
        for compared in &self.compared {
            let equality = match compared {
                ComparedWith::Column(equality) => equality,
                ComparedWith::Value(slot) if params[*slot] == Value::Null => return Some(None),
                ComparedWith::Value(slot) => {
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

    /// Returns the cells of a row of the terms, as a lookup key.
    pub(crate) fn canonical(&self, row: &[Value]) -> Vec<Value> {
        self.compared
            .iter()
            .zip(row)
            .map(|(compared, cell)| match compared {
                ComparedWith::Column(equality) => canonical(equality.collation, cell),
                ComparedWith::Value(_) => canonical(Collation::Binary, cell),
            })
            .collect()
    }
}

impl JsonLookup {
    /// `json_extract(column, 'path') = ?`, the form of scope conditions.
    fn from_condition(condition: &Fragment) -> Option<JsonLookup> {
        // The marks of what the function reads do not matter here.
        let pieces: Vec<&Piece> =
            condition.pieces.iter().filter(|piece| !matches!(piece, Piece::Mark(_))).collect();
        let [Piece::Text(call), column, Piece::Text(path), Piece::Param(slot)] = *pieces else {
            return None;
        };
        let Piece::Column(source, _) = column else { return None };
        let path = path.strip_suffix('=')?.trim_end();
        let literal = path.starts_with(',') && path.ends_with(')') && !path.contains(['|', '+']);
        if call.trim() != "json_extract(" || !literal {
            return None;
        }
        let mut value = Fragment::text(call);
        value.pieces.push((*column).clone());
        value.push_text(path);
        Some(JsonLookup { source: *source, value, slot: *slot })
    }
}

/// Returns the conditions without parameters.
fn conditions_without_parameters(dependency: &DependencyPath) -> impl Iterator<Item = &Fragment> {
    dependency.conditions.iter().filter(move |condition| {
        !condition.pieces.iter().any(|piece| matches!(piece, Piece::Param(_)))
    })
}

/// `true` if each of a source's keys is a whole primary key, which finds one row.
fn has_primary_key(catalog: &Catalog, query: &Query, source: usize) -> bool {
    let Some(alternatives) = query.routes[source].alternatives_for(source) else { return false };
    let key = catalog.table(query.sources[source].table).key;
    alternatives.iter().all(|equalities| {
        key.iter().all(|column| {
            equalities
                .iter()
                .find(|equality| equality.column == *column)
                .is_some_and(|equality| equality.test == Comparison::Among)
        })
    })
}

/// Returns the path from one source to another whose column equals one of its own wherever its rows
/// matter. The sources between them are left out: a row that the subquery of a policy reads would
/// be joined with all messages of its session to find the session. `None` if no such columns are
/// known, or if it is the source itself.
fn direct_path(
    catalog: &Catalog,
    query: &Query,
    path: &SourcePath,
    from: usize,
    to: usize,
) -> Option<DependencyPath> {
    if from == to {
        return None;
    }
    for column in 0..catalog.table(query.sources[from].table).columns.len() {
        let own = (from, column);
        let own_kind = query.column_kind(catalog, own);
        let mut equal = vec![own];
        let mut at = 0;
        while let Some(known) = equal.get(at).copied() {
            at += 1;
            for (left, right) in &path.equal {
                let other = if *left == known { *right } else { *left };
                // Columns of different kinds are compared after a conversion, so that equality is
                // not transitive.
                let is_equal = (*left == known || *right == known)
                    && query.column_kind(catalog, other) == own_kind;
                if is_equal && !equal.contains(&other) {
                    equal.push(other);
                }
            }
        }
        let Some((_, other)) = equal.into_iter().find(|(source, _)| *source == to) else {
            continue;
        };
        let mut condition = Fragment::column(from, column);
        condition.push_text("=");
        condition.push(&Fragment::column(to, other));
        let own = conditions_without_parameters(&path.dependency)
            .filter(|condition| {
                condition.is_flat()
                    && condition.columns().all(|(source, _)| [from, to].contains(&source))
            })
            .cloned();
        let conditions = std::iter::once(condition).chain(own).collect();
        return Some(DependencyPath::new(vec![from, to], conditions));
    }
    None
}

/// Returns the shortest path of sources from one to another, each joined to an earlier one by a
/// condition.
fn path_to(dependency: &DependencyPath, from: usize, to: usize) -> Option<DependencyPath> {
    let mut paths = vec![vec![from]];
    let mut seen = vec![from];
    let found = loop {
        if let Some(found) = paths.iter().find(|path| path.last() == Some(&to)) {
            break found.clone();
        }
        let mut longer = Vec::new();
        for path in &paths {
            let last = path.last().copied()?;
            for condition in conditions_without_parameters(dependency) {
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
    let conditions = conditions_without_parameters(dependency)
        .filter(|condition| {
            condition.is_flat() && condition.columns().all(|(source, _)| found.contains(&source))
        })
        .cloned()
        .collect();
    Some(DependencyPath::new(found, conditions))
}

/// Returns the equalities of a source with exactly one key.
fn single_key(query: &Query, source: usize) -> Option<Vec<Equality>> {
    let alternatives = query.routes[source].alternatives_for(source)?;
    let [equalities] = alternatives.as_slice() else { return None };
    let whole = !equalities.is_empty()
        && equalities
            .iter()
            .all(|equality| equality.test == Comparison::Among && equality.values.len() == 1);
    whole.then(|| equalities.iter().map(|equality| (*equality).clone()).collect())
}
