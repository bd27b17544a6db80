//! The output of `abide agent run`, for people and for programs. People see an answer once, even if it started again:
//! text that equals the text on the screen is not repeated.

use std::ops::Range;

use abide_agent::AgentEvent;
use abide_client::rows::{Run, RunEventKind};
use serde_json::{Value, json};

use super::markdown::Markdown;
use crate::cells::pluralize;
use crate::failure::Failure;
use crate::output::{print_json, print_line, print_part};
use crate::printable::Printable;
use crate::terminal::Terminal;

/// Shows the events of a run on stdout.
pub(super) struct View {
    terminal: Terminal,
    json: bool,
    /// Styles answers, in a conversation on a terminal.
    markdown: Option<Markdown>,
    /// Whether the last line of the answer is incomplete.
    open: bool,
    /// The text of the answer in progress.
    answer: String,
    /// The text since the last tool call.
    since_call: String,
    /// The text of an answer that was cut off, and why, until the next answer differs from it.
    cut_off: Option<(String, String)>,
    /// The numbers of stored events that are known to be void.
    void: Vec<Range<i64>>,
    /// What a program has reported last of its usage.
    program_usage: Option<String>,
}

impl View {
    pub(super) fn new(json: bool) -> View {
        View {
            terminal: Terminal::from_stdout(),
            json,
            markdown: None,
            open: false,
            answer: String::new(),
            since_call: String::new(),
            cut_off: None,
            void: Vec::new(),
            program_usage: None,
        }
    }

    /// The view of a conversation: on a terminal, answers are styled.
    pub(super) fn for_chat(json: bool) -> View {
        let view = View::new(json);
        View { markdown: view.terminal.styled.then(Markdown::default), ..view }
    }

    /// Ends the line, so that a message about the run can follow.
    pub(super) fn pause(&mut self) -> Result<(), Failure> {
        if self.json { Ok(()) } else { self.end_line() }
    }

    /// Omits the pieces of answers that were cut off, which these restarts among the stored events made void: the
    /// number of each restart, and the number of the first void event.
    pub(super) fn omit_void_tokens(&mut self, restarts: &[(i64, i64)]) {
        self.void = restarts.iter().map(|(number, since)| *since..*number).collect();
    }

    /// Shows an event, as one line of JSON or as text.
    pub(super) fn show(&mut self, event: &AgentEvent) -> Result<(), Failure> {
        if self.json {
            return print_json(&json!({"id": event.id, "number": event.number, "turn": event.turn,
                "event": event.kind.as_str(), "data": event.data}));
        }
        let data = &event.data;
        let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        if !is_within_answer(event.kind) {
            self.end_answer()?;
        }
        match event.kind {
            RunEventKind::Token if self.void.iter().any(|void| void.contains(&event.number)) => {
                Ok(())
            }
            RunEventKind::Token => self.show_token(&text("content")),
            RunEventKind::ToolCall => {
                self.since_call.clear();
                self.print_aside(&format!("→ {} {}", text("name"), data["args"]))
            }
            RunEventKind::ToolResult => self.show_result(data),
            RunEventKind::Delegation => match (text("to_agent"), text("task")) {
                (to, _) if to.is_empty() => self.print_aside("⇠ handed back"),
                (to, task) if task.is_empty() => self.print_aside(&format!("⇢ {to}")),
                (to, task) => self.print_aside(&format!("⇢ {to}: {task}")),
            },
            RunEventKind::Status => match status_line(data) {
                Some(line) => self.print_aside(&line),
                None => Ok(()),
            },
            RunEventKind::Restart => self.show_restart(
                format!("… {}; retrying", text("error")),
                text("code") != "runtime_restarted",
            ),
            RunEventKind::StepComplete => self.print_aside(&format!(
                "✓ {}/{} {}",
                data["step_number"],
                data["total_steps"],
                text("description")
            )),
            // A program reports what it has used until then, and at last the whole.
            RunEventKind::Usage if data["provider"] == "cli" => {
                self.program_usage = format_usage(data);
                Ok(())
            }
            RunEventKind::Usage => match format_usage(data) {
                Some(line) => self.print_aside(&line),
                // The next answer begins a new line, even if it corrects this one.
                None => self.end_line(),
            },
            RunEventKind::Done => {
                // An external program may send only its final answer, or one that differs from what it has written before.
                let answer = data["assistant_data"]["content"].as_str().unwrap_or_default();
                if !ends_with(&self.since_call, answer) {
                    self.end_line()?;
                    self.open = true;
                    self.write(answer)?;
                }
                self.end_turn()
            }
            RunEventKind::Error | RunEventKind::Interrupt => self.end_turn(),
            _ => Ok(()),
        }
    }

