//! Collections: ordered key-value entries for frameworks and applications that bring their own data model, such as the
//! checkpoints of a graph or the items of a conversation.
//!
//! A collection belongs to a scope, and its entries to the collection. An entry has a JSON value, a BLOB, or both. One
//! call writes many entries, all or nothing. `seq` is the version of an entry: `expected_seq` makes a write a
//! compare-and-set. The order of appended entries comes from the log: the clocks of two clients differ, so a key that a
//! client makes from its clock can put a result before its call.
//!
//! A collection can be fenced: a write with the fencing token of a claim (a tool call, a run or a handoff) raises the
//! token of the collection. From then on it refuses writes with an older token, and writes without one. So a worker
//! that lost its lease cannot overwrite the state of its successor. The write names the claim, and the caller must hold it
//! now. Any claim will do, so fencing does not protect from other identities of the scope.

use std::collections::HashMap;

use abide_schema::reducer::{Nullable, ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, Value, limits, reducer, table,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use crate::handoff::HandoffRequest;
use crate::run::Run;
use crate::session::scope;
use crate::tool_call::ToolCall;
use crate::{check, handoff, run, tool_call};

/// A set of entries with a common scope.
#[table(name = "collections", index(kind, id))]
pub struct Collection {
    /// Its id, chosen by the caller.
    #[column(key)]
    pub id: String,
    /// The kind of its content, as the application names it.
    pub kind: String,
    /// Application-defined keys, such as a tenant, that decide who can see its entries.
    #[column(scope)]
    pub scope: Json,
    /// The largest fencing token of a write; null if it is not fenced.
    pub fencing_token: Option<i64>,
    /// When it was created.
    pub created_at: Micros,
    /// The event of the last change, except of its entries.
    pub seq: Seq,
}

/// One entry of a collection.
#[table(name = "entries")]
pub struct Entry {
    /// The collection.
    #[column(key, references = "collections(id)")]
    pub collection_id: String,
    /// Its key. Entries are ordered by the bytes of their keys.
    #[column(key)]
    pub key: String,
    /// Its JSON value.
    pub data: Option<Json>,
    /// Its bytes.
    pub blob: Option<Vec<u8>>,
    /// When it was first written.
    pub created_at: Micros,
    /// When it was last written.
    pub updated_at: Micros,
    /// The event that wrote it last: its version.
    pub seq: Seq,
}

/// An entry to write. It replaces the entry with this key.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EntryPut {
    /// Its key.
    pub key: String,
    /// Its JSON value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<JsonValue>,
    /// Its bytes: `{"$blob": "<base64>"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<JsonValue>,
    /// The `seq` of the entry that it replaces, 0 if there is none: otherwise the call is a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_seq: Option<i64>,
    /// Leaves an entry that exists unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<bool>,
    /// Adds a new entry after all that were appended before: its key is `key`, followed by digits that only increase in
    /// the order of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append: Option<bool>,
}

/// The result of `write_entries`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EntriesWritten {
    /// The stored id of the collection: for a caller with a scope, in the namespace of this scope.
    pub collection_id: String,
    /// Entries that were written.
    pub written: usize,
    /// Entries that were deleted.
    pub deleted: usize,
}

/// The result of `delete_entries`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EntriesDeleted {
    /// Entries that this call deleted.
    pub deleted: usize,
    /// Whether entries are left: call it again.
    pub more: bool,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("collection")
        .visible::<Collection>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .visible::<Entry>(RowVisibility::InScope)
        // Messages of A2A clients, and what adapters of frameworks store.
        .copied(("agent_state", "content"), &[("entries", "data")])
        .copied(("agent_state", "data"), &[("entries", "data")])
        .reducer(write_entries::definition())
        .reducer(delete_entries::definition())
}

