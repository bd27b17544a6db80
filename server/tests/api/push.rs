//! Push notifications of A2A: configurations, deliveries in order, failures, and what they must not reveal. The sender is the
//! test's; `tests/clients/test_a2a.py` has real receivers, and kills the server.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use abide_engine::{SubscribeRequest, Update};
use abide_protocols::{AgentProtocols, SigningKey, WebhookFuture, WebhookRequest, WebhookSender};
use abide_schema::{Caller, Row};
use abide_server::AccessConfig;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ed25519_dalek::{Signature, VerifyingKey};
use expect_test::expect;
use serde_json::{Map, Value as JsonValue, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::http::Response;
use crate::runs::{claim, finish, local, say};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

/// Receivers, as the server sees them.
#[derive(Debug)]
struct Receivers {
    /// The next responses; 200 if there is none.
    answers: Mutex<VecDeque<Result<u16, String>>>,
    got: mpsc::UnboundedSender<WebhookRequest>,
}

impl WebhookSender for Receivers {
    fn check(&self, url: &str) -> Result<(), String> {
        if url.contains("//10.") {
            Err("10.0.0.1 is not a public address".to_owned())
        } else {
            Ok(())
        }
    }

    fn send(&self, request: WebhookRequest) -> WebhookFuture<'_> {
        let answer = self.answers.lock().expect("no panic").pop_front().unwrap_or(Ok(200));
        let _ = self.got.send(request);
        Box::pin(std::future::ready(answer))
    }
}

/// A server with the exposed agent `clerk`, and what its receivers get.
struct Home {
    server: TestServer,
    receivers: Arc<Receivers>,
    got: mpsc::UnboundedReceiver<WebhookRequest>,
}

impl Home {
    async fn open() -> Home {
        Home::with_key(None).await
    }

    async fn with_key(signing_key: Option<SigningKey>) -> Home {
        let (sender, got) = mpsc::unbounded_channel();
        let receivers = Arc::new(Receivers { answers: Mutex::default(), got: sender });
        let webhooks = Some(Arc::clone(&receivers) as Arc<dyn WebhookSender>);
        let protocols = AgentProtocols { webhooks, signing_key, ..AgentProtocols::default() };
        let server = TestServer::with_protocols(AccessConfig::loopback(), protocols).await;
        let clerk = json!({"name": "clerk", "definition": {"a2a_exposed": true}});
        local(&server, "register_agent", clerk).await;
        Home { server, receivers, got }
    }

    fn answer(&self, answers: impl IntoIterator<Item = Result<u16, String>>) {
        self.receivers.answers.lock().expect("no panic").extend(answers);
    }

    async fn next(&mut self) -> WebhookRequest {
        self.got.recv().await.expect("the server runs")
    }

    /// The next notifications until the one that contains this text: each in one line.
    async fn until(&mut self, last: &str) -> String {
        let mut all = String::new();
        loop {
            let request = self.next().await;
            let body: JsonValue = serde_json::from_str(&request.body).expect("it is JSON");
            let (kind, update) = body.as_object().and_then(|body| body.iter().next()).expect("one");
            let id = header(&request, "webhook-id").split_once('.').expect("it has a number").1;
            let status = &update["status"]["state"];
            let artifact = &update["artifact"]["parts"];
            let _ = writeln!(all, "{id} {kind} {status} {artifact}");
            if request.body.contains(last) {
                return all;
            }
        }
    }

    async fn rpc(&self, method: &str, params: JsonValue) -> JsonValue {
        self.rpc_as(None, method, params).await
    }

    async fn rpc_as(&self, bearer: Option<&str>, method: &str, params: JsonValue) -> JsonValue {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut request = self.server.request("POST", "/a2a/clerk").header("a2a-version", "1.0");
        if let Some(bearer) = bearer {
            request = request.header("authorization", &format!("Bearer {}", token(bearer)));
        }
        request.body(body.to_string()).send().await.json()
    }

