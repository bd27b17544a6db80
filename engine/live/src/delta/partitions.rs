//! Partition re-evaluation. Some expressions partition a result: the columns of a compound, the
//! partition of windows, the groups of a subquery, the key of a FULL JOIN. A changed row affects
//! only its own partitions. They are found as groups are, and each is evaluated after and before.
//! Without such expressions the whole result is one partition, evaluated when a changed row
//! matters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use abide_schema::Value;
use abide_schema::table::Kind;
use sqlite3_parser::ast::CompoundOperator;

use crate::catalog::Catalog;
use crate::delta::dependency::{DependencyPath, SourcePath, source_path};
use crate::delta::evaluation::EvaluationExtent;
use crate::delta::rule_context::{PARTS, RuleContext, Sides};
use crate::delta::term::{JOINED, Show, Term, terms};
use crate::delta::{Delta, Weights};
use crate::identifier::quoted;
use crate::plan::block::Join;
use crate::plan::conjunct::EqualColumns;
use crate::plan::fragment::{Fragment, Piece, PlainExpr, Renderer, Source, SourceForm, Statement};
use crate::plan::kind::{common, form_of};
use crate::plan::query::{ExtraConditions, FromTerm, Query, SelectCore};
use crate::sql::LiveError;

/// How a result is partitioned.
#[derive(Debug)]
pub(crate) struct Partitions {
    parts: Vec<Partition>,
    /// The cost of a commit, in words.
    pub(crate) cost: &'static str,
}

/// Parts of one kind.
#[derive(Debug)]
struct Partition {
    /// Return the values of every part that contains a changed row.
    terms: Vec<Term>,
    body: PartitionBody,
    /// The body as SQL, rendered on first use.
    rendered: Mutex<HashMap<StatementVariant, Arc<Statement>>>,
}

/// The query restricted to the part with the given values.
#[derive(Debug)]
enum PartitionBody {
    /// The query restricted to a part, for all values.
    Fixed(Fragment),
    /// Each key equals its value, or is NULL. Rendered as `=` or `IS NULL`, not IS with a
    /// parameter, so that an index that excludes NULL also applies.
    Keyed(Box<Query>, Vec<PartitionKey>),
}

/// Which sources are read as they were before, and which of the given values are NULL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StatementVariant {
    before: Vec<bool>,
    nulls: Vec<bool>,
}

/// An expression that partitions a result: its form in each of the SELECTs that are evaluated for a
/// part, by block.
#[derive(Clone, Debug)]
struct PartitionKey(Vec<(usize, Fragment)>);

impl Partitions {
    /// Partitioned by the values of expressions. `None` if it is not known which rows a change
    /// affects.
    pub(crate) fn by_values(catalog: &Catalog, query: &Query) -> Option<Partitions> {
        let paths = source_paths(query)?;
        if query.cores.len() > 1
            && query.cores[1..]
                .iter()
                .all(|(by, _)| by.is_some_and(|by| by == CompoundOperator::UnionAll))
        {
            let parts = query
                .cores
                .iter()
                .map(|(_, core)| {
                    Partition::from_keys(catalog, query, &Query::from_core(core.clone()), &paths)
                })
                .collect();
            return Some(Partitions {
                parts,
                cost: "the touched rows and groups of each SELECT, twice",
            });
        }
        let part = Partition::from_keys(catalog, query, query, &paths);
        let cost = if !part.has_keys() {
            "the whole query, twice, if a changed row matches"
        } else if query.cores.len() > 1 {
            "the rows equal to the touched ones, twice"
        } else if has_windows(query) {
            "the touched partitions, twice"
        } else {
            "the rows of the touched groups, twice"
        };
        Some(Partitions { parts: vec![part], cost })
    }

    /// Returns the terms that check whether any changed row matters.
    pub(crate) fn gate(catalog: &Catalog, query: &Query) -> Option<Vec<Term>> {
        let paths = source_paths(query)?;
        let numbered: Vec<(usize, &SourcePath)> = paths.iter().enumerate().collect();
        Some(terms_on(catalog, query, &numbered, &[]))
    }

