//! Tokens in the database, over real sockets: authentication, permissions, and immediate revocation.

use abide_schema::Code;
use abide_schema::caller::{AdmittedCredential, Caller, Credential};
use abide_server::AccessConfig;
use expect_test::expect;
use serde_json::{Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use crate::events::Stream;
use crate::http::{Response, check, escaped};
use crate::test_server::TestServer;
use crate::ws::Socket;

/// The token with an id, as `abide token create` would make it.
pub(crate) fn token(id: &str) -> String {
    format!("abide_{id}_{}", id.repeat(4))
}

pub(crate) struct TokenServer(pub(crate) TestServer);

impl TokenServer {
    async fn new() -> TokenServer {
        TokenServer(TestServer::serving(AccessConfig::loopback(), abide_reducers::modules()).await)
    }

    /// A call by an unrestricted embedded caller.
    pub(crate) async fn local(&self, reducer: &str, args: JsonValue) {
        let done = self.0.engine.call(&Caller::local(), reducer, &args, None).await;
        done.unwrap_or_else(|why| panic!("{reducer} {args}: {why}"));
    }

    /// Adds an identity with a token of the same id.
    pub(crate) async fn with(&self, id: &str, identity: JsonValue) -> &TokenServer {
        let mut args = json!({"id": id, "role": "app"});
        let given = identity.as_object().expect("it is an object").clone();
        args.as_object_mut().expect("it is an object").extend(given);
        self.local("create_identity", args).await;
        self.token_of(id, id, None).await;
        self
    }

    async fn token_of(&self, identity: &str, id: &str, expires_in_ms: Option<i64>) {
        let digest = Sha256::digest(token(id).as_bytes());
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let args = json!({"id": id, "identity_id": identity, "hash": hash,
            "last_four": "abcd", "expires_in_ms": expires_in_ms});
        self.local("create_token", args).await;
    }

    pub(crate) async fn ask(&self, bearer: &str, method: &str, path: &str, body: &str) -> Response {
        let request = self.0.request(method, path);
        request.header("authorization", &format!("Bearer {bearer}")).body(body).send().await
    }

    pub(crate) async fn call(&self, id: &str, reducer: &str, args: JsonValue) -> Response {
        self.ask(&token(id), "POST", &format!("/v1/call/{reducer}"), &args.to_string()).await
    }

    async fn socket(&self, id: &str) -> Socket {
        let bearer = format!("Bearer {}", token(id));
        let socket = self.0.try_socket("/v1/ws", &[("authorization", &bearer)]).await;
        let mut socket = socket.expect("it is let in");
        assert_eq!(socket.receive().await["op"], "hello");
        socket
    }

    /// The recorded denied attempts.
    async fn denied(&self) -> Vec<String> {
        self.0.engine.fire_due().await.expect("what came before is done");
        let sql = "SELECT caller || ': ' || what || ': ' || why FROM denied_attempts ORDER BY id";
        let asked = self.0.engine.query(&Caller::local(), sql, &Default::default(), None).await;
        let rows = asked.expect("it is a query").rows;
        rows.iter().map(|row| row[0].to_json().as_str().expect("a text").to_owned()).collect()
    }
}

#[tokio::test]
async fn a_token_determines_the_caller_and_its_permissions() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zoezoezoe", json!({"scope": {"tenant": "zeta"}})).await;
    home.with("workwork", json!({"role": "worker"})).await;
    let made = home.call("annannann", "create_session", json!({"agent": "a", "id": "s1"})).await;
    assert_eq!(
        (made.status, &made.json()["result"]["scope"]),
        (200, &json!("{\"tenant\":\"acme\"}"))
    );
    let args = json!({"session_id": "s1", "role": "user", "content": "x"});
    let of_another = home.call("zoezoezoe", "append_message", args.clone()).await.problem();
    let args = json!({"session_id": "s9", "role": "user", "content": "x"});
    let of_nobody = home.call("zoezoezoe", "append_message", args).await.problem();
    assert_eq!(of_another.replace("s1", "s9"), of_nobody);
    let mut output = vec![of_another];
    for (reducer, args) in [
        ("create_session", json!({"agent": "a"})),
        ("create_identity", json!({"id": "x", "role": "worker"})),
        ("set_role", json!({"name": "x", "reducers": ["*"]})),
    ] {
        output.push(home.call("workwork", reducer, args).await.problem());
    }
    let metrics = home.ask(&token("annannann"), "GET", "/metrics", "").await;
    output.push(metrics.problem());
    check(
        &output.join("\n"),
        expect![[r#"
            404 not_found: there is no session s1 (the query `SELECT id, agent, status FROM sessions` lists them)
            403 denied: the role worker may not call create_session (`abide role list` shows what each role may call; an admin can assign another role)
            403 denied: the role worker may not call create_identity (`abide role list` shows what each role may call; an admin can assign another role)
            403 denied: the role worker may not call set_role (`abide role list` shows what each role may call; an admin can assign another role)
            403 denied: /metrics covers all scopes, and you have a scope (use an identity without a scope)
        "#]],
    );
    check(
        &home.denied().await.join("\n"),
        expect![[r#"
            workwork: create_session: the role worker may not call create_session
            workwork: create_identity: the role worker may not call create_identity
            workwork: set_role: the role worker may not call set_role
            annannann: /metrics: /metrics covers all scopes, and you have a scope
        "#]],
    );
}

#[tokio::test]
async fn only_admins_without_a_scope_see_the_live_queries_of_all() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({"scope": {"tenant": "acme"}})).await;
    home.with("workwork", json!({"role": "worker"})).await;
    let mut output = Vec::new();
    for id in ["annannann", "workwork"] {
        output.push(home.ask(&token(id), "GET", "/v1/live", "").await.problem());
    }
    check(
        &output.join("\n"),
        expect![[r#"
            403 denied: /v1/live covers all scopes, and you have a scope (use an identity without a scope)
            403 denied: /v1/live shows the queries of all callers, and you are not an admin (use an identity of the role admin)
        "#]],
    );
}

#[tokio::test]
async fn the_first_token_makes_credentials_required() {
    let home = TokenServer::new().await;
    let mut socket = home.0.socket().await;
    socket.say(r#"{"op":"ping"}"#).await;
    assert_eq!(socket.receive_op("pong").await["op"], "pong");
    home.with("annannann", json!({})).await;
    check(
        &socket.receive_op("error").await.to_string(),
        expect![[r#"
        {"code":"unauthenticated","detail":"this server now requires credentials","hint":"connect again with a token: Authorization: Bearer <token>","op":"error"}
    "#]],
    );
    assert_eq!(socket.closed().await.map(|frame| u16::from(frame.code)), Some(1008));
    let refused = home.0.post("/v1/sql", r#"{"sql":"SELECT 1"}"#).await;
    assert_eq!(refused.status, 401);
    assert_eq!(home.call("annannann", "create_session", json!({"agent": "a"})).await.status, 200);
}

/// Every change that invalidates a token applies to the next request, and to open connections.
#[tokio::test]
async fn revocation_closes_open_connections() {
    let ways: [(&str, JsonValue); 5] = [
        ("revoke_token", json!({"id": "annannann"})),
        ("disable_identity", json!({"id": "annannann", "reason": "left"})),
        ("change_identity", json!({"id": "annannann", "scope": {"tenant": "zeta"}})),
        ("change_identity", json!({"id": "annannann", "role": "auditor"})),
        ("set_role", json!({"name": "own", "reducers": ["create_session"], "capabilities": ["x"]})),
    ];
    let mut output = Vec::new();
    for (reducer, args) in ways {
        let home = TokenServer::new().await;
        home.local("set_role", json!({"name": "own", "reducers": ["create_session"]})).await;
        let scope = json!({"scope": {"tenant": "acme"}, "role": "own"});
        home.with("annannann", scope).await;
        let mut socket = home.socket("annannann").await;
        let bearer = format!("Bearer {}", token("annannann"));
        let query = format!("/v1/subscribe?sql={}", escaped("SELECT id FROM sessions"));
        let request = home.0.request("GET", &query).header("authorization", &bearer);
        let mut stream = Stream::by(request, None).await;
        assert!(stream.next().await.expect("a snapshot").contains("snapshot"));
        home.local(reducer, args).await;
        // Once the change is acknowledged, no call with the old permission runs.
        let call = r#"{"op":"call","id":"c","reducer":"create_session","args":{"agent":"late"}}"#;
        let _ = futures_util::SinkExt::send(
            &mut socket.0,
            tokio_tungstenite::tungstenite::Message::text(call),
        )
        .await;
        // A progress message may come before it.
        let error = socket.receive_op("error").await;
        assert_eq!(error["code"], "unauthenticated", "{error}");
        assert_eq!(socket.closed().await.map(|frame| u16::from(frame.code)), Some(1008));
        let ended = stream.next().await.expect("an error");
        assert!(ended.starts_with("event: error"), "{ended}");
        assert_eq!(stream.next().await, None);
        let sql = "SELECT count(*) FROM sessions";
        let made = home.0.engine.query(&Caller::local(), sql, &Default::default(), None).await;
        assert_eq!(made.expect("a query").rows[0][0], abide_schema::Value::Integer(0));
        output.push(format!("{reducer}: {}", error["detail"].as_str().expect("a text")));
    }
    check(
        &output.join("\n"),
        expect![[r#"
        revoke_token: the token annannann was revoked at 2026-11-21T14:02:11Z
        disable_identity: the identity annannann is disabled
        change_identity: the permissions of annannann have changed
        change_identity: the permissions of annannann have changed
        set_role: the permissions of annannann have changed
    "#]],
    );
}

#[tokio::test]
async fn expiry_closes_open_connections() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({})).await;
    home.token_of("annannann", "shortshort", Some(60_000)).await;
    let mut socket = home.socket("shortshort").await;
    assert_eq!(home.call("shortshort", "create_session", json!({"agent": "a"})).await.status, 200);
    home.0.clock.pass_s(60);
    let refused = home.call("shortshort", "create_session", json!({"agent": "a"})).await.problem();
    socket.say(r#"{"op":"ping"}"#).await;
    let error = socket.receive_op("error").await;
    assert_eq!(socket.closed().await.map(|frame| u16::from(frame.code)), Some(1008));
    assert_eq!(home.call("annannann", "create_session", json!({"agent": "a"})).await.status, 200);
    check(
        &format!("{refused}\n{}", error["detail"]),
        expect![[r#"
        401 unauthenticated: the token shortshort expired at 2026-11-21T14:03:11Z (ask the issuer for a new one)
        "the token shortshort expired at 2026-11-21T14:03:11Z"
    "#]],
    );
}

/// Every invalid token is `unauthenticated`, with the same text, on every interface.
#[tokio::test]
async fn similar_tokens_are_refused() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({})).await;
    let good = token("annannann");
    let wrong = [
        good[..good.len() - 1].to_owned(),
        format!("{good}a"),
        good.to_uppercase(),
        good.replace("abide_", ""),
        good.replace("annannann_", "bobbobbob_"),
        good.replacen('_', "__", 1),
        format!("abide_annannann_{}", "a".repeat(36)),
        "abide_annannann_".to_owned(),
        "abide__".to_owned(),
        "abide_%00_%00".to_owned(),
        format!("abide_{}_{}", "'OR'1'='1", "x".repeat(64)),
        format!("abide_{}_{}", "a".repeat(7_000), "b".repeat(64)),
        "null".to_owned(),
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.".to_owned(),
        // The hash in the file does not authenticate.
        Sha256::digest(good.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect(),
    ];
    let mut output = Vec::new();
    for wrong in &wrong {
        let refused = home.ask(wrong, "POST", "/v1/sql", r#"{"sql":"SELECT 1"}"#).await;
        output.push(refused.problem());
        let header = format!("Bearer {wrong}");
        let socket = home.0.try_socket("/v1/ws", &[("authorization", &header)]).await;
        assert_eq!(socket.err().expect("it is refused").0, 401, "{wrong}");
    }
    output.dedup();
    check(
        &output.join("\n"),
        expect![[r#"
            401 unauthenticated: the token is unknown (check it for missing characters; an admin can create another: `abide token create`)
        "#]],
    );
    assert_eq!(home.denied().await, [""; 0], "an unknown token has no caller to record");
    assert_eq!(home.ask(&good, "POST", "/v1/sql", r#"{"sql":"SELECT 1"}"#).await.status, 200);
}

/// Names and scopes are plain texts, whatever they look like.
#[tokio::test]
async fn names_and_scopes_are_not_interpreted() {
    let scopes = [
        "' OR 1=1 --",
        "%",
        "_",
        "*",
        "\"",
        "\\",
        "acme\",\"x\":\"",
        "$.tenant",
        "{\"tenant\":1}",
        "ä\u{301}",
        "null",
        "\u{301}",
    ];
    let home = TokenServer::new().await;
    for (n, scope) in scopes.iter().enumerate() {
        let id = format!("who'; DROP TABLE tokens; --{n}");
        let key = format!("te\"n.a'n[t]{}", n % 2);
        let role = "app";
        home.local("create_identity", json!({"id": id, "role": role, "scope": {key: scope}})).await;
        home.token_of(&id, &format!("caller{n:02}"), None).await;
    }
    for n in 0..scopes.len() {
        let args = json!({"agent": "a", "id": format!("s{n}")});
        let made = home.call(&format!("caller{n:02}"), "create_session", args).await;
        assert_eq!(made.status, 200, "{made:?}");
        let timer = json!({"in_ms": 1, "id": format!("t{n}"), "session_id": format!("s{n}")});
        assert_eq!(home.call(&format!("caller{n:02}"), "set_timer", timer).await.status, 200);
    }
    for by in 0..scopes.len() {
        for of in 0..scopes.len() {
            let args = json!({"session_id": format!("s{of}"), "role": "user", "content": "x"});
            let response = home.call(&format!("caller{by:02}"), "append_message", args).await;
            assert_eq!(
                response.status,
                if by == of { 200 } else { 404 },
                "{by} of {of}: {response:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_rate_limited_caller_gets_a_retry_delay() {
    let home = TokenServer::new().await;
    let rate = json!({"limits": {"rate": {"calls": 2, "per_ms": 4_000}}});
    home.with("annannann", rate).await;
    let quota = json!({"limits": {"quota": {"calls": 1, "per_ms": 3_600_000}}});
    home.with("bobbobbob", quota).await;
    let call = || json!({"agent": "a"});
    for _ in 0..2 {
        assert_eq!(home.call("annannann", "create_session", call()).await.status, 200);
    }
    let paced = home.call("annannann", "create_session", call()).await;
    assert_eq!((paced.status, paced.header("retry-after")), (429, Some("3")));
    assert_eq!(paced.json()["retry_after_ms"], 2_001);
    assert_eq!(paced.json()["retryable"], true);
    let asked = home.ask(&token("annannann"), "POST", "/v1/sql", r#"{"sql":"SELECT 1"}"#).await;
    assert_eq!(asked.status, 429, "queries count as well");
    let mut socket = home.socket("annannann").await;
    socket.say(r#"{"op":"call","id":"c","reducer":"create_session","args":{"agent":"a"}}"#).await;
    let by_socket = socket.receive_op("error").await;
    home.0.clock.pass_s(3);
    assert_eq!(home.call("annannann", "create_session", call()).await.status, 200);
    assert_eq!(home.call("bobbobbob", "create_session", call()).await.status, 200);
    let used_up = home.call("bobbobbob", "create_session", call()).await;
    assert_eq!((used_up.status, used_up.header("retry-after")), (429, Some("3466")));
    check(
        &format!("{}\n{by_socket}\n{}", paced.problem(), used_up.problem()),
        expect![[r#"
            429 rate_limited: the caller has used up its limit of 2 calls in 4000 ms (wait for retry_after_ms; an admin can raise the limit: `abide identity change ID --rate …`)
            {"code":"rate_limited","detail":"the caller has used up its limit of 2 calls in 4000 ms","hint":"wait for retry_after_ms; an admin can raise the limit: `abide identity change ID --rate …`","id":"c","op":"error","retry_after_ms":2001}
            429 rate_limited: the caller has used up its quota of 1 calls in 3600000 ms (wait for retry_after_ms; an admin can raise the quota: `abide identity change ID --quota …`)
        "#]],
    );
}

#[tokio::test]
async fn a_flood_of_denied_attempts_writes_few_rows() {
    let home = TokenServer::new().await;
    home.with("workwork", json!({"role": "worker"})).await;
    for _ in 0..40 {
        let refused = home.call("workwork", "create_session", json!({"agent": "a"})).await;
        assert_eq!(refused.status, 403);
    }
    assert_eq!(home.denied().await.len(), 10);
    home.0.clock.pass_s(10);
    home.call("workwork", "create_session", json!({"agent": "a"})).await;
    home.call("workwork", "create_session", json!({"agent": "a"})).await;
    let sql = "SELECT count(*), sum(missed),
        (SELECT count(*) FROM events WHERE reducer = 'record_denied') FROM denied_attempts";
    let asked = home.0.engine.query(&Caller::local(), sql, &Default::default(), None).await;
    let counts: Vec<JsonValue> =
        asked.expect("a query").rows[0].iter().map(abide_schema::Value::to_json).collect();
    assert_eq!(counts, [11, 30, 11]);
    assert_eq!(home.0.engine.metrics().denied_total.get(), 42);
    // Only the engine records denied attempts.
    let args = json!({"caller": "x", "what": "y", "why": "z", "missed": 0});
    assert_eq!(home.call("workwork", "record_denied", args).await.status, 403);
}

#[tokio::test]
async fn the_secret_is_not_stored() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({})).await;
    home.call("annannann", "create_session", json!({"agent": "a"})).await;
    let args = json!({"id": "otherother", "identity_id": "annannann", "hash": token("otherother"),
        "last_four": "abcd"});
    let refused = home.call("annannann", "create_token", args).await;
    assert_eq!(refused.status, 403, "an app cannot create tokens");
    let secret = token("annannann").split('_').nth(2).expect("it has three parts").to_owned();
    assert!(!refused.body.contains(&secret));
    let metrics = home.ask(&token("annannann"), "GET", "/metrics", "").await;
    assert!(metrics.status == 200 && !metrics.body.contains(&secret));
    let path = home.0.engine.path();
    home.0.engine.close();
    for entry in std::fs::read_dir(path.parent().expect("a folder")).expect("a folder") {
        let bytes = std::fs::read(entry.expect("a file").path()).expect("a file");
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "the file contains the secret");
    }
}

/// `/ready` revealed the log's length to callers without credentials.
#[tokio::test]
async fn readiness_is_all_that_anonymous_callers_learn() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({})).await;
    assert_eq!(home.0.get("/ready").await.body, r#"{"status":"ready"}"#);
    let known = home.ask(&token("annannann"), "GET", "/ready", "").await;
    assert_eq!(known.json(), json!({"status": "ready", "seq": 2}));
    let wrong = home.ask(&token("nobodynob"), "GET", "/ready", "").await;
    assert_eq!(wrong.body, r#"{"status":"ready"}"#);
}

/// The credential was only checked before the call was queued: up to 27 queued calls ran after `revoke_token` was
/// acknowledged.
#[tokio::test]
async fn queued_calls_of_a_revoked_credential_are_refused() {
    let ways: [(&str, JsonValue); 4] = [
        ("revoke_token", json!({"id": "annannann"})),
        ("disable_identity", json!({"id": "annannann"})),
        ("change_identity", json!({"id": "annannann", "role": "auditor"})),
        ("set_role", json!({"name": "own", "reducers": ["*"], "capabilities": ["x"]})),
    ];
    for (reducer, args) in ways {
        let home = TokenServer::new().await;
        home.local("set_role", json!({"name": "own", "reducers": ["*"]})).await;
        home.with("annannann", json!({"role": "own"})).await;
        let engine = &home.0.engine;
        let state = *engine.watch_tables(engine.credential_queries().expect("one").tables).borrow();
        let hash = Sha256::digest(token("annannann").as_bytes());
        let hash = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let credential = Credential::Token {
            id: "annannann".to_owned(),
            hash,
            expires_at: None,
            certificate_not_after: None,
        };
        let ann = Caller::with("annannann", "own", Default::default(), Default::default());
        // The calls that the server admitted before the revocation.
        let ann = ann.admitted(AdmittedCredential { credential, state });
        let local = Caller::local();
        let create = json!({"agent": "a"});
        let late = || engine.call(&ann, "create_session", &create, Some("late"));
        let first = engine.call(&ann, "create_session", &create, Some("first")).await;
        assert!(first.is_ok(), "{first:?}");
        // The first is queued behind the revocation, perhaps in one transaction; the second comes after it.
        let (revoked, refused) = tokio::join!(engine.call(&local, reducer, &args, None), late());
        revoked.expect("it is revoked");
        for refused in [refused, late().await] {
            let code = refused.expect_err("it is refused").code;
            assert_eq!(code, Code::Unauthenticated, "{reducer}");
        }
        let stored = engine.call(&ann, "create_session", &create, Some("first")).await;
        assert_eq!(stored.expect_err("it is refused").code, Code::Unauthenticated, "{reducer}");
    }
}

/// An anonymous call that is queued while the first token is created is refused too.
#[tokio::test]
async fn queued_anonymous_calls_are_refused_after_the_first_token() {
    let home = TokenServer::new().await;
    let engine = home.0.engine.clone();
    let state = *engine.watch_tables(engine.credential_queries().expect("one").tables).borrow();
    let anonymous =
        Caller::local().admitted(AdmittedCredential { credential: Credential::Anonymous, state });
    let create = json!({"agent": "a"});
    assert!(engine.call(&anonymous, "create_session", &create, None).await.is_ok());
    home.with("annannann", json!({})).await;
    let refused = engine.call(&anonymous, "create_session", &create, None).await;
    assert_eq!(refused.expect_err("it is refused").code, Code::Unauthenticated);
}

/// A stored result was returned to its caller even after its role could no longer call the reducer.
#[tokio::test]
async fn a_demoted_caller_gets_no_stored_answer() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({})).await;
    let create = || async {
        let request = home.0.request("POST", "/v1/call/create_session");
        let bearer = format!("Bearer {}", token("annannann"));
        let request = request.header("authorization", &bearer).header("idempotency-key", "once");
        request.body(r#"{"agent":"a"}"#).send().await
    };
    assert_eq!(create().await.status, 200);
    assert_eq!(create().await.json()["duplicate"], true);
    home.local("change_identity", json!({"id": "annannann", "role": "worker"})).await;
    check(
        &create().await.problem(),
        expect![[r#"
            403 denied: the role worker may not call create_session (`abide role list` shows what each role may call; an admin can assign another role)
        "#]],
    );
}

/// The same caller with another role got the stored answer of a request, with rows that a policy hides from that role. The class: an
/// answer that was composed for other rights. Without policies every role of a scope sees the same rows.
#[tokio::test]
async fn a_caller_with_other_rights_gets_no_stored_answer_that_policies_may_hide() {
    let home = TokenServer::new().await;
    home.with("annannann", json!({})).await;
    home.local("set_role", json!({"name": "twin", "reducers": ["*"]})).await;
    let create = || async {
        let request = home.0.request("POST", "/v1/call/create_session");
        let bearer = format!("Bearer {}", token("annannann"));
        let request = request.header("authorization", &bearer).header("idempotency-key", "once");
        request.body(r#"{"agent":"a"}"#).send().await
    };
    assert_eq!(create().await.status, 200);
    home.local("change_identity", json!({"id": "annannann", "role": "twin"})).await;
    assert_eq!(create().await.json()["duplicate"], true);
    let policy = json!({"table": "sessions", "role": "twin", "condition": "0"});
    home.local("set_policy", policy).await;
    check(
        &create().await.problem(),
        expect![[r#"
            409 request_id_conflict: request id "once" was already used with other rights (repeat the request with the role and the capabilities of its first attempt)
        "#]],
    );
    home.local("change_identity", json!({"id": "annannann", "role": "app"})).await;
    assert_eq!(create().await.json()["duplicate"], true);
}

/// A tenant's admin raised its own limits, or created an identity without limits and a token for it.
#[tokio::test]
async fn an_admin_cannot_grant_higher_limits_than_its_own() {
    let home = TokenServer::new().await;
    let rate = |calls: i64, per_ms: i64| json!({"rate": {"calls": calls, "per_ms": per_ms}});
    let scope = json!({"tenant": "acme"});
    let admin = json!({"role": "admin", "scope": scope, "limits": rate(1_000, 1_000)});
    home.with("acmeadmin", admin).await;
    home.local("create_identity", json!({"id": "free", "role": "app", "scope": scope})).await;
    home.local("set_role", json!({"name": "fast", "reducers": ["*"], "limits": rate(9_999, 1)}))
        .await;
    let hash = "0".repeat(64);
    let token = |id: &str, of: &str| -> JsonValue {
        json!({"id": id, "identity_id": of, "hash": hash, "last_four": "abcd"})
    };
    let own = |more: JsonValue| {
        let mut args = json!({"id": "acmeadmin"});
        args.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        args
    };
    let refused = [
        ("change_identity", own(json!({"limits": rate(1_001, 1_000)}))),
        ("change_identity", own(json!({"limits": rate(1_000, 999)}))),
        ("change_identity", own(json!({"limits": {}}))),
        ("change_identity", own(json!({"limits": {"quota": {"calls": 5, "per_ms": 1_000}}}))),
        ("create_identity", json!({"id": "new", "role": "app"})),
        ("create_identity", json!({"id": "new", "role": "app", "limits": rate(2_000, 2_000)})),
        ("create_identity", json!({"id": "new", "role": "fast"})),
        ("set_role", json!({"name": "other", "reducers": ["*"]})),
        ("create_token", token("freefree", "free")),
    ];
    for (reducer, args) in refused {
        let answer = home.call("acmeadmin", reducer, args.clone()).await;
        assert_eq!(answer.status, 403, "{reducer} {args}: {}", answer.problem());
    }
    let taken = [
        ("change_identity", own(json!({"limits": rate(999, 1_000)}))),
        ("create_identity", json!({"id": "new", "role": "app", "limits": rate(10, 1_000)})),
        ("create_token", token("newnewnew", "new")),
        ("disable_identity", json!({"id": "free"})),
    ];
    for (reducer, args) in taken {
        let answer = home.call("acmeadmin", reducer, args.clone()).await;
        assert_eq!(answer.status, 200, "{reducer} {args}");
    }
}

/// A request with an unscoped token can be restricted to a scope. It gains neither rights nor quota.
#[tokio::test]
async fn a_scope_header_narrows_and_never_widens() {
    let home = TokenServer::new().await;
    let rate = json!({"limits": {"rate": {"calls": 6, "per_ms": 4_000}}});
    home.with("driverone", rate).await;
    home.with("zoezoezoe", json!({"scope": {"tenant": "zeta"}})).await;
    for tenant in ["acme", "zeta"] {
        let scope = json!({"tenant": tenant});
        home.local("create_session", json!({"agent": tenant, "scope": scope})).await;
    }
    let ask = |id: &'static str, scopes: &'static [&'static str]| {
        let request = home.0.request("POST", "/v1/sql");
        let request = request.header("authorization", &format!("Bearer {}", token(id)));
        let request =
            scopes.iter().fold(request, |request, scope| request.header("abide-scope", scope));
        let request = request.body(r#"{"sql":"SELECT agent FROM sessions ORDER BY 1"}"#);
        async move { request.send().await }
    };
    let acme = ask("driverone", &[r#"{"tenant":"acme"}"#]).await;
    assert_eq!(acme.json()["rows"], json!([["acme"]]));
    assert_eq!(ask("driverone", &["{}"]).await.json()["rows"], json!([["acme"], ["zeta"]]));
    let widened = ask("zoezoezoe", &[r#"{"tenant":"acme"}"#]).await;
    assert_eq!(widened.status, 403, "{}", widened.problem());
    let narrower = ask("zoezoezoe", &[r#"{"team":"blue"}"#]).await;
    assert_eq!(narrower.json()["rows"], json!([]));
    for wrong in [
        &["tenant=acme"] as &[_],
        &[r#"{"tenant":1}"#],
        &["[]"],
        &["{}", "{}"],
        &[r#"{"tenant":"acme","tenant":"zeta"}"#],
        &[r#"{"":"acme"}"#],
        &[r#"{"ten\u0007ant":"acme"}"#],
        &[r#"{"ten\u202eant":"acme"}"#],
    ] {
        assert_eq!(ask("driverone", wrong).await.status, 400, "{wrong:?}");
    }
    let long = format!(r#"{{"tenant":"{}"}}"#, "x".repeat(1 << 10));
    let request = home.0.request("POST", "/v1/sql").header("abide-scope", &long);
    let bearer = format!("Bearer {}", token("driverone"));
    assert_eq!(request.header("authorization", &bearer).send().await.status, 400);
    let scopes: [&[&str]; 4] = [
        &[r#"{"tenant":"a"}"#],
        &[r#"{"tenant":"b"}"#],
        &[r#"{"tenant":"c"}"#],
        &[r#"{"tenant":"d"}"#],
    ];
    for scope in scopes {
        assert_eq!(ask("driverone", scope).await.status, 200);
    }
    assert_eq!(
        ask("driverone", &[r#"{"tenant":"e"}"#]).await.status,
        429,
        "the rate is the token's"
    );
}

/// A narrowed connection stays narrowed when its credential is looked up again.
#[tokio::test]
async fn a_narrowed_connection_stays_narrowed() {
    let home = TokenServer::new().await;
    home.with("driverone", json!({})).await;
    for tenant in ["acme", "zeta"] {
        let scope = json!({"tenant": tenant});
        home.local("create_session", json!({"agent": tenant, "scope": scope})).await;
    }
    let bearer = format!("Bearer {}", token("driverone"));
    let headers = [("authorization", bearer.as_str()), ("abide-scope", r#"{"tenant":"acme"}"#)];
    let mut socket = home.0.try_socket("/v1/ws", &headers).await.expect("it is admitted");
    let sql = r#"{"op":"sql","id":"s","sql":"SELECT agent FROM sessions"}"#;
    for other in ["otherone", "othertwo"] {
        socket.say(sql).await;
        assert_eq!(socket.receive_op("rows").await["rows"], json!([["acme"]]));
        let args = json!({"agent": "b", "scope": {"tenant": "zeta"}});
        let call = json!({"op": "call", "id": "c", "reducer": "create_session", "args": args});
        socket.say(&call.to_string()).await;
        assert_eq!(socket.receive_op("error").await["code"], "denied");
        home.with(other, json!({})).await;
    }
}
