//! The inputs of a delta rule, and the statements that every rule runs on them.

use abide_schema::{Row, Value};

use crate::catalog::Catalog;
use crate::delta::changes::Changes;
use crate::delta::evaluation::{EvaluationExtent, Evaluations};
use crate::delta::meter::Cost;
use crate::delta::state::RuleState;
use crate::delta::term::Term;
use crate::delta::{Delta, Weights, integer};
use crate::plan::fragment::{Arg, Statement};
use crate::plan::query::Query;
use crate::sql::{LiveError, Sql};

/// The maximum number of groups or rows evaluated one by one. Beyond it the whole query is
/// evaluated: a resume over a long span touches most of a result anyway.
pub(crate) const PARTS: usize = 1_000;

/// The inputs of a rule.
pub(crate) struct RuleContext<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) query: &'a Query,
    pub(crate) params: &'a [Value],
    pub(crate) changes: &'a Changes,
    pub(crate) sql: &'a mut dyn Sql,
    pub(crate) evaluations: &'a Evaluations,
    /// The cached state of the result before the changes, updated by the rule; `None` if the
    /// changes are not those of the next commit.
    pub(crate) state: Option<&'a mut RuleState>,
    /// Receives the groups that are too expensive to fill here, if a reader may fill them.
    pub(crate) unfilled: Option<&'a mut Vec<Row>>,
    /// The cost so far.
    pub(crate) spent: &'a mut Cost,
}

/// Which states of the rows [`RuleContext::add_difference`] evaluates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides {
    /// The state before the changes, whose rows are subtracted.
    pub(crate) before: bool,
    /// The state after the changes, whose rows are added.
    pub(crate) after: bool,
}

impl Sides {
    pub(crate) const BOTH: Sides = Sides { before: true, after: true };
}

impl RuleContext<'_> {
    /// Calls `each` with the rows and weights of every term whose table changed. A weight is how often a row is added,
    /// or removed if it is negative.
    pub(crate) fn terms(
        &mut self,
        terms: &[Term],
        each: &mut dyn FnMut(Row, i64),
    ) -> Result<(), LiveError> {
        self.terms_given(terms, &[], each)
    }

    /// Like [`RuleContext::terms`], for terms whose statements need values that are no parameters of the query.
    pub(crate) fn terms_given(
        &mut self,
        terms: &[Term],
        given: &[Value],
        each: &mut dyn FnMut(Row, i64),
    ) -> Result<(), LiveError> {
        for term in terms {
            let Some(statement) = term.statement_after(self.catalog, self.changes) else {
                continue;
            };
            self.run_statement(statement, given, &mut |row| {
                let (weight, row) = row.split_first().expect("a term shows its weight first");
                each(row.into(), term.sign * integer(weight));
            })?;
        }
        Ok(())
    }

    /// Adds the rows after the changes to `weights` and subtracts the rows before the changes, as far as `sides` asks
    /// for them.
    pub(crate) fn add_difference(
        &mut self,
        extent: EvaluationExtent,
        given: &[Value],
        sides: Sides,
        weights: &mut Weights,
    ) -> Result<(), LiveError> {
        if sides.before {
            self.evaluate(extent, given, true, &mut |row| weights.add(row, -1))?;
        }
        if sides.after {
            self.evaluate(extent, given, false, &mut |row| weights.add(row, 1))?;
        }
        Ok(())
    }

    /// Evaluates the whole query and compares it with the previous result, which is cached or
    /// evaluated too.
    pub(crate) fn reevaluate_whole(&mut self) -> Result<Delta, LiveError> {
        let cached = self.state.as_mut().and_then(|state| state.take_rows());
        let old = match cached {
            Some(rows) => rows,
            None => self.evaluate_whole(true)?,
        };
        let new = self.evaluate_whole(false)?;
        let delta = Delta::between(self.query.limit.is_some(), &self.query.key, &old, &new);
        if let Some(state) = &mut self.state {
            state.keep_rows(new);
        }
        Ok(delta)
    }

    fn evaluate_whole(&mut self, before: bool) -> Result<Vec<Row>, LiveError> {
        let mut rows = Vec::new();
        self.evaluate(EvaluationExtent::Whole, &[], before, &mut |row| rows.push(row))?;
        Ok(rows)
    }

    /// Calls `each` with the rows before or after the changes.
    ///
    /// Only the tables that changed need the statement of their state before; the others are read as they are.
    pub(crate) fn evaluate(
        &mut self,
        extent: EvaluationExtent,
        given: &[Value],
        before: bool,
        each: &mut dyn FnMut(Row),
    ) -> Result<(), LiveError> {
        let sources = self.query.sources.iter();
        let sources_before = sources
            .map(|source| {
                let table = self.catalog.table(source.table).name;
                before && !self.changes.for_table(table).is_empty()
            })
            .collect();
        let statement = self.evaluations.get(self.catalog, self.query, extent, sources_before);
        self.run_statement(&statement, given, &mut |row| each(row.into()))
    }

    /// Runs a statement, calls `each` with every row of its result, and adds its cost. A slot of the statement is a
    /// parameter of the query; `given` has the other values, such as the key of a group.
    pub(crate) fn run_statement(
        &mut self,
        statement: &Statement,
        given: &[Value],
        each: &mut dyn FnMut(&[Value]),
    ) -> Result<(), LiveError> {
        let params: Vec<Value> = statement
            .args
            .iter()
            .map(|arg| match arg {
                Arg::Slot(slot) => self.params[*slot].clone(),
                Arg::Given(at) => given[*at].clone(),
            })
            .collect();
        self.spent.add(self.sql.run(&statement.sql, &params, each)?);
        Ok(())
    }
}
