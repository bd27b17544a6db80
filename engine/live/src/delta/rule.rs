//! The delta rules: how the change of a query's result follows from the changes of its tables.
//!
//! `RowFilter`: filter and project the old and new images of the changed rows. `Join`: with R' the
//! tables after the commit, ΔV = Σ over non-empty S of (−1)^(|S|+1) · ⋈_{i∈S} ΔR_i ⋈_{j∉S} R'_j
//! (DBSP's rule, over the later state only). `GroupReevaluation`: find the affected groups by the
//! same terms, and evaluate each of them over the tables after and before. `RowReevaluation`: find
//! the rows of the outermost inner tables that a change may affect, and evaluate the query for each
//! of them, after and before. `FullReevaluation`: evaluate the whole query over both states. The
//! comments of [`DeltaRule`] describe the other rules.

use std::collections::{HashMap, HashSet};

use abide_schema::{Row, TableSpec, Value};
use sqlite3_parser::ast::CompoundOperator;

use crate::catalog::{Catalog, IMAGE};
use crate::delta::accumulator::BackfilledGroup;
use crate::delta::aggregates::AggregateRule;
use crate::delta::changes::{NEW, OLD, RowChange, image_number};
use crate::delta::dependency::source_path;
use crate::delta::evaluation::{EvaluationExtent, evaluate};
use crate::delta::exact::{self, ExactRow};
use crate::delta::partitions::Partitions;
use crate::delta::rule_context::{PARTS, RuleContext, Sides};
use crate::delta::state::RuleState;
use crate::delta::term::{JOINED, Show, Term, terms, write_conditions};
use crate::delta::top_n::TopNRule;
use crate::delta::{Delta, Weights, integer, key_of};
use crate::plan::collation::{Collation, canonical};
use crate::plan::fragment::{Fragment, Piece, PlainExpr, Renderer, SourceForm, Statement};
use crate::plan::query::{Query, SelectCore};
use crate::sql::LiveError;

/// How a query's result is maintained.
#[derive(Debug)]
pub(crate) enum DeltaRule {
    /// One table, filtered and projected.
    RowFilter(Statement),
    /// An inner join.
    Join(Vec<Term>),
    /// Aggregates maintained as accumulators.
    IncrementalAggregate(Box<AggregateRule>, Vec<Term>),
    /// Other aggregates: the terms return the group of every changed row.
    GroupReevaluation(Vec<Term>),
    /// Outer joins and subqueries: the terms return the rows that a change may affect.
    RowReevaluation(Vec<Term>),
    /// LIMIT of plain joins.
    TopN(TopNRule),
    /// Other queries with LIMIT: the terms check whether any changed row matters; if so, the whole
    /// query is evaluated.
    ConditionalReevaluation(Vec<Term>),
    /// A partitioned result: the terms return the affected partitions.
    PartitionReevaluation(Partitions),
    /// Any query: evaluated over both states.
    FullReevaluation,
}

impl DeltaRule {
    /// Returns the cheapest correct rule for a query.
    pub(crate) fn choose(catalog: &Catalog, query: &Query) -> DeltaRule {
        let [(_, core)] = query.cores.as_slice() else {
            let joined = all_joined(catalog, query).map(DeltaRule::Join);
            return joined.unwrap_or_else(|| DeltaRule::choose_else(catalog, query));
        };
        let plain = core.is_plain_join() && core.from.len() <= JOINED && !core.distinct;
        if !plain || core.windows() {
            return DeltaRule::choose_else(catalog, query);
        }
        let dependency = core.dependency_path();
        if query.limit.is_some() && core.aggregates() {
            return DeltaRule::ConditionalReevaluation(terms(
                catalog,
                query,
                &dependency,
                None,
                &[],
                Show::Distinct,
            ));
        }
        if query.limit.is_some() {
            return DeltaRule::TopN(TopNRule::new(catalog, query, core));
        }
        if core.aggregates() {
            let groups = core.group.clone().unwrap_or_default();
            let terms = terms(catalog, query, &dependency, None, &groups, Show::Distinct);
            return match AggregateRule::new(catalog, query, core) {
                Some(rule) => DeltaRule::IncrementalAggregate(Box::new(rule), terms),
                None => DeltaRule::GroupReevaluation(terms),
            };
        }
        let shown = core.output_values();
        if core.from.len() == 1 {
            return DeltaRule::RowFilter(images_statement(catalog, query, core, &shown));
        }
        DeltaRule::Join(terms(catalog, query, &dependency, None, &shown, Show::Weighted))
    }

