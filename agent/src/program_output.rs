//! Collects the output lines of a foreign program: the events to record, in order, and the requests to handle.

use abide_client::{NewRunEvent, RunEventKind};
use abide_programs::{Answer, Line, ProgramEvent};
use serde_json::{Value, json};

use crate::program_plan::ProgramPlan;
use crate::run_lease::run_event;
use crate::step::Failure;

/// Output of a program that is not handled yet.
#[derive(Default)]
pub(crate) struct ProgramOutput {
    /// Events to record.
    pub(crate) told: Vec<NewRunEvent>,
    /// Permission requests.
    pub(crate) asked: Vec<ApprovalRequest>,
    /// The ids of withdrawn requests.
    pub(crate) withdrawn: Vec<String>,
    /// The final answer.
    pub(crate) answer: Option<Result<Box<Answer>, Failure>>,
    /// Number of tools that the program has run so far.
    pub(crate) tool_calls: i64,
    program_plan: ProgramPlan,
}

/// A permission request for one of the program's own tools.
#[derive(Clone, Debug)]
pub(crate) struct ApprovalRequest {
    pub(crate) request_id: String,
    pub(crate) tool: String,
    pub(crate) input: Value,
}

impl ProgramOutput {
    /// Whether there are events to record or requests to answer.
    pub(crate) fn is_pending(&self) -> bool {
        !(self.told.is_empty() && self.asked.is_empty() && self.withdrawn.is_empty())
    }

    /// Adds a line of an agent's program.
    pub(crate) fn line(&mut self, agent: &str, line: Line) {
        if let Some(raw) = line.raw {
            self.tell(RunEventKind::Line, json!({"raw": raw}));
        }
        for event in line.events {
            self.event(agent, event);
        }
    }

    fn event(&mut self, agent: &str, event: ProgramEvent) {
        match event {
            ProgramEvent::AssistantDelta { text, .. } => {
                self.tell(RunEventKind::Token, json!({"content": text}));
            }
            ProgramEvent::ThinkingDelta { text, .. } => {
                self.tell(RunEventKind::Reasoning, json!({"content": text}));
            }
            ProgramEvent::ToolCallStarted { id, name, arguments, .. } => {
                self.tool_calls += 1;
                let plan = self.program_plan.of_call(&name, &arguments);
                self.tell(
                    RunEventKind::ToolCall,
                    json!({"name": name, "args": arguments, "id": id}),
                );
                self.told.extend(plan);
            }
            ProgramEvent::ToolCallFinished { id, output, is_error, exit_code, .. } => {
                let output = match output {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                let exit_code = exit_code.unwrap_or_else(|| i64::from(is_error));
                let result = json!({"tool_call_id": id, "output": output, "exit_code": exit_code});
                self.tell(RunEventKind::ToolResult, result);
            }
            ProgramEvent::ApprovalRequested { request_id, tool, input, .. } => {
                self.asked.push(ApprovalRequest { request_id, tool, input });
            }
            ProgramEvent::ApprovalWithdrawn { request_id } => self.withdrawn.push(request_id),
            ProgramEvent::SessionId { id } => {
                self.tell(
                    RunEventKind::Status,
                    json!({"status": "thinking", "program_session": id}),
                );
            }
            // Programs that report their cost do so with the answer.
            ProgramEvent::Usage(usage) => self.used(agent, json!(usage), None),
            ProgramEvent::Final(last) => {
                if let (Some(usage), Some(cost)) = (&last.usage, last.cost_usd) {
                    self.used(agent, json!(usage), Some(cost));
                }
                self.answer = Some(Ok(Box::new(last)));
            }
            ProgramEvent::Error(failure) => {
                self.answer = Some(Err(Failure::new(failure.kind.code(), failure.message)));
            }
            other => {
                if let ProgramEvent::Status { data } = &other {
                    let plan = self.program_plan.of_status(data);
                    self.told.extend(plan);
                }
                self.tell(RunEventKind::Status, json!({"status": "thinking", "program": other}));
            }
        }
    }

    fn used(&mut self, agent: &str, mut usage: Value, cost: Option<f64>) {
        usage["provider"] = json!("cli");
        usage["model"] = json!(agent);
        usage["estimated_cost"] = json!(cost);
        self.tell(RunEventKind::Usage, usage);
    }

    fn tell(&mut self, kind: RunEventKind, data: Value) {
        self.told.push(run_event(kind, data));
    }
}
