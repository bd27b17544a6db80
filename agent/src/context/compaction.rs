//! Compaction: when a request would exceed the trigger, older messages are summarised, part by part. Each part is one
//! answer of the model and one row, so a driver that takes over continues with the next part and gets the same
//! context.
//!
//! ```text
//! kept · summary │ covered: results are markers │ unchanged: the latest turns
//!             folded_id                    through_id
//! ```
//!
//! A compaction has a goal, which its rows contain: the last message to cover, and the last one to leave out. Parts
//! begin and end between groups: an answer and its results stay together. The requests for summaries are not part
//! of the conversation, so they cannot trigger a compaction.

use abide_client::Call;
use abide_client::arguments::{
    ModelUsage, NewArchivedResult, NewMemory, NewRunEvent, NewSummary, RecordHealth, RecordSummary,
};
use abide_client::rows::{AgentState, HealthAction, RunEventKind};
use abide_definitions::middleware::PiiAt;
use abide_definitions::profile_settings::{ContextPolicy, ContextSettings};
use abide_models::{ModelMessage, ModelRequest, ModelResponse, Stop, TokenEstimate, answer_of};
use serde_json::json;

use crate::context;
use crate::context::checked_summary::{CheckedSummary, summary_so_far};
use crate::context::entry::{self, MEMORY, PARTIAL, REPAIR, SessionEntry, WARNING};
use crate::context::request_size::RequestSize;
use crate::context::summarized::{CompactionGoal, SummarizedContext};
use crate::context::summary::{self, Repairs, Summary};
use crate::context::transcript;
use crate::model::outgoing::Purpose;
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{Step, StepError, overtime};
use crate::watchdog;
use crate::{memory, middleware, model};

/// Consecutive messages that stay together.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Index of the first message.
    start: usize,
    /// Index after the last message.
    end: usize,
    /// The id of the last message.
    last_id: i64,
    /// Whether it begins with an answer of the model.
    answers: bool,
    /// Whether the model sees all of its messages in any case, so that there is nothing to summarise.
    is_kept: bool,
}

/// Covers the next part if `tokens` exceeds the trigger, or if a compaction is in progress. Returns whether it did: then
/// the request must be built again.
pub(crate) async fn advance(
    driver: &mut Driver,
    request: &ModelRequest,
    size: RequestSize,
    tokens: u64,
) -> Step<bool> {
    let settings = driver.agent.definition.settings().context;
    let Some(context) = driver.state.context.clone().filter(|_| settings.compacts()) else {
        return Ok(false);
    };
    let goal = match context.pending() {
        Some(goal) => Some(goal),
        None if tokens > settings.compact_above_tokens || driver.health.wants_compaction => {
            plan(driver, &context, request, size, tokens)
        }
        None => None,
    };
    let Some(goal) = goal else { return Ok(false) };
    let by_watchdog = driver.health.wants_compaction && context.pending().is_none();
    let action = driver.health.last.as_ref().filter(|_| by_watchdog);
    let action = action.map(|health| RecordHealth {
        action: Some(HealthAction::Compact),
        ..watchdog::record(driver, health)
    });
    cover(driver, &context, goal, size, tokens, action).await?;
    if by_watchdog {
        driver.health.note_compaction();
    }
    driver.read_summary().await?;
    Ok(true)
}

