//! JSON Web Tokens of an issuer, over real sockets: accepted callers, and every way to forge a token.

use std::path::PathBuf;

use abide_schema::Caller;
use abide_server::{AccessConfig, Jwt};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use expect_test::expect;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use crate::http::{Response, check};
use crate::test_server::{NOW_S, TestServer};
use crate::tokens;

/// The keys of a test issuer.
fn keys() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/api/keys")
}

fn secret() -> Vec<u8> {
    (1..=32).collect()
}

fn signer(algorithm: Algorithm) -> (EncodingKey, &'static str) {
    let read = |name: &str| std::fs::read(keys().join(name)).expect("a key");
    match algorithm {
        Algorithm::HS256 | Algorithm::HS384 => (EncodingKey::from_secret(&secret()), "shared"),
        Algorithm::EdDSA => (EncodingKey::from_ed_der(&read("ed25519.pk8")), "ed"),
        _ => (EncodingKey::from_rsa_der(&read("rsa.der")), "rsa"),
    }
}

fn claims() -> JsonValue {
    json!({"iss": "https://id.example", "aud": ["abide", "other"], "sub": "ann", "exp": NOW_S + 600,
        "nbf": NOW_S - 5, "org": "acme", "groups": "refunds appeals", "job": "supervisor"})
}

/// The claims with some replaced; null removes one.
fn with(other: JsonValue) -> JsonValue {
    let mut claims = claims();
    let all = claims.as_object_mut().expect("an object");
    all.extend(other.as_object().expect("an object").clone());
    all.retain(|_, value| !value.is_null());
    claims
}

fn signed(algorithm: Algorithm, kid: Option<&str>, claims: &JsonValue) -> String {
    let mut header = Header::new(algorithm);
    header.kid = kid.map(str::to_owned);
    encode(&header, claims, &signer(algorithm).0).expect("it is signed")
}

fn token(algorithm: Algorithm, claims: &JsonValue) -> String {
    signed(algorithm, Some(signer(algorithm).1), claims)
}

fn config(other: JsonValue) -> JsonValue {
    let mut config = json!({
        "jwks": keys().join("jwks.json"), "issuer": "https://id.example", "audience": "abide",
        "claims": {"id": "sub", "role": "job", "capabilities": "groups", "scope": {"tenant": "org"}},
    });
    config.as_object_mut().expect("an object").extend(other.as_object().expect("one").clone());
    config
}

fn open(config: &JsonValue) -> Result<Jwt, abide_schema::Refusal> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jwt.json");
    std::fs::write(&path, config.to_string()).expect("a file");
    Jwt::open(&path)
}

/// Keys change while the server runs: a new one is valid at once, a removed one is invalid after a
/// few seconds, and an unreadable file changes nothing.
#[tokio::test]
async fn key_changes_apply_while_the_server_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (jwks, all) = (folder.path().join("jwks.json"), std::fs::read(keys().join("jwks.json")));
    let all: JsonValue = serde_json::from_slice(&all.expect("the keys")).expect("JSON");
    let mut version = 0;
    let mut write = |text: String| {
        std::fs::write(&jwks, text).expect("a file");
        // Two writes within one tick of the file system's clock would look like one.
        version += 1;
        let file = std::fs::File::options().write(true).open(&jwks).expect("a file");
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000 + version);
        file.set_modified(at).expect("a time");
    };
    let only = |nth: usize| json!({"keys": [all["keys"][nth]]}).to_string();
    write(only(0));
    let jwt = open(&config(json!({"jwks": jwks}))).expect("a good configuration");
    let access = AccessConfig::loopback().with_jwt(jwt);
    let server = TestServer::serving(access, abide_reducers::modules()).await;
    let shared = token(Algorithm::HS256, &claims());
    let ed = token(Algorithm::EdDSA, &claims());
    let unknown = "401 unauthenticated: the token names an unknown key \
        (get a new token from the issuer)";
    assert_eq!(tried(&server, &shared).await, LET_IN);

    write(only(1));
    server.clock.pass_s(2);
    assert_eq!(tried(&server, &ed).await, LET_IN, "an unknown key triggers a reload");
    assert_eq!(tried(&server, &shared).await, unknown);
    write(only(0));
    assert_eq!(tried(&server, &shared).await, unknown, "but not for every request");
    server.clock.pass_s(20);
    assert_eq!(tried(&server, &ed).await, unknown, "a removed key is invalid");
    write("no JSON".to_owned());
    server.clock.pass_s(20);
    assert_eq!(tried(&server, &shared).await, LET_IN, "an unreadable file changes nothing");
}

