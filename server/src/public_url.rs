//! The address of the server as its clients know it. Without a configured one it is what the client writes in the header
//! `Host`, so a client that does not choose that header itself can be led elsewhere.

use abide_schema::{Code, Refusal};
use axum::http::header::HOST;
use axum::http::{HeaderMap, HeaderName, Uri};

use crate::single::X_FORWARDED_PROTO;

/// The public address of a server: scheme, host and port, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(String);

impl PublicUrl {
    /// Parses an address such as `https://agents.example`.
    ///
    /// # Errors
    /// It is not an address of HTTP, or it has more than a scheme, a host and a port.
    pub fn parse(text: &str) -> Result<PublicUrl, Refusal> {
        let bad = || {
            let detail = format!("{text:?} is not the public URL of a server");
            Refusal::new(Code::BadArguments, detail)
                .hint("write a scheme, a host and a port if needed: https://agents.example")
        };
        let (scheme, authority) = text.split_once("://").ok_or_else(bad)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let uri: Uri = format!("{scheme}://{authority}").parse().map_err(|_| bad())?;
        let is_http = ["http", "https"].contains(&scheme);
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
        let has_port = authority.len() > host.len();
        if is_http && has_port == uri.port_u16().is_some() && authority.chars().all(is_part) {
            Ok(PublicUrl(format!("{scheme}://{}", authority.to_ascii_lowercase())))
        } else {
            Err(bad())
        }
    }
}

/// Returns the address of this server: the configured one, else what the client has written. A proxy with TLS says so.
pub(crate) fn base(configured: Option<&PublicUrl>, uri: &Uri, headers: &HeaderMap) -> String {
    if let Some(PublicUrl(url)) = configured {
        return url.clone();
    }
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(&HOST).or(uri.authority().map(|it| it.as_str()));
    let host = host.filter(|host| host.chars().all(is_part)).unwrap_or("localhost");
    let scheme = text(&X_FORWARDED_PROTO).filter(|scheme| *scheme == "https").unwrap_or("http");
    format!("{scheme}://{host}")
}

/// Returns a name or an address and a port, and nothing that would change where an address leads.
fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || ".-_:[]".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_host_and_a_port() {
        for (text, url) in [
            ("https://agents.example", Some("https://agents.example")),
            ("https://Agents.Example:8443/", Some("https://agents.example:8443")),
            ("http://[::1]:7341", Some("http://[::1]:7341")),
            ("agents.example", None),
            ("ftp://agents.example", None),
            ("https://", None),
            ("https://:80", None),
            ("https://agents.example/abide", None),
            ("https://user@agents.example", None),
            ("https://agents.example?x", None),
            ("https://agents.example:x", None),
            ("https://a b", None),
            ("", None),
        ] {
            let parsed = PublicUrl::parse(text).ok().map(|PublicUrl(url)| url);
            assert_eq!(parsed.as_deref(), url, "{text}");
        }
    }

    #[test]
    fn the_configured_address_ignores_what_a_client_writes() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "evil.example".parse().expect("it is a value"));
        let uri = Uri::from_static("http://evil.example/");
        assert_eq!(base(None, &uri, &headers), "http://evil.example");
        let configured = PublicUrl::parse("https://agents.example").expect("it is an address");
        headers.insert("x-forwarded-proto", "http".parse().expect("it is a value"));
        assert_eq!(base(Some(&configured), &uri, &headers), "https://agents.example");
    }
}
