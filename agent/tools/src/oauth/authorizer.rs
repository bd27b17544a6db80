//! The tokens of one server, as its connection uses them. A token is renewed once for all calls that need it.

use std::path::Path;

use reqwest::Url;
use tokio::sync::Mutex;

use super::challenge::Challenge;
use super::client::Client;
use super::config::{OAuthConfig, OAuthSettings};
use super::discovery::{self, Resource};
use super::error::OAuthError;
use super::http::OAuthHttp;
use super::store::{LoginStore, StoredLogin};
use super::token::{TokenError, TokenRequest, Tokens, union};
use crate::config::ConfigError;
use abide_sandbox::Environment;

/// Maximum number of scopes that are requested.
const SCOPES: usize = 64;

/// The tokens of a server.
pub(crate) struct Authorizer {
    pub(super) server: String,
    pub(super) url: Url,
    pub(super) settings: OAuthSettings,
    pub(super) http: OAuthHttp,
    pub(super) store: Option<LoginStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tokens: Option<Tokens>,
    /// The last challenge: its address of metadata is used again.
    challenge: Challenge,
    /// The scopes that were requested for the client itself.
    requested: Vec<String>,
}

impl Authorizer {
    /// # Errors
    /// The settings are invalid.
    pub(crate) fn new(
        server: &str,
        url: &Url,
        config: &OAuthConfig,
        environment: &Environment,
        folder: Option<&Path>,
    ) -> Result<Authorizer, ConfigError> {
        let settings = config.settings(server, environment)?;
        Ok(Authorizer {
            server: server.to_owned(),
            url: url.clone(),
            http: OAuthHttp::new(server, url, &settings)?,
            store: folder.map(|folder| LoginStore::new(folder, server)),
            settings,
            state: Mutex::default(),
        })
    }

    /// Returns the token for a request; `None` if there was no login.
    pub(crate) async fn token(&self) -> Result<Option<String>, OAuthError> {
        let mut state = self.state.lock().await;
        if let Some(tokens) = state.tokens.as_ref().filter(|tokens| !tokens.is_expired()) {
            return Ok(Some(tokens.access_token.clone()));
        }
        let is_available = if self.settings.client_credentials {
            if state.tokens.is_none() {
                let challenge = self.http.challenge(self.url.as_str()).await?;
                state.challenge = challenge.as_deref().map(Challenge::parse).unwrap_or_default();
            }
            true
        } else {
            self.stored().await?.is_some_and(|login| login.tokens.is_some())
        };
        if is_available { self.renew(&mut state, None).await.map(Some) } else { Ok(None) }
    }

    /// Another token than the one that the server has rejected, if it was sent one.
    pub(crate) async fn renewed(
        &self,
        rejected: Option<&str>,
        challenge: Challenge,
    ) -> Result<String, OAuthError> {
        let mut state = self.state.lock().await;
        if let Some(token) = state.other_than(rejected) {
            return Ok(token);
        }
        state.challenge = challenge;
        self.renew(&mut state, rejected).await
    }

    /// Returns a token with the scopes that the server asks for, after it has refused one that lacks them.
    pub(crate) async fn stepped_up(
        &self,
        refused: Option<&str>,
        challenge: Challenge,
    ) -> Result<String, OAuthError> {
        let mut state = self.state.lock().await;
        if let Some(token) = state.other_than(refused) {
            return Ok(token);
        }
        let lock = match &self.store {
            Some(store) => Some(store.lock().await?),
            None => None,
        };
        let login = self.stored().await?;
        let stored = login.as_ref().and_then(|login| login.tokens.clone());
        // A person has logged in since.
        if let Some(tokens) = stored.filter(|it| it.can_replace(refused)) {
            return Ok(state.tokens.insert(tokens).access_token.clone());
        }
        let granted = state.tokens.as_ref().map(|it| it.scopes.clone()).unwrap_or_default();
        let known = union(&granted, &state.requested);
        if challenge.scopes.iter().all(|scope| known.contains(scope)) {
            let why =
                "the token has all scopes that the server asks for, and the server refuses it";
            return Err(OAuthError::Refused(why.to_owned()));
        }
        let wanted = union(&known, &challenge.scopes);
        self.check_scopes(&wanted)?;
        if self.settings.client_credentials {
            return self.client_token(&mut state, wanted).await;
        }
        if let (Some(store), Some(mut login)) = (&self.store, login) {
            login.wanted_scopes.clone_from(&wanted);
            store.save(login).await?;
        }
        drop(lock);
        Err(self.login_required(wanted))
    }

    /// Why a request with a new token was refused again.
    pub(crate) fn rejected(&self) -> OAuthError {
        if self.settings.client_credentials {
            OAuthError::Refused("the server rejects the token of the client".to_owned())
        } else {
            self.login_required(Vec::new())
        }
    }

