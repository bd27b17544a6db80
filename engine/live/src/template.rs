//! A query compiled to the statements that maintain it, and a template with its parameter values.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use abide_schema::wire::{Shape, SubscriptionInfo};
use abide_schema::{Code, Refusal, Row, TableSpec, Value, limits};

use crate::catalog::Catalog;
use crate::delta::accumulator::BackfilledGroup;
use crate::delta::changes::Changes;
use crate::delta::evaluation::Evaluations;
use crate::delta::meter::{Budget, Cost, CountedSteps};
use crate::delta::rule::DeltaRule;
use crate::delta::rule_context::RuleContext;
use crate::delta::term::Term;
use crate::delta::{Delta, exact};
use crate::plan::expansion::check_text;
use crate::plan::fragment::{Arg, Renderer, SourceForm, Statement};
use crate::plan::lex;
use crate::plan::principal::{PolicyVersion, PrincipalKey};
use crate::plan::query::{Query, Slot};
use crate::route::lookup::Lookup;
use crate::sql::{LiveError, Sql, StatementLimits};

/// A compiled query. Immutable and shared.
#[derive(Debug)]
pub(crate) struct Template {
    catalog: Arc<Catalog>,
    pub(crate) query: Query,
    shape: Shape,
    snapshot: Arc<str>,
    /// The hash of the text, so that hashing a binding does not read all of it.
    text_hash: u64,
    rule: DeltaRule,
    evaluations: Evaluations,
    /// For each source, the lookup of bindings if its own keys do not find them.
    lookups: Vec<Option<Lookup>>,
    /// The number of operators and functions in the text.
    operations: usize,
    /// Whether a live query shows one of several values that are equal and not identical.
    chooses: bool,
    /// The columns that it reads, by table.
    reads: BTreeMap<usize, BTreeSet<usize>>,
    /// Cached index advice.
    pub(crate) advice: TemplateAnalysis,
}

/// The facts about a template, computed once.
#[derive(Debug, Default)]
pub(crate) struct TemplateAnalysis {
    pub(crate) info: OnceLock<Arc<SubscriptionInfo>>,
    pub(crate) verdict: OnceLock<Result<(), Refusal>>,
}

/// The cost of a live query and how it is maintained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The delta rule.
    pub rule: &'static str,
    /// The cost of a commit that affects the query.
    pub cost: &'static str,
    /// The statements that compute its deltas.
    pub statements: Vec<String>,
    /// The state kept in memory while it has subscribers.
    pub state: &'static str,
    /// The equalities that a change must meet to be checked, by table. A table without any is
    /// checked at every change.
    pub routed_by: Vec<String>,
}

impl Template {
    /// Compiles a query. The slots are returned in the order of the snapshot's parameters.
    pub(crate) fn compile(
        catalog: &Arc<Catalog>,
        mut query: Query,
    ) -> Result<(Template, Vec<Slot>), Refusal> {
        let text = query.text();
        check_text(&text)?;
        let mut out = Renderer::new(catalog, &query.sources);
        out.push(&text);
        let snapshot = out.finish();
        let order: Vec<usize> = snapshot
            .args
            .iter()
            .map(|arg| match arg {
                Arg::Slot(slot) => *slot,
                Arg::Given(_) => unreachable!("a snapshot is given nothing"),
            })
            .collect();
        let slots = order.iter().map(|slot| query.slots[*slot].clone()).collect();
        query.renumber(&order);
        let template = Template {
            catalog: Arc::clone(catalog),
            shape: query.shape(catalog),
            text_hash: hash_of(&snapshot.sql),
            operations: lex::operations(&snapshot.sql),
            chooses: text.chooses(),
            snapshot: snapshot.sql.into(),
            rule: DeltaRule::choose(catalog, &query),
            evaluations: Evaluations::default(),
            lookups: (0..query.sources.len())
                .map(|source| Lookup::find(catalog, &query, source))
                .collect(),
            reads: query.reads(),
            query,
            advice: TemplateAnalysis::default(),
        };
        Ok((template, slots))
    }

    /// Returns the text that identifies the template: two queries with the same text are the same.
    pub(crate) fn text(&self) -> &Arc<str> {
        &self.snapshot
    }

    /// `true` if two templates are the same; usually they are one object.
    fn is_same(&self, other: &Template) -> bool {
        std::ptr::eq(self, other) || self.snapshot == other.snapshot
    }

    /// Checks that its functions cannot read more bytes of a row than the limit.
    ///
    /// # Errors
    /// `limit_exceeded`.
    pub(crate) fn check_operations(&self) -> Result<(), Refusal> {
        let max = limits::LIVE_OPERATIONS;
        if self.operations <= max {
            return Ok(());
        }
        let detail = format!(
            "the live query has {} operators, functions and paths; the limit is {max}",
            self.operations
        );
        let hint = "read fewer values, or run it once with `abide sql`";
        Err(Refusal::new(Code::LimitExceeded, detail).hint(hint))
    }

