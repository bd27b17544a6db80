//! Row and column visibility for a restricted caller: the SELECT that replaces each table, shared
//! by callers of one kind, and the parameter values of one caller.
//!
//! A restricted query reads no table directly. Each table name expands to a SELECT ([`AuthorizedViews`]),
//! as a view does. Callers of one kind share that text, and so the template; the caller's identity
//! is a parameter. A table without such a SELECT is `no such table`.
//!
//! *Invariant:* no expression of a restricted query is evaluated on a row before the row is known
//! to be visible. Its run time or failure would reveal the row. Such an expression is wrapped in a
//! CASE on the visibility condition (see `guarded`). A few comparisons of indexed columns are
//! exempt; without them SQLite could use no index.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_schema::{Code, Refusal, Value};

use crate::delta::dependency::path;
use crate::plan::fragment::{Fragment, Mark, Piece, quoted};
use crate::plan::from::Derived;
use crate::plan::lower::{Conjunct, Lowering};
use crate::plan::select_core::SelectCore;

/// The visible part of every table, for callers of one kind. Other tables do not exist for them.
#[derive(Debug)]
pub struct AuthorizedViews {
    /// Unique.
    pub(crate) number: u64,
    tables: HashMap<String, String>,
}

impl AuthorizedViews {
    /// An outlook of these tables, each as its name and the SELECT that replaces it.
    #[must_use]
    pub fn new(tables: impl IntoIterator<Item = (String, String)>) -> AuthorizedViews {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let tables = tables.into_iter().map(|(name, sql)| (name.to_ascii_lowercase(), sql));
        AuthorizedViews { number, tables: tables.collect() }
    }

    /// The SELECT that replaces a table.
    #[must_use]
    pub fn select(&self, table: &str) -> Option<&str> {
        self.tables.get(&table.to_ascii_lowercase()).map(String::as_str)
    }
}

/// A caller with restricted visibility.
#[derive(Clone, Debug)]
pub struct QueryPrincipal {
    pub(crate) authorized_views: Arc<AuthorizedViews>,
    values: Arc<BTreeMap<String, Value>>,
    policy_version: PolicyVersion,
}

impl QueryPrincipal {
    /// A caller with this outlook, and the values of the parameters in its SELECTs, by name without
    /// the sigil.
    #[must_use]
    pub fn new(
        authorized_views: Arc<AuthorizedViews>,
        values: BTreeMap<String, Value>,
        policy_version: PolicyVersion,
    ) -> QueryPrincipal {
        QueryPrincipal { authorized_views, values: Arc::new(values), policy_version }
    }

    /// The outlook.
    #[must_use]
    pub fn authorized_views(&self) -> &AuthorizedViews {
        &self.authorized_views
    }

    /// The version of the policies that it was derived from.
    #[must_use]
    pub fn policy_version(&self) -> &PolicyVersion {
        &self.policy_version
    }

    /// The caller's identity and policies.
    pub(crate) fn principal_key(&self) -> PrincipalKey {
        PrincipalKey { policy_version: self.policy_version.clone(), id: self.value("caller_id") }
    }

    /// The value of a parameter; NULL if the caller has none.
    pub(crate) fn value(&self, name: &str) -> Value {
        self.values.get(name).cloned().unwrap_or(Value::Null)
    }
}

/// The caller and the policies of a restricted query. The identity affects the result only through
/// the parameters.
#[derive(Clone, Debug)]
pub(crate) struct PrincipalKey {
    pub(crate) policy_version: PolicyVersion,
    pub(crate) id: Value,
}

/// The version of the policies as of some commit, and whether it is still current.
#[derive(Clone, Debug)]
pub struct PolicyVersion {
    number: u64,
    latest: Arc<AtomicU64>,
}

impl PolicyVersion {
    /// The current version. A change of the policies increments the number before the change
    /// becomes visible.
    #[must_use]
    pub fn latest(latest: &Arc<AtomicU64>) -> PolicyVersion {
        PolicyVersion { number: latest.load(Ordering::SeqCst), latest: Arc::clone(latest) }
    }

    /// Whether the version is still current.
    #[must_use]
    pub fn is_latest(&self) -> bool {
        self.latest.load(Ordering::SeqCst) == self.number
    }
}

impl PartialEq for PolicyVersion {
    fn eq(&self, other: &PolicyVersion) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.latest, &other.latest)
    }
}

impl Eq for PolicyVersion {}

