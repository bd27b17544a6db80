//! Why a run that was started is silent: the process that drove it has ended and its lease has not, or no process drives
//! it.

use std::future::pending;
use std::time::{Duration, UNIX_EPOCH};

use abide_agent::Settings;
use abide_client::Abide;
use reqwest::Client;
use serde_json::Value as JsonValue;
use tokio::time::{Instant, sleep_until};

use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::note;

/// A run is silent if this time has passed.
const SILENT: Duration = Duration::from_secs(1);

/// How long a server may take to say what it is capable of.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says once, on stderr, why a run is silent.
pub(super) struct StallNotice<'a> {
    options: &'a Options,
    abide: &'a Abide,
    /// When it is said; `None` afterwards.
    due: Option<Instant>,
}

impl<'a> StallNotice<'a> {
    pub(super) fn new(options: &'a Options, abide: &'a Abide) -> StallNotice<'a> {
        StallNotice { options, abide, due: Some(Instant::now() + SILENT) }
    }

    /// Waits until the run is silent, and says why if the reason is known. Completes once.
    pub(super) async fn explain(&mut self, run_id: &str) {
        let Some(due) = self.due else { return pending().await };
        sleep_until(due).await;
        self.due = None;
        // The command goes on, and fails with its own reason if it cannot.
        if let Ok(Some(why)) = self.reason(run_id).await {
            note(why);
        }
    }

    async fn reason(&self, run_id: &str) -> Result<Option<String>, Failure> {
        // A process takes its file's runs over at once, but a call that was interrupted keeps its lease.
        let sql = "SELECT driver IS NULL, coalesce((SELECT max(lease_expires_at) \
                   FROM tool_calls WHERE session_id = runs.session_id), 0) \
                   FROM runs WHERE id = :id AND status = 'running'";
        let runs: Vec<(i64, i64)> = self.abide.sql(sql).param("id", run_id).fetch().await?;
        let Some((without_driver, lease)) = runs.into_iter().next() else { return Ok(None) };
        if self.options.db.is_some() {
            return Ok(self.foreign_lease(lease));
        }
        Ok(match without_driver == 1 && drives_agents(self.options).await == Some(false) {
            true => Some(
                "waiting: this server drives no agents: start it with `abide serve --agents FOLDER`"
                    .to_owned(),
            ),
            false => None,
        })
    }

    /// The wait for a lease that this process has neither made nor renewed.
    fn foreign_lease(&self, expires_at: i64) -> Option<String> {
        let expires = UNIX_EPOCH + Duration::from_micros(u64::try_from(expires_at).ok()?);
        if expires >= self.options.started + Settings::named("abide").lease {
            return None;
        }
        let left = expires.duration_since(std::time::SystemTime::now()).ok()?;
        let max = left.as_secs() + 1;
        Some(format!("waiting for the lease of the process that ended (at most {max} s)"))
    }
}

/// Whether the server drives agents, if it says so.
async fn drives_agents(options: &Options) -> Option<bool> {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().timeout(PATIENCE).user_agent("abide").build().ok()?;
    let url = format!("{}/capabilities", options.url.trim_end_matches('/'));
    let mut request = client.get(url);
    if let Some(token) = &options.token {
        request = request.bearer_auth(token);
    }
    let answer = request.send().await.ok()?.error_for_status().ok()?.text().await.ok()?;
    let answer: JsonValue = serde_json::from_str(&answer).ok()?;
    answer["features"]["agents"].as_bool()
}
