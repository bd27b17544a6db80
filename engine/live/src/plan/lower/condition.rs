//! Conditions: their conjuncts, and what each requires of the rows.

use abide_schema::table::IndexSpec;
use sqlite3_parser::ast::{Expr, LikeOperator, Operator};

use crate::plan::collation::Collation;
use crate::plan::conjunct::{Comparison, ConditionOrigin, Conjunct, EqualColumns, Equality, Route};
use crate::plan::fragment::{Fragment, PlainExpr, all_harmless, push_list};
use crate::plan::lower::subquery;
use crate::plan::lowering::{Lowered, Lowering};
use crate::plan::scope::Scope;
use crate::plan::syntax::{chain_operands, is_comparison, lifted_value, operator_sql};

impl Lowering<'_> {
    /// Splits a condition into its conjuncts. Compared literals become parameters.
    pub(crate) fn conjuncts(&mut self, expr: &Expr, scope: &Scope) -> Lowered<Vec<Conjunct>> {
        let lifting = std::mem::replace(&mut self.lifting, true);
        let conjuncts = chain_operands(expr, Operator::And)
            .into_iter()
            .map(|expr| {
                let sides = self.equal_sides(expr, scope)?.map(Box::new);
                let equal = sides.as_ref().and_then(|sides| self.columns_of(&sides.0, &sides.1));
                let (condition, route) = self.condition(expr, scope)?;
                let origin = ConditionOrigin::Query;
                Ok(Conjunct { condition, route, equal, sides, origin })
            })
            .collect();
        self.lifting = lifting;
        conjuncts
    }

    /// Returns the two expressions that a conjunct equates.
    fn equal_sides(&mut self, expr: &Expr, scope: &Scope) -> Lowered<Option<(Fragment, Fragment)>> {
        let mut bare = expr;
        while let Expr::Parenthesized(items) = bare
            && let [only] = &items[..]
        {
            bare = only;
        }
        let is_name =
            |expr: &Expr| matches!(expr, Expr::Id(_) | Expr::Name(_) | Expr::Qualified(..));
        match bare {
            Expr::Binary(left, Operator::Equals, right) if is_name(left) && is_name(right) => {
                Ok(Some((self.expr(left, scope)?, self.expr(right, scope)?)))
            }
            _ => Ok(None),
        }
    }

    fn condition(&mut self, expr: &Expr, scope: &Scope) -> Lowered<(Fragment, Route)> {
        let (condition, route) = self.nested(|lower| match expr {
            Expr::Parenthesized(inner) if inner.len() == 1 => {
                let (condition, route) = lower.condition(&inner[0], scope)?;
                Ok((condition.parenthesized(), route))
            }
            Expr::Binary(_, operator @ (Operator::And | Operator::Or), _) => {
                lower.junction(expr, *operator, scope)
            }
            Expr::Binary(left, operator, right) if is_comparison(*operator) => {
                lower.lower_comparison(left, *operator, right, scope)
            }
            Expr::Between { lhs, not: false, start, end } => {
                let left = lower.operand(lhs, scope)?;
                let start = lower.operand(start, scope)?;
                let end = lower.operand(end, scope)?;
                lower.require_comparable(&left, &start)?;
                lower.require_comparable(&left, &end)?;
                let route = lower.bound(&left, Comparison::AtLeast, &start).and(lower.bound(
                    &left,
                    Comparison::AtMost,
                    &end,
                ));
                let harmless = all_harmless([&left, &start, &end]);
                let mut condition = left;
                condition.push_text("BETWEEN");
                condition.push(&start);
                condition.push_text("AND");
                condition.push(&end);
                Ok((condition.harmless_if(harmless), route))
            }
            Expr::Like { lhs, not: false, op, rhs, escape: None }
                if matches!(op, LikeOperator::Like | LikeOperator::Glob) =>
            {
                let left = lower.operand(lhs, scope)?;
                let right = lower.operand(rhs, scope)?;
                let (test, keyword) = if *op == LikeOperator::Like {
                    (Comparison::Like, "LIKE")
                } else {
                    (Comparison::Glob, "GLOB")
                };
                let route = lower.bound(&left, test, &right);
                let mut condition = left;
                condition.push_text(keyword);
                condition.push(&right);
                Ok((condition, route))
            }
            Expr::InList { lhs, not: false, rhs: Some(list) } => {
                lower.lower_in_list(lhs, list, scope)
            }
            Expr::InSelect { lhs, not: false, rhs } => {
                Ok((lower.in_select(lhs, subquery::Membership::Demanded, rhs, scope)?, Route::Any))
            }
            Expr::InTable { lhs, not: false, rhs, args: None } => {
                Ok((lower.in_table(lhs, subquery::Membership::Demanded, rhs, scope)?, Route::Any))
            }
            other => Ok((lower.expr(other, scope)?, Route::Any)),
        })?;
        self.expansion.count_expression(&condition)?;
        Ok((condition, route))
    }

    fn junction(
        &mut self,
        expr: &Expr,
        operator: Operator,
        scope: &Scope,
    ) -> Lowered<(Fragment, Route)> {
        let mut whole: Option<(Fragment, Route)> = None;
        for operand in chain_operands(expr, operator) {
            let (condition, route) = self.condition(operand, scope)?;
            whole = Some(match whole {
                None => (condition, route),
                Some((mut left, left_route)) => {
                    let harmless = all_harmless([&left, &condition]);
                    left.push_text(operator_sql(operator));
                    left.push(&condition);
                    left.harmless = harmless;
                    let route = match operator {
                        Operator::And => left_route.and(route),
                        _ => left_route.or(route),
                    };
                    (left, route)
                }
            });
        }
        Ok(whole.expect("a spine has at least one operand"))
    }

    /// `left operator right`.
    fn lower_comparison(
        &mut self,
        left: &Expr,
        operator: Operator,
        right: &Expr,
        scope: &Scope,
    ) -> Lowered<(Fragment, Route)> {
        let literal = lifted_value(right).and(Some(right));
        let left = self.operand(left, scope)?;
        let right = self.operand(right, scope)?;
        self.require_comparable(&left, &right)?;
        let route = match operator {
            Operator::Equals => self.equality(&left, &right, false),
            Operator::Is => self.equality(&left, &right, true),
            Operator::Less | Operator::LessEquals => self
                .bound(&left, Comparison::AtMost, &right)
                .and(self.bound(&right, Comparison::AtLeast, &left)),
            Operator::Greater | Operator::GreaterEquals => self
                .bound(&left, Comparison::AtLeast, &right)
                .and(self.bound(&right, Comparison::AtMost, &left)),
            _ => Route::Any,
        };
        let harmless = all_harmless([&left, &right]);
        let mut condition = left.clone();
        condition.push_text(operator_sql(operator));
        condition.push(&right);
        condition.harmless = harmless;
        match literal {
            Some(literal) if operator == Operator::Equals && self.names_part(&left) => {
                let mut with_literal = left;
                with_literal.push_text("=");
                with_literal.push(&self.expr(literal, scope)?);
                Ok((conjoin(with_literal, &condition).harmless_if(harmless), route))
            }
            _ => Ok((condition, route)),
        }
    }

    /// `lhs IN (list)`.
    fn lower_in_list(
        &mut self,
        lhs: &Expr,
        list: &[Expr],
        scope: &Scope,
    ) -> Lowered<(Fragment, Route)> {
        let left = self.operand(lhs, scope)?;
        let items: Vec<Fragment> =
            list.iter().map(|expr| self.operand(expr, scope)).collect::<Lowered<_>>()?;
        items.iter().try_for_each(|item| self.require_comparable(&left, item))?;
        let route = self.membership(&left, &items);
        let harmless = all_harmless(items.iter().chain([&left]));
        let condition = in_list(left.clone(), &items);
        if !self.names_part(&left) || list.iter().any(|item| lifted_value(item).is_none()) {
            return Ok((condition.harmless_if(harmless), route));
        }
        let literals: Vec<Fragment> =
            list.iter().map(|expr| self.expr(expr, scope)).collect::<Lowered<_>>()?;
        Ok((conjoin(in_list(left, &literals), &condition).harmless_if(harmless), route))
    }

    /// `true` if the condition of a partial index names a column.
    fn names_part(&self, fragment: &Fragment) -> bool {
        let PlainExpr::Column(source, column) = fragment.plain else { return false };
        let table = self.catalog.table(self.sources[source].table);
        let name = table.columns[column].name;
        let mut words = table.indexes.iter().flat_map(IndexSpec::words);
        words.any(|word| word.eq_ignore_ascii_case(name))
    }
}