    /// Sends a message with a configuration; returns the id of the task.
    async fn send(&self, message_id: &str, config: JsonValue) -> String {
        let message =
            json!({"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": "Hello."}]});
        let params = json!({"message": message, "configuration":
            {"returnImmediately": true, "taskPushNotificationConfig": config}});
        let sent = self.rpc("SendMessage", params).await;
        sent["result"]["task"]["id"].as_str().unwrap_or_else(|| panic!("{sent}")).to_owned()
    }

    /// Waits until the row of the only webhook satisfies a condition; returns some of its columns.
    async fn row(&self, condition: &str) -> JsonValue {
        let sql = format!(
            "SELECT status, delivered, attempts, error, token, credentials FROM webhooks \
             WHERE {condition}"
        );
        let mut connection = self.server.engine.connect(&Caller::local());
        let none = Map::new();
        let request = SubscribeRequest::new("webhooks", &sql, &none);
        connection.subscribe(&request).await.expect("it is a query");
        loop {
            let found: Option<Row> = match connection.next().await {
                Update::Snapshot(part) => part.rows.first().cloned(),
                Update::Delta { changes, .. } => {
                    changes.iter().find_map(|change| change.delta.rows().inserts.first().cloned())
                }
                _ => None,
            };
            if let Some(row) = found {
                return row.iter().map(abide_schema::Value::to_json).collect();
            }
        }
    }
}

fn header<'a>(request: &'a WebhookRequest, name: &str) -> &'a str {
    let found = request.headers.iter().find(|(given, _)| *given == name);
    found.map_or("", |(_, value)| value.as_str())
}

fn config() -> JsonValue {
    json!({"id": "mine", "url": "https://hooks.example/a2a", "token": "secret",
        "authentication": {"scheme": "Bearer", "credentials": "abc"}})
}

#[tokio::test]
async fn a_task_notifies_from_its_beginning_to_its_end() {
    let mut home = Home::open().await;
    let task = home.send("m1", config()).await;
    let fencing = claim(&home.server, &task).await;
    say(&home.server, &task, &fencing, &["It is ", "there."]).await;
    finish(&home.server, &task, &fencing).await;
    let first = home.next().await;
    assert_eq!(first.url, "https://hooks.example/a2a");
    assert_eq!(header(&first, "authorization"), "Bearer abc");
    assert_eq!(header(&first, "x-a2a-notification-token"), "secret");
    assert_eq!(header(&first, "webhook-timestamp"), "1795269731");
    assert_eq!(header(&first, "webhook-signature"), signature_of(&first, "secret"));
    let body: JsonValue = serde_json::from_str(&first.body).expect("it is JSON");
    assert_eq!(body["task"]["status"]["state"], "TASK_STATE_SUBMITTED");
    assert_eq!(body["task"]["id"], task.as_str());
    // A text is one notification, not one for each piece.
    expect![[r#"
        2.1 statusUpdate "TASK_STATE_WORKING" null
        5.1 artifactUpdate null [{"text":"x"}]
        5.2 statusUpdate "TASK_STATE_COMPLETED" null
    "#]]
    .assert_eq(&home.until("COMPLETED").await);
    let row = home.row("status = 'done'").await;
    assert_eq!(row, json!(["done", 5, 0, null, null, null]), "a row that is done has no secrets");
}

/// HMAC-SHA256 (RFC 2104) with a key of at most one block, apart from the server's code.
fn hmac_sha256(key: &str, text: &str) -> Vec<u8> {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key.bytes()).for_each(|(byte, key)| *byte ^= key);
        block.to_vec()
    };
    let inner = Sha256::digest([pad(0x36), text.as_bytes().to_vec()].concat());
    Sha256::digest([pad(0x5C), inner.to_vec()].concat()).to_vec()
}

/// What a receiver verifies, "ID.TIMESTAMP.BODY" (Standard Webhooks).
fn signed_text(request: &WebhookRequest) -> String {
    let id = header(request, "webhook-id");
    let time = header(request, "webhook-timestamp");
    format!("{id}.{time}.{}", request.body)
}

/// The signature that a receiver with this token computes.
fn signature_of(request: &WebhookRequest, token: &str) -> String {
    format!("v1,{}", BASE64_STANDARD.encode(hmac_sha256(token, &signed_text(request))))
}

