//! Expressions by result kind.

use abide_schema::table::Kind;

use super::{Grammar, NESTED, Scope};
use crate::proof::literals;
use crate::proof::tree::{Sql, clause, commas, value};

const NUMBERS: &[Kind] = &[Kind::Integer, Kind::Real];

impl Grammar<'_> {
    /// Of any kind.
    pub(super) fn value(&mut self, scope: &Scope, depth: usize) -> Sql {
        match self.random.below(9) {
            0..=3 => self.number(scope, depth),
            4..=7 => self.text(scope, depth),
            _ => self.blob(scope, depth),
        }
    }

    /// Usually of this kind.
    pub(super) fn of_kind(&mut self, scope: &Scope, kind: Kind, depth: usize) -> Sql {
        match kind {
            Kind::Integer | Kind::Real => self.number(scope, depth),
            Kind::Text => self.text(scope, depth),
            Kind::Blob => self.blob(scope, depth),
        }
    }

    /// A column, if there is one of these kinds.
    pub(super) fn column(&mut self, scope: &Scope, kinds: &[Kind]) -> Option<Sql> {
        self.column_and_kind(scope, kinds).map(|(column, _)| column)
    }

    /// A column with its kind.
    pub(super) fn column_and_kind(&mut self, scope: &Scope, kinds: &[Kind]) -> Option<(Sql, Kind)> {
        let outer = !scope.outer.is_empty() && self.one_in(3);
        let sources = if outer { &scope.outer } else { &scope.own };
        let mut found = Vec::new();
        for source in sources {
            for (name, kind) in &source.columns {
                if kinds.contains(kind) {
                    found.push((format!("{}.{name}", source.alias), *kind));
                }
            }
        }
        if found.is_empty() {
            return None;
        }
        let (name, kind) = self.random.pick(&found).clone();
        Some((value![name], kind))
    }

    /// A literal or a parameter.
    pub(super) fn constant(&mut self, kind: Kind) -> Sql {
        if self.takes_params && self.one_in(2) {
            return self.param(kind);
        }
        let value = literals::random_of_kind(self.random, kind);
        literals::literal_sql(&value)
    }

    /// A parameter, new or existing.
    pub(super) fn param(&mut self, kind: Kind) -> Sql {
        if !self.params.is_empty() && self.one_in(5) {
            let names: Vec<String> = self.params.keys().cloned().collect();
            return Sql::Param(self.random.pick(&names).clone());
        }
        let name = format!("p{}", self.params.len() + 1);
        self.params.insert(name.clone(), literals::param(self.random, kind));
        Sql::Param(name)
    }

    pub(super) fn number(&mut self, scope: &Scope, depth: usize) -> Sql {
        if depth == 0 || self.one_in(2) {
            let column = if self.one_in(4) { None } else { self.column(scope, NUMBERS) };
            let kind = self.pick(&[Kind::Integer, Kind::Integer, Kind::Real]);
            return column.unwrap_or_else(|| self.constant(kind));
        }
        let depth = depth - 1;
        match self.random.below(25) {
            0 | 1 => value!["(", self.number(scope, depth), " + ", self.number(scope, depth), ")"],
            2 => value!["(", self.number(scope, depth), " - ", self.number(scope, depth), ")"],
            3 => value!["(", self.number(scope, depth), " * ", self.number(scope, depth), ")"],
            4 => value!["(", self.number(scope, depth), " / ", self.number(scope, depth), ")"],
            5 => value!["(", self.number(scope, depth), " % ", self.number(scope, depth), ")"],
            6 => value!["(- ", self.number(scope, depth), ")"],
            7 => value!["(~", self.number(scope, depth), ")"],
            8 => {
                let operator = self.pick(&[" & ", " | ", " << ", " >> "]);
                value!["(", self.number(scope, depth), operator, self.number(scope, depth), ")"]
            }
            9 => {
                let function = self.pick(&["round(", "sign(", "typeof("]);
                value![function, self.number(scope, depth), ")"]
            }
            10 => {
                let function = self.pick(&["length(", "unicode(", "octet_length("]);
                value![function, self.text(scope, depth), ")"]
            }
            11 => value!["instr(", self.text(scope, depth), ", ", self.text(scope, 0), ")"],
            12 => {
                value!["CAST(", self.text(scope, depth), self.pick(&[" AS INTEGER)", " AS REAL)"])]
            }
            13 => self.json_number(scope),
            14 | 15 => self.choice(scope, Kind::Integer, depth),
            16 => {
                let function = self.pick(&["min(", "max(", "coalesce(", "nullif(", "ifnull("]);
                let one = self.number(scope, depth);
                let two = self.number(scope, depth);
                value![function, one, ", ", two, ")"]
            }
            17 => value!["unixepoch(", self.time(scope), ", 'unixepoch')"],
            18..=20 => value!["(", self.condition(scope, depth), ")"],
            21 => value!["abs(", self.number(scope, depth), " % 1000)"],
            22 => value!["(+", self.number(scope, depth), ")"],
            _ if self.nested < NESTED => self.nest(|grammar| grammar.scalar_subquery(scope)),
            _ => value!["(+", self.number(scope, 0), ")"],
        }
    }

    pub(super) fn text(&mut self, scope: &Scope, depth: usize) -> Sql {
        if depth == 0 || self.one_in(2) {
            let column = if self.one_in(4) { None } else { self.column(scope, &[Kind::Text]) };
            return column.unwrap_or_else(|| self.constant(Kind::Text));
        }
        let depth = depth - 1;
        match self.random.below(18) {
            0..=2 => value!["(", self.text(scope, depth), " || ", self.value(scope, depth), ")"],
            3 => {
                let function = self.pick(&["upper(", "lower(", "trim(", "rtrim(", "quote("]);
                value![function, self.text(scope, depth), ")"]
            }
            4 => value![
                "substr(",
                self.text(scope, depth),
                ", ",
                self.pick(&["1", "2", "-1"]),
                ", 1)"
            ],
            5 => {
                let what = self.text(scope, 0);
                let by = self.text(scope, 0);
                value!["replace(", self.text(scope, depth), ", ", what, ", ", by, ")"]
            }
            6 => value!["hex(", self.blob(scope, 0), ")"],
            7 => value!["CAST(", self.number(scope, depth), " AS TEXT)"],
            8 => value!["typeof(", self.value(scope, depth), ")"],
            9 => value!["printf('%d|%s', ", self.number(scope, 0), ", ", self.text(scope, 0), ")"],
            10 => {
                let function = self.pick(&["date(", "datetime(", "time("]);
                value![function, self.time(scope), ", 'unixepoch')"]
            }
            11 => value!["strftime('%Y-%m', ", self.time(scope), ", 'unixepoch')"],
            12 | 13 => self.choice(scope, Kind::Text, depth),
            14 => {
                let function = self.pick(&["coalesce(", "nullif(", "ifnull(", "min(", "max("]);
                let one = self.text(scope, depth);
                let two = self.text(scope, depth);
                value![function, one, ", ", two, ")"]
            }
            // A blob in JSON is an error, and the plan determines which rows reach it.
            15 => value!["json_array(", self.number(scope, 0), ", hex(", self.text(scope, 0), "))"],
            16 => value!["json_object('k', CAST(", self.text(scope, 0), " AS TEXT))"],
            _ => value!["concat(", commas(vec![self.text(scope, 0), self.value(scope, 0)]), ")"],
        }
    }

    /// A number that cannot be a text: a text could mean the current time.
    fn time(&mut self, scope: &Scope) -> Sql {
        let column = self.column(scope, NUMBERS);
        column.unwrap_or_else(|| self.pick(&["0", "1700000000", "2.5", "-1"]).into())
    }

    fn blob(&mut self, scope: &Scope, depth: usize) -> Sql {
        if depth > 0 && self.one_in(3) {
            return value!["CAST(", self.text(scope, depth - 1), " AS BLOB)"];
        }
        let column = self.column(scope, &[Kind::Blob]);
        column.unwrap_or_else(|| self.constant(Kind::Blob))
    }

    /// CASE in both forms, and iif.
    fn choice(&mut self, scope: &Scope, kind: Kind, depth: usize) -> Sql {
        let branch = |grammar: &mut Self| {
            // Sometimes of another kind than the rest: 1 here and 1.0 there.
            if grammar.one_in(5) {
                grammar.value(scope, 0)
            } else {
                grammar.of_kind(scope, kind, 0)
            }
        };
        let then = branch(self);
        let otherwise = branch(self);
        match self.random.below(3) {
            0 => value!["iif(", self.condition(scope, depth), ", ", then, ", ", otherwise, ")"],
            1 => {
                let of = self.number(scope, depth);
                let when = self.number(scope, 0);
                value!["CASE ", of, " WHEN ", when, " THEN ", then, " ELSE ", otherwise, " END"]
            }
            _ => {
                let condition = self.condition(scope, depth);
                let otherwise = clause(" ELSE ", "", vec![otherwise]);
                value!["CASE WHEN ", condition, " THEN ", then, otherwise, " END"]
            }
        }
    }

    /// A number out of JSON that may be invalid.
    fn json_number(&mut self, scope: &Scope) -> Sql {
        let text = self.text(scope, 0);
        let path = self.pick(&["$.a", "$.b[0]", "$.b[#-1]", "$[1]"]);
        match self.random.below(3) {
            0 => value![
                "iif(json_valid(",
                text.clone(),
                "), json_extract(",
                text,
                format!(", '{path}'))")
            ],
            1 => value![
                "CASE WHEN json_valid(",
                text.clone(),
                ") THEN ",
                text,
                format!(" ->> '{path}' END")
            ],
            _ => value!["json_valid(", text, ")"],
        }
    }
}
