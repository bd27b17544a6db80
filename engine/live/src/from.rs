//! FROM: tables, joins, and the views, CTEs and subqueries that are put in the place of their names.

use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::fmt::ToTokens;
use sqlite3_parser::ast::{
    As, Cmd, FromClause, JoinConstraint, JoinOperator, JoinType, Name, Select, SelectTable, Stmt,
    With,
};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use crate::core::{Core, Frame, Output};
use crate::fragment::{Fragment, Source, quoted};
use crate::lex;
use crate::lower::{Conjunct, Entry, Lower, Scope, require_main, unquote, unsupported};
use crate::select::Query;

/// Tables that one statement may read, each mention counted: views of views multiply.
const SOURCES: usize = 60;

/// How a term of FROM is joined to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// JOIN, CROSS JOIN, comma.
    Inner,
    /// LEFT JOIN: this term may be all NULL.
    Left,
    /// RIGHT JOIN: those before it may be all NULL.
    Right,
    /// FULL JOIN: both.
    Full,
}

/// A term of FROM.
#[derive(Clone, Debug)]
pub(crate) struct FromTerm {
    /// The table, if it is one.
    pub(crate) source: Option<usize>,
    /// As SQL.
    pub(crate) item: Fragment,
    pub(crate) join: Join,
    /// The condition of a join that is not inner.
    pub(crate) on: Vec<Conjunct>,
}

impl Join {
    /// The keyword.
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Join::Inner => "JOIN",
            Join::Left => "LEFT JOIN",
            Join::Right => "RIGHT JOIN",
            Join::Full => "FULL JOIN",
        }
    }

    /// Whether rows of this term stay where nothing before it fits them.
    pub(crate) fn keeps_right(self) -> bool {
        matches!(self, Join::Right | Join::Full)
    }
}

impl FromTerm {
    /// Every fragment of it.
    pub(crate) fn fragments(&mut self) -> impl Iterator<Item = &mut Fragment> {
        let on = self.on.iter_mut().map(|conjunct| &mut conjunct.condition);
        std::iter::once(&mut self.item).chain(on)
    }
}

/// How an item of FROM is to be read.
#[derive(Clone, Copy)]
struct Place<'a> {
    alias: &'a str,
    join: Join,
    /// Whether a simple query may be put in the place of its name.
    inline: bool,
}

/// A view or CTE: a text under a name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    name: String,
    columns: Vec<String>,
    sql: String,
}

