//! Whole statements.

use abide_schema::table::Kind;

use super::{Fidelity, Grammar, Scope, Source};
use crate::proof::tree::{List, Sql, clause, commas, maybe, seq, value};

/// The number of tables in the outermost FROM.
const TABLES: &[usize] = &[1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5];
const KINDS: &[Kind] = &[Kind::Integer, Kind::Real, Kind::Text, Kind::Blob];

impl Grammar<'_> {
    /// A statement, and its LIMIT separately.
    pub(super) fn statement(&mut self) -> (Sql, Sql) {
        let with = if self.one_in(10) { self.with() } else { maybe(None) };
        let (body, limit) = match self.random.below(40) {
            0..=15 => self.plain(),
            16..=23 => self.grouped(),
            24..=26 => self.aggregated(),
            27..=30 => self.distinct(),
            31..=36 => self.compound(),
            37 | 38 => self.windowed(),
            _ => self.concatenated(),
        };
        (seq![with, body], limit)
    }

    fn with(&mut self) -> Sql {
        let mut ctes = Vec::new();
        for name in ["q", "z"].into_iter().take(1 + self.random.below(2)) {
            let (sql, columns) = self.derived(&[]);
            ctes.push(seq![name, " AS (", sql, ")"]);
            self.ctes.push(Source { alias: name.to_owned(), columns, key: Vec::new() });
        }
        List { open: "WITH ", between: ", ", close: " ", least: 0, items: ctes }.into()
    }

    fn plain(&mut self) -> (Sql, Sql) {
        let (from, scope) = self.from(&[], TABLES);
        let (shown, aliases) = self.shown(&scope);
        let filter = self.filter(&scope);
        let order = self.order(&scope, &aliases);
        let limit = self.limit(3);
        (seq!["SELECT ", shown, from, filter, order], limit)
    }

    /// The columns of a plain query: often with the primary keys, and sometimes `*`.
    fn shown(&mut self, scope: &Scope) -> (Sql, Vec<String>) {
        if self.one_in(6) {
            return ("*".into(), Vec::new());
        }
        let mut items: Vec<Sql> = Vec::new();
        if self.one_in(8) {
            items.push(format!("{}.*", scope.own[0].alias).into());
        } else if !self.one_in(3) {
            items.extend(scope.own.iter().flat_map(Source::keys));
        }
        let mut aliases = Vec::new();
        let fewest = usize::from(items.is_empty());
        for at in 0..self.random.below(3) + fewest {
            let depth = self.random.below(4);
            let column = if depth > 1 { None } else { self.column(scope, KINDS) };
            let value = column.unwrap_or_else(|| self.value(scope, depth));
            if self.one_in(3) {
                let alias = format!("x{at}");
                items.push(seq![value, format!(" AS {alias}")]);
                aliases.push(alias);
            } else {
                items.push(value);
            }
        }
        (commas(items), aliases)
    }

    /// ORDER BY, if any.
    fn order(&mut self, scope: &Scope, aliases: &[String]) -> Sql {
        if self.one_in(2) {
            return maybe(None);
        }
        let mut terms = Vec::new();
        for _ in 0..1 + self.random.below(2) {
            let by = match self.random.below(8) {
                0 => "1".into(),
                1 if !aliases.is_empty() => self.random.pick(aliases).as_str().into(),
                2 => self.value(scope, 1),
                _ => self.column(scope, KINDS).unwrap_or_else(|| "1".into()),
            };
            terms.push(self.order_term(by));
        }
        clause(" ORDER BY ", ", ", terms)
    }

    fn order_term(&mut self, by: Sql) -> Sql {
        let collation = self.pick(&["", "", "", " COLLATE NOCASE", " COLLATE RTRIM"]);
        let direction = self.pick(&["", "", " DESC", " ASC"]);
        let nulls = self.pick(&["", "", "", " NULLS FIRST", " NULLS LAST"]);
        let word = |text: &'static str| Sql::Word(text, "");
        seq![by, word(collation), word(direction), word(nulls)]
    }

    /// LIMIT once in this many times.
    fn limit(&mut self, times: usize) -> Sql {
        if !self.one_in(times) {
            return maybe(None);
        }
        let count = if self.one_in(4) {
            let name = format!("p{}", self.params.len() + 1);
            let count = self.pick(&[1, 2, 3]);
            self.params.insert(name.clone(), count.into());
            Sql::Param(name)
        } else {
            self.pick(&["0", "1", "2", "3", "4", "5", "-1"]).into()
        };
        let offset = self.pick(&["", "", "", " OFFSET 1", " OFFSET 2", " OFFSET 4"]);
        let offset = clause("", "", if offset.is_empty() { vec![] } else { vec![offset.into()] });
        maybe(Some(seq![" LIMIT ", count, offset]))
    }

    fn grouped(&mut self) -> (Sql, Sql) {
        let (from, scope) = self.from(&[], TABLES);
        let mut groups: Vec<Sql> = Vec::new();
        for _ in 0..1 + self.random.below(2) {
            let depth = self.random.below(4) / 3;
            let column = if depth == 0 { self.column(&scope, KINDS) } else { None };
            groups.push(column.unwrap_or_else(|| self.value(&scope, 1)));
        }
        if self.one_in(5) {
            groups = scope.own[0].keys();
            if groups.is_empty() {
                groups.push("1".into());
            }
        }
        let collated = self.one_in(8);
        if collated {
            let first = groups[0].clone();
            groups[0] = value![first, " COLLATE NOCASE"];
        }
        let mut shown = if self.one_in(6) { Vec::new() } else { groups.clone() };
        for at in 0..1 + self.random.below(3) {
            let aggregate = self.aggregate(&scope);
            let named = self.one_in(3);
            shown.push(if named { seq![aggregate, format!(" AS n{at}")] } else { aggregate });
        }
        if self.one_in(40) {
            // A bare column: SQLite shows that of any row.
            shown.extend(self.column(&scope, KINDS));
            self.at_most(Fidelity::Open);
        }
        let having = if self.one_in(4) {
            let comparison = self.pick(&[" > 1", " = 1", " < 3", " IS NOT NULL"]);
            clause(" HAVING ", " AND ", vec![value![self.aggregate(&scope), comparison]])
        } else {
            maybe(None)
        };
        let by = commas(groups.clone());
        let order = self.group_order(&scope, &groups);
        let filter = self.filter(&scope);
        let limit = self.limit(6);
        (seq!["SELECT ", commas(shown), from, filter, " GROUP BY ", by, having, order], limit)
    }

    fn group_order(&mut self, scope: &Scope, groups: &[Sql]) -> Sql {
        if !self.one_in(3) {
            return maybe(None);
        }
        let by = match self.random.below(3) {
            0 => "1".into(),
            1 => self.random.pick(groups).clone(),
            _ => self.aggregate(scope),
        };
        clause(" ORDER BY ", ", ", vec![self.order_term(by)])
    }

    fn aggregated(&mut self) -> (Sql, Sql) {
        let (from, scope) = self.from(&[], TABLES);
        let shown = (0..1 + self.random.below(3)).map(|_| self.aggregate(&scope)).collect();
        let filter = self.filter(&scope);
        (seq!["SELECT ", commas(shown), from, filter], maybe(None))
    }

    /// COUNT, SUM, AVG, MIN, MAX, total, with DISTINCT and FILTER.
    fn aggregate(&mut self, scope: &Scope) -> Sql {
        let depth = self.random.below(4) / 3;
        let call = match self.random.below(10) {
            0 | 1 => seq!["count(*)"],
            2 => seq!["count(", self.value(scope, depth), ")"],
            3 => seq!["count(DISTINCT ", self.value(scope, depth), ")"],
            4 => {
                let function = self.pick(&["sum(", "total(", "avg("]);
                let distinct = if self.one_in(4) { Sql::Word("DISTINCT ", "") } else { "".into() };
                seq![function, distinct, self.number(scope, depth), ")"]
            }
            5 | 6 => seq![self.pick(&["sum(", "total(", "avg("]), self.number(scope, depth), ")"],
            7 => seq![self.pick(&["min(", "max("]), self.text(scope, depth), ")"],
            _ => seq![self.pick(&["min(", "max("]), self.number(scope, depth), ")"],
        };
        if self.one_in(7) {
            let filter = clause(" FILTER (WHERE ", "", vec![seq![self.condition(scope, 1), ")"]]);
            return value![call, filter];
        }
        if self.one_in(10) {
            return value!["coalesce(", value![call], ", 0) + 1"];
        }
        value![call]
    }

    fn distinct(&mut self) -> (Sql, Sql) {
        let (from, scope) = self.from(&[], TABLES);
        let shown: Vec<Sql> = (0..1 + self.random.below(3))
            .map(|_| match self.random.below(4) {
                0 => self.value(&scope, 1),
                _ => self.column(&scope, KINDS).unwrap_or_else(|| "1".into()),
            })
            .collect();
        let order = if self.one_in(2) {
            let by = self.random.pick(&shown).clone();
            clause(" ORDER BY ", ", ", vec![self.order_term(by)])
        } else {
            maybe(None)
        };
        let filter = self.filter(&scope);
        let limit = self.limit(5);
        (seq![Sql::Word("SELECT DISTINCT ", "SELECT "), commas(shown), from, filter, order], limit)
    }

    fn compound(&mut self) -> (Sql, Sql) {
        let kinds: Vec<Kind> = (0..1 + self.random.below(2)).map(|_| self.pick(KINDS)).collect();
        let all = self.one_in(2);
        let mut arms = Vec::new();
        let operators: &[&'static str] = if all {
            &[" UNION ALL "]
        } else {
            &[" UNION ", " UNION ", " EXCEPT ", " INTERSECT ", " UNION ALL "]
        };
        for at in 0..2 + self.random.below(2) {
            let (from, scope) = self.from(&[], &[1, 1, 1, 2, 2, 3]);
            let shown: Vec<Sql> =
                kinds.iter().map(|kind| self.arm_value(&scope, *kind, all)).collect();
            let list =
                List { open: "", between: ", ", close: "", least: kinds.len(), items: shown };
            let operator = if at == 0 { "" } else { self.pick(operators) };
            let operator = Sql::Word(operator, if at == 0 { "" } else { " UNION ALL " });
            arms.push((operator, seq!["SELECT ", Sql::List(list), from, self.filter(&scope)]));
        }
        let mut arms = arms.into_iter();
        let first = arms.next().map_or(maybe(None), |(_, arm)| arm);
        let rest = arms.map(|(operator, arm)| seq![operator, arm]).collect();
        let order = if self.one_in(3) {
            let direction = self.pick(&["1", "1 DESC", "1 NULLS LAST"]);
            clause(" ORDER BY ", ", ", vec![direction.into()])
        } else {
            maybe(None)
        };
        (seq![first, clause("", "", rest), order], self.limit(5))
    }

    /// A column of a compound: plain if equal rows are merged.
    fn arm_value(&mut self, scope: &Scope, kind: Kind, all: bool) -> Sql {
        if all && self.one_in(3) {
            return self.of_kind(scope, kind, 1);
        }
        self.column(scope, &[kind]).unwrap_or_else(|| self.constant(kind))
    }

    /// Window functions.
    fn windowed(&mut self) -> (Sql, Sql) {
        let (from, scope) = self.from(&[], &[1, 1, 1, 2]);
        let mut shown: Vec<Sql> = scope.own.iter().flat_map(Source::keys).collect();
        let keys = shown.clone();
        let partition = self.column(&scope, KINDS).unwrap_or_else(|| "1".into());
        let partition = clause("PARTITION BY ", "", vec![partition]);
        let by = self.column(&scope, KINDS).unwrap_or_else(|| "1".into());
        // A total order; otherwise SQLite would number ties arbitrarily.
        self.open_without_keys(&scope);
        let order = [vec![by], keys].concat();
        let number = self.number(&scope, 0);
        let function = match self.random.below(6) {
            0 => seq!["row_number()"],
            1 => seq!["rank()"],
            2 => seq!["lag(", number, ")"],
            3 => seq!["first_value(", number, ")"],
            4 => seq!["count(*)"],
            _ => seq!["sum(", number, ")"],
        };
        shown.push(value![function, " OVER (", partition, clause(" ORDER BY ", ", ", order), ")"]);
        let filter = self.filter(&scope);
        (seq!["SELECT ", commas(shown), from, filter], self.limit(8))
    }

    /// Marks the result as non-deterministic if the order of rows matters and some have no key.
    fn open_without_keys(&mut self, scope: &Scope) {
        if scope.own.iter().any(|source| source.key.is_empty()) {
            self.at_most(Fidelity::Open);
        }
    }

    /// Aggregates that depend on the order of rows.
    fn concatenated(&mut self) -> (Sql, Sql) {
        let (from, scope) = self.from(&[], &[1, 1, 2]);
        let keys: Vec<Sql> = scope.own.iter().flat_map(Source::keys).collect();
        self.open_without_keys(&scope);
        let text = self.text(&scope, 0);
        let order = clause(" ORDER BY ", ", ", keys);
        let function = self.pick(&["group_concat(", "json_group_array(", "string_agg("]);
        let separator = if function == "string_agg(" { ", '; '" } else { "" };
        let by = self.column(&scope, KINDS).unwrap_or_else(|| "1".into());
        let shown = vec![by.clone(), value![function, text, separator, order, ")"]];
        let filter = self.filter(&scope);
        (seq!["SELECT ", commas(shown), from, filter, " GROUP BY ", by], maybe(None))
    }
}
