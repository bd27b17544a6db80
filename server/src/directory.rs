//! What the file says about credentials: whose a token is, and what they may. Asked once and remembered
//! until any of the tables concerned changes, which the engine tells before anybody is told of the
//! change: what is remembered is never older than an answer that somebody had.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_engine::Engine;
use abide_engine::credentials::{RoleEntry, TokenEntry, disables};
use abide_schema::caller::Caller;
use abide_schema::{Code, Refusal, Row, Seq, Value, reducer};
use serde_json::{Map, Value as JsonValue};
use tokio::sync::{Semaphore, watch};

use crate::limits;

/// What is remembered, and of which state of the tables.
#[derive(Debug, Default)]
struct Known {
    state: Seq,
    asks: Option<bool>,
    tokens: HashMap<String, Arc<TokenEntry>>,
    /// Ids that no token has. Beside the others, so that whoever makes some up drives no good one out.
    unknown: HashSet<String>,
}

impl Known {
    fn remember(&mut self, id: &str, entry: Option<&Arc<TokenEntry>>) {
        match entry {
            Some(entry) => {
                if self.tokens.len() >= limits::KNOWN_TOKENS {
                    self.tokens.clear();
                }
                self.tokens.insert(id.to_owned(), Arc::clone(entry));
            }
            None => {
                if self.unknown.len() >= limits::UNKNOWN_TOKENS {
                    self.unknown.clear();
                }
                self.unknown.insert(id.to_owned());
            }
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    engine: Engine,
    spec: reducer::Directory,
    changed: watch::Receiver<Seq>,
    known: Arc<Mutex<Known>>,
    /// Who may look up a token that is not remembered: one at a time, and so many that wait. Made-up tokens
    /// cost one of the readers at most, and nothing to whose token is remembered.
    lookups: Arc<Lookups>,
}

/// See [`Directory`].
#[derive(Debug)]
struct Lookups {
    turn: Semaphore,
    waiting: AtomicUsize,
}

/// One who waits for a lookup.
struct Waiting(Arc<Lookups>);

impl Lookups {
    fn new() -> Lookups {
        Lookups { turn: Semaphore::new(1), waiting: AtomicUsize::new(0) }
    }

    fn wait(self: &Arc<Lookups>) -> Result<Waiting, Refusal> {
        let waiting = Waiting(Arc::clone(self));
        if self.waiting.fetch_add(1, Ordering::Relaxed) < limits::TOKEN_LOOKUPS {
            return Ok(waiting);
        }
        Err(Refusal::new(Code::Overloaded, "too many tokens wait to be looked up")
            .hint("try again in a moment"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Directory {
    /// That of an engine, if its modules have one.
    pub(crate) fn of(engine: &Engine) -> Option<Directory> {
        let spec = engine.directory()?;
        let (changed, known) = (engine.watch_tables(spec.tables), Arc::default());
        let lookups = Arc::new(Lookups::new());
        Some(Directory { engine: engine.clone(), spec, changed, known, lookups })
    }

    /// The state of the tables: another number, another state.
    pub(crate) fn state(&self) -> Seq {
        *self.changed.borrow()
    }

    /// Returns when the tables are in another state than that.
    pub(crate) async fn changed_since(&self, state: Seq) {
        let mut changed = self.changed.clone();
        if changed.wait_for(|now| *now != state).await.is_err() {
            // The engine is gone; so will the connection be.
            std::future::pending::<()>().await;
        }
    }

    /// Whether credentials are asked for: once there has been a token.
    pub(crate) async fn asks(&self) -> Result<bool, Refusal> {
        let state = self.state();
        if let Some(asks) = self.at(state).asks {
            return Ok(asks);
        }
        let rows = self.ask(self.spec.asks, Map::new()).await?;
        let asks = rows.first().is_some_and(|row| row.first() == Some(&Value::Integer(1)));
        self.at(state).asks = Some(asks);
        Ok(asks)
    }

    /// The token of an id.
    pub(crate) async fn token(&self, id: &str) -> Result<Option<Arc<TokenEntry>>, Refusal> {
        if let Some(remembered) = self.remembered(self.state(), id) {
            return Ok(remembered);
        }
        let (waiting, directory, id) = (self.lookups.wait()?, self.clone(), id.to_owned());
        // In a task of its own: who asks may be left half-way (by a `select!` that goes on with something
        // else), and would keep the turn, and everybody else waiting.
        let lookup = tokio::spawn(async move {
            let _waiting = waiting;
            directory.look_up(&id).await
        });
        lookup.await.unwrap_or_else(|why| {
            tracing::error!(%why, "a token's lookup broke down");
            Err(Refusal::new(Code::Internal, "the credentials cannot be looked up"))
        })
    }

    /// Asks the file, when it is this lookup's turn.
    async fn look_up(&self, id: &str) -> Result<Option<Arc<TokenEntry>>, Refusal> {
        let _turn = self.lookups.turn.acquire().await.ok();
        // Whoever was before may have asked for the same.
        let state = self.state();
        if let Some(remembered) = self.remembered(state, id) {
            return Ok(remembered);
        }
        let rows = self.ask(self.spec.token, named("id", id)).await?;
        let entry = match rows.first() {
            Some(row) => {
                let entry = TokenEntry::from_row(id, row, state);
                Some(Arc::new(entry.ok_or_else(unreadable)?))
            }
            None => None,
        };
        let mut known = self.at(state);
        // What was read may be of a later state than the one that it would be remembered for.
        if self.state() == state {
            known.remember(id, entry.as_ref());
        }
        Ok(entry)
    }

    /// What is remembered of an id: its token, or that there is none.
    fn remembered(&self, state: Seq, id: &str) -> Option<Option<Arc<TokenEntry>>> {
        let known = self.at(state);
        let entry = known.tokens.get(id).map(|entry| Some(Arc::clone(entry)));
        entry.or_else(|| known.unknown.contains(id).then_some(None))
    }

    /// What a role adds; nothing where it is built in.
    pub(crate) async fn role(&self, name: &str) -> Result<RoleEntry, Refusal> {
        let rows = self.ask(self.spec.role, named("name", name)).await?;
        let Some(row) = rows.first() else { return Ok(RoleEntry::default()) };
        RoleEntry::from_row(row).ok_or_else(unreadable)
    }

    /// Whether an identity of the caller's id disables it.
    pub(crate) async fn disables(&self, caller: &Caller) -> Result<bool, Refusal> {
        let rows = self.ask(self.spec.disabled, named("id", caller.id())).await?;
        Ok(rows.first().is_some_and(|row| disables(row, caller)))
    }

    async fn ask(&self, sql: &str, params: Map<String, JsonValue>) -> Result<Vec<Row>, Refusal> {
        let answer = self.engine.look_up(sql, &params).await;
        answer.map(|answer| answer.rows).map_err(|why| match why.code {
            Code::Overloaded | Code::Poisoned => why,
            _ => {
                tracing::error!(%why, "credentials cannot be looked up");
                Refusal::new(Code::Internal, "the credentials cannot be looked up")
            }
        })
    }

    /// What is remembered of a state.
    fn at(&self, state: Seq) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.state != state {
            *known = Known { state, ..Known::default() };
        }
        known
    }
}

fn named(name: &str, value: &str) -> Map<String, JsonValue> {
    [(name.to_owned(), JsonValue::from(value))].into_iter().collect()
}

fn unreadable() -> Refusal {
    tracing::error!("a row of credentials is not of the form that it should have");
    Refusal::new(Code::Internal, "the credentials cannot be read")
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use abide_engine::{Config, Engine};
    use futures_util::future::join_all;
    use serde_json::json;

    use super::*;

    async fn token(engine: &Engine, id: &str) {
        let hash = "0".repeat(64);
        let args = json!({"id": id, "identity_id": "ann", "hash": hash, "last_four": "0000"});
        engine.call(&Caller::local(), "create_token", &args, None).await.expect("it is made");
    }

    /// A connection looked its token up again in one branch of a `select!`, and went on with a message in another,
    /// which asked for the same: the first kept the turn and was not polled any more, and nobody who came
    /// later was let in.
    #[tokio::test]
    async fn who_is_left_half_way_keeps_no_turn() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("a.db"), config).expect("an engine");
        let directory = Directory::of(&engine).expect("there is one");
        for left in 0..20 {
            let (one, another) = (format!("one{left}"), format!("another{left}"));
            let mut half_way = std::pin::pin!(directory.token(&one));
            let begun = poll_fn(|context| Poll::Ready(half_way.as_mut().poll(context))).await;
            assert!(begun.is_pending(), "it has to be looked up");
            let patience = std::time::Duration::from_secs(30);
            let looked_up = tokio::time::timeout(patience, directory.token(&another)).await;
            assert!(looked_up.expect("it has its turn").expect("it is asked").is_none());
        }
        engine.close();
    }

    /// Whoever made up tokens had the file asked for each of them, again and again: they cost as much as
    /// good ones, and took the readers from queries.
    #[tokio::test]
    async fn tokens_that_are_made_up_drive_nobody_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("a.db"), config).expect("an engine");
        let ann = json!({"id": "ann", "role": "app"});
        engine.call(&Caller::local(), "create_identity", &ann, None).await.expect("it is made");
        token(&engine, "goodgood").await;
        let directory = Directory::of(&engine).expect("there is one");
        assert!(directory.token("goodgood").await.expect("it is known").is_some());

        let made_up: Vec<String> = (0..10 * limits::TOKEN_LOOKUPS).map(|n| n.to_string()).collect();
        let told = join_all(made_up.iter().map(|id| directory.token(id))).await;
        let refused = told.iter().filter(|told| told.is_err()).count();
        assert_eq!(refused, 9 * limits::TOKEN_LOOKUPS, "so many wait and no more");
        assert!(told.into_iter().flatten().all(|entry| entry.is_none()));
        assert_eq!(directory.at(directory.state()).unknown.len(), limits::TOKEN_LOOKUPS);
        assert!(directory.remembered(directory.state(), "goodgood").is_some(), "it stays");
        assert!(
            directory.remembered(directory.state(), "0").is_some(),
            "it is not asked for again"
        );

        token(&engine, "newnewnew").await;
        assert!(directory.token("newnewnew").await.expect("it is known").is_some());
        assert!(directory.remembered(directory.state(), "0").is_none(), "of another state");
        engine.close();
    }
}
