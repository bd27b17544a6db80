//! Function calls and casts.

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{Expr, FunctionTail, Literal, Operator, Type, TypeSize, UnaryOperator};

use super::{Lower, Lowered, Scope, unquote, unsupported};
use crate::fragment::{Aggregate, Fragment, Mark, Piece, Plain};
use crate::functions::{self, Function};

/// A function call as written.
pub(super) struct Call<'e, 'b> {
    pub(super) name: String,
    pub(super) distinct: bool,
    pub(super) arguments: &'e [Expr<'b>],
    pub(super) star: bool,
    pub(super) ordered: bool,
    pub(super) tail: Option<&'e FunctionTail<'b>>,
}

impl Call<'_, '_> {
    /// How it is kept up to date, if it is an aggregate. An extremum only of a column: of values that
    /// are equal and yet differ, it would be any.
    fn kept_by(&self, argument: Plain) -> Aggregate {
        match (self.name.to_ascii_lowercase().as_str(), argument) {
            ("min", Plain::Column(..)) => Aggregate::Min,
            ("max", Plain::Column(..)) => Aggregate::Max,
            _ if self.distinct => Aggregate::Other,
            ("count", _) if self.star || self.arguments.is_empty() => {
                let filtered = self.tail.is_some_and(|tail| tail.filter_clause.is_some());
                if filtered { Aggregate::Count } else { Aggregate::Rows }
            }
            ("count", _) => Aggregate::Count,
            ("sum", _) => Aggregate::Sum,
            ("total", _) => Aggregate::Total,
            ("avg", _) => Aggregate::Average,
            _ => Aggregate::Other,
        }
    }
}

impl Call<'_, '_> {
    fn require_one_extremum(&self, argument: &Fragment) -> Result<(), Refusal> {
        let collates = argument.collation.is_some() || argument.collates_within;
        if collates && ["min", "max"].iter().any(|m| self.name.eq_ignore_ascii_case(m)) {
            return Err(unsupported("min() or max() with COLLATE")
                .hint("of equal texts it would be any: take it of lower(…)"));
        }
        Ok(())
    }
}

