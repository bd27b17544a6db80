//! Remote agents over A2A, between two real servers: one serves the agents of `tests/clients/agents`, the other one has agents
//! that stand for them. Both are killed.

use std::fs;
use std::path::Path;

use abide_client::{Abide, Json};
use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::PATIENCE;
use crate::server::Server;

/// The server with the agents.
fn peer() -> Server {
    let agents = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/agents");
    let mut server = Server::start();
    server.restart_with(&["--agents", &agents.display().to_string()]);
    server
}

/// A server whose agents are those of a peer: `boss` delegates to `clerk`, and `writer` is used directly.
struct Home {
    server: Server,
    _folder: TempDir,
}

const MODELS: &str = "
models:
  providers: [{ id: script, kind: script, script: answers.yaml, models: [scripted] }]
";

const ANSWERS: &str = "
answers:
  - { calls: [{ name: ask_clerk, arguments: { input: Pay order A-7 back. } }] }
  - { text: It is done. }
";

impl Home {
    fn start(peer: &Server) -> Home {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join("project").join(name);
        fs::create_dir_all(path("agents")).unwrap();
        fs::write(path("abide.yaml"), MODELS).unwrap();
        fs::write(path("answers.yaml"), ANSWERS).unwrap();
        fs::write(path("agents/boss.yaml"), "subagents: [clerk]\n").unwrap();
        let remote = |name: &str, more: &str| {
            let url = peer.url();
            let address = peer.address();
            let a2a = format!("a2a: {{ url: '{url}/a2a/{name}', allow_private: ['{address}'] }}\n");
            fs::write(path(&format!("agents/{name}.yaml")), format!("mode: all\n{a2a}{more}"))
                .unwrap();
        };
        remote("clerk", "as_tool: { name: ask_clerk }\n");
        remote("writer", "");
        let private = format!("a2a: {{ url: '{}/a2a/writer' }}\n", peer.url());
        fs::write(path("agents/private.yaml"), private).unwrap();
        let agents = ["--agents".to_owned(), path("").display().to_string()];
        let server = Server::start_with(&folder.path().join("home.db"), &agents);
        Home { server, _folder: folder }
    }

    /// Starts a run `r1` of an agent.
    fn begin(&self, agent: &str, input: &str) {
        self.call("create_session", &[&format!("agent={agent}"), "id=s1"]);
        self.call("start_run", &["session_id=s1", "id=r1", &format!("input={input}")]);
    }

    fn call(&self, reducer: &str, pairs: &[&str]) -> JsonValue {
        let args: Vec<&str> = ["call", "--json", reducer].iter().chain(pairs).copied().collect();
        self.server.run(&args).json()["result"].take()
    }

    fn kill_and_start(&mut self) {
        self.server.kill();
        self.server.start_again();
    }

    /// The answer of the run, once it is done.
    async fn answer(&self) -> String {
        let sql = "SELECT status, output FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL";
        let rows: Vec<(String, Option<Json>)> = fetch_until_rows(&self.server, sql).await;
        let output = rows[0].1.as_ref().map(Json::value).unwrap_or_default();
        assert_eq!(rows[0].0, "done", "{}", self.server.run(&["sql", "SELECT * FROM runs"]).stdout);
        output["content"].as_str().unwrap().to_owned()
    }

    /// The text that a reader of the events has: pieces after a restart replace those that it voids.
    async fn shown_text(&self, run: &str) -> String {
        let sql = "SELECT number, kind, data FROM run_events WHERE run_id = :run ORDER BY number";
        let abide = self.server.client().await;
        let events: Vec<(i64, String, Json)> =
            abide.sql(sql).param("run", run).fetch().await.unwrap();
        let mut pieces: Vec<(i64, String)> = Vec::new();
        for (number, kind, data) in events {
            let data = data.value();
            match kind.as_str() {
                "token" => pieces.push((number, data["content"].as_str().unwrap().to_owned())),
                "restart" => pieces.retain(|(at, _)| *at < data["since"].as_i64().unwrap()),
                _ => {}
            }
        }
        pieces.into_iter().map(|(_, piece)| piece).collect()
    }
}

