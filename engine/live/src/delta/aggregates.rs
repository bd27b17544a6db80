//! Aggregates by accumulators: a commit costs as much as the rows that it changed, however large
//! their groups are.
//!
//! SQLite evaluates the group, the arguments and the filters of every changed row, and the outputs
//! from the accumulators. This module only adds up the arguments. Sums that cannot be added exactly
//! as SQLite would (REAL sums, whose last bits depend on the order of rows, and sums that could
//! overflow on the way) are evaluated over the whole group for as long as that holds.

use std::collections::HashMap;

use abide_schema::table::Kind;
use abide_schema::{Row, Value};

use crate::catalog::Catalog;
use crate::delta::accumulator::{Accumulator, BackfilledGroup, Group, GroupState};
use crate::delta::evaluation::{EvaluationExtent, restricted_to_group};
use crate::delta::exact::{self, ExactRow};
use crate::delta::rule_context::RuleContext;
use crate::delta::state::RuleState;
use crate::delta::term::{Show, Term, terms};
use crate::delta::{Delta, Weights};
use crate::plan::fragment::{Aggregate, Fragment, Mark, Piece, PlainExpr, Renderer, Statement};
use crate::plan::query::{ExtraConditions, Query, SelectCore};
use crate::sql::LiveError;

/// How a query's groups are maintained as accumulators.
#[derive(Debug)]
pub(crate) struct AggregateRule {
    aggregates: Vec<AggregateCall>,
    /// Return the group and the arguments of every changed row, with its weight.
    terms: Vec<Term>,
    /// Returns the accumulators of a given group.
    fill: Statement,
    shown: GroupOutput,
    /// Whether there is a GROUP BY. Without one there is always one group.
    grouped: bool,
}

/// Rows added to a group (positive weight) or removed from it, each as its group's values and its
/// arguments.
type GroupChanges = Vec<(Row, i64)>;

/// The change of a group by a commit.
struct ChangedGroup {
    /// Its previous output row, if any.
    old_output: Option<Row>,
    new: Group,
}

/// One aggregate.
#[derive(Debug)]
struct AggregateCall {
    aggregate: Aggregate,
    /// Returns the extremum of a given group, by an index seek if there is one.
    seek: Option<Statement>,
}

/// How a group's row is built from its values, followed by those of the aggregates.
#[derive(Debug)]
enum GroupOutput {
    /// It consists of them.
    Picked(Vec<usize>),
    /// SQLite evaluates it.
    Evaluated(Statement),
}

impl AggregateRule {
    /// Creates the rule of an aggregation of plain joins that is grouped by plain columns and
    /// outputs only these and aggregates that can be added up; `None` for other queries.
    pub(crate) fn new(
        catalog: &Catalog,
        query: &Query,
        core: &SelectCore,
    ) -> Option<AggregateRule> {
        let groups = core.group.clone().unwrap_or_default();
        if !groups.iter().all(|by| matches!(by.pieces.as_slice(), [Piece::Column(..)])) {
            return None;
        }
        let mut found = Vec::new();
        let outputs = core.outputs.iter().map(|output| &output.value);
        let mut shown = outputs
            .chain(&core.having)
            .map(|value| from_given(catalog, query, &groups, value, &mut found))
            .collect::<Option<Vec<Fragment>>>()?;
        let having = core.having.is_some().then(|| shown.pop()).flatten();
        let mut values = groups.clone();
        values.extend(found.iter().map(AggregateTerm::value));
        let terms = terms(catalog, query, &core.dependency_path(), None, &values, Show::Weighted);
        let restricted = restricted_to_group(query);
        let fill = render(catalog, query, &select_accumulators(core, &found, &restricted));
        let aggregates = found.iter().map(|found| {
            let seek = found.seek(core, &restricted).map(|seek| render(catalog, query, &seek));
            AggregateCall { aggregate: found.aggregate, seek }
        });
        let shown = match pick_outputs(&shown, groups.len()).filter(|_| having.is_none()) {
            Some(picked) => GroupOutput::Picked(picked),
            None => {
                let outputs = select_outputs(&shown, having.as_ref());
                GroupOutput::Evaluated(render(catalog, query, &outputs))
            }
        };
        let grouped = core.group.is_some();
        Some(AggregateRule { aggregates: aggregates.collect(), terms, fill, shown, grouped })
    }

