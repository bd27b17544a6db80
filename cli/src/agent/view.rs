//! The output of `abide agent run`, for people and for programs.

use abide_agent::AgentEvent;
use abide_client::{Run, RunEventKind};
use serde_json::{Value, json};

use crate::cells::counted;
use crate::failure::Failure;
use crate::output::{say, say_json, say_part};
use crate::printable::Printable;
use crate::terminal::Terminal;

/// Shows the events of a run on stdout.
pub(super) struct View {
    terminal: Terminal,
    json: bool,
    /// Whether the last line of the answer is incomplete.
    open: bool,
    /// Whether the model has answered since the last tool call.
    said: bool,
}

impl View {
    pub(super) fn new(json: bool) -> View {
        View { terminal: Terminal::of_stdout(), json, open: false, said: false }
    }

    /// Shows an event, as one line of JSON or as text.
    pub(super) fn show(&mut self, event: &AgentEvent) -> Result<(), Failure> {
        if self.json {
            return say_json(&json!({"id": event.id, "number": event.number, "turn": event.turn,
                "event": event.kind.as_str(), "data": event.data}));
        }
        let data = &event.data;
        let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        match event.kind {
            RunEventKind::Token => {
                (self.open, self.said) = (true, true);
                say_part(text("content"))
            }
            RunEventKind::ToolCall => {
                self.said = false;
                self.aside(&format!("→ {} {}", text("name"), data["args"]))
            }
            RunEventKind::ToolResult => self.aside(&format!("← {}", first_line(&text("output")))),
            RunEventKind::Delegation => match (text("to_agent"), text("task")) {
                (to, _) if to.is_empty() => self.aside("⇠ handed back"),
                (to, task) if task.is_empty() => self.aside(&format!("⇢ {to}")),
                (to, task) => self.aside(&format!("⇢ {to}: {task}")),
            },
            RunEventKind::Status => match delegated(&data["child"]) {
                Some(line) => self.aside(&line),
                None => Ok(()),
            },
            RunEventKind::Restart => self.aside(&format!("… {}; retrying", text("error"))),
            RunEventKind::StepComplete => self.aside(&format!(
                "✓ {}/{} {}",
                data["step_number"],
                data["total_steps"],
                text("description")
            )),
            RunEventKind::Usage => match usage(data) {
                Some(line) => self.aside(&line),
                None => Ok(()),
            },
            // An external program may send only its final answer.
            RunEventKind::Done if !self.said => {
                self.line()?;
                match data["assistant_data"]["content"].as_str() {
                    Some(answer) if !answer.is_empty() => say(answer),
                    _ => Ok(()),
                }
            }
            RunEventKind::Done | RunEventKind::Error | RunEventKind::Interrupt => self.line(),
            _ => Ok(()),
        }
    }

    /// The total usage of a finished run, as far as it is known.
    pub(super) fn total(&mut self, run: &Run) -> Result<(), Failure> {
        let is_known = run.iterations > 1 && run.input_tokens + run.output_tokens > 0;
        if self.json || !is_known {
            return Ok(());
        }
        let more = match run.usage_missing {
            0 => String::new(),
            answers => {
                let answers = counted(answers.unsigned_abs(), "answer");
                format!(", without {answers} whose usage is unknown")
            }
        };
        let cost = run.cost_micros.map(|micros| dollars(micros as f64 / 1e6)).unwrap_or_default();
        let (input, output) = (run.input_tokens, run.output_tokens);
        self.aside(&format!("total {input} tokens in, {output} out{cost}{more}"))
    }

    /// A separate line that is not part of the answer.
    fn aside(&mut self, text: &str) -> Result<(), Failure> {
        self.line()?;
        say(self.terminal.dim(Printable::line(text)))
    }

    fn line(&mut self) -> Result<(), Failure> {
        match std::mem::take(&mut self.open) {
            true => say(""),
            false => Ok(()),
        }
    }
}

/// An event of a delegated run, if it is one that is shown: a tool call or its result.
fn delegated(child: &Value) -> Option<String> {
    let (agent, data) = (child["agent"].as_str()?, &child["data"]);
    let text = |name: &str| data[name].as_str().unwrap_or_default();
    match child["event"].as_str()? {
        "tool_call" => Some(format!("  {agent} → {} {}", text("name"), data["args"])),
        "tool_result" => Some(format!("  {agent} ← {}", first_line(text("output")))),
        "interrupt" => Some(format!("  {agent} waits for {}", text("reason"))),
        _ => None,
    }
}

/// The usage of an answer, if the provider reported it.
fn usage(data: &Value) -> Option<String> {
    let (input, output) = (data["input_tokens"].as_u64()?, data["output_tokens"].as_u64()?);
    let cost = data["estimated_cost"].as_f64().map(dollars).unwrap_or_default();
    Some(format!("{input} tokens in, {output} out{cost}"))
}

fn dollars(cost: f64) -> String {
    format!(", ${cost:.4}")
}

/// The first line of a text that is stored in full elsewhere.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let cut: String = line.chars().take(100).collect();
    if cut.len() < text.trim_end().len() { format!("{cut} …") } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_shown_where_it_is_known() {
        let known = json!({"input_tokens": 1200, "output_tokens": 30, "estimated_cost": 0.00123});
        assert_eq!(usage(&known).as_deref(), Some("1200 tokens in, 30 out, $0.0012"));
        let unknown = json!({"input_tokens": 1200, "output_tokens": 30, "estimated_cost": null});
        assert_eq!(usage(&unknown).as_deref(), Some("1200 tokens in, 30 out"));
        let nothing = json!({"input_tokens": null, "output_tokens": null, "estimated_cost": null});
        assert_eq!(usage(&nothing), None);
    }
}
