//! A whole query, resolved: what it reads, what must hold, what it shows and in which order.

use abide_schema::wire::{Column, OrderTerm, Shape};
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{
    As, Distinctness, Expr, FromClause, NullsOrder, OneSelect, ResultColumn, Select, SelectTable,
    SortOrder, SortedColumn,
};

use crate::fragment::{Collation, Fragment, Plain, Source};
use crate::lower::{Conjunct, Entry, Lower, Scope, Slot, require_main, unquote, unsupported};

/// A column of the result.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) value: Fragment,
    pub(crate) name: String,
    /// Set on columns that only carry the order.
    pub(crate) hidden: bool,
}

/// A term of the order, as a position among the outputs.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) output: usize,
    pub(crate) desc: bool,
    pub(crate) nulls_last: bool,
    pub(crate) collation: Collation,
}

/// A resolved query.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// The sources of the whole statement.
    pub(crate) sources: Vec<Source>,
    /// Those of the outermost FROM.
    pub(crate) from: Vec<usize>,
    /// What must hold.
    pub(crate) filter: Vec<Conjunct>,
    /// What is shown, hidden columns last.
    pub(crate) outputs: Vec<Output>,
    /// In which order.
    pub(crate) order: Vec<Order>,
    /// The outputs that tell rows apart; empty where none do.
    pub(crate) key: Vec<usize>,
    /// The parameters.
    pub(crate) slots: Vec<Slot>,
}

impl Query {
    /// Resolves a SELECT. `written` is how its columns are written.
    pub(crate) fn resolve(
        mut lower: Lower,
        select: &Select,
        written: &[String],
    ) -> Result<Query, Refusal> {
        if select.with.is_some() {
            return Err(unsupported("a query with WITH"));
        }
        if select.body.compounds.is_some() {
            return Err(unsupported("a compound query"));
        }
        if select.limit.is_some() {
            return Err(unsupported("a query with LIMIT"));
        }
        let OneSelect::Select {
            distinctness,
            columns,
            from,
            where_clause,
            group_by,
            having,
            window_clause,
        } = &select.body.select
        else {
            return Err(unsupported("a query of VALUES"));
        };
        if *distinctness == Some(Distinctness::Distinct) {
            return Err(unsupported("a query with DISTINCT"));
        }
        if group_by.is_some() || having.is_some() {
            return Err(unsupported("a query with GROUP BY"));
        }
        if window_clause.is_some() {
            return Err(unsupported("a query with WINDOW"));
        }
        let mut query = Query::default();
        let mut scope = Scope::default();
        query.read_from(&mut lower, from.as_ref(), &mut scope)?;
        query.read_columns(&mut lower, columns, written, &mut scope)?;
        if let Some(condition) = where_clause {
            query.filter = lower.conjuncts(condition, &scope)?;
        }
        query.read_order(&mut lower, select.order_by.unwrap_or(&[]), &scope)?;
        query.sources = lower.sources;
        query.slots = lower.slots;
        query.find_key(lower.catalog);
        Ok(query)
    }

    fn read_from(
        &mut self,
        lower: &mut Lower,
        from: Option<&FromClause>,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let Some(table) = from.and_then(|from| from.select) else {
            return Err(unsupported("a query that reads no table"));
        };
        if from.is_some_and(|from| from.joins.is_some()) {
            return Err(unsupported("a join"));
        }
        let entry = self.read_table(lower, table)?;
        scope.entries.push(entry);
        Ok(())
    }

    fn read_table(&mut self, lower: &mut Lower, table: &SelectTable) -> Result<Entry, Refusal> {
        let (name, alias) = match table {
            SelectTable::Table(name, alias, None) => (name, alias.as_ref()),
            SelectTable::Table(..) => return Err(unsupported("a query with INDEXED BY")),
            SelectTable::TableCall(..) => return Err(unsupported("a table-valued function")),
            SelectTable::Select(..) | SelectTable::Sub(..) => {
                return Err(unsupported("a subquery in FROM"));
            }
        };
        if let Some(schema) = &name.db_name {
            require_main(schema.0)?;
        }
        let table_name = unquote(name.name.0);
        let Some(table) = lower.catalog.find(&table_name) else {
            return Err(Refusal::new(Code::BadSql, format!("no such table: {table_name}"))
                .hint("GET /v1/schema lists the tables"));
        };
        let alias = alias.map(|(As::As(name) | As::Elided(name))| unquote(name.0));
        let name = alias.unwrap_or(table_name);
        let source = lower.add_source(table, &name);
        self.from.push(source);
        let columns = lower.catalog.table(table).columns.iter().enumerate();
        Ok(Entry {
            name,
            columns: columns
                .map(|(at, column)| (column.name.to_owned(), Fragment::column(source, at)))
                .collect(),
            rowid: lower.catalog.rowid_column(table).map(|at| Fragment::column(source, at)),
        })
    }

