//! Creating a session, by a caller or for a delegated run.

use abide_schema::reducer::ReducerResult;
use abide_schema::{Abort, Code, Context, Json, Refusal, reducer};
use serde_json::Value as JsonValue;

use super::ancestors::check_depth;
use super::{Session, SessionStatus, find_accepting, scope};
use crate::{agent, check};

/// Creates a session. `agent` can be any name; an agent that is registered as a `subagent` is refused, because no run of it could
/// start in the session. The session gets the scope of the caller and of its parent session; `scope`
/// can add keys, but not remove these.
#[reducer(roles(app, agent))]
pub fn create_session(
    ctx: &mut Context<'_>,
    /// The agent that owns it.
    agent: String,
    /// Its id; generated if omitted.
    #[id(new, Session)]
    id: Option<String>,
    /// A title for people.
    title: Option<String>,
    /// The parent session, for a session that works for another one.
    #[id(Session)]
    parent_id: Option<String>,
    /// Application-defined keys, such as a tenant, that decide who can see the session.
    scope: Option<serde_json::Map<String, JsonValue>>,
    /// Other data to store with it.
    metadata: Option<serde_json::Map<String, JsonValue>>,
) -> Result<Session, Abort> {
    check::name("agent", &agent)?;
    let id = match id {
        Some(id) => {
            check::name("id", &id)?;
            if ctx.get::<Session>(&id)?.is_some() {
                return Err(session_exists(&id).hint("omit id to get a generated one").into());
            }
            id
        }
        None => ctx.new_id("s"),
    };
    let scope = scope.unwrap_or_default();
    let metadata = metadata.unwrap_or_default();
    create(ctx, NewSession { id, agent, title, parent_id, scope, metadata })
}

/// Finds the session with an id, or creates it. A session that exists is returned unchanged: the call adds no event, and
/// its other arguments are not compared with the session.
#[reducer(roles(app, agent))]
pub fn open_session(
    ctx: &mut Context<'_>,
    /// The agent that owns a new session.
    agent: String,
    /// The id, as the caller chose it or as it is stored; without it a session with a generated id is created.
    #[id(new, Session)]
    id: Option<String>,
    /// A title for people, for a new session.
    title: Option<String>,
    /// The parent of a new session, for a session that works for another one.
    #[id(Session)]
    parent_id: Option<String>,
    /// Application-defined keys of a new session, such as a tenant, that decide who can see it.
    scope: Option<serde_json::Map<String, JsonValue>>,
    /// Other data to store with a new session.
    metadata: Option<serde_json::Map<String, JsonValue>>,
) -> Result<ReducerResult<Session>, Abort> {
    check::name("agent", &agent)?;
    let id = match id {
        Some(id) => {
            check::name("id", &id)?;
            if let Some(session) = ctx.get::<Session>(&id)? {
                return Ok(ReducerResult::Duplicate(session.seq, session));
            }
            id
        }
        None => ctx.new_id("s"),
    };
    let scope = scope.unwrap_or_default();
    let metadata = metadata.unwrap_or_default();
    create(ctx, NewSession { id, agent, title, parent_id, scope, metadata })
        .map(ReducerResult::Fresh)
}

/// Creates a session that a caller asked for, within its parent.
fn create(ctx: &mut Context<'_>, mut new: NewSession) -> Result<Session, Abort> {
    agent::check_owns_sessions(ctx, &new.agent)?;
    if let Some(parent) = &new.parent_id {
        let parent = find_accepting(ctx, parent)?;
        check_depth(ctx, &parent)?;
        scope::inherit(&mut new.scope, &parent)?;
    }
    insert(ctx, new)
}

/// Creates the session of a run that was started for a tool call: its id is that of the call, and it has the scope of
/// the call's session.
pub(crate) fn create_child(
    ctx: &mut Context<'_>,
    id: String,
    agent: String,
    parent: &Session,
) -> Result<Session, Abort> {
    if ctx.get::<Session>(&id)?.is_some() {
        return Err(session_exists(&id).into());
    }
    check_depth(ctx, parent)?;
    let mut scope = serde_json::Map::new();
    scope::inherit(&mut scope, parent)?;
    let metadata = serde_json::Map::from_iter([("call_id".to_owned(), id.as_str().into())]);
    let parent_id = Some(parent.id.clone());
    insert(ctx, NewSession { id, agent, title: None, parent_id, scope, metadata })
}

/// Attributes of a new session.
pub(crate) struct NewSession {
    pub(crate) id: String,
    pub(crate) agent: String,
    pub(crate) title: Option<String>,
    pub(crate) parent_id: Option<String>,
    pub(crate) scope: serde_json::Map<String, JsonValue>,
    pub(crate) metadata: serde_json::Map<String, JsonValue>,
}

/// Inserts a session within the caller's scope.
pub(crate) fn insert(ctx: &mut Context<'_>, new: NewSession) -> Result<Session, Abort> {
    let NewSession { id, agent, title, parent_id, mut scope, metadata } = new;
    scope::confine(&mut scope, ctx.caller)?;
    ctx.about(&id);
    let now = ctx.now;
    let seq = ctx.seq;
    ctx.insert(Session {
        id,
        agent,
        status: SessionStatus::Created,
        parent_id,
        title,
        scope: Json::from(JsonValue::Object(scope)),
        metadata: Json::from(JsonValue::Object(metadata)),
        result: None,
        error_code: None,
        error_message: None,
        reason: None,
        cancel_requested_at: None,
        cancel_reason: None,
        created_at: now,
        updated_at: now,
        seq,
    })
}

fn session_exists(id: &str) -> Refusal {
    Refusal::new(Code::Conflict, format!("session {id} already exists"))
}
