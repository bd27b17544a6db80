//! One SELECT of a compound query: its FROM, conditions, groups and columns.

use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{As, Distinctness, Expr, OneSelect, ResultColumn};

use crate::identifier::unquote;
use crate::plan::fragment::{Fragment, PlainExpr};
use crate::plan::lowering::Lowering;
use crate::plan::query::{ExprContext, Output, SelectCore};
use crate::plan::scope::Scope;
use crate::plan::syntax::{position, unsupported, without_collation};

impl Lowering<'_> {
    /// One SELECT, and the names that its ORDER BY may use.
    pub(crate) fn core<'s>(
        &mut self,
        select: &OneSelect,
        written: &[String],
        outer: &'s Scope<'s>,
    ) -> Result<(SelectCore, Scope<'s>), Refusal> {
        self.expansion.count_select()?;
        let block = self.open_block();
        let depth = outer.depth + 1;
        let frame = ExprContext { depth, ..ExprContext::default() };
        let mut core = SelectCore { block: block.number, frame, ..SelectCore::default() };
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
            let guarded = self.guard_conjuncts(core, conjuncts);
            core.filter.extend(guarded);
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
        core.frame.aggregates_allowed = true;
        std::mem::swap(&mut self.frame, &mut core.frame);
        let result = work(self);
        std::mem::swap(&mut self.frame, &mut core.frame);
        core.frame.aggregates_allowed = false;
        self.frame.reads |= core.frame.reads;
        result
    }

    /// Called once all expressions of a SELECT are known. A column outside of aggregates must have
    /// one value in all rows of its group.
    pub(crate) fn check_bare_columns(&self, core: &SelectCore) -> Result<(), Refusal> {
        if !core.aggregates() || self.once {
            return Ok(());
        }
        let arbitrary = core.frame.bare.iter().find(|(source, _)| {
            core.from.iter().any(|term| term.source == Some(*source))
                && !self.groups_by_key(core, *source)
        });
        let derived = core
            .frame
            .bare_derived
            .iter()
            .any(|number| core.from.iter().any(|term| term.number == Some(*number)));
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

    /// `true` if the group expressions contain the key of a source.
    fn groups_by_key(&self, core: &SelectCore, source: usize) -> bool {
        let table = self.catalog.table(self.sources[source].table);
        table.key.iter().all(|key| core.frame.by.contains(&Fragment::column(source, *key)))
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
                    let name = alias
                        .clone()
                        .or(plain_name)
                        .or_else(|| written.get(at).cloned())
                        .unwrap_or_else(|| format!("column{}", at + 1));
                    if let Some(alias) = &alias {
                        scope.aliases.push((alias.clone(), value.clone()));
                    }
                    let aliased = alias.is_some();
                    self.expansion.count_column(&value, core.outputs.len() + 1)?;
                    core.outputs.push(Output { value, name, hidden: false, aliased });
                }
            }
        }
        Ok(())
    }

    /// Returns the name of a column that is selected unchanged.
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
                let bare = if table.is_none() { entry.bare_column(name) } else { None };
                let value = bare.unwrap_or(value);
                self.expansion.count_column(value, core.outputs.len() + 1)?;
                core.frame.record_bare_columns(value);
                let name = name.clone();
                let value = value.clone();
                core.outputs.push(Output { value, name, hidden: false, aliased: false });
            }
        }
        Ok(())
    }
}
