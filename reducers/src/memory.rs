//! Memory: what agents have learned, as facts that outlive a session. A fact has a key and a value, and belongs to a
//! **space**: a namespace (by default the name of the agent) within a scope, or within one session. Two scopes never
//! share a space, so a fact of one tenant does not exist for another.
//!
//! The vector of a fact is a row of its own, for search by meaning. It is dropped when the value changes.

use std::collections::BTreeSet;

use abide_schema::caller;
use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Scope, Seq, Value, limits, reducer, table,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use crate::session::{self, Session, scope};
use crate::{check, run, run::Run};

/// A fact that an agent remembers.
#[table(name = "memories", unique(space, key), index(space, updated_at))]
pub struct Memory {
    /// Its number.
    #[column(key)]
    pub id: i64,
    /// The space: `support@tenant=acme/` is the namespace `support` within the scope `{"tenant": "acme"}`. The id of a
    /// session follows if the facts belong to one session.
    pub space: String,
    /// The namespace: the name of the agent, or a name that several agents share.
    pub namespace: String,
    /// The session that it belongs to; null if all sessions of the scope share it.
    pub session_id: Option<String>,
    /// The scope that it belongs to.
    #[column(scope)]
    pub scope: Json,
    /// The subject of the fact. A space has one fact with a key.
    pub key: String,
    /// The fact.
    pub value: String,
    /// How certain it is, from 0 to 1.
    pub confidence: f64,
    /// The event of the log in which it was learned.
    pub source_seq: Seq,
    /// When it was first learned.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// The vector of a fact, for search by meaning.
#[table(name = "memory_vectors")]
pub struct MemoryVector {
    /// The fact.
    #[column(key, references = "memories(id)")]
    pub memory_id: i64,
    /// The model that made it. Vectors of different models cannot be compared.
    pub model: String,
    /// The numbers: 32-bit floats, little-endian.
    pub vector: Vec<u8>,
    /// The event that stored it.
    pub seq: Seq,
}

/// A fact to save. It replaces the fact with this key.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMemory {
    /// The subject of the fact.
    pub key: String,
    /// The fact.
    pub value: String,
    /// How certain it is, from 0 to 1; 1 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// The event of the log in which it was learned; this call if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_seq: Option<i64>,
}

/// The vector of a fact to store.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMemoryVector {
    /// The fact.
    pub memory_id: i64,
    /// The `seq` of the fact whose text the vector represents. If the fact has changed, the vector is dropped.
    pub seq: i64,
    /// 32-bit floats, little-endian: `{"$blob": "<base64>"}`.
    pub vector: JsonValue,
}

/// The result of `save_memories`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoriesSaved {
    /// The space of the facts.
    pub space: String,
    /// Facts that are new or have changed.
    pub saved: usize,
    /// Facts that were known.
    pub unchanged: usize,
}

/// The result of `forget_memories`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoriesForgotten {
    /// Facts that this call deleted.
    pub forgotten: usize,
    /// Whether facts are left: call it again.
    pub more: bool,
}

/// The result of `embed_memories`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoriesEmbedded {
    /// Vectors that were stored.
    pub stored: usize,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("memory")
        .visible::<Memory>(RowVisibility::InScope)
        .visible::<MemoryVector>(RowVisibility::InScope)
        // The facts that a model reads are a message of the session.
        .copied(
            ("memories", "value"),
            &[
                ("agent_state", "content"),
                ("agent_state", "data"),
                ("run_events", "data"),
                ("runs", "output"),
                ("memory_vectors", "vector"),
            ],
        )
        .reducer(save_memories::definition())
        .reducer(forget_memories::definition())
        .reducer(embed_memories::definition())
}

