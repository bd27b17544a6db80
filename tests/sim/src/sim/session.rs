//! The server's side of a connection: the real messages and frames, over a pipe instead of a
//! socket.
//!
//! It replaces the loops of `server/src/websocket`, which depend on sockets and tasks: one step at
//! a time, in the order of the simulator.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use abide_engine::{CommittedBatch, Engine, Start, SubscribeRequest, Update};
use abide_schema::reducer::Caller;
use abide_schema::wire::{BatchCall, ClientMessage};
use abide_schema::{CallArguments, Refusal};
use abide_server::protocol;

use crate::checks::bounds::FRAMES;

/// Messages in flight between a client and its session.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) to_server: VecDeque<String>,
    pub(super) to_client: VecDeque<String>,
}

/// Shared by both ends.
pub(super) type Shared = Rc<RefCell<Pipe>>;

/// Pending work of the server.
pub(super) type PendingWork<T> = Pin<Box<dyn Future<Output = T>>>;

/// Answers one stand-alone message, as an HTTP request.
pub(super) async fn answer(engine: Engine, caller: Caller, text: String) -> String {
    let message = match protocol::read(&text) {
        Ok(message) => message,
        Err((id, refusal)) => return protocol::encode_error(id.as_deref(), &refusal),
    };
    let reply = match message {
        ClientMessage::Call { id, reducer, args, request_id } => {
            let done = engine.call(&caller, &reducer, args, request_id.as_deref()).await;
            done.map(|done| protocol::encode_call(Some(&id), &done)).map_err(|why| (id, why))
        }
        ClientMessage::Batch { id, calls, request_id } => {
            let request_id = request_id.as_deref();
            // Half of the batches are recorded as the steps of agents are.
            let done = if id.ends_with(['0', '2', '4', '6', '8']) {
                apply(&engine, &caller, calls, request_id).await
            } else {
                engine.batch(&caller, calls, request_id).await
            };
            done.map(|done| protocol::encode_batch(Some(&id), &done)).map_err(|why| (id, why))
        }
        ClientMessage::Sql { id, sql, params, as_of } => {
            let answer = engine.query(&caller, &sql, &params, as_of).await;
            answer.map(|answer| protocol::encode_rows(&id, &answer)).map_err(|why| (id, why))
        }
        other => panic!("no client sends {other:?} separately"),
    };
    reply.unwrap_or_else(|(id, refusal)| protocol::encode_error(Some(&id), &refusal))
}

/// Applies a batch, and waits separately until it is durable: together they promise what [`Engine::batch`] promises.
async fn apply(
    engine: &Engine,
    caller: &Caller,
    calls: Vec<BatchCall<CallArguments>>,
    request_id: Option<&str>,
) -> Result<CommittedBatch, Refusal> {
    let applied = engine.apply(caller, calls, request_id).await?;
    engine.until_durable(applied.seq).await?;
    Ok(applied)
}

/// The next event on a connection.
enum SessionEvent {
    Told(Update),
    Asked(String),
}

/// Serves the subscriptions of a connection.
pub(super) async fn serve(engine: Engine, caller: Caller, pipe: Shared) {
    let mut connection = engine.connect(&caller);
    pipe.borrow_mut().to_client.push_back(protocol::encode_hello(&engine, &caller));
    loop {
        let next = {
            let mut output = pin!(connection.next());
            poll_fn(|context| {
                if let Some(text) = pipe.borrow_mut().to_server.pop_front() {
                    return Poll::Ready(SessionEvent::Asked(text));
                }
                // A client that does not read receives nothing more.
                if pipe.borrow().to_client.len() >= FRAMES {
                    return Poll::Pending;
                }
                output.as_mut().poll(context).map(SessionEvent::Told)
            })
            .await
        };
        let text = match next {
            SessionEvent::Told(update) => protocol::encode_update(&update),
            SessionEvent::Asked(text) => match protocol::read(&text) {
                Ok(ClientMessage::Subscribe {
                    id,
                    sql,
                    params,
                    after_seq,
                    timeline,
                    as_of,
                    checksum,
                    explain,
                }) => {
                    let start = Start::from_message(after_seq, as_of)
                        .expect("a client sends at most one of both");
                    let wanted = SubscribeRequest {
                        id: &id,
                        sql: &sql,
                        params: &params,
                        start,
                        timeline: timeline.as_deref(),
                        checksum,
                        explain,
                    };
                    match connection.subscribe(&wanted).await {
                        Ok(()) => continue, // The response is the next update.
                        Err(refusal) => protocol::encode_error(Some(&id), &refusal),
                    }
                }
                Ok(ClientMessage::Unsubscribe { id }) => {
                    connection.unsubscribe(&id);
                    continue;
                }
                Ok(other) => panic!("no client sends {other:?} here"),
                Err((id, refusal)) => protocol::encode_error(id.as_deref(), &refusal),
            },
        };
        pipe.borrow_mut().to_client.push_back(text);
    }
}
