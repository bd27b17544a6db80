//! FROM: tables, joins, and the expansion of views, CTEs and subqueries.

mod table_function;

use abide_schema::table::Kind;
use abide_schema::{Code, Listing, Refusal, TableSpec};
use sqlite3_parser::ast::fmt::ToTokens;
use sqlite3_parser::ast::{
    As, Cmd, FromClause, JoinConstraint, JoinedSelectTable, Name, Select, SelectTable, Stmt, With,
};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use crate::identifier::{require_main, unquote};
use crate::plan::block::{Join, JoinKind, ShownColumns, join_kind};
use crate::plan::conjunct::{ConditionOrigin, Conjunct, Route};
use crate::plan::fragment::{Affinity, Fragment, Mark, Piece, PlainExpr, Source};
use crate::plan::guard::{VisibilityGuard, null_unless};
use crate::plan::kind::common;
use crate::plan::lex;
use crate::plan::lowering::Lowering;
use crate::plan::query::{Derived, ExprContext, FromTerm, Output, Query, SelectCore};
use crate::plan::scope::{Entry, NamedQuery, Scope};
use crate::plan::syntax::unsupported;

/// Tables that one statement may read. Each mention counts, because views of views multiply.
const SOURCES: usize = 60;

/// How to read an item of FROM.
#[derive(Clone, Copy)]
pub(crate) struct FromContext<'a> {
    alias: &'a str,
    join: Join,
    /// Whether a simple query may be inlined.
    inline: bool,
}