/// Saves facts, all or nothing. They belong to the scope of the caller, or, with `session_id`, to one session. A fact
/// replaces the one with the same key. A space has at most 1,000 facts.
#[reducer(roles(app, agent))]
pub fn save_memories(
    ctx: &mut Context<'_>,
    /// The namespace: the name of an agent, or a name that several agents share.
    namespace: String,
    /// The facts, at most 100.
    facts: Vec<NewMemory>,
    /// Keys that are added to the scope of the caller.
    scope: Option<serde_json::Map<String, JsonValue>>,
    /// The session that the facts belong to. They have its scope.
    #[id(Session)]
    session_id: Option<String>,
    /// The run that learned them.
    #[id(Run)]
    run_id: Option<String>,
    /// The fencing token of the claim of this run. Required with `run_id`.
    fencing_token: Option<i64>,
) -> Result<ReducerResult<MemoriesSaved>, Abort> {
    check_namespace(&namespace)?;
    check_count("facts", facts.len())?;
    check_holder(ctx, run_id.as_deref(), fencing_token)?;
    let place = Place::resolve(ctx, namespace, scope, session_id)?;
    let mut done = MemoriesSaved { space: place.space.clone(), saved: 0, unchanged: 0 };
    // A call that is refused after it has written makes its whole group run again, so all checks come first.
    let mut keys = BTreeSet::new();
    let mut changes = Vec::new();
    for fact in facts {
        check_fact(ctx, &fact)?;
        if !keys.insert(fact.key.clone()) {
            let detail = format!("facts contains the key {} twice", fact.key);
            return Err(Refusal::new(Code::BadArguments, detail).into());
        }
        match place.change(ctx, fact)? {
            Some(change) => changes.push(change),
            None => done.unchanged += 1,
        }
    }
    done.saved = changes.len();
    if changes.is_empty() {
        return Ok(ReducerResult::Duplicate(Seq::ZERO, done));
    }
    let new = changes.iter().filter(|memory| memory.id == 0).count();
    check_room(ctx, &place.space, new)?;
    for memory in changes {
        match memory.id {
            0 => ctx.insert(memory).map(drop)?,
            id => {
                drop_vector(ctx, id)?;
                ctx.update(&memory)?;
            }
        }
    }
    Ok(ReducerResult::Fresh(done))
}

/// Deletes facts of a space: those with these keys, or all. Keys that do not exist are ignored. One call deletes at
/// most 100 facts. The log keeps the calls that saved them.
#[reducer(roles(app, agent))]
pub fn forget_memories(
    ctx: &mut Context<'_>,
    /// The space, as in the table `memories`.
    space: String,
    /// The keys of the facts; all facts if omitted.
    keys: Option<Vec<String>>,
    /// The run that forgets them.
    #[id(Run)]
    run_id: Option<String>,
    /// The fencing token of the claim of this run. Required with `run_id`.
    fencing_token: Option<i64>,
) -> Result<ReducerResult<MemoriesForgotten>, Abort> {
    check_holder(ctx, run_id.as_deref(), fencing_token)?;
    let max = limits::MEMORIES_OF_A_CALL;
    let found = match keys {
        Some(keys) => {
            check_count("keys", keys.len())?;
            let keys: BTreeSet<String> = keys.into_iter().collect();
            let mut found = Vec::new();
            for key in keys {
                found.extend(find(ctx, &space, &key)?);
            }
            found
        }
        None => {
            let first = "WHERE space = ?1 ORDER BY key LIMIT ?2";
            ctx.find::<Memory>(first, &[space.as_str().into(), (max as i64 + 1).into()])?
        }
    };
    let done = MemoriesForgotten { forgotten: found.len().min(max), more: found.len() > max };
    if found.is_empty() {
        return Ok(ReducerResult::Duplicate(Seq::ZERO, done));
    }
    for memory in found.into_iter().take(max) {
        drop_vector(ctx, memory.id)?;
        ctx.delete::<Memory>(memory.id)?;
    }
    Ok(ReducerResult::Fresh(done))
}

