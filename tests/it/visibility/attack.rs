//! Attacks by a restricted caller: naming hidden data, inferring it indirectly, and overloading the
//! server. Each is answered as if the hidden data did not exist.

use abide_engine::Start;
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use abide_tests::world::{World, run};
use expect_test::{Expect, expect};
use serde_json::{Map, json};

use super::desk::MARK;
use super::{ask, caller, said_nothing};
use crate::replica::Client;

/// A world where ann of tenant a may see note 1 but not note 2, and no members.
async fn furnish(world: &World) -> Caller {
    for (id, tenant, body) in [(1, "a", "{\"x\":1}"), (2, "b", "hush, no JSON")] {
        let args = json!({"agent": "x", "id": format!("s{id}"), "scope": {"tenant": tenant}});
        world.call("create_session", args).await.unwrap();
        world.append_message(&format!("s{id}"), &format!("{MARK} {id}")).await.unwrap();
        let n = if id == 2 { i64::MIN } else { 1 };
        let note = json!({"id": id, "tenant": tenant, "session_id": format!("s{id}"),
            "owner": "x", "secret": format!("{MARK} {id}"), "body": body, "n": n});
        world.call("put_note", note).await.unwrap();
    }
    world.call("put_member", json!({"tenant": "a", "user": "ann"})).await.unwrap();
    // By a subquery: SQLite evaluates the caller's conditions on a row before it.
    let policy = json!({"table": "notes", "role": "agent", "hidden": ["secret"],
        "condition": "owner <> 'the-condition' AND EXISTS (SELECT 1 FROM members AS m
            WHERE m.tenant = notes.tenant AND m.tenant = :scope_tenant)"});
    world.call("set_policy", policy).await.unwrap();
    caller("ann", "agent", &[], &[("tenant", "a")])
}

fn output(answer: Result<abide_engine::QueryResult, Refusal>) -> String {
    match answer {
        Ok(answer) => {
            let rows = answer.rows.iter().map(|row| {
                let cells = row.iter().map(|cell| cell.to_json().to_string());
                format!("({})", cells.collect::<Vec<_>>().join(", "))
            });
            rows.collect::<Vec<_>>().join(" ")
        }
        Err(refusal) => format!("{}: {}", refusal.code, refusal.detail),
    }
}

fn check(attempts: &[&str], expected: Expect) {
    let world = super::world();
    let answers = run(async {
        let ann = furnish(&world).await;
        let mut answers = String::new();
        for sql in attempts {
            let answer = ask(world.engine(), &ann, sql, None).await;
            if let Err(refusal) = &answer {
                said_nothing(sql, refusal);
            }
            answers.push_str(output(answer).trim_end());
            answers.push('\n');
        }
        world.append_message("s1", "unharmed").await.unwrap();
        answers
    });
    expected.assert_eq(&answers);
}

#[test]
fn hidden_and_unknown_names_get_the_same_error() {
    check(
        &[
            "SELECT * FROM members",
            "SELECT * FROM policies",
            "SELECT * FROM tool_claims",
            "SELECT * FROM sqlite_schema",
            "SELECT * FROM sqlite_master",
            "SELECT * FROM temp.sqlite_schema",
            "SELECT * FROM change_log",
            "SELECT * FROM request_ids",
            "SELECT * FROM meta",
            "SELECT * FROM pragma_table_info('notes')",
            "SELECT * FROM pragma_table_list",
            "SELECT * FROM dbstat",
            "SELECT * FROM d_notes",
            "SELECT * FROM temp.d_notes",
            "SELECT * FROM nowhere",
            "SELECT secret FROM notes",
            "SELECT absent FROM notes",
            "SELECT n.secret FROM notes AS n",
            "SELECT main.notes.secret FROM main.notes",
            "SELECT rowid FROM notes",
            "SELECT id FROM notes ORDER BY secret",
            "SELECT id FROM notes WHERE notes.\"secret\" > ''",
            "SELECT count(secret) FROM notes",
            "SELECT 1 FROM (SELECT * FROM notes) WHERE secret = ''",
            "SELECT 1 FROM notes a JOIN notes b USING (secret)",
        ],
        expect![[r#"
            bad_sql: no such table: members
            bad_sql: no such table: policies
            bad_sql: no such table: tool_claims
            bad_sql: no such table: sqlite_schema
            bad_sql: no such table: sqlite_master
            bad_sql: unknown database temp
            bad_sql: no such table: change_log
            bad_sql: no such table: request_ids
            bad_sql: no such table: meta
            unsupported_sql: the table-valued function pragma_table_info() cannot be used by a caller with restricted visibility
            bad_sql: no such table: pragma_table_list
            bad_sql: no such table: dbstat
            bad_sql: no such table: d_notes
            bad_sql: unknown database temp
            bad_sql: no such table: nowhere
            bad_sql: no such column: secret
            bad_sql: no such column: absent
            bad_sql: no such column: n.secret
            bad_sql: no such column: notes.secret
            bad_sql: no such column: rowid
            bad_sql: no such column: secret
            bad_sql: no such column: notes.secret
            bad_sql: no such column: secret
            bad_sql: no such column: secret
            bad_sql: cannot join using column secret - column not present in both tables
        "#]],
    );
}

#[test]
fn views_ctes_and_joins_show_visible_rows_only() {
    check(
        &[
            "SELECT id FROM notes",
            "SELECT id FROM main.notes",
            "SELECT count(*) FROM notes",
            "SELECT count(*) FROM main.notes",
            "SELECT 1 FROM main.notes",
            "SELECT EXISTS (SELECT 1 FROM notes WHERE id = 2)",
            "SELECT max(id), min(id), sum(n) FROM notes",
            "WITH notes AS (SELECT * FROM main.notes) SELECT id FROM notes",
            "WITH members AS (SELECT * FROM main.members) SELECT * FROM members",
            "WITH x AS MATERIALIZED (SELECT * FROM notes) SELECT count(*) FROM x, x AS y",
            "SELECT id FROM (SELECT * FROM (SELECT * FROM notes))",
            "SELECT (SELECT count(*) FROM notes) + (SELECT count(*) FROM main.notes)",
            "SELECT id FROM sessions WHERE id IN (SELECT session_id FROM notes)",
            "SELECT 's2' IN (SELECT id FROM sessions)",
            "SELECT id, tenant FROM old_notes",
            "SELECT id FROM main.old_notes",
            "SELECT count(*) FROM events",
            "SELECT content FROM agent_state",
            "SELECT count(*) FROM agent_state a, agent_state b",
            "SELECT id FROM notes UNION ALL SELECT id FROM notes",
            "SELECT row_number() OVER (ORDER BY id) FROM notes",
            "SELECT s.id FROM sessions s LEFT JOIN notes n ON n.session_id = s.id",
            "SELECT n.id FROM sessions s RIGHT JOIN notes n ON n.session_id = s.id",
            "SELECT n.id, s.id FROM sessions s FULL JOIN notes n ON n.session_id = s.id",
            "SELECT id FROM notes NATURAL JOIN notes AS other",
            "SELECT id FROM notes LIMIT 1 OFFSET 1",
        ],
        expect![[r#"
            (1)
            (1)
            (1)
            (1)
            (1)
            (0)
            (1, 1, 1)
            (1)
            unsupported_sql: a recursive query cannot be used by a caller with restricted visibility
            (1)
            (1)
            (2)
            ("s1")
            (0)
            (1, "a")
            (1)
            (2)
            ("hush 1")
            (1)
            (1) (1)
            (1)
            ("s1")
            (1)
            (1, "s1")
            (1)

        "#]],
    );
}

/// Each of these fails on note 2, which ann may not see. Since it does not fail for her, she cannot
/// detect note 2 by failures.
#[test]
fn an_expression_that_fails_on_a_hidden_row_does_not_fail() {
    check(
        &[
            "SELECT id FROM notes WHERE json_extract(body, '$.x') = 1",
            "SELECT id FROM notes WHERE body -> '$.x' = '1'",
            "SELECT id FROM notes WHERE body ->> 'x' = 1",
            "SELECT id FROM notes WHERE abs(n) = 1",
            "SELECT id FROM notes WHERE id > 0 AND (n > 5 OR abs(n) = 1)",
            "SELECT id FROM notes WHERE CASE WHEN tenant = 'b' THEN abs(n) ELSE 1 END = 1",
            "SELECT id FROM notes WHERE length(zeroblob(CASE WHEN id = 2 THEN 1000000000 ELSE 1 END)) = 1",
            "SELECT id FROM notes WHERE 'x' LIKE 'x' ESCAPE CASE WHEN id = 2 THEN 'too long' ELSE '!' END",
            "SELECT x FROM (SELECT json_extract(body, '$.x') AS x FROM notes) WHERE x = 1",
            "WITH w AS (SELECT abs(n) AS x FROM notes) SELECT x FROM w WHERE x = 1",
            "SELECT a.id FROM notes a JOIN sessions s ON s.id = a.session_id AND abs(a.n) = 1",
            "SELECT s.id FROM sessions s LEFT JOIN notes n ON abs(n.n) = 1",
            "SELECT s.id FROM sessions s LEFT JOIN notes n ON n.session_id = s.id WHERE abs(n.n) = 1",
            "SELECT id FROM notes WHERE (SELECT abs(notes.n)) = 1",
            "SELECT id FROM notes WHERE EXISTS (SELECT 1 FROM sessions WHERE abs(notes.n) = 1)",
            "SELECT j.value FROM notes, json_each(body) j",
            "SELECT j.value FROM notes CROSS JOIN json_each(notes.body) j WHERE notes.id > 0",
            "SELECT id FROM notes GROUP BY abs(n)",
            "SELECT abs(n) FROM notes ORDER BY abs(n)",
            "SELECT sum(abs(n)) FROM notes",
            "SELECT x FROM (SELECT DISTINCT n AS x FROM notes) WHERE abs(x) = 1",
            "SELECT x FROM (SELECT n AS x FROM notes UNION SELECT 1) WHERE abs(x) = 1",
            "SELECT abs(n) FROM old_notes WHERE abs(id) > 0",
            "SELECT id FROM sessions WHERE json_extract(scope, '$.tenant') = 'a'",
            "SELECT content || content FROM agent_state WHERE content || 'x' <> ''",
        ],
        expect![[r#"
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            ("s1")
            ("s1")
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            (1)
            bad_sql: no such column: n
            ("s1")
            ("hush 1hush 1")
        "#]],
    );
}

/// Expensive queries end at a limit, which the caller learns.
#[test]
fn endless_queries_end() {
    check(
        &[
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
            "SELECT zeroblob(1000000000)",
            "SELECT length(randomblob(1000000000))",
            "SELECT hex(zeroblob(40000000))",
            "SELECT printf('%*d', 1000000000, 1)",
            "SELECT replace(printf('%*d', 1000000, 1), ' ', printf('%*d', 1000, 1))",
            "SELECT load_extension('x')",
            "SELECT fts3_tokenizer('simple')",
            "SELECT sqlite_version()",
            "SELECT writefile('/tmp/x', 'y')",
            "SELECT sqlite_compileoption_get(1)",
            "SELECT last_insert_rowid()",
            "PRAGMA table_info(notes)",
            "ATTACH 'x.db' AS x",
            "EXPLAIN SELECT * FROM notes",
            "EXPLAIN QUERY PLAN SELECT * FROM notes",
            "SELECT 1; DROP TABLE notes",
            "WITH x AS (DELETE FROM notes RETURNING *) SELECT * FROM x",
            "UPDATE notes SET tenant = 'a'",
            "DELETE FROM notes",
            "",
            "-- nothing",
        ],
        expect![[r#"
            unsupported_sql: a recursive query cannot be used by a caller with restricted visibility
            limit_exceeded: string or blob too big
            limit_exceeded: string or blob too big
            limit_exceeded: string or blob too big
            limit_exceeded: string or blob too big
            limit_exceeded: string or blob too big
            unsupported_sql: load_extension() is not deterministic, so this query cannot be used by a caller with restricted visibility
            bad_sql: no such function: fts3_tokenizer
            unsupported_sql: sqlite_version() is not deterministic, so this query cannot be used by a caller with restricted visibility
            bad_sql: no such function: writefile
            unsupported_sql: sqlite_compileoption_get() is not deterministic, so this query cannot be used by a caller with restricted visibility
            unsupported_sql: last_insert_rowid() is not deterministic, so this query cannot be used by a caller with restricted visibility
            bad_sql: the statement is not read-only
            bad_sql: the statement is not read-only
            bad_sql: the statement is not read-only
            bad_sql: the statement is not read-only
            bad_sql: the text contains more than one statement
            bad_sql: near "DELETE": syntax error
            bad_sql: the statement is not read-only
            bad_sql: the statement is not read-only
            bad_sql: the statement is empty
            bad_sql: the statement is empty
        "#]],
    );
}

/// Names, values and scopes that would be SQL if they were inserted into it.
#[test]
fn caller_attributes_are_never_sql() {
    let world = super::world();
    run(async {
        furnish(&world).await;
        let quotes =
            ["' OR 1 --", "\" OR 1 --", "a') OR ('1'='1", "a\0", "[\"a\"]", ":scope_tenant", "%"];
        for value in quotes {
            let who = caller(value, "agent", &[value], &[("tenant", value)]);
            let notes = ask(world.engine(), &who, "SELECT id FROM notes", None).await.unwrap();
            assert_eq!(notes.rows.len(), 0, "{value}");
            let reply = ask(world.engine(), &who, "SELECT * FROM agent_state", None).await.unwrap();
            assert_eq!(reply.rows.len(), 0, "{value}");
            // An invalid key is one that no session has.
            let keys = [(value, "a")];
            let who = caller("eve", "agent", &[], &keys);
            let reply = ask(world.engine(), &who, "SELECT count(*) FROM agent_state", None).await;
            assert!(reply.is_err() || reply.unwrap().rows[0][0] == 0.into(), "{value}");
            // An unknown role sees only what needs no policy.
            let who = caller("eve", value, &[], &[]);
            let notes = ask(world.engine(), &who, "SELECT id FROM notes", None).await.unwrap_err();
            assert_eq!(notes.detail, "no such table: notes", "{value}");
        }
    });
}

/// A live query reveals nothing about other callers' writes, not even by failing.
#[test]
fn foreign_writes_do_not_end_a_live_query() {
    let world = super::world();
    run(async {
        let ann = furnish(&world).await;
        let mut client = Client::new(world.engine().connect(&ann));
        let queries = [
            "SELECT id FROM notes WHERE json_extract(body, '$.x') = 1",
            "SELECT id FROM notes WHERE abs(n) = 1 ORDER BY id LIMIT 2",
            "SELECT count(*) FROM notes WHERE abs(n) = 1",
            "SELECT tenant, count(*) FROM notes WHERE abs(n) = 1 GROUP BY tenant",
            "SELECT a.id, b.id AS other FROM notes a JOIN sessions b ON b.id = a.session_id
                WHERE abs(a.n) = 1",
            "SELECT id FROM sessions s WHERE EXISTS (SELECT 1 FROM notes n
                WHERE n.session_id = s.id AND abs(n.n) = 1)",
        ];
        for (nth, sql) in queries.iter().enumerate() {
            client.subscribe_from(&format!("q{nth}"), sql, &Map::new(), Start::Now).await.unwrap();
        }
        for n in [i64::MIN, 5, i64::MIN] {
            let note = json!({"id": 2, "tenant": "b", "session_id": "s2", "owner": "x",
                "secret": MARK, "body": format!("{MARK} {n}"), "n": n});
            world.call("put_note", note).await.unwrap();
        }
        let note = json!({"id": 3, "tenant": "a", "session_id": "s1", "owner": "x",
            "secret": MARK, "body": "{\"x\":1}", "n": 1});
        let done = world.call("put_note", note).await.unwrap();
        client.read_to(done.seq).await;
        assert_eq!(client.refusals.len(), 0, "{:?}", client.refusals);
        let held: Vec<usize> = client.replicas.values().map(|replica| replica.rows.len()).collect();
        assert_eq!(held, [2, 2, 1, 1, 2, 1]);
    });
}

/// A plan, or the reason for its absence, names nothing that is not visible.
#[test]
fn an_explanation_reveals_no_policy() {
    let world = super::world();
    run(async {
        let ann = furnish(&world).await;
        let sql = "SELECT id FROM notes WHERE n > 1";
        let explained = world.engine().explain(&ann, sql, &Map::new()).await.unwrap();
        let plan = serde_json::to_string(&explained).unwrap();
        assert!(!plan.contains("the-condition") && !plan.contains("scope_tenant"), "{plan}");
        let mut client = Client::new(world.engine().connect(&ann));
        let nothing = Map::new();
        let mut wanted = abide_engine::SubscribeRequest::new("q", sql, &nothing);
        wanted.explain = true;
        client.connection.subscribe(&wanted).await.unwrap();
        let update = format!("{:?}", client.connection.next().await);
        assert!(!update.contains("the-condition"), "{update}");
        let refusal = world.engine().explain(&ann, "SELECT * FROM members", &Map::new()).await;
        assert_eq!(refusal.unwrap_err().code, Code::BadSql);
    });
}
