//! Read-only SQL of a caller: what is allowed, what is refused with which error, and what it sees
//! of the past.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abide_engine::{QueryResult, RowRef, RowSink};
use abide_schema::reducer::Caller;
use abide_schema::{Refusal, Seq, limits};
use abide_tests::world::{World, run};
use expect_test::{Expect, expect};
use serde_json::{Map, Value as JsonValue, json};
use tokio::time::timeout;

use crate::traffic::{Traffic, for_seeds};
use crate::visibility;

async fn ask(world: &World, sql: &str, params: JsonValue) -> Result<QueryResult, Refusal> {
    world
        .engine()
        .query(&Caller::local(), sql, params.as_object().unwrap_or(&Map::new()), None)
        .await
}

fn output(answer: &Result<QueryResult, Refusal>) -> String {
    match answer {
        Ok(answer) => {
            let rows = answer.rows.iter().map(|row| {
                let cells = row.iter().map(|cell| cell.to_json().to_string());
                format!("({})", cells.collect::<Vec<_>>().join(", "))
            });
            format!("[{}] {}", answer.columns.join(", "), rows.collect::<Vec<_>>().join(" "))
        }
        Err(refusal) => {
            let hint = refusal.hint.as_ref().map(|hint| format!(" (hint: {hint})"));
            format!("{}: {}{}", refusal.code, refusal.detail, hint.unwrap_or_default())
        }
    }
}

/// Runs a script and compares its output.
fn check_script(script: &str, expected: Expect) {
    expected.assert_eq(&abide_tests::script::play(abide_reducers::modules, script));
}

/// Runs one query for each line on a small world; one result line each.
fn check_sql(questions: &[&str], expected: Expect) {
    let world = World::new(abide_reducers::modules);
    let answers = run(async {
        world.session("s1").await;
        let mut answers = String::new();
        for sql in questions {
            let answer = ask(&world, sql, JsonValue::Null).await;
            let line = output(&answer);
            answers.push_str(line.trim_end());
            answers.push('\n');
        }
        world.append_message("s1", "unharmed").await.unwrap();
        answers
    });
    expected.assert_eq(&answers);
}

