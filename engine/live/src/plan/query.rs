//! A resolved query as a value: its SELECTs, their FROM terms, outputs and order, and its text over
//! symbolic sources. The types contain each other: a term of FROM can be a query.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use abide_schema::Value;
use abide_schema::table::Kind;
use abide_schema::wire::{Column, OrderTerm, Shape};
use sqlite3_parser::ast::CompoundOperator;

use crate::catalog::Catalog;
use crate::identifier::quoted;
use crate::plan::block::{Block, Join};
use crate::plan::collation::Collation;
use crate::plan::conjunct::{Conjunct, Route};
use crate::plan::fragment::{Fragment, Piece, PlainExpr, Source};
use crate::plan::guard::{EarlyPredicates, SEEN, VisibilityGuard};
use crate::plan::window_spec::WindowSpec;

/// A resolved query.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// The sources of the whole statement.
    pub(crate) sources: Vec<Source>,
    /// The conditions that a row of each source must meet to matter.
    pub(crate) routes: Vec<Route>,
    /// Every SELECT at any depth, the first outermost one first.
    pub(crate) blocks: Vec<Block>,
    /// Its SELECTs: more than one in a compound, each but the first with its operator.
    pub(crate) cores: Vec<(Option<CompoundOperator>, SelectCore)>,
    /// The order.
    pub(crate) order: Vec<Order>,
    /// LIMIT and OFFSET.
    pub(crate) limit: Option<(Fragment, Option<Fragment>)>,
    /// The outputs that form a key; empty if there is none.
    pub(crate) key: Vec<usize>,
    /// The parameters.
    pub(crate) slots: Vec<Slot>,
}

/// A term of the order, as an output position.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) output: usize,
    pub(crate) desc: bool,
    pub(crate) nulls_last: bool,
    pub(crate) collation: Collation,
}

/// A column of the result.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) value: Fragment,
    pub(crate) name: String,
    /// Whether the column only carries the order.
    pub(crate) hidden: bool,
    /// Whether AS gave the name.
    pub(crate) aliased: bool,
}

/// Conditions to add to SELECTs, by block.
pub(crate) type ExtraConditions = HashMap<usize, Vec<Fragment>>;

/// One SELECT.
#[derive(Clone, Debug, Default)]
pub(crate) struct SelectCore {
    /// The block of this SELECT.
    pub(crate) block: usize,
    pub(crate) from: Vec<FromTerm>,
    /// The conditions: WHERE, and ON of inner joins.
    pub(crate) filter: Vec<Conjunct>,
    /// The conditions of the filter that decide which rows a restricted caller may see.
    pub(crate) guards: Vec<VisibilityGuard>,
    /// The conditions that may also run on rows that the caller may not see.
    pub(crate) probes: EarlyPredicates,
    /// Whether a guard, here or in a subquery of FROM, contains a subquery.
    pub(crate) opaque: bool,
    /// All guards, if some rule may turn the caller's expressions into conditions.
    pub(crate) visible: Option<Fragment>,
    /// The visibility of a row, as an extra column of a subquery in FROM.
    pub(crate) seen: Option<Fragment>,
    /// Whether a fence before the guards keeps SQLite from moving HAVING into WHERE.
    pub(crate) fenced: bool,
    pub(crate) outputs: Vec<Output>,
    pub(crate) distinct: bool,
    /// Whether equal rows are merged, so that no output column may be added.
    pub(crate) deduplicated: bool,
    /// GROUP BY, if present.
    pub(crate) group: Option<Vec<Fragment>>,
    pub(crate) having: Option<Fragment>,
    /// The columns that expressions used outside of aggregates and groups.
    pub(crate) frame: ExprContext,
}