/// Writes and deletes entries of a collection, all or nothing. The first write creates the collection, in the scope of
/// the caller. A key to delete that does not exist is ignored. Without entries the call changes nothing and returns
/// the stored id of the collection.
#[reducer(roles(app, agent))]
pub fn write_entries(
    ctx: &mut Context<'_>,
    #[id(new, Collection)] collection_id: String,
    /// Entries to write, at most 1,000 together with `deletes`.
    puts: Option<Vec<EntryPut>>,
    /// Keys of entries to delete.
    deletes: Option<Vec<String>>,
    /// The kind of its content; stored when it is created. `entries` if omitted.
    kind: Option<String>,
    /// Keys that are added to the scope of a new collection.
    scope: Option<serde_json::Map<String, JsonValue>>,
    /// The fencing token of a claim that the caller holds: of `call_id`, `run_id` or `handoff_id`.
    fencing_token: Option<i64>,
    /// The claimed tool call.
    #[id(ToolCall)]
    call_id: Option<String>,
    /// The claimed run.
    #[id(Run)]
    run_id: Option<String>,
    /// The claimed handoff.
    #[id(HandoffRequest)]
    handoff_id: Option<String>,
) -> Result<ReducerResult<EntriesWritten>, Abort> {
    check::name("collection_id", &collection_id)?;
    let puts = puts.unwrap_or_default();
    let deletes = deletes.unwrap_or_default();
    check_count(puts.len() + deletes.len())?;
    let mut done = EntriesWritten { collection_id, written: 0, deleted: 0 };
    if puts.is_empty() && deletes.is_empty() {
        return Ok(ReducerResult::Duplicate(Seq::ZERO, done));
    }
    let id = done.collection_id.as_str();
    let stored = ctx.get::<Collection>(id)?;
    Claim { call_id, run_id, handoff_id }.check(ctx, fencing_token)?;
    check_token(id, stored.as_ref(), fencing_token)?;
    // A call that is refused after it has written makes its whole group run again, so all checks come first.
    let changes = Changes::plan(ctx, id, puts, deletes)?;
    match stored {
        Some(stored) => raise_token(ctx, stored, fencing_token)?,
        None => create(ctx, id, kind, scope.unwrap_or_default(), fencing_token)?,
    }
    for change in changes.in_order {
        match change {
            Change::Insert(entry) => ctx.insert(entry).map(|_| done.written += 1)?,
            Change::Update(entry) => ctx.update(&entry).map(|()| done.written += 1)?,
            Change::Delete(key) => {
                ctx.delete::<Entry>((id, key.as_str())).map(|()| done.deleted += 1)?;
            }
        }
    }
    Ok(ReducerResult::Fresh(done))
}

/// Deletes the entries whose keys begin with a prefix, in the order of their keys, and at most about 200
/// or 16 MiB in one call. With the empty prefix it deletes all entries, and then the collection. A collection stays
/// if it is fenced, because it holds the token, and if it has entries that the caller cannot see.
#[reducer(roles(app, agent))]
pub fn delete_entries(
    ctx: &mut Context<'_>,
    #[id(Collection)] collection_id: String,
    /// The first characters of the keys; `null` or empty means all entries.
    prefix: Nullable<String>,
    /// The fencing token of a claim that the caller holds: of `call_id`, `run_id` or `handoff_id`.
    fencing_token: Option<i64>,
    /// The claimed tool call.
    #[id(ToolCall)]
    call_id: Option<String>,
    /// The claimed run.
    #[id(Run)]
    run_id: Option<String>,
    /// The claimed handoff.
    #[id(HandoffRequest)]
    handoff_id: Option<String>,
) -> Result<ReducerResult<EntriesDeleted>, Abort> {
    let prefix = prefix.0.unwrap_or_default();
    let stored = ctx.get::<Collection>(&collection_id)?;
    Claim { call_id, run_id, handoff_id }.check(ctx, fencing_token)?;
    check_token(&collection_id, stored.as_ref(), fencing_token)?;
    let Some(stored) = stored else {
        let done = EntriesDeleted { deleted: 0, more: false };
        return Ok(ReducerResult::Duplicate(Seq::ZERO, done));
    };
    let is_fenced = stored.fencing_token.max(fencing_token).is_some();
    raise_token(ctx, stored, fencing_token)?;
    let max = limits::ENTRIES_DELETED;
    let mut deleted = 0;
    let mut bytes = 0;
    let more = loop {
        // Few at a time, because each can have megabytes.
        let found = first_entries(ctx, &collection_id, &prefix)?;
        if found.is_empty() {
            break false;
        }
        if deleted >= max || bytes >= limits::ENTRIES_BYTES {
            break true;
        }
        for entry in found {
            ctx.delete::<Entry>((collection_id.as_str(), entry.key.as_str()))?;
            deleted += 1;
            bytes += entry.bytes();
        }
    };
    if !more && prefix.is_empty() && !is_fenced && is_empty(ctx, &collection_id)? {
        ctx.delete::<Collection>(&collection_id)?;
    }
    Ok(ReducerResult::Fresh(EntriesDeleted { deleted, more }))
}

