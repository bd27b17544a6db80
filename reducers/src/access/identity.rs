//! Identities: who may call, with which role, capabilities and scope. Their
//! tokens are in [`crate::access::token`], permissions of roles in [`crate::access::role`].
//!
//! A caller cannot grant more than it has: a caller with a scope creates identities of that scope only,
//! and can only grant capabilities that it has itself.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::caller::{CallLimits, Caller};
use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Scope, Seq, Value, reducer, table,
};
use serde_json::json;

use crate::access::role::{self, Role};
use crate::access::{check_limits, limits_to_column};
use crate::{check, session};

/// An identity that can call reducers: a person, a program, an agent.
#[table(name = "identities")]
pub struct Identity {
    /// Its id, as it appears in the log.
    #[column(key)]
    pub id: String,
    /// Its role, which determines the reducers it may call: `app`, `agent`, `worker`, `supervisor`, `auditor`,
    /// `admin`, or a row of `roles`.
    pub role: String,
    /// Its capabilities, a JSON array of texts; `*` means all. Those of its role are added.
    pub capabilities: Json,
    /// Its scope, a JSON object of texts: it can access sessions whose scope has all of these entries.
    #[column(scope)]
    pub scope: Json,
    /// Its limits: `{"rate": {"calls", "per_ms"}, "quota": {"calls", "per_ms"}}`.
    pub limits: Option<Json>,
    /// When it was disabled.
    pub disabled_at: Option<Micros>,
    /// Why it was disabled.
    pub disabled_reason: Option<String>,
    /// The caller that created it.
    pub created_by: String,
    /// When it was created.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

impl Identity {
    /// Returns its own capabilities, without those of its role.
    #[must_use]
    pub fn capabilities(&self) -> BTreeSet<String> {
        serde_json::from_value(self.capabilities.value()).unwrap_or_default()
    }

