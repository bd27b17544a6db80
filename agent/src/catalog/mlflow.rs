//! The prompt registry of an MLflow server, over its REST API. MLflow stores a prompt as a registered model: the text
//! is a tag of a model version.

use std::time::Duration;

use abide_client::rules::prompt_version;
use abide_definitions::project_config::MlflowConfig;
use abide_definitions::prompt_source::PromptStore;
use abide_json_integers as integers;
use abide_tools::{Environment, http_client};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;

use crate::catalog::stored_prompts::split;

/// How long a request may take: the other definitions wait for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a response in bytes: a prompt, and room for the other tags.
const RESPONSE_BYTES: usize = 4 << 20;

const TEXT_TAG: &str = "mlflow.prompt.text";
const TYPE_TAG: &str = "_mlflow_prompt_type";

/// The prompts of a server.
pub(crate) struct Mlflow {
    client: Client,
    base: Url,
    /// The header `Authorization`.
    authorization: Option<HeaderValue>,
}

#[derive(Deserialize)]
struct Found {
    model_version: ModelVersion,
}

#[derive(Deserialize)]
struct ModelVersion {
    #[serde(default)]
    tags: Vec<Tag>,
}

#[derive(Deserialize)]
struct Tag {
    key: String,
    #[serde(default)]
    value: String,
}

impl Mlflow {
    /// Prepares a client for the configured server; sends nothing.
    ///
    /// # Errors
    /// The address or the token cannot be used.
    pub(crate) fn open(config: &MlflowConfig, environment: &Environment) -> Result<Mlflow, String> {
        let MlflowConfig { url, token_env } = config;
        let base = Url::parse(&format!("{}/", url.trim_end_matches('/')))
            .ok()
            .filter(|base| matches!(base.scheme(), "http" | "https"))
            .ok_or_else(|| format!("prompts.mlflow: {url} is not an HTTP URL"))?;
        let authorization =
            token_env.as_ref().map(|name| bearer_of(environment, name)).transpose()?;
        let client = http_client()
            .timeout(TIMEOUT)
            // Each request has its own runtime (see `prompt`), with which its connection ends.
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|why| format!("prompts.mlflow: {why}"))?;
        Ok(Mlflow { client, base, authorization })
    }

    async fn text(&self, name: &str, at: &str) -> Result<String, String> {
        let (path, key, value) = match prompt_version(at) {
            version if version > 0 => ("model-versions/get", "version", version.to_string()),
            _ => ("registered-models/alias", "alias", at.to_owned()),
        };
        let address = self.base.join(&format!("api/2.0/mlflow/{path}"));
        let mut address = address.map_err(|why| why.to_string())?;
        address.query_pairs_mut().append_pair("name", name).append_pair(key, &value);
        let mut request = self.client.get(address);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        // The error's text can have the address with a secret in it.
        let answer = request.send().await.map_err(|why| {
            if why.is_timeout() {
                "the MLflow server did not respond in time".to_owned()
            } else {
                format!("the MLflow server cannot be reached: {}", why.without_url())
            }
        })?;
        match answer.status() {
            status if status.is_success() => {}
            StatusCode::NOT_FOUND => {
                return Err(format!("the MLflow server has no prompt {name} with {key} {value}"));
            }
            status => return Err(format!("the MLflow server responded with HTTP {status}")),
        }
        let body = read_bounded(answer).await?;
        let found: Found = serde_json::from_str(&integers::readable(&body))
            .map_err(|_| "the response is not valid for the MLflow API".to_owned())?;
        found.model_version.prompt(name)
    }
}

/// Returns the header with the token in an environment variable.
fn bearer_of(environment: &Environment, name: &str) -> Result<HeaderValue, String> {
    let token = environment
        .value(name)
        .ok_or_else(|| format!("prompts.mlflow: there is no environment variable {name}"))?;
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
        format!(
            "prompts.mlflow: the value of {name} has characters that are not allowed in a header"
        )
    })?;
    header.set_sensitive(true);
    Ok(header)
}

impl ModelVersion {
    fn prompt(self, name: &str) -> Result<String, String> {
        if self.tags.iter().any(|tag| tag.key == TYPE_TAG && tag.value == "chat") {
            return Err(format!("{name} is a list of chat messages, not a string"));
        }
        let text = self.tags.into_iter().find(|tag| tag.key == TEXT_TAG);
        text.map(|tag| tag.value).ok_or_else(|| format!("{name} is a model, not a prompt"))
    }
}

async fn read_bounded(mut answer: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|why| why.without_url().to_string())? {
        if body.len() + part.len() > RESPONSE_BYTES {
            return Err(format!("the response has more than {RESPONSE_BYTES} bytes"));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

impl PromptStore for Mlflow {
    fn prompt(&self, name: &str) -> Result<String, String> {
        let (name, at) = split(name)?;
        // A runtime of its own: the thread that waits may be the only one that drives sockets.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.map_err(|why| why.to_string())?.block_on(self.text(name, at))
            });
            waits.join().unwrap_or_else(|_| Err("the request panicked".to_owned()))
        })
    }
}