/// Returns `true` if a collection has no entries, also none that the caller cannot see.
fn is_empty(ctx: &mut Context<'_>, collection_id: &str) -> Result<bool, Abort> {
    let clause = "WHERE id = ?1 AND EXISTS (SELECT 1 FROM entries WHERE collection_id = ?1)";
    Ok(ctx.without_policies(|ctx| ctx.count::<Collection>(clause, &[collection_id.into()]))? == 0)
}

/// The entries that [`delete_entries`] reads at a time.
const DELETED_AT_ONCE: i64 = 4;

/// Returns the first entries whose keys begin with a prefix.
fn first_entries(
    ctx: &mut Context<'_>,
    collection_id: &str,
    prefix: &str,
) -> Result<Vec<Entry>, Abort> {
    let id = Value::from(collection_id);
    let count = Value::from(DELETED_AT_ONCE);
    match after_prefix(prefix) {
        Some(end) => ctx.find::<Entry>(
            "WHERE collection_id = ?1 AND key >= ?2 AND key < ?3 ORDER BY key LIMIT ?4",
            &[id, prefix.into(), end.into(), count],
        ),
        None => ctx.find::<Entry>(
            "WHERE collection_id = ?1 AND key >= ?2 ORDER BY key LIMIT ?3",
            &[id, prefix.into(), count],
        ),
    }
}

/// The bytes of stored entries that a call has read.
#[derive(Debug, Default)]
struct BytesRead(usize);

impl BytesRead {
    /// Counts an entry.
    fn add(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let is_first = self.0 == 0;
        let bytes = entry.bytes();
        self.0 += bytes;
        if is_first || self.0 <= limits::ENTRIES_BYTES {
            return Ok(());
        }
        let max = limits::ENTRIES_BYTES >> 20;
        let detail = format!("the call replaces or reads entries of more than {max} MiB");
        Err(Refusal::new(Code::LimitExceeded, detail).hint("write them in several calls"))
    }
}

impl Entry {
    /// Returns the bytes of its values.
    fn bytes(&self) -> usize {
        let data = self.data.as_ref().map_or(0, |data| data.as_str().len());
        data + self.blob.as_ref().map_or(0, Vec::len) + self.key.len()
    }
}

/// Returns the first text after all that begin with a prefix, in the order of their bytes; `None` if there is none.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // The range skips the surrogates, which are not characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// Creates a collection, in the scope of the caller.
fn create(
    ctx: &mut Context<'_>,
    id: &str,
    kind: Option<String>,
    mut scope: serde_json::Map<String, JsonValue>,
    fencing_token: Option<i64>,
) -> Result<(), Abort> {
    scope::confine(&mut scope, ctx.caller)?;
    let kind = kind.unwrap_or_else(|| "entries".to_owned());
    check::name("kind", &kind)?;
    let scope = Json::from(JsonValue::Object(scope));
    let id = id.to_owned();
    let created_at = ctx.now;
    let seq = ctx.seq;
    ctx.insert(Collection { id, kind, scope, fencing_token, created_at, seq }).map(drop)
}