    /// Partitions by the key of a FULL JOIN of two tables: a row matches only rows of the same
    /// key, and a row with a NULL key matches none.
    pub(crate) fn from_full_join(
        catalog: &Catalog,
        query: &Query,
        core: &SelectCore,
    ) -> Option<Partitions> {
        let [left, right] = core.from.as_slice() else { return None };
        let sources = [left.source?, right.source?];
        if right.join != Join::Full
            || core.aggregates()
            || core.windows()
            || core.outputs.iter().any(|output| output.value.has_subquery())
            || core.filter.iter().any(|conjunct| conjunct.condition.has_subquery())
            || right.on.iter().any(|conjunct| conjunct.condition.has_subquery())
        {
            return None;
        }
        let mut equal = right.on.iter().filter_map(|conjunct| conjunct.equal);
        let (first, second) = equal.find(|(first, second)| {
            let joined = [first.0, second.0];
            (joined == sources || joined == [sources[1], sources[0]])
                && query.column_kind(catalog, *first) == query.column_kind(catalog, *second)
        })?;
        let columns = if first.0 == sources[0] { [first.1, second.1] } else { [second.1, first.1] };
        let join = FullJoin { catalog, query, core, sources, columns };
        let parts = vec![join.matched(), join.unmatched(0, left)?, join.unmatched(1, right)?];
        Some(Partitions { parts, cost: "the rows of the touched join keys, twice" })
    }

    /// Returns the partitioning expressions.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Fragment> {
        self.parts
            .iter()
            .flat_map(|part| match &part.body {
                PartitionBody::Keyed(_, keys) => keys.as_slice(),
                PartitionBody::Fixed(_) => &[],
            })
            .flat_map(|key| key.0.iter().map(|(_, value)| value))
    }

    /// Returns the terms that join changed rows.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &Term> {
        self.parts.iter().flat_map(|part| &part.terms)
    }

    /// Returns all statements of the rule.
    pub(crate) fn statements(&self, catalog: &Catalog, query: &Query) -> Vec<Statement> {
        let mut statements = Vec::new();
        for part in &self.parts {
            statements.extend(part.terms.iter().flat_map(Term::statements).cloned());
            let nulls = part.body.may_be_null(catalog, query);
            for nulls in std::iter::once(Vec::new()).chain(nulls) {
                for before in [false, true] {
                    let variant = StatementVariant {
                        before: vec![before; query.sources.len()],
                        nulls: nulls.clone(),
                    };
                    statements.push(part.body.render(catalog, query, &variant));
                }
            }
        }
        statements
    }
}

impl Partition {
    /// Returns the parts of a query, or of one SELECT of it.
    fn from_keys(catalog: &Catalog, query: &Query, one: &Query, paths: &[SourcePath]) -> Partition {
        let blocks: Vec<usize> = one.cores.iter().map(|(_, core)| core.block).collect();
        let paths: Vec<(usize, &SourcePath)> = paths
            .iter()
            .enumerate()
            .filter(|(_, source_path)| {
                source_path.path.last().is_some_and(|last| blocks.contains(last))
            })
            .collect();
        let scheme = PartitionScheme { catalog, sources: &query.sources };
        let mut keys = scheme.keys_of(one);
        keys.retain(|key| {
            paths.iter().all(|(_, source_path)| scheme.shown_on(key, source_path).is_some())
        });
        let terms = terms_on(catalog, query, &paths, &keys);
        Partition::new(terms, PartitionBody::Keyed(Box::new(one.clone()), keys))
    }

    fn new(terms: Vec<Term>, body: PartitionBody) -> Partition {
        Partition { terms, body, rendered: Mutex::default() }
    }

    /// `true` if there may be more than one part.
    fn has_keys(&self) -> bool {
        matches!(&self.body, PartitionBody::Keyed(_, keys) if !keys.is_empty())
    }

    fn statement(
        &self,
        catalog: &Catalog,
        query: &Query,
        variant: StatementVariant,
    ) -> Arc<Statement> {
        // Rendering again after a panic in another thread is harmless.
        let mut known = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let statement = known
            .entry(variant)
            .or_insert_with_key(|variant| Arc::new(self.body.render(catalog, query, variant)));
        Arc::clone(statement)
    }
}

impl PartitionKey {
    /// Creates the key of a query with one SELECT.
    fn new(core: &SelectCore, value: Fragment) -> PartitionKey {
        PartitionKey(vec![(core.block, value)])
    }

    /// `true` if it is the value of a column in some SELECT.
    fn has_column(&self, column: (usize, usize)) -> bool {
        self.0.iter().any(|(_, value)| column_of(value) == Some(column))
    }
}

