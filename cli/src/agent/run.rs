//! `abide agent run`: starts or continues a run, and follows it until it ends or waits for a decision.
//!
//! On a file this process also drives the run ([`AgentHost`]); at a server, the server does.

use std::path::Path;
use std::time::Duration;

use abide_agent::{AgentEvent, RunEvents, suggestion_for_run};
use abide_client::arguments::{CreateSession, StartRun};
use abide_client::rows::{AgentState, Run as Row, RunEventKind, RunStatus, Session};
use abide_client::{Abide, Call, Committed};
use abide_schema::{Code, Refusal};
use clap::Args;
use tokio::time::sleep;

use super::approvals::{Decider, decide, decide_program_action, program_question};
use super::definitions::{Definitions, check_before_creation};
use super::hint::{HintContext, add_serve_hint, connection_option, quote};
use super::host::{AgentHost, check_folder_exists, open_project};
use super::silence::StallNotice;
use super::view::View;
use crate::connect::{Access, connect};
use crate::failure::{Failure, INTERRUPTED};
use crate::global_options::Options;
use crate::output::note;
use crate::reconnect::reporting_reconnects;
use crate::signals::{BURST, EndSignals};

/// Arguments of `abide agent run`.
#[derive(Args, Debug)]
pub(super) struct Run {
    /// The name of the agent
    name: String,

    /// The user's message
    input: String,

    /// The id of the run, and of its session if that is new; the same id again continues the run
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// An existing session; without it, the run has a new one
    #[arg(long, value_name = "ID")]
    session: Option<String>,

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
        Some(_) => {
            check_folder_exists(folder)?;
            let project = open_project(options, folder).await?;
            check_before_creation(options, folder, &project, &args.name)?;
            Some(project)
        }
        None => None,
    };
    let abide = connect(options, Access::Create)
        .await
        .map_err(|failure| add_serve_hint(options, folder, "abide agent run …", failure))?;
    let host = match project {
        Some(project) => {
            Some(AgentHost::for_agents(options, project, abide.clone(), &[&args.name]).await?)
        }
        None => None,
    };
    let definitions = Definitions { options, folder, host: host.as_ref() };
    let followed = follow(&definitions, &abide, args);
    let outcome = reporting_reconnects(abide.link(), options, followed).await;
    if let Some(host) = host {
        close_after(host, outcome.as_ref().err()).await;
    }
    outcome
}

/// How long the drop of everything may take after a second signal.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Ends what runs, and closes the engine. After a signal, the program of a command-line agent gets it, too, and some time to end. A
/// second signal does not wait for that: the program is killed with its process group.
pub(super) async fn close_after(host: AgentHost, failure: Option<&Failure>) {
    let abide = host.abide.clone();
    let Some(Failure::Interrupted(signal)) = failure else {
        host.close().await;
        abide.close().await;
        return;
    };
    let closed = async {
        host.close_with(*signal).await;
        abide.close().await;
    };
    tokio::select! {
        () = closed => {}
        () = second_signal() => {
            // The process groups are killed when the async runtime is dropped. A thread that blocks must not prevent the end.
            std::thread::spawn(|| {
                // tidy: the time that the drop may take
                std::thread::sleep(LAST_PATIENCE);
                std::process::exit(INTERRUPTED.into());
            });
        }
    }
}

