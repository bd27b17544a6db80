//! Plans: what an agent means to do, step by step, as it writes it down itself. The tool `manage_todo_list` keeps it,
//! and each change is told: the plan as it is now (`planning`), and each step that is done (`step_complete`).
//!
//! The plan of a session is the result of the last of these calls that succeeded: there is no other copy of it, so
//! whoever takes the run over has it.

use std::collections::BTreeSet;

use abide_client::{Error, ToolCall};
use abide_models::ToolSpec;
use abide_tools::{Effect, Failure, Parameters, ToolDeclaration, ToolOutcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::drive::Driver;

/// The tool's name.
pub(crate) const TOOL: &str = "manage_todo_list";

/// What the agent is told with its instructions.
pub(crate) const RULES: &str = "\
## Plan

Work that takes more than two steps has a plan: write it with manage_todo_list before you begin. Exactly one step is \
in-progress while there is work to do. Update the plan right after each step, and when it turns out to be wrong. Do \
not repeat the plan in what you say.";

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// How often it was changed.
    version: i64,
    /// Its steps, in order.
    todos: Vec<Item>,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Item {
    /// 1, 2, 3 … in order.
    id: i64,
    /// What is to be done.
    title: String,
    /// Where it stands.
    status: Status,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// Where a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Status {
    NotStarted,
    InProgress,
    Completed,
    Blocked,
}

/// A change of some of a step.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Patch {
    /// Which step. To write the plan anew: 1, 2, 3 … in order.
    id: i64,
    /// What is to be done.
    title: Option<String>,
    /// Where it stands.
    status: Option<Status>,
    /// More about it.
    description: Option<String>,
}

/// What the tool is called with.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wish {
    /// What to do: write puts a whole plan in the place of the old one, update changes the steps that it names, read
    /// changes nothing.
    operation: Operation,
    /// The steps: whole ones to write, and to update what changes of them.
    #[serde(default)]
    todos: Vec<Patch>,
    /// The version that this changes, if it must be that.
    expected_version: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Operation {
    Write,
    Update,
    Read,
}

/// As it is registered.
pub(crate) fn declaration() -> ToolDeclaration {
    let schema = schemars::schema_for!(Wish).to_value();
    let description = "Keeps the plan of the work: writes it, updates steps of it, or reads it.";
    let mut declaration = ToolDeclaration::new(TOOL, description, schema);
    // What it does is its own result, on record or not: nothing else has happened.
    declaration.effect = Effect::ReadOnly;
    declaration
}

/// The tool as the model is shown it; nothing where the agent makes no plans.
pub(crate) fn spec(driver: &Driver) -> Option<ToolSpec> {
    driver.definition.planning.then(|| {
        let ToolDeclaration { name, description, parameters, .. } = declaration();
        ToolSpec { name, description, parameters }
    })
}

/// The arguments, as the model wrote them, or what it is told instead.
pub(crate) fn admit(driver: &Driver, arguments: &str) -> Result<Value, String> {
    if !driver.definition.planning {
        return Err(format!("there is no tool {TOOL}: this agent makes no plans"));
    }
    let parameters = Parameters::of(&declaration().parameters)?;
    let fitted = parameters.fit_text(arguments).map_err(|misfit| format!("{TOOL}: {misfit}"))?;
    Ok(fitted.arguments)
}

/// What a call comes to, and what is told with it.
pub(crate) struct Planned {
    pub(crate) outcome: ToolOutcome,
    pub(crate) events: Vec<Value>,
}

/// Does what the call wishes.
///
/// # Errors
/// [`Error`] where the plan cannot be read.
pub(crate) async fn run(driver: &Driver, claimed: &ToolCall) -> Result<Planned, Error> {
    let before = current(driver).await?;
    let wish: Result<Wish, _> = serde_json::from_value(claimed.arguments.value());
    let after = match wish {
        Ok(wish) => {
            let operation = wish.operation;
            before.changed(wish).map(|after| (after, operation))
        }
        Err(why) => Err(format!("the arguments cannot be read: {why}")),
    };
    Ok(match after {
        Ok((after, operation)) => Planned {
            outcome: ToolOutcome::json(json!(after)),
            events: after.told(&before, operation),
        },
        Err(why) => {
            Planned { outcome: ToolOutcome::failed(Failure::Tool, why), events: Vec::new() }
        }
    })
}

/// The session's plan as it is.
async fn current(driver: &Driver) -> Result<Plan, Error> {
    let sql = "SELECT * FROM tool_calls WHERE session_id = :sid AND tool_name = :tool AND \
               status = 'succeeded' ORDER BY seq DESC LIMIT 1";
    let query = driver.abide.sql(sql).param("sid", &driver.run.session_id);
    let last: Vec<ToolCall> = query.param("tool", TOOL).fetch().await?;
    let result = last.first().and_then(|call| call.result.as_ref());
    let plan = result.and_then(|it| serde_json::from_value(it.value()["content"].clone()).ok());
    Ok(plan.unwrap_or_default())
}

impl Plan {
    fn changed(&self, wish: Wish) -> Result<Plan, String> {
        if wish.operation == Operation::Read {
            return Ok(self.clone());
        }
        if let Some(expected) = wish.expected_version.filter(|it| *it != self.version) {
            let now = self.version;
            return Err(format!(
                "the plan is at version {now}, not {expected}: read it, and change that"
            ));
        }
        let ids: BTreeSet<i64> = wish.todos.iter().map(|it| it.id).collect();
        if ids.len() < wish.todos.len() {
            return Err("an id comes twice".to_owned());
        }
        let todos = match wish.operation {
            Operation::Write => written(wish.todos)?,
            _ => self.updated(wish.todos)?,
        };
        if todos.iter().filter(|it| it.status == Status::InProgress).count() > 1 {
            return Err("at most one step is in-progress at a time".to_owned());
        }
        Ok(Plan { version: self.version + 1, todos })
    }

    fn updated(&self, patches: Vec<Patch>) -> Result<Vec<Item>, String> {
        if self.todos.is_empty() {
            return Err("there is no plan yet: write one".to_owned());
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

    /// What is told of a plan that was another before: the whole of it, and the steps that are done now.
    fn told(&self, before: &Plan, operation: Operation) -> Vec<Value> {
        let was_done = |item: &Item| {
            let mut done = before.todos.iter().filter(|it| it.status == Status::Completed);
            // In a plan that is written anew, a number may be another step's.
            let same = |it: &Item| it.title == item.title || operation != Operation::Write;
            done.any(|it| it.id == item.id && same(it))
        };
        let titles: Vec<&str> = self.todos.iter().map(|it| it.title.as_str()).collect();
        let mut told = vec![json!({"kind": "planning", "data": {
            "todos": titles, "items": self.todos, "version": self.version}})];
        for (at, item) in self.todos.iter().enumerate() {
            if item.status == Status::Completed && !was_done(item) {
                told.push(json!({"kind": "step_complete", "data": {
                    "step_number": at + 1, "total_steps": self.todos.len(),
                    "description": item.title}}));
            }
        }
        told
    }
}

fn written(patches: Vec<Patch>) -> Result<Vec<Item>, String> {
    let whole = patches.into_iter().zip(1..).map(|(patch, id)| {
        if patch.id != id {
            return Err(format!("the ids are 1, 2, 3 … in order, and {} is not {id}", patch.id));
        }
        match (patch.title, patch.status) {
            (Some(title), status) => Ok(Item {
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