    /// Returns the name of the rule.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            DeltaRule::RowFilter(_) => "row_filter",
            DeltaRule::Join(_) => "join",
            DeltaRule::IncrementalAggregate(..) => "incremental_aggregate",
            DeltaRule::GroupReevaluation(_) => "group_reevaluation",
            DeltaRule::RowReevaluation(_) => "row_reevaluation",
            DeltaRule::TopN(_) => "top_n",
            DeltaRule::ConditionalReevaluation(_) => "conditional_reevaluation",
            DeltaRule::PartitionReevaluation(_) => "partition_reevaluation",
            DeltaRule::FullReevaluation => "full_reevaluation",
        }
    }

    /// Returns the terms that join changed rows with other tables.
    pub(crate) fn terms(&self) -> Vec<&Term> {
        match self {
            DeltaRule::RowFilter(_) | DeltaRule::FullReevaluation => Vec::new(),
            DeltaRule::Join(terms)
            | DeltaRule::IncrementalAggregate(_, terms)
            | DeltaRule::GroupReevaluation(terms)
            | DeltaRule::RowReevaluation(terms)
            | DeltaRule::ConditionalReevaluation(terms) => terms.iter().collect(),
            DeltaRule::TopN(cut) => cut.terms.iter().collect(),
            DeltaRule::PartitionReevaluation(parts) => parts.terms().collect(),
        }
    }

    /// Returns the rule for all but plain joins and their groups.
    fn choose_else(catalog: &Catalog, query: &Query) -> DeltaRule {
        if query.limit.is_some() {
            return Partitions::gate(catalog, query)
                .map_or(DeltaRule::FullReevaluation, DeltaRule::ConditionalReevaluation);
        }
        if let [(_, core)] = query.cores.as_slice()
            && !core.distinct
            && !core.windows()
        {
            if let Some(parts) = Partitions::from_full_join(catalog, query, core) {
                return DeltaRule::PartitionReevaluation(parts);
            }
            if let Some(terms) = touched_row_terms(catalog, query, core) {
                return DeltaRule::RowReevaluation(terms);
            }
        }
        Partitions::by_values(catalog, query)
            .map_or(DeltaRule::FullReevaluation, DeltaRule::PartitionReevaluation)
    }

    /// Returns all statements of the rule.
    pub(crate) fn statements(&self, catalog: &Catalog, query: &Query) -> Vec<Statement> {
        let (terms, extent) = match self {
            DeltaRule::RowFilter(statement) => return vec![statement.clone()],
            DeltaRule::Join(terms) => (terms.as_slice(), None),
            DeltaRule::IncrementalAggregate(_, terms) | DeltaRule::GroupReevaluation(terms) => {
                (terms.as_slice(), Some(EvaluationExtent::Group))
            }
            DeltaRule::RowReevaluation(terms) => (terms.as_slice(), Some(EvaluationExtent::Row)),
            DeltaRule::TopN(cut) => (cut.terms.as_slice(), Some(EvaluationExtent::Whole)),
            DeltaRule::ConditionalReevaluation(terms) => {
                (terms.as_slice(), Some(EvaluationExtent::Whole))
            }
            DeltaRule::PartitionReevaluation(parts) => return parts.statements(catalog, query),
            DeltaRule::FullReevaluation => (&[][..], Some(EvaluationExtent::Whole)),
        };
        let mut statements = match self {
            DeltaRule::IncrementalAggregate(rule, _) => rule.statements(),
            _ => Vec::new(),
        };
        statements.extend(terms.iter().flat_map(Term::statements).cloned());
        for before in [false, true] {
            let before = vec![before; query.sources.len()];
            statements.extend(extent.map(|extent| evaluate(catalog, query, extent, &before)));
        }
        statements
    }

    /// Returns the accumulators of a group in the state of the run; `None` if the rule has none.
    pub(crate) fn fill(
        &self,
        run: &mut RuleContext,
        group: &Row,
    ) -> Result<Option<BackfilledGroup>, LiveError> {
        match self {
            DeltaRule::IncrementalAggregate(rule, _) => {
                Ok(Some(BackfilledGroup(rule.fill(run, group)?)))
            }
            _ => Ok(None),
        }
    }

    /// Adopts the result of [`DeltaRule::fill`] on the state before these changes.
    pub(crate) fn apply_backfill(
        &self,
        run: &mut RuleContext,
        state: &mut RuleState,
        group: &Row,
        filled: Option<BackfilledGroup>,
    ) -> Result<(), LiveError> {
        match self {
            DeltaRule::IncrementalAggregate(rule, _) => {
                rule.apply_backfill(run, state, group, filled)
            }
            _ => Ok(()),
        }
    }

    /// Returns the columns of a source that partition the evaluation.
    pub(crate) fn part_columns(&self, query: &Query, source: usize) -> Vec<usize> {
        let values: Vec<&Fragment> = match self {
            DeltaRule::PartitionReevaluation(parts) => parts.values().collect(),
            DeltaRule::IncrementalAggregate(..) | DeltaRule::GroupReevaluation(_) => {
                query.first_core().group.iter().flatten().collect()
            }
            _ => Vec::new(),
        };
        let columns = values.into_iter().filter_map(|value| match value.plain {
            PlainExpr::Column(known, column) if known == source => Some(column),
            _ => None,
        });
        columns.collect()
    }

    /// Returns the delta from changes in the temporary tables. `numbers` are the changes that can
    /// affect the query.
    pub(crate) fn delta(
        &self,
        run: &mut RuleContext,
        numbers: Option<&[usize]>,
    ) -> Result<Delta, LiveError> {
        match self {
            DeltaRule::RowFilter(statement) => run.filter_images(statement, numbers),
            DeltaRule::Join(terms) => {
                let mut weights = Weights::default();
                run.terms(terms, &mut |row, weight| weights.add(row, weight))?;
                Ok(Delta::from_weights(&run.query.key, weights))
            }
            DeltaRule::IncrementalAggregate(rule, terms) => match run.state.take() {
                Some(state) => rule.delta(run, state),
                None => run.reevaluate_groups(terms),
            },
            DeltaRule::GroupReevaluation(terms) => run.reevaluate_groups(terms),
            DeltaRule::RowReevaluation(terms) => run.reevaluate_rows(terms),
            DeltaRule::TopN(cut) => cut.delta(run),
            DeltaRule::PartitionReevaluation(parts) => run.reevaluate_parts(parts),
            DeltaRule::ConditionalReevaluation(terms) => {
                let mut met = false;
                run.terms(terms, &mut |_, _| met = true)?;
                if met { run.reevaluate_whole() } else { Ok(Delta::default()) }
            }
            DeltaRule::FullReevaluation => run.reevaluate_whole(),
        }
    }
}

