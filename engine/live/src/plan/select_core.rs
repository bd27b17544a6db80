//! One SELECT of a compound query: its FROM, conditions, groups and columns.

use std::collections::HashMap;

use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{As, Distinctness, Expr, OneSelect, ResultColumn};

use crate::plan::fragment::{Fragment, Piece, PlainExpr};
use crate::plan::from::{FromTerm, Join};
use crate::plan::lower::{
    Conjunct, Lowering, Scope, WindowSpec, position, unquote, unsupported, without_collation,
};
use crate::plan::principal::{EarlyPredicates, SEEN, VisibilityGuard};
use crate::plan::select::named;

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
    /// What the expressions used outside of aggregates and groups.
    pub(crate) frame: ExprContext,
}

/// What the expressions of one SELECT may use, and what they used.
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
    pub(crate) within: bool,
    /// The number of enclosing SELECTs.
    pub(crate) depth: usize,
    /// The SELECTs whose columns are used: one bit for each nesting depth.
    pub(crate) reads: u128,
    /// Whether aggregates are allowed.
    pub(crate) allowed: bool,
    /// Whether window functions are allowed.
    pub(crate) windowed: bool,
    /// A key of the rows of the FROM, if there is one.
    pub(crate) rows: Option<Vec<Fragment>>,
    /// The named windows.
    pub(crate) named: Vec<(String, WindowSpec)>,
    /// The PARTITION BY of each window function, without parameters.
    pub(crate) partitions: Vec<Vec<Fragment>>,
}

impl SelectCore {
    /// Whether it aggregates rows.
    pub(crate) fn aggregates(&self) -> bool {
        self.group.is_some() || self.frame.aggregate
    }

    /// Whether it has window functions.
    pub(crate) fn windows(&self) -> bool {
        !self.frame.partitions.is_empty()
    }

    /// The expressions that partition the rows into independent parts; `None` if every row is
    /// independent.
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

    /// Whether an output column compares by a collation other than BINARY.
    pub(crate) fn collates(&self, output: usize) -> bool {
        let value = &self.outputs[output].value;
        value.collation.is_some() || value.collates_within
    }

    /// All sources of the FROM; `None` if it contains a derived table.
    pub(crate) fn sources(&self) -> Option<Vec<usize>> {
        self.from.iter().map(|term| term.source).collect()
    }

    /// Whether it is a plain inner join of tables, without subqueries in its conditions and
    /// columns.
    pub(crate) fn is_plain_join(&self) -> bool {
        let inner = |term: &FromTerm| term.source.is_some() && term.join == Join::Inner;
        let flat = |fragment: &Fragment| !fragment.has_subquery();
        self.from.iter().all(inner)
            && self.filter.iter().all(|conjunct| flat(&conjunct.condition))
            && self.outputs.iter().all(|output| flat(&output.value))
            && self.group.iter().flatten().all(flat)
            && self.having.iter().all(flat)
    }

