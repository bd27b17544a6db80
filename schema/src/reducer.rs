//! The contract between a rule and whoever runs it.
//!
//! A reducer is a function of its arguments and a [`Context`]: it reads rows, writes rows and
//! returns a result, and it sees time, ids and randomness through the context alone, so the same
//! log gives the same rows again. It cannot block, do IO, or learn who else exists. Write
//! `#[reducer]` over a function (see `abide-macros`), list it in a [`Module`], register the module.

use std::cell::Cell as StdCell;
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as JsonValue;
use sha2::{Digest as _, Sha256};

pub use crate::caller::Caller;
use crate::event::{Hash, Salt};
use crate::id::{Micros, Seq, ulid};
use crate::limits;
pub use crate::nullable::Nullable;
use crate::refusal::{Code, Refusal};
use crate::table::{Key, Kind, Table, TableSpec};
use crate::value::{Row, Value};
use crate::work::{Effort, PolicyJudge};

/// Stands in ids that are derived from a parent's: the id of the parent, this, and the rest. A caller cannot choose
/// an id that contains it, so a derived id is never taken by somebody else.
pub const DERIVED: char = '~';

/// What an argument that is an id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// A row that exists.
    Existing,
    /// A row that the call may create, under an id that the caller chooses.
    New,
    /// As `New`; an id with [`DERIVED`] is taken as it is, and the reducer checks that it belongs to its parent.
    Derived,
}

