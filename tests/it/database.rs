//! Constraints that the database enforces itself, without our code: another program, a bug of ours
//! or a user at a SQL prompt cannot write invalid history.

use abide_tests::world::{World, run};
use expect_test::expect_file;
use rusqlite::Connection;

use crate::traffic::{Traffic, for_seeds};

/// One row of every table, followed by raw SQL on the file.
const ROWS: &str = r#"
    register_tool name=pay needs_approval=true
    register_tool name=look
    create_session agent=support id=s1
    create_session agent=support id=s2
    append_message session_id=s1 role=user content=hello
    request_tool_call call_id=c1 session_id=s1 tool_name=pay arguments={}
    request_tool_call call_id=c2 session_id=s1 tool_name=look arguments={} claim_lease_ms=1000
    request_supervisor_handoff session_id=s1 reason=help required_capability=refunds request_id=r1
"#;

/// Runs statements on the file and compares one result for each.
fn check_raw(statements: &str, expected: expect_test::Expect) {
    let raw: String = statements
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    let received = abide_tests::script::play(abide_reducers::modules, &format!("{ROWS}{raw}"));
    let after: String = received.split_inclusive('\n').skip(8).collect();
    expected.assert_eq(&after);
}

#[test]
fn the_log_is_append_only() {
    check_raw(
        "
        raw UPDATE events SET caller = 'someone' WHERE seq = 1
        raw UPDATE events SET seq = 100 WHERE seq = 1
        raw UPDATE events SET caller = caller
        raw UPDATE OR IGNORE events SET caller = 'someone'
        raw DELETE FROM events WHERE seq = 8
        raw DELETE FROM events
        raw REPLACE INTO events SELECT * FROM events WHERE seq = 1
        raw INSERT OR REPLACE INTO events SELECT * FROM events WHERE seq = 8
        raw INSERT INTO events SELECT * FROM events WHERE seq = 8
        raw INSERT INTO events SELECT * FROM events WHERE seq = 8 ON CONFLICT DO UPDATE SET at = 0
        raw INSERT INTO events SELECT 10, at, session_id, reducer, caller, request_id, arguments, outcome, prev_hash, hash, authority, salt, rows_hash FROM events WHERE seq = 8
        raw INSERT INTO events (seq) VALUES (9)
        sql SELECT count(*), max(seq) FROM events
        ",
        expect_test::expect![[r#"
            aborted: denied: the log is append-only
            aborted: denied: the log is append-only
            aborted: denied: the log is append-only
            aborted: denied: the log is append-only
            aborted: denied: the log is append-only
            aborted: denied: the log is append-only
            aborted: denied: the log grows by its next number only
            aborted: denied: the log grows by its next number only
            aborted: denied: the log grows by its next number only
            aborted: denied: the log grows by its next number only
            aborted: denied: the log grows by its next number only
            aborted: NOT NULL constraint failed: events.at
            (8, 8)
        "#]],
    );
}

#[test]
fn keys_and_references_are_enforced() {
    check_raw(
        "
        raw INSERT INTO tool_calls SELECT * FROM tool_calls WHERE call_id = 'c1'
        raw UPDATE tool_calls SET call_id = 'c1' WHERE call_id = 'c2'
        raw UPDATE tool_calls SET session_id = 's_nobody' WHERE call_id = 'c1'
        raw UPDATE tool_calls SET tool_name = 'unheard_of' WHERE call_id = 'c1'
        raw INSERT INTO agent_state VALUES (9, 's_nobody', 'user', 'message', 'x', NULL, 0, 0, NULL)
        raw UPDATE sessions SET parent_id = 's_nobody' WHERE id = 's2'
        raw DELETE FROM sessions WHERE id = 's1'
        raw DELETE FROM tools WHERE name = 'pay'
        raw INSERT INTO approvals (id, call_id, session_id, tool_name, status, arguments, arguments_hash, created_at, updated_at, seq) SELECT 'ap_2', call_id, session_id, tool_name, status, arguments, '', 0, 0, 0 FROM approvals
        raw INSERT INTO handoff_requests (id, session_id, reason, required_capability, status, claimed_by, fencing_token, lease_expires_at, created_at, updated_at, seq) SELECT 'ho_2', session_id, reason, required_capability, 'claimed', 'x', 1, 1, 0, 0, 0 FROM handoff_requests
        raw INSERT INTO request_ids SELECT * FROM request_ids
        ",
        expect_test::expect![[r#"
            aborted: UNIQUE constraint failed: tool_calls.call_id
            aborted: UNIQUE constraint failed: tool_calls.call_id
            aborted: FOREIGN KEY constraint failed
            aborted: FOREIGN KEY constraint failed
            aborted: FOREIGN KEY constraint failed
            aborted: FOREIGN KEY constraint failed
            aborted: FOREIGN KEY constraint failed
            aborted: FOREIGN KEY constraint failed
            aborted: UNIQUE constraint failed: approvals.call_id
            aborted: UNIQUE constraint failed: handoff_requests.session_id
            aborted: UNIQUE constraint failed: request_ids.caller, request_ids.request_id
        "#]],
    );
}

#[test]
fn columns_accept_only_their_declared_values() {
    check_raw(
        "
        raw UPDATE sessions SET status = 'asleep'
        raw UPDATE sessions SET status = NULL
        raw UPDATE sessions SET agent = NULL
        raw UPDATE sessions SET created_at = 'yesterday'
        raw UPDATE tools SET effect = 'sometimes'
        raw UPDATE tools SET version = 1.5
        raw UPDATE tool_calls SET status = 'running' WHERE call_id = 'c1'
        raw UPDATE tool_calls SET fencing_token = NULL WHERE call_id = 'c2'
        raw UPDATE tool_calls SET lease_expires_at = NULL WHERE call_id = 'c2'
        raw UPDATE tool_calls SET status = 'claimed' WHERE call_id = 'c1'
        raw UPDATE approvals SET status = 'maybe'
        raw UPDATE handoff_requests SET status = 'lost'
        raw UPDATE agent_state SET content = x'00'
        raw UPDATE agent_state SET role = NULL
        ",
        expect_test::expect![[r#"
            aborted: bad_transition: the status of the session does not allow it
            aborted: NOT NULL constraint failed: sessions.status
            aborted: NOT NULL constraint failed: sessions.agent
            aborted: cannot store TEXT value in INTEGER column sessions.created_at
            aborted: CHECK constraint failed: effect = 'read_only' OR effect = 'idempotent' OR effect = 'at_most_once'
            aborted: cannot store REAL value in INTEGER column tools.version
            aborted: CHECK constraint failed: status = 'pending' OR status = 'awaiting_approval' OR status = 'claimed' OR status = 'succeeded' OR status = 'failed' OR status = 'rejected' OR status = 'cancelled' OR status = 'unknown'
            aborted: CHECK constraint failed: status <> 'claimed' OR (fencing_token IS NOT NULL
                AND lease_expires_at IS NOT NULL AND attempt > 0)
            aborted: CHECK constraint failed: status <> 'claimed' OR (fencing_token IS NOT NULL
                AND lease_expires_at IS NOT NULL AND attempt > 0)
            aborted: CHECK constraint failed: status <> 'claimed' OR (fencing_token IS NOT NULL
                AND lease_expires_at IS NOT NULL AND attempt > 0)
            aborted: CHECK constraint failed: status = 'pending' OR status = 'approved' OR status = 'rejected' OR status = 'expired' OR status = 'cancelled'
            aborted: CHECK constraint failed: status = 'pending' OR status = 'claimed' OR status = 'resolved' OR status = 'rejected' OR status = 'expired' OR status = 'cancelled'
            aborted: cannot store BLOB value in TEXT column agent_state.content
            aborted: NOT NULL constraint failed: agent_state.role
        "#]],
    );
}

#[test]
fn a_later_claim_cannot_be_undone() {
    check_raw(
        "
        raw UPDATE tool_calls SET fencing_token = 1 WHERE call_id = 'c2'
        raw UPDATE tool_calls SET attempt = 0 WHERE call_id = 'c2'
        raw UPDATE tool_calls SET fencing_token = 100, attempt = 2 WHERE call_id = 'c2'
        raw UPDATE tool_calls SET fencing_token = 99 WHERE call_id = 'c2'
        ",
        expect_test::expect![[r#"
            aborted: lease_lost: the tool call was claimed by another
            aborted: lease_lost: the tool call was claimed by another
            taken
            aborted: lease_lost: the tool call was claimed by another
        "#]],
    );
}

#[test]
fn ended_rows_cannot_change() {
    check_raw(
        "
        raw UPDATE approvals SET status = 'approved'
        raw UPDATE approvals SET status = 'rejected'
        raw UPDATE approvals SET comment = 'later'
        raw UPDATE tool_calls SET status = 'succeeded'
        raw UPDATE tool_calls SET status = 'pending' WHERE call_id = 'c1'
        raw UPDATE tool_calls SET result = '1' WHERE call_id = 'c2'
        raw UPDATE handoff_requests SET status = 'resolved'
        raw UPDATE handoff_requests SET resolution = 'another'
        raw UPDATE sessions SET status = 'failed' WHERE id = 's1'
        raw UPDATE sessions SET title = 'another' WHERE id = 's1'
        raw INSERT INTO agent_state VALUES (9, 's1', 'user', 'message', 'x', NULL, 0, 0, NULL)
        raw INSERT INTO tool_calls (call_id, session_id, tool_name, tool_version, arguments, status, attempt, created_at, created_seq, updated_at, seq) VALUES ('c3', 's1', 'look', 1, '1', 'pending', 0, 0, 0, 0, 0)
        ",
        expect_test::expect![[r#"
            taken
            aborted: conflict: the approval is decided
            aborted: conflict: the approval is decided
            taken
            aborted: conflict: the tool call has ended
            aborted: conflict: the tool call has ended
            taken
            aborted: conflict: the handoff has ended
            taken
            aborted: bad_transition: the session has ended
            aborted: bad_transition: the session has ended
            aborted: bad_transition: the session has ended
        "#]],
    );
}

/// An effect that may have run cannot run again, not even after raw SQL.
#[test]
fn an_unknown_call_can_only_be_settled() {
    check_raw(
        "
        set_timer id=t1 in_ms=2000
        +1s
        sql SELECT call_id, status FROM tool_calls
        raw UPDATE tool_calls SET status = 'pending', lease_expires_at = NULL WHERE call_id = 'c2'
        raw UPDATE tool_calls SET status = 'claimed' WHERE call_id = 'c2'
        raw UPDATE tool_calls SET status = 'cancelled' WHERE call_id = 'c2'
        raw UPDATE tool_calls SET arguments = '[]' WHERE call_id = 'c2'
        raw UPDATE tool_calls SET status = 'failed' WHERE call_id = 'c2'
        raw UPDATE handoff_requests SET status = 'claimed', claimed_by = 'x'
        raw UPDATE handoff_requests SET fencing_token = 20
        raw UPDATE handoff_requests SET fencing_token = 19
        raw UPDATE timers SET status = 'fired'
        raw UPDATE timers SET status = 'pending'
        raw UPDATE timers SET due_at = 0
        ",
        expect_test::expect![[r#"
            seq 9 {id: t1, status: pending, due_at: 14:00:02}
            ("c1", "awaiting_approval") ("c2", "unknown")
            aborted: conflict: the tool call may have run, it can only be settled
            aborted: conflict: the tool call may have run, it can only be settled
            aborted: conflict: the tool call may have run, it can only be settled
            aborted: conflict: the arguments of the tool call stand
            taken
            aborted: CHECK constraint failed: status <> 'claimed' OR (claimed_by IS NOT NULL
                AND fencing_token IS NOT NULL AND lease_expires_at IS NOT NULL)
            taken
            aborted: lease_lost: the handoff was claimed by another
            taken
            aborted: conflict: the timer has ended
            aborted: conflict: the timer has ended
        "#]],
    );
}

/// A constraint violation that no reducer checks becomes a refusal with the database's message, and
/// rolls the whole call back: the session was handed off before the constraint failed.
#[test]
fn a_constraint_violation_is_a_refusal() {
    check_raw(
        "
        create_session agent=support id=s3
        raw INSERT INTO handoff_requests (id, session_id, reason, required_capability, status, created_at, updated_at, seq) SELECT 'ho_2', 's3', reason, required_capability, 'pending', 0, 0, 3 FROM handoff_requests
        request_supervisor_handoff session_id=s3 reason=help required_capability=refunds
        sql SELECT status, seq FROM sessions WHERE id = 's3'
        append_message session_id=s3 role=user content=hello
        ",
        expect_test::expect![[r#"
            seq 9 {id: s3, status: created}
            taken
            refused conflict: UNIQUE constraint failed: handoff_requests.session_id
            ("created", 9)
            seq 10 {id: 2}
        "#]],
    );
}

/// To compare a key with the key of a row in a table without rowids, SQLite reads the whole row. One
/// session with 4 MB of metadata made each lookup of its neighbours take 0.4 ms, for all tenants.
#[test]
fn tables_with_large_values_have_rowids() {
    let modules = abide_reducers::modules();
    let tables = modules.iter().flat_map(|module| &module.tables);
    for table in tables.filter(|table| table.without_rowid) {
        let large = table.columns.iter().find(|column| column.json).map(|column| column.name);
        assert_eq!(large, None, "{} stores whole rows in the tree of its key", table.name);
    }
}

#[test]
fn a_long_random_run_leaves_a_sound_file() {
    for_seeds("database::a_long_random_run", 40..42, |seed| {
        let mut world = World::new(abide_reducers::modules);
        run(async {
            let mut traffic = Traffic::new(seed);
            for _ in 0..1_000 {
                let _ = traffic.step(&world).await;
            }
        });
        world.close();
        let raw = world.raw();
        let texts = |pragma: &str| -> Vec<String> {
            let mut statement = raw.prepare(pragma).unwrap();
            let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
            rows.map(Result::unwrap).collect()
        };
        assert_eq!(texts("PRAGMA integrity_check"), ["ok"]);
        assert_eq!(texts("PRAGMA foreign_key_check"), Vec::<String>::new());
        let count = |sql: &str| -> i64 { raw.query_row(sql, [], |row| row.get(0)).unwrap() };
        assert!(count("SELECT count(*) FROM events") > 200);
        // Canonical JSON is valid JSON, and every row was written by an existing event.
        assert_eq!(count("SELECT count(*) FROM events WHERE NOT json_valid(arguments)"), 0);
        assert_eq!(count("SELECT count(*) FROM events WHERE NOT json_valid(outcome)"), 0);
        assert_eq!(count("SELECT count(*) FROM agent_state WHERE NOT json_valid(data)"), 0);
        // Except those that are derived from other rows.
        let derived = ["waiting", "run_lists", "timer_counts"];
        for (table, _) in world.tables() {
            if derived.contains(&table) {
                continue;
            }
            let lost = format!(
                "SELECT count(*) FROM {table} WHERE seq NOT IN
                (SELECT seq FROM events)"
            );
            assert_eq!(count(&lost), 0, "{table}");
        }
    });
}

/// All statements that create a file of format 5. Files of that format must stay readable, so this
/// text is frozen; a change needs a new version of a module and a migration step.
#[test]
fn the_schema_of_format_5() {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    expect_file!["../golden/schema-v5.sql"].assert_eq(&schema_of(&world.raw()));
}

/// The statements of a file, by object.
pub(crate) fn schema_of(connection: &Connection) -> String {
    let pragma = |name: &str| -> i64 {
        connection.pragma_query_value(None, name, |row| row.get(0)).unwrap()
    };
    let header = format!(
        "PRAGMA application_id = {};\nPRAGMA user_version = {};\nPRAGMA page_size = {};\n",
        pragma("application_id"),
        pragma("user_version"),
        pragma("page_size")
    );
    let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'
        ORDER BY tbl_name, type <> 'table', name";
    let mut statement = connection.prepare(sql).unwrap();
    let texts = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    texts.fold(header, |all, text| format!("{all}\n{};\n", text.unwrap()))
}