/// Stores a newer fencing token.
fn raise_token(
    ctx: &mut Context<'_>,
    stored: Collection,
    fencing_token: Option<i64>,
) -> Result<(), Abort> {
    if stored.fencing_token < fencing_token {
        ctx.update(&Collection { fencing_token, seq: ctx.seq, ..stored })
    } else {
        Ok(())
    }
}

/// The work under whose lease a caller writes.
struct Claim {
    call_id: Option<String>,
    run_id: Option<String>,
    handoff_id: Option<String>,
}

impl Claim {
    /// Refuses a token that is not that of the named claim, or of a claim that the caller does not hold now.
    fn check(self, ctx: &mut Context<'_>, fencing_token: Option<i64>) -> Result<(), Abort> {
        match (self.call_id, self.run_id, self.handoff_id, fencing_token) {
            (None, None, None, None) => Ok(()),
            (Some(id), None, None, Some(token)) => {
                tool_call::find_claimed(ctx, &id, token).map(drop)
            }
            (None, Some(id), None, Some(token)) => {
                run::drive::find_claimed(ctx, &id, token).map(drop)
            }
            (None, None, Some(id), Some(token)) => handoff::find_claimed(ctx, &id, token).map(drop),
            _ => {
                let detail = "fencing_token must be given with exactly one of call_id, run_id and handoff_id";
                let hint = "name the claim that the token is from, or omit all of them";
                Err(Refusal::new(Code::BadArguments, detail).hint(hint).into())
            }
        }
    }
}

/// Refuses a write with an older token than that of the last write, or without one.
fn check_token(id: &str, stored: Option<&Collection>, token: Option<i64>) -> Result<(), Abort> {
    if token >= stored.and_then(|stored| stored.fencing_token) {
        return Ok(());
    }
    let detail = match token {
        Some(_) => format!("collection {id} was written with a newer fencing token"),
        None => format!("collection {id} is fenced: fencing_token is required"),
    };
    let hint = "claim the work again, and pass the fencing token of that claim";
    Err(Refusal::new(Code::LeaseLost, detail).hint(hint).into())
}

/// The changes of a call.
struct Changes<'c> {
    collection_id: &'c str,
    in_order: Vec<Change>,
    /// The version and the time of creation of each key of the call; `None` if it does not exist.
    known: HashMap<String, Option<EntryVersion>>,
    read: BytesRead,
    /// Entries with `append` so far; at most [`limits::ENTRIES_OF_A_CALL`], which is less than 4,096.
    appended: usize,
}

/// What a change must know of an entry that exists.
#[derive(Clone, Copy)]
struct EntryVersion {
    seq: Seq,
    created_at: Micros,
}

/// A change of one entry.
enum Change {
    Insert(Entry),
    Update(Entry),
    Delete(String),
}

