//! OAuth of MCP servers, against a server and its authorization server on loopback that record all requests. The tests are about
//! what an attacker could change: metadata, redirects, answers of a browser, challenges; and about tokens in the wrong place.

mod world;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use abide_tools::{
    Failure, McpError, McpServer, McpServerConfig, OAuthConfig, OAuthError, Setting, ToolOutcome,
    Tools, forget_mcp_login,
};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use serde_json::json;
use tempfile::TempDir;

use crate::{call, environment};
use world::World;

const REDIRECT: &str = "http://127.0.0.1:3000/callback";

/// The settings of a client that gets tokens for itself.
fn for_itself(world: &World) -> OAuthConfig {
    OAuthConfig {
        client_id: Some(Setting::Literal("clerk".to_owned())),
        client_secret: Some(Setting::Literal("cl1ent-s3cret".to_owned())),
        client_credentials: true,
        issuer: Some(world.url("/as")),
        ..OAuthConfig::default()
    }
}

fn config(world: &World, oauth: Option<OAuthConfig>, folder: Option<&TempDir>) -> McpServerConfig {
    let mut config = McpServerConfig::at("shop", &world.url("/mcp"));
    config.oauth = oauth;
    config.login_folder = folder.map(|folder| folder.path().join("logins"));
    config
}

struct Home {
    _server: McpServer,
    tools: Tools,
}

async fn start(config: McpServerConfig) -> Result<Home, String> {
    let tools = Tools::new();
    match McpServer::start(config, &environment(), &tools).await {
        Ok(server) => Ok(Home { _server: server, tools }),
        Err(McpError::Unavailable { why, .. }) => Err(why),
        Err(other) => Err(other.to_string()),
    }
}

impl Home {
    async fn call(&self, tool: &str) -> ToolOutcome {
        call(&*self.tools.get(tool).expect("the tool exists"), json!({})).await
    }
}

/// Logs in as a browser whose user agrees.
async fn login(world: &World, config: &McpServerConfig) -> Result<(), OAuthError> {
    let login = config.login(&environment(), REDIRECT).await?;
    let redirected = world.agree(login.url());
    login.finish(&redirected).await
}

/// The outcome of an attempt to log in.
async fn refused(world: &World) -> String {
    let folder = TempDir::new().expect("a folder");
    let config = config(world, None, Some(&folder));
    let error = login(world, &config).await.expect_err("the login is refused");
    assert!(!folder.path().join("logins/shop.json").exists());
    error.to_string()
}

#[tokio::test]
async fn a_client_gets_a_token_for_itself() {
    let world = World::start().await;
    let home = start(config(&world, Some(for_itself(&world)), None)).await.expect("it starts");
    assert_eq!(home.call("shop_look").await.text, "looked");
    let calls = join_all((0..8).map(|_| home.call("shop_look"))).await;
    assert!(calls.iter().all(|outcome| outcome.text == "looked"), "{calls:?}");
    let tokens = world.received("/as/token");
    assert_eq!(tokens.len(), 1, "{tokens:?}");
    let resource = world.url("/mcp").replace(':', "%3A").replace('/', "%2F");
    let form = format!("grant_type=client_credentials&scope=look&resource={resource}");
    assert_eq!(tokens[0].body, form);
    assert_eq!(
        tokens[0].authorization,
        format!("Basic {}", STANDARD.encode("clerk:cl1ent-s3cret"))
    );
    // The token is sent to the server only, and the secret to the token endpoint only.
    for request in world.all() {
        let token = "Bearer ";
        let secret = "Basic ";
        assert!(!request.authorization.starts_with(token) || request.path == "/mcp", "{request:?}");
        assert!(!request.authorization.starts_with(secret) || request.path == "/as/token");
        assert!(!request.body.contains("s3cret"), "{request:?}");
    }
}

#[tokio::test]
async fn a_server_that_needs_a_login_says_so() {
    let world = World::start().await;
    let why = start(config(&world, None, None)).await.err().expect("there is no login");
    assert_eq!(why, "it requires a login with the scopes look: run `abide mcp login shop`");
    assert!(world.received("/as/token").is_empty());
}

