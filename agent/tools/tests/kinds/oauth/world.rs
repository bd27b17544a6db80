//! An MCP server of 2025-11-25 and its authorization server, on loopback. They record all requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) path: String,
    pub(super) authorization: String,
    pub(super) body: String,
}

/// What differs from a server that behaves well.
#[derive(Default)]
pub(super) struct Faults {
    /// The issuer of the metadata.
    pub(super) issuer: Option<String>,
    /// The resource of the metadata.
    pub(super) resource: Option<String>,
    /// The authorization server of the metadata.
    pub(super) authorization_server: Option<String>,
    /// Methods of PKCE.
    pub(super) pkce: Option<Value>,
    /// The parameter `iss` of an answer to a browser.
    pub(super) iss: Option<String>,
    /// Where requests for tokens, or to the server, are redirected.
    pub(super) token_redirect: Option<String>,
    pub(super) server_redirect: Option<String>,
    /// Rejections have no `WWW-Authenticate`.
    pub(super) without_challenge: bool,
    /// Each call needs one more scope than its token has.
    pub(super) wants_more: bool,
    /// The answer to a request for a token.
    pub(super) token: Option<(StatusCode, Value)>,
}

#[derive(Default)]
struct Things {
    url: String,
    received: Vec<Received>,
    faults: Faults,
    /// The scopes of valid tokens.
    tokens: BTreeMap<String, String>,
    /// The valid refresh token, and its scopes.
    refresh: Option<(String, String)>,
    /// The challenge and the scopes of the last login.
    login: Option<(String, String)>,
    issued: usize,
}

/// The servers.
#[derive(Clone)]
pub(super) struct World(Arc<Mutex<Things>>);

impl World {
    pub(super) async fn start() -> World {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("the socket is bound"));
        let world = World(Arc::new(Mutex::new(Things { url, ..Things::default() })));
        let router = Router::new().fallback(answer).with_state(world.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        world
    }

    fn things(&self) -> MutexGuard<'_, Things> {
        self.0.lock().expect("no panic")
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.things().url)
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.things().faults);
    }

    pub(super) fn all(&self) -> Vec<Received> {
        self.things().received.clone()
    }

    pub(super) fn received(&self, path: &str) -> Vec<Received> {
        self.all().into_iter().filter(|request| request.path == path).collect()
    }

    /// All access tokens end.
    pub(super) fn revoke(&self) {
        self.things().tokens.clear();
    }

    /// The secrets that were issued.
    pub(super) fn secrets(&self) -> Vec<String> {
        (1..=self.things().issued).flat_map(|at| [token(at), refresh(at), code(at)]).collect()
    }

    /// The address to which a browser is redirected whose user agrees.
    pub(super) fn agree(&self, login: &str) -> String {
        let query: BTreeMap<String, String> =
            Url::parse(login).expect("it is a URL").query_pairs().into_owned().collect();
        assert_eq!(query["code_challenge_method"], "S256");
        let mut things = self.things();
        let scopes = query.get("scope").cloned().unwrap_or_default();
        things.login = Some((query["code_challenge"].clone(), scopes));
        let mut redirected = Url::parse(&query["redirect_uri"]).expect("it is a URL");
        let code = code(things.issued + 1);
        redirected.query_pairs_mut().append_pair("code", &code);
        redirected.query_pairs_mut().append_pair("state", &query["state"]);
        if let Some(iss) = &things.faults.iss {
            redirected.query_pairs_mut().append_pair("iss", iss);
        }
        redirected.to_string()
    }
}

fn token(at: usize) -> String {
    format!("access-{at}-s3cret")
}

fn refresh(at: usize) -> String {
    format!("refresh-{at}-s3cret")
}

fn code(at: usize) -> String {
    format!("code-{at}-s3cret")
}