impl Lowering<'_> {
    /// Whether the text was written by a restricted caller.
    pub(crate) fn is_bounded(&self) -> bool {
        self.principal.is_some() && !self.trusted
    }

    /// Wraps the conditions of a restricted caller so that none reveals an invisible row.
    ///
    /// Only [harmless](Fragment::harmless) conditions stay unchanged, so that SQLite can use an
    /// index for them. All others run only after the visibility conditions.
    pub(crate) fn guarded(
        &mut self,
        core: &mut SelectCore,
        conjuncts: Vec<Conjunct>,
    ) -> Vec<Conjunct> {
        if !self.is_bounded() {
            return conjuncts;
        }
        let mut by_rank: Vec<usize> = (0..conjuncts.len()).collect();
        by_rank.sort_by_key(|at| EarlyPredicate::of(core, &conjuncts[*at]));
        let mut kept = vec![false; conjuncts.len()];
        for at in by_rank {
            let probe = EarlyPredicate::of(core, &conjuncts[at]);
            kept[at] = core.probes.keep(probe, core.named_in(&conjuncts[at].condition));
        }
        let guard = |(mut conjunct, kept): (Conjunct, bool)| {
            if !kept {
                let by_value = self.guarded_value(core, &conjunct);
                conjunct.condition =
                    by_value.unwrap_or_else(|| self.seen_first(core, &conjunct.condition));
            }
            conjunct
        };
        conjuncts.into_iter().zip(kept).map(guard).collect()
    }

    /// `indexed = other` of two columns. Only the rows of `other` must be visible before the index
    /// lookup.
    fn guarded_value(&mut self, core: &mut SelectCore, conjunct: &Conjunct) -> Option<Fragment> {
        let (left, right) = &**conjunct.sides.as_ref()?;
        if left.harmless == right.harmless || [left, right].iter().any(|it| it.collation.is_some())
        {
            return None;
        }
        let value = if left.harmless { right } else { left };
        if core.named_in(value) == 0 {
            // A column of an enclosing SELECT. Its row is already known to be visible here.
            return Some(conjunct.condition.clone());
        }
        let kind = self.kind_of(value).filter(|_| value.is_column())?;
        // A CASE would be compared without the column's affinity.
        let mut guarded = Fragment::text("CAST(");
        guarded.push(&self.seen_first(core, value));
        guarded.push_text(&format!("AS {})", kind.sql()));
        let (left, right) = if left.harmless { (left, &guarded) } else { (&guarded, right) };
        let mut condition = left.clone();
        condition.push_text("=");
        condition.push(right);
        Some(condition)
    }

    /// A value on visible rows; NULL on others.
    pub(crate) fn seen_first(&mut self, core: &mut SelectCore, value: &Fragment) -> Fragment {
        match core.guards_of(value) {
            Some(guards) => behind(&guards, value),
            None => value.clone(),
        }
    }

    /// Called once all expressions of a SELECT are known: records the visibility conditions for
    /// those that may become conditions later.
    pub(crate) fn seal(&mut self, core: &mut SelectCore) {
        if !self.is_bounded() {
            return;
        }
        let guards_ask = core.guards.iter().any(|guard| guard.condition.has_subquery());
        let derived = || core.from.iter().filter_map(|term| term.derived.as_ref());
        let mut cores = derived().flat_map(|derived| &derived.query.cores);
        core.opaque = guards_ask || cores.any(|(_, core)| core.opaque);
        core.fenced = core.having.as_ref().is_some_and(|having| !having.harmless);
        self.seal_within(core);
        // Also for queries that run once, because templates are shared by text.
        if core.may_be_restricted() {
            core.visible = core.guards_of(&Fragment::new());
        }
    }

    /// Conditions that connect a subquery with its enclosing rows are also used outside of it, to
    /// route its changes. The rows must be visible there too.
    fn seal_within(&mut self, core: &mut SelectCore) {
        for at in core.block + 1..self.blocks.len() {
            if !path(&self.blocks, at).any(|around| around == core.block) {
                continue;
            }
            for conjunct in self.blocks[at].conjuncts() {
                let condition = &conjunct.condition;
                if condition.harmless || core.named_in(condition) == 0 {
                    continue;
                }
                if let Some(guards) = core.guards_of(condition) {
                    conjunct.condition = behind(&guards, condition);
                }
            }
        }
    }

    /// Reads the SELECT that replaces a table. `None` if the caller is not restricted.
    pub(crate) fn authorized_view_of(&self, table: &str) -> Result<Option<String>, Refusal> {
        let Some(principal) = self.principal.filter(|_| !self.trusted) else { return Ok(None) };
        match principal.authorized_views.select(table) {
            Some(select) => Ok(Some(select.to_owned())),
            None => Err(Refusal::new(Code::BadSql, format!("no such table: {table}"))
                .hint("no table with this name is visible to you")),
        }
    }
}

