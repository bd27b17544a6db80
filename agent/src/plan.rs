//! Plans: the steps that an agent intends to do, as it records them. The tool `manage_todo_list` maintains the
//! plan. Each change is published: the current plan (`planning`), and each step that is completed
//! (`step_complete`).
//!
//! The plan of a session is the result of the last successful call of the tool. There is no other copy, so the next
//! driver of the run finds it.

use std::collections::BTreeSet;

use abide_client::{Abide, Error, NewRunEvent, RunEventKind, ToolCall};
use abide_models::ToolSpec;
use abide_tools::{Effect, Failure, Parameters, ToolDeclaration, ToolOutcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::run_lease::run_event;

/// The name of the tool.
pub(crate) const TOOL: &str = "manage_todo_list";

/// The part of the instructions about plans.
pub(crate) const RULES: &str = "\
## Plan

Work that takes more than two steps has a plan: write it with manage_todo_list before you begin. Exactly one step is \
in-progress while there is work to do. Update the plan right after each step, and when it turns out to be wrong. Do \
not repeat the plan in what you say.";

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Number of changes.
    version: i64,
    /// The steps, in order.
    todos: Vec<PlanItem>,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanItem {
    /// 1, 2, 3 … in order.
    id: i64,
    /// The task of the step.
    title: String,
    /// The status of the step.
    status: Status,
    /// More details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// The status of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Status {
    NotStarted,
    InProgress,
    Completed,
    Blocked,
}

/// A partial change of a step.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanItemPatch {
    /// The step's id. With write: 1, 2, 3 … in order.
    id: i64,
    /// The task of the step.
    title: Option<String>,
    /// The status of the step.
    status: Option<Status>,
    /// More details.
    description: Option<String>,
}

/// The arguments of the tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanArguments {
    /// write replaces the whole plan, update changes the given steps, read changes nothing.
    operation: Operation,
    /// The steps: complete ones for write, changed fields only for update.
    #[serde(default)]
    todos: Vec<PlanItemPatch>,
    /// The version that the change is based on. If the plan has another version, the change is refused.
    expected_version: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Write,
    Update,
    Read,
}

/// The declaration to register.
pub(crate) fn declaration() -> ToolDeclaration {
    let schema = schemars::schema_for!(PlanArguments).to_value();
    let description = "Keeps the plan of the work: writes it, updates steps of it, or reads it.";
    let mut declaration = ToolDeclaration::new(TOOL, description, schema);
    // The call's only effect is its result, so a repeated call is harmless.
    declaration.effect = Effect::ReadOnly;
    declaration
}

/// The tool as the model sees it; `None` if the agent makes no plans.
pub(crate) fn spec(plans: bool) -> Option<ToolSpec> {
    plans.then(|| {
        let ToolDeclaration { name, description, parameters, .. } = declaration();
        ToolSpec { name, description, parameters }
    })
}

/// The parsed arguments, or the error text for the model.
pub(crate) fn admit(plans: bool, arguments: &str) -> Result<Value, String> {
    if !plans {
        return Err(format!("there is no tool {TOOL}: this agent makes no plans"));
    }
    let parameters = Parameters::of(&declaration().parameters)?;
    let fitted =
        parameters.fit_text(arguments).map_err(|mismatch| format!("{TOOL}: {mismatch}"))?;
    Ok(fitted.arguments)
}

/// The outcome of a call, and the events to publish.
pub(crate) struct PlanUpdate {
    pub(crate) outcome: ToolOutcome,
    pub(crate) events: Vec<NewRunEvent>,
}

/// Executes a call.
///
/// # Errors
/// [`Error`] if the plan cannot be read.
pub(crate) async fn run(abide: &Abide, claimed: &ToolCall) -> Result<PlanUpdate, Error> {
    let before = current(abide, &claimed.session_id).await?;
    let wish: Result<PlanArguments, _> = serde_json::from_value(claimed.arguments.value());
    let after = match wish {
        Ok(wish) => {
            let operation = wish.operation;
            before.changed(wish).map(|after| (after, operation))
        }
        Err(why) => Err(format!("the arguments cannot be read: {why}")),
    };
    Ok(match after {
        Ok((after, operation)) => PlanUpdate {
            outcome: ToolOutcome::json(json!(after)),
            events: after.told(&before, operation),
        },
        Err(why) => {
            PlanUpdate { outcome: ToolOutcome::failed(Failure::Tool, why), events: Vec::new() }
        }
    })
}