/// Accepts the tokens of the test issuer.
pub(crate) fn access() -> AccessConfig {
    AccessConfig::loopback().with_jwt(open(&config(json!({}))).expect("a good configuration"))
}

/// A token of the test issuer with these claims.
pub(crate) fn issued(claims: JsonValue) -> String {
    token(Algorithm::HS256, &with(claims))
}

async fn server() -> TestServer {
    TestServer::serving(access(), abide_reducers::modules()).await
}

async fn ask(server: &TestServer, token: &str, reducer: &str, args: JsonValue) -> Response {
    let request = server.request("POST", &format!("/v1/call/{reducer}"));
    let request = request.header("authorization", &format!("Bearer {token}"));
    request.body(args.to_string()).send().await
}

async fn tried(server: &TestServer, token: &str) -> String {
    let nothing = json!({"call_id": "none", "decision": "approve"});
    let answer = ask(server, token, "decide_approval", nothing).await;
    let socket = format!("Bearer {token}");
    let socket = server.try_socket("/v1/ws", &[("authorization", &socket)]).await;
    assert_eq!(socket.is_ok(), answer.status != 401, "HTTP and WebSocket agree");
    answer.problem()
}

/// The response to an authenticated request for a missing object.
const LET_IN: &str = "404 not_found: there is no approval for none \
    (the query `SELECT id, call_id, status FROM approvals` lists them)";

