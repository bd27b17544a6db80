//! The Responses API: a response is a turn of a run. The tests with the clients of OpenAI are in `tests/clients/`.

use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::events::Stream;
use crate::http::{Response, check};
use crate::runs::{claim, finish, local, say, with_clerk};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const CREATE: &str = "/v1/responses";

/// Creates a response in the background.
async fn create(server: &TestServer, body: JsonValue) -> JsonValue {
    let mut body = body;
    body["model"] = json!("clerk");
    body["background"] = json!(true);
    let created = server.post(CREATE, &body.to_string()).await;
    assert_eq!(created.status, 200, "{created:?}");
    created.json()
}

/// The id of a response's run.
fn run_of(response: &JsonValue) -> String {
    let id = response["id"].as_str().expect("it has an id");
    id.strip_prefix("resp_1_").expect("the first turn of a run").to_owned()
}

async fn get(server: &TestServer, id: &JsonValue) -> JsonValue {
    server.get(&format!("{CREATE}/{}", id.as_str().expect("an id"))).await.json()
}

/// The events of a stream until its end: type and number.
async fn events(mut stream: Stream) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(event) = stream.next().await {
        let (_, data) = event.split_once("data: ").expect("it has data");
        let Ok(data) = serde_json::from_str::<JsonValue>(data) else {
            all.push(data.to_owned());
            continue;
        };
        all.push(format!("{} {}", data["sequence_number"], data["type"].as_str().expect("a type")));
    }
    all
}

async fn stream(server: &TestServer, id: &JsonValue, after: i64) -> Stream {
    let id = id.as_str().expect("an id");
    let path = format!("{CREATE}/{id}?stream=true&starting_after={after}");
    Stream::by(server.request("GET", &path), None).await
}

#[tokio::test]
async fn a_response_is_read_until_it_is_complete() {
    let server = with_clerk().await;
    let created = create(&server, json!({"input": "Hello."})).await;
    assert_eq!((&created["status"], &created["output"]), (&json!("in_progress"), &json!([])));
    let run = run_of(&created);
    let fencing = claim(&server, &run).await;
    say(&server, &run, &fencing, &["x"]).await;
    let read = get(&server, &created["id"]).await;
    assert_eq!(read["output"][0]["content"][0]["text"], "x");
    assert_eq!(
        (&read["status"], &read["output"][0]["status"]),
        (&json!("in_progress"), &json!("in_progress"))
    );
    finish(&server, &run, &fencing).await;
    let read = get(&server, &created["id"]).await;
    assert_eq!((&read["status"], &read["model"]), (&json!("completed"), &json!("clerk")));
    assert_eq!(read["output"][0]["status"], "completed");
    let cancelled = server.post(&format!("{CREATE}/resp_1_{run}/cancel"), "").await.json();
    assert_eq!(cancelled, read, "a complete response is not cancelled");
}

