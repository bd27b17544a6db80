//! Aggregates. Those whose value depends on the order of rows get a total order.
//!
//! Sums of reals are order-dependent too: SQLite rounds at every step, so the last bits depend on
//! the order, and the state before a commit is not scanned in the order of the state after it.

use abide_schema::Refusal;
use abide_schema::table::Kind;
use sqlite3_parser::ast::{NullsOrder, SortOrder, SortedColumn};

use crate::plan::fragment::{Aggregate, Fragment, Mark, PlainExpr, push_list};
use crate::plan::lower::call::{Call, misuse, open};
use crate::plan::lowering::{Lowered, Lowering};
use crate::plan::scope::Scope;
use crate::plan::syntax::unsupported;
use crate::plan::window_spec::order_by;

impl Lowering<'_> {
    /// One value for a group of rows. `sequence`: the value depends on the order of rows.
    pub(super) fn aggregate(&mut self, call: &Call, sequence: bool, scope: &Scope) -> Lowered {
        if !std::mem::take(&mut self.frame.aggregates_allowed) {
            return Err(misuse(&format!("misuse of aggregate function {}()", call.name)));
        }
        let windowed = std::mem::take(&mut self.frame.windowed);
        self.frame.in_aggregate = true;
        let reads = std::mem::take(&mut self.frame.reads);
        let arguments = self.arguments(call, scope)?;
        self.require_no_collation(call, &arguments)?;
        let order = self.order_within(call, sequence, &arguments, scope)?;
        let filter = call.filter().map(|filter| self.expr(filter, scope)).transpose()?;
        require_own_columns(call, self.frame.reads, scope)?;
        self.frame.reads |= reads;
        // Only these collect their values.
        let read: Vec<Fragment> =
            arguments.iter().map(|value| self.read(value, usize::from(sequence))).collect();
        let mut out = Fragment::new();
        out.mark(Mark::Aggregate(kept_by(call, &arguments, sequence)));
        match read.as_slice() {
            [only] if is_extreme(call) && self.form_of(only).is_none() => {
                out.push(&self.extreme(call, only, &order, filter.as_ref()));
            }
            _ => out.push(&write_call(call, &read, &order, filter.as_ref())),
        }
        out.mark(Mark::End);
        self.frame.in_aggregate = false;
        self.frame.windowed = windowed;
        self.frame.aggregates_allowed = true;
        self.frame.aggregate = true;
        out.aggregates = true;
        Ok(out.with_kind(self.kind_of_call(call, &arguments)))
    }

    /// min() or max() of an expression that can be an integer in one row and an equal real in
    /// another, or 0.0 and -0.0: independently of the order of rows, as
    /// [`Lowering::representative`].
    fn extreme(
        &self,
        call: &Call,
        only: &Fragment,
        order: &Fragment,
        filter: Option<&Fragment>,
    ) -> Fragment {
        let mut out = Fragment::new();
        out.mark(Mark::Chosen);
        let extreme = write_call(call, std::slice::from_ref(only), order, filter);
        if self.once {
            out.push(&extreme);
            return out;
        }
        let mut integer = Fragment::text("CASE typeof(");
        integer.push(only);
        integer.push_text(") WHEN 'integer' THEN");
        integer.push(only);
        integer.push_text("END");
        let integer = write_call(call, &[integer], order, filter);
        out.push_text("CASE WHEN");
        out.push(&integer);
        out.push_text("=");
        out.push(&extreme);
        out.push_text("THEN");
        out.push(&integer);
        out.push_text("WHEN typeof(");
        out.push(&extreme);
        // 0.0 + -0.0 is 0.0.
        out.push_text(") = 'real' THEN");
        out.push(&extreme);
        out.push_text("+ 0.0 ELSE");
        out.push(&extreme);
        out.push_text("END");
        out
    }

    /// Refuses min() and max() with a collation: among equal texts the result would be arbitrary.
    pub(super) fn require_no_collation(
        &self,
        call: &Call,
        arguments: &[Fragment],
    ) -> Result<(), Refusal> {
        if is_extreme(call) && arguments.iter().any(Fragment::has_collation) {
            let hint =
                "a collation treats different texts as equal: use min(lower(…)) or max(lower(…))";
            return Err(unsupported("min() or max() with COLLATE").hint(hint));
        }
        Ok(())
    }

    /// ORDER BY within the call: as written, then by the key of the rows.
    fn order_within(
        &mut self,
        call: &Call,
        sequence: bool,
        arguments: &[Fragment],
        scope: &Scope,
    ) -> Lowered {
        let mut terms = Vec::new();
        for term in call.order {
            terms.push((self.expr(&term.expr, scope)?, direction(term)));
        }
        if call.distinct {
            return self.order_of_distinct(call, sequence, arguments, terms);
        }
        let rounds = self.rounds(call, arguments);
        if !sequence && !rounds && terms.is_empty() {
            return Ok(Fragment::new());
        }
        match self.frame.rows.clone() {
            Some(rows) => terms.extend(rows.into_iter().map(|row| (row, String::new()))),
            None if sequence => return Err(no_key(&call.name)),
            None if rounds => {
                // Equal values of one type add up to the same sum in any order.
                for argument in arguments {
                    let mut kind = Fragment::text("typeof(");
                    kind.push(argument);
                    kind.push_text(")");
                    terms.push((argument.clone(), String::new()));
                    terms.push((kind, String::new()));
                }
            }
            None => {}
        }
        Ok(order_by(&terms))
    }

    /// `true` if it sums values that may be reals. (Integer sums are exact in any order until they
    /// overflow 64 bits.)
    fn rounds(&self, call: &Call, arguments: &[Fragment]) -> bool {
        let sums = ["sum", "total", "avg"].iter().any(|it| call.name.eq_ignore_ascii_case(it));
        sums && arguments.iter().any(|only| self.kind_of(only) != Some(Kind::Integer))
    }

    /// DISTINCT keeps one of several equal values. They must be identical, and no other column of
    /// their rows may matter.
    fn order_of_distinct(
        &self,
        call: &Call,
        sequence: bool,
        arguments: &[Fragment],
        mut terms: Vec<(Fragment, String)>,
    ) -> Lowered {
        let [only] = arguments else {
            return Err(misuse("DISTINCT aggregates must have exactly one argument"));
        };
        let sums = call.name.eq_ignore_ascii_case("sum");
        if (sequence || sums) && self.form_of(only).is_none() {
            let what = format!(
                "{}(DISTINCT …) of an expression with more than one possible type",
                call.name
            );
            return Err(unsupported(&what).hint("wrap it in CAST(… AS …)"));
        }
        if !sequence && !self.rounds(call, arguments) {
            return Ok(Fragment::new());
        }
        if terms.iter().any(|(value, _)| value != only) {
            let what = format!("{}(DISTINCT …) ordered by another expression", call.name);
            return Err(unsupported(&what).hint("order it by its argument"));
        }
        if terms.is_empty() {
            terms.push((only.clone(), String::new()));
        }
        Ok(order_by(&terms))
    }
}

