//! Who asks, where that bounds what may be seen: of each table the rows and columns that it shows to
//! callers of one kind, as SQL, and the values of one of them.
//!
//! A bounded query names no table: in the place of a table's name stands a SELECT of ours
//! ([`Outlook`]), as a view's text would. Callers of one kind share the text, and so the template; who
//! they are is a parameter. What has no text here is `no such table`.
//!
//! *Invariant:* no expression of a bounded query that can fail is evaluated of a row before it is
//! certain that the row may be seen: whether it failed would tell of the row. Such a condition stands
//! within a CASE of what lets the row be seen (see `guarded`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_schema::{Code, Refusal, Value};

use crate::core::Core;
use crate::fragment::{Fragment, quoted};
use crate::lower::{Conjunct, Lower, unsupported};

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

    /// Conditions of a caller's own, so that none that can fail is evaluated of a row which the caller
    /// may not see.
    pub(crate) fn guarded(
        &self,
        core: &mut Core,
        mut conjuncts: Vec<Conjunct>,
    ) -> Result<Vec<Conjunct>, Refusal> {
        if !self.is_bounded() || !conjuncts.iter().any(|conjunct| conjunct.condition.risky) {
            return Ok(conjuncts);
        }
        self.shield_derived(core)?;
        for conjunct in &mut conjuncts {
            if conjunct.condition.risky {
                conjunct.condition = self.seen_first(core, &conjunct.condition);
            }
        }
        Ok(conjuncts)
    }

    /// A value as it is of rows that may be seen; NULL of others.
    pub(crate) fn seen_first(&self, core: &Core, value: &Fragment) -> Fragment {
        if core.guards.is_empty() {
            return value.clone();
        }
        let mut out = Fragment::text("CASE WHEN");
        for (at, guard) in core.guards.iter().enumerate() {
            out.push_text(if at > 0 { "AND (" } else { "(" });
            out.push(guard);
            out.push_text(")");
        }
        out.push_text("THEN (");
        out.push(value);
        out.push_text(") END");
        out
    }

    /// SQLite moves conditions into subqueries in FROM, before those that stand there: not where they
    /// have a LIMIT.
    pub(crate) fn shield_derived(&self, core: &mut Core) -> Result<(), Refusal> {
        for derived in core.from.iter_mut().filter_map(|term| term.derived.as_mut()) {
            if !self.once {
                return Err(unsupported(
                    "an expression that can fail, in a condition beside a subquery or outer join, \
                     of a caller whose sight is bounded,",
                )
                .hint("compare columns with values, or run it once with  abide sql"));
            }
            if derived.window.pieces.is_empty() {
                derived.window.push_text("LIMIT -1");
            }
        }
        Ok(())
    }

    /// Reads what stands for a table. Nothing where the caller's sight is not bounded.
    pub(crate) fn outlook_on(&self, table: &str) -> Result<Option<String>, Refusal> {
        let Some(viewer) = self.viewer.filter(|_| !self.trusted) else { return Ok(None) };
        match viewer.outlook.select(table) {
            Some(select) => Ok(Some(select.to_owned())),
            None => Err(Refusal::new(Code::BadSql, format!("no such table: {table}"))
                .hint("there is none of that name that you may see")),
        }
    }
}

/// Whether a function can fail, of whatever arguments of its own number.
pub(crate) fn can_fail(function: &str) -> bool {
    const CANNOT: &[&str] = &[
        "coalesce",
        "ifnull",
        "iif",
        "instr",
        "json_valid",
        "length",
        "likely",
        "lower",
        "ltrim",
        "max",
        "min",
        "nullif",
        "octet_length",
        "rtrim",
        "sign",
        "substr",
        "substring",
        "trim",
        "typeof",
        "unicode",
        "unlikely",
        "upper",
    ];
    !CANNOT.contains(&function.to_ascii_lowercase().as_str())
}

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
