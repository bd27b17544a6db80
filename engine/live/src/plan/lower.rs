//! From the parser's tree to fragments: resolves names, numbers parameters, lifts literals, and
//! refuses non-deterministic expressions.

use std::collections::{BTreeMap, HashSet};

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal, Value};
use sqlite3_parser::ast::{
    Expr, FunctionCallOrder, LikeOperator, Literal, Operator, UnaryOperator,
};

use crate::catalog::Catalog;
use crate::delta::dependency::Block;
use crate::plan::expansion::Expansion;
use crate::plan::fragment::{Affinity, Collation, Fragment, PlainExpr, Source};
use crate::plan::from::NamedQuery;
use crate::plan::functions;
use crate::plan::kind;
use crate::plan::lex;
use crate::plan::principal::QueryPrincipal;
use crate::plan::select_core::ExprContext;
use crate::route::Route;

mod aggregate;
mod call;
mod condition;
mod literal;
mod names;
mod subquery;
mod window;

use condition::all_harmless;
pub(crate) use literal::unquote;
pub(crate) use names::require_main;
pub(crate) use window::WindowSpec;

/// The value of a parameter of a template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Slot {
    /// The caller's parameter of this name or number.
    Caller(String),
    /// A literal of the text.
    Literal(Value),
    /// The attribute of this name of a restricted caller.
    Principal(String),
}

/// A table, view or subquery in a FROM clause.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// The name that qualifies its columns.
    pub(crate) name: String,
    /// Its columns and their values.
    pub(crate) columns: Vec<(String, Fragment)>,
    /// The value of `rowid`.
    pub(crate) rowid: Option<Fragment>,
    /// Columns that USING merged with those of an earlier table.
    pub(crate) merged: Vec<String>,
    /// The values of bare column names that USING merged with those of a later table, if they are
    /// not the column itself.
    pub(crate) bare: Vec<(String, Fragment)>,
}

impl Entry {
    /// The column of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&(String, Fragment)> {
        self.columns.iter().find(|(column, _)| column.eq_ignore_ascii_case(name))
    }

    /// The value of a bare column name.
    pub(crate) fn named(&self, name: &str) -> Option<&Fragment> {
        let bare = self.bare.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        bare.or_else(|| self.find(name)).map(|(_, value)| value)
    }

    /// Whether the bare name refers to an earlier table's column.
    pub(crate) fn is_merged(&self, name: &str) -> bool {
        self.merged.iter().any(|merged| merged.eq_ignore_ascii_case(name))
    }
}

/// The names that are visible to an expression.
#[derive(Clone, Default)]
pub(crate) struct Scope<'s> {
    pub(crate) entries: Vec<Entry>,
    /// Names given with AS. Columns take precedence.
    pub(crate) aliases: Vec<(String, Fragment)>,
    /// The enclosing query's scope.
    pub(crate) outer: Option<&'s Scope<'s>>,
    /// The number of enclosing scopes.
    pub(crate) depth: usize,
}

/// Two columns, each of a source.
pub(crate) type EqualColumns = ((usize, usize), (usize, usize));

/// A condition that must hold, and what it requires.
#[derive(Clone, Debug)]
pub(crate) struct Conjunct {
    pub(crate) condition: Fragment,
    pub(crate) route: Route,
    /// The two columns that it equates, byte by byte.
    pub(crate) equal: Option<EqualColumns>,
    /// The two expressions that it equates.
    pub(crate) sides: Option<Box<(Fragment, Fragment)>>,
}

impl Conjunct {
    /// `left = right`, of two columns.
    pub(crate) fn equal_columns(left: &Fragment, right: &Fragment) -> Conjunct {
        let mut condition = left.clone();
        condition.push_text("=");
        condition.push(right);
        condition.harmless = left.harmless && right.harmless;
        let sides = Some(Box::new((left.clone(), right.clone())));
        Conjunct { condition, route: Route::Any, equal: None, sides }
    }
}

/// Lowers one statement.
pub(crate) struct Lowering<'c> {
    pub(crate) catalog: &'c Catalog,
    /// All sources of the statement, from all its FROM clauses.
    pub(crate) sources: Vec<Source>,
    /// Its parameters.
    pub(crate) slots: Vec<Slot>,
    /// The slot of each of the caller's parameters, by SQLite's number and by name.
    numbered: BTreeMap<u32, usize>,
    named: BTreeMap<String, usize>,
    /// The aliases in use.
    pub(crate) aliases_taken: HashSet<String>,
    /// The number of subqueries in FROM.
    pub(crate) subqueries: usize,
    /// All SELECTs, and the current one.
    pub(crate) blocks: Vec<Block>,
    pub(crate) block: Option<usize>,
    /// The visible CTEs.
    pub(crate) named_queries: Vec<NamedQuery>,
    /// What the enclosing SELECT allows and records.
    pub(crate) frame: ExprContext,
    /// Whether compared literals become parameters.
    pub(crate) lifting: bool,
    /// The caller, if its visibility is restricted.
    pub(crate) principal: Option<&'c QueryPrincipal>,
    /// Whether the text is trusted, as a policy is, and sees everything.
    pub(crate) trusted: bool,
    /// Whether the query runs only once, so that non-deterministic expressions are allowed.
    pub(crate) once: bool,
    /// The size of the expanded text so far.
    pub(crate) expansion: Expansion,
    depth: usize,
}