fn in_list(mut left: Fragment, items: &[Fragment]) -> Fragment {
    left.push_text("IN (");
    push_list(&mut left, items);
    left.push_text(")");
    left
}

/// Returns the conjunction of two forms of one condition: its parameters route changes to the
/// binding, its literals let SQLite use a partial index.
fn conjoin(with_literals: Fragment, condition: &Fragment) -> Fragment {
    let mut conjunction = Fragment::text("(");
    conjunction.push(&with_literals);
    conjunction.push_text("AND");
    conjunction.push(condition);
    conjunction.push_text(")");
    conjunction
}

impl Lowering<'_> {
    /// Returns the two columns of an equality that compares bytes.
    pub(crate) fn columns_of(&self, left: &Fragment, right: &Fragment) -> Option<EqualColumns> {
        let binary =
            |fragment: &Fragment| fragment.collation.is_none_or(|c| c == Collation::Binary);
        let origins = (self.origin(left)?, self.origin(right)?);
        (binary(left) && binary(right)).then_some(origins)
    }

    /// `column = parameter`, in either order.
    fn equality(&self, left: &Fragment, right: &Fragment, nulls_match: bool) -> Route {
        let collation = left.collation.or(right.collation).unwrap_or(Collation::Binary);
        let (column, slot) = match (left.plain, right.plain) {
            (_, PlainExpr::Param(slot)) => (left, slot),
            (PlainExpr::Param(slot), _) => (right, slot),
            _ => return Route::Any,
        };
        self.compared_columns(column, |source, column| {
            let test = Comparison::Among;
            let values = vec![slot];
            Equality { test, source, column, collation, nulls_match, values }
        })
    }

    /// Returns a bound of a column by a parameter.
    fn bound(&self, column: &Fragment, test: Comparison, param: &Fragment) -> Route {
        let collation = match test {
            Comparison::Like => Collation::NoCase,
            Comparison::Glob => Collation::Binary,
            _ => column.collation.or(param.collation).unwrap_or(Collation::Binary),
        };
        let compares_bytes = collation == Collation::Binary || test == Comparison::Like;
        let PlainExpr::Param(slot) = param.plain else { return Route::Any };
        if !compares_bytes {
            return Route::Any;
        }
        self.compared_columns(column, |source, column| {
            let nulls_match = false;
            let values = vec![slot];
            Equality { test, source, column, collation, nulls_match, values }
        })
    }

    /// `column IN (parameters)`.
    fn membership(&self, left: &Fragment, list: &[Fragment]) -> Route {
        let slots = list.iter().map(|item| match item.plain {
            PlainExpr::Param(slot) if item.collation.is_none() => Some(slot),
            _ => None,
        });
        let Some(slots) = slots.collect::<Option<Vec<usize>>>() else { return Route::Any };
        self.compared_columns(left, |source, column| Equality {
            test: Comparison::Among,
            source,
            column,
            collation: left.collation.unwrap_or(Collation::Binary),
            nulls_match: false,
            values: slots.clone(),
        })
    }

    /// Returns the requirement of a comparison for each column of a fragment.
    fn compared_columns(
        &self,
        fragment: &Fragment,
        demand: impl Fn(usize, usize) -> Equality,
    ) -> Route {
        let columns = self.origins(fragment);
        if columns.is_empty() {
            return Route::Any;
        }
        let demands = columns.into_iter().map(|(source, column)| demand(source, column));
        Route::Alternatives(vec![demands.collect()])
    }
}
