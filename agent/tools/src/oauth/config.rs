//! The settings of OAuth for one server.

use serde::{Deserialize, Serialize};

use super::assertion::SigningKey;
use crate::config::ConfigError;
use crate::environment::Setting;
use abide_sandbox::Environment;

/// How a client of a server gets tokens. Without these settings a person logs in, and the client registers itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "settings of OAuth: a map, such as { client_id: ID }")]
pub struct OAuthConfig {
    /// The id of a client that is registered with the authorization server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<Setting>,
    /// Its secret, `{ env: NAME }`. It needs `issuer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<Setting>,
    /// Its private key, `{ env: NAME }`: PEM with an EC, Ed25519 or RSA key, for the method `private_key_jwt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key: Option<Setting>,
    /// Whether the client gets tokens for itself (`client_credentials`), without a login of a person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub client_credentials: bool,
    /// The https address of a client id metadata document, used if the authorization server supports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_metadata_url: Option<String>,
    /// The authorization server. The default is the first one that the server names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// The scopes to request, and the most that are requested. The default is what the server asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// How the client authenticates at the token endpoint. The default follows from its credentials and the server's metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_endpoint_auth: Option<TokenEndpointAuth>,
    /// The port of the redirect URI `http://127.0.0.1:PORT/callback` of a login. The default is a free port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect_port: Option<u16>,
    /// Hosts of the authorization server whose addresses need not be public, and that may use http: `host` or `host:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_private: Vec<String>,
}

/// How a client authenticates at the token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenEndpointAuth {
    /// It has no secret.
    None,
    /// The secret is in the header `Authorization`.
    ClientSecretBasic,
    /// The secret is in the body.
    ClientSecretPost,
    /// A signed assertion is in the body.
    PrivateKeyJwt,
}

impl TokenEndpointAuth {
    /// Returns the name of RFC 7591.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TokenEndpointAuth::None => "none",
            TokenEndpointAuth::ClientSecretBasic => "client_secret_basic",
            TokenEndpointAuth::ClientSecretPost => "client_secret_post",
            TokenEndpointAuth::PrivateKeyJwt => "private_key_jwt",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<TokenEndpointAuth> {
        use TokenEndpointAuth as Auth;
        let all =
            [Auth::None, Auth::ClientSecretBasic, Auth::ClientSecretPost, Auth::PrivateKeyJwt];
        all.into_iter().find(|one| one.name() == name)
    }
}

/// Checked settings, with their secrets.
#[derive(Default)]
pub(crate) struct OAuthSettings {
    pub(crate) client_id: Option<String>,
    pub(crate) client_secret: Option<String>,
    pub(crate) private_key: Option<SigningKey>,
    pub(crate) client_credentials: bool,
    pub(crate) client_metadata_url: Option<String>,
    pub(crate) issuer: Option<String>,
    pub(crate) scopes: Vec<String>,
    pub(crate) token_endpoint_auth: Option<TokenEndpointAuth>,
    pub(crate) allow_private: Vec<String>,
}

impl OAuthConfig {
    /// # Errors
    /// A setting contradicts another one, or a variable is not set.
    pub(crate) fn settings(
        &self,
        server: &str,
        environment: &Environment,
    ) -> Result<OAuthSettings, ConfigError> {
        let bad = |why: &str| Err(ConfigError::new(server, why));
        let value = |setting: &Option<Setting>| {
            setting.as_ref().map(|it| it.value(server, environment)).transpose()
        };
        let private_key = value(&self.private_key)?;
        let settings = OAuthSettings {
            client_id: value(&self.client_id)?,
            client_secret: value(&self.client_secret)?,
            private_key: private_key.map(|pem| SigningKey::from_pem(server, &pem)).transpose()?,
            client_credentials: self.client_credentials,
            client_metadata_url: self.client_metadata_url.clone(),
            issuer: self.issuer.clone(),
            scopes: self.scopes.clone(),
            token_endpoint_auth: self.token_endpoint_auth,
            allow_private: self.allow_private.clone(),
        };
        let has_secret = settings.client_secret.is_some();
        let has_credentials = has_secret || settings.private_key.is_some();
        if has_secret && settings.private_key.is_some() {
            return bad("oauth needs either client_secret or private_key");
        }
        if has_credentials && settings.client_id.is_none() {
            return bad("oauth has credentials of a client, but no client_id");
        }
        if has_secret && settings.issuer.is_none() {
            return bad(
                "oauth has client_secret, but no issuer: the secret is sent to the configured authorization server only",
            );
        }
        if settings.client_credentials && !has_credentials {
            return bad("oauth has client_credentials, but neither client_secret nor private_key");
        }
        if !settings.client_metadata_url.as_ref().is_none_or(|url| url.starts_with("https://")) {
            return bad("client_metadata_url must begin with https://");
        }
        Ok(settings)
    }
}