#[tokio::test]
async fn a_login_is_stored_for_its_owner_and_survives_the_process() {
    let world = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let config = config(&world, None, Some(&folder));
    login(&world, &config).await.expect("the login succeeds");
    for _ in 0..2 {
        let home = start(config.clone()).await.expect("it starts");
        assert_eq!(home.call("shop_look").await.text, "looked");
    }
    assert_eq!(world.received("/as/token").len(), 1);
    let mode = |path: &str| {
        let path = folder.path().join(path);
        fs::metadata(&path).expect("it exists").permissions().mode() & 0o777
    };
    assert_eq!((mode("logins"), mode("logins/shop.json")), (0o700, 0o600));
    let ignored = fs::read_to_string(folder.path().join("logins/.gitignore")).expect("it exists");
    assert_eq!(ignored, "*\n");
    // A file that others can read is not used.
    let file = folder.path().join("logins/shop.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("the owner may");
    let why = start(config.clone()).await.err().expect("the file is refused");
    assert!(why.contains("other users can read it; `chmod 600"), "{why}");
    let removed = forget_mcp_login(&folder.path().join("logins"), "shop").await;
    assert_eq!(removed, Ok(true));
    assert!(start(config).await.err().expect("it is gone").contains("abide mcp login shop"));
}

/// The definition of the server was changed: its tokens must not be sent to the new address.
#[tokio::test]
async fn a_token_is_not_sent_to_another_address() {
    let world = World::start().await;
    let elsewhere = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let config = config(&world, None, Some(&folder));
    login(&world, &config).await.expect("the login succeeds");
    let moved = McpServerConfig { url: Some(elsewhere.url("/mcp")), ..config.clone() };
    assert!(start(moved).await.is_err());
    // Also not by a redirect.
    world.set(|it| it.server_redirect = Some(elsewhere.url("/mcp")));
    assert!(start(config).await.is_err());
    let leaked = elsewhere.all().into_iter().filter(|it| !it.authorization.is_empty());
    assert_eq!(leaked.count(), 0, "{:?}", elsewhere.all());
}

#[tokio::test]
async fn a_redirect_of_the_token_endpoint_is_not_followed() {
    let world = World::start().await;
    let elsewhere = World::start().await;
    world.set(|it| it.token_redirect = Some(elsewhere.url("/as/token")));
    let config = config(&world, Some(for_itself(&world)), None);
    let why = start(config).await.err().expect("there is no token");
    assert_eq!(why, "the authorization was refused: the authorization server issued no token");
    assert!(elsewhere.all().is_empty(), "{:?}", elsewhere.all());
}

/// A server could name its own authorization server to get the secret of the client.
#[tokio::test]
async fn a_secret_is_sent_to_the_configured_issuer_only() {
    let world = World::start().await;
    let elsewhere = World::start().await;
    world.set(|it| it.authorization_server = Some(elsewhere.url("/as")));
    let why = start(config(&world, Some(for_itself(&world)), None)).await.err().expect("refused");
    assert!(why.contains("does not accept tokens of the configured issuer"), "{why}");
    assert!(elsewhere.all().is_empty(), "{:?}", elsewhere.all());
    let without = OAuthConfig { issuer: None, ..for_itself(&world) };
    let why = start(config(&world, Some(without), None)).await.err().expect("refused");
    assert!(why.contains("oauth has client_secret, but no issuer"), "{why}");
}

#[tokio::test]
async fn metadata_of_another_issuer_or_resource_is_refused() {
    let world = World::start().await;
    world.set(|it| it.issuer = Some("https://attacker.example".to_owned()));
    assert!(refused(&world).await.contains("is that of \"https://attacker.example\""));
    world.set(|it| {
        it.issuer = None;
        it.resource = Some("https://attacker.example/mcp".to_owned());
    });
    assert!(refused(&world).await.contains("the resource \"https://attacker.example/mcp\""));
    assert!(world.received("/as/register").is_empty() && world.received("/as/token").is_empty());
}

#[tokio::test]
async fn a_server_without_pkce_is_refused() {
    let world = World::start().await;
    for methods in [json!(["plain"]), json!([]), json!(null)] {
        world.set(|it| it.pkce = Some(methods));
        assert!(refused(&world).await.contains("does not support PKCE with S256"));
    }
    assert!(world.received("/as/register").is_empty());
}

#[tokio::test]
async fn an_answer_of_another_login_or_issuer_is_refused() {
    let world = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let config = config(&world, None, Some(&folder));
    let one = config.login(&environment(), REDIRECT).await.expect("it starts");
    let other = config.login(&environment(), REDIRECT).await.expect("it starts");
    let of_other = world.agree(other.url());
    for address in [
        &of_other,
        "",
        "/callback?code=x",
        "/callback?code=x&state=",
        "http://[",
        "?state=a&state=b",
    ] {
        let refused = one.finish(address).await.expect_err("it is foreign");
        assert_eq!(refused, OAuthError::ForeignState, "{address}");
    }
    world.set(|it| it.iss = Some("https://attacker.example".to_owned()));
    let refused = one.finish(&world.agree(one.url())).await.expect_err("the issuer differs");
    assert!(refused.to_string().ends_with("its iss differs"), "{refused}");
    assert!(world.received("/as/token").is_empty());
    // The login itself still works.
    world.set(|it| it.iss = None);
    one.finish(&world.agree(one.url())).await.expect("it is the answer of this login");
}

#[tokio::test]
async fn more_scopes_are_requested_once_for_each_call() {
    let world = World::start().await;
    let home = start(config(&world, Some(for_itself(&world)), None)).await.expect("it starts");
    assert_eq!(home.call("shop_admin").await.text, "looked");
    let scopes: Vec<bool> =
        world.received("/as/token").iter().map(|it| it.body.contains("look%20admin")).collect();
    assert_eq!(scopes, [false, true]);
    world.set(|it| it.wants_more = true);
    for attempt in 1..=3 {
        let outcome = home.call("shop_look").await;
        assert_eq!(outcome.failure, Some(Failure::Denied), "{}", outcome.text);
        assert_eq!(world.received("/as/token").len(), 2 + attempt);
    }
    // Settings limit what is requested.
    let pinned = OAuthConfig { scopes: vec!["look".to_owned()], ..for_itself(&world) };
    world.set(|it| it.wants_more = false);
    let home = start(config(&world, Some(pinned), None)).await.expect("it starts");
    let outcome = home.call("shop_admin").await;
    assert!(outcome.text.contains("\"admin\", which oauth.scopes does not contain"), "{outcome:?}");
}

/// A person has to agree to more scopes. The next login asks for them, and the running server uses it.
#[tokio::test]
async fn a_call_that_needs_more_scopes_waits_for_a_login() {
    let world = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let config = config(&world, None, Some(&folder));
    login(&world, &config).await.expect("the login succeeds");
    let home = start(config.clone()).await.expect("it starts");
    let outcome = home.call("shop_admin").await;
    assert_eq!(
        outcome.text,
        "MCP server shop cannot be used: it requires a login with the scopes look admin: run `abide mcp login shop`"
    );
    assert_eq!(outcome.failure, Some(Failure::Unavailable));
    login(&world, &config).await.expect("the login succeeds");
    assert_eq!(home.call("shop_admin").await.text, "looked");
}

/// A refresh token that is used twice can end the whole login.
#[tokio::test]
async fn calls_that_race_renew_a_token_once() {
    let world = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let config = config(&world, None, Some(&folder));
    login(&world, &config).await.expect("the login succeeds");
    // Two processes that share the folder.
    let homes =
        [start(config.clone()).await.expect("it starts"), start(config).await.expect("it starts")];
    world.revoke();
    let calls = homes.iter().flat_map(|home| (0..4).map(|_| home.call("shop_look")));
    let outcomes = join_all(calls).await;
    assert!(outcomes.iter().all(|outcome| outcome.text == "looked"), "{outcomes:?}");
    assert_eq!(world.received("/as/token").len(), 2, "{:?}", world.received("/as/token"));
}

#[tokio::test]
async fn a_refresh_token_that_is_not_valid_needs_a_login() {
    let world = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let config = config(&world, None, Some(&folder));
    login(&world, &config).await.expect("the login succeeds");
    let home = start(config).await.expect("it starts");
    world.revoke();
    let answer = json!({"error": "invalid_grant"});
    world.set(|it| it.token = Some((StatusCode::BAD_REQUEST, answer)));
    for _ in 0..2 {
        let outcome = home.call("shop_look").await;
        assert!(outcome.text.contains("run `abide mcp login shop`"), "{}", outcome.text);
    }
    // The token was given up, so it is not sent again.
    assert_eq!(world.received("/as/token").len(), 2);
}

/// Many servers answer 401 without a challenge. The connection counted as lost, so a call that must not run twice had an unknown
/// outcome.
#[tokio::test]
async fn a_401_without_a_challenge_is_a_rejection() {
    let world = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let person = config(&world, None, Some(&folder));
    login(&world, &person).await.expect("the login succeeds");
    let home = start(person).await.expect("it starts");
    let mut with_header = config(&world, None, None);
    with_header.name = "fixed".to_owned();
    let token = Setting::Literal(format!("Bearer {}", world.secrets()[0]));
    with_header.headers.insert("Authorization".to_owned(), token);
    let fixed = start(with_header).await.expect("it starts");
    for without_challenge in [false, true] {
        world.revoke();
        world.set(|it| it.without_challenge = without_challenge);
        // The token is renewed.
        assert_eq!(home.call("shop_look").await.text, "looked");
        let outcome = fixed.call("fixed_look").await;
        assert_eq!(outcome.failure, Some(Failure::Denied), "{outcome:?}");
        assert!(outcome.text.contains("rejects the configured headers (HTTP 401)"), "{outcome:?}");
    }
}

/// The log of everything at the most detailed level, and the errors.
#[tokio::test]
async fn secrets_are_in_no_log_and_no_error() {
    let written = Written::default();
    let to = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || to.clone())
        .finish();
    // For the whole process, with the log of the other tests: whether an event has a subscriber is decided once for all threads.
    tracing::subscriber::set_global_default(subscriber).expect("no other test has one");
    let world = World::start().await;
    let folder = TempDir::new().expect("a folder");
    let person = config(&world, None, Some(&folder));
    login(&world, &person).await.expect("the login succeeds");
    let home = start(person).await.expect("it starts");
    world.revoke();
    let mut texts = vec![home.call("shop_look").await.text];
    let itself = start(config(&world, Some(for_itself(&world)), None)).await.expect("it starts");
    texts.push(itself.call("shop_admin").await.text);
    // The description of an error can repeat the request.
    world.revoke();
    world.set(|it| {
        let answer = json!({"error": "cl1ent-s3cret", "error_description": "cl1ent-s3cret"});
        it.token = Some((StatusCode::BAD_REQUEST, answer));
    });
    texts.push(home.call("shop_look").await.text);
    texts.push(itself.call("shop_look").await.text);
    let log = String::from_utf8(written.0.lock().expect("no panic").clone()).expect("it is text");
    assert!(log.contains("/as/token") || log.len() > 1_000, "the log is not empty: {log}");
    let issued = world.secrets();
    for secret in issued.iter().map(String::as_str).chain(["cl1ent-s3cret"]) {
        let encoded = STANDARD.encode(format!("clerk:{secret}"));
        for text in texts.iter().chain([&log]) {
            let found = text.find(secret).or_else(|| text.find(&encoded));
            let around = |at: usize| text.get(at.saturating_sub(300)..at + 20).unwrap_or(text);
            assert_eq!(found, None, "{secret}: {}", found.map(around).unwrap_or_default());
        }
    }
}

/// A writer in memory.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
