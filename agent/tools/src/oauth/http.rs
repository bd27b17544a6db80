//! Bounded requests to authorization servers: to public addresses over https, without redirects. The server itself, the hosts that
//! the settings permit, and loopback addresses of a server on a loopback address need neither.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use super::config::OAuthSettings;
use super::error::OAuthError;
use crate::config::ConfigError;
use crate::public_address::{self, PermittedHosts};

/// Maximum size of an answer, in bytes.
const ANSWER_BYTES: usize = 1 << 20;

/// Maximum time for a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The names of this machine.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Sends requests that concern one server.
pub(super) struct OAuthHttp {
    client: Client,
    hosts: PermittedHosts,
    /// Hosts that may use http.
    unencrypted: PermittedHosts,
}

impl OAuthHttp {
    pub(super) fn new(
        server: &str,
        url: &Url,
        settings: &OAuthSettings,
    ) -> Result<OAuthHttp, ConfigError> {
        let allowed = settings.allow_private.iter().cloned();
        let loopback = LOOPBACK.iter().filter(|_| is_loopback(url)).map(|it| (*it).to_owned());
        let unencrypted = PermittedHosts::new(allowed.chain(loopback));
        let mut hosts = unencrypted.clone();
        hosts.permit(url);
        let client = hosts.client().timeout(TIMEOUT).build();
        let client = client.map_err(|why| ConfigError::new(server, why.to_string()))?;
        Ok(OAuthHttp { client, hosts, unencrypted })
    }

    /// Checks an address before it receives a request, or before it is opened in a browser.
    pub(super) fn check(&self, url: &str) -> Result<Url, OAuthError> {
        let parsed = Url::parse(url);
        let parsed = parsed.map_err(|why| OAuthError::Refused(format!("{url:?}: {why}")))?;
        self.hosts.check(&parsed).map_err(OAuthError::Refused)?;
        if parsed.scheme() != "https" && !self.unencrypted.has(&parsed) {
            let host = parsed.host_str().unwrap_or_default();
            let why = format!("{host} does not use https; oauth.allow_private permits such hosts");
            return Err(OAuthError::Refused(why));
        }
        Ok(parsed)
    }

    /// Returns a JSON document; `None` if there is none at this address.
    pub(super) async fn document(&self, url: &str) -> Result<Option<Value>, OAuthError> {
        let url = self.check(url)?;
        let request = self.client.get(url.clone()).header(ACCEPT, "application/json");
        let response = request.send().await.map_err(|error| request_error(&url, &error))?;
        let status = response.status();
        let body = read_body(&url, response).await?;
        match status {
            StatusCode::OK => Ok(serde_json::from_slice(&body).ok()),
            status if status.is_server_error() => Err(status_error(&url, status)),
            _ => Ok(None),
        }
    }

    /// Posts a form, and returns the status and the JSON of the answer, or `null`.
    pub(super) async fn post_form(
        &self,
        url: &str,
        authorization: Option<HeaderValue>,
        form: &[(&str, String)],
    ) -> Result<(StatusCode, Value), OAuthError> {
        let url = self.check(url)?;
        let mut request = self.client.post(url.clone()).header(ACCEPT, "application/json");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let mut encoded = String::new();
        for (name, value) in form {
            let separator = if encoded.is_empty() { "" } else { "&" };
            encoded = format!("{encoded}{separator}{name}={}", form_encoded(value));
        }
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        self.send(&url, request.body(encoded)).await
    }

    /// Posts JSON, and returns the status and the JSON of the answer, or `null`.
    pub(super) async fn post_json(
        &self,
        url: &str,
        body: &Value,
    ) -> Result<(StatusCode, Value), OAuthError> {
        let url = self.check(url)?;
        let request = self.client.post(url.clone()).json(body);
        self.send(&url, request.header(ACCEPT, "application/json")).await
    }

