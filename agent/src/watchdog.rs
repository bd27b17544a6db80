//! The watchdog: it measures each answer of a run, and acts when a run degrades. The measurements and the decision are
//! recorded with the answer (`run_health`), and the decision takes effect before the model is asked again. So a driver
//! that continues the run acts in the same way.
//!
//! Compaction does not trigger itself. When `context_rot` reaches its threshold, the context is compacted once. It is
//! compacted again only after the value was below the threshold, and not within a few answers after a compaction.

use abide_client::arguments::{NewHealth, RecordHealth};
use abide_client::rows::{HealthAction, RunHealth};
use abide_client::{Call, Error, Micros, Seq};
use abide_definitions::profile_settings::WatchdogSettings;
use abide_models::{ModelMessage, ModelRequest};
use serde_json::Value;

use crate::context;
use crate::context::entry::{
    self, RequestedCall, SessionEntry, WARNING, WarningEntry, data, is_answer,
};
use crate::run::driver::Driver;
use crate::run::step::{RunFailure, Step, StepError};

/// Minimum number of answers between two compactions by the watchdog.
const ANSWERS_BETWEEN_COMPACTIONS: i64 = 5;

/// The reduced part of the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reductions {
    /// Summaries.
    pub(crate) summaries: i64,
    /// Results that are archived.
    pub(crate) archived: i64,
    /// Markers in place of results that the model sees.
    pub(crate) markers: i64,
}

/// An answer and the conversation around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observation {
    pub(crate) iteration: i64,
    /// Tokens of the request.
    pub(crate) tokens: i64,
    /// Messages of the request.
    pub(crate) messages: i64,
    /// Messages since the answer before, with this answer.
    pub(crate) new_messages: i64,
    /// Tool results among them.
    pub(crate) tool_messages: i64,
    pub(crate) reductions: Reductions,
    /// Consecutive answers with the same calls and results.
    pub(crate) repeats: i64,
}

/// The measurements of a run so far, as its driver remembers them.
#[derive(Debug, Default)]
pub(crate) struct HealthState {
    /// Whether the rows have been read.
    pub(crate) is_read: bool,
    /// The newest row.
    pub(crate) last: Option<RunHealth>,
    /// The row of the answer before that.
    pub(crate) before: Option<RunHealth>,
    /// The answer after which the context was last compacted by the watchdog.
    pub(crate) compacted: Option<i64>,
    /// Whether the watchdog wants a compaction before the model is asked again.
    pub(crate) wants_compaction: bool,
}

impl HealthState {
    /// Notes measurements that have been recorded.
    pub(crate) fn note(&mut self, health: RunHealth) {
        self.before = self.last.replace(health);
    }

    /// Notes that a compaction after the last answer has begun and is recorded as the action.
    pub(crate) fn note_compaction(&mut self) {
        if let Some(last) = &mut self.last {
            last.action = HealthAction::Compact;
            self.compacted = Some(last.iteration);
        }
        self.wants_compaction = false;
    }
}

