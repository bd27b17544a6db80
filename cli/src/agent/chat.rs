//! `abide agent chat`: a conversation with an agent. Each message is a run of the session, so a conversation that was
//! interrupted, even by a kill, continues with `--session`.

mod history;
mod input;
mod pasted;

use std::path::Path;

use abide_agent::{AgentEvent, RunEvents};
use abide_client::arguments::{AbortRun, CreateSession, StartRun};
use abide_client::rows::RunEventKind;
use abide_client::{Abide, Call, Seq};
use abide_schema::{Code, Refusal, nearest};
use clap::Args;
use serde_json::json;

pub(super) use self::input::{Input, Typed};
use super::approvals::{Decided, Decider, decide, decide_program_action, program_question};
use super::definitions::{Definitions, check_before_creation};
use super::hint::{HintContext, add_serve_hint, connection_option, quote};
use super::host::{AgentHost, check_folder_exists, open_project};
use super::run::{check_answered, is_still_waiting, read_restarts, read_run};
use super::silence::StallNotice;
use super::view::View;
use crate::connect::{Access, check_file, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json, print_line, print_part};
use crate::printable::Printable;
use crate::reconnect::reporting_reconnects_unless;
use crate::terminal::Terminal;

/// How many earlier messages are shown at the start.
const SHOWN: usize = 40;

/// How many earlier messages `/history` shows: as many rows as a query returns at most.
const HISTORY: usize = 9_999;

const COMMANDS: &str = "\
/history  shows the earlier messages
/quit     leaves; so does Ctrl-D
A line that begins with a space is a message, also before a slash.
A line that ends with \\ continues in the next line. A pasted text is one message. Ctrl-C stops an answer; twice, it leaves.";

/// Arguments of `abide agent chat`.
#[derive(Args, Debug)]
pub(super) struct Chat {
    /// The name of the agent
    name: String,

    /// Continue this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Approve every call without asking
    #[arg(long)]
    yes: bool,
}

/// Whether a line is meant as a command: one word after a slash. A path, or a line that begins with a space, is a message.
fn is_command(line: &str) -> bool {
    let word = line.trim_end().strip_prefix('/');
    word.is_some_and(|word| !word.is_empty() && word.chars().all(char::is_alphabetic))
}

/// Converses until the input ends.
///
/// # Errors
/// The folder, the file or the server cannot be used. Without a terminal: a run failed, or waits.
pub(super) async fn chat(options: &Options, folder: &Path, args: Chat) -> Result<(), Failure> {
    if let (Some(file), Some(_)) = (&options.db, &args.session) {
        // A new file has no sessions.
        check_file(file, Access::Read)?;
    }
    let project = match options.db {
        Some(_) => {
            check_folder_exists(folder)?;
            let project = open_project(options, folder).await?;
            check_before_creation(options, folder, &project, &args.name)?;
            Some(project)
        }
        None => None,
    };
    let abide = connect(options, Access::Create).await.map_err(|failure| {
        let command = format!("abide agent chat {}", quote(&args.name));
        add_serve_hint(options, folder, &command, failure)
    })?;
    let host = match project {
        Some(project) => {
            Some(AgentHost::for_agents(options, project, abide.clone(), &[&args.name]).await?)
        }
        None => None,
    };
    let definitions = Definitions { options, folder, host: host.as_ref() };
    let done = converse_until_left(definitions, &abide, args).await;
    if let Some(host) = host {
        host.close().await;
    }
    abide.close().await;
    done
}

/// Converses until the input ends or Ctrl-C is pressed twice.
async fn converse_until_left(
    definitions: Definitions<'_>,
    abide: &Abide,
    args: Chat,
) -> Result<(), Failure> {
    let (input, interrupts) = Input::new()?;
    let Definitions { options, folder, .. } = definitions;
    let mut conversation = Conversation {
        definitions,
        options,
        folder,
        abide,
        agent: args.name,
        yes: args.yes,
        session: None,
        new_session: format!("chat_{}", &uuid::Uuid::new_v4().simple().to_string()[..16]),
        input,
    };
    let is_typing = conversation.input.subscribe_to_typing();
    let done = tokio::select! {
        done = reporting_reconnects_unless(
            is_typing,
            abide.link(),
            options,
            conversation.begin_and_converse(args.session.as_deref()),
        ) => done,
        () = interrupts.pressed_twice() => Ok(()),
    };
    conversation.print_farewell();
    done.map_err(|failure| match failure {
        Failure::OutputClosed => Failure::RunOutputClosed,
        failure => failure,
    })
}