/// The objects that the expressions of one SELECT may use, and those that they used.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExprContext {
    /// The group expressions.
    pub(crate) by: Vec<Fragment>,
    /// Columns used outside of aggregates and groups.
    pub(crate) bare: Vec<(usize, usize)>,
    /// The numbers of the subqueries in FROM with a column used outside of aggregates and groups.
    pub(crate) bare_derived: Vec<usize>,
    /// Whether there is an aggregate.
    pub(crate) aggregate: bool,
    /// Whether the current expression is an argument of an aggregate.
    pub(crate) in_aggregate: bool,
    /// The number of enclosing SELECTs.
    pub(crate) depth: usize,
    /// The SELECTs whose columns are used, this one and those around it: bit `n` is the SELECT at the depth `n`.
    pub(crate) reads: u128,
    /// Whether aggregates are allowed.
    pub(crate) aggregates_allowed: bool,
    /// Whether window functions are allowed.
    pub(crate) windowed: bool,
    /// A key of the rows of the FROM, if there is one.
    pub(crate) rows: Option<Vec<Fragment>>,
    /// The named windows.
    pub(crate) named: Vec<(String, WindowSpec)>,
    /// The PARTITION BY of each window function, without parameters.
    pub(crate) partitions: Vec<Vec<Fragment>>,
}

/// A term of FROM.
#[derive(Clone, Debug)]
pub(crate) struct FromTerm {
    /// The table, if it is a table.
    pub(crate) source: Option<usize>,
    /// The subquery, if it is a subquery.
    pub(crate) derived: Option<Box<Derived>>,
    /// The number that identifies its columns, if it is not a table.
    pub(crate) number: Option<usize>,
    /// The item as SQL, if it is not a subquery.
    pub(crate) item: Fragment,
    pub(crate) join: Join,
    /// The condition of a join that is not inner.
    pub(crate) on: Vec<Conjunct>,
    /// The key of its rows, if they have one.
    pub(crate) key: Option<Vec<Fragment>>,
}

/// A subquery in FROM that is not inlined.
#[derive(Clone, Debug)]
pub(crate) struct Derived {
    /// The alias.
    pub(crate) alias: String,
    /// The number that identifies its columns.
    pub(crate) number: usize,
    /// The query. Its columns are named c1, c2, …
    pub(crate) query: Query,
    /// ORDER BY and LIMIT, if it has a LIMIT.
    pub(crate) top_n: Fragment,
}

impl Query {
    /// Returns the SELECT of a block, in the query or in a subquery of its FROM.
    pub(crate) fn core_of(&self, block: usize) -> Option<&SelectCore> {
        self.cores.iter().find_map(|(_, core)| {
            let derived = core.from.iter().filter_map(|term| term.derived.as_ref());
            let mut within = derived.filter_map(|derived| derived.query.core_of(block));
            if core.block == block { Some(core) } else { within.next() }
        })
    }

    /// Returns a query of one SELECT.
    pub(crate) fn from_core(core: SelectCore) -> Query {
        Query { cores: vec![(None, core)], ..Query::default() }
    }

    /// Returns the outputs, hidden columns last. A compound is named by its first SELECT.
    pub(crate) fn outputs(&self) -> &[Output] {
        &self.first_core().outputs
    }

    /// Returns its first SELECT, which is the only one unless it is a compound.
    pub(crate) fn first_core(&self) -> &SelectCore {
        &self.cores[0].1
    }

    pub(crate) fn first_core_mut(&mut self) -> &mut SelectCore {
        &mut self.cores[0].1
    }

    /// Returns the query as text over symbolic sources. The `restricted` conditions are added.
    pub(crate) fn body(&self, restricted: &[Fragment]) -> Fragment {
        let cores = self.cores.iter();
        self.body_with(&cores.map(|(_, core)| (core.block, restricted.to_vec())).collect())
    }

    /// Returns the query as text over symbolic sources, with conditions added to any SELECT of it
    /// or of a subquery in its FROM.
    pub(crate) fn body_with(&self, added: &ExtraConditions) -> Fragment {
        let mut out = Fragment::new();
        for (operator, core) in &self.cores {
            out.push_text(match operator {
                None => "",
                Some(CompoundOperator::Union) => "UNION",
                Some(CompoundOperator::UnionAll) => "UNION ALL",
                Some(CompoundOperator::Except) => "EXCEPT",
                Some(CompoundOperator::Intersect) => "INTERSECT",
            });
            core.write(added, &mut out);
        }
        out
    }

    /// Returns the whole text: the body in its total order, with LIMIT and OFFSET.
    pub(crate) fn text(&self) -> Fragment {
        let mut out = self.body(&[]);
        self.write_order(&mut out);
        self.write_limit(&mut out);
        out
    }

