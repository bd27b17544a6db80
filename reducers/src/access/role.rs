//! Roles: which reducers a caller may call. Built-in roles are in the declaration of each reducer; custom roles are rows.
//! In addition, a caller is restricted to its scope, and needs the capabilities that rows require.

use std::collections::BTreeSet;

use abide_schema::caller::{CallLimits, Caller};
use abide_schema::reducer::{BuiltInRole, ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, nearest, reducer, table,
};
use serde_json::json;

use crate::access::{check_limits, limits_to_column};
use crate::check;

/// In the reducers of a role: every reducer that an application may call. In the role of a policy: every role.
const ALL: &str = "*";

/// A custom role.
#[table(name = "roles")]
pub struct Role {
    /// Its name.
    #[column(key)]
    pub name: String,
    /// A description for people.
    pub description: Option<String>,
    /// The reducers that it may call, a JSON array; `*` means all except those that manage identities, tokens, roles and
    /// policies.
    pub reducers: Json,
    /// Capabilities of every identity with this role, a JSON array of texts.
    pub capabilities: Json,
    /// Limits of an identity that does not set its own.
    pub limits: Option<Json>,
    /// When it was created.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

impl Role {
    /// Capabilities of every identity with this role.
    #[must_use]
    pub fn capabilities(&self) -> BTreeSet<String> {
        serde_json::from_value(self.capabilities.value()).unwrap_or_default()
    }