struct Conversation<'a> {
    definitions: Definitions<'a>,
    options: &'a Options,
    folder: &'a Path,
    abide: &'a Abide,
    agent: String,
    yes: bool,
    /// The session, once it exists.
    session: Option<String>,
    /// The id of the session that the first message creates.
    new_session: String,
    input: Input,
}

impl Conversation<'_> {
    async fn begin_and_converse(&mut self, session: Option<&str>) -> Result<(), Failure> {
        if session.is_none() {
            // Its error explains also why an agent does not exist.
            self.definitions.check(&self.agent)?;
        }
        self.check_agent().await?;
        if let Some(session) = session {
            self.resume(session).await?;
        } else if self.is_for_people() {
            let commands = "/help  lists the commands";
            // A conversation that is killed continues with this id.
            let session = &self.new_session;
            note(format!("a conversation with {}, session {session}  ·  {commands}", self.agent));
        }
        loop {
            if self.is_for_people() {
                print_part(Terminal::from_stdout().bold("› "))?;
            }
            let message = match self.input.next_message().await? {
                Typed::Line(message) => message,
                Typed::Interrupt => {
                    note("\nCtrl-C again leaves");
                    continue;
                }
                Typed::End => {
                    if self.is_for_people() {
                        print_line("")?;
                    }
                    return Ok(());
                }
            };
            match message.trim() {
                "" => {}
                "/quit" | "/exit" if self.input.is_terminal() => return Ok(()),
                "/help" if self.input.is_terminal() => note(COMMANDS),
                "/history" if self.input.is_terminal() => self.show_history().await?,
                _ if self.input.is_terminal() && is_command(&message) => {
                    let word = message.trim_end();
                    note(format!("there is no command {word}: /help lists them"));
                }
                _ => self.take_turn(&message).await?,
            }
        }
    }

    /// Whether prompts are shown: a person types, and stdout is not for a program.
    fn is_for_people(&self) -> bool {
        self.input.is_terminal() && !self.options.json
    }

    /// Refuses an agent that does not exist before a message is typed.
    async fn check_agent(&self) -> Result<(), Failure> {
        let sql = "SELECT name FROM agents WHERE retired_at IS NULL ORDER BY name";
        let found: Vec<String> = self.abide.sql(sql).fetch().await?;
        if found.contains(&self.agent) {
            return Ok(());
        }
        let detail = format!("there is no agent {}", self.agent);
        let hint = match nearest(&self.agent, found.iter().map(String::as_str)) {
            Some(name) => format!("did you mean {name}?"),
            None => self
                .definitions
                .unknown_agent_hint()
                .unwrap_or_else(|| "`abide agent list` lists the agents".to_owned()),
        };
        Err(Refusal::new(Code::NotFound, detail).hint(hint).into())
    }

    /// Continues a session: shows its messages, and follows its active run.
    async fn resume(&mut self, session: &str) -> Result<(), Failure> {
        let found = self.abide.find_session(session).await?.ok_or_else(|| {
            Refusal::new(Code::NotFound, format!("there is no session {session}"))
                .hint("omit --session to begin a new one")
        })?;
        let id = found.id().to_owned();
        self.session = Some(id.clone());
        self.check_agent_of(&id).await?;
        let sql = "SELECT id, (SELECT min(seq) FROM run_events WHERE run_id = runs.id) FROM runs \
                   WHERE session_id = :id AND status IN ('running', 'waiting')";
        let active: Vec<(String, Option<Seq>)> =
            self.abide.sql(sql).param("id", &id).fetch().await?;
        let active = active.into_iter().next();
        if !self.options.json {
            // The other messages of an active run are among its events.
            let until = active.as_ref().and_then(|(_, since)| *since);
            history::show(self.abide, &id, until, SHOWN).await?;
        }
        match active {
            Some((run, _)) => {
                self.definitions.warn(&read_run(self.abide, &run).await?);
                self.follow_to_end(&run).await
            }
            None => self.definitions.check(&self.agent),
        }
    }

    /// Says that the session is another agent's. Its next messages are for the agent of this conversation.
    async fn check_agent_of(&self, session: &str) -> Result<(), Failure> {
        let sql = "SELECT agent FROM sessions WHERE id = :id";
        let found: Vec<(String,)> = self.abide.sql(sql).param("id", session).fetch().await?;
        let agent = found.into_iter().next().map(|(agent,)| agent).unwrap_or_default();
        if agent != self.agent {
            let here = &self.agent;
            note(Printable::line(&format!(
                "session {session} is of the agent {agent}; in this conversation {here} answers"
            )));
        }
        Ok(())
    }

    async fn show_history(&self) -> Result<(), Failure> {
        match &self.session {
            Some(session) => history::show(self.abide, session, None, HISTORY).await,
            None => Ok(()),
        }
    }

    /// One message and its answer. On a terminal the conversation continues after a failure.
    async fn take_turn(&mut self, message: &str) -> Result<(), Failure> {
        let done = match self.start(message).await {
            Ok(run) => self.follow_to_end(&run).await,
            Err(failure) => Err(failure),
        };
        match done {
            Err(failure @ (Failure::Refused(_) | Failure::Run(..) | Failure::Usage(_)))
                if self.input.is_terminal() =>
            {
                failure.with_hint_option(&connection_option(self.options)).print(self.options.json);
                Ok(())
            }
            done => done,
        }
    }

    /// Starts a run; the first one also creates the session. Returns the id of the run.
    async fn start(&mut self, message: &str) -> Result<String, Failure> {
        self.definitions.check(&self.agent)?;
        let run = |session: &str| StartRun::new(session).agent(&self.agent).input(message);
        if let Some(session) = &self.session {
            return Ok(self.abide.call(run(session)).await?.into_inner().id);
        }
        let id = &self.new_session;
        let session = CreateSession::new(&self.agent).id(id);
        // Both or neither: a refused run leaves no session.
        let done = self.abide.batch([Call::from(session), Call::from(run(id))]).await?;
        let row = done.value.last().map(|run| run.result.clone()).unwrap_or_default();
        // For a caller with a scope, the stored ids have the namespace of the scope.
        let session_id = row["session_id"].as_str().unwrap_or_default();
        self.session = Some(session_id.to_owned());
        if self.options.json {
            print_json(&json!({"session_id": session_id, "agent": self.agent}))?;
        }
        Ok(row["id"].as_str().unwrap_or_default().to_owned())
    }

    async fn follow_to_end(&mut self, run_id: &str) -> Result<(), Failure> {
        let last = self.follow(run_id).await;
        self.input.discard_answers_after_run()?;
        match last? {
            Some(event) if event.data["code"] == "aborted" && self.is_for_people() => {
                note("stopped");
                Ok(())
            }
            Some(event) => check_answered(&event),
            None => Ok(()),
        }
    }

    /// Shows the events of a run until it ends, asks for approvals, and aborts it at Ctrl-C. Returns its last event.
    async fn follow(&mut self, run_id: &str) -> Result<Option<AgentEvent>, Failure> {
        let abide = self.abide;
        let session = self.session.clone().unwrap_or_default();
        let hint = HintContext::for_chat(self.options, self.folder, &self.agent, &session);
        let hint = hint.with_yes(self.yes);
        let mut view = View::for_chat(self.options.json);
        view.omit_void_tokens(&read_restarts(abide, run_id).await?);
        let mut events = RunEvents::subscribe(abide, run_id, 0).await?;
        let mut silence = StallNotice::new(self.options, abide);
        loop {
            let event = tokio::select! {
                event = events.next() => event?,
                () = silence.explain(run_id) => continue,
                () = self.input.wait_for_interrupt() => {
                    view.pause()?;
                    self.abort(run_id).await?;
                    continue;
                }
            };
            let Some(event) = event else { return Ok(None) };
            view.show(&event)?;
            if event.ends_run() {
                view.show_total(&read_run(abide, run_id).await?)?;
                return Ok(Some(event));
            }
            let mut decider =
                if self.yes { Decider::All } else { Decider::Conversation(&mut self.input) };
            let mut decided = Decided::All;
            if event.kind == RunEventKind::Interrupt
                && is_still_waiting(abide, run_id, &event).await?
            {
                decided = decide(abide, &hint, &event, &mut decider).await?;
            } else if let Some(asked) = program_question(&event) {
                decided = decide_program_action(abide, &hint, asked, &mut decider).await?;
            }
            if decided == Decided::Interrupted {
                self.abort(run_id).await?;
            }
        }
    }

    async fn abort(&self, run_id: &str) -> Result<(), Failure> {
        note("stopping the answer; Ctrl-C again leaves");
        match self.abide.call(AbortRun::new(run_id).reason("stopped in the conversation")).await {
            // It has ended in the meantime.
            Err(error) if error.code() == Some(Code::BadTransition) => Ok(()),
            done => Ok(done.map(drop)?),
        }
    }

    /// The command that continues the conversation.
    fn print_farewell(&self) {
        if let (Some(session), false) = (&self.session, self.options.json) {
            let hint = HintContext::for_chat(self.options, self.folder, &self.agent, session);
            let hint = hint.with_yes(self.yes);
            note(format!("continue:  {}", hint.continue_command()));
        }
    }
}
