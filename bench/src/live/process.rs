//! This process and its children: open files, memory, and child processes with a hidden command.

use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value as JsonValue;

/// Runs this program with other arguments, in a child process, and parses its JSON output.
pub(crate) fn run_child(arguments: &[&str]) -> JsonValue {
    let program = std::env::current_exe().expect("the program has a path");
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the program starts again");
    assert!(output.status.success(), "{arguments:?} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

/// Resident bytes; 0 if the system does not report it (Linux does).
pub(crate) fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0
}

/// Raises the limit of open files to the maximum. Returns the new limit.
pub(super) fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let now = if raised.is_ok() { maximum } else { current };
    now.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

/// Number of open files of this process.
pub(super) fn count_open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
