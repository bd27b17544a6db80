//! Headers and query parameters that a request has at most once. A proxy in front of the server may check one of two
//! values while the server acts on the other, so a request with two is refused before anything reads it. Later code can
//! take the first value of a header.

use abide_schema::wire::SCOPE_HEADER;
use abide_schema::{Code, Refusal};
use axum::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, IF_MATCH, ORIGIN, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION,
};
use axum::http::{HeaderMap, HeaderName, Uri};
use percent_encoding::percent_decode_str;

/// The request id of a call.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Where a stream of server-sent events continues.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The version of A2A, also a parameter of the query.
pub const A2A_VERSION: HeaderName = HeaderName::from_static("a2a-version");
/// Whether the page that sent a request is of another site.
pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Every header that decides something and is not a list. Those of MCP are read with [`header`] by its
/// routes, because its clients expect an error of their protocol.
const SINGLE: [HeaderName; 14] = [
    AUTHORIZATION,
    HeaderName::from_static(SCOPE_HEADER),
    HOST,
    ORIGIN,
    SEC_FETCH_SITE,
    X_FORWARDED_PROTO,
    CONTENT_TYPE,
    CONTENT_LENGTH,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    LAST_EVENT_ID,
    A2A_VERSION,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION,
];

/// Refuses a request with two values where one is expected.
pub(crate) fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    for name in SINGLE {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(repeated(&format!("the header {name}")));
        }
    }
    // HTTP/2 has the host in the target, and so has HTTP/1.1 towards a proxy.
    if let (Some(authority), Some(host)) = (uri.authority(), headers.get(HOST))
        && !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())
    {
        return Err(repeated("the host"));
    }
    let in_query = parameter(uri.query(), "A2A-Version")?;
    if in_query.is_some() && headers.contains_key(A2A_VERSION) {
        return Err(repeated("the version of A2A"));
    }
    Ok(())
}

/// Returns the refusal of a request that has something twice.
pub(crate) fn repeated(what: &str) -> Refusal {
    Refusal::new(Code::BadRequest, format!("{what} occurs twice in the request"))
        .hint("send it once: a proxy and the server could each read another one")
}

/// Returns the value of a header, if the request has it once.
pub fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(repeated(&format!("the header {name}")));
    }
    let value = value.to_str().map_err(|_| {
        Refusal::new(Code::BadRequest, format!("the header {name} is not visible ASCII"))
    })?;
    Ok(Some(value))
}

/// Returns the request id of a call: the value of the header `Idempotency-Key`.
///
/// # Errors
/// `bad_request` if it occurs twice or is not visible ASCII.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    header(headers, &IDEMPOTENCY_KEY).map_err(|refusal| refusal.hint("use a UUID"))
}

/// Returns the value of a parameter of the query, if it is there. A `+` stays one: base64 tokens contain it.
pub fn parameter(query: Option<&str>, name: &str) -> Result<Option<String>, Refusal> {
    let mut found = None;
    for pair in query.into_iter().flat_map(|query| query.split('&')) {
        let (given, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !percent_decode_str(given).eq(name.bytes()) {
            continue;
        }
        let value = percent_decode_str(value).decode_utf8().map_err(|_| {
            Refusal::new(Code::BadRequest, format!("the parameter {name} is not UTF-8"))
        })?;
        if found.replace(value.into_owned()).is_some() {
            return Err(repeated(&format!("the parameter {name} of the query")));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_has_one_value_however_its_name_is_written() {
        let read = |query: &'static str| {
            parameter(Some(query), "token").map_err(|refusal| refusal.code.to_string())
        };
        assert_eq!(read("a=b&token=s3%2Bcret+/"), Ok(Some("s3+cret+/".to_owned())));
        assert_eq!(read("tokens=1&Token=2"), Ok(None));
        assert_eq!(read("token"), Ok(Some(String::new())));
        for query in ["token=a&token=a", "token=a&%74oken=b", "token&token=b", "token=%ff"] {
            assert_eq!(read(query), Err("bad_request".to_owned()), "{query}");
        }
    }
}
