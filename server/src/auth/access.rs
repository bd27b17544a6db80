//! Authentication of requests.
//!
//! Without credentials, only callers on the same machine have access: the listener must be on
//! loopback, and requests that a web page of another origin triggers in a browser are
//! refused. A browser cannot connect to a Unix socket, whose permissions are the credential. Credentials are required
//! once the file has a token, or if the server is started with a token of its own or an issuer of JSON Web Tokens;
//! [`Authenticator`] checks them.

use std::sync::Arc;

use abide_schema::id::forbidden_character;
use abide_schema::wire::{SCOPE_HEADER, SUBPROTOCOL};
use abide_schema::{Code, Refusal, Scope, limits};
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONNECTION, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::Value as JsonValue;

use crate::access_log;
use crate::app_state::AppState;
use crate::auth::access_config::is_loopback;
use crate::auth::authenticator::{AuthSession, Authenticator};
use crate::auth::jwt::UniqueObject;
use crate::auth::protected_resource;
use crate::body;
use crate::connections::lifecycle::ConnectionPermit;
use crate::connections::unauthenticated::UnauthenticatedConnection;
use crate::problem::Problem;
use crate::single::{self, SEC_FETCH_SITE};
use crate::tls::ClientCertificate;

/// Paths without authentication: probes have no credentials, and a browser opens the page before it has any.
const OPEN: [&str; 6] = [
    "/",
    "/health",
    "/ready",
    // Public keys.
    "/.well-known/jwks.json",
    // A client has no token before it knows who issues them.
    protected_resource::PATH,
    protected_resource::PATH_OF_MCP,
];

/// Paths where a browser cannot set headers, so that the token may be in the query.
const TOKEN_IN_QUERY: [&str; 2] = ["/v1/ws", "/v1/subscribe"];

/// Returns `true` if the token may be in the query of a path: those, and the events of a run.
fn may_stand_in_query(path: &str) -> bool {
    let run = path.strip_prefix("/v1/runs/").and_then(|rest| rest.strip_suffix("/events"));
    TOKEN_IN_QUERY.contains(&path) || run.is_some_and(|id| !id.contains('/'))
}

/// Admits a request with the requested scope, or refuses it.
async fn admit(
    authenticator: &Authenticator,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    certificate: Option<&ClientCertificate>,
) -> Result<AuthSession, Refusal> {
    let session = authenticate(authenticator, method, uri, headers, certificate).await?;
    match requested_scope(headers)? {
        Some(scope) => Ok(AuthSession { caller: session.caller.acting_for(&scope)? }),
        None => Ok(session),
    }
}

/// Maximum bytes of the scope header. The engine caches the views of recent callers, each with its scope.
const SCOPE_BYTES: usize = 1 << 10;

