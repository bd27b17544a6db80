//! FROM: one to five tables with every kind of join, including views, CTEs and subqueries.

use abide_schema::table::Kind;

use super::{Grammar, NESTED, Scope, Source};
use crate::proof::tree::{Sql, Term, clause, commas, maybe, seq, value};

impl Grammar<'_> {
    /// A FROM with one of these numbers of tables.
    pub(super) fn from(&mut self, outer: &[Source], counts: &[usize]) -> (Sql, Scope) {
        let count = self.pick(counts);
        let mut scope = Scope { own: Vec::new(), outer: outer.to_vec() };
        let mut terms = Vec::new();
        for at in 0..count {
            let (item, source) = self.item(outer);
            let (join, on) = if at == 0 {
                (Sql::Word("", ""), maybe(None))
            } else {
                self.join(&mut scope, &source)
            };
            terms.push(Term { join, item, alias: source.alias.clone(), on });
            scope.own.push(source);
        }
        (Sql::From(terms), scope)
    }

    fn item(&mut self, outer: &[Source]) -> (Sql, Source) {
        self.aliases += 1;
        let alias = format!("t{}", self.aliases);
        if self.nested < NESTED && self.one_in(12) {
            let (sql, columns) = self.nest(|grammar| grammar.derived(outer));
            let item = seq!["(", sql, ") AS ", alias.as_str()];
            return (item, Source { alias, columns, key: Vec::new() });
        }
        if !self.ctes.is_empty() && self.one_in(2) {
            let cte = self.random.pick(&self.ctes).clone();
            let item = format!("{} AS {alias}", cte.alias);
            return (item.into(), Source { alias, columns: cte.columns, key: Vec::new() });
        }
        if !self.schema.views.is_empty() && self.one_in(6) {
            let (name, sql) = *self.random.pick(&self.schema.views);
            let columns = view_columns(sql);
            return (
                format!("{name} AS {alias}").into(),
                Source { alias, columns, key: Vec::new() },
            );
        }
        let table = *self.random.pick(&self.schema.tables);
        let columns = table.columns.iter().map(|column| (column.name.to_owned(), column.kind));
        let key = table.key.iter().map(|at| table.columns[*at].name.to_owned());
        let source =
            Source { alias: alias.clone(), columns: columns.collect(), key: key.collect() };
        (format!("{} AS {alias}", table.name).into(), source)
    }

    /// The join of a table to the preceding ones.
    fn join(&mut self, scope: &mut Scope, right: &Source) -> (Sql, Sql) {
        let common = right.columns.iter().find(|(name, _)| {
            scope
                .own
                .iter()
                .filter(|left| left.columns.iter().any(|(other, _)| other == name))
                .count()
                == 1
        });
        let small = scope.own.len() < 3;
        match self.random.below(20) {
            0..=7 => (" JOIN ".into(), self.on(scope, right)),
            8..=12 => (Sql::Word(" LEFT JOIN ", " JOIN "), self.on(scope, right)),
            13 => (Sql::Word(" RIGHT JOIN ", " JOIN "), self.on(scope, right)),
            14 => (Sql::Word(" FULL JOIN ", " LEFT JOIN "), self.on(scope, right)),
            15 if small => (Sql::Word(" CROSS JOIN ", " JOIN "), maybe(None)),
            16 if small => (Sql::Word(", ", " JOIN "), maybe(None)),
            17 if common.is_some() => {
                let name = common.map(|(name, _)| name.clone()).unwrap_or_default();
                let join = self.pick(&[" JOIN ", " LEFT JOIN "]);
                (Sql::Word(join, " JOIN "), clause(" USING (", "", vec![seq![name, ")"]]))
            }
            18 if common.is_some() && scope.own.len() == 1 => {
                let join = self.pick(&[" NATURAL JOIN ", " NATURAL LEFT JOIN "]);
                (Sql::Word(join, " JOIN "), maybe(None))
            }
            _ => (" JOIN ".into(), self.on(scope, right)),
        }
    }

    /// An equality between the table and a preceding one, and sometimes more conditions.
    fn on(&mut self, scope: &Scope, right: &Source) -> Sql {
        let kinds: Vec<Kind> = right.columns.iter().map(|(_, kind)| *kind).collect();
        let own = Scope { own: scope.own.clone(), outer: Vec::new() };
        let here = Scope { own: vec![right.clone()], outer: Vec::new() };
        let mut conditions = Vec::new();
        if let Some((left, kind)) = self.column_and_kind(&own, &kinds) {
            // Sometimes of another kind: '1' = 1.
            let of = if self.one_in(8) { kinds.clone() } else { vec![kind] };
            if let Some(column) = self.column(&here, &of) {
                let comparison = self.pick(&[" = ", " = ", " = ", " = ", " = ", " IS ", " < "]);
                let sides = if self.one_in(2) { (left, column) } else { (column, left) };
                conditions.push(value![sides.0, comparison, sides.1]);
            }
        }
        if conditions.is_empty() || self.one_in(4) {
            let mut all = scope.clone();
            all.own.push(right.clone());
            conditions.push(self.condition(&all, 1));
        }
        clause(" ON ", " AND ", conditions)
    }

    /// A subquery for FROM, and its columns.
    pub(super) fn derived(&mut self, outer: &[Source]) -> (Sql, Vec<(String, Kind)>) {
        // A subquery in FROM does not see its neighbours, only enclosing queries.
        let (from, scope) = self.from(outer, &[1, 1, 1, 2]);
        let filter = self.filter(&scope);
        let kinds = [Kind::Integer, Kind::Text, Kind::Real];
        let names = ["a", "b", "c"];
        let count = 1 + self.random.below(3);
        let mut columns = Vec::new();
        let mut shown = Vec::new();
        let mut groups = Vec::new();
        let form = self.random.below(8);
        for name in &names[..count] {
            let kind = self.pick(&kinds);
            let plain = self.column_and_kind(&scope, &[kind]);
            let by = plain.map(|(column, _)| column).unwrap_or_else(|| self.number(&scope, 0));
            let aggregate = form == 0 && shown.len() + 1 == count;
            if aggregate {
                shown.push(seq!["count(*) AS ", *name]);
                columns.push(((*name).to_owned(), Kind::Integer));
                continue;
            }
            groups.push(by.clone());
            shown.push(seq![by, " AS ", *name]);
            columns.push(((*name).to_owned(), kind));
        }
        let word = if form == 1 { "SELECT DISTINCT " } else { "SELECT " };
        // Other parts name these columns, so none may be removed.
        let list = shown.len();
        let shown = crate::proof::tree::List {
            open: "",
            between: ", ",
            close: "",
            least: list,
            items: shown,
        };
        let group = if form == 0 { clause(" GROUP BY ", ", ", groups) } else { maybe(None) };
        let more = if form == 2 && outer.is_empty() {
            let (from, scope) = self.from(&[], &[1]);
            let again: Vec<Sql> =
                columns.iter().map(|(_, kind)| self.of_kind(&scope, *kind, 0)).collect();
            maybe(Some(seq![" UNION ALL SELECT ", commas(again), from]))
        } else {
            maybe(None)
        };
        (seq![word, Sql::List(shown), from, filter, group, more], columns)
    }
}

/// The columns of a view, which are all written `… AS a`.
fn view_columns(sql: &str) -> Vec<(String, Kind)> {
    let list = sql.split(" FROM ").next().unwrap_or(sql);
    let names = ["a", "b", "c"].into_iter();
    let named = names.filter(|name| list.contains(&format!(" AS {name}")));
    named.map(|name| (name.to_owned(), Kind::Integer)).collect()
}
