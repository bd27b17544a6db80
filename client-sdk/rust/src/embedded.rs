//! The engine in this process: no sockets, no JSON but what the engine itself speaks.
//!
//! A subscription is a connection of its own, so a consumer that does not ask for updates keeps
//! nobody waiting: the engine drops what it was to be told and catches it up when it asks again.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use abide_engine::{Config, Connection, Engine, Update};
use abide_schema::reducer::Caller;
use abide_schema::wire::CallResult;
use abide_schema::{Code, Module, Refusal, Row, Seq};

use crate::Error;
use crate::backend::{Ask, Attempt, Event, Outcome, Query, Reply, Source};
use crate::rows::Changes;

/// The subscription's name on its own connection.
const ID: &str = "q";

#[derive(Debug)]
pub(crate) struct Embedded {
    engine: Engine,
    caller: Caller,
    closed: Arc<AtomicBool>,
}

impl Embedded {
    pub(crate) fn open(path: &Path, modules: Vec<Module>) -> Result<Embedded, Error> {
        let opened = Engine::open(path, Config::new(modules));
        let engine = opened.map_err(|why| why.to_refusal())?;
        Ok(Embedded::over(engine))
    }

    pub(crate) fn over(engine: Engine) -> Embedded {
        Embedded { engine, caller: Caller::new("embedded"), closed: Arc::default() }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) async fn ask(&self, ask: &Ask) -> Attempt {
        let outcome = self.answer(ask).await;
        Attempt { outcome: outcome.map_err(|refusal| self.error(refusal)), uncertain: false }
    }

    async fn answer(&self, ask: &Ask) -> Result<Reply, Refusal> {
        let Embedded { engine, caller, .. } = self;
        Ok(match ask {
            Ask::Call { reducer, args, request_id } => {
                let done = engine.call(caller, reducer, args, Some(request_id)).await?;
                let result = Outcome::Text(done.result);
                Reply::Called { seq: done.seq, duplicate: done.duplicate, result }
            }
            Ask::Batch { calls, request_id } => {
                let done = engine.batch(caller, calls, Some(request_id)).await?;
                let results = done.results.into_iter().map(|done| {
                    let result = serde_json::from_str(&done.result).map_err(|_| not_json())?;
                    Ok(CallResult { seq: done.seq, result })
                });
                let results = results.collect::<Result<_, Refusal>>()?;
                Reply::Batch { seq: done.seq, duplicate: done.duplicate, results }
            }
            Ask::Sql { sql, params, as_of } => {
                let answer = engine.query(sql, params, *as_of).await?;
                Reply::Rows { seq: answer.seq, columns: answer.columns, rows: answer.rows }
            }
        })
    }

    pub(crate) async fn subscribe(
        &self,
        query: Query,
        from: Option<Seq>,
    ) -> Result<Box<dyn Source>, Error> {
        let mut connection = self.engine.connect();
        let begun = connection.subscribe(ID, &query.sql, &query.params, from).await;
        begun.map_err(|refusal| self.error(refusal))?;
        Ok(Box::new(Pumped {
            next: next(connection),
            parts: Vec::new(),
            closed: self.closed.clone(),
        }))
    }

    pub(crate) async fn close(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let engine = self.engine.clone();
        if tokio::task::spawn_blocking(move || engine.close()).await.is_err() {
            tracing::error!("the engine did not close in order");
        }
    }

    fn error(&self, refusal: Refusal) -> Error {
        closed_or(&self.closed, refusal)
    }
}

/// What an engine refuses because it was closed here is told as that.
fn closed_or(closed: &AtomicBool, refusal: Refusal) -> Error {
    match refusal.code {
        Code::Overloaded if closed.load(Ordering::Relaxed) => Error::Closed,
        _ => Error::Refused(refusal),
    }
}

fn not_json() -> Refusal {
    Refusal::new(Code::Internal, "a reducer's result is not JSON")
}

type Next = Pin<Box<dyn Future<Output = (Connection, Update)> + Send + Sync>>;

/// The wait for an update, together with the connection, so that it can be given up and taken up.
fn next(mut connection: Connection) -> Next {
    Box::pin(async move {
        let update = connection.next().await;
        (connection, update)
    })
}

struct Pumped {
    next: Next,
    /// The parts of a snapshot that have come.
    parts: Vec<Row>,
    closed: Arc<AtomicBool>,
}

impl Source for Pumped {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            let (connection, update) = ready!(self.next.as_mut().poll(context));
            self.next = next(connection);
            if let Some(event) = self.event(update) {
                return Poll::Ready(event);
            }
        }
    }
}

impl Pumped {
    fn event(&mut self, update: Update) -> Option<Event> {
        match update {
            Update::Snapshot(part) => {
                self.parts.extend(part.rows);
                if part.more {
                    return None;
                }
                let rows = std::mem::take(&mut self.parts);
                Some(Event::Snapshot { seq: part.seq, shape: part.shape, rows })
            }
            Update::Delta { to, changes, .. } => {
                let Some((_, delta)) = changes.into_iter().next() else {
                    return Some(Event::Delta { to, changes: Changes::default() });
                };
                Some(match delta.rows() {
                    Ok(delta) => Event::Delta {
                        to,
                        changes: Changes {
                            deletes: delta.deletes.clone(),
                            inserts: delta.inserts.clone(),
                            updates: delta.updates.clone(),
                        },
                    },
                    Err(refusal) => Event::Ended(closed_or(&self.closed, refusal.clone())),
                })
            }
            Update::Progress { seq } => Some(Event::Seen(seq)),
            // A snapshot follows.
            Update::Error { refusal, .. } if refusal.code == Code::Refetch => None,
            Update::Error { refusal, .. } => Some(Event::Ended(closed_or(&self.closed, refusal))),
        }
    }
}
