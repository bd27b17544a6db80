//! Every operator of live SQL with `abide watch` and in the SDK, over a real server. The state that
//! both build from the snapshot and the deltas must equal the result of the query.

use abide_client::{Abide, Call, Value};
use serde_json::{Value as JsonValue, json};
use tokio::time::timeout;

use crate::program::{PATIENCE, Process, abide};
use crate::server::Server;

/// A query for each operator, by name.
const OPERATORS: &[(&str, &str)] = &[
    ("filter", "SELECT id, title FROM sessions WHERE status = 'active' AND title LIKE 'T%'"),
    ("expression", "SELECT id, json_extract(metadata, '$.n') * 2, upper(agent) FROM sessions"),
    (
        "inner join",
        "SELECT s.id, m.content FROM sessions s JOIN agent_state m ON m.session_id = s.id",
    ),
    (
        "left join",
        "SELECT s.id, t.call_id FROM sessions s LEFT JOIN tool_calls t ON t.session_id = s.id",
    ),
    (
        "right join",
        "SELECT s.id, t.call_id FROM tool_calls t RIGHT JOIN sessions s ON s.id = t.session_id",
    ),
    (
        "full join",
        "SELECT s.id, m.id FROM sessions s FULL JOIN agent_state m ON m.session_id = s.id",
    ),
    ("self join", "SELECT c.id, p.title FROM sessions c JOIN sessions p ON p.id = c.parent_id"),
    ("in", "SELECT id FROM sessions WHERE id IN (SELECT session_id FROM agent_state)"),
    (
        "not exists",
        "SELECT id FROM sessions s WHERE NOT EXISTS \
         (SELECT 1 FROM agent_state m WHERE m.session_id = s.id)",
    ),
    ("count", "SELECT count(*), count(DISTINCT agent), max(title) FROM sessions"),
    (
        "group by",
        "SELECT session_id, count(*), sum(length(content)) FROM agent_state GROUP BY session_id \
         HAVING count(*) > 1",
    ),
    ("filter of an aggregate", "SELECT count(*) FILTER (WHERE role = 'user') FROM agent_state"),
    ("distinct", "SELECT DISTINCT role FROM agent_state"),
    ("union", "SELECT id FROM sessions UNION SELECT call_id FROM tool_calls"),
    ("union all", "SELECT title FROM sessions UNION ALL SELECT content FROM agent_state"),
    ("except", "SELECT id FROM sessions EXCEPT SELECT session_id FROM agent_state"),
    ("intersect", "SELECT id FROM sessions INTERSECT SELECT session_id FROM agent_state"),
    ("order", "SELECT id, title FROM sessions ORDER BY title DESC, id"),
    ("top-N", "SELECT id, content FROM agent_state ORDER BY content LIMIT 3 OFFSET 1"),
    (
        "subquery",
        "SELECT id, (SELECT count(*) FROM agent_state m WHERE m.session_id = s.id) FROM sessions s",
    ),
    (
        "derived table",
        "SELECT s.title, q.n FROM sessions s JOIN (SELECT session_id, count(*) AS n FROM \
         agent_state GROUP BY session_id) q ON q.session_id = s.id",
    ),
    (
        "cte",
        "WITH user_messages AS (SELECT session_id, content FROM agent_state WHERE role = 'user') \
         SELECT s.agent, user_messages.content FROM sessions s JOIN user_messages ON user_messages.session_id = s.id",
    ),
    (
        "window function",
        "SELECT id, row_number() OVER (PARTITION BY session_id ORDER BY id) FROM agent_state",
    ),
    (
        "ordered aggregate",
        "SELECT session_id, group_concat(content, ' / ' ORDER BY id) FROM agent_state \
         GROUP BY session_id",
    ),
    ("json elements", "SELECT s.id, j.value FROM sessions s, json_each(s.metadata, '$.tags') j"),
    ("view", "SELECT call_id FROM unknown_tool_calls"),
];

fn session(id: &str, more: JsonValue) -> Call {
    let mut args = json!({"id": id, "agent": "support", "title": format!("Title {id}")});
    if let (Some(args), JsonValue::Object(more)) = (args.as_object_mut(), more) {
        args.extend(more);
    }
    Call::new("create_session", args)
}

fn message(session: &str, role: &str, content: &str) -> Call {
    let args = json!({"session_id": session, "role": role, "content": content});
    Call::new("append_message", args)
}

