//! Prompts over REST and MCP: versions, labels, values of variables, and tenants.

use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::agents::server;
use crate::http::check;
use crate::mcp::{modern, result};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

async fn put(server: &TestServer, path: &str, body: &JsonValue) -> JsonValue {
    let answer = server.request("PUT", path).body(body.to_string()).send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[tokio::test]
async fn a_prompt_is_stored_labelled_and_rendered() {
    let server = server().await;
    let path = "/v1/prompts/mail%2Fgreeting";
    put(&server, path, &json!({"text": "Hello."})).await;
    let second = json!({"text": "Hello {{name}}.", "description": "Greets", "labels": ["next"]});
    let saved = put(&server, path, &second).await;
    assert_eq!((&saved["prompt"]["version"], &saved["duplicate"]), (&json!(2), &json!(false)));
    assert_eq!(put(&server, path, &second).await["duplicate"], true);
    put(&server, &format!("{path}/labels/production"), &json!({"version": 1})).await;
    for at in ["", "?at=latest", "?at=2", "?at=v2", "?at=next"] {
        let shown = server.get(&format!("{path}{at}")).await.json();
        assert_eq!(shown["prompt"]["text"], "Hello {{name}}.", "{at}");
    }
    let mut shown = server.get(&format!("{path}?at=production")).await.json();
    shown["prompt"]["created_at"] = json!(0);
    check(
        &shown["prompt"].to_string(),
        expect![[r#"
        {"created_at":0,"created_by":"local","description":"Greets","labels":{"next":2,"production":1},"name":"mail/greeting","newest":2,"scope":{},"text":"Hello.","variables":[],"version":1}
    "#]],
    );
    let mut all = server.get("/v1/prompts").await.json();
    all["prompts"][0]["updated_at"] = json!(0);
    check(
        &all.to_string(),
        expect![[r#"
        {"next":null,"prompts":[{"description":"Greets","name":"mail/greeting","scope":{},"updated_at":0,"variables":["name"],"version":2}],"seq":3}
    "#]],
    );
    assert_eq!(server.get("/v1/prompts?after=mail").await.json()["prompts"][0]["version"], 2);
    assert_eq!(server.get("/v1/prompts?after=mail/greeting").await.json()["prompts"], json!([]));
    let values = json!({"variables": {"name": "{{name}} & Ann"}}).to_string();
    let text = server.post(&format!("{path}/render"), &values).await.json();
    assert_eq!(text["text"], "Hello {{name}} & Ann.");
    let removed = server.request("DELETE", &format!("{path}/labels/next")).send().await;
    assert_eq!(removed.status, 200);
}

#[tokio::test]
async fn wrong_requests_for_prompts_are_refused() {
    let server = server().await;
    let path = "/v1/prompts/mail%2Fgreeting";
    put(&server, path, &json!({"text": "Hello."})).await;
    put(&server, path, &json!({"text": "Hello {{name}}."})).await;
    let mut refusals = String::new();
    for (method, path, body) in [
        ("GET", format!("{path}?at=next"), ""),
        ("GET", format!("{path}?at=3"), ""),
        ("GET", format!("{path}?version=3"), ""),
        ("GET", "/v1/prompts/none".to_owned(), ""),
        ("GET", "/v1/prompts/%FF".to_owned(), ""),
        ("POST", format!("{path}/render"), "{}"),
        ("POST", format!("{path}/render"), r#"{"variables": {"name": 1}}"#),
        ("POST", format!("{path}/render"), r#"{"variables": {"name": "", "x": ""}}"#),
        ("PUT", path.to_owned(), ""),
        ("PUT", path.to_owned(), r#"{"text": " "}"#),
        ("PUT", "/v1/prompts/a@b".to_owned(), r#"{"text": "x"}"#),
        ("PUT", format!("{path}/labels/latest"), r#"{"version": 1}"#),
        ("DELETE", format!("{path}/labels/next"), ""),
    ] {
        let refused = server.request(method, &path).body(body).send().await;
        refusals += &format!("{}\n", refused.problem());
    }
    expect![[r#"
        404 not_found: there is no prompt mail/greeting with the version or the label next (GET /v1/prompts lists them)
        404 not_found: there is no prompt mail/greeting with the version or the label 3 (GET /v1/prompts lists them)
        422 bad_arguments: invalid query string: version: unknown field `version`, expected `at` (omit it, or send ?at=VERSION or ?at=LABEL)
        404 not_found: there is no prompt none (GET /v1/prompts lists them)
        404 not_found: the name of the prompt is not UTF-8 (percent-encode it as UTF-8)
        422 bad_arguments: the prompt needs a value for name (give each variable of the prompt a string, and no other keys)
        400 bad_request: the body has an unexpected form: invalid type: integer `1`, expected a string at line 1 column 24 (send a body like {"variables": {"name": "…"}, "at": "production"})
        422 bad_arguments: the prompt has no variable x; it has name (give each variable of the prompt a string, and no other keys)
        422 bad_arguments: put_prompt: missing argument text (put_prompt takes name, text, description?, labels?, expected_version?, scope?)
        422 bad_arguments: text is empty (give the text of the prompt)
        422 bad_arguments: name "a@b" is not valid (letters, digits, . _ - and / are allowed)
        422 bad_arguments: label "latest" is not valid (a label begins with a letter, has letters, digits, . _ and -, at most 64 bytes, and is neither latest nor a number such as v3)
        404 not_found: prompt mail/greeting has no label next (`abide prompt show mail/greeting` lists its labels)
    "#]].assert_eq(&refusals);
}

/// The names that tenants choose are their own, and the prompts of the operator stay with the operator.
#[tokio::test]
async fn tenants_see_their_own_prompts() {
    let home = TokenServer(server().await);
    home.with("rootrootr", json!({"role": "admin"})).await;
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    home.with("worksworks", json!({"role": "worker"})).await;
    for (id, text) in
        [("rootrootr", "Of all."), ("acmeacmea", "Of acme."), ("zetazetaz", "Of zeta.")]
    {
        let body = json!({"text": text}).to_string();
        let done = home.ask(&token(id), "PUT", "/v1/prompts/greeting", &body).await;
        assert_eq!(done.status, 200, "{done:?}");
    }
    let read = async |id: &str, path: &str| home.ask(&token(id), "GET", path, "").await;
    let own = read("acmeacmea", "/v1/prompts/greeting").await.json();
    let stored = "tenant=acme/greeting";
    assert_eq!(
        (&own["prompt"]["text"], &own["prompt"]["name"]),
        (&json!("Of acme."), &json!(stored))
    );
    let all = read("acmeacmea", "/v1/prompts").await.json();
    assert_eq!(all["prompts"].as_array().map(Vec::len), Some(1), "{all}");
    assert_eq!(read("zetazetaz", "/v1/prompts/tenant=acme%2Fgreeting").await.status, 404);
    assert_eq!(
        read("rootrootr", "/v1/prompts").await.json()["prompts"].as_array().map(Vec::len),
        Some(3)
    );
    let denied = home.ask(&token("worksworks"), "PUT", "/v1/prompts/x", r#"{"text": "x"}"#).await;
    assert_eq!(denied.status, 403);

    let listed = modern(&home.0, Some(&token("acmeacmea")), "prompts/list", json!({})).send().await;
    let listed = listed.json()["result"]["prompts"].clone();
    assert_eq!(listed, json!([{"name": stored, "arguments": []}]));
    for (name, text) in [("greeting", "Of acme."), (stored, "Of acme.")] {
        let got = json!({"name": name});
        let got =
            modern(&home.0, Some(&token("acmeacmea")), "prompts/get", got).send().await.json();
        assert_eq!(got["result"]["messages"][0]["content"]["text"], text, "{got}");
    }
    let foreign = json!({"name": stored});
    let foreign = modern(&home.0, Some(&token("zetazetaz")), "prompts/get", foreign).send().await;
    assert_eq!(foreign.json()["error"]["message"], "unknown prompt \"tenant=acme/greeting\"");

    // A policy restricts the rows further.
    let none = json!({"table": "prompts", "role": "app", "condition": "name LIKE '%mail%'"});
    home.local("set_policy", none).await;
    assert_eq!(read("acmeacmea", "/v1/prompts").await.json()["prompts"], json!([]));
    assert_eq!(read("acmeacmea", "/v1/prompts/greeting").await.status, 404);
}

/// Stored prompts are prompts of the MCP server, in their newest version.
#[tokio::test]
async fn a_stored_prompt_is_a_prompt_of_mcp() {
    let server = server().await;
    put(&server, "/v1/prompts/greeting", &json!({"text": "Hello."})).await;
    let second = json!({"text": "Hello {{name}}.", "description": "Greets"});
    put(&server, "/v1/prompts/greeting", &second).await;
    let listed = result(&server, "prompts/list", json!({})).await;
    assert_eq!(
        listed["prompts"],
        json!([{"name": "greeting", "description": "Greets",
            "arguments": [{"name": "name", "required": true}]}])
    );
    let got = json!({"name": "greeting", "arguments": {"name": "Ann"}});
    let got = result(&server, "prompts/get", got).await;
    assert_eq!(got["description"], "Greets");
    let message = json!({"role": "user", "content": {"type": "text", "text": "Hello Ann."}});
    assert_eq!(got["messages"], json!([message]));
    let mut refusals = String::new();
    for arguments in [json!({}), json!({"name": 1}), json!([]), json!({"name": "", "x": ""})] {
        let params = json!({"name": "greeting", "arguments": arguments});
        let refused = modern(&server, None, "prompts/get", params).send().await.json();
        refusals += &format!("{} {}\n", refused["error"]["code"], refused["error"]["message"]);
    }
    expect![[r#"
        -32602 "the prompt needs a value for name"
        -32602 "arguments must be an object of strings"
        -32602 "arguments must be an object of strings"
        -32602 "the prompt has no variable x; it has name"
    "#]]
    .assert_eq(&refusals);
}