#[tokio::test]
async fn every_algorithm_authenticates_its_subject() {
    let server = server().await;
    for algorithm in [Algorithm::HS256, Algorithm::EdDSA, Algorithm::RS256] {
        assert_eq!(tried(&server, &token(algorithm, &claims())).await, LET_IN, "{algorithm:?}");
    }
    let app = token(Algorithm::EdDSA, &with(json!({"job": "app"})));
    let made = ask(&server, &app, "create_session", json!({"agent": "a"})).await.json();
    assert_eq!(made["result"]["scope"], r#"{"tenant":"acme"}"#);
    let sql = "SELECT caller, authority FROM events";
    let events = server.engine.query(&Caller::local(), sql, &Default::default(), None).await;
    let events = events.expect("a query").rows;
    let event: Vec<JsonValue> = events[0].iter().map(abide_schema::Value::to_json).collect();
    check(
        &json!(event).to_string(),
        expect![[r#"
        ["jwt:https://id.example#ann","{\"capabilities\":[\"appeals\",\"refunds\"],\"role\":\"app\",\"scope\":{\"tenant\":\"acme\"}}"]
    "#]],
    );
}

/// Forgeries from a valid token, from the public keys, and from the attacker's own keys.
fn forgeries(good: &str) -> Vec<(&'static str, String)> {
    let part = |json: &JsonValue| URL_SAFE_NO_PAD.encode(json.to_string());
    let [header, body, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("{good}")
    };
    let with_header = |header: JsonValue| format!("{}.{body}.{signature}", part(&header));
    let public = std::fs::read(keys().join("jwks.json")).expect("the keys");
    let public: JsonValue = serde_json::from_slice(&public).expect("JSON");
    let modulus = URL_SAFE_NO_PAD.decode(public["keys"][2]["n"].as_str().expect("n")).expect("n");
    // The public key used as a shared secret, with its own key id and without one.
    let confused = |kid: &str| {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some(kid.to_owned());
        encode(&header, &claims(), &EncodingKey::from_secret(&modulus)).expect("signed")
    };
    let stranger = {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("shared".to_owned());
        encode(&header, &claims(), &EncodingKey::from_secret(&[7; 32])).expect("signed")
    };
    let ed = token(Algorithm::EdDSA, &claims());
    vec![
        ("none", with_header(json!({"alg": "none"}))),
        ("None", with_header(json!({"alg": "None", "kid": "rsa"}))),
        ("none, unsigned", format!("{}.{body}.", part(&json!({"alg": "none", "kid": "rsa"})))),
        ("no alg", with_header(json!({"typ": "JWT", "kid": "rsa"}))),
        ("RS512", with_header(json!({"alg": "RS512", "kid": "rsa"}))),
        ("ES256", with_header(json!({"alg": "ES256", "kid": "rsa"}))),
        ("confused, rsa", confused("rsa")),
        ("confused, shared", confused("shared")),
        ("confused, ed", confused("ed")),
        ("HS384", token(Algorithm::HS384, &claims())),
        ("another's key", stranger),
        ("another kid", signed(Algorithm::EdDSA, Some("rsa"), &claims())),
        ("unknown kid", signed(Algorithm::EdDSA, Some("../../etc"), &claims())),
        ("no kid", signed(Algorithm::EdDSA, None, &claims())),
        ("jwk in the header", with_header(json!({"alg": "RS256", "jwk": public["keys"][0]}))),
        ("other body", format!("{header}.{}.{signature}", part(&with(json!({"sub": "root"}))))),
        ("no signature", format!("{header}.{body}.")),
        ("two parts", format!("{header}.{body}")),
        ("four parts", format!("{good}.{signature}")),
        ("cut", good[..good.len() - 2].to_owned()),
        ("padded", format!("{good}==")),
        ("ed, signature of rsa", format!("{}.{signature}", ed.rsplit_once('.').expect("a dot").0)),
        ("no base64", "a.b.c".to_owned()),
        ("dots", "..".to_owned()),
    ]
}

#[tokio::test]
async fn every_forgery_is_refused() {
    let server = server().await;
    let good = token(Algorithm::RS256, &claims());
    let mut output = Vec::new();
    for (what, forgery) in &forgeries(&good) {
        let answer = tried(&server, forgery).await;
        assert!(answer.starts_with("401 unauthenticated: "), "{what}: {answer}");
        output.push(format!("{what}: {answer}"));
    }
    check(
        &output.join("\n"),
        expect![[r#"
            none: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            None: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            none, unsigned: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            no alg: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            RS512: 401 unauthenticated: the token is signed with an algorithm that does not match its key (get a new token from the issuer)
            ES256: 401 unauthenticated: the token is signed with an algorithm that does not match its key (get a new token from the issuer)
            confused, rsa: 401 unauthenticated: the token is signed with an algorithm that does not match its key (get a new token from the issuer)
            confused, shared: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            confused, ed: 401 unauthenticated: the token is signed with an algorithm that does not match its key (get a new token from the issuer)
            HS384: 401 unauthenticated: the token is signed with an algorithm that does not match its key (get a new token from the issuer)
            another's key: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            another kid: 401 unauthenticated: the token is signed with an algorithm that does not match its key (get a new token from the issuer)
            unknown kid: 401 unauthenticated: the token names an unknown key (get a new token from the issuer)
            no kid: 401 unauthenticated: the token names an unknown key (get a new token from the issuer)
            jwk in the header: 401 unauthenticated: the token names an unknown key (get a new token from the issuer)
            other body: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            no signature: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            two parts: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            four parts: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            cut: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            padded: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            ed, signature of rsa: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            no base64: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
            dots: 401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
        "#]],
    );
    assert_eq!(tried(&server, &good).await, LET_IN);
}

/// Invalid claims, each replacing a valid one.
fn wrong_claims() -> Vec<JsonValue> {
    vec![
        json!({"exp": NOW_S - 31}),
        json!({"exp": null}),
        json!({"exp": "tomorrow"}),
        json!({"exp": -1}),
        json!({"exp": 1e300}),
        json!({"nbf": NOW_S + 31}),
        json!({"nbf": []}),
        json!({"iss": "https://evil.example"}),
        json!({"iss": null}),
        json!({"aud": "other"}),
        json!({"aud": null}),
        json!({"sub": null}),
        json!({"sub": 7}),
        json!({"sub": ""}),
        json!({"sub": "x".repeat(513)}),
        json!({"org": null}),
        json!({"org": ["acme"]}),
        json!({"job": null}),
        json!({"groups": 7}),
        json!({"pad": "x".repeat(8_000)}),
    ]
}

#[tokio::test]
async fn invalid_claims_are_refused() {
    let server = server().await;
    let mut output = Vec::new();
    for other in &wrong_claims() {
        let answer = tried(&server, &token(Algorithm::HS256, &with(other.clone()))).await;
        assert!(answer.starts_with("401 unauthenticated: "), "{other}: {answer}");
        let other: String = other.to_string().chars().take(40).collect();
        output.push(format!("{other}: {answer}"));
    }
    check(
        &output.join("\n"),
        expect![[r#"
            {"exp":1795269700}: 401 unauthenticated: the token expired at 2026-11-21T14:02:10Z (ask the issuer for a new one)
            {"exp":null}: 401 unauthenticated: the token has no exp (get a new token from the issuer)
            {"exp":"tomorrow"}: 401 unauthenticated: the token has no exp (get a new token from the issuer)
            {"exp":-1}: 401 unauthenticated: the token has no exp (get a new token from the issuer)
            {"exp":1e+300}: 401 unauthenticated: the token has no exp (get a new token from the issuer)
            {"nbf":1795269762}: 401 unauthenticated: the token is not valid before 2026-11-21T14:02:42Z (get a new token from the issuer)
            {"nbf":[]}: 401 unauthenticated: claim nbf must be a number of seconds since 1970 (get a new token from the issuer)
            {"iss":"https://evil.example"}: 401 unauthenticated: the token is from another issuer (get a new token from the issuer)
            {"iss":null}: 401 unauthenticated: the token has no iss (get a new token from the issuer)
            {"aud":"other"}: 401 unauthenticated: the token is for another audience (get a new token from the issuer)
            {"aud":null}: 401 unauthenticated: the token has no aud (get a new token from the issuer)
            {"sub":null}: 401 unauthenticated: claim sub is missing or not a string (get a new token from the issuer)
            {"sub":7}: 401 unauthenticated: claim sub is missing or not a string (get a new token from the issuer)
            {"sub":""}: 401 unauthenticated: claim sub has 0 bytes; it must have 1 to 512 (get a new token from the issuer)
            {"sub":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: 401 unauthenticated: claim sub has 513 bytes; it must have 1 to 512 (get a new token from the issuer)
            {"org":null}: 401 unauthenticated: claim org is missing or not a string (get a new token from the issuer)
            {"org":["acme"]}: 401 unauthenticated: claim org is missing or not a string (get a new token from the issuer)
            {"job":null}: 401 unauthenticated: the token names no role (get a new token from the issuer)
            {"groups":7}: 401 unauthenticated: the capabilities of the token must be strings (get a new token from the issuer)
            {"pad":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: 401 unauthenticated: the token has 10989 bytes; the limit is 8192 (get a new token from the issuer)
        "#]],
    );
    let right = [
        json!({"exp": NOW_S - 29}),
        json!({"nbf": NOW_S + 29}),
        json!({"nbf": null}),
        json!({"aud": "abide"}),
        json!({"groups": ["refunds"]}),
        json!({"groups": null}),
        // It gets an id of its own: `jwt:https://id.example#system`.
        json!({"sub": "system"}),
    ];
    for other in right {
        let answer = tried(&server, &token(Algorithm::HS256, &with(other.clone()))).await;
        assert_eq!(answer, LET_IN, "{other}");
    }
}

#[tokio::test]
async fn a_connection_ends_with_its_token_or_its_identity() {
    let server = server().await;
    let connected = |other: JsonValue| {
        let bearer = format!("Bearer {}", token(Algorithm::EdDSA, &with(other)));
        let server = &server;
        async move {
            let socket = server.try_socket("/v1/ws", &[("authorization", &bearer)]).await;
            let mut socket = socket.expect("it is let in");
            assert_eq!(socket.receive().await["op"], "hello");
            socket
        }
    };
    let mut short = connected(json!({"exp": NOW_S + 10})).await;
    let mut ann = connected(json!({})).await;
    server.clock.pass_s(41);
    short.say(r#"{"op":"ping"}"#).await;
    let expired = short.receive_op("error").await;
    ann.say(r#"{"op":"ping"}"#).await;
    assert_eq!(ann.receive_op("pong").await["op"], "pong");
    for (reducer, args) in [
        ("create_identity", json!({"id": ANN, "role": "auditor"})),
        ("disable_identity", json!({"id": ANN})),
    ] {
        let done = server.engine.call(&Caller::local(), reducer, &args, None).await;
        done.expect("it is done");
    }
    let disabled = ann.receive_op("error").await;
    assert_eq!(ann.closed().await.map(|frame| u16::from(frame.code)), Some(1008));
    let again = tried(&server, &token(Algorithm::EdDSA, &claims())).await;
    check(
        &format!("{}\n{}\n{again}", expired["detail"], disabled["detail"]),
        expect![[r#"
        "the token expired at 2026-11-21T14:02:51Z"
        "the identity jwt:https://id.example#ann is disabled"
        401 unauthenticated: the identity jwt:https://id.example#ann is disabled (an administrator enables it again with: abide identity enable jwt:https://id.example#ann)
    "#]],
    );
}

#[test]
fn an_invalid_configuration_is_refused() {
    let short = json!({"keys": [{"kty": "oct", "k": "c2hvcnQ"}]});
    let elsewhere = json!({"keys": [{"kty": "oct", "alg": "HS512", "kid": "x",
        "k": "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA"}]});
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, keys: &JsonValue| {
        let path = folder.path().join(name);
        std::fs::write(&path, keys.to_string()).expect("a file");
        path
    };
    let short = write("short", &short);
    let elsewhere = write("elsewhere", &elsewhere);
    let wrong = [
        config(json!({"jwks": folder.path().join("nowhere.json")})),
        config(json!({"jwks": short})),
        config(json!({"jwks": elsewhere})),
        config(json!({"issuer": null})),
        config(json!({"alg": "none"})),
        config(json!({"claims": {"tenant": "org"}})),
        json!([]),
    ];
    for config in wrong {
        let refused = open(&config).err().unwrap_or_else(|| panic!("{config} is accepted"));
        assert_eq!(refused.code, abide_schema::Code::BadArguments, "{config}");
    }
    // All of the message was once lowercase: "unknown field `jwks`, expected one of `jwks`, …".
    let Err(refused) = open(&config(json!({"JWKS": "keys"}))) else { panic!("it is accepted") };
    assert!(refused.detail.contains(": unknown field `JWKS`"), "{}", refused.detail);
}

/// The id of the issuer's subject `ann`.
const ANN: &str = "jwt:https://id.example#ann";

/// The issuer's `ann` and the local `ann` had one id: they shared request ids, limits and denied attempts, and
/// disabling one disabled the other. So did the same subject with another scope.
#[tokio::test]
async fn a_subject_differs_from_the_identity_with_its_name() {
    let server = server().await;
    let local = |reducer, args| {
        let server = &server;
        async move {
            let done = server.engine.call(&Caller::local(), reducer, &args, None).await;
            done.unwrap_or_else(|why| panic!("{reducer}: {why}"))
        }
    };
    local("create_identity", json!({"id": "ann", "role": "app", "scope": {"tenant": "acme"}}))
        .await;
    let hash: String = Sha256::digest(tokens::token("annannann").as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let of_ann =
        json!({"id": "annannann", "identity_id": "ann", "hash": hash, "last_four": "abcd"});
    local("create_token", of_ann.clone()).await;
    let bearers = [
        tokens::token("annannann"),
        token(Algorithm::EdDSA, &with(json!({"job": "app"}))),
        token(Algorithm::EdDSA, &with(json!({"job": "app", "org": "zeta"}))),
    ];
    for (nth, bearer) in bearers.iter().enumerate() {
        let request = server.request("POST", "/v1/call/create_session");
        let request = request.header("authorization", &format!("Bearer {bearer}"));
        let request = request.header("idempotency-key", "once");
        let made = request.body(json!({"agent": format!("a{nth}")}).to_string()).send().await;
        assert_eq!((made.status, &made.json()["duplicate"]), (200, &json!(false)), "{bearer}");
    }
    let sql = "SELECT caller FROM events WHERE reducer = 'create_session' ORDER BY seq";
    let callers = server.engine.query(&Caller::local(), sql, &Default::default(), None).await;
    let callers: Vec<JsonValue> =
        callers.expect("a query").rows.iter().map(|row| row[0].to_json()).collect();
    assert_eq!(callers, ["ann", ANN, ANN]);

    // An identity of another tenant disables no subject, and a subject has no tokens in the database.
    local("create_identity", json!({"id": ANN, "role": "app", "scope": {"tenant": "zeta"}})).await;
    local("disable_identity", json!({"id": ANN})).await;
    let app = |org: &str| token(Algorithm::EdDSA, &with(json!({"job": "app", "org": org})));
    let statuses = [
        ask(&server, &app("acme"), "create_session", json!({"agent": "a"})).await.status,
        ask(&server, &app("zeta"), "create_session", json!({"agent": "a"})).await.status,
        ask(&server, &bearers[0], "create_session", json!({"agent": "a"})).await.status,
    ];
    assert_eq!(statuses, [200, 401, 200]);
    let mut of_subject = of_ann;
    of_subject["identity_id"] = json!(ANN);
    of_subject["id"] = json!("forgedforged");
    let refused = server.engine.call(&Caller::local(), "create_token", &of_subject, None).await;
    assert_eq!(refused.expect_err("it is refused").code, abide_schema::Code::BadArguments);
}

/// The last of duplicate claims was used, an array was accepted as issuer, and a subject
/// could contain characters that make it look like another in a terminal.
#[tokio::test]
async fn claims_are_unique_and_subjects_printable() {
    let server = server().await;
    let forged = |payload: &str| {
        let header = r#"{"alg":"EdDSA","kid":"ed","typ":"JWT"}"#;
        let signed =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let key = signer(Algorithm::EdDSA).0;
        let signature = jsonwebtoken::crypto::sign(signed.as_bytes(), &key, Algorithm::EdDSA);
        format!("{signed}.{}", signature.expect("it is signed"))
    };
    let text = claims().to_string();
    let again = |claim: &str| text.replacen('{', &format!("{{{claim},"), 1);
    assert_eq!(tried(&server, &forged(&text)).await, LET_IN);
    let payloads = [
        again(r#""sub":"bob""#),
        again(r#""s\u0075b":"bob""#),
        again(r#""iss":"https://id.example""#),
        again(r#""org":"zeta""#),
        with(json!({"iss": ["https://id.example"]})).to_string(),
        with(json!({"iss": ["https://other.example", "https://id.example"]})).to_string(),
        with(json!({"sub": "ann\n"})).to_string(),
        with(json!({"sub": "ann\u{0}"})).to_string(),
        with(json!({"sub": "\u{202E}nna"})).to_string(),
        with(json!({"sub": "ann\u{2066}"})).to_string(),
        with(json!({"org": "acme\t"})).to_string(),
        with(json!({"sub": "a".repeat(512)})).to_string(),
    ];
    for payload in payloads {
        let answer = tried(&server, &forged(&payload)).await;
        assert!(answer.starts_with("401 unauthenticated"), "{payload}: {answer}");
    }
    for issuer in ["https://id.example#", "https://id.example\n"] {
        let refused = open(&config(json!({"issuer": issuer}))).expect_err("it is refused");
        assert_eq!(refused.code, abide_schema::Code::BadArguments, "{issuer:?}");
    }
}

/// A client without a token finds the issuer (RFC 9728). Its own headers decide on nothing but its own answer.
#[tokio::test]
async fn a_client_finds_the_issuer() {
    let server = server().await;
    let metadata = "/.well-known/oauth-protected-resource";
    for (path, found_at) in [("/mcp", "/mcp"), ("/v1/sql", "")] {
        let refused = server.request("POST", path).header("host", "abide.example:7341");
        let refused = refused.body("{}").send().await;
        assert_eq!(refused.status, 401, "{refused:?}");
        let way =
            format!("Bearer resource_metadata=\"http://abide.example:7341{metadata}{found_at}\"");
        assert_eq!(refused.header("www-authenticate"), Some(&*way));
        let found = server.request("GET", &format!("{metadata}{found_at}"));
        let found = found.header("host", "abide.example:7341").send().await.json();
        let expected = json!({"resource": format!("http://abide.example:7341{found_at}"),
            "authorization_servers": ["https://id.example"], "bearer_methods_supported": ["header"],
            "resource_name": "Abide"});
        assert_eq!(found, expected);
    }
    let forged = server.request("POST", "/mcp").header("authorization", "Bearer x.y.z");
    let forged = forged.header("host", "a\"b").header("x-forwarded-proto", "https").send().await;
    let way = format!(
        "Bearer error=\"invalid_token\", resource_metadata=\"https://localhost{metadata}/mcp\""
    );
    assert_eq!(forged.header("www-authenticate"), Some(&*way), "{forged:?}");
    let none = TestServer::open().await;
    let missing = none.request("GET", metadata).send().await;
    assert_eq!(missing.status, 404, "{missing:?}");
}

/// With a public URL, the metadata and the way to it do not depend on the headers of the client.
#[tokio::test]
async fn the_issuer_is_found_at_the_public_url() {
    let jwt = open(&config(json!({}))).expect("a good configuration");
    let public_url = abide_server::PublicUrl::parse("https://agents.example").ok();
    let services = abide_server::Services { public_url, ..abide_server::Services::default() };
    let access = AccessConfig::loopback().with_jwt(jwt);
    let server = TestServer::with_services(access, services).await;
    let metadata = "/.well-known/oauth-protected-resource";
    let refused = server.request("POST", "/mcp").header("host", "evil.example").body("{}");
    let refused = refused.send().await;
    let way = format!("Bearer resource_metadata=\"https://agents.example{metadata}/mcp\"");
    assert_eq!(refused.header("www-authenticate"), Some(&*way));
    let found = server.request("GET", &format!("{metadata}/mcp"));
    let found = found.header("host", "evil.example").send().await.json();
    assert_eq!(found["resource"], "https://agents.example/mcp");
}