    /// Shows a piece of the answer, as far as it is not on the screen.
    fn show_token(&mut self, piece: &str) -> Result<(), Failure> {
        self.open = true;
        self.since_call.push_str(piece);
        let differs = self.cut_off.as_ref().map(|(_, why)| why.clone());
        let Some(text) = self.new_text(piece) else { return Ok(()) };
        if let Some(why) = differs.filter(|_| text == self.answer) {
            self.print_aside(&why)?;
            self.open = true;
        }
        self.write(&text)
    }

    /// Writes a part of the answer.
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.markdown {
            Some(markdown) => print_part(markdown.push(text)),
            None => print_part(text),
        }
    }

    /// The text to write for a piece of the answer: nothing while it repeats the text of an answer that was cut off, then
    /// what follows that text, or the whole answer if it differs.
    fn new_text(&mut self, piece: &str) -> Option<String> {
        self.answer.push_str(piece);
        let Some((shown, why)) = self.cut_off.take() else { return Some(piece.to_owned()) };
        match self.answer.strip_prefix(shown.as_str()) {
            Some(rest) => Some(rest.to_owned()).filter(|rest| !rest.is_empty()),
            None if shown.starts_with(&self.answer) => {
                self.cut_off = Some((shown, why));
                None
            }
            None => Some(self.answer.clone()),
        }
    }

    /// The answer starts again. If no text of it is on the screen, only an error of the model is shown.
    fn show_restart(&mut self, why: String, is_error: bool) -> Result<(), Failure> {
        if !self.note_cut_off(why.clone()) && is_error { self.print_aside(&why) } else { Ok(()) }
    }

    /// Notes that the answer was cut off. Returns whether text of it is on the screen.
    fn note_cut_off(&mut self, why: String) -> bool {
        let answer = std::mem::take(&mut self.answer);
        let shown = self.cut_off.take().map_or(answer, |(shown, _)| shown);
        self.cut_off = (!shown.is_empty()).then_some((shown, why));
        self.cut_off.is_some()
    }

    /// The answer is complete. If it is only the beginning of the text on the screen, it is shown as a whole.
    fn end_answer(&mut self) -> Result<(), Failure> {
        let answer = std::mem::take(&mut self.answer);
        match self.cut_off.take() {
            Some((shown, why)) if !answer.is_empty() && shown != answer => {
                self.print_aside(&why)?;
                self.open = true;
                self.write(&answer)
            }
            _ => Ok(()),
        }
    }

    /// The total usage of a finished run, as far as it is known.
    pub(super) fn show_total(&mut self, run: &Run) -> Result<(), Failure> {
        let is_known = run.iterations > 1 && run.input_tokens + run.output_tokens > 0;
        if self.json || !is_known {
            return Ok(());
        }
        let more = match run.usage_missing {
            0 => String::new(),
            answers => {
                let answers = pluralize(answers.unsigned_abs(), "answer");
                format!(", without {answers} whose usage is unknown")
            }
        };
        let cost =
            run.cost_micros.map(|micros| format_cost(micros as f64 / 1e6)).unwrap_or_default();
        let input = run.input_tokens;
        let output = run.output_tokens;
        self.print_aside(&format!("total {input} tokens in, {output} out{cost}{more}"))
    }

    /// Shows the result of a call.
    fn show_result(&mut self, data: &Value) -> Result<(), Failure> {
        let result = result_line(data["output"].as_str().unwrap_or_default(), data);
        self.end_line()?;
        print_line(result.render(self.terminal))
    }

    /// Ends the output of a turn.
    fn end_turn(&mut self) -> Result<(), Failure> {
        self.end_line()?;
        match self.program_usage.take() {
            Some(line) => self.print_aside(&line),
            None => Ok(()),
        }
    }

    /// A separate line that is not part of the answer.
    fn print_aside(&mut self, text: &str) -> Result<(), Failure> {
        self.end_line()?;
        print_line(self.terminal.dim(Printable::line(text)))
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.open) {
            return Ok(());
        }
        match &mut self.markdown {
            Some(markdown) => print_line(markdown.end()),
            None => print_line(""),
        }
    }
}