/// Returns the measurements of an answer, and the action that is recorded with it. `before` is the row of the answer
/// before.
pub(crate) fn evaluate(
    settings: &WatchdogSettings,
    now: &Observation,
    before: Option<&RunHealth>,
) -> (NewHealth, HealthAction) {
    let token_drift = before.map_or(0, |before| (now.tokens - before.tokens).max(0));
    let over_tooling = now.tool_messages as f64 / now.new_messages.max(1) as f64;
    let Reductions { summaries, archived, markers } = now.reductions;
    let context_rot = (2 * summaries + archived + markers) as f64 / now.messages.max(1) as f64;
    let drifts = u64::try_from(token_drift).is_ok_and(|it| it > 0 && it >= settings.token_drift);
    let signs = [
        (drifts, "token_drift"),
        (over_tooling >= settings.over_tooling, "over_tooling"),
        (context_rot >= settings.context_rot, "context_rot"),
        (now.repeats >= settings.repeats, "repeats"),
    ];
    let signals: Vec<String> =
        signs.iter().filter(|(is, _)| *is).map(|(_, name)| (*name).to_owned()).collect();
    // The model cannot change what has been summarised, so that sign alone does not justify a warning.
    let unhealthy = if signals.iter().all(|name| name == "context_rot") {
        0
    } else {
        before.map_or(0, |before| before.unhealthy) + 1
    };
    let stops = is_reached(now.repeats, settings.stop_after_repeats)
        || is_reached(unhealthy, settings.stop_after);
    let action = if stops {
        HealthAction::Stop
    } else if now.repeats == settings.repeats || is_step(unhealthy, settings.warn_after) {
        HealthAction::Warn
    } else {
        HealthAction::None
    };
    let health = NewHealth {
        tokens: now.tokens,
        token_drift,
        messages: now.messages,
        new_messages: now.new_messages,
        tool_messages: now.tool_messages,
        over_tooling,
        context_rot,
        repeats: now.repeats,
        signals,
        unhealthy,
    };
    (health, action)
}

/// Returns `true` if a count has reached a maximum; 0 is no maximum.
fn is_reached(count: i64, max: i64) -> bool {
    max > 0 && count >= max
}

/// Returns `true` each time that a count has grown by a step; 0 is no step.
fn is_step(count: i64, step: i64) -> bool {
    step > 0 && count > 0 && count % step == 0
}

/// Returns `true` if the context should be compacted after an answer. Whether there is enough to compact is known when
/// the next request is built; only then is the action recorded. `compacted` is the last answer after which that
/// happened.
pub(crate) fn wants_compaction(
    settings: &WatchdogSettings,
    health: &RunHealth,
    before: Option<&RunHealth>,
    compacted: Option<i64>,
) -> bool {
    let signals = signals(health);
    // It rises with each compaction, so only its crossing counts.
    let was_rotten = before.is_some_and(|before| before.context_rot >= settings.context_rot);
    let rots = has_signal(&signals, "context_rot") && !was_rotten;
    settings.auto_compaction
        && health.action == HealthAction::None
        && (rots || has_signal(&signals, "token_drift") || has_signal(&signals, "over_tooling"))
        && compacted.is_none_or(|at| health.iteration - at >= ANSWERS_BETWEEN_COMPACTIONS)
}

/// Measurements of a request before it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredRequest {
    /// Messages.
    messages: usize,
    /// Tokens, as an estimate.
    tokens: u64,
    /// The reduced part of the conversation, as far as the model sees it.
    reductions: Reductions,
}

impl MeasuredRequest {
    /// Measures a request, of this size in tokens.
    pub(crate) fn measure(driver: &Driver, request: &ModelRequest, tokens: u64) -> MeasuredRequest {
        let is_marker = |message: &&ModelMessage| match message {
            ModelMessage::Tool { content, .. } => context::reduction::is_marker(content),
            _ => false,
        };
        let markers = request.messages.iter().filter(is_marker).count();
        let markers = saturate(markers);
        // The summaries of a session are merged into one.
        let has_summary = driver.state.context.as_ref().is_some_and(|context| context.number() > 0);
        let summaries = i64::from(has_summary);
        // Each marker stands for an archived result.
        let reductions = Reductions { summaries, archived: markers, markers };
        MeasuredRequest { messages: request.messages.len(), tokens, reductions }
    }
}