impl Lower<'_> {
    /// Makes the CTEs of a WITH known; the answer goes to [`Lower::leave_with`].
    pub(crate) fn enter_with(&mut self, with: Option<&With>) -> Result<usize, Refusal> {
        let before = self.named_queries.len();
        for cte in with.map_or(&[][..], |with| with.ctes) {
            let columns = cte.columns.unwrap_or(&[]);
            self.named_queries.push(Named {
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
        core: &mut Core,
        from: &FromClause,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let joins = from.joins.as_deref().unwrap_or(&[]);
        let kinds: Vec<JoinKind> = joins.iter().map(|join| join_kind(join.operator)).collect();
        let outer = kinds.iter().any(|kind| kind.join.keeps_right());
        let Some(first) = from.select else { return Ok(()) };
        let place = Place { alias: "", join: Join::Inner, inline: !outer };
        self.read_item(core, first, place, scope)?;
        for (join, kind) in joins.iter().zip(kinds) {
            let inline = kind.join == Join::Inner && !outer;
            let place = Place { alias: "", join: kind.join, inline };
            self.read_item(core, &join.table, place, scope)?;
            let on = self.read_constraint(join.constraint.as_ref(), kind, scope)?;
            if inline {
                core.filter.extend(on);
            } else {
                let term = core.from.last_mut().expect("an item was just read");
                term.on = on;
            }
        }
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
        if kind.join.keeps_right() {
            return Err(unsupported("USING with RIGHT or FULL JOIN").hint("write ON instead"));
        }
        let (last, before) = scope.entries.split_last_mut().expect("an item was just read");
        let mut conjuncts = Vec::new();
        for name in names {
            let left = before.iter().find_map(|entry| {
                entry
                    .find(&name)
                    .filter(|_| !entry.is_merged(&name))
                    .map(|(_, value)| value.clone())
            });
            let right = last.find(&name).map(|(_, value)| value.clone());
            let (Some(left), Some(right)) = (left, right) else {
                let detail =
                    format!("cannot join using column {name} - column not present in both tables");
                return Err(Refusal::new(Code::BadSql, detail));
            };
            conjuncts.push(Conjunct::equal_columns(&left, &right));
            last.merged.push(name);
        }
        Ok(conjuncts)
    }

    fn read_item(
        &mut self,
        core: &mut Core,
        table: &SelectTable,
        place: Place,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        match table {
            SelectTable::Table(name, alias, None) => {
                if let Some(schema) = &name.db_name {
                    require_main(schema.0)?;
                }
                let table_name = unquote(name.name.0);
                let alias = alias.as_ref().map_or_else(|| table_name.clone(), alias_name);
                let place = Place { alias: &alias, ..place };
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
                        Named { name: table_name, columns: Vec::new(), sql: sql.to_owned() };
                    // A view sees no CTE of the query that uses it.
                    let around = std::mem::replace(&mut self.named_queries, vec![named]);
                    let result = self.read_named(core, 0, place, scope);
                    self.named_queries = around;
                    return result;
                }
                self.read_table(core, &table_name, place, scope)
            }
            SelectTable::Table(..) => Err(unsupported("a query with INDEXED BY")),
            SelectTable::TableCall(..) => Err(unsupported("a table-valued function")),
            SelectTable::Select(select, alias) => {
                let alias = alias.as_ref().map_or_else(String::new, alias_name);
                self.read_derived(core, select, (&[], &[]), Place { alias: &alias, ..place }, scope)
            }
            SelectTable::Sub(..) => Err(unsupported("a join in parentheses")),
        }
    }

    fn read_table(
        &mut self,
        core: &mut Core,
        table_name: &str,
        place: Place,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let Some(table) = self.catalog.find(table_name) else {
            return Err(Refusal::new(Code::BadSql, format!("no such table: {table_name}"))
                .hint("GET /v1/schema lists the tables"));
        };
        let source = self.add_source(table, place.alias)?;
        let columns = self.catalog.table(table).columns.iter().enumerate();
        let columns = columns
            .map(|(at, column)| (column.name.to_owned(), Fragment::column(source, at)))
            .collect();
        let rowid = self.catalog.rowid_column(table).map(|at| Fragment::column(source, at));
        let name = place.alias.to_owned();
        scope.entries.push(Entry { name, columns, rowid, merged: Vec::new() });
        core.from.push(FromTerm {
            source: Some(source),
            item: Fragment::source(source),
            join: place.join,
            on: Vec::new(),
        });
        Ok(())
    }

    /// A view or CTE is read again wherever it is named.
    fn read_named(
        &mut self,
        core: &mut Core,
        at: usize,
        place: Place,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let named = self.named_queries[at].clone();
        let written = lex::columns_as_written(&named.sql)?;
        let bump = Bump::new();
        let mut parser = Parser::new(&bump, named.sql.as_bytes());
        let command = parser.next().map_err(|error| lex::refusal(&named.sql, &error))?;
        let Some(Cmd::Stmt(Stmt::Select(select))) = &command else {
            return Err(Refusal::new(Code::BadSql, format!("{} is no SELECT", named.name)));
        };
        // It sees those before it. One that names itself is recursive, and then not found here.
        let after = self.named_queries.split_off(at);
        let result = self.read_derived(core, select, (&written, &named.columns), place, scope);
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
        core: &mut Core,
        select: &Select,
        (written, names): (&[String], &[String]),
        place: Place,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let alias = place.alias;
        let apart = Frame { depth: self.frame.depth, ..Frame::default() };
        let frame = std::mem::replace(&mut self.frame, apart);
        let outer = scope.outer.cloned().unwrap_or_default();
        let derived = self.deeper(|lower| lower.select(select, written, &outer));
        let apart = std::mem::replace(&mut self.frame, frame);
        self.frame.named |= apart.named;
        let derived = derived?;
        let visible = derived.outputs().iter().filter(|output| !output.hidden);
        let mut columns: Vec<(String, Fragment)> =
            visible.map(|output| (output.name.clone(), output.value.clone())).collect();
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
        if place.inline && derived.is_simple() {
            let (_, simple) = derived.cores.into_iter().next().expect("a query has a core");
            core.filter.extend(simple.filter);
            core.from.extend(simple.from);
        } else {
            let unique = self.unique_alias(if alias.is_empty() { "sub" } else { alias });
            let item = derived.as_item(&unique)?;
            for (at, (_, value)) in columns.iter_mut().enumerate() {
                *value = Fragment::derived(&unique, &format!("c{}", at + 1), value);
            }
            let on = Vec::new();
            core.from.push(FromTerm { source: None, item, join: place.join, on });
        }
        let name = alias.to_owned();
        scope.entries.push(Entry { name, columns, rowid: None, merged: Vec::new() });
        Ok(())
    }

    /// Adds a source, under its own name where no other source has that.
    fn add_source(&mut self, table: usize, name: &str) -> Result<usize, Refusal> {
        if self.sources.len() >= SOURCES {
            let detail = format!("the query reads more than {SOURCES} tables");
            return Err(Refusal::new(Code::LimitExceeded, detail));
        }
        let alias = self.unique_alias(name);
        self.sources.push(Source { table, alias });
        Ok(self.sources.len() - 1)
    }

    fn unique_alias(&mut self, name: &str) -> String {
        let mut alias = name.to_owned();
        let mut number = 1;
        loop {
            // A source goes by one of these, depending on what it stands for: none may be another's.
            let names = ["", "d_", "was_", "given_"].map(|form| format!("{form}{alias}"));
            let names = names.map(|name| name.to_ascii_lowercase());
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
    /// Whether it only filters and projects an inner join, and so can be put in the place of its name.
    fn is_simple(&self) -> bool {
        let [(_, core)] = self.cores.as_slice() else { return false };
        let inner = core.from.iter().all(|term| term.join == Join::Inner);
        // What is a column of it must not become one of a query around it.
        let around = |output: &Output| output.value.fixed && !output.value.is_flat_constant();
        inner
            && !core.from.is_empty()
            && !core.outputs.iter().any(around)
            && !core.distinct
            && !core.aggregates()
            && self.limit.is_none()
    }

    /// As a subquery in FROM, its columns named c1, c2, …
    fn as_item(&self, alias: &str) -> Result<Fragment, Refusal> {
        if self.limit.is_some() {
            return Err(unsupported("LIMIT in a subquery of FROM"));
        }
        let mut query = self.clone();
        for (_, core) in &mut query.cores {
            core.outputs.retain(|output| !output.hidden);
            for (at, output) in core.outputs.iter_mut().enumerate() {
                output.name = format!("c{}", at + 1);
            }
        }
        let mut out = Fragment::text("(");
        out.push(&query.body(&[]));
        out.push_text(&format!(") AS {}", quoted(alias)));
        Ok(out)
    }
}

#[derive(Clone, Copy)]
struct JoinKind {
    join: Join,
    natural: bool,
}

fn join_kind(operator: JoinOperator) -> JoinKind {
    let JoinOperator::TypedJoin(Some(kind)) = operator else {
        return JoinKind { join: Join::Inner, natural: false };
    };
    let join = match (kind.contains(JoinType::LEFT), kind.contains(JoinType::RIGHT)) {
        (true, true) => Join::Full,
        (false, true) => Join::Right,
        (true, false) => Join::Left,
        (false, false) => Join::Inner,
    };
    JoinKind { join, natural: kind.contains(JoinType::NATURAL) }
}

fn common_columns(scope: &Scope) -> Vec<String> {
    let Some((last, before)) = scope.entries.split_last() else { return Vec::new() };
    let names = last.columns.iter().map(|(name, _)| name);
    names.filter(|name| before.iter().any(|entry| entry.find(name).is_some())).cloned().collect()
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