impl PartitionBody {
    /// Which keys may be NULL; `None` if none may.
    fn may_be_null(&self, catalog: &Catalog, query: &Query) -> Option<Vec<bool>> {
        let PartitionBody::Keyed(_, keys) = self else { return None };
        let nulls: Vec<bool> = keys
            .iter()
            .map(|key| {
                key.0.iter().any(|(_, value)| {
                    column_of(value).is_none_or(|(source, column)| {
                        catalog.table(query.sources[source].table).columns[column].nullable
                    })
                })
            })
            .collect();
        nulls.contains(&true).then_some(nulls)
    }

    fn render(&self, catalog: &Catalog, query: &Query, variant: &StatementVariant) -> Statement {
        let mut out = Renderer::new(catalog, &query.sources);
        for (form, before) in out.forms.iter_mut().zip(&variant.before) {
            *form = if *before { SourceForm::Before } else { SourceForm::After };
        }
        match self {
            PartitionBody::Fixed(body) => out.push(body),
            PartitionBody::Keyed(one, keys) => {
                let mut added = ExtraConditions::new();
                for (at, key) in keys.iter().enumerate() {
                    let is_null = variant.nulls.get(at).copied().unwrap_or(false);
                    for (block, value) in &key.0 {
                        let equal = value.equals_given(at, is_null);
                        added.entry(*block).or_default().push(match one.core_of(*block) {
                            Some(core) => core.shielded(value, equal),
                            None => equal,
                        });
                    }
                }
                out.push(&one.body_with(&added));
            }
        }
        out.finish()
    }
}

impl RuleContext<'_> {
    /// Returns the delta of a partitioned result.
    pub(crate) fn reevaluate_parts(&mut self, parts: &Partitions) -> Result<Delta, LiveError> {
        let mut touched = Vec::new();
        for part in &parts.parts {
            let mut keys = Weights::default();
            self.terms(&part.terms, &mut |key, _| keys.add(key, 1))?;
            touched.push(keys);
        }
        let mut weights = Weights::default();
        if touched.iter().map(Weights::len).sum::<usize>() > PARTS {
            self.add_difference(EvaluationExtent::Whole, &[], Sides::BOTH, &mut weights)?;
            return Ok(Delta::from_weights(&self.query.key, weights));
        }
        let changed: Vec<bool> = self
            .query
            .sources
            .iter()
            .map(|source| !self.changes.for_table(self.catalog.table(source.table).name).is_empty())
            .collect();
        for (part, keys) in parts.parts.iter().zip(&touched) {
            for (key, _) in keys.rows() {
                let nulls: Vec<bool> = key.iter().map(|value| *value == Value::Null).collect();
                for (before, weight) in [(changed.clone(), -1), (vec![false; changed.len()], 1)] {
                    let variant = StatementVariant { before, nulls: nulls.clone() };
                    let statement = part.statement(self.catalog, self.query, variant);
                    let given: &[Value] = &key;
                    self.run_statement(&statement, given, &mut |row| {
                        weights.add(row.into(), weight)
                    })?;
                }
            }
        }
        Ok(Delta::from_weights(&self.query.key, weights))
    }
}

/// `true` if it, or a subquery of its FROM, contains window functions.
fn has_windows(query: &Query) -> bool {
    query.cores.iter().any(|(_, core)| {
        let mut derived = core.from.iter().filter_map(|term| term.derived.as_ref());
        core.windows() || derived.any(|derived| has_windows(&derived.query))
    })
}

/// Returns the path of each source, as far as conditions lead.
fn source_paths(query: &Query) -> Option<Vec<SourcePath>> {
    (0..query.sources.len())
        .map(|source| {
            let mut source_path = source_path(&query.blocks, source)?;
            source_path.dependency = source_path.dependency.connected();
            (source_path.dependency.sources.len() <= JOINED).then_some(source_path)
        })
        .collect()
}

fn terms_on(
    catalog: &Catalog,
    query: &Query,
    paths: &[(usize, &SourcePath)],
    keys: &[PartitionKey],
) -> Vec<Term> {
    let scheme = PartitionScheme { catalog, sources: &query.sources };
    let mut all = Vec::new();
    for (source, source_path) in paths {
        let shown: Vec<Fragment> =
            keys.iter().filter_map(|key| scheme.shown_on(key, source_path)).collect();
        all.extend(terms(
            catalog,
            query,
            &source_path.dependency,
            Some(*source),
            &shown,
            Show::Distinct,
        ));
    }
    all
}