impl Lowering<'_> {
    /// Declares the CTEs of a WITH. Pass the returned value to [`Lowering::leave_with`].
    pub(crate) fn enter_with(&mut self, with: Option<&With>) -> Result<usize, Refusal> {
        let before = self.named_queries.len();
        for cte in with.map_or(&[][..], |with| with.ctes) {
            let columns = cte.columns.unwrap_or(&[]);
            self.named_queries.push(NamedQuery {
                name: unquote(cte.tbl_name.0),
                columns: columns.iter().map(|column| unquote(column.col_name.0)).collect(),
                sql: AsText(cte.select).to_string(),
            });
        }
        Ok(before)
    }

    pub(crate) fn leave_with(&mut self, before: usize) {
        self.named_queries.truncate(before);
    }

    pub(crate) fn read_from(
        &mut self,
        core: &mut SelectCore,
        from: &FromClause,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        match Joins::from_clause(from) {
            Some(joins) => self.read_joins(core, joins, scope),
            None => Ok(()),
        }
    }

    fn read_joins(
        &mut self,
        core: &mut SelectCore,
        joins: Joins,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let Joins { first, rest } = joins;
        let last = rest.iter().rposition(|join| join_kind(join.operator).join.keeps_right());
        // A preceding view or subquery stays a subquery. The affinity of a compound's columns can
        // depend on that.
        let turned = last.filter(|at| {
            let mut before = rest[..*at].iter().map(|join| &join.table).chain([first]);
            join_kind(rest[*at].operator).join == Join::Right
                && core.from.is_empty()
                && before.all(|item| self.names_a_table(item))
        });
        let outer = last.is_some() && turned.is_none();
        let mut items = rest.iter().map(|join| &join.table).chain([first]);
        if last.is_some() && items.any(|item| matches!(item, SelectTable::TableCall(..))) {
            return Err(unsupported("a table-valued function with RIGHT or FULL JOIN")
                .hint("use a LEFT JOIN"));
        }
        let (before, after) = rest.split_at(turned.map_or(0, |at| at + 1));
        match (before.split_last(), first) {
            (Some((right, left)), _) => {
                self.read_turned(core, Joins { first, rest: left }, right, scope)?;
            }
            // Parentheses around the first item have no effect.
            (None, SelectTable::Sub(inner, None)) if core.from.is_empty() && !outer => {
                self.read_from(core, inner, scope)?;
            }
            (None, _) => {
                let place = FromContext { alias: "", join: Join::Inner, inline: !outer };
                self.read_item(core, first, place, scope)?;
            }
        }
        for join in after {
            let kind = join_kind(join.operator);
            let inline = kind.join == Join::Inner && !outer;
            let place = FromContext { alias: "", join: kind.join, inline };
            self.read_item(core, &join.table, place, scope)?;
            let condition = self.read_constraint(join.constraint.as_ref(), kind, scope)?;
            let on = self.guard_conjuncts(core, condition);
            if inline {
                core.filter.extend(on);
            } else {
                let term = core.from.last_mut().expect("an item was just read");
                term.on = on;
            }
        }
        Ok(())
    }

    fn names_a_table(&self, item: &SelectTable) -> bool {
        let SelectTable::Table(name, _, None) = item else { return false };
        let name = unquote(name.name.0);
        self.catalog.find(&name).is_some()
            && !self.is_bounded()
            && !self.named_queries.iter().any(|query| query.name.eq_ignore_ascii_case(&name))
    }

    /// `a RIGHT JOIN b` as `b LEFT JOIN a`, so that LEFT JOIN rules apply.
    fn read_turned(
        &mut self,
        core: &mut SelectCore,
        left: Joins,
        right: &JoinedSelectTable,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let place = FromContext { alias: "", join: Join::Left, inline: false };
        if left.rest.is_empty() {
            self.read_item(core, left.first, place, scope)?;
        } else {
            self.read_joined(core, left, place, scope)?;
        }
        let place = FromContext { alias: "", join: Join::Inner, inline: true };
        self.read_item(core, &right.table, place, scope)?;
        let kind = join_kind(right.operator);
        let condition = self.read_constraint(right.constraint.as_ref(), kind, scope)?;
        let on = self.guard_conjuncts(core, condition);
        core.from.rotate_left(1);
        core.from.last_mut().expect("an item was just read").on = on;
        Ok(())
    }

    fn read_constraint(
        &mut self,
        constraint: Option<&JoinConstraint>,
        kind: JoinKind,
        scope: &mut Scope,
    ) -> Result<Vec<Conjunct>, Refusal> {
        let names: Vec<String> = match constraint {
            Some(JoinConstraint::On(expr)) => return self.conjuncts(expr, scope),
            Some(JoinConstraint::Using(names)) => {
                names.iter().map(|name: &Name| unquote(name.0)).collect()
            }
            None if kind.natural => common_columns(scope),
            None => return Ok(Vec::new()),
        };
        let (last, before) = scope.entries.split_last_mut().expect("an item was just read");
        let mut conjuncts = Vec::new();
        for name in names {
            let left = before
                .iter_mut()
                .find(|entry| entry.find(&name).is_some() && !entry.is_merged(&name));
            let right = last.find(&name).map(|(_, value)| value.clone());
            let (Some(left), Some(right)) = (left, right) else {
                let detail =
                    format!("cannot join using column {name} - column not present in both tables");
                return Err(Refusal::new(Code::BadSql, detail));
            };
            let value = left.bare_column(&name).expect("it was found").clone();
            self.require_comparable(&value, &right)?;
            if kind.join.keeps_right() {
                let bare = self.either(&value, &right, kind.join == Join::Full)?;
                left.bare.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
                left.bare.push((name.clone(), bare));
            }
            let mut equal = Conjunct::equal_columns(&value, &right);
            equal.equal = self.columns_of(&value, &right);
            conjuncts.push(equal);
            last.merged.push(name);
        }
        Ok(conjuncts)
    }

    /// Returns the value of a column that USING merges from two, either of which may be NULL. Both
    /// must have one kind, so that equal values are identical.
    fn either(&self, left: &Fragment, right: &Fragment, full: bool) -> Result<Fragment, Refusal> {
        let Some(common) = common([self.kind_of(left), self.kind_of(right)]) else {
            return Err(unsupported("USING with RIGHT or FULL JOIN of columns of different types")
                .hint("use ON instead"));
        };
        if !full {
            return Ok(right.clone());
        }
        let mut value = Fragment::text("coalesce(");
        value.push(left);
        value.push_text(",");
        value.push(right);
        value.push_text(")");
        // SQLite compares such a column like its first one.
        Ok(value.with_affinity(self.affinity_of(left)).with_kind(Some(common)))
    }

    fn read_item(
        &mut self,
        core: &mut SelectCore,
        table: &SelectTable,
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        match table {
            SelectTable::Table(name, alias, None) => {
                if let Some(schema) = &name.db_name {
                    require_main(schema.0)?;
                }
                let table_name = unquote(name.name.0);
                let alias = alias.as_ref().map_or_else(|| table_name.clone(), alias_name);
                let place = FromContext { alias: &alias, ..place };
                if name.db_name.is_none() {
                    let found = self
                        .named_queries
                        .iter()
                        .rposition(|named| named.name.eq_ignore_ascii_case(&table_name));
                    if let Some(at) = found {
                        return self.read_named(core, at, place, scope);
                    }
                }
                if let Some(sql) = self.catalog.view(&table_name) {
                    let named =
                        NamedQuery { name: table_name, columns: Vec::new(), sql: sql.to_owned() };
                    return self.read_view(core, named, place, scope);
                }
                match self.authorized_view_of(&table_name)? {
                    Some(sql) => self.read_authorized_view(core, table_name, sql, place, scope),
                    None => self.read_table(core, &table_name, place, scope),
                }
            }
            SelectTable::Table(..) => Err(unsupported("a query with INDEXED BY")),
            SelectTable::TableCall(name, arguments, alias) => {
                let alias = alias.as_ref().map_or_else(String::new, alias_name);
                let place = FromContext { alias: &alias, ..place };
                self.read_function(core, name, arguments.unwrap_or(&[]), place, scope)
            }
            SelectTable::Select(select, alias) => {
                let alias = alias.as_ref().map_or_else(String::new, alias_name);
                self.read_derived(
                    core,
                    select,
                    &[],
                    &[],
                    FromContext { alias: &alias, ..place },
                    scope,
                )
            }
            SelectTable::Sub(FromClause { select: None, .. }, _) => Ok(()),
            SelectTable::Sub(from, alias) => {
                let alias = alias.as_ref().map_or_else(String::new, alias_name);
                let joins = Joins::from_clause(from).expect("a FROM clause has a first item");
                let place = FromContext { alias: &alias, ..place };
                self.read_joined(core, joins, place, scope)
            }
        }
    }

    /// A join in parentheses: inlined if that is equivalent, otherwise a subquery whose columns are
    /// qualified by its tables, or by its alias if it has one.
    fn read_joined(
        &mut self,
        core: &mut SelectCore,
        joins: Joins,
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        self.expansion.count_select()?;
        let block = self.open_block();
        let mut joined = SelectCore { block: block.number, ..SelectCore::default() };
        let outer = scope.outer;
        let depth = scope.depth;
        let mut names = Scope { outer, depth, ..Scope::default() };
        self.nested(|lower| lower.read_joins(&mut joined, joins, &mut names))?;
        let columns =
            names.entries.iter().flat_map(|entry| entry.columns.iter().chain(&entry.bare));
        for (at, (_, column)) in columns.clone().enumerate() {
            self.expansion.count_column(column, at + 1)?;
        }
        joined.outputs = columns
            .map(|(name, value)| {
                let name = name.clone();
                let value = value.clone();
                Output { value, name, hidden: false, aliased: false }
            })
            .collect();
        self.seal(&mut joined);
        self.close_block(block, &joined);
        let query = Query::from_core(joined);
        if place.inline && query.can_be_inlined() {
            let (_, simple) = query.cores.into_iter().next().expect("a query has a core");
            core.filter.extend(simple.filter);
            core.guards.extend(simple.guards);
            core.from.extend(simple.from);
        } else {
            let mut values = self.add_derived(core, query, place)?.into_iter();
            for entry in &mut names.entries {
                entry.rowid = None;
                for (_, column) in entry.columns.iter_mut().chain(&mut entry.bare) {
                    *column = values.next().expect("every column was put out");
                }
            }
        }
        if !place.alias.is_empty() {
            let shown = names.entries.iter().flat_map(|entry| {
                let own = entry.columns.iter().filter(|(name, _)| !entry.is_merged(name));
                own.map(|(name, _)| {
                    (name.clone(), entry.bare_column(name).expect("its own").clone())
                })
            });
            let columns = shown.collect();
            let name = place.alias.to_owned();
            names.entries = vec![Entry { name, columns, ..Entry::default() }];
        }
        scope.entries.extend(names.entries);
        Ok(())
    }

    fn read_table(
        &mut self,
        core: &mut SelectCore,
        table_name: &str,
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let Some(table) = self.catalog.find(table_name) else {
            return Err(Refusal::new(Code::BadSql, format!("no such table: {table_name}"))
                .hint(Listing::Tables.hint()));
        };
        let source = self.add_source(table, place.alias)?;
        let spec = self.catalog.table(table);
        let column_value =
            |at: usize| Fragment::column(source, at).harmless_if(is_indexed(spec, at));
        let columns = spec
            .columns
            .iter()
            .enumerate()
            .map(|(at, column)| (column.name.to_owned(), column_value(at)))
            .collect();
        let rowid = self.catalog.rowid_column(table).map(column_value);
        let name = place.alias.to_owned();
        scope.entries.push(Entry { name, columns, rowid, ..Entry::default() });
        let certain = spec.key.iter().all(|column| !spec.columns[*column].nullable);
        let key = spec.key.iter().map(|column| Fragment::column(source, *column)).collect();
        core.from.push(FromTerm {
            source: Some(source),
            derived: None,
            number: None,
            item: Fragment::source(source),
            join: place.join,
            on: Vec::new(),
            key: certain.then_some(key),
        });
        Ok(())
    }

    /// A view does not see the CTEs of the query that uses it.
    fn read_view(
        &mut self,
        core: &mut SelectCore,
        named: NamedQuery,
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let around = std::mem::replace(&mut self.named_queries, vec![named]);
        let result = self.read_named(core, 0, place, scope);
        self.named_queries = around;
        result
    }

    /// The rows of a table that a restricted caller may see. These conditions come before all
    /// others.
    fn read_authorized_view(
        &mut self,
        core: &mut SelectCore,
        name: String,
        sql: String,
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let filters = core.filter.len();
        let terms = core.from.len();
        let named = NamedQuery { name: name.clone(), columns: Vec::new(), sql };
        let source = self.sources.len();
        self.trusted = true;
        let result = self.read_view(core, named, place, scope);
        self.trusted = false;
        // An authorized view reads its own table before those of its owners and of its condition.
        if let Some(source) = self.sources.get_mut(source) {
            source.is_named = true;
        }
        // A caller that only names the table does not learn why the policy cannot be read.
        result.map_err(|refusal| match refusal.code {
            Code::LimitExceeded => refusal,
            _ => Refusal::new(Code::BadSql, format!("no such table: {name}"))
                .hint("no table with this name is visible to you"),
        })?;
        match core.from.get_mut(terms).and_then(|term| term.derived.as_mut()) {
            // It stays a subquery with its own conditions only.
            Some(derived) => {
                for (_, inner) in &mut derived.query.cores {
                    inner.filter.iter_mut().for_each(Conjunct::become_visibility_condition);
                    let guard = guard_of(&inner.from, &inner.filter);
                    inner.filter.extend(self.visible_row(&inner.from, guard.as_ref()));
                    inner.guards.extend(guard);
                    inner.opaque = inner.guards.iter().any(|guard| guard.condition.has_subquery());
                    self.blocks[inner.block].filter.clone_from(&inner.filter);
                }
            }
            None => {
                core.filter[filters..].iter_mut().for_each(Conjunct::become_visibility_condition);
                let guard = guard_of(&core.from[terms..], &core.filter[filters..]);
                core.filter.extend(self.visible_row(&core.from[terms..], guard.as_ref()));
                core.guards.extend(guard);
            }
        }
        Ok(())
    }

    /// Returns a condition that holds for each row of an authorized view, and counts it.
    ///
    /// *Invariant:* SQLite evaluates it as soon as it has read the row itself, in no loop over
    /// other rows. A join of the owners would make it wait for them, and SQLite may walk another
    /// table before, with its hidden rows. So the condition looks the owners up by itself. It also
    /// ends what is done for a hidden row: no loop over another table begins.
    fn visible_row(&self, from: &[FromTerm], guard: Option<&VisibilityGuard>) -> Option<Conjunct> {
        self.catalog.work_functions()?;
        // The key makes it depend on the row. SQLite evaluates a condition without a column once
        // and not for each row, and it replaces columns that a condition fixes, and tests that a
        // column cannot fail, by constants.
        let sources: Option<Vec<usize>> = from.iter().map(|term| term.source).collect();
        let sources = sources.expect("a view joins its table and those of its owners");
        let (source, owners) = sources.split_first().expect("a view reads its table");
        let mut count = Fragment::new();
        count.mark(Mark::Visible);
        count.push_text("(");
        for (nth, key) in self.catalog.table(self.sources[*source].table).key.iter().enumerate() {
            if nth > 0 {
                count.push_text(",");
            }
            count.push(&Fragment::column(*source, *key));
        }
        count.push_text(")");
        let condition = match guard {
            None => count,
            Some(guard) if owners.is_empty() => null_unless(&guard.condition, &count),
            Some(guard) => {
                let mut is_visible = Fragment::text("EXISTS (SELECT 1 FROM");
                for (nth, owner) in owners.iter().enumerate() {
                    if nth > 0 {
                        is_visible.push_text(",");
                    }
                    is_visible.pieces.push(Piece::AddedSource(*owner));
                }
                is_visible.push_text("WHERE");
                is_visible.push(&guard.condition);
                is_visible.push_text(")");
                null_unless(&is_visible, &count)
            }
        };
        Some(Conjunct {
            condition,
            route: Route::Any,
            equal: None,
            sides: None,
            origin: ConditionOrigin::Count,
        })
    }

    /// Reads a view or CTE again at each mention.
    fn read_named(
        &mut self,
        core: &mut SelectCore,
        at: usize,
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let named = self.named_queries[at].clone();
        self.expansion.count_read(&named.sql)?;
        let written = lex::columns_as_written(&named.sql)?;
        let bump = Bump::new();
        let mut parser = Parser::new(&bump, named.sql.as_bytes());
        let command = parser.next().map_err(|error| lex::refusal(&named.sql, &error))?;
        let Some(Cmd::Stmt(Stmt::Select(select))) = &command else {
            return Err(Refusal::new(Code::BadSql, format!("{} is not a SELECT", named.name)));
        };
        // A CTE sees the preceding ones. One that names itself is recursive, and its name is not
        // found.
        let after = self.named_queries.split_off(at);
        let result = self.read_derived(core, select, &written, &named.columns, place, scope);
        self.named_queries.extend(after);
        result.map_err(|refusal| {
            let itself = format!("no such table: {}", named.name);
            if refusal.detail.eq_ignore_ascii_case(&itself) {
                return unsupported("a recursive query");
            }
            refusal
        })
    }

    fn read_derived(
        &mut self,
        core: &mut SelectCore,
        select: &Select,
        written: &[String],
        names: &[String],
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let alias = place.alias;
        let apart = ExprContext { depth: self.frame.depth, ..ExprContext::default() };
        let frame = std::mem::replace(&mut self.frame, apart);
        let outer = scope.outer.cloned().unwrap_or_default();
        let derived = self.nested(|lower| lower.select(select, written, &outer));
        let apart = std::mem::replace(&mut self.frame, frame);
        self.frame.reads |= apart.reads;
        let derived = derived?;
        let visible = derived.outputs().iter().filter(|output| !output.hidden);
        let mut columns: Vec<(String, Fragment)> =
            visible.map(|output| (output.name.clone(), output.value.clone())).collect();
        for (at, (_, column)) in columns.iter().enumerate() {
            self.expansion.count_column(column, at + 1)?;
        }
        if !names.is_empty() {
            if names.len() != columns.len() {
                let detail = format!(
                    "table {alias} has {} values for {} columns",
                    columns.len(),
                    names.len()
                );
                return Err(Refusal::new(Code::BadSql, detail));
            }
            columns.iter_mut().zip(names).for_each(|(column, name)| column.0.clone_from(name));
        }
        if place.inline && derived.can_be_inlined() {
            let (_, simple) = derived.cores.into_iter().next().expect("a query has a core");
            core.filter.extend(simple.filter);
            core.guards.extend(simple.guards);
            core.from.extend(simple.from);
        } else {
            let values = self.add_derived(core, derived, place)?;
            columns.iter_mut().zip(values).for_each(|(column, value)| column.1 = value);
        }
        let name = alias.to_owned();
        scope.entries.push(Entry { name, columns, ..Entry::default() });
        Ok(())
    }

    /// Adds a subquery that is not inlined, and returns its columns.
    fn add_derived(
        &mut self,
        core: &mut SelectCore,
        mut query: Query,
        place: FromContext,
    ) -> Result<Vec<Fragment>, Refusal> {
        let alias = self.unique_alias(if place.alias.is_empty() { "sub" } else { place.alias });
        let top_n = self.top_n_of(&query)?;
        for (_, core) in &mut query.cores {
            core.outputs.retain(|output| !output.hidden);
            for (at, output) in core.outputs.iter_mut().enumerate() {
                output.name = format!("c{}", at + 1);
            }
        }
        let number = self.next_number();
        let shown = self.shown_by(&query);
        for ((_, core), columns) in query.cores.iter().zip(shown.clone()) {
            self.blocks[core.block].shown = Some(ShownColumns { subquery: number, columns });
        }
        let outputs = query.outputs().iter().enumerate();
        let values: Vec<Fragment> = outputs
            .map(|(at, output)| {
                let arms = query.cores.iter().map(|(_, core)| &core.outputs[at].value);
                let kinds = arms.map(|value| self.kind_of(value));
                let name = &output.name;
                let value = Fragment::derived(&alias, name, number, at);
                let mut value = value.with_kind(common(kinds));
                let arms = query.cores.iter().map(|(_, core)| &core.outputs[at].value);
                let affinities: Vec<Affinity> = arms.map(|arm| self.affinity_of(arm)).collect();
                if value.kind.is_none() && affinities.contains(&Affinity::To("REAL")) {
                    // SQLite makes reals of the integers of such a column if its plan stores the
                    // rows of the subquery.
                    value.mark(Mark::Chosen);
                }
                value.affinity = Affinity::common(affinities);
                let shown = shown.iter().map(|columns| columns[at].as_ref());
                value.harmless =
                    shown.clone().all(|column| column.is_some_and(|column| column.harmless));
                value.collates_within = output.value.has_collation();
                value
            })
            .collect();
        let key =
            query.rows_key(self).map(|key| key.iter().map(|at| values[*at].clone()).collect());
        core.from.push(FromTerm {
            source: None,
            derived: Some(Box::new(Derived { alias, number, query, top_n })),
            number: Some(number),
            item: Fragment::new(),
            join: place.join,
            on: Vec::new(),
            key,
        });
        Ok(values)
    }

    /// Returns the table columns that each SELECT of a subquery in FROM outputs.
    pub(crate) fn shown_by(&self, query: &Query) -> Vec<Vec<Option<Fragment>>> {
        let shown = query.cores.iter().map(|(_, core)| {
            let parts = core.parts();
            let columns = core.outputs.iter().enumerate().map(|(at, output)| {
                let value = &output.value;
                let plain = matches!(value.plain, PlainExpr::Column(..) | PlainExpr::Derived(..));
                let own = parts.as_ref().is_none_or(|parts| parts.contains(value));
                let stays = query.limit.is_none()
                    && value.collation.is_none()
                    && self.common_kind(query, at).is_some();
                (plain && own && stays).then(|| value.clone())
            });
            columns.collect()
        });
        shown.collect()
    }

    /// Returns the kind of an output that all SELECTs of a query agree on.
    fn common_kind(&self, query: &Query, output: usize) -> Option<Kind> {
        common(query.cores.iter().map(|(_, core)| self.kind_of(&core.outputs[output].value)))
    }

    /// Adds a source, under its own name if that is unused.
    fn add_source(&mut self, table: usize, name: &str) -> Result<usize, Refusal> {
        if self.sources.len() >= SOURCES {
            let detail = format!("the query reads more than {SOURCES} tables");
            return Err(Refusal::new(Code::LimitExceeded, detail));
        }
        let alias = self.unique_alias(name);
        self.sources.push(Source { table, alias, is_named: false });
        Ok(self.sources.len() - 1)
    }

    fn next_number(&mut self) -> usize {
        self.subqueries += 1;
        self.subqueries - 1
    }

    fn unique_alias(&mut self, name: &str) -> String {
        let mut alias = name.to_owned();
        let mut number = 1;
        loop {
            // A source uses one of these names in each form. None may belong to another source.
            let names = ["", "d_", "was_", "given_"]
                .map(|form| format!("{form}{alias}").to_ascii_lowercase());
            if names.iter().all(|name| !self.aliases_taken.contains(name)) {
                self.aliases_taken.extend(names);
                return alias;
            }
            number += 1;
            alias = format!("{name}_{number}");
        }
    }
}

