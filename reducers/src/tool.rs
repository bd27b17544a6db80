//! Tools: what agents may call, and what happens when a call's worker vanishes.

use abide_schema::reducer::Answer;
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, reducer, table,
};
use serde_json::Value as JsonValue;

use crate::check;

/// What running a tool twice would mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum Effect {
    /// It changes nothing: run it again.
    ReadOnly,
    /// Twice is as good as once: run it again.
    Idempotent,
    /// Twice is wrong: where the outcome is unknown, somebody settles it.
    AtMostOnce,
}

impl Effect {
    /// Whether a call may run again when nobody knows whether it ran.
    #[must_use]
    pub fn may_run_again(self) -> bool {
        self != Effect::AtMostOnce
    }
}

/// A registered tool, in its newest version.
#[table(name = "tools", without_rowid)]
pub struct Tool {
    /// Its name.
    #[column(key)]
    pub name: String,
    /// 1 at first; every change makes the next.
    pub version: i64,
    /// What it does, for the model.
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub input_schema: Option<Json>,
    /// What running it twice would mean.
    pub effect: Effect,
    /// Whether somebody must approve each call.
    pub needs_approval: bool,
    /// How long a call may take.
    pub timeout_ms: Option<i64>,
    /// How often and when a failed call is tried again: `{"max_attempts": n}`.
    pub retry: Option<Json>,
    /// What a caller must be capable of.
    pub required_capability: Option<String>,
    /// When it was first registered.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of that.
    pub seq: Seq,
}

impl Tool {
    /// How often a call may be attempted, the first time included. Three unless the tool says otherwise.
    #[must_use]
    pub fn max_attempts(&self) -> i64 {
        let retry = self.retry.as_ref().map(Json::value);
        let stated = retry.as_ref().and_then(|retry| retry.get("max_attempts")?.as_i64());
        stated.unwrap_or(3).max(1)
    }

    fn is_same_but_for_time(&self, other: &Tool) -> bool {
        let of_that_time = Tool {
            version: self.version,
            created_at: self.created_at,
            updated_at: self.updated_at,
            seq: self.seq,
            ..other.clone()
        };
        *self == of_that_time
    }
}

/// The domain.
#[must_use]
pub fn module() -> Module {
    Module::new("tool").table::<Tool>().reducer(register_tool::definition())
}

/// Registers a tool, or a new version of one. Registering the same again changes nothing.
#[reducer]
pub fn register_tool(
    ctx: &mut Context<'_>,
    name: String,
    description: Option<String>,
    input_schema: Option<JsonValue>,
    effect: Option<Effect>,
    needs_approval: Option<bool>,
    timeout_ms: Option<i64>,
    retry: Option<JsonValue>,
    required_capability: Option<String>,
) -> Result<Answer<Tool>, Abort> {
    check::name("name", &name)?;
    if let Some(timeout_ms) = timeout_ms.filter(|timeout_ms| *timeout_ms < 1) {
        let detail = format!("a timeout of {timeout_ms} ms leaves no time to run");
        return Err(Refusal::new(Code::BadArguments, detail).into());
    }
    let before = ctx.get::<Tool>(&name)?;
    let (now, seq) = (ctx.now, ctx.seq);
    let tool = Tool {
        name,
        version: before.as_ref().map_or(1, |before| before.version + 1),
        description,
        input_schema: input_schema.map(Json::from),
        effect: effect.unwrap_or(Effect::AtMostOnce),
        needs_approval: needs_approval.unwrap_or(false),
        timeout_ms,
        retry: retry.map(Json::from),
        required_capability,
        created_at: before.as_ref().map_or(now, |before| before.created_at),
        updated_at: now,
        seq,
    };
    match before {
        None => ctx.insert(tool).map(Answer::Fresh),
        Some(before) if before.is_same_but_for_time(&tool) => {
            Ok(Answer::Duplicate(before.seq, before))
        }
        Some(_) => {
            ctx.update(&tool)?;
            Ok(Answer::Fresh(tool))
        }
    }
}

/// The tool of a name.
pub(crate) fn find(ctx: &mut Context<'_>, name: &str) -> Result<Tool, Abort> {
    let tool = ctx.get::<Tool>(name)?;
    Ok(tool.ok_or_else(|| {
        Refusal::new(Code::NotFound, format!("there is no tool {name}"))
            .hint("register_tool makes it known")
    })?)
}
