//! Processes of our own: this program again, with one of its hidden commands.

use std::process::{Command, Stdio};

use serde_json::Value as JsonValue;

/// Runs it to its end and reads the JSON that it prints.
pub(crate) fn output(arguments: &[&str]) -> JsonValue {
    let program = std::env::current_exe().expect("the program that runs is there");
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the program starts again");
    assert!(output.status.success(), "{arguments:?} failed: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}