impl Query {
    /// Returns `true` if it only filters and projects an inner join, so that the enclosing query can take over its
    /// tables and conditions.
    fn can_be_inlined(&self) -> bool {
        let [(_, core)] = self.cores.as_slice() else { return false };
        let is_inner_join = core.from.iter().all(|term| term.join == Join::Inner);
        // If it were inlined, an output without a column of this SELECT would become one of an enclosing query.
        let has_fixed_output = core
            .outputs
            .iter()
            .any(|output| output.value.fixed && !output.value.is_flat_constant());
        is_inner_join
            && !core.from.is_empty()
            && !has_fixed_output
            && !core.distinct
            && !core.aggregates()
            && !core.windows()
            && self.limit.is_none()
    }
}

/// Returns the conjunction of all conditions that make the rows of these terms visible; `None` if
/// there are none.
fn guard_of(terms: &[FromTerm], conditions: &[Conjunct]) -> Option<VisibilityGuard> {
    let mut condition = Fragment::new();
    for (at, conjunct) in conditions.iter().enumerate() {
        condition.push_text(if at > 0 { "AND (" } else { "(" });
        condition.push(&conjunct.condition);
        condition.push_text(")");
    }
    let sources = terms.iter().filter_map(|term| term.source).collect();
    (!conditions.is_empty()).then_some(VisibilityGuard { sources, condition })
}