impl RuleContext<'_> {
    /// (absent, present) is an insert, (present, absent) a delete, (present, present) an update or
    /// no change.
    fn filter_images(
        &mut self,
        statement: &Statement,
        numbers: Option<&[usize]>,
    ) -> Result<Delta, LiveError> {
        let source = self.query.first_core().from[0].source.expect("the rule is for one table");
        let table = self.catalog.table(self.query.sources[source].table);
        let mut images: Vec<(i64, Row)> = Vec::new();
        for (low, high) in spans(numbers, self.changes.for_table(table.name).len()) {
            let given = [image_number(low, OLD), image_number(high, NEW)];
            self.run_statement(statement, &given, &mut |row| {
                images.push((integer(&row[0]), row[1..].into()));
            })?;
        }
        let key = &self.query.key;
        let mut delta = Delta::default();
        let mut images = images.into_iter().peekable();
        while let Some((number, first)) = images.next() {
            let second = images.next_if(|(next, _)| next / 2 == number / 2).map(|(_, row)| row);
            let (old, new) =
                if number % 2 == 0 { (Some(first), second) } else { (None, Some(first)) };
            match (old, new) {
                (Some(old), Some(new)) if exact::same(&old, &new) => {}
                (Some(old), Some(new))
                    if !key.is_empty() && exact::same(&key_of(key, &old), &key_of(key, &new)) =>
                {
                    delta.update(old, new);
                }
                (old, new) => {
                    old.into_iter().for_each(|old| delta.delete(key, old));
                    new.into_iter().for_each(|new| delta.insert(new));
                }
            }
        }
        Ok(delta)
    }

    fn reevaluate_groups(&mut self, terms: &[Term]) -> Result<Delta, LiveError> {
        let mut touched = Weights::default();
        self.terms(terms, &mut |group, _| touched.add(group, 1))?;
        let mut weights = Weights::default();
        let Some(groups) =
            distinct_groups(self.query, touched).filter(|groups| groups.len() <= PARTS)
        else {
            self.add_difference(EvaluationExtent::Whole, &[], Sides::BOTH, &mut weights)?;
            return Ok(Delta::from_weights(&self.query.key, weights));
        };
        for group in groups {
            self.add_difference(EvaluationExtent::Group, &group, Sides::BOTH, &mut weights)?;
        }
        Ok(Delta::from_weights(&self.query.key, weights))
    }

    fn reevaluate_rows(&mut self, terms: &[Term]) -> Result<Delta, LiveError> {
        let mut touched = Weights::default();
        self.terms(terms, &mut |rows, _| touched.add(rows, 1))?;
        let given: Vec<ChangeImages> = self.query.blocks[0]
            .inner_sources()
            .map(|source| {
                let table = self.catalog.table(self.query.sources[source].table);
                ChangeImages::new(table, self.changes.for_table(table.name))
            })
            .collect();
        let mut weights = Weights::default();
        if touched.len() > PARTS {
            self.add_difference(EvaluationExtent::Whole, &[], Sides::BOTH, &mut weights)?;
            return Ok(Delta::from_weights(&self.query.key, weights));
        }
        for (rows, _) in touched.rows() {
            let mut first = 0;
            let mut sides = Sides::BOTH;
            for images in &given {
                let present = images.presence(&rows[first..first + images.width]);
                first += images.width;
                sides.before &= present.before;
                sides.after &= present.after;
            }
            self.add_difference(EvaluationExtent::Row, &rows, sides, &mut weights)?;
        }
        Ok(Delta::from_weights(&self.query.key, weights))
    }
}

