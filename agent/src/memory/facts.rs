//! The memory of an agent: facts that outlive a session. They are read before the model is first asked about a message of
//! the user, and become a message of the session, so that each request can be repeated from its rows. The model reads
//! them as a block of its instructions, as data. A pause or a wait does not read them again: what a model sees does not
//! depend on how fast a decision arrives. A run that was imported reads the facts of its new file.
//!
//! Which facts an agent reaches follows from the scope of its session and from its definition, never from what a model
//! writes. The reducer `save_memories` determines the space.

use std::time::Duration;

use abide_client::arguments::{
    EmbedMemories, ModelUsage, NewMemory, NewMemoryVector, NewRunEvent, SaveMemories,
};
use abide_client::{Call, Code, Error, Value as Cell};
use abide_definitions::profile_settings::{
    MemoryRead, MemoryScope, MemoryScopeRule, MemorySettings,
};
use abide_models::{Completeness, EMBEDDED_TEXTS, EmbeddingRequest, Embeddings, Resolved, Usage};
use serde_json::Value;

use crate::context::entry::{MEMORY, MemoryEntry, SessionEntry, data};
use crate::memory::block::{Fact, acceptable, block_of};
use crate::memory::space::MemorySpace;
use crate::middleware;
use crate::model::choice::{model_usage, usage_event};
use crate::model::outgoing::{self, Purpose};
use crate::run::driver::Driver;
use crate::run::step::{Step, StepError};
use crate::trace::names::EMBEDDINGS;

/// Maximum number of facts that are considered for a block.
const CONSIDERED: i64 = 200;

/// Maximum time for the vectors of a search. Without them, it goes by words.
const EMBEDDING_TIME: Duration = Duration::from_secs(10);

/// From this similarity on, a fact is about the same as a query.
const SIMILAR: f64 = 0.3;

/// Maximum size of a query in bytes; the rest is ignored.
const QUERY_BYTES: usize = 4_000;

/// Returns the settings of the active agent, if it has a memory.
pub(crate) fn settings(driver: &Driver) -> Option<MemorySettings> {
    Some(driver.agent.definition.settings().memory).filter(|memory| memory.enabled)
}

/// Returns the space of the active agent's facts.
pub(crate) async fn space<'a>(
    driver: &'a Driver,
    settings: &MemorySettings,
) -> Result<&'a MemorySpace, Error> {
    let shared = &driver.shared;
    let run = &driver.state.run;
    let find = || {
        let agent = &driver.agent.definition.name;
        MemorySpace::find(shared, &driver.abide, &run.session_id, agent, settings)
    };
    driver.agent.memory.get_or_try_init(find).await
}

/// Reads the facts for the last message of the user, unless this was done. Returns whether it has added a message.
pub(crate) async fn read(driver: &Driver) -> Step<bool> {
    let Some(settings) = settings(driver) else { return Ok(false) };
    driver.imported_seq.get_or_try_init(|| imported_seq(driver)).await?;
    if current_entry(driver).is_some() {
        return Ok(false);
    }
    let space = space(driver, &settings).await?;
    let mut found = match settings.read {
        MemoryRead::RecentOnly => Found::new(recent(space).await?),
        MemoryRead::Semantic | MemoryRead::Hybrid => {
            let query = query(driver);
            search(driver, space, Purpose::Recall, &query, CONSIDERED).await?
        }
    };
    found.facts.retain(|fact| settings.read != MemoryRead::Semantic || fact.rank > 0.0);
    let (text, facts) = block_of(&found.facts, settings.budget_tokens);
    let entry = MemoryEntry {
        run_id: driver.state.run.id.clone(),
        agent: driver.agent.definition.name.clone(),
        space: space.name.clone(),
        facts,
    };
    let message = driver.message("system", text, &entry).kind(MEMORY);
    let (events, spent) = found.usage();
    driver.record(&events, spent.as_ref(), vec![Call::from(message)]).await?;
    Ok(true)
}

/// Returns the facts that were read for the last message of the user, if there are some.
pub(crate) fn block(driver: &Driver) -> Option<String> {
    settings(driver)?;
    current_entry(driver)?.content.clone().filter(|text| !text.is_empty())
}

