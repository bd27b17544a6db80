//! Decisions on calls of a run that wait: asked for on a terminal, made by an option, or left to the command that a
//! hint names.

use std::future::pending;
use std::io::{self, IsTerminal as _};

use abide_agent::AgentEvent;
use abide_client::arguments::{DecideApproval, Decision, Outcome, SettleToolCall};
use abide_client::rows::RunEventKind;
use abide_client::rules::INPUT_TOOL;
use abide_client::{Abide, Error};
use abide_schema::{Code, Refusal};
use abide_tools::LOGIN_FIELD;
use serde_json::{Value, json};

use super::chat::{Input, Typed};
use super::editor::Edited;
use super::file_diff::FileDiff;
use super::hint::{HintContext, format_request};
use crate::failure::Failure;
use crate::output::note;
use crate::printable::Printable;
use crate::terminal::Terminal;

/// How a command decides on calls that wait.
pub(super) enum Decider<'a> {
    /// Each call is approved.
    All,
    /// A question on stderr, answered on stdin, which is read from the first question on; nothing unless both are a terminal.
    Stdin(Option<Input>),
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
enum UserDecision {
    Yes,
    No,
    /// An empty line.
    Open,
    Interrupted,
    /// Another client has decided.
    Elsewhere,
    /// There is no terminal, or its input has ended.
    None,
}

/// A line that was read.
enum Reply {
    Text(String),
    Interrupted,
    /// Another client has decided.
    Elsewhere,
    /// The input has ended, as with Ctrl-D: the person leaves and decides nothing.
    Ended,
    /// There is no terminal.
    None,
}

/// The result of a question.
enum Verdict<T> {
    Decided(T),
    Elsewhere,
    Interrupted,
    /// It has no decision yet: there is nobody to ask, or the person has left.
    Open,
}

/// A call on which a decision is asked for.
struct CallQuestion<'a> {
    call_id: &'a str,
    /// As in an interrupt: `{tool_name, args, prompt, defaults, agent}`.
    request: &'a Value,
    /// Whether the approver can change the arguments.
    can_edit: bool,
}

impl CallQuestion<'_> {
    /// The change of a file that the call requests, with these arguments.
    fn diff(&self, arguments: &Value) -> Option<FileDiff> {
        FileDiff::from_call(self.request["tool_name"].as_str().unwrap_or_default(), arguments)
    }

    /// Returns the question about these arguments. A diff that shows all of the change stands for them.
    fn question(&self, arguments: &Value) -> String {
        let mut request = self.request.clone();
        let has_suggestion = self.apply_suggestions(arguments).is_some();
        if *arguments != request["args"] {
            request["args"] = arguments.clone();
            request["defaults"] = Value::Null;
        }
        if let Some(diff) = self.diff(&request["args"]).filter(FileDiff::is_whole) {
            request["args"] = json!(diff.path);
        }
        let keys = match (self.can_edit, has_suggestion) {
            (true, false) => "e edits the arguments; ",
            (true, true) => "e edits the arguments, s takes the suggested ones; ",
            (false, _) => "",
        };
        format!(
            "{}  ({keys}a comment can follow y or n)  — approve? [y/N] ",
            format_request(&request)
        )
    }

    /// Returns the arguments with the suggested values in place of theirs; `None` if there are no others.
    fn apply_suggestions(&self, arguments: &Value) -> Option<Value> {
        let defaults = Some(&self.request["defaults"]).filter(|it| !it.is_null())?;
        let mut suggested = arguments.clone();
        match (suggested.as_object_mut(), defaults.as_object()) {
            (Some(members), Some(defaults)) => members.extend(defaults.clone()),
            _ => suggested = defaults.clone(),
        }
        Some(suggested).filter(|it| it != arguments)
    }
}

impl<T> Verdict<T> {
    /// Carries out the decision, if there is one.
    async fn then<U>(self, carry_out: impl AsyncFnOnce(T) -> U) -> Verdict<U> {
        match self {
            Verdict::Decided(decision) => Verdict::Decided(carry_out(decision).await),
            Verdict::Elsewhere => Verdict::Elsewhere,
            Verdict::Interrupted => Verdict::Interrupted,
            Verdict::Open => Verdict::Open,
        }
    }
}