impl SelectCore {
    /// Returns the values of its outputs.
    fn output_values(&self) -> Vec<Fragment> {
        self.outputs.iter().map(|output| output.value.clone()).collect()
    }
}

/// Returns the statement of the images of changed rows in the query's result, between two numbers.
fn images_statement(
    catalog: &Catalog,
    query: &Query,
    core: &SelectCore,
    shown: &[Fragment],
) -> Statement {
    let source = core.from[0].source.expect("the rule is for one table");
    let mut out = Renderer::new(catalog, &query.sources);
    out.forms[source] = SourceForm::Changed;
    let image = format!("{}.{IMAGE}", out.alias(source));
    let mut between = Fragment::text(&format!("{image} BETWEEN"));
    between.pieces.push(Piece::Given(0));
    between.push_text("AND");
    between.pieces.push(Piece::Given(1));
    out.push_text(&format!("SELECT {image}"));
    for value in shown {
        out.push_text(",");
        out.push(value);
    }
    out.push_text("FROM");
    out.push_source(source);
    let conditions = core.filter.iter().map(|conjunct| &conjunct.condition).chain([&between]);
    write_conditions(&mut out, conditions);
    out.push_text(&format!("ORDER BY {image}"));
    out.finish()
}

/// Returns the terms that return which rows of the outermost inner tables a change of any source
/// may affect. `None` if the query cannot be evaluated row by row.
fn touched_row_terms(catalog: &Catalog, query: &Query, core: &SelectCore) -> Option<Vec<Term>> {
    let given: Vec<usize> = query.blocks[0].inner_sources().collect();
    if given.is_empty() || core.from.iter().any(|term| term.join.keeps_right()) {
        return None;
    }
    if core.aggregates() {
        let groups = core.group.as_ref()?;
        let contain_keys = given.iter().all(|source| {
            let key = catalog.table(query.sources[*source].table).key;
            key.iter().all(|column| groups.contains(&Fragment::column(*source, *column)))
        });
        if !contain_keys || !groups.iter().all(|by| matches!(by.plain, PlainExpr::Column(..))) {
            return None;
        }
    }
    let shown: Vec<Fragment> = given
        .iter()
        .flat_map(|source| {
            let columns = catalog.table(query.sources[*source].table).columns.len();
            (0..columns).map(|column| Fragment::column(*source, column))
        })
        .collect();
    let mut all = Vec::new();
    for source in 0..query.sources.len() {
        let source_path = source_path(&query.blocks, source)?;
        let derived = source_path.path.iter().any(|at| query.blocks[*at].shown.is_some());
        let listed = core.from.iter().any(|term| term.source.is_none() && term.derived.is_none());
        if source_path.dependency.sources.len() > JOINED
            || ((derived || listed) && !source_path.dependency.is_connected())
        {
            return None;
        }
        let dependency = source_path.dependency;
        all.extend(terms(catalog, query, &dependency, Some(source), &shown, Show::Distinct));
    }
    Some(all)
}

