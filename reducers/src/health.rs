//! The health of runs: one row of measurements per answer of the model, and what the watchdog did about them.
//!
//! The driver measures and decides; the row makes the decision durable, so the driver that continues a run acts on the
//! same decision. `watchdog_actions` counts the actions of all runs, for `/metrics`.

use abide_schema::reducer::{MetricSeries, ReducerResult, RowVisibility};
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, limits, reducer, table,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::check;
use crate::run::{self, Run};

/// The action of the watchdog after the measurements of an answer, before the model is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, TextEnum)]
pub enum HealthAction {
    /// Nothing: no threshold is reached, or the watchdog only reports.
    None,
    /// It compacts the context.
    Compact,
    /// It warns the model.
    Warn,
    /// It ends the run.
    Stop,
}

/// The measurements of one answer of a run.
#[table(name = "run_health", index(session_id))]
pub struct RunHealth {
    /// The run.
    #[column(key, references = "runs(id)")]
    pub run_id: String,
    /// The number of the answer in the run, from 1.
    #[column(key)]
    pub iteration: i64,
    /// The session of the run.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// Tokens of the request.
    pub tokens: i64,
    /// Tokens more than in the request before; 0 if there are fewer.
    pub token_drift: i64,
    /// Messages of the conversation that the model read.
    pub messages: i64,
    /// Messages that the conversation has gained since the answer before, with this answer.
    pub new_messages: i64,
    /// Tool results among them.
    pub tool_messages: i64,
    /// `tool_messages` divided by `new_messages`.
    pub over_tooling: f64,
    /// Twice the summaries, plus the archived results, plus the markers that replace results, per message.
    pub context_rot: f64,
    /// How many consecutive answers, up to this one, have requested the same calls and got the same results; 0 without calls.
    pub repeats: i64,
    /// The thresholds that are reached: a JSON array of `token_drift`, `over_tooling`, `context_rot`, `repeats`.
    pub signals: Json,
    /// How many consecutive answers, up to this one, have reached a threshold.
    pub unhealthy: i64,
    /// The action of the watchdog.
    pub action: HealthAction,
    /// When it was recorded.
    pub created_at: Micros,
    /// The event that recorded it.
    pub seq: Seq,
}

/// How often the watchdog has acted, in all runs.
#[table(name = "watchdog_actions", without_rowid, shared)]
pub struct WatchdogActions {
    /// The action.
    #[column(key)]
    pub action: HealthAction,
    /// How often.
    pub count: i64,
    /// The event of the last change.
    pub seq: Seq,
}

/// The measurements of an answer, as a driver sends them; see [`RunHealth`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHealth {
    /// Tokens of the request.
    pub tokens: i64,
    /// Tokens more than in the request before.
    pub token_drift: i64,
    /// Messages of the conversation that the model read.
    pub messages: i64,
    /// Messages that the conversation has gained since the answer before, with this answer.
    pub new_messages: i64,
    /// Tool results among them.
    pub tool_messages: i64,
    /// The share of tool results.
    pub over_tooling: f64,
    /// Summaries, archived results and markers per message.
    pub context_rot: f64,
    /// Consecutive answers with the same calls.
    pub repeats: i64,
    /// The thresholds that are reached.
    pub signals: Vec<String>,
    /// Consecutive answers that have reached a threshold.
    pub unhealthy: i64,
}

impl NewHealth {
    /// Returns the row of an answer of a run of a session.
    #[must_use]
    pub fn into_row(
        self,
        run_id: &str,
        session_id: &str,
        iteration: i64,
        action: HealthAction,
        created_at: Micros,
        seq: Seq,
    ) -> RunHealth {
        let NewHealth { tokens, token_drift, messages, new_messages, tool_messages, .. } = self;
        RunHealth {
            run_id: run_id.to_owned(),
            iteration,
            session_id: session_id.to_owned(),
            tokens,
            token_drift,
            messages,
            new_messages,
            tool_messages,
            over_tooling: self.over_tooling,
            context_rot: self.context_rot,
            repeats: self.repeats,
            signals: Json::from(json!(self.signals)),
            unhealthy: self.unhealthy,
            action,
            created_at,
            seq,
        }
    }
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("health")
        .visible::<RunHealth>(RowVisibility::InScope)
        // It covers all scopes.
        .visible::<WatchdogActions>(RowVisibility::Closed)
        .metric(MetricSeries {
            name: "watchdog_actions_total",
            meaning: "Actions of the watchdog in runs of agents.",
            label: "action",
            query: "SELECT action, count FROM watchdog_actions",
        })
        .reducer(record_health::definition())
}