/// The partitioning of a query.
struct PartitionScheme<'a> {
    catalog: &'a Catalog,
    sources: &'a [Source],
}

impl PartitionScheme<'_> {
    /// Returns the form of a key on the rows that a source reaches; `None` if unknown or not
    /// connected.
    fn shown_on(&self, key: &PartitionKey, source_path: &SourcePath) -> Option<Fragment> {
        if let Some((_, value)) = key.0.iter().find(|(block, _)| source_path.path.contains(block)) {
            let value = source_path.in_certain_sources(value)?;
            let met =
                value.columns().all(|(source, _)| source_path.dependency.sources.contains(&source));
            return met.then_some(value);
        }
        source_path.equal.iter().find_map(|(left, right)| {
            let other = if key.has_column(*left) { right } else { left };
            let linked = key.has_column(*left) || key.has_column(*right);
            let of_one_kind = self.column_kind(*left) == self.column_kind(*right);
            let known = linked && of_one_kind && source_path.dependency.sources.contains(&other.0);
            known.then(|| Fragment::column(other.0, other.1))
        })
    }

    fn column_kind(&self, column: (usize, usize)) -> Kind {
        let (source, column) = column;
        self.catalog.table(self.sources[source].table).columns[column].kind
    }

    fn form(&self, value: &Fragment) -> Option<Kind> {
        form_of(self.catalog, self.sources, value).filter(|_| !value.has_subquery())
    }

    /// Returns the expressions that may partition a query.
    fn keys_of(&self, query: &Query) -> Vec<PartitionKey> {
        if query.limit.is_some() {
            return Vec::new();
        }
        let [(_, core)] = query.cores.as_slice() else { return self.keys_of_compound(query) };
        let keys = match core.parts() {
            Some(parts) => parts
                .into_iter()
                .filter(|by| {
                    self.form(by).is_some()
                        && (!core.distinct || core.outputs.iter().any(|output| output.value == *by))
                        && (by.is_column() || !core.opaque)
                })
                .map(|by| PartitionKey::new(core, by))
                .collect(),
            None => {
                let inner: Vec<&FromTerm> =
                    core.from.iter().filter(|term| term.join == Join::Inner).collect();
                let rows: Vec<PartitionKey> = inner
                    .iter()
                    .filter(|term| term.source.is_some())
                    .flat_map(|term| term.key.iter().flatten().cloned())
                    .map(|by| PartitionKey::new(core, by))
                    .collect();
                let derived = inner.iter().find_map(|term| term.derived.as_ref());
                match derived {
                    Some(derived) if rows.is_empty() => self.keys_of(&derived.query),
                    _ => rows,
                }
            }
        };
        self.with_linked(core, keys)
    }

    /// Adds the forms of keys in subqueries of FROM, found through column equalities.
    fn with_linked(&self, core: &SelectCore, mut keys: Vec<PartitionKey>) -> Vec<PartitionKey> {
        for term in &core.from {
            let Some(derived) = &term.derived else { continue };
            let conjuncts = core.filter.iter().chain(&term.on);
            let equal: Vec<EqualColumns> = conjuncts
                .filter_map(|conjunct| conjunct.equal)
                .filter(|(left, right)| self.column_kind(*left) == self.column_kind(*right))
                .collect();
            let others = self.keys_of(&derived.query);
            for key in &mut keys {
                let linked = others
                    .iter()
                    .find(|other| {
                        equal.iter().any(|(left, right)| {
                            (key.has_column(*left) && other.has_column(*right))
                                || (key.has_column(*right) && other.has_column(*left))
                        })
                    })
                    .map_or(&[][..], |linked| &linked.0);
                for (block, value) in linked {
                    if key.0.iter().all(|(known, _)| known != block) {
                        key.0.push((*block, value.clone()));
                    }
                }
            }
        }
        keys
    }

    /// For a compound: the columns with one form in all of its SELECTs.
    fn keys_of_compound(&self, query: &Query) -> Vec<PartitionKey> {
        let mut keys = Vec::new();
        for at in 0..query.outputs().len() {
            let values: Vec<(&SelectCore, &Fragment)> =
                query.cores.iter().map(|(_, core)| (core, &core.outputs[at].value)).collect();
            let has_one_form = common(values.iter().map(|(_, value)| self.form(value))).is_some();
            let splits_all = values.iter().all(|(core, value)| {
                splits_core(core, value) && (value.is_column() || !core.opaque)
            });
            if has_one_form && splits_all {
                let forms = values.iter().map(|(core, value)| (core.block, (*value).clone()));
                keys.push(PartitionKey(forms.collect()));
            }
        }
        keys
    }
}