/// Returns the terms of UNION ALL of joins: those of each join.
fn all_joined(catalog: &Catalog, query: &Query) -> Option<Vec<Term>> {
    let mut all = Vec::new();
    for (operator, core) in &query.cores {
        let joined = matches!(operator, None | Some(CompoundOperator::UnionAll))
            && core.is_plain_join()
            && core.from.len() <= JOINED
            && !core.aggregates()
            && !core.distinct;
        if !joined || query.limit.is_some() {
            return None;
        }
        all.extend(terms(
            catalog,
            query,
            &core.dependency_path(),
            None,
            &core.output_values(),
            Show::Weighted,
        ));
    }
    Some(all)
}

/// The old and new images of one table's changes, by primary key.
struct ChangeImages<'a> {
    width: usize,
    key: &'a [usize],
    changes: HashMap<ExactRow, &'a RowChange>,
}

impl<'a> ChangeImages<'a> {
    fn new(table: &'static TableSpec, changes: &'a [RowChange]) -> ChangeImages<'a> {
        let by_key = changes.iter().filter_map(|change| {
            let row = change.old.as_ref().or(change.new.as_ref())?;
            Some((ExactRow(table.key_of(row).into()), change))
        });
        ChangeImages { width: table.columns.len(), key: table.key, changes: by_key.collect() }
    }

    /// Returns in which states, before and after the commit, the table has a row.
    fn presence(&self, row: &[Value]) -> Sides {
        let key: Row = self.key.iter().map(|at| row[*at].clone()).collect();
        let Some(change) = self.changes.get(&ExactRow(key)) else { return Sides::BOTH };
        let is_row =
            |image: &Option<Row>| image.as_ref().is_some_and(|image| exact::same(image, row));
        Sides { before: is_row(&change.old), after: is_row(&change.new) }
    }
}

/// Returns the spans of change numbers to read: one if that wastes little, otherwise one for each
/// run.
fn spans(numbers: Option<&[usize]>, all: usize) -> Vec<(usize, usize)> {
    /// Reading this many irrelevant rows is cheaper than another statement.
    const GAP: usize = 8;
    let Some(numbers) = numbers else {
        return if all == 0 { Vec::new() } else { vec![(0, all - 1)] };
    };
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match spans.last_mut() {
            Some((_, high)) if *number <= *high + GAP => *high = (*high).max(*number),
            _ => spans.push((*number, *number)),
        }
    }
    spans
}

/// Returns each touched group once; `None` if a collation inside an expression makes the identity
/// of groups uncertain. 1 and 1.0 are one group, and so are 'a' and 'A' by NOCASE: evaluating a
/// group twice would apply its change twice.
fn distinct_groups(query: &Query, touched: Weights) -> Option<Vec<Row>> {
    let by = query.first_core().group.as_deref().unwrap_or(&[]);
    let uncertain = by.iter().any(|by| by.collation.is_none() && by.collates_within);
    if uncertain && touched.len() > 1 {
        return None;
    }
    let mut known = HashSet::new();
    let mut groups: Vec<Row> = touched.rows().map(|(group, _)| group).collect();
    groups.retain(|group| {
        let cells = by
            .iter()
            .zip(group.iter())
            .map(|(by, cell)| canonical(by.collation.unwrap_or(Collation::Binary), cell));
        known.insert(ExactRow(cells.collect()))
    });
    Some(groups)
}
