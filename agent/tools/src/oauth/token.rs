//! Requests to the token endpoint, and tokens.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{Client, reason};
use super::config::OAuthSettings;
use super::discovery::ServerMetadata;
use super::error::OAuthError;
use super::http::OAuthHttp;

/// A token is renewed when it ends within this time.
const MARGIN: Duration = Duration::from_secs(30);

/// Maximum size of a token in bytes: servers limit their headers.
const TOKEN_BYTES: usize = 16 << 10;

/// An access token. It is sent only to the server that it was requested for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tokens {
    pub(super) access_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
    /// When the access token ends, in milliseconds since 1970, if the authorization server has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_at_ms: Option<u64>,
    /// The scopes of the access token.
    #[serde(default)]
    pub(super) scopes: Vec<String>,
}

impl Tokens {
    pub(super) fn is_expired(&self) -> bool {
        let margin = MARGIN.as_millis() as u64;
        self.expires_at_ms.is_some_and(|end| end <= now_ms() + margin)
    }

    /// Returns `true` if the token can be sent after a server has refused another one.
    pub(super) fn can_replace(&self, refused: Option<&str>) -> bool {
        refused != Some(self.access_token.as_str()) && !self.is_expired()
    }
}

/// Why a request for a token failed.
pub(super) enum TokenError {
    /// The grant, such as a refresh token, is not valid any more.
    InvalidGrant,
    Other(OAuthError),
}

impl From<OAuthError> for TokenError {
    fn from(error: OAuthError) -> TokenError {
        TokenError::Other(error)
    }
}

impl TokenError {
    pub(super) fn into_error(self, grant: &str) -> OAuthError {
        match self {
            TokenError::InvalidGrant => OAuthError::Refused(format!("{grant} is not valid")),
            TokenError::Other(error) => error,
        }
    }
}

/// The parties of a request for a token.
pub(super) struct TokenRequest<'a> {
    pub(super) http: &'a OAuthHttp,
    pub(super) settings: &'a OAuthSettings,
    pub(super) metadata: &'a ServerMetadata,
    pub(super) client: &'a Client,
    /// The identifier of the server.
    pub(super) resource: &'a str,
}

impl TokenRequest<'_> {
    /// Requests a token. The scopes are those of the token, if the answer names none.
    pub(super) async fn send(
        &self,
        mut form: Vec<(&'static str, String)>,
        scopes: &[String],
    ) -> Result<Tokens, TokenError> {
        form.push(("resource", self.resource.to_owned()));
        let issuer = &self.metadata.issuer;
        let authorization = self.client.authenticate(self.settings, issuer, &mut form)?;
        let endpoint = &self.metadata.token_endpoint;
        let (status, answer) = self.http.post_form(endpoint, authorization, &form).await?;
        if status.is_success() {
            return Ok(parse_tokens(&answer, scopes)?);
        }
        if answer["error"] == "invalid_grant" {
            return Err(TokenError::InvalidGrant);
        }
        let why = format!("the authorization server issued no token{}", reason(&answer));
        Err(OAuthError::Refused(why).into())
    }
}

fn parse_tokens(answer: &Value, requested: &[String]) -> Result<Tokens, OAuthError> {
    let refused = |why: &str| OAuthError::Refused(format!("the answer with the token {why}"));
    let is_bearer =
        answer["token_type"].as_str().is_some_and(|it| it.eq_ignore_ascii_case("bearer"));
    if !is_bearer {
        return Err(refused("is not of the type Bearer"));
    }
    let access_token = answer["access_token"].as_str().filter(|token| {
        !token.is_empty()
            && token.len() <= TOKEN_BYTES
            && token.bytes().all(|it| it.is_ascii_graphic())
    });
    let access_token = access_token.ok_or_else(|| refused("has no valid token"))?.to_owned();
    let lifetime = &answer["expires_in"];
    let lifetime = lifetime.as_u64().or_else(|| lifetime.as_str()?.parse().ok());
    let scopes = answer["scope"].as_str();
    let scopes = scopes.map(|it| it.split_ascii_whitespace().map(str::to_owned).collect());
    Ok(Tokens {
        access_token,
        refresh_token: answer["refresh_token"].as_str().map(str::to_owned),
        expires_at_ms: lifetime.map(|it| now_ms().saturating_add(it.saturating_mul(1_000))),
        scopes: scopes.unwrap_or_else(|| requested.to_vec()),
    })
}

/// Returns all scopes of both lists, once.
pub(super) fn union(one: &[String], other: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for scope in one.iter().chain(other) {
        if !all.contains(scope) {
            all.push(scope.clone());
        }
    }
    all
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
