//! The identity of this client at an authorization server: registered before, a client id metadata document, or registered
//! dynamically (RFC 7591); and how it authenticates at the token endpoint.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::config::{OAuthSettings, TokenEndpointAuth};
use super::discovery::ServerMetadata;
use super::error::OAuthError;
use super::http::{OAuthHttp, form_encoded};

/// A client. It is known to one authorization server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) id: String,
    /// The secret of a dynamic registration. A configured one is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    auth: TokenEndpointAuth,
}

impl Client {
    /// Returns the client of the settings; `None` if it has to be registered.
    pub(super) fn configured(
        settings: &OAuthSettings,
        metadata: &ServerMetadata,
    ) -> Result<Option<Client>, OAuthError> {
        if let Some(id) = &settings.client_id {
            let auth = settings.token_endpoint_auth.unwrap_or_else(|| {
                match (&settings.private_key, &settings.client_secret) {
                    (Some(_), _) => TokenEndpointAuth::PrivateKeyJwt,
                    (None, Some(_)) => secret_auth(metadata),
                    (None, None) => TokenEndpointAuth::None,
                }
            });
            return Ok(Some(Client { id: id.clone(), secret: None, auth }));
        }
        let url = settings.client_metadata_url.as_ref();
        let url = url.filter(|_| metadata.client_id_metadata_document_supported);
        Ok(url.map(|url| Client { id: url.clone(), secret: None, auth: TokenEndpointAuth::None }))
    }

    /// Registers this client.
    pub(super) async fn register(
        http: &OAuthHttp,
        metadata: &ServerMetadata,
        redirect_uri: &str,
    ) -> Result<Client, OAuthError> {
        let Some(endpoint) = &metadata.registration_endpoint else {
            let why = "the authorization server registers no clients: register one there, and set \
                       oauth.client_id";
            return Err(OAuthError::Refused(why.to_owned()));
        };
        let requested = if supports(metadata, TokenEndpointAuth::None) {
            TokenEndpointAuth::None
        } else {
            secret_auth(metadata)
        };
        let document = json!({
            "client_name": "Abide",
            "application_type": "native",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": requested.name(),
        });
        let (status, answer) = http.post_json(endpoint, &document).await?;
        let Some(id) = answer["client_id"].as_str().filter(|_| status.is_success()) else {
            let why = format!("the registration of a client failed{}", reason(&answer));
            return Err(OAuthError::Refused(why));
        };
        let method = answer["token_endpoint_auth_method"].as_str();
        Ok(Client {
            id: id.to_owned(),
            secret: answer["client_secret"].as_str().map(str::to_owned),
            auth: method.and_then(TokenEndpointAuth::from_name).unwrap_or(requested),
        })
    }

    /// Adds what authenticates the client to a request, and returns the header `Authorization`, if the method has one.
    pub(super) fn authenticate(
        &self,
        settings: &OAuthSettings,
        issuer: &str,
        form: &mut Vec<(&'static str, String)>,
    ) -> Result<Option<HeaderValue>, OAuthError> {
        let secret = self.secret.as_ref().or(settings.client_secret.as_ref());
        let lacks = || OAuthError::Refused(format!("{} needs credentials", self.auth.name()));
        match self.auth {
            TokenEndpointAuth::ClientSecretBasic => {
                let secret = form_encoded(secret.ok_or_else(lacks)?);
                let pair = STANDARD.encode(format!("{}:{secret}", form_encoded(&self.id)));
                let mut header =
                    HeaderValue::try_from(format!("Basic {pair}")).map_err(|_| lacks())?;
                header.set_sensitive(true);
                return Ok(Some(header));
            }
            TokenEndpointAuth::None => {}
            TokenEndpointAuth::ClientSecretPost => {
                form.push(("client_secret", secret.ok_or_else(lacks)?.clone()));
            }
            TokenEndpointAuth::PrivateKeyJwt => {
                let key = settings.private_key.as_ref().ok_or_else(lacks)?;
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                form.push(("client_assertion_type", kind.to_owned()));
                form.push(("client_assertion", key.assertion(&self.id, issuer)?));
            }
        }
        form.push(("client_id", self.id.clone()));
        Ok(None)
    }
}

fn supports(metadata: &ServerMetadata, method: TokenEndpointAuth) -> bool {
    match &metadata.token_endpoint_auth_methods_supported {
        Some(methods) => methods.iter().any(|one| one == method.name()),
        None => method == TokenEndpointAuth::ClientSecretBasic,
    }
}

/// Returns how a client with a secret authenticates.
fn secret_auth(metadata: &ServerMetadata) -> TokenEndpointAuth {
    let basic = TokenEndpointAuth::ClientSecretBasic;
    let post = TokenEndpointAuth::ClientSecretPost;
    if !supports(metadata, basic) && supports(metadata, post) { post } else { basic }
}

/// Returns the error code of an answer. Its description is not used: it can repeat what was sent.
pub(super) fn reason(answer: &Value) -> String {
    let is_code = |code: &&str| {
        code.len() <= 64 && code.chars().all(|it| it.is_ascii_lowercase() || it == '_')
    };
    match answer["error"].as_str().filter(is_code) {
        Some(code) => format!(": {code}"),
        None => String::new(),
    }
}
