//! A query compiled to the statements that keep it live, and a template with its parameter values.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use abide_schema::wire::Shape;
use abide_schema::{Refusal, Row, Value};

use crate::catalog::{Catalog, IMAGE};
use crate::changes::{Changes, NEW, OLD, image_number};
use crate::delta::Delta;
use crate::exact;
use crate::fragment::{Arg, Form, Renderer, Statement, quoted};
use crate::lower::Slot;
use crate::route::Route;
use crate::select::Query;
use crate::sql::{LiveError, Sql};

/// A compiled query. Immutable and shared.
#[derive(Debug)]
pub(crate) struct Template {
    catalog: Arc<Catalog>,
    pub(crate) query: Query,
    shape: Shape,
    snapshot: String,
    delta: Statement,
    /// What the whole condition demands.
    pub(crate) route: Route,
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
        let snapshot = snapshot(catalog, &query);
        let order = snapshot.args.iter().map(|arg| match arg {
            Arg::Slot(slot) => *slot,
            Arg::Given(_) => unreachable!("a snapshot is given nothing"),
        });
        let order: Vec<usize> = order.collect();
        let slots = order.iter().map(|slot| query.slots[*slot].clone()).collect();
        query.renumber(&order);
        let route = query
            .filter
            .iter()
            .fold(Route::Any, |route, conjunct| route.and(conjunct.route.clone()));
        let template = Template {
            catalog: Arc::clone(catalog),
            shape: query.shape(catalog),
            snapshot: snapshot.sql,
            delta: delta_statement(catalog, &query),
            route,
            query,
        };
        Ok((template, slots))
    }

    /// What the template is known by: two queries of the same text are the same.
    pub(crate) fn text(&self) -> &str {
        &self.snapshot
    }

    /// The tables it reads.
    pub(crate) fn tables(&self) -> Vec<usize> {
        let mut tables: Vec<usize> = self.query.sources.iter().map(|source| source.table).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }
}

fn snapshot(catalog: &Catalog, query: &Query) -> Statement {
    let mut out = Renderer::new(catalog, &query.sources);
    out.text("SELECT");
    for (at, output) in query.outputs.iter().enumerate() {
        out.text(if at > 0 { "," } else { "" });
        out.fragment(&output.value);
        out.text(&format!("AS {}", quoted(&output.name)));
    }
    from_and_where(&mut out, query);
    if !query.order.is_empty() {
        out.text("ORDER BY");
        for (at, term) in query.order.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            let desc = if term.desc { "DESC" } else { "ASC" };
            let nulls = if term.nulls_last { "LAST" } else { "FIRST" };
            let (position, collation) = (term.output + 1, term.collation.sql());
            out.text(&format!("{comma}{position} COLLATE {collation} {desc} NULLS {nulls}"));
        }
        for at in &query.key {
            out.text(&format!(", {}", at + 1));
        }
    }
    out.finish()
}

fn from_and_where(out: &mut Renderer, query: &Query) {
    out.text("FROM");
    for (at, source) in query.from.iter().enumerate() {
        out.text(if at > 0 { "CROSS JOIN" } else { "" });
        out.source(*source);
    }
    for (at, conjunct) in query.filter.iter().enumerate() {
        out.text(if at > 0 { "AND (" } else { "WHERE (" });
        out.fragment(&conjunct.condition);
        out.text(")");
    }
}

/// The images of changed rows that the query shows, between two rowids of the temporary table.
fn delta_statement(catalog: &Catalog, query: &Query) -> Statement {
    let source = query.from[0];
    let mut out = Renderer::new(catalog, &query.sources);
    out.forms[source] = Form::Changed;
    let alias = quoted(&query.sources[source].alias);
    out.text(&format!("SELECT {alias}.{IMAGE}"));
    for output in &query.outputs {
        out.text(",");
        out.fragment(&output.value);
    }
    from_and_where(&mut out, query);
    out.text(if query.filter.is_empty() { "WHERE" } else { "AND" });
    out.text(&format!("{alias}.{IMAGE} BETWEEN"));
    out.given(0);
    out.text("AND");
    out.given(1);
    out.text(&format!("ORDER BY {alias}.{IMAGE}"));
    out.finish()
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
            let columns = template.route.of_source(at).map(|alternatives| {
                let names = alternatives.iter().map(|keys| {
                    let names = keys.iter().map(|key| table.columns[key.column].name);
                    names.collect::<Vec<&str>>().join(", ")
                });
                names.collect::<Vec<String>>().join(" or ")
            });
            format!("{}: {}", table.name, columns.unwrap_or_else(|| "every change".to_owned()))
        });
        Explanation {
            cost: "the changed rows that match its keys",
            statements: vec![template.delta.sql.clone()],
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
        let table = template.catalog.table(template.query.sources[template.query.from[0]].table);
        let all = changes.of(table.name).len();
        let mut images = Vec::new();
        for (low, high) in spans(numbers, all) {
            let given = [image_number(low, OLD), image_number(high, NEW)];
            let params = self.arguments(&template.delta, &given);
            *statements += 1;
            sql.run(&template.delta.sql, &params, &mut |row| images.push(Image::read(row)))?;
        }
        Ok(template.pair(images))
    }

    fn arguments(&self, statement: &Statement, given: &[Value]) -> Vec<Value> {
        let value = |arg: &Arg| match arg {
            Arg::Slot(slot) => self.0.params[*slot].clone(),
            Arg::Given(at) => given[*at].clone(),
        };
        statement.args.iter().map(value).collect()
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

/// An old or new image of a changed row, as the query shows it.
struct Image {
    number: i64,
    row: Row,
}

impl Image {
    fn read(row: &[Value]) -> Image {
        match row {
            [Value::Integer(number), row @ ..] => Image { number: *number, row: row.into() },
            _ => unreachable!("images are numbered"),
        }
    }
}

impl Template {
    /// (no, yes) is an insert, (yes, no) a delete, (yes, yes) an update or nothing.
    fn pair(&self, images: Vec<Image>) -> Delta {
        let mut delta = Delta::default();
        let mut images = images.into_iter().peekable();
        while let Some(first) = images.next() {
            let second = images.next_if(|next| next.number / 2 == first.number / 2);
            let (old, new) = if first.number % 2 == 0 {
                (Some(first.row), second.map(|image| image.row))
            } else {
                (None, Some(first.row))
            };
            match (old, new) {
                (Some(old), Some(new)) if exact::same(&old, &new) => {}
                (Some(old), Some(new)) if self.same_key(&old, &new) => delta.updates.push(new),
                (old, new) => {
                    delta.deletes.extend(old.map(|old| self.key_of(old)));
                    delta.inserts.extend(new);
                }
            }
        }
        delta
    }

    fn same_key(&self, old: &Row, new: &Row) -> bool {
        let key = &self.query.key;
        !key.is_empty() && key.iter().all(|at| exact::same(&old[*at..=*at], &new[*at..=*at]))
    }

    fn key_of(&self, row: Row) -> Row {
        if self.query.key.is_empty() {
            return row;
        }
        self.query.key.iter().map(|at| row[*at].clone()).collect()
    }
}

/// The spans of change numbers to look at: one where that is no great waste, else one for each run.
fn spans(numbers: Option<&[usize]>, all: usize) -> Vec<(usize, usize)> {
    /// Rows that cost less to look at in vain than another statement does.
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
