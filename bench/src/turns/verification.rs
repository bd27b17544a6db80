//! Verifies a closed file after a run: the hash chain, SQLite's integrity, and every turn with its content.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::payload::Payload;

/// Checks that a file has exactly these events, and the rows of the turns of all sessions.
///
/// # Panics
/// If anything differs: the run is then worthless.
pub(crate) fn verify(path: &Path, events: usize, turns: usize) {
    let verified = abide_engine::verify_file(path, abide_reducers::modules(), &mut |_| {})
        .expect("the file verifies");
    assert_eq!(verified.events.0, events as i64, "events in {}", path.display());
    let file = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .expect("the file opens");
    let payload = Payload::new();
    let messages = [("user", &payload.user), ("assistant", &payload.assistant)];
    for (role, content) in messages {
        let sql = "SELECT count(*) FROM agent_state WHERE role = ?1 AND content = ?2";
        assert_eq!(count(&file, sql, [role, content]), turns, "messages of the {role}");
    }
    let sql = "SELECT count(*) FROM tool_calls
        WHERE status = 'succeeded' AND arguments = ?1 AND result = ?2";
    let completed = count(&file, sql, [payload.arguments.as_str(), payload.result.as_str()]);
    assert_eq!(completed, turns, "completed tool calls");
}

fn count(file: &Connection, sql: &str, params: [&str; 2]) -> usize {
    let count: i64 =
        file.query_row(sql, params, |row| row.get(0)).expect("the rows can be counted");
    usize::try_from(count).expect("a count")
}
