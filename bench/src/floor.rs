//! The baseline ("floor"): the rows of the same turns, written with rusqlite and prepared statements by one thread,
//! in batches of the same size, without any sync. It is an upper bound for any program that stores these rows in
//! SQLite. A program that also hashes, handles retries and syncs is slower.
//!
//! The tables and indexes are those of an Abide file, without triggers, foreign keys, and the engine's own
//! bookkeeping (request ids, undo images).

use std::path::Path;
use std::time::Instant;

use abide_schema::TableSpec;
use rusqlite::{Connection, params};

use crate::cpu;
use crate::payload::Payload;

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloorRun {
    pub(crate) turns_per_second: f64,
    /// Processor time per event, in microseconds.
    pub(crate) cpu_us: f64,
    pub(crate) file_bytes: u64,
}

/// Writes the turns of the given number of sessions, with `calls_per_commit` events per transaction.
pub(crate) fn run(
    path: &Path,
    sessions: usize,
    turns: usize,
    calls_per_commit: f64,
    payload: &Payload,
) -> FloorRun {
    let connection = open(path);
    let mut writer = FloorWriter { connection: &connection, payload, seq: 0, states: 0 };
    for session in 0..sessions {
        writer.create_session(session);
    }
    let started = Instant::now();
    let cpu_before = cpu::thread_seconds("abide-bench");
    let batch = calls_per_commit.max(1.0);
    let mut written = 0.0;
    let mut committed = 0.0;
    writer.execute("BEGIN");
    for turn in 0..turns {
        for step in 0..4 {
            for session in 0..sessions {
                writer.step(session, turn, step);
                written += 1.0;
                if written - committed >= batch {
                    committed += batch;
                    writer.execute("COMMIT");
                    writer.execute("BEGIN");
                }
            }
        }
    }
    writer.execute("COMMIT");
    let seconds = started.elapsed().as_secs_f64();
    let cpu_us = (cpu::thread_seconds("abide-bench") - cpu_before) * 1e6 / written;
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .expect("the floor's file takes a checkpoint");
    let file_bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    FloorRun { turns_per_second: (sessions * turns) as f64 / seconds, cpu_us, file_bytes }
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("the floor's file opens");
    for (pragma, value) in [
        ("journal_mode", "WAL"),
        ("synchronous", "OFF"),
        ("foreign_keys", "OFF"),
        ("cache_size", "-65536"),
        // Four megabytes: fewer checkpoints than with the default.
        ("wal_autocheckpoint", "1000"),
    ] {
        connection.pragma_update(None, pragma, value).expect("a pragma of the floor");
    }
    let layout = abide_engine::Layout { modules: abide_reducers::modules() };
    for table in layout.live_tables() {
        for statement in without_triggers(table) {
            connection.execute_batch(&statement).expect("the floor's tables");
        }
    }
    connection.set_prepared_statement_cache_capacity(64);
    connection
}

fn without_triggers(table: &TableSpec) -> Vec<String> {
    let mut statements = table.ddl();
    statements.retain(|statement| !statement.starts_with("CREATE TRIGGER"));
    statements
}

struct FloorWriter<'a> {
    connection: &'a Connection,
    payload: &'a Payload,
    seq: i64,
    states: i64,
}

