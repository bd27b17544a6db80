//! Tools: what agents can call, with which arguments and limits, and what happens when a call's
//! worker vanishes. A tool has versions; a call keeps the version with which it was requested.
//! Only limits are always the current ones, because they protect the system behind the tool.

use std::sync::Arc;

use abide_schema::reducer::{ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, limits, reducer, table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use crate::agent::{self, allow};
use crate::check;

mod arguments;

use arguments::Subject;
pub(crate) use arguments::check_schema;

/// Whether a tool can safely run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum Effect {
    /// It changes nothing: it can run again.
    ReadOnly,
    /// Running twice has the same effect as once: it can run again.
    Idempotent,
    /// It must not run twice: an unknown outcome must be settled.
    AtMostOnce,
}

impl Effect {
    /// Returns `true` if a call can run again if it is unknown whether it ran.
    #[must_use]
    pub fn may_run_again(self) -> bool {
        self != Effect::AtMostOnce
    }

    /// Returns the effect from an MCP server's annotations. They are hints: nothing is assumed from omitted ones.
    /// <https://modelcontextprotocol.io/specification/2025-06-18/schema#toolannotations>
    #[must_use]
    pub fn from_annotations(annotations: &JsonValue) -> Effect {
        if annotations["readOnlyHint"] == true {
            Effect::ReadOnly
        } else if annotations["idempotentHint"] == true {
            Effect::Idempotent
        } else {
            Effect::AtMostOnce
        }
    }
}

/// Retry policy for calls with a retryable failure or a vanished worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Maximum number of attempts, including the first. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// The second attempt follows immediately, the third after this many milliseconds, each further one
    /// after twice the previous delay. Default 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<i64>,
    /// Maximum delay in milliseconds. Default 60,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_max_ms: Option<i64>,
}

impl Retry {
    /// Maximum number of attempts.
    #[must_use]
    pub fn max_attempts(&self) -> i64 {
        self.max_attempts.unwrap_or(3)
    }

    /// Milliseconds between the end of an attempt and the next, by the number of attempts so far.
    #[must_use]
    pub fn wait_ms(&self, attempts: i64) -> i64 {
        if attempts < 2 {
            return 0;
        }
        let max = self.backoff_max_ms.unwrap_or(60_000);
        let first = self.backoff_ms.unwrap_or(1_000);
        // 2^31 times any delay exceeds the maximum, so nothing overflows.
        let doublings = (attempts - 2).min(31);
        first.saturating_mul(1 << doublings).min(max)
    }

    fn check(&self) -> Result<(), Refusal> {
        check::in_range("max_attempts", self.max_attempts, &limits::ATTEMPTS)?;
        check::in_range("backoff_ms", self.backoff_ms, &limits::AHEAD_MS)?;
        check::in_range("backoff_max_ms", self.backoff_max_ms, &limits::AHEAD_MS)
    }
}

/// How approvals of a tool's calls are requested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalPolicy {
    /// The question for the approver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Initial values of the approver's form: any JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<JsonValue>,
    /// Milliseconds after which an undecided call is rejected. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_after_ms: Option<i64>,
    /// The capability that an approver needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_capability: Option<String>,
}

/// Limits that protect the system behind a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolLimits {
    /// Maximum number of calls per session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_session: Option<i64>,
    /// Maximum number of concurrent calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    /// Maximum rate of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// A number of calls in any period of the given length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// The number.
    pub calls: i64,
    /// The period in milliseconds.
    pub per_ms: i64,
}

impl ToolLimits {
    fn check(&self) -> Result<(), Refusal> {
        check::in_range("calls_per_session", self.calls_per_session, &limits::TOOL_CALLS)?;
        check::in_range("concurrency", self.concurrency, &limits::TOOL_CALLS)?;
        let Some(Rate { calls, per_ms }) = self.rate else { return Ok(()) };
        check::in_range("rate.calls", Some(calls), &limits::TOOL_CALLS)?;
        check::in_range("rate.per_ms", Some(per_ms), &limits::LEASE_MS)
    }
}