/// The agent `writer` with an answer that takes a minute.
fn write_endless(folder: &Path) {
    fs::create_dir_all(folder.join("agents")).unwrap();
    fs::write(folder.join("abide.yaml"), MODELS).unwrap();
    let words: Vec<String> = (0..3000).map(|n| format!("word{n}")).collect();
    let answers = format!("token_ms: 20\nanswers:\n  - text: {}\n", words.join(" "));
    fs::write(folder.join("answers.yaml"), answers).unwrap();
    fs::write(folder.join("agents/writer.yaml"), "a2a_exposed: true\n").unwrap();
}

/// The rows of a query, once there are some.
async fn fetch_until_rows<T: serde::de::DeserializeOwned>(server: &Server, sql: &str) -> Vec<T> {
    let abide: Abide = server.client().await;
    let mut rows = abide.subscribe(sql).await.unwrap();
    let some = async {
        loop {
            rows.try_next().await.expect("the server runs");
            if rows.rows().len() > 0 {
                return rows.typed_rows().unwrap();
            }
        }
    };
    tokio::time::timeout(PATIENCE, some).await.unwrap_or_else(|_| panic!("no row: {sql}"))
}

/// The runs of a peer: agent and status.
async fn runs(peer: &Server) -> Vec<(String, String)> {
    let sql = "SELECT agent, status FROM runs ORDER BY created_at";
    peer.client().await.sql(sql).fetch().await.unwrap()
}

const DECISION: &str = "SELECT call_id, arguments FROM tool_calls \
                        WHERE tool_name = 'remote_agent_input' AND status = 'awaiting_approval'";

fn slow_text() -> String {
    (0..60).map(|n| format!("word{n}")).collect::<Vec<String>>().join(" ")
}

const WORD9: &str = "SELECT 1 FROM run_events WHERE run_id = 'r1' AND kind = 'token' \
                     AND data ->> '$.content' LIKE '%word9%'";

