//! From the parser's tree to fragments: names resolved, parameters numbered, literals lifted, and what
//! is not deterministic refused.

use std::collections::{BTreeMap, HashSet};

use abide_schema::{Code, Refusal, Value};
use sqlite3_parser::ast::{Expr, FunctionTail, LikeOperator, Literal, Operator, UnaryOperator};

use crate::catalog::Catalog;
use crate::core::Frame;
use crate::fragment::{Collation, Fragment, Plain, Source};
use crate::from::Named;
use crate::functions;
use crate::lex;
use crate::reach::Block;
use crate::route::{Equality, Route, Test};

mod call;
mod literal;
mod subquery;

pub(crate) use literal::unquote;

/// What a parameter of a template is filled with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Slot {
    /// The caller's value of this name or number.
    Caller(String),
    /// A literal of the text.
    Literal(Value),
}

/// A table, view or subquery in a FROM clause.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The name its columns may be qualified with.
    pub(crate) name: String,
    /// Its columns and what each of them is.
    pub(crate) columns: Vec<(String, Fragment)>,
    /// What `rowid` is.
    pub(crate) rowid: Option<Fragment>,
    /// Columns that USING made one with those of an earlier table.
    pub(crate) merged: Vec<String>,
}

impl Entry {
    /// The column of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&(String, Fragment)> {
        self.columns.iter().find(|(column, _)| column.eq_ignore_ascii_case(name))
    }

    /// Whether the bare name means an earlier table's column.
    pub(crate) fn is_merged(&self, name: &str) -> bool {
        self.merged.iter().any(|merged| merged.eq_ignore_ascii_case(name))
    }
}

/// The names that an expression may use.
#[derive(Clone, Default)]
pub(crate) struct Scope<'s> {
    pub(crate) entries: Vec<Entry>,
    /// Names given with AS, which come after the columns.
    pub(crate) aliases: Vec<(String, Fragment)>,
    /// Around this query.
    pub(crate) outer: Option<&'s Scope<'s>>,
}

/// Two columns, each of a source.
pub(crate) type EqualColumns = ((usize, usize), (usize, usize));

/// A condition that must hold, and what it demands.
#[derive(Clone, Debug)]
pub(crate) struct Conjunct {
    pub(crate) condition: Fragment,
    pub(crate) route: Route,
    /// The two columns that it says are equal, byte by byte.
    pub(crate) equal: Option<EqualColumns>,
}

impl Conjunct {
    /// `left = right`, of two columns.
    pub(crate) fn equal_columns(left: &Fragment, right: &Fragment) -> Conjunct {
        let mut condition = left.clone();
        condition.push_text("=");
        condition.push(right);
        Conjunct { condition, route: Route::Any, equal: columns_of(left, right) }
    }
}

/// Lowers one statement.
pub(crate) struct Lower<'c> {
    pub(crate) catalog: &'c Catalog,
    /// All sources of the statement, of all its FROM clauses.
    pub(crate) sources: Vec<Source>,
    /// Its parameters.
    pub(crate) slots: Vec<Slot>,
    /// The slot of each of the caller's parameters, by SQLite's number for it.
    numbered: BTreeMap<u32, usize>,
    named: BTreeMap<String, u32>,
    /// The names that sources go by.
    pub(crate) aliases_taken: HashSet<String>,
    /// Every SELECT, and the one that is being lowered.
    pub(crate) blocks: Vec<Block>,
    pub(crate) block: Option<usize>,
    /// The CTEs in sight.
    pub(crate) named_queries: Vec<Named>,
    /// What the SELECT around this expression allows and notes.
    pub(crate) frame: Frame,
    /// Whether literals that are compared become parameters here.
    pub(crate) lifting: bool,
    /// Whether `?` may stand here: not in a text that is read more than once.
    pub(crate) by_position: bool,
    depth: usize,
}

type Lowered<T = Fragment> = Result<T, Refusal>;