/// Returns the measurements of an answer to a request of this size, if the run is watched. `tokens` is what the
/// provider reports.
pub(crate) fn observe(
    driver: &Driver,
    request: MeasuredRequest,
    tokens: Option<u64>,
    calls: &[RequestedCall],
) -> Option<RunHealth> {
    let settings = driver.agent.definition.settings().watchdog;
    if !settings.enabled {
        return None;
    }
    let since =
        driver.state.entries.iter().rposition(|entry| is_answer(entry)).map_or(0, |at| at + 1);
    // Warnings and facts are added by the runtime: they must not make a run look healthier.
    let new: Vec<&SessionEntry> =
        driver.state.entries[since..].iter().filter(|entry| entry.role != "system").collect();
    let reported = tokens.and_then(|tokens| i64::try_from(tokens).ok());
    let estimated = i64::try_from(request.tokens).unwrap_or(i64::MAX);
    let observation = Observation {
        iteration: driver.state.run.iterations + 1,
        tokens: reported.unwrap_or(estimated).clamp(0, i64::from(u32::MAX)),
        messages: saturate(request.messages),
        new_messages: saturate(new.len()) + 1,
        tool_messages: saturate(new.iter().filter(|entry| entry::is_result(entry)).count()),
        reductions: request.reductions,
        repeats: repeats(&driver.state.run.id, &driver.state.entries, calls),
    };
    let before = driver.health.last.as_ref();
    let (health, action) = evaluate(&settings, &observation, before);
    let run = &driver.state.run;
    let iteration = observation.iteration;
    // The database sets the time and the event.
    Some(health.into_row(&run.id, &run.session_id, iteration, action, Micros(0), Seq(0)))
}

fn saturate(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the call that records measurements.
pub(crate) fn record(driver: &Driver, health: &RunHealth) -> RecordHealth {
    let new = NewHealth {
        tokens: health.tokens,
        token_drift: health.token_drift,
        messages: health.messages,
        new_messages: health.new_messages,
        tool_messages: health.tool_messages,
        over_tooling: health.over_tooling,
        context_rot: health.context_rot,
        repeats: health.repeats,
        signals: signals(health),
        unhealthy: health.unhealthy,
    };
    let lease = &driver.run_lease;
    RecordHealth::new(&lease.run_id, lease.fencing_token, health.iteration, new)
        .action(health.action)
}

/// Returns how many consecutive answers of a run, up to one with these calls, have requested the same calls; except for
/// the newest, they got the same results, too.
fn repeats(run_id: &str, entries: &[SessionEntry], calls: &[RequestedCall]) -> i64 {
    if calls.is_empty() {
        return 0;
    }
    let now = comparable_calls(calls);
    let mut count: i64 = 1;
    let mut results: Vec<&str> = Vec::new();
    let mut last: Option<Vec<&str>> = None;
    for entry in entries.iter().rev() {
        if entry::is_result(entry) {
            results.push(entry.content.as_deref().unwrap_or_default());
            continue;
        }
        if entry.role == "system" {
            // A warning or facts: what the runtime has added.
            continue;
        }
        let answer = entry.assistant().filter(|it| is_answer(entry) && it.run_id == run_id);
        let got = std::mem::take(&mut results);
        let has_other_calls = answer.is_none_or(|it| comparable_calls(&it.calls) != now);
        if has_other_calls || last.is_some_and(|last| last != got) {
            break;
        }
        count += 1;
        last = Some(got);
    }
    count
}

/// Returns the name and the arguments of each call. Arguments are compared as JSON, whatever their white space.
fn comparable_calls(calls: &[RequestedCall]) -> Vec<(String, Value)> {
    let calls = calls.iter().map(|call| {
        (call.name.clone(), crate::tools::arguments::arguments_or_text(&call.arguments))
    });
    calls.collect()
}

/// The action of the driver before it asks the model again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchdogStep {
    /// Nothing.
    Go,
    /// It compacts the context, if there is enough to compact.
    Compact,
    /// A message was added: read the conversation again.
    ReadAgain,
}