    /// Returns all statements of the rule.
    pub(crate) fn statements(&self) -> Vec<Statement> {
        let mut statements: Vec<Statement> = self.terms().cloned().collect();
        statements.push(self.fill.clone());
        statements.extend(self.aggregates.iter().filter_map(|call| call.seek.clone()));
        if let GroupOutput::Evaluated(shown) = &self.shown {
            statements.push(shown.clone());
        }
        statements
    }

    /// Returns the statements that join changed rows.
    fn terms(&self) -> impl Iterator<Item = &Statement> {
        self.terms.iter().flat_map(Term::statements)
    }

    /// Returns the delta from changes in the temporary tables; updates the cached state. Groups
    /// that are too expensive to fill become wanted; the whole delta is then unknown, but the other
    /// groups stay correct. After any other error the cached state is empty.
    pub(crate) fn delta(
        &self,
        run: &mut RuleContext,
        state: &mut RuleState,
    ) -> Result<Delta, LiveError> {
        let mut weights = Weights::default();
        let mut is_incomplete = false;
        let changed = self.changed(run).inspect_err(|_| state.forget())?;
        for (group, rows) in changed {
            let outcome = match state.take_group(&group) {
                None => self.begin(run, &group),
                Some(GroupState::Group(known)) => self.advance(run, &group, known, &rows),
                Some(GroupState::AwaitingBackfill) => {
                    state.keep_group(group, GroupState::AwaitingBackfill);
                    is_incomplete = true;
                    continue;
                }
            };
            match (outcome, &mut run.unfilled) {
                (Ok(ChangedGroup { old_output, new }), _) => {
                    if let Some(row) = old_output {
                        weights.add(row, -1);
                    }
                    if let Some(row) = &new.shown {
                        weights.add(row.clone(), 1);
                    }
                    self.keep(state, group, new);
                }
                (Err(LiveError::OverBudget), Some(backfills)) => {
                    backfills.push(group.clone());
                    state.keep_group(group, GroupState::AwaitingBackfill);
                    is_incomplete = true;
                }
                (Err(error), _) => {
                    state.forget();
                    return Err(error);
                }
            }
        }
        if is_incomplete {
            return Err(LiveError::OverBudget);
        }
        Ok(Delta::from_weights(&run.query.key, weights))
    }

    /// Returns the groups and arguments of the changed rows, by group, with their weights.
    fn changed(&self, run: &mut RuleContext) -> Result<Vec<(Row, GroupChanges)>, LiveError> {
        let mut changed = Weights::default();
        let width = run.query.first_core().group.as_ref().map_or(0, Vec::len);
        run.terms(&self.terms, &mut |row, weight| changed.add(row, weight))?;
        let mut groups: Vec<(Row, GroupChanges)> = Vec::new();
        let mut places = HashMap::new();
        for (row, weight) in changed.rows().filter(|(_, weight)| *weight != 0) {
            let group: Row = row[..width].into();
            let at = *places.entry(ExactRow(group.clone())).or_insert(groups.len());
            if at == groups.len() {
                groups.push((group, Vec::new()));
            }
            groups[at].1.push((row, weight));
        }
        Ok(groups)
    }

    fn keep(&self, state: &mut RuleState, group: Row, known: Group) {
        if known.rows > 0 || !self.grouped {
            state.keep_group(group, GroupState::Group(known));
        }
    }