impl Decider<'_> {
    /// The decider of a command with the option `--yes`.
    pub(super) fn from_yes_option(yes: bool) -> Decider<'static> {
        if yes { Decider::All } else { Decider::Stdin(None) }
    }

    /// Asks about a call until the answer is yes, no or an empty line, or another client has decided.
    async fn ask_yes_no(
        &mut self,
        abide: &Abide,
        call_id: &str,
        ask: &str,
    ) -> Result<UserDecision, Failure> {
        loop {
            match self.read(abide, call_id, ask).await? {
                Reply::Text(text) => match &*text.trim().to_lowercase() {
                    "y" | "yes" => return Ok(UserDecision::Yes),
                    "n" | "no" => return Ok(UserDecision::No),
                    "" => return Ok(UserDecision::Open),
                    _ => note("answer y or n"),
                },
                Reply::Interrupted => return Ok(UserDecision::Interrupted),
                Reply::Elsewhere => return Ok(UserDecision::Elsewhere),
                Reply::Ended | Reply::None => return Ok(UserDecision::None),
            }
        }
    }

    /// The terminal, if there is one. A question goes to stderr: an answer to one that nobody sees decides nothing.
    fn terminal_input(&mut self) -> Option<&mut Input> {
        if !io::stderr().is_terminal() {
            return None;
        }
        match self {
            Decider::Stdin(input) if io::stdin().is_terminal() => {
                Some(input.get_or_insert_with(Input::from_stdin))
            }
            Decider::Conversation(input) if input.is_terminal() => Some(&mut **input),
            _ => None,
        }
    }

    /// What is typed from now on answers no question.
    fn end_questions(&self) {
        if let Decider::Conversation(input) = self {
            input.read_ahead();
        }
    }

    /// Reads a line about a call, unless another client decides before.
    async fn read(&mut self, abide: &Abide, call_id: &str, ask: &str) -> Result<Reply, Failure> {
        let Some(input) = self.terminal_input() else { return Ok(Reply::None) };
        let typed = tokio::select! {
            typed = input.ask(ask) => typed?,
            how = wait_for_decision_elsewhere(abide, call_id) => {
                note(Printable::from("\n".to_owned()) + Printable::line(&how));
                input.decided_elsewhere(how);
                return Ok(Reply::Elsewhere);
            }
        };
        Ok(match typed {
            Typed::Line(text) => Reply::Text(text),
            Typed::Interrupt => Reply::Interrupted,
            Typed::End => {
                // The question is still on the line.
                note("");
                Reply::Ended
            }
        })
    }

    /// The decision on a call. A comment can follow `y` and `n`. `edited` has the arguments that the approver has put in place of
    /// those of the model, also for the next question about the call.
    async fn ask_approval(
        &mut self,
        abide: &Abide,
        call: &CallQuestion<'_>,
        edited: &mut Option<Value>,
    ) -> Result<Verdict<DecideApproval>, Failure> {
        if matches!(self, Decider::All) {
            return Ok(Verdict::Decided(decision_on(call.call_id, Decision::Approve)));
        }
        let mut is_new = self.terminal_input().is_some();
        loop {
            let arguments = edited.as_ref().unwrap_or(&call.request["args"]);
            if let Some(diff) = call.diff(arguments).filter(|_| is_new) {
                note(diff.render(Terminal::from_stdout()));
            }
            let text = match self.read(abide, call.call_id, &call.question(arguments)).await? {
                Reply::Text(text) => text,
                Reply::Interrupted => return Ok(Verdict::Interrupted),
                Reply::Elsewhere => return Ok(Verdict::Elsewhere),
                Reply::Ended | Reply::None => return Ok(Verdict::Open),
            };
            let text = text.trim();
            let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            let rest = rest.trim();
            is_new = false;
            let decision = match &*word.to_lowercase() {
                "y" | "yes" => match &edited {
                    Some(arguments) => decision_on(call.call_id, Decision::Approve)
                        .approved_arguments(arguments.clone()),
                    None => decision_on(call.call_id, Decision::Approve),
                },
                "n" | "no" | "" => decision_on(call.call_id, Decision::Reject),
                "s" | "suggested" if call.can_edit => {
                    match call.apply_suggestions(arguments) {
                        Some(suggested) => *edited = Some(suggested),
                        None => note("there are no other suggested arguments"),
                    }
                    is_new = true;
                    continue;
                }
                "e" | "edit" if call.can_edit => {
                    let arguments = arguments.clone();
                    match self.edit(abide, call.call_id, &arguments, rest).await? {
                        Verdict::Decided(Some(arguments)) => {
                            *edited = Some(arguments).filter(|it| *it != call.request["args"]);
                            is_new = true;
                        }
                        Verdict::Decided(None) => {}
                        Verdict::Elsewhere => return Ok(Verdict::Elsewhere),
                        Verdict::Interrupted => return Ok(Verdict::Interrupted),
                        Verdict::Open => return Ok(Verdict::Open),
                    }
                    continue;
                }
                _ => {
                    note("answer y or n; a comment can follow, such as: n not this customer");
                    continue;
                }
            };
            return Ok(Verdict::Decided(match rest {
                "" => decision,
                comment => decision.comment(comment),
            }));
        }
    }

    /// Lets the approver edit arguments: `typed`, or in an editor. `None` if they stay as they are.
    async fn edit(
        &mut self,
        abide: &Abide,
        call_id: &str,
        arguments: &Value,
        typed: &str,
    ) -> Result<Verdict<Option<Value>>, Failure> {
        if !typed.is_empty() {
            return Ok(Verdict::Decided(match serde_json::from_str(typed) {
                Ok(edited) => Some(edited),
                Err(why) => {
                    note(Printable::line(&format!(
                        "{typed} is not JSON: {why}; write such as: e {arguments}"
                    )));
                    None
                }
            }));
        }
        let mut text = serde_json::to_string_pretty(arguments).unwrap_or_default() + "\n";
        loop {
            let Some(input) = self.terminal_input() else { return Ok(Verdict::Open) };
            text = match input.edit(&text).await {
                Edited::Text(text) => text,
                Edited::Failed(why) => {
                    note(Printable::line(&format!("{why}; the arguments are unchanged")));
                    return Ok(Verdict::Decided(None));
                }
            };
            match serde_json::from_str::<Value>(&text) {
                Ok(edited) if edited == *arguments => {
                    note("the arguments are unchanged");
                    return Ok(Verdict::Decided(None));
                }
                Ok(edited) => return Ok(Verdict::Decided(Some(edited))),
                Err(why) => note(Printable::line(&format!("this is not JSON: {why}"))),
            }
            match self.ask_yes_no(abide, call_id, "edit again? [Y/n] ").await? {
                UserDecision::Yes | UserDecision::Open => {}
                UserDecision::No => {
                    note("the arguments are unchanged");
                    return Ok(Verdict::Decided(None));
                }
                UserDecision::Interrupted => return Ok(Verdict::Interrupted),
                UserDecision::Elsewhere => return Ok(Verdict::Elsewhere),
                UserDecision::None => return Ok(Verdict::Open),
            }
        }
    }
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
    let decided = decide_all(abide, hint, interrupt, decider).await;
    decider.end_questions();
    decided
}

