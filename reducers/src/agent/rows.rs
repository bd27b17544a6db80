//! The rows of agents and of their revisions.

use abide_schema::{Json, Micros, Seq, TextEnum, table};

/// How an agent can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TextEnum)]
pub enum AgentMode {
    /// It can own a session.
    #[default]
    Primary,
    /// Another agent can delegate a task to it.
    Subagent,
    /// Both.
    All,
}

impl AgentMode {
    /// Returns `true` if it can own a session.
    #[must_use]
    pub fn is_primary(self) -> bool {
        self != AgentMode::Subagent
    }

    /// Returns `true` if another agent can delegate a task to it.
    #[must_use]
    pub fn is_subagent(self) -> bool {
        self != AgentMode::Primary
    }
}

/// An agent, in its newest revision.
#[table(name = "agents", without_rowid)]
pub struct Agent {
    /// Its name.
    #[column(key)]
    pub name: String,
    /// Starts at 1; every change increments it.
    pub revision: i64,
    /// A salted digest of the definition, in hexadecimal: it changes with every revision, and cannot be
    /// computed from the definition.
    pub digest: String,
    /// How it can be used.
    pub mode: AgentMode,
    /// Its purpose.
    pub description: Option<String>,
    /// Whether lists omit it.
    pub hidden: bool,
    /// Whether it comes with the runtime, as opposed to a user's file.
    pub native: bool,
    /// When it was retired: it starts no more runs.
    pub retired_at: Option<Micros>,
    /// When it was first registered.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// One revision of an agent, kept for the runs that started with it.
#[table(name = "agent_revisions")]
pub struct AgentRevision {
    /// The agent.
    #[column(key, references = "agents(name)")]
    pub agent: String,
    /// The revision.
    #[column(key)]
    pub revision: i64,
    /// A salted digest of the definition, in hexadecimal: it changes with every revision, and cannot be
    /// computed from the definition.
    pub digest: String,
    /// The complete definition.
    pub definition: Json,
    /// When it was registered.
    pub created_at: Micros,
    /// The event that registered it.
    pub seq: Seq,
}