/// Waits for a signal after the [`BURST`] of the first one; for ever if the system has no room for its handler.
async fn second_signal() {
    sleep(BURST).await;
    // Receives only the signals from now on.
    match EndSignals::new() {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

/// Starts or continues the run, and shows its events until it ends or waits.
async fn follow(definitions: &Definitions<'_>, abide: &Abide, args: Run) -> Result<(), Failure> {
    let Definitions { options, folder, .. } = *definitions;
    let run = match start_or_find(definitions, abide, &args).await {
        Ok(run) => run,
        Err(failure) => {
            let session = args.session.as_deref();
            return Err(definitions
                .explain_unknown_agent(abide, &args.name, session, failure)
                .await);
        }
    };
    let hint = HintContext::new(options, folder, &args.name, &args.input, &run.id)
        .in_session(args.session.as_deref())
        .with_yes(args.yes);
    match watch(options, abide, &run.id, &hint, args.yes).await {
        Err(Failure::Run(code, refusal)) => {
            let explained =
                explain_former_run(options, abide, &run, args.session.is_some(), code, refusal);
            Err(explained.await)
        }
        watched => watched,
    }
}

/// The error code of a run that continues in another file.
const MOVED: &str = "moved";

/// The failure of a run, with a hint that is true now. The cause of a run that had ended before the command may be gone.
async fn explain_former_run(
    options: &Options,
    abide: &Abide,
    run: &Row,
    in_session: bool,
    code: String,
    refusal: Refusal,
) -> Failure {
    let Row { id, session_id, .. } = run;
    if code == MOVED {
        let export = format!("abide agent export{} {}", connection_option(options), quote(id));
        let hint = format!(
            "it continues in the file that imports its snapshot; `{export}` prints the snapshot again"
        );
        return Failure::Run(code, refusal.hint(hint));
    }
    let Some(ended_at) = run.ended_at else { return Failure::Run(code, refusal) };
    let message = run.error_message.as_deref().unwrap_or_default();
    let detail = format!("run {id} has ended at {ended_at} without an answer: {message}");
    let new = "use another --id for a new run";
    let session = abide.sql("SELECT * FROM sessions WHERE id = :id").param("id", session_id);
    // A failure to read it leaves the hint that needs no session.
    let sessions: Vec<Session> = session.fetch().await.unwrap_or_default();
    let is_open = sessions.iter().any(|session| !session.status.is_terminal());
    let hint = if !is_open {
        format!("{new} in a new session: the session {session_id} has ended")
    } else if in_session {
        format!("{new} of the session")
    } else {
        let session = quote(session_id);
        format!("{new}, or --session {session} in place of --id to go on in the session")
    };
    Failure::Run(code, Refusal::new(Code::BadTransition, detail).hint(hint))
}

/// Shows the events of a run until it ends or waits. A signal ends the command with the command that continues. The caller passes it
/// on to the program of a command-line agent ([`close_after`]): without a terminal too, where a timer or a service sends it.
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
    let watched = watch_events(options, abide, run_id, hint, yes);
    let mut signals =
        EndSignals::new().map_err(|why| Failure::system("signals cannot be handled", &why))?;
    let signal = tokio::select! {
        done = watched => return done.map_err(|failure| explain_closed_output(hint, failure)),
        signal = signals.recv() => signal,
    };
    note(format!("\ncontinue:  {}", hint.continue_command()));
    Err(Failure::Interrupted(signal))
}

/// If the reader of stdout has closed it, or its disk is full, prints the command that continues: the run may not have
/// ended.
fn explain_closed_output(hint: &HintContext, failure: Failure) -> Failure {
    match failure {
        Failure::OutputClosed => {
            note(format!("continue:  {}", hint.continue_command()));
            Failure::RunOutputClosed
        }
        Failure::Output(refusal) => {
            note(format!("continue:  {}", hint.continue_command()));
            Failure::Output(refusal)
        }
        failure => failure,
    }
}

async fn watch_events(
    options: &Options,
    abide: &Abide,
    run_id: &str,
    hint: &HintContext,
    yes: bool,
) -> Result<(), Failure> {
    let mut decider = Decider::from_yes_option(yes);
    let mut view = View::new(options.json);
    view.omit_void_tokens(&read_restarts(abide, run_id).await?);
    let mut events = RunEvents::subscribe(abide, run_id, 0).await?;
    let mut silence = StallNotice::new(options, abide);
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            () = silence.explain(run_id) => continue,
        };
        let Some(event) = event else { return Ok(()) };
        view.show(&event)?;
        if event.ends_run() {
            view.show_total(&read_run(abide, run_id).await?)?;
            return check_answered(&event);
        }
        if event.kind == RunEventKind::Interrupt && is_still_waiting(abide, run_id, &event).await? {
            decide(abide, hint, &event, &mut decider).await?;
        }
        if let Some(asked) = program_question(&event) {
            decide_program_action(abide, hint, asked, &mut decider).await?;
        }
    }
}

/// The stored restarts of a run: the number of each, and the number of the first event that it made void.
pub(super) async fn read_restarts(abide: &Abide, id: &str) -> Result<Vec<(i64, i64)>, Failure> {
    let sql = "SELECT number, coalesce(data ->> '$.since', number) FROM run_events \
               WHERE run_id = :id AND kind = 'restart' ORDER BY number";
    Ok(abide.sql(sql).param("id", id).fetch().await?)
}