/// Refuses an id that a caller chose in the form of those that are derived.
///
/// # Errors
/// `bad_arguments` for an id that contains [`DERIVED`].
pub fn check_chosen(id: &str) -> Result<(), Refusal> {
    if !id.contains(DERIVED) {
        return Ok(());
    }
    let detail = format!("the id {id:?} contains {DERIVED}, which is reserved");
    let hint = format!("ids with {DERIVED} are derived from the run that they belong to");
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

/// An argument that can be declared `#[id(…)]`.
pub trait IdArgument: Sized {
    /// The argument with the id as it is stored, see [`Context::stored_id`].
    ///
    /// # Errors
    /// Those of [`Context::stored_id`].
    fn stored<T: Table>(self, ctx: &mut Context<'_>, naming: Naming) -> Result<Self, Abort>;
}

impl IdArgument for String {
    fn stored<T: Table>(self, ctx: &mut Context<'_>, naming: Naming) -> Result<String, Abort> {
        ctx.stored_id::<T>(self, naming)
    }
}

impl IdArgument for Option<String> {
    fn stored<T: Table>(
        self,
        ctx: &mut Context<'_>,
        naming: Naming,
    ) -> Result<Option<String>, Abort> {
        self.map(|id| ctx.stored_id::<T>(id, naming)).transpose()
    }
}

/// Why a reducer ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum Abort {
    /// The rules say no. Nothing of the call is kept; the caller is told why.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The machinery failed. The caller is told `internal` (or what the failure says it is).
    #[error("{0}")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The call is undone, and runs again once some work for it is done; see [`crate::work`].
    #[error("the call waits for work that takes many steps")]
    Deferred,
}

/// Rows as a reducer reaches them; implemented by the engine.
///
/// Reads see the call's own writes. Every table must be registered.
pub trait Transaction {
    /// The row of a primary key.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort>;

    /// The rows of `SELECT * FROM table <clause>`; the clause has `?1`, `?2` … for the parameters
    /// and must be served by an index.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the clause is wrong or the storage fails.
    fn find(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, Abort>;

    /// How many rows `SELECT * FROM table <clause>` has; the clause as for `find`.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the clause is wrong or the storage fails.
    fn count(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort>;

    /// As `count`, over the rows of all scopes: for what all share, such as the pace of a tool. What a
    /// caller is told must not depend on more of it than that.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the clause is wrong or the storage fails.
    fn count_everywhere(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.count(table, clause, params)
    }

    /// Who made the call of an event; nothing where the log has no such event.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn caller_of(&mut self, seq: Seq) -> Result<Option<String>, Abort>;

    /// The last event before the file came to a version of a module; see [`Context::is_before`]. 0 where the file has
    /// been at that version from the start.
    fn last_before(&mut self, module: &str, version: u32) -> Seq {
        let _ = (module, version);
        Seq::ZERO
    }

    /// Whether policies are looked beyond from here on, and returns whether they were. The scope bounds as
    /// before. Nothing to say where nothing bounds the caller.
    fn look_beyond(&mut self, beyond: bool) -> bool {
        beyond
    }

    /// The id under which a row of a table is stored that the caller calls `id`, see [`Context::stored_id`].
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn stored_id(
        &mut self,
        table: &'static TableSpec,
        id: String,
        naming: Naming,
    ) -> Result<String, Abort> {
        let _ = (table, naming);
        Ok(id)
    }

    /// What tries out policies. A replay has none: it only sees what was found good.
    fn policy_judge(&self) -> Option<Arc<dyn PolicyJudge>> {
        None
    }

    /// Whether there are reducers of these names, for callers to call.
    ///
    /// # Errors
    /// [`Abort::Refused`] with the first name that is none.
    fn judge_reducers(&mut self, names: &BTreeSet<String>) -> Result<(), Abort>;

    /// Whether a replay makes the call again.
    fn is_replay(&self) -> bool {
        false
    }

    /// Adds a row. In a numbered table, a NULL key is given the next number. Returns the row.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` where a constraint forbids it.
    fn insert(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<Row, Abort>;

    /// Replaces the row of the same key.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` where a constraint forbids it.
    fn update(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort>;

    /// As `update`, for changes that no constraint or trigger watches: the write may be put off to
    /// the end of the commit, so that a row which many calls touch is written once.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn touch(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort>;

    /// Removes the row of a key, which must exist.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` where a constraint forbids it.
    fn delete(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort>;
}

/// What the ids of one call are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// The salt of the call's own event.
    Salt(Salt),
    /// The hash of the event before, for replays of events of format 1.
    Chain(Hash),
}

const ID_TAG: &[u8] = b"abide.id.v1\n";
const DIGEST_TAG: &[u8] = b"abide.digest.v1\n";

/// All that a reducer sees of the world.
pub struct Context<'a> {
    /// The place in the log that this call's event will take.
    pub seq: Seq,
    /// The time of the call. It never runs backwards from one event to the next.
    pub now: Micros,
    /// Who calls.
    pub caller: &'a Caller,
    pub(crate) rows: &'a mut dyn Transaction,
    seed: Seed,
    drawn: StdCell<u32>,
    session_id: Option<String>,
    /// What work may take here; without it all of it is done at once.
    pub(crate) effort: Option<Effort<'a>>,
}

impl<'a> Context<'a> {
    /// A context for one call. The log must hold the seed: it is the only randomness a reducer has, and
    /// a replay must draw the same.
    #[must_use]
    pub fn new(
        seq: Seq,
        now: Micros,
        caller: &'a Caller,
        seed: Seed,
        rows: &'a mut dyn Transaction,
    ) -> Context<'a> {
        let (drawn, session_id, effort) = (StdCell::new(0), None, None);
        Context { seq, now, caller, rows, seed, drawn, session_id, effort }
    }

    /// The same, with a bound on the work that is done while the writer waits.
    #[must_use]
    pub fn within(self, effort: Option<Effort<'a>>) -> Context<'a> {
        Context { effort, ..self }
    }

    /// Names the session that this call is about, for the event.
    pub fn about(&mut self, session_id: &str) {
        self.session_id = Some(session_id.to_owned());
    }

    /// The session named by [`Context::about`].
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// A new id: a prefix, `_`, and a ULID of this call's time.
    #[must_use]
    pub fn new_id(&self, prefix: &str) -> String {
        let drawn = self.drawn.get();
        self.drawn.set(drawn + 1);
        let digest = match &self.seed {
            Seed::Chain(hash) => Sha256::new().chain_update(hash),
            // The tag keeps what ids show apart from what the event's commitment hides.
            Seed::Salt(salt) => Sha256::new().chain_update(ID_TAG).chain_update(salt),
        };
        let digest: [u8; 32] = digest.chain_update(drawn.to_be_bytes()).finalize().into();
        let randomness = digest.first_chunk().expect("a digest has more than ten bytes");
        format!("{prefix}_{}", ulid(self.now, *randomness))
    }

    /// A digest of a text for a row, in hexadecimal: SHA-256 over the call's salt and the text. It tells
    /// one text from another, and confirms no guess of a text. Calls of format 1 have no salt and give the
    /// plain SHA-256.
    #[must_use]
    pub fn digest(&self, text: &str) -> String {
        let digest = match &self.seed {
            Seed::Chain(_) => Sha256::new(),
            Seed::Salt(salt) => Sha256::new().chain_update(DIGEST_TAG).chain_update(salt),
        };
        let digest: [u8; 32] = digest.chain_update(text.as_bytes()).finalize().into();
        digest.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The id under which a row is stored that the caller calls `id`. A caller with a scope chooses ids in the
    /// namespace of its scope ([`Caller::namespace`]): what it names is looked up as it is written, and else in
    /// that namespace; what it chooses for a new row is put there. For all others it is `id`.
    ///
    /// `#[reducer]` does this for arguments that are declared `#[id(…)]`.
    ///
    /// # Errors
    /// [`Abort::Refused`] where a new id has the reserved form (see [`DERIVED`]).
    pub fn stored_id<T: Table>(&mut self, id: String, naming: Naming) -> Result<String, Abort> {
        if matches!(self.seed, Seed::Chain(_)) {
            // Events of format 1 were written before there were namespaces, and a replay gives the same rows.
            return Ok(id);
        }
        if naming == Naming::New {
            check_chosen(&id)?;
        }
        self.rows.stored_id(T::SPEC, id, naming)
    }

    /// The row of a primary key.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    pub fn get<T: Table>(&mut self, key: impl Key) -> Result<Option<T>, Abort> {
        let row = self.rows.get(T::SPEC, &key.cells())?;
        row.map(|row| T::from_row(&row)).transpose().map_err(broken)
    }

    /// The rows of `SELECT * FROM table <clause>`, with `?1`, `?2` … in the clause.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the clause is wrong or the storage fails.
    pub fn find<T: Table>(&mut self, clause: &str, params: &[Value]) -> Result<Vec<T>, Abort> {
        let rows = self.rows.find(T::SPEC, clause, params)?;
        rows.iter().map(|row| T::from_row(row)).collect::<Result<_, _>>().map_err(broken)
    }

    /// How many rows `SELECT * FROM table <clause>` has.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the clause is wrong or the storage fails.
    pub fn count<T: Table>(&mut self, clause: &str, params: &[Value]) -> Result<i64, Abort> {
        self.rows.count(T::SPEC, clause, params)
    }

    /// As [`Context::count`], over the rows of all scopes: for what all share, such as the pace of a tool.
    /// What a caller is told must not depend on more of it than that.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the clause is wrong or the storage fails.
    pub fn count_everywhere<T: Table>(
        &mut self,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.rows.count_everywhere(T::SPEC, clause, params)
    }

    /// Who made the call of an event; nothing where the log has no such event. A claim's fencing token is the seq
    /// of its event, so this says who holds the lease.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    pub fn caller_of(&mut self, seq: Seq) -> Result<Option<String>, Abort> {
        self.rows.caller_of(seq)
    }

    /// Whether the event of this call is from before the file came to a version of a module. A rule that changes with a
    /// version does for such an event what it did then, so that a replay gives the same rows.
    pub fn is_before(&mut self, module: &str, version: u32) -> bool {
        self.seq <= self.rows.last_before(module, version)
    }

    /// Does what follows from a call whatever policies let its caller see: ending what belongs to a session
    /// that ends, asking somebody else for a decision. Outside of it, a row that a policy hides from the
    /// caller is not there for the reducer either. The caller's scope bounds here as well. What the caller
    /// is told must not depend on what is found.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn beyond_policies<T>(
        &mut self,
        act: impl FnOnce(&mut Context<'a>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let before = self.rows.look_beyond(true);
        let done = act(self);
        self.rows.look_beyond(before);
        done
    }

    /// Checks names of reducers before they are kept. A replay accepts all: its program may have other modules.
    ///
    /// # Errors
    /// [`Abort::Refused`] with the first name that is none.
    pub fn judge_reducers(&mut self, names: &BTreeSet<String>) -> Result<(), Abort> {
        self.rows.judge_reducers(names)
    }

    /// Whether a replay makes the call again. A check that was added after calls were logged must accept those.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.rows.is_replay()
    }

    /// Adds a row. Where the database numbers the rows, key 0 means the next number, and the answer
    /// holds it.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` where a constraint forbids it.
    pub fn insert<T: Table>(&mut self, row: T) -> Result<T, Abort> {
        let mut row = row.into_row();
        if T::SPEC.numbered() && row[T::SPEC.key[0]] == Value::Integer(0) {
            row[T::SPEC.key[0]] = Value::Null;
        }
        let row = self.rows.insert(T::SPEC, row)?;
        T::from_row(&row).map_err(broken)
    }

    /// Replaces the row of the same key.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` where a constraint forbids it.
    pub fn update<T: Table + Clone>(&mut self, row: &T) -> Result<(), Abort> {
        self.rows.update(T::SPEC, row.clone().into_row())
    }

    /// As [`Context::update`], for changes that no constraint or trigger watches.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    pub fn touch<T: Table>(&mut self, row: T) -> Result<(), Abort> {
        self.rows.touch(T::SPEC, row.into_row())
    }

    /// Removes the row of a key, which must exist.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` where a constraint forbids it.
    pub fn delete<T: Table>(&mut self, key: impl Key) -> Result<(), Abort> {
        self.rows.delete(T::SPEC, &key.cells())
    }
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Abort {
    Abort::Broken(Box::new(error))
}

/// What a reducer hands back: its result, and whether the call had been made before.
#[derive(Debug)]
pub struct Reply {
    /// The result as JSON text, encoded once.
    pub result: String,
    /// Set where an earlier call already did this: nothing is written, and the answer bears that
    /// call's seq.
    pub duplicate_of: Option<Seq>,
    /// Set where the caller is refused what it asked for, and what was written stays all the same.
    pub refusal: Option<Refusal>,
}

impl Reply {
    fn of(result: &impl Serialize) -> Reply {
        let result =
            serde_json::to_string(result).expect("a result has string keys and serialises");
        Reply { result, duplicate_of: None, refusal: None }
    }
}

/// A result that is more than itself. Reducers that know duplicates by a key of their own (`call_id`)
/// or keep a record of what they refuse return this; all others return their result as it is.
pub enum Answer<T> {
    /// The call did something.
    Fresh(T),
    /// The call at that seq already did it.
    Duplicate(Seq, T),
    /// The caller is told no, and that it asked is on record: what the call wrote stays, and its
    /// event's outcome is the refusal. Inside a batch it is a refusal like any other, and nothing
    /// stays.
    Refused(Refusal),
}

/// What `#[reducer]` functions may return.
pub trait IntoReply {
    /// The result's type, for the schema.
    type Result: Serialize + schemars::JsonSchema;
    /// To the engine's form.
    fn into_reply(self) -> Reply;
}

impl<T: Serialize + schemars::JsonSchema> IntoReply for T {
    type Result = T;

    fn into_reply(self) -> Reply {
        Reply::of(&self)
    }
}

impl<T: Serialize + schemars::JsonSchema> IntoReply for Answer<T> {
    type Result = T;

    fn into_reply(self) -> Reply {
        match self {
            Answer::Fresh(result) => Reply::of(&result),
            Answer::Duplicate(seq, result) => {
                Reply { duplicate_of: Some(seq), ..Reply::of(&result) }
            }
            Answer::Refused(refusal) => Reply { refusal: Some(refusal), ..Reply::of(&()) },
        }
    }
}

/// One call with its arguments understood, ready to run.
pub trait Call: Send {
    /// Runs it.
    ///
    /// # Errors
    /// [`Abort`]; nothing of the call is kept.
    fn run(&self, context: &mut Context<'_>) -> Result<Reply, Abort>;
}

/// A reducer as registered. Made by `#[reducer]`.
#[derive(Clone, Copy)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// What it does, from the function's doc comment.
    pub doc: &'static str,
    /// The JSON Schema of its arguments.
    pub arguments: fn() -> JsonValue,
    /// The JSON Schema of its result.
    pub result: fn() -> JsonValue,
    /// Understands arguments; what is missing, superfluous or mistyped is `bad_arguments`.
    pub decode: fn(&JsonValue) -> Result<Box<dyn Call>, Refusal>,
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Definition").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One step from a version of a module's tables to the next.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The version it leads to.
    pub to: u32,
    /// The statements.
    pub sql: &'static str,
}

/// Rows that wait for a moment. When it has come, the engine calls the reducer as the caller
/// [`Caller::SYSTEM`], with the row's key and the moment under their columns' names; nobody else can
/// call it. The reducer must see to it that the row waits no longer, or waits for a later moment.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// The table.
    pub table: &'static TableSpec,
    /// The column that holds the moment.
    pub column: &'static str,
    /// Which rows wait, as SQL. An index must give them in the order of their moments.
    pub condition: &'static str,
    /// What is called.
    pub reducer: Definition,
    /// How many rows one transaction takes on.
    pub per_commit: usize,
}

impl Deadline {
    /// The query for the rows that wait longest, as many as `?1`: the moment, then the key.
    #[must_use]
    pub fn query(&self) -> String {
        let Deadline { table, column, condition, .. } = self;
        let keys: Vec<&str> = table.key.iter().map(|at| table.columns[*at].name).collect();
        let own = table.indexes.iter().find(|index| index.columns == [*column]);
        // Where the column has an index of its own, SQLite might still find another more promising.
        let index = own.map(|index| format!(" INDEXED BY {}", table.index_name(index)));
        format!(
            "SELECT {column}, {keys} FROM {name}{index} WHERE {condition} AND {column} IS NOT NULL \
             ORDER BY {column} LIMIT ?1",
            keys = keys.join(", "),
            name = table.name,
            index = index.unwrap_or_default(),
        )
    }
}

/// Looks at a call of somebody who is bounded before it runs, and refuses it where the caller may not. It
/// reads rows like a reducer, and writes none.
pub type Guard = fn(&mut Context<'_>, reducer: &str) -> Result<(), Abort>;

/// How doors find out who bears a token: SQL over a module's tables.
#[derive(Clone, Copy, Debug)]
pub struct Directory {
    /// The tables that all of this depends on.
    pub tables: &'static [&'static str],
    /// 1 once credentials are to be asked for.
    pub asks: &'static str,
    /// Of the token `:id`: hash, expires_at, revoked_at; its identity's id, role, capabilities, scope, limits,
    /// disabled_at; its role's capabilities, limits.
    pub token: &'static str,
    /// Of the role `:name`: capabilities, limits.
    pub role: &'static str,
    /// Of the identity `:id`: 1 if it is disabled, and its scope.
    pub disabled: &'static str,
}

/// Tables and reducers that belong together: one domain, one file.
#[derive(Clone, Debug)]
pub struct Module {
    /// The domain's name.
    pub name: &'static str,
    /// The version of its tables and rules, kept in the file; 1 at first.
    pub version: u32,
    /// How a file of an older version is brought to this one.
    pub steps: Vec<Step>,
    /// Its tables.
    pub tables: Vec<&'static TableSpec>,
    /// Views over them: name and the SELECT.
    pub views: Vec<(&'static str, &'static str)>,
    /// Its reducers.
    pub reducers: Vec<Definition>,
    /// What time itself does to its rows.
    pub deadlines: Vec<Deadline>,
    /// What every call of a bounded caller must pass.
    pub guards: Vec<Guard>,
    /// How doors find out who bears a token.
    pub directory: Option<Directory>,
    /// What keeps a record of denied attempts; see [`Module::witness`].
    pub witnesses: Vec<Definition>,
    /// Who may see its tables; a table that is not here is [`Sight::Closed`].
    pub sights: Vec<(&'static TableSpec, Sight)>,
    /// Which columns hold copies of others; see [`Module::copied`].
    pub copies: Vec<Copies>,
    /// Members of arguments and results that the log keeps for replays and shows to no bounded caller; see
    /// [`Module::secret`].
    pub secrets: Vec<(&'static str, &'static str)>,
}

/// A column, as its table and its name.
pub type ColumnName = (&'static str, &'static str);

/// A column, and those that hold copies of its values.
pub type Copies = (ColumnName, &'static [ColumnName]);

/// Which rows of a table a caller may see whom something bounds (a role other than admin, a scope).
/// A scope bounds every row that belongs to one, whatever is said here. Policies narrow this further, and
/// open what is closed; none widens it. See `docs/policies.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// None, until a policy for the caller's role says which. What nothing is said of.
    Closed,
    /// All: what is no tenant's own.
    Open,
    /// Those within the caller's scope (see [`TableSpec::shared`]): all, where the caller has none.
    OfScope,
    /// As `OfScope`, without these columns.
    OfScopeWithout(&'static [&'static str]),
    /// Those of which this holds, without these columns: SQL over the row and the caller, as in a
    /// policy.
    Where(&'static str, &'static [&'static str]),
}

impl Module {
    /// An empty module.
    #[must_use]
    pub fn new(name: &'static str) -> Module {
        Module {
            name,
            version: 1,
            steps: Vec::new(),
            tables: Vec::new(),
            views: Vec::new(),
            reducers: Vec::new(),
            deadlines: Vec::new(),
            guards: Vec::new(),
            directory: None,
            witnesses: Vec::new(),
            sights: Vec::new(),
            copies: Vec::new(),
            secrets: Vec::new(),
        }
    }

    /// At the version that this step leads to. Steps are given in order; together with the tables
    /// of version 1 they must give the tables as declared.
    #[must_use]
    pub fn step(mut self, sql: &'static str) -> Module {
        self.version += 1;
        self.steps.push(Step { to: self.version, sql });
        self
    }

    /// With a table.
    #[must_use]
    pub fn table<T: Table>(mut self) -> Module {
        self.tables.push(T::SPEC);
        self
    }

    /// With a table of which callers may see so much.
    #[must_use]
    pub fn seen<T: Table>(mut self, sight: Sight) -> Module {
        self.sights.push((T::SPEC, sight));
        self.table::<T>()
    }

    /// Declares that other columns, of any module, hold copies of a column or of parts of it. A policy that
    /// hides the column hides the copies.
    #[must_use]
    pub fn copied(mut self, column: ColumnName, into: &'static [ColumnName]) -> Module {
        self.copies.push((column, into));
        self
    }

    /// With a secret: a member of a reducer's arguments, or of its result, that `events` shows to no caller
    /// whose sight is bounded. The log holds it, because a replay needs it.
    #[must_use]
    pub fn secret(mut self, reducer: &Definition, member: &'static str) -> Module {
        self.secrets.push((reducer.name, member));
        self
    }

    /// With a view: a name and a SELECT.
    #[must_use]
    pub fn view(mut self, name: &'static str, select: &'static str) -> Module {
        self.views.push((name, select));
        self
    }

    /// With a reducer: `.reducer(append_message::definition())`.
    #[must_use]
    pub fn reducer(mut self, definition: Definition) -> Module {
        self.reducers.push(definition);
        self
    }

    /// With the directory of who bears which token.
    #[must_use]
    pub fn directory(mut self, directory: Directory) -> Module {
        self.directory = Some(directory);
        self
    }

    /// With a guard.
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Module {
        self.guards.push(guard);
        self
    }

    /// With a reducer that keeps a record of denied attempts. The engine calls it, as
    /// [`Caller::SYSTEM`], with `caller`, `what` (a reducer, or another thing that was asked for), `why`
    /// and `missed`, the attempts of that caller since the last record that were too many to be kept
    /// one by one. Nobody else can call it.
    #[must_use]
    pub fn witness(mut self, definition: Definition) -> Module {
        self.witnesses.push(definition);
        self
    }

    /// With a reducer that time calls: for each row of the condition, when the moment in the column
    /// has come.
    ///
    /// # Panics
    /// The table has no such column of integers.
    #[must_use]
    pub fn deadline<T: Table>(
        self,
        column: &'static str,
        condition: &'static str,
        reducer: Definition,
    ) -> Module {
        self.paced_deadline::<T>(column, condition, limits::DUE_PER_COMMIT, reducer)
    }

    /// As [`Module::deadline`], for a reducer whose one call is much work: so many in each transaction.
    ///
    /// # Panics
    /// The table has no such column of integers.
    #[must_use]
    pub fn paced_deadline<T: Table>(
        mut self,
        column: &'static str,
        condition: &'static str,
        per_commit: usize,
        reducer: Definition,
    ) -> Module {
        let found = T::SPEC.column(column).map(|at| T::SPEC.columns[at].kind);
        assert_eq!(found, Some(Kind::Integer), "{}.{column} holds no moment", T::SPEC.name);
        let table = T::SPEC;
        self.deadlines.push(Deadline { table, column, condition, reducer, per_commit });
        self
    }
}

/// The JSON Schema of what is sent: a column that may be null is there all the same.
#[doc(hidden)]
#[must_use]
pub fn result_schema<T: schemars::JsonSchema>() -> JsonValue {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// The refusal of arguments that do not fit, with the list of those that do.
#[doc(hidden)]
#[must_use]
pub fn bad_arguments(reducer: &str, takes: &str, why: &dyn fmt::Display) -> Refusal {
    Refusal::new(Code::BadArguments, format!("{reducer}: {why}"))
        .hint(format!("{reducer} takes {takes}"))
}
