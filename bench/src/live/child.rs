//! Child processes: this program with one of its hidden commands.

use std::process::{Command, Stdio};

use serde_json::Value as JsonValue;

/// Runs the child process and parses its JSON output.
pub(crate) fn output(arguments: &[&str]) -> JsonValue {
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