/// Returns the scope that restricts a request.
fn requested_scope(headers: &HeaderMap) -> Result<Option<Scope>, Refusal> {
    let Some(value) = headers.get(SCOPE_HEADER) else { return Ok(None) };
    if value.len() > SCOPE_BYTES {
        let detail = format!("the header {SCOPE_HEADER} has over {SCOPE_BYTES} bytes");
        return Err(Refusal::new(Code::BadRequest, detail).hint("use shorter scope values"));
    }
    match read_scope(value.as_bytes()) {
        Some(scope) if scope.len() <= limits::SCOPE_KEYS => {
            Ok((!scope.is_empty()).then_some(scope))
        }
        _ => {
            let keys = limits::SCOPE_KEYS;
            let detail = format!(
                "the header {SCOPE_HEADER} must be one JSON object of at most {keys} strings without duplicate keys"
            );
            Err(Refusal::new(Code::BadRequest, detail)
                .hint(r#"for example `Abide-Scope: {"tenant": "acme"}`"#))
        }
    }
}

/// Parses a scope: a JSON object of texts. `None` for duplicate or invalid keys, and for values that an id cannot have.
fn read_scope(text: &[u8]) -> Option<Scope> {
    let UniqueObject(members) = serde_json::from_slice(text).ok()?;
    members
        .into_iter()
        .map(|(key, value)| match value {
            JsonValue::String(value)
                if is_scope_key(&key) && forbidden_character(&value).is_none() =>
            {
                Some((key, value))
            }
            _ => None,
        })
        .collect()
}

fn is_scope_key(key: &str) -> bool {
    !key.is_empty() && key.len() <= limits::NAME_BYTES && forbidden_character(key).is_none()
}

/// Determines the caller from the credential of a request.
async fn authenticate(
    authenticator: &Authenticator,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    certificate: Option<&ClientCertificate>,
) -> Result<AuthSession, Refusal> {
    single::check(uri, headers)?;
    let token = read_token(uri, headers)?;
    let required = authenticator.requires_credentials().await?;
    if !required {
        refuse_other_origins(method, uri, headers)?;
        return Ok(authenticator.open());
    }
    // A program with a certificate can act as another identity: it sends the token of that one.
    match (token, certificate) {
        (Some(token), _) => authenticator.admit(&token).await,
        (None, Some(certificate)) => {
            refuse_pages(headers)?;
            authenticator.admit_certificate(certificate).await
        }
        (None, None) => {
            let hint = if authenticator.access.accepts_client_certificates() {
                "send the header: Authorization: Bearer <token>, or present a client certificate"
            } else {
                "send the header: Authorization: Bearer <token>"
            };
            Err(Refusal::new(Code::Unauthenticated, "the request has no token").hint(hint))
        }
    }
}

/// A browser presents a certificate with the requests of every page, as it does with a cookie.
fn refuse_pages(headers: &HeaderMap) -> Result<(), Refusal> {
    if !headers.contains_key(ORIGIN) && !headers.contains_key(SEC_FETCH_SITE) {
        return Ok(());
    }
    let detail = "a client certificate is the credential of a program, not of a page in a browser";
    Err(Refusal::new(Code::Unauthenticated, detail)
        .hint("send the header: Authorization: Bearer <token>"))
}

/// Middleware: determines the caller of every request, or refuses it.
pub(crate) async fn authenticate_request(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let certificate = request.extensions().get::<ClientCertificate>();
    let admitted =
        admit(&app.authenticator, request.method(), request.uri(), request.headers(), certificate)
            .await;
    match admitted {
        Ok(session) => {
            // Before the connection counts as authenticated: a refused one is closed after a few seconds.
            if let Some(place) = request.extensions().get::<ConnectionPermit>()
                && let Err(refusal) = place.mark_authenticated(&session.caller)
            {
                body::discard(request).await;
                return refuse_connection(refusal);
            }
            if let Some(pending) = request.extensions().get::<Arc<UnauthenticatedConnection>>() {
                pending.mark_admitted();
            }
            let caller = access_log::is_enabled().then(|| session.caller.clone());
            request.extensions_mut().insert(session.caller.clone());
            request.extensions_mut().insert(session);
            let mut response = next.run(request).await;
            if let Some(caller) = caller {
                access_log::add_caller(&mut response, caller);
            }
            return response;
        }
        Err(refusal) => {
            let open = OPEN.contains(&request.uri().path()) && request.method() != Method::POST;
            // Probes are answered even if credentials cannot be looked up.
            if !open || matches!(refusal.code, Code::Denied | Code::BadRequest) {
                if refusal.code == Code::Unauthenticated {
                    app.refused_credentials.add();
                }
                let is_of_issuer = refusal.code == Code::Unauthenticated
                    && app.authenticator.access.jwt().is_some();
                let mut response = Problem(refusal).into_response();
                if is_of_issuer {
                    let uri = request.uri();
                    let headers = request.headers();
                    protected_resource::challenge(&app, &mut response, uri, headers);
                }
                body::discard(request).await;
                return response;
            }
        }
    }
    next.run(request).await
}

/// Returns the response to a caller that has too many connections.
fn refuse_connection(refusal: Refusal) -> Response {
    let mut response = Problem(refusal).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns the token of a request. It is in one place: of two tokens a proxy could check the other one.
fn read_token(uri: &Uri, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let in_header = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
    });
    let in_protocols = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|protocol| protocol.trim().strip_prefix("bearer."))
        .map(str::to_owned);
    let query = may_stand_in_query(uri.path()).then(|| uri.query()).flatten();
    let in_query = single::parameter(query, "token")?;
    let mut tokens = in_header.chain(in_protocols).chain(in_query);
    match (tokens.next(), tokens.next()) {
        (_, Some(_)) => Err(single::repeated("the token")),
        (token, None) => Ok(token),
    }
}

