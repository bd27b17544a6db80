//! The agent registry over REST: permissions to read and change, and invalid definitions.

use std::sync::Arc;

use abide_schema::{Code, Refusal};
use abide_server::{AccessConfig, AgentRegistry};
use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::http::{Response, check};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

/// An agent host with one tool, `look`. The agent crate tests the other checks of a real one.
#[derive(Debug)]
struct OneTool;

impl AgentRegistry for OneTool {
    fn registrations(&self, definition: JsonValue) -> Result<Vec<JsonValue>, Refusal> {
        let name = definition["name"].clone();
        let tools = definition["tools"].as_array().cloned().unwrap_or_default();
        if let Some(unknown) = tools.iter().find(|tool| **tool != "look") {
            let detail = format!("agent {name} is not valid: unknown_tool: {unknown}");
            return Err(Refusal::new(Code::BadArguments, detail));
        }
        let hidden = definition["hidden"] == true;
        let description = definition["description"].clone();
        let inline = definition["subagents"].as_array().into_iter().flatten().map(|inline| {
            let own = inline["name"].as_str().unwrap_or_default();
            let name = format!("{}/{own}", name.as_str().unwrap_or_default());
            json!({"name": name, "definition": inline, "mode": "subagent", "hidden": true})
        });
        let agent = json!({"name": name, "description": description, "definition": definition,
            "hidden": hidden});
        Ok(inline.chain([agent]).collect())
    }

    fn capabilities(&self) -> JsonValue {
        json!({"tools": ["look"], "middleware": ["guardrail"]})
    }
}

/// A server with that agent host.
pub(crate) async fn server() -> TestServer {
    let modules = abide_reducers::modules();
    TestServer::with_agents(AccessConfig::loopback(), modules, Some(Arc::new(OneTool))).await
}

async fn patch(server: &TestServer, name: &str, body: &str, revision: Option<&str>) -> Response {
    let path = format!("/agents/{name}");
    let mut request = server.request("PATCH", &path).body(body);
    if let Some(revision) = revision {
        request = request.header("if-match", revision);
    }
    request.send().await
}