impl<'c> Changes<'c> {
    /// Checks all changes of a call, and writes nothing.
    fn plan(
        ctx: &mut Context<'_>,
        collection_id: &'c str,
        puts: Vec<EntryPut>,
        deletes: Vec<String>,
    ) -> Result<Changes<'c>, Abort> {
        let known = HashMap::new();
        let read = BytesRead::default();
        let mut changes = Changes { collection_id, in_order: Vec::new(), known, read, appended: 0 };
        for key in deletes {
            if changes.find_version(ctx, &key)?.is_some() {
                changes.known.insert(key.clone(), None);
                changes.in_order.push(Change::Delete(key));
            }
        }
        for put in puts {
            changes.add_put(ctx, put)?;
        }
        Ok(changes)
    }

    /// Returns the version and the time of creation of an entry, after the changes before.
    fn find_version(
        &mut self,
        ctx: &mut Context<'_>,
        key: &str,
    ) -> Result<Option<EntryVersion>, Abort> {
        if let Some(known) = self.known.get(key) {
            return Ok(*known);
        }
        let stored = ctx.get::<Entry>((self.collection_id, key))?;
        if let Some(stored) = &stored {
            self.read.add(stored)?;
        }
        let version = stored.map(|Entry { seq, created_at, .. }| EntryVersion { seq, created_at });
        self.known.insert(key.to_owned(), version);
        Ok(version)
    }

    fn add_put(&mut self, ctx: &mut Context<'_>, put: EntryPut) -> Result<(), Abort> {
        let EntryPut { key, data, blob, expected_seq, keep, append } = put;
        let key = if append == Some(true) {
            if expected_seq.is_some() || keep.is_some() {
                let detail = "expected_seq and keep are not valid with append=true";
                let hint = "an appended entry has a new key: omit expected_seq and keep, or append";
                return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
            }
            self.appended += 1;
            format!("{key}{:016x}{:03x}", ctx.seq.0, self.appended)
        } else {
            key
        };
        check_key(&key)?;
        let blob = blob.map(|blob| read_blob(&key, &blob)).transpose()?;
        let before = self.find_version(ctx, &key)?;
        let found = before.map_or(0, |version| version.seq.0);
        if let Some(expected) = expected_seq.filter(|expected| *expected != found) {
            let detail = match found {
                0 => format!("entry {key} does not exist; expected_seq is {expected}"),
                found => {
                    format!("entry {key} was written by event {found}; expected_seq is {expected}")
                }
            };
            let hint = match found {
                0 => "omit expected_seq, or give 0, to create it",
                _ => "read it again and retry the change",
            };
            return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
        }
        if before.is_some() && keep == Some(true) {
            return Ok(());
        }
        let created_at = before.map_or(ctx.now, |version| version.created_at);
        self.known.insert(key.clone(), Some(EntryVersion { seq: ctx.seq, created_at }));
        let entry = Entry {
            collection_id: self.collection_id.to_owned(),
            key,
            data: data.map(Json::from),
            blob,
            created_at,
            updated_at: ctx.now,
            seq: ctx.seq,
        };
        let change = if before.is_some() { Change::Update } else { Change::Insert };
        self.in_order.push(change(entry));
        Ok(())
    }
}

fn read_blob(key: &str, blob: &JsonValue) -> Result<Vec<u8>, Refusal> {
    match Value::from_json(blob) {
        Ok(Value::Blob(bytes)) => Ok(bytes),
        _ => {
            let detail = format!("the blob of entry {key} is not valid");
            let hint = "write it as {\"$blob\": \"<base64>\"}";
            Err(Refusal::new(Code::BadArguments, detail).hint(hint))
        }
    }
}

fn check_key(key: &str) -> Result<(), Refusal> {
    let max = limits::ENTRY_KEY_BYTES;
    if (1..=max).contains(&key.len()) {
        return Ok(());
    }
    let detail = format!("key must have 1 to {max} bytes, not {}", key.len());
    Err(Refusal::new(Code::LimitExceeded, detail).hint("use a digest as the end of a long key"))
}

fn check_count(count: usize) -> Result<(), Refusal> {
    let max = limits::ENTRIES_OF_A_CALL;
    if count <= max {
        return Ok(());
    }
    let detail = format!("puts and deletes have {count} entries; the limit is {max}");
    Err(Refusal::new(Code::LimitExceeded, detail).hint("write them in several calls"))
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    /// Regression: a key that begins with the last character of Unicode was never deleted, and then its collection could
    /// not be deleted either.
    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys() {
        let check = |prefix: &str, end: Option<&str>| {
            assert_eq!(after_prefix(prefix).as_deref(), end, "{prefix:?}");
        };
        check("", None);
        check("a", Some("b"));
        check("a/", Some("a0"));
        check("a\u{d7ff}", Some("a\u{e000}"));
        check("a\u{10ffff}", Some("b"));
        check("\u{10ffff}\u{10ffff}", None);
    }
}
