//! Plans: the steps that an agent intends to do, as it records them. The tool `manage_todo_list` maintains the
//! plan. Each change and each read is published: the whole plan (`planning`), and each step that is completed
//! (`step_complete`).
//!
//! The plan of a session is in rows (`plans`, `plan_steps`, `plan_versions`). The database enforces that exactly one
//! step is in progress while steps are left and work has begun.

use std::collections::BTreeSet;

use std::fmt::Write as _;

use abide_client::arguments::{CompleteToolCall, NewPlanStep, NewRunEvent, WritePlan};
use abide_client::rows::{PlanStepStatus, PlanVersion, RunEventKind, ToolCall};
use abide_client::{Abide, Error};
use abide_definitions::agent_tool::MANAGE_TODO_LIST;
use abide_tools::{Effect, Failure, ToolDeclaration, ToolOutcome};
use futures_util::future::{BoxFuture, FutureExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::run::driver::Driver;
use crate::run::lease::{fencing_token, run_event};
use crate::run::step::{Step, StepError};
use crate::tools::claimed::result_of;
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool, refused};

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Number of changes.
    version: i64,
    /// The steps, in order.
    todos: Vec<PlanItem>,
    /// The event that wrote this version.
    #[serde(skip)]
    pub(crate) seq: i64,
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
    /// Who works on the step; the default is the agent itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// When the step counts as done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_criteria: Option<String>,
    /// What shows that the step is done: at most 300 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evidence: Option<String>,
}

/// Maximum length of an evidence in characters.
const EVIDENCE_CHARS: usize = 300;

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
    /// Who works on the step.
    owner: Option<String>,
    /// When the step counts as done.
    exit_criteria: Option<String>,
    /// What shows that the step is done: at most 300 characters.
    evidence: Option<String>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Write,
    Update,
    Read,
}

/// The tool `manage_todo_list`.
pub(crate) struct ManageTodoList;

impl RuntimeTool for ManageTodoList {
    fn declaration(&self) -> ToolDeclaration {
        let schema = schemars::schema_for!(PlanArguments).to_value();
        let description =
            "Keeps the plan of the work: writes it, updates steps of it, or reads it.";
        ToolDeclaration::new(MANAGE_TODO_LIST, description, schema)
    }

    fn name(&self) -> &str {
        MANAGE_TODO_LIST
    }

    fn missing(&self, driver: &Driver) -> Option<&'static str> {
        (!driver.agent.definition.keeps_plan()).then_some("this agent makes no plans")
    }

    // The plan is written in one transaction with the result, so a repeated call has had no effect.
    fn effect(&self) -> Effect {
        Effect::ReadOnly
    }

    fn order(&self) -> CallOrder {
        CallOrder::InSequence
    }

    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>> {
        run(call).boxed()
    }
}

/// Changes the plan and publishes the change, atomically. Returns the outcome of a call that has failed.
async fn run(call: RunningCall<'_>) -> Step<Option<ToolOutcome>> {
    let RunningCall { driver, claimed, .. } = call;
    let PlanUpdate { outcome, events, write } = update(&driver.abide, claimed).await?;
    if outcome.is_error {
        return Ok(Some(outcome));
    }
    let done = CompleteToolCall::new(&claimed.call_id, fencing_token(claimed), result_of(&outcome));
    let lease = &driver.run_lease;
    let write = write.map(|(version, steps)| {
        WritePlan::new(&lease.run_id, lease.fencing_token, version, steps).into()
    });
    let calls = write.into_iter().chain([done.into()]).collect();
    match driver.record(&events, None, calls).await {
        // The database refuses the plan, or the call has ended meanwhile.
        Err(StepError::Refused(error)) => refused(error),
        recorded => recorded.map(|()| None),
    }
}

/// The outcome of a call, and the events to publish.
struct PlanUpdate {
    outcome: ToolOutcome,
    events: Vec<NewRunEvent>,
    /// The new steps, and the version that they are based on; `None` if the plan does not change.
    write: Option<(i64, Vec<NewPlanStep>)>,
}

/// Returns what a call does to the plan.
///
/// # Errors
/// [`Error`] if the plan cannot be read.
async fn update(abide: &Abide, claimed: &ToolCall) -> Result<PlanUpdate, Error> {
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
            outcome: ToolOutcome::json(after.told_to_model()),
            events: after.new_events(&before, operation),
            write: (operation != Operation::Read).then(|| (before.version, after.rows())),
        },
        Err(why) => PlanUpdate {
            outcome: ToolOutcome::failed(Failure::Tool, why),
            events: Vec::new(),
            write: None,
        },
    })
}

/// Returns the session's current plan.
pub(crate) async fn current(abide: &Abide, session_id: &str) -> Result<Plan, Error> {
    let sql = "SELECT * FROM plan_versions WHERE session_id = :sid ORDER BY version DESC LIMIT 1";
    let last: Vec<PlanVersion> = abide.sql(sql).param("sid", session_id).fetch().await?;
    let Some(last) = last.into_iter().next() else { return Ok(Plan::default()) };
    let steps: Vec<NewPlanStep> = serde_json::from_str(last.steps.as_str()).unwrap_or_default();
    let todos = steps.into_iter().zip(1..).map(|(step, id)| PlanItem::from_step(id, step));
    Ok(Plan { version: last.version, todos: todos.collect(), seq: last.seq.0 })
}