/// A registered tool, in its newest version.
#[table(name = "tools")]
pub struct Tool {
    /// Its name.
    #[column(key)]
    pub name: String,
    /// Starts at 1; every change increments it.
    pub version: i64,
    /// Its effect, for the model.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub input_schema: Option<Json>,
    /// Whether it can safely run twice.
    pub effect: Effect,
    /// Its MCP annotations.
    pub annotations: Option<Json>,
    /// Whether each call needs an approval.
    pub needs_approval: bool,
    /// Approval settings: `{"prompt", "defaults", "expires_after_ms", "required_capability"}`.
    pub approval: Option<Json>,
    /// Time limit of one attempt; no lease extends beyond it.
    pub timeout_ms: Option<i64>,
    /// Retry policy: `{"max_attempts", "backoff_ms", "backoff_max_ms"}`.
    pub retry: Option<Json>,
    /// The capability that a worker needs.
    pub required_capability: Option<String>,
    /// Limits: `{"calls_per_session", "concurrency", "rate"}`.
    pub limits: Option<Json>,
    /// When it was first registered.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// One version of a tool, kept for the calls that were requested with it.
#[table(name = "tool_versions")]
pub struct ToolVersion {
    /// The tool.
    #[column(key, references = "tools(name)")]
    pub name: String,
    /// The version.
    #[column(key)]
    pub version: i64,
    /// The tool's row at that time.
    pub manifest: Json,
    /// When it was registered.
    pub created_at: Micros,
    /// The event that registered it.
    pub seq: Seq,
}

impl Tool {
    /// Returns its retry policy.
    #[must_use]
    pub fn retry(&self) -> Retry {
        from_column(self.retry.as_ref())
    }

    /// Returns its approval settings.
    #[must_use]
    pub fn approval(&self) -> ApprovalPolicy {
        from_column(self.approval.as_ref())
    }

    /// Returns its limits.
    #[must_use]
    pub fn limits(&self) -> ToolLimits {
        from_column(self.limits.as_ref())
    }

    /// Checks the arguments of a call against its schema.
    pub(crate) fn check_arguments(
        &self,
        ctx: &mut Context<'_>,
        arguments: &Arc<JsonValue>,
    ) -> Result<(), Abort> {
        let Some(schema) = &self.input_schema else { return Ok(()) };
        let subject = Subject::Arguments { tool: self.name.clone(), version: self.version };
        arguments::check(ctx, subject, schema, arguments)
    }

    /// Keeps what the tool required before: a worker cannot lift an approval, or let workers without a capability claim calls.
    fn keep_terms(&mut self, before: Option<&Tool>) {
        let Some(before) = before else { return };
        if before.needs_approval {
            self.needs_approval = true;
            self.approval.clone_from(&before.approval);
        }
        if before.required_capability.is_some() {
            self.required_capability.clone_from(&before.required_capability);
        }
    }