    /// All fragments.
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
            out.push_text(&named(&output.name));
        }
        if let Some(seen) = &self.seen {
            out.push_text(",");
            out.push(seen);
            out.push_text(&named(SEEN));
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
        let conditions = self.filter.iter().map(|conjunct| &conjunct.condition).chain(added);
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

    /// The outputs that form a key of the rows.
    pub(crate) fn key(&self, lower: &Lowering) -> Option<Vec<usize>> {
        if self.distinct {
            return None;
        }
        if let Some(group) = &self.group {
            let shown = |by: &Fragment| {
                let by = lower.representative(by);
                let at =
                    self.outputs.iter().position(|output| output.value == by && !output.hidden)?;
                self.is_first_of_name(at).then_some(at)
            };
            return group.iter().map(shown).collect();
        }
        if self.frame.aggregate {
            return None;
        }
        self.join_key(lower)
    }

    fn join_key(&self, lower: &Lowering) -> Option<Vec<usize>> {
        let shown = |column: Fragment| {
            let mut outputs = self.outputs.iter();
            let at =
                outputs.position(|output| output.value.plain == column.plain && !output.hidden)?;
            self.is_first_of_name(at).then_some(at)
        };
        self.rows_key(lower)?.into_iter().map(shown).collect()
    }

    /// The smallest key of the joined rows: a table that is joined by its whole primary key adds no
    /// columns.
    pub(crate) fn rows_key(&self, lower: &Lowering) -> Option<Vec<Fragment>> {
        let mut chosen = Vec::new();
        if let Some(sources) = self.sources() {
            chosen.clone_from(&sources);
            for source in sources.iter().rev() {
                let without: Vec<usize> =
                    chosen.iter().copied().filter(|other| other != source).collect();
                if self.determines(&without, &sources, lower) {
                    chosen = without;
                }
            }
        }
        if !self.tells_padded_apart() {
            return None;
        }
        let needed = self.from.iter().filter(|term| {
            term.source.is_none_or(|source| chosen.is_empty() || chosen.contains(&source))
        });
        let keys: Option<Vec<Vec<Fragment>>> = needed.map(|term| term.key.clone()).collect();
        Some(keys?.concat())
    }

    /// Whether a row of a FULL JOIN without a left side can never equal one without a right side: a
    /// table's key is never NULL, but the key of a subquery may be NULL or empty.
    fn tells_padded_apart(&self) -> bool {
        let has_key = |term: &FromTerm| term.source.is_some();
        let is_full = |term: &FromTerm| term.join == Join::Full;
        self.from.iter().enumerate().all(|(at, right)| {
            !is_full(right) || has_key(right) || self.from[..at].iter().all(has_key)
        })
    }

    fn determines(&self, chosen: &[usize], all: &[usize], lower: &Lowering) -> bool {
        if chosen.is_empty() || self.from.iter().any(|term| term.join.keeps_right()) {
            return chosen.len() == all.len();
        }
        let mut known = chosen.to_vec();
        let mut grew = true;
        while std::mem::take(&mut grew) {
            for term in &self.from {
                let Some(source) = term.source.filter(|source| !known.contains(source)) else {
                    continue;
                };
                let table = lower.catalog.table(lower.sources[source].table);
                let conjuncts = if term.join == Join::Inner { &self.filter } else { &term.on };
                let fixed = |column: &usize| {
                    conjuncts.iter().any(|conjunct| conjunct.fixes(source, *column, &known, lower))
                };
                if table.key.iter().all(fixed) {
                    known.push(source);
                    grew = true;
                }
            }
        }
        known.len() == all.len()
    }

    fn is_first_of_name(&self, at: usize) -> bool {
        let name = &self.outputs[at].name;
        self.outputs.iter().position(|output| output.name == *name) == Some(at)
    }
}

impl Conjunct {
    /// Whether a column has a single value once the rows of some sources are known.
    fn fixes(&self, source: usize, column: usize, known: &[usize], lower: &Lowering) -> bool {
        let kind = |(source, column): (usize, usize)| {
            lower.catalog.table(lower.sources[source].table).columns[column].kind
        };
        let here = (source, column);
        match self.equal {
            Some((left, right)) => {
                let other = if left == here { right } else { left };
                (left == here || right == here)
                    && known.contains(&other.0)
                    && kind(other) == kind(here)
            }
            None => false,
        }
    }
}

