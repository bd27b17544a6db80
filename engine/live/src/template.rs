//! A query compiled to the statements that keep it live, and a template with its parameter values.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use abide_schema::wire::Shape;
use abide_schema::{Refusal, Row, TableSpec, Value, limits};

use crate::advice::Advice;
use crate::catalog::Catalog;
use crate::changes::Changes;
use crate::delta::Delta;
use crate::exact;
use crate::expansion::check_text;
use crate::fragment::{Arg, Form, Renderer, Statement};
use crate::lex;
use crate::lookup::Lookup;
use crate::lower::Slot;
use crate::meter::{Budget, Spent};
use crate::rule::{Evaluations, Rule, Run, Term};
use crate::select::Query;
use crate::sql::{Allowance, LiveError, Sql};
use crate::tally::Filled;
use crate::viewer::{Asker, Edition};

/// A compiled query. Immutable and shared.
#[derive(Debug)]
pub(crate) struct Template {
    catalog: Arc<Catalog>,
    pub(crate) query: Query,
    shape: Shape,
    snapshot: Arc<str>,
    /// Of the text, so that hashing a binding does not read all of it.
    text_hash: u64,
    rule: Rule,
    evaluations: Evaluations,
    /// For each source, how its changes find the bindings where no key of its own does.
    lookups: Vec<Option<Lookup>>,
    /// Operators and functions of the text.
    operations: usize,
    /// The columns of each table that it reads.
    reads: BTreeMap<usize, BTreeSet<usize>>,
    /// What was found out about it.
    pub(crate) advice: Advice,
}

/// What a live query costs and how it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The rule by which its deltas are made.
    pub rule: &'static str,
    /// What a commit that concerns the query costs.
    pub cost: &'static str,
    /// The statements that make its deltas.
    pub statements: Vec<String>,
    /// What is kept in memory while it is subscribed.
    pub state: &'static str,
    /// The equalities a change must meet to be looked at, by table; a table with none is asked about
    /// at every change.
    pub routed_by: Vec<String>,
}

impl Template {
    /// Compiles a query. The slots come back in the order of the snapshot's parameters.
    pub(crate) fn compile(
        catalog: &Arc<Catalog>,
        mut query: Query,
    ) -> Result<(Template, Vec<Slot>), Refusal> {
        let text = query.text();
        check_text(&text)?;
        let mut out = Renderer::new(catalog, &query.sources);
        out.fragment(&text);
        let snapshot = out.finish();
        let order = snapshot.args.iter().map(|arg| match arg {
            Arg::Slot(slot) => *slot,
            Arg::Given(_) => unreachable!("a snapshot is given nothing"),
        });
        let order: Vec<usize> = order.collect();
        let slots = order.iter().map(|slot| query.slots[*slot].clone()).collect();
        query.renumber(&order);
        let template = Template {
            catalog: Arc::clone(catalog),
            shape: query.shape(catalog),
            text_hash: hash_of(&snapshot.sql),
            operations: lex::operations(&snapshot.sql),
            snapshot: snapshot.sql.into(),
            rule: Rule::choose(catalog, &query),
            evaluations: Evaluations::default(),
            lookups: (0..query.sources.len())
                .map(|source| Lookup::find(catalog, &query, source))
                .collect(),
            reads: query.reads(),
            query,
            advice: Advice::default(),
        };
        Ok((template, slots))
    }

    /// What the template is known by: two queries of the same text are the same.
    pub(crate) fn text(&self) -> &Arc<str> {
        &self.snapshot
    }

    /// Whether two are the same; mostly they are one.
    fn is(&self, other: &Template) -> bool {
        std::ptr::eq(self, other) || self.snapshot == other.snapshot
    }

    /// What a delta of it may take.
    pub(crate) fn allowance(&self, budget: Option<Budget>) -> Option<Allowance> {
        let value_bytes = limits::value_bytes(limits::LIVE_ROW_BYTES, self.operations);
        budget.map(|budget| Allowance { steps: budget.most, value_bytes })
    }

    /// How changes of a source find bindings by a parameter on another table.
    pub(crate) fn lookup(&self, source: usize) -> Option<&Lookup> {
        self.lookups[source].as_ref()
    }

    /// The rule it is kept by.
    pub(crate) fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Whether remembering something of a result makes its deltas cheaper.
    pub(crate) fn remembers(&self) -> bool {
        matches!(self.rule, Rule::Tally(..) | Rule::Window(_) | Rule::Gate(_) | Rule::Whole)
    }

