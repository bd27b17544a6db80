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
        PublicUrl::parse_parts(text).ok_or_else(|| {
            let detail = format!("{text:?} is not the public URL of a server");
            Refusal::new(Code::BadArguments, detail)
                .hint("write a scheme, a host and a port if needed: https://agents.example")
        })
    }

    fn parse_parts(text: &str) -> Option<PublicUrl> {
        let (scheme, authority) = text.split_once("://")?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let uri: Uri = format!("{scheme}://{authority}").parse().ok()?;
        let host = uri.host().filter(|host| !host.is_empty())?;
        let has_port = authority.len() > host.len();
        let is_valid = ["http", "https"].contains(&scheme)
            && has_port == uri.port_u16().is_some()
            && authority.chars().all(is_authority_char);
        is_valid.then(|| PublicUrl(format!("{scheme}://{}", authority.to_ascii_lowercase())))
    }
}

/// Returns the configured public URL, or the request's `Host`. A proxy with TLS sends `X-Forwarded-Proto`; `has_tls` says
/// whether the server has TLS itself.
pub(crate) fn base_url(
    configured: Option<&PublicUrl>,
    has_tls: bool,
    uri: &Uri,
    headers: &HeaderMap,
) -> String {
    if let Some(PublicUrl(url)) = configured {
        return url.clone();
    }
    let host = header_text(headers, &HOST)
        .or(uri.authority().map(|it| it.as_str()))
        .filter(|host| host.chars().all(is_authority_char))
        .unwrap_or("localhost");
    let is_https = has_tls || header_text(headers, &X_FORWARDED_PROTO) == Some("https");
    let scheme = if is_https { "https" } else { "http" };
    format!("{scheme}://{host}")
}

fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns `true` for the characters of a name or an address and a port. No other one changes where an address leads.
fn is_authority_char(c: char) -> bool {
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
        assert_eq!(base_url(None, false, &uri, &headers), "http://evil.example");
        assert_eq!(base_url(None, true, &uri, &headers), "https://evil.example");
        let configured = PublicUrl::parse("https://agents.example").expect("it is an address");
        headers.insert("x-forwarded-proto", "http".parse().expect("it is a value"));
        assert_eq!(base_url(Some(&configured), false, &uri, &headers), "https://agents.example");
    }
}
