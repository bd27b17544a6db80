//! A2A over JSON-RPC and HTTP+JSON. The tests with the SDKs of the protocol are in `tests/clients/`.

use std::fmt::Write as _;

use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::events::Stream;
use crate::http::{Request, Response};
use crate::runs::{claim, finish, local, say};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const AGENT: &str = "/a2a/clerk";

/// A server with the exposed agent `clerk` and the agent `hidden`, which is not exposed.
async fn with_agents() -> TestServer {
    let server = crate::agents::server().await;
    for agent in [json!({"name": "clerk", "a2a_exposed": true}), json!({"name": "other"})] {
        assert_eq!(server.post("/agents", &agent.to_string()).await.status, 201);
    }
    server
}

fn message(id: &str, text: &str) -> JsonValue {
    json!({"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]})
}

/// A request of a client of version 1.0.
fn request<'a>(server: &'a TestServer, method: &str, path: &str, body: &str) -> Request<'a> {
    server.request(method, &format!("{AGENT}{path}")).header("a2a-version", "1.0").body(body)
}

fn rpc_body(method: &str, params: &JsonValue) -> String {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()
}

/// The response to a call in JSON-RPC.
async fn rpc(server: &TestServer, method: &str, params: JsonValue) -> JsonValue {
    let answer = request(server, "POST", "", &rpc_body(method, &params)).send().await.json();
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)));
    answer
}

/// Sends a message without waiting for the answer; returns the task.
async fn send(server: &TestServer, message: JsonValue) -> JsonValue {
    let params = json!({"message": message, "configuration": {"returnImmediately": true}});
    let sent = rpc(server, "SendMessage", params).await;
    assert_eq!(sent["error"], JsonValue::Null);
    sent["result"]["task"].clone()
}

fn id(task: &JsonValue) -> &str {
    task["id"].as_str().expect("a task has an id")
}

async fn get(server: &TestServer, task: &JsonValue) -> JsonValue {
    rpc(server, "GetTask", json!({"id": id(task)})).await["result"].clone()
}

/// The events of a stream of HTTP+JSON until its end, without ids.
async fn events(mut stream: Stream) -> String {
    let mut all = String::new();
    while let Some(event) = stream.next().await {
        let data: JsonValue =
            serde_json::from_str(event.strip_prefix("data: ").expect("data")).expect("JSON");
        let told = match data.as_object().and_then(|data| data.iter().next()) {
            Some((name, update)) if name == "artifactUpdate" => format!(
                "{} {} append {} last {}",
                update["artifact"]["artifactId"],
                update["artifact"]["parts"],
                update["append"],
                update["lastChunk"]
            ),
            Some((name, update)) => {
                let status = &update["status"];
                let text = &status["message"]["parts"][0]["text"];
                format!("{name} {} {text} {}", status["state"], update["artifacts"])
            }
            None => data.to_string(),
        };
        let _ = writeln!(all, "{told}");
    }
    all
}

async fn subscribe(server: &TestServer, task: &JsonValue) -> Stream {
    let path = format!("/tasks/{}:subscribe", id(task));
    Stream::by(request(server, "POST", &path, ""), None).await
}

/// Lets the run of a task wait for an approval of a call; returns the id of the call.
async fn ask(server: &TestServer, task: &JsonValue, call: &str) -> JsonValue {
    let run = id(task);
    let fencing = claim(server, run).await;
    let tool = json!({"name": "refund", "approval": {"prompt": "Refund?"}});
    local(server, "register_tool", tool).await;
    let context = task["contextId"].clone();
    let call_id = format!("{call}-{run}");
    let wanted = json!({"call_id": call_id, "session_id": context, "tool_name": "refund",
        "arguments": {"order": 7}});
    local(server, "request_tool_call", wanted).await;
    let asked = json!({"tool_call_id": call_id, "tool_name": "refund", "args": {"order": 7},
        "status": "awaiting_approval"});
    let interrupt = json!({"reason": "approval", "action_requests": [asked]});
    let args = json!({"id": run, "fencing_token": fencing, "interrupt": interrupt});
    assert_eq!(local(server, "wait_run", args).await["status"], "waiting");
    json!(call_id)
}

