//! A login of a person: the authorization code grant with PKCE (OAuth 2.1), with a redirect to this machine (RFC 8252).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use sha2::{Digest as _, Sha256};

use super::authorizer::Authorizer;
use super::challenge::Challenge;
use super::client::{Client, reason};
use super::discovery::{self, Resource, ServerMetadata};
use super::error::OAuthError;
use super::random::random;
use super::store::StoredLogin;
use super::token::{TokenRequest, union};
use crate::config::ConfigError;

/// The scope of refresh tokens (OpenID Connect).
const OFFLINE: &str = "offline_access";

/// A login that waits for the answer of a browser.
pub struct McpLogin {
    authorizer: Authorizer,
    resource: Resource,
    metadata: ServerMetadata,
    client: Client,
    redirect_uri: String,
    scopes: Vec<String>,
    state: String,
    verifier: String,
    url: String,
}

impl McpLogin {
    /// Discovers the authorization server, and registers this client there if it has to be.
    pub(crate) async fn start(
        authorizer: Authorizer,
        redirect_uri: &str,
    ) -> Result<McpLogin, OAuthError> {
        let bad = |why: &str| Err(ConfigError::new(&authorizer.server, why).into());
        if authorizer.settings.client_credentials {
            return bad("with oauth.client_credentials there is no login");
        }
        if authorizer.store.is_none() {
            return bad("there is no folder for its login");
        }
        let challenge = authorizer.http.challenge(authorizer.url.as_str()).await?;
        let challenge = challenge.as_deref().map(Challenge::parse).unwrap_or_default();
        let http = &authorizer.http;
        let settings = &authorizer.settings;
        let resource =
            discovery::protected_resource(http, &authorizer.url, &challenge, settings).await?;
        let metadata = discovery::server_metadata(http, &resource.issuer).await?;
        metadata.check_pkce()?;
        let client = match Client::configured(settings, &metadata)? {
            Some(client) => client,
            None => Client::register(http, &metadata, redirect_uri).await?,
        };
        let scopes = authorizer.scopes_of_login(&challenge, &resource, &metadata).await?;
        let state = random()?;
        let verifier = random()?;
        let endpoint = metadata.authorization_endpoint.as_deref().unwrap_or_default();
        let mut url = http.check(endpoint)?;
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &client.id)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("code_challenge", &digest)
            .append_pair("code_challenge_method", "S256")
            .append_pair("state", &state)
            .append_pair("resource", &resource.id);
        if !scopes.is_empty() {
            url.query_pairs_mut().append_pair("scope", &scopes.join(" "));
        }
        let redirect_uri = redirect_uri.to_owned();
        let url = url.to_string();
        Ok(McpLogin {
            authorizer,
            resource,
            metadata,
            client,
            redirect_uri,
            scopes,
            state,
            verifier,
            url,
        })
    }

    /// Returns the address to open in a browser.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the scopes that are requested.
    #[must_use]
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// Completes the login with the address to which the browser was redirected, and stores the tokens.
    ///
    /// # Errors
    /// [`OAuthError::ForeignState`]: the address does not belong to this login, which still waits. Others end it.
    pub async fn finish(&self, redirected: &str) -> Result<(), OAuthError> {
        let code = self.code(redirected)?;
        let Authorizer { http, settings, store, .. } = &self.authorizer;
        let request = TokenRequest {
            http,
            settings,
            metadata: &self.metadata,
            client: &self.client,
            resource: &self.resource.id,
        };
        let form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code),
            ("redirect_uri", self.redirect_uri.clone()),
            ("code_verifier", self.verifier.clone()),
        ];
        let tokens = request.send(form, &self.scopes).await;
        let tokens = tokens.map_err(|error| error.into_error("the code of the login"))?;
        let login = StoredLogin {
            url: self.authorizer.url.to_string(),
            resource: self.resource.id.clone(),
            issuer: self.metadata.issuer.clone(),
            client: self.client.clone(),
            tokens: Some(tokens),
            wanted_scopes: Vec::new(),
        };
        let Some(store) = store else { return Ok(()) };
        let _lock = store.lock().await?;
        store.save(login).await
    }

    /// Returns the code of an answer that belongs to this login and comes from its authorization server.
    fn code(&self, redirected: &str) -> Result<String, OAuthError> {
        let base =
            Url::parse(&self.redirect_uri).map_err(|why| OAuthError::Refused(why.to_string()))?;
        let url = base.join(redirected).map_err(|_| OAuthError::ForeignState)?;
        let value = |name: &str| {
            let mut pairs = url.query_pairs();
            pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
        };
        if value("state").as_ref() != Some(&self.state) {
            return Err(OAuthError::ForeignState);
        }
        // RFC 9207: issuers are compared as they are, without normalization.
        match value("iss") {
            Some(issuer) if issuer != self.metadata.issuer => {
                let why = "the answer comes from another authorization server: its iss differs";
                return Err(OAuthError::Refused(why.to_owned()));
            }
            None if self.metadata.authorization_response_iss_parameter_supported => {
                return Err(OAuthError::Refused(
                    "the answer of the authorization server has no iss".to_owned(),
                ));
            }
            _ => {}
        }
        if let Some(error) = value("error") {
            let reason = reason(&serde_json::json!({ "error": error }));
            return Err(OAuthError::Refused(format!("the login was refused{reason}")));
        }
        value("code").ok_or_else(|| OAuthError::Refused("the answer has no code".to_owned()))
    }
}

impl Authorizer {
    /// Returns the scopes of a login: in addition to those that the server asks for, those that an earlier login has,
    /// or that a call needed, and that of refresh tokens.
    async fn scopes_of_login(
        &self,
        challenge: &Challenge,
        resource: &Resource,
        metadata: &ServerMetadata,
    ) -> Result<Vec<String>, OAuthError> {
        let mut scopes = self.scopes(challenge, resource)?;
        if !self.settings.scopes.is_empty() {
            return Ok(scopes);
        }
        let earlier = self.stored().await.ok().flatten();
        if let Some(login) = earlier.filter(|it| it.issuer == metadata.issuer) {
            let granted = login.tokens.map(|tokens| tokens.scopes).unwrap_or_default();
            scopes = union(&union(&granted, &login.wanted_scopes), &scopes);
        }
        if metadata.scopes_supported.iter().any(|scope| scope == OFFLINE) {
            scopes = union(&scopes, &[OFFLINE.to_owned()]);
        }
        self.check_scopes(&scopes)?;
        Ok(scopes)
    }
}