/// Returns the goal of a new compaction; `None` if there is too little to gain.
fn plan(
    driver: &Driver,
    context: &SummarizedContext,
    request: &ModelRequest,
    size: RequestSize,
    tokens: u64,
) -> Option<CompactionGoal> {
    let settings = driver.agent.definition.settings().context;
    let through = context.through_id();
    let folded = context.folded_id();
    let first = driver.state.entries.iter().position(|entry| entry.id > folded)?;
    let rest = &driver.state.entries[first..];
    let groups = groups(rest, &always_kept(driver));
    let fixed = size.estimate.around(request)
        + size.count_messages(&transcript::messages(&driver.state.entries[..first]));
    let target = size.estimated(settings.compact_to_tokens);
    let left = target.saturating_sub(fixed + size.estimated(settings.summary_token_limit));
    let unchanged = first_unchanged(&groups, rest, left * 2 / 3, settings.last_answers, size)?;
    let goal = groups.get(unchanged.checked_sub(1)?)?.last_id;
    if goal <= through {
        return None;
    }
    let gain: u64 = groups[..unchanged]
        .iter()
        .filter(|group| group.last_id > through && !group.is_kept)
        .map(|group| size.count_messages(&transcript::messages(&rest[group.start..group.end])))
        .sum();
    if gain == 0 {
        return None;
    }
    // Otherwise a large latest turn would pay for a summary of a few words in every turn.
    let tolerance = size.estimated(settings.compact_above_tokens) * 15 / 100;
    let fits = tokens <= settings.window_tokens;
    if fits && gain < tolerance {
        return None;
    }
    if settings.policy == ContextPolicy::SummaryOnly {
        return Some(CompactionGoal { through_id: goal, folded_id: goal });
    }
    let mut marked = 0;
    let mut leaves_out = folded;
    for group in groups[..unchanged].iter().rev() {
        let part = &rest[group.start..group.end];
        let messages = transcript::reduced_messages(part, goal, &settings);
        marked += size.count_messages(&messages);
        if marked > left / 3 {
            leaves_out = group.last_id;
            break;
        }
    }
    Some(CompactionGoal { through_id: goal, folded_id: leaves_out.max(folded) })
}

/// Returns the index of the first group that stays unchanged: the latest turns that fit, and in any case everything
/// from the last answer on. `None` if there is no answer.
fn first_unchanged(
    groups: &[Group],
    entries: &[SessionEntry],
    max: u64,
    turns: usize,
    size: RequestSize,
) -> Option<usize> {
    let protected = groups.iter().rposition(|group| group.answers)?;
    let mut first = protected;
    let mut tokens = 0;
    let mut answers = 1;
    for at in (0..groups.len()).rev() {
        let group = groups[at];
        tokens += size.count_messages(&transcript::messages(&entries[group.start..group.end]));
        if at >= protected {
            continue;
        }
        answers += usize::from(group.answers);
        if tokens > max || answers > turns {
            break;
        }
        first = at;
    }
    Some(first)
}

/// Splits messages into groups: an answer with its results, or another message. Messages that arrive before the
/// results of an answer are complete belong to its group.
fn groups(entries: &[SessionEntry], kept: &[i64]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut open = 0_usize;
    for (at, entry) in entries.iter().enumerate() {
        let answers = is_answer(entry);
        let is_result = entry::is_result(entry);
        let begins = answers || (!is_result && open == 0) || groups.is_empty();
        if answers {
            open = entry.assistant().map_or(0, |answer| answer.calls.len());
        } else if is_result {
            open = open.saturating_sub(1);
        }
        let is_kept = kept.contains(&entry.id);
        match groups.last_mut().filter(|_| !begins) {
            Some(group) => {
                group.end = at + 1;
                group.last_id = entry.id;
                group.is_kept &= is_kept;
            }
            None => {
                groups.push(Group { start: at, end: at + 1, last_id: entry.id, answers, is_kept });
            }
        }
    }
    groups
}

fn is_answer(entry: &AgentState) -> bool {
    entry.role == "assistant" && (entry.kind == "message" || entry.kind == PARTIAL)
}

