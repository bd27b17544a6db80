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
    tokio::try_join!(write(&client, part), read(part, chat))?;
    if part.ends() {
        let arguments = json!({"session_id": part.session});
        client.call::<JsonValue>("complete_session", arguments).await?;
    }
    client.close().await;
    context.ledger.count(|counts| counts.sessions += 1);
    Ok(())
}

/// Writes everything in the recorded order. A tool's message is appended when a worker has completed its call, and
/// a supervisor's answer when the handoff is resolved.
async fn write(client: &Client<'_>, part: &Part) -> Result<(), Failure> {
    let recording = &part.recording;
    let session = Some(part.session.as_str());
    let calls = "SELECT call_id, status FROM tool_calls WHERE session_id = :session";
    let mut calls = client.watch(calls, session).await?;
    let handoffs = "SELECT id, status FROM handoff_requests WHERE session_id = :session";
    let mut handoffs = client.watch(handoffs, session).await?;

    for (at, message) in recording.messages.iter().enumerate() {
        match message.answers.map(|call| &recording.calls[call]) {
            Some(call) if call.is_handoff() => {
                // A session can be handed off only when no tool is running.
                settled(&mut calls, part, |other| other.place < call.place).await?;
                let handoff = request_handoff(client, part, call).await?;
                until(&mut handoffs, |rows| {
                    rows.iter().any(|(id, status)| *id == handoff.id && status == "resolved")
                })
                .await?;
            }
            Some(call) => settled(&mut calls, part, |other| other.place == call.place).await?,
            None => {}
        }
        client.call::<JsonValue>("append_message", part.message_arguments(at)).await?;
        for call in recording.calls_of(at).filter(|call| !call.is_handoff()) {
            client.call::<JsonValue>("request_tool_call", part.call_arguments(call)).await?;
        }
    }
    // A session has one open handoff at a time: of several handoffs without an answer, only the first is requested.
    let open = |call: &&Call| call.is_handoff() && call.outcome.is_none();
    if let Some(call) = recording.calls.iter().find(open) {
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
async fn settled(
    calls: &mut Live<'_>,
    part: &Part,
    which: impl Fn(&Call) -> bool,
) -> Result<(), Error> {
    let awaited = part.recording.calls.iter();
    let awaited = awaited.filter(|call| !call.is_handoff() && call.outcome.is_some());
    let awaited: Vec<String> =
        awaited.filter(|call| which(call)).map(|call| call.id(&part.session)).collect();
    let is_done = |rows: &[(String, String)], id: &String| {
        let row = rows.iter().find(|(call_id, _)| call_id == id);
        row.is_some_and(|(_, status)| status == "succeeded" || status == "failed")
    };
    until(calls, |rows| awaited.iter().all(|id| is_done(rows, id))).await
}

/// Waits until the rows, each an id and a status, are as expected.
async fn until(
    live: &mut Live<'_>,
    wanted: impl Fn(&[(String, String)]) -> bool,
) -> Result<(), Error> {
    while !wanted(&live.rows()?) {
        live.next().await?;
    }
    Ok(())
}

/// Follows the conversation until it is complete, then compares it with the recording.
async fn read(part: &Part, mut chat: Live<'_>) -> Result<(), Failure> {
    let messages = &part.recording.messages;
    while chat.len() < messages.len() {
        chat.next().await?;
    }
    let rows: Vec<AgentState> = chat.rows()?;
    let pairs = messages.iter().zip(&rows);
    let same = pairs.filter(|(message, row)| message.is_held_by(row)).count();
    if same == messages.len() && same == rows.len() {
        return Ok(());
    }
    let session = &part.session;
    let all = messages.len();
    let detail = format!("the app received {same} of the {all} messages of {session} unchanged");
    Err(Failure::Unverified(Refusal::new(Code::Conflict, detail)))
}
