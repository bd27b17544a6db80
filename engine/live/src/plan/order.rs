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
            let alias = match bare {
                Expr::Id(id) => aliased(query, id.0, scope),
                Expr::Name(name) => aliased(query, name.0, scope),
                _ => None,
            };
            let output = if let Some(position) = position(bare) {
                usize::try_from(position)
                    .ok()
                    .filter(|n| (1..=visible).contains(n))
                    .map(|n| n - 1)
                    .ok_or_else(|| out_of_range(at, visible))?
            } else if let Some(alias) = alias {
                alias
            } else {
                let value =
                    self.in_frame(query.first_core_mut(), |lower| lower.expr(bare, scope))?;
                output_of(query, value)?
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

fn aliased(query: &Query, name: &str, scope: &Scope) -> Option<usize> {
    let name = unquote(name);
    let mut outputs = query.outputs().iter();
    if query.cores.len() > 1 {
        return outputs.position(|output| output.is_shown_as(&name));
    }
    scope.aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(&name))?;
    outputs.position(|output| output.is_shown_as(&name) && output.aliased)
}

impl Output {
    fn is_shown_as(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name) && !self.hidden
    }
}

fn output_of(query: &mut Query, value: Fragment) -> Result<usize, Refusal> {
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