/// Loopback does not protect against a browser on the same machine: any page can
/// send requests to it, and can even make its own host name resolve to it (DNS rebinding).
/// Such a page is recognised by headers that it cannot forge.
fn refuse_other_origins(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let host = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
    for host in host.into_iter().chain(uri.authority().map(|authority| authority.as_str())) {
        if !is_loopback_host(host) {
            let detail = format!("requests to the host {host:?} need a token");
            return Err(Refusal::new(Code::Denied, detail).hint(
                "use http://127.0.0.1, or create a token with `abide token create NAME --role ROLE`",
            ));
        }
    }
    let reads = method == Method::GET || method == Method::HEAD;
    // The public page and probes are exempt. Everything else is checked: even a GET
    // that only subscribes costs something, and a browser sends it for any page.
    let acts = headers.contains_key(UPGRADE) || !(reads && OPEN.contains(&uri.path()));
    let site = headers.get(SEC_FETCH_SITE).filter(|_| acts);
    if site.is_some_and(|site| site == "cross-site") && !headers.contains_key(ORIGIN) {
        return Err(Refusal::new(
            Code::Denied,
            "requests from web pages of another site need a token",
        )
        .hint("create a token with `abide token create NAME --role ROLE` and send it"));
    }
    let origin = headers.get(ORIGIN).filter(|_| acts).map(|origin| origin.to_str());
    let Some(origin) = origin.map(|origin| origin.unwrap_or_default()) else { return Ok(()) };
    if is_loopback_origin(origin) {
        return Ok(());
    }
    Err(Refusal::new(Code::Denied, format!("requests from the origin {origin:?} need a token"))
        .hint("create a token with `abide token create NAME --role ROLE` and send it"))
}

/// Returns `true` if a page of an origin is from this machine.
pub(crate) fn is_loopback_origin(origin: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, host)| is_loopback_host(host))
}