async fn decide_all(
    abide: &Abide,
    hint: &HintContext,
    interrupt: &AgentEvent,
    decider: &mut Decider<'_>,
) -> Result<Decided, Failure> {
    let requests = interrupt.data["action_requests"].as_array().cloned().unwrap_or_default();
    if requests.is_empty() {
        return Err(Failure::Waits(describe_wait(abide, &interrupt.data, hint).await?));
    }
    let mut open = Vec::new();
    let mut hints = Vec::new();
    for request in &requests {
        let call_id = request["tool_call_id"].as_str().unwrap_or_default();
        if is_decided(abide, call_id).await? {
            continue;
        }
        let status = request["status"].as_str().unwrap_or_default();
        let is_question = status == "awaiting_approval" && request["tool_name"] == INPUT_TOOL;
        let verdict = match (status, is_question) {
            (_, true) => answer_question(abide, decider, call_id, request).await?,
            ("awaiting_approval", _) => {
                let call = CallQuestion { call_id, request, can_edit: true };
                decide_call(abide, decider, &call).await?
            }
            _ => {
                let settlement = ask_outcome(abide, decider, call_id, request).await?;
                settlement.then(async |it| abide.call(it).await.map(drop)).await
            }
        };
        match verdict {
            Verdict::Decided(done) => {
                ignore_if_decided(abide, decider, call_id, done).await?;
                continue;
            }
            Verdict::Elsewhere => continue,
            Verdict::Interrupted => return Ok(Decided::Interrupted),
            Verdict::Open => {}
        }
        let files = describe_changed_files(request)
            .map(|files| format!("\nit was interrupted after it changed {files}"));
        let why = unknown_reason(request).map(|why| format!("\nwhy: {why}"));
        open.push(format!(
            "{status} {}{}{}",
            format_request(request),
            why.unwrap_or_default(),
            files.unwrap_or_default()
        ));
        hints.push(if is_question {
            hint.answer_question_command(call_id, &request["args"]["schema"])
        } else {
            hint.decide_call_command(call_id, status)
        });
    }
    if open.is_empty() {
        return Ok(Decided::All);
    }
    let waits = Refusal::new(Code::BadTransition, open.join("\n"));
    Err(Failure::Waits(waits.hint(hint.then_continue(&hints))))
}