/// `true` if all rows of a SELECT that affect each other have the same value of an output.
fn splits_core(core: &SelectCore, value: &Fragment) -> bool {
    let Some(parts) = core.parts() else { return true };
    let is_constant = value.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
        && !value.aggregates
        && !value.windows;
    parts.contains(value) || (is_constant && core.group.is_some())
}

fn column_of(value: &Fragment) -> Option<(usize, usize)> {
    match value.plain {
        PlainExpr::Column(source, column) if value.collation.is_none() => Some((source, column)),
        _ => None,
    }
}

/// A FULL JOIN of two tables by the equality of two columns of one kind.
struct FullJoin<'a> {
    catalog: &'a Catalog,
    query: &'a Query,
    core: &'a SelectCore,
    sources: [usize; 2],
    columns: [usize; 2],
}

impl FullJoin<'_> {
    /// Returns the rows of one non-NULL key.
    fn matched(&self) -> Partition {
        let mut all = Vec::new();
        let restricted = [0, 1].map(|side| {
            let column = self.column(side);
            let mut some = column.clone();
            some.push_text("NOTNULL");
            all.extend(self.terms(side, some, std::slice::from_ref(&column)));
            let mut equal = column;
            equal.push_text("=");
            equal.pieces.push(Piece::Given(0));
            equal
        });
        Partition::new(all, PartitionBody::Fixed(self.body(restricted)))
    }

    /// One row of one side, with a NULL key.
    fn unmatched(&self, side: usize, term: &FromTerm) -> Option<Partition> {
        let key = term.key.as_ref()?;
        let mut none = self.column(side);
        none.push_text("ISNULL");
        let terms = self.terms(side, none.clone(), key);
        for (at, column) in key.iter().enumerate() {
            none.push_text("AND");
            none.push(&column.not_distinct_from_given(at));
        }
        // An empty read of the other side through its index, so that a query plan shows no scan.
        let mut restricted = [0, 1].map(|side| {
            let mut nothing = self.column(side);
            nothing.push_text("= NULL");
            nothing
        });
        restricted[side] = none;
        Some(Partition::new(terms, PartitionBody::Fixed(self.body(restricted))))
    }

    fn column(&self, side: usize) -> Fragment {
        Fragment::column(self.sources[side], self.columns[side])
    }

    fn terms(&self, side: usize, condition: Fragment, shown: &[Fragment]) -> Vec<Term> {
        let dependency = DependencyPath::new(vec![self.sources[side]], vec![condition]);
        terms(self.catalog, self.query, &dependency, None, shown, Show::Distinct)
    }

    /// Returns the query over those rows of either table that meet a condition. They have aliases
    /// of their own, so that a query plan shows what is read of the tables themselves.
    fn body(&self, restricted: [Fragment; 2]) -> Fragment {
        let mut query = Query::from_core(self.core.clone());
        let core = query.first_core_mut();
        core.fragments().for_each(|fragment| {
            fragment.replace_columns(&|source, column| {
                let table = self.catalog.table(self.query.sources[source].table);
                format!("{}.{}", self.name(source), quoted(table.columns[column].name))
            });
        });
        for ((term, source), condition) in core.from.iter_mut().zip(self.sources).zip(&restricted) {
            let mut item = Fragment::text("(SELECT * FROM");
            item.push(&Fragment::source(source));
            item.push_text("WHERE");
            item.push(condition);
            item.push_text(&format!(") AS {}", self.name(source)));
            term.item = item;
        }
        query.body(&[])
    }

    fn name(&self, source: usize) -> String {
        let [left, right] = self.sources.map(|source| self.query.sources[source].alias.as_str());
        quoted(&format!("{} of {left}, {right}", self.query.sources[source].alias))
    }
}
