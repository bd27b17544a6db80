//! `abide mcp` with a client on its pipes: exposed tools with approvals, reducers, agents, a server that is killed, and
//! input that is not a message. Clients of others are in `tests/clients/`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{Process, abide, run};
use crate::server::Server;

const CONFIG: &str = r#"
models:
  providers: [{ id: slow, kind: script, script: slow.yaml, models: [slow] }]
programs:
  - { name: look, description: Looks an order up., effect: read_only, command: [echo, it is there, "{order}"],
      parameters: { type: object, properties: { order: { type: string } }, required: [order] } }
  - { name: refund, description: Pays back., needs_approval: true, stdin: empty,
      command: [sh, -c, "echo paid >> ledger; echo done"] }
  - { name: secret, description: Is not exposed., command: [echo, secret] }
  - { name: banned, description: Is blocked., command: [echo, banned] }
tool_security: { blocked_tools: [banned] }
mcp: { tools: [look, refund, banned], reducers: [append_message] }
"#;

/// A folder of agents, and the options of a server for it.
fn agents() -> (TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let words: Vec<String> = (0..60).map(|n| format!("word{n}")).collect();
    let slow = json!({"token_ms": 20, "answers": [{"text": words.join(" ")}]});
    fs::create_dir(folder.path().join("agents")).unwrap();
    // The programs run in the folder of this test.
    let config =
        CONFIG.replace("stdin: empty", &format!("stdin: empty, working_dir: {:?}", folder.path()));
    for (name, text) in [
        ("abide.yaml", config.as_str()),
        ("slow.yaml", &slow.to_string()),
        ("agents/writer.yaml", "{ mcp_exposed: true, tools: [] }"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let options = ["--agents".to_owned(), folder.path().display().to_string()];
    (folder, options.to_vec())
}

/// `abide mcp`, as a client of 2026-07-28 or 2025-11-25 uses it.
struct Client {
    process: Process,
    stdin: Option<ChildStdin>,
    is_modern: bool,
}

impl Client {
    fn start(args: &[&str], is_modern: bool) -> Client {
        let mut process = Process::spawn(abide().arg("mcp").args(args).stdin(Stdio::piped()));
        let stdin = process.stdin();
        let mut client = Client { process, stdin: Some(stdin), is_modern };
        if !is_modern {
            let params = json!({"protocolVersion": "2025-11-25", "clientInfo": {"name": "test"},
                "capabilities": {"elicitation": {}}});
            assert_eq!(client.call("initialize", params)["protocolVersion"], "2025-11-25");
            client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        }
        client
    }

    fn send(&mut self, message: &JsonValue) {
        self.send_text(&message.to_string());
    }

    fn send_text(&mut self, text: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    fn next(&self) -> JsonValue {
        serde_json::from_str(&self.process.line()).unwrap()
    }

    fn begin(&mut self, id: i64, method: &str, mut params: JsonValue) {
        if self.is_modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
                json!({"elicitation": {}});
        }
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    /// The answer to a request; forms of the server are approved.
    #[track_caller]
    fn answer(&mut self, id: i64) -> JsonValue {
        loop {
            let message = self.next();
            if message["method"] == "elicitation/create" {
                let result = json!({"action": "accept", "content": {"approve": true}});
                self.send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
            } else if message["id"] == id {
                return message;
            }
        }
    }

    #[track_caller]
    fn call(&mut self, method: &str, params: JsonValue) -> JsonValue {
        self.begin(1, method, params);
        let answer = self.answer(1);
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].clone()
    }

    /// Calls a tool, and approves what the server asks for.
    #[track_caller]
    fn tool(&mut self, name: &str, arguments: JsonValue, key: &str) -> JsonValue {
        let params = json!({"name": name, "arguments": arguments,
            "_meta": {"abide/request_id": key}});
        let mut result = self.call("tools/call", params.clone());
        if result["resultType"] == "input_required" {
            let requests = result["inputRequests"].as_object().unwrap();
            let approve = json!({"action": "accept", "content": {"approve": true}});
            let responses: serde_json::Map<String, JsonValue> =
                requests.keys().map(|name| (name.clone(), approve.clone())).collect();
            let mut again = params;
            again["requestState"] = result["requestState"].clone();
            again["inputResponses"] = json!(responses);
            result = self.call("tools/call", again);
        }
        result
    }

    /// Closes stdin; the process must end.
    #[track_caller]
    fn end(mut self) {
        drop(self.stdin.take());
        let ended = self.process.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    }
}

fn text(result: &JsonValue) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

fn ledger(folder: &Path) -> String {
    fs::read_to_string(folder.join("ledger")).unwrap_or_default()
}

/// Each exposed tool, in both generations of the protocol, without a server.
#[test]
fn exposed_tools_are_rows_with_approvals() {
    let (folder, options) = agents();
    let db = folder.path().join("a.db");
    run(["db", "create", db.to_str().unwrap()]).good();
    let args = ["--db", db.to_str().unwrap(), &options[0], &options[1]];
    for (is_modern, paid) in [(true, "paid\n"), (false, "paid\npaid\n")] {
        let mut client = Client::start(&args, is_modern);
        let tools = client.call("tools/list", json!({}));
        let names: Vec<&str> = tools["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["agent_writer", "sql_query", "append_message", "look", "refund"]);
        let key = format!("look-{is_modern}");
        let seen = client.tool("look", json!({"order": "A-7"}), &key);
        assert_eq!(text(&seen), "it is there A-7", "{seen}");
        let done = client.tool("refund", json!({}), &format!("refund-{is_modern}"));
        assert_eq!((text(&done), ledger(folder.path()).as_str()), ("done", paid), "{done}");
        // The same key is the same call.
        let again = client.tool("refund", json!({}), &format!("refund-{is_modern}"));
        assert_eq!(again["structuredContent"], done["structuredContent"]);
        assert_eq!(ledger(folder.path()), paid);
        let bad = client.tool("look", json!({"order": 7}), "bad");
        assert!(bad["isError"] == true && text(&bad).contains("order"), "{bad}");
        for hidden in ["secret", "banned"] {
            client.begin(2, "tools/call", json!({"name": hidden, "arguments": {}}));
            assert_eq!(client.answer(2)["error"]["code"], -32602, "{hidden}");
        }
        let session = done["structuredContent"]["session_id"].as_str().unwrap();
        let message = json!({"session_id": session, "role": "user", "content": "Thanks."});
        let said = client.tool("append_message", message, &format!("say-{is_modern}"));
        assert_eq!(
            said["structuredContent"]["result"],
            json!({"id": if is_modern { 1 } else { 2 }}),
            "{said}"
        );
        client.end();
    }
    let sql = "SELECT c.tool_name, c.status, c.attempt, a.status, a.decided_by, s.agent \
        FROM tool_calls c JOIN sessions s ON s.id = c.session_id LEFT JOIN approvals a ON a.call_id = c.call_id \
        ORDER BY c.created_seq";
    let rows = run(["sql", "--json", "--db", db.to_str().unwrap(), sql]).json();
    let look = json!(["look", "succeeded", 1, null, null, "mcp"]);
    let refund = json!(["refund", "succeeded", 1, "approved", "token", "mcp"]);
    assert_eq!(rows["rows"], json!([look, refund, look, refund]));
}

/// A server that is killed while it answers a client: the client gets the answer of the same run after the restart.
#[test]
fn a_killed_server_is_waited_for() {
    let (_folder, options) = agents();
    let home = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(&home.path().join("a.db"), &options);
    let url = server.url();
    for is_modern in [true, false] {
        let mut client = Client::start(&["--url", &url], is_modern);
        let params = json!({"name": "agent_writer", "arguments": {"message": "Write."},
            "_meta": {"progressToken": "p"}});
        client.begin(7, "tools/call", params);
        // The run has begun to write.
        while client.next()["params"]["message"] != "writes" {}
        server.kill();
        server.start_again();
        let answer = client.answer(7)["result"].clone();
        assert!(text(&answer).ends_with(" word59"), "{answer}");
        let runs = server.run(&["sql", "--json", "SELECT count(*), max(status) FROM runs"]).json();
        assert_eq!(runs["rows"], json!([[if is_modern { 1 } else { 2 }, "done"]]));
        client.end();
    }
    server.stop();
}

/// A cancelled call aborts its run.
#[test]
fn a_cancelled_call_stops_its_run() {
    let (_folder, options) = agents();
    let home = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(&home.path().join("a.db"), &options);
    let url = server.url();
    let watch = ["watch", "--json", "--url", &url, "SELECT id, status FROM runs"];
    let runs = Process::spawn(abide().args(watch));
    for is_modern in [true, false] {
        let mut client = Client::start(&["--url", &url], is_modern);
        let params = json!({"name": "agent_writer", "arguments": {"message": "Write."},
            "_meta": {"progressToken": "p"}});
        client.begin(7, "tools/call", params);
        while client.next()["params"]["message"] != "writes" {}
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": 7}}));
        while !runs.line().contains("\"aborted\"") {}
        client.end();
    }
    let ended = server.run(&["sql", "--json", "SELECT status FROM runs"]).json();
    assert_eq!(ended["rows"], json!([["aborted"], ["aborted"]]));
    drop(runs);
    server.stop();
}

/// Stops a server's process: it answers nothing until it gets SIGCONT.
fn suspend(server: &Server) -> Pid {
    let id = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    kill_process(id, Signal::STOP).unwrap();
    // It still answers while its threads are being stopped.
    let (_, status) = waitpid(Some(id), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
    id
}

/// Regression: no line was read while a notification waited for a server that does not answer.
#[test]
fn lines_are_read_while_a_notification_waits() {
    let home = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(&home.path().join("a.db"), &[]);
    let mut client = Client::start(&["--url", &server.url()], true);
    client.call("tools/list", json!({}));
    let process = suspend(&server);
    // Each one waited for a minute.
    for method in ["x", "y"] {
        client.send(&json!({"jsonrpc": "2.0", "method": method}));
    }
    client.send_text("[]");
    assert_eq!(client.next()["error"]["code"], -32600);
    kill_process(process, Signal::CONT).unwrap();
    client.end();
    server.stop();
}

/// Regression: with 256 open requests, no further line was read, also no cancellation.
#[test]
fn more_than_256_open_requests_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(&home.path().join("a.db"), &[]);
    let mut client = Client::start(&["--url", &server.url()], true);
    client.call("tools/list", json!({}));
    let process = suspend(&server);
    for id in 0..256 {
        client.begin(100 + id, "tools/list", json!({}));
    }
    client.begin(2, "tools/list", json!({}));
    let refused = client.answer(2);
    let why = "256 requests are open; wait for an answer";
    assert_eq!(refused["error"], json!({"code": -32603, "message": why}));
    kill_process(process, Signal::CONT).unwrap();
    let mut answered: Vec<i64> = (0..256).map(|_| client.next()["id"].as_i64().unwrap()).collect();
    answered.sort_unstable();
    assert_eq!(answered, (100..356).collect::<Vec<i64>>());
    client.end();
    server.stop();
}

/// Input that is not a message gets an error, and costs nothing else.
#[test]
fn odd_lines_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let db = home.path().join("a.db");
    run(["db", "create", db.to_str().unwrap()]).good();
    let mut client = Client::start(&["--db", db.to_str().unwrap()], true);
    for (line, code) in
        [("{", -32700), ("\u{1}", -32700), ("[]", -32600), ("7", -32600), (r#""x""#, -32600)]
    {
        client.send_text(line);
        assert_eq!(client.next()["error"]["code"], code, "{line}");
    }
    for message in
        [json!({"id": 1, "method": "ping"}), json!({"jsonrpc": "2.0", "id": 1, "method": 7})]
    {
        client.send(&message);
        assert!(client.next()["error"].is_object(), "{message}");
    }
    client.send_text("");
    client.send(&json!({"jsonrpc": "2.0", "method": "x"}));
    client.send(&json!({"jsonrpc": "2.0", "id": "unknown", "result": {}}));
    assert!(client.call("tools/list", json!({}))["tools"].is_array());
    client.end();
    let unreachable = run(["mcp", "--url", "http://127.0.0.1:1"]);
    assert_eq!(unreachable.code, Some(3), "{unreachable:?}");
}

/// A reducer or a tool that does not exist is an error at the start.
#[test]
fn unknown_names_are_refused() {
    let (folder, options) = agents();
    let db = folder.path().join("a.db");
    run(["db", "create", db.to_str().unwrap()]).good();
    for (mcp, problem) in [
        ("mcp: { reducers: [append_mesage] }", "did you mean append_message?"),
        ("mcp: { tools: [lok] }", "unknown tool lok"),
        ("mcp: { tool: [look] }", "unknown field"),
    ] {
        fs::write(folder.path().join("abide.yaml"), mcp).unwrap();
        let db = db.to_str().unwrap();
        let refused = run(["mcp", "--db", db, &options[0], &options[1]]);
        assert!(refused.code == Some(1) && refused.stderr.contains(problem), "{refused:?}");
    }
}