/// Asks for the decision on a call, and makes it. If edited arguments do not fit the tool, the question is asked again.
async fn decide_call(
    abide: &Abide,
    decider: &mut Decider<'_>,
    call: &CallQuestion<'_>,
) -> Result<Verdict<Result<(), Error>>, Failure> {
    let mut edited = None;
    loop {
        let decision = match decider.ask_approval(abide, call, &mut edited).await? {
            Verdict::Decided(decision) => decision,
            Verdict::Elsewhere => return Ok(Verdict::Elsewhere),
            Verdict::Interrupted => return Ok(Verdict::Interrupted),
            Verdict::Open => return Ok(Verdict::Open),
        };
        let is_edited = decision.approved_arguments.is_some();
        match abide.call(attribute_to_user(decision)).await {
            Err(error) if is_edited && error.code() == Some(Code::BadArguments) => {
                note(Printable::line(&error.to_string()));
            }
            decided => return Ok(Verdict::Decided(decided.map(drop))),
        }
    }
}

/// The decision of the user of the command. Without a reason, a rejection would name the identity of the process.
fn attribute_to_user(decision: DecideApproval) -> DecideApproval {
    match (decision.decision, &decision.comment) {
        (Decision::Reject, None) => decision.comment("by the user"),
        _ => decision,
    }
}

fn decision_on(call_id: &str, decision: Decision) -> DecideApproval {
    DecideApproval::new(decision).call_id(call_id)
}

/// Answers the question of a tool. An answer that does not fit the form is asked for again.
async fn answer_question(
    abide: &Abide,
    decider: &mut Decider<'_>,
    call_id: &str,
    request: &Value,
) -> Result<Verdict<Result<(), Error>>, Failure> {
    let is_login = request["args"]["schema"]["properties"][LOGIN_FIELD].is_object();
    if matches!(decider, Decider::All) && is_login {
        // The option approves calls. It cannot log in, and the call would ask again at once.
        return Ok(Verdict::Open);
    }
    if matches!(decider, Decider::All) {
        let approved = abide.call(decision_on(call_id, Decision::Approve)).await.map(drop);
        return Ok(Verdict::Decided(approved));
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
        let decision = match decider.read(abide, call_id, &question).await? {
            Reply::Interrupted => return Ok(Verdict::Interrupted),
            Reply::Elsewhere => return Ok(Verdict::Elsewhere),
            Reply::Ended | Reply::None => return Ok(Verdict::Open),
            Reply::Text(text) if text.trim().is_empty() => decision_on(call_id, Decision::Reject),
            Reply::Text(text) => decision_on(call_id, Decision::Approve).comment(text.trim()),
        };
        match abide.call(decision).await {
            Err(error) if error.code() == Some(Code::BadArguments) => {
                note(Printable::line(&error.to_string()));
            }
            decided => return Ok(Verdict::Decided(decided.map(drop))),
        }
    }
}

/// The outcome of a call whose outcome is unknown, if a person knows it. Only a conversation asks: the person who answers
/// it has seen what happened before.
async fn ask_outcome(
    abide: &Abide,
    decider: &mut Decider<'_>,
    call_id: &str,
    request: &Value,
) -> Result<Verdict<SettleToolCall>, Failure> {
    if !matches!(decider, Decider::Conversation(_)) {
        return Ok(Verdict::Open);
    }
    let changed = describe_changed_files(request).map(|files| format!(" after it changed {files}"));
    let why = unknown_reason(request).map(|why| format!(": {}", why.trim_end_matches('.')));
    let question = format!(
        "{}  — it was interrupted{}{}. Did it take effect? [y/n, Enter leaves it open] ",
        format_request(request),
        changed.unwrap_or_default(),
        why.unwrap_or_default()
    );
    Ok(match decider.ask_yes_no(abide, call_id, &question).await? {
        UserDecision::Yes => Verdict::Decided(settle_call(call_id, Outcome::Succeeded)),
        UserDecision::No => Verdict::Decided(
            settle_call(call_id, Outcome::Failed)
                .error("it was interrupted and did not take effect"),
        ),
        UserDecision::Interrupted => Verdict::Interrupted,
        UserDecision::Elsewhere => Verdict::Elsewhere,
        UserDecision::Open | UserDecision::None => Verdict::Open,
    })
}