/// Stores vectors of facts, for search by meaning. The vector of a fact that has changed or does not exist any more is
/// dropped.
#[reducer(roles(app, agent))]
pub fn embed_memories(
    ctx: &mut Context<'_>,
    /// The embedding model.
    model: String,
    /// The vectors, at most 100.
    vectors: Vec<NewMemoryVector>,
) -> Result<ReducerResult<MemoriesEmbedded>, Abort> {
    check::name("model", &model)?;
    check_count("vectors", vectors.len())?;
    let mut rows = Vec::new();
    for new in vectors {
        let vector = read_vector(&new)?;
        let current = ctx.get::<Memory>(new.memory_id)?.filter(|it| it.seq.0 == new.seq);
        let Some(memory) = current else { continue };
        rows.push(MemoryVector {
            memory_id: memory.id,
            model: model.clone(),
            vector,
            seq: ctx.seq,
        });
    }
    let done = MemoriesEmbedded { stored: rows.len() };
    if rows.is_empty() {
        return Ok(ReducerResult::Duplicate(Seq::ZERO, done));
    }
    for row in rows {
        match ctx.get::<MemoryVector>(row.memory_id)? {
            Some(_) => ctx.update(&row)?,
            None => ctx.insert(row).map(drop)?,
        }
    }
    Ok(ReducerResult::Fresh(done))
}

/// Where facts are saved.
struct Place {
    space: String,
    namespace: String,
    session_id: Option<String>,
    scope: Json,
}

impl Place {
    fn resolve(
        ctx: &mut Context<'_>,
        namespace: String,
        scope: Option<serde_json::Map<String, JsonValue>>,
        session_id: Option<String>,
    ) -> Result<Place, Abort> {
        let scope = match (&session_id, scope) {
            (Some(_), Some(_)) => {
                let hint = "omit scope: facts of a session have the scope of the session";
                let detail = "scope is not valid with session_id";
                return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
            }
            (Some(session_id), None) => {
                scope::text_entries(&session::find(ctx, session_id)?.scope.value())
            }
            (None, scope) => {
                let mut scope = scope.unwrap_or_default();
                if let Some((key, _)) = scope.iter().find(|(_, value)| !value.is_string()) {
                    let detail = format!("scope.{key} must be a string");
                    let hint = "for example {\"tenant\": \"acme\"}";
                    return Err(Refusal::new(Code::BadArguments, detail).hint(hint).into());
                }
                scope::confine(&mut scope, ctx.caller)?;
                scope::text_entries(&JsonValue::Object(scope))
            }
        };
        let space = space_name(&namespace, &scope, session_id.as_deref());
        let scope = Json::from(serde_json::json!(scope));
        Ok(Place { space, namespace, session_id, scope })
    }

    /// Returns the row of a fact, with the id 0 if it is new; `None` if it is known.
    fn change(&self, ctx: &mut Context<'_>, fact: NewMemory) -> Result<Option<Memory>, Abort> {
        let before = find(ctx, &self.space, &fact.key)?;
        let confidence = fact.confidence.unwrap_or(1.0);
        if let Some(before) = &before
            && before.value == fact.value
            && before.confidence.total_cmp(&confidence).is_eq()
        {
            return Ok(None);
        }
        Ok(Some(Memory {
            id: before.as_ref().map_or(0, |it| it.id),
            space: self.space.clone(),
            namespace: self.namespace.clone(),
            session_id: self.session_id.clone(),
            scope: self.scope.clone(),
            key: fact.key,
            value: fact.value,
            confidence,
            source_seq: fact.source_seq.map_or(ctx.seq, Seq),
            created_at: before.map_or(ctx.now, |it| it.created_at),
            updated_at: ctx.now,
            seq: ctx.seq,
        }))
    }
}

/// Returns the facts that belong to one session alone and have not changed since an event, the one that changed last at
/// the end: those in these spaces, and those of the session's agent.
pub(crate) fn find_of_session(
    ctx: &mut Context<'_>,
    session: &Session,
    spaces: &BTreeSet<String>,
    at: i64,
) -> Result<Vec<Memory>, Abort> {
    let own = own_space(session);
    let mut found = Vec::new();
    for space in spaces.iter().chain((!spaces.contains(&own)).then_some(&own)) {
        let params = [space.as_str().into(), session.id.as_str().into(), at.into()];
        let of_space = "WHERE space = ?1 AND session_id = ?2 AND seq <= ?3 ORDER BY updated_at, id";
        found.extend(ctx.find::<Memory>(of_space, &params)?);
    }
    Ok(found)
}

