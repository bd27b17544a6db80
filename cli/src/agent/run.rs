//! `abide agent run`: starts or continues a run, and follows it until it ends or waits for a decision.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;

use abide_agent::{AgentEvent, Events};
use abide_client::arguments::{CreateSession, DecideApproval, StartRun};
use abide_client::{
    Abide, AgentState, Call, Committed, Decision, Error, Run as Row, RunEventKind, RunStatus,
};
use abide_schema::{Code, Refusal};
use clap::Args;
use serde_json::Value;

use super::hint::{HintContext, asked};
use super::host::{AgentHost, open};
use super::view::View;
use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::note;
use crate::printable::Printable;
use crate::reconnect::reporting_reconnects;

/// Arguments of `abide agent run`.
#[derive(Args, Debug)]
pub(super) struct Run {
    /// The name of the agent
    name: String,

    /// The user's message
    input: String,

    /// The id of the session and of its run; the same id again continues the run
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Approve every call without asking
    #[arg(long)]
    yes: bool,
}

/// Runs an agent, and shows its events.
///
/// # Errors
/// The folder, the file or the server cannot be used; the run failed, or waits.
pub(super) async fn start(options: &Options, folder: &Path, args: Run) -> Result<(), Failure> {
    // The folder is opened first: if it is invalid, no database file is created.
    let project = match options.db {
        Some(_) => Some(open(options, folder).await?),
        None => None,
    };
    let abide = connect(options, Access::Create).await?;
    let host = match project {
        Some(project) => Some(AgentHost::over(options, folder, project, abide.clone()).await?),
        None => None,
    };
    let rendered =
        reporting_reconnects(abide.link(), options, follow(options, folder, &abide, args)).await;
    if let Some(host) = host {
        let abide = host.abide.clone();
        host.close().await;
        abide.close().await;
    }
    rendered
}

/// Starts or continues the run, and shows its events until it ends or waits.
async fn follow(options: &Options, folder: &Path, abide: &Abide, args: Run) -> Result<(), Failure> {
    let run = begin(abide, &args).await?;
    let hint = HintContext::new(options, folder, &args.name, &args.input, &run.id);
    watch(options, abide, &run.id, &hint, args.yes).await
}

/// Shows the events of a run until it ends or waits.
///
/// # Errors
/// The run failed, or waits.
pub(super) async fn watch(
    options: &Options,
    abide: &Abide,
    run_id: &str,
    hint: &HintContext,
    yes: bool,
) -> Result<(), Failure> {
    let mut view = View::new(options.json);
    view.omit(&restarts(abide, run_id).await?);
    let mut events = Events::of(abide, run_id, 0).await?;
    while let Some(event) = events.next().await? {
        view.show(&event)?;
        if event.ends_run() {
            view.total(&row(abide, run_id).await?)?;
            return ended(&event);
        }
        if event.kind == RunEventKind::Interrupt && still_waits(abide, run_id, &event).await? {
            decide(abide, hint, &event, yes).await?;
        }
        if let Some(asked) = program_question(&event) {
            consent(abide, hint, asked, yes).await?;
        }
    }
    Ok(())
}

/// The question of an external program, which is the run's agent or a delegated one.
fn program_question(event: &AgentEvent) -> Option<&Value> {
    let child = &event.data["child"];
    let data = match (event.kind, child["event"].as_str()) {
        (RunEventKind::Status, None) => &event.data,
        (RunEventKind::Status, Some("status")) => &child["data"],
        _ => return None,
    };
    (data["status"] == "waiting_for_approval").then_some(data)
}

/// The stored restarts of a run: the number of each, and the number of the first event that it made void.
async fn restarts(abide: &Abide, id: &str) -> Result<Vec<(i64, i64)>, Failure> {
    let sql = "SELECT number, coalesce(data ->> '$.since', number) FROM run_events \
               WHERE run_id = :id AND kind = 'restart' ORDER BY number";
    Ok(abide.sql(sql).param("id", id).fetch().await?)
}

/// A run in its own session, both with one id; the existing run if it was started before.
async fn begin(abide: &Abide, args: &Run) -> Result<Row, Failure> {
    let id = args.id.clone().unwrap_or_else(|| format!("run_{}", uuid::Uuid::new_v4().simple()));
    let session = CreateSession::new(&args.name).id(&id);
    let run = StartRun::new(&id).id(&id).input(&args.input);
    // Both or neither: an unknown agent leaves no session.
    match abide.batch([Call::of(session), Call::of(run.clone())]).await {
        Ok(done) => {
            // For a caller with a scope, the stored id has the namespace of the scope.
            let stored = done.value.last().and_then(|run| run.result["id"].as_str());
            return row(abide, stored.unwrap_or(&id)).await;
        }
        Err(error) if error.code() == Some(Code::Conflict) && args.id.is_some() => {}
        Err(error) => return Err(error.into()),
    }
    let Committed { value: found, duplicate, .. } = abide.call(run).await?;
    if duplicate {
        check_same(abide, &found, args).await?;
    }
    Ok(found)
}