/// Summarises the next part and records the summary, with the action of the watchdog if it made the compaction begin.
async fn cover(
    driver: &Driver,
    context: &SummarizedContext,
    goal: CompactionGoal,
    size: RequestSize,
    tokens: u64,
    action: Option<RecordHealth>,
) -> Step {
    let settings = driver.agent.definition.settings().context;
    let part = next_part(driver, context, goal.through_id, &settings, size);
    let through_id = part.last().map_or(goal.through_id, |entry| entry.id);
    let lines = lines(driver, part, &settings, size);
    let before = summary_so_far(driver, context);
    let made = summarise(driver, &before, &lines, &settings).await?;
    let source_seq = part.last().map(|entry| entry.seq.0);
    memory::facts::keep_facts(driver, made.new_facts(&before, source_seq)).await?;
    let folded_id = goal.folded_id.min(through_id);
    let covered: Vec<&SessionEntry> =
        driver.state.entries.iter().filter(|entry| entry.id <= folded_id).collect();
    let newly_folded: Vec<SessionEntry> =
        covered.iter().filter(|it| it.id > context.folded_id()).map(|it| (*it).clone()).collect();
    let mut handoffs = context.handoffs(&driver.state.run);
    entry::apply_handoffs(&mut handoffs, &driver.state.run, &newly_folded);
    let answers = newly_folded.iter().filter(|entry| is_answer(entry)).count();
    let archived = results_to_archive(part, &settings);
    let number = context.number() + 1;
    let summary = json!(made.summary);
    let mut output = json!({"status": "summarization", "number": number, "summary": summary,
        "archived": archived.len(), "origin": made.origin, "through_id": through_id,
        "goal_id": goal.through_id, "tokens_before": tokens});
    if !made.repairs.is_empty() {
        output["repaired"] = json!(made.repairs);
    }
    let record = NewSummary {
        number,
        through_id,
        folded_id,
        goal_id: goal.through_id,
        goal_folded_id: goal.folded_id,
        summary,
        kept: ids_to_keep(driver, &covered),
        answers: context.answers() + i64::try_from(answers).unwrap_or(0),
        handoffs: handoffs.iter().map(|handoff| json!(handoff)).collect(),
        origin: made.origin.to_owned(),
        repaired: (!made.repairs.is_empty()).then(|| json!(made.repairs)),
        tokens_before: i64::try_from(tokens).unwrap_or(i64::MAX),
    };
    let lease = &driver.run_lease;
    let record = RecordSummary {
        archived: Some(archived),
        ..RecordSummary::new(&lease.run_id, lease.fencing_token, record)
    };
    let mut events: Vec<NewRunEvent> =
        made.answer.as_ref().map(model::choice::usage).into_iter().collect();
    events.push(run_event(RunEventKind::Status, output));
    let spent = made.answer.as_ref().map(|answer| {
        // It is not an answer of the agent.
        ModelUsage { iteration: false, ..model::choice::spent(answer, 0) }
    });
    let calls = [Call::from(record)].into_iter().chain(action.map(Call::from));
    driver.record(&events, spent.as_ref(), calls.collect()).await
}

/// Returns the messages to summarise next: whole groups up to the size of a part, at least one that the model does not
/// see in any case. Such messages at the end belong to the part before them, so none of them is a part alone.
fn next_part<'a>(
    driver: &'a Driver,
    context: &SummarizedContext,
    goal_id: i64,
    settings: &ContextSettings,
    size: RequestSize,
) -> &'a [SessionEntry] {
    let through = context.through_id();
    let first = driver.state.entries.iter().position(|entry| entry.id > through);
    let rest = &driver.state.entries[first.unwrap_or(driver.state.entries.len())..];
    let max = size.estimated(settings.chunk_tokens);
    let mut end = 0;
    let mut tokens = 0;
    let mut has_content = false;
    let groups = groups(rest, &always_kept(driver));
    for group in groups.iter().take_while(|group| group.last_id <= goal_id) {
        tokens += size.count_messages(&transcript::messages(&rest[group.start..group.end]));
        let ends = has_content && tokens > max;
        if ends && !group.is_kept {
            break;
        }
        has_content |= !group.is_kept;
        end = group.end;
    }
    &rest[..end]
}

