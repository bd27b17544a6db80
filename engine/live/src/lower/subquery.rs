//! Subqueries in expressions: EXISTS, IN, and those that are one value.

use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{Expr, Select};

use super::{Conjunct, Lower, Lowered, Scope, columns_of, unsupported};
use crate::core::Core;
use crate::fragment::Fragment;
use crate::route::Route;
use crate::select::Query;

impl Lower<'_> {
    pub(super) fn with_subquery(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        match expr {
            Expr::Exists(select) => self.exists(select, scope),
            Expr::Subquery(select) => self.scalar(select, scope),
            Expr::InSelect { lhs, not, rhs } => {
                let membership = if *not { Membership::Denied } else { Membership::Asked };
                self.in_select(lhs, membership, rhs, scope)
            }
            other => self.expr(other, scope),
        }
    }

    fn exists(&mut self, select: &Select, scope: &Scope) -> Lowered {
        let mut query = self.inner(select, scope)?;
        let at_least_one = |expr: &Expr| expr.is_integer().is_some_and(|n| n > 0);
        match select.limit {
            None => {}
            Some(limit) if limit.offset.is_none() && at_least_one(&limit.expr) => {
                query.limit = None
            }
            Some(_) => return Err(unsupported("EXISTS with LIMIT")),
        }
        Ok(wrapped("EXISTS (", &query.without_order()))
    }

    pub(super) fn in_select(
        &mut self,
        left: &Expr,
        membership: Membership,
        select: &Select,
        scope: &Scope,
    ) -> Lowered {
        let mut out = self.expr(left, scope)?;
        let first_block = self.blocks.len();
        let query = self.inner(select, scope)?;
        if query.limit.is_some() {
            return Err(unsupported("IN with LIMIT"));
        }
        let row = matches!(left, Expr::Parenthesized(items) if items.len() > 1);
        if !row {
            one_column(&query)?;
        }
        if let [(_, core)] = query.cores.as_slice()
            && !core.aggregates()
        {
            self.blocks[first_block].link = Some(membership.link(&out, core));
        }
        out.push_text(if membership == Membership::Denied { "NOT IN" } else { "IN" });
        out.push(&wrapped("(", &query.without_order()));
        Ok(out)
    }

    /// A subquery as a value: that of its first row, which must be the same row every time.
    fn scalar(&mut self, select: &Select, scope: &Scope) -> Lowered {
        let query = self.inner(select, scope)?;
        one_column(&query)?;
        let [(_, core)] = query.cores.as_slice() else {
            return Err(unsupported("a compound query as a value"));
        };
        if core.group.is_some() || core.distinct {
            return Err(unsupported("a grouped or DISTINCT query as a value"));
        }
        if core.frame.aggregate {
            if query.limit.is_some() {
                return Err(unsupported("an aggregate with LIMIT as a value"));
            }
            return Ok(wrapped("(", &query.without_order()));
        }
        let sources = core.sources().ok_or_else(|| {
            unsupported("the first row of a subquery of a subquery")
                .hint("aggregate it: min() or max()")
        })?;
        let mut ties = Vec::new();
        for source in sources {
            let table = self.catalog.table(self.sources[source].table);
            ties.extend(table.key.iter().map(|column| Fragment::column(source, *column)));
        }
        Ok(wrapped("(", &query.first_rows(&ties)))
    }

    fn inner(&mut self, select: &Select, scope: &Scope) -> Result<Query, Refusal> {
        let allowed = std::mem::replace(&mut self.frame.allowed, false);
        let query = self.select(select, &[], scope);
        self.frame.allowed = allowed;
        query
    }
}

/// What is made of `x IN (SELECT …)`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// A row is shown only if it holds: unknown is as good as false.
    Demanded,
    /// It is a value: unknown differs from false.
    Asked,
    /// NOT IN.
    Denied,
}

impl Membership {
    /// What holds of every row of the subquery that has a say: that it equals the left side or, where
    /// unknown matters, that it is not known to differ.
    fn link(self, left: &Fragment, core: &Core) -> Conjunct {
        let mut link = Fragment::text(if self == Membership::Demanded { "(" } else { "((" });
        link.push(left);
        link.push_text("= (");
        for (at, output) in core.outputs.iter().filter(|output| !output.hidden).enumerate() {
            link.push_text(if at > 0 { "," } else { "" });
            link.push(&output.value);
        }
        link.push_text(if self == Membership::Demanded { "))" } else { ")) IS NOT 0)" });
        let equal = match core.outputs.as_slice() {
            [only] if self == Membership::Demanded => columns_of(left, &only.value),
            _ => None,
        };
        Conjunct { condition: link, route: Route::Any, equal }
    }
}

impl Query {
    /// Its rows, in whatever order.
    fn without_order(&self) -> Fragment {
        let mut query = self.clone();
        for (_, core) in &mut query.cores {
            core.outputs.retain(|output| !output.hidden);
        }
        query.body(&[])
    }

    /// Its rows in their order, ties broken.
    fn first_rows(&self, ties: &[Fragment]) -> Fragment {
        let mut out = self.without_order();
        let mut terms = Vec::new();
        for term in &self.order {
            let mut value = self.outputs()[term.output].value.parenthesized();
            if value.is_constant() {
                // It orders nothing, and a number would be taken for a position.
                continue;
            }
            value.push_text(&format!("COLLATE {}", term.collation.sql()));
            value.push_text(if term.desc { "DESC" } else { "ASC" });
            value.push_text(if term.nulls_last { "NULLS LAST" } else { "NULLS FIRST" });
            terms.push(value);
        }
        terms.extend(ties.iter().cloned());
        for (at, term) in terms.iter().enumerate() {
            out.push_text(if at > 0 { "," } else { "ORDER BY" });
            out.push(term);
        }
        if let Some((limit, offset)) = &self.limit {
            out.push_text("LIMIT");
            out.push(limit);
            if let Some(offset) = offset {
                out.push_text("OFFSET");
                out.push(offset);
            }
        }
        out
    }
}

fn one_column(query: &Query) -> Result<(), Refusal> {
    let columns = query.outputs().iter().filter(|output| !output.hidden).count();
    if columns == 1 {
        return Ok(());
    }
    Err(Refusal::new(Code::BadSql, format!("sub-select returns {columns} columns - expected 1")))
}

fn wrapped(open: &str, query: &Fragment) -> Fragment {
    let mut out = Fragment::text(open);
    out.push(query);
    out.push_text(")");
    out.collates_within = query.collates_within;
    out
}