fn settle_call(call_id: &str, outcome: Outcome) -> SettleToolCall {
    SettleToolCall::new(call_id, outcome).evidence(json!("reported in a conversation"))
}

/// Why the outcome of a call is unknown, on one line, if its worker has reported a reason.
fn unknown_reason(request: &Value) -> Option<String> {
    let why = request["error"].as_str().filter(|why| !why.trim().is_empty())?;
    Some(Printable::line(why.trim()).as_str().to_owned())
}

/// How many changed files a question names.
const NAMED: usize = 10;

/// The files that an interrupted call has changed, as far as they are known.
fn describe_changed_files(request: &Value) -> Option<String> {
    let files = request["files"].as_array()?;
    if files.is_empty() {
        return Some("no file".to_owned());
    }
    let mut parts = Vec::new();
    for file in files.iter().take(NAMED) {
        let path = file["path"].as_str().unwrap_or_default();
        let action = file["action"].as_str().unwrap_or_default();
        parts.push(format!("{path} ({action})"));
    }
    if files.len() > NAMED {
        parts.push(format!("{} more", files.len() - NAMED));
    }
    Some(parts.join(", "))
}

/// The reason for which a run without open calls waits, and the commands that end the wait.
async fn describe_wait(
    abide: &Abide,
    data: &Value,
    hint: &HintContext,
) -> Result<Refusal, Failure> {
    let session = data["session_id"].as_str().unwrap_or_default();
    let reason = data["reason"].as_str().unwrap_or_default();
    if reason == "pause" {
        let run = data["run_id"].as_str().unwrap_or_default();
        let stage = data["stage"].as_str().filter(|stage| !stage.is_empty()).unwrap_or("a stage");
        let detail = format!("run {run} is paused at {stage}");
        return Ok(Refusal::new(Code::BadTransition, detail).hint(hint.resume_run_commands(run)));
    }
    if reason != "handoff" {
        let detail = format!("session {session} is suspended");
        let commands = hint.resume_session_commands(session);
        return Ok(Refusal::new(Code::BadTransition, detail).hint(commands));
    }
    let sql = "SELECT id, reason, status, claimed_by FROM handoff_requests \
               WHERE session_id = :sid AND status IN ('pending', 'claimed')";
    type Cells = (String, String, String, Option<String>);
    let found: Vec<Cells> = abide.sql(sql).param("sid", session).fetch().await?;
    let Some((id, asked, status, claimed_by)) = found.into_iter().next() else {
        let detail = format!("session {session} waits for a supervisor");
        let commands = hint.list_handoffs_commands(session);
        return Ok(Refusal::new(Code::BadTransition, detail).hint(commands));
    };
    let by = claimed_by.filter(|_| status == "claimed");
    let claimed = by.as_ref().map(|by| format!(", claimed by {by}")).unwrap_or_default();
    let detail = format!("session {session} waits for a supervisor{claimed}: {asked}");
    let commands = hint.answer_handoff_commands(&id, by.is_some());
    Ok(Refusal::new(Code::BadTransition, detail).hint(commands))
}