    /// Adopts accumulators that were filled on the state before these changes, replacing the wanted
    /// mark.
    pub(crate) fn apply_backfill(
        &self,
        run: &mut RuleContext,
        state: &mut RuleState,
        group: &Row,
        filled: Option<BackfilledGroup>,
    ) -> Result<(), LiveError> {
        match state.take_group(group) {
            Some(GroupState::AwaitingBackfill) => {}
            Some(known) => state.keep_group(group.clone(), known),
            None => return Ok(()),
        }
        let Some(BackfilledGroup(filled)) = filled else { return Ok(()) };
        let changed =
            self.changed(run)?.into_iter().find(|(changed, _)| exact::same(changed, group));
        let rows = changed.map_or_else(Vec::new, |(_, rows)| rows);
        let ChangedGroup { new, .. } = self.advance(run, group, filled, &rows)?;
        self.keep(state, group.clone(), new);
        Ok(())
    }

    /// Returns the change of a group that is touched for the first time.
    fn begin(&self, run: &mut RuleContext, group: &Row) -> Result<ChangedGroup, LiveError> {
        let mut old_output = None;
        run.evaluate(EvaluationExtent::Group, group, true, &mut |row| old_output = Some(row))?;
        let mut new = self.fill(run, group)?;
        new.shown = self.show(run, group, &new)?;
        Ok(ChangedGroup { old_output, new })
    }

    /// Returns the change of a group by more rows.
    fn advance(
        &self,
        run: &mut RuleContext,
        group: &Row,
        mut known: Group,
        rows: &[(Row, i64)],
    ) -> Result<ChangedGroup, LiveError> {
        for (row, weight) in rows {
            known.rows += weight;
            for (call, sum, value) in self.zip_sums(&mut known.sums, &row[group.len()..]) {
                sum.add(call.aggregate, value, *weight);
            }
        }
        for (call, sum) in self.aggregates.iter().zip(&mut known.sums) {
            let (true, Some(seek)) = (sum.lost, &call.seek) else { continue };
            sum.lost = false;
            sum.extremum = None;
            run.run_statement(seek, group, &mut |row| {
                sum.extremum = row.first().filter(|value| **value != Value::Null).cloned();
            })?;
        }
        let old_output = known.shown.take();
        known.shown = self.show(run, group, &known)?;
        Ok(ChangedGroup { old_output, new: known })
    }

    fn zip_sums<'s>(
        &'s self,
        sums: &'s mut [Accumulator],
        values: &'s [Value],
    ) -> impl Iterator<Item = (&'s AggregateCall, &'s mut Accumulator, &'s Value)> {
        self.aggregates.iter().zip(sums).zip(values).map(|((call, sum), value)| (call, sum, value))
    }

    /// Returns the current accumulators of a group.
    pub(crate) fn fill(&self, run: &mut RuleContext, group: &Row) -> Result<Group, LiveError> {
        let mut filled = Group { rows: 0, sums: Vec::new(), shown: None };
        run.run_statement(&self.fill, group, &mut |row| {
            let mut cells = row.iter();
            let mut next = || cells.next().expect("the statement shows every accumulator");
            filled.rows = crate::delta::integer(next());
            filled.sums = self
                .aggregates
                .iter()
                .map(|call| Accumulator::read(call.aggregate, &mut next))
                .collect();
        })?;
        Ok(filled)
    }

    /// Returns the output row of a group.
    fn show(
        &self,
        run: &mut RuleContext,
        group: &Row,
        known: &Group,
    ) -> Result<Option<Row>, LiveError> {
        if known.rows == 0 && self.grouped {
            return Ok(None);
        }
        let sums = self.aggregates.iter().zip(&known.sums);
        let values = sums.map(|(call, sum)| sum.value(call.aggregate, known.rows));
        let Some(values) = values.collect::<Option<Vec<Value>>>() else {
            let mut shown = None;
            run.evaluate(EvaluationExtent::Group, group, false, &mut |row| shown = Some(row))?;
            return Ok(shown);
        };
        let given: Vec<Value> = group.iter().cloned().chain(values).collect();
        match &self.shown {
            GroupOutput::Picked(picked) => {
                Ok(Some(picked.iter().map(|at| given[*at].clone()).collect()))
            }
            GroupOutput::Evaluated(statement) => {
                let mut shown = None;
                run.run_statement(statement, &given, &mut |row| shown = Some(row.into()))?;
                Ok(shown)
            }
        }
    }
}

