//! The calls that arrive: clients that request calls of the workers' tools and wait for each, and clients that append
//! messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_client::Abide;
use abide_sim::random::Random;
use serde_json::{Value as JsonValue, json};
use tokio::task::JoinSet;

use super::worker::LANGUAGES;
use crate::CheckResult;
use crate::pace::pause;

/// The session of all of it. No agent of the project has its name.
const SESSION: &str = "shop";
/// Clients that request calls of each worker; more than it runs at a time.
const REQUESTERS: usize = 6;
/// Clients that append messages.
const WRITERS: usize = 4;
/// The pause of a writer.
const PAUSE: Duration = Duration::from_millis(40);

/// Registers the tools of the workers, and creates the session.
pub(crate) async fn prepare(abide: &Abide) -> CheckResult {
    let mut calls = vec![
        ("create_session", json!({"agent": "shop", "id": SESSION})),
        ("append_message", json!({"session_id": SESSION, "role": "user", "content": "Ship it."})),
    ];
    for language in LANGUAGES {
        calls.push(("register_tool", json!({"name": language, "effect": "at_most_once"})));
    }
    for (reducer, args) in calls {
        let called = abide.call_by_name(reducer, args).await;
        called.map_err(|why| format!("{reducer}: {why:#}"))?;
    }
    Ok(())
}

/// The clients.
pub(crate) struct Load {
    is_stopping: Arc<AtomicBool>,
    clients: JoinSet<CheckResult<Written>>,
}

/// What was acknowledged.
#[derive(Default)]
pub(crate) struct Written {
    calls: Vec<String>,
    messages: Vec<String>,
}

impl Load {
    /// Starts them.
    pub(crate) fn start(abide: &Abide, most_ms: u64, random: &mut Random) -> Load {
        let is_stopping = Arc::<AtomicBool>::default();
        let mut clients = JoinSet::new();
        let client = |name| Client {
            name,
            abide: abide.clone(),
            is_stopping: Arc::clone(&is_stopping),
            written: Written::default(),
        };
        for language in LANGUAGES {
            for nth in 0..REQUESTERS {
                let durations = Random::new(random.draw());
                let client = client(format!("{language}-{nth}"));
                clients.spawn(client.request(language, durations, most_ms));
            }
        }
        for nth in 0..WRITERS {
            clients.spawn(client(format!("m{nth}")).append());
        }
        Load { is_stopping, clients }
    }

    /// Lets the clients end with their current call. Returns what was acknowledged.
    pub(crate) async fn stop(mut self) -> CheckResult<Written> {
        self.is_stopping.store(true, Ordering::Relaxed);
        let mut all = Written::default();
        while let Some(ended) = self.clients.join_next().await {
            let Written { calls, messages } =
                ended.map_err(|why| format!("a client panicked: {why}"))??;
            all.calls.extend(calls);
            all.messages.extend(messages);
        }
        Ok(all)
    }
}

/// One client.
struct Client {
    name: String,
    abide: Abide,
    is_stopping: Arc<AtomicBool>,
    written: Written,
}

impl Client {
    /// Requests calls of a tool, one after the other.
    async fn request(
        mut self,
        tool: &'static str,
        mut durations: Random,
        most_ms: u64,
    ) -> CheckResult<Written> {
        while !self.is_stopping.load(Ordering::Relaxed) {
            let call_id = format!("{}-{}", self.name, self.written.calls.len());
            let arguments = json!({"call": call_id, "ms": durations.draw() % most_ms});
            let call = json!({"call_id": call_id, "session_id": SESSION, "tool_name": tool,
                "arguments": arguments});
            let requested = self.abide.call_by_name("request_tool_call", call).await;
            requested.map_err(|why| format!("the request of {call_id}: {why:#}"))?;
            self.until_succeeded(&call_id).await?;
            self.written.calls.push(call_id);
        }
        Ok(self.written)
    }

    /// Waits for the result of a call.
    async fn until_succeeded(&self, call_id: &str) -> CheckResult {
        let failed = |why: abide_client::Error| format!("the state of {call_id}: {why:#}");
        let sql = "SELECT status FROM tool_calls WHERE call_id = :id";
        let mut state = self.abide.subscribe(sql).param("id", call_id).await.map_err(failed)?;
        loop {
            let rows: Vec<(String,)> = state.typed_rows().map_err(failed)?;
            match rows.first().map(|(status,)| status.as_str()) {
                Some("succeeded") => return Ok(()),
                Some("pending" | "claimed") => {}
                other => return Err(format!("call {call_id} is {other:?}")),
            }
            let update = state.try_next().await.map_err(failed)?;
            update.ok_or_else(|| format!("the subscription to {call_id} has ended"))?;
        }
    }

    /// Appends messages.
    async fn append(mut self) -> CheckResult<Written> {
        while !self.is_stopping.load(Ordering::Relaxed) {
            let content = format!("{}-{}", self.name, self.written.messages.len());
            let message = json!({"session_id": SESSION, "role": "user", "content": content});
            let appended = self.abide.call_by_name("append_message", message).await;
            appended.map_err(|why| format!("the message {content}: {why:#}"))?;
            self.written.messages.push(content);
            pause(PAUSE).await;
        }
        Ok(self.written)
    }
}

impl Written {
    /// Checks that all of it is there, once.
    pub(crate) async fn check(mut self, abide: &Abide) -> CheckResult {
        let failed = |why: abide_client::Error| format!("{why:#}");
        let calls = abide
            .sql("SELECT call_id, result FROM tool_calls WHERE session_id = :id")
            .param("id", SESSION);
        let mut calls: Vec<(String, String)> = calls.fetch().await.map_err(failed)?;
        for (call_id, result) in &calls {
            let found: JsonValue = serde_json::from_str(result).map_err(|why| why.to_string())?;
            if found != json!({"done": call_id}) {
                return Err(format!("the result of {call_id} is {result}"));
            }
        }
        calls.sort();
        self.calls.sort();
        if !calls.iter().map(|(call_id, _)| call_id).eq(&self.calls) {
            let (found, expected) = (calls.len(), self.calls.len());
            return Err(format!("{found} calls have results, {expected} were acknowledged"));
        }
        let messages = abide
            .sql("SELECT content FROM agent_state WHERE session_id = :id AND content LIKE 'm%'")
            .param("id", SESSION);
        let messages: Vec<(String,)> = messages.fetch().await.map_err(failed)?;
        let mut messages: Vec<String> = messages.into_iter().map(|(content,)| content).collect();
        messages.sort();
        self.messages.sort();
        if messages != self.messages {
            let (found, expected) = (messages.len(), self.messages.len());
            return Err(format!("{found} messages are there, {expected} were acknowledged"));
        }
        Ok(())
    }
}