    /// Returns its scope.
    #[must_use]
    pub fn scope(&self) -> Scope {
        serde_json::from_value(self.scope.value()).unwrap_or_default()
    }
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("identity")
        .visible::<Identity>(RowVisibility::Where(check::MANAGERS, &[]))
        .reducer(create_identity::definition())
        .reducer(change_identity::definition())
        .reducer(disable_identity::definition())
        .reducer(enable_identity::definition())
}

/// Refuses the caller of an earlier call if it is an identity that was disabled, has another role or scope since, or has lost a
/// capability that the call has recorded. It may be outside of the scope of the call: it was moved to another scope since, or its
/// call had a narrower scope.
pub(crate) fn check_unchanged(ctx: &mut Context<'_>) -> Result<(), Abort> {
    let caller = ctx.caller;
    let id = Value::from(caller.id());
    // A subject of an issuer has no row.
    if ctx.count_everywhere::<Identity>("WHERE id = ?1", std::slice::from_ref(&id))? == 0 {
        return Ok(());
    }
    let scope = Json::from(json!(caller.own_scope().unwrap_or(caller.scope())));
    // The log does not say of a caller without a scope that its call had one.
    let or_none = if caller.own_scope().is_none() { "{}" } else { scope.as_str() };
    let capabilities = Json::from(json!(caller.capabilities()));
    let unchanged = "WHERE id = ?1 AND disabled_at IS NULL AND role = ?2 AND scope IN (?3, ?4)
        AND NOT EXISTS (SELECT 1 FROM json_each(?5) AS had WHERE NOT EXISTS (
            SELECT 1 FROM (SELECT value FROM json_each(identities.capabilities) UNION ALL
                SELECT has.value FROM roles, json_each(roles.capabilities) AS has WHERE roles.name = ?2) AS now
            WHERE now.value IN (had.value, '*')))";
    let params = [
        id,
        caller.role().into(),
        scope.as_str().into(),
        or_none.into(),
        capabilities.as_str().into(),
    ];
    match ctx.count_everywhere::<Identity>(unchanged, &params)? {
        0 => {
            let detail = format!("{} was disabled, or has other permissions since", caller.id());
            Err(Refusal::new(Code::Denied, detail).into())
        }
        _ => Ok(()),
    }
}

/// Creates an identity. It gets the scope of its creator, which `scope` can narrow, and cannot have more
/// permissions than its creator. An identical request changes nothing.
#[reducer(roles(admin))]
pub fn create_identity(
    ctx: &mut Context<'_>,
    #[id(new, Identity)] id: String,
    role: String,
    capabilities: Option<BTreeSet<String>>,
    scope: Option<BTreeMap<String, String>>,
    limits: Option<CallLimits>,
) -> Result<ReducerResult<Identity>, Abort> {
    check_id(&id)?;
    check_issued(ctx.caller, &id)?;
    let now = ctx.now;
    let seq = ctx.seq;
    let identity = Identity {
        id,
        role,
        capabilities: Json::from(json!(capabilities.unwrap_or_default())),
        scope: Json::from(json!(confine(ctx.caller, scope.unwrap_or_default())?)),
        limits: limits_to_column(limits)?,
        disabled_at: None,
        disabled_reason: None,
        created_by: ctx.caller.id().to_owned(),
        created_at: now,
        updated_at: now,
        seq,
    };
    check_within(ctx, &identity)?;
    check_pace(ctx, &identity)?;
    if let Some(before) = ctx.get::<Identity>(&identity.id)? {
        let same = before.role == identity.role
            && before.capabilities == identity.capabilities
            && before.scope == identity.scope
            && before.limits == identity.limits;
        if same {
            return Ok(ReducerResult::Duplicate(before.seq, before));
        }
        let detail = format!("identity {} already exists with other attributes", before.id);
        let hint = "`abide identity change` changes it";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    ctx.insert(identity).map(ReducerResult::Fresh)
}

/// Changes an identity: given attributes replace the current ones, the others stay. Connections with
/// its credentials are closed, and can reconnect with the new attributes.
#[reducer(roles(admin))]
pub fn change_identity(
    ctx: &mut Context<'_>,
    #[id(Identity)] id: String,
    role: Option<String>,
    capabilities: Option<BTreeSet<String>>,
    scope: Option<BTreeMap<String, String>>,
    limits: Option<CallLimits>,
) -> Result<ReducerResult<Identity>, Abort> {
    let before = find(ctx, &id)?;
    check_within(ctx, &before)?;
    let mut identity = before.clone();
    if let Some(role) = role {
        identity.role = role;
    }
    if let Some(capabilities) = capabilities {
        identity.capabilities = Json::from(json!(capabilities));
    }
    if let Some(scope) = scope {
        identity.scope = Json::from(json!(confine(ctx.caller, scope)?));
    }
    if limits.is_some() {
        identity.limits = limits_to_column(limits)?;
    }
    if identity == before {
        return Ok(ReducerResult::Duplicate(before.seq, before));
    }
    check_within(ctx, &identity)?;
    if effective_limits(ctx, &identity)? != effective_limits(ctx, &before)? {
        check_pace(ctx, &identity)?;
    }
    save(ctx, identity).map(ReducerResult::Fresh)
}

/// Disables an identity immediately, including open connections, until it is enabled again.
#[reducer(roles(admin))]
pub fn disable_identity(
    ctx: &mut Context<'_>,
    #[id(Identity)] id: String,
    reason: Option<String>,
) -> Result<ReducerResult<Identity>, Abort> {
    let mut identity = find(ctx, &id)?;
    check_within(ctx, &identity)?;
    if identity.disabled_at.is_some() {
        return Ok(ReducerResult::Duplicate(identity.seq, identity));
    }
    identity.disabled_at = Some(ctx.now);
    identity.disabled_reason = reason;
    save(ctx, identity).map(ReducerResult::Fresh)
}

/// Enables a disabled identity again.
#[reducer(roles(admin))]
pub fn enable_identity(
    ctx: &mut Context<'_>,
    #[id(Identity)] id: String,
) -> Result<ReducerResult<Identity>, Abort> {
    let mut identity = find(ctx, &id)?;
    check_within(ctx, &identity)?;
    if identity.disabled_at.is_none() {
        return Ok(ReducerResult::Duplicate(identity.seq, identity));
    }
    identity.disabled_at = None;
    identity.disabled_reason = None;
    save(ctx, identity).map(ReducerResult::Fresh)
}

/// Loads an identity.
pub(crate) fn find(ctx: &mut Context<'_>, id: &str) -> Result<Identity, Abort> {
    let identity = ctx.get::<Identity>(id)?;
    Ok(identity.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no identity {id}"))
            .hint("`abide identity list` lists them; `abide identity create` creates one")
    })?)
}

