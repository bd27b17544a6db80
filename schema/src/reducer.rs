//! The contract between a reducer and its runtime.
//!
//! A reducer is a function of its arguments and a [`Context`]: it reads rows, writes rows and
//! returns a result. The engine runs it in `engine/src/commit/execute.rs`, with a [`Transaction`] that shows the rows that exist
//! for the caller. Time, ids and randomness come from the context alone, so the same
//! log gives the same rows again. It cannot block or do I/O. Write
//! `#[reducer]` on a function (see `abide-macros`), list it in a [`Module`], register the module.

use std::any::Any;
use std::cell::Cell as StdCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as JsonValue;
use sha2::{Digest as _, Sha256};

pub use crate::arguments::Nullable;
use crate::call_arguments::CallArguments;
use crate::caller::Scope;
pub use crate::caller::{BuiltInRole, Caller};
use crate::event::Salt;
use crate::id::{Micros, Seq, ulid};
pub use crate::module::{
    ColumnCopies, ColumnName, Continuation, CredentialQueries, Deadline, Guard, MetricSeries,
    Module, PolicyTables, RowVisibility, Step, WaitingRows,
};
use crate::refusal::{Code, Refusal};
use crate::table::{Key, Table, TableSpec};
use crate::value::{Row, Value};
use crate::work::{PolicyChecker, PolicyTrial, WHOLE, Work, WorkBudget};

/// Separator in derived ids: the id of the parent, this character, and the rest. A caller cannot choose
/// an id that contains it, so no other caller can take a derived id.
pub const DERIVED: char = '~';

/// The row that an id argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdArgumentKind {
    /// An existing row.
    Existing,
    /// A row that the call may create, with an id chosen by the caller.
    New,
    /// Like `New`, but an id with [`DERIVED`] is accepted, and the reducer checks that it belongs to its parent.
    Derived,
}

/// Refuses a chosen id in the reserved form of derived ids.
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
    /// Returns the argument with the stored id, see [`Context::stored_id`].
    ///
    /// # Errors
    /// The errors of [`Context::stored_id`].
    fn stored<T: Table>(self, ctx: &mut Context<'_>, naming: IdArgumentKind)
    -> Result<Self, Abort>;
}

impl IdArgument for String {
    fn stored<T: Table>(
        self,
        ctx: &mut Context<'_>,
        naming: IdArgumentKind,
    ) -> Result<String, Abort> {
        ctx.stored_id::<T>(self, naming)
    }
}

impl IdArgument for Option<String> {
    fn stored<T: Table>(
        self,
        ctx: &mut Context<'_>,
        naming: IdArgumentKind,
    ) -> Result<Option<String>, Abort> {
        self.map(|id| ctx.stored_id::<T>(id, naming)).transpose()
    }
}

/// Why a reducer ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum Abort {
    /// The call is refused. Nothing of it is kept; the caller gets the refusal.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Internal failure. The caller gets `internal` (or a more specific code from the failure).
    #[error("{0}")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The call is rolled back, and runs again after some work for it is done; see [`crate::work`].
    #[error("the call waits for work that takes many steps")]
    Deferred,
}

/// Row access for a reducer; implemented by the engine.
///
/// Reads see the call's own writes. Every table must be registered.
pub trait Transaction {
    /// Returns the row with a primary key.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn get(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<Option<Row>, Abort>;

