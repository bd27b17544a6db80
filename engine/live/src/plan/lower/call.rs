//! Function calls and casts.

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{
    Expr, FunctionTail, Literal, Operator, SortedColumn, Type, TypeSize, UnaryOperator,
};

use crate::identifier::unquote;
use crate::plan::fragment::{Affinity, Fragment, Mark, PlainExpr, push_list};
use crate::plan::functions::{self, Function};
use crate::plan::kind;
use crate::plan::lowering::{Lowered, Lowering};
use crate::plan::scope::Scope;

/// A function call in the text.
pub(super) struct Call<'e, 'b> {
    pub(super) name: String,
    pub(super) distinct: bool,
    pub(super) arguments: &'e [Expr<'b>],
    pub(super) star: bool,
    pub(super) order: &'e [SortedColumn<'b>],
    pub(super) tail: Option<&'e FunctionTail<'b>>,
}

impl<'e, 'b> Call<'e, 'b> {
    /// `name(*)`.
    pub(super) fn star(name: String, tail: Option<&'e FunctionTail<'b>>) -> Call<'e, 'b> {
        Call { name, distinct: false, arguments: &[], star: true, order: &[], tail }
    }

    pub(super) fn filter(&self) -> Option<&'e Expr<'b>> {
        self.tail.and_then(|tail| tail.filter_clause)
    }
}

impl Lowering<'_> {
    pub(super) fn call(&mut self, call: &Call, scope: &Scope) -> Lowered {
        let function = match functions::classify(&call.name, call.arguments.len()) {
            Err(_) if self.once && functions::is_random(&call.name) => Function::Scalar,
            classified => classified?,
        };
        if let Some(over) = call.tail.and_then(|tail| tail.over_clause) {
            return self.windowed(call, function, over, scope);
        }
        match function {
            Function::Aggregate => self.aggregate(call, false, scope),
            Function::Sequence => self.aggregate(call, true, scope),
            Function::Window(_) => {
                Err(misuse(&format!("misuse of window function {}()", call.name)))
            }
            Function::Scalar | Function::Time(_) => self.scalar_call(call, function, scope),
        }
    }

    fn scalar_call(&mut self, call: &Call, function: Function, scope: &Scope) -> Lowered {
        if call.distinct || call.star || call.filter().is_some() {
            return Err(misuse(&format!("{}() is not an aggregate function", call.name)));
        }
        if !call.order.is_empty() {
            let detail = format!("ORDER BY may not be used with non-aggregate {}()", call.name);
            return Err(misuse(&detail));
        }
        let arguments = self.arguments(call, scope)?;
        if let (Function::Time(first), false) = (function, self.once) {
            for (at, lowered) in arguments.iter().enumerate() {
                self.require_fixed_time(call, at, first, lowered)?;
            }
            if arguments.len() <= first {
                return Err(functions::not_deterministic(&format!("{}()", call.name)));
            }
        }
        let mut out = open(call);
        push_list(&mut out, &self.read_arguments(call, &arguments));
        out.push_text(")");
        Ok(out.with_kind(self.kind_of_call(call, &arguments)))
    }

    /// Lowers the arguments of a scalar function, marked with how often it reads them.
    fn read_arguments(&self, call: &Call, arguments: &[Fragment]) -> Vec<Fragment> {
        arguments
            .iter()
            .enumerate()
            .map(|(at, argument)| {
                let times = functions::reads(&call.name, at, arguments.len(), self.is_bounded());
                self.read(argument, times)
            })
            .collect()
    }

    /// Returns a value that is read so many times.
    pub(super) fn read(&self, value: &Fragment, times: usize) -> Fragment {
        // Scopes are short, and every condition of a scoped caller reads them.
        if times == 0 || (self.trusted && self.is_scope(value)) {
            return value.clone();
        }
        let mark = if self.is_bounded() { Mark::VisibleRead } else { Mark::Read };
        value.read_by_function(mark, times)
    }

    fn is_scope(&self, value: &Fragment) -> bool {
        let PlainExpr::Column(source, column) = value.plain else { return false };
        self.catalog.table(self.sources[source].table).columns[column].scope
    }

    /// Lowers the arguments of any call.
    pub(super) fn arguments(&mut self, call: &Call, scope: &Scope) -> Lowered<Vec<Fragment>> {
        call.arguments.iter().map(|argument| self.expr(argument, scope)).collect()
    }

    /// Returns the kind of a call's result.
    pub(super) fn kind_of_call(&self, call: &Call, arguments: &[Fragment]) -> Option<Kind> {
        let kinds: Vec<Option<Kind>> = arguments.iter().map(|value| self.kind_of(value)).collect();
        kind::call_kind(&call.name.to_ascii_lowercase(), &kinds)
    }

    /// Checks that a time value or modifier cannot mean the current time or the server's time zone.
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
                .hint("keep times in UTC and convert them in the client"));
            }
            return Ok(());
        }
        if at < first || (is_value && self.is_number(&call.arguments[at], lowered)) {
            return Ok(());
        }
        let what = if is_value { "a time" } else { "a modifier" };
        Err(Refusal::new(
            Code::UnsupportedSql,
            format!("{}() of {what} that is not a literal could mean the current time", call.name),
        )
        .hint("store times as numbers, and use literal modifiers"))
    }

    /// `true` if an expression can only be a number or NULL.
    fn is_number(&self, expr: &Expr, lowered: &Fragment) -> bool {
        if let Some(kind) = self.kind_of(lowered) {
            return matches!(kind, Kind::Integer | Kind::Real);
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
        let value = self.expr(expr, scope)?;
        out.push(&self.read(&value, 1));
        out.push_text("AS");
        let kind = to.filter(|to| to.size.is_none()).and_then(|to| kind::cast_kind(to.name));
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
        out.affinity = Affinity::from_type(to.map_or("", |to| to.name));
        Ok(out.with_kind(kind))
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

/// Returns a call up to its arguments.
pub(super) fn open(call: &Call) -> Fragment {
    let mut out = Fragment::text(&format!("{}(", call.name.to_ascii_lowercase()));
    out.push_text(if call.distinct { "DISTINCT" } else { "" });
    out.push_text(if call.star { "*" } else { "" });
    out
}

/// Returns the refusal of a call that is not allowed here.
pub(super) fn misuse(detail: &str) -> Refusal {
    Refusal::new(Code::BadSql, detail)
}
