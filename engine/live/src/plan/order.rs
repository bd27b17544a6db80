//! ORDER BY: the result column of each term, and the hidden columns after the visible ones.

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{Expr, NullsOrder, SortOrder, SortedColumn};

use crate::identifier::unquote;
use crate::plan::collation::Collation;
use crate::plan::fragment::Fragment;
use crate::plan::lowering::Lowering;
use crate::plan::query::{Order, Output, Query};
use crate::plan::scope::Scope;
use crate::plan::syntax::{position, unsupported, without_collation};

impl Lowering<'_> {
    /// Resolves ORDER BY as SQLite does: a number is a position, a name first an alias, and an
    /// expression that is selected means that column. Other expressions become hidden columns.
    pub(crate) fn read_order(
        &mut self,
        query: &mut Query,
        terms: &[SortedColumn],
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let visible = query.outputs().len();
        for (at, term) in terms.iter().enumerate() {
            let (bare, stated) = without_collation(&term.expr)?;
            let named = match bare {
                Expr::Id(id) => find_named_output(query, id.0),
                Expr::Name(name) => find_named_output(query, name.0),
                _ => None,
            };
            let output = if let Some(position) = position(bare) {
                usize::try_from(position)
                    .ok()
                    .filter(|n| (1..=visible).contains(n))
                    .map(|n| n - 1)
                    .ok_or_else(|| out_of_range(at, visible))?
            } else if let Some(named) = named {
                named
            } else {
                let value =
                    self.in_frame(query.first_core_mut(), |lower| lower.expr(bare, scope))?;
                find_or_add_output(query, value)?
            };
            let value = &query.outputs()[output].value;
            let collation = stated.or(value.collation);
            let is_text = matches!(self.kind_of(value), None | Some(Kind::Text));
            if collation.is_none() && value.collates_within && is_text {
                return Err(unsupported("ORDER BY with COLLATE inside an expression")
                    .hint("write COLLATE at the end of the ORDER BY term"));
            }
            if query.cores.len() > 1 && query.cores.iter().any(|(_, core)| core.collates(output)) {
                return Err(unsupported(
                    "ORDER BY of a compound query with COLLATE inside an expression",
                ));
            }
            let desc = term.order == Some(SortOrder::Desc);
            query.order.push(Order {
                output,
                desc,
                nulls_last: term.nulls.as_ref().map_or(desc, |nulls| *nulls == NullsOrder::Last),
                collation: collation.unwrap_or(Collation::Binary),
            });
        }
        Ok(())
    }
}

/// Returns the result column that a bare name in ORDER BY means: the first one to which AS gives this name. In a
/// compound query it can also be a column of the first SELECT that has the name without AS. In a single SELECT such a
/// name is an expression, which is resolved in the scope of FROM. `None` if no result column has the name.
fn find_named_output(query: &Query, name: &str) -> Option<usize> {
    let name = unquote(name);
    let outputs = query.outputs();
    let alias = outputs.iter().position(|output| output.aliased && output.is_shown_as(&name));
    if alias.is_none() && query.cores.len() > 1 {
        return outputs.iter().position(|output| output.is_shown_as(&name));
    }
    alias
}

impl Output {
    /// Returns `true` if a visible column has this name, in any case.
    fn is_shown_as(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name) && !self.hidden
    }
}

/// Returns the result column with this value. If there is none, adds it as a hidden column, which carries only the
/// order.
///
/// # Errors
/// A compound query, or SELECT DISTINCT, can be ordered only by what it shows.
fn find_or_add_output(query: &mut Query, value: Fragment) -> Result<usize, Refusal> {
    if let Some(found) = query.outputs().iter().position(|output| output.value == value) {
        return Ok(found);
    }
    if query.cores.len() > 1 {
        return Err(Refusal::new(
            Code::BadSql,
            "ORDER BY term does not match any column in the result set",
        ));
    }
    if query.first_core().deduplicated {
        return Err(unsupported("an order by what SELECT DISTINCT does not show"));
    }
    let name = format!("order{}", query.order.len() + 1);
    let outputs = &mut query.first_core_mut().outputs;
    outputs.push(Output { value, name, hidden: true, aliased: false });
    Ok(outputs.len() - 1)
}

/// Returns the refusal of the term `at`, counted from 0, with the text of SQLite.
fn out_of_range(at: usize, columns: usize) -> Refusal {
    let ordinal = at + 1;
    let suffix = match (ordinal / 10 % 10, ordinal % 10) {
        (1, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    Refusal::new(
        Code::BadSql,
        format!("{ordinal}{suffix} ORDER BY term out of range - should be between 1 and {columns}"),
    )
}

#[cfg(test)]
mod tests {
    use super::out_of_range;

    #[test]
    fn ordinals_are_those_of_sqlite() {
        for (at, ordinal) in [
            (0, "1st"),
            (1, "2nd"),
            (2, "3rd"),
            (3, "4th"),
            (10, "11th"),
            (11, "12th"),
            (12, "13th"),
            (20, "21st"),
            (110, "111th"),
            (120, "121st"),
        ] {
            let detail = out_of_range(at, 1).detail;
            assert!(detail.starts_with(&format!("{ordinal} ORDER BY term")), "{at}: {detail}");
        }
    }
}