    /// Returns the limits of one delta.
    pub(crate) fn allowance(
        &self,
        budget: Option<Budget>,
        counted: CountedSteps,
    ) -> Option<StatementLimits> {
        let Budget { max, time, .. } = budget?.counting(counted);
        let value_bytes = limits::value_bytes(limits::LIVE_ROW_BYTES, self.operations);
        let (steps, visible_steps) = match counted {
            CountedSteps::All => (max, u64::MAX),
            CountedSteps::Visible => (u64::MAX, max),
        };
        Some(StatementLimits { steps, visible_steps, time, value_bytes })
    }

    /// Returns the lookup of bindings through another table, for the changes of a source.
    pub(crate) fn lookup(&self, source: usize) -> Option<&Lookup> {
        self.lookups[source].as_ref()
    }

    /// Returns the delta rule.
    pub(crate) fn rule(&self) -> &DeltaRule {
        &self.rule
    }

    /// `true` if cached state makes its deltas cheaper.
    pub(crate) fn remembers(&self) -> bool {
        matches!(
            self.rule,
            DeltaRule::IncrementalAggregate(..)
                | DeltaRule::TopN(_)
                | DeltaRule::ConditionalReevaluation(_)
                | DeltaRule::FullReevaluation
        )
    }

    /// Returns the inputs of its rule, without cached state.
    pub(crate) fn rule_context<'a>(
        &'a self,
        params: &'a [Value],
        changes: &'a Changes,
        sql: &'a mut dyn Sql,
        spent: &'a mut Cost,
    ) -> RuleContext<'a> {
        RuleContext {
            catalog: &self.catalog,
            query: &self.query,
            params,
            changes,
            sql,
            evaluations: &self.evaluations,
            state: None,
            unfilled: None,
            spent,
        }
    }

    /// Calls `each` with the lookup cells of a source's changes, which are in the temporary tables.
    pub(crate) fn look_up(
        &self,
        lookup: &Lookup,
        changes: &Changes,
        sql: &mut dyn Sql,
        spent: &mut Cost,
        each: &mut dyn FnMut(Vec<Value>),
    ) -> Result<(), LiveError> {
        let mut run = self.rule_context(&[], changes, sql, spent);
        run.terms(&lookup.terms, &mut |row, _| each(lookup.canonical(&row)))
    }

    /// Returns the statements that compute its deltas.
    pub(crate) fn statements(&self) -> Vec<Statement> {
        self.rule.statements(&self.catalog, &self.query)
    }

    /// Returns the terms that join changed rows with other tables.
    pub(crate) fn terms(&self) -> Vec<&Term> {
        self.rule.terms()
    }

    /// Returns the terms that find bindings by a parameter on another table.
    pub(crate) fn lookup_terms(&self) -> impl Iterator<Item = &Term> {
        self.lookups.iter().flatten().flat_map(|lookup| &lookup.terms)
    }

    /// Returns the table of a query plan entry, and the source that it stands for.
    pub(crate) fn scanned(&self, name: &str) -> Option<(&'static TableSpec, usize)> {
        let sources = &self.query.sources;
        let named = sources.iter().position(|source| source.alias.eq_ignore_ascii_case(name));
        let source = named.or_else(|| {
            let table = self.catalog.find(name)?;
            sources.iter().position(|source| source.table == table)
        })?;
        Some((self.catalog.table(sources[source].table), source))
    }

    /// `true` if a restricted caller did not name a source, so that it only decides which rows are
    /// visible.
    pub(crate) fn is_of_policy(&self, source: usize) -> bool {
        let sources = &self.query.sources;
        !sources[source].is_named && sources.iter().any(|other| other.is_named)
    }

    /// Returns the columns of a source that partition the evaluation.
    pub(crate) fn part_columns(&self, source: usize) -> Vec<usize> {
        self.rule.part_columns(&self.query, source)
    }

    /// Returns the changes that are relevant to the query. If a commit changed only columns that
    /// the query does not read, the table counts as unchanged. (Every message updates the time in
    /// its session's row.)
    pub(crate) fn relevant_changes<'c>(&self, changes: &'c Changes) -> Cow<'c, Changes> {
        let mut unseen = Vec::new();
        for (table, read) in &self.reads {
            let name = self.catalog.table(*table).name;
            let rows = changes.for_table(name);
            if !rows.is_empty() && rows.iter().all(|row| row.is_same_in(read)) {
                unseen.push(name);
            }
        }
        if unseen.is_empty() {
            Cow::Borrowed(changes)
        } else {
            Cow::Owned(changes.without(&unseen))
        }
    }

    /// `true` if a table changed.
    pub(crate) fn has_changed(&self, table: usize, changes: &Changes) -> bool {
        !changes.for_table(self.catalog.table(table).name).is_empty()
    }

    /// Returns the name of a table.
    pub(crate) fn table_name(&self, table: usize) -> &'static str {
        self.catalog.table(table).name
    }

    /// Returns the tables that a restricted caller named.
    pub(crate) fn named_tables(&self) -> BTreeSet<usize> {
        self.query
            .sources
            .iter()
            .filter(|source| source.is_named)
            .map(|source| source.table)
            .collect()
    }

    /// Returns the tables it reads.
    pub(crate) fn tables(&self) -> Vec<usize> {
        let mut tables: Vec<usize> = self.query.sources.iter().map(|source| source.table).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }
}

