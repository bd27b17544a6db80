//! Tokens, roles and disabled identities from the database. Results are cached until one of the credential tables
//! changes, which the engine announces before any reply to that change: the cache is never older than an
//! acknowledged change.

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

/// Cached results, for one state of the tables.
#[derive(Debug, Default)]
struct CredentialCache {
    state: Seq,
    required: Option<bool>,
    tokens: HashMap<String, Arc<TokenEntry>>,
    /// Unknown ids. Separate from known tokens, so that made-up ids cannot evict them.
    unknown: HashSet<String>,
    /// Ids of tokens that were known at an earlier state.
    former: HashSet<String>,
}

impl CredentialCache {
    fn remember(&mut self, id: &str, entry: Option<&Arc<TokenEntry>>) {
        match entry {
            Some(entry) => {
                if self.tokens.len() >= limits::KNOWN_TOKENS {
                    self.tokens.clear();
                }
                self.tokens.insert(id.to_owned(), Arc::clone(entry));
            }
            None => {
                self.former.remove(id);
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
pub(crate) struct CredentialStore {
    engine: Engine,
    spec: reducer::CredentialQueries,
    changed: watch::Receiver<Seq>,
    known: Arc<Mutex<CredentialCache>>,
    /// Limits lookups of uncached tokens: one at a time, and a bounded number of waiters. Made-up tokens
    /// use one reader at most, and do not delay cached tokens.
    lookups: Arc<LookupSlots>,
    /// Limits lookups of tokens that were known before a table changed. Otherwise a change by any tenant's admin would put the
    /// callers of all tenants into one queue with made-up tokens.
    renewals: Arc<LookupSlots>,
}

/// See [`CredentialStore`].
#[derive(Debug)]
struct LookupSlots {
    permit: Semaphore,
    waiting: AtomicUsize,
}

/// A waiter for a lookup.
struct LookupWaiter(Arc<LookupSlots>);

impl LookupSlots {
    fn new() -> LookupSlots {
        LookupSlots { permit: Semaphore::new(1), waiting: AtomicUsize::new(0) }
    }

    fn wait(self: &Arc<LookupSlots>) -> Result<LookupWaiter, Refusal> {
        let waiting = LookupWaiter(Arc::clone(self));
        if self.waiting.fetch_add(1, Ordering::Relaxed) < limits::TOKEN_LOOKUPS {
            return Ok(waiting);
        }
        Err(Refusal::new(Code::Overloaded, "the server is checking too many tokens at once")
            .hint("try again in a moment"))
    }
}

impl Drop for LookupWaiter {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CredentialStore {
    /// Returns the directory of an engine, if its modules declare one.
    pub(crate) fn for_engine(engine: &Engine) -> Option<CredentialStore> {
        let spec = engine.credential_queries()?;
        let changed = engine.watch_tables(spec.tables);
        let known = Arc::default();
        let lookups = Arc::new(LookupSlots::new());
        let renewals = Arc::new(LookupSlots::new());
        Some(CredentialStore { engine: engine.clone(), spec, changed, known, lookups, renewals })
    }

    /// Returns the state of the tables; it differs for different contents.
    pub(crate) fn state(&self) -> Seq {
        *self.changed.borrow()
    }

    /// Returns when the state of the tables differs from the given one.
    pub(crate) async fn changed_since(&self, state: Seq) {
        let mut changed = self.changed.clone();
        if changed.wait_for(|now| *now != state).await.is_err() {
            // The engine has ended; so will the connection.
            std::future::pending::<()>().await;
        }
    }

    /// Returns `true` if credentials are required: once a token has been created.
    pub(crate) async fn requires_credentials(&self) -> Result<bool, Refusal> {
        let state = self.state();
        if let Some(required) = self.lock_cache(state).required {
            return Ok(required);
        }
        let rows = self.query(self.spec.requires_credentials, Map::new()).await?;
        let required = rows.first().is_some_and(|row| row.first() == Some(&Value::Integer(1)));
        self.lock_cache(state).required = Some(required);
        Ok(required)
    }

    /// Looks up a token by id.
    pub(crate) async fn find_token(&self, id: &str) -> Result<Option<Arc<TokenEntry>>, Refusal> {
        if let Some(remembered) = self.cached(self.state(), id) {
            return Ok(remembered);
        }
        let is_former = self.lock_cache(self.state()).former.contains(id);
        let slots = Arc::clone(if is_former { &self.renewals } else { &self.lookups });
        let waiting = slots.wait()?;
        let credential_queries = self.clone();
        let id = id.to_owned();
        // In a separate task: a caller can abandon its future (in a `select!`), and would otherwise keep the
        // lookup turn and block all others.
        let lookup = tokio::spawn(async move {
            let _waiting = waiting;
            credential_queries.look_up(&id, &slots).await
        });
        lookup.await.unwrap_or_else(|why| {
            tracing::error!(name: "token_lookup_failed", %why, "a token lookup failed");
            Err(Refusal::new(Code::Internal, "the credentials cannot be looked up"))
        })
    }

    /// Queries the database, when it is this lookup's turn.
    async fn look_up(
        &self,
        id: &str,
        slots: &LookupSlots,
    ) -> Result<Option<Arc<TokenEntry>>, Refusal> {
        let _turn = slots.permit.acquire().await.ok();
        // The previous lookup may have been for the same id.
        let state = self.state();
        if let Some(remembered) = self.cached(state, id) {
            return Ok(remembered);
        }
        let rows = self.query(self.spec.token, one_parameter("id", id)).await?;
        let entry = match rows.first() {
            Some(row) => {
                let entry = TokenEntry::from_row(id, row, state);
                Some(Arc::new(entry.ok_or_else(unreadable_row)?))
            }
            None => None,
        };
        let mut known = self.lock_cache(state);
        // The result may belong to a later state; then it must not be cached.
        if self.state() == state {
            known.remember(id, entry.as_ref());
        }
        Ok(entry)
    }

    /// Returns the cached result for an id: its token, or that it is unknown.
    fn cached(&self, state: Seq, id: &str) -> Option<Option<Arc<TokenEntry>>> {
        let known = self.lock_cache(state);
        let entry = known.tokens.get(id).map(|entry| Some(Arc::clone(entry)));
        entry.or_else(|| known.unknown.contains(id).then_some(None))
    }

    /// Returns the permissions of a role; `None` for a built-in role.
    pub(crate) async fn find_role(&self, name: &str) -> Result<RoleEntry, Refusal> {
        let rows = self.query(self.spec.role, one_parameter("name", name)).await?;
        let Some(row) = rows.first() else { return Ok(RoleEntry::default()) };
        RoleEntry::from_row(row).ok_or_else(unreadable_row)
    }

    /// Returns `true` if an identity of the caller's id disables it.
    pub(crate) async fn is_disabled(&self, caller: &Caller) -> Result<bool, Refusal> {
        let rows = self.query(self.spec.disabled, one_parameter("id", caller.id())).await?;
        Ok(rows.first().is_some_and(|row| disables(row, caller)))
    }

    async fn query(&self, sql: &str, params: Map<String, JsonValue>) -> Result<Vec<Row>, Refusal> {
        let answer = self.engine.look_up(sql, &params).await;
        answer.map(|answer| answer.rows).map_err(|why| match why.code {
            Code::EngineFailed | Code::DiskFull => why,
            code if code.is_temporary() => why,
            _ => {
                tracing::error!(
                    name: "credential_lookup_failed",
                    %why,
                    "credentials cannot be looked up"
                );
                Refusal::new(Code::Internal, "the credentials cannot be looked up")
            }
        })
    }

    /// Returns the cache of a state.
    fn lock_cache(&self, state: Seq) -> MutexGuard<'_, CredentialCache> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.state != state {
            let CredentialCache { tokens, mut former, .. } = std::mem::take(&mut *known);
            if former.len() + tokens.len() > limits::KNOWN_TOKENS {
                former.clear();
            }
            former.extend(tokens.into_keys());
            *known = CredentialCache { state, former, ..CredentialCache::default() };
        }
        known
    }
}

fn one_parameter(name: &str, value: &str) -> Map<String, JsonValue> {
    [(name.to_owned(), JsonValue::from(value))].into_iter().collect()
}

fn unreadable_row() -> Refusal {
    tracing::error!(name: "credential_row_invalid", "a credential row has an unexpected form");
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

    async fn create_identity(engine: &Engine, id: &str) {
        let args = json!({"id": id, "role": "app"});
        engine.call(&Caller::local(), "create_identity", &args, None).await.expect("it is made");
    }

    async fn create_token(engine: &Engine, id: &str) {
        let hash = "0".repeat(64);
        let args = json!({"id": id, "identity_id": "ann", "hash": hash, "last_four": "0000"});
        engine.call(&Caller::local(), "create_token", &args, None).await.expect("it is made");
    }

    /// A connection looked its token up again in one branch of a `select!`, and continued with a message in another,
    /// which needed the same lookup: the first future kept the turn but was not polled any more, and later
    /// lookups blocked for ever.
    #[tokio::test]
    async fn an_abandoned_lookup_keeps_no_turn() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("a.db"), config).expect("an engine");
        let credential_queries = CredentialStore::for_engine(&engine).expect("there is one");
        for left in 0..20 {
            let one = format!("one{left}");
            let another = format!("another{left}");
            let mut half_way = std::pin::pin!(credential_queries.find_token(&one));
            let begun = poll_fn(|context| Poll::Ready(half_way.as_mut().poll(context))).await;
            assert!(begun.is_pending(), "the lookup is pending");
            let patience = std::time::Duration::from_secs(30);
            let looked_up =
                tokio::time::timeout(patience, credential_queries.find_token(&another)).await;
            assert!(looked_up.expect("it has its turn").expect("it is asked").is_none());
        }
        engine.close();
    }

    /// A change of any identity dropped all cached tokens, and their lookups then waited with those of made-up tokens, or
    /// were refused.
    #[tokio::test]
    async fn made_up_tokens_do_not_delay_former_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("a.db"), config).expect("an engine");
        create_identity(&engine, "ann").await;
        create_token(&engine, "token001").await;
        let store = CredentialStore::for_engine(&engine).expect("there is one");
        assert!(store.find_token("token001").await.expect("it is asked").is_some());
        create_identity(&engine, "bob").await;
        let waiting: Vec<_> =
            (0..limits::TOKEN_LOOKUPS).map(|_| store.lookups.wait().expect("a place")).collect();
        let refusal = store.find_token("made-up").await.expect_err("all places are taken");
        assert_eq!(refusal.code, Code::Overloaded);
        assert!(store.find_token("token001").await.expect("it has its own queue").is_some());
        drop(waiting);
        engine.close();
    }

    /// Made-up tokens were looked up in the database every time: they cost as much as
    /// valid ones, and occupied the readers.
    #[tokio::test]
    async fn made_up_tokens_evict_no_valid_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("a.db"), config).expect("an engine");
        create_identity(&engine, "ann").await;
        create_token(&engine, "goodgood").await;
        let credential_queries = CredentialStore::for_engine(&engine).expect("there is one");
        assert!(credential_queries.find_token("goodgood").await.expect("it is known").is_some());

        let made_up: Vec<String> = (0..10 * limits::TOKEN_LOOKUPS).map(|n| n.to_string()).collect();
        let output = join_all(made_up.iter().map(|id| credential_queries.find_token(id))).await;
        let refused = output.iter().filter(|output| output.is_err()).count();
        assert_eq!(refused, 9 * limits::TOKEN_LOOKUPS, "the number of waiters is limited");
        assert!(output.into_iter().flatten().all(|entry| entry.is_none()));
        assert_eq!(
            credential_queries.lock_cache(credential_queries.state()).unknown.len(),
            limits::TOKEN_LOOKUPS
        );
        assert!(
            credential_queries.cached(credential_queries.state(), "goodgood").is_some(),
            "a known token stays cached"
        );
        assert!(
            credential_queries.cached(credential_queries.state(), "0").is_some(),
            "an unknown id stays cached"
        );

        create_token(&engine, "newnewnew").await;
        assert!(credential_queries.find_token("newnewnew").await.expect("it is known").is_some());
        assert!(
            credential_queries.cached(credential_queries.state(), "0").is_none(),
            "the cache belongs to one state"
        );
        engine.close();
    }
}