/// Acts on the measurements of the last answer, before the model is asked again.
pub(crate) async fn act(driver: &mut Driver) -> Step<WatchdogStep> {
    if !driver.agent.definition.settings().watchdog.enabled {
        return Ok(WatchdogStep::Go);
    }
    read_newest(driver).await?;
    let Some(health) = &driver.health.last else { return Ok(WatchdogStep::Go) };
    if health.iteration != driver.state.run.iterations {
        return Ok(WatchdogStep::Go);
    }
    let before = driver.health.before.as_ref();
    let compacted = driver.health.compacted;
    let settings = driver.agent.definition.settings().watchdog;
    match health.action {
        HealthAction::None if wants_compaction(&settings, health, before, compacted) => {
            Ok(WatchdogStep::Compact)
        }
        HealthAction::None | HealthAction::Compact => Ok(WatchdogStep::Go),
        HealthAction::Stop => {
            Err(StepError::Failed(RunFailure::new("unhealthy", stop_reason(health))))
        }
        HealthAction::Warn => {
            if is_warned(driver, health.iteration) {
                return Ok(WatchdogStep::Go);
            }
            let entry =
                WarningEntry { run_id: driver.state.run.id.clone(), iteration: health.iteration };
            let text = warning(health);
            let message = driver.message("system", text, &entry).kind(WARNING);
            driver.record(&[], None, vec![Call::from(message)]).await?;
            Ok(WatchdogStep::ReadAgain)
        }
    }
}

/// Reads the newest rows, unless they belong to the last answer.
async fn read_newest(driver: &mut Driver) -> Result<(), Error> {
    let last = driver.health.last.as_ref().map_or(0, |health| health.iteration);
    if driver.health.is_read && last == driver.state.run.iterations {
        return Ok(());
    }
    let sql = "SELECT * FROM run_health WHERE run_id = :id ORDER BY iteration DESC LIMIT :most";
    let rows = driver
        .abide
        .sql(sql)
        .param("id", &driver.state.run.id)
        .param("most", ANSWERS_BETWEEN_COMPACTIONS);
    let rows: Vec<RunHealth> = rows.fetch().await?;
    let compacted = rows.iter().find(|row| row.action == HealthAction::Compact);
    driver.health.compacted = compacted.map(|row| row.iteration);
    let mut rows = rows.into_iter();
    driver.health.last = rows.next();
    driver.health.before = rows.next();
    driver.health.is_read = true;
    Ok(())
}

/// Returns `true` if the model has been warned about an answer.
fn is_warned(driver: &Driver, iteration: i64) -> bool {
    let wanted = WarningEntry { run_id: driver.state.run.id.clone(), iteration };
    let mut warnings = driver.state.entries.iter().rev().take_while(|entry| !is_answer(entry));
    warnings.any(|entry| entry.kind == WARNING && data::<WarningEntry>(entry) == wanted)
}

fn warning(health: &RunHealth) -> String {
    let RunHealth { repeats, unhealthy, .. } = health;
    if *repeats > 1 && has_signal(&signals(health), "repeats") {
        return format!(
            "You have requested the same tool calls {repeats} times, and the results are the same. \
             Use these results, or do something else. Do not repeat the calls."
        );
    }
    let what: Vec<&str> = signals(health).iter().map(|name| meaning(name)).collect();
    format!(
        "Your last {unhealthy} answers show signs of a run that makes no progress: {}. Call only \
         tools that you still need, and answer as soon as you can.",
        what.join("; ")
    )
}

fn stop_reason(health: &RunHealth) -> String {
    let RunHealth { repeats, unhealthy, .. } = health;
    if has_signal(&signals(health), "repeats") {
        format!("the model has requested the same tool calls {repeats} times in a row")
    } else {
        format!(
            "{unhealthy} consecutive answers have reached a threshold of the watchdog: {}",
            signals(health).join(", ")
        )
    }
}

fn signals(health: &RunHealth) -> Vec<String> {
    serde_json::from_value(health.signals.value()).unwrap_or_default()
}

fn has_signal(signals: &[String], signal: &str) -> bool {
    signals.iter().any(|name| name == signal)
}

fn meaning(signal: &str) -> &'static str {
    match signal {
        "token_drift" => "the conversation grows fast",
        "over_tooling" => "most messages are tool results",
        "context_rot" => "much of the conversation has been summarised",
        _ => "tool calls are repeated",
    }
}

#[cfg(test)]
mod tests;