/// An aggregate found in a fragment.
#[derive(Clone, Debug, PartialEq)]
struct AggregateTerm {
    aggregate: Aggregate,
    argument: Fragment,
    filter: Option<Fragment>,
}

impl AggregateTerm {
    /// Parses the pieces between its marks.
    fn parse(aggregate: Aggregate, pieces: &[Piece]) -> AggregateTerm {
        AggregateTerm {
            aggregate,
            argument: fragment_between(pieces, Mark::Argument, Mark::ArgumentEnd)
                .unwrap_or_else(Fragment::new),
            filter: fragment_between(pieces, Mark::Filter, Mark::FilterEnd),
        }
    }

    /// Returns the contribution of a row: its argument, or NULL if the filter excludes it.
    fn value(&self) -> Fragment {
        let mut argument = self.argument.clone();
        if argument.pieces.is_empty() {
            argument.push_text("1");
        }
        let Some(filter) = &self.filter else { return argument };
        let mut out = Fragment::text("CASE WHEN (");
        out.push(filter);
        out.push_text(") THEN (");
        out.push(&argument);
        out.push_text(") END");
        out
    }

    /// Returns the initial value of the accumulator as SQL, over a value of this name.
    /// [`Accumulator::read`] reads it.
    fn accumulator_sql(&self, value: &str) -> Vec<String> {
        let count = format!("count({value})");
        let sum_of_integers = |part: &str| {
            format!("coalesce(sum(CASE typeof({value}) WHEN 'integer' THEN {part} END), 0)")
        };
        match self.aggregate {
            Aggregate::Rows | Aggregate::Other => Vec::new(),
            Aggregate::Count => vec![count],
            Aggregate::Sum | Aggregate::Total | Aggregate::Average => vec![
                count,
                sum_of_integers(&format!("{value} >> 32")),
                sum_of_integers(&format!("{value} & 4294967295")),
                sum_of_integers(&format!("abs({value} >> 32) + 1")),
                format!("coalesce(sum(typeof({value}) NOT IN ('integer', 'null')), 0)"),
            ],
            Aggregate::Min => vec![format!("min({value})")],
            Aggregate::Max => vec![format!("max({value})")],
        }
    }

    fn seek(&self, core: &SelectCore, restricted: &[Fragment]) -> Option<Fragment> {
        let mut out = Fragment::text(match self.aggregate {
            Aggregate::Min => "SELECT min(",
            Aggregate::Max => "SELECT max(",
            _ => return None,
        });
        out.push(&self.argument);
        out.push_text(")");
        core.write_from(&ExtraConditions::new(), &mut out);
        let filter = self.filter.iter().map(|filter| core.shielded(filter, filter.clone()));
        let restricted: Vec<Fragment> = restricted.iter().cloned().chain(filter).collect();
        core.write_where(&restricted, &mut out);
        Some(out)
    }
}

