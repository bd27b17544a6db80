//! The replacement of older messages in the context of a session: the newest row of `context_summaries`. A driver reads
//! it once, and then the messages after it, so the cost of a turn does not depend on the length of the conversation.

use abide_client::rows::{AgentState, ContextSummary, Run};
use abide_client::{Abide, Error, Json};
use abide_models::ModelMessage;
use serde::de::DeserializeOwned;

use crate::context::entry::{HandoffEntry, SessionEntry};
use crate::context::summary::Summary;

/// The newest summary of a session, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SummarizedContext {
    /// The row.
    pub(crate) row: Option<ContextSummary>,
    /// The summary in it.
    pub(crate) summary: Summary,
    kept: Vec<i64>,
}

/// Where a compaction ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactionGoal {
    /// The last message to cover.
    pub(crate) through_id: i64,
    /// The last message to leave out.
    pub(crate) folded_id: i64,
}

impl SummarizedContext {
    /// Reads it.
    pub(crate) async fn load(abide: &Abide, session_id: &str) -> Result<SummarizedContext, Error> {
        let sql = "SELECT * FROM context_summaries WHERE session_id = :sid \
                   ORDER BY number DESC LIMIT 1";
        let found: Vec<ContextSummary> = abide.sql(sql).param("sid", session_id).fetch().await?;
        let row = found.into_iter().next();
        let summary = row.as_ref().map(|row| parsed(&row.summary)).unwrap_or_default();
        let kept = row.as_ref().map(|row| parsed(&row.kept)).unwrap_or_default();
        Ok(SummarizedContext { row, summary, kept })
    }

    /// Returns the messages that the model always sees among those that the summary stands for.
    pub(crate) async fn kept_entries(
        &self,
        abide: &Abide,
        session_id: &str,
    ) -> Result<Vec<SessionEntry>, Error> {
        if self.kept.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT * FROM agent_state WHERE id IN (SELECT value FROM json_each(:ids)) \
                   AND session_id = :sid ORDER BY id";
        let ids = serde_json::to_string(&self.kept).unwrap_or_default();
        let rows = abide.sql(sql).param("ids", ids).param("sid", session_id);
        let rows: Vec<AgentState> = rows.fetch().await?;
        Ok(rows.into_iter().map(SessionEntry::from).collect())
    }

    /// Returns the handoffs that were in effect in a run at the last message that the summary stands for.
    pub(crate) fn handoffs(&self, run: &Run) -> Vec<HandoffEntry> {
        let of_run = self.row.as_ref().filter(|row| row.run_id == run.id);
        of_run.map(|row| parsed(&row.handoffs)).unwrap_or_default()
    }

    /// Returns the number of the newest summary; 0 if there is none.
    pub(crate) fn number(&self) -> i64 {
        self.row.as_ref().map_or(0, |row| row.number)
    }

    /// The summary covers the messages up to this id. Their results are markers.
    pub(crate) fn through_id(&self) -> i64 {
        self.row.as_ref().map_or(0, |row| row.through_id)
    }

    /// The model does not see the messages up to this id, except those that it always sees.
    pub(crate) fn folded_id(&self) -> i64 {
        self.row.as_ref().map_or(0, |row| row.folded_id)
    }

    /// Returns the number of the model's answers among them.
    pub(crate) fn answers(&self) -> i64 {
        self.row.as_ref().map_or(0, |row| row.answers)
    }

    /// Returns where the compaction in progress ends; `None` if the last compaction is complete.
    pub(crate) fn pending(&self) -> Option<CompactionGoal> {
        let row = self.row.as_ref().filter(|row| row.through_id < row.goal_id)?;
        Some(CompactionGoal { through_id: row.goal_id, folded_id: row.goal_folded_id })
    }

    /// Returns the message with the summary.
    pub(crate) fn message(&self) -> Option<ModelMessage> {
        self.row.as_ref().map(|_| ModelMessage::System { text: self.summary.text() })
    }

    /// Returns `true` if the model sees a message.
    pub(crate) fn shows(&self, id: i64) -> bool {
        id > self.folded_id() || self.kept.contains(&id)
    }
}

fn parsed<T: DeserializeOwned + Default>(json: &Json) -> T {
    serde_json::from_str(json.as_str()).unwrap_or_default()
}
