//! Decisions on calls of a run that wait: asked for on a terminal, made by an option, or left to the command that a
//! hint names.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use abide_agent::AgentEvent;
use abide_client::arguments::{DecideApproval, SettleToolCall};
use abide_client::{Abide, Decision, Error, INPUT_TOOL, Outcome, RunEventKind};
use abide_schema::{Code, Refusal};
use serde_json::{Value, json};

use super::chat::{Input, Typed};
use super::hint::{HintContext, asked};
use crate::failure::Failure;
use crate::output::note;
use crate::printable::Printable;

/// How a command decides on calls that wait.
pub(super) enum Decider<'a> {
    /// Each call is approved.
    All,
    /// A question on stderr, answered on stdin; without a terminal, nothing.
    Stdin,
    /// A question in a conversation; without a terminal, nothing.
    Conversation(&'a mut Input),
}

/// Whether all calls were decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// Each call has a decision.
    All,
    /// Ctrl-C was pressed at a question.
    Interrupted,
}

/// The answer to a question.
enum Answer {
    Text(String),
    Interrupted,
    /// There is no terminal, or its input has ended.
    None,
}

impl Decider<'_> {
    /// That of a command with the option `--yes`.
    pub(super) fn of_option(yes: bool) -> Decider<'static> {
        if yes { Decider::All } else { Decider::Stdin }
    }

    async fn ask(&mut self, question: &str) -> Result<Answer, Failure> {
        match self {
            Decider::Stdin if io::stdin().is_terminal() => {
                Ok(Answer::Text(ask(question.to_owned()).await?))
            }
            Decider::Conversation(input) if input.is_terminal() => {
                Ok(match input.answer(question).await? {
                    Typed::Line(text) => Answer::Text(text),
                    Typed::Interrupt => Answer::Interrupted,
                    Typed::End => Answer::None,
                })
            }
            _ => Ok(Answer::None),
        }
    }

    /// Whether a call is approved; `Err` without a decision, with whether Ctrl-C was pressed.
    async fn approves(&mut self, asked: &str) -> Result<Result<Decision, bool>, Failure> {
        if matches!(self, Decider::All) {
            return Ok(Ok(Decision::Approve));
        }
        Ok(match self.ask(&format!("{asked}  — approve? [y/N] ")).await? {
            Answer::Text(text) if is_yes(&text) => Ok(Decision::Approve),
            Answer::Text(_) => Ok(Decision::Reject),
            Answer::Interrupted => Err(true),
            Answer::None => Err(false),
        })
    }
}

fn is_yes(text: &str) -> bool {
    matches!(text.trim(), "y" | "Y" | "yes")
}

/// The question of an external program, which is the run's agent or a delegated one.
pub(super) fn program_question(event: &AgentEvent) -> Option<&Value> {
    let child = &event.data["child"];
    let data = match (event.kind, child["event"].as_str()) {
        (RunEventKind::Status, None) => &event.data,
        (RunEventKind::Status, Some("status")) => &child["data"],
        _ => return None,
    };
    (data["status"] == "waiting_for_approval").then_some(data)
}

/// Decides on the calls that a run waits for, or reports the command that decides.
///
/// # Errors
/// [`Failure::Waits`] if the run waits for something else, or for a decision that cannot be asked for.
pub(super) async fn decide(
    abide: &Abide,
    hint: &HintContext,
    interrupt: &AgentEvent,
    decider: &mut Decider<'_>,
) -> Result<Decided, Failure> {
    let requests = interrupt.data["action_requests"].as_array().cloned().unwrap_or_default();
    if requests.is_empty() {
        return Err(Failure::Waits(waits_for(&interrupt.data, hint)));
    }
    for request in &requests {
        let call_id = request["tool_call_id"].as_str().unwrap_or_default();
        if is_decided(abide, call_id).await? {
            continue;
        }
        let status = request["status"].as_str().unwrap_or_default();
        let is_interrupted = match status {
            "awaiting_approval" if request["tool_name"] == INPUT_TOOL => {
                match answer(abide, decider, call_id, request).await? {
                    Ok(()) => continue,
                    Err(is_interrupted) => is_interrupted,
                }
            }
            "awaiting_approval" => match decider.approves(&asked(request)).await? {
                Ok(decision) => {
                    let decision = DecideApproval::new(decision).call_id(call_id);
                    unless_decided(abide.call(decision).await)?;
                    continue;
                }
                Err(is_interrupted) => is_interrupted,
            },
            _ => match settlement(decider, call_id, request).await? {
                Ok(settlement) => {
                    unless_decided(abide.call(settlement).await)?;
                    continue;
                }
                Err(is_interrupted) => is_interrupted,
            },
        };
        if is_interrupted {
            return Ok(Decided::Interrupted);
        }
        let waits = Refusal::new(Code::BadTransition, format!("{status} {}", asked(request)));
        return Err(Failure::Waits(waits.hint(hint.of_call(call_id, status))));
    }
    Ok(Decided::All)
}