/// Refuses an id that belongs to a run with another agent or input.
async fn check_same(abide: &Abide, found: &Row, args: &Run) -> Result<(), Failure> {
    let sql = "SELECT * FROM agent_state WHERE session_id = :id AND role = 'user' \
               ORDER BY id LIMIT 1";
    let messages: Vec<AgentState> = abide.sql(sql).param("id", &found.session_id).fetch().await?;
    let messages = messages.into_iter().next().and_then(|entry| entry.content).unwrap_or_default();
    if found.agent == args.name && messages == args.input {
        return Ok(());
    }
    let detail = format!("run {} of agent {} started with: {messages}", found.id, found.agent);
    let hint = "the same agent and the same input continue it; use another --id for a new run";
    Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
}

async fn row(abide: &Abide, id: &str) -> Result<Row, Failure> {
    let runs = abide.sql("SELECT * FROM runs WHERE id = :id").param("id", id).fetch().await?;
    let missing = || Refusal::new(Code::NotFound, format!("there is no run {id}"));
    runs.into_iter().next().ok_or_else(|| missing().into())
}

fn ended(event: &AgentEvent) -> Result<(), Failure> {
    if event.kind == RunEventKind::Done {
        return Ok(());
    }
    let text = |name: &str| event.data[name].as_str().unwrap_or_default().to_owned();
    let detail = format!("the run ended without an answer: {}", text("message"));
    Err(Failure::Run(text("code"), Refusal::new(Code::BadTransition, detail)))
}

/// Whether a run still waits where an event left it. A repeated run also shows interrupts that were already
/// decided.
async fn still_waits(abide: &Abide, id: &str, interrupt: &AgentEvent) -> Result<bool, Failure> {
    let run = row(abide, id).await?;
    Ok(run.status == RunStatus::Waiting && run.turn == interrupt.turn)
}

/// Decides on a call that waits for approval, or reports the command that decides.
async fn decide(
    abide: &Abide,
    hint: &HintContext,
    interrupt: &AgentEvent,
    yes: bool,
) -> Result<(), Failure> {
    let data = &interrupt.data;
    let requests = data["action_requests"].as_array().cloned().unwrap_or_default();
    if requests.is_empty() {
        let text = |name: &str| data[name].as_str().unwrap_or_default();
        let (session, reason) = (text("session_id"), text("reason"));
        if reason == "pause" {
            let (run, stage) = (text("run_id"), text("stage"));
            let stage = if stage.is_empty() { "a stage" } else { stage };
            let paused = format!("run {run} is paused at {stage}");
            let waits = Refusal::new(Code::BadTransition, paused);
            return Err(Failure::Waits(waits.hint(hint.of_pause(run))));
        }
        let waits = Refusal::new(Code::BadTransition, format!("session {session}: {reason}"));
        return Err(Failure::Waits(waits.hint(hint.of_session(session, reason))));
    }
    for request in &requests {
        let call_id = request["tool_call_id"].as_str().unwrap_or_default();
        if is_decided(abide, call_id).await? {
            continue;
        }
        let status = request["status"].as_str().unwrap_or_default();
        let decision = match (status, yes) {
            ("awaiting_approval", true) => Decision::Approve,
            ("awaiting_approval", false) if io::stdin().is_terminal() => {
                ask(asked(request)).await?
            }
            _ => {
                let waits =
                    Refusal::new(Code::BadTransition, format!("{status} {}", asked(request)));
                return Err(Failure::Waits(waits.hint(hint.of_call(call_id, status))));
            }
        };
        settle(abide.call(DecideApproval::new(decision).call_id(call_id)).await)?;
    }
    Ok(())
}

/// Decides on an action that an external program requests. The program stays alive, so the run does not wait
/// without a driver: if another client can decide, this command keeps following the run.
async fn consent(
    abide: &Abide,
    hint: &HintContext,
    data: &Value,
    yes: bool,
) -> Result<(), Failure> {
    let call_id = data["tool_call_id"].as_str().unwrap_or_default();
    if is_decided(abide, call_id).await? {
        return Ok(());
    }
    let (tool, input) = (data["args"]["tool"].as_str().unwrap_or_default(), &data["args"]["input"]);
    let asked = format!("{tool} {input}");
    let decide = |decision| DecideApproval::new(decision).call_id(call_id);
    let decision = match hint.decide_elsewhere(call_id) {
        _ if yes => decide(Decision::Approve),
        _ if io::stdin().is_terminal() => decide(ask(asked).await?),
        Some(command) => {
            note(Printable::line(&format!("waits: {asked}")) + "\n  hint: " + &command);
            return Ok(());
        }
        // No other process can open the file while this one has it open.
        None => {
            let no =
                format!("rejected {asked}: there is no terminal to ask; --yes approves all calls");
            note(Printable::line(&no));
            decide(Decision::Reject).comment("no terminal to ask")
        }
    };
    settle(abide.call(decision).await)
}

/// Ignores the refusal if the call was already decided or is no longer pending.
fn settle<T>(decided: Result<T, Error>) -> Result<(), Failure> {
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
async fn ask(asked: String) -> Result<Decision, Failure> {
    let person = tokio::task::spawn_blocking(move || {
        let mut out = io::stderr().lock();
        write!(out, "{}  — approve? [y/N] ", Printable::line(&asked))?;
        out.flush()?;
        let mut answer = String::new();
        if io::stdin().lock().read_line(&mut answer)? == 0 {
            // At the end of the input, the user did not end the line.
            writeln!(out)?;
        }
        io::Result::Ok(answer)
    });
    match person.await.map_err(io::Error::other)??.trim() {
        "y" | "Y" | "yes" => Ok(Decision::Approve),
        _ => Ok(Decision::Reject),
    }
}
