//! Memory of callers' statements: limited for each reader, and without temporary files, whatever
//! they sort, group, materialise or expand.

use std::fs;

use abide_schema::limits;

use crate::program::left_out;
use crate::server::Server;

/// Endless numbers.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)";

/// Each accumulates memory in a different way.
const ATTACKS: [&str; 9] = [
    "SELECT i FROM n ORDER BY hex(randomblob(500))",
    "SELECT i FROM n ORDER BY CAST(zeroblob(30000000) AS TEXT) || i",
    "SELECT count(*) FROM (SELECT DISTINCT hex(randomblob(500)) FROM n)",
    "SELECT hex(randomblob(500)) AS h, count(*) FROM n GROUP BY h",
    "SELECT max(length(h)) OVER () FROM (SELECT hex(randomblob(500)) AS h FROM n)",
    "SELECT length(group_concat(hex(zeroblob(1000)))) FROM n",
    "SELECT length(json_group_array(i)) FROM n",
    "SELECT count(*) FROM n AS a JOIN (SELECT hex(randomblob(500)) AS h FROM n) AS b ON b.h = a.i",
    "SELECT length(replace(hex(zeroblob(1000000)), '0', hex(zeroblob(1000)))) FROM n",
];

/// A value of a process's status on Linux, in bytes (proc_pid_status(5)).
pub(crate) fn bytes(id: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib << 10)
}

/// The open files of a process, by path.
fn open_files(id: u32) -> Vec<String> {
    let Ok(folder) = fs::read_dir(format!("/proc/{id}/fd")) else { return Vec::new() };
    let paths = folder.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    paths.map(|path| path.display().to_string()).collect()
}

/// Regression test: a statement that sorted or grouped endlessly took gigabytes before its ten
/// seconds were over, and the system killed the server.
#[test]
fn the_memory_of_a_statement_is_limited() {
    let server = Server::start();
    let Some(before) = bytes(server.id(), "VmRSS") else {
        return left_out("the memory of a statement: this system has no /proc");
    };
    for attack in ATTACKS {
        let output = server.run(&["sql", &format!("{ENDLESS} {attack}")]);
        assert!(output.stderr.contains("limit_exceeded"), "{attack}: {output:?}");
        let files = open_files(server.id());
        assert!(!files.iter().any(|path| path.contains("etilqs")), "{attack}: {files:?}");
    }
    // The allocator keeps the memory of each reader until it is returned, and allocations between two checks
    // come in addition.
    let max = before + (limits::READERS as u64 + 1) * limits::QUERY_MEMORY_BYTES as u64;
    let held = bytes(server.id(), "VmHWM").expect("as before");
    assert!(held < max, "it held {held} bytes, {before} before");
    assert_eq!(server.run(&["sql", "SELECT 1"]).code, Some(0));
}

/// The limit was the growth of the process since the statement began. The C library keeps what a statement frees, and
/// the next one reused it without growth: each one could use 256 MiB more, up to all memory.
#[test]
fn refused_statements_leave_no_memory() {
    let server = Server::start();
    let Some(before) = bytes(server.id(), "VmRSS") else {
        return left_out("the memory of a statement: this system has no /proc");
    };
    let numbers: Vec<String> = (0..3_000).map(|number| number.to_string()).collect();
    let numbers = format!("json_each('[{}]')", numbers.join(","));
    let sql = format!(
        "SELECT count(DISTINCT a.value || 'x' || b.value || hex(zeroblob(1000))) \
         FROM {numbers} AS a, {numbers} AS b"
    );
    for number in 0..2 * limits::READERS {
        let output = server.run(&["sql", &sql]);
        assert!(output.stderr.contains("more than 256 MiB of memory"), "{number}: {output:?}");
    }
    // Each reader can leave what it used until memory is returned.
    let max = before + (limits::READERS as u64 + 1) * limits::QUERY_MEMORY_BYTES as u64;
    let held = bytes(server.id(), "VmHWM").expect("as before");
    assert!(held < max, "it held {held} bytes, {before} before");
}