/// The visibility condition of some terms of a FROM.
#[derive(Clone, Debug)]
pub(crate) struct VisibilityGuard {
    /// The sources of those terms.
    pub(crate) sources: Vec<usize>,
    pub(crate) condition: Fragment,
}

/// A value, or NULL if the guards do not hold. SQLite evaluates only the branch that is taken.
pub(crate) fn behind(guards: &Fragment, value: &Fragment) -> Fragment {
    let mut out = Fragment::text("CASE WHEN");
    out.push(guards);
    out.push_text("THEN (");
    out.push(value);
    out.push_text(") END");
    out
}

/// What a condition of a restricted caller may do before a row is known to be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EarlyPredicate {
    /// Compare columns of two tables for equality.
    Join,
    /// Compare an indexed column with given values.
    Key,
    /// Look an indexed column up in a subquery, which is evaluated once.
    Subquery,
    /// Compare indexed columns in another way.
    Range,
    /// Nothing; it must wait.
    Nothing,
}

impl EarlyPredicate {
    fn of(core: &SelectCore, conjunct: &Conjunct) -> EarlyPredicate {
        match &conjunct.condition {
            condition if !condition.harmless || core.named_in(condition) == 0 => {
                EarlyPredicate::Nothing
            }
            _ if conjunct.sides.is_some() => EarlyPredicate::Join,
            condition if condition.has_subquery() => EarlyPredicate::Subquery,
            _ if conjunct.route.is_of_keys() => EarlyPredicate::Key,
            _ => EarlyPredicate::Range,
        }
    }
}

/// The conditions of one SELECT that run on rows which the caller may not see.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EarlyPredicates {
    comparisons: usize,
    /// Whether a subquery is evaluated if some row meets the other conditions.
    asks: bool,
}

impl EarlyPredicates {
    /// The maximum number of such comparisons in one SELECT. A few cost as little as the index step
    /// that they avoid; thousands of the same would make the run time reveal the row.
    const MOST: usize = 32;

    /// Whether another condition with so many comparisons may be added. A subquery must be the only
    /// one: its evaluation would reveal that a row meets the others.
    fn keep(&mut self, probe: EarlyPredicate, comparisons: usize) -> bool {
        let alone = match probe {
            EarlyPredicate::Nothing => false,
            EarlyPredicate::Join => true,
            EarlyPredicate::Key | EarlyPredicate::Range => !self.asks,
            EarlyPredicate::Subquery => !self.asks && self.comparisons == 0,
        };
        if !alone || self.comparisons + comparisons > EarlyPredicates::MOST {
            return false;
        }
        match probe {
            EarlyPredicate::Join => {}
            EarlyPredicate::Subquery => self.asks = true,
            _ => self.comparisons += comparisons,
        }
        true
    }
}

impl SelectCore {
    /// The sources and subqueries of its FROM that a value names, each mention counted.
    fn named_in(&self, value: &Fragment) -> usize {
        value
            .pieces
            .iter()
            .filter(|piece| self.from.iter().any(|term| term.is_named(piece)))
            .count()
    }

    /// The visibility conditions of the rows that a value names; of all rows if it names none.
    /// `None` if every row is visible.
    pub(crate) fn guards_of(&mut self, value: &Fragment) -> Option<Fragment> {
        let all = self.named_in(value) == 0;
        let named =
            |sources: &[usize]| value.columns().any(|(source, _)| sources.contains(&source)) || all;
        let mut conditions: Vec<Fragment> = Vec::new();
        for guard in &self.guards {
            if named(&guard.sources) {
                conditions.push(guard.condition.clone());
            }
        }
        for term in &mut self.from {
            if all || value.pieces.iter().any(|piece| term.is_named(piece)) {
                conditions.extend(term.derived.as_mut().and_then(|derived| derived.seen()));
            }
        }
        let mut conditions = conditions.into_iter();
        let mut guards = conditions.next()?;
        for condition in conditions {
            guards.push_text("AND");
            guards.push(&condition);
        }
        Some(guards)
    }

    /// A condition on one of its values, behind the visibility conditions.
    pub(crate) fn shielded(&self, value: &Fragment, condition: Fragment) -> Fragment {
        match &self.visible {
            Some(visible) if !value.is_column() => behind(visible, &condition),
            _ => condition,
        }
    }