/// Returns the messages of a part as text, one each. Together they are at most as large as a part.
fn lines(
    driver: &Driver,
    part: &[SessionEntry],
    settings: &ContextSettings,
    size: RequestSize,
) -> Vec<String> {
    // What the agent's model does not see has not been checked by guardrails, either.
    let shown = part.iter().filter(|entry| entry::is_visible(entry) && !entry.is_denied());
    // The request also has the summary so far and the instructions.
    let room = settings.window_tokens.saturating_sub(2 * settings.summary_token_limit + 500);
    let max = size.estimated(settings.chunk_tokens.min(room));
    let lines = shown.filter_map(|it| line(it, settings));
    // Before they are shortened: a cut in personal data hides it from the rules.
    let mut lines: Vec<String> =
        lines.map(|it| middleware::redaction::for_model(driver, &it)).collect();
    let mut each = 8_000;
    while lines.iter().map(|line| size.estimate.text(line) + 2).sum::<u64>() > max && each > 20 {
        for line in &mut lines {
            shorten(line, each);
        }
        each /= 2;
    }
    lines
}

/// Keeps the beginning and the end of a text.
fn shorten(text: &mut String, max: usize) {
    if text.len() > max {
        let head = text.floor_char_boundary(max * 2 / 3);
        let tail = text.ceil_char_boundary(text.len() - max / 3);
        *text = format!("{} […] {}", &text[..head], &text[tail..]);
    }
}

fn line(entry: &SessionEntry, settings: &ContextSettings) -> Option<String> {
    let text = entry.content.as_deref().unwrap_or_default();
    Some(match entry.role.as_str() {
        "tool" if entry::is_result(entry) => {
            let result = entry.tool()?;
            let failed = if result.is_error { "failed " } else { "" };
            let name = &result.name;
            let id = &result.call_id;
            if context::reduction::drops(&settings.reduce_results, name, text) {
                format!("{failed}result of {name} {id}: omitted")
            } else {
                format!("{failed}result of {name} {id}: {text}")
            }
        }
        "assistant" if is_answer(entry) => {
            let calls = entry.assistant()?.calls.iter().map(|call| {
                let name = &call.name;
                let id = &call.call_id;
                let arguments = &call.arguments;
                let outcome = entry.undelivered(id).map(|outcome| {
                    let failed = if outcome.is_error { "failed " } else { "" };
                    format!("\n{failed}result of {name} {id}: {}", outcome.text)
                });
                let outcome = outcome.unwrap_or_default();
                if context::reduction::drops(&settings.reduce_arguments, name, arguments) {
                    format!("\ncalls {name} {id}{outcome}")
                } else {
                    format!("\ncalls {name} {id} with {arguments}{outcome}")
                }
            });
            format!("agent: {text}{}", calls.collect::<String>())
        }
        "tool" | "assistant" => return None,
        // Facts are in the memory, and a warning is about its moment.
        "system" if entry.kind == MEMORY || entry.kind == WARNING => return None,
        role => format!("{role}: {text}"),
    })
}

/// A new summary.
struct SummaryDraft {
    summary: Summary,
    repairs: Repairs,
    origin: &'static str,
    /// The model's answer, usable or not: it was paid for.
    answer: Option<ModelResponse>,
}

impl SummaryDraft {
    /// Returns the facts that the summary before it did not have, for the memory of the agent. A fact that was
    /// forgotten there does not return with each summary.
    fn new_facts(&self, before: &Summary, source_seq: Option<i64>) -> Vec<NewMemory> {
        let new = self.summary.stable_facts.iter().filter(|fact| {
            !before.stable_facts.iter().any(|it| it.key == fact.key && it.value == fact.value)
        });
        let facts = new.map(|fact| NewMemory {
            key: fact.key.clone(),
            value: fact.value.clone(),
            confidence: Some(fact.confidence),
            source_seq,
        });
        facts.collect()
    }
}