impl Lowering<'_> {
    /// One SELECT, and the names that its ORDER BY may use.
    pub(crate) fn core<'s>(
        &mut self,
        select: &OneSelect,
        written: &[String],
        outer: &'s Scope<'s>,
    ) -> Result<(SelectCore, Scope<'s>), Refusal> {
        self.expansion.select()?;
        let block = self.open_block();
        let depth = outer.depth + 1;
        let frame = ExprContext { depth, ..ExprContext::default() };
        let mut core = SelectCore { block: block.0, frame, ..SelectCore::default() };
        let mut scope = Scope { outer: Some(outer), depth, ..Scope::default() };
        match select {
            OneSelect::Select { .. } => self.read_select(&mut core, select, written, &mut scope)?,
            OneSelect::Values(rows) => self.read_values(&mut core, rows, &mut scope)?,
        }
        self.close_block(block, &core);
        Ok((core, scope))
    }

    fn read_select(
        &mut self,
        core: &mut SelectCore,
        select: &OneSelect,
        written: &[String],
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let OneSelect::Select {
            distinctness,
            columns,
            from,
            where_clause,
            group_by,
            having,
            window_clause,
        } = select
        else {
            return Ok(());
        };
        core.distinct = *distinctness == Some(Distinctness::Distinct);
        core.deduplicated = core.distinct;
        if let Some(from) = from {
            self.read_from(core, from, scope)?;
        }
        let rows = core.rows_key(self);
        if let Some(group_by) = group_by {
            core.group = Some(self.read_groups(core, group_by, columns, scope)?);
            core.frame.by = core.group.clone().unwrap_or_default();
        }
        core.frame.rows = rows;
        core.frame.windowed = true;
        self.read_windows(core, window_clause.unwrap_or(&[]), scope)?;
        self.read_columns(core, columns, written, scope)?;
        core.frame.windowed = false;
        if core.distinct {
            self.make_distinct(core)?;
        }
        if let Some(condition) = where_clause {
            let conjuncts = self.conjuncts(condition, scope)?;
            let conjuncts = self.guarded(core, conjuncts);
            core.filter.extend(conjuncts);
        }
        if let Some(having) = having {
            let having = self.in_frame(core, |lower| lower.expr(having, scope))?;
            core.having = Some(having);
            if !core.aggregates() {
                let detail = "HAVING clause on a non-aggregate query";
                return Err(Refusal::new(Code::BadSql, detail));
            }
        }
        Ok(())
    }

    /// Turns SELECT DISTINCT into GROUP BY all outputs. Equal rows must then be identical;
    /// otherwise the shown row would be arbitrary.
    fn make_distinct(&self, core: &mut SelectCore) -> Result<(), Refusal> {
        if !core.aggregates() && !core.windows() {
            self.group_by_all(core);
            return Ok(());
        }
        for output in &core.outputs {
            if self.form_of(&output.value).is_none() {
                let what = "SELECT DISTINCT over groups or windows whose column";
                return Err(unsupported(&format!(
                    "{what} {} has more than one possible type",
                    output.name
                ))
                .hint("wrap it in CAST(… AS …), or remove DISTINCT"));
            }
        }
        Ok(())
    }

    /// VALUES, as a SELECT from a subquery.
    fn read_values<'b>(
        &mut self,
        core: &mut SelectCore,
        rows: &[impl AsRef<[Expr<'b>]>],
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let mut values: Vec<Vec<Fragment>> = Vec::new();
        for row in rows {
            let row = row.as_ref().iter().map(|value| self.expr(value, scope));
            values.push(row.collect::<Result<_, Refusal>>()?);
            if values[0].len() != values[values.len() - 1].len() {
                let detail = "all VALUES must have the same number of terms";
                return Err(Refusal::new(Code::BadSql, detail));
            }
        }
        self.add_values(core, &values, scope);
        Ok(())
    }

    /// SELECT DISTINCT as GROUP BY all outputs.
    fn group_by_all(&self, core: &mut SelectCore) {
        let shown: Vec<Fragment> = core.outputs.iter().map(|output| output.value.clone()).collect();
        for output in &mut core.outputs {
            output.value = self.representative(&output.value);
        }
        core.frame =
            ExprContext { by: shown.clone(), depth: core.frame.depth, ..ExprContext::default() };
        core.group = Some(shown);
        core.distinct = false;
    }

    /// Lowers expressions that may contain aggregates.
    pub(crate) fn in_frame<T>(
        &mut self,
        core: &mut SelectCore,
        work: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        core.frame.allowed = true;
        std::mem::swap(&mut self.frame, &mut core.frame);
        let result = work(self);
        std::mem::swap(&mut self.frame, &mut core.frame);
        core.frame.allowed = false;
        self.frame.reads |= core.frame.reads;
        result
    }

    /// Called once all expressions of a SELECT are known. A column outside of aggregates must have
    /// one value in all rows of its group.
    pub(crate) fn settle(&self, core: &SelectCore) -> Result<(), Refusal> {
        if !core.aggregates() || self.once {
            return Ok(());
        }
        let determined = |source: usize| {
            let table = self.catalog.table(self.sources[source].table);
            table.key.iter().all(|key| core.frame.by.contains(&Fragment::column(source, *key)))
        };
        let own = |source: usize| core.from.iter().any(|term| term.source == Some(source));
        let arbitrary =
            core.frame.bare.iter().find(|(source, _)| own(*source) && !determined(*source));
        let own = |number: &usize| core.from.iter().any(|term| term.number == Some(*number));
        let derived = core.frame.bare_derived.iter().any(own);
        let name = match arbitrary {
            Some((source, column)) => {
                self.catalog.table(self.sources[*source].table).columns[*column].name
            }
            None if derived => "of a subquery",
            None => return Ok(()),
        };
        Err(unsupported(&format!("a query whose column {name} is neither grouped nor aggregated"))
            .hint("add it to GROUP BY, or use min() or max()"))
    }

    fn read_groups(
        &mut self,
        core: &mut SelectCore,
        group_by: &[Expr],
        columns: &[ResultColumn],
        scope: &Scope,
    ) -> Result<Vec<Fragment>, Refusal> {
        let mut aliases = Vec::new();
        for column in columns {
            if let ResultColumn::Expr(expr, Some(As::As(name) | As::Elided(name))) = column {
                aliases.push((unquote(name.0), expr));
            }
        }
        let mut groups = Vec::new();
        for by in group_by {
            let is_column =
                |name: &str| scope.entries.iter().any(|entry| entry.find(&unquote(name)).is_some());
            let named = match by {
                Expr::Id(id) if !is_column(id.0) => Some(unquote(id.0)),
                Expr::Name(name) if !is_column(name.0) => Some(unquote(name.0)),
                _ => None,
            };
            let alias = named.and_then(|name| {
                aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(&name))
            });
            let (bare, collation) = without_collation(by)?;
            if collation.is_some() && position(bare).is_some() {
                return Err(unsupported("GROUP BY a position with COLLATE")
                    .hint("name the column instead of its position"));
            }
            let expr = match (position(bare), alias) {
                (Some(position), _) => {
                    let position = usize::try_from(position - 1).ok();
                    match position.and_then(|position| columns.get(position)) {
                        Some(ResultColumn::Expr(expr, _)) => expr,
                        Some(_) => return Err(unsupported("GROUP BY the position of a *")),
                        None => {
                            let detail = "a GROUP BY term is out of range";
                            return Err(Refusal::new(Code::BadSql, detail));
                        }
                    }
                }
                (None, Some((_, expr))) => expr,
                (None, None) => by,
            };
            // A separate frame: aggregates are not allowed here.
            let apart = ExprContext { depth: scope.depth, ..ExprContext::default() };
            let around = std::mem::replace(&mut self.frame, apart);
            let group = self.expr(expr, scope);
            let apart = std::mem::replace(&mut self.frame, around);
            self.frame.reads |= apart.reads;
            groups.push(Fragment { fixed: !apart.names_own(), ..group? });
        }
        core.frame = ExprContext { depth: scope.depth, ..ExprContext::default() };
        Ok(groups)
    }

    fn read_columns(
        &mut self,
        core: &mut SelectCore,
        columns: &[ResultColumn],
        written: &[String],
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        for (at, column) in columns.iter().enumerate() {
            match column {
                ResultColumn::Star => self.expand(core, scope, None)?,
                ResultColumn::TableStar(table) => {
                    self.expand(core, scope, Some(&unquote(table.0)))?
                }
                ResultColumn::Expr(expr, alias) => {
                    core.frame.reads = 0;
                    let value = self.in_frame(core, |lower| lower.expr(expr, scope))?;
                    let value = Fragment { fixed: !core.frame.names_own(), ..value };
                    let alias =
                        alias.as_ref().map(|(As::As(name) | As::Elided(name))| unquote(name.0));
                    let plain_name = self.column_name(expr, &value, scope);
                    let name = alias.clone().or(plain_name).or_else(|| written.get(at).cloned());
                    let name = name.unwrap_or_else(|| format!("column{}", at + 1));
                    if let Some(alias) = &alias {
                        scope.aliases.push((alias.clone(), value.clone()));
                    }
                    let aliased = alias.is_some();
                    self.expansion.column(&value, core.outputs.len() + 1)?;
                    core.outputs.push(Output { value, name, hidden: false, aliased });
                }
            }
        }
        Ok(())
    }

    /// The name of a column that is selected unchanged.
    fn column_name(&self, expr: &Expr, value: &Fragment, scope: &Scope) -> Option<String> {
        if value.collation.is_some() {
            return None;
        }
        let mut bare = expr;
        while let Expr::Parenthesized(items) = bare {
            bare = items.first()?;
        }
        let name = match bare {
            Expr::Id(id) => unquote(id.0),
            Expr::Name(name) | Expr::Qualified(_, name) | Expr::DoublyQualified(_, _, name) => {
                unquote(name.0)
            }
            _ => return None,
        };
        let declared = scope.entries.iter().find_map(|entry| entry.find(&name));
        if let Some((declared, _)) = declared {
            return Some(declared.clone());
        }
        match value.plain {
            PlainExpr::Column(source, column) => {
                let table = self.catalog.table(self.sources[source].table);
                Some(table.columns[column].name.to_owned())
            }
            _ => None,
        }
    }

    fn expand(
        &mut self,
        core: &mut SelectCore,
        scope: &Scope,
        table: Option<&str>,
    ) -> Result<(), Refusal> {
        let mut entries = scope
            .entries
            .iter()
            .filter(|entry| table.is_none_or(|table| entry.name.eq_ignore_ascii_case(table)))
            .peekable();
        if entries.peek().is_none() {
            let detail = match table {
                Some(table) => format!("no such table: {table}"),
                None => "no tables specified".to_owned(),
            };
            return Err(Refusal::new(Code::BadSql, detail));
        }
        for entry in entries {
            for (name, value) in &entry.columns {
                if table.is_none() && entry.is_merged(name) {
                    continue;
                }
                let bare = if table.is_none() { entry.named(name) } else { None };
                let value = bare.unwrap_or(value);
                self.expansion.column(value, core.outputs.len() + 1)?;
                core.frame.note(value);
                let (name, value) = (name.clone(), value.clone());
                core.outputs.push(Output { value, name, hidden: false, aliased: false });
            }
        }
        Ok(())
    }
}

impl ExprContext {
    /// Whether the SELECT names a column of its own.
    pub(crate) fn names_own(&self) -> bool {
        self.reads & (1 << self.depth) != 0
    }

    /// Notes the columns of a value used outside of aggregates.
    pub(crate) fn note(&mut self, value: &Fragment) {
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
