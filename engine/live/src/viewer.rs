//! Who asks, where that bounds what may be seen: of each table the rows and columns that it shows to
//! callers of one kind, as SQL, and the values of one of them.
//!
//! A bounded query names no table: in the place of a table's name stands a SELECT of ours
//! ([`Outlook`]), as a view's text would. Callers of one kind share the text, and so the template; who
//! they are is a parameter. What has no text here is `no such table`.
//!
//! *Invariant:* no expression of a bounded query is evaluated of a row before it is certain that the
//! row may be seen: its time, or whether it failed, would tell of the row. Such a condition stands
//! within a CASE of what lets the row be seen (see `guarded`). The exception are a few comparisons of
//! indexed columns, without which SQLite could use no index.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_schema::{Code, Refusal, Value};

use crate::core::Core;
use crate::fragment::{Fragment, Mark, Piece, quoted};
use crate::from::Derived;
use crate::lower::{Conjunct, Lower};
use crate::reach::path;

/// What every table shows to the callers of one kind. What is not in it is not there for them.
#[derive(Debug)]
pub struct Outlook {
    /// No two are numbered alike.
    pub(crate) number: u64,
    tables: HashMap<String, String>,
}

impl Outlook {
    /// Of these tables, each by its name and the SELECT that stands for it.
    #[must_use]
    pub fn new(tables: impl IntoIterator<Item = (String, String)>) -> Outlook {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let tables = tables.into_iter().map(|(name, sql)| (name.to_ascii_lowercase(), sql));
        Outlook { number, tables: tables.collect() }
    }

    /// The SELECT that stands for a table.
    #[must_use]
    pub fn select(&self, table: &str) -> Option<&str> {
        self.tables.get(&table.to_ascii_lowercase()).map(String::as_str)
    }
}

/// A caller whose sight is bounded.
#[derive(Clone, Debug)]
pub struct Viewer {
    pub(crate) outlook: Arc<Outlook>,
    values: Arc<BTreeMap<String, Value>>,
    edition: Edition,
}

impl Viewer {
    /// One who sees so much, and the values of the parameters in its SELECTs, by name without the
    /// sigil.
    #[must_use]
    pub fn new(outlook: Arc<Outlook>, values: BTreeMap<String, Value>, edition: Edition) -> Viewer {
        Viewer { outlook, values: Arc::new(values), edition }
    }

    /// What it sees.
    #[must_use]
    pub fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    /// When what it may see was found out.
    #[must_use]
    pub fn edition(&self) -> &Edition {
        &self.edition
    }

    /// Who it is.
    pub(crate) fn asker(&self) -> Asker {
        Asker { edition: self.edition.clone(), id: self.value("caller_id") }
    }

    /// The value of a parameter; NULL where the caller has none.
    pub(crate) fn value(&self, name: &str) -> Value {
        self.values.get(name).cloned().unwrap_or(Value::Null)
    }
}

/// For whom a query is bounded, and by which policies. Who it is makes no difference to the result
/// beside its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) edition: Edition,
    pub(crate) id: Value,
}

/// The policies as of some commit, and whether they still are so.
#[derive(Clone, Debug)]
pub struct Edition {
    number: u64,
    latest: Arc<AtomicU64>,
}

impl Edition {
    /// The latest one. Whoever changes the policies adds to the number, before the change can be seen.
    #[must_use]
    pub fn latest(latest: &Arc<AtomicU64>) -> Edition {
        Edition { number: latest.load(Ordering::SeqCst), latest: Arc::clone(latest) }
    }

    /// Whether the policies are still these.
    #[must_use]
    pub fn is_latest(&self) -> bool {
        self.latest.load(Ordering::SeqCst) == self.number
    }
}

impl PartialEq for Edition {
    fn eq(&self, other: &Edition) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.latest, &other.latest)
    }
}

impl Eq for Edition {}