/// One template with its parameter values. Cheap to clone. Two are equal if the template and all
/// values are, by exact type.
#[derive(Clone, Debug)]
pub struct Binding(Arc<BindingInner>);

#[derive(Debug)]
struct BindingInner {
    template: Arc<Template>,
    params: Row,
    /// For a restricted query: the caller and the policies.
    principal_key: Option<PrincipalKey>,
    /// For a restricted query: what the caller may see of each table that it names.
    views: Vec<Binding>,
}

impl Binding {
    pub(crate) fn new(
        template: Arc<Template>,
        params: Vec<Value>,
        principal_key: Option<PrincipalKey>,
        views: Vec<Binding>,
    ) -> Binding {
        Binding(Arc::new(BindingInner { template, params: params.into(), principal_key, views }))
    }

    /// What a restricted caller may see of each table that the query names, as queries of their
    /// own.
    pub(crate) fn views(&self) -> &[Binding] {
        &self.0.views
    }

    /// `true` if the visibility of its result is restricted.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.0.principal_key.is_some()
    }

    /// Returns the steps that its budget counts.
    pub(crate) fn counted_steps(&self) -> CountedSteps {
        if self.is_bounded() { CountedSteps::Visible } else { CountedSteps::All }
    }

    /// Returns the id of the restricted caller.
    #[must_use]
    pub fn asked_by(&self) -> Option<&Value> {
        self.0.principal_key.as_ref().map(|principal_key| &principal_key.id)
    }

    fn policy_version(&self) -> Option<&PolicyVersion> {
        self.0.principal_key.as_ref().map(|principal_key| &principal_key.policy_version)
    }

    /// `true` if it shows one of several values that are equal and not identical, such as 2 and
    /// 2.0. SQLite would show that of the row that it happens to read first, so a query that runs
    /// once shows the same only as [`Binding::snapshot_sql`].
    #[must_use]
    pub fn chooses(&self) -> bool {
        self.template().chooses
    }

    /// Returns the number of operators and functions in its text.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.template().operations
    }

    /// `true` if the policies that it was planned with are still current.
    #[must_use]
    pub fn is_latest(&self) -> bool {
        self.policy_version().is_none_or(PolicyVersion::is_latest)
    }

    pub(crate) fn template(&self) -> &Template {
        &self.0.template
    }

    /// Returns the shape of the result, hidden columns last.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.0.template.shape
    }

    /// Returns the SELECT of the whole result, with hidden columns, in total order if the query has
    /// an order.
    #[must_use]
    pub fn snapshot_sql(&self) -> &str {
        &self.0.template.snapshot
    }

    /// Returns the same SELECT with the same parameters, over the state before the changes of the
    /// last [`Binding::delta`] on the same connection.
    #[must_use]
    pub fn past_sql(&self) -> String {
        let template = self.template();
        let mut out = Renderer::new(&template.catalog, &template.query.sources);
        out.forms.fill(SourceForm::Before);
        out.push(&template.query.text());
        out.finish().sql
    }

    /// Returns the parameters of [`Binding::snapshot_sql`].
    #[must_use]
    pub fn params(&self) -> &[Value] {
        &self.0.params
    }

    /// `true` if the result is a top-N result (LIMIT, OFFSET), whose deltas carry positions.
    #[must_use]
    pub fn is_top_n(&self) -> bool {
        self.template().query.limit.is_some()
    }

    /// Returns the tables that it reads.
    #[must_use]
    pub fn tables(&self) -> Vec<&'static str> {
        let template = self.template();
        template.tables().into_iter().map(|at| template.catalog.table(at).name).collect()
    }

    /// Writes the changes that [`Binding::past_sql`] reverts into the temporary tables.
    ///
    /// # Errors
    /// [`LiveError`] when a statement failed.
    pub fn lay_out(&self, changes: &Changes, sql: &mut dyn Sql) -> Result<(), LiveError> {
        let template = self.template();
        changes.lay_out(&template.catalog, template.tables(), sql).map(drop)
    }

    /// Returns its cost and how it is maintained.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        let template = self.template();
        // The other sources of a restricted query only decide which rows are visible.
        let sources = template
            .query
            .sources
            .iter()
            .enumerate()
            .filter(|(_, source)| source.is_named || !self.is_bounded());
        let routed_by = sources.map(|(at, source)| {
            let table = template.catalog.table(source.table).name;
            format!("{table}: {}", self.routed_by(at))
        });
        Explanation {
            rule: template.rule.name(),
            cost: match &template.rule {
                DeltaRule::RowFilter(_) => "the changed rows that match its keys",
                DeltaRule::Join(_) => "the joined rows of the changed rows",
                DeltaRule::IncrementalAggregate(..) => {
                    "the joined rows of the changed rows; a touched group on first use"
                }
                DeltaRule::GroupReevaluation(_) => "the rows of the touched groups, twice",
                DeltaRule::RowReevaluation(_) => "the rows that the changed rows reach, twice",
                DeltaRule::TopN(_) => "the top-N result, if a changed row sorts before its end",
                DeltaRule::ConditionalReevaluation(_) => {
                    "the whole query, if a changed row matches"
                }
                DeltaRule::PartitionReevaluation(parts) => parts.cost,
                DeltaRule::FullReevaluation => "the whole query",
            },
            statements: template.statements().into_iter().map(|statement| statement.sql).collect(),
            state: match &template.rule {
                DeltaRule::RowFilter(_)
                | DeltaRule::Join(_)
                | DeltaRule::GroupReevaluation(_)
                | DeltaRule::RowReevaluation(_)
                | DeltaRule::PartitionReevaluation(_) => "none",
                DeltaRule::IncrementalAggregate(..) => "accumulators of the touched groups",
                DeltaRule::TopN(_)
                | DeltaRule::ConditionalReevaluation(_)
                | DeltaRule::FullReevaluation => "the last result",
            },
            routed_by: routed_by.collect(),
        }
    }

    /// Returns how a change of a source finds the binding, in words.
    fn routed_by(&self, source: usize) -> String {
        let template = self.template();
        let lookup = template.lookup(source);
        if self.is_bounded() && lookup.is_some_and(|lookup| lookup.is_better) {
            return "every visible change".to_owned();
        }
        let Some(alternatives) = template.query.routes[source].alternatives_for(source) else {
            return match lookup {
                _ if self.is_bounded() => "every visible change",
                Some(_) => "a shared lookup",
                None => "every change",
            }
            .to_owned();
        };
        let table = template.catalog.table(template.query.sources[source].table);
        alternatives
            .iter()
            .map(|keys| {
                let mut names: Vec<&str> =
                    keys.iter().map(|key| table.columns[key.column].name).collect();
                names.dedup();
                names.join(", ")
            })
            .collect::<Vec<String>>()
            .join(" or ")
    }

    /// Returns the change of the result by these changes; `sql` runs on the state after them. Uses
    /// no cached state: the changes may be those of one commit or of any span of commits.
    ///
    /// # Errors
    /// [`LiveError`] when a statement failed.
    pub fn delta(&self, changes: &Changes, sql: &mut dyn Sql) -> Result<Delta, LiveError> {
        let template = self.template();
        changes.lay_out(&template.catalog, template.tables(), sql)?;
        let changes = &*template.relevant_changes(changes);
        if !template.tables().iter().any(|table| template.has_changed(*table, changes)) {
            return Ok(Delta::default());
        }
        let mut spent = Cost::default();
        let mut run = template.rule_context(&self.0.params, changes, sql, &mut spent);
        let delta = template.rule.delta(&mut run, None)?;
        Ok(if self.is_bounded() { delta.sorted() } else { delta })
    }

    /// Returns the difference of two whole results; of a top-N result, both in order.
    #[must_use]
    pub fn difference(&self, old: &[Row], new: &[Row]) -> Delta {
        Delta::between(self.is_top_n(), &self.template().query.key, old, new)
    }

    /// Returns the accumulators of a group in the state of `sql`.
    ///
    /// # Errors
    /// [`LiveError`] when a statement failed.
    pub fn fill(
        &self,
        group: &Row,
        sql: &mut dyn Sql,
    ) -> Result<Option<BackfilledGroup>, LiveError> {
        let template = self.template();
        let changes = Changes::new();
        let mut spent = Cost::default();
        let mut run = template.rule_context(&self.0.params, &changes, sql, &mut spent);
        template.rule.fill(&mut run, group)
    }
}

impl PartialEq for Binding {
    fn eq(&self, other: &Binding) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.policy_version() == other.policy_version()
                && self.template().is_same(other.template())
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

/// Always the same for a text. Clients choose the parameters, and those are hashed with a secret
/// key.
fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