/// Checks that a caller manages only identities within its own permissions: with its own role unless it is an
/// admin, and with capabilities that it has. Otherwise a caller who may create tokens could become an admin.
pub(crate) fn check_within(ctx: &mut Context<'_>, identity: &Identity) -> Result<(), Abort> {
    let caller = ctx.caller;
    let id = &identity.id;
    let role = role::find(ctx, &identity.role)?;
    if caller.role() != Caller::ADMIN && caller.role() != identity.role {
        let detail = format!(
            "only an admin or a caller with the role {} can manage identity {id}, which has that role",
            identity.role
        );
        return Err(Refusal::new(Code::Denied, detail).hint("ask an admin").into());
    }
    let mut capabilities = identity.capabilities();
    capabilities.extend(role.as_ref().map(Role::capabilities).unwrap_or_default());
    if let Some(missing) = capabilities.iter().find(|capability| !caller.can(capability)) {
        let detail = format!(
            "only a caller with the capability {missing} can manage identity {id}, which has it"
        );
        let hint = "ask an admin who has it; with the file, --db needs no capability";
        return Err(Refusal::new(Code::Denied, detail).hint(hint).into());
    }
    capabilities.iter().try_for_each(|name| check::name("a name in capabilities", name))?;
    Ok(())
}

/// Checks that a caller with limits gives an identity no higher ones: when it creates one, changes its
/// limits, or creates a token for it. It can still disable an identity with higher limits.
pub(crate) fn check_pace(ctx: &mut Context<'_>, identity: &Identity) -> Result<(), Abort> {
    let limits = effective_limits(ctx, identity)?;
    check_limits(ctx.caller, &format!("identity {}", identity.id), &limits)
}

/// Returns an identity's limits: its own, or its role's.
fn effective_limits(ctx: &mut Context<'_>, identity: &Identity) -> Result<CallLimits, Abort> {
    let column = match &identity.limits {
        Some(own) => Some(own.clone()),
        None => role::find(ctx, &identity.role)?.and_then(|role| role.limits),
    };
    let limits = column.map(|column| serde_json::from_value(column.value()).unwrap_or_default());
    Ok(limits.unwrap_or_default())
}

fn confine(caller: &Caller, scope: Scope) -> Result<Scope, Refusal> {
    let mut members = scope.into_iter().map(|(key, value)| (key, value.into())).collect();
    session::scope::confine(&mut members, caller)?;
    let mut confined = Scope::new();
    for (key, value) in members {
        let value = value.as_str().unwrap_or_default();
        check::name(&format!("scope.{key}"), value)?;
        confined.insert(key, value.to_owned());
    }
    Ok(confined)
}

/// Names with a special meaning in the log.
const RESERVED: [&str; 4] = [Caller::SYSTEM, "local", "token", "embedded"];

fn check_id(id: &str) -> Result<(), Refusal> {
    check::name("id", id)?;
    if RESERVED.contains(&id) {
        let detail = format!("id {id} is reserved");
        return Err(Refusal::new(Code::BadArguments, detail).hint("choose another id"));
    }
    Ok(())
}

/// Refuses the ids of an issuer's subjects to a caller with a scope. Its new ids are placed in its namespace, so the
/// identity would not be the subject's, and disabling it would have no effect.
fn check_issued(caller: &Caller, id: &str) -> Result<(), Refusal> {
    let own = id.strip_prefix(caller.namespace()).unwrap_or(id);
    if caller.scope().is_empty() || !is_issued(own) {
        return Ok(());
    }
    let detail =
        format!("{own} belongs to the token issuer; an admin with a scope cannot manage it");
    Err(Refusal::new(Code::Denied, detail)
        .hint("ask an admin without a scope to create an identity with that id and disable it"))
}

/// Returns `true` if an id is that of an issuer's subject. Such an identity can be disabled, but it cannot have tokens
/// in the database: they would authenticate a different caller.
pub(crate) fn is_issued(id: &str) -> bool {
    id.starts_with(Caller::ISSUED)
}

fn save(ctx: &mut Context<'_>, mut identity: Identity) -> Result<Identity, Abort> {
    identity.updated_at = ctx.now;
    identity.seq = ctx.seq;
    ctx.update(&identity)?;
    Ok(identity)
}