impl FloorWriter<'_> {
    fn execute(&self, sql: &str) {
        let mut statement = self.connection.prepare_cached(sql).expect("the floor's SQL");
        statement.execute([]).expect("the floor writes");
    }

    fn create_session(&mut self, session: usize) {
        let sql = "INSERT INTO sessions (id, agent, status, scope, metadata, created_at, \
                   updated_at, \
                   seq) VALUES (?1, 'bench', 'active', '{}', '{}', 0, 0, 0)";
        let mut statement = self.connection.prepare_cached(sql).expect("the floor's SQL");
        statement.execute([format!("s_{session}")]).expect("the floor writes");
    }

    /// Writes one event with its rows. A session row is written once per call, as in a hand-written program.
    fn step(&mut self, session: usize, turn: usize, step: usize) {
        self.seq += 1;
        let id = format!("s_{session}");
        let call = format!("s_{session}/{turn}");
        let payload = self.payload;
        let (reducer, arguments, outcome) = match step {
            0 => (
                "append_message",
                payload.message_arguments(&id, "user", &payload.user),
                "{\"id\":1}",
            ),
            1 => ("request_tool_call", payload.request_arguments(&id, &call), payload.row.as_str()),
            2 => ("complete_tool_call", payload.complete_arguments(&call), payload.row.as_str()),
            _ => {
                let arguments = payload.message_arguments(&id, "assistant", &payload.assistant);
                ("append_message", arguments, "{\"id\":1}")
            }
        };
        match step {
            0 => self.append(&id, "user", &payload.user),
            1 => self.request(&id, &call),
            2 => self.complete(&call),
            _ => self.append(&id, "assistant", &payload.assistant),
        }
        self.touch(&id);
        let sql = "INSERT INTO events (seq, at, session_id, reducer, caller, request_id, \
                   arguments, outcome, prev_hash, hash, rows_hash, salt) \
                   VALUES (?1, ?2, ?3, ?4, 'local', ?5, ?6, ?7, ?8, ?8, ?8, ?9)";
        let mut statement = self.connection.prepare_cached(sql).expect("the floor's SQL");
        let request_id = payload.request_id(session, turn, step);
        statement
            .execute(params![
                self.seq, self.seq, id, reducer, request_id, arguments, outcome, [0_u8; 32],
                [0_u8; 16]
            ])
            .expect("the floor writes");
    }

    fn append(&mut self, session: &str, role: &str, content: &str) {
        self.states += 1;
        let sql = "INSERT INTO agent_state (id, session_id, role, kind, content, created_at, seq) \
                   VALUES (?1, ?2, ?3, 'message', ?4, ?5, ?5)";
        let mut statement = self.connection.prepare_cached(sql).expect("the floor's SQL");
        statement
            .execute(params![self.states, session, role, content, self.seq])
            .expect("the floor writes");
    }

    fn request(&self, session: &str, call: &str) {
        let sql = "INSERT INTO tool_calls (call_id, session_id, tool_name, tool_version, \
                   arguments, \
                   status, attempt, fencing_token, claimed_by, lease_expires_at, created_at, \
                   created_seq, updated_at, seq) \
                   VALUES (?1, ?2, 'lookup', 1, ?3, 'claimed', 1, ?4, 'local', ?4, ?4, ?4, ?4, ?4)";
        let mut statement = self.connection.prepare_cached(sql).expect("the floor's SQL");
        statement
            .execute(params![call, session, self.payload.arguments, self.seq])
            .expect("the floor writes");
    }

    fn complete(&self, call: &str) {
        let sql = "UPDATE tool_calls SET status = 'succeeded', result = ?2, updated_at = ?3, \
                   seq = ?3 WHERE call_id = ?1";
        let mut statement = self.connection.prepare_cached(sql).expect("the floor's SQL");
        statement.execute(params![call, self.payload.result, self.seq]).expect("the floor writes");
    }

    fn touch(&self, session: &str) {
        let sql = "UPDATE sessions SET updated_at = ?2, seq = ?2 WHERE id = ?1";
        let mut statement = self.connection.prepare_cached(sql).expect("the floor's SQL");
        statement.execute(params![session, self.seq]).expect("the floor writes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: after a new column in the log, the floor wrote no events. This was noticed only when the figures
    /// were updated.
    #[test]
    fn the_floor_fits_the_current_tables() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("floor.db");
        let run = run(&path, 2, 1, 3.0, &Payload::new());
        assert!(run.turns_per_second > 0.0 && run.file_bytes > 0);
        let file = Connection::open(&path).expect("the file opens");
        let count = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            file.query_row(&sql, [], |row| row.get(0)).expect("the rows can be counted")
        };
        assert_eq!((count("events"), count("agent_state"), count("tool_calls")), (8, 4, 2));
    }
}
