//! Why a run that was started is silent: the process that drove it has ended and its lease has not, or no process drives
//! it.

use std::future::pending;
use std::time::{Duration, UNIX_EPOCH};

use abide_agent::Settings;
use abide_client::Abide;
use serde_json::Value as JsonValue;
use tokio::time::{Instant, sleep_until};

use crate::failure::Failure;
use crate::global_options::Options;
use crate::http_client::HttpServer;
use crate::output::note;

/// A run is silent if this time has passed.
const SILENT: Duration = Duration::from_secs(1);

/// How often the leases at a server are looked at. They take ten seconds, unless a program in Rust sets another time.
const LEASE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a server may take to say what it is capable of.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says once, on stderr, why a run is silent.
pub(super) struct StallNotice<'a> {
    options: &'a Options,
    abide: &'a Abide,
    /// When it is said; `None` afterwards.
    due: Option<Instant>,
    /// The lease of another process, as it was seen last. A process that works renews its lease before half of it has passed.
    seen: Option<(SeenLease, Instant)>,
    /// Whether the server drives agents, if it has said so.
    drives_agents: Option<bool>,
}

/// A lease at a server.
#[derive(Clone, Copy, PartialEq)]
struct SeenLease {
    /// When it expires, by the clock of the server.
    expires_at: i64,
    /// How long it was when it was made or renewed last.
    length: Duration,
}

impl<'a> StallNotice<'a> {
    pub(super) fn new(options: &'a Options, abide: &'a Abide) -> StallNotice<'a> {
        StallNotice {
            options,
            abide,
            due: Some(Instant::now() + SILENT),
            seen: None,
            drives_agents: None,
        }
    }

    /// Waits until the run is silent, and says why if the reason is known. It is to be called again when it completes.
    pub(super) async fn explain(&mut self, run_id: &str) {
        let Some(due) = self.due else { return pending().await };
        sleep_until(due).await;
        // The process that drives a run of a server can end at any time.
        self.due = self.options.db.is_none().then(|| Instant::now() + LEASE_CHECK_INTERVAL);
        // The command goes on, and fails with its own reason if it cannot.
        if let Ok(Some(why)) = self.find_reason(run_id).await {
            self.due = None;
            note(why);
        }
    }

    async fn find_reason(&mut self, run_id: &str) -> Result<Option<String>, Failure> {
        // A process takes its file's runs over at once, but a call that was interrupted keeps its lease.
        let sql = "SELECT driver IS NULL, coalesce((SELECT max(lease_expires_at) \
                   FROM tool_calls WHERE session_id = runs.session_id), 0) \
                   FROM runs WHERE id = :id AND status = 'running'";
        let runs: Vec<(i64, i64)> = self.abide.sql(sql).param("id", run_id).fetch().await?;
        let Some((without_driver, lease)) = runs.into_iter().next() else { return Ok(None) };
        if self.options.db.is_some() {
            return Ok(self.explain_foreign_lease(lease));
        }
        if without_driver == 0 {
            return self.explain_unrenewed_lease(run_id).await;
        }
        if self.drives_agents.is_none() {
            self.drives_agents = fetch_drives_agents(self.options).await;
        }
        Ok((self.drives_agents == Some(false)).then(|| {
            "waiting: this server drives no agents: start it with `abide serve --agents FOLDER`"
                .to_owned()
        }))
    }

    /// The wait for a lease that its process did not renew in time. If there is one, it is looked at again later.
    async fn explain_unrenewed_lease(&mut self, run_id: &str) -> Result<Option<String>, Failure> {
        let sql = "SELECT lease_expires_at, lease_expires_at - updated_at FROM runs \
                   WHERE id = :id AND lease_expires_at IS NOT NULL UNION ALL \
                   SELECT c.lease_expires_at, c.lease_expires_at - c.updated_at FROM tool_calls c \
                   JOIN runs r ON r.session_id = c.session_id \
                   WHERE r.id = :id AND c.status = 'claimed' AND c.lease_expires_at IS NOT NULL";
        let leases: Vec<(i64, i64)> = self.abide.sql(sql).param("id", run_id).fetch().await?;
        let leases = leases.into_iter().map(|(expires_at, length)| SeenLease {
            expires_at,
            length: Duration::from_micros(length.max(0).unsigned_abs()),
        });
        let now = Instant::now();
        let first = leases.into_iter().min_by_key(|lease| lease.expires_at);
        let since = self.seen.filter(|(seen, _)| Some(*seen) == first).map_or(now, |(_, at)| at);
        self.seen = first.map(|lease| (lease, since));
        let Some(lease) = first else { return Ok(None) };
        let passed = now - since;
        if passed >= lease.length / 2 {
            return Ok(Some(format_lease_wait(
                (lease.length.saturating_sub(passed)).as_secs() + 1,
            )));
        }
        Ok(None)
    }

    /// The wait for a lease that this process has neither made nor renewed.
    fn explain_foreign_lease(&self, expires_at: i64) -> Option<String> {
        let expires = UNIX_EPOCH + Duration::from_micros(u64::try_from(expires_at).ok()?);
        if expires >= self.options.started + Settings::named("abide").lease {
            return None;
        }
        let left = expires.duration_since(std::time::SystemTime::now()).ok()?;
        let max = left.as_secs() + 1;
        Some(format_lease_wait(max))
    }
}

fn format_lease_wait(seconds: u64) -> String {
    format!("waiting for the lease of the process that ended (at most {seconds} s)")
}

/// Whether the server drives agents, if it says so.
async fn fetch_drives_agents(options: &Options) -> Option<bool> {
    let server = HttpServer::named(options).ok()?;
    let client = server.client.timeout(PATIENCE).build().ok()?;
    let mut request = client.get(format!("{}/capabilities", server.url));
    if let Some(token) = &server.token {
        request = request.bearer_auth(token);
    }
    let answer = request.send().await.ok()?.error_for_status().ok()?.text().await.ok()?;
    let answer: JsonValue = serde_json::from_str(&answer).ok()?;
    answer["features"]["agents"].as_bool()
}
