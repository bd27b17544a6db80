//! The calling clients: apps, including those of two tenants, workers, supervisors and auditors.
//! Each has its own connection through the network, and a request id for each call, with which it
//! retries until it gets a response.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_client::{Abide, Code, Error};
use abide_sim::random::Random;
use serde_json::{Value as JsonValue, json};

use super::ledger::{Acknowledged, Ledger};
use crate::CheckResult;
use crate::pace::pause;

/// How long a client retries one call.
const PATIENCE: Duration = Duration::from_secs(300);
/// The timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(10);
/// The duration of a worker's lease.
const LEASE_MS: i64 = 2_500;
/// The workers' tools.
const TOOLS: [&str; 3] = ["look", "pay", "wire"];

/// The shared state of the clients.
#[derive(Clone)]
pub(crate) struct ClientPool {
    pub(crate) url: String,
    pub(crate) tokens: Vec<(&'static str, String)>,
    pub(crate) ledger: Arc<Ledger>,
}

impl ClientPool {
    /// The token of an identity.
    pub(crate) fn token(&self, identity: &str) -> CheckResult<&str> {
        let found = self.tokens.iter().find(|(name, _)| *name == identity);
        found.map(|(_, token)| token.as_str()).ok_or_else(|| format!("unknown identity {identity}"))
    }

    /// Connects as an identity; retries network failures.
    pub(crate) async fn connect(&self, identity: &str) -> CheckResult<Abide> {
        let token = self.token(identity)?;
        for _ in 0..100 {
            match Abide::builder(&self.url).token(token).deadline(ATTEMPT).connect().await {
                Ok(abide) => return Ok(abide),
                Err(_) => pause(Duration::from_millis(100)).await,
            }
        }
        Err(format!("{identity} cannot connect to the server"))
    }
}

/// The role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientRole {
    App,
    Worker,
    Supervisor,
    Auditor,
}

/// A client.
pub(crate) struct SoakClient {
    name: String,
    identity: &'static str,
    part: ClientRole,
    /// The tenant whose rows are visible to it.
    tenant: Option<&'static str>,
    abide: Abide,
    ledger: Arc<Ledger>,
    random: Random,
    asked: AtomicU64,
    sessions: Vec<String>,
}

/// The result of a call.
enum CallReply {
    Yes(JsonValue),
    No,
}

impl SoakClient {
    /// The nth client; the ten kinds alternate.
    pub(crate) async fn new(
        client_pool: &ClientPool,
        nth: u64,
        seed: u64,
    ) -> CheckResult<SoakClient> {
        let (identity, part, tenant) = match nth % 20 {
            0 | 1 | 10 | 11 => ("app", ClientRole::App, None),
            2 => ("acme", ClientRole::App, Some("acme")),
            12 => ("zeta", ClientRole::App, Some("zeta")),
            3..=5 | 13..=15 => ("worker", ClientRole::Worker, None),
            6 | 16 => ("supervisor", ClientRole::Supervisor, None),
            _ => ("auditor", ClientRole::Auditor, None),
        };
        Ok(SoakClient {
            name: format!("{identity}{nth}"),
            identity,
            part,
            tenant,
            abide: client_pool.connect(identity).await?,
            ledger: Arc::clone(&client_pool.ledger),
            random: Random::new(seed),
            asked: AtomicU64::new(0),
            sessions: Vec::new(),
        })
    }

    /// Runs until all clients are asked to stop.
    pub(crate) async fn live(mut self) -> CheckResult {
        while !self.ledger.is_stopped() {
            pause(Duration::from_millis(20 + self.random.below(160) as u64)).await;
            match self.part {
                ClientRole::App => self.send_messages().await?,
                ClientRole::Worker => self.work().await?,
                ClientRole::Supervisor => self.decide().await?,
                ClientRole::Auditor => self.audit().await?,
            }
        }
        self.abide.close().await;
        Ok(())
    }

    async fn send_messages(&mut self) -> CheckResult {
        if self.sessions.is_empty() || self.random.one_in(30) {
            let id = format!("{}-{}", self.name, self.sessions.len());
            self.call("create_session", json!({"agent": "soak", "id": id})).await?;
            self.sessions.push(id);
        }
        let session = self.random.pick(&self.sessions).clone();
        match self.random.below(12) {
            0..=3 => {
                let content = "Where is it? ".repeat(1 + self.random.below(60));
                let args = json!({"session_id": session, "role": "user", "content": content});
                self.call("append_message", args).await.map(drop)
            }
            4..=8 => {
                let asked = self.asked.load(Ordering::Relaxed);
                let args = json!({"call_id": format!("{}/{asked}", self.name),
                    "session_id": session, "tool_name": self.random.pick(&TOOLS),
                    "arguments": {"n": asked}});
                self.call("request_tool_call", args).await.map(drop)
            }
            9 => {
                let args = json!({"session_id": session, "reason": "over the limit",
                    "required_capability": "refunds", "expires_after_ms": 15_000});
                self.call("request_supervisor_handoff", args).await.map(drop)
            }
            10 => {
                let args = json!({"in_ms": self.random.below(3_000), "session_id": session,
                    "message": "now"});
                self.call("set_timer", args).await.map(drop)
            }
            _ => self.read_queries().await,
        }
    }

