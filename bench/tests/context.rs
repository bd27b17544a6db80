//! Compaction over the recorded conversations of the repository, in small windows: no request exceeds its window, each has
//! the first task, and the cost of a turn does not grow. The command fails otherwise.

use std::process::Command;

#[test]
fn recorded_conversations_fit_into_small_windows() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.md");
    let marks = "<!-- abide-bench context: begin -->\n<!-- abide-bench context: end -->\n";
    std::fs::write(&page, marks).expect("the page is written");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/conversations.jsonl.zst");
    let output = Command::new(env!("CARGO_BIN_EXE_abide-bench"))
        .args(["context", "--turns=100", "--recordings", fixture, "--out"])
        .arg(&page)
        .arg("--dir")
        .arg(folder.path())
        .output()
        .expect("the bench starts");
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}");
    let page = std::fs::read_to_string(&page).expect("the page is read");
    let cells = |name: &str| -> Vec<String> {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("| {name} ")))
            .unwrap_or_else(|| panic!("no {name} in\n{page}"));
        line.trim_matches('|').split('|').map(|cell| cell.replace(' ', "")).collect()
    };
    assert_eq!(cells("conversations")[1..2], ["23"]);
    let number = |name: &str| cells(name)[1].parse::<f64>().expect("it is a number");
    assert!(number("summaries") > 3.0, "{page}");
    assert!(number("with / without") < 0.6, "{page}");
    assert!(number("tokens of the last quarter / second quarter") < 1.3, "{page}");
}