    /// What its rule runs with, remembering nothing.
    pub(crate) fn run<'a>(
        &'a self,
        params: &'a [Value],
        changes: &'a Changes,
        sql: &'a mut dyn Sql,
        spent: &'a mut Spent,
    ) -> Run<'a> {
        Run {
            catalog: &self.catalog,
            query: &self.query,
            params,
            changes,
            sql,
            evaluations: &self.evaluations,
            state: None,
            dear: None,
            spent,
        }
    }

    /// Shows the cells that the changes of a source lead to, over changes that are laid out.
    pub(crate) fn look_up(
        &self,
        lookup: &Lookup,
        changes: &Changes,
        sql: &mut dyn Sql,
        spent: &mut Spent,
        each: &mut dyn FnMut(Vec<Value>),
    ) -> Result<(), LiveError> {
        let mut run = self.run(&[], changes, sql, spent);
        run.terms(&lookup.terms, &mut |row, _| each(lookup.canonical(&row)))
    }

    /// The statements that make its deltas.
    pub(crate) fn statements(&self) -> Vec<Statement> {
        self.rule.statements(&self.catalog, &self.query)
    }

    /// Those of them that join changed rows with other tables.
    pub(crate) fn terms(&self) -> Vec<&Term> {
        self.rule.terms()
    }

    /// Those that find bindings by a parameter on another table.
    pub(crate) fn lookup_terms(&self) -> impl Iterator<Item = &Term> {
        self.lookups.iter().flatten().flat_map(|lookup| &lookup.terms)
    }

    /// The table that a query plan names, and the source that it stands for.
    pub(crate) fn scanned(&self, name: &str) -> Option<(&'static TableSpec, usize)> {
        let sources = &self.query.sources;
        let named = sources.iter().position(|source| source.alias.eq_ignore_ascii_case(name));
        let source = named.or_else(|| {
            let table = self.catalog.find(name)?;
            sources.iter().position(|source| source.table == table)
        })?;
        Some((self.catalog.table(sources[source].table), source))
    }

    /// The columns of a source by whose values the result is evaluated in parts.
    pub(crate) fn part_columns(&self, source: usize) -> Vec<usize> {
        self.rule.part_columns(&self.query, source)
    }

    /// The changes as the query sees them: a table of which only columns changed that the query does
    /// not read has not changed for it. (Every message writes the time into its session's row.)
    pub(crate) fn seen<'c>(&self, changes: &'c Changes) -> Cow<'c, Changes> {
        let same = |table: &usize, read: &BTreeSet<usize>| {
            let rows = changes.of(self.catalog.table(*table).name);
            !rows.is_empty() && rows.iter().all(|row| row.is_same_in(read))
        };
        let unseen = self.reads.iter().filter(|(table, read)| same(table, read));
        let unseen: Vec<&str> = unseen.map(|(table, _)| self.catalog.table(*table).name).collect();
        if unseen.is_empty() {
            Cow::Borrowed(changes)
        } else {
            Cow::Owned(changes.without(&unseen))
        }
    }

    /// Whether there are changes of a table.
    pub(crate) fn has_changed(&self, table: usize, changes: &Changes) -> bool {
        !changes.of(self.catalog.table(table).name).is_empty()
    }

    /// The tables it reads.
    pub(crate) fn tables(&self) -> Vec<usize> {
        let mut tables: Vec<usize> = self.query.sources.iter().map(|source| source.table).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }
}

/// One template with its parameter values. Cheap to clone; two are equal when the template and all
/// values are, by exact type.
#[derive(Clone, Debug)]
pub struct Binding(Arc<Bound>);

#[derive(Debug)]
struct Bound {
    template: Arc<Template>,
    params: Row,
    /// Where what may be seen is bounded: for whom, by which policies.
    asker: Option<Asker>,
}

impl Binding {
    pub(crate) fn new(
        template: Arc<Template>,
        params: Vec<Value>,
        asker: Option<Asker>,
    ) -> Binding {
        Binding(Arc::new(Bound { template, params: params.into(), asker }))
    }

