//! Discovery: the metadata of a protected resource (RFC 9728), and of its authorization server (RFC 8414 and OpenID Connect
//! Discovery 1.0).

use reqwest::Url;
use serde::Deserialize;

use super::challenge::Challenge;
use super::config::OAuthSettings;
use super::error::OAuthError;
use super::http::OAuthHttp;

/// A server as a protected resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    /// Its identifier, exactly as published.
    pub(super) id: String,
    /// The issuer of its authorization server.
    pub(super) issuer: String,
    pub(super) scopes_supported: Vec<String>,
}

/// The document of a resource.
#[derive(Deserialize)]
struct ResourceMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// The document of an authorization server.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ServerMetadata {
    pub(super) issuer: String,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) token_endpoint: String,
    pub(super) registration_endpoint: Option<String>,
    #[serde(default)]
    pub(super) scopes_supported: Vec<String>,
    code_challenge_methods_supported: Option<Vec<String>>,
    /// `None`: `client_secret_basic` (RFC 8414).
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    pub(super) client_id_metadata_document_supported: bool,
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
}

/// Finds out which authorization server protects a server.
pub(super) async fn protected_resource(
    http: &OAuthHttp,
    url: &Url,
    challenge: &Challenge,
    settings: &OAuthSettings,
) -> Result<Resource, OAuthError> {
    let candidates = match &challenge.resource_metadata {
        Some(advertised) => vec![advertised.clone()],
        None => well_known(url, "oauth-protected-resource"),
    };
    for candidate in candidates {
        let Some(document) = http.document(&candidate).await? else { continue };
        let Ok(metadata) = serde_json::from_value::<ResourceMetadata>(document) else { continue };
        return check_resource(metadata, url, settings);
    }
    let why = "the server publishes no metadata of a protected resource (RFC 9728)";
    Err(OAuthError::Refused(why.to_owned()))
}

fn check_resource(
    metadata: ResourceMetadata,
    url: &Url,
    settings: &OAuthSettings,
) -> Result<Resource, OAuthError> {
    let ResourceMetadata { resource: id, authorization_servers, scopes_supported } = metadata;
    if !contains(&id, url) {
        let why = format!("the metadata is that of the resource {id:?}, not of this server");
        return Err(OAuthError::Refused(why));
    }
    let issuer = match &settings.issuer {
        Some(issuer) => authorization_servers.into_iter().find(|one| is_same(one, issuer)),
        None => authorization_servers.into_iter().next(),
    };
    let issuer = issuer.ok_or_else(|| {
        let why = match &settings.issuer {
            Some(issuer) => {
                format!("the server does not accept tokens of the configured issuer {issuer:?}")
            }
            None => "the metadata names no authorization server".to_owned(),
        };
        OAuthError::Refused(why)
    })?;
    Ok(Resource { id, issuer, scopes_supported })
}

/// Returns `true` if a resource is the server at a URL, or contains it.
fn contains(resource: &str, url: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let base = resource.path().trim_end_matches('/');
    let below = url.path().strip_prefix(base);
    resource.origin() == url.origin()
        && resource.fragment().is_none()
        && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns `true` if two issuers are the same, except for a slash at the end.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Reads the metadata of an issuer.
pub(super) async fn server_metadata(
    http: &OAuthHttp,
    issuer: &str,
) -> Result<ServerMetadata, OAuthError> {
    let url = http.check(issuer)?;
    let mut candidates = well_known(&url, "oauth-authorization-server");
    candidates.truncate(1);
    candidates.extend(well_known(&url, "openid-configuration").into_iter().take(1));
    if url.path() != "/" {
        candidates
            .push(format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/')));
    }
    for candidate in candidates {
        let Some(document) = http.document(&candidate).await? else { continue };
        let Ok(metadata) = serde_json::from_value::<ServerMetadata>(document) else { continue };
        if !is_same(&metadata.issuer, issuer) {
            let why = format!(
                "the metadata of the authorization server {issuer:?} is that of {:?}",
                metadata.issuer
            );
            return Err(OAuthError::Refused(why));
        }
        return Ok(metadata);
    }
    let why = format!("the authorization server {issuer:?} publishes no metadata");
    Err(OAuthError::Refused(why))
}

impl ServerMetadata {
    /// Returns whether the server supports PKCE with S256. A server that does not say so is refused.
    pub(super) fn check_pkce(&self) -> Result<(), OAuthError> {
        let methods = self.code_challenge_methods_supported.iter().flatten();
        if methods.into_iter().any(|method| method == "S256") {
            Ok(())
        } else {
            let why = "the authorization server does not support PKCE with S256";
            Err(OAuthError::Refused(why.to_owned()))
        }
    }
}

/// Returns the well-known addresses of a URL: with its path, and then of the root.
fn well_known(url: &Url, name: &str) -> Vec<String> {
    let path = url.path().trim_end_matches('/');
    let mut all = vec![well_known_at(url, name, path)];
    if !path.is_empty() {
        all.push(well_known_at(url, name, ""));
    }
    all
}

fn well_known_at(url: &Url, name: &str, path: &str) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.set_path(&format!("/.well-known/{name}{path}"));
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_contains_the_server() {
        let check =
            |resource: &str, url: &str| contains(resource, &Url::parse(url).expect("it is a URL"));
        for resource in
            ["https://a", "https://a/", "https://a/mcp", "https://a/mcp/", "https://A:443/mcp"]
        {
            assert!(check(resource, "https://a/mcp"), "{resource}");
        }
        for resource in [
            "https://b/mcp",
            "http://a/mcp",
            "https://a:8443/mcp",
            "https://a/mc",
            "https://a/mcp/x",
            "https://a/mcp#x",
            "https://a.evil/mcp",
            "a",
        ] {
            assert!(!check(resource, "https://a/mcp"), "{resource}");
        }
    }

    #[test]
    fn addresses_of_metadata_are_derived() {
        let at = |url: &str| well_known(&Url::parse(url).expect("it is a URL"), "x");
        assert_eq!(
            at("https://a/b/c?d#e"),
            ["https://a/.well-known/x/b/c", "https://a/.well-known/x"]
        );
        assert_eq!(at("https://a:1/"), ["https://a:1/.well-known/x"]);
    }
}