    fn is_same_but_for_time(&self, other: &Tool) -> bool {
        let other_then = Tool {
            version: self.version,
            created_at: self.created_at,
            updated_at: self.updated_at,
            seq: self.seq,
            ..other.clone()
        };
        *self == other_then
    }
}

/// Checks the answer to the question that a call stands for.
pub(crate) fn check_answer(
    ctx: &mut Context<'_>,
    call_id: &str,
    schema: &Json,
    answer: &Arc<JsonValue>,
) -> Result<(), Abort> {
    let subject = Subject::Answer { call_id: call_id.to_owned() };
    arguments::check(ctx, subject, schema, answer)
}

/// Parses a column whose value was validated when it was written.
fn from_column<T: for<'de> Deserialize<'de> + Default>(column: Option<&Json>) -> T {
    column.and_then(|json| serde_json::from_str(json.as_str()).ok()).unwrap_or_default()
}

fn to_column(value: impl Serialize) -> Json {
    Json::from(serde_json::to_value(value).expect("a policy has string keys and serialises"))
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("tool")
        .visible::<Tool>(RowVisibility::Where(allow::VISIBLE_TOOLS, &[]))
        .visible::<ToolVersion>(RowVisibility::Where(allow::VISIBLE_TOOL_VERSIONS, &[]))
        .reducer(register_tool::definition())
}

/// Registers a tool, or a new version of one. Registering an identical tool changes nothing. The approval of its calls and the
/// capability of its workers stay unless an admin or an app registers it.
#[reducer(roles(app, worker))]
pub fn register_tool(
    ctx: &mut Context<'_>,
    /// Its name.
    name: String,
    /// Its description.
    description: Option<String>,
    /// The JSON Schema of its arguments.
    input_schema: Option<JsonValue>,
    /// Whether it can safely run twice; at most once if omitted.
    effect: Option<Effect>,
    /// Its MCP annotations; they determine the effect if `effect` is omitted.
    annotations: Option<serde_json::Map<String, JsonValue>>,
    /// Whether each call needs an approval.
    needs_approval: Option<bool>,
    /// How approvals are requested. If it is given, each call needs one, unless `needs_approval` is false.
    approval: Option<ApprovalPolicy>,
    /// Time limit of an attempt.
    timeout_ms: Option<i64>,
    /// How failed attempts are retried.
    retry: Option<Retry>,
    /// Capability that a worker needs to run it.
    required_capability: Option<String>,
    /// Rate and concurrency limits that protect the system behind it.
    limits: Option<ToolLimits>,
) -> Result<ReducerResult<Tool>, Abort> {
    check::name("name", &name)?;
    check::optional_name("required_capability", required_capability.as_deref())?;
    check_policies(timeout_ms, retry.as_ref(), approval.as_ref(), limits.as_ref())?;
    let input_schema = input_schema.map(Json::from);
    if let Some(schema) = &input_schema {
        check_schema(ctx, &name, schema)?;
    }
    let annotations = annotations.map(JsonValue::Object);
    let effect = effect.or_else(|| annotations.as_ref().map(Effect::from_annotations));
    let before = ctx.get::<Tool>(&name)?;
    let now = ctx.now;
    let seq = ctx.seq;
    let mut tool = Tool {
        name,
        version: before.as_ref().map_or(1, |before| before.version + 1),
        description,
        input_schema,
        effect: effect.unwrap_or(Effect::AtMostOnce),
        annotations: annotations.map(Json::from),
        needs_approval: needs_approval.unwrap_or(approval.is_some()),
        approval: approval.map(to_column),
        timeout_ms,
        retry: retry.map(to_column),
        required_capability,
        limits: limits.map(to_column),
        created_at: before.as_ref().map_or(now, |before| before.created_at),
        updated_at: now,
        seq,
    };
    if !["admin", "app"].contains(&ctx.caller.role()) {
        tool.keep_terms(before.as_ref());
    }
    match before {
        Some(before) if before.is_same_but_for_time(&tool) => {
            return Ok(ReducerResult::Duplicate(before.seq, before));
        }
        Some(_) => ctx.update(&tool)?,
        None => drop(ctx.insert(tool.clone())?),
    }
    let name = tool.name.clone();
    let version = tool.version;
    let manifest = to_column(&tool);
    ctx.insert(ToolVersion { name, version, manifest, created_at: now, seq })?;
    Ok(ReducerResult::Fresh(tool))
}

impl RegisterTool {
    /// Checks what the reducer checks without looking at rows: the time limit, retries, approvals, limits and rates.
    ///
    /// # Errors
    /// `bad_arguments`.
    pub fn check_terms(&self) -> Result<(), Refusal> {
        check::optional_name("required_capability", self.required_capability.as_deref())?;
        let RegisterTool { timeout_ms, retry, approval, limits, .. } = self;
        check_policies(*timeout_ms, retry.as_ref(), approval.as_ref(), limits.as_ref())
    }
}

fn check_policies(
    timeout_ms: Option<i64>,
    retry: Option<&Retry>,
    approval: Option<&ApprovalPolicy>,
    limits: Option<&ToolLimits>,
) -> Result<(), Refusal> {
    if let Some(timeout_ms) = timeout_ms.filter(|timeout_ms| *timeout_ms < 1) {
        let detail = format!("timeout_ms must be at least 1, not {timeout_ms}");
        let hint = "omit timeout_ms for no time limit";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    retry.map_or(Ok(()), Retry::check)?;
    limits.map_or(Ok(()), ToolLimits::check)?;
    let decider = approval.and_then(|approval| approval.required_capability.as_deref());
    check::optional_name("approval.required_capability", decider)?;
    let expires_after_ms = approval.and_then(|approval| approval.expires_after_ms);
    check::in_range("expires_after_ms", expires_after_ms, &limits::AHEAD_MS)
}

/// Loads a tool that the caller may know: not one that stands for a hidden agent.
pub(crate) fn find(ctx: &mut Context<'_>, name: &str) -> Result<Tool, Abort> {
    let mut tool = ctx.get::<Tool>(name)?;
    let annotations = tool.as_ref().and_then(|tool| tool.annotations.as_ref()).map(Json::value);
    if let Some(agent) = annotations.as_ref().and_then(|it| it["agent"].as_str())
        && !ctx.is_replay()
        && !agent::is_known(ctx, agent)?
    {
        tool = None;
    }
    Ok(tool.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no tool {name}")).hint(format!(
            "register it with `abide call register_tool {}`",
            check::shell_word(&format!("name={name}"))
        ))
    })?)
}

#[cfg(test)]
mod tests;
