//! From the parser's tree to fragments: resolves names, numbers parameters, lifts literals, and
//! refuses non-deterministic expressions.

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{
    Expr, FunctionCallOrder, LikeOperator, Literal, Operator, UnaryOperator,
};

use crate::identifier::{require_main, unquote};
use crate::plan::collation::Collation;
use crate::plan::fragment::{Fragment, PlainExpr, all_harmless, push_list};
use crate::plan::lowering::{Lowered, Lowering};
use crate::plan::query::Slot;
use crate::plan::scope::Scope;
use crate::plan::syntax::{
    collation_of, is_comparison, is_integer, lifted_value, no_function, operator_sql,
};
use crate::plan::{functions, kind};

mod aggregate;
mod call;
mod condition;
mod names;
mod subquery;
mod window;

impl Lowering<'_> {
    /// Any expression.
    pub(crate) fn expr(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        let bare = self.frame.bare.len();
        let derived = self.frame.bare_derived.len();
        let lowered = self.nested(|lower| lower.expr_at(expr, scope))?;
        self.expansion.count_expression(&lowered)?;
        if self.frame.in_aggregate {
            return Ok(lowered);
        }
        let by = self.frame.by.iter().find(|by| **by == lowered);
        let Some(lowered) = by.cloned() else { return Ok(lowered) };
        // Only a group expression as a whole is a group value; its parts are not.
        let plain = matches!(lowered.plain, PlainExpr::Column(..)) && lowered.collation.is_none();
        if !plain && !self.frame.aggregates_allowed {
            return Ok(lowered);
        }
        self.frame.bare.truncate(bare);
        self.frame.bare_derived.truncate(derived);
        Ok(self.representative(&lowered))
    }

    fn expr_at(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        match expr {
            Expr::Literal(literal) => self.literal(literal),
            Expr::Variable(name) => self.variable(name),
            Expr::Id(id) => self.name(id.0, scope),
            Expr::Name(name) => self.name(name.0, scope),
            Expr::Qualified(table, column) => self.qualified(&unquote(table.0), column.0, scope),
            Expr::DoublyQualified(schema, table, column) => {
                require_main(schema.0)?;
                self.qualified(&unquote(table.0), column.0, scope)
            }
            Expr::Parenthesized(items) => self.parenthesized(items, scope),
            Expr::Binary(_, operator, _) if is_comparison(*operator) => {
                self.comparison(expr, scope)
            }
            Expr::Binary(..) => self.binary(expr, scope),
            Expr::Unary(operator, operand) => self.unary(*operator, operand, scope),
            Expr::Collate(operand, name) => self.collate(operand, name, scope),
            Expr::IsNull(operand) => self.postfix(operand, "ISNULL", scope),
            Expr::NotNull(operand) => self.postfix(operand, "NOTNULL", scope),
            Expr::Between { lhs, not, start, end } => {
                let mut out = self.operand(lhs, scope)?;
                let start = self.operand(start, scope)?;
                let end = self.operand(end, scope)?;
                self.require_comparable(&out, &start)?;
                self.require_comparable(&out, &end)?;
                out.push_text(if *not { "NOT BETWEEN" } else { "BETWEEN" });
                out.push(&start);
                out.push_text("AND");
                out.push(&end);
                Ok(out.with_kind(Some(Kind::Integer)))
            }
            Expr::Like { lhs, not, op, rhs, escape } => {
                self.like(lhs, *not, *op, rhs, *escape, scope)
            }
            Expr::InList { lhs, not, rhs } => self.in_list(lhs, *not, rhs.unwrap_or(&[]), scope),
            Expr::Case { base, when_then_pairs, else_expr } => {
                self.case(*base, when_then_pairs, *else_expr, scope)
            }
            Expr::Cast { expr, type_name } => self.cast(expr, type_name.as_ref(), scope),
            Expr::FunctionCall { name, distinctness, args, order_by, filter_over } => {
                let call = call::Call {
                    name: unquote(name.0),
                    distinct: distinctness.is_some(),
                    arguments: args.unwrap_or(&[]),
                    star: false,
                    order: match order_by {
                        Some(FunctionCallOrder::SortList(terms)) => terms,
                        None => &[],
                    },
                    tail: filter_over.as_ref(),
                };
                self.call(&call, scope)
            }
            Expr::FunctionCallStar { name, filter_over } => {
                self.call(&call::Call::star(unquote(name.0), filter_over.as_ref()), scope)
            }
            Expr::Exists(_) | Expr::Subquery(_) | Expr::InSelect { .. } | Expr::InTable { .. } => {
                self.with_subquery(expr, scope)
            }
            Expr::Raise(..) => {
                Err(Refusal::new(Code::BadSql, "RAISE() may only be used within a trigger-program"))
            }
        }
    }

    /// Lowers an operand of a comparison: a literal becomes a parameter if lifting is on.
    fn operand(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        match lifted_value(expr) {
            Some(value) if self.lifting => {
                self.slots.push(Slot::Literal(value));
                Ok(Fragment::param(self.slots.len() - 1))
            }
            _ => self.expr(expr, scope),
        }
    }

    fn literal(&mut self, literal: &Literal) -> Lowered {
        let lowered = match literal {
            Literal::Numeric(text) | Literal::String(text) => Fragment::text(text),
            Literal::Blob(hex) => Fragment::text(&format!("x'{hex}'")),
            Literal::Keyword(word) => Fragment::text(word),
            Literal::Null => Fragment::text("NULL"),
            Literal::CurrentDate if self.once => Fragment::text("CURRENT_DATE"),
            Literal::CurrentTime if self.once => Fragment::text("CURRENT_TIME"),
            Literal::CurrentTimestamp if self.once => Fragment::text("CURRENT_TIMESTAMP"),
            Literal::CurrentDate => return Err(functions::not_deterministic("CURRENT_DATE")),
            Literal::CurrentTime => return Err(functions::not_deterministic("CURRENT_TIME")),
            Literal::CurrentTimestamp => {
                return Err(functions::not_deterministic("CURRENT_TIMESTAMP"));
            }
        };
        Ok(lowered.with_kind(kind::literal_kind(literal)).harmless_if(true))
    }

    fn parenthesized(&mut self, items: &[Expr], scope: &Scope) -> Lowered {
        if let [only] = items {
            return Ok(self.expr(only, scope)?.parenthesized());
        }
        let mut out = Fragment::text("(");
        let mut harmless = true;
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_text(",");
            }
            let item = self.expr(item, scope)?;
            // The other operand is not known yet.
            self.require_comparable(&item, &Fragment::new())?;
            harmless &= item.harmless;
            out.push(&item);
        }
        out.push_text(")");
        Ok(out.harmless_if(harmless))
    }

    fn comparison(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        let Expr::Binary(left, operator, right) = expr else { return self.expr(expr, scope) };
        let mut out = self.operand(left, scope)?;
        let right = self.operand(right, scope)?;
        self.require_comparable(&out, &right)?;
        let harmless = all_harmless([&out, &right]);
        out.push_text(operator_sql(*operator));
        out.push(&right);
        Ok(out.with_kind(Some(Kind::Integer)).harmless_if(harmless))
    }

    /// Chains of operators lean to the left. This loops along the chain, so that a long sum takes
    /// no stack.
    fn binary(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        let mut first = expr;
        let mut rest = Vec::new();
        while let Expr::Binary(left, operator, right) = first
            && !is_comparison(*operator)
        {
            rest.push((*operator, *right));
            first = left;
        }
        let mut out = self.expr(first, scope)?;
        for (operator, right) in rest.into_iter().rev() {
            let right = self.expr(right, scope)?;
            let kind = kind::operator_kind(operator, self.kind_of(&out), self.kind_of(&right));
            if matches!(operator, Operator::ArrowRight | Operator::ArrowRightShift) {
                out = self.read(&out, 1);
            }
            out.push_text(operator_sql(operator));
            out.push(&right);
            out.kind = kind;
        }
        Ok(out)
    }

    fn unary(&mut self, operator: UnaryOperator, operand: &Expr, scope: &Scope) -> Lowered {
        let mut out = Fragment::text(match operator {
            UnaryOperator::BitwiseNot => "~",
            UnaryOperator::Negative => "-",
            UnaryOperator::Not => "NOT",
            UnaryOperator::Positive => "+",
        });
        let number = is_integer(operand);
        let operand = self.expr(operand, scope)?;
        let kind = self.kind_of(&operand);
        out.push(&operand);
        Ok(out.with_kind(match operator {
            UnaryOperator::BitwiseNot | UnaryOperator::Not => Some(Kind::Integer),
            UnaryOperator::Negative => kind.filter(|kind| number || *kind == Kind::Real),
            UnaryOperator::Positive => kind,
        }))
    }

    fn collate(&mut self, operand: &Expr, name: &str, scope: &Scope) -> Lowered {
        let collation = collation_of(name)?;
        let mut out = self.expr(operand, scope)?;
        let plain = out.plain;
        let kind = out.kind;
        let affinity = out.affinity;
        let within = out.collates_within;
        let harmless = out.harmless && collation == Collation::Binary;
        out.push_text(&format!("COLLATE {}", collation.sql()));
        out.plain = plain;
        out.kind = kind;
        out.affinity = affinity;
        out.harmless = harmless;
        out.collation = Some(collation);
        out.collates_within = within;
        Ok(out)
    }

    fn postfix(&mut self, operand: &Expr, operator: &str, scope: &Scope) -> Lowered {
        let mut out = self.expr(operand, scope)?;
        let harmless = out.harmless;
        out.push_text(operator);
        Ok(out.with_kind(Some(Kind::Integer)).harmless_if(harmless))
    }

    fn like(
        &mut self,
        left: &Expr,
        not: bool,
        operator: LikeOperator,
        right: &Expr,
        escape: Option<&Expr>,
        scope: &Scope,
    ) -> Lowered {
        let name = match operator {
            LikeOperator::Glob => "GLOB",
            LikeOperator::Like => "LIKE",
            LikeOperator::Match => return Err(no_function("MATCH")),
            LikeOperator::Regexp => return Err(no_function("REGEXP")),
        };
        let mut out = self.operand(left, scope)?;
        out.push_text(if not { "NOT" } else { "" });
        out.push_text(name);
        let right = self.operand(right, scope)?;
        out.push(&right);
        if let Some(escape) = escape {
            out.push_text("ESCAPE");
            out.push(&self.expr(escape, scope)?);
        }
        Ok(out.with_kind(Some(Kind::Integer)))
    }

    fn in_list(&mut self, left: &Expr, not: bool, list: &[Expr], scope: &Scope) -> Lowered {
        let mut out = self.operand(left, scope)?;
        let list: Vec<Fragment> =
            list.iter().map(|expr| self.operand(expr, scope)).collect::<Lowered<_>>()?;
        list.iter().try_for_each(|item| self.require_comparable(&out, item))?;
        out.push_text(if not { "NOT IN (" } else { "IN (" });
        push_list(&mut out, &list);
        out.push_text(")");
        Ok(out.with_kind(Some(Kind::Integer)))
    }

    fn case(
        &mut self,
        base: Option<&Expr>,
        pairs: &[(Expr, Expr)],
        otherwise: Option<&Expr>,
        scope: &Scope,
    ) -> Lowered {
        let mut out = Fragment::text("CASE");
        let base = base.map(|base| self.expr(base, scope)).transpose()?;
        if let Some(base) = &base {
            out.push(base);
        }
        let mut kinds = Vec::new();
        for (when, then) in pairs {
            out.push_text("WHEN");
            let when = self.expr(when, scope)?;
            if let Some(base) = &base {
                self.require_comparable(base, &when)?;
            }
            out.push(&when);
            out.push_text("THEN");
            let then = self.expr(then, scope)?;
            kinds.push(self.kind_of(&then));
            out.push(&then);
        }
        if let Some(otherwise) = otherwise {
            out.push_text("ELSE");
            let otherwise = self.expr(otherwise, scope)?;
            kinds.push(self.kind_of(&otherwise));
            out.push(&otherwise);
        }
        out.push_text("END");
        Ok(out.with_kind(kind::common(kinds)))
    }
}
