//! Plans of command-line programs, as far as they report them: Claude Code with its tool `TodoWrite`, Codex as items of
//! its output. They are published like the plans of our own agents.

use abide_client::arguments::NewRunEvent;
use abide_client::rows::RunEventKind;
use serde_json::{Value, json};

use crate::run::lease::run_event;

/// The last plan of a program.
#[derive(Debug, Default)]
pub(crate) struct ProgramPlan {
    version: i64,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
struct Step {
    title: String,
    /// The status, in the program's own term.
    status: String,
}

/// The term that all programs use for a completed step.
const COMPLETED: &str = "completed";

impl ProgramPlan {
    /// Returns the events for a call of the program's planning tool.
    pub(crate) fn read_call(&mut self, tool: &str, arguments: &Value) -> Vec<NewRunEvent> {
        let todos = match tool {
            "TodoWrite" => arguments["todos"].as_array(),
            _ => None,
        };
        todos.map_or_else(Vec::new, |todos| {
            self.update(
                todos
                    .iter()
                    .filter_map(|todo| Step::new(&todo["content"], todo["status"].as_str()))
                    .collect(),
            )
        })
    }

    /// Returns the events for an output line with a plan.
    pub(crate) fn read_status(&mut self, line: &Value) -> Vec<NewRunEvent> {
        // The Agent Client Protocol.
        if line["sessionUpdate"] == "plan" {
            let entries = line["entries"].as_array().into_iter().flatten();
            return self.update(
                entries.filter_map(|it| Step::new(&it["content"], it["status"].as_str())).collect(),
            );
        }
        // Codex's app server.
        if line["method"] == "turn/plan/updated" {
            let steps = line["params"]["plan"].as_array().into_iter().flatten();
            return self.update(steps.filter_map(read_server_step).collect());
        }
        let item = &line["item"];
        let items = match item["type"].as_str() {
            Some("todo_list") => item["items"].as_array(),
            _ => None,
        };
        items.map_or_else(Vec::new, |items| {
            self.update(items.iter().filter_map(read_list_step).collect())
        })
    }

    fn update(&mut self, steps: Vec<Step>) -> Vec<NewRunEvent> {
        if steps == self.steps {
            return Vec::new();
        }
        self.version += 1;
        let before = std::mem::replace(&mut self.steps, steps);
        let titles: Vec<&str> = self.steps.iter().map(|it| it.title.as_str()).collect();
        let items: Vec<Value> = self
            .steps
            .iter()
            .enumerate()
            .map(|(at, it)| json!({"id": at + 1, "title": it.title, "status": it.status}))
            .collect();
        let mut events = vec![run_event(
            RunEventKind::Planning,
            json!({
            "todos": titles, "items": items, "version": self.version}),
        )];
        for (at, step) in self.steps.iter().enumerate() {
            if step.status == COMPLETED && before.get(at) != Some(step) {
                events.push(run_event(
                    RunEventKind::StepComplete,
                    json!({
                    "step_number": at + 1, "total_steps": self.steps.len(),
                    "description": step.title}),
                ));
            }
        }
        events
    }
}

/// Reads a step of Codex's app server.
fn read_server_step(step: &Value) -> Option<Step> {
    let status = match step["status"].as_str() {
        Some("inProgress") => Some("in_progress"),
        other => other,
    };
    Step::new(&step["step"], status)
}

/// Reads a step of Codex's to-do list.
fn read_list_step(item: &Value) -> Option<Step> {
    let status = if item["completed"] == true { COMPLETED } else { "not-started" };
    Step::new(&item["text"], Some(status))
}

impl Step {
    fn new(title: &Value, status: Option<&str>) -> Option<Step> {
        Some(Step { title: title.as_str()?.to_owned(), status: status?.to_owned() })
    }
}

#[cfg(test)]
mod tests;
