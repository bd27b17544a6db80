//! The step `approval`: a person decides. It is a call of the tool `approval`, which does nothing.

use abide_reducers::approval::ApprovalStatus;
use abide_reducers::arguments::{ClaimToolCall, CompleteToolCall, RegisterTool, RequestToolCall};
use abide_reducers::{Effect, ToolCallStatus};
use abide_schema::{Code, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value as JsonValue, json};

use super::DurableSession;
use super::lease::worker_name;
use super::stored_row::LiveRow;
use crate::Error;

/// The tool of all such calls.
const TOOL: &str = "approval";

const APPROVAL: &str = "SELECT c.status, c.error, a.status AS decision, a.decided_by, a.comment,
  a.arguments, a.approved_arguments
FROM tool_calls AS c JOIN approvals AS a ON a.call_id = c.call_id WHERE c.call_id = :id";

#[derive(Deserialize)]
struct State {
    status: ToolCallStatus,
    error: Option<String>,
    decision: ApprovalStatus,
    decided_by: Option<String>,
    comment: Option<String>,
    /// `{"prompt", "args"}`.
    arguments: Json,
    /// The arguments, if the approver changed them.
    approved_arguments: Option<Json>,
}

/// The answer to a request for approval.
#[derive(Clone, Debug, PartialEq)]
pub struct DecidedApproval {
    /// `true` if it was approved; `false` if it was rejected, expired or cancelled.
    pub approved: bool,
    /// The arguments as approved: those of the approver if it changed them.
    pub arguments: JsonValue,
    /// The approver.
    pub decided_by: Option<String>,
    /// The approver's comment.
    pub comment: Option<String>,
}

impl DurableSession {
    /// Asks a person for a decision, and waits for it: `abide call decide_approval`, or any program. The decision is
    /// recorded under the key.
    ///
    /// # Errors
    /// [`Error::Refused`] if the session has ended; [`Error::Closed`] if the client was closed while it waited.
    pub async fn approval(
        &self,
        prompt: &str,
        args: impl Serialize,
        key: &str,
    ) -> Result<DecidedApproval, Error> {
        let args = super::json("the arguments", args)?;
        let call_id = self.request_approval(json!({"prompt": prompt, "args": args}), key).await?;
        let row = LiveRow::subscribe(&self.abide, APPROVAL, &call_id).await?;
        let row = row.wait_until(|row: &State| row.decision != ApprovalStatus::Pending).await?;
        let approved = row.decision == ApprovalStatus::Approved;
        if approved && row.status == ToolCallStatus::Pending {
            self.complete_approved(&call_id).await?;
        }
        let mut arguments = row.approved_arguments.unwrap_or(row.arguments).value();
        Ok(DecidedApproval {
            approved,
            arguments: arguments.get_mut("args").map(JsonValue::take).unwrap_or_default(),
            decided_by: row.decided_by,
            comment: row.comment.or(row.error.filter(|_| !approved)),
        })
    }

    async fn request_approval(&self, arguments: JsonValue, key: &str) -> Result<String, Error> {
        let request = || RequestToolCall {
            needs_approval: Some(true),
            ..RequestToolCall::new(self.call_id(key), &self.id, TOOL, arguments.clone())
        };
        let requested = match self.abide.call(request()).await {
            Err(error) if error.code() == Some(Code::NotFound) => {
                let tool = RegisterTool::new(TOOL).effect(Effect::ReadOnly);
                self.abide.call(tool).await?;
                self.abide.call(request()).await?
            }
            requested => requested?,
        };
        Ok(requested.into_inner().call_id)
    }

    /// Ends the call of an approval. Another process of the session may do the same.
    async fn complete_approved(&self, call_id: &str) -> Result<(), Error> {
        let claim = ClaimToolCall::new(call_id).worker(worker_name());
        let token = match self.abide.call(claim).await {
            Ok(claimed) => claimed.into_inner().fencing_token.unwrap_or_default(),
            Err(error) if error.code() == Some(Code::Conflict) => return Ok(()),
            Err(error) => return Err(error),
        };
        let complete = CompleteToolCall::new(call_id, token, json!({"approved": true}));
        self.abide.call(complete).await.map(drop)
    }
}