    /// Returns the rows of `SELECT * FROM table <clause>`; the clause has `?1`, `?2` … for the parameters
    /// and must be served by an index.
    ///
    /// # Errors
    /// [`Abort::Broken`] if the clause is invalid or the storage fails.
    fn find(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<Vec<Row>, Abort>;

    /// Counts the rows of `SELECT * FROM table <clause>`; the clause as for `find`.
    ///
    /// # Errors
    /// [`Abort::Broken`] if the clause is invalid or the storage fails.
    fn count(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort>;

    /// Like `count`, over the rows of all scopes: for shared resources, such as the rate limit of a tool. The
    /// call's outcome must not reveal more about other scopes than that.
    ///
    /// # Errors
    /// [`Abort::Broken`] if the clause is invalid or the storage fails.
    fn count_everywhere(
        &mut self,
        table: &'static TableSpec,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.count(table, clause, params)
    }

    /// Returns the caller of an event; `None` if the log has no such event.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn caller_of(&mut self, seq: Seq) -> Result<Option<String>, Abort>;

    /// Returns the last event before the file came to a version of a module; see [`Context::is_before`]. 0 where the
    /// file has been at that version from the start.
    fn last_before(&mut self, module: &str, version: u32) -> Seq {
        let _ = (module, version);
        Seq::ZERO
    }

    /// Bypasses policies, or applies them again; returns the previous setting. The scope still applies. The
    /// default is for callers without restrictions.
    fn bypass_policies(&mut self, bypass: bool) -> bool {
        bypass
    }

    /// Returns the stored id of the row that the caller calls `id`, see [`Context::stored_id`].
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn stored_id(
        &mut self,
        table: &'static TableSpec,
        id: String,
        naming: IdArgumentKind,
    ) -> Result<String, Abort> {
        let _ = (table, naming);
        Ok(id)
    }

    /// Returns the validator of policies. A replay has none: the log has only valid policies.
    fn policy_checker(&self) -> Option<Arc<dyn PolicyChecker>> {
        None
    }

    /// Whether there are reducers of these names, for callers to call.
    ///
    /// # Errors
    /// [`Abort::Refused`] with the first name that is none.
    fn check_reducer_names(&mut self, names: &BTreeSet<String>) -> Result<(), Abort>;

    /// Returns `true` if a replay makes the call again.
    fn is_replay(&self) -> bool {
        false
    }

    /// Returns the tenant that a stored scope belongs to, see [`Context::tenant_of`].
    fn tenant_of(&self, scope: &Scope) -> Scope {
        scope.clone()
    }

    /// Inserts a row. If the database assigns the key, a NULL key gets the next number. Returns the row.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` if it violates a constraint, or with the code that a trigger names.
    fn insert(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<Row, Abort>;

    /// Replaces the row with the same key.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` if it violates a constraint, or with the code that a trigger names.
    fn update(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort>;

    /// Like `update`, for changes that no constraint or trigger depends on: the write can be postponed to
    /// the end of the group of calls, or to the next read of many rows, so that a row changed by many calls is written once.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    fn touch(&mut self, table: &'static TableSpec, row: Vec<Value>) -> Result<(), Abort>;

    /// Deletes the row with a key, which must exist.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` if it violates a constraint, or with the code that a trigger names.
    fn delete(&mut self, table: &'static TableSpec, key: &[Value]) -> Result<(), Abort>;
}

const ID_TAG: &[u8] = b"abide.id.v1\n";
const DIGEST_TAG: &[u8] = b"abide.digest.v1\n";
const KEYED_TAG: &[u8] = b"abide.keyed.v1\n";

/// Returns a digest of a text under a key, in hexadecimal. Unlike [`Context::digest`] it is the same in several calls.
/// The key must have a fixed length.
#[must_use]
pub fn keyed_digest(key: &str, text: &str) -> String {
    let digest = Sha256::new().chain_update(KEYED_TAG).chain_update(key);
    let digest: [u8; 32] = digest.chain_update(text).finalize().into();
    hex::encode(digest)
}

/// A reducer's only access to the outside.
pub struct Context<'a> {
    /// The position in the log that this call's event will get.
    pub seq: Seq,
    /// The time of the call. It never decreases from one event to the next.
    pub now: Micros,
    /// The caller.
    pub caller: &'a Caller,
    pub(crate) rows: &'a mut dyn Transaction,
    salt: Salt,
    drawn: StdCell<u32>,
    session_id: Option<String>,
    /// The budget for deferrable work; without it all work is done at once.
    pub(crate) work_budget: Option<WorkBudget<'a>>,
}

impl<'a> Context<'a> {
    /// A context for one call. The log must contain the salt: it is the only randomness of a reducer, and
    /// a replay must generate the same values.
    #[must_use]
    pub fn new(
        seq: Seq,
        now: Micros,
        caller: &'a Caller,
        salt: Salt,
        rows: &'a mut dyn Transaction,
    ) -> Context<'a> {
        let drawn = StdCell::new(0);
        let session_id = None;
        let work_budget = None;
        Context { seq, now, caller, rows, salt, drawn, session_id, work_budget }
    }

    /// Sets a budget for work on the writer.
    #[must_use]
    pub fn within(self, work_budget: Option<WorkBudget<'a>>) -> Context<'a> {
        Context { work_budget, ..self }
    }

    /// Names the session that this call concerns, for the event.
    pub fn about(&mut self, session_id: &str) {
        self.session_id = Some(session_id.to_owned());
    }

    /// Returns the session named by [`Context::about`].
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// Generates an id: a prefix, `_`, and a ULID of this call's time.
    #[must_use]
    pub fn new_id(&self, prefix: &str) -> String {
        let drawn = self.drawn.get();
        self.drawn.set(drawn + 1);
        // The tag separates the ids, which are visible, from the event's commitment, which must stay secret.
        let digest = Sha256::new().chain_update(ID_TAG).chain_update(self.salt);
        let digest: [u8; 32] = digest.chain_update(drawn.to_be_bytes()).finalize().into();
        let randomness = digest.first_chunk().expect("a digest has more than ten bytes");
        format!("{prefix}_{}", ulid(self.now, *randomness))
    }

    /// Returns a digest of a text for storage in a row, in hexadecimal: SHA-256 over the call's salt and the text. It
    /// distinguishes texts, but does not confirm a guess of one.
    #[must_use]
    pub fn digest(&self, text: &str) -> String {
        let digest = Sha256::new().chain_update(DIGEST_TAG).chain_update(self.salt);
        let digest: [u8; 32] = digest.chain_update(text.as_bytes()).finalize().into();
        hex::encode(digest)
    }

    /// Returns the stored id of the row that the caller calls `id`. A caller with a scope chooses ids in the
    /// namespace of its scope ([`Caller::namespace`]): an id that it names is looked up unchanged first, then in
    /// that namespace; an id for a new row is placed there. For all other callers it is `id`.
    ///
    /// `#[reducer]` does this for arguments declared `#[id(…)]`.
    ///
    /// # Errors
    /// [`Abort::Refused`] if a new id has the reserved form (see [`DERIVED`]).
    pub fn stored_id<T: Table>(
        &mut self,
        id: String,
        naming: IdArgumentKind,
    ) -> Result<String, Abort> {
        if naming == IdArgumentKind::New {
            check_chosen(&id)?;
        }
        self.rows.stored_id(T::SPEC, id, naming)
    }

    /// Returns the row with a primary key.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    pub fn get<T: Table>(&mut self, key: impl Key) -> Result<Option<T>, Abort> {
        let row = self.rows.get(T::SPEC, &key.cells())?;
        row.map(|row| T::from_row(&row)).transpose().map_err(broken)
    }

    /// Returns the rows of `SELECT * FROM table <clause>`, with `?1`, `?2` … in the clause.
    ///
    /// # Errors
    /// [`Abort::Broken`] if the clause is invalid or the storage fails.
    pub fn find<T: Table>(&mut self, clause: &str, params: &[Value]) -> Result<Vec<T>, Abort> {
        let rows = self.rows.find(T::SPEC, clause, params)?;
        rows.iter().map(|row| T::from_row(row)).collect::<Result<_, _>>().map_err(broken)
    }

    /// Counts the rows of `SELECT * FROM table <clause>`.
    ///
    /// # Errors
    /// [`Abort::Broken`] if the clause is invalid or the storage fails.
    pub fn count<T: Table>(&mut self, clause: &str, params: &[Value]) -> Result<i64, Abort> {
        self.rows.count(T::SPEC, clause, params)
    }

    /// Like [`Context::count`], over the rows of all scopes: for shared resources, such as the rate limit of a
    /// tool. The call's outcome must not reveal more about other scopes than that.
    ///
    /// # Errors
    /// [`Abort::Broken`] if the clause is invalid or the storage fails.
    pub fn count_everywhere<T: Table>(
        &mut self,
        clause: &str,
        params: &[Value],
    ) -> Result<i64, Abort> {
        self.rows.count_everywhere(T::SPEC, clause, params)
    }

    /// Returns the caller of an event; `None` if the log has no such event. A claim's fencing token is the seq
    /// of its event, so this identifies the holder of a lease.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    pub fn caller_of(&mut self, seq: Seq) -> Result<Option<String>, Abort> {
        self.rows.caller_of(seq)
    }

    /// Returns `true` if the event of this call is from before the file came to a version of a module. A rule that
    /// changes with a version does for such an event what it did then, so that a replay gives the same rows.
    pub fn is_before(&mut self, module: &str, version: u32) -> bool {
        self.seq <= self.rows.last_before(module, version)
    }

    /// Applies the consequences of a call without the caller's policies: ending the contents of a session, or requesting a
    /// decision. Otherwise rows that a policy hides do not exist for the reducer. The scope still applies. The
    /// caller's result must not depend on hidden rows.
    ///
    /// # Errors
    /// The errors of `act`.
    pub fn without_policies<T>(
        &mut self,
        act: impl FnOnce(&mut Context<'a>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let before = self.rows.bypass_policies(true);
        let done = act(self);
        self.rows.bypass_policies(before);
        done
    }

    /// Checks that each of these names is a reducer that callers can call.
    ///
    /// # Errors
    /// [`Abort::Refused`] with the first name that is none.
    pub fn check_reducer_names(&mut self, names: &BTreeSet<String>) -> Result<(), Abort> {
        self.rows.check_reducer_names(names)
    }

    /// Returns `true` if a replay makes the call again. A check that was added after calls were logged must accept
    /// those.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.rows.is_replay()
    }

    /// Returns the tenant that a stored scope belongs to: the scope without the keys that not all scopes have. It depends on
    /// the callers that the process has seen, so it may only decide whether a call is refused that is not replayed.
    #[must_use]
    pub fn tenant_of(&self, scope: &Scope) -> Scope {
        self.rows.tenant_of(scope)
    }

    /// Inserts a row. If the database assigns the key, key 0 means the next number, which the returned row
    /// contains.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` if it violates a constraint, or with the code that a trigger names.
    pub fn insert<T: Table>(&mut self, row: T) -> Result<T, Abort> {
        let mut row = row.into_row();
        if T::SPEC.numbered() && row[T::SPEC.key[0]] == Value::Integer(0) {
            row[T::SPEC.key[0]] = Value::Null;
        }
        let row = self.rows.insert(T::SPEC, row)?;
        T::from_row(&row).map_err(broken)
    }

    /// Replaces the row with the same key.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` if it violates a constraint, or with the code that a trigger names.
    pub fn update<T: Table + Clone>(&mut self, row: &T) -> Result<(), Abort> {
        self.rows.update(T::SPEC, row.clone().into_row())
    }

    /// Like [`Context::update`], for changes that no constraint or trigger depends on. The row is written later, together with
    /// other changes of it. If the database rejects it then, the calls that were to be committed with this one run again, each
    /// alone, and this one is refused.
    ///
    /// # Errors
    /// [`Abort::Broken`] when the storage fails.
    pub fn touch<T: Table>(&mut self, row: T) -> Result<(), Abort> {
        self.rows.touch(T::SPEC, row.into_row())
    }

    /// Deletes the row with a key, which must exist.
    ///
    /// # Errors
    /// [`Abort::Refused`] with `conflict` if it violates a constraint, or with the code that a trigger names.
    pub fn delete<T: Table>(&mut self, key: impl Key) -> Result<(), Abort> {
        self.rows.delete(T::SPEC, &key.cells())
    }
}

impl Context<'_> {
    /// Gets the verdict of some work, done here or before the call runs again. Call it before the first write:
    /// a deferred call is rolled back.
    ///
    /// # Errors
    /// [`Abort::Refused`] with the verdict, [`Abort::Deferred`] if the work exceeds the writer's budget.
    pub fn settle<W: Work + Clone + PartialEq>(&mut self, work: &W) -> Result<(), Abort> {
        let Some(work_budget) = self.work_budget else {
            let verdict = work.attempt(WHOLE);
            return Ok(verdict.expect("the whole work has a verdict")?);
        };
        for finished in work_budget.finished.iter().filter(|it| it.call == work_budget.call) {
            let done: &dyn Any = &*finished.work;
            if done.downcast_ref::<W>() == Some(work) {
                return Ok(finished.verdict.clone()?);
            }
        }
        if let Some(verdict) = work.attempt(work_budget.steps) {
            return Ok(verdict?);
        }
        work_budget.deferred.borrow_mut().push((work_budget.call, Arc::new(work.clone())));
        if work_budget.goes_on { Ok(()) } else { Err(Abort::Deferred) }
    }

    /// Validates a policy before it is stored, against empty tables. Call it before the first write: a reader plans
    /// the condition, and the call runs again.
    ///
    /// # Errors
    /// [`Abort::Refused`] if the policy is invalid, [`Abort::Deferred`] if a reader must plan the condition first.
    pub fn validate_policy(
        &mut self,
        table: &str,
        condition: Option<&str>,
        hidden: &[String],
    ) -> Result<(), Abort> {
        let Some(checker) = self.rows.policy_checker() else { return Ok(()) };
        let table = table.to_owned();
        let condition = condition.map(str::to_owned);
        self.settle(&PolicyTrial { table, condition, hidden: hidden.to_vec(), checker })
    }
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Abort {
    Abort::Broken(Box::new(error))
}

/// The return value of a reducer: its result, and whether the call is a duplicate.
#[derive(Debug)]
pub struct Reply {
    /// The result as JSON text, encoded once.
    pub result: String,
    /// Set if an earlier call already did this: nothing is written, and the reply has that
    /// call's seq.
    pub duplicate_of: Option<Seq>,
    /// Set if the caller is refused but the writes of the call are kept.
    pub refusal: Option<Refusal>,
}

impl Reply {
    fn new(result: &impl Serialize) -> Reply {
        let result =
            serde_json::to_string(result).expect("a result has string keys and serialises");
        Reply { result, duplicate_of: None, refusal: None }
    }
}

/// An extended result. Reducers that detect duplicates by their own key (`call_id`)
/// or record their refusals return this; all others return a plain result.
pub enum ReducerResult<T> {
    /// The call took effect.
    Fresh(T),
    /// The call at that seq already did this.
    Duplicate(Seq, T),
    /// The caller is refused, and the attempt is recorded: the writes of the call are kept, and its
    /// event's outcome is the refusal. In a batch it is an ordinary refusal, and nothing is
    /// kept.
    Refused(Refusal),
}

/// The types that `#[reducer]` functions may return.
pub trait IntoReply {
    /// The result's type, for the schema.
    type Result: Serialize + schemars::JsonSchema;
    /// Converts to the engine's form.
    fn into_reply(self) -> Reply;
}

impl<T: Serialize + schemars::JsonSchema> IntoReply for T {
    type Result = T;

    fn into_reply(self) -> Reply {
        Reply::new(&self)
    }
}

impl<T: Serialize + schemars::JsonSchema> IntoReply for ReducerResult<T> {
    type Result = T;

    fn into_reply(self) -> Reply {
        match self {
            ReducerResult::Fresh(result) => Reply::new(&result),
            ReducerResult::Duplicate(seq, result) => {
                Reply { duplicate_of: Some(seq), ..Reply::new(&result) }
            }
            ReducerResult::Refused(refusal) => Reply { refusal: Some(refusal), ..Reply::new(&()) },
        }
    }
}

/// The return type of a `#[reducer]` function, `Result<_, Abort>`.
#[doc(hidden)]
pub trait ReducerReturn {
    /// The type of its result.
    type Result: Serialize + schemars::JsonSchema;
}

impl<T: IntoReply, E> ReducerReturn for Result<T, E> {
    type Result = T::Result;
}

/// The arguments of a reducer as a type, for typed calls. Implemented by `#[reducer]`.
pub trait Arguments: Serialize {
    /// The name of the reducer.
    const REDUCER: &'static str;
    /// The result of the reducer.
    type Result: Serialize + schemars::JsonSchema;
}

impl<A: Arguments> Arguments for &A {
    const REDUCER: &'static str = A::REDUCER;
    type Result = A::Result;
}

/// One call with decoded arguments, ready to run.
pub trait Call: Send {
    /// Runs it. The reducer takes the arguments: a call that runs again is decoded again.
    ///
    /// # Errors
    /// [`Abort`]; nothing of the call is kept.
    fn run(self: Box<Self>, context: &mut Context<'_>) -> Result<Reply, Abort>;
}

/// Decodes the arguments of a call, by name.
pub type DecodeArguments = fn(&CallArguments) -> Result<Box<dyn Call>, Refusal>;

/// A registered reducer. Created by `#[reducer]`.
#[derive(Clone, Copy)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// The path of its function, such as `abide_reducers::timer::set_timer`.
    pub path: &'static str,
    /// Its description, from the function's doc comment.
    pub doc: &'static str,
    /// The built-in roles that may call it; an admin may in any case.
    pub roles: &'static [BuiltInRole],
    /// The JSON Schema of its arguments.
    pub arguments: fn() -> JsonValue,
    /// The JSON Schema of its result.
    pub result: fn() -> JsonValue,
    /// Decodes arguments; missing, unknown or mistyped ones are `bad_arguments`.
    pub decode: DecodeArguments,
    /// Maximum depth of the JSON of each argument; see [`Definition::wrapping`].
    pub depth: usize,
}

impl Definition {
    /// Accepts arguments of this many levels more, because they have the values of others within structures of their own. The
    /// values in them came in through calls with the usual limit.
    #[must_use]
    pub fn wrapping(self, levels: usize) -> Definition {
        Definition { depth: self.depth + levels, ..self }
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Definition").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns the JSON Schema of serialised data: a nullable column is always present.
#[doc(hidden)]
#[must_use]
pub fn result_schema<T: schemars::JsonSchema>() -> JsonValue {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>().to_value()
}