/// Returns an expression in terms of the given values of the group and the aggregates. New
/// aggregates are added to the list. `None` if it needs anything else.
fn from_given(
    catalog: &Catalog,
    query: &Query,
    groups: &[Fragment],
    value: &Fragment,
    found: &mut Vec<AggregateTerm>,
) -> Option<Fragment> {
    let mut out = Fragment::new();
    let mut pieces = value.pieces.iter().enumerate();
    while let Some((at, piece)) = pieces.next() {
        match piece {
            Piece::Mark(Mark::Aggregate(Aggregate::Other)) => return None,
            Piece::Mark(Mark::Aggregate(aggregate)) => {
                let end = Piece::Mark(Mark::End);
                let length = value.pieces[at..].iter().position(|piece| *piece == end)?;
                let call = AggregateTerm::parse(*aggregate, &value.pieces[at + 1..at + length]);
                let known = found.iter().position(|known| *known == call);
                let number = known.unwrap_or_else(|| {
                    found.push(call);
                    found.len() - 1
                });
                out.pieces.push(Piece::Given(groups.len() + number));
                pieces.nth(length - 1);
            }
            Piece::Column(source, column) => {
                let column_of = Fragment::column(*source, *column);
                let number = groups.iter().position(|by| *by == column_of)?;
                let kind: Kind = catalog.table(query.sources[*source].table).columns[*column].kind;
                // A bare parameter has no affinity; the CAST has that of the column.
                out.push_text("CAST(");
                out.pieces.push(Piece::Given(number));
                out.push_text(&format!("AS {})", kind.sql()));
            }
            Piece::Text(_)
            | Piece::Param(_)
            | Piece::Mark(Mark::Read | Mark::VisibleRead | Mark::ReadEnd(_)) => {
                out.pieces.push(piece.clone());
            }
            Piece::Hint(_) => {}
            Piece::Source(_)
            | Piece::AddedSource(_)
            | Piece::Given(_)
            | Piece::Mark(_)
            | Piece::Derived(..) => {
                return None;
            }
        }
    }
    out.plain =
        if matches!(value.plain, PlainExpr::Column(..)) { value.plain } else { PlainExpr::Other };
    Some(out)
}

fn render(catalog: &Catalog, query: &Query, fragment: &Fragment) -> Statement {
    let mut out = Renderer::new(catalog, &query.sources);
    out.push(fragment);
    out.finish()
}

fn fragment_between(pieces: &[Piece], from: Mark, to: Mark) -> Option<Fragment> {
    let from = pieces.iter().position(|piece| *piece == Piece::Mark(from))?;
    let to = pieces.iter().position(|piece| *piece == Piece::Mark(to))?;
    let mut fragment = Fragment::new();
    fragment.pieces.extend_from_slice(&pieces[from + 1..to]);
    Some(fragment)
}

/// Returns the given value of each output, if every output is one.
fn pick_outputs(shown: &[Fragment], groups: usize) -> Option<Vec<usize>> {
    let values = shown.iter().map(|value| match value.pieces.as_slice() {
        [Piece::Given(at)] => Some(*at),
        // A group's column, cast to its own type.
        [Piece::Text(_), Piece::Given(at), Piece::Text(_)]
            if *at < groups && matches!(value.plain, PlainExpr::Column(..)) =>
        {
            Some(*at)
        }
        _ => None,
    });
    values.collect()
}

/// `SELECT outputs WHERE having`, over given values.
fn select_outputs(shown: &[Fragment], having: Option<&Fragment>) -> Fragment {
    let mut out = Fragment::text("SELECT");
    for (at, value) in shown.iter().enumerate() {
        out.push_text(if at > 0 { "," } else { "" });
        out.push(value);
    }
    if let Some(having) = having {
        out.push_text("WHERE");
        out.push(having);
    }
    out
}

/// `SELECT count(*), … FROM (the arguments of the group's rows)`.
fn select_accumulators(
    core: &SelectCore,
    found: &[AggregateTerm],
    restricted: &[Fragment],
) -> Fragment {
    let mut shown = vec!["count(*)".to_owned()];
    let mut rows = Fragment::text("SELECT");
    for (at, call) in found.iter().enumerate() {
        shown.extend(call.accumulator_sql(&format!("v{at}")));
        rows.push_text(if at > 0 { "," } else { "" });
        rows.push(&call.value());
        rows.push_text(&format!("AS v{at}"));
    }
    let mut out = Fragment::text(&format!("SELECT {}", shown.join(", ")));
    if shown.len() == 1 {
        // For a plain row count SQLite is faster without a subquery.
        core.write_from(&ExtraConditions::new(), &mut out);
        core.write_where(restricted, &mut out);
        return out;
    }
    core.write_from(&ExtraConditions::new(), &mut rows);
    core.write_where(restricted, &mut rows);
    out.push_text("FROM (");
    out.push(&rows);
    out.push_text(")");
    out
}