/// Answers the question of a tool; `Err` as in [`Decider::approves`]. An answer that does not fit the form is asked for again.
async fn answer(
    abide: &Abide,
    decider: &mut Decider<'_>,
    call_id: &str,
    request: &Value,
) -> Result<Result<(), bool>, Failure> {
    let decide = |decision| DecideApproval::new(decision).call_id(call_id);
    if matches!(decider, Decider::All) {
        unless_decided(abide.call(decide(Decision::Approve)).await)?;
        return Ok(Ok(()));
    }
    let args = &request["args"];
    let [tool, message, url] =
        ["tool", "message", "url"].map(|name| args[name].as_str().unwrap_or_default());
    let fields: Vec<&str> = args["schema"]["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(it, _)| &**it)
        .collect();
    let form = match (fields.as_slice(), url) {
        ([], "") => "y to accept".to_owned(),
        ([], url) => format!("{url} ; y when it is done"),
        ([only], _) => (*only).to_owned(),
        (fields, _) => format!("JSON with {}", fields.join(", ")),
    };
    loop {
        let question = format!("{tool} asks: {message}  [{form}; Enter declines] ");
        let decision = match decider.ask(&question).await? {
            Answer::Interrupted => return Ok(Err(true)),
            Answer::None => return Ok(Err(false)),
            Answer::Text(text) if text.trim().is_empty() => decide(Decision::Reject),
            Answer::Text(text) => decide(Decision::Approve).comment(text.trim()),
        };
        match abide.call(decision).await {
            Err(error) if error.code() == Some(Code::BadArguments) => {
                note(Printable::line(&error.to_string()));
            }
            decided => {
                unless_decided(decided)?;
                return Ok(Ok(()));
            }
        }
    }
}

/// The outcome of a call whose outcome is unknown, if a person knows it; `Err` as in [`Decider::approves`]. Only a
/// conversation asks: the person who answers it has seen what happened before.
async fn settlement(
    decider: &mut Decider<'_>,
    call_id: &str,
    request: &Value,
) -> Result<Result<SettleToolCall, bool>, Failure> {
    if !matches!(decider, Decider::Conversation(_)) {
        return Ok(Err(false));
    }
    let question = format!(
        "{}  — it was interrupted. Did it take effect? [y/n, Enter leaves it open] ",
        asked(request)
    );
    let settle = |outcome| {
        SettleToolCall::new(call_id, outcome).evidence(json!("reported in a conversation"))
    };
    Ok(match decider.ask(&question).await? {
        Answer::Text(text) if is_yes(&text) => Ok(settle(Outcome::Succeeded)),
        Answer::Text(text) if matches!(text.trim(), "n" | "N" | "no") => {
            Ok(settle(Outcome::Failed).error("it was interrupted and did not take effect"))
        }
        Answer::Interrupted => Err(true),
        Answer::Text(_) | Answer::None => Err(false),
    })
}

/// What a run without open calls waits for.
fn waits_for(data: &Value, hint: &HintContext) -> Refusal {
    let text = |name: &str| data[name].as_str().unwrap_or_default();
    let (session, reason) = (text("session_id"), text("reason"));
    if reason == "pause" {
        let (run, stage) = (text("run_id"), text("stage"));
        let stage = if stage.is_empty() { "a stage" } else { stage };
        let paused = format!("run {run} is paused at {stage}");
        return Refusal::new(Code::BadTransition, paused).hint(hint.of_pause(run));
    }
    Refusal::new(Code::BadTransition, format!("session {session}: {reason}"))
        .hint(hint.of_session(session, reason))
}

/// Decides on an action that an external program requests. The program stays alive, so the run does not wait
/// without a driver: if another client can decide, this command keeps following the run.
///
/// # Errors
/// The call is refused, or the terminal cannot be used.
pub(super) async fn consent(
    abide: &Abide,
    hint: &HintContext,
    data: &Value,
    decider: &mut Decider<'_>,
) -> Result<Decided, Failure> {
    let call_id = data["tool_call_id"].as_str().unwrap_or_default();
    if is_decided(abide, call_id).await? {
        return Ok(Decided::All);
    }
    let (tool, input) = (data["args"]["tool"].as_str().unwrap_or_default(), &data["args"]["input"]);
    let asked = format!("{tool} {input}");
    let decide = |decision| DecideApproval::new(decision).call_id(call_id);
    let decision = match (decider.approves(&asked).await?, hint.decide_elsewhere(call_id)) {
        (Ok(decision), _) => decide(decision),
        (Err(true), _) => return Ok(Decided::Interrupted),
        (Err(false), Some(command)) => {
            note(Printable::line(&format!("waits: {asked}")) + "\n  hint: " + &command);
            return Ok(Decided::All);
        }
        // No other process can open the file while this one has it open.
        (Err(false), None) => {
            let no =
                format!("rejected {asked}: there is no terminal to ask; --yes approves all calls");
            note(Printable::line(&no));
            decide(Decision::Reject).comment("no terminal to ask")
        }
    };
    unless_decided(abide.call(decision).await)?;
    Ok(Decided::All)
}

/// Ignores the refusal if the call was already decided or is no longer pending.
fn unless_decided<T>(decided: Result<T, Error>) -> Result<(), Failure> {
    match decided {
        Err(error) if !matches!(error.code(), Some(Code::Conflict | Code::BadTransition)) => {
            Err(error.into())
        }
        _ => Ok(()),
    }
}

/// Whether a call was already decided.
async fn is_decided(abide: &Abide, call_id: &str) -> Result<bool, Failure> {
    let sql = "SELECT count(*) FROM tool_calls WHERE call_id = :id AND status NOT IN \
               ('awaiting_approval', 'unknown')";
    let found: Vec<(i64,)> = abide.sql(sql).param("id", call_id).fetch().await?;
    Ok(found.first().is_some_and(|(count,)| *count > 0))
}

/// Asks at the terminal. The question goes to stderr, because stdout has the output of the run and may be a pipe. A
/// separate thread reads the answer, so that a run that this process drives continues and keeps its lease.
async fn ask(question: String) -> Result<String, Failure> {
    let person = tokio::task::spawn_blocking(move || {
        let mut out = io::stderr().lock();
        write!(out, "{}", Printable::line(&question))?;
        out.flush()?;
        let mut answer = String::new();
        if io::stdin().lock().read_line(&mut answer)? == 0 {
            // At the end of the input, the user did not end the line.
            writeln!(out)?;
        }
        io::Result::Ok(answer)
    });
    Ok(person.await.map_err(io::Error::other)??)
}