/// Decides on an action that an external program requests. The program stays alive, so the run does not wait
/// without a driver: if another client can decide, this command keeps following the run.
///
/// # Errors
/// The call is refused, or the terminal cannot be used.
pub(super) async fn decide_program_action(
    abide: &Abide,
    hint: &HintContext,
    data: &Value,
    decider: &mut Decider<'_>,
) -> Result<Decided, Failure> {
    let call_id = data["tool_call_id"].as_str().unwrap_or_default();
    if is_decided(abide, call_id).await? {
        return Ok(Decided::All);
    }
    let tool = data["args"]["tool"].as_str().unwrap_or_default();
    let input = &data["args"]["input"];
    let asked = format!("{tool} {input}");
    let request = json!({"tool_name": tool, "args": input});
    let call = CallQuestion { call_id, request: &request, can_edit: false };
    let is_asked = decider.terminal_input().is_some();
    let verdict = decider.ask_approval(abide, &call, &mut None).await?;
    decider.end_questions();
    if is_asked && matches!(verdict, Verdict::Open) {
        // The person has left. In a file, the program ends with this process, and asks again when the run continues.
        let waits = Refusal::new(Code::BadTransition, format!("awaiting_approval {asked}"));
        let commands = match hint.decide_elsewhere_command(call_id) {
            Some(command) => hint.then_continue(&[command]),
            None => hint.continue_command().to_owned(),
        };
        return Err(Failure::Waits(waits.hint(commands)));
    }
    let decision = match (verdict, hint.decide_elsewhere_command(call_id)) {
        (Verdict::Decided(decision), _) => attribute_to_user(decision),
        (Verdict::Elsewhere, _) => return Ok(Decided::All),
        (Verdict::Interrupted, _) => return Ok(Decided::Interrupted),
        (Verdict::Open, Some(command)) => {
            note(Printable::line(&format!("waits: {asked}")) + "\n  hint: " + &command);
            return Ok(Decided::All);
        }
        // No other process can open the file while this one has it open.
        (Verdict::Open, None) => {
            let no =
                format!("rejected {asked}: there is no terminal to ask; --yes approves all calls");
            note(Printable::line(&no));
            DecideApproval::new(Decision::Reject).call_id(call_id).comment("no terminal to ask")
        }
    };
    let done = abide.call(decision).await.map(drop);
    ignore_if_decided(abide, decider, call_id, done).await?;
    Ok(Decided::All)
}

/// If the call was already decided or is no longer pending, the refusal is no error; a person who has answered learns
/// that the answer has no effect.
async fn ignore_if_decided(
    abide: &Abide,
    decider: &Decider<'_>,
    call_id: &str,
    done: Result<(), Error>,
) -> Result<(), Failure> {
    match done {
        Err(error) if matches!(error.code(), Some(Code::Conflict | Code::BadTransition)) => {
            if !matches!(decider, Decider::All) {
                let how = describe_decision(abide, call_id).await;
                note(Printable::line(&format!("ignored: {how}")));
            }
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Waits until a call is no longer open; returns how it was decided.
async fn wait_for_decision_elsewhere(abide: &Abide, call_id: &str) -> String {
    let sql = "SELECT call_id FROM tool_calls WHERE call_id = :id AND status IN \
               ('awaiting_approval', 'unknown')";
    // Without a subscription, the answer learns it.
    let Ok(mut open) = abide.subscribe(sql).param("id", call_id).await else {
        return pending().await;
    };
    while open.rows().len() > 0 {
        if !matches!(open.next().await, Some(Ok(_))) {
            return pending().await;
        }
    }
    describe_decision(abide, call_id).await
}

/// How a call was decided, as far as the caller may know.
async fn describe_decision(abide: &Abide, call_id: &str) -> String {
    let sql = "SELECT tool_calls.status, settled_by, approvals.status, decided_by FROM tool_calls \
               LEFT JOIN approvals ON approvals.call_id = tool_calls.call_id \
               WHERE tool_calls.call_id = :id ORDER BY decided_by IS NULL LIMIT 1";
    type Cells = (String, Option<String>, Option<String>, Option<String>);
    let found: Result<Vec<Cells>, Error> = abide.sql(sql).param("id", call_id).fetch().await;
    match found.unwrap_or_default().into_iter().next() {
        Some((status, Some(by), _, _)) => {
            format!("the call was already settled as {status} by {by}")
        }
        Some((_, _, Some(decision), Some(by))) => {
            format!("the call was already {decision} by {by}")
        }
        Some((status, ..)) => format!("the call is already {status}"),
        None => "the call was already decided".to_owned(),
    }
}

/// Whether a call was already decided.
async fn is_decided(abide: &Abide, call_id: &str) -> Result<bool, Failure> {
    let sql = "SELECT count(*) FROM tool_calls WHERE call_id = :id AND status NOT IN \
               ('awaiting_approval', 'unknown')";
    let found: Vec<(i64,)> = abide.sql(sql).param("id", call_id).fetch().await?;
    Ok(found.first().is_some_and(|(count,)| *count > 0))
}