/// The line for a status that a person should see: an event of a delegated run, or a change of what the model reads.
fn status_line(data: &Value) -> Option<String> {
    match data["status"].as_str() {
        Some("summarization") => Some(format!(
            "≡ summary {} of older messages, results archived: {}",
            data["number"], data["archived"]
        )),
        Some("results_cut") => Some(format!(
            "≡ the conversation exceeds the window, oldest results cut: {}",
            data["results"]
        )),
        _ => delegated_status_line(&data["child"]),
    }
}

/// An event of a delegated run, if it is one that is shown: a tool call or its result.
fn delegated_status_line(child: &Value) -> Option<String> {
    let agent = child["agent"].as_str()?;
    let data = &child["data"];
    match child["event"].as_str()? {
        "tool_call" => {
            let name = data["name"].as_str().unwrap_or_default();
            Some(format!("  {agent} → {name} {}", data["args"]))
        }
        "tool_result" => {
            let output = data["output"].as_str().unwrap_or_default();
            Some(format!("  {agent} {}", result_line(output, data).text))
        }
        "interrupt" => {
            let reason = data["reason"].as_str().unwrap_or_default();
            Some(format!("  {agent} waits for {reason}"))
        }
        _ => None,
    }
}

/// Whether a text ends with an answer. Spaces do not count: programs join the parts of an answer in other ways.
fn ends_with(text: &str, answer: &str) -> bool {
    let mut text = text.chars().rev().filter(|c| !c.is_whitespace());
    answer.chars().rev().filter(|c| !c.is_whitespace()).all(|c| text.next() == Some(c))
}

/// Whether an event can be in the middle of an answer.
fn is_within_answer(kind: RunEventKind) -> bool {
    use RunEventKind::{Line, Reasoning, Restart, Status, Token};
    matches!(kind, Token | Reasoning | Restart | Status | Line)
}

/// The usage of an answer, if the provider reported it.
fn format_usage(data: &Value) -> Option<String> {
    let input = data["input_tokens"].as_u64()?;
    let output = data["output_tokens"].as_u64()?;
    let cost = data["estimated_cost"].as_f64().map(format_cost).unwrap_or_default();
    Some(format!("{input} tokens in, {output} out{cost}"))
}

fn format_cost(cost: f64) -> String {
    format!(", ${cost:.4}")
}

/// The result of a call in one line. A call that a person settled has none.
pub(super) fn output_line(text: &str) -> String {
    match text.trim() {
        "" | "null" => "(no output)".to_owned(),
        _ => first_line(text),
    }
}

/// The result of a call in one line, with what became of a command that failed.
pub(super) struct ResultLine {
    text: String,
    is_failed: bool,
}

/// Returns the line for the text of a result, and its data: `status`, `exit_code`, and the arguments that an approver has changed.
pub(super) fn result_line(text: &str, data: &Value) -> ResultLine {
    let exit_code = data["exit_code"].as_i64().unwrap_or(0);
    // An accepted exit code is no failure. A result of another driver may have no status.
    let is_failed = match data["status"].as_str() {
        Some(status) => status != "succeeded",
        None => exit_code != 0,
    };
    // The last line of `execute` says it; the output before it looks like that of a command that succeeded.
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    let is_note = last.starts_with("exit code ") || last.starts_with("the command was stopped");
    let before = text.trim_end().strip_suffix(last).map(str::trim_end).unwrap_or_default();
    let shown = if exit_code != 0 && is_note && !before.is_empty() {
        format!("{last}: {}", excerpt_failure(before))
    } else if is_failed {
        excerpt_failure(text)
    } else {
        output_line(text)
    };
    let edited = data.get("approved_args").or(data.get("approved_arguments"));
    let with = edited.map(|arguments| format!("  (ran with {arguments})")).unwrap_or_default();
    ResultLine { text: format!("← {shown}{with}"), is_failed }
}

impl ResultLine {
    /// On a terminal: red if the call failed.
    pub(super) fn render(self, terminal: Terminal) -> Printable {
        let line = Printable::line(&self.text);
        if self.is_failed { terminal.with("31", line) } else { terminal.dim(line) }
    }
}

/// Characters of the output of a call that has failed.
const FAILURE_CHARS: usize = 400;