    /// Appends LIMIT and OFFSET, if any.
    pub(crate) fn write_limit(&self, out: &mut Fragment) {
        if let Some((limit, offset)) = &self.limit {
            out.push_text("LIMIT");
            out.push(limit);
            if let Some(offset) = offset {
                out.push_text("OFFSET");
                out.push(offset);
            }
        }
    }

    /// Returns all fragments that are rendered.
    pub(crate) fn fragments(&mut self) -> impl Iterator<Item = &mut Fragment> {
        let limit = self.limit.iter_mut();
        let limit = limit.flat_map(|(limit, offset)| std::iter::once(limit).chain(offset));
        self.cores.iter_mut().flat_map(|(_, core)| core.fragments()).chain(limit)
    }

    /// Returns the columns that it reads, by table.
    pub(crate) fn reads(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut reads: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        self.sources.iter().for_each(|source| {
            reads.entry(source.table).or_default();
        });
        for (source, column) in self.text().columns() {
            reads.entry(self.sources[source].table).or_default().insert(column);
        }
        reads
    }

    /// Returns the kind of a table's column.
    pub(crate) fn column_kind(&self, catalog: &Catalog, column: (usize, usize)) -> Kind {
        let (source, column) = column;
        catalog.table(self.sources[source].table).columns[column].kind
    }

    /// Returns the shape for clients.
    pub(crate) fn shape(&self, catalog: &Catalog) -> Shape {
        let compound = self.cores.len() > 1;
        let columns = self.outputs().iter().map(|output| Column {
            name: output.name.clone(),
            kind: match output.value.plain {
                PlainExpr::Column(source, column) if !compound => {
                    self.column_kind(catalog, (source, column)).sql().to_owned()
                }
                _ => String::new(),
            },
            hidden: output.hidden,
        });
        let order = self.order.iter().map(|term| OrderTerm {
            column: self.outputs()[term.output].name.clone(),
            index: term.output,
            desc: term.desc,
            nulls: if term.nulls_last { "last" } else { "first" }.to_owned(),
            collation: term.collation.sql().to_owned(),
        });
        Shape {
            columns: columns.collect(),
            key: self.key.iter().map(|at| self.outputs()[*at].name.clone()).collect(),
            order: order.collect(),
            top_n: self.limit.is_some(),
        }
    }

    /// Renumbers the slots: the n-th of `order` becomes n.
    pub(crate) fn renumber(&mut self, order: &[usize]) {
        let mut places: Vec<Option<usize>> = vec![None; self.slots.len()];
        for (new, old) in order.iter().enumerate() {
            places[*old] = Some(new);
        }
        let is_unused = |slot: usize| places[slot].is_none();
        let new_slot = |slot: usize| places[slot].expect("every slot is in the snapshot");
        // Conditions that depend only on an unused column apply to no row.
        self.blocks.iter_mut().for_each(|block| block.forget(&is_unused));
        self.routes.iter_mut().for_each(|route| route.forget(&is_unused));
        self.fragments().for_each(|fragment| fragment.renumber(&new_slot));
        self.blocks.iter_mut().flat_map(Block::fragments).for_each(|fragment| {
            fragment.renumber(&new_slot);
        });
        self.routes.iter_mut().for_each(|route| route.renumber(&new_slot));
        self.slots = order.iter().map(|slot| self.slots[*slot].clone()).collect();
    }

    /// Returns the total order of the rows. A top-N result must have a unique cut, so without a key
    /// the whole row breaks ties.
    pub(crate) fn total_order(&self) -> Vec<Order> {
        let all: Vec<usize> = (0..self.outputs().len()).collect();
        let ties = if self.key.is_empty() { &all } else { &self.key };
        self.order
            .iter()
            .cloned()
            .chain(ties.iter().map(|output| Order {
                output: *output,
                desc: false,
                nulls_last: false,
                collation: Collation::Binary,
            }))
            .collect()
    }

    fn write_order(&self, out: &mut Fragment) {
        let mut terms: Vec<String> = Vec::new();
        for term in &self.order {
            let desc = if term.desc { "DESC" } else { "ASC" };
            let nulls = if term.nulls_last { "LAST" } else { "FIRST" };
            let collation = term.collation.sql();
            terms.push(format!("{} COLLATE {collation} {desc} NULLS {nulls}", term.output + 1));
        }
        if self.order.is_empty() && self.limit.is_none() {
            return;
        }
        // The same order as `total_order`.
        if !self.key.is_empty() {
            let core = self.first_core();
            terms.extend(self.key.iter().map(|at| {
                let collation = if core.collates(*at) { " COLLATE BINARY" } else { "" };
                format!("{}{collation}", at + 1)
            }));
        } else if self.limit.is_some() {
            terms.extend((1..=self.outputs().len()).map(|at| format!("{at} COLLATE BINARY")));
        }
        out.push_text(&format!("ORDER BY {}", terms.join(", ")));
    }
}