impl PlanItem {
    fn from_step(id: i64, step: NewPlanStep) -> PlanItem {
        PlanItem {
            id,
            title: step.title,
            status: match step.status {
                PlanStepStatus::NotStarted => Status::NotStarted,
                PlanStepStatus::InProgress => Status::InProgress,
                PlanStepStatus::Completed => Status::Completed,
                PlanStepStatus::Blocked => Status::Blocked,
            },
            description: step.description,
            owner: step.owner,
            exit_criteria: step.exit_criteria,
            evidence: step.evidence,
        }
    }

    fn row(&self) -> NewPlanStep {
        NewPlanStep {
            title: self.title.clone(),
            status: match self.status {
                Status::NotStarted => PlanStepStatus::NotStarted,
                Status::InProgress => PlanStepStatus::InProgress,
                Status::Completed => PlanStepStatus::Completed,
                Status::Blocked => PlanStepStatus::Blocked,
            },
            description: self.description.clone(),
            owner: self.owner.clone(),
            exit_criteria: self.exit_criteria.clone(),
            evidence: self.evidence.clone(),
        }
    }
}

impl Plan {
    fn rows(&self) -> Vec<NewPlanStep> {
        self.todos.iter().map(PlanItem::row).collect()
    }

    /// Returns the share of completed steps with two decimals; 1 without steps.
    fn adherence(&self) -> f64 {
        let completed = self.count(Status::Completed);
        match self.todos.len() {
            0 => 1.0,
            all => (completed as f64 / all as f64 * 100.0).round() / 100.0,
        }
    }

    fn count(&self, status: Status) -> usize {
        self.todos.iter().filter(|it| it.status == status).count()
    }

    /// Returns the result of a call.
    fn told_to_model(&self) -> Value {
        json!({"version": self.version, "todos": self.todos, "adherence": self.adherence()})
    }

    /// Returns the part of the instructions with the plan; `None` if there is none.
    pub(crate) fn block(&self) -> Option<String> {
        if self.todos.is_empty() {
            return None;
        }
        let mut text = format!("## Current plan, version {}\n", self.version);
        for item in &self.todos {
            let status = json!(item.status);
            let status = status.as_str().unwrap_or_default();
            let _ = write!(text, "\n{}. [{status}] {}", item.id, item.title);
            let details = [
                ("", &item.description),
                ("owner: ", &item.owner),
                ("done when: ", &item.exit_criteria),
                ("evidence: ", &item.evidence),
            ];
            for (name, detail) in details {
                if let Some(detail) = detail {
                    let _ = write!(text, " – {name}{detail}");
                }
            }
        }
        Some(text)
    }

    /// Why the plan breaks a rule. The database checks the rule about the step in progress again.
    fn check(&self) -> Result<(), String> {
        let long = self
            .todos
            .iter()
            .find(|it| it.evidence.as_ref().is_some_and(|it| it.chars().count() > EVIDENCE_CHARS));
        if let Some(long) = long {
            let id = long.id;
            return Err(format!("the evidence of step {id} exceeds {EVIDENCE_CHARS} characters"));
        }
        let has_begun = self.count(Status::Completed) + self.count(Status::Blocked) > 0;
        match self.count(Status::InProgress) {
            0 if has_begun && self.count(Status::NotStarted) > 0 => Err(
                "exactly one step must be in-progress while steps are left: set the next step to in-progress in the \
                 same call"
                    .to_owned(),
            ),
            0 | 1 => Ok(()),
            _ => Err("only one step can be in-progress".to_owned()),
        }
    }

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
        let mut ids = BTreeSet::new();
        if let Some(twice) = wish.todos.iter().find(|it| !ids.insert(it.id)) {
            return Err(format!("two steps have the id {}", twice.id));
        }
        let todos = match wish.operation {
            Operation::Write => written(wish.todos)?,
            _ => self.updated(wish.todos)?,
        };
        let plan = Plan { version: self.version + 1, todos, ..Plan::default() };
        plan.check()?;
        Ok(plan)
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
            item.owner = patch.owner.or_else(|| item.owner.clone());
            item.exit_criteria = patch.exit_criteria.or_else(|| item.exit_criteria.clone());
            item.evidence = patch.evidence.or_else(|| item.evidence.clone());
        }
        Ok(todos)
    }

    /// Returns the events for a change: the whole plan, and the steps that are now completed.
    fn new_events(&self, before: &Plan, operation: Operation) -> Vec<NewRunEvent> {
        let titles: Vec<&str> = self.todos.iter().map(|it| it.title.as_str()).collect();
        let mut new_events = vec![run_event(
            RunEventKind::Planning,
            json!({
            "todos": titles, "items": self.todos, "version": self.version,
            "operation": operation, "adherence": self.adherence()}),
        )];
        for (at, item) in self.todos.iter().enumerate() {
            if is_newly_completed(item, before, operation) {
                new_events.push(run_event(
                    RunEventKind::StepComplete,
                    json!({
                    "step_number": at + 1, "total_steps": self.todos.len(),
                    "description": item.title}),
                ));
            }
        }
        new_events
    }
}

/// Returns `true` if a change of the plan `before` has completed a step.
fn is_newly_completed(item: &PlanItem, before: &Plan, operation: Operation) -> bool {
    let was_completed = before.todos.iter().any(|earlier| {
        // In a rewritten plan, the same number may belong to another step.
        let is_same = earlier.title == item.title || operation != Operation::Write;
        earlier.id == item.id && is_same && earlier.status == Status::Completed
    });
    item.status == Status::Completed && !was_completed
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
                owner: patch.owner,
                exit_criteria: patch.exit_criteria,
                evidence: patch.evidence,
            }),
            (None, _) => Err(format!("step {id} has no title")),
        }
    });
    whole.collect()
}

#[cfg(test)]
mod tests;
