//! The server's half of a connection: the real messages and frames, over a pipe instead of a socket.
//!
//! It stands for the loops of `server/src/websocket`, which belong to sockets and tasks: one thing at a
//! time, in the order in which a simulator lets it happen.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use abide_engine::{Engine, Start, Update, Wanted};
use abide_schema::reducer::Caller;
use abide_schema::wire::ClientMessage;
use abide_server::protocol;

use crate::checks::bounds::FRAMES;

/// What is on its way between a client and its session.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) to_server: VecDeque<String>,
    pub(super) to_client: VecDeque<String>,
}

/// Shared by both ends.
pub(super) type Shared = Rc<RefCell<Pipe>>;

/// Work of the server that is under way.
pub(super) type Work<T> = Pin<Box<dyn Future<Output = T>>>;

/// Answers one message that stands for itself, as an HTTP request does.
pub(super) async fn answer(engine: Engine, caller: Caller, text: String) -> String {
    let message = match protocol::read(&text) {
        Ok(message) => message,
        Err((id, refusal)) => return protocol::error(id.as_deref(), &refusal),
    };
    let said = match message {
        ClientMessage::Call { id, reducer, args, request_id } => {
            let done = engine.call(&caller, &reducer, &args, request_id.as_deref()).await;
            done.map(|done| protocol::call(Some(&id), &done)).map_err(|why| (id, why))
        }
        ClientMessage::Batch { id, calls, request_id } => {
            let done = engine.batch(&caller, &calls, request_id.as_deref()).await;
            done.map(|done| protocol::batch(Some(&id), &done)).map_err(|why| (id, why))
        }
        ClientMessage::Sql { id, sql, params, as_of } => {
            let answer = engine.query(&caller, &sql, &params, as_of).await;
            answer.map(|answer| protocol::rows(Some(&id), &answer)).map_err(|why| (id, why))
        }
        other => panic!("nobody sends {other:?} by itself"),
    };
    said.unwrap_or_else(|(id, refusal)| protocol::error(Some(&id), &refusal))
}

/// What happens next on a connection.
enum Next {
    Told(Update),
    Asked(String),
}

/// Serves the subscriptions of a connection, for ever.
pub(super) async fn serve(engine: Engine, caller: Caller, pipe: Shared) {
    let mut connection = engine.connect(&caller);
    pipe.borrow_mut().to_client.push_back(protocol::hello(engine.durable_seq()));
    loop {
        let next = {
            let mut told = pin!(connection.next());
            poll_fn(|context| {
                if let Some(text) = pipe.borrow_mut().to_server.pop_front() {
                    return Poll::Ready(Next::Asked(text));
                }
                // Who does not read is not told.
                if pipe.borrow().to_client.len() >= FRAMES {
                    return Poll::Pending;
                }
                told.as_mut().poll(context).map(Next::Told)
            })
            .await
        };
        let text = match next {
            Next::Told(update) => protocol::update(&update),
            Next::Asked(text) => match protocol::read(&text) {
                Ok(ClientMessage::Subscribe {
                    id,
                    sql,
                    params,
                    from,
                    as_of,
                    checksum,
                    explain,
                }) => {
                    let start = Start::of(from, as_of).expect("a client gives one of both at most");
                    let wanted =
                        Wanted { id: &id, sql: &sql, params: &params, start, checksum, explain };
                    match connection.subscribe(&wanted).await {
                        Ok(()) => continue, // The answer is the next update.
                        Err(refusal) => protocol::error(Some(&id), &refusal),
                    }
                }
                Ok(ClientMessage::Unsubscribe { id }) => {
                    connection.unsubscribe(&id);
                    continue;
                }
                Ok(other) => panic!("nobody sends {other:?} here"),
                Err((id, refusal)) => protocol::error(id.as_deref(), &refusal),
            },
        };
        pipe.borrow_mut().to_client.push_back(text);
    }
}
