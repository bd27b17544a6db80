//! Collects the output lines of a command-line program: the events to record, in order, and the requests to handle.

use abide_client::arguments::{ModelUsage, NewRunEvent};
use abide_client::rows::RunEventKind;
use abide_programs::{Failure, Line, ProgramEvent, ProgramResult, Usage};
use serde_json::{Value, json};

use crate::context::entry::CallStatus;
use crate::program::calls::ProgramCalls;
use crate::program::plan::ProgramPlan;
use crate::run::lease::run_event;

/// Output of a program that is not handled yet.
#[derive(Default)]
pub(crate) struct ProgramOutput {
    /// Events to record.
    pub(crate) new_events: Vec<NewRunEvent>,
    /// Permission requests, without those that are withdrawn already.
    pub(crate) approval_requests: Vec<ApprovalRequest>,
    /// The ids of withdrawn requests. They were recorded before those in `asked`.
    pub(crate) withdrawn: Vec<String>,
    /// The end: the final answer, or the failure.
    pub(crate) answer: Option<Result<Box<ProgramResult>, Failure>>,
    /// Whether the program has reported its session since the last look.
    pub(crate) has_opened: bool,
    /// The answer of a program that failed.
    pub(crate) failed: Option<Box<ProgramResult>>,
    /// Number of calls of the program's own tools that are not recorded yet.
    tool_calls: i64,
    /// The calls of the program's own tools.
    pub(crate) calls: ProgramCalls,
    /// The usage that the program reported last.
    usage: Option<Usage>,
    /// The text since the last call of a tool.
    text: String,
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
    /// Returns `true` if there are events to record or requests to answer.
    pub(crate) fn is_pending(&self) -> bool {
        !(self.new_events.is_empty()
            && self.approval_requests.is_empty()
            && self.withdrawn.is_empty())
    }

    /// Returns the calls since the last time, as usage to record.
    pub(crate) fn new_calls(&mut self) -> Option<ModelUsage> {
        let tool_calls = std::mem::take(&mut self.tool_calls);
        (tool_calls > 0).then(|| ModelUsage { tool_calls, ..ModelUsage::default() })
    }

    /// Returns the answer that a failed program reported, completed by its last text and its last usage.
    pub(crate) fn last_answer(&mut self) -> ProgramResult {
        let mut answer = self.failed.take().map_or_else(ProgramResult::default, |answer| *answer);
        if answer.text.is_empty() {
            answer.text = std::mem::take(&mut self.text);
        }
        answer.usage = answer.usage.or_else(|| self.usage.take());
        answer
    }

    /// Adds a line of an agent's program.
    pub(crate) fn add_line(&mut self, agent: &str, line: Line) {
        if let Some(raw) = line.raw {
            self.push_event(RunEventKind::Line, json!({"raw": raw}));
        }
        for event in line.events {
            self.add_event(agent, event);
        }
    }

    fn add_event(&mut self, agent: &str, event: ProgramEvent) {
        match event {
            ProgramEvent::AssistantDelta { text, parent, .. } => {
                if parent.is_none() {
                    self.text.push_str(&text);
                }
                self.push_event(RunEventKind::Token, json!({"content": text}));
            }
            ProgramEvent::ThinkingDelta { text, .. } => {
                self.push_event(RunEventKind::Reasoning, json!({"content": text}));
            }
            ProgramEvent::ToolCallStarted { id, name, arguments, .. } => {
                self.tool_calls += i64::from(self.calls.begin(&id, &name));
                self.text.clear();
                let plan = self.program_plan.read_call(&name, &arguments);
                self.push_event(
                    RunEventKind::ToolCall,
                    json!({"name": name, "args": arguments, "id": id}),
                );
                self.new_events.extend(plan);
            }
            ProgramEvent::ToolCallFinished { id, output, is_error, exit_code, .. } => {
                let exit_code = exit_code.unwrap_or_else(|| i64::from(is_error));
                let has_succeeded = !is_error && exit_code == 0;
                let status = if has_succeeded { CallStatus::Succeeded } else { CallStatus::Failed };
                self.tool_calls += i64::from(self.calls.end(&id, has_succeeded));
                let output = match output {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                let result = json!({"tool_call_id": id, "output": output, "status": status,
                    "exit_code": exit_code});
                self.push_event(RunEventKind::ToolResult, result);
            }
            ProgramEvent::ApprovalRequested { request_id, tool, input, .. } => {
                self.approval_requests.push(ApprovalRequest { request_id, tool, input });
            }
            ProgramEvent::ApprovalWithdrawn { request_id } => {
                let recorded = self.approval_requests.len();
                self.approval_requests.retain(|request| request.request_id != request_id);
                if self.approval_requests.len() == recorded {
                    self.withdrawn.push(request_id);
                }
            }
            ProgramEvent::SessionId { id } => {
                self.has_opened = true;
                self.push_event(
                    RunEventKind::Status,
                    json!({"status": "thinking", "program_session": id}),
                );
            }
            // Programs that report their cost do so with the answer.
            ProgramEvent::Usage(usage) => {
                self.record_usage(agent, json!(usage), None);
                self.usage = Some(usage);
            }
            ProgramEvent::Final(last) => {
                self.record_cost(agent, &last);
                self.answer = Some(Ok(Box::new(last)));
            }
            ProgramEvent::Error(failure) => {
                if let Some(answer) = &failure.answer {
                    self.record_cost(agent, answer);
                }
                self.answer = Some(Err(failure));
            }
            other => {
                if let ProgramEvent::Status { data } = &other {
                    let plan = self.program_plan.read_status(data);
                    self.new_events.extend(plan);
                }
                self.push_event(
                    RunEventKind::Status,
                    json!({"status": "thinking", "program": other}),
                );
            }
        }
    }

    fn record_cost(&mut self, agent: &str, answer: &ProgramResult) {
        if let (Some(usage), Some(cost)) = (&answer.usage, answer.cost_usd) {
            self.record_usage(agent, json!(usage), Some(cost));
        }
    }

    fn record_usage(&mut self, agent: &str, mut usage: Value, cost: Option<f64>) {
        usage["provider"] = json!("cli");
        usage["model"] = json!(agent);
        usage["estimated_cost"] = json!(cost);
        self.push_event(RunEventKind::Usage, usage);
    }

    fn push_event(&mut self, kind: RunEventKind, data: Value) {
        self.new_events.push(run_event(kind, data));
    }
}
