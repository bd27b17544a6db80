//! A user's module: notes that are hidden without a policy, remarks on sessions, and memberships.

use abide_schema::{Abort, Code, Context, Json, Module, Refusal, Value, reducer, table};
use serde_json::json;

/// A marker in every text with restricted visibility.
pub(crate) const MARK: &str = "hush";

/// A note. Only policies define its owner.
#[table(name = "notes", index(tenant), index(session_id), index(owner))]
pub(crate) struct Note {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// The tenant.
    pub(crate) tenant: String,
    /// The session, without a foreign key.
    pub(crate) session_id: Option<String>,
    /// The author.
    pub(crate) owner: String,
    /// A restricted text.
    pub(crate) secret: String,
    /// JSON, or invalid JSON.
    pub(crate) body: Option<String>,
    /// A number, possibly one whose negation overflows.
    pub(crate) n: i64,
}

/// A remark on a session.
#[table(name = "remarks", index(session_id))]
pub(crate) struct Remark {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// The session.
    #[column(references = "sessions(id)")]
    pub(crate) session_id: String,
    /// The text.
    pub(crate) text: String,
}

/// A membership of a tenant.
#[table(name = "members", without_rowid, index(user))]
pub(crate) struct Member {
    /// The tenant.
    #[column(key)]
    pub(crate) tenant: String,
    /// The member.
    #[column(key)]
    pub(crate) user: String,
}

/// Writes a note.
#[expect(clippy::too_many_arguments, reason = "its arguments are the columns of its row")]
#[reducer]
pub(crate) fn put_note(
    ctx: &mut Context<'_>,
    id: i64,
    tenant: String,
    session_id: Option<String>,
    owner: String,
    secret: String,
    body: Option<String>,
    n: i64,
) -> Result<Json, Abort> {
    let note = Note { id, tenant, session_id, owner, secret, body, n };
    if ctx.get::<Note>(id)?.is_some() {
        ctx.update(&note)?;
    } else {
        ctx.insert(note)?;
    }
    Ok(Json::from(json!(id)))
}