    /// Whether some rule may turn its outputs, groups or filters into conditions.
    fn may_be_restricted(&self) -> bool {
        let outputs = self.outputs.iter().map(|output| &output.value);
        let by = self.group.iter().flatten().chain(self.frame.partitions.iter().flatten());
        let filters = |value: &Fragment| value.pieces.contains(&Piece::Mark(Mark::Filter));
        let shown = outputs.clone().any(|value| !value.is_column() && !value.is_constant());
        let filtered = outputs.chain(&self.having).any(filters);
        by.into_iter().any(|by| !by.is_column()) || shown || filtered
    }
}

impl Derived {
    /// The visibility of its rows as an extra column, which stays available wherever SQLite moves
    /// conditions on the subquery. `None` if all its rows are visible.
    fn seen(&mut self) -> Option<Fragment> {
        let mut cores: Vec<&mut SelectCore> =
            self.query.cores.iter_mut().map(|(_, core)| core).collect();
        if cores.iter().all(|core| core.seen.is_none()) {
            let guards = cores.iter_mut().map(|core| core.guards_of(&Fragment::new()));
            let guards: Vec<Option<Fragment>> = guards.collect();
            if guards.iter().all(Option::is_none) {
                return None;
            }
            for (core, guards) in cores.iter_mut().zip(guards) {
                core.seen = Some(match guards {
                    // True for every group, but unknown before the group is computed.
                    _ if core.aggregates() => Fragment::text("count(*) >= 0"),
                    None => Fragment::text("1"),
                    Some(guards) => {
                        let mut seen = Fragment::text("(");
                        seen.push(&guards);
                        seen.push_text(") IS TRUE");
                        seen
                    }
                });
            }
        }
        // NULL in an outer join's row without a row of the subquery.
        let mut seen = Fragment::derived(&self.alias, SEEN, (self.number, usize::MAX));
        seen.push_text("IS NOT 0");
        Some(seen)
    }
}

/// The column of a subquery in FROM that says whether its row is visible.
pub(crate) const SEEN: &str = "seen";

/// The SELECT of some columns of a table's rows, restricted to a scope and a condition.
#[must_use]
pub fn select_of(
    table: &str,
    columns: &[&str],
    within: Option<&ScopeMembership<'_>>,
    condition: Option<&str>,
) -> String {
    let shown: Vec<String> =
        columns.iter().map(|column| format!("o0.{}", quoted(column))).collect();
    let mut sql = format!("SELECT {} FROM ", shown.join(", "));
    match condition {
        // A subquery of its own, because the condition names the table's columns.
        Some(condition) => {
            let table = quoted(table);
            sql.push_str(&format!("(SELECT * FROM {table} WHERE ({condition}\n)) AS o0"));
        }
        None => sql.push_str(&format!("{} AS o0", quoted(table))),
    }
    let Some(ScopeMembership { owners, column, keys }) = within else { return sql };
    for (at, owner) in owners.iter().enumerate() {
        let OwnerReference { column, table, key } = owner;
        let (table, column, key) = (quoted(table), quoted(column), quoted(key));
        let next = at + 1;
        sql.push_str(&format!(" JOIN {table} AS o{next} ON o{next}.{key} = o{at}.{column}"));
    }
    let scope = format!("o{}.{}", owners.len(), quoted(column));
    for (at, key) in keys.iter().enumerate() {
        let before = if at > 0 { "AND" } else { "WHERE" };
        // A text, not an array with the same spelling.
        sql.push_str(&format!(
            " {before} json_extract({scope}, '$.\"{key}\"') = :scope_{key} \
             AND json_type({scope}, '$.\"{key}\"') = 'text'"
        ));
    }
    sql
}

/// The requirement that a row belongs to a scope, directly or through its owners.
#[derive(Clone, Debug)]
pub struct ScopeMembership<'a> {
    /// The owner of the row, its owner, and so on.
    pub owners: Vec<OwnerReference>,
    /// The column of the last owner that holds the scope.
    pub column: &'static str,
    /// The scope keys whose values must equal the caller's. Letters, digits and underscores.
    pub keys: &'a [&'a str],
}

/// An owning row that a column refers to.
#[derive(Clone, Copy, Debug)]
pub struct OwnerReference {
    /// The referencing column.
    pub column: &'static str,
    /// The owner's table.
    pub table: &'static str,
    /// The key of that table.
    pub key: &'static str,
}