#[tokio::test]
async fn a_card_describes_an_exposed_agent() {
    let server = with_agents().await;
    let read = server.get(&format!("{AGENT}/.well-known/agent-card.json")).await;
    let card = read.json();
    let url = format!("http://{}{AGENT}", server.address);
    assert_eq!(
        (&card["name"], &card["supportedInterfaces"][0]["url"]),
        (&json!("clerk"), &json!(url))
    );
    let tag = read.header("etag").expect("it has one").to_owned();
    let again = server.request("GET", &format!("{AGENT}/.well-known/agent-card.json"));
    assert_eq!(again.header("if-none-match", &tag).send().await.status, 304);
    let all = server.get("/.well-known/agent-card.json").await.json();
    assert_eq!(all, json!({"agents": [card]}));
    for agent in ["other", "noname"] {
        let path = format!("/a2a/{agent}/.well-known/agent-card.json");
        let missing = server.get(&path).await.problem();
        assert_eq!(
            missing,
            format!(
                "404 not_found: there is no agent {agent} for A2A (an agent needs `a2a_exposed: true` in its definition)"
            )
        );
    }
}

#[tokio::test]
async fn a_task_is_followed_to_its_end() {
    let server = with_agents().await;
    let task = send(&server, message("m1", "Hello.")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_SUBMITTED");
    let live = subscribe(&server, &task).await;
    let fencing = claim(&server, id(&task)).await;
    say(&server, id(&task), &fencing, &["It is ", "there."]).await;
    let other = subscribe(&server, &task).await;
    let output = json!({"content": "It is there.", "structured": {"n": 1},
        "files": [{"name": "a.txt", "media_type": "text/plain", "base64": "YQ=="},
            {"name": "b.txt", "url": "https://example.com/b.txt"}]});
    let args = json!({"id": id(&task), "fencing_token": fencing, "end": "done", "output": output});
    local(&server, "finish_run", args).await;
    let told = events(live).await;
    expect![[r#"
        task "TASK_STATE_SUBMITTED" null null
        statusUpdate "TASK_STATE_WORKING" null null
        "answer-1" [{"text":"It is "}] append false last false
        "answer-1" [{"text":"there."}] append true last false
        "answer-1" [{"text":""}] append true last true
        "structured" [{"data":{"n":1},"mediaType":"application/json"}] append false last true
        "file-1" [{"filename":"a.txt","mediaType":"text/plain","raw":"YQ=="}] append false last true
        "file-2" [{"filename":"b.txt","url":"https://example.com/b.txt"}] append false last true
        statusUpdate "TASK_STATE_COMPLETED" null null
    "#]]
    .assert_eq(&told);
    assert_eq!(events(other).await, told, "every subscriber gets the same");
    let body = json!({"message": message("m1", "Hello.")}).to_string();
    let again = Stream::by(request(&server, "POST", "/message:stream", &body), None).await;
    assert_eq!(events(again).await, told, "so does a client that repeats its message");
    let read = get(&server, &task).await;
    assert_eq!(read["artifacts"][0]["parts"], json!([{"text": "It is there."}]));
    assert_eq!(read["artifacts"].as_array().map(Vec::len), Some(4));
    assert_eq!(read["history"][0]["messageId"], "m1");
    let ended = request(&server, "POST", &format!("/tasks/{}:subscribe", id(&task)), "");
    assert_eq!(ended.send().await.json()["error"]["details"][0]["reason"], "UNSUPPORTED_OPERATION");
}

/// Version 0.3 has other names and forms for the same tasks. A request without a version is one of 0.3.
#[tokio::test]
async fn version_0_3_has_its_own_form() {
    let server = with_agents().await;
    let legacy = async |method: &str, params: JsonValue| {
        let body = rpc_body(method, &params);
        let request = server.request("POST", AGENT).header("a2a-version", "0.3").body(body);
        request.send().await.json()
    };
    let parts = json!([{"kind": "text", "text": "Hello."}, {"kind": "data", "data": {"n": 1}},
        {"kind": "file", "file": {"bytes": "eA==", "mimeType": "text/plain", "name": "a.txt"}}]);
    let message = json!({"kind": "message", "messageId": "m1", "role": "user", "parts": parts,
        "contextId": "c"});
    let params = json!({"message": message, "configuration": {"blocking": false}});
    let sent = legacy("message/send", params.clone()).await;
    let task = sent["result"].clone();
    assert_eq!((&task["kind"], &task["status"]["state"]), (&json!("task"), &json!("submitted")));
    assert_eq!(task["history"][0]["parts"], parts);
    // The same message in the form of 1.0 is the same task.
    let modern = json!({"messageId": "m1", "role": "ROLE_USER", "contextId": "c", "parts": [
        {"text": "Hello."}, {"data": {"n": 1}},
        {"raw": "eA==", "mediaType": "text/plain", "filename": "a.txt"}]});
    assert_eq!(send(&server, modern).await["id"], task["id"]);
    let run = id(&task).to_owned();
    let fencing = claim(&server, &run).await;
    say(&server, &run, &fencing, &["It is there."]).await;
    let output = json!({"content": "It is there.", "structured": [1],
        "files": [{"name": "b.txt", "url": "https://example.com/b.txt"}]});
    let args = json!({"id": run, "fencing_token": fencing, "end": "done", "output": output});
    local(&server, "finish_run", args).await;
    let body = rpc_body("message/stream", &params);
    let mut stream = Stream::by(server.request("POST", AGENT).body(body), None).await;
    let mut all = String::new();
    while let Some(event) = stream.next().await {
        let data: JsonValue =
            serde_json::from_str(event.strip_prefix("data: ").expect("data")).expect("JSON");
        let result = &data["result"];
        let state = &result["status"]["state"];
        let artifact = &result["artifact"];
        let parts = &artifact["parts"];
        let _ = writeln!(all, "{} {state} final {} {parts}", result["kind"], result["final"]);
    }
    expect![[r#"
        "task" "submitted" final null null
        "status-update" "working" final false null
        "artifact-update" null final null [{"kind":"text","text":"It is there."}]
        "artifact-update" null final null [{"kind":"text","text":""}]
        "artifact-update" null final null [{"data":{"value":[1]},"kind":"data"}]
        "artifact-update" null final null [{"file":{"name":"b.txt","uri":"https://example.com/b.txt"},"kind":"file"}]
        "status-update" "completed" final true null
    "#]].assert_eq(&all);
    let read = legacy("tasks/get", json!({"id": run})).await["result"].clone();
    assert_eq!(read["status"]["state"], "completed");
    assert_eq!(read["artifacts"][0]["parts"], json!([{"kind": "text", "text": "It is there."}]));
    let errors = [
        legacy("tasks/cancel", json!({"id": run})).await,
        legacy("tasks/get", json!({"id": "unknown"})).await,
        legacy("tasks/pushNotificationConfig/list", json!({"id": run})).await,
        legacy("message/send", json!({"message": "x"})).await,
        legacy(
            "message/send",
            json!({"message": {"messageId": "m", "role": "user", "parts": [{}]}}),
        )
        .await,
        legacy("SendMessage", params).await,
    ];
    let codes: Vec<i64> = errors.iter().filter_map(|it| it["error"]["code"].as_i64()).collect();
    assert_eq!(codes, [-32002, -32001, -32003, -32602, -32602, -32009]);
    let path = format!("{AGENT}/v0.3/.well-known/agent-card.json");
    let card = server.get(&path).await.json();
    let url = format!("http://{}{AGENT}", server.address);
    assert_eq!((&card["protocolVersion"], &card["url"]), (&json!("0.3.0"), &json!(url)));
}

/// An answer that starts again with another text replaces its artifact.
#[tokio::test]
async fn a_replaced_answer_is_the_same_artifact() {
    let server = with_agents().await;
    let task = send(&server, message("m1", "Hello.")).await;
    let fencing = claim(&server, id(&task)).await;
    say(&server, id(&task), &fencing, &["No"]).await;
    let restart = json!({"id": id(&task), "fencing_token": fencing,
        "events": [{"kind": "restart", "data": {"since": 2}}]});
    local(&server, "record_run", restart).await;
    let live = subscribe(&server, &task).await;
    say(&server, id(&task), &fencing, &["x"]).await;
    finish(&server, id(&task), &fencing).await;
    expect![[r#"
        task "TASK_STATE_SUBMITTED" null null
        statusUpdate "TASK_STATE_WORKING" null null
        "answer-1" [{"text":"No"}] append false last false
        "answer-1" [{"text":"x"}] append false last false
        "answer-1" [{"text":""}] append true last true
        statusUpdate "TASK_STATE_COMPLETED" null null
    "#]]
    .assert_eq(&events(live).await);
    let read = get(&server, &task).await;
    assert_eq!(
        read["artifacts"],
        json!([{"artifactId": "answer-1", "name": "answer", "parts": [{"text": "x"}]}])
    );
}

#[tokio::test]
async fn a_message_to_a_waiting_task_decides() {
    let server = with_agents().await;
    let task = send(&server, message("m1", "Pay it back.")).await;
    let early = json!({"message": {"messageId": "m2", "role": "ROLE_USER", "taskId": task["id"],
        "parts": [{"text": "approve"}]}});
    let refused = rpc(&server, "SendMessage", early.clone()).await;
    assert_eq!(refused["error"]["code"], -32004, "the task does not wait: {refused}");
    let call_id = ask(&server, &task, "c1").await;
    let read = get(&server, &task).await;
    assert_eq!(read["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let parts = &read["status"]["message"]["parts"];
    assert_eq!(
        parts[0]["text"],
        r#"May the agent call refund with {"order":7}? Answer approve, or why not."#
    );
    assert_eq!(parts[1]["data"]["approvals"][0]["callId"], call_id);
    let live = subscribe(&server, &task).await;

    // Anything but a clear approval is a rejection, with the text as its reason.
    let said = json!({"messageId": "m3", "role": "ROLE_USER", "taskId": task["id"],
        "parts": [{"text": "approve it later"}]});
    let wrong = json!({"message": {"messageId": "m4", "role": "ROLE_USER", "taskId": task["id"],
        "contextId": "elsewhere", "parts": [{"text": "approve"}]}});
    assert_eq!(rpc(&server, "SendMessage", wrong).await["error"]["code"], -32602);
    assert_eq!(send(&server, said.clone()).await["status"]["state"], "TASK_STATE_WORKING");
    let again = send(&server, said).await;
    assert_eq!(again["id"], task["id"], "a repeated message is the same");
    ask(&server, &task, "c2").await;
    let data = json!({"messageId": "m5", "role": "ROLE_USER", "taskId": task["id"],
        "contextId": task["contextId"], "parts": [{"data": {"approve": true}}]});
    let task = send(&server, data).await;
    let fencing = claim(&server, id(&task)).await;
    finish(&server, id(&task), &fencing).await;
    expect![[r#"
        task "TASK_STATE_SUBMITTED" null null
        statusUpdate "TASK_STATE_WORKING" null null
        statusUpdate "TASK_STATE_INPUT_REQUIRED" "May the agent call refund with {\"order\":7}? Answer approve, or why not." null
        statusUpdate "TASK_STATE_WORKING" null null
        statusUpdate "TASK_STATE_INPUT_REQUIRED" "May the agent call refund with {\"order\":7}? Answer approve, or why not." null
        statusUpdate "TASK_STATE_WORKING" null null
        "answer-1" [{"text":"x"}] append false last false
        "answer-1" [{"text":""}] append true last true
        statusUpdate "TASK_STATE_COMPLETED" null null
    "#]]
    .assert_eq(&events(live).await);
    let sql = json!({"sql": "SELECT status, comment FROM approvals ORDER BY created_at, call_id"});
    let rows = server.post("/v1/sql", &sql.to_string()).await.json()["rows"].clone();
    assert_eq!(rows, json!([["rejected", "approve it later"], ["approved", null]]));
    let read = get(&server, &task).await;
    let history: Vec<&JsonValue> = read["history"].as_array().expect("a list").iter().collect();
    let ids: Vec<&JsonValue> = history.iter().map(|message| &message["messageId"]).collect();
    assert_eq!(ids, ["m1", "m3", "m5"]);
    let late = rpc(&server, "SendMessage", early).await;
    assert_eq!(late["error"]["data"][0]["reason"], "UNSUPPORTED_OPERATION");
}

/// A message is accepted once, even if it arrives many times at once.
#[tokio::test]
async fn a_message_id_is_used_once() {
    let server = with_agents().await;
    let body = json!({"message": message("m1", "Hello."), "configuration":
        {"returnImmediately": true}})
    .to_string();
    let sends = (0..8).map(|_| request(&server, "POST", "/message:send", &body).send());
    let sent = futures_util::future::join_all(sends).await;
    let ids: std::collections::HashSet<String> =
        sent.iter().map(|answer| id(&answer.json()["task"]).to_owned()).collect();
    assert_eq!(ids.len(), 1, "{sent:?}");
    let sql = json!({"sql": "SELECT (SELECT count(*) FROM runs), count(*) FROM sessions"});
    let rows = server.post("/v1/sql", &sql.to_string()).await.json()["rows"].clone();
    assert_eq!(rows, json!([[1, 1]]));
}

/// Clients number their messages, and an id that one had used was refused for ever, in every context and for every caller of the
/// scope: the example of the docs worked once. The class is an id that is unique in a larger space than the one in which its
/// client chooses it.
#[tokio::test]
async fn a_message_id_belongs_to_its_context() {
    let server = with_agents().await;
    let within = |context: &str, text: &str| {
        let mut message = message("m1", text);
        message["contextId"] = json!(context);
        message
    };
    let to = |task: &JsonValue, text: &str| {
        let mut message = message("m1", text);
        message["taskId"] = task["id"].clone();
        message
    };
    let first = send(&server, message("m1", "Hello.")).await;
    assert_eq!(send(&server, message("m1", "Hello.")).await["id"], first["id"], "a repetition");
    let other = send(&server, message("m1", "Bye.")).await;
    assert_ne!(other["id"], first["id"], "other content without a context");
    assert_ne!(other["contextId"], first["contextId"]);
    let of_c = send(&server, within("c", "Hello.")).await;
    assert_ne!(of_c["id"], first["id"], "another context");
    assert_eq!(send(&server, within("c", "Hello.")).await["id"], of_c["id"], "a repetition");
    assert_ne!(send(&server, within("d", "Hello.")).await["id"], of_c["id"]);
    let own = first["contextId"].as_str().expect("it has one");
    assert_eq!(
        send(&server, within(own, "Hello.")).await["id"],
        first["id"],
        "now with its context"
    );

    let refused = async |message: JsonValue| {
        let answer = rpc(&server, "SendMessage", json!({"message": message})).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        answer["error"]["message"].as_str().expect("a text").to_owned()
    };
    let why = "another message of the context c has the messageId m1";
    assert_eq!(refused(within("c", "Bye.")).await, why);
    assert_eq!(refused(to(&of_c, "Hello.")).await, why, "it is for the task");
    let why = format!("another message of the context {own} has the messageId m1");
    assert_eq!(refused(within(own, "Bye.")).await, why);
    assert_eq!(refused(to(&first, "approve")).await, why);
    let sql = json!({"sql": "SELECT (SELECT count(*) FROM runs), count(*) FROM sessions"});
    let rows = server.post("/v1/sql", &sql.to_string()).await.json()["rows"].clone();
    assert_eq!(rows, json!([[4, 4]]));
}

#[tokio::test]
async fn tasks_are_listed_in_pages() {
    let server = with_agents().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        let mut message = message(&format!("m{n}"), "Hello.");
        message["contextId"] = json!(format!("c{}", n % 2));
        if n == 2 {
            rpc(&server, "CancelTask", json!({"id": ids[0]})).await;
        }
        if n >= 3 {
            let before = &ids[n - 2];
            rpc(&server, "CancelTask", json!({"id": before})).await;
        }
        server.clock.pass_s(1);
        ids.push(send(&server, message).await["id"].clone());
    }
    let list = async |query: &str| {
        let listed = request(&server, "GET", &format!("/tasks{query}"), "").send().await;
        assert_eq!(listed.status, 200, "{listed:?}");
        listed.json()
    };
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let page = list(&format!("?pageSize=2&pageToken={token}")).await;
        assert_eq!((&page["totalSize"], &page["pageSize"]), (&json!(5), &json!(2)));
        for task in page["tasks"].as_array().expect("a list") {
            assert_eq!(task.get("artifacts"), None);
            seen.push(task["id"].clone());
        }
        token = page["nextPageToken"].as_str().expect("always there").to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(ids.iter().all(|id| seen.contains(id)));
    let active = list("?status=TASK_STATE_SUBMITTED").await;
    assert_eq!(active["totalSize"], 2);
    assert_eq!(list("?contextId=c1&status=TASK_STATE_CANCELED").await["totalSize"], 1);
    assert_eq!(list("?statusTimestampAfter=2099-01-01T00:00:00Z").await["totalSize"], 0);
    assert_eq!(list("?includeArtifacts=true&pageSize=1").await["tasks"][0]["artifacts"], json!([]));
    for query in [
        "pageSize=0",
        "pageSize=101",
        "pageSize=x",
        "pageToken=x",
        "status=x",
        "statusTimestampAfter=x",
        "includeArtifacts=x",
    ] {
        let refused = request(&server, "GET", &format!("/tasks?{query}"), "").send().await;
        assert_eq!(refused.status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_task_is_cancelled_once() {
    let server = with_agents().await;
    let task = send(&server, message("m1", "Hello.")).await;
    let cancelled = rpc(&server, "CancelTask", json!({"id": task["id"]})).await;
    assert_eq!(cancelled["result"]["status"]["state"], "TASK_STATE_CANCELED");
    let again = rpc(&server, "CancelTask", json!({"id": task["id"]})).await;
    assert_eq!(again["error"]["data"][0]["reason"], "TASK_NOT_CANCELABLE");
}

/// The answer to each malformed or unsupported request, which stores nothing.
#[tokio::test]
async fn bad_requests_are_refused() {
    let server = with_agents().await;
    let mut all = String::new();
    for body in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"jsonrpc": "2.0", "method": "GetTask"}"#,
        r#"{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "NoMethod"}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": 1}}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "ListTaskPushNotificationConfigs"}"#,
    ] {
        note(&mut all, body, &request(&server, "POST", "", body).send().await);
    }
    expect![[r#"
        : -32600 "the body is not one JSON-RPC request"
        {: -32700 "the body is not JSON: EOF while parsing an object at line 1 column 1"
        []: -32600 "the body is not one JSON-RPC request"
        {}: -32600 "id must be a string or a number"
        {"jsonrpc": "2.0", "method": "GetTask"}: -32600 "id must be a string or a number"
        {"jsonrpc": "1.0", "id": 1, "method": "GetTask"}: -32600 "jsonrpc must be 2.0"
        {"jsonrpc": "2.0", "id": 1, "method": "NoMethod"}: -32601 "there is no method NoMethod"
        {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}: -32602 "params must be an object"
        {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}: -32602 "id is missing"
        {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": 1}}: -32602 "id must be a string"
        {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}: -32001 "there is no task x"
        {"jsonrpc": "2.0", "id": 1, "method": "ListTaskPushNotificationConfigs"}: -32003 "the agent sends no push notifications"
    "#]]
    .assert_eq(&all);
    no_rows(&server).await;
}

/// Nothing was stored.
async fn no_rows(server: &TestServer) {
    let sql = json!({"sql": "SELECT (SELECT count(*) FROM sessions), count(*) FROM entries"});
    assert_eq!(server.post("/v1/sql", &sql.to_string()).await.json()["rows"], json!([[0, 0]]));
}

/// The error of an answer in one line.
fn note(all: &mut String, what: &str, answer: &Response) {
    let answer = answer.json();
    let error = &answer["error"];
    let _ = writeln!(all, "{what}: {} {}", error["code"], error["message"]);
}

#[tokio::test]
async fn bad_messages_are_refused() {
    let server = with_agents().await;
    let mut all = String::new();
    let part = |part: JsonValue| {
        let message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [part]});
        json!({"message": message})
    };
    let mut long = message("m", "x");
    long["parts"] = JsonValue::Array(vec![json!({"text": "x"}); 65]);
    let mut unknown_task = message("m", "x");
    unknown_task["taskId"] = json!("x");
    for body in [
        json!({}),
        json!({"message": []}),
        json!({"message": {"role": "ROLE_USER", "parts": [{"text": "x"}]}}),
        json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}}),
        json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}),
        json!({"message": long}),
        json!({"message": unknown_task}),
        json!({"message": message(&"m".repeat(600), "x")}),
        part(json!({})),
        part(json!({"text": "x", "url": "y"})),
        part(json!({"text": 1})),
        part(json!({"raw": "YQ==", "mediaType": "image/png"})),
        part(json!({"raw": "?"})),
        part(json!({"raw": "/w=="})),
    ] {
        let sent = request(&server, "POST", "/message:send", &body.to_string()).send().await;
        let what = body.to_string().chars().take(90).collect::<String>();
        note(&mut all, &what, &sent);
    }
    let typed =
        request(&server, "POST", "/message:send", "{}").header("content-type", "text/plain");
    note(&mut all, "text/plain", &typed.send().await);
    let path = format!("{AGENT}/tasks/x");
    note(&mut all, "no version", &server.get(&path).await);
    note(
        &mut all,
        "version 9",
        &server.request("GET", &path).header("a2a-version", "9.0").send().await,
    );
    note(&mut all, "no route", &request(&server, "GET", "/nothing", "").send().await);
    expect![[r#"
        {}: 400 "message is missing"
        {"message":[]}: 400 "message is missing"
        {"message":{"parts":[{"text":"x"}],"role":"ROLE_USER"}}: 400 "messageId is missing"
        {"message":{"messageId":"m","parts":[{"text":"x"}],"role":"ROLE_AGENT"}}: 400 "the role of the message must be ROLE_USER"
        {"message":{"messageId":"m","parts":[],"role":"ROLE_USER"}}: 400 "the message has no parts"
        {"message":{"messageId":"m","parts":[{"text":"x"},{"text":"x"},{"text":"x"},{"text":"x"},{: 413 "a message has at most 64 parts"
        {"message":{"messageId":"m","parts":[{"text":"x"}],"role":"ROLE_USER","taskId":"x"}}: 404 "there is no task x"
        {"message":{"messageId":"mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm: 413 "messageId has more than 256 bytes"
        {"message":{"messageId":"m","parts":[{}],"role":"ROLE_USER"}}: 400 "a part must have exactly one of text, raw, url and data"
        {"message":{"messageId":"m","parts":[{"text":"x","url":"y"}],"role":"ROLE_USER"}}: 400 "a part must have exactly one of text, raw, url and data"
        {"message":{"messageId":"m","parts":[{"text":1}],"role":"ROLE_USER"}}: 400 "text of a part must be a string"
        {"message":{"messageId":"m","parts":[{"mediaType":"image/png","raw":"YQ=="}],"role":"ROLE_: 415 "the media type image/png is not supported"
        {"message":{"messageId":"m","parts":[{"raw":"?"}],"role":"ROLE_USER"}}: 400 "raw of a part is not base64"
        {"message":{"messageId":"m","parts":[{"raw":"/w=="}],"role":"ROLE_USER"}}: 415 "the bytes of a part are not text in UTF-8"
        text/plain: 415 "the content type \"text/plain\" is not supported (send Content-Type: application/json)"
        no version: 400 "version \"\" of A2A is not supported (send A2A-Version: 1.0)"
        version 9: 400 "version \"9.0\" of A2A is not supported (send A2A-Version: 1.0)"
        no route: 404 "there is no operation GET nothing"
    "#]]
    .assert_eq(&all);
    no_rows(&server).await;
}

/// For the task of another tenant every operation answers the same as for an unknown one, and message ids and
/// contexts of tenants are separate.
#[tokio::test]
async fn tenants_do_not_reach_each_other() {
    let home = TokenServer(with_agents().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let ask = async |who: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {}", token(who));
        request(&home.0, method, path, body).header("authorization", &bearer).send().await
    };
    let anonymous = request(&home.0, "GET", "/tasks", "").send().await;
    assert_eq!(anonymous.status, 401);
    let mut hello = message("m1", "Hello.");
    hello["contextId"] = json!("shared");
    let body = json!({"message": hello, "configuration": {"returnImmediately": true}}).to_string();
    let mut tasks = Vec::new();
    for who in ["acmeacmea", "zetazetaz", "acmeacmea"] {
        let sent = ask(who, "POST", "/message:send", &body).await;
        assert_eq!(sent.status, 200, "{sent:?}");
        tasks.push(sent.json()["task"].clone());
    }
    assert!(tasks[0]["id"] != tasks[1]["id"] && tasks[0]["id"] == tasks[2]["id"]);
    assert_eq!(tasks[0]["contextId"], "shared", "the namespace is not shown");
    let theirs = id(&tasks[0]);
    let unknown = "run_unknown";
    let stored = format!("tenant=acme/{theirs}");
    for theirs in [theirs, &stored.replace('/', "%2F")] {
        for (method, rest) in
            [("GET", ""), ("POST", ":cancel"), ("POST", ":subscribe"), ("GET", ":subscribe")]
        {
            let path = |task: &str| format!("/tasks/{task}{rest}");
            let denied = ask("zetazetaz", method, &path(theirs), "").await;
            let absent = ask("zetazetaz", method, &path(unknown), "").await;
            let shown = theirs.replace("%2F", "/");
            assert_eq!(denied.status, 404, "{denied:?}");
            assert_eq!(denied.body.replace(&shown, unknown), absent.body);
        }
        let mut to_task = message("m9", "approve");
        let mut send = async |task: &str| {
            to_task["taskId"] = json!(task.replace("%2F", "/"));
            let body = json!({"message": to_task}).to_string();
            ask("zetazetaz", "POST", "/message:send", &body).await
        };
        let denied = send(theirs).await;
        let absent = send(unknown).await;
        assert_eq!(denied.status, 404, "{denied:?}");
        assert_eq!(denied.body.replace(&theirs.replace("%2F", "/"), unknown), absent.body);
    }
    let listed = ask("zetazetaz", "GET", "/tasks?contextId=shared", "").await.json();
    let ids: Vec<&str> = listed["tasks"].as_array().expect("a list").iter().map(id).collect();
    assert_eq!((ids, &listed["totalSize"]), (vec![id(&tasks[1])], &json!(1)));
    let card = ask("zetazetaz", "GET", "/.well-known/agent-card.json", "").await.json();
    assert_eq!(card["securityRequirements"][0]["schemes"], json!({"bearer": {}}));
    let own = ask("acmeacmea", "GET", &format!("/tasks/{theirs}"), "").await;
    assert_eq!(own.json()["status"]["state"], "TASK_STATE_SUBMITTED");
}

/// A page of a caller's tasks costs the same, however many tasks there are of other tenants, of other agents, and on other
/// pages; only the number of all tasks is counted.
#[tokio::test]
async fn a_list_costs_nothing_for_the_tasks_of_others() {
    let home = TokenServer(with_agents().await);
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let server = &home.0;
    let start = async |scope: JsonValue, agent: &str, name: &str, ends: bool| {
        let session = json!({"agent": agent, "id": name, "scope": scope});
        local(server, "create_session", session).await;
        local(server, "start_run", json!({"session_id": name, "id": name})).await;
        if ends {
            local(server, "abort_run", json!({"id": name})).await;
        }
    };
    let zeta = || json!({"tenant": "zeta"});
    for n in 0..6 {
        start(zeta(), "clerk", &format!("own{n}"), n % 2 == 0).await;
        server.clock.pass_s(1);
    }
    let page = async |query: &str| {
        let before = server.engine.metrics().query_steps_total.get();
        let bearer = format!("Bearer {}", token("zetazetaz"));
        let asked = request(server, "GET", &format!("/tasks?pageSize=2{query}"), "");
        let listed = asked.header("authorization", &bearer).send().await.json();
        (listed, server.engine.metrics().query_steps_total.get() - before)
    };
    let (first, few) = page("").await;
    for n in 0..200 {
        start(json!({"tenant": "acme"}), "clerk", &format!("foreign{n}"), n % 2 == 0).await;
        start(zeta(), "other", &format!("other{n}"), n % 2 == 0).await;
    }
    let (again, many) = page("").await;
    assert_eq!(first, again);
    // Reading each of the others would take thousands of steps.
    assert!(many <= few + 20, "{few} steps, then {many}");
    // All pages, each task once, the last changed first.
    let mut ids = Vec::new();
    let mut listed = again;
    loop {
        assert_eq!(listed["totalSize"], 6);
        ids.extend(listed["tasks"].as_array().expect("a list").iter().map(|it| id(it).to_owned()));
        match listed["nextPageToken"].as_str().filter(|token| !token.is_empty()) {
            Some(next) => listed = page(&format!("&pageToken={next}")).await.0,
            None => break,
        }
    }
    assert_eq!(ids, ["own5", "own4", "own3", "own2", "own1", "own0"]);
}

/// A client that does not choose its own header `Host` could be led to another server. With a public URL, it cannot.
#[tokio::test]
async fn a_public_url_is_the_address_in_cards() {
    let public_url = abide_server::PublicUrl::parse("https://agents.example").ok();
    let services = abide_server::Services { public_url, ..abide_server::Services::default() };
    let access = abide_server::AccessConfig::loopback();
    let server = TestServer::with_services(access, services).await;
    let clerk = json!({"name": "clerk", "definition": {"a2a_exposed": true}});
    local(&server, "register_agent", clerk).await;
    for path in ["/a2a/clerk/.well-known/agent-card.json", "/a2a/clerk/extendedAgentCard"] {
        let asked = server.request("GET", path).header("a2a-version", "1.0");
        let card = asked.header("x-forwarded-proto", "http").send().await.json();
        let interfaces = card["supportedInterfaces"].as_array().expect("a list");
        let urls: Vec<&str> = interfaces.iter().filter_map(|it| it["url"].as_str()).collect();
        let url = "https://agents.example/a2a/clerk";
        assert_eq!(urls, [url, url, "agents.example", url, url], "{path}");
    }
}

/// Version 0.3 over HTTP+JSON: the same tasks, with the paths, the names and the errors of that version.
#[tokio::test]
async fn a_client_of_version_0_3_uses_http() {
    let server = with_agents().await;
    let ask = async |method: &str, path: &str, body: &str| {
        server.request(method, &format!("{AGENT}/v1/{path}")).body(body).send().await
    };
    // Names of Protocol Buffers, as the SDK for Python sends them.
    let said = json!({"message_id": "m1", "role": "ROLE_USER", "content": [{"text": "Hello."},
        {"data": {"data": {"n": 1}}}, {"file": {"file_with_bytes": "eA==",
        "mime_type": "text/plain", "name": "x"}}]});
    let body = json!({"request": said, "configuration": {}}).to_string();
    let sent = ask("POST", "message:send", &body).await.json();
    let task = &sent["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_SUBMITTED");
    let content = &task["history"][0]["content"];
    assert_eq!(content[1], json!({"data": {"data": {"n": 1}}}));
    assert_eq!(content[2]["file"]["fileWithBytes"], "eA==");
    let read = ask("GET", &format!("tasks/{}", id(task)), "").await.json();
    assert_eq!(read["history"], task["history"]);
    assert_eq!(get(&server, task).await["history"][0]["parts"][0]["text"], "Hello.");
    let cancelled = ask("POST", &format!("tasks/{}:cancel", id(task)), "{}").await.json();
    assert_eq!(cancelled["status"]["state"], "TASK_STATE_CANCELLED");
    let again = ask("POST", &format!("tasks/{}:cancel", id(task)), "").await;
    assert_eq!((again.status, &again.json()["type"]), (400, &json!("TaskNotCancelableError")));
    let unknown = ask("GET", "tasks/unknown", "").await;
    assert_eq!((unknown.status, &unknown.json()["type"]), (404, &json!("TaskNotFoundError")));
    for (method, path) in [("GET", "tasks"), ("GET", "extendedAgentCard"), ("POST", "card")] {
        let missing = ask(method, path, "").await;
        assert_eq!((missing.status, &missing.json()["type"]), (404, &json!("MethodNotFoundError")));
    }
    let malformed = ask("POST", "message:send", r#"{"message": {"content": "x"}}"#).await;
    assert_eq!((malformed.status, &malformed.json()["type"]), (400, &json!("InvalidParamsError")));
    let card = ask("GET", "card", "").await.json();
    assert_eq!(card["additionalInterfaces"][1]["transport"], "HTTP+JSON");
}
