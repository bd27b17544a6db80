//! The rows of a run's exchange with a remote agent: each message before it is sent, and the task as soon as its id is
//! known. So another driver continues the same task.
//!
//! A task that has not ended is also an entry of a collection of its scope. It is removed with the end of the run; if the run
//! ends without the task, the task is cancelled ([`crate::remote_agent::cancel`]).

use abide_client::arguments::{EntryPut, NewRunEvent, WriteEntries};
use abide_client::rows::{Run, RunEventKind};
use abide_client::{Abide, Call, Error, Json};
use abide_tools::a2a_id;
use serde_json::{Value, json};

use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::Step;

/// The collection with the open tasks of a scope.
const OPEN_TASKS: &str = "a2a-open-tasks";

/// The kind of these collections.
const OPEN_TASKS_KIND: &str = "a2a_open_tasks";

/// The collection with an entry of each runtime that cancels tasks.
const RUNTIMES: &str = "a2a-runtimes";

/// The member of a status event that has an entry of the exchange.
const FIELD: &str = "a2a";

/// The exchange of a run so far.
#[derive(Debug, Default)]
pub(crate) struct RemoteRows {
    /// The messages, in the order in which they were recorded. The last one may not have been sent.
    pub(crate) sent: Vec<Value>,
    /// The id and the context of the task.
    pub(crate) task: Option<(String, String)>,
    /// The questions of the task, in order. A message answers each of them.
    pub(crate) asked: Vec<Question>,
}

/// A question of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The call that waits for a decision.
    pub(crate) call_id: String,
    /// Identifies the question within the task.
    pub(crate) key: String,
    /// How many bytes of the task's text had been published.
    pub(crate) published: usize,
}

impl RemoteRows {
    /// Reads what drivers of this identity have recorded. Other holders of the run must not choose the task.
    pub(crate) async fn read(driver: &Driver) -> Step<RemoteRows> {
        let sql = format!(
            "SELECT r.data -> '$.{FIELD}' FROM run_events r JOIN events e ON e.seq = r.seq \
             WHERE r.run_id = :id AND r.kind = 'status' AND r.data -> '$.{FIELD}' IS NOT NULL \
             AND e.caller = (SELECT caller FROM events WHERE seq = :token) ORDER BY r.number"
        );
        let query = driver.abide.sql(sql).param("id", &driver.state.run.id);
        let query = query.param("token", driver.run_lease.fencing_token);
        let found: Vec<(Json,)> = query.fetch().await?;
        let mut rows = RemoteRows::default();
        for (entry,) in found {
            rows.add(&entry.value());
        }
        Ok(rows)
    }

    fn add(&mut self, entry: &Value) {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        match entry["event"].as_str() {
            Some("send") => self.sent.push(entry["message"].clone()),
            Some("task") => self.task = Some((text("task_id"), text("context_id"))),
            Some("ask") => self.asked.push(Question {
                call_id: text("call_id"),
                key: text("key"),
                published: entry["published"]
                    .as_u64()
                    .and_then(|it| it.try_into().ok())
                    .unwrap_or(0),
            }),
            _ => {}
        }
    }

    /// Returns `true` if the last question has no answer yet.
    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty() && self.asked.len() >= self.sent.len()
    }

    /// Returns the next message to the agent. Its id depends on the run and its number, so it is the same if it is sent
    /// again. Runs of other files can have the same id, but not the same time.
    pub(crate) fn message(&self, driver: &Driver, parts: &Value, context_id: &str) -> Value {
        let Run { id, created_at, .. } = &driver.state.run;
        let name = format!("message {id} {} {}", created_at.0, self.sent.len() + 1);
        let mut message = json!({"messageId": a2a_id(&name), "role": "ROLE_USER",
            "parts": parts, "contextId": context_id});
        if let Some((task_id, context_id)) = &self.task {
            message["taskId"] = json!(task_id);
            message["contextId"] = json!(context_id);
        }
        message
    }

    /// Records a message, before it is sent.
    pub(crate) async fn record_message(
        &mut self,
        driver: &Driver,
        message: Value,
        then: Vec<Call>,
    ) -> Step {
        let event = entry(json!({"event": "send", "message": message}));
        driver.record(&[event], None, then).await?;
        self.sent.push(message);
        Ok(())
    }

    /// Records the id of the task, and that it has not ended.
    pub(crate) async fn record_task(
        &mut self,
        driver: &Driver,
        task_id: &str,
        context_id: &str,
    ) -> Step {
        let event = entry(json!({"event": "task", "task_id": task_id, "context_id": context_id}));
        let put = open_entry(&driver.state.run.id, json!({"task_id": task_id}));
        let open = WriteEntries::new(OPEN_TASKS).kind(OPEN_TASKS_KIND).puts([put]);
        driver.record(&[event], None, vec![open.into()]).await?;
        self.task = Some((task_id.to_owned(), context_id.to_owned()));
        Ok(())
    }
}

/// Returns the call that removes the entry of an ended task.
pub(crate) fn close(driver: &Driver) -> Call {
    WriteEntries::new(OPEN_TASKS).deletes([driver.state.run.id.clone()]).into()
}

