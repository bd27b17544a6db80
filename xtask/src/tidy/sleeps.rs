//! Rule: tests wait for events, not for a time, in all languages. Lints cannot say this: they do not know tests.

use super::Finding;
use super::source::{File, Source, is_word};

const WHAT: &str = "`sleep`: wait for the expected event, or give a reason above: `tidy: <reason>`";

/// Calls that wait for a time. In Rust, these are the ends of all spellings.
const RUST: [&str; 2] = ["sleep(", "sleep_until("];
const SCRIPTS: [&str; 3] = ["setTimeout(", "asyncio.sleep(", "time.sleep("];

/// A comment on the previous line that waives the rule, with its reason.
const WAIVERS: [&str; 2] = ["// tidy: ", "# tidy: "];

/// Returns a finding for each sleep in the tests of a Rust file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let is_waived = at > 0 && is_waiver(&source.lines[at - 1].comment);
        if line.test && rust_sleeps(&line.code) && !is_waived {
            findings.push(Finding::new(format!("{}:{}", source.path, at + 1), WHAT));
        }
    }
    findings
}

/// Returns a finding for each sleep in a test in TypeScript, JavaScript or Python.
pub(crate) fn check_script(file: &File) -> Vec<Finding> {
    let is_script =
        [".ts", ".tsx", ".js", ".mjs", ".py"].iter().any(|end| file.path.ends_with(end));
    if !is_script || !file.path.split('/').any(|part| part == "test" || part == "tests") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut above = "";
    for (at, line) in file.text.lines().enumerate() {
        if script_sleeps(line) && !is_waiver(above) {
            findings.push(Finding::new(format!("{}:{}", file.path, at + 1), WHAT));
        }
        above = line;
    }
    findings
}

fn rust_sleeps(code: &str) -> bool {
    let calls = RUST.iter().flat_map(|call| code.match_indices(call));
    let mut calls = calls.map(|(at, _)| &code[..at]);
    calls.any(|before| !before.ends_with(is_word) && !before.ends_with("fn "))
}

/// Returns `true` if a line waits for a time. A delay of 0 waits for other tasks only.
fn script_sleeps(line: &str) -> bool {
    let calls = SCRIPTS.iter().flat_map(|call| line.match_indices(call));
    let mut arguments =
        calls.map(|(at, call)| line[at + call.len()..].split(')').next().unwrap_or_default());
    arguments.any(|list| !list.trim_end().ends_with(", 0") && list.trim() != "0")
}

fn is_waiver(above: &str) -> bool {
    let reason = WAIVERS.iter().find_map(|waiver| Some(above.split_once(waiver)?.1));
    reason.is_some_and(|reason| !reason.trim().is_empty())
}
