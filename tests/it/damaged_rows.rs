//! Rows that were changed outside of Abide: `verify` finds them, and they cost only the calls that read them.

use abide_engine::{replay, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use serde_json::json;

use abide_tests::world::{World, run};

/// A closed file with a session, whose creation has the request id `once`.
fn world() -> World {
    let mut world = World::new(abide_reducers::modules);
    run(async { create(&world, "once").await.unwrap() });
    world.close();
    world
}

async fn create(world: &World, request_id: &str) -> Result<(), Refusal> {
    let args = json!({"agent": "support", "id": "s"});
    let local = Caller::local();
    world.engine().call(&local, "create_session", &args, Some(request_id)).await.map(drop)
}

fn verify(world: &World) -> Option<String> {
    let verified = verify_file(&world.path(), abide_reducers::modules(), &mut |_| {});
    verified.err().map(|error| error.to_string())
}

/// Regression: the value was decoded with an assertion. `verify --replay` panicked, and so did the writer at a retry of the request, after
/// which all callers were refused.
#[test]
fn a_malformed_request_id_is_an_error_for_its_retry_alone() {
    let endless = "[".repeat(1 << 20);
    for seqs in ["[", "", "{}", "null", "7", "[]", "[1,1]", r#"["a"]"#, "[1e999]", &endless] {
        let mut world = world();
        world.raw().execute("UPDATE request_ids SET seqs = ?1", [seqs]).unwrap();
        let is_readable = matches!(seqs, "[]" | "[1,1]");
        assert_eq!(verify(&world).is_none(), is_readable, "{seqs:.20}: {:?}", verify(&world));
        let into = world.path().with_file_name("again.db");
        let replayed = replay(&world.path(), &into, abide_reducers::modules(), None, &mut |_| {});
        let error = replayed.unwrap_err().to_string();
        assert!(error.starts_with("table request_ids differs"), "{seqs:.20}: {error}");
        assert!(!into.exists(), "a replay that fails leaves no file");
        world.open();
        run(async {
            let refusal = create(&world, "once").await.unwrap_err();
            assert_eq!(refusal.code, Code::Internal, "{seqs:.20}: {refusal}");
            world.session("other").await;
        });
    }
}

/// Regression: a retry was answered with the stored text as it was. On a WebSocket it made the whole message unreadable, so that the
/// client had to close the connection.
#[test]
fn a_stored_result_that_is_no_json_is_an_error_for_its_retry_alone() {
    for outcome in ["[", "", "{}}", "\"", "nul", "7 7"] {
        let mut world = world();
        let file = world.raw();
        let sql = "SELECT sql FROM sqlite_schema WHERE name = 'events_no_update'";
        let trigger: String = file.query_row(sql, [], |row| row.get(0)).unwrap();
        file.execute_batch("DROP TRIGGER events_no_update").unwrap();
        file.execute("UPDATE events SET outcome = ?1", [outcome]).unwrap();
        file.execute_batch(&trigger).unwrap();
        drop(file);
        world.open();
        run(async {
            let refusal = create(&world, "once").await.unwrap_err();
            assert_eq!(refusal.code, Code::Internal, "{outcome}: {refusal}");
            world.session("other").await;
        });
    }
}

/// Regression: a column of JSON with other text was found when a reducer panicked over it.
#[test]
fn a_column_that_is_no_json_is_found_and_costs_one_call() {
    let mut world = world();
    world.raw().execute("UPDATE sessions SET metadata = '['", []).unwrap();
    assert_eq!(
        verify(&world).as_deref(),
        Some("the file is damaged: a row of sessions has an unreadable value in metadata")
    );
    world.open();
    run(async {
        let refusal = world.append_message("s", "hello").await.unwrap_err();
        assert_eq!(refusal.code, Code::Internal, "{refusal}");
        world.session("other").await;
    });
}

/// Regression: SQLite's integrity check omits CHECK constraints on a connection that only reads, so they were not checked.
#[test]
fn a_row_that_breaks_a_check_constraint_is_found() {
    let world = world();
    let raw = world.raw();
    let trigger: String = raw
        .query_row("SELECT sql FROM sqlite_schema WHERE name = 'sessions_transition'", [], |row| {
            row.get(0)
        })
        .unwrap();
    raw.execute_batch("PRAGMA ignore_check_constraints = 1; DROP TRIGGER sessions_transition; UPDATE sessions SET status = 'bogus'")
        .unwrap();
    raw.execute_batch(&trigger).unwrap();
    drop(raw);
    assert_eq!(
        verify(&world).as_deref(),
        Some("the file is damaged: CHECK constraint failed in sessions")
    );
}