#[tokio::test]
async fn an_agent_is_registered_read_and_changed() {
    let server = server().await;
    let prompt = "é".repeat(600);
    let clerk = json!({"name": "clerk", "system_prompt": prompt, "tools": ["look"],
        "config": {"model": "small", "temperature": 0.5}, "interrupt_on": {"look": true}});
    let made = server.post("/agents", &clerk.to_string()).await;
    assert_eq!((made.status, made.header("location")), (201, Some("/agents/clerk")));
    let read = server.get("/agents/clerk").await;
    assert_eq!((read.status, read.header("etag")), (200, Some("\"1\"")));
    assert_eq!(made.json(), read.json());
    let output = read.json();
    let prompt = output["system_prompt"].as_str().unwrap_or_default();
    assert_eq!(prompt.chars().count(), 500, "characters, not bytes");
    let output = json!({"model": output["model"], "mode": output["mode"], "tools": output["tools"],
        "temperature": output["temperature"], "interrupt_on": output["interrupt_on"],
        "hidden": output["hidden"], "native": output["native"], "a2a_exposed": output["a2a_exposed"]});
    check(
        &output.to_string(),
        expect![[r#"
            {"a2a_exposed":false,"hidden":false,"interrupt_on":{"look":true},"mode":"primary","model":"small","native":false,"temperature":0.5,"tools":["look"]}
        "#]],
    );
    let body = r#"{"config": {"model": "large"}, "interrupt_on": null}"#;
    let changed = patch(&server, "clerk", body, Some("\"1\"")).await;
    assert_eq!((changed.status, changed.header("etag")), (200, Some("\"2\"")));
    let changed = changed.json();
    assert_eq!(changed["model"], "large");
    assert_eq!(changed["temperature"], 0.5, "omitted members stay");
    assert_eq!(changed["interrupt_on"], json!({}), "null removes a member");
    let late = patch(&server, "clerk", r#"{"tools": []}"#, Some("\"1\"")).await;
    check(
        &late.problem(),
        expect![[r#"
            409 conflict: agent clerk is at revision 2, not 1 (read it again and retry the change)
        "#]],
    );
}

#[tokio::test]
async fn the_list_omits_hidden_and_retired_agents() {
    let server = server().await;
    for definition in [
        json!({"name": "b"}),
        json!({"name": "a"}),
        json!({"name": "secret", "hidden": true}),
        json!({"name": "old"}),
    ] {
        assert_eq!(server.post("/agents", &definition.to_string()).await.status, 201);
    }
    assert_eq!(server.post("/v1/call/retire_agent", r#"{"name": "old"}"#).await.status, 200);
    let listed = server.get("/agents").await.json();
    let names: Vec<&JsonValue> =
        listed["agents"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(server.get("/agents/secret").await.json()["hidden"], true);
    assert!(server.get("/agents/old").await.json()["retired_at"].is_i64());
}

/// Regression: an agent that was posted could not be removed.
#[tokio::test]
async fn an_agent_is_retired_with_its_inline_agents_and_can_be_posted_again() {
    let server = server().await;
    let boss = json!({"name": "boss", "subagents": [{"name": "a"}, {"name": "b"}]});
    assert_eq!(server.post("/agents", &boss.to_string()).await.status, 201);
    assert_eq!(server.post("/agents", r#"{"name": "bosses"}"#).await.status, 201);
    let active = async || {
        let sql = r#"{"sql": "SELECT name FROM agents WHERE retired_at IS NULL ORDER BY name"}"#;
        let rows = server.post("/v1/sql", sql).await.json()["rows"].take();
        rows.as_array().expect("rows").iter().map(|row| row[0].clone()).collect::<Vec<_>>()
    };
    assert_eq!(active().await, ["boss", "boss/a", "boss/b", "bosses"]);
    // A removed inline agent is retired with the change.
    let changed = patch(&server, "boss", r#"{"subagents": [{"name": "b"}]}"#, None).await;
    assert_eq!(changed.status, 200);
    assert_eq!(active().await, ["boss", "boss/b", "bosses"]);
    let inline = server.get("/agents/boss%2Fb").await;
    assert_eq!((inline.status, &inline.json()["mode"]), (200, &json!("subagent")));

    // A retry with the same key is the same call.
    let delete = async |name: &str, key: &str| {
        let request = server.request("DELETE", &format!("/agents/{name}"));
        request.header("idempotency-key", key).send().await
    };
    let retired = delete("boss", "once").await;
    assert_eq!(retired.status, 200);
    assert!(retired.json()["retired_at"].is_i64());
    assert_eq!(active().await, ["bosses"]);
    assert_eq!(delete("boss", "once").await.status, 200, "a second deletion changes nothing");
    check(
        &delete("noname", "other").await.problem(),
        expect![[r#"
            404 not_found: there is no agent noname (GET /agents lists them)
        "#]],
    );
    assert_eq!(server.post("/agents", &boss.to_string()).await.status, 201);
    assert_eq!(active().await, ["boss", "boss/a", "boss/b", "bosses"]);
    let twice = server.post("/agents", &boss.to_string()).await;
    assert_eq!(twice.status, 409, "an agent that is not retired is not replaced");
}

/// The route adds the newest revision to the call. A retry found another one, and was refused as another request.
#[tokio::test]
async fn a_retry_of_a_registration_changes_nothing() {
    let server = server().await;
    let send = async |method: &str, path: &str, body: &str, key: &str| {
        let request = server.request(method, path).header("idempotency-key", key).body(body);
        let answer = request.send().await;
        let revision = answer.json()["revision"].take();
        (answer.status, revision)
    };
    let clerk = r#"{"name": "clerk", "description": "a"}"#;
    let patch = r#"{"description": "b"}"#;
    for _ in 0..2 {
        assert_eq!(send("POST", "/agents", clerk, "create").await, (201, json!(1)));
    }
    for _ in 0..2 {
        assert_eq!(send("PATCH", "/agents/clerk", patch, "change").await, (200, json!(2)));
    }
    let other = r#"{"description": "c"}"#;
    assert_eq!(send("PATCH", "/agents/clerk", other, "change").await.0, 409);
    assert_eq!(server.request("DELETE", "/agents/clerk").send().await.status, 200);
    for _ in 0..2 {
        assert_eq!(send("POST", "/agents", clerk, "again").await, (201, json!(3)));
    }
}

#[tokio::test]
async fn invalid_definitions_are_refused_and_leave_nothing() {
    let server = server().await;
    let unknown = server.post("/agents", r#"{"name": "clerk", "tools": ["refnd"]}"#).await;
    check(
        &unknown.problem(),
        expect![[r#"
            422 bad_arguments: agent "clerk" is not valid: unknown_tool: "refnd" (-)
        "#]],
    );
    assert_eq!(server.get("/agents/clerk").await.status, 404);
    server.post("/agents", r#"{"name": "clerk"}"#).await;
    let twice = server.post("/agents", r#"{"name": "clerk", "tools": ["look"]}"#).await;
    check(
        &twice.problem(),
        expect![[r#"
            409 conflict: agent clerk exists, at revision 1 (choose another name, or change the agent: `PATCH /agents/clerk`, or `register_agent` with expected_revision=1)
        "#]],
    );
    let broken = patch(&server, "clerk", r#"{"tools": ["refnd"]}"#, None).await;
    assert_eq!(broken.status, 422);
    let renamed = patch(&server, "clerk", r#"{"name": "other"}"#, None).await;
    check(
        &renamed.problem(),
        expect![[r#"
            422 bad_arguments: agent clerk cannot be renamed (POST /agents creates one)
        "#]],
    );
    let absent = patch(&server, "noname", "{}", None).await;
    check(
        &absent.problem(),
        expect![[r#"
            404 not_found: there is no agent noname (GET /agents lists them)
        "#]],
    );
    for (body, tag, status) in
        [("[]", None, 400), ("{", None, 400), ("", None, 400), ("{}", Some("new"), 400)]
    {
        assert_eq!(patch(&server, "clerk", body, tag).await.status, status, "{body} {tag:?}");
    }
    assert_eq!(server.get("/agents/clerk").await.json()["revision"], 1, "nothing has changed");
    let long = format!(r#"{{"name": "{}"}}"#, "x".repeat(abide_schema::limits::MESSAGE_BYTES));
    assert_eq!(server.post("/agents", &long).await.status, 413);
    assert_eq!(server.request("PUT", "/agents/clerk").send().await.status, 405);
    assert_eq!(server.get("/agents/%ff").await.status, 404);
}

#[tokio::test]
async fn a_server_without_an_agent_host_refuses_definitions() {
    let server = TestServer::serving(AccessConfig::loopback(), abide_reducers::modules()).await;
    let refused = server.post("/agents", r#"{"name": "clerk"}"#).await;
    check(
        &refused.problem(),
        expect![[r#"
            404 not_found: this server accepts no agent definitions (start it with `abide serve --agents FOLDER`)
        "#]],
    );
    assert_eq!(server.get("/agents").await.json()["agents"], json!([]), "reading still works");
    let capabilities = server.get("/capabilities").await.json();
    assert_eq!(capabilities["features"]["agents"], false);
    assert_eq!(capabilities["tools"], json!([]));
}

#[tokio::test]
async fn capabilities_are_listed() {
    let capabilities = server().await.get("/capabilities").await.json();
    let mut output = capabilities.clone();
    output["packages"] = JsonValue::Null;
    check(
        &output.to_string(),
        expect![[r#"
            {"features":{"a2a":true,"ag_ui":true,"agents":true,"ai_sdk":true,"artifacts":false,"mcp":true,"responses":true},"middleware":["guardrail"],"packages":null,"sandbox_backends":[],"scope":{"keys":"any","yours":{}},"stream_protocols":["sse","abide.v1","mcp","a2a","responses","ai-sdk","ag-ui"],"tools":["look"]}
        "#]],
    );
}

/// Every tenant could read prompts and instructions, and with them the content of files in definitions.
#[tokio::test]
async fn a_tenant_cannot_read_definitions() {
    let home = TokenServer(server().await);
    home.with("rootrootr", json!({"role": "admin"})).await;
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    let clerk =
        json!({"name": "clerk", "description": "Helps", "system_prompt": "The code word is 8302."});
    let made = home.ask(&token("rootrootr"), "POST", "/agents", &clerk.to_string()).await;
    assert_eq!(made.status, 201);
    for (path, of_one) in [("/agents", false), ("/agents/clerk", true)] {
        let own = home.ask(&token("rootrootr"), "GET", path, "").await.json();
        let shown = home.ask(&token("acmeacmea"), "GET", path, "").await.json();
        assert!(own.to_string().contains("8302") && !shown.to_string().contains("8302"), "{shown}");
        let agent = if of_one { &shown } else { &shown["agents"][0] };
        assert_eq!((&agent["name"], &agent["description"]), (&json!("clerk"), &json!("Helps")));
    }
    let sql = json!({"sql": "SELECT definition FROM agent_revisions"}).to_string();
    let rows = home.ask(&token("acmeacmea"), "POST", "/v1/sql", &sql).await.json();
    assert_eq!(rows["rows"], json!([]), "{rows}");
}

/// Agents are shared: a caller with a scope reads them, and changes none.
#[tokio::test]
async fn only_unscoped_callers_change_agents() {
    let home = TokenServer(server().await);
    home.with("rootrootr", json!({"role": "admin"})).await;
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("worksworks", json!({"role": "agent"})).await;
    let clerk = json!({"name": "clerk"}).to_string();
    for path in ["/agents", "/agents/clerk", "/capabilities"] {
        assert_eq!(home.0.get(path).await.status, 401, "{path}");
    }
    assert_eq!(home.0.post("/agents", &clerk).await.status, 401);
    let of_role = home.ask(&token("worksworks"), "POST", "/agents", &clerk).await;
    // The check of the host would answer `unknown_tool`: it is not for callers that may not register agents.
    let unchecked = json!({"name": "spy", "tools": ["unknown"]}).to_string();
    let unchecked = home.ask(&token("worksworks"), "POST", "/agents", &unchecked).await;
    assert_eq!((unchecked.status, unchecked.json()["code"].clone()), (403, json!("denied")));
    assert_eq!((of_role.status, &of_role.json()["code"]), (403, &json!("denied")));
    let of_tenant = home.ask(&token("acmeacmea"), "POST", "/agents", &clerk).await;
    check(
        &of_tenant.problem(),
        expect![[r#"
            403 denied: agents are shared by all tenants, and a caller with a scope cannot change them (let an identity without a scope register it)
        "#]],
    );
    assert_eq!(home.ask(&token("rootrootr"), "POST", "/agents", &clerk).await.status, 201);
    let read = home.ask(&token("acmeacmea"), "GET", "/agents/clerk", "").await;
    assert_eq!(read.status, 200);
    let changed = home.ask(&token("acmeacmea"), "PATCH", "/agents/clerk", "{}").await;
    assert_eq!(changed.status, 403);
    let retired = home.call("acmeacmea", "retire_agent", json!({"name": "clerk"})).await;
    assert_eq!(retired.status, 403);
}

/// If a policy hides definitions, agents can still be listed, read and registered; a change needs the definition.
#[tokio::test]
async fn a_hidden_definition_is_left_out() {
    let home = TokenServer(server().await);
    home.with("rootrootr", json!({"role": "admin"})).await;
    home.with("shopshops", json!({})).await;
    let clerk = json!({"name": "clerk", "description": "Helps", "system_prompt": "8302"});
    let made = home.ask(&token("rootrootr"), "POST", "/agents", &clerk.to_string()).await;
    assert_eq!(made.status, 201);
    let hidden = json!({"table": "agent_revisions", "role": "app", "hidden": ["definition"]});
    home.local("set_policy", hidden).await;
    let shop = token("shopshops");
    for path in ["/agents", "/agents/clerk", "/capabilities"] {
        let shown = home.ask(&shop, "GET", path, "").await;
        assert!(shown.status == 200 && !shown.body.contains("8302"), "{path}: {shown:?}");
    }
    let one = home.ask(&shop, "GET", "/agents/clerk", "").await.json();
    assert_eq!((&one["description"], &one["system_prompt"]), (&json!("Helps"), &json!(null)));
    let changed = home.ask(&shop, "PATCH", "/agents/clerk", "{}").await.problem();
    assert!(
        changed.starts_with("403 denied: a policy hides the definition of agent clerk"),
        "{changed}"
    );
    let own = home.ask(&shop, "POST", "/agents", r#"{"name": "own"}"#).await;
    assert_eq!(own.status, 201, "{own:?}");
    let name = json!({"table": "agents", "role": "app", "hidden": ["name"]});
    home.local("set_policy", name).await;
    for path in ["/agents", "/agents/clerk"] {
        assert_eq!(home.ask(&shop, "GET", path, "").await.status, 403, "{path}");
    }
    // Regression: every error of the lookup was taken for an agent that does not exist.
    let again = home.ask(&shop, "POST", "/agents", r#"{"name": "clerk"}"#).await.problem();
    assert!(again.starts_with("403 denied: a policy hides rows or columns"), "{again}");
}