/// Records the measurements of an answer of a run, and the action of the watchdog. Recorded again with `compact`, the row of
/// an answer without an action says that the context was compacted after it. Only the rows of the last 1,000 answers of a run
/// are kept.
#[reducer(roles(app, agent))]
pub fn record_health(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// The number of the answer in the run, from 1.
    iteration: i64,
    /// The measurements.
    health: NewHealth,
    /// The action of the watchdog; nothing if omitted.
    action: Option<HealthAction>,
) -> Result<ReducerResult<RunHealth>, Abort> {
    let run = run::drive::find_claimed(ctx, &id, fencing_token)?;
    check_health(iteration, &health)?;
    let action = action.unwrap_or(HealthAction::None);
    if let Some(mut before) = ctx.get::<RunHealth>((run.id.as_str(), iteration))? {
        if (before.action, action) == (HealthAction::None, HealthAction::Compact) {
            before.action = action;
            before.seq = ctx.seq;
            ctx.update(&before)?;
            count(ctx, action)?;
            return Ok(ReducerResult::Fresh(before));
        }
        // The first measurement stands: the watchdog may have acted on it.
        return Ok(ReducerResult::Duplicate(before.seq, before));
    }
    let oldest = iteration - limits::HEALTH_ROWS;
    if ctx.get::<RunHealth>((run.id.as_str(), oldest))?.is_some() {
        ctx.delete::<RunHealth>((run.id.as_str(), oldest))?;
    }
    let row = insert(ctx, &run.id, &run.session_id, iteration, health, action)?;
    count(ctx, action)?;
    Ok(ReducerResult::Fresh(row))
}

/// Writes a row for an answer of a run of a session.
pub(crate) fn insert(
    ctx: &mut Context<'_>,
    run_id: &str,
    session_id: &str,
    iteration: i64,
    health: NewHealth,
    action: HealthAction,
) -> Result<RunHealth, Abort> {
    let row = health.into_row(run_id, session_id, iteration, action, ctx.now, ctx.seq);
    ctx.insert(row)
}

/// Counts an action.
fn count(ctx: &mut Context<'_>, action: HealthAction) -> Result<(), Abort> {
    if action == HealthAction::None {
        return Ok(());
    }
    ctx.without_policies(|ctx| match ctx.get::<WatchdogActions>(action.as_str())? {
        Some(mut counted) => {
            counted.count += 1;
            counted.seq = ctx.seq;
            ctx.update(&counted)
        }
        None => ctx.insert(WatchdogActions { action, count: 1, seq: ctx.seq }).map(drop),
    })
}

const SIGNALS: [&str; 4] = ["token_drift", "over_tooling", "context_rot", "repeats"];

/// Checks measurements that come from outside.
pub(crate) fn check_health(iteration: i64, health: &NewHealth) -> Result<(), Refusal> {
    let counts = 0..=i64::from(u32::MAX);
    check::in_range("iteration", Some(iteration), &(1..=*counts.end()))?;
    for (what, number) in [
        ("tokens", health.tokens),
        ("token_drift", health.token_drift),
        ("messages", health.messages),
        ("new_messages", health.new_messages),
        ("tool_messages", health.tool_messages),
        ("repeats", health.repeats),
        ("unhealthy", health.unhealthy),
    ] {
        check::in_range(what, Some(number), &counts)?;
    }
    for (what, rate) in [("over_tooling", health.over_tooling), ("context_rot", health.context_rot)]
    {
        if !(0.0..=1e9).contains(&rate) {
            return Err(Refusal::new(
                Code::BadArguments,
                format!("{what} must be between 0 and 1000000000, not {rate}"),
            ));
        }
    }
    match health.signals.iter().find(|name| !SIGNALS.contains(&name.as_str())) {
        Some(name) => {
            let detail = format!("unknown signal {name}");
            let hint = format!("the signals are {}", SIGNALS.join(", "));
            Err(Refusal::new(Code::BadArguments, detail).hint(hint))
        }
        None => Ok(()),
    }
}
