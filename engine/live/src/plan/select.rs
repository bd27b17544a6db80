//! A whole query, resolved: its SELECTs, its outputs and their order, and its shape.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::wire::{Column, OrderTerm, Shape};
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{CompoundOperator, Select};

use crate::catalog::Catalog;
use crate::delta::dependency::Block;
use crate::plan::fragment::{Collation, Fragment, PlainExpr, Source, quoted};
use crate::plan::lower::{Lowering, Scope, Slot, unsupported};
use crate::plan::order::Order;
use crate::plan::select_core::{ExtraConditions, Output, SelectCore};
use crate::route::Route;

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

impl Query {
    /// Resolves a whole statement. `written` is the text of its columns.
    pub(crate) fn resolve(
        mut lower: Lowering,
        select: &Select,
        written: &[String],
    ) -> Result<Query, Refusal> {
        let mut query = lower.select(select, written, &Scope::default())?;
        if lower.sources.is_empty() && !lower.once {
            return Err(unsupported("a query that reads no table"));
        }
        query.find_key(&lower);
        query.routes = (0..lower.sources.len()).map(|source| lower.route_of(source)).collect();
        query.sources = lower.sources;
        query.blocks = lower.blocks;
        query.slots = lower.slots;
        Ok(query)
    }

    /// The SELECT of a block, in the query or in a subquery of its FROM.
    pub(crate) fn core_of(&self, block: usize) -> Option<&SelectCore> {
        self.cores.iter().find_map(|(_, core)| {
            let derived = core.from.iter().filter_map(|term| term.derived.as_ref());
            let mut within = derived.filter_map(|derived| derived.query.core_of(block));
            if core.block == block { Some(core) } else { within.next() }
        })
    }

    /// A query of one SELECT.
    pub(crate) fn of(core: SelectCore) -> Query {
        Query { cores: vec![(None, core)], ..Query::default() }
    }

    /// The outputs, hidden columns last. A compound is named by its first SELECT.
    pub(crate) fn outputs(&self) -> &[Output] {
        &self.cores[0].1.outputs
    }

    /// The query as text over symbolic sources. The `restricted` conditions are added.
    pub(crate) fn body(&self, restricted: &[Fragment]) -> Fragment {
        let cores = self.cores.iter();
        self.body_with(&cores.map(|(_, core)| (core.block, restricted.to_vec())).collect())
    }

    /// The same, with conditions added to any SELECT of it or of a subquery in its FROM.
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

    /// The whole text: the body in its total order, with LIMIT and OFFSET.
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

    /// The primary keys of the sources, or the groups, if all of them are outputs.
    fn find_key(&mut self, lower: &Lowering) {
        if let [(_, core)] = self.cores.as_slice() {
            self.key = core.key(lower).unwrap_or_default();
        }
    }

    /// The outputs that form a key of its rows: all of them if equal rows are merged and no smaller
    /// key exists.
    pub(crate) fn rows_key(&self, lower: &Lowering) -> Option<Vec<usize>> {
        let (last, core) = self.cores.last().expect("a query has a core");
        let is_set = match last {
            None => core.distinct,
            Some(operator) => *operator != CompoundOperator::UnionAll,
        };
        let one_row = core.group.is_none() && core.frame.aggregate;
        let fewer = || if one_row { Some(Vec::new()) } else { core.key(lower) };
        let fewer = || if last.is_none() { fewer() } else { None };
        if is_set { Some((0..self.outputs().len()).collect()) } else { fewer() }
    }

    /// All fragments that are rendered.
    pub(crate) fn fragments(&mut self) -> impl Iterator<Item = &mut Fragment> {
        let limit = self.limit.iter_mut();
        let limit = limit.flat_map(|(limit, offset)| std::iter::once(limit).chain(offset));
        self.cores.iter_mut().flat_map(|(_, core)| core.fragments()).chain(limit)
    }

    /// The columns that it reads, by table.
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

