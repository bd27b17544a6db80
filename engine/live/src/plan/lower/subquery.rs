//! Subqueries in expressions: EXISTS, IN, and scalar subqueries.

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{Cmd, Expr, QualifiedName, Select, Stmt};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use crate::identifier::{quoted, unquote};
use crate::plan::conjunct::{ConditionOrigin, Conjunct, Route};
use crate::plan::fragment::{Affinity, Fragment, all_harmless};
use crate::plan::kind::common;
use crate::plan::lex;
use crate::plan::lowering::{Lowered, Lowering};
use crate::plan::query::{ExtraConditions, Query};
use crate::plan::scope::Scope;
use crate::plan::syntax::unsupported;

impl Lowering<'_> {
    pub(super) fn with_subquery(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        match expr {
            Expr::Exists(select) => self.exists(select, scope),
            Expr::Subquery(select) => self.scalar(select, scope),
            Expr::InSelect { lhs, not, rhs } => {
                let membership = if *not { Membership::Denied } else { Membership::Asked };
                self.in_select(lhs, membership, rhs, scope)
            }
            Expr::InTable { lhs, not, rhs, args: None } => {
                let membership = if *not { Membership::Denied } else { Membership::Asked };
                self.in_table(lhs, membership, rhs, scope)
            }
            Expr::InTable { .. } => Err(unsupported("IN with a table-valued function")),
            other => self.expr(other, scope),
        }
    }

    fn exists(&mut self, select: &Select, scope: &Scope) -> Lowered {
        let mut query = self.inner(select, scope)?;
        let keeps_a_row = select.limit.is_some_and(|limit| {
            limit.offset.is_none() && limit.expr.is_integer().is_some_and(|n| n > 0)
        });
        if keeps_a_row {
            query.limit = None;
        }
        let mut rows = query.without_order();
        query.write_limit(&mut rows);
        Ok(wrapped("EXISTS (", &rows).with_kind(Some(Kind::Integer)))
    }

    pub(super) fn in_select(
        &mut self,
        left: &Expr,
        membership: Membership,
        select: &Select,
        scope: &Scope,
    ) -> Lowered {
        let mut out = self.expr(left, scope)?;
        let first_source = self.sources.len();
        let first_subquery = self.subqueries;
        let mut query = self.inner(select, scope)?;
        let row = matches!(left, Expr::Parenthesized(items) if items.len() > 1);
        if !row {
            one_column(&query)?;
            let arms = query.cores.iter().map(|(_, core)| &core.outputs[0].value);
            let mut right = Fragment::new();
            right.kind = common(arms.clone().map(|value| self.kind_of(value)));
            right.affinity = Affinity::common(arms.map(|value| self.affinity_of(value)));
            self.require_comparable(&out, &right)?;
        }
        let mut added = ExtraConditions::new();
        let shown_by = self.shown_by(&query);
        let arms = query.cores.len();
        let limited = query.limit.is_some();
        for ((_, core), shown) in query.cores.iter_mut().zip(shown_by) {
            let outputs = core.outputs.iter().zip(shown).filter(|(output, _)| !output.hidden);
            let own = arms == 1 && core.parts().is_none() && !limited;
            if outputs.clone().all(|(_, shown)| own || shown.is_some()) {
                let values: Vec<&Fragment> = outputs.map(|(output, _)| &output.value).collect();
                let mut link = membership.link(&out, &values);
                link.harmless = out.harmless && all_harmless(values.iter().copied());
                let equal = match values.as_slice() {
                    [only] if membership == Membership::Demanded => self.columns_of(&out, only),
                    _ => None,
                };
                if self.is_bounded() && !link.harmless {
                    link = self.null_unless_visible(core, &link);
                }
                if membership == Membership::Demanded && !out.has_subquery() {
                    added.insert(core.block, vec![Fragment::hint(&out, link.clone())]);
                }
                let sides = None;
                let origin = ConditionOrigin::Query;
                let link = Conjunct { condition: link, route: Route::Any, equal, sides, origin };
                self.blocks[core.block].link = Some(link);
            }
        }
        out.push_text(if membership == Membership::Denied { "NOT IN" } else { "IN" });
        let mut rows = query.without_order_with(&added);
        rows.push(&self.top_n_of(&query)?);
        let rows = wrapped("(", &rows);
        let harmless = out.harmless
            && membership != Membership::Denied
            && rows.is_independent(first_source, first_subquery);
        out.push(&rows);
        Ok(out.with_kind(Some(Kind::Integer)).harmless_if(harmless))
    }

    /// `x IN t` is `x IN (SELECT * FROM t)`.
    pub(super) fn in_table(
        &mut self,
        left: &Expr,
        membership: Membership,
        table: &QualifiedName,
        scope: &Scope,
    ) -> Lowered {
        let schema = table.db_name.as_ref().map(|name| format!("{}.", quoted(&unquote(name.0))));
        let name = quoted(&unquote(table.name.0));
        let text = format!("SELECT * FROM {}{name}", schema.unwrap_or_default());
        let bump = Bump::new();
        let mut parser = Parser::new(&bump, text.as_bytes());
        match &parser.next().map_err(|error| lex::refusal(&text, &error))? {
            Some(Cmd::Stmt(Stmt::Select(select))) => {
                self.in_select(left, membership, select, scope)
            }
            _ => unreachable!("a SELECT was written"),
        }
    }

    /// Lowers a subquery as a value: that of its first row, which must be deterministic.
    fn scalar(&mut self, select: &Select, scope: &Scope) -> Lowered {
        let first_source = self.sources.len();
        let first_subquery = self.subqueries;
        let query = self.inner(select, scope)?;
        one_column(&query)?;
        let mut rows = query.without_order();
        rows.push(&self.order_of(&query)?);
        query.write_limit(&mut rows);
        let arms = query.cores.iter().map(|(_, core)| &core.outputs[0].value);
        let kind = common(arms.clone().map(|value| self.kind_of(value)));
        let mut out = wrapped("(", &rows).with_kind(kind);
        out.affinity = Affinity::common(arms.map(|value| self.affinity_of(value)));
        let harmless = out.is_independent(first_source, first_subquery);
        Ok(out.harmless_if(harmless))
    }

    fn inner(&mut self, select: &Select, scope: &Scope) -> Result<Query, Refusal> {
        let allowed = std::mem::replace(&mut self.frame.aggregates_allowed, false);
        let windowed = std::mem::replace(&mut self.frame.windowed, false);
        let query = self.select(select, &[], scope);
        self.frame.aggregates_allowed = allowed;
        self.frame.windowed = windowed;
        query
    }

    /// ORDER BY and LIMIT of a subquery that has a LIMIT; empty for any other.
    pub(crate) fn top_n_of(&self, query: &Query) -> Lowered {
        if query.limit.is_none() {
            return Ok(Fragment::new());
        }
        let mut out = self.order_of(query)?;
        query.write_limit(&mut out);
        Ok(out)
    }

    /// ORDER BY of a subquery, with the key of its rows to break ties.
    fn order_of(&self, query: &Query) -> Lowered {
        let core = query.first_core();
        let mut terms = Vec::new();
        let by_position = query.cores.len() > 1 || core.distinct;
        for term in &query.order {
            // SQLite would read a number as a position, even in parentheses.
            if !by_position && query.outputs()[term.output].value.is_constant() {
                continue;
            }
            let mut value = if by_position {
                Fragment::text(&(term.output + 1).to_string())
            } else {
                query.outputs()[term.output].value.parenthesized()
            };
            value.push_text(&format!("COLLATE {}", term.collation.sql()));
            value.push_text(if term.desc { "DESC" } else { "ASC" });
            value.push_text(if term.nulls_last { "NULLS LAST" } else { "NULLS FIRST" });
            terms.push(value);
        }
        if by_position {
            for at in 0..query.outputs().len() {
                let forms =
                    query.cores.iter().map(|(_, core)| self.form_of(&core.outputs[at].value));
                if common(forms).is_none() {
                    return Err(unsupported("LIMIT over rows that can be equal but not identical")
                        .hint("wrap its columns in CAST(… AS …)"));
                }
                terms.push(Fragment::text(&format!("{} COLLATE BINARY", at + 1)));
            }
        } else if let Some(group) = &core.group {
            let groups = group.iter().filter(|by| !by.is_constant());
            terms.extend(groups.map(|by| self.representative(by)));
        } else if !core.frame.aggregate {
            let key = core.rows_key(self).ok_or_else(|| {
                unsupported("LIMIT in a subquery whose rows have no unique key")
                    .hint("use min() or max()")
            })?;
            terms.extend(key);
        }
        let mut out = Fragment::new();
        for (at, term) in terms.iter().enumerate() {
            out.push_text(if at > 0 { "," } else { "ORDER BY" });
            out.push(term);
        }
        Ok(out)
    }
}

/// How the result of `x IN (SELECT …)` is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// As a filter: unknown counts as false.
    Demanded,
    /// As a value: unknown differs from false.
    Asked,
    /// NOT IN.
    Denied,
}

impl Membership {
    /// Returns the condition on the relevant rows of the subquery: that they equal the left side
    /// or, if unknown matters, that they are not known to differ.
    fn link(self, left: &Fragment, values: &[&Fragment]) -> Fragment {
        let mut link = Fragment::text(if self == Membership::Demanded { "(" } else { "((" });
        link.push(left);
        link.push_text("= (");
        for (at, value) in values.iter().enumerate() {
            link.push_text(if at > 0 { "," } else { "" });
            link.push(value);
        }
        link.push_text(if self == Membership::Demanded { "))" } else { ")) IS NOT 0)" });
        link
    }
}

impl Query {
    /// Returns the query without its order.
    fn without_order(&self) -> Fragment {
        self.without_order_with(&ExtraConditions::new())
    }

    fn without_order_with(&self, added: &ExtraConditions) -> Fragment {
        let mut query = self.clone();
        for (_, core) in &mut query.cores {
            core.outputs.retain(|output| !output.hidden);
        }
        query.body_with(added)
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
