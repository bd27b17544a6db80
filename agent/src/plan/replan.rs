//! When the model is asked to revise its plan: after a failure, after a refused change, or after some answers without a
//! change, as the profile says. The request is part of the block with the plan, and follows from rows, so it stays until
//! the plan changes, including for another driver.

use abide_definitions::agent_tool::MANAGE_TODO_LIST;
use abide_definitions::profile_settings::{PlanSettings, Replan};

use crate::context::entry::SessionEntry;
use crate::plan::todo_list::Plan;
use crate::run::driver::Driver;

/// Returns the part of the instructions with the plan, and with the request to revise it if there is an occasion;
/// `None` if there is no plan.
pub(crate) fn block(driver: &Driver, plan: &Plan) -> Option<String> {
    let block = plan.block()?;
    let settings = driver.agent.definition.settings().plan;
    Some(match occasion(&settings, plan.seq, &driver.state.entries) {
        Some(occasion) => format!("{block}\n\n{}", occasion.request()),
        None => block,
    })
}

/// Why the plan should be revised.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReplanReason {
    /// Calls of this tool have failed.
    Failed(String),
    /// A change of the plan was refused.
    Refused,
    /// The plan has not changed for a while.
    Unchanged,
}

impl ReplanReason {
    /// Returns the request to the model.
    fn request(&self) -> String {
        let why = match self {
            ReplanReason::Failed(tool) => format!("A call of {tool} has failed since."),
            ReplanReason::Refused => "A change of the plan was refused since.".to_owned(),
            ReplanReason::Unchanged => "The plan has not changed for some time.".to_owned(),
        };
        format!("{why} Check whether the plan still fits, and update it with {MANAGE_TODO_LIST}.")
    }
}

/// Returns the occasion in the messages after the event that wrote the plan, if there is one.
fn occasion(
    settings: &PlanSettings,
    plan_seq: i64,
    entries: &[SessionEntry],
) -> Option<ReplanReason> {
    // A plan changes in one transaction with the result of its call.
    let since = entries.iter().filter(|entry| entry.seq.0 > plan_seq);
    match settings.replan {
        Replan::Never => None,
        Replan::OnFailure => {
            let mut results = since.filter_map(SessionEntry::tool);
            let failed = results.rfind(|it| it.is_error && it.name != MANAGE_TODO_LIST)?;
            Some(ReplanReason::Failed(failed.name.clone()))
        }
        Replan::OnConflict => {
            let mut results = since.filter_map(SessionEntry::tool);
            let is_refused = results.any(|it| it.is_error && it.name == MANAGE_TODO_LIST);
            is_refused.then_some(ReplanReason::Refused)
        }
        Replan::EveryNSteps => {
            let answers = since.filter_map(SessionEntry::assistant);
            let answers = answers.filter(|answer| answer.iteration > 0).count();
            (answers >= settings.replan_steps).then_some(ReplanReason::Unchanged)
        }
    }
}

#[cfg(test)]
mod tests;