    fn read_columns(
        &mut self,
        lower: &mut Lower,
        columns: &[ResultColumn],
        written: &[String],
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        for (at, column) in columns.iter().enumerate() {
            match column {
                ResultColumn::Star => self.expand(scope, None)?,
                ResultColumn::TableStar(table) => self.expand(scope, Some(&unquote(table.0)))?,
                ResultColumn::Expr(expr, alias) => {
                    let value = lower.expr(expr, scope)?;
                    let alias =
                        alias.as_ref().map(|(As::As(name) | As::Elided(name))| unquote(name.0));
                    let name = match (&alias, value.plain) {
                        (Some(alias), _) => alias.clone(),
                        (None, Plain::Column(source, column)) if value.collation.is_none() => {
                            let table = lower.catalog.table(lower.sources[source].table);
                            table.columns[column].name.to_owned()
                        }
                        _ => {
                            written.get(at).cloned().unwrap_or_else(|| format!("column{}", at + 1))
                        }
                    };
                    if let Some(alias) = alias {
                        scope.aliases.push((alias, value.clone()));
                    }
                    self.outputs.push(Output { value, name, hidden: false });
                }
            }
        }
        Ok(())
    }

    fn expand(&mut self, scope: &Scope, table: Option<&str>) -> Result<(), Refusal> {
        let mut entries = scope
            .entries
            .iter()
            .filter(|entry| table.is_none_or(|table| entry.name.eq_ignore_ascii_case(table)))
            .peekable();
        if entries.peek().is_none() {
            let detail = format!("no such table: {}", table.unwrap_or("*"));
            return Err(Refusal::new(Code::BadSql, detail));
        }
        for (name, value) in entries.flat_map(|entry| &entry.columns) {
            self.outputs.push(Output { value: value.clone(), name: name.clone(), hidden: false });
        }
        Ok(())
    }

    /// Resolves ORDER BY as SQLite does: a number is a position, a name first an alias, and an
    /// expression that is selected means that column. The rest becomes hidden columns.
    fn read_order(
        &mut self,
        lower: &mut Lower,
        terms: &[SortedColumn],
        scope: &Scope,
    ) -> Result<(), Refusal> {
        let visible = self.outputs.len();
        for (at, term) in terms.iter().enumerate() {
            let (bare, stated) = without_collation(&term.expr)?;
            let alias = match bare {
                Expr::Id(id) => self.aliased(id.0, scope),
                Expr::Name(name) => self.aliased(name.0, scope),
                _ => None,
            };
            let output = if let Some(position) = bare.is_integer() {
                let position = usize::try_from(position).ok().filter(|n| (1..=visible).contains(n));
                position.map(|n| n - 1).ok_or_else(|| out_of_range(at, visible))?
            } else if let Some(alias) = alias {
                alias
            } else {
                let value = lower.expr(bare, scope)?;
                self.output_of(value)
            };
            let value = &self.outputs[output].value;
            let collation = stated.or(value.collation);
            if collation.is_none() && value.collates_within {
                return Err(unsupported("an order by an expression with COLLATE inside")
                    .hint("write COLLATE at the end of the ORDER BY term"));
            }
            let desc = term.order == Some(SortOrder::Desc);
            self.order.push(Order {
                output,
                desc,
                nulls_last: term.nulls.as_ref().map_or(desc, |nulls| *nulls == NullsOrder::Last),
                collation: collation.unwrap_or(Collation::Binary),
            });
        }
        Ok(())
    }

