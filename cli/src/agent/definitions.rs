//! The definitions of the agents that a command runs. No run of an agent starts while the agent's file has an error:
//! the run would use the former revision, without the change that the file makes.

use std::path::Path;

use abide_agent::{AgentProject, FoundAgent, Problem};
use abide_client::Abide;
use abide_client::rows::Run;
use abide_schema::{Code, Refusal, nearest};
use tokio::task::block_in_place;

use super::hint::{agents_option, server_option};
use super::host::{AgentHost, no_config_note};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::note;

/// Refuses a run or a conversation that would create the database and cannot begin: its agent does not exist, or is invalid, or
/// its model has no key. Nothing is created for it.
///
/// # Errors
/// The reason.
pub(super) fn check_before_creation(
    options: &Options,
    folder: &Path,
    project: &AgentProject,
    agent: &str,
) -> Result<(), Failure> {
    let is_new = options.db.as_ref().is_some_and(|file| file.symlink_metadata().is_err());
    // A stored prompt is read with the database.
    if !is_new || project.catalog.uses_stored_prompts() {
        return Ok(());
    }
    // It waits for a server of prompts, if there is one.
    match block_in_place(|| project.catalog.find(agent)) {
        FoundAgent::Ready(definition) => match project.missing_key(&definition) {
            None => Ok(()),
            Some(error) => {
                let detail = format!("cannot start a run: {error}");
                let hint = error.suggestion();
                let refusal = Refusal { hint, ..Refusal::new(Code::BadTransition, detail) };
                Err(Failure::Run(error.code().to_owned(), refusal))
            }
        },
        FoundAgent::Invalid(problem) => {
            if let Some(text) = no_config_note(folder) {
                note(format!("note: {text}"));
            }
            Err(invalid_definition(folder, agent, &problem))
        }
        FoundAgent::Missing { known, has_problems } => {
            let hint = match nearest(agent, known.iter().map(String::as_str)) {
                Some(name) => format!("did you mean {name}?"),
                None if has_problems => invalid_folder_hint(folder),
                None => format!("the agents of {} are {}", folder.display(), known.join(", ")),
            };
            let detail = format!("there is no agent {agent}");
            Err(Refusal::new(Code::NotFound, detail).hint(hint).into())
        }
    }
}

/// The refusal of a run of an agent whose file is invalid.
fn invalid_definition(folder: &Path, agent: &str, problem: &Problem) -> Failure {
    let detail =
        format!("cannot start a run: the definition of agent {agent} is invalid: {problem}");
    let suggestion = problem.error.suggestion().map(|text| format!("{text}\n        "));
    let hint = format!(
        "{}`abide agent check{}` lists all errors; a former revision is kept for runs that are in progress",
        suggestion.unwrap_or_default(),
        agents_option(folder)
    );
    Failure::usage(detail, hint)
}

/// The hint about an agent whose definition may be one of those that cannot be used.
fn invalid_folder_hint(folder: &Path) -> String {
    let option = agents_option(folder);
    format!("a definition of the folder cannot be used: `abide agent check{option}` shows why")
}

/// The definitions that a command uses: those of a folder if this process drives the runs, else those of a server.
#[derive(Clone, Copy)]
pub(super) struct Definitions<'a> {
    pub(super) options: &'a Options,
    pub(super) folder: &'a Path,
    pub(super) host: Option<&'a AgentHost>,
}

impl Definitions<'_> {
    /// Refuses a new run of an agent whose file has an error that prevents its registration.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the error of the file.
    pub(super) fn check(&self, agent: &str) -> Result<(), Failure> {
        let Some(problem) = self.host.and_then(|host| host.problem_of(agent)) else {
            return Ok(());
        };
        Err(invalid_definition(self.folder, agent, &problem))
    }

    /// Warns that a run in progress uses a former revision of an agent whose file has an error.
    pub(super) fn warn(&self, run: &Run) {
        let Run { id, agent, revision, .. } = run;
        if self.host.and_then(|host| host.problem_of(agent)).is_some() && run.ended_at.is_none() {
            tracing::warn!(
                name: "run_on_old_revision",
                "run {id} continues with revision {revision} of agent {agent}: its current definition has an error"
            );
        }
    }

    /// Adds a hint to the failure of a run whose agent does not exist: why it may not exist. Returns any other failure
    /// unchanged, and also this one if an agent has a similar name, which the failure suggests already.
    pub(super) async fn explain_unknown_agent(
        &self,
        abide: &Abide,
        agent: &str,
        session: Option<&str>,
        failure: Failure,
    ) -> Failure {
        match failure {
            Failure::Refused(refusal)
                if refusal.code == Code::NotFound
                    && session_exists(abide, session).await
                    && has_no_similar_agent(abide, agent).await =>
            {
                let hint = self.unknown_agent_hint().or_else(|| refusal.hint.clone());
                Failure::Refused(Refusal { hint, ..refusal })
            }
            other => other,
        }
    }

    /// Returns why an agent may not exist: its definition cannot be used, or the server may have no folder of agents.
    /// `None` if neither can be the reason.
    pub(super) fn unknown_agent_hint(&self) -> Option<String> {
        let server_option = server_option(self.options);
        match self.host {
            Some(host) if !host.loaded().errors.is_empty() => {
                Some(invalid_folder_hint(self.folder))
            }
            None if self.options.db.is_none() => Some(format!(
                "`abide agent list{server_option}` lists the agents of this server; `abide serve --agents FOLDER` adds those of a folder"
            )),
            _ => None,
        }
    }
}

/// Returns `true` if the session exists, or if none is named. Otherwise the refusal is about the session, not the
/// agent.
async fn session_exists(abide: &Abide, session: Option<&str>) -> bool {
    match session {
        Some(session) => matches!(abide.find_session(session).await, Ok(Some(_))),
        None => true,
    }
}

/// Returns `true` if no active agent has this name or a similar one.
async fn has_no_similar_agent(abide: &Abide, agent: &str) -> bool {
    let sql = "SELECT name FROM agents WHERE retired_at IS NULL ORDER BY name";
    let found: Result<Vec<String>, _> = abide.sql(sql).fetch().await;
    found.is_ok_and(|names| nearest(agent, names.iter().map(String::as_str)).is_none())
}