/// The test of the signature compared its prefix `v1`, so that any value passed: one over an empty body, without the time,
/// or with the token of another receiver. The class is every signature that the server makes; see also
/// `agent/tools/tests/kinds/http.rs`.
#[tokio::test]
async fn a_signature_covers_the_id_the_time_the_body_and_the_token() {
    let mut home = Home::open().await;
    home.answer([Ok(500)]);
    let task = home.send("m1", config()).await;
    let first = home.next().await;
    home.row("attempts = 1 AND due_at IS NOT NULL").await;
    home.server.clock.pass_s(1);
    home.server.engine.fire_due().await.expect("the pause ends");
    let again = home.next().await;
    home.row("delivered = 1").await;
    let made = home.rpc(
        "CreateTaskPushNotificationConfig",
        json!({"taskId": task, "id": "other",
        "url": "https://other.example/", "token": "another secret"}),
    );
    assert_eq!(made.await["result"]["id"], "other");
    let fencing = claim(&home.server, &task).await;
    finish(&home.server, &task, &fencing).await;
    let mut sent = vec![(first, "secret"), (again, "secret")];
    while sent.iter().filter(|(request, _)| request.body.contains("COMPLETED")).count() < 2 {
        let request = home.next().await;
        let is_other = request.url == "https://other.example/";
        sent.push((request, if is_other { "another secret" } else { "secret" }));
    }
    let mut all: Vec<&str> = Vec::new();
    for (request, token) in &sent {
        let signature = header(request, "webhook-signature");
        assert_eq!(signature, signature_of(request, token), "{request:?}");
        all.push(signature);
        let text = signed_text(request);
        let (id, rest) = text.split_once('.').expect("an id");
        for (key, text) in [
            ("secre", text.clone()),
            ("", text.clone()),
            (if *token == "secret" { "another secret" } else { "secret" }, text.clone()),
            (token, format!("{id}x.{rest}")),
            (token, text.replacen(header(request, "webhook-timestamp"), "1795269730", 1)),
            (token, format!("{text} ")),
            (token, text.replacen("contextId", "ContextId", 1)),
            (token, request.body.clone()),
        ] {
            let other = BASE64_STANDARD.encode(hmac_sha256(key, &text));
            assert_ne!(signature, format!("v1,{other}"), "{key} {text}");
        }
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), sent.len(), "each attempt has its own time, id or token");
}

/// After a rotation the old token signs nothing.
#[tokio::test]
async fn a_new_token_replaces_the_old_one_in_signatures() {
    let mut home = Home::open().await;
    let task = home.send("m1", config()).await;
    let first = home.next().await;
    assert_eq!(header(&first, "webhook-signature"), signature_of(&first, "secret"));
    home.row("delivered = 1").await;
    let mut rotated = config();
    rotated["taskId"] = json!(task);
    rotated["token"] = json!("rotated");
    assert_eq!(home.rpc("CreateTaskPushNotificationConfig", rotated).await["result"]["id"], "mine");
    let fencing = claim(&home.server, &task).await;
    finish(&home.server, &task, &fencing).await;
    loop {
        let request = home.next().await;
        assert_eq!(header(&request, "webhook-signature"), signature_of(&request, "rotated"));
        assert_eq!(header(&request, "x-a2a-notification-token"), "rotated");
        if request.body.contains("COMPLETED") {
            break;
        }
    }
}

/// The signature with the key of the server is verified with the published key, by another implementation's rules.
#[tokio::test]
async fn the_key_of_the_server_signs_the_same_text() {
    // The key of RFC 8037, appendix A.
    let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
        -----END PRIVATE KEY-----\n";
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), pem).expect("it can be written");
    let signing_key = Some(SigningKey::open(file.path()).expect("it is a key"));
    let mut home = Home::with_key(signing_key).await;
    home.send("m1", config()).await;
    let request = home.next().await;
    let both: Vec<&str> = header(&request, "webhook-signature").split(' ').collect();
    let [by_token, by_server] = both[..] else { panic!("{both:?}") };
    assert_eq!(by_token, signature_of(&request, "secret"));
    let jwks = home.server.get("/.well-known/jwks.json").await.json();
    let public = jwks["keys"][0]["x"].as_str().expect("a public key");
    let public = BASE64_URL_SAFE_NO_PAD.decode(public).expect("base64url");
    let key = VerifyingKey::from_bytes(&public.try_into().expect("32 bytes")).expect("a key");
    let signature = by_server.strip_prefix("v1a,").expect("its version");
    let signature = BASE64_STANDARD.decode(signature).expect("base64");
    let signature = Signature::from_slice(&signature).expect("64 bytes");
    let text = signed_text(&request);
    assert!(key.verify_strict(text.as_bytes(), &signature).is_ok());
    let (id, rest) = text.split_once('.').expect("an id");
    for other in [format!("{text} "), format!("{id}x.{rest}"), rest.to_owned(), String::new()] {
        assert!(key.verify_strict(other.as_bytes(), &signature).is_err(), "{other}");
    }
}