/// Returns the facts of a session in one space that have not changed since an event: at most `max` of them behind
/// `after`, which is the time of the last change and the id, in that order.
pub(crate) fn find_next_of_session(
    ctx: &mut Context<'_>,
    session: &Session,
    space: &str,
    at: i64,
    after: (i64, i64),
    max: usize,
) -> Result<Vec<Memory>, Abort> {
    let next = "WHERE space = ?1 AND (updated_at, id) > (?2, ?3) AND session_id = ?4 AND seq <= ?5
        ORDER BY updated_at, id LIMIT ?6";
    let id = session.id.as_str();
    let params =
        [space.into(), after.0.into(), after.1.into(), id.into(), at.into(), (max as i64).into()];
    ctx.find::<Memory>(next, &params)
}

/// Returns the space of the facts that belong to a session alone, in the namespace of its agent.
pub(crate) fn own_space(session: &Session) -> String {
    space_name(&session.agent, &scope::text_entries(&session.scope.value()), Some(&session.id))
}

/// Writes facts of a copied session, which has none with these keys in this namespace yet.
pub(crate) fn restore(
    ctx: &mut Context<'_>,
    session: &Session,
    namespace: &str,
    facts: Vec<NewMemory>,
) -> Result<(), Abort> {
    check_namespace(namespace)?;
    let scope = scope::text_entries(&session.scope.value());
    let place = Place {
        space: space_name(namespace, &scope, Some(&session.id)),
        namespace: namespace.to_owned(),
        session_id: Some(session.id.clone()),
        scope: Json::from(serde_json::json!(scope)),
    };
    check_room(ctx, &place.space, facts.len())?;
    for fact in facts {
        check_fact(ctx, &fact)?;
        match place.change(ctx, fact)?.filter(|memory| memory.id == 0) {
            Some(memory) => ctx.insert(memory).map(drop)?,
            None => {
                let detail = format!("facts of namespace {namespace} have the same key");
                return Err(Refusal::new(Code::BadArguments, detail).into());
            }
        }
    }
    Ok(())
}

/// Returns the space of a namespace within a scope, or within a session of this scope. The parts cannot be confused: a
/// namespace has no `@`, and a scope has no `/`.
#[must_use]
pub fn space_name(namespace: &str, scope: &Scope, session_id: Option<&str>) -> String {
    let prefix = caller::namespace(scope);
    let prefix = if prefix.is_empty() { "/" } else { &prefix };
    format!("{namespace}@{prefix}{}", session_id.unwrap_or_default())
}

fn find(ctx: &mut Context<'_>, space: &str, key: &str) -> Result<Option<Memory>, Abort> {
    let of_key = "WHERE space = ?1 AND key = ?2";
    Ok(ctx.find::<Memory>(of_key, &[space.into(), key.into()])?.pop())
}

fn drop_vector(ctx: &mut Context<'_>, memory_id: i64) -> Result<(), Abort> {
    // A consequence of the change of the fact.
    ctx.without_policies(|ctx| match ctx.get::<MemoryVector>(memory_id)? {
        Some(_) => ctx.delete::<MemoryVector>(memory_id),
        None => Ok(()),
    })
}

/// Checks that the caller holds the run that it acts for; the event will name the session of the run.
fn check_holder(
    ctx: &mut Context<'_>,
    run_id: Option<&str>,
    fencing_token: Option<i64>,
) -> Result<(), Abort> {
    match (run_id, fencing_token) {
        (None, None) => Ok(()),
        (Some(id), Some(token)) => run::drive::find_claimed(ctx, id, token).map(drop),
        _ => {
            let detail = "run_id and fencing_token must be given together";
            Err(Refusal::new(Code::BadArguments, detail)
                .hint("the driver of a run gives both; other callers omit both")
                .into())
        }
    }
}