/// The approval that the remote agent needs is an approval of the delegated run. Both servers are killed while it waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_remote_agent_is_a_tool_and_its_question_is_an_approval() {
    let mut peer = peer();
    let mut home = Home::start(&peer);
    home.begin("boss", "Please arrange it.");
    let asked: Vec<(String, Json)> = fetch_until_rows(&home.server, DECISION).await;
    let arguments = asked[0].1.value();
    assert_eq!(
        (&arguments["agent"], &arguments["needs"], &arguments["question"]),
        (
            &json!("clerk"),
            &json!("input"),
            &json!(r#"May clerk call refund with {"order":"A-7"}? Answer approve, or why not."#)
        )
    );
    assert_eq!(arguments["data"]["approvals"][0]["arguments"], json!({"order": "A-7"}));
    let _: Vec<(i64,)> =
        fetch_until_rows(&home.server, "SELECT 1 FROM runs WHERE id = 'r1' AND status = 'waiting'")
            .await;
    peer.kill();
    home.kill_and_start();
    peer.start_again();
    let call_id = format!("call_id={}", asked[0].0);
    home.call("decide_approval", &[&call_id, "decision=approve"]);
    assert_eq!(home.answer().await, "It is done.");
    let sql = "SELECT result ->> '$.text' FROM tool_calls WHERE tool_name = 'ask_clerk'";
    let told: Vec<(String,)> = fetch_until_rows(&home.server, sql).await;
    assert_eq!(told[0].0, "Let me look. \n\nIt can be paid back. \n\nOrder A-7 is paid back.");
    assert_eq!(runs(&peer).await, [("clerk".to_owned(), "done".to_owned())]);
    let refunds = "SELECT status, attempt FROM tool_calls WHERE tool_name = 'refund'";
    let refunds: Vec<(String, i64)> = fetch_until_rows(&peer, refunds).await;
    assert_eq!(refunds, [("succeeded".to_owned(), 1)]);
    // The log has the messages that were sent and received, in one sequence.
    let sql = "SELECT coalesce(data ->> '$.a2a.event', kind) FROM run_events \
               WHERE run_id <> 'r1' AND (kind IN ('line', 'interrupt', 'done') OR data ->> '$.a2a' IS NOT NULL) ORDER BY id";
    let mut exchange: Vec<(String,)> = home.server.client().await.sql(sql).fetch().await.unwrap();
    exchange.dedup();
    let exchange: Vec<&str> = exchange.iter().map(|(what,)| what.as_str()).collect();
    assert_eq!(
        exchange,
        ["send", "line", "task", "line", "ask", "interrupt", "send", "line", "done"]
    );
    let open: Vec<(i64,)> =
        home.server.client().await.sql("SELECT count(*) FROM entries").fetch().await.unwrap();
    assert_eq!(open, [(0,)], "no task is open");
    home.server.stop();
    home.server.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_reaches_the_remote_agent_with_its_reason() {
    let peer = peer();
    let home = Home::start(&peer);
    home.begin("clerk", "Pay order A-7 back.");
    let asked: Vec<(String, Json)> = fetch_until_rows(&home.server, DECISION).await;
    let call_id = format!("call_id={}", asked[0].0);
    home.call("decide_approval", &[&call_id, "decision=reject", "comment=It is too late."]);
    home.answer().await;
    let sql = "SELECT status, error FROM tool_calls WHERE tool_name = 'refund'";
    let refused: Vec<(String, String)> = fetch_until_rows(&peer, sql).await;
    assert_eq!(refused, [("rejected".to_owned(), "It is too late.".to_owned())]);
}

/// After SIGKILL of its runtime, and of the agent's server, the run follows the same task. Its text is published once.
#[tokio::test(flavor = "multi_thread")]
async fn after_sigkill_a_run_follows_the_same_task() {
    let mut peer = peer();
    let mut home = Home::start(&peer);
    home.begin("writer", "Write.");
    let _: Vec<(i64,)> = fetch_until_rows(&home.server, WORD9).await;
    home.kill_and_start();
    assert_eq!(home.answer().await, slow_text());
    assert_eq!(home.shown_text("r1").await, slow_text());
    assert_eq!(runs(&peer).await.len(), 1);

    // The second run of the session is a task in the same context.
    home.call("start_run", &["session_id=s1", "id=r2", "input=Once more."]);
    let sql = "SELECT output FROM runs WHERE id = 'r2' AND ended_at IS NOT NULL";
    let done: Vec<(Json,)> = fetch_until_rows(&home.server, sql).await;
    assert_eq!(done[0].0.value()["content"], "Again.");
    let contexts = "SELECT count(*), count(DISTINCT session_id) FROM runs";
    let contexts: Vec<(i64, i64)> = peer.client().await.sql(contexts).fetch().await.unwrap();
    assert_eq!(contexts, [(2, 1)]);

    let mut other = Home::start(&peer);
    other.begin("writer", "Write.");
    let _: Vec<(i64,)> = fetch_until_rows(&other.server, WORD9).await;
    peer.kill();
    peer.start_again();
    let sql = "SELECT status FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL";
    let ended: Vec<(String,)> = fetch_until_rows(&other.server, sql).await;
    assert_eq!((ended[0].0.as_str(), runs(&peer).await.len()), ("done", 3));
    other.server.stop();
}

/// An aborted run cancels its task: while it works, and while it waits and has no driver. A runtime that is killed after the
/// abort cancels it after its start.
#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_run_cancels_its_task() {
    const ABORTED: &str = "SELECT 1 FROM runs WHERE status = 'aborted'";
    let script = tempfile::tempdir().unwrap();
    write_endless(script.path());
    for (agent, ready, is_killed) in [("writer", WORD9, false), ("clerk", DECISION, true)] {
        let mut peer = peer();
        if agent == "writer" {
            peer.restart_with(&["--agents", &script.path().display().to_string()]);
        }
        let mut home = Home::start(&peer);
        home.begin(agent, "Go.");
        let _: Vec<JsonValue> = fetch_until_rows(&home.server, ready).await;
        home.call("abort_run", &["id=r1"]);
        if is_killed {
            home.kill_and_start();
        }
        let _: Vec<(i64,)> = fetch_until_rows(&home.server, ABORTED).await;
        let _: Vec<(i64,)> = fetch_until_rows(&peer, ABORTED).await;
        // The outbox is empty once the agent has answered.
        let sql = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM entries e JOIN collections c \
                   ON c.id = e.collection_id WHERE c.kind = 'a2a_open_tasks')";
        let _: Vec<(i64,)> = fetch_until_rows(&home.server, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_are_refused_unless_they_are_permitted() {
    let peer = peer();
    let home = Home::start(&peer);
    home.begin("private", "Write.");
    let sql = "SELECT error_code, error_message FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL";
    let failed: Vec<(String, String)> = fetch_until_rows(&home.server, sql).await;
    let why = "127.0.0.1 is not a public address, and only public addresses can be used";
    assert_eq!(failed, [("remote_agent_invalid".to_owned(), why.to_owned())]);
    assert_eq!(runs(&peer).await, []);
}