impl<'c> Lower<'c> {
    /// Nothing lowered yet.
    pub(crate) fn new(catalog: &'c Catalog) -> Lower<'c> {
        Lower {
            catalog,
            sources: Vec::new(),
            slots: Vec::new(),
            numbered: BTreeMap::new(),
            named: BTreeMap::new(),
            aliases_taken: HashSet::new(),
            blocks: Vec::new(),
            block: None,
            named_queries: Vec::new(),
            frame: Frame::default(),
            lifting: false,
            by_position: true,
            depth: 0,
        }
    }

    /// A condition as the conjuncts that it consists of. Compared literals become parameters.
    pub(crate) fn conjuncts(&mut self, expr: &Expr, scope: &Scope) -> Lowered<Vec<Conjunct>> {
        let lifting = std::mem::replace(&mut self.lifting, true);
        let conjuncts = spine(expr, Operator::And)
            .into_iter()
            .map(|expr| {
                let equal = self.equal_columns(expr, scope)?;
                let (condition, route) = self.condition(expr, scope)?;
                Ok(Conjunct { condition, route, equal })
            })
            .collect();
        self.lifting = lifting;
        conjuncts
    }

    /// The two columns that a conjunct says are equal.
    fn equal_columns(&mut self, expr: &Expr, scope: &Scope) -> Lowered<Option<EqualColumns>> {
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
                Ok(columns_of(&self.expr(left, scope)?, &self.expr(right, scope)?))
            }
            _ => Ok(None),
        }
    }

    fn condition(&mut self, expr: &Expr, scope: &Scope) -> Lowered<(Fragment, Route)> {
        self.deeper(|lower| match expr {
            Expr::Parenthesized(inner) if inner.len() == 1 => {
                let (condition, route) = lower.condition(&inner[0], scope)?;
                Ok((condition.parenthesized(), route))
            }
            Expr::Binary(_, operator @ (Operator::And | Operator::Or), _) => {
                lower.junction(expr, *operator, scope)
            }
            Expr::Binary(left, operator @ (Operator::Equals | Operator::Is), right) => {
                let left = lower.operand(left, scope)?;
                let right = lower.operand(right, scope)?;
                let route = equality(&left, &right, *operator == Operator::Is);
                let mut condition = left;
                condition.push_text(operator_sql(*operator));
                condition.push(&right);
                Ok((condition, route))
            }
            Expr::Binary(left, operator, right) if is_comparison(*operator) => {
                let left = lower.operand(left, scope)?;
                let right = lower.operand(right, scope)?;
                let route = match operator {
                    Operator::Less | Operator::LessEquals => {
                        bound(&left, Test::AtMost, &right).and(bound(&right, Test::AtLeast, &left))
                    }
                    Operator::Greater | Operator::GreaterEquals => {
                        bound(&left, Test::AtLeast, &right).and(bound(&right, Test::AtMost, &left))
                    }
                    _ => Route::Any,
                };
                let mut condition = left;
                condition.push_text(operator_sql(*operator));
                condition.push(&right);
                Ok((condition, route))
            }
            Expr::Between { lhs, not: false, start, end } => {
                let left = lower.operand(lhs, scope)?;
                let (start, end) = (lower.operand(start, scope)?, lower.operand(end, scope)?);
                let route =
                    bound(&left, Test::AtLeast, &start).and(bound(&left, Test::AtMost, &end));
                let mut condition = left;
                condition.push_text("BETWEEN");
                condition.push(&start);
                condition.push_text("AND");
                condition.push(&end);
                Ok((condition, route))
            }
            Expr::Like { lhs, not: false, op, rhs, escape: None }
                if matches!(op, LikeOperator::Like | LikeOperator::Glob) =>
            {
                let (left, right) = (lower.operand(lhs, scope)?, lower.operand(rhs, scope)?);
                let like = *op == LikeOperator::Like;
                let route = bound(&left, if like { Test::Like } else { Test::Glob }, &right);
                let mut condition = left;
                condition.push_text(if like { "LIKE" } else { "GLOB" });
                condition.push(&right);
                Ok((condition, route))
            }
            Expr::InList { lhs, not: false, rhs: Some(list) } => {
                let left = lower.operand(lhs, scope)?;
                let list: Vec<Fragment> =
                    list.iter().map(|expr| lower.operand(expr, scope)).collect::<Lowered<_>>()?;
                let route = membership(&left, &list);
                let mut condition = left;
                condition.push_text("IN (");
                push_list(&mut condition, &list);
                condition.push_text(")");
                Ok((condition, route))
            }
            Expr::InSelect { lhs, not: false, rhs } => {
                Ok((lower.in_select(lhs, subquery::Membership::Demanded, rhs, scope)?, Route::Any))
            }
            other => Ok((lower.expr(other, scope)?, Route::Any)),
        })
    }

    fn junction(
        &mut self,
        expr: &Expr,
        operator: Operator,
        scope: &Scope,
    ) -> Lowered<(Fragment, Route)> {
        let mut whole: Option<(Fragment, Route)> = None;
        for operand in spine(expr, operator) {
            let (condition, route) = self.condition(operand, scope)?;
            whole = Some(match whole {
                None => (condition, route),
                Some((mut left, left_route)) => {
                    left.push_text(operator_sql(operator));
                    left.push(&condition);
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

    /// Any expression.
    pub(crate) fn expr(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        let (bare, derived) = (self.frame.bare.len(), self.frame.bare_derived);
        let lowered = self.deeper(|lower| lower.expr_at(expr, scope))?;
        if self.frame.within || !self.frame.by.contains(&lowered) {
            return Ok(lowered);
        }
        // A group expression, whole: what it consists of no longer stands by itself.
        let plain = matches!(lowered.plain, Plain::Column(..)) && lowered.collation.is_none();
        if !plain && !self.frame.allowed {
            return Ok(lowered);
        }
        self.frame.bare.truncate(bare);
        self.frame.bare_derived = derived;
        Ok(self.representative(&lowered))
    }

    /// The value of a group expression. Where values that are equal may yet differ (1 and 1.0, 'a' and
    /// 'A' by NOCASE), the one that does not depend on the order of the rows.
    pub(crate) fn representative(&self, by: &Fragment) -> Fragment {
        if matches!(by.plain, Plain::Column(..)) && by.collation.is_none() {
            return by.clone();
        }
        let mut out = Fragment::new();
        for text in [
            "CASE WHEN min(typeof(",
            ")) = max(typeof(",
            ")) THEN min((",
            ") COLLATE BINARY) ELSE CAST(min(",
        ] {
            out.push_text(text);
            out.push(by);
        }
        out.push_text(") AS INTEGER) END");
        out.aggregates = true;
        out.collation = by.collation;
        out
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
                out.push_text(if *not { "NOT BETWEEN" } else { "BETWEEN" });
                out.push(&self.operand(start, scope)?);
                out.push_text("AND");
                out.push(&self.operand(end, scope)?);
                Ok(out)
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
                    ordered: order_by.is_some(),
                    tail: filter_over.as_ref(),
                };
                self.call(&call, scope)
            }
            Expr::FunctionCallStar { name, filter_over } => {
                let tail: Option<&FunctionTail> = filter_over.as_ref();
                let name = unquote(name.0);
                let call = call::Call {
                    name,
                    distinct: false,
                    arguments: &[],
                    star: true,
                    ordered: false,
                    tail,
                };
                self.call(&call, scope)
            }
            Expr::Exists(select) => self.exists(select, scope),
            Expr::Subquery(select) => self.scalar(select, scope),
            Expr::InSelect { lhs, not, rhs } => {
                let membership =
                    if *not { subquery::Membership::Denied } else { subquery::Membership::Asked };
                self.in_select(lhs, membership, rhs, scope)
            }
            Expr::InTable { .. } => Err(unsupported("IN with a table")),
            Expr::Raise(..) => {
                Err(Refusal::new(Code::BadSql, "RAISE() may only be used within a trigger-program"))
            }
        }
    }

    /// An operand of a comparison: a literal becomes a parameter where that is wanted.
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
        Ok(match literal {
            Literal::Numeric(text) | Literal::String(text) => Fragment::text(text),
            Literal::Blob(hex) => Fragment::text(&format!("x'{hex}'")),
            Literal::Keyword(word) => Fragment::text(word),
            Literal::Null => Fragment::text("NULL"),
            Literal::CurrentDate => return Err(functions::not_deterministic("CURRENT_DATE")),
            Literal::CurrentTime => return Err(functions::not_deterministic("CURRENT_TIME")),
            Literal::CurrentTimestamp => {
                return Err(functions::not_deterministic("CURRENT_TIMESTAMP"));
            }
        })
    }

    /// A parameter, numbered as SQLite numbers it: `?` takes the next number, `?7` its own, a name the
    /// next one when it is first met.
    fn variable(&mut self, name: &str) -> Lowered {
        let next = self.numbered.last_key_value().map_or(1, |(last, _)| last + 1);
        let (number, key) = if name.is_empty() {
            if !self.by_position {
                return Err(unsupported(
                    "? in what is read more than once (WITH, or a column that is grouped by)",
                )
                .hint("write ?1 or :name"));
            }
            (next, next.to_string())
        } else if name.bytes().all(|b| b.is_ascii_digit()) {
            let number = name.parse().ok().filter(|number: &u32| (1..=32_766).contains(number));
            let number = number.ok_or_else(|| {
                Refusal::new(Code::BadSql, "variable number must be between ?1 and ?32766")
            })?;
            (number, number.to_string())
        } else {
            let key = name.get(1..).filter(|_| !name.starts_with('#')).ok_or_else(|| {
                Refusal::new(Code::BadSql, format!("near \"{name}\": syntax error"))
            })?;
            (*self.named.entry(key.to_owned()).or_insert(next), key.to_owned())
        };
        let slots = &mut self.slots;
        let slot = *self.numbered.entry(number).or_insert_with(|| {
            slots.push(Slot::Caller(key));
            slots.len() - 1
        });
        Ok(Fragment::param(slot))
    }

    fn name(&mut self, raw: &str, scope: &Scope) -> Lowered {
        let name = unquote(raw);
        let mut level = Some(scope);
        while let Some(scope) = level {
            if let Some(found) = in_scope(None, &name, scope)? {
                self.note(&found);
                return Ok(found);
            }
            let alias = scope.aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(&name));
            if let Some((_, value)) = alias {
                if value.aggregates && !self.frame.allowed {
                    let detail = format!("misuse of aliased aggregate {name}");
                    return Err(Refusal::new(Code::BadSql, detail));
                }
                return Ok(value.parenthesized());
            }
            level = scope.outer;
        }
        let bare = raw == name;
        if bare && (name.eq_ignore_ascii_case("true") || name.eq_ignore_ascii_case("false")) {
            return Ok(Fragment::text(&name.to_ascii_uppercase()));
        }
        let refusal = Refusal::new(Code::BadSql, format!("no such column: {name}"));
        Err(if raw.starts_with('"') {
            refusal.hint(format!("write a text in single quotes: '{name}'"))
        } else {
            refusal.hint("GET /v1/schema lists the columns of every table")
        })
    }

    fn note(&mut self, found: &Fragment) {
        if !self.frame.within {
            self.frame.note(found);
        }
    }

    fn qualified(&mut self, table: &str, column: &str, scope: &Scope) -> Lowered {
        let column = unquote(column);
        let mut level = Some(scope);
        while let Some(scope) = level {
            if let Some(found) = in_scope(Some(table), &column, scope)? {
                self.note(&found);
                return Ok(found);
            }
            level = scope.outer;
        }
        Err(Refusal::new(Code::BadSql, format!("no such column: {table}.{column}"))
            .hint("GET /v1/schema lists the columns of every table"))
    }

    fn parenthesized(&mut self, items: &[Expr], scope: &Scope) -> Lowered {
        if let [only] = items {
            return Ok(self.expr(only, scope)?.parenthesized());
        }
        let mut out = Fragment::text("(");
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_text(",");
            }
            out.push(&self.expr(item, scope)?);
        }
        out.push_text(")");
        Ok(out)
    }

    fn comparison(&mut self, expr: &Expr, scope: &Scope) -> Lowered {
        let Expr::Binary(left, operator, right) = expr else { return self.expr(expr, scope) };
        let mut out = self.operand(left, scope)?;
        out.push_text(operator_sql(*operator));
        out.push(&self.operand(right, scope)?);
        Ok(out)
    }

    /// Chains of operators lean to the left: walked along, not down, so that a long sum of terms
    /// costs no stack.
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
            out.push_text(operator_sql(operator));
            out.push(&self.expr(right, scope)?);
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
        out.push(&self.expr(operand, scope)?);
        Ok(out)
    }

    fn collate(&mut self, operand: &Expr, name: &str, scope: &Scope) -> Lowered {
        let name = unquote(name);
        let collation = Collation::parse(&name).ok_or_else(|| {
            Refusal::new(Code::BadSql, format!("no such collation sequence: {name}"))
                .hint("there are BINARY, NOCASE and RTRIM")
        })?;
        let mut out = self.expr(operand, scope)?;
        let plain = out.plain;
        let within = out.collates_within;
        out.push_text(&format!("COLLATE {}", collation.sql()));
        out.plain = plain;
        out.collation = Some(collation);
        out.collates_within = within;
        Ok(out)
    }

    fn postfix(&mut self, operand: &Expr, operator: &str, scope: &Scope) -> Lowered {
        let mut out = self.expr(operand, scope)?;
        out.push_text(operator);
        Ok(out)
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
        out.push(&self.operand(right, scope)?);
        if let Some(escape) = escape {
            out.push_text("ESCAPE");
            out.push(&self.expr(escape, scope)?);
        }
        Ok(out)
    }

    fn in_list(&mut self, left: &Expr, not: bool, list: &[Expr], scope: &Scope) -> Lowered {
        let mut out = self.operand(left, scope)?;
        out.push_text(if not { "NOT IN (" } else { "IN (" });
        let list: Vec<Fragment> =
            list.iter().map(|expr| self.operand(expr, scope)).collect::<Lowered<_>>()?;
        push_list(&mut out, &list);
        out.push_text(")");
        Ok(out)
    }

    fn case(
        &mut self,
        base: Option<&Expr>,
        pairs: &[(Expr, Expr)],
        otherwise: Option<&Expr>,
        scope: &Scope,
    ) -> Lowered {
        let mut out = Fragment::text("CASE");
        if let Some(base) = base {
            out.push(&self.expr(base, scope)?);
        }
        for (when, then) in pairs {
            out.push_text("WHEN");
            out.push(&self.expr(when, scope)?);
            out.push_text("THEN");
            out.push(&self.expr(then, scope)?);
        }
        if let Some(otherwise) = otherwise {
            out.push_text("ELSE");
            out.push(&self.expr(otherwise, scope)?);
        }
        out.push_text("END");
        Ok(out)
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

/// The operands of a chain of one operator, in the order they are written.
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

fn in_scope(table: Option<&str>, column: &str, scope: &Scope) -> Lowered<Option<Fragment>> {
    let entries = || {
        scope
            .entries
            .iter()
            .filter(|entry| table.is_none_or(|table| entry.name.eq_ignore_ascii_case(table)))
    };
    let mut found = entries()
        .filter(|entry| table.is_some() || !entry.is_merged(column))
        .flat_map(|entry| &entry.columns)
        .filter(|(name, _)| name.eq_ignore_ascii_case(column));
    if let Some((_, fragment)) = found.next() {
        if found.next().is_some() {
            let name = table.map_or(column.to_owned(), |table| format!("{table}.{column}"));
            return Err(Refusal::new(Code::BadSql, format!("ambiguous column name: {name}"))
                .hint("say of which table: t.column"));
        }
        return Ok(Some(fragment.parenthesized()));
    }
    let is_rowid = ["rowid", "oid", "_rowid_"].iter().any(|name| name.eq_ignore_ascii_case(column));
    let mut with_rowid = entries();
    if is_rowid
        && let (Some(Entry { rowid: Some(rowid), .. }), None) =
            (with_rowid.next(), with_rowid.next())
    {
        return Ok(Some(rowid.clone()));
    }
    Ok(None)
}

/// The two columns of an equality that compares bytes.
fn columns_of(left: &Fragment, right: &Fragment) -> Option<EqualColumns> {
    let binary = |fragment: &Fragment| fragment.collation.is_none_or(|c| c == Collation::Binary);
    match (left.plain, right.plain) {
        (Plain::Column(a, b), Plain::Column(c, d)) if binary(left) && binary(right) => {
            Some(((a, b), (c, d)))
        }
        _ => None,
    }
}

/// `column = parameter`, either way round.
fn equality(left: &Fragment, right: &Fragment, nulls_match: bool) -> Route {
    let collation = left.collation.or(right.collation).unwrap_or(Collation::Binary);
    match (left.plain, right.plain) {
        (Plain::Column(source, column), Plain::Param(slot))
        | (Plain::Param(slot), Plain::Column(source, column)) => {
            let (test, values) = (Test::Among, vec![slot]);
            Route::equality(Equality { test, source, column, collation, nulls_match, values })
        }
        _ => Route::Any,
    }
}

/// A column bounded by a parameter.
fn bound(column: &Fragment, test: Test, param: &Fragment) -> Route {
    let collation = match test {
        Test::Like => Collation::NoCase,
        Test::Glob => Collation::Binary,
        _ => column.collation.or(param.collation).unwrap_or(Collation::Binary),
    };
    let compares_bytes = collation == Collation::Binary || test == Test::Like;
    match (column.plain, param.plain) {
        (Plain::Column(source, column), Plain::Param(slot)) if compares_bytes => {
            let (nulls_match, values) = (false, vec![slot]);
            Route::equality(Equality { test, source, column, collation, nulls_match, values })
        }
        _ => Route::Any,
    }
}

/// `column IN (parameters)`.
fn membership(left: &Fragment, list: &[Fragment]) -> Route {
    let slots: Option<Vec<usize>> = list
        .iter()
        .map(|item| match item.plain {
            Plain::Param(slot) if item.collation.is_none() => Some(slot),
            _ => None,
        })
        .collect();
    match (left.plain, slots) {
        (Plain::Column(source, column), Some(values)) => Route::equality(Equality {
            test: Test::Among,
            source,
            column,
            collation: left.collation.unwrap_or(Collation::Binary),
            nulls_match: false,
            values,
        }),
        _ => Route::Any,
    }
}

fn push_list(out: &mut Fragment, list: &[Fragment]) {
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

/// Only the database itself may be named as a schema.
pub(crate) fn require_main(schema: &str) -> Result<(), Refusal> {
    let schema = unquote(schema);
    if schema.eq_ignore_ascii_case("main") {
        return Ok(());
    }
    Err(Refusal::new(Code::BadSql, format!("unknown database {schema}")))
}

/// The refusal of what has no rule yet.
pub(crate) fn unsupported(what: &str) -> Refusal {
    Refusal::new(Code::UnsupportedSql, format!("{what} cannot be live"))
        .hint("run it once with  abide sql")
}

fn no_function(name: &str) -> Refusal {
    Refusal::new(Code::BadSql, format!("no such function: {name}"))
}