    /// Whether what may be seen of it is bounded.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.0.asker.is_some()
    }

    /// The id of the caller that it is bounded for.
    #[must_use]
    pub fn asked_by(&self) -> Option<&Value> {
        self.0.asker.as_ref().map(|asker| &asker.id)
    }

    fn edition(&self) -> Option<&Edition> {
        self.0.asker.as_ref().map(|asker| &asker.edition)
    }

    /// How many operators and functions its text has.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.template().operations
    }

    /// Whether the policies that it was made by are still the latest.
    #[must_use]
    pub fn is_latest(&self) -> bool {
        self.edition().is_none_or(Edition::is_latest)
    }

    pub(crate) fn template(&self) -> &Template {
        &self.0.template
    }

    /// What the result looks like, hidden columns last.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.0.template.shape
    }

    /// The SELECT that yields the whole result: hidden columns included, in total order where the query
    /// has one.
    #[must_use]
    pub fn snapshot_sql(&self) -> &str {
        &self.0.template.snapshot
    }

    /// The same SELECT, of the same parameters, over the state before the changes that
    /// [`Binding::delta`] was last asked about on the same connection.
    #[must_use]
    pub fn past_sql(&self) -> String {
        let template = self.template();
        let mut out = Renderer::new(&template.catalog, &template.query.sources);
        out.forms.fill(Form::Before);
        out.fragment(&template.query.text());
        out.finish().sql
    }

    /// The parameters of [`Binding::snapshot_sql`].
    #[must_use]
    pub fn params(&self) -> &[Value] {
        &self.0.params
    }

    /// Whether the result is a window (LIMIT, OFFSET), whose deltas carry positions.
    #[must_use]
    pub fn is_window(&self) -> bool {
        self.template().query.limit.is_some()
    }

    /// The tables that it reads.
    #[must_use]
    pub fn tables(&self) -> Vec<&'static str> {
        let template = self.template();
        template.tables().into_iter().map(|at| template.catalog.table(at).name).collect()
    }

    /// Lays out the changes that [`Binding::past_sql`] takes back.
    ///
    /// # Errors
    /// [`LiveError`] when a statement failed.
    pub fn lay_out(&self, changes: &Changes, sql: &mut dyn Sql) -> Result<(), LiveError> {
        let template = self.template();
        changes.lay_out(&template.catalog, template.tables(), sql).map(drop)
    }

    /// What it costs and how it is kept.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        let template = self.template();
        let routed_by = template.query.sources.iter().enumerate().map(|(at, source)| {
            let table = template.catalog.table(source.table);
            let columns = template.query.routes[at].of_source(at).map(|alternatives| {
                let names = alternatives.iter().map(|keys| {
                    let mut names: Vec<&str> =
                        keys.iter().map(|key| table.columns[key.column].name).collect();
                    names.dedup();
                    names.join(", ")
                });
                names.collect::<Vec<String>>().join(" or ")
            });
            let otherwise = || match template.lookup(at) {
                Some(_) => "a look-up for all".to_owned(),
                None => "every change".to_owned(),
            };
            format!("{}: {}", table.name, columns.unwrap_or_else(otherwise))
        });
        Explanation {
            rule: template.rule.name(),
            cost: match &template.rule {
                Rule::Images(_) => "the changed rows that match its keys",
                Rule::Join(_) => "the joined rows of the changed rows",
                Rule::Tally(..) => "the joined rows of the changed rows; a touched group at first",
                Rule::Groups(_) => "the rows of the touched groups, twice",
                Rule::Touched(_) => "the rows that the changed rows reach, twice",
                Rule::Window(_) => "the window, where a changed row comes before its end",
                Rule::Gate(_) => "the whole query, where a changed row matches",
                Rule::Parts(parts) => parts.cost,
                Rule::Whole => "the whole query",
            },
            statements: template.statements().into_iter().map(|statement| statement.sql).collect(),
            state: match &template.rule {
                Rule::Images(_)
                | Rule::Join(_)
                | Rule::Groups(_)
                | Rule::Touched(_)
                | Rule::Parts(_) => "none",
                Rule::Tally(..) => "accumulators of the touched groups",
                Rule::Window(_) | Rule::Gate(_) | Rule::Whole => "the rows last shown",
            },
            routed_by: routed_by.collect(),
        }
    }

    /// What these changes changed in the result; `sql` runs on the state after them. Keeps no state:
    /// the changes may be those of one commit or of any span of commits.
    ///
    /// # Errors
    /// [`LiveError`] when a statement failed.
    pub fn delta(&self, changes: &Changes, sql: &mut dyn Sql) -> Result<Delta, LiveError> {
        let template = self.template();
        changes.lay_out(&template.catalog, template.tables(), sql)?;
        let changes = &*template.seen(changes);
        if !template.tables().iter().any(|table| template.has_changed(*table, changes)) {
            return Ok(Delta::default());
        }
        let mut spent = Spent::default();
        let mut run = template.run(&self.0.params, changes, sql, &mut spent);
        template.rule.delta(&mut run, None)
    }

    /// What tells one whole result from another; of a window both in order.
    #[must_use]
    pub fn difference(&self, old: &[Row], new: &[Row]) -> Delta {
        Delta::between(self.is_window(), &self.template().query.key, old, new)
    }

    /// The accumulators of a group, as they are in the state that `sql` runs on.
    ///
    /// # Errors
    /// [`LiveError`] when a statement failed.
    pub fn fill(&self, group: &Row, sql: &mut dyn Sql) -> Result<Option<Filled>, LiveError> {
        let template = self.template();
        let (changes, mut spent) = (Changes::new(), Spent::default());
        let mut run = template.run(&self.0.params, &changes, sql, &mut spent);
        template.rule.fill(&mut run, group)
    }
}

impl PartialEq for Binding {
    fn eq(&self, other: &Binding) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.edition() == other.edition()
                && self.template().is(other.template())
                && exact::same(&self.0.params, &other.0.params))
    }
}

impl Eq for Binding {}

impl Hash for Binding {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.template().text_hash.hash(state);
        for value in self.0.params.iter() {
            exact::hash_value(value, state);
        }
    }
}

/// Always the same for a text: what people choose are the parameters, and those are hashed with a key.
fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