impl SelectCore {
    /// `true` if it aggregates rows.
    pub(crate) fn aggregates(&self) -> bool {
        self.group.is_some() || self.frame.aggregate
    }

    /// `true` if it has window functions.
    pub(crate) fn windows(&self) -> bool {
        !self.frame.partitions.is_empty()
    }

    /// Returns the expressions that partition the rows into independent parts; `None` if every row
    /// is independent.
    pub(crate) fn parts(&self) -> Option<Vec<Fragment>> {
        let all = self.frame.aggregate.then(Vec::new);
        let mut parts = self.group.clone().or(all);
        for partition in &self.frame.partitions {
            match &mut parts {
                None => parts = Some(partition.clone()),
                Some(parts) => parts.retain(|by| partition.contains(by)),
            }
        }
        parts
    }

    /// `true` if an output column compares by a collation other than BINARY.
    pub(crate) fn collates(&self, output: usize) -> bool {
        self.outputs[output].value.has_collation()
    }

    /// Returns all sources of the FROM; `None` if it contains a derived table.
    pub(crate) fn sources(&self) -> Option<Vec<usize>> {
        self.from.iter().map(|term| term.source).collect()
    }

    /// `true` if it is a plain inner join of tables, without subqueries in its conditions and
    /// columns.
    pub(crate) fn is_plain_join(&self) -> bool {
        self.from.iter().all(|term| term.source.is_some() && term.join == Join::Inner)
            && !self.filter.iter().any(|conjunct| conjunct.condition.has_subquery())
            && !self.outputs.iter().any(|output| output.value.has_subquery())
            && !self.group.iter().flatten().any(Fragment::has_subquery)
            && !self.having.iter().any(Fragment::has_subquery)
    }

    /// Returns all fragments.
    pub(crate) fn fragments(&mut self) -> impl Iterator<Item = &mut Fragment> {
        let from = self.from.iter_mut().flat_map(FromTerm::fragments);
        let filter = self.filter.iter_mut().map(|conjunct| &mut conjunct.condition);
        let guards = self.guards.iter_mut().map(|guard| &mut guard.condition);
        let filter = filter.chain(guards).chain(&mut self.visible).chain(&mut self.seen);
        let outputs = self.outputs.iter_mut().map(|output| &mut output.value);
        let group = self.group.iter_mut().flatten();
        from.chain(filter).chain(outputs).chain(group).chain(&mut self.having)
    }

    /// Appends the SELECT as SQL, with conditions added.
    pub(crate) fn write(&self, added: &ExtraConditions, out: &mut Fragment) {
        out.push_text(if self.distinct { "SELECT DISTINCT" } else { "SELECT" });
        for (at, output) in self.outputs.iter().enumerate() {
            out.push_text(if at > 0 { "," } else { "" });
            out.push(&output.value);
            out.push_text(&as_name(&output.name));
        }
        if let Some(seen) = &self.seen {
            out.push_text(",");
            out.push(seen);
            out.push_text(&as_name(SEEN));
        }
        self.write_from(added, out);
        self.write_where(added.get(&self.block).map_or(&[], Vec::as_slice), out);
        if let Some(group) = &self.group {
            for (at, by) in group.iter().enumerate() {
                out.push_text(if at > 0 { "," } else { "GROUP BY" });
                if by.is_constant() {
                    // One group of all rows. SQLite would read a number as a position, even in
                    // parentheses.
                    out.push_text("NULL");
                } else {
                    out.push_text("(");
                    out.push(by);
                    out.push_text(")");
                }
            }
        }
        if let Some(having) = &self.having {
            out.push_text(if self.fenced {
                "HAVING CASE WHEN count(*) >= 0 THEN ("
            } else {
                "HAVING"
            });
            out.push(having);
            out.push_text(if self.fenced { ") END" } else { "" });
        }
    }