/// Returns `true` if `host` or `host:port` names this machine and cannot be made to name another.
pub fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) if rest.is_empty() || rest.starts_with(':') => name,
        Some(_) => return false,
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// The supported subprotocols, of those that a WebSocket client offers.
pub(crate) const SUBPROTOCOLS: [&str; 1] = [SUBPROTOCOL];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::access_config::AccessConfig;

    type Pairs = &'static [(&'static str, &'static str)];

    fn headers(pairs: Pairs) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                let name = axum::http::HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            })
            .collect()
    }

    struct TestServer {
        authenticator: Authenticator,
        _folder: tempfile::TempDir,
    }

    impl TestServer {
        fn new(access: AccessConfig) -> TestServer {
            let folder = tempfile::tempdir().expect("a folder");
            let config = abide_engine::Config::new(Vec::new());
            let engine = abide_engine::Engine::open(folder.path().join("a.db"), config);
            let authenticator = Authenticator::new(access, engine.expect("an engine"));
            TestServer { authenticator, _folder: folder }
        }

        async fn name(&self, path: &'static str, pairs: Pairs) -> String {
            self.caller_id(&Method::POST, path, pairs).await
        }

        async fn caller_id(&self, method: &Method, path: &'static str, pairs: Pairs) -> String {
            let path = Uri::from_static(path);
            let headers = headers(pairs);
            let admitted = admit(&self.authenticator, method, &path, &headers, None).await;
            let caller_id = admitted.map(|session| session.caller.id().to_owned());
            caller_id.unwrap_or_else(|refusal| refusal.code.to_string())
        }
    }

    #[test]
    fn loopback_host_names_are_recognised() {
        let this = ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:7341", "[::1]"];
        let other = ["", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "0.0.0.0"];
        let odd = ["10.0.0.1:80", "[::1]x", "[fe80::1]", "user@localhost"];
        assert!(this.into_iter().all(is_loopback_host));
        assert_eq!(other.into_iter().chain(odd).find(|host| is_loopback_host(host)), None);
    }

    #[tokio::test]
    async fn pages_of_other_origins_are_refused() {
        let open = TestServer::new(AccessConfig::loopback());
        let ways: [(Pairs, &str); 9] = [
            (&[], "local"),
            (&[("host", "localhost:7341")], "local"),
            (&[("host", "evil.example")], "denied"),
            (&[("host", "localhost"), ("origin", "http://localhost:5173")], "local"),
            (&[("host", "localhost"), ("origin", "https://evil.example")], "denied"),
            (&[("host", "localhost"), ("origin", "null")], "denied"),
            (&[("host", "localhost"), ("sec-fetch-site", "cross-site")], "denied"),
            (&[("host", "localhost"), ("sec-fetch-site", "same-origin")], "local"),
            (&[("host", "localhost"), ("origin", "http://localhost.evil.example")], "denied"),
        ];
        for (pairs, expected) in ways {
            for method in [Method::POST, Method::GET] {
                let received = open.caller_id(&method, "/v1/subscribe", pairs).await;
                assert_eq!(received, expected, "{method} {pairs:?}");
            }
        }
    }

    #[test]
    fn the_page_about_security_names_every_open_path() {
        let page = include_str!("../../../docs/security.md");
        let row = page.lines().find(|line| line.starts_with("| no credential |"));
        let cell = row.and_then(|row| row.split('|').nth(2)).expect("the page has the row");
        let paths: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert_eq!(paths, OPEN);
    }

    #[tokio::test]
    async fn a_socket_has_a_secret_and_no_host() {
        let socket = TestServer::new(AccessConfig::for_socket("s3cret").expect("a good secret"));
        for (pairs, expected) in [
            (&[][..], "unauthenticated"),
            (&[("authorization", "Bearer s3cre")], "unauthenticated"),
            (&[("authorization", "Bearer s3cret")], "local"),
            (&[("authorization", "Bearer s3cret"), ("host", "agents.db")], "local"),
        ] {
            assert_eq!(socket.name("/v1/ws", pairs).await, expected, "{pairs:?}");
        }
    }

    /// A browser presents a certificate with the requests of any page, so that a page could act as a worker.
    #[tokio::test]
    async fn a_certificate_is_no_credential_of_a_page() {
        let server = TestServer::new(AccessConfig::loopback().with_client_certificates());
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("it has no names");
        let certificate = params.self_signed(&key).expect("it is signed");
        let certificate = ClientCertificate::of(certificate.der()).expect("it has dates");
        let unknown = "the client certificate belongs to no identity";
        let of_page =
            "a client certificate is the credential of a program, not of a page in a browser";
        let cases: [(Option<&ClientCertificate>, Pairs, &str); 5] = [
            (None, &[], "the request has no token"),
            (Some(&certificate), &[], unknown),
            (Some(&certificate), &[("origin", "https://evil.example")], of_page),
            (Some(&certificate), &[("sec-fetch-site", "same-origin")], of_page),
            (Some(&certificate), &[("authorization", "Bearer abide_x")], "the token is unknown"),
        ];
        for (certificate, pairs, expected) in cases {
            let path = Uri::from_static("/v1/sql");
            let headers = headers(pairs);
            let admitted =
                admit(&server.authenticator, &Method::POST, &path, &headers, certificate).await;
            let refusal = admitted.expect_err("it is no credential");
            assert_eq!((refusal.code, refusal.detail.as_str()), (Code::Unauthenticated, expected));
        }
    }

    #[tokio::test]
    async fn a_token_is_found_in_every_allowed_place() {
        let access = AccessConfig::bearer("s3+cret/").expect("a good token");
        let door = TestServer::new(access);
        let ways: [(&str, Pairs, &str); 9] = [
            ("/v1/sql", &[("authorization", "Bearer s3+cret/")], "token"),
            ("/v1/sql", &[("authorization", "bearer s3+cret/")], "token"),
            ("/v1/sql", &[("authorization", "Bearer s3+cret")], "unauthenticated"),
            ("/v1/sql", &[("authorization", "Basic s3+cret/")], "unauthenticated"),
            ("/v1/sql?token=s3+cret/", &[], "unauthenticated"),
            ("/v1/ws?token=s3+cret/", &[], "token"),
            ("/v1/ws?a=b&token=s3%2Bcret%2f", &[], "token"),
            ("/v1/ws", &[("sec-websocket-protocol", "abide.v1, bearer.s3+cret/")], "token"),
            ("/v1/ws", &[("sec-websocket-protocol", "abide.v1, bearer.")], "unauthenticated"),
        ];
        for (path, pairs, expected) in ways {
            assert_eq!(door.name(path, pairs).await, expected, "{path} {pairs:?}");
        }
        assert!(AccessConfig::bearer("").is_err() && AccessConfig::bearer("two words").is_err());
    }
}
