//! An app: it has one conversation, writes what is said, asks for tools and people, and watches its
//! own session as a user interface would.

use abide_client::{AgentState, Error, HandoffRequest};
use abide_schema::{Code, Refusal};
use serde_json::{Value as JsonValue, json};

use super::context::{Client, DemoContext, Live};
use super::recording::Call;
use super::script::Part;
use crate::failure::Failure;

/// Plays one conversation to its end.
///
/// # Errors
/// A call is refused, or what the app saw is not what it wrote.
pub(crate) async fn run(context: &DemoContext, part: &Part) -> Result<(), Failure> {
    let client = context.connect().await?;
    client.call::<JsonValue>("create_session", part.session_arguments()).await?;
    let said = "SELECT * FROM agent_state WHERE session_id = :session AND kind = 'message' \
                ORDER BY id";
    let chat = client.watch(said, Some(&part.session)).await?;
    tokio::try_join!(write(&client, part), read(part, chat))?;
    if part.ends() {
        let arguments = json!({"session_id": part.session});
        client.call::<JsonValue>("complete_session", arguments).await?;
    }
    client.close().await;
    context.ledger.count(|counts| counts.sessions += 1);
    Ok(())
}

/// Says everything in the recorded order. A tool's message is said when its call has been run by
/// some worker, and a supervisor's answer when there is one.
async fn write(client: &Client<'_>, part: &Part) -> Result<(), Failure> {
    let (recording, session) = (&part.recording, Some(part.session.as_str()));
    let calls = "SELECT call_id, status FROM tool_calls WHERE session_id = :session";
    let mut calls = client.watch(calls, session).await?;
    let handoffs = "SELECT id, status FROM handoff_requests WHERE session_id = :session";
    let mut handoffs = client.watch(handoffs, session).await?;

    for (at, message) in recording.messages.iter().enumerate() {
        match message.answers.map(|call| &recording.calls[call]) {
            Some(call) if call.is_handoff() => {
                // Whoever is asked to help finds no tool still running.
                settled(&mut calls, part, |other| other.place < call.place).await?;
                let handoff = request_handoff(client, part, call).await?;
                let is_it =
                    |(id, status): &(String, String)| *id == handoff.id && status == "resolved";
                until(&mut handoffs, |rows| rows.iter().any(is_it)).await?;
            }
            Some(call) => settled(&mut calls, part, |other| other.place == call.place).await?,
            None => {}
        }
        client.call::<JsonValue>("append_message", part.message_arguments(at)).await?;
        for call in recording.calls_of(at).filter(|call| !call.is_handoff()) {
            client.call::<JsonValue>("request_tool_call", part.call_arguments(call)).await?;
        }
    }
    // A session is in one pair of hands at a time: of handoffs without an answer the first stands.
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

/// Waits until every such tool call of the part that has a result has got it.
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

/// Waits until the rows, an id and a status each, are as wanted.
async fn until(
    live: &mut Live<'_>,
    wanted: impl Fn(&[(String, String)]) -> bool,
) -> Result<(), Error> {
    while !wanted(&live.rows()?) {
        live.next().await?;
    }
    Ok(())
}

/// Follows the conversation until all of it is there, then holds it against the recording.
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
    let (session, all) = (&part.session, messages.len());
    let detail =
        format!("of the {all} messages of {session}, the app saw {same} as they were said");
    Err(Failure::Unverified(Refusal::new(Code::Conflict, detail)))
}
