//! Conditions, with and without use for the router, and subqueries.

use abide_schema::table::Kind;

use super::{Fidelity, Grammar, NESTED, Scope, Source};
use crate::proof::tree::{List, Sql, clause, commas, maybe, seq, value};

const ALL: &[Kind] = &[Kind::Integer, Kind::Real, Kind::Text, Kind::Blob];
const COMPARISONS: &[&str] =
    &[" = ", " = ", " <> ", " < ", " <= ", " > ", " >= ", " IS ", " IS NOT "];

impl Grammar<'_> {
    /// The conditions of a WHERE, each of which may be removed.
    pub(super) fn filter(&mut self, scope: &Scope) -> Sql {
        let count = self.pick(&[0, 0, 1, 1, 1, 2, 2, 3]);
        clause(" WHERE ", " AND ", (0..count).map(|_| self.condition(scope, 2)).collect())
    }

    /// True, false or unknown.
    pub(super) fn condition(&mut self, scope: &Scope, depth: usize) -> Sql {
        if depth > 0 {
            let deeper = depth - 1;
            match self.random.below(16) {
                0 => {
                    let items = (0..2 + self.random.below(2))
                        .map(|_| self.condition(scope, deeper))
                        .collect();
                    let between = self.pick(&[" OR ", " OR ", " AND "]);
                    return value![List { open: "(", between, close: ")", least: 1, items }];
                }
                1 => return value!["NOT ", self.condition(scope, deeper)],
                2 | 3 if self.nested < NESTED => {
                    return self.nest(|grammar| grammar.subquery(scope));
                }
                4 => {
                    let one = self.number(scope, depth);
                    let two = self.number(scope, depth);
                    return value![one, self.pick(COMPARISONS), two];
                }
                5 => {
                    let one = self.text(scope, depth);
                    let two = self.text(scope, depth);
                    return value![one, self.pick(COMPARISONS), two];
                }
                6 => return value![self.number(scope, depth)],
                _ => {}
            }
        }
        self.simple_condition(scope)
    }

    /// A condition on one or two columns.
    fn simple_condition(&mut self, scope: &Scope) -> Sql {
        let Some((column, kind)) = self.column_and_kind(scope, ALL) else { return value!["1"] };
        let collated = kind == Kind::Text && self.one_in(6);
        let collation = self.pick(&[" COLLATE NOCASE", " COLLATE RTRIM", " COLLATE BINARY"]);
        let collation = maybe(collated.then(|| collation.into()));
        match self.random.below(16) {
            0..=4 => value![column, collation, " = ", self.constant(kind)],
            5 => value![self.constant(kind), self.pick(COMPARISONS), column, collation],
            6 => value![column, self.pick(COMPARISONS), self.constant(kind), collation],
            7 => {
                let other = self.column(scope, &[kind]).unwrap_or_else(|| "1".into());
                value![column, collation, self.pick(COMPARISONS), other]
            }
            8 | 9 => {
                let not = self.pick(&[" IN (", " IN (", " NOT IN ("]);
                let mut items: Vec<Sql> =
                    (0..1 + self.random.below(3)).map(|_| self.constant(kind)).collect();
                if self.one_in(6) {
                    items.push("NULL".into());
                }
                value![column, collation, not, commas(items), ")"]
            }
            10 => {
                let not = self.pick(&[" BETWEEN ", " BETWEEN ", " NOT BETWEEN "]);
                value![column, collation, not, self.constant(kind), " AND ", self.constant(kind)]
            }
            11 => value![column, self.pick(&[" IS NULL", " IS NOT NULL", " ISNULL", " NOTNULL"])],
            12 | 13 => self.pattern(column),
            14 if self.takes_params => self.row_comparison(scope),
            _ => value![column, self.pick(&[" IS ", " IS NOT "]), self.constant(kind)],
        }
    }

    fn pattern(&mut self, column: Sql) -> Sql {
        let pattern = if self.takes_params && self.one_in(3) {
            self.param(Kind::Text)
        } else {
            let pattern = self.pick(&["'a%'", "'A%'", "'%b'", "'_'", "'1%'", "'%'", "''", "'a*'"]);
            pattern.into()
        };
        match self.random.below(6) {
            0 => value![column, " NOT LIKE ", pattern],
            1 => value![column, " GLOB ", self.pick(&["'a*'", "'[AB]*'", "'*'", "'?'", "'B*'"])],
            2 => value![column, " LIKE ", pattern, " ESCAPE '\\'"],
            _ => value![column, " LIKE ", pattern],
        }
    }

    fn row_comparison(&mut self, scope: &Scope) -> Sql {
        let (Some((one, one_kind)), Some((two, two_kind))) =
            (self.column_and_kind(scope, ALL), self.column_and_kind(scope, ALL))
        else {
            return value!["1"];
        };
        let first = self.constant(one_kind);
        let second = self.constant(two_kind);
        let comparison = self.pick(&[" = ", " = ", " <> ", " < ", " IS "]);
        value!["(", one, ", ", two, ")", comparison, "(", first, ", ", second, ")"]
    }

    /// IN, NOT IN, EXISTS, NOT EXISTS.
    fn subquery(&mut self, scope: &Scope) -> Sql {
        let exists = self.one_in(2);
        if exists {
            let (from, inner) = self.from(&scope.around(), &[1, 1, 1, 2]);
            let shown = self.pick(&["1", "*", "NULL"]);
            let filter = self.correlated_filter(&inner);
            let word = if self.one_in(2) {
                Sql::Word("NOT EXISTS (SELECT ", "EXISTS (SELECT ")
            } else {
                "EXISTS (SELECT ".into()
            };
            let limit = maybe(self.one_in(12).then(|| " LIMIT 1".into()));
            return value![word, shown, from, filter, limit, ")"];
        }
        let not = if self.one_in(2) { Sql::Word(" NOT IN (", " IN (") } else { " IN (".into() };
        if self.one_in(8) {
            let one = self.number(scope, 0);
            let two = self.text(scope, 0);
            let (from, inner) = self.from(&scope.around(), &[1]);
            let first = self.number(&inner, 0);
            let second = self.text(&inner, 0);
            let filter = self.correlated_filter(&inner);
            let left = value!["(", one, ", ", two, ")"];
            return value![left, not, "SELECT ", first, ", ", second, from, filter, ")"];
        }
        let kind = self.pick(&[Kind::Integer, Kind::Integer, Kind::Text, Kind::Text, Kind::Real]);
        let left = self.of_kind(scope, kind, 1);
        let select = self.one_column(scope, kind);
        value![left, not, select, ")"]
    }

    /// SELECT of one column: plain, grouped, aggregated or a compound.
    fn one_column(&mut self, scope: &Scope, kind: Kind) -> Sql {
        let (from, inner) = self.from(&scope.around(), &[1, 1, 1, 2]);
        let filter = self.correlated_filter(&inner);
        match self.random.below(8) {
            0 => value!["SELECT max(", self.of_kind(&inner, kind, 0), ")", from, filter],
            1 => {
                let by = self.of_kind(&inner, kind, 0);
                let having = maybe(self.one_in(2).then(|| " HAVING count(*) > 1".into()));
                value!["SELECT ", by.clone(), from, filter, " GROUP BY ", by, having]
            }
            2 => {
                let operator = self.pick(&[" UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT "]);
                let first = self.of_kind(&inner, kind, 0);
                let (from_two, inner_two) = self.from(&scope.around(), &[1]);
                let second = self.of_kind(&inner_two, kind, 0);
                value!["SELECT ", first, from, filter, operator, "SELECT ", second, from_two]
            }
            3 => value!["SELECT DISTINCT ", self.of_kind(&inner, kind, 0), from, filter],
            _ => value!["SELECT ", self.of_kind(&inner, kind, 1), from, filter],
        }
    }

    /// The condition of a subquery, mostly an equality with an outer column.
    pub(super) fn correlated_filter(&mut self, inner: &Scope) -> Sql {
        let mut conditions = Vec::new();
        if !inner.outer.is_empty() && !self.one_in(4) {
            let here = Scope { own: inner.own.clone(), outer: Vec::new() };
            let around = Scope { own: inner.outer.clone(), outer: Vec::new() };
            if let Some((column, kind)) = self.column_and_kind(&here, ALL)
                && let Some(other) = self.column(&around, &[kind])
            {
                conditions.push(value![column, " = ", other]);
            }
        }
        if self.one_in(2) {
            conditions.push(self.condition(inner, 1));
        }
        clause(" WHERE ", " AND ", conditions)
    }

    /// A subquery as a value: an aggregate, or the first row.
    pub(super) fn scalar_subquery(&mut self, scope: &Scope) -> Sql {
        let (from, inner) = self.from(&scope.around(), &[1, 1, 2]);
        let filter = self.correlated_filter(&inner);
        let number = self.number(&inner, 0);
        match self.random.below(5) {
            0 | 1 => value!["(SELECT count(*)", from, filter, ")"],
            2 | 3 => {
                let function = self.pick(&["max(", "min(", "sum(", "total(", "avg(", "count("]);
                value!["(SELECT ", function, number, ")", from, filter, ")"]
            }
            _ => {
                let desc = Sql::Word(self.pick(&["", " DESC"]), "");
                let by = seq![self.number(&inner, 0), desc];
                // Without a key at the end of the order, LIMIT would return arbitrary rows.
                let keys = inner.own.iter().flat_map(Source::keys);
                let order = std::iter::once(by).chain(keys).collect();
                if inner.own.iter().any(|source| source.key.is_empty()) || self.one_in(10) {
                    self.at_most(Fidelity::Open);
                }
                let order =
                    List { open: " ORDER BY ", between: ", ", close: "", least: 2, items: order };
                value!["(SELECT ", number, from, filter, order, " LIMIT 1)"]
            }
        }
    }
}