/// The session's current plan.
async fn current(abide: &Abide, session_id: &str) -> Result<Plan, Error> {
    let sql = "SELECT * FROM tool_calls WHERE session_id = :sid AND tool_name = :tool AND \
               status = 'succeeded' ORDER BY seq DESC, rowid DESC LIMIT 1";
    let query = abide.sql(sql).param("sid", session_id);
    let last: Vec<ToolCall> = query.param("tool", TOOL).fetch().await?;
    let result = last.first().and_then(|call| call.result.as_ref());
    let plan = result.and_then(|it| serde_json::from_value(it.value()["content"].clone()).ok());
    Ok(plan.unwrap_or_default())
}

impl Plan {
    fn changed(&self, wish: PlanArguments) -> Result<Plan, String> {
        if wish.operation == Operation::Read {
            return Ok(self.clone());
        }
        if let Some(expected) = wish.expected_version.filter(|it| *it != self.version) {
            let now = self.version;
            return Err(format!(
                "the plan is at version {now}, not {expected}: read it and repeat the change"
            ));
        }
        let ids: BTreeSet<i64> = wish.todos.iter().map(|it| it.id).collect();
        if ids.len() < wish.todos.len() {
            return Err("duplicate id".to_owned());
        }
        let todos = match wish.operation {
            Operation::Write => written(wish.todos)?,
            _ => self.updated(wish.todos)?,
        };
        if todos.iter().filter(|it| it.status == Status::InProgress).count() > 1 {
            return Err("only one step can be in-progress".to_owned());
        }
        Ok(Plan { version: self.version + 1, todos })
    }

    fn updated(&self, patches: Vec<PlanItemPatch>) -> Result<Vec<PlanItem>, String> {
        if self.todos.is_empty() {
            return Err("there is no plan yet: write one first".to_owned());
        }
        let mut todos = self.todos.clone();
        for patch in patches {
            let item = todos.iter_mut().find(|it| it.id == patch.id);
            let item = item.ok_or_else(|| format!("the plan has no step {}", patch.id))?;
            item.title = patch.title.unwrap_or_else(|| item.title.clone());
            item.status = patch.status.unwrap_or(item.status);
            item.description = patch.description.or_else(|| item.description.clone());
        }
        Ok(todos)
    }

    /// The events for a change: the whole plan, and the steps that are now completed.
    fn told(&self, before: &Plan, operation: Operation) -> Vec<NewRunEvent> {
        let was_done = |item: &PlanItem| {
            let mut done = before.todos.iter().filter(|it| it.status == Status::Completed);
            // In a rewritten plan, the same number may belong to another step.
            let same = |it: &PlanItem| it.title == item.title || operation != Operation::Write;
            done.any(|it| it.id == item.id && same(it))
        };
        let titles: Vec<&str> = self.todos.iter().map(|it| it.title.as_str()).collect();
        let mut told = vec![run_event(
            RunEventKind::Planning,
            json!({
            "todos": titles, "items": self.todos, "version": self.version}),
        )];
        for (at, item) in self.todos.iter().enumerate() {
            if item.status == Status::Completed && !was_done(item) {
                told.push(run_event(
                    RunEventKind::StepComplete,
                    json!({
                    "step_number": at + 1, "total_steps": self.todos.len(),
                    "description": item.title}),
                ));
            }
        }
        told
    }
}

fn written(patches: Vec<PlanItemPatch>) -> Result<Vec<PlanItem>, String> {
    let whole = patches.into_iter().zip(1..).map(|(patch, id)| {
        if patch.id != id {
            return Err(format!(
                "the ids must be 1, 2, 3 … in order, but {} is not {id}",
                patch.id
            ));
        }
        match (patch.title, patch.status) {
            (Some(title), status) => Ok(PlanItem {
                id,
                title,
                status: status.unwrap_or(Status::NotStarted),
                description: patch.description,
            }),
            (None, _) => Err(format!("step {id} has no title")),
        }
    });
    whole.collect()
}

#[cfg(test)]
mod tests;