#[test]
fn reading_statements_are_answered() {
    check_sql(
        &[
            "SELECT id, status FROM sessions",
            "select ID from SESSIONS where \"status\" = 'active' -- a comment",
            "SELECT 1, 1.0, 1e300, 'a', x'00FF', NULL, 9e999, -9e999, 9223372036854775807",
            "VALUES (1), (2)",
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 3)
                SELECT * FROM n;",
            "SELECT count(*), max(seq) FROM events",
            "SELECT json_extract(scope, '$.tenant'), random() IS NULL FROM sessions",
            "SELECT name FROM pragma_table_info('tools') WHERE pk",
            "SELECT count(*) > 5 FROM sqlite_schema",
            "SELECT 1 WHERE 0",
        ],
        expect![[r#"
            [id, status] ("s1", "active")
            [id] ("s1")
            [1, 1.0, 1e300, 'a', x'00FF', NULL, 9e999, -9e999, 9223372036854775807] (1, 1.0, 1e+300, "a", {"$blob":"AP8="}, null, {"$real":"Infinity"}, {"$real":"-Infinity"}, 9223372036854775807)
            [column1] (1) (2)
            [i] (1) (2) (3)
            [count(*), max(seq)] (2, 2)
            [json_extract(scope, '$.tenant'), random() IS NULL] (null, 0)
            [name] ("name")
            [count(*) > 5] (1)
            [1]
        "#]],
    );
}

#[test]
fn writes_are_refused() {
    check_sql(
        &[
            "INSERT INTO sessions (id) VALUES ('x')",
            "UPDATE sessions SET status = 'failed'",
            "DELETE FROM sessions",
            "REPLACE INTO tools (name) VALUES ('x')",
            "DELETE FROM sessions RETURNING id",
            "WITH x AS (SELECT 1) DELETE FROM sessions",
            "CREATE TABLE t (a)",
            "CREATE TEMP TABLE t (a)",
            "CREATE TEMP VIEW sessions AS SELECT 1",
            "DROP TABLE sessions",
            "ALTER TABLE sessions ADD COLUMN x",
            "CREATE INDEX i ON sessions (title)",
            "REINDEX",
            "ANALYZE",
            "VACUUM",
            "VACUUM INTO '/tmp/stolen.db'",
            "ATTACH '/etc/passwd' AS x",
            "DETACH main",
        ],
        expect![[r#"
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement writes (hint: to change data, call a reducer)
            bad_sql: the statement writes (hint: to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
        "#]],
    );
}

#[test]
fn access_to_internals_is_refused() {
    check_sql(
        &[
            "BEGIN",
            "COMMIT",
            "ROLLBACK",
            "SAVEPOINT a",
            "RELEASE call",
            "PRAGMA user_version",
            "PRAGMA user_version = 7",
            "PRAGMA journal_mode = DELETE",
            "PRAGMA wal_checkpoint",
            "PRAGMA query_only = 0",
            "EXPLAIN SELECT 1",
            "SELECT load_extension('x')",
            "SELECT writefile('/tmp/x', 'y')",
            "SELECT readfile('/etc/passwd')",
            "SELECT * FROM pragma_wal_checkpoint",
        ],
        expect![[r#"
            bad_sql: the statement is not a query (hint: one SELECT, VALUES or WITH)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            [addr, opcode, p1, p2, p3, p4, p5, comment] (0, "Init", 0, 4, 0, null, 0, null) (1, "Integer", 1, 1, 0, null, 0, null) (2, "ResultRow", 1, 1, 0, null, 0, null) (3, "Halt", 0, 0, 0, null, 0, null) (4, "Goto", 0, 1, 0, null, 0, null)
            bad_sql: not authorized
            bad_sql: no such function: writefile (hint: at byte 7 of the statement)
            bad_sql: no such function: readfile (hint: at byte 7 of the statement)
            bad_sql: no such table: pragma_wal_checkpoint (hint: the schema lists the tables)
        "#]],
    );
}

#[test]
fn invalid_statements_are_refused() {
    check_sql(
        &[
            "",
            "   ",
            "-- nothing",
            ";",
            "SELEC 1",
            "SELECT",
            "SELECT * FROM",
            "SELECT 'open",
            "SELECT 1; SELECT 2",
            "SELECT 1; DELETE FROM sessions",
            "SELECT 1;;",
            "SELECT nothing_like_it FROM sessions",
            "SELECT \"active\" FROM sessions",
            "SELECT * FROM nowhere",
            "SELECT * FROM other.sessions",
            "SELECT nonsense(1)",
            "SELECT max() FROM sessions",
            "SELECT abs(-9223372036854775808)",
            "SELECT json_extract('{', '$')",
            "SELECT 1 FROM sessions LIMIT 'many'",
            "SELECT a.id FROM sessions",
            "SELECT id FROM sessions UNION SELECT id, agent FROM sessions",
            "SELECT 1\u{0} FROM sessions",
        ],
        expect![[r#"
            bad_sql: the statement is not a query (hint: one SELECT, VALUES or WITH)
            bad_sql: the statement is not a query (hint: one SELECT, VALUES or WITH)
            bad_sql: the statement is not a query (hint: one SELECT, VALUES or WITH)
            bad_sql: the statement is not a query (hint: one SELECT, VALUES or WITH)
            bad_sql: near "SELEC": syntax error (hint: at byte 0 of the statement)
            bad_sql: incomplete input (hint: the statement ends too early)
            bad_sql: incomplete input (hint: the statement ends too early)
            bad_sql: unrecognized token: "'open" (hint: at byte 7 of the statement)
            bad_sql: more than one statement (hint: send one statement at a time)
            bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            [1] (1)
            bad_sql: no such column: nothing_like_it (hint: at byte 7 of the statement; the schema lists the columns of every table; write text in single quotes)
            bad_sql: no such column: "active" - should this be a string literal in single-quotes? (hint: at byte 7 of the statement; the schema lists the columns of every table; write text in single quotes)
            bad_sql: no such table: nowhere (hint: the schema lists the tables)
            bad_sql: no such table: other.sessions (hint: the schema lists the tables)
            bad_sql: no such function: nonsense (hint: at byte 7 of the statement)
            bad_sql: wrong number of arguments to function max() (hint: at byte 7 of the statement)
            bad_sql: integer overflow
            bad_sql: malformed JSON
            bad_sql: datatype mismatch
            bad_sql: no such column: a.id (hint: at byte 7 of the statement; the schema lists the columns of every table; write text in single quotes)
            bad_sql: SELECTs to the left and right of UNION do not have the same number of result columns
            bad_sql: the statement contains a NUL character (hint: pass a string with a NUL character as a parameter)
        "#]],
    );
}

#[test]
fn parameters_are_bound_by_name_and_number() {
    let world = World::new(abide_reducers::modules);
    let questions = [
        ("SELECT :a, @a, $a, ?", json!({"a": 1, "4": "four"})),
        ("SELECT ?1, ?2", json!({"1": "x", "2": null})),
        ("SELECT :a", json!({":a": 1.0})),
        ("SELECT typeof(:a), typeof(:b), typeof(:c)", json!({"a": true, "b": 1.0, "c": "1"})),
        ("SELECT hex(:a), :b", json!({"a": {"$blob": "AP8="}, "b": {"$real": "Infinity"}})),
        ("SELECT :a", json!({})),
        ("SELECT ?", json!({})),
        ("SELECT 1", json!({"a": 1})),
        ("SELECT :a", json!({"a": 1, "b": 2, "c": 3})),
        ("SELECT :a", json!({"a": [1]})),
        ("SELECT :a", json!({"a": {"b": 1}})),
        ("SELECT :a", json!({"a": {"$blob": "not base64"}})),
        ("SELECT :a", json!({"a": 18_446_744_073_709_551_615_u64})),
        ("SELECT id FROM sessions WHERE id = :id", json!({"id": "' OR 1 --"})),
        ("SELECT * FROM :t", json!({"t": "sessions"})),
        ("SELECT 1 LIMIT :n", json!({"n": "x"})),
    ];
    let answers = run(async {
        let mut answers = String::new();
        for (sql, params) in questions {
            answers.push_str(output(&ask(&world, sql, params).await).trim_end());
            answers.push('\n');
        }
        answers
    });
    expect![[r#"
        [:a, @a, $a, ?] (1, 1, 1, "four")
        [?1, ?2] ("x", null)
        [:a] (1.0)
        [typeof(:a), typeof(:b), typeof(:c)] ("integer", "real", "text")
        [hex(:a), :b] ("00FF", {"$real":"Infinity"})
        bad_arguments: parameter :a is missing (hint: "params": {"a": …})
        bad_arguments: parameter ?1 is missing (hint: "params": {"1": …})
        bad_arguments: the statement has no parameter a (hint: omit it, or use it as :name)
        bad_arguments: the statement has no parameter b (hint: omit it, or use it as :name)
        bad_arguments: parameter a is an array (hint: a parameter is null, a number, a string or {"$blob": "<base64>"})
        bad_arguments: parameter a is an object (hint: a parameter is null, a number, a string or {"$blob": "<base64>"})
        bad_arguments: parameter a is a $blob that is not base64 (hint: a parameter is null, a number, a string or {"$blob": "<base64>"})
        bad_arguments: parameter a is an integer that does not fit a signed 64-bit integer (hint: a parameter is null, a number, a string or {"$blob": "<base64>"})
        [id]
        bad_sql: near ":t": syntax error (hint: at byte 14 of the statement)
        bad_sql: datatype mismatch
    "#]].assert_eq(&answers);
}

#[test]
fn results_over_the_limits() {
    let long = format!("SELECT '{}'", "x".repeat(limits::SQL_BYTES));
    let many = format!(
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i <= {})
            SELECT i FROM n",
        limits::QUERY_ROWS
    );
    let max = many.replace("i <= ", "i < ");
    let world = World::new(abide_reducers::modules);
    run(async {
        let mut answers = String::new();
        for sql in [
            long.as_str(),
            &many,
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100)
                SELECT zeroblob(1000000) FROM n",
            "SELECT zeroblob(2000000000)",
            &format!("SELECT {}1", "1 + ".repeat(5_000)),
        ] {
            answers.push_str(output(&ask(&world, sql, JsonValue::Null).await).trim_end());
            answers.push('\n');
        }
        expect![[r#"
            limit_exceeded: the statement has 65545 bytes; the limit is 65536 (hint: use parameters for long values)
            limit_exceeded: the result exceeds 100000 rows or 67108864 bytes (hint: reduce it with LIMIT or a narrower WHERE)
            limit_exceeded: the result exceeds 100000 rows or 67108864 bytes (hint: reduce it with LIMIT or a narrower WHERE)
            limit_exceeded: string or blob too big
            bad_sql: expression tree is too large (maximum depth 1000)
        "#]].assert_eq(&answers);
        let answer = ask(&world, &max, JsonValue::Null).await.unwrap();
        assert_eq!(answer.rows.len(), limits::QUERY_ROWS, "the maximum number of rows is returned");
    });
}

/// Counts the rows of a result, and breaks after some.
struct CountedRows {
    columns: Vec<String>,
    rows: Arc<AtomicUsize>,
    max: usize,
}

impl RowSink for CountedRows {
    fn begin(&mut self, _seq: Seq, columns: Vec<String>) {
        assert_eq!(self.rows.load(Ordering::Relaxed), 0, "the names come before the rows");
        self.columns = columns;
    }

    fn row(&mut self, row: RowRef<'_>) -> ControlFlow<()> {
        assert_eq!(row.cells().count(), self.columns.len());
        let count = self.rows.fetch_add(1, Ordering::Relaxed) + 1;
        if count < self.max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// `abide sql --db` had its whole result in memory twice before it printed the first row, and was refused a long one.
#[test]
fn a_stream_of_rows_has_any_length_and_ends_when_its_consumer_does() {
    let world = World::new(abide_reducers::modules);
    let stream = |sql: &str, params: &JsonValue, max: usize| {
        let rows = Arc::new(AtomicUsize::new(0));
        let sink = CountedRows { columns: Vec::new(), rows: Arc::clone(&rows), max };
        let caller = Caller::local();
        let params = params.as_object().cloned().unwrap_or_default();
        let ended = run(world.engine().stream_rows(&caller, sql, &params, None, sink));
        let outcome =
            ended.map(|sink| sink.columns.join(", ")).unwrap_or_else(|refusal| refusal.to_string());
        format!("{} rows: {outcome}", rows.load(Ordering::Relaxed))
    };
    let endless =
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT i, i AS j FROM n";
    let more = format!("{endless} LIMIT {}", limits::QUERY_ROWS + 1);
    assert_eq!(stream(&more, &JsonValue::Null, usize::MAX), "100001 rows: i, j");
    assert_eq!(stream(endless, &JsonValue::Null, 3), "3 rows: i, j");
    assert_eq!(stream("SELECT 1 AS one WHERE 0", &JsonValue::Null, 3), "0 rows: one");
    let failing = "SELECT json_extract(iif(value = 3, '{', '{}'), '$') FROM json_each('[1, 2, 3]')";
    assert_eq!(stream(failing, &JsonValue::Null, 9), "2 rows: malformed JSON");
    assert_eq!(
        stream("SELECT 1", &json!({"a": 1}), 9),
        "0 rows: the statement has no parameter a",
        "before the first row"
    );
}

/// The only test that takes the full query time: endless queries on all readers at once are
/// stopped, and all readers continue.
#[test]
fn endless_queries_are_stopped() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_time().build().unwrap().block_on(async {
        let world = World::new(abide_reducers::modules);
        let endless = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)
            SELECT count(*) FROM n";
        let askers: Vec<_> = (0..limits::READERS)
            .map(|nth| {
                let engine = world.engine().clone();
                // One caller cannot use all readers.
                let caller = visibility::caller(&format!("c{nth}"), "admin", &[], &[]);
                tokio::spawn(async move { engine.query(&caller, endless, &Map::new(), None).await })
            })
            .collect();
        for asker in askers {
            let answer = asker.await.unwrap();
            // Which limit is reached first depends on the machine.
            let output = output(&answer);
            let of_time = "limit_exceeded: the query ran longer than 10000 ms (hint: ";
            let of_steps = "limit_exceeded: the query takes more than 500000000 steps (hint: ";
            assert!(output.starts_with(of_time) || output.starts_with(of_steps), "{output}");
        }
        for _ in 0..2 * limits::READERS {
            assert_eq!(output(&ask(&world, "SELECT 1", JsonValue::Null).await), "[1] (1)");
        }
    });
}

/// The query of a caller that had gone occupied its reader until its limit.
#[test]
fn a_query_whose_caller_has_gone_is_interrupted() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_time().build().unwrap().block_on(async {
        let world = World::new(abide_reducers::modules);
        let endless = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)
            SELECT count(*) FROM n";
        let ask = |sql: &'static str| {
            let engine = world.engine().clone();
            let caller = Caller::local();
            tokio::spawn(async move { engine.query(&caller, sql, &Map::new(), None).await })
        };
        // The queries of one caller begin in order, and two of them run at a time: when the other one is answered, the
        // endless one runs.
        let mut running = Vec::new();
        for _ in 0..limits::READERS_OF_A_CALLER {
            if running.len() == limits::READERS_OF_A_CALLER - 1 {
                let begun = output(&ask("SELECT 1").await.unwrap());
                assert_eq!(begun, "[1] (1)");
            }
            running.push(ask(endless));
        }
        for endless in running {
            endless.abort();
        }
        for _ in 0..limits::READERS {
            let answer = timeout(Duration::from_secs(4), ask("SELECT 2"))
                .await
                .expect("the readers are free")
                .unwrap();
            assert_eq!(output(&answer), "[2] (2)", "a later query of the reader is not concerned");
        }
    });
}

#[test]
fn errors_of_past_queries() {
    check_script(
        "
        create_session agent=support id=s1
        append_message session_id=s1 role=user content=one
        append_message session_id=s1 role=user content=two
        complete_session session_id=s1
        sql@0 SELECT * FROM sessions
        sql@1 SELECT id, status, seq FROM sessions
        sql@2 SELECT status, (SELECT count(*) FROM agent_state), (SELECT max(seq) FROM events) FROM sessions
        sql@3 SELECT m.content, s.status FROM sessions s JOIN agent_state m ON m.session_id = s.id ORDER BY m.id
        sql@4 SELECT count(*) FROM sessions WHERE status = 'completed'
        sql@3 SELECT count(*) FROM sessions WHERE status = 'completed'
        sql@2 SELECT count(*) FROM agent_state
        sql@5 SELECT 1
        sql@-1 SELECT 1
        sql@2 SELECT * FROM main.sessions
        sql@2 SELECT count(*) FROM `Main` . sessions
        sql@2 WITH now AS (SELECT * FROM [MAIN].sessions) SELECT * FROM now
        sql@2 SELECT count(*) FROM nowhere
        sql@2 DELETE FROM sessions
        sql@2 DELETE FROM past_sessions
        sql@2 SELECT status FROM sessions; SELECT 1
        sql SELECT status FROM sessions
        ",
        expect![[r#"
            seq 1 {id: s1, status: created}
            seq 2 {id: 1}
            seq 3 {id: 2}
            seq 4 {id: s1, status: completed}
            at 0: nothing
            at 1: ("s1", "created", 1)
            at 2: ("active", 1, 2)
            at 3: ("one", "active") ("two", "active")
            at 4: (1)
            at 3: (0)
            at 2: (1)
            refused bad_request: there is no state 5: the log ends at 4 (hint: use a seq from 0 to 4)
            refused bad_request: there is no state -1: the log ends at 4 (hint: use a seq from 0 to 4)
            refused bad_sql: a query with as_of reads a table that has no history (hint: use table names without `main.`; the schema lists the tables)
            refused bad_sql: a query with as_of reads a table that has no history (hint: use table names without `main.`; the schema lists the tables)
            refused bad_sql: a query with as_of reads a table that has no history (hint: use table names without `main.`; the schema lists the tables)
            refused bad_sql: no such table: nowhere (hint: the schema lists the tables)
            refused bad_sql: cannot modify sessions because it is a view
            refused bad_sql: the statement is not read-only (hint: one SELECT, VALUES or WITH; to change data, call a reducer)
            refused bad_sql: more than one statement (hint: send one statement at a time)
            ("completed")
        "#]],
    );
}

/// The rows of each view, as texts in order: their own order is undefined.
async fn rows_of_views(world: &World, as_of: Option<Seq>) -> Vec<(&'static str, Vec<String>)> {
    let modules = abide_reducers::modules();
    let mut all = Vec::new();
    for (name, _) in modules.iter().flat_map(|module| module.views.iter().copied()) {
        let rows = world.rows_as_of(&format!("SELECT * FROM {name}"), as_of).await;
        let mut rows: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
        rows.sort();
        all.push((name, rows));
    }
    all
}

/// The state recorded at every seq equals the result of `as_of` ever after.
#[test]
fn every_past_state_is_unchanged() {
    for_seeds("queries::every_past", 50..52, |seed| {
        run(async {
            let world = World::new(abide_reducers::modules);
            let mut traffic = Traffic::new(seed);
            let mut recorded = vec![(Seq::ZERO, world.state(None).await)];
            let mut views = vec![(Seq::ZERO, rows_of_views(&world, None).await)];
            for _ in 0..100 {
                let _ = traffic.step(&world).await;
                let head = world.engine().durable_seq();
                if recorded.last().is_some_and(|(seq, _)| *seq < head) {
                    recorded.push((head, world.state(None).await));
                    views.push((head, rows_of_views(&world, None).await));
                }
            }
            for (seq, state) in &recorded {
                assert!(world.state(Some(*seq)).await == *state, "as of {seq}");
            }
            for (seq, rows) in &views {
                assert!(rows_of_views(&world, Some(*seq)).await == *rows, "as of {seq}");
            }
            // A past state has the order of the query, however its rows are assembled.
            for (seq, state) in recorded.iter().step_by(10) {
                let sql = "SELECT * FROM agent_state ORDER BY content DESC, id DESC LIMIT 5";
                let past = world.rows_as_of(sql, Some(*seq)).await;
                let mut rows = state["agent_state"].clone();
                rows.sort_by_key(|row| {
                    let content = if let abide_schema::Value::Text(text) = &row[4] {
                        Some(text.clone())
                    } else {
                        None
                    };
                    std::cmp::Reverse((content, row[0].to_json().as_i64()))
                });
                rows.truncate(5);
                assert!(past == rows, "as of {seq}");
            }
            for (table, _) in world.tables() {
                let sql = format!("SELECT count(*) FROM {table}");
                assert_eq!(world.rows_as_of(&sql, Some(Seq(0))).await[0][0].to_json(), 0);
            }
        });
    });
}

/// A transaction is one step of the state: a seq within a batch has no state of its own.
#[test]
fn no_past_state_is_half_a_batch() {
    check_script(
        "
        create_session agent=support id=s1
        batch: append_message session_id=s1 role=user content=one | append_message session_id=s1 role=user content=two | append_message session_id=s1 role=user content=three
        sql@1 SELECT (SELECT count(*) FROM agent_state), (SELECT count(*) FROM events)
        sql@2 SELECT (SELECT count(*) FROM agent_state), (SELECT count(*) FROM events)
        sql@3 SELECT (SELECT count(*) FROM agent_state), (SELECT count(*) FROM events)
        sql@4 SELECT (SELECT count(*) FROM agent_state), (SELECT count(*) FROM events)
        ",
        expect![[r#"
            seq 1 {id: s1, status: created}
            batch 4: seq 2 {id: 1} | seq 3 {id: 2} | seq 4 {id: 3}
            at 1: (0, 1)
            at 1: (0, 1)
            at 1: (0, 1)
            at 4: (3, 4)
        "#]],
    );
}