/// The commits of the test; the first ones run before the subscriptions.
fn story() -> Vec<Vec<Call>> {
    let tool = Call::new("register_tool", json!({"name": "look"}));
    let asked = |call_id: &str, session: &str| {
        let args = json!({"call_id": call_id, "session_id": session, "tool_name": "look",
            "arguments": {}});
        Call::new("request_tool_call", args)
    };
    let ended = |id: &str| Call::new("complete_session", json!({"session_id": id}));
    vec![
        vec![tool, session("a", json!({"metadata": {"n": 1, "tags": ["x", "y"]}}))],
        vec![message("a", "user", "hello")],
        vec![session("b", json!({"parent_id": "a", "metadata": {"tags": []}})), asked("c1", "a")],
        vec![message("b", "user", "where"), message("a", "assistant", "here")],
        vec![session("c", json!({"agent": "sales", "metadata": {"n": 2, "tags": ["z"]}}))],
        vec![asked("c2", "b"), message("b", "tool", "a long way"), message("b", "user", "")],
        vec![ended("b")],
        vec![message("c", "user", "another"), session("d", json!({"title": "untitled"}))],
    ]
}

async fn tell(client: &Abide, commits: &[Vec<Call>]) {
    for commit in commits {
        client.batch(commit.clone()).await.unwrap();
    }
}

/// The state of a program that reads the lines of `abide watch --json`.
struct Reader {
    process: Process,
    snapshot: JsonValue,
    rows: Vec<JsonValue>,
}

impl Reader {
    fn start(server: &Server, sql: &str) -> Reader {
        let arguments = ["watch", sql, "--json", "--url", &server.url()].map(str::to_owned);
        let process = Process::spawn(abide().args(arguments));
        let mut snapshot: JsonValue = serde_json::from_str(&process.line()).unwrap();
        let rows = snapshot["rows"].as_array_mut().map(std::mem::take).unwrap();
        Reader { process, snapshot, rows }
    }

    fn column(&self, name: &JsonValue) -> usize {
        let columns = self.snapshot["columns"].as_array().unwrap();
        columns.iter().position(|column| column["name"] == *name).unwrap()
    }

    /// The key of a row, or the whole row.
    fn identity(&self, row: &JsonValue) -> JsonValue {
        match self.snapshot["key"].as_array().map(Vec::as_slice) {
            None | Some([]) => row.clone(),
            Some(key) => key.iter().map(|name| row[self.column(name)].clone()).collect(),
        }
    }

    fn place(&self, identity: &JsonValue) -> usize {
        let mut rows = self.rows.iter();
        rows.position(|row| self.identity(row) == *identity).expect("a row that is there")
    }

    /// Reads the next line.
    fn read(&mut self) {
        let mut line: JsonValue = serde_json::from_str(&self.process.line()).unwrap();
        assert_eq!(line["op"], "delta", "{line}");
        let change = line["changes"][0].take();
        let placed = self.snapshot["top_n"] == true;
        let list = |name: &str| change[name].as_array().cloned().unwrap_or_default();
        for gone in list("deletes") {
            let at = if placed { place(&gone) } else { self.place(&gone) };
            self.rows.remove(at);
        }
        for new in list("inserts") {
            let at = if placed { place(&new) } else { self.rows.len() };
            let row = if placed { new["row"].clone() } else { new };
            self.rows.insert(at, row);
        }
        for changed in list("updates") {
            let row = if placed { changed["row"].clone() } else { changed.clone() };
            let at = if placed { place(&changed) } else { self.place(&self.identity(&row)) };
            self.rows[at] = row;
        }
    }

    /// Its rows without hidden order columns.
    fn current_rows(&self) -> Vec<String> {
        let columns = self.snapshot["columns"].as_array().unwrap();
        let width = columns.iter().filter(|column| column["hidden"] != true).count();
        sorted(
            self.rows.iter().map(|row| JsonValue::from(row.as_array().unwrap()[..width].to_vec())),
        )
    }
}

fn place(item: &JsonValue) -> usize {
    usize::try_from(item["at"].as_u64().unwrap()).unwrap()
}

fn sorted(rows: impl Iterator<Item = JsonValue>) -> Vec<String> {
    let mut rows: Vec<String> = rows.map(|row| row.to_string()).collect();
    rows.sort();
    rows
}

fn cells(row: &[Value]) -> JsonValue {
    row.iter().map(Value::to_json).collect()
}

#[tokio::test]
async fn every_operator_at_the_terminal_and_in_the_sdk() {
    let server = Server::start();
    let client = server.client().await;
    let story = story();
    let (before, after) = story.split_at(2);
    tell(&client, before).await;
    let mut readers = Vec::new();
    for (name, sql) in OPERATORS {
        let live = client
            .subscribe(*sql)
            .checksum()
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        readers.push((Reader::start(&server, sql), live));
    }
    tell(&client, after).await;
    for ((name, sql), (mut reader, mut live)) in OPERATORS.iter().zip(readers) {
        let answer = client.sql(*sql).rows().await.unwrap();
        let expected = sorted(answer.rows.iter().map(|row| cells(row)));
        while sorted(live.rows().map(cells)) != expected {
            timeout(PATIENCE, live.next()).await.unwrap_or_else(|_| panic!("{name}: {expected:?}"));
        }
        assert_eq!(live.mismatches(), 0, "{name}");
        while reader.current_rows() != expected {
            reader.read();
        }
    }
}