/// Starts a run in its own session, both with one id. Returns the existing run if it was started before.
async fn start_or_find(
    definitions: &Definitions<'_>,
    abide: &Abide,
    args: &Run,
) -> Result<Row, Failure> {
    let existing = match &args.id {
        Some(id) => find_run(abide, id).await?,
        None => None,
    };
    match &existing {
        Some(run) => definitions.warn(run),
        None => definitions.check(&args.name)?,
    }
    let id = args.id.clone().unwrap_or_else(|| format!("run_{}", uuid::Uuid::new_v4().simple()));
    let session = CreateSession::new(&args.name).id(&id);
    // A run that exists has its session, whether the command names it or not.
    let of_run = existing.as_ref().map(|run| &run.session_id);
    let session_id = args.session.as_ref().or(of_run).unwrap_or(&id);
    let run = StartRun::new(session_id).id(&id).input(&args.input);
    if args.session.is_some() {
        return start_in_session(abide, run.agent(&args.name), args).await;
    }
    if existing.is_some() {
        return start_in_session(abide, run, args).await;
    }
    // Both or neither: an unknown agent leaves no session.
    match abide.batch([Call::from(session), Call::from(run.clone())]).await {
        Ok(done) => {
            // For a caller with a scope, the stored id has the namespace of the scope.
            let stored = done.value.last().and_then(|run| run.result["id"].as_str());
            return read_run(abide, stored.unwrap_or(&id)).await;
        }
        Err(error) if error.code() == Some(Code::Conflict) && args.id.is_some() => {}
        Err(error) => return Err(error.into()),
    }
    // The session exists without the run. It can be one of another agent.
    start_in_session(abide, run.agent(&args.name), args).await
}

/// Starts a run in an existing session.
async fn start_in_session(abide: &Abide, run: StartRun, args: &Run) -> Result<Row, Failure> {
    let Committed { value: found, duplicate, .. } = abide.call(run).await?;
    if duplicate {
        check_same(abide, &found, args).await?;
    }
    Ok(found)
}

/// Refuses an id that belongs to a run with another agent or input.
async fn check_same(abide: &Abide, found: &Row, args: &Run) -> Result<(), Failure> {
    // The call that starts a run writes its message and its first event.
    let sql = "SELECT * FROM agent_state WHERE session_id = :id AND role = 'user' AND seq = \
               (SELECT min(seq) FROM run_events WHERE run_id = :run) ORDER BY id LIMIT 1";
    let query = abide.sql(sql).param("id", &found.session_id).param("run", &found.id);
    let messages: Vec<AgentState> = query.fetch().await?;
    let input = messages.into_iter().next().and_then(|entry| entry.content).unwrap_or_default();
    if found.agent == args.name && input == args.input {
        return Ok(());
    }
    let detail = format!("run {} of agent {} started with: {input}", found.id, found.agent);
    let hint = "the same agent and the same input continue it; use another --id for a new run";
    Err(Refusal::new(Code::Conflict, detail).hint(hint).into())
}

pub(super) async fn read_run(abide: &Abide, id: &str) -> Result<Row, Failure> {
    find_run(abide, id)
        .await?
        .ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no run {id}")).into())
}

/// A run, if it exists.
async fn find_run(abide: &Abide, id: &str) -> Result<Option<Row>, Failure> {
    let runs = abide.sql("SELECT * FROM runs WHERE id = :id").param("id", id).fetch().await?;
    Ok(runs.into_iter().next())
}

pub(super) fn check_answered(event: &AgentEvent) -> Result<(), Failure> {
    if event.kind == RunEventKind::Done {
        return Ok(());
    }
    let code = event.data["code"].as_str().unwrap_or_default();
    let message = event.data["message"].as_str().unwrap_or_default();
    let detail = format!("the run ended without an answer: {message}");
    let mut refusal = Refusal::new(Code::BadTransition, detail);
    if let Some(hint) = suggestion_for_run(code, message) {
        refusal = refusal.hint(hint);
    }
    Err(Failure::Run(code.to_owned(), refusal))
}

/// Whether a run still waits where an event left it. A repeated run also shows interrupts that were already
/// decided.
pub(super) async fn is_still_waiting(
    abide: &Abide,
    id: &str,
    interrupt: &AgentEvent,
) -> Result<bool, Failure> {
    let run = read_run(abide, id).await?;
    Ok(run.status == RunStatus::Waiting && run.turn == interrupt.turn)
}