/// `true` if an index or its condition names a column, or the column holds one of a few declared
/// words.
fn is_indexed(table: &TableSpec, at: usize) -> bool {
    let column = &table.columns[at];
    table.key.contains(&at)
        || column.unique
        || !column.one_of.is_empty()
        || table.indexes.iter().any(|index| {
            let mut columns = index.columns.iter();
            let mut words = index.words();
            columns.any(|name| name.eq_ignore_ascii_case(column.name))
                || words.any(|word| word.eq_ignore_ascii_case(column.name))
        })
}

/// An item of FROM and the items joined to it.
#[derive(Clone, Copy)]
struct Joins<'e, 'b> {
    first: &'e SelectTable<'b>,
    rest: &'e [JoinedSelectTable<'b>],
}

impl<'e, 'b> Joins<'e, 'b> {
    /// Returns the items of a FROM clause; `None` if it has none.
    fn from_clause(from: &'e FromClause<'b>) -> Option<Joins<'e, 'b>> {
        Some(Joins { first: from.select?, rest: from.joins.as_deref().unwrap_or(&[]) })
    }
}

fn common_columns(scope: &Scope) -> Vec<String> {
    let Some((last, before)) = scope.entries.split_last() else { return Vec::new() };
    last.columns
        .iter()
        .map(|(name, _)| name)
        .filter(|name| before.iter().any(|entry| entry.find(name).is_some()))
        .cloned()
        .collect()
}

fn alias_name(alias: &As) -> String {
    let (As::As(name) | As::Elided(name)) = alias;
    unquote(name.0)
}

/// A SELECT as text.
struct AsText<'a, 'b>(&'a Select<'b>);

impl std::fmt::Display for AsText<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.to_fmt(f)
    }
}
