//! A query compiled to the statements that keep it live, and a template with its parameter values.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use abide_schema::wire::Shape;
use abide_schema::{Refusal, Row, Value};

use crate::advice::is_indexed;
use crate::catalog::Catalog;
use crate::changes::Changes;
use crate::delta::Delta;
use crate::exact;
use crate::fragment::{Arg, Renderer, Statement};
use crate::lookup::Lookup;
use crate::lower::Slot;
use crate::rule::{Evaluations, Rule, Run};
use crate::select::Query;
use crate::sql::{LiveError, Sql};

/// A compiled query. Immutable and shared.
#[derive(Debug)]
pub(crate) struct Template {
    catalog: Arc<Catalog>,
    pub(crate) query: Query,
    shape: Shape,
    snapshot: Arc<str>,
    rule: Rule,
    evaluations: Evaluations,
    /// For each source, how its changes find the bindings where no key of its own does.
    lookups: Vec<Option<Lookup>>,
}

/// What a live query costs and how it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
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
        let mut out = Renderer::new(catalog, &query.sources);
        out.fragment(&query.text());
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
            snapshot: snapshot.sql.into(),
            rule: Rule::choose(catalog, &query),
            evaluations: Evaluations::default(),
            lookups: (0..query.sources.len())
                .map(|source| Lookup::find(catalog, &query, source))
                .collect(),
            query,
        };
        Ok((template, slots))
    }

    /// What the template is known by: two queries of the same text are the same.
    pub(crate) fn text(&self) -> &Arc<str> {
        &self.snapshot
    }

    /// How changes of a source find bindings by a parameter on another table.
    pub(crate) fn lookup(&self, source: usize) -> Option<&Lookup> {
        self.lookups[source].as_ref()
    }

    /// Shows the cells that the changes of a source lead to, over changes that are laid out.
    pub(crate) fn look_up(
        &self,
        lookup: &Lookup,
        changes: &Changes,
        sql: &mut dyn Sql,
        statements: &mut u64,
        each: &mut dyn FnMut(Vec<Value>),
    ) -> Result<(), LiveError> {
        let mut run = Run {
            catalog: &self.catalog,
            query: &self.query,
            params: &[],
            changes,
            sql,
            evaluations: &self.evaluations,
            statements,
        };
        run.terms(&lookup.terms, &mut |row, _| each(lookup.canonical(&row)))
    }

    /// The statements that make its deltas.
    pub(crate) fn statements(&self) -> Vec<Statement> {
        self.rule.statements(&self.catalog, &self.query)
    }

    /// The table that a query plan names, and the columns of it that an index would be for.
    pub(crate) fn wanted_index(&self, name: &str) -> Option<(&'static str, Vec<&'static str>)> {
        let mut sources = self.query.sources.iter();
        let named = sources.position(|source| source.alias.eq_ignore_ascii_case(name));
        let table = match named {
            Some(source) => self.query.sources[source].table,
            None => self.catalog.find(name)?,
        };
        let spec = self.catalog.table(table);
        let source =
            named.or_else(|| self.query.sources.iter().position(|source| source.table == table));
        let columns = source.map(|source| {
            let parts = self.rule.part_columns(&self.query, source);
            let indexed = parts.is_empty() || is_indexed(spec, &parts);
            if indexed { self.query.joined_columns(source) } else { parts }
        });
        let columns = columns.unwrap_or_default().into_iter();
        Some((spec.name, columns.map(|column| spec.columns[column].name).collect()))
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
}

impl Binding {
    pub(crate) fn new(template: Arc<Template>, params: Vec<Value>) -> Binding {
        Binding(Arc::new(Bound { template, params: params.into() }))
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
            cost: match &template.rule {
                Rule::Images(_) => "the changed rows that match its keys",
                Rule::Join(_) => "the joined rows of the changed rows",
                Rule::Groups(_) => "the rows of the touched groups, twice",
                Rule::Touched(_) => "the rows that the changed rows reach, twice",
                Rule::Window(_) => "the window, twice, where a changed row matches",
                Rule::Parts(parts) => parts.cost,
                Rule::Whole => "the whole query, twice",
            },
            statements: template.statements().into_iter().map(|statement| statement.sql).collect(),
            state: "none",
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
        let mut statements = 0;
        self.delta_of(changes, None, sql, &mut statements)
    }

    /// The same over changes that are laid out, and of those over the numbered ones only.
    pub(crate) fn delta_of(
        &self,
        changes: &Changes,
        numbers: Option<&[usize]>,
        sql: &mut dyn Sql,
        statements: &mut u64,
    ) -> Result<Delta, LiveError> {
        let template = self.template();
        let mut run = Run {
            catalog: &template.catalog,
            query: &template.query,
            params: &self.0.params,
            changes,
            sql,
            evaluations: &template.evaluations,
            statements,
        };
        template.rule.delta(&mut run, numbers)
    }
}

impl PartialEq for Binding {
    fn eq(&self, other: &Binding) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.template().text() == other.template().text()
                && exact::same(&self.0.params, &other.0.params))
    }
}

impl Eq for Binding {}

impl Hash for Binding {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.template().text().hash(state);
        for value in self.0.params.iter() {
            exact::hash_value(value, state);
        }
    }
}