/// Returns a note.
#[reducer]
pub(crate) fn read_note(ctx: &mut Context<'_>, id: i64) -> Result<Note, Abort> {
    Ok(ctx
        .get::<Note>(id)?
        .ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no note {id}")))?)
}

/// Returns all notes of a tenant in pages of two, and their number.
#[reducer]
pub(crate) fn list_notes(
    ctx: &mut Context<'_>,
    tenant: String,
    from: i64,
) -> Result<serde_json::Value, Abort> {
    let params = [Value::from(&*tenant), from.into()];
    let page = "WHERE tenant = ?1 ORDER BY id LIMIT 2 OFFSET ?2";
    let page = ctx.find::<Note>(page, &params)?;
    let count = ctx.count::<Note>("WHERE tenant = ?1", &params[..1])?;
    let rows: Vec<serde_json::Value> = page.iter().map(|note| json!(note)).collect();
    Ok(json!({"count": count, "notes": rows}))
}

/// Overwrites a note without reading it.
#[reducer]
pub(crate) fn overwrite_note(
    ctx: &mut Context<'_>,
    id: i64,
    tenant: String,
    owner: String,
) -> Result<Note, Abort> {
    let session_id = None;
    let secret = "over".to_owned();
    let body = None;
    let n = 1;
    let note = Note { id, tenant, session_id, owner, secret, body, n };
    ctx.update(&note)?;
    Ok(note)
}

/// Inserts a note without checking for an existing one; number 0 means the next one.
#[reducer]
pub(crate) fn add_note(
    ctx: &mut Context<'_>,
    id: i64,
    tenant: String,
    owner: String,
    n: i64,
) -> Result<Note, Abort> {
    let session_id = None;
    let secret = "added".to_owned();
    let body = None;
    ctx.insert(Note { id, tenant, session_id, owner, secret, body, n })
}

/// Deletes a note without reading it.
#[reducer]
pub(crate) fn tear_note(ctx: &mut Context<'_>, id: i64) -> Result<Json, Abort> {
    ctx.delete::<Note>(id)?;
    Ok(Json::from(json!(id)))
}

/// Inserts a remark without checking its session.
#[reducer]
pub(crate) fn add_remark(ctx: &mut Context<'_>, session_id: String) -> Result<Json, Abort> {
    let remark = ctx.insert(Remark { id: 0, session_id, text: "added".to_owned() })?;
    Ok(Json::from(json!(remark.id)))
}

/// Deletes a note.
#[reducer]
pub(crate) fn drop_note(ctx: &mut Context<'_>, id: i64) -> Result<Json, Abort> {
    if ctx.get::<Note>(id)?.is_some() {
        ctx.delete::<Note>(id)?;
    }
    Ok(Json::from(json!(id)))
}

/// Writes a remark on a session.
#[reducer]
pub(crate) fn put_remark(
    ctx: &mut Context<'_>,
    id: i64,
    session_id: String,
) -> Result<Json, Abort> {
    if ctx.get::<abide_reducers::Session>(&session_id)?.is_none() {
        return Err(Refusal::new(Code::NotFound, "there is no such session").into());
    }
    let remark = Remark { id, session_id, text: MARK.to_owned() };
    if ctx.get::<Remark>(id)?.is_some() {
        ctx.update(&remark)?;
    } else {
        ctx.insert(remark)?;
    }
    Ok(Json::from(json!(id)))
}

/// Adds a member.
#[reducer]
pub(crate) fn put_member(
    ctx: &mut Context<'_>,
    tenant: String,
    user: String,
) -> Result<Json, Abort> {
    if ctx.get::<Member>((&*tenant, &*user))?.is_none() {
        ctx.insert(Member { tenant, user })?;
    }
    Ok(Json::from(json!(true)))
}

/// Removes a member.
#[reducer]
pub(crate) fn drop_member(
    ctx: &mut Context<'_>,
    tenant: String,
    user: String,
) -> Result<Json, Abort> {
    if ctx.get::<Member>((&*tenant, &*user))?.is_some() {
        ctx.delete::<Member>((&*tenant, &*user))?;
    }
    Ok(Json::from(json!(true)))
}

/// Moves a session to another scope.
#[reducer]
pub(crate) fn set_scope(
    ctx: &mut Context<'_>,
    session_id: String,
    scope: serde_json::Value,
) -> Result<Json, Abort> {
    let found =
        ctx.find::<abide_reducers::Session>("WHERE id = ?1", &[Value::from(&*session_id)])?;
    for session in found {
        ctx.update(&abide_reducers::Session { scope: Json::from(scope.clone()), ..session })?;
    }
    Ok(Json::from(scope))
}

/// The module.
pub(crate) fn module() -> Module {
    Module::new("desk")
        .table::<Note>()
        .table::<Remark>()
        .table::<Member>()
        .view("old_notes", "SELECT id, tenant, body FROM notes WHERE n < 2")
        .reducer(put_note::definition())
        .reducer(drop_note::definition())
        .reducer(read_note::definition())
        .reducer(list_notes::definition())
        .reducer(overwrite_note::definition())
        .reducer(add_note::definition())
        .reducer(tear_note::definition())
        .reducer(add_remark::definition())
        .reducer(put_remark::definition())
        .reducer(put_member::definition())
        .reducer(drop_member::definition())
        .reducer(set_scope::definition())
}

/// Bodies of notes.
pub(crate) const BODIES: &[Option<&str>] =
    &[None, Some("{\"x\":1}"), Some("{\"x\":2}"), Some("hush, no JSON"), Some("[1,2]")];

/// Policy conditions by table; `copy` implements each in Rust.
pub(crate) const CONDITIONS: &[(&str, &[Option<&str>])] = &[
    (
        "notes",
        &[
            None,
            Some("tenant = :scope_tenant"),
            Some("owner = :caller_id"),
            Some(
                "EXISTS (SELECT 1 FROM members AS m WHERE m.tenant = notes.tenant AND m.user = :caller_id)",
            ),
            Some("n > 2"),
            Some("tenant IN (SELECT value FROM json_each(:caller_capabilities))"),
        ],
    ),
    ("remarks", &[None, Some("id > 2")]),
    ("members", &[None, Some("user = :caller_id")]),
    ("sessions", &[None, Some("id <> 's1'")]),
    ("agent_state", &[Some("role <> 'system'"), Some(":caller_role = 'agent'")]),
];

/// The queries. Those with a LIMIT have a total order.
pub(crate) const QUERIES: &[&str] = &[
    "SELECT * FROM notes",
    "SELECT * FROM notes WHERE tenant = 'a'",
    "SELECT id, body FROM notes WHERE tenant = 'b' AND n > 0",
    "SELECT count(*), sum(n), min(tenant), max(id) FROM notes WHERE n >= 0",
    "SELECT tenant, count(*) FROM notes GROUP BY tenant HAVING count(*) > 1",
    "SELECT id, n FROM notes ORDER BY n DESC, id LIMIT 3",
    "SELECT id FROM notes ORDER BY id LIMIT 2 OFFSET 1",
    "SELECT n.id, s.status FROM notes n JOIN sessions s ON s.id = n.session_id",
    "SELECT n.id, s.id AS sid FROM notes n LEFT JOIN sessions s ON s.id = n.session_id",
    "SELECT s.id, count(n.id) FROM sessions s LEFT JOIN notes n ON n.session_id = s.id GROUP BY s.id",
    "SELECT a.id AS one, b.id AS two FROM notes a JOIN notes b ON b.tenant = a.tenant AND b.id > a.id",
    "SELECT DISTINCT tenant FROM notes",
    "SELECT tenant FROM notes UNION SELECT user FROM members",
    "SELECT id FROM sessions EXCEPT SELECT session_id FROM notes",
    "WITH x AS (SELECT id, n FROM notes WHERE n > 1) SELECT count(*), max(n) FROM x",
    "SELECT id FROM sessions WHERE id IN (SELECT session_id FROM notes)",
    "SELECT id FROM sessions WHERE NOT EXISTS (SELECT 1 FROM notes n WHERE n.session_id = sessions.id)",
    "SELECT id, (SELECT count(*) FROM agent_state m WHERE m.session_id = s.id) AS n FROM sessions s",
    "SELECT * FROM old_notes",
    "SELECT count(*) FROM old_notes",
    "SELECT secret FROM notes",
    "SELECT count(*) FROM notes WHERE secret > 'hush 5'",
    "SELECT id FROM notes ORDER BY secret, id",
    "SELECT id FROM notes WHERE json_extract(body, '$.x') = 1",
    "SELECT id FROM notes WHERE tenant = 'a' AND abs(n) >= 0",
    "SELECT n.id FROM notes n LEFT JOIN sessions s ON s.id = n.session_id AND s.title || n.body = 'x'",
    "SELECT x FROM (SELECT id, json_extract(body, '$.x') AS x FROM notes) WHERE x = 1",
    "SELECT id FROM notes WHERE body LIKE '%x%'",
    "SELECT n.id, j.value FROM notes n, json_each(n.body) j",
    "SELECT id, row_number() OVER (PARTITION BY tenant ORDER BY id) AS nth FROM notes",
    "SELECT * FROM sessions",
    "SELECT * FROM sessions WHERE id = 's1'",
    "SELECT * FROM agent_state",
    "SELECT id, content FROM agent_state WHERE session_id = 's2' ORDER BY id",
    "SELECT session_id, count(*) FROM agent_state GROUP BY session_id",
    "SELECT m.id, s.agent FROM agent_state m JOIN sessions s ON s.id = m.session_id",
    "SELECT count(*) FROM events",
    "SELECT reducer, caller FROM events WHERE session_id = 's1' ORDER BY seq",
    "SELECT max(seq) FROM events",
    "SELECT seq, arguments, outcome FROM events WHERE session_id = 's1'",
    "SELECT DISTINCT authority FROM events WHERE session_id = 's2'",
    "SELECT * FROM members",
    "SELECT * FROM remarks",
    "SELECT r.id, n.id AS note FROM remarks r JOIN notes n ON n.session_id = r.session_id",
    "SELECT count(*) FROM tools",
    "SELECT * FROM policies",
    "SELECT count(*) FROM policies",
    "SELECT 1 FROM nowhere",
];
