//! The chat of the AI SDK and AG-UI: sessions that the client names. The tests with the clients themselves are in
//! `tests/clients/`.

use expect_test::expect;
use serde_json::{Value as JsonValue, json};

use crate::events::Stream;
use crate::runs::{claim, finish, local, say, with_clerk};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

const CHAT: &str = "/v1/agents/clerk/chat";
const AG_UI: &str = "/v1/agents/clerk/ag-ui";

fn message(chat: &str, id: &str, text: &str) -> String {
    let part = json!({"type": "text", "text": text});
    let message = json!({"id": id, "role": "user", "parts": [part]});
    json!({"id": chat, "trigger": "submit-message", "messages": [message]}).to_string()
}

fn run_input(thread: &str, id: &str, text: &str) -> String {
    let message = json!({"id": id, "role": "user", "content": text});
    json!({"threadId": thread, "runId": "r1", "messages": [message]}).to_string()
}

async fn stream(server: &TestServer, path: &str, body: &str) -> Stream {
    Stream::by(server.request("POST", path).body(body), None).await
}

/// The rest of a stream without the id of the run, which is random.
async fn rest(mut stream: Stream, run: &str) -> String {
    let mut all = String::new();
    while let Some(event) = stream.next().await {
        all.push_str(&(event.replace(run, "RUN") + "\n"));
    }
    all
}

async fn rows(server: &TestServer, sql: &str) -> JsonValue {
    let caller = abide_schema::Caller::local();
    let found = server.engine.query(&caller, sql, &serde_json::Map::new(), None).await;
    let rows = found.expect("the query is valid").rows;
    rows.iter()
        .map(|row| row.iter().map(abide_schema::Value::to_json).collect::<JsonValue>())
        .collect()
}

async fn run_in(server: &TestServer) -> String {
    rows(server, "SELECT id FROM runs").await[0][0].as_str().expect("a run").to_owned()
}

