//! What the head of a request must have, and must not have, before its caller is determined.

use abide_schema::{Code, Refusal};
use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HOST};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::body;
use crate::problem::{Problem, with_status};

/// Middleware: refuses a request without a host, and a body with a coding.
pub(crate) async fn check(request: Request, next: Next) -> Response {
    let headers = request.headers();
    // RFC 9112, section 3.2. HTTP/1.0 has no such rule, and HTTP/2 has the host in the target.
    let lacks_host = request.version() == Version::HTTP_11 && !headers.contains_key(HOST);
    let response = if lacks_host {
        Problem(missing_host()).into_response()
    } else if let Some(coding) = find_coding(headers) {
        refuse_coding(coding)
    } else {
        return next.run(request).await;
    };
    body::discard(request).await;
    response
}

fn missing_host() -> Refusal {
    Refusal::new(Code::BadRequest, "the request has no header Host")
        .hint("HTTP/1.1 requires it, for example `Host: localhost:7341`")
}

/// Returns the value of a header that says that the body is not as it would be parsed.
fn find_coding(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .find(|value| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
}

/// The code is `bad_request`; the status is HTTP's 415, with the header that it prescribes (RFC 9110, section 15.5.16).
fn refuse_coding(coding: &HeaderValue) -> Response {
    let coding = String::from_utf8_lossy(coding.as_bytes());
    let detail = format!("the body has the content encoding {coding:?}, which is not supported");
    let refusal = Refusal::new(Code::BadRequest, detail)
        .hint("send the body without compression, and without the header Content-Encoding");
    let mut response = with_status(&refusal, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    response
}