/// Returns a status event of the exchange.
pub(crate) fn entry(fields: Value) -> NewRunEvent {
    run_event(RunEventKind::Status, json!({"status": "thinking", FIELD: fields}))
}

fn open_entry(run_id: &str, data: Value) -> EntryPut {
    let key = run_id.to_owned();
    EntryPut { key, data: Some(data), blob: None, expected_seq: None, keep: None, append: None }
}

/// A task that has not ended although its run has.
#[derive(Clone, Debug)]
pub(crate) struct OrphanedTask {
    pub(crate) run_id: String,
    pub(crate) agent: String,
    pub(crate) revision: i64,
    pub(crate) task_id: String,
    /// The identity that has recorded the task. An identity that may drive runs can record any id for a run of its own, and
    /// the task of that id can be of another tenant.
    pub(crate) recorded_by: String,
    /// When its entry was last written, in microseconds since 1970.
    pub(crate) updated_at: i64,
    collection_id: String,
}

impl OrphanedTask {
    /// Some of these tasks, except those of the runs `skip`: the oldest one of each scope, then the next one of each, so that a scope
    /// with many delays no other. Entries can be written by others.
    pub(crate) async fn find(abide: &Abide, skip: &[String]) -> Result<Vec<OrphanedTask>, Error> {
        let sql = format!(
            "SELECT r.id, r.agent, r.revision, \
             (SELECT json_array(t.data ->> '$.{FIELD}.task_id', e.caller) \
              FROM run_events t JOIN events e ON e.seq = t.seq \
              WHERE t.run_id = r.id AND t.kind = 'status' AND t.data ->> '$.{FIELD}.event' = 'task' \
              ORDER BY t.number DESC LIMIT 1), o.updated_at, o.collection_id \
             FROM (SELECT o.key, o.updated_at, o.collection_id, row_number() OVER \
                   (PARTITION BY s.scope ORDER BY o.updated_at, o.key) AS nth \
                   FROM collections c JOIN entries o ON o.collection_id = c.id \
                   JOIN runs r ON r.id = o.key JOIN sessions s ON s.id = r.session_id \
                   WHERE c.kind = :kind AND r.status NOT IN ('running', 'waiting') \
                   AND r.id NOT IN (SELECT value FROM json_each(:skip))) o \
             JOIN runs r ON r.id = o.key ORDER BY o.nth, o.updated_at LIMIT 64"
        );
        let skip = serde_json::to_string(skip).unwrap_or_default();
        let query = abide.sql(sql).param("kind", OPEN_TASKS_KIND).param("skip", skip);
        let found: Vec<(String, String, i64, Option<String>, i64, String)> = query.fetch().await?;
        let left = found.into_iter().map(
            |(run_id, agent, revision, recorded, updated_at, collection_id)| {
                let recorded = recorded.and_then(|recorded| serde_json::from_str(&recorded).ok());
                let (task_id, recorded_by) = recorded.unwrap_or_default();
                OrphanedTask {
                    run_id,
                    agent,
                    revision,
                    task_id,
                    recorded_by,
                    updated_at,
                    collection_id,
                }
            },
        );
        Ok(left.collect())
    }

    /// Returns the call that records the request to cancel it, before it is sent.
    pub(crate) fn record_cancel(&self) -> WriteEntries {
        let data = json!({"task_id": self.task_id, "cancel_requested": true});
        WriteEntries::new(&self.collection_id).puts([open_entry(&self.run_id, data)])
    }

    /// Returns the call that removes its entry.
    pub(crate) fn close(&self) -> WriteEntries {
        WriteEntries::new(&self.collection_id).deletes([self.run_id.clone()])
    }
}

/// Returns the tasks of earlier runs of the agent in the session: their ids and contexts, the last one first.
pub(crate) async fn earlier_tasks(driver: &Driver) -> Step<Vec<(String, String)>> {
    let sql = format!(
        "SELECT r.data ->> '$.{FIELD}.task_id', r.data ->> '$.{FIELD}.context_id' \
         FROM run_events r JOIN events e ON e.seq = r.seq \
         WHERE r.session_id = :sid AND r.run_id <> :id AND r.kind = 'status' \
         AND r.data ->> '$.{FIELD}.event' = 'task' \
         AND (SELECT agent FROM runs WHERE id = r.run_id) = :agent \
         AND e.caller = (SELECT caller FROM events WHERE seq = :token) ORDER BY r.id DESC LIMIT 100"
    );
    let query = driver.abide.sql(sql).param("sid", &driver.state.run.session_id);
    let query = query.param("id", &driver.state.run.id).param("agent", &driver.state.run.agent);
    Ok(query.param("token", driver.run_lease.fencing_token).fetch().await?)
}

/// Returns the identity of this connection in the log: that of an entry which it writes.
pub(crate) async fn own_identity(abide: &Abide, driver: &str, now: i64) -> Result<String, Error> {
    let put = open_entry(driver, json!({"started_at": now}));
    let written = abide.call(WriteEntries::new(RUNTIMES).puts([put])).await?;
    let sql = "SELECT caller FROM events WHERE seq = :seq";
    let callers: Vec<(String,)> = abide.sql(sql).param("seq", written.seq.0).fetch().await?;
    Ok(callers.into_iter().next().map(|(caller,)| caller).unwrap_or_default())
}