/// `true` if a call is min() or max().
pub(super) fn is_extreme(call: &Call) -> bool {
    ["min", "max"].iter().any(|name| call.name.eq_ignore_ascii_case(name))
}

/// Returns the call of an aggregate with these arguments.
fn write_call(
    call: &Call,
    arguments: &[Fragment],
    order: &Fragment,
    filter: Option<&Fragment>,
) -> Fragment {
    let mut out = open(call);
    out.mark(Mark::Argument);
    push_list(&mut out, arguments);
    out.mark(Mark::ArgumentEnd);
    out.push(order);
    out.push_text(")");
    push_filter(&mut out, filter);
    out
}

/// An aggregate over columns of an enclosing query only belongs to that query, not to the FROM
/// next to it.
fn require_own_columns(call: &Call, reads: u128, scope: &Scope) -> Result<(), Refusal> {
    let own = 1 << scope.depth;
    let around = own - 1;
    if reads & around == 0 || reads & own != 0 {
        return Ok(());
    }
    Err(unsupported(&format!("{}() over columns of an enclosing query only", call.name))
        .hint("move it to the enclosing query"))
}

/// How an aggregate is maintained. An order-dependent one (`sequence`) is recomputed from its
/// group's rows. An extremum is maintained only for a column: among equal but not identical values
/// it would be arbitrary.
fn kept_by(call: &Call, arguments: &[Fragment], sequence: bool) -> Aggregate {
    let name = call.name.to_ascii_lowercase();
    match (name.as_str(), arguments) {
        _ if sequence || !call.order.is_empty() => Aggregate::Other,
        ("min", [only]) if matches!(only.plain, PlainExpr::Column(..)) => Aggregate::Min,
        ("max", [only]) if matches!(only.plain, PlainExpr::Column(..)) => Aggregate::Max,
        _ if call.distinct => Aggregate::Other,
        ("count", []) if call.filter().is_none() => Aggregate::Rows,
        ("count", _) => Aggregate::Count,
        ("sum", [_]) => Aggregate::Sum,
        ("total", [_]) => Aggregate::Total,
        ("avg", [_]) => Aggregate::Average,
        _ => Aggregate::Other,
    }
}

/// Appends FILTER.
pub(super) fn push_filter(out: &mut Fragment, filter: Option<&Fragment>) {
    if let Some(filter) = filter {
        out.push_text("FILTER (WHERE");
        out.mark(Mark::Filter);
        out.push(filter);
        out.mark(Mark::FilterEnd);
        out.push_text(")");
    }
}

/// Returns the refusal if the order of rows matters and the rows have no key.
pub(super) fn no_key(name: &str) -> Refusal {
    unsupported(&format!("{name}() over rows without a unique key"))
        .hint("select the keys of the tables in every subquery of FROM")
}

/// Returns the direction of an order term.
pub(super) fn direction(term: &SortedColumn) -> String {
    let order = match term.order {
        Some(SortOrder::Desc) => "DESC",
        Some(SortOrder::Asc) | None => "",
    };
    let nulls = match term.nulls {
        Some(NullsOrder::First) => " NULLS FIRST",
        Some(NullsOrder::Last) => " NULLS LAST",
        None => "",
    };
    format!("{order}{nulls}").trim().to_owned()
}