    /// The shape for clients.
    pub(crate) fn shape(&self, catalog: &Catalog) -> Shape {
        let compound = self.cores.len() > 1;
        let kind = |output: &Output| match output.value.plain {
            PlainExpr::Column(source, column) if !compound => {
                catalog.table(self.sources[source].table).columns[column].kind.sql().to_owned()
            }
            _ => String::new(),
        };
        let columns = self.outputs().iter().map(|output| Column {
            name: output.name.clone(),
            kind: kind(output),
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
            window: self.limit.is_some(),
        }
    }

    /// Renumbers the slots: the n-th of `order` becomes n.
    pub(crate) fn renumber(&mut self, order: &[usize]) {
        let mut places = vec![usize::MAX; self.slots.len()];
        order.iter().enumerate().for_each(|(new, old)| places[*old] = new);
        let is_shown = |slot: usize| places[slot] != usize::MAX;
        let new = |slot: usize| {
            assert!(is_shown(slot), "every slot is in the snapshot");
            places[slot]
        };
        // Conditions that depend only on an unused column apply to no row.
        self.blocks.iter_mut().for_each(|block| block.forget(&|slot| !is_shown(slot)));
        self.routes.iter_mut().for_each(|route| route.forget(&|slot| !is_shown(slot)));
        self.fragments().for_each(|fragment| fragment.renumber(&new));
        self.blocks.iter_mut().flat_map(Block::fragments).for_each(|fragment| {
            fragment.renumber(&new);
        });
        self.routes.iter_mut().for_each(|route| route.renumber(&new));
        self.slots = order.iter().map(|slot| self.slots[*slot].clone()).collect();
    }
}

impl Lowering<'_> {
    /// A SELECT with everything below it.
    pub(crate) fn select(
        &mut self,
        select: &Select,
        written: &[String],
        outer: &Scope,
    ) -> Result<Query, Refusal> {
        let named = self.enter_with(select.with.as_ref())?;
        let lifting = std::mem::replace(&mut self.lifting, false);
        let mut cores = Vec::new();
        let (core, mut scope) = self.core(&select.body.select, written, outer)?;
        cores.push((None, core));
        for compound in select.body.compounds.iter().flatten() {
            let (core, _) = self.core(&compound.select, &[], outer)?;
            if core.outputs.len() != cores[0].1.outputs.len() {
                let detail = "the SELECTs of a compound do not have the same number of columns";
                return Err(Refusal::new(Code::BadSql, detail));
            }
            cores.push((Some(compound.operator), core));
        }
        self.require_one_form(&cores)?;
        let mut query = Query { cores, ..Query::default() };
        let around = self.block.replace(query.cores[0].1.block);
        query.cores[0].1.frame.windowed = true;
        self.read_order(&mut query, select.order_by.unwrap_or(&[]), &mut scope)?;
        self.block = around;
        for (_, core) in &mut query.cores {
            self.settle(core)?;
            self.seal(core);
        }
        if let Some(limit) = select.limit {
            let nothing = Scope::default();
            let count = self.expr(&limit.expr, &nothing)?;
            let offset = limit.offset.as_ref().map(|expr| self.expr(expr, &nothing)).transpose()?;
            if count.has_subquery() || offset.as_ref().is_some_and(Fragment::has_subquery) {
                return Err(unsupported("a subquery in LIMIT"));
            }
            query.limit = Some((count, offset));
        }
        self.lifting = lifting;
        self.leave_with(named);
        Ok(query)
    }
}

impl Lowering<'_> {
    /// UNION, EXCEPT and INTERSECT merge equal rows. Equal values must be identical, otherwise the
    /// shown one would be arbitrary (1 or 1.0, 'a' or 'A').
    fn require_one_form(
        &self,
        cores: &[(Option<CompoundOperator>, SelectCore)],
    ) -> Result<(), Refusal> {
        let merges = |operator: &Option<CompoundOperator>| {
            operator.is_some_and(|operator| operator != CompoundOperator::UnionAll)
        };
        if !cores.iter().any(|(operator, _)| merges(operator)) {
            return Ok(());
        }
        let form = |output: &Output| self.form_of(&output.value);
        for (at, first) in cores[0].1.outputs.iter().enumerate() {
            let wanted = form(first);
            if wanted.is_none() || cores.iter().any(|(_, core)| form(&core.outputs[at]) != wanted) {
                return Err(unsupported(&format!(
                    "UNION, EXCEPT or INTERSECT if the type of column {} can differ between rows",
                    first.name
                ))
                .hint("use CAST(… AS …) on that column in every SELECT, or use UNION ALL"));
            }
        }
        Ok(())
    }
}

impl Query {
    /// The total order of the rows. A window must have a unique cut, so without a key the whole row
    /// breaks ties.
    pub(crate) fn total_order(&self) -> Vec<Order> {
        let all: Vec<usize> = (0..self.outputs().len()).collect();
        let ties = if self.key.is_empty() { &all } else { &self.key };
        let tie = |output: &usize| Order {
            output: *output,
            desc: false,
            nulls_last: false,
            collation: Collation::Binary,
        };
        self.order.iter().cloned().chain(ties.iter().map(tie)).collect()
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
            let (_, core) = &self.cores[0];
            let by_bytes = |at: &usize| if core.collates(*at) { " COLLATE BINARY" } else { "" };
            terms.extend(self.key.iter().map(|at| format!("{}{}", at + 1, by_bytes(at))));
        } else if self.limit.is_some() {
            terms.extend((1..=self.outputs().len()).map(|at| format!("{at} COLLATE BINARY")));
        }
        out.push_text(&format!("ORDER BY {}", terms.join(", ")));
    }
}

/// `AS "name"`.
pub(crate) fn named(name: &str) -> String {
    format!("AS {}", quoted(name))
}
