//! The state of the lowering of one statement: its sources, parameters and SELECTs so far, and the
//! types of its fragments. The files that lower a part of the statement add their methods.

use std::collections::{BTreeMap, HashSet};

use abide_schema::Refusal;
use abide_schema::table::Kind;

use crate::catalog::Catalog;
use crate::plan::block::Block;
use crate::plan::expansion::Expansion;
use crate::plan::fragment::{Affinity, Fragment, Mark, PlainExpr, Source};
use crate::plan::principal::QueryPrincipal;
use crate::plan::query::{ExprContext, Slot};
use crate::plan::scope::NamedQuery;
use crate::plan::syntax::unsupported;
use crate::plan::{kind, lex};

/// Lowers one statement.
pub(crate) struct Lowering<'c> {
    pub(crate) catalog: &'c Catalog,
    /// All sources of the statement, from all its FROM clauses.
    pub(crate) sources: Vec<Source>,
    /// Its parameters.
    pub(crate) slots: Vec<Slot>,
    /// The slot of each of the caller's parameters, by SQLite's number and by name.
    pub(super) numbered: BTreeMap<u32, usize>,
    pub(super) named: BTreeMap<String, usize>,
    /// The aliases in use.
    pub(crate) aliases_taken: HashSet<String>,
    /// The number of subqueries in FROM.
    pub(crate) subqueries: usize,
    /// All SELECTs, and the current one.
    pub(crate) blocks: Vec<Block>,
    pub(crate) block: Option<usize>,
    /// The visible CTEs.
    pub(crate) named_queries: Vec<NamedQuery>,
    /// The permissions and records of the enclosing SELECT.
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

/// A lowered part of the statement, or why it is refused.
pub(crate) type Lowered<T = Fragment> = Result<T, Refusal>;

impl<'c> Lowering<'c> {
    /// Returns the kind of a table's column.
    pub(crate) fn column_kind(&self, column: (usize, usize)) -> Kind {
        let (source, column) = column;
        self.catalog.table(self.sources[source].table).columns[column].kind
    }

    /// Creates an empty state.
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

    /// Returns the value of a group expression. If equal values can differ (1 and 1.0, 'a' and 'A'
    /// by NOCASE), it picks one independently of the order of rows. In a query that runs once it is
    /// only marked: min() and max() would decide from which row other columns come.
    pub(crate) fn representative(&self, by: &Fragment) -> Fragment {
        if by.fixed || self.form_of(by).is_some() {
            return by.clone();
        }
        if self.once {
            let mut marked = by.clone();
            marked.mark(Mark::Chosen);
            return marked;
        }
        let mut out = Fragment::new();
        out.mark(Mark::Chosen);
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
        let mut out = out.with_affinity(self.affinity_of(by));
        out.aggregates = true;
        out.collation = by.collation;
        out.with_kind(self.kind_of(by))
    }

    /// Returns the kind of a fragment.
    pub(crate) fn kind_of(&self, fragment: &Fragment) -> Option<Kind> {
        kind::kind_of(self.catalog, &self.sources, fragment)
    }

    /// Returns the affinity of a fragment.
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
        let kinds = [self.operand_kind(left), self.operand_kind(right)];
        let are_numbers = kinds.iter().all(|kind| matches!(kind, Some(Kind::Integer | Kind::Real)));
        if are_numbers || kind::common(kinds).is_some() {
            return Ok(());
        }
        let what =
            "a comparison of a column that the SELECTs of a compound make of different types";
        Err(unsupported(what).hint("wrap the operands in CAST(… AS …)"))
    }

    /// Returns the kind of a comparison's operand, which may be a literal that became a parameter.
    fn operand_kind(&self, operand: &Fragment) -> Option<Kind> {
        match operand.plain {
            PlainExpr::Param(slot) => self.slots[slot].literal_kind(),
            _ => self.kind_of(operand),
        }
    }

    /// Returns the kind of a fragment whose equal values are identical.
    pub(crate) fn form_of(&self, fragment: &Fragment) -> Option<Kind> {
        kind::form_of(self.catalog, &self.sources, fragment)
    }

    /// Lowers a nested part of the statement. Refuses to nest too deeply.
    pub(crate) fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> Lowered<T>) -> Lowered<T> {
        if self.depth >= lex::NESTING {
            return Err(lex::too_deep());
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }
}