/// Asks the agent's model for the summary. If it gives none, or a guardrail denies it, one is made without a model.
async fn summarise(
    driver: &Driver,
    before: &Summary,
    lines: &[String],
    settings: &ContextSettings,
) -> Step<SummaryDraft> {
    let candidates = model::choice::agent_candidates(driver)?;
    let estimate = TokenEstimate::for_model(&candidates.model);
    let mut shown = before.clone();
    middleware::redaction::redact_summary(driver, &mut shown, PiiAt::Request);
    let request = request(&shown, lines, settings);
    model::budget::reserve(driver, &request, candidates.price).await?;
    let stream = candidates.ask(driver, Purpose::Summary, request).await?;
    let answer = tokio::select! {
        biased;
        () = driver.stop.cancelled() => return Err(StepError::Aborted),
        () = driver.until_deadline() => return Err(overtime()),
        answer = answer_of(stream) => match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                let run = &driver.state.run.id;
                tracing::warn!(
                    name: "summary_failed",
                    run,
                    error = error.message,
                    "the model gives no summary"
                );
                None
            }
        },
    };
    let max = settings.summary_token_limit;
    let complete = answer.as_ref().filter(|answer| answer.stop == Stop::End);
    let of_model = match complete {
        Some(answer) => CheckedSummary::from_answer(driver, answer, before, max, estimate).await?,
        None => None,
    };
    let (CheckedSummary { summary, repairs }, origin) = match of_model {
        Some(summary) => (summary, "model"),
        None => {
            let lines: Vec<String> =
                lines.iter().map(|it| middleware::redaction::as_answer(driver, it)).collect();
            let summary = Summary::fallback(before, &lines);
            (CheckedSummary::new(summary, before, max, estimate), "fallback")
        }
    };
    Ok(SummaryDraft { summary, repairs, origin, answer })
}

fn request(before: &Summary, lines: &[String], settings: &ContextSettings) -> ModelRequest {
    let data = json!({"summary_so_far": before, "conversation": lines});
    let words = settings.summary_token_limit / 2;
    ModelRequest {
        system: Some(format!("{} Use at most {words} words.", summary::INSTRUCTIONS)),
        messages: vec![ModelMessage::user(data.to_string())],
        temperature: None,
        max_tokens: u32::try_from(settings.summary_token_limit.saturating_mul(2)).ok(),
        response_schema: Some(summary::schema()),
        ..ModelRequest::default()
    }
}

/// Returns the results of a part that become markers.
fn results_to_archive(part: &[SessionEntry], settings: &ContextSettings) -> Vec<NewArchivedResult> {
    let results = part.iter().filter(|entry| entry::is_result(entry));
    let archived = results.filter_map(|entry| {
        let result = entry.tool()?;
        let text = entry.content.as_deref().unwrap_or_default();
        let characters =
            context::reduction::reduced_chars(&settings.reduce_results, &result.name, text)?;
        Some(NewArchivedResult {
            entry_id: entry.id,
            call_id: result.call_id.clone(),
            provider_call_id: Some(result.provider_call_id.clone()).filter(|id| !id.is_empty()),
            tool_name: result.name.clone(),
            characters: i64::try_from(characters).unwrap_or(i64::MAX),
        })
    });
    archived.collect()
}

/// Returns the ids of the messages that the model always sees, among those that it would not see otherwise.
fn ids_to_keep(driver: &Driver, covered: &[&SessionEntry]) -> Vec<i64> {
    let always = always_kept(driver);
    // The facts of the current turn, so that they are not read again.
    let facts =
        driver.state.entries.iter().rfind(|entry| entry.kind == MEMORY).map(|entry| entry.id);
    let ids = covered.iter().map(|entry| entry.id);
    ids.filter(|id| always.contains(id) || Some(*id) == facts).collect()
}

/// Returns the ids of the messages that the model sees whatever a summary covers: system messages, the first message of
/// the user, and the newest one, which is the current task.
fn always_kept(driver: &Driver) -> Vec<i64> {
    let mut of_user = driver
        .state
        .entries
        .iter()
        .filter(|entry| entry.role == "user" && entry.kind == "message" && !entry.is_denied());
    let first = of_user.next().map(|entry| entry.id);
    let newest = of_user.next_back().map(|entry| entry.id).or(first);
    driver
        .state
        .entries
        .iter()
        .filter(|entry| {
            let is_system = entry.role == "system" && !entry.is_denied();
            is_system && ![REPAIR, WARNING, MEMORY].contains(&entry.kind.as_str())
                || Some(entry.id) == first
                || Some(entry.id) == newest
        })
        .map(|entry| entry.id)
        .collect()
}

#[cfg(test)]
mod tests;
