//! The storage class of an expression, if certain: all its non-NULL values are of this one class.
//!
//! The kind matters where equal values must also be identical (1 and 1.0 are equal but not
//! identical) and where the order of a sum matters (not for integers). This is an allowlist: an
//! expression without a certain kind is refused or evaluated in full where certainty is required.

use abide_schema::table::Kind;
use sqlite3_parser::ast::{Literal, Operator};

use crate::catalog::Catalog;
use crate::plan::fragment::{Affinity, Fragment, PlainExpr, Source};

/// Returns the kind of a fragment.
pub(crate) fn kind_of(catalog: &Catalog, sources: &[Source], fragment: &Fragment) -> Option<Kind> {
    match fragment.plain {
        PlainExpr::Column(source, column) => {
            Some(catalog.table(sources[source].table).columns[column].kind)
        }
        _ => fragment.kind,
    }
}

/// Returns the affinity of a fragment.
pub(crate) fn affinity_of(catalog: &Catalog, sources: &[Source], fragment: &Fragment) -> Affinity {
    match fragment.plain {
        PlainExpr::Column(source, column) => {
            Affinity::from_type(catalog.table(sources[source].table).columns[column].kind.sql())
        }
        _ => fragment.affinity,
    }
}

/// Returns the kind of a fragment whose equal values are identical. This excludes computed reals:
/// 0.0 equals -0.0, which no table stores.
pub(crate) fn form_of(catalog: &Catalog, sources: &[Source], fragment: &Fragment) -> Option<Kind> {
    let stored = matches!(fragment.plain, PlainExpr::Column(..));
    let by_bytes = !fragment.has_collation();
    kind_of(catalog, sources, fragment).filter(|kind| by_bytes && (stored || *kind != Kind::Real))
}

/// Returns the kind that all of these share. NULL has any kind.
pub(crate) fn common(kinds: impl IntoIterator<Item = Option<Kind>>) -> Option<Kind> {
    let mut kinds = kinds.into_iter();
    let first = kinds.next().flatten()?;
    kinds.all(|kind| kind == Some(first)).then_some(first)
}

/// Returns the kind of a literal.
pub(crate) fn literal_kind(literal: &Literal) -> Option<Kind> {
    match literal {
        Literal::Numeric(text) if text.parse::<i64>().is_ok() => Some(Kind::Integer),
        Literal::Numeric(text) if text.contains('.') => Some(Kind::Real),
        Literal::String(_) => Some(Kind::Text),
        Literal::Blob(_) => Some(Kind::Blob),
        _ => None,
    }
}

/// Returns the kind of an operator's result. Integer arithmetic may overflow into reals, so its
/// kind is not certain.
pub(crate) fn operator_kind(
    operator: Operator,
    left: Option<Kind>,
    right: Option<Kind>,
) -> Option<Kind> {
    match operator {
        Operator::And
        | Operator::Or
        | Operator::Equals
        | Operator::NotEquals
        | Operator::Is
        | Operator::IsNot
        | Operator::Less
        | Operator::LessEquals
        | Operator::Greater
        | Operator::GreaterEquals
        | Operator::BitwiseAnd
        | Operator::BitwiseOr
        | Operator::LeftShift
        | Operator::RightShift => Some(Kind::Integer),
        Operator::Concat | Operator::ArrowRight => Some(Kind::Text),
        Operator::Add | Operator::Subtract | Operator::Multiply | Operator::Divide
            if left == Some(Kind::Real) || right == Some(Kind::Real) =>
        {
            Some(Kind::Real)
        }
        _ => None,
    }
}

/// Returns the kind of a CAST to a type of this name.
pub(crate) fn cast_kind(name: &str) -> Option<Kind> {
    match name.to_ascii_uppercase().as_str() {
        "INTEGER" | "INT" => Some(Kind::Integer),
        "REAL" => Some(Kind::Real),
        "TEXT" => Some(Kind::Text),
        "BLOB" => Some(Kind::Blob),
        _ => None,
    }
}

/// Returns the kind of a function's result, given those of its arguments.
pub(crate) fn call_kind(name: &str, arguments: &[Option<Kind>]) -> Option<Kind> {
    let first = arguments.first().copied().flatten();
    match name {
        "count" | "dense_rank" | "instr" | "json_array_length" | "json_valid" | "length"
        | "ntile" | "octet_length" | "rank" | "row_number" | "sign" | "unicode" => {
            Some(Kind::Integer)
        }
        "avg" | "cume_dist" | "julianday" | "percent_rank" | "round" | "total" => Some(Kind::Real),
        "concat" | "concat_ws" | "date" | "datetime" | "format" | "group_concat" | "hex"
        | "json" | "json_array" | "json_group_array" | "json_group_object" | "json_object"
        | "lower" | "ltrim" | "printf" | "quote" | "replace" | "rtrim" | "strftime"
        | "string_agg" | "time" | "trim" | "typeof" | "upper" => Some(Kind::Text),
        "jsonb_group_array" | "jsonb_group_object" => Some(Kind::Blob),
        "first_value" | "last_value" | "likelihood" | "likely" | "nth_value" | "nullif"
        | "unlikely" => first,
        // An integer argument gives an integer or an error, a real argument a real.
        "abs" | "sum" => first.filter(|kind| matches!(kind, Kind::Integer | Kind::Real)),
        "substr" | "substring" => first.filter(|kind| *kind == Kind::Text),
        "coalesce" | "ifnull" | "max" | "min" => common(arguments.iter().copied()),
        "if" | "iif" => {
            common(arguments.iter().skip(1).step_by(2).chain(arguments.last()).copied())
        }
        // The second argument, the offset, does not contribute a value.
        "lag" | "lead" => common(arguments.first().into_iter().chain(arguments.get(2)).copied()),
        _ => None,
    }
}