async fn answer(Shared(world): Shared<World>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("the body is short");
    let body = String::from_utf8(body.to_vec()).expect("the body is text");
    let path = parts.uri.path().to_owned();
    let authorization = parts.headers.get(header::AUTHORIZATION);
    let authorization = authorization.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let authorization = authorization.to_owned();
    let mut things = world.things();
    let received = Received { path: path.clone(), authorization, body };
    things.received.push(received.clone());
    let url = things.url.clone();
    match path.as_str() {
        "/mcp" => things.mcp(&received, &parts.headers),
        "/.well-known/oauth-protected-resource/mcp" => {
            let faults = &things.faults;
            let server = faults.authorization_server.clone();
            let document = json!({
                "resource": faults.resource.clone().unwrap_or_else(|| format!("{url}/mcp")),
                "authorization_servers": [server.unwrap_or_else(|| format!("{url}/as"))],
            });
            axum::Json(document).into_response()
        }
        "/.well-known/oauth-authorization-server/as" => {
            let faults = &things.faults;
            let document = json!({
                "issuer": faults.issuer.clone().unwrap_or_else(|| format!("{url}/as")),
                "authorization_endpoint": format!("{url}/as/authorize"),
                "token_endpoint": format!("{url}/as/token"),
                "registration_endpoint": format!("{url}/as/register"),
                "code_challenge_methods_supported": faults.pkce.clone().unwrap_or(json!(["S256"])),
                "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
            });
            axum::Json(document).into_response()
        }
        "/as/register" => {
            let answer = json!({"client_id": "registered", "token_endpoint_auth_method": "none"});
            (StatusCode::CREATED, axum::Json(answer)).into_response()
        }
        "/as/token" => things.token(&received.body),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn redirect(to: &str) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to.to_owned())]).into_response()
}

impl Things {
    fn challenge(&self, status: StatusCode, parameters: &str) -> Response {
        if self.faults.without_challenge {
            return status.into_response();
        }
        let metadata = format!("{}/.well-known/oauth-protected-resource/mcp", self.url);
        let header = format!("Bearer resource_metadata=\"{metadata}\", {parameters}");
        (status, [(header::WWW_AUTHENTICATE, header)]).into_response()
    }

    fn mcp(&mut self, received: &Received, headers: &HeaderMap) -> Response {
        if let Some(to) = &self.faults.server_redirect {
            return redirect(to);
        }
        let token = received.authorization.strip_prefix("Bearer ").unwrap_or_default();
        let Some(scopes) = self.tokens.get(token) else {
            return self.challenge(StatusCode::UNAUTHORIZED, "scope=\"look\"");
        };
        let Ok(message) = serde_json::from_str::<Value>(&received.body) else {
            return StatusCode::METHOD_NOT_ALLOWED.into_response();
        };
        let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
        let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        let result = match (message["method"].as_str(), message["params"]["name"].as_str()) {
            (Some("initialize"), _) => json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "shop", "version": "1"},
            }),
            (Some("tools/list"), _) => json!({"tools": [tool("look"), tool("admin")]}),
            (Some("tools/call"), _) if self.faults.wants_more => {
                let more = format!("error=\"insufficient_scope\", scope=\"more-{}\"", self.issued);
                return self.challenge(StatusCode::FORBIDDEN, &more);
            }
            (Some("tools/call"), Some("admin")) if !scopes.contains("admin") => {
                let admin = "error=\"insufficient_scope\", scope=\"admin\"";
                return self.challenge(StatusCode::FORBIDDEN, admin);
            }
            (Some("tools/call"), _) => text("looked"),
            _ if message["id"].is_null() => return StatusCode::ACCEPTED.into_response(),
            _ => {
                let error = json!({"code": -32601, "message": "unknown method"});
                let answer = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                return axum::Json(answer).into_response();
            }
        };
        assert!(headers.contains_key(header::ACCEPT));
        axum::Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
    }

    fn token(&mut self, body: &str) -> Response {
        if let Some(to) = &self.faults.token_redirect {
            return redirect(to);
        }
        if let Some((status, answer)) = self.faults.token.clone() {
            return (status, axum::Json(answer)).into_response();
        }
        let form = Url::parse(&format!("http://form/?{body}")).expect("it is a form");
        let form: BTreeMap<String, String> = form.query_pairs().into_owned().collect();
        assert_eq!(form["resource"], format!("{}/mcp", self.url));
        let value = |name: &str| form.get(name).cloned().unwrap_or_default();
        let scopes = match form["grant_type"].as_str() {
            "client_credentials" => Some(value("scope")),
            "authorization_code" => {
                let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(value("code_verifier")));
                let login = self.login.take().filter(|(challenge, _)| *challenge == digest);
                login.map(|(_, scopes)| scopes)
            }
            // A refresh token is valid once.
            _ => match self.refresh.take() {
                Some((refresh, scopes)) if refresh == value("refresh_token") => Some(scopes),
                _ => None,
            },
        };
        let Some(scopes) = scopes else {
            let error = json!({"error": "invalid_grant", "error_description": body});
            return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
        };
        self.issued += 1;
        let token = token(self.issued);
        let refresh = refresh(self.issued);
        self.tokens.insert(token.clone(), scopes.clone());
        self.refresh = Some((refresh.clone(), scopes.clone()));
        let answer = json!({
            "access_token": token,
            "token_type": "bearer",
            "expires_in": 3600,
            "refresh_token": refresh,
            "scope": scopes,
        });
        axum::Json(answer).into_response()
    }
}