/// The output of a call that has failed, in one line: its reason is often not in the first line. Of a long one, the end, too.
fn excerpt_failure(text: &str) -> String {
    let lines = text.trim().lines().map(str::trim_end).filter(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ⏎ ");
    let chars: Vec<char> = line.chars().collect();
    if chars.len() <= FAILURE_CHARS {
        return if chars.is_empty() { output_line(text) } else { line };
    }
    let head: String = chars[..FAILURE_CHARS / 4].iter().collect();
    let tail: String = chars[chars.len() - FAILURE_CHARS * 3 / 4..].iter().collect();
    format!("{head} … {tail}")
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

    /// The text that is written for these pieces of an answer; `None` is a restart.
    fn replay_pieces(pieces: &[Option<&str>]) -> (Vec<String>, bool) {
        let mut view = View::new(false);
        let mut written = Vec::new();
        for piece in pieces {
            match piece {
                Some(piece) => written.extend(view.new_text(piece)),
                None => drop(view.note_cut_off("why".to_owned())),
            }
        }
        (written, view.cut_off.is_some())
    }

    /// Regression: an answer that started again was shown twice.
    #[test]
    fn text_that_is_on_the_screen_is_not_repeated() {
        let texts = |pieces: &[Option<&str>]| replay_pieces(pieces).0.concat();
        assert_eq!(texts(&[Some("Let "), Some("me "), None, Some("Let me look.")]), "Let me look.");
        assert_eq!(
            texts(&[Some("Let me"), None, Some("L"), None, Some("Let "), Some("me look.")]),
            "Let me look."
        );
        assert_eq!(
            texts(&[Some("Let me"), None, Some("Let"), Some("'s see.")]),
            "Let meLet's see."
        );
        assert_eq!(
            replay_pieces(&[Some("Let me"), None, Some("Let")]),
            (vec!["Let me".to_owned()], true)
        );
    }

    /// A command that failed looked like one that succeeded.
    #[test]
    fn a_failed_call_is_shown_as_one() {
        let line = |text: &str, code| result_line(text, &json!({"exit_code": code})).text;
        assert_eq!(line("failing\nexit code 3", 3), "← exit code 3: failing");
        assert_eq!(line("a\nb\nexit code 3", 3), "← exit code 3: a ⏎ b");
        let text = "look failed with exit code 3; stderr:\nno such order\n\nstdout:\n";
        assert_eq!(
            line(text, 3),
            "← look failed with exit code 3; stderr: ⏎ no such order ⏎ stdout:"
        );
        assert!(line(&"x\n".repeat(1_000), 1).chars().count() < 450);
        assert_eq!(line("exit code 1", 1), "← exit code 1");
        assert_eq!(
            line("a\nthe command was stopped after 2 s", 137),
            "← the command was stopped after 2 s: a"
        );
        assert_eq!(line("unknown tool x", 1), "← unknown tool x");
        assert_eq!(line("prints\nexit code 3", 0), "← prints …");
        let terminal = Terminal { size: None, styled: true };
        let shown = result_line("no\nexit code 1", &json!({"exit_code": 1})).render(terminal);
        assert_eq!(shown.as_str(), "\u{1b}[31m← exit code 1: no\u{1b}[0m");
    }

    /// The exit code of a program whose tool accepts it was shown as a failure.
    #[test]
    fn the_status_decides_and_not_the_exit_code() {
        for (status, is_failed) in [
            ("succeeded", false),
            ("failed", true),
            ("rejected", true),
            ("skipped", true),
            ("cancelled", true),
        ] {
            let data = json!({"status": status, "exit_code": 1});
            assert_eq!(result_line("no match", &data).is_failed, is_failed, "{status}");
        }
    }

    #[test]
    fn an_answer_is_on_the_screen_if_the_text_ends_with_it() {
        for (text, answer, expected) in [
            ("Let me look. It is 7.", "It is 7.\n", true),
            ("One.Two.", "One.\n\nTwo.", true),
            ("Let me look.", "It is 7.", false),
            ("7.", "It is 7.", false),
            ("", "It is 7.", false),
            ("Let me look.", "", true),
        ] {
            assert_eq!(ends_with(text, answer), expected, "{text:?} {answer:?}");
        }
    }

    #[test]
    fn a_cost_is_shown_where_it_is_known() {
        let known = json!({"input_tokens": 1200, "output_tokens": 30, "estimated_cost": 0.00123});
        assert_eq!(format_usage(&known).as_deref(), Some("1200 tokens in, 30 out, $0.0012"));
        let unknown = json!({"input_tokens": 1200, "output_tokens": 30, "estimated_cost": null});
        assert_eq!(format_usage(&unknown).as_deref(), Some("1200 tokens in, 30 out"));
        let nothing = json!({"input_tokens": null, "output_tokens": null, "estimated_cost": null});
        assert_eq!(format_usage(&nothing), None);
    }
}