/// Returns the facts that the active agent has read for the last message of the user.
fn current_entry(driver: &Driver) -> Option<&SessionEntry> {
    let asked_id = last_request(driver).map_or(0, |entry| entry.id);
    let imported_seq = match settings(driver)?.scope {
        // The facts of a session move with its run.
        MemoryScope::Rule(MemoryScopeRule::Session) => 0,
        _ => driver.imported_seq.get().copied().unwrap_or(0),
    };
    driver.state.entries.iter().rfind(|entry| {
        let is_new = entry.id > asked_id && entry.seq.0 > imported_seq;
        is_new && entry.role == "system" && entry.kind == MEMORY && {
            let read: MemoryEntry = data(entry);
            read.run_id == driver.state.run.id && read.agent == driver.agent.definition.name
        }
    })
}

/// Returns the event that imported the run from another file; 0 if it began in this file.
async fn imported_seq(driver: &Driver) -> Result<i64, Error> {
    let sql = "SELECT seq FROM run_events WHERE run_id = :id AND number = 1 \
               AND data ->> '$.status' = 'imported'";
    let found: Vec<(i64,)> =
        driver.abide.sql(sql).param("id", &driver.state.run.id).fetch().await?;
    Ok(found.first().map_or(0, |(seq,)| *seq))
}

/// Returns the last message of the user.
fn last_request(driver: &Driver) -> Option<&SessionEntry> {
    driver.state.entries.iter().rfind(|entry| entry.role == "user" && entry.kind == "message")
}

/// Returns the text of the search: the last message of the user.
fn query(driver: &Driver) -> String {
    let request = last_request(driver).filter(|entry| !entry.is_denied());
    let text = request.and_then(|entry| entry.content.as_deref());
    let text = middleware::redaction::for_model(driver, text.unwrap_or_default());
    text[..text.floor_char_boundary(QUERY_BYTES)].to_owned()
}

/// Returns the facts that changed last.
async fn recent(space: &MemorySpace) -> Result<Vec<Fact>, Error> {
    let sql = "SELECT id, seq, key, value, confidence, 0.0 AS rank FROM memories \
               WHERE space = :space ORDER BY updated_at DESC, id DESC LIMIT :most";
    let query = space.client.sql(sql).param("space", &space.name);
    query.param("most", CONSIDERED).fetch().await
}

/// Facts, and what it has cost to find them.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) facts: Vec<Fact>,
    embedded: Option<(Resolved, Option<u64>)>,
}

impl Found {
    fn new(facts: Vec<Fact>) -> Found {
        Found { facts, embedded: None }
    }

    /// Returns the events and the usage to record.
    pub(crate) fn usage(&self) -> (Vec<NewRunEvent>, Option<ModelUsage>) {
        let Some((model, tokens)) = &self.embedded else { return (Vec::new(), None) };
        let usage = Usage {
            input_tokens: *tokens,
            output_tokens: Some(0),
            completeness: match tokens {
                Some(_) => Completeness::Complete,
                None => Completeness::default(),
            },
            ..Usage::default()
        };
        let cost_micros = model.price.and_then(|price| price.cost_micros(&usage));
        let provider = model.provider.id();
        let event = usage_event(&usage, provider, &model.model, cost_micros, Some(EMBEDDINGS));
        (vec![event], Some(model_usage(&usage, cost_micros)))
    }
}

/// Returns the facts of a space, those most similar to a query first.
pub(crate) async fn search(
    driver: &Driver,
    space: &MemorySpace,
    purpose: Purpose,
    query: &str,
    max: i64,
) -> Step<Found> {
    let embedded = embed(driver, space, purpose, query).await?;
    let words = "fts_rank(m.key || ' ' || m.value, :query)";
    let (rank, vectors) = match &embedded {
        Some(_) => (
            format!(
                "max({words}, CASE WHEN vector_similarity(v.vector, :vector) >= {SIMILAR} \
                 THEN vector_similarity(v.vector, :vector) ELSE 0.0 END)"
            ),
            "LEFT JOIN memory_vectors AS v ON v.memory_id = m.id AND v.model = :model",
        ),
        None => (words.to_owned(), ""),
    };
    let sql = format!(
        "SELECT m.id AS id, m.seq AS seq, m.key AS key, m.value AS value, \
         m.confidence AS confidence, coalesce({rank}, 0.0) AS rank \
         FROM memories AS m {vectors} WHERE m.space = :space \
         ORDER BY rank DESC, m.updated_at DESC, m.id DESC LIMIT :most"
    );
    let statement =
        space.client.sql(&sql).param("space", &space.name).param("query", query).param("most", max);
    let Some(Embedded { model, tokens, vector }) = embedded else {
        return Ok(Found::new(statement.fetch().await?));
    };
    let facts =
        statement.param("model", model.name()).param("vector", blob(&vector)).fetch().await?;
    Ok(Found { facts, embedded: Some((model, tokens)) })
}