    fn aliased(&self, name: &str, scope: &Scope) -> Option<usize> {
        let name = unquote(name);
        let (_, value) =
            scope.aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(&name))?;
        self.outputs
            .iter()
            .position(|output| output.name.eq_ignore_ascii_case(&name) && output.value == *value)
    }

    fn output_of(&mut self, value: Fragment) -> usize {
        let found = self.outputs.iter().position(|output| output.value == value);
        found.unwrap_or_else(|| {
            let name = format!("order{}", self.order.len() + 1);
            self.outputs.push(Output { value, name, hidden: true });
            self.outputs.len() - 1
        })
    }

    /// The primary key, where all of it is shown as it is and under names of its own.
    fn find_key(&mut self, catalog: &crate::catalog::Catalog) {
        let mut key = Vec::new();
        for source in &self.from {
            let table = catalog.table(self.sources[*source].table);
            for column in table.key {
                let shown = self.outputs.iter().position(|output| {
                    output.value.plain == Plain::Column(*source, *column) && !output.hidden
                });
                match shown {
                    Some(at) if !table.columns[*column].nullable && self.is_first_of_name(at) => {
                        key.push(at);
                    }
                    _ => return,
                }
            }
        }
        self.key = key;
    }

    fn is_first_of_name(&self, at: usize) -> bool {
        let name = &self.outputs[at].name;
        self.outputs.iter().position(|output| output.name == *name) == Some(at)
    }

    /// The shape that clients see.
    pub(crate) fn shape(&self, catalog: &crate::catalog::Catalog) -> Shape {
        let kind = |output: &Output| match output.value.plain {
            Plain::Column(source, column) => {
                catalog.table(self.sources[source].table).columns[column].kind.sql().to_owned()
            }
            _ => String::new(),
        };
        Shape {
            columns: self
                .outputs
                .iter()
                .map(|output| Column {
                    name: output.name.clone(),
                    kind: kind(output),
                    hidden: output.hidden,
                })
                .collect(),
            key: self.key.iter().map(|at| self.outputs[*at].name.clone()).collect(),
            order: self
                .order
                .iter()
                .map(|term| OrderTerm {
                    column: self.outputs[term.output].name.clone(),
                    index: term.output,
                    desc: term.desc,
                    nulls: if term.nulls_last { "last" } else { "first" }.to_owned(),
                    collation: term.collation.sql().to_owned(),
                })
                .collect(),
        }
    }
}

impl Lower<'_> {
    /// Adds a source, under its own name where no other source has that.
    pub(crate) fn add_source(&mut self, table: usize, name: &str) -> usize {
        let taken = |alias: &str| {
            self.sources.iter().any(|source| source.alias.eq_ignore_ascii_case(alias))
        };
        let mut alias = name.to_owned();
        let mut number = 1;
        while taken(&alias) {
            number += 1;
            alias = format!("{name}_{number}");
        }
        self.sources.push(Source { table, alias });
        self.sources.len() - 1
    }
}

/// An ORDER BY term without the COLLATE at its end.
fn without_collation<'e, 'b>(
    expr: &'e Expr<'b>,
) -> Result<(&'e Expr<'b>, Option<Collation>), Refusal> {
    let (mut bare, mut collation) = (expr, None);
    loop {
        match bare {
            Expr::Collate(inner, name) => {
                let name = unquote(name);
                let found = Collation::parse(&name).ok_or_else(|| {
                    Refusal::new(Code::BadSql, format!("no such collation sequence: {name}"))
                })?;
                collation = collation.or(Some(found));
                bare = inner;
            }
            Expr::Parenthesized(items) if items.len() == 1 => bare = &items[0],
            _ => return Ok((bare, collation)),
        }
    }
}

fn out_of_range(at: usize, columns: usize) -> Refusal {
    let suffix = match (at + 1) % 10 {
        1 if at != 10 => "st",
        2 if at != 11 => "nd",
        3 if at != 12 => "rd",
        _ => "th",
    };
    let ordinal = at + 1;
    Refusal::new(
        Code::BadSql,
        format!("{ordinal}{suffix} ORDER BY term out of range - should be between 1 and {columns}"),
    )
}

impl Query {
    /// Gives the slots new numbers: the n-th of `order` becomes n.
    pub(crate) fn renumber(&mut self, order: &[usize]) {
        let new = |slot: usize| {
            order.iter().position(|old| *old == slot).expect("every slot is in the snapshot")
        };
        let fragments = self
            .filter
            .iter_mut()
            .map(|conjunct| &mut conjunct.condition)
            .chain(self.outputs.iter_mut().map(|output| &mut output.value));
        for fragment in fragments {
            fragment.renumber(&new);
        }
        for conjunct in &mut self.filter {
            conjunct.route.renumber(&new);
        }
        self.slots = order.iter().map(|slot| self.slots[*slot].clone()).collect();
    }
}