impl Lower<'_> {
    /// Whether what is read is a bounded caller's own text.
    pub(crate) fn is_bounded(&self) -> bool {
        self.viewer.is_some() && !self.trusted
    }

    /// Conditions of a bounded caller, so that none of them tells of a row which the caller may not see.
    ///
    /// Only [harmless](Fragment::harmless) conditions stay as they are, so that SQLite can use an index
    /// for them. All others are evaluated behind the conditions that make their rows visible.
    pub(crate) fn guarded(&mut self, core: &mut Core, conjuncts: Vec<Conjunct>) -> Vec<Conjunct> {
        if !self.is_bounded() {
            return conjuncts;
        }
        let mut by_rank: Vec<usize> = (0..conjuncts.len()).collect();
        by_rank.sort_by_key(|at| Probe::of(core, &conjuncts[*at]));
        let mut kept = vec![false; conjuncts.len()];
        for at in by_rank {
            let probe = Probe::of(core, &conjuncts[at]);
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

    /// `indexed = other` of two columns, where only the rows of the other one must be visible before
    /// the index is asked.
    fn guarded_value(&mut self, core: &mut Core, conjunct: &Conjunct) -> Option<Fragment> {
        let (left, right) = &**conjunct.sides.as_ref()?;
        if left.harmless == right.harmless || [left, right].iter().any(|it| it.collation.is_some())
        {
            return None;
        }
        let value = if left.harmless { right } else { left };
        if core.named_in(value) == 0 {
            // Of a row around this SELECT, which is visible where this is evaluated.
            return Some(conjunct.condition.clone());
        }
        let kind = self.kind_of(value).filter(|_| value.is_column())?;
        // As a CASE it would be compared without the column's affinity.
        let mut guarded = Fragment::text("CAST(");
        guarded.push(&self.seen_first(core, value));
        guarded.push_text(&format!("AS {})", kind.sql()));
        let (left, right) = if left.harmless { (left, &guarded) } else { (&guarded, right) };
        let mut condition = left.clone();
        condition.push_text("=");
        condition.push(right);
        Some(condition)
    }

    /// A value as it is of rows that may be seen; NULL of others.
    pub(crate) fn seen_first(&mut self, core: &mut Core, value: &Fragment) -> Fragment {
        match core.guards_of(value) {
            Some(guards) => behind(&guards, value),
            None => value.clone(),
        }
    }

    /// Once all expressions of a SELECT are known: what must hold where one of them comes to stand in a
    /// condition.
    pub(crate) fn seal(&mut self, core: &mut Core) {
        if !self.is_bounded() {
            return;
        }
        let guards_ask = core.guards.iter().any(|guard| guard.condition.has_subquery());
        let derived = || core.from.iter().filter_map(|term| term.derived.as_ref());
        let mut cores = derived().flat_map(|derived| &derived.query.cores);
        core.opaque = guards_ask || cores.any(|(_, core)| core.opaque);
        core.fenced = core.having.as_ref().is_some_and(|having| !having.harmless);
        self.seal_within(core);
        // Also of what is run once: templates of one text are shared.
        if core.may_be_restricted() {
            core.visible = core.guards_of(&Fragment::new());
        }
    }

    /// What a subquery says of the rows around it leads from its changes to them, apart from the condition
    /// that it stands in: there, too, they must be visible.
    fn seal_within(&mut self, core: &mut Core) {
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

    /// Reads what stands for a table. Nothing where the caller's sight is not bounded.
    pub(crate) fn outlook_on(&self, table: &str) -> Result<Option<String>, Refusal> {
        let Some(viewer) = self.viewer.filter(|_| !self.trusted) else { return Ok(None) };
        match viewer.outlook.select(table) {
            Some(select) => Ok(Some(select.to_owned())),
            None => Err(Refusal::new(Code::BadSql, format!("no such table: {table}"))
                .hint("it does not exist, or it is not visible to this caller")),
        }
    }
}

/// What makes the rows of some terms of a FROM visible.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    /// The sources of those terms.
    pub(crate) sources: Vec<usize>,
    pub(crate) condition: Fragment,
}

/// A value, or NULL where the guards do not hold. SQLite evaluates only the branch that is taken.
pub(crate) fn behind(guards: &Fragment, value: &Fragment) -> Fragment {
    let mut out = Fragment::text("CASE WHEN");
    out.push(guards);
    out.push_text("THEN (");
    out.push(value);
    out.push_text(") END");
    out
}

/// What a condition of a bounded caller may do before it is certain that a row may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Probe {
    /// It equals columns of two tables.
    Join,
    /// It compares an indexed column with given values.
    Key,
    /// It looks an indexed column up in a subquery, which is evaluated once.
    Subquery,
    /// It compares indexed columns in some other way.
    Range,
    /// It must wait.
    Nothing,
}

impl Probe {
    fn of(core: &Core, conjunct: &Conjunct) -> Probe {
        match &conjunct.condition {
            condition if !condition.harmless || core.named_in(condition) == 0 => Probe::Nothing,
            _ if conjunct.sides.is_some() => Probe::Join,
            condition if condition.has_subquery() => Probe::Subquery,
            _ if conjunct.route.is_of_keys() => Probe::Key,
            _ => Probe::Range,
        }
    }
}

/// The conditions of one SELECT that are evaluated of rows which the caller may not see.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probes {
    comparisons: usize,
    /// Whether a subquery is evaluated where some row meets the other conditions.
    asks: bool,
}

impl Probes {
    /// Comparisons of one SELECT: a few are as cheap as the step of an index that they spare, and
    /// thousands of the same would make the time tell of the row.
    const MOST: usize = 32;