impl Lower<'_> {
    pub(super) fn call(&mut self, call: &Call, scope: &Scope) -> Lowered {
        if call.tail.is_some_and(|tail| tail.over_clause.is_some()) {
            return Err(unsupported("a window function"));
        }
        let function = functions::classify(&call.name, call.arguments.len())?;
        let aggregate = function == Function::Aggregate;
        let filter = call.tail.and_then(|tail| tail.filter_clause);
        if !aggregate && (call.distinct || call.star || filter.is_some()) {
            return Err(misuse(&format!("{}() is no aggregate function", call.name)));
        }
        if call.ordered {
            return Err(unsupported("ORDER BY within a function"));
        }
        if aggregate {
            if !std::mem::take(&mut self.frame.allowed) {
                return Err(misuse(&format!("misuse of aggregate function {}()", call.name)));
            }
            self.frame.within = true;
        }
        let named_before = std::mem::take(&mut self.frame.named);
        let mut out = Fragment::new();
        let mark = |out: &mut Fragment, mark: Mark| {
            if aggregate {
                out.mark(mark)
            }
        };
        mark(&mut out, Mark::Aggregate(Aggregate::Other));
        out.push_text(&format!("{}(", call.name.to_ascii_lowercase()));
        out.push_text(if call.distinct { "DISTINCT" } else { "" });
        out.push_text(if call.star { "*" } else { "" });
        mark(&mut out, Mark::Argument);
        let mut plain = Plain::Other;
        for (at, argument) in call.arguments.iter().enumerate() {
            if at > 0 {
                out.push_text(",");
            }
            let lowered = self.expr(argument, scope)?;
            if aggregate {
                call.require_one_extremum(&lowered)?;
            }
            if let Function::Time(first) = function {
                self.require_fixed_time(call, at, first, &lowered)?;
            }
            plain = lowered.plain;
            out.push(&lowered);
        }
        mark(&mut out, Mark::ArgumentEnd);
        if let Function::Time(first) = function
            && call.arguments.len() <= first
        {
            return Err(functions::not_deterministic(&format!("{}()", call.name)));
        }
        out.push_text(")");
        if let Some(filter) = filter {
            out.push_text("FILTER (WHERE");
            out.mark(Mark::Filter);
            out.push(&self.expr(filter, scope)?);
            out.mark(Mark::FilterEnd);
            out.push_text(")");
        }
        if aggregate {
            if self.frame.names_around() && !self.frame.names_own() {
                // SQLite makes it an aggregate of the query around, which then is one row.
                return Err(unsupported("an aggregate over columns of the query around it")
                    .hint("write it in the query that the columns are of"));
            }
            out.pieces[0] = Piece::Mark(Mark::Aggregate(call.kept_by(plain)));
            out.mark(Mark::End);
            self.frame.within = false;
            self.frame.allowed = true;
            self.frame.aggregate = true;
            out.aggregates = true;
        }
        self.frame.named |= named_before;
        Ok(out)
    }

    /// A time value or modifier must not be able to mean the present or the server's time zone.
    fn require_fixed_time(
        &self,
        call: &Call,
        at: usize,
        first: usize,
        lowered: &Fragment,
    ) -> Result<(), Refusal> {
        let is_value = at == first || (at == 1 && call.name.eq_ignore_ascii_case("timediff"));
        if let Expr::Literal(Literal::String(text)) = &call.arguments[at] {
            let text = unquote(text);
            if at >= first && is_value && functions::means_now(&text) {
                return Err(functions::not_deterministic(&format!("{}('{text}')", call.name)));
            }
            if at > first && functions::means_zone(&text) {
                return Err(Refusal::new(
                    Code::UnsupportedSql,
                    format!("'{text}' depends on the server's time zone"),
                )
                .hint("leave times in UTC and convert them where they are shown"));
            }
            return Ok(());
        }
        if at < first || (is_value && self.is_number(&call.arguments[at], lowered)) {
            return Ok(());
        }
        let what = if is_value { "a time" } else { "a modifier" };
        Err(Refusal::new(
            Code::UnsupportedSql,
            format!(
                "{}() of {what} that is not known beforehand could mean the present",
                call.name
            ),
        )
        .hint("store times as numbers, and write modifiers as literals"))
    }

    /// Whether an expression can only be a number or NULL.
    fn is_number(&self, expr: &Expr, lowered: &Fragment) -> bool {
        if let Plain::Column(source, column) = lowered.plain {
            let table = self.catalog.table(self.sources[source].table);
            return matches!(table.columns[column].kind, Kind::Integer | Kind::Real);
        }
        match expr {
            Expr::Literal(Literal::Numeric(_)) => true,
            Expr::Unary(operator, _) => *operator != UnaryOperator::Positive,
            Expr::Parenthesized(items) => items.len() == 1 && self.is_number(&items[0], lowered),
            Expr::Binary(_, operator, _) => matches!(
                operator,
                Operator::Add
                    | Operator::Subtract
                    | Operator::Multiply
                    | Operator::Divide
                    | Operator::Modulus
            ),
            Expr::Cast { type_name: Some(name), .. } => ["INTEGER", "INT", "REAL", "NUMERIC"]
                .iter()
                .any(|number| name.name.eq_ignore_ascii_case(number)),
            _ => false,
        }
    }

    pub(super) fn cast(&mut self, expr: &Expr, to: Option<&Type>, scope: &Scope) -> Lowered {
        let mut out = Fragment::text("CAST(");
        out.push(&self.expr(expr, scope)?);
        out.push_text("AS");
        if let Some(to) = to {
            out.push_text(to.name);
            match &to.size {
                None => {}
                Some(TypeSize::MaxSize(size)) => self.size(&mut out, &[size], scope)?,
                Some(TypeSize::TypeSize(size, scale)) => {
                    self.size(&mut out, &[size, scale], scope)?;
                }
            }
        }
        out.push_text(")");
        Ok(out)
    }

    fn size(&mut self, out: &mut Fragment, sizes: &[&Expr], scope: &Scope) -> Result<(), Refusal> {
        out.push_text("(");
        for (at, size) in sizes.iter().enumerate() {
            if at > 0 {
                out.push_text(",");
            }
            out.push(&self.expr(size, scope)?);
        }
        out.push_text(")");
        Ok(())
    }
}

fn misuse(detail: &str) -> Refusal {
    Refusal::new(Code::BadSql, detail)
}