    /// Checks that a tenant sees only its own rows.
    async fn read_queries(&self) -> CheckResult {
        let Some(tenant) = self.tenant else { return Ok(()) };
        let sql = "SELECT s.id, s.scope FROM sessions s UNION ALL
            SELECT c.call_id, s.scope FROM tool_calls c LEFT JOIN sessions s ON s.id = c.session_id";
        let Ok(answer) = self.abide.sql(sql).rows().await else { return Ok(()) };
        let own = json!({"tenant": tenant}).to_string();
        match answer.rows.iter().find(|row| row[1].to_json() != json!(own)) {
            Some(row) => Err(format!("tenant {tenant} sees {row:?}")),
            None => {
                self.ledger.note_rows(answer.rows.len());
                Ok(())
            }
        }
    }

    /// Claims a call, runs its effect and reports the result, or crashes in between.
    async fn work(&mut self) -> CheckResult {
        let args = json!({"tools": TOOLS, "lease_ms": LEASE_MS, "worker": self.name});
        let CallReply::Yes(claimed) = self.call("claim_next_tool_call", args).await? else {
            return Ok(());
        };
        let (Some(call_id), Some(token)) =
            (claimed["call_id"].as_str(), claimed["fencing_token"].as_i64())
        else {
            return Ok(());
        };
        if self.random.one_in(12) {
            return Ok(()); // Crash before the effect.
        }
        self.ledger.note_run(call_id, claimed["tool_name"] != "look");
        if self.random.one_in(12) {
            return Ok(()); // Crash after the effect.
        }
        if self.random.one_in(6) {
            let beat = json!({"call_id": call_id, "fencing_token": token, "lease_ms": LEASE_MS});
            self.call("heartbeat_tool_call", beat).await?;
        }
        let (reducer, args) = if self.random.one_in(8) && claimed["tool_name"] == "look" {
            let args = json!({"call_id": call_id, "fencing_token": token, "error": "no line",
                "retryable": true});
            ("fail_tool_call", args)
        } else {
            let args = json!({"call_id": call_id, "fencing_token": token,
                "result": {"by": self.name}});
            ("complete_tool_call", args)
        };
        self.call(reducer, args).await.map(drop)
    }

    async fn decide(&mut self) -> CheckResult {
        let (sql, reducer, args): (&str, &str, fn(&str) -> JsonValue) = match self.random.below(4) {
            0 | 1 => (
                "SELECT call_id FROM approvals WHERE status = 'pending' LIMIT 1",
                "decide_approval",
                |id| json!({"call_id": id, "decision": "approve"}),
            ),
            2 => (
                "SELECT id FROM handoff_requests WHERE status = 'pending' LIMIT 1",
                "claim_handoff",
                |id| json!({"id": id, "lease_ms": LEASE_MS}),
            ),
            _ => (
                "SELECT call_id FROM unknown_tool_calls LIMIT 1",
                "settle_tool_call",
                |id| json!({"call_id": id, "outcome": "failed", "evidence": "nothing there"}),
            ),
        };
        let found: Result<Vec<String>, Error> = self.abide.sql(sql).fetch().await;
        let Some(id) = found.ok().and_then(|mut found| found.pop()) else { return Ok(()) };
        let came = self.call(reducer, args(&id)).await?;
        if reducer == "claim_handoff" && matches!(came, CallReply::Yes(_)) && !self.random.one_in(4)
        {
            let args = json!({"id": id, "resolution": "approved"});
            self.call("resolve_handoff", args).await?;
        }
        Ok(())
    }

    /// Checks that the log has no gap.
    async fn audit(&self) -> CheckResult {
        let sql = "SELECT count(*), coalesce(max(seq), 0) FROM events";
        let Ok(answer) = self.abide.sql(sql).rows().await else { return Ok(()) };
        let row = &answer.rows[0];
        if row[0] == row[1] { Ok(()) } else { Err(format!("an auditor read {row:?}")) }
    }

    /// Retries a call until it succeeds or a rule refuses it.
    async fn call(&self, reducer: &str, arguments: JsonValue) -> CheckResult<CallReply> {
        let nth = self.asked.fetch_add(1, Ordering::Relaxed);
        let request_id = format!("{}:{nth}", self.name);
        let begun = tokio::time::Instant::now();
        loop {
            let request = self.abide.call_by_name(reducer, &arguments).request_id(&request_id);
            match request.deadline(ATTEMPT).await {
                Ok(called) => {
                    self.ledger.add(Acknowledged {
                        identity: self.identity,
                        request_id,
                        reducer: reducer.to_owned(),
                        arguments,
                        seq: called.seq.0,
                        result: called.value.clone(),
                    });
                    return Ok(CallReply::Yes(called.value));
                }
                Err(Error::Refused(refusal)) if is_refusal(refusal.code) => {
                    self.ledger.note_refusal();
                    return Ok(CallReply::No);
                }
                Err(why) if begun.elapsed() > PATIENCE => {
                    return Err(format!("no response to {reducer} for {PATIENCE:?}: {why}"));
                }
                Err(_) => pause(Duration::from_millis(100)).await,
            }
        }
    }
}

/// Whether a rule refused the call. Server-state errors are retried; a rule would refuse again.
fn is_refusal(code: Code) -> bool {
    !code.is_temporary() && !matches!(code, Code::DiskFull | Code::EngineFailed | Code::Internal)
}
