//! The configuration of a remote agent.

use std::collections::BTreeMap;

use reqwest::Url;
use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};

use super::failure::A2aFailure;
use crate::environment::Setting;
use crate::http;
use crate::public_address::PermittedHosts;
use abide_sandbox::Environment;

/// A remote agent that is reached by A2A.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a remote agent: a map with url")]
pub struct A2aConfig {
    /// The address of the agent, or of its card (`….json`).
    pub url: String,
    /// Headers of all requests, such as `authorization: { env: NAME, prefix: "Bearer " }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Setting>,
    /// Hosts whose addresses need not be public: `host` or `host:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_private: Vec<String>,
    /// Maximum size of an answer or an event in bytes; the default is 4,000,000.
    #[serde(default = "max_bytes")]
    pub max_bytes: usize,
    /// Maximum time until an answer begins, and until one that is not a stream ends, in milliseconds; the default is 30,000. A task
    /// can take longer.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// For how long an agent that cannot be reached is tried again, in seconds; the default is 600.
    #[serde(default = "unreachable_seconds")]
    pub unreachable_seconds: u64,
    /// For how long a task works without anything new, in seconds; the default is 86,400. Then the run fails.
    #[serde(default = "silent_seconds")]
    pub silent_seconds: u64,
}

impl Default for A2aConfig {
    fn default() -> A2aConfig {
        A2aConfig {
            url: String::new(),
            headers: BTreeMap::new(),
            allow_private: Vec::new(),
            max_bytes: max_bytes(),
            timeout_ms: timeout_ms(),
            unreachable_seconds: unreachable_seconds(),
            silent_seconds: silent_seconds(),
        }
    }
}

fn max_bytes() -> usize {
    4_000_000
}

fn timeout_ms() -> u64 {
    30_000
}

fn unreachable_seconds() -> u64 {
    600
}

fn silent_seconds() -> u64 {
    86_400
}

/// The path of a card below the address of an agent.
const CARD: &str = "/.well-known/agent-card.json";

impl A2aConfig {
    /// Checks the address and the headers.
    ///
    /// # Errors
    /// The address is invalid, or a variable of a header is not set.
    pub fn check(&self, environment: &Environment) -> Result<(), A2aFailure> {
        self.card_url()?;
        self.header_map(environment).map(drop)
    }

    /// Why the address may not be used, as far as it is known before a name is resolved.
    #[must_use]
    pub fn refused_address(&self) -> Option<String> {
        let hosts = PermittedHosts::new(self.allow_private.iter().cloned());
        hosts.check(&self.card_url().ok()?).err()
    }

    pub(super) fn card_url(&self) -> Result<Url, A2aFailure> {
        let bad = |why: String| A2aFailure::Invalid(format!("a2a.url {:?}: {why}", self.url));
        let mut url = Url::parse(&self.url).map_err(|why| bad(why.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("it must begin with http:// or https://".to_owned()));
        }
        if !url.path().ends_with(".json") {
            let path = format!("{}{CARD}", url.path().trim_end_matches('/'));
            url.set_path(&path);
        }
        Ok(url)
    }

    pub(super) fn header_map(&self, environment: &Environment) -> Result<HeaderMap, A2aFailure> {
        http::headers("a2a", &self.headers, environment)
            .map_err(|error| A2aFailure::Invalid(format!("a2a.headers: {}", error.why)))
    }
}
