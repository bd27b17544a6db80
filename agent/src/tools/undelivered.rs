//! Outcomes of calls that no message of the session has: their run ended, by an abort or a failure, before the results were
//! given to the model. They are read from the rows of the calls for the next run of the session, so that the model neither
//! repeats what was done nor takes it for done.

use std::collections::{BTreeMap, BTreeSet};

use abide_client::rows::{ToolCall, ToolCallStatus};

use crate::context::entry::{self, UndeliveredResult};
use crate::context::transcript::{NO_RESULT, with_approved_arguments};
use crate::run::driver::Driver;
use crate::run::step::Step;
use crate::tools::approval;
use crate::tools::claimed::MAY_HAVE_TAKEN_EFFECT;
use crate::tools::delivery::{self, Delivery};
use crate::tools::registry;

const NEVER_BEGAN: &str = "The call did not run: its run ended before it began.";

/// Of a call that is not cancelled: not yet, because the cleanup of its run goes on, or never, because its run was done.
const NOT_BEGUN: &str = "There is no result yet: the run ended before the call began, and it may still run. \
    Find out before you repeat it.";

const RUNNING: &str = "There is no result yet: the run ended while the call ran, and it has not stopped. \
    It may take effect: find out before you repeat it.";

const DISAPPEARED: &str = "the worker of the call disappeared while it ran";

const NOT_HANDED_OVER: &str = "No other agent has taken over: the run ended first.";

/// Adds the outcomes to the answers among the messages that the driver has read.
pub(crate) async fn read(driver: &mut Driver) -> Step {
    let open = driver.state.entries.undelivered(&driver.state.run);
    if open.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = open.iter().map(|(_, call)| call.call_id.as_str()).collect();
    let ids = serde_json::to_string(&ids).unwrap_or_default();
    // Only of this session: others than drivers can write messages that name any call.
    let sql = "SELECT * FROM tool_calls WHERE call_id IN (SELECT value FROM json_each(:ids)) \
               AND +session_id = :sid";
    let query = driver.abide.sql(sql).param("ids", ids);
    let rows: Vec<ToolCall> = query.param("sid", &driver.state.run.session_id).fetch().await?;
    let rows: BTreeMap<&str, &ToolCall> = rows.iter().map(|it| (it.call_id.as_str(), it)).collect();
    let ended = ended_runs(driver, open.iter().map(|(at, _)| *at)).await?;
    for (at, asked) in &open {
        let result = match rows.get(asked.call_id.as_str()) {
            Some(row) => read_outcome(driver, row).await?,
            None => {
                let run = driver.state.entries[*at].run_id.as_deref();
                let was_never_requested = run.is_some_and(|run| ended.contains(run));
                let text = if was_never_requested { NEVER_BEGAN } else { NO_RESULT };
                error(&asked.call_id, text, true)
            }
        };
        driver.state.has_cut_results |= entry::has_cut_result(&result.text);
        driver.state.entries.set_undelivered(*at, result);
    }
    Ok(())
}

/// Returns the runs of the answers at these positions that have ended in this session. Of the runs of an imported or
/// written history, nobody knows which calls they have requested.
async fn ended_runs(
    driver: &Driver,
    answers: impl Iterator<Item = usize>,
) -> Step<BTreeSet<String>> {
    let runs: BTreeSet<&str> =
        answers.filter_map(|at| driver.state.entries[at].run_id.as_deref()).collect();
    let sql = "SELECT id FROM runs WHERE id IN (SELECT value FROM json_each(:ids)) \
               AND +session_id = :sid AND ended_at IS NOT NULL";
    let ids = serde_json::to_string(&runs).unwrap_or_default();
    let query = driver.abide.sql(sql).param("ids", ids);
    let ended: Vec<(String,)> = query.param("sid", &driver.state.run.session_id).fetch().await?;
    Ok(ended.into_iter().map(|(id,)| id).collect())
}

/// Returns the outcome of a call that was requested.
async fn read_outcome(driver: &Driver, row: &ToolCall) -> Step<UndeliveredResult> {
    let id = row.call_id.as_str();
    Ok(match row.status {
        ToolCallStatus::Unknown => {
            let why = row.error.as_deref().unwrap_or(DISAPPEARED);
            let why = why.trim_end_matches(MAY_HAVE_TAKEN_EFFECT).trim_end().trim_end_matches('.');
            let text = format!("The outcome is unknown: {why}. {MAY_HAVE_TAKEN_EFFECT}");
            may_have_run(driver, row, &text).await?
        }
        ToolCallStatus::Pending | ToolCallStatus::AwaitingApproval if row.attempt == 0 => {
            may_have_run(driver, row, NOT_BEGUN).await?
        }
        ToolCallStatus::Pending | ToolCallStatus::AwaitingApproval | ToolCallStatus::Claimed => {
            may_have_run(driver, row, RUNNING).await?
        }
        ToolCallStatus::Cancelled if row.attempt == 0 => error(id, NEVER_BEGAN, true),
        // A handoff takes effect when its result is delivered.
        ToolCallStatus::Succeeded if registry::changes_agent(driver, row) => {
            error(id, NOT_HANDED_OVER, true)
        }
        ToolCallStatus::Succeeded
        | ToolCallStatus::Failed
        | ToolCallStatus::Rejected
        | ToolCallStatus::Cancelled => {
            let Delivery { result, .. } = delivery::deliver(driver, row).await?;
            let is_error = result.is_error();
            // The approval can be of a definition that the agent no longer has.
            let text = match &approval::approved_arguments(driver, row).await? {
                Some(arguments) => with_approved_arguments(arguments, &result.text),
                None => result.text,
            };
            UndeliveredResult { call_id: id.to_owned(), text, is_error, is_final: true }
        }
    })
}

/// Returns the outcome of a call that has run, or may run, without a result. It says with which arguments: the model
/// would look for the effect of those that it wrote.
async fn may_have_run(driver: &Driver, row: &ToolCall, text: &str) -> Step<UndeliveredResult> {
    let changed = approval::approved_arguments(driver, row).await?;
    let text = match &changed {
        Some(arguments) => with_approved_arguments(arguments, text),
        None => text.to_owned(),
    };
    Ok(error(&row.call_id, &text, false))
}

fn error(call_id: &str, text: &str, is_final: bool) -> UndeliveredResult {
    UndeliveredResult {
        call_id: call_id.to_owned(),
        text: text.to_owned(),
        is_error: true,
        is_final,
    }
}