    /// Whether another condition with so many comparisons may be one of them. A subquery stands alone:
    /// that it is evaluated at all would tell that a row meets the others.
    fn keep(&mut self, probe: Probe, comparisons: usize) -> bool {
        let alone = match probe {
            Probe::Nothing => false,
            Probe::Join => true,
            Probe::Key | Probe::Range => !self.asks,
            Probe::Subquery => !self.asks && self.comparisons == 0,
        };
        if !alone || self.comparisons + comparisons > Probes::MOST {
            return false;
        }
        match probe {
            Probe::Join => {}
            Probe::Subquery => self.asks = true,
            _ => self.comparisons += comparisons,
        }
        true
    }
}

impl Core {
    /// The sources and subqueries of its FROM that a value names, each mention counted.
    fn named_in(&self, value: &Fragment) -> usize {
        value
            .pieces
            .iter()
            .filter(|piece| self.from.iter().any(|term| term.is_named(piece)))
            .count()
    }

    /// What makes those rows visible that a value names; all rows where it names none. Nothing where
    /// every row is visible.
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

    /// A condition on a value of it, behind what makes its rows visible.
    pub(crate) fn shielded(&self, value: &Fragment, condition: Fragment) -> Fragment {
        match &self.visible {
            Some(visible) if !value.is_column() => behind(visible, &condition),
            _ => condition,
        }
    }

    /// Whether some rule may make a condition of what is shown, grouped by or filtered.
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
    /// That a row of it is visible: a further column, which goes wherever SQLite moves conditions on the
    /// subquery to. Nothing where all its rows are.
    fn seen(&mut self) -> Option<Fragment> {
        let mut cores: Vec<&mut Core> = self.query.cores.iter_mut().map(|(_, core)| core).collect();
        if cores.iter().all(|core| core.seen.is_none()) {
            let guards = cores.iter_mut().map(|core| core.guards_of(&Fragment::new()));
            let guards: Vec<Option<Fragment>> = guards.collect();
            if guards.iter().all(Option::is_none) {
                return None;
            }
            for (core, guards) in cores.iter_mut().zip(guards) {
                core.seen = Some(match guards {
                    // True of every group, and not to be known without making it.
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
        // NULL in a row of an outer join that has none of the subquery's.
        let mut seen = Fragment::derived(&self.alias, SEEN, (self.number, usize::MAX));
        seen.push_text("IS NOT 0");
        Some(seen)
    }
}

/// The column of a subquery in FROM that says whether its row is visible.
pub(crate) const SEEN: &str = "seen";

/// The SELECT of some columns of a table's rows, where they belong to a scope and where a condition
/// holds.
#[must_use]
pub fn select_of(
    table: &str,
    columns: &[&str],
    within: Option<&Within<'_>>,
    condition: Option<&str>,
) -> String {
    let shown: Vec<String> =
        columns.iter().map(|column| format!("o0.{}", quoted(column))).collect();
    let mut sql = format!("SELECT {} FROM ", shown.join(", "));
    match condition {
        // By itself first: the condition's names are the table's.
        Some(condition) => {
            let table = quoted(table);
            sql.push_str(&format!("(SELECT * FROM {table} WHERE ({condition}\n)) AS o0"));
        }
        None => sql.push_str(&format!("{} AS o0", quoted(table))),
    }
    let Some(Within { owners, column, keys }) = within else { return sql };
    for (at, owner) in owners.iter().enumerate() {
        let Owner { column, table, key } = owner;
        let (table, column, key) = (quoted(table), quoted(column), quoted(key));
        let next = at + 1;
        sql.push_str(&format!(" JOIN {table} AS o{next} ON o{next}.{key} = o{at}.{column}"));
    }
    let scope = format!("o{}.{}", owners.len(), quoted(column));
    for (at, key) in keys.iter().enumerate() {
        let before = if at > 0 { "AND" } else { "WHERE" };
        // A text, and not an array that is written like it.
        sql.push_str(&format!(
            " {before} json_extract({scope}, '$.\"{key}\"') = :scope_{key} \
             AND json_type({scope}, '$.\"{key}\"') = 'text'"
        ));
    }
    sql
}

/// That a row belongs to a scope: by itself, or by the rows that it belongs to.
#[derive(Clone, Debug)]
pub struct Within<'a> {
    /// Whose the row is, and whose that is.
    pub owners: Vec<Owner>,
    /// The column of the last of them that holds its scope.
    pub column: &'static str,
    /// The keys under which it must have the caller's values. Of letters, digits and underscores.
    pub keys: &'a [&'a str],
}

/// The row that a column names.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The column.
    pub column: &'static str,
    /// The table of that row.
    pub table: &'static str,
    /// The key of that table.
    pub key: &'static str,
}