/// The vector of a query.
struct Embedded {
    model: Resolved,
    tokens: Option<u64>,
    vector: Vec<f32>,
}

/// Makes the vector of a query, and those of facts that have none yet. `None` if no embedding model is configured, or
/// if it does not answer: then the search goes by words.
async fn embed(
    driver: &Driver,
    space: &MemorySpace,
    purpose: Purpose,
    query: &str,
) -> Step<Option<Embedded>> {
    let Some(model) = driver.shared.models.get().embedding().ok().flatten() else {
        return Ok(None);
    };
    let limits = [&driver.own_definition.limits, &driver.agent.definition.limits];
    let has_cost_limit = limits.iter().any(|limits| limits.cost_usd.is_some());
    if query.trim().is_empty() || (has_cost_limit && model.price.is_none()) {
        return Ok(None);
    }
    let name = model.name();
    let sql = "SELECT m.id, m.seq, m.key || ': ' || m.value FROM memories AS m \
               LEFT JOIN memory_vectors AS v ON v.memory_id = m.id AND v.model = :model \
               WHERE m.space = :space AND v.memory_id IS NULL ORDER BY m.id LIMIT :most";
    let sql = space.client.sql(sql).param("space", &space.name).param("model", &name);
    let missing: Vec<(i64, i64, String)> =
        sql.param("most", EMBEDDED_TEXTS as i64 - 1).fetch().await?;
    let texts = std::iter::once(query).chain(missing.iter().map(|(_, _, text)| text.as_str()));
    let request =
        EmbeddingRequest { model: model.model.clone(), texts: texts.map(str::to_owned).collect() };
    outgoing::ready(driver, purpose).await?;
    let answered = tokio::select! {
        biased;
        () = driver.stop.cancelled() => return Ok(None),
        () = tokio::time::sleep(EMBEDDING_TIME) => return Ok(None),
        answered = model.provider.embed(request) => answered,
    };
    let Embeddings { vectors, input_tokens } = match answered {
        Ok(embeddings) => embeddings,
        Err(error) => {
            tracing::warn!(
                name: "embedding_failed",
                %error,
                "memory is searched by words: the embedding model failed"
            );
            return Ok(None);
        }
    };
    let mut vectors = vectors.into_iter();
    let Some(vector) = vectors.next() else { return Ok(None) };
    let new: Vec<NewMemoryVector> = missing
        .iter()
        .zip(vectors)
        .map(|((id, seq, _), vector)| NewMemoryVector {
            memory_id: *id,
            seq: *seq,
            vector: blob(&vector),
        })
        .collect();
    if !new.is_empty() {
        space.client.call(EmbedMemories::new(&name, new)).await?;
    }
    Ok(Some(Embedded { model, tokens: input_tokens, vector }))
}

/// Returns a vector as an argument.
fn blob(vector: &[f32]) -> Value {
    Cell::Blob(Embeddings::bytes(vector)).to_json()
}

/// Saves facts that a summary of the conversation contains, as far as the definition permits. It changes nothing when
/// it is repeated. Facts for which the memory has no room are dropped: the summary still has them.
pub(crate) async fn keep_facts(driver: &Driver, facts: Vec<NewMemory>) -> Step {
    let Some(settings) = settings(driver) else { return Ok(()) };
    let facts = acceptable(facts, |fact| settings.write.takes(fact));
    if facts.is_empty() {
        return Ok(());
    }
    let space = space(driver, &settings).await?;
    let lease = &driver.run_lease;
    let save = SaveMemories {
        run_id: Some(lease.run_id.clone()),
        fencing_token: Some(lease.fencing_token),
        ..space.save(facts)
    };
    match space.client.call(save).await {
        Err(error) if error.code() == Some(Code::LimitExceeded) => {
            tracing::warn!(
                name: "facts_not_saved",
                error = format_args!("{error:#}"),
                "facts of a summary were not saved"
            );
            Ok(())
        }
        Err(error) => Err(StepError::Refused(error)),
        Ok(_) => Ok(()),
    }
}