    /// Returns `true` if callers with this role may call a reducer that declares these built-in roles. `*` does not
    /// include reducers that an application may not call; a role must name those.
    fn lets_call(&self, reducer: &str, declared: &[BuiltInRole]) -> bool {
        let reducers: Vec<String> =
            serde_json::from_value(self.reducers.value()).unwrap_or_default();
        let is_for_apps = BuiltInRole::App.may_call(declared);
        reducers.iter().any(|name| name == reducer || (name == ALL && is_for_apps))
    }
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("role")
        .visible::<Role>(RowVisibility::Open)
        .reducer(set_role::definition())
        .reducer(remove_role::definition())
        .guard(may_call)
}

/// Creates or changes a role: the reducers that its callers may call, and their capabilities. Requires an
/// admin. `reducers` are names; `*` means all except those that manage identities, tokens, roles and policies.
#[reducer(roles(admin))]
pub fn set_role(
    ctx: &mut Context<'_>,
    /// Its name.
    name: String,
    /// The reducers that it may call; `*` means all except those that manage identities, tokens, roles and policies.
    reducers: BTreeSet<String>,
    /// Capabilities of every identity with this role.
    capabilities: Option<BTreeSet<String>>,
    /// A description for people.
    description: Option<String>,
    /// Limits of an identity that does not set its own.
    limits: Option<CallLimits>,
) -> Result<ReducerResult<Role>, Abort> {
    check::name("name", &name)?;
    only_admins(ctx.caller, "set_role")?;
    if is_built_in(&name) {
        return Err(built_in(&name).hint("choose another name for a role of your own").into());
    }
    for reducer in &reducers {
        check::name("a name in reducers", reducer)?;
    }
    let mut named_reducers = reducers.clone();
    named_reducers.remove(ALL);
    ctx.check_reducer_names(&named_reducers)?;
    let capabilities = capabilities.unwrap_or_default();
    for capability in &capabilities {
        check::name("a name in capabilities", capability)?;
        check::capability(ctx.caller, Some(capability), "giving this capability to a role")?;
    }
    // The limits of a role apply to identities without limits of their own. So nobody can grant, through a role, more
    // than the limits of the caller.
    check_limits(ctx.caller, &format!("role {name}"), &limits.unwrap_or_default())?;
    let mut role = Role {
        name,
        description,
        reducers: Json::from(json!(reducers)),
        capabilities: Json::from(json!(capabilities)),
        limits: limits_to_column(limits)?,
        created_at: ctx.now,
        updated_at: ctx.now,
        seq: ctx.seq,
    };
    let Some(stored) = ctx.get::<Role>(&role.name)? else {
        return ctx.insert(role).map(ReducerResult::Fresh);
    };
    role.created_at = stored.created_at;
    // A call that changes nothing is a repetition, and keeps the time and the event of the last change.
    let unchanged = Role { updated_at: stored.updated_at, seq: stored.seq, ..role.clone() };
    if stored == unchanged {
        return Ok(ReducerResult::Duplicate(stored.seq, stored));
    }
    ctx.update(&role)?;
    Ok(ReducerResult::Fresh(role))
}

/// Deletes a role. Identities with this role can no longer call any reducer. Requires an admin.
#[reducer(roles(admin))]
pub fn remove_role(ctx: &mut Context<'_>, name: String) -> Result<Role, Abort> {
    only_admins(ctx.caller, "remove_role")?;
    if is_built_in(&name) {
        return Err(built_in(&name).hint("only roles of your own can be removed").into());
    }
    let Some(role) = ctx.get::<Role>(&name)? else { return Err(no_such_role(ctx, &name)?.into()) };
    ctx.delete::<Role>(&name)?;
    Ok(role)
}

fn built_in(name: &str) -> Refusal {
    Refusal::new(Code::Conflict, format!("{name} is a built-in role and cannot be changed"))
}

/// Returns the refusal of a name that no role has.
fn no_such_role(ctx: &mut Context<'_>, name: &str) -> Result<Refusal, Abort> {
    let own = ctx.find::<Role>("ORDER BY name LIMIT 100", &[])?;
    let mut names: Vec<&str> = BuiltInRole::ALL.into_iter().map(BuiltInRole::name).collect();
    names.extend(own.iter().map(|role| &*role.name));
    let hint = match nearest(name, names.iter().copied()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("the roles are {}; `abide role set` creates others", names.join(", ")),
    };
    Ok(Refusal::new(Code::NotFound, format!("there is no role {name}")).hint(hint))
}

/// Checks that there is a role of this name, or that the name is `*`, which stands for every role.
pub(crate) fn check_exists(ctx: &mut Context<'_>, name: &str) -> Result<(), Abort> {
    if name == ALL {
        return Ok(());
    }
    find(ctx, name).map(drop)
}

/// Returns the row of a role; `None` for the built-in ones.
pub(crate) fn find(ctx: &mut Context<'_>, name: &str) -> Result<Option<Role>, Abort> {
    if is_built_in(name) {
        return Ok(None);
    }
    match ctx.get::<Role>(name)? {
        Some(role) => Ok(Some(role)),
        None => Err(no_such_role(ctx, name)?.into()),
    }
}

/// Guard: checks that the caller's role may call a reducer.
fn may_call(ctx: &mut Context<'_>, reducer: &str, declared: &[BuiltInRole]) -> Result<(), Abort> {
    let name = ctx.caller.role();
    let may = match BuiltInRole::with_name(name) {
        Some(role) => role.may_call(declared),
        None => ctx.get::<Role>(name)?.is_some_and(|role| role.lets_call(reducer, declared)),
    };
    if may {
        return Ok(());
    }
    let detail = format!("the role {name} may not call {reducer}");
    let hint = "`abide role list` shows what each role may call; an admin can assign another role";
    Err(Refusal::new(Code::Denied, detail).hint(hint).into())
}

fn is_built_in(name: &str) -> bool {
    BuiltInRole::with_name(name).is_some()
}

/// Checks that the caller is an admin. A custom role can name the reducers of roles too, but a caller that can change
/// roles could let its own role call every reducer.
pub(crate) fn only_admins(caller: &Caller, reducer: &str) -> Result<(), Refusal> {
    if caller.role() == Caller::ADMIN {
        return Ok(());
    }
    Err(Refusal::new(Code::Denied, format!("only an admin may call {reducer}"))
        .hint("ask an identity with the role admin"))
}