type Lowered<T = Fragment> = Result<T, Refusal>;

impl<'c> Lowering<'c> {
    /// An empty state.
    pub(crate) fn new(catalog: &'c Catalog) -> Lowering<'c> {
        Lowering {
            catalog,
            sources: Vec::new(),
            slots: Vec::new(),
            numbered: BTreeMap::new(),
            named: BTreeMap::new(),
            aliases_taken: HashSet::new(),
            subqueries: 0,
            blocks: Vec::new(),
            block: None,
            named_queries: Vec::new(),
            frame: ExprContext::default(),
            lifting: false,
            principal: None,
            trusted: false,
            once: false,
            expansion: Expansion::default(),
            depth: 0,
        }
    }

    /// Any expression.
    pub(crate) fn expr(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        let (bare, derived) = (self.frame.bare.len(), self.frame.bare_derived.len());
        let lowered = self.deeper(|lower| lower.expr_at(expr, scope))?;
        self.expansion.expression(&lowered)?;
        if self.frame.within {
            return Ok(lowered);
        }
        let by = self.frame.by.iter().find(|by| **by == lowered);
        let Some(lowered) = by.cloned() else { return Ok(lowered) };
        // Only a group expression as a whole is a group value; its parts are not.
        let plain = matches!(lowered.plain, PlainExpr::Column(..)) && lowered.collation.is_none();
        if !plain && !self.frame.allowed {
            return Ok(lowered);
        }
        self.frame.bare.truncate(bare);
        self.frame.bare_derived.truncate(derived);
        Ok(self.representative(&lowered))
    }

    /// The value of a group expression. If equal values can differ (1 and 1.0, 'a' and 'A' by
    /// NOCASE), it picks one independently of the order of rows.
    pub(crate) fn representative(&self, by: &Fragment) -> Fragment {
        if by.fixed || self.form_of(by).is_some() {
            return by.clone();
        }
        // A function result has no affinity; a CAST to the type restores it without changing the
        // values.
        let affinity = self.affinity_of(by);
        let mut out = Fragment::text(if let Affinity::To(_) = affinity { "CAST(" } else { "" });
        // 0.0 + -0.0 is 0.0, whichever of the two min() returns.
        for text in [
            "CASE WHEN min(typeof(",
            ")) <> max(typeof(",
            ")) THEN CAST(min(",
            ") AS INTEGER) WHEN min(typeof(",
            ")) = 'real' THEN min(",
            ") + 0.0 ELSE min((",
        ] {
            out.push_text(text);
            out.push(by);
        }
        out.push_text(") COLLATE BINARY) END");
        if let Affinity::To(name) = affinity {
            out.push_text(&format!("AS {name})"));
        }
        out.aggregates = true;
        out.collation = by.collation;
        out.affinity = affinity;
        out.of_kind(self.kind_of(by))
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
                let (start, end) = (self.operand(start, scope)?, self.operand(end, scope)?);
                self.require_comparable(&out, &start)?;
                self.require_comparable(&out, &end)?;
                out.push_text(if *not { "NOT BETWEEN" } else { "BETWEEN" });
                out.push(&start);
                out.push_text("AND");
                out.push(&end);
                Ok(out.of_kind(Some(Kind::Integer)))
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

    /// An operand of a comparison: a literal becomes a parameter if lifting is on.
    fn operand(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        match literal::liftable(expr) {
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
        Ok(lowered.of_kind(kind::of_literal(literal)).harmless_if(true))
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
        Ok(out.of_kind(Some(Kind::Integer)).harmless_if(harmless))
    }

    /// Chains of operators lean to the left. This loops along the chain, so that a long sum takes
    /// no stack.
    fn binary(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        let (mut first, mut rest) = (expr, Vec::new());
        while let Expr::Binary(left, operator, right) = first
            && !is_comparison(*operator)
        {
            rest.push((*operator, *right));
            first = left;
        }
        let mut out = self.expr(first, scope)?;
        for (operator, right) in rest.into_iter().rev() {
            let right = self.expr(right, scope)?;
            let kind = kind::of_operator(operator, self.kind_of(&out), self.kind_of(&right));
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
        let number = literal::is_integer(operand);
        let operand = self.expr(operand, scope)?;
        let kind = self.kind_of(&operand);
        out.push(&operand);
        Ok(out.of_kind(match operator {
            UnaryOperator::BitwiseNot | UnaryOperator::Not => Some(Kind::Integer),
            UnaryOperator::Negative => kind.filter(|kind| number || *kind == Kind::Real),
            UnaryOperator::Positive => kind,
        }))
    }

    fn collate(&mut self, operand: &Expr, name: &str, scope: &Scope) -> Lowered {
        let collation = collation_of(name)?;
        let mut out = self.expr(operand, scope)?;
        let (plain, kind, affinity) = (out.plain, out.kind, out.affinity);
        let within = out.collates_within;
        let harmless = out.harmless && collation == Collation::Binary;
        out.push_text(&format!("COLLATE {}", collation.sql()));
        (out.plain, out.kind, out.affinity) = (plain, kind, affinity);
        out.harmless = harmless;
        out.collation = Some(collation);
        out.collates_within = within;
        Ok(out)
    }

    fn postfix(&mut self, operand: &Expr, operator: &str, scope: &Scope) -> Lowered {
        let mut out = self.expr(operand, scope)?;
        let harmless = out.harmless;
        out.push_text(operator);
        Ok(out.of_kind(Some(Kind::Integer)).harmless_if(harmless))
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
        Ok(out.of_kind(Some(Kind::Integer)))
    }

    fn in_list(&mut self, left: &Expr, not: bool, list: &[Expr], scope: &Scope) -> Lowered {
        let mut out = self.operand(left, scope)?;
        let list: Vec<Fragment> =
            list.iter().map(|expr| self.operand(expr, scope)).collect::<Lowered<_>>()?;
        list.iter().try_for_each(|item| self.require_comparable(&out, item))?;
        out.push_text(if not { "NOT IN (" } else { "IN (" });
        push_list(&mut out, &list);
        out.push_text(")");
        Ok(out.of_kind(Some(Kind::Integer)))
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
        Ok(out.of_kind(kind::common(kinds)))
    }

    /// The kind of a fragment.
    pub(crate) fn kind_of(&self, fragment: &Fragment) -> Option<Kind> {
        kind::kind_of(self.catalog, &self.sources, fragment)
    }

    /// The affinity of a fragment.
    pub(crate) fn affinity_of(&self, fragment: &Fragment) -> Affinity {
        kind::affinity_of(self.catalog, &self.sources, fragment)
    }

    /// Checks that SQLite's comparison of two values is well defined.
    pub(crate) fn require_comparable(
        &self,
        left: &Fragment,
        right: &Fragment,
    ) -> Result<(), Refusal> {
        if ![left, right].iter().any(|side| self.affinity_of(side) == Affinity::Open) {
            return Ok(());
        }
        let kind = |side: &Fragment| match side.plain {
            PlainExpr::Param(slot) => literal::kind_of(&self.slots[slot]),
            _ => self.kind_of(side),
        };
        let number = |side| matches!(kind(side), Some(Kind::Integer | Kind::Real));
        if (number(left) && number(right)) || kind::common([kind(left), kind(right)]).is_some() {
            return Ok(());
        }
        let what =
            "a comparison of a column that the SELECTs of a compound make of different types";
        Err(unsupported(what).hint("wrap the operands in CAST(… AS …)"))
    }

    /// The kind of a fragment whose equal values are identical.
    pub(crate) fn form_of(&self, fragment: &Fragment) -> Option<Kind> {
        kind::form_of(self.catalog, &self.sources, fragment)
    }

    pub(crate) fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Lowered<T>) -> Lowered<T> {
        if self.depth >= lex::NESTING {
            return Err(lex::too_deep());
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }
}

/// The operands of a chain of one operator, in text order.
fn spine<'e, 'b>(expr: &'e Expr<'b>, operator: Operator) -> Vec<&'e Expr<'b>> {
    let (mut first, mut operands) = (expr, Vec::new());
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

/// Appends a list of fragments.
pub(crate) fn push_list(out: &mut Fragment, list: &[Fragment]) {
    for (at, item) in list.iter().enumerate() {
        if at > 0 {
            out.push_text(",");
        }
        out.push(item);
    }
}

fn is_comparison(operator: Operator) -> bool {
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

fn operator_sql(operator: Operator) -> &'static str {
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

/// The position that a number in ORDER BY or GROUP BY means. SQLite accepts only 32-bit positions.
pub(crate) fn position(expr: &Expr) -> Option<i64> {
    expr.is_integer().filter(|number| i32::try_from(*number).is_ok())
}

/// An expression in ORDER BY or GROUP BY without its parentheses and its trailing COLLATE.
pub(crate) fn without_collation<'e, 'b>(
    expr: &'e Expr<'b>,
) -> Result<(&'e Expr<'b>, Option<Collation>), Refusal> {
    let (mut bare, mut collation) = (expr, None);
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

fn collation_of(name: &str) -> Result<Collation, Refusal> {
    let name = unquote(name);
    Collation::parse(&name).ok_or_else(|| {
        Refusal::new(Code::BadSql, format!("no such collation sequence: {name}"))
            .hint("use BINARY, NOCASE or RTRIM")
    })
}

/// The refusal of a query form without a delta rule.
pub(crate) fn unsupported(what: &str) -> Refusal {
    Refusal::new(Code::UnsupportedSql, format!("{what} cannot be live"))
        .hint("run it once with  abide sql")
}

fn no_function(name: &str) -> Refusal {
    Refusal::new(Code::BadSql, format!("no such function: {name}"))
}
