//! An app: it has one conversation, appends its messages, requests tool calls and handoffs, and watches its own
//! session like a user interface.

use abide_client::Error;
use abide_client::rows::{AgentState, HandoffRequest};
use abide_schema::{Code, Refusal};
use serde_json::{Value as JsonValue, json};

use super::context::{Client, DemoContext, Live};
use super::recording::Call;
use super::script::Part;
use crate::failure::Failure;

/// Runs one conversation to its end.
///
/// # Errors
/// A call is refused, or the messages that the app received differ from those it wrote.
pub(crate) async fn run(context: &DemoContext, part: &Part) -> Result<(), Failure> {
    let client = context.connect().await?;
    client.call::<JsonValue>("create_session", part.session_arguments()).await?;
    let sql = "SELECT * FROM agent_state WHERE session_id = :session AND kind = 'message' \
                ORDER BY id";
    let chat = client.watch(sql, Some(&part.session)).await?;
    tokio::try_join!(write_conversation(&client, part), read_conversation(part, chat))?;
    if part.is_complete() {
        let arguments = json!({"session_id": part.session});
        client.call::<JsonValue>("complete_session", arguments).await?;
    }
    client.close().await;
    context.ledger.update_counts(|counts| counts.sessions += 1);
    Ok(())
}

/// Writes everything in the recorded order. A tool's message is appended when a worker has completed its call, and
/// a supervisor's answer when the handoff is resolved.
async fn write_conversation(client: &Client<'_>, part: &Part) -> Result<(), Failure> {
    let recording = &part.recording;
    let session = Some(part.session.as_str());
    let sql = "SELECT call_id, status FROM tool_calls WHERE session_id = :session";
    let mut calls = client.watch(sql, session).await?;
    let sql = "SELECT id, status FROM handoff_requests WHERE session_id = :session";
    let mut handoffs = client.watch(sql, session).await?;

    for (at, message) in recording.messages.iter().enumerate() {
        match message.answers.map(|call| &recording.calls[call]) {
            Some(call) if call.is_handoff() => {
                // A session can be handed off only when no tool is running.
                wait_until_completed(&mut calls, part, |other| other.place < call.place).await?;
                let handoff = request_handoff(client, part, call).await?;
                wait_for_rows(&mut handoffs, |rows| {
                    rows.iter().any(|(id, status)| *id == handoff.id && status == "resolved")
                })
                .await?;
            }
            Some(call) => {
                wait_until_completed(&mut calls, part, |other| other.place == call.place).await?
            }
            None => {}
        }
        client.call::<JsonValue>("append_message", part.message_arguments(at)).await?;
        for call in recording.calls_of(at).filter(|call| !call.is_handoff()) {
            client.call::<JsonValue>("request_tool_call", part.call_arguments(call)).await?;
        }
    }
    // A session has one open handoff at a time: of several handoffs without an answer, only the first is requested.
    let unanswered =
        recording.calls.iter().find(|call| call.is_handoff() && call.outcome.is_none());
    if let Some(call) = unanswered {
        request_handoff(client, part, call).await?;
    }
    Ok(())
}

async fn request_handoff(
    client: &Client<'_>,
    part: &Part,
    call: &Call,
) -> Result<HandoffRequest, Error> {
    client.call("request_supervisor_handoff", part.handoff_arguments(call)).await
}

/// Waits until every such tool call of the part that has a result is completed.
async fn wait_until_completed(
    calls: &mut Live<'_>,
    part: &Part,
    which: impl Fn(&Call) -> bool,
) -> Result<(), Error> {
    let awaited: Vec<String> = part
        .recording
        .calls
        .iter()
        .filter(|call| !call.is_handoff() && call.outcome.is_some() && which(call))
        .map(|call| call.id(&part.session))
        .collect();
    wait_for_rows(calls, |rows| awaited.iter().all(|id| is_completed(rows, id))).await
}

/// Whether a call has ended, according to rows of an id and a status.
fn is_completed(rows: &[(String, String)], id: &str) -> bool {
    let row = rows.iter().find(|(call_id, _)| call_id == id);
    row.is_some_and(|(_, status)| status == "succeeded" || status == "failed")
}

/// Waits until the rows, each an id and a status, are as expected.
async fn wait_for_rows(
    live: &mut Live<'_>,
    are_complete: impl Fn(&[(String, String)]) -> bool,
) -> Result<(), Error> {
    while !are_complete(&live.rows()?) {
        live.next().await?;
    }
    Ok(())
}

/// Follows the conversation until it is complete, then compares it with the recording.
async fn read_conversation(part: &Part, mut chat: Live<'_>) -> Result<(), Failure> {
    let messages = &part.recording.messages;
    while chat.len() < messages.len() {
        chat.next().await?;
    }
    let rows: Vec<AgentState> = chat.rows()?;
    let pairs = messages.iter().zip(&rows);
    let same = pairs.filter(|(message, row)| message.matches_row(row)).count();
    if same == messages.len() && same == rows.len() {
        return Ok(());
    }
    let session = &part.session;
    let all = messages.len();
    let detail = format!("the app received {same} of the {all} messages of {session} unchanged");
    Err(Failure::Unverified(Refusal::new(Code::Conflict, detail)))
}
