//! Policies: row-level and column-level security by role.
//!
//! A policy restricts what a module shows of its table, and opens a table that is closed by default.
//! Several policies for one table and role permit every row that any of them permits; a column hidden by one is hidden.
//! The scope of a caller applies independently of policies. See `docs/policies.md`.

use abide_schema::reducer::{PolicyTables, ReducerResult};
use abide_schema::{
    Abort, Caller, Code, Context, Json, Micros, Module, Refusal, Seq, Table as _, Value, limits,
    reducer, table,
};

use super::identity::Identity;
use super::role::{self, Role};
use crate::check;

/// The default name of a policy.
const ONLY: &str = "default";

/// The rows and columns of a table that callers of a role may see. The engine reads this table as the module declares.
#[table(name = "policies")]
pub struct Policy {
    /// The table.
    #[column(key)]
    pub table_name: String,
    /// The role; `*` means every role.
    #[column(key)]
    pub role: String,
    /// Its name, unique for a table and role.
    #[column(key)]
    pub name: String,
    /// The visible rows: SQL over the row's columns and `:caller_id`, `:caller_role`, `:caller_scope`,
    /// `:caller_capabilities` and `:scope_<key>`. NULL: all rows.
    pub condition: Option<String>,
    /// The hidden columns, a JSON array.
    pub hidden: Json,
    /// The caller that set it.
    pub set_by: String,
    /// When it was first set.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// The tables that decide what restricted callers see.
const POLICY_TABLES: PolicyTables = PolicyTables {
    policies: Policy::SPEC,
    query: "SELECT table_name, role, condition, hidden FROM main.policies
  ORDER BY table_name, role, name",
    roles: Role::SPEC,
    identities: Identity::SPEC,
};

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("policy")
        .table::<Policy>()
        .policy_tables(POLICY_TABLES)
        .reducer(set_policy::definition())
        .reducer(drop_policy::definition())
}

/// Sets which rows and columns of a table the callers of a role may see. It applies from this commit on, also to
/// subscriptions. Without a `condition`, all rows. Setting an identical policy changes nothing.
#[reducer(roles(admin))]
pub fn set_policy(
    ctx: &mut Context<'_>,
    table: String,
    role: String,
    condition: Option<String>,
    hidden: Option<Vec<String>>,
    name: Option<String>,
) -> Result<ReducerResult<Policy>, Abort> {
    require_administrator(ctx.caller)?;
    let name = name.unwrap_or_else(|| ONLY.to_owned());
    let hidden = hidden.unwrap_or_default();
    check::name("table", &table)?;
    check::name("role", &role)?;
    check::name("name", &name)?;
    if let Some(bytes) = condition.as_ref().map(String::len)
        && bytes > limits::POLICY_BYTES
    {
        let detail = format!("condition has {bytes} bytes; the limit is {}", limits::POLICY_BYTES);
        let hint = "shorten it; a subquery can read long lists from a table";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
    }
    role::check_exists(ctx, &role)?;
    ctx.validate_policy(&table, condition.as_deref(), &hidden)?;
    let hidden = Json::from(serde_json::json!(hidden));
    let now = ctx.now;
    let seq = ctx.seq;
    let set_by = ctx.caller.id().to_owned();
    if let Some(before) = ctx.get::<Policy>((&*table, &*role, &*name))? {
        if before.condition == condition && before.hidden == hidden {
            return Ok(ReducerResult::Duplicate(before.seq, before));
        }
        let policy = Policy { condition, hidden, set_by, updated_at: now, seq, ..before };
        ctx.update(&policy)?;
        return Ok(ReducerResult::Fresh(policy));
    }
    check_room(ctx, &table, &role)?;
    let policy = Policy {
        table_name: table,
        role,
        name,
        condition,
        hidden,
        set_by,
        created_at: now,
        updated_at: now,
        seq,
    };
    ctx.insert(policy).map(ReducerResult::Fresh)
}

/// Returns `true` if a policy hides a column of a table from the caller.
pub(crate) fn hides(ctx: &mut Context<'_>, table: &str, column: &str) -> Result<bool, Abort> {
    if ctx.caller.is_unrestricted() {
        return Ok(false);
    }
    let params = [Value::from(table), Value::from(ctx.caller.role())];
    let of_role = "WHERE table_name = ?1 AND (role = ?2 OR role = '*')";
    let policies = ctx.without_policies(|ctx| ctx.find::<Policy>(of_role, &params))?;
    Ok(policies.iter().any(|policy| {
        let hidden: Vec<String> = serde_json::from_str(policy.hidden.as_str()).unwrap_or_default();
        hidden.iter().any(|name| name.eq_ignore_ascii_case(column))
    }))
}

/// Deletes a policy.
#[reducer(roles(admin))]
pub fn drop_policy(
    ctx: &mut Context<'_>,
    table: String,
    role: String,
    name: Option<String>,
) -> Result<Policy, Abort> {
    require_administrator(ctx.caller)?;
    let name = name.unwrap_or_else(|| ONLY.to_owned());
    let policy = ctx.get::<Policy>((&*table, &*role, &*name))?.ok_or_else(|| {
        let detail = format!("there is no policy {name} of {table} for {role}");
        Refusal::new(Code::NotFound, detail)
            .hint_query("SELECT table_name, role, name FROM policies")
    })?;
    ctx.delete::<Policy>((&*table, &*role, &*name))?;
    Ok(policy)
}

/// A caller with a scope must not decide what others see.
fn require_administrator(caller: &Caller) -> Result<(), Refusal> {
    if caller.role() == Caller::ADMIN && caller.scope().is_empty() {
        return Ok(());
    }
    Err(Refusal::new(Code::Denied, "only an admin without a scope can set policies")
        .hint("ask an admin whose identity has no scope"))
}

/// Limits policies: all policies of a role are part of every statement of its callers.
fn check_room(ctx: &mut Context<'_>, table: &str, role: &str) -> Result<(), Abort> {
    let params = [Value::from(table), Value::from(role)];
    let count = ctx.count::<Policy>("WHERE table_name = ?1 AND role = ?2", &params)?;
    if count >= limits::POLICIES_OF_ONE {
        let max = limits::POLICIES_OF_ONE;
        let detail =
            format!("table {table} has {count} policies for role {role}; the limit is {max}");
        let refusal = Refusal::new(Code::LimitExceeded, detail);
        return Err(refusal.hint("combine conditions with OR in one policy").into());
    }
    let count = ctx.count::<Policy>("", &[])?;
    if count < limits::POLICIES {
        return Ok(());
    }
    let detail = format!("there are {count} policies; the limit is {}", limits::POLICIES);
    Err(Refusal::new(Code::LimitExceeded, detail)
        .hint("delete one with `abide call drop_policy`")
        .into())
}