/// A client that lost its connection gets each event once, whatever it has seen.
#[tokio::test]
async fn a_stream_continues_after_any_event() {
    let server = with_clerk().await;
    let created = create(&server, json!({"input": "Hello."})).await;
    let run = run_of(&created);
    let fencing = claim(&server, &run).await;
    let live = stream(&server, &created["id"], -1).await;
    say(&server, &run, &fencing, &["x"]).await;
    finish(&server, &run, &fencing).await;
    let all = events(live).await;
    expect![[r#"
        0 response.created
        1 response.in_progress
        2 response.output_item.added
        3 response.content_part.added
        4 response.output_text.delta
        5 response.output_text.done
        6 response.content_part.done
        7 response.output_item.done
        8 response.completed
        [DONE]"#]]
    .assert_eq(&all.join("\n"));
    for after in 0..9 {
        let rest = events(stream(&server, &created["id"], after).await).await;
        let from = usize::try_from(after + 1).expect("it is small");
        assert_eq!(rest, all[from..], "after {after}");
    }
}

#[tokio::test]
async fn a_response_continues_the_session_of_the_previous_one() {
    let server = with_clerk().await;
    let first = create(&server, json!({"input": "Hello.", "metadata": {"n": "1"}})).await;
    let next = json!({"input": "And?", "previous_response_id": first["id"], "model": "clerk"});
    let busy = server.post(CREATE, &next.to_string()).await;
    assert_eq!((busy.status, &busy.json()["code"]), (409, &json!("conflict")));
    let fencing = claim(&server, &run_of(&first)).await;
    finish(&server, &run_of(&first), &fencing).await;
    // The clock of the test stands still, and runs are ordered by time.
    server.clock.pass_s(1);
    let second = create(&server, next.clone()).await;
    assert_eq!(second["previous_response_id"], first["id"]);
    assert_eq!(get(&server, &second["id"]).await["previous_response_id"], first["id"]);
    let sql = json!({"sql": "SELECT role, content FROM agent_state ORDER BY id"});
    let rows = server.post("/v1/sql", &sql.to_string()).await.json()["rows"].clone();
    assert_eq!(rows, json!([["user", "Hello."], ["user", "And?"]]));
    let branch = server.post(CREATE, &next.to_string()).await;
    check(
        &branch.problem(),
        expect![[r#"
            409 conflict: the session of previous_response_id has continued with another response (use the id of the newest response; a session has no branches)
        "#]],
    );
}

#[tokio::test]
async fn a_retry_is_the_same_response() {
    let server = with_clerk().await;
    let ask = async |body: &JsonValue, key: &str| {
        let request = server.request("POST", CREATE).header("idempotency-key", key);
        request.body(body.to_string()).send().await
    };
    let body = json!({"model": "clerk", "input": "Hello.", "background": true});
    let first = ask(&body, "k1").await.json();
    assert_eq!(ask(&body, "k1").await.json(), first);
    let fencing = claim(&server, &run_of(&first)).await;
    finish(&server, &run_of(&first), &fencing).await;
    server.clock.pass_s(1);
    let mut next = body.clone();
    next["previous_response_id"] = first["id"].clone();
    let second = ask(&next, "k2").await.json();
    assert_eq!(ask(&next, "k2").await.json()["id"], second["id"]);
    let other = ask(&body, "k2").await;
    assert_eq!((other.status, &other.json()["code"]), (409, &json!("request_id_conflict")));
    let sql = json!({"sql": "SELECT count(*) FROM runs"});
    assert_eq!(server.post("/v1/sql", &sql.to_string()).await.json()["rows"], json!([[2]]));
}

#[tokio::test]
async fn a_response_is_cancelled_once() {
    let server = with_clerk().await;
    let created = create(&server, json!({"input": "Hello."})).await;
    let path = format!("{CREATE}/{}/cancel", created["id"].as_str().expect("an id"));
    let cancelled = server.post(&path, "").await.json();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(server.post(&path, "").await.json(), cancelled);
    let all = events(stream(&server, &created["id"], 1).await).await;
    assert_eq!(all, ["2 response.incomplete", "[DONE]"]);
}

/// An unsupported field that would change the meaning of a request is refused, and stores nothing.
#[tokio::test]
async fn unsupported_request_fields_are_refused() {
    let server = with_clerk().await;
    let refused = async |more: JsonValue| {
        let mut body = json!({"model": "clerk", "input": "Hello."});
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = server.post(CREATE, &body.to_string()).await;
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], answer.json()["code"], "{error}");
        format!("{} {}", answer.status, error["message"].as_str().expect("a message"))
    };
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    let decision = json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_a",
        "approve": true});
    let mixed = json!([{"role": "user", "content": "x"}, decision]);
    let mut all = String::new();
    for more in [
        json!({"store": false}),
        json!({"tools": [{"type": "function", "name": "f"}]}),
        json!({"tool_choice": "required"}),
        json!({"text": {"format": {"type": "json_schema"}}}),
        json!({"conversation": "conv_1"}),
        json!({"input": 7}),
        json!({"input": []}),
        json!({"input": [{"role": "assistant", "content": "x"}]}),
        json!({"input": [{"role": "tool", "content": "x"}]}),
        json!({"input": [{"type": "function_call_output", "output": "x"}]}),
        json!({"input": image}),
        json!({"input": mixed}),
        json!({"input": [{"type": "mcp_approval_response"}]}),
        json!({"input": [decision]}),
        json!({"previous_response_id": "resp_1_run_9"}),
        json!({"previous_response_id": "resp_01_run_9"}),
        json!({"previous_response_id": "x"}),
        json!({"model": "noname"}),
    ] {
        all.push_str(&(refused(more).await + "\n"));
    }
    expect![[r#"
        422 a response is always stored (omit store)
        422 a request cannot add tools to an agent (an agent has the tools of its definition: docs/agents.md; omit tools)
        422 tool_choice must be auto (omit tool_choice)
        422 text.format must be text (set response_format in the agent's definition; omit text.format)
        422 conversation is not supported (use previous_response_id)
        422 input must be a string or a list of items (for example  "input": [{"role": "user", "content": "…"}])
        422 the last item of input is not a message of the user (for example  "input": [{"role": "user", "content": "…"}])
        422 the last item of input is not a message of the user (for example  "input": [{"role": "user", "content": "…"}])
        422 the role of a message is missing or unknown (for example  "input": [{"role": "user", "content": "…"}])
        422 an input item of type function_call_output is not supported (continue the session with previous_response_id; it has its own items)
        422 content of type "input_image" is not supported (for example  "input": [{"role": "user", "content": "…"}])
        422 input has both a message and an mcp_approval_response (for example  "input": [{"role": "user", "content": "…"}])
        422 an mcp_approval_response needs approval_request_id (for example  "input": [{"role": "user", "content": "…"}])
        422 an mcp_approval_response needs previous_response_id (name the response with the mcp_approval_request)
        404 there is no response resp_1_run_9 (use the id of a response that POST /v1/responses has returned)
        404 there is no response resp_01_run_9 (use the id of a response that POST /v1/responses has returned)
        404 there is no response x (use the id of a response that POST /v1/responses has returned)
        404 there is no agent noname (the query `SELECT name FROM agents` lists them)
    "#]].assert_eq(&all);
    let sql = json!({"sql": "SELECT count(*) FROM sessions"});
    assert_eq!(server.post("/v1/sql", &sql.to_string()).await.json()["rows"], json!([[0]]));
}

/// For another tenant's response every route answers the same as for an unknown one.
#[tokio::test]
async fn a_foreign_response_is_not_found() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let acme = token("acmeacmea");
    let zeta = token("zetazetaz");
    let body = json!({"model": "clerk", "input": "Hello.", "background": true}).to_string();
    let anonymous = home.0.post(CREATE, &body).await;
    assert_eq!(
        (anonymous.status, &anonymous.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    let created = home.ask(&acme, "POST", CREATE, &body).await.json();
    let id = created["id"].as_str().expect("an id");
    let unknown = "resp_1_run_9";
    let same = |theirs: &Response, absent: &Response| {
        assert_eq!(theirs.status, 404, "{theirs:?}");
        assert_eq!(theirs.body.replace(id, unknown), absent.body);
    };
    for (method, rest) in [("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")] {
        let theirs = home.ask(&zeta, method, &format!("{CREATE}/{id}{rest}"), "").await;
        let absent = home.ask(&zeta, method, &format!("{CREATE}/{unknown}{rest}"), "").await;
        same(&theirs, &absent);
    }
    let next =
        |id: &str| json!({"model": "clerk", "input": "x", "previous_response_id": id}).to_string();
    let theirs = home.ask(&zeta, "POST", CREATE, &next(id)).await;
    let absent = home.ask(&zeta, "POST", CREATE, &next(unknown)).await;
    same(&theirs, &absent);
    let later = format!("{CREATE}/{}", id.replace("resp_1_", "resp_2_"));
    assert_eq!(home.ask(&acme, "GET", &later, "").await.status, 404, "it has one turn");
    let own = home.ask(&acme, "GET", &format!("{CREATE}/{id}"), "").await;
    assert_eq!((own.status, &own.json()["status"]), (200, &json!("in_progress")));
}

/// A tenant's batch may have 1 MiB besides its largest call, and 1,000 calls. A client that sends its whole history with each
/// request was refused with the hint to send several batches.
#[tokio::test]
async fn a_long_history_of_a_tenant_is_accepted() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    let bearer = format!("Bearer {}", token("acmeacmea"));
    for (messages, bytes) in [(200, 15_000), (1_200, 10), (3, 3 << 20)] {
        let text = |nth: usize| format!("{nth}{}", "x".repeat(bytes));
        let input: Vec<JsonValue> =
            (0..=messages).map(|nth| json!({"role": "user", "content": text(nth)})).collect();
        let body = json!({"model": "clerk", "input": input, "background": true}).to_string();
        let mut ids = Vec::new();
        for _ in 0..2 {
            let request = home.0.request("POST", CREATE).header("authorization", &bearer);
            let key = format!("of {messages}");
            let created = request.header("idempotency-key", &key).body(&body).send().await;
            assert_eq!(created.status, 200, "{messages}: {created:?}");
            ids.push(created.json()["id"].clone());
        }
        assert_eq!(ids[0], ids[1], "a retry stores nothing again");
        let run = run_of(&json!({"id": ids[0]}));
        let sql = json!({"sql": "SELECT count(*), min(number = position), max(length(content)) FROM (
            SELECT CAST(rtrim(content, 'x') AS INTEGER) AS number, content,
                row_number() OVER (ORDER BY id) - 1 AS position
            FROM agent_state WHERE session_id = (SELECT session_id FROM runs WHERE id = :run))",
            "params": {"run": run}});
        let found = home.0.request("POST", "/v1/sql").header("authorization", &bearer);
        let found = found.body(sql.to_string()).send().await.json();
        assert_eq!(
            (&found["rows"][0][0], &found["rows"][0][1]),
            (&json!(messages + 1), &json!(1)),
            "{found}"
        );
    }
}

/// A retry with the request id of another tenant is another response.
#[tokio::test]
async fn request_ids_of_tenants_are_separate() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let body = json!({"model": "clerk", "input": "Hello.", "background": true}).to_string();
    let mut ids = Vec::new();
    for who in ["acmeacmea", "zetazetaz", "acmeacmea"] {
        let request = home.0.request("POST", CREATE).header("idempotency-key", "k1");
        let bearer = format!("Bearer {}", token(who));
        let created = request.header("authorization", &bearer).body(&body).send().await;
        assert_eq!(created.status, 200, "{created:?}");
        ids.push(created.json()["id"].clone());
    }
    assert!(ids[0] != ids[1] && ids[0] == ids[2], "{ids:?}");
}

/// The stream of a caller whose token is revoked ends with an error; the response goes on.
#[tokio::test]
async fn a_stream_ends_with_its_credentials() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    let acme = token("acmeacmea");
    let body = json!({"model": "clerk", "input": "Hello.", "stream": true}).to_string();
    let bearer = format!("Bearer {acme}");
    let request = home.0.request("POST", CREATE).header("authorization", &bearer).body(body);
    let mut live = Stream::by(request, None).await;
    assert!(live.next().await.is_some_and(|event| event.contains("response.created")));
    home.local("revoke_token", json!({"id": "acmeacmea"})).await;
    assert!(live.next().await.is_some_and(|event| event.contains("response.in_progress")));
    let last = live.next().await.expect("the error arrives");
    assert!(last.contains(r#""type":"error""#) && last.contains("unauthenticated"), "{last}");
    assert_eq!(live.next().await, None);
    let runs = local(&home.0, "abort_run", json!({"id": run_in(&home).await})).await;
    assert_eq!(runs["status"], "aborted", "it was still active");
}

async fn run_in(home: &TokenServer) -> JsonValue {
    let caller = abide_schema::Caller::local();
    let sql = "SELECT id FROM runs";
    let found = home.0.engine.query(&caller, sql, &serde_json::Map::new(), None).await;
    found.expect("the runs").rows[0][0].to_json()
}

#[tokio::test]
async fn agents_are_models() {
    let server = with_clerk().await;
    let models = server.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "clerk");
}

/// Many reads of a large run at a time took gigabytes. One that is too large for one text is read as a stream.
#[tokio::test]
async fn a_run_that_is_too_large_for_one_answer_is_refused() {
    let server = with_clerk().await;
    let created = create(&server, json!({"input": "Hello."})).await;
    let run = run_of(&created);
    let fencing = claim(&server, &run).await;
    let text = "x".repeat(7 << 20);
    for _ in 0..4 {
        say(&server, &run, &fencing, &[&text]).await;
    }
    let read = get(&server, &created["id"]).await;
    let read = read["output"][0]["content"][0]["text"].as_str().map(str::len);
    assert_eq!(read, Some(4 * text.len()));
    say(&server, &run, &fencing, &[&text]).await;
    let refused = get(&server, &created["id"]).await;
    assert_eq!(refused["code"], "limit_exceeded", "{refused}");
    let hint = refused["hint"].as_str().expect("it has a hint");
    assert!(hint.contains(&format!("/v1/runs/{run}/events")), "{hint}");
}

/// Clients that check the schema refused every response: required members were missing or null. A history of a client that keeps
/// its own state, with the calls of the agent, was refused.
#[tokio::test]
async fn a_response_has_the_required_members_and_a_history_is_accepted() {
    let server = with_clerk().await;
    let call = json!({"type": "mcp_call", "id": "mcp_1", "name": "look", "arguments": "{}",
        "server_label": "clerk", "output": "it is there"});
    let asked = json!({"type": "mcp_approval_request", "id": "mcpr_a", "name": "pay",
        "arguments": "{}", "server_label": "clerk"});
    let decided = json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_a",
        "approve": true});
    let user = |text: &str| json!({"role": "user", "content": text});
    let body = json!({"model": "clerk", "background": true, "instructions": "Be brief.",
        "metadata": {"k": "v"}, "input": [user("Hello."), call, asked, decided, user("And?")]});
    let response = server.post("/v1/responses", &body.to_string()).await;
    assert_eq!(response.status, 200, "{response:?}");
    let created = response.json();
    for name in ["temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"] {
        assert!(created[name].is_number(), "{name}: {created}");
    }
    for name in ["max_tool_calls", "safety_identifier", "prompt_cache_key", "user"] {
        assert_eq!(created.get(name), Some(&JsonValue::Null), "{name}");
    }
    assert_eq!(created["instructions"], "Be brief.");
    let id = created["id"].as_str().expect("an id");
    let read = server.get(&format!("/v1/responses/{id}")).await.json();
    assert_eq!((&created["metadata"], &read["metadata"]), (&json!({"k": "v"}), &json!({"k": "v"})));
    let wrong = json!({"model": "clerk", "previous_response_id": id, "input": [
        {"type": "mcp_approval_response", "approval_request_id": "other", "approve": true}]});
    let refused = server.post("/v1/responses", &wrong.to_string()).await.json();
    assert_eq!(refused["detail"], "there is no approval request other", "{refused}");
}