    /// Appends the FROM.
    pub(crate) fn write_from(&self, added: &ExtraConditions, out: &mut Fragment) {
        for (at, term) in self.from.iter().enumerate() {
            out.push_text(if at == 0 { "FROM" } else { term.join.sql() });
            term.write(added, out);
            for (at, conjunct) in term.on.iter().enumerate() {
                out.push_text(if at > 0 { "AND (" } else { "ON (" });
                out.push(&conjunct.condition);
                out.push_text(")");
            }
        }
    }

    /// Appends the WHERE, with further conditions.
    pub(crate) fn write_where(&self, added: &[Fragment], out: &mut Fragment) {
        let mut filter: Vec<&Conjunct> = self.filter.iter().collect();
        filter.sort_by_key(|conjunct| conjunct.origin);
        let conditions = filter.into_iter().map(|conjunct| &conjunct.condition).chain(added);
        for (at, condition) in conditions.enumerate() {
            let mut whole = Fragment::text(if at > 0 { "AND (" } else { "WHERE (" });
            match condition.pieces.as_slice() {
                [Piece::Hint(hint)] => {
                    whole.push(&hint.1);
                    whole.push_text(")");
                    out.push(&Fragment::hint(&hint.0, whole));
                }
                _ => {
                    whole.push(condition);
                    whole.push_text(")");
                    out.push(&whole);
                }
            }
        }
    }
}

impl FromTerm {
    /// Returns all fragments.
    pub(crate) fn fragments(&mut self) -> Box<dyn Iterator<Item = &mut Fragment> + '_> {
        let on = self.on.iter_mut().map(|conjunct| &mut conjunct.condition);
        let own = std::iter::once(&mut self.item).chain(on);
        match &mut self.derived {
            None => Box::new(own),
            Some(derived) => {
                let Derived { query, top_n, .. } = &mut **derived;
                Box::new(own.chain(query.fragments()).chain([top_n]))
            }
        }
    }

    /// `true` if a piece is one of its columns.
    pub(crate) fn is_named(&self, piece: &Piece) -> bool {
        match piece {
            Piece::Column(source, _) => self.source == Some(*source),
            Piece::Derived(_, number, _) => self.number == Some(*number),
            _ => false,
        }
    }

    /// Appends the term as SQL, with conditions added to SELECTs of subqueries.
    pub(crate) fn write(&self, added: &ExtraConditions, out: &mut Fragment) {
        let Some(derived) = &self.derived else { return out.push(&self.item) };
        out.push_text("(");
        out.push(&derived.query.body_with(added));
        out.push(&derived.top_n);
        out.push_text(&format!(") AS {}", quoted(&derived.alias)));
    }
}

impl ExprContext {
    /// `true` if the SELECT names a column of its own.
    pub(crate) fn names_own(&self) -> bool {
        self.reads & (1 << self.depth) != 0
    }

    /// Records the columns of a value that is used outside of aggregates, unless it is a group expression.
    pub(crate) fn record_bare_columns(&mut self, value: &Fragment) {
        if self.by.contains(value) {
            return;
        }
        let columns: Vec<(usize, usize)> = value.columns().collect();
        self.bare_derived.extend(value.pieces.iter().filter_map(|piece| match piece {
            Piece::Derived(_, number, _) => Some(*number),
            _ => None,
        }));
        self.bare.extend(columns);
    }
}

/// Returns `AS "name"`.
fn as_name(name: &str) -> String {
    format!("AS {}", quoted(name))
}

/// The value of a parameter of a template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Slot {
    /// The caller's parameter of this name or number.
    Caller(String),
    /// A literal of the text.
    Literal(Value),
    /// The attribute of this name of a restricted caller.
    Principal(String),
}

impl Slot {
    /// Returns the kind of a literal that became a parameter; `None` for a caller's parameter.
    pub(crate) fn literal_kind(&self) -> Option<Kind> {
        match self {
            Slot::Literal(Value::Integer(_)) => Some(Kind::Integer),
            Slot::Literal(Value::Text(_)) => Some(Kind::Text),
            Slot::Literal(Value::Blob(_)) => Some(Kind::Blob),
            Slot::Literal(Value::Null | Value::Real(_)) | Slot::Caller(_) | Slot::Principal(_) => {
                None
            }
        }
    }
}