    async fn renew(&self, state: &mut State, rejected: Option<&str>) -> Result<String, OAuthError> {
        if self.settings.client_credentials {
            let scopes = state.requested.clone();
            return self.client_token(state, scopes).await;
        }
        let scopes = state.challenge.scopes.clone();
        let Some(store) = &self.store else { return Err(self.login_required(scopes)) };
        let _lock = store.lock().await?;
        let Some(mut login) = self.stored().await? else { return Err(self.login_required(scopes)) };
        let Some(tokens) = login.tokens.take() else { return Err(self.login_required(scopes)) };
        // Another process may have renewed it, or a person has logged in.
        let tokens = if tokens.can_replace(rejected) {
            tokens
        } else {
            let refreshed = self.refresh(&login, tokens).await;
            login.tokens = refreshed.as_ref().ok().cloned().flatten();
            if refreshed.is_ok() {
                store.save(login).await?;
            }
            refreshed?.ok_or_else(|| self.login_required(scopes))?
        };
        Ok(state.tokens.insert(tokens).access_token.clone())
    }

    /// Renews the tokens of a login, at the issuer that has issued them; `None` if a person has to log in again.
    async fn refresh(
        &self,
        login: &StoredLogin,
        tokens: Tokens,
    ) -> Result<Option<Tokens>, OAuthError> {
        let Some(refresh_token) = tokens.refresh_token else { return Ok(None) };
        let metadata = discovery::server_metadata(&self.http, &login.issuer).await?;
        let request = TokenRequest {
            http: &self.http,
            settings: &self.settings,
            metadata: &metadata,
            client: &login.client,
            resource: &login.resource,
        };
        let form = vec![
            ("grant_type", "refresh_token".to_owned()),
            ("refresh_token", refresh_token.clone()),
        ];
        match request.send(form, &tokens.scopes).await {
            Ok(mut renewed) => {
                renewed.refresh_token.get_or_insert(refresh_token);
                Ok(Some(renewed))
            }
            Err(TokenError::InvalidGrant) => Ok(None),
            Err(TokenError::Other(error)) => Err(error),
        }
    }

    /// Requests a token for the client itself. Without scopes it requests those that the server asks for.
    async fn client_token(
        &self,
        state: &mut State,
        scopes: Vec<String>,
    ) -> Result<String, OAuthError> {
        let challenge = &state.challenge;
        let resource =
            discovery::protected_resource(&self.http, &self.url, challenge, &self.settings).await?;
        let metadata = discovery::server_metadata(&self.http, &resource.issuer).await?;
        let client = Client::configured(&self.settings, &metadata)?;
        let client = client.ok_or_else(|| OAuthError::Refused("it has no client_id".to_owned()))?;
        let scopes = if scopes.is_empty() { self.scopes(challenge, &resource)? } else { scopes };
        let request = TokenRequest {
            http: &self.http,
            settings: &self.settings,
            metadata: &metadata,
            client: &client,
            resource: &resource.id,
        };
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        if !scopes.is_empty() {
            form.push(("scope", scopes.join(" ")));
        }
        let tokens = request.send(form, &scopes).await;
        let tokens = tokens.map_err(|error| error.into_error("the credentials of the client"))?;
        state.requested = scopes;
        Ok(state.tokens.insert(tokens).access_token.clone())
    }

    /// Returns the scopes to request: those of the settings, of the challenge, or of the metadata.
    pub(super) fn scopes(
        &self,
        challenge: &Challenge,
        resource: &Resource,
    ) -> Result<Vec<String>, OAuthError> {
        let scopes = match (self.settings.scopes.is_empty(), challenge.scopes.is_empty()) {
            (false, _) => &self.settings.scopes,
            (true, false) => &challenge.scopes,
            (true, true) => &resource.scopes_supported,
        };
        self.check_scopes(scopes)?;
        Ok(scopes.clone())
    }

    /// Checks that the settings permit the scopes, and that they can be sent.
    pub(super) fn check_scopes(&self, scopes: &[String]) -> Result<(), OAuthError> {
        let permitted = &self.settings.scopes;
        if let Some(other) =
            scopes.iter().find(|scope| !(permitted.is_empty() || permitted.contains(scope)))
        {
            let why = format!(
                "the server asks for the scope {other:?}, which oauth.scopes does not contain"
            );
            return Err(OAuthError::Refused(why));
        }
        // The characters of RFC 6749, section 3.3.
        let is_valid = |scope: &String| {
            scope.bytes().all(|it| it.is_ascii_graphic() && !matches!(it, b'"' | b'\\'))
        };
        if scopes.len() > SCOPES || !scopes.iter().all(is_valid) {
            return Err(OAuthError::Refused("the server asks for invalid scopes".to_owned()));
        }
        Ok(())
    }

    /// Returns the login of this server, if it belongs to the configured client and issuer.
    pub(super) async fn stored(&self) -> Result<Option<StoredLogin>, OAuthError> {
        let Some(store) = &self.store else { return Ok(None) };
        let login = store.load(self.url.as_str()).await?;
        Ok(login.filter(|login| {
            let client = &self.settings.client_id;
            let issuer = &self.settings.issuer;
            client.as_ref().is_none_or(|id| *id == login.client.id)
                && issuer.as_ref().is_none_or(|one| discovery::is_same(one, &login.issuer))
        }))
    }

    fn login_required(&self, scopes: Vec<String>) -> OAuthError {
        OAuthError::LoginRequired { server: self.server.clone(), scopes }
    }
}

impl State {
    /// Returns the token, if it can be used and differs from one that was sent: another call has renewed it.
    fn other_than(&self, sent: Option<&str>) -> Option<String> {
        let tokens = self.tokens.as_ref().filter(|tokens| tokens.can_replace(sent))?;
        Some(tokens.access_token.clone())
    }
}
