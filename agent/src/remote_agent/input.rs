//! Questions of remote agents, as ordinary approvals: each is a call of `remote_agent_input` that waits for a decision. The run
//! waits meanwhile. The decision is the next message to the agent.

use std::time::Duration;

use abide_client::arguments::{ClaimToolCall, CompleteToolCall, RequestToolCall};
use abide_client::rows::{ToolCall, ToolCallStatus};
use abide_client::{Call, Code, Error};
use abide_tools::{Effect, ToolDeclaration};
use serde_json::{Value, json};

use crate::remote_agent::rows::{Question, RemoteRows, entry};
use crate::remote_agent::task::{RemoteTask, TaskState};
use crate::run::driver::Driver;
use crate::run::lease::{fencing_token, millis};
use crate::run::step::{Step, StepError, overtime};

/// The name of the tool that represents the questions.
const TOOL: &str = "remote_agent_input";

/// Returns the declaration to register.
pub(crate) fn declaration() -> ToolDeclaration {
    let text = |description: &str| json!({"type": "string", "description": description});
    let properties = json!({
        "agent": text("The remote agent."),
        "needs": {"enum": ["input", "authorization"]},
        "question": text("What the agent asks."),
        "data": {"description": "What the agent asks, for programs."},
        "answer": text("The answer, in arguments that an approver has changed.")});
    let required = ["agent", "needs", "question"];
    let schema = json!({"type": "object", "required": required, "properties": properties});
    let description = "A question of a remote agent to the user of its task.";
    let mut declaration = ToolDeclaration::new(TOOL, description, schema);
    // Taking a decision over has no effect. The message to the agent has its own id.
    declaration.effect = Effect::Idempotent;
    declaration.needs_approval = true;
    declaration
}

/// Records the question of a task, and requests a decision on it.
pub(crate) async fn ask(
    driver: &Driver,
    rows: &mut RemoteRows,
    task: &RemoteTask,
    published: usize,
) -> Step {
    let number = rows.asked.len() + 1;
    let call_id = driver.run_lease.call_id(format_args!("a2a.{number}"));
    let question = Question { call_id, key: task.question_key(), published };
    let needs = match task.state() {
        TaskState::NeedsAuthorization => "authorization",
        _ => "input",
    };
    let mut arguments = json!({"agent": driver.agent.definition.name, "needs": needs,
        "question": task.status_text()});
    let parts = task.status_parts();
    let data = parts.iter().find_map(|part| part.get("data").filter(|data| !data.is_null()));
    if let Some(data) = data {
        arguments["data"] = data.clone();
    }
    let session_id = &driver.state.run.session_id;
    let request = RequestToolCall::new(&question.call_id, session_id, TOOL, arguments);
    let request = driver.run_lease.request(request.needs_approval(true));
    let event = entry(json!({"event": "ask", "call_id": question.call_id, "key": question.key,
        "published": published}));
    driver.record(&[event], None, vec![request.into()]).await?;
    rows.asked.push(question);
    Ok(())
}

/// A decision on a question.
pub(crate) struct InputResponse {
    /// Whether it was approved.
    approve: bool,
    /// The text of the approver.
    comment: Option<String>,
    /// The call that takes it over.
    pub(crate) then: Vec<Call>,
}

impl InputResponse {
    /// Returns the parts of the message to the agent: for a reader, and for an agent of Abide.
    pub(crate) fn parts(&self, reads_data: bool) -> Value {
        let word = if self.approve { "approve" } else { "reject" };
        let mut parts = vec![json!({"text": self.comment.as_deref().unwrap_or(word)})];
        if reads_data {
            let mut data = json!({"approve": self.approve});
            if let Some(comment) = &self.comment {
                data["comment"] = json!(comment);
            }
            parts.push(json!({"data": data, "mediaType": "application/json"}));
        }
        Value::from(parts)
    }
}

/// Returns the call of a question, if it waits for a decision.
pub(crate) async fn undecided(driver: &Driver, question: &Question) -> Step<Option<ToolCall>> {
    let sql = "SELECT * FROM tool_calls WHERE call_id = :id";
    let query = driver.abide.sql(sql).param("id", &question.call_id);
    let found: Vec<ToolCall> = query.fetch().await?;
    Ok(found.into_iter().find(|call| {
        matches!(call.status, ToolCallStatus::AwaitingApproval | ToolCallStatus::Unknown)
    }))
}

/// Returns the decision on a question. If a driver that crashed holds the call, this waits for the end of its lease.
pub(crate) async fn answer(driver: &Driver, question: &Question) -> Step<InputResponse> {
    let sql = "SELECT * FROM tool_calls WHERE call_id = :id";
    let mut calls = driver.abide.subscribe(sql).param("id", &question.call_id).await?;
    loop {
        tokio::select! {
            update = calls.try_next() => {
                update?.ok_or(Error::Closed)?;
            }
            () = driver.stop.cancelled() => return Err(StepError::Aborted),
            () = driver.until_deadline() => return Err(overtime()),
        }
        let now: Vec<ToolCall> = calls.typed_rows()?;
        let Some(call) = now.into_iter().next() else { continue };
        let approve = match call.status {
            ToolCallStatus::Claimed => continue,
            ToolCallStatus::Pending | ToolCallStatus::Succeeded => true,
            _ => false,
        };
        let comment = comment(driver, &call, approve).await?;
        let then = match call.status {
            ToolCallStatus::Pending => vec![take_over(driver, &call.call_id).await?],
            _ => Vec::new(),
        };
        return Ok(InputResponse { approve, comment, then });
    }
}

/// Returns the text of the approver: an answer in the arguments, or a comment.
async fn comment(driver: &Driver, call: &ToolCall, approve: bool) -> Step<Option<String>> {
    if let Some(answer) = call.arguments.value()["answer"].as_str().filter(|_| approve) {
        return Ok(Some(answer.to_owned()));
    }
    let sql = "SELECT comment FROM approvals WHERE call_id = :id";
    let query = driver.abide.sql(sql).param("id", &call.call_id);
    let found: Vec<(Option<String>,)> = query.fetch().await?;
    Ok(found.into_iter().find_map(|(comment,)| comment))
}

/// Claims an approved call; returns the call that completes it. If a driver that crashed has held it, its next attempt may
/// have to wait.
async fn take_over(driver: &Driver, call_id: &str) -> Step<Call> {
    let settings = &driver.shared.settings;
    let claim =
        ClaimToolCall::new(call_id).lease_ms(millis(settings.lease)).worker(&settings.driver);
    let claimed: ToolCall = loop {
        match driver.abide.call(claim.clone()).await {
            Ok(claimed) => break claimed.into_inner(),
            Err(error) if error.code() == Some(Code::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = driver.stop.cancelled() => return Err(StepError::Aborted),
            () = driver.until_deadline() => return Err(overtime()),
        }
    };
    let result = json!({"text": "the decision was sent to the agent", "exit_code": 0});
    Ok(CompleteToolCall::new(call_id, fencing_token(&claimed), result).into())
}

/// The pause between attempts to claim a call.
const PAUSE: Duration = Duration::from_millis(200);
