//! Rule: tests in TypeScript, JavaScript and Python do not sleep. `words.rs` has the rule for Rust.

use super::finding::Finding;
use super::source::File;

/// Calls that wait for a time.
const SLEEPS: [&str; 3] = ["setTimeout(", "asyncio.sleep(", "time.sleep("];

/// A comment on the previous line that waives the rule, with its reason.
const WAIVERS: [&str; 2] = ["// tidy: ", "# tidy: "];

pub(crate) fn check(file: &File) -> Vec<Finding> {
    if !is_test(&file.path) {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let waived = at > 0 && is_waived(lines[at - 1]);
        if !waived && sleeps(line) {
            let what =
                "`sleep`: wait for the expected event, or give a reason above: `tidy: <reason>`";
            findings.push(Finding::new(format!("{}:{}", file.path, at + 1), what));
        }
    }
    findings
}

fn is_test(path: &str) -> bool {
    let is_script = [".ts", ".tsx", ".js", ".mjs", ".py"].iter().any(|end| path.ends_with(end));
    is_script && path.split('/').any(|part| part == "test" || part == "tests")
}

/// Whether a line waits for a time. A delay of 0 waits for other tasks only.
fn sleeps(line: &str) -> bool {
    SLEEPS.iter().any(|call| {
        line.match_indices(call).any(|(at, _)| {
            let arguments = line[at + call.len()..].split(')').next().unwrap_or_default();
            !arguments.trim_end().ends_with(", 0") && arguments.trim() != "0"
        })
    })
}

fn is_waived(above: &str) -> bool {
    let reason = WAIVERS.iter().find_map(|waiver| Some(above.split_once(waiver)?.1));
    reason.is_some_and(|reason| !reason.trim().is_empty())
}