#[tokio::test]
async fn a_chat_is_streamed() {
    let server = with_clerk().await;
    let live = stream(&server, CHAT, &message("c1", "m1", "Hello.")).await;
    let run = run_in(&server).await;
    let fencing = claim(&server, &run).await;
    say(&server, &run, &fencing, &["x"]).await;
    finish(&server, &run, &fencing).await;
    let all = rest(live, &run).await;
    expect![[r#"
        data: {"messageId":"msg_RUN","messageMetadata":{"runId":"RUN"},"type":"start"}
        data: {"type":"start-step"}
        data: {"id":"item_0","type":"text-start"}
        data: {"delta":"x","id":"item_0","type":"text-delta"}
        data: {"id":"item_0","type":"text-end"}
        data: {"type":"finish-step"}
        data: {"finishReason":"stop","messageMetadata":null,"type":"finish"}
        data: [DONE]
    "#]]
    .assert_eq(&all);
    // The same message again, and a page that was reloaded.
    let again = stream(&server, CHAT, &message("c1", "m1", "Hello.")).await;
    assert_eq!(rest(again, &run).await, all);
    let resumed = Stream::by(server.request("GET", &format!("{CHAT}/c1/stream")), None).await;
    assert_eq!(rest(resumed, &run).await, all);
    assert_eq!(rows(&server, "SELECT count(*) FROM runs").await, json!([[1]]));
}

#[tokio::test]
async fn a_thread_is_streamed() {
    let server = with_clerk().await;
    let live = stream(&server, AG_UI, &run_input("t1", "m1", "Hello.")).await;
    let run = run_in(&server).await;
    let fencing = claim(&server, &run).await;
    say(&server, &run, &fencing, &["x"]).await;
    finish(&server, &run, &fencing).await;
    let all = rest(live, &run).await;
    expect![[r#"
        data: {"runId":"r1","threadId":"t1","type":"RUN_STARTED"}
        data: {"messageId":"msg_2_RUN","role":"assistant","type":"TEXT_MESSAGE_START"}
        data: {"delta":"x","messageId":"msg_2_RUN","type":"TEXT_MESSAGE_CONTENT"}
        data: {"messageId":"msg_2_RUN","type":"TEXT_MESSAGE_END"}
        data: {"outcome":{"type":"success"},"runId":"r1","threadId":"t1","type":"RUN_FINISHED"}
    "#]]
    .assert_eq(&all);
    // A client that has the beginning of the text gets the rest.
    let has = json!({"threadId": "t1", "runId": "r1", "messages": [
        {"id": "m1", "role": "user", "content": "Hello."},
        {"id": format!("msg_2_{run}"), "role": "assistant", "content": "x"}]});
    let again = stream(&server, AG_UI, &has.to_string()).await;
    assert!(!rest(again, &run).await.contains("TEXT_MESSAGE_CONTENT"));
}

/// While a run is active, another message is refused, and changes nothing.
#[tokio::test]
async fn a_chat_has_one_run_at_a_time() {
    let server = with_clerk().await;
    drop(stream(&server, CHAT, &message("c1", "m1", "Hello.")).await);
    let busy = server.post(CHAT, &message("c1", "m2", "And?")).await;
    assert_eq!((busy.status, &busy.json()["code"]), (409, &json!("conflict")));
    assert_eq!(rows(&server, "SELECT count(*) FROM agent_state").await, json!([[1]]));
    let nothing = server.get(&format!("{CHAT}/c9/stream")).await;
    assert_eq!(nothing.status, 204);
}

#[tokio::test]
async fn unusable_requests_are_refused() {
    let server = with_clerk().await;
    let mut all = String::new();
    let user = |parts: JsonValue| json!([{"id": "m1", "role": "user", "parts": parts}]);
    let text = json!([{"type": "text", "text": "x"}]);
    let decision = json!([{"type": "dynamic-tool", "state": "approval-responded",
        "approval": {"id": "run_9~1.1", "approved": true}}]);
    for body in [
        json!({"id": "c1", "messages": []}),
        json!({"id": "c1", "messages": user(json!([{"type": "file", "url": "x"}]))}),
        json!({"id": "c1", "messages": user(text.clone()), "trigger": "regenerate-message"}),
        json!({"id": "c1", "messages": [{"id": "m1", "role": "system", "parts": text}]}),
        json!({"id": "c1", "messages": [{"id": "m1", "role": "assistant", "parts": []}]}),
        json!({"id": "c1", "messages": [{"id": "m1", "role": "assistant", "parts": decision}]}),
        json!({"id": "", "messages": user(text)}),
    ] {
        let answer = server.post(CHAT, &body.to_string()).await.json();
        all.push_str(&format!("{} {}\n", answer["code"], answer["detail"]));
    }
    let resume = |entry: JsonValue| json!({"threadId": "t1", "runId": "r1", "resume": [entry]});
    for body in [
        json!({"threadId": "t1", "runId": "r1"}),
        json!({"threadId": "t1", "runId": "r1", "messages": [{"role": "user"}]}),
        resume(json!({"interruptId": "run_9~1.1", "status": "resolved"})),
        resume(json!({"interruptId": "run_9~1.1", "status": "other"})),
        resume(json!({"interruptId": "run_9~1.1", "status": "cancelled"})),
    ] {
        let answer = server.post(AG_UI, &body.to_string()).await.json();
        all.push_str(&format!("{} {}\n", answer["code"], answer["detail"]));
    }
    expect![[r#"
        "bad_arguments" "there is no message"
        "bad_arguments" "each part of a message must be a text part"
        "bad_arguments" "a message of the assistant cannot be generated again"
        "bad_arguments" "the last message is not of the user or the assistant"
        "bad_arguments" "the last message is neither of the user nor has a decision"
        "not_found" "agent clerk has no run in c1"
        "bad_arguments" "id is empty"
        "bad_arguments" "there is no message of the user"
        "bad_arguments" "the message of the user has no text"
        "bad_arguments" "the payload of a resolved interrupt does not say whether it is approved"
        "bad_request" "the body has an unexpected form: unknown variant `other`, expected `resolved` or `cancelled` at line 1 column 54"
        "not_found" "agent clerk has no run in t1"
    "#]].assert_eq(&all);
    assert_eq!(rows(&server, "SELECT count(*) FROM sessions").await, json!([[0]]));
}

/// A message as a client shows it: of the user, with its id and text, or of a run.
#[derive(Clone, Copy)]
enum Shown<'a> {
    User(&'a str, &'a str),
    Run(&'a str),
}

/// A request of each protocol whose messages are these.
fn requests(shown: &[Shown<'_>]) -> [(&'static str, String); 2] {
    let chat = shown.iter().map(|shown| match shown {
        Shown::User(id, text) => {
            json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
        }
        Shown::Run(run) => json!({"id": format!("msg_{run}"), "role": "assistant",
            "parts": [{"type": "text", "text": "x"}]}),
    });
    let chat: Vec<JsonValue> = chat.collect();
    let thread = shown.iter().map(|shown| match shown {
        Shown::User(id, text) => json!({"id": id, "role": "user", "content": text}),
        Shown::Run(run) => {
            json!({"id": format!("msg_2_{run}"), "role": "assistant", "content": "x"})
        }
    });
    let thread: Vec<JsonValue> = thread.collect();
    [
        (CHAT, json!({"id": "t", "trigger": "submit-message", "messages": chat}).to_string()),
        (AG_UI, json!({"threadId": "t", "runId": "r", "messages": thread}).to_string()),
    ]
}

/// A client that edited an earlier message got an answer to another conversation than it showed: only the last message was read,
/// and the session kept the text from before. The class: a history that is not the one of the session, in every protocol whose client
/// sends one. A client may send less of it, and a message that was refused.
#[tokio::test]
async fn a_history_that_is_not_the_one_of_the_session_is_refused() {
    use Shown::{Run, User};
    for at in 0..2 {
        let server = with_clerk().await;
        let send = async |shown: &[Shown<'_>]| {
            let (path, body) = &requests(shown)[at];
            drop(stream(&server, path, body).await);
            let active = rows(&server, "SELECT id FROM runs WHERE status = 'running'").await;
            let run = active[0][0].as_str()?;
            let fencing = claim(&server, run).await;
            say(&server, run, &fencing, &["x"]).await;
            finish(&server, run, &fencing).await;
            server.clock.pass_s(1);
            Some(run.to_owned())
        };
        let first = send(&[User("m1", "One.")]).await.expect("it begins");
        let second = send(&[User("m1", "One."), Run(&first), User("m2", "Two.")]).await;
        let second = second.expect("it begins");
        let one = User("m1", "One.");
        let two = User("m2", "Two.");
        let changed = "the message m1 was sent with another text";
        let behind = format!(
            "the message m3 does not follow the end of the session: run {second} has followed run {first}"
        );
        for (why, shown) in [
            (changed, vec![User("m1", "1.")]),
            (changed, vec![User("m1", "1."), Run(&first), User("m3", "Three.")]),
            (changed, vec![User("m1", "1."), Run(&first), two, Run(&second), User("m3", "Three.")]),
            (&behind, vec![one, Run(&first), User("m3", "Three.")]),
            (&behind, vec![User("m1", "One."), User("m3", "Three.")]),
            (&behind, vec![Run(&first), User("m3", "Three.")]),
        ] {
            let (path, body) = &requests(&shown)[at];
            let refused = server.post(path, body).await.json();
            assert_eq!(refused["detail"], why, "{body}");
            let hint = refused["hint"].as_str().expect("a hint");
            assert!(hint.ends_with("a session has no branches"), "{hint}");
        }
        assert_eq!(rows(&server, "SELECT count(*) FROM runs").await, json!([[2]]));

        let again = async |shown: &[Shown<'_>]| assert_eq!(send(shown).await, None);
        again(&[User("m1", "One.")]).await;
        again(&[User("m1", "One."), Run(&first), User("m2", "Two.")]).await;
        let elsewhere = "run_9";
        for (id, shown) in
            [("m3", vec![]), ("m4", vec![User("m2", "Two."), Run(&second), User("m3", "More.")])]
        {
            let mut shown = shown;
            shown.push(User(id, "More."));
            assert!(send(&shown).await.is_some(), "{id}");
        }
        let last = [User("m4", "More."), User("refused", "?"), Run(elsewhere), User("m5", "More.")];
        assert!(send(&last).await.is_some());
    }
}

/// `useChat` names the message that it replaces, or asks for another answer.
#[tokio::test]
async fn use_chat_can_neither_edit_nor_regenerate() {
    let server = with_clerk().await;
    let message = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "x"}]});
    for (trigger, edited, detail) in [
        ("submit-message", "m1", "the message m1 cannot be edited"),
        ("regenerate-message", "a1", "a message of the assistant cannot be generated again"),
    ] {
        let body =
            json!({"id": "c", "trigger": trigger, "messageId": edited, "messages": [message]});
        let refused = server.post(CHAT, &body.to_string()).await.json();
        assert_eq!(
            (&refused["code"], &refused["detail"]),
            (&json!("bad_arguments"), &json!(detail))
        );
    }
    assert_eq!(rows(&server, "SELECT count(*) FROM sessions").await, json!([[0]]));
}

/// Two tenants can use the same name for a chat. Neither learns of the other's.
#[tokio::test]
async fn chats_of_tenants_are_separate() {
    let home = TokenServer(with_clerk().await);
    home.with("acmeacmea", json!({"scope": {"tenant": "acme"}})).await;
    home.with("zetazetaz", json!({"scope": {"tenant": "zeta"}})).await;
    let begin = async |who: &str, path: &str, body: String| {
        let bearer = format!("Bearer {}", token(who));
        let request = home.0.request("POST", path).header("authorization", &bearer).body(body);
        Stream::by(request, None).await
    };
    let anonymous = home.0.post(CHAT, &message("c1", "m1", "Hello.")).await;
    assert_eq!(anonymous.status, 401);
    drop(begin("acmeacmea", CHAT, message("c1", "m1", "Hello.")).await);
    let resume = format!("{CHAT}/c1/stream");
    assert_eq!(home.ask(&token("zetazetaz"), "GET", &resume, "").await.status, 204);
    drop(begin("zetazetaz", CHAT, message("c1", "m1", "Hello.")).await);
    drop(begin("zetazetaz", AG_UI, run_input("t1", "m1", "Hello.")).await);
    let expected = json!([["tenant=acme/c1"], ["tenant=zeta/c1"], ["tenant=zeta/t1"]]);
    assert_eq!(rows(&home.0, "SELECT id FROM sessions ORDER BY id").await, expected);
    // The decision of one tenant on the call of the other.
    let run = rows(&home.0, "SELECT id FROM runs WHERE session_id = 'tenant=acme/c1'").await;
    let id = run[0][0].as_str().expect("a run");
    let part = json!({"type": "dynamic-tool", "state": "approval-responded",
        "approval": {"id": format!("{id}~1.1"), "approved": true}});
    let decision = json!({"id": "c1", "messages": [
        {"id": "m2", "role": "assistant", "parts": [part]}]});
    let refused = home.ask(&token("zetazetaz"), "POST", CHAT, &decision.to_string()).await;
    assert_eq!(refused.status, 404, "{refused:?}");
    local(&home.0, "abort_run", json!({"id": id})).await;
}

/// Calls `visit` with each variant of a JSON value that has one odd part.
pub(crate) fn variants(value: &JsonValue, visit: &mut dyn FnMut(JsonValue)) {
    for odd in [json!(null), json!(-7), json!("~"), json!([]), json!({})] {
        visit(odd);
    }
    match value {
        JsonValue::Object(object) => {
            for (name, part) in object {
                variants(part, &mut |odd| {
                    let mut whole = value.clone();
                    whole[name] = odd;
                    visit(whole);
                });
                let mut without = object.clone();
                without.remove(name);
                visit(without.into());
            }
        }
        JsonValue::Array(items) => {
            for (at, part) in items.iter().enumerate() {
                variants(part, &mut |odd| {
                    let mut whole = value.clone();
                    whole[at] = odd;
                    visit(whole);
                });
            }
        }
        _ => {}
    }
}

/// Each request with one odd part is answered or refused, and none fails inside the server.
#[tokio::test]
async fn odd_requests_are_answered() {
    let server = with_clerk().await;
    let decision = json!({"type": "dynamic-tool", "state": "approval-responded",
        "approval": {"id": "run_9~1.1", "approved": true, "reason": "x"}});
    let text = json!({"type": "text", "text": "x"});
    let chat = |role: &str, part: JsonValue| {
        json!({"id": "c1", "trigger": "submit-message",
        "messages": [{"id": "m1", "role": role, "parts": [part]}]})
    };
    let ag_ui = json!({"threadId": "t1", "runId": "r1", "tools": [], "context": [],
        "messages": [{"id": "m1", "role": "user", "content": [text]},
            {"id": "m2", "role": "assistant", "content": "x", "toolCalls": [{"id": "c1"}]},
            {"id": "m3", "role": "tool", "content": "x", "toolCallId": "c1"}]});
    let resume = json!({"threadId": "t1", "runId": "r1", "resume": [
        {"interruptId": "run_9~1.1", "status": "resolved", "payload": {"approved": true}}]});
    let response = json!({"model": "clerk", "background": true, "instructions": "x",
        "input": [{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "x"}]}], "metadata": {"n": "1"}, "tools": [],
        "store": true, "text": {"format": {"type": "text"}}, "tool_choice": "auto"});
    let approval = json!({"model": "clerk", "previous_response_id": "resp_1_run_9", "input": [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": true}]});
    for (path, body) in [
        (CHAT, chat("user", text)),
        (CHAT, chat("assistant", decision)),
        (AG_UI, ag_ui),
        (AG_UI, resume),
        ("/v1/responses", response),
        ("/v1/responses", approval),
    ] {
        let mut all = Vec::new();
        variants(&body, &mut |odd| all.push(odd.to_string()));
        for mut odd in all {
            if path == "/v1/responses" {
                // A response that is not in the background would be waited for.
                odd = odd.replacen('{', r#"{"stream": true, "#, 1).replace(", }", "}");
            }
            let mut socket = server.request("POST", path).body(odd.clone()).begin().await;
            let status = crate::http::head(&mut socket).await.status;
            assert!((200..500).contains(&status), "{status} for {odd}");
        }
    }
}