/// A name as agents have it, so that the parts of a space cannot be confused.
fn check_namespace(name: &str) -> Result<(), Refusal> {
    check::name("namespace", name)?;
    if name.chars().all(check::is_path_character) {
        return Ok(());
    }
    let detail = format!("namespace {name:?} is not valid");
    let hint = "letters, digits, . _ - and / are allowed, as in the name of an agent";
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

fn check_fact(ctx: &Context<'_>, fact: &NewMemory) -> Result<(), Refusal> {
    let key = &fact.key;
    let value = &fact.value;
    check::name("the key of a fact", key)?;
    let sizes = [
        ("the key of a fact", key.len(), limits::MEMORY_KEY_BYTES),
        ("the value of a fact", value.len(), limits::MEMORY_VALUE_BYTES),
    ];
    for (what, bytes, max) in sizes {
        if bytes > max {
            let detail = format!("{what} has {bytes} bytes; the limit is {max}");
            return Err(Refusal::new(Code::LimitExceeded, detail).hint("save a shorter fact"));
        }
    }
    if value.trim().is_empty() {
        let hint = "forget_memories deletes a fact";
        let detail = format!("the value of {key} is empty");
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    if fact.confidence.is_some_and(|it| !(0.0..=1.0).contains(&it)) {
        return Err(Refusal::new(Code::BadArguments, "confidence must be between 0 and 1"));
    }
    check::in_range("source_seq", fact.source_seq, &(1..=ctx.seq.0))
}

fn check_count(argument: &str, count: usize) -> Result<(), Refusal> {
    let max = limits::MEMORIES_OF_A_CALL;
    if count <= max {
        return Ok(());
    }
    let detail = format!("{argument} has {count} items; the limit is {max}");
    Err(Refusal::new(Code::LimitExceeded, detail).hint("make several calls"))
}

/// Checks that a space has room for new facts.
fn check_room(ctx: &mut Context<'_>, space: &str, new: usize) -> Result<(), Abort> {
    if new == 0 {
        return Ok(());
    }
    // A policy may hide some of them.
    let stored = ctx.count_everywhere::<Memory>("WHERE space = ?1", &[Value::from(space)])?;
    let max = limits::MEMORIES_OF_A_SPACE;
    if stored + new as i64 <= max {
        return Ok(());
    }
    let detail = format!("space {space} has {stored} facts; the limit is {max}");
    let hint = "forget facts that are no longer needed, or replace them by saving the same key";
    Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into())
}

fn read_vector(new: &NewMemoryVector) -> Result<Vec<u8>, Refusal> {
    let hint = "a vector is 32-bit floats, little-endian, as {\"$blob\": \"<base64>\"}";
    let id = new.memory_id;
    let Ok(Value::Blob(bytes)) = Value::from_json(&new.vector) else {
        let detail = format!("the vector of fact {id} is not valid");
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    };
    let max = limits::EMBEDDING_BYTES;
    if bytes.is_empty() || bytes.len() > max || bytes.len() % 4 != 0 {
        let detail = format!(
            "the vector of fact {id} must have 4 to {max} bytes, in fours, not {}",
            bytes.len()
        );
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    let mut numbers =
        bytes.chunks_exact(4).map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]]));
    if !numbers.all(f32::is_finite) {
        let detail = format!("the vector of fact {id} contains a number that is not finite");
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id of a session can contain everything that a scope contains.
    #[test]
    fn no_two_places_have_the_same_space() {
        let scope = |key: &str, value: &str| Scope::from_iter([(key.into(), value.into())]);
        let places = [
            space_name("a", &Scope::new(), None),
            space_name("a", &Scope::new(), Some("x=1/")),
            space_name("a", &Scope::new(), Some("/")),
            space_name("a", &scope("x", "1"), None),
            space_name("a", &scope("x", "1"), Some("x=1/")),
            space_name("a", &scope("x", "1/"), None),
            space_name("a", &scope("x", "1,y=2"), None),
            space_name("a/b", &scope("x", "1"), None),
            space_name("a/b", &Scope::new(), Some("x=1/")),
            space_name("a", &scope("", ""), None),
        ];
        let distinct: BTreeSet<&String> = places.iter().collect();
        assert_eq!(distinct.len(), places.len(), "{places:?}");
    }
}
