//! The meaning of the parser's tree without a scope: chains of operators, literals, collations,
//! positions, and the refusal of forms that cannot be live.

use abide_schema::{Code, Refusal, Value};
use sqlite3_parser::ast::{Expr, Literal, Operator, UnaryOperator};

use crate::identifier::unquote;
use crate::plan::collation::Collation;

/// Returns the operands of a chain of one operator, in text order.
pub(crate) fn chain_operands<'e, 'b>(expr: &'e Expr<'b>, operator: Operator) -> Vec<&'e Expr<'b>> {
    let mut first = expr;
    let mut operands = Vec::new();
    while let Expr::Binary(left, found, right) = first
        && *found == operator
    {
        operands.push(*right);
        first = left;
    }
    operands.push(first);
    operands.reverse();
    operands
}

/// `true` if an operator compares its operands.
pub(crate) fn is_comparison(operator: Operator) -> bool {
    matches!(
        operator,
        Operator::Equals
            | Operator::NotEquals
            | Operator::Is
            | Operator::IsNot
            | Operator::Less
            | Operator::LessEquals
            | Operator::Greater
            | Operator::GreaterEquals
    )
}

/// Returns the operator as SQL.
pub(crate) fn operator_sql(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::And => "AND",
        Operator::ArrowRight => "->",
        Operator::ArrowRightShift => "->>",
        Operator::BitwiseAnd => "&",
        Operator::BitwiseOr => "|",
        Operator::Concat => "||",
        Operator::Equals => "=",
        Operator::Divide => "/",
        Operator::Greater => ">",
        Operator::GreaterEquals => ">=",
        Operator::Is => "IS",
        Operator::IsNot => "IS NOT",
        Operator::LeftShift => "<<",
        Operator::Less => "<",
        Operator::LessEquals => "<=",
        Operator::Modulus => "%",
        Operator::Multiply => "*",
        Operator::NotEquals => "<>",
        Operator::Or => "OR",
        Operator::RightShift => ">>",
        Operator::Subtract => "-",
    }
}

/// Returns the position that a number in ORDER BY or GROUP BY means. SQLite accepts only 32-bit
/// positions.
pub(crate) fn position(expr: &Expr) -> Option<i64> {
    expr.is_integer().filter(|number| i32::try_from(*number).is_ok())
}

/// Returns an expression in ORDER BY or GROUP BY without its parentheses and its trailing COLLATE.
pub(crate) fn without_collation<'e, 'b>(
    expr: &'e Expr<'b>,
) -> Result<(&'e Expr<'b>, Option<Collation>), Refusal> {
    let mut bare = expr;
    let mut collation = None;
    loop {
        match bare {
            Expr::Collate(inner, name) => {
                collation = collation.or(Some(collation_of(name)?));
                bare = inner;
            }
            Expr::Parenthesized(items) if items.len() == 1 => bare = &items[0],
            _ => return Ok((bare, collation)),
        }
    }
}

/// Returns the collation of a name as written.
pub(crate) fn collation_of(name: &str) -> Result<Collation, Refusal> {
    let name = unquote(name);
    Collation::parse(&name).ok_or_else(|| {
        Refusal::new(Code::BadSql, format!("no such collation sequence: {name}"))
            .hint("use BINARY, NOCASE or RTRIM")
    })
}

/// Returns the refusal of a query form without a delta rule.
pub(crate) fn unsupported(what: &str) -> Refusal {
    Refusal::new(Code::UnsupportedSql, format!("{what} cannot be live"))
        .hint("run it once with `abide sql`")
}

/// Returns the refusal of a function that does not exist.
pub(crate) fn no_function(name: &str) -> Refusal {
    Refusal::new(Code::BadSql, format!("no such function: {name}"))
}

/// Returns the value of a literal that can become a parameter. Numbers with a fraction and those
/// beyond 64 bits stay in the text, because only SQLite parses them exactly as SQLite does.
pub(crate) fn lifted_value(expr: &Expr) -> Option<Value> {
    match expr {
        Expr::Literal(Literal::Numeric(text)) => integer(text, "").map(Value::Integer),
        Expr::Literal(Literal::String(text)) => Some(Value::Text(unquote(text))),
        Expr::Literal(Literal::Blob(hex)) => blob(hex).map(Value::Blob),
        Expr::Unary(UnaryOperator::Negative, Expr::Literal(Literal::Numeric(text))) => {
            integer(text, "-").map(Value::Integer)
        }
        _ => None,
    }
}

/// `true` if SQLite reads an expression as an integer.
pub(crate) fn is_integer(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(Literal::Numeric(text)) if integer(text, "").is_some())
}

fn integer(text: &str, sign: &str) -> Option<i64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty();
    if plain { format!("{sign}{text}").parse().ok() } else { None }
}

fn blob(hex: &str) -> Option<Vec<u8>> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}
