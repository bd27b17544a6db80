//! Reading the definition of an agent in one revision.

use abide_client::Abide;
use abide_client::rows::AgentRevision;
use abide_definitions::agent::AgentDefinition;

use crate::run::error::RuntimeError;

/// Returns the definition of an agent in a revision.
pub(crate) async fn load_definition(
    abide: &Abide,
    agent: &str,
    revision: i64,
) -> Result<AgentDefinition, RuntimeError> {
    let sql = "SELECT * FROM agent_revisions WHERE agent = :agent AND revision = :revision";
    let found: Vec<AgentRevision> =
        abide.sql(sql).param("agent", agent).param("revision", revision).fetch().await?;
    let unreadable =
        |why: String| RuntimeError::Definition { agent: agent.to_owned(), revision, why };
    let row = found.into_iter().next().ok_or_else(|| unreadable("it does not exist".to_owned()))?;
    AgentDefinition::from_json(&row.definition.value()).map_err(|why| unreadable(why.to_string()))
}