    /// Returns the header `WWW-Authenticate` with which the server refuses a request without a token.
    pub(super) async fn challenge(&self, url: &str) -> Result<Option<String>, OAuthError> {
        let url = self.check(url)?;
        let list =
            serde_json::json!({"jsonrpc": "2.0", "id": 0, "method": "tools/list", "params": {}});
        let request = self
            .client
            .post(url.clone())
            .json(&list)
            .header(ACCEPT, "application/json, text/event-stream")
            .header("mcp-protocol-version", "2025-11-25");
        let response = request.send().await.map_err(|error| request_error(&url, &error))?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(None);
        }
        let header = response.headers().get("www-authenticate");
        Ok(header.and_then(|header| header.to_str().ok()).map(str::to_owned))
    }

    /// Sends a request, and returns the status and the JSON of the answer, or `null`. The answer to a wrong request is
    /// JSON, too, which the caller reads; a server that is overloaded or broken is an error.
    async fn send(
        &self,
        url: &Url,
        request: reqwest::RequestBuilder,
    ) -> Result<(StatusCode, Value), OAuthError> {
        let response = request.send().await.map_err(|error| request_error(url, &error))?;
        let status = response.status();
        let body = read_body(url, response).await?;
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(status_error(url, status));
        }
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

/// Returns `true` if the host of a URL is this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || literal.is_ok_and(|address| address.is_loopback())
}

/// Returns a value in a form.
pub(super) fn form_encoded(value: &str) -> String {
    crate::template::percent_encoded(value)
}

fn request_error(url: &Url, error: &reqwest::Error) -> OAuthError {
    let why = public_address::failure(url.host_str().unwrap_or_default(), error);
    if public_address::is_refusal(error) {
        OAuthError::Refused(why)
    } else {
        OAuthError::Unavailable(why)
    }
}

fn status_error(url: &Url, status: StatusCode) -> OAuthError {
    let host = url.host_str().unwrap_or_default();
    OAuthError::Unavailable(format!("{host} answered with status {}", status.as_u16()))
}

async fn read_body(url: &Url, mut response: Response) -> Result<Vec<u8>, OAuthError> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|error| request_error(url, &error))? {
        if body.len() + part.len() > ANSWER_BYTES {
            let host = url.host_str().unwrap_or_default();
            let why = format!("an answer of {host} has more than {ANSWER_BYTES} bytes");
            return Err(OAuthError::Refused(why));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(server: &str, allow_private: &[&str]) -> OAuthHttp {
        let allow_private = allow_private.iter().map(|it| (*it).to_owned()).collect();
        let settings = OAuthSettings { allow_private, ..OAuthSettings::default() };
        let url = Url::parse(server).expect("it is a URL");
        OAuthHttp::new("shop", &url, &settings).expect("there is a client")
    }

    #[tokio::test]
    async fn metadata_names_public_addresses_only() {
        let remote = http("https://shop.example/mcp", &[]);
        for url in [
            "https://127.0.0.1/x",
            "https://10.0.0.1/x",
            "https://169.254.169.254/latest/meta-data",
            "https://[::1]/x",
            "https://2130706433/x",
            "http://login.example/x",
            "http://shop.example/x",
            "https://user@login.example/x",
            "file:///etc/passwd",
            "not a URL",
        ] {
            assert!(matches!(remote.check(url), Err(OAuthError::Refused(_))), "{url}");
        }
        assert!(remote.check("https://login.example/x").is_ok());
        // A name is checked when it is resolved.
        let resolved = remote.document("https://localhost:1/x").await;
        assert!(matches!(resolved, Err(OAuthError::Refused(_))), "{resolved:?}");
    }

    #[test]
    fn a_server_on_this_machine_can_use_others_on_it() {
        let local = http("http://127.0.0.1:7000/mcp", &[]);
        assert!(local.check("http://localhost:8000/x").is_ok());
        assert!(local.check("http://10.0.0.1/x").is_err());
        let private = http("http://10.0.0.5:7000/mcp", &[]);
        assert!(private.check("http://10.0.0.5:7000/x").is_err(), "it is not encrypted");
        assert!(private.check("https://10.0.0.6/x").is_err());
        let permitted = http("http://10.0.0.5:7000/mcp", &["10.0.0.5:7000", "10.0.0.6"]);
        assert!(permitted.check("http://10.0.0.5:7000/x").is_ok());
        assert!(permitted.check("https://10.0.0.6/x").is_ok());
    }
}