/// Only the events after its creation are sent to a webhook of a task that has begun.
#[tokio::test]
async fn a_configuration_begins_with_the_next_event() {
    let mut home = Home::open().await;
    let task = home.send("m1", JsonValue::Null).await;
    let fencing = claim(&home.server, &task).await;
    say(&home.server, &task, &fencing, &["It"]).await;
    let made = home
        .rpc(
            "CreateTaskPushNotificationConfig",
            json!({"taskId": task, "url": "https://x.example/"}),
        )
        .await;
    let shown = json!({"id": task, "taskId": task, "url": "https://x.example/"});
    assert_eq!(made["result"], shown);
    finish(&home.server, &task, &fencing).await;
    expect![[r#"
        4.1 artifactUpdate null [{"text":"x"}]
        4.2 statusUpdate "TASK_STATE_COMPLETED" null
    "#]]
    .assert_eq(&home.until("COMPLETED").await);
}

#[tokio::test]
async fn a_failed_delivery_is_repeated_with_the_same_id() {
    let mut home = Home::open().await;
    home.answer([Err("hooks.example: connection refused".to_owned()), Ok(500)]);
    home.send("m1", config()).await;
    let first = home.next().await;
    let row = home.row("attempts = 1 AND due_at IS NOT NULL").await;
    assert_eq!(
        (&row[1], &row[3]),
        (&json!(0), &json!("hooks.example: connection refused")),
        "{row}"
    );
    home.server.clock.pass_s(1);
    home.server.engine.fire_due().await.expect("the pause ends");
    let second = home.next().await;
    let row = home.row("attempts = 2 AND due_at IS NOT NULL").await;
    assert_eq!(row[3], "the receiver responded with HTTP 500");
    home.server.clock.pass_s(2);
    home.server.engine.fire_due().await.expect("the pause ends");
    let third = home.next().await;
    for repeated in [&second, &third] {
        assert_eq!(header(repeated, "webhook-id"), header(&first, "webhook-id"));
        assert_eq!(repeated.body, first.body);
    }
    assert_ne!(header(&third, "webhook-timestamp"), header(&first, "webhook-timestamp"));
    let row = home.row("delivered = 1").await;
    assert_eq!((&row[2], &row[3]), (&json!(0), &JsonValue::Null), "{row}");
}

/// A receiver that is gone, and an identity that was disabled, get nothing any more.
#[tokio::test]
async fn a_webhook_is_given_up() {
    let mut home = Home::open().await;
    home.answer([Ok(410)]);
    home.send("m1", config()).await;
    home.next().await;
    let row = home.row("status = 'failed'").await;
    assert_eq!(row, json!(["failed", 0, 0, "the receiver responded with HTTP 410", null, null]));

    let Home { server, receivers, got } = Home::open().await;
    let home = TokenServer(server);
    home.with("annannann", json!({"scope": {"tenant": "acme"}})).await;
    home.local("disable_identity", json!({"id": "annannann"})).await;
    let by = Caller::with(
        "annannann",
        "app",
        Default::default(),
        [("tenant".to_owned(), "acme".to_owned())].into(),
    );
    for (reducer, args) in [
        ("create_session", json!({"id": "s1", "agent": "clerk"})),
        ("start_run", json!({"session_id": "s1", "id": "r1", "agent": "clerk"})),
        ("put_webhook", json!({"run_id": "r1", "name": "w", "url": "https://x/", "after": 0})),
    ] {
        home.0.engine.call(&by, reducer, &args, None).await.expect("it is permitted");
    }
    let home = Home { server: home.0, receivers, got };
    let row = home.row("status = 'failed'").await;
    assert_eq!(row[3], "the identity that set it is disabled");
}

#[tokio::test]
async fn configurations_are_read_and_deleted_without_their_secrets() {
    let home = Home::open().await;
    let task = home.send("m1", config()).await;
    let of = |id: &str| json!({"taskId": task, "id": id});
    let read = home.rpc("GetTaskPushNotificationConfig", of("mine")).await;
    let shown = json!({"id": "mine", "taskId": task, "url": "https://hooks.example/a2a",
        "authentication": {"scheme": "Bearer"}});
    assert_eq!(read["result"], shown);
    let path = format!("/a2a/clerk/tasks/{task}/pushNotificationConfigs");
    let http = async |method: &str, path: &str, body: &str| -> Response {
        home.server.request(method, path).header("a2a-version", "1.0").body(body).send().await
    };
    let listed = http("GET", &path, "").await.json();
    assert_eq!(listed, json!({"configs": [shown], "nextPageToken": ""}));
    let more = http("POST", &path, r#"{"id": "b", "url": "http://b.example/"}"#).await.json();
    assert_eq!(more["id"], "b");
    for _ in 0..2 {
        assert_eq!(http("DELETE", &format!("{path}/b"), "").await.status, 200, "also again");
    }
    let missing = http("GET", &format!("{path}/b"), "").await;
    assert_eq!((missing.status, &missing.json()["error"]["status"]), (404, &json!("NOT_FOUND")));
    let mut all = String::new();
    for (id, url) in [
        ("a", ""),
        ("a", "ftp://x.example/"),
        ("a", "http://10.0.0.1/"),
        ("a", "https://x.example/a b"),
        (&"a".repeat(600), "https://x.example/"),
        ("a", &format!("https://x.example/{}", "a".repeat(3_000))),
    ] {
        let body = json!({"id": id, "url": url}).to_string();
        let refused = http("POST", &path, &body).await;
        let _ = writeln!(all, "{} {}", refused.status, refused.json()["error"]["message"]);
    }
    for authentication in [
        json!({"credentials": "x"}),
        json!({"scheme": "Bear er", "credentials": "x"}),
        json!({"scheme": "Bearer", "credentials": "x\r\nhost: y"}),
    ] {
        let body = json!({"url": "https://x.example/", "authentication": authentication});
        let refused = http("POST", &path, &body.to_string()).await;
        let _ = writeln!(all, "{} {}", refused.status, refused.json()["error"]["message"]);
    }
    expect![[r#"
        400 "url is missing"
        400 "url must begin with http:// or https://"
        400 "10.0.0.1 is not a public address"
        400 "url must begin with http:// or https://"
        413 "name has 600 bytes; the limit is 512"
        413 "url has 3018 bytes; the limit is 2048"
        400 "scheme is required with credentials (give scheme, such as Bearer)"
        400 "scheme must be the name of an authentication scheme (such as Bearer or Basic)"
        400 "credentials is empty or contains characters that a header cannot have (printable ASCII is allowed)"
    "#]].assert_eq(&all);
    let many = (0..12).map(|n| json!({"id": format!("n{n}"), "url": "https://x.example/"}));
    let mut statuses = Vec::new();
    for body in many {
        statuses.push(http("POST", &path, &body.to_string()).await.status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 9, "ten for each task");
}

/// Another tenant gets the same answers as for a task that does not exist, and no secret is in a row or an event that a
/// restricted caller reads.
#[tokio::test]
async fn tenants_do_not_reach_configurations_of_others() {
    let Home { server, receivers, got } = Home::open().await;
    let tokens = TokenServer(server);
    tokens.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    tokens.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let home = Home { server: tokens.0, receivers, got };
    let message = json!({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Hello."}]});
    let params = json!({"message": message, "configuration":
        {"returnImmediately": true, "taskPushNotificationConfig": config()}});
    let sent = home.rpc_as(Some("acmeacmea"), "SendMessage", params).await;
    let task = sent["result"]["task"]["id"].as_str().expect("a task").to_owned();
    let stored = format!("tenant=acme/{task}");
    for task in [&task, &stored] {
        for (method, more) in [
            ("GetTaskPushNotificationConfig", json!({"id": "mine"})),
            ("ListTaskPushNotificationConfigs", json!({})),
            ("DeleteTaskPushNotificationConfig", json!({"id": "mine"})),
            ("CreateTaskPushNotificationConfig", json!({"url": "https://z.example/"})),
        ] {
            let params = |task: &str| {
                let mut params = more.clone();
                params["taskId"] = json!(task);
                params
            };
            let denied = home.rpc_as(Some("zetazetaz"), method, params(task)).await;
            let absent = home.rpc_as(Some("zetazetaz"), method, params("run_unknown")).await;
            assert_eq!(denied["error"]["code"], -32001, "{denied}");
            assert_eq!(
                denied.to_string().replace(task.as_str(), "run_unknown"),
                absent.to_string()
            );
        }
    }
    let sql = async |sql: &str| {
        let body = json!({"sql": sql}).to_string();
        let bearer = format!("Bearer {}", token("acmeacmea"));
        let request = home.server.request("POST", "/v1/sql").header("authorization", &bearer);
        request.body(body).send().await
    };
    assert_eq!(sql("SELECT count(*) FROM webhooks").await.json()["rows"], json!([[1]]));
    for column in ["token", "credentials", "authority"] {
        assert_ne!(sql(&format!("SELECT {column} FROM webhooks")).await.status, 200, "{column}");
    }
    let events = sql("SELECT arguments, outcome FROM events").await;
    assert_eq!(events.status, 200, "{events:?}");
    assert!(!events.body.contains("secret"), "{events:?}");
}
