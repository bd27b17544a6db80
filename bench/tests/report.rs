//! Checks that `turns`, `reads`, `delta` and `open` print records, and that `report` writes a page from them. The values
//! of such short runs are meaningless and not checked.

use std::path::Path;
use std::process::{Command, Output};

/// Records of a peer, as the scripts of `bench/compare` write them.
const PEER: &str = r#"{"measurement":"turns","round":1,"contender":"postgresql","sessions":4,
"turns":8,"turns_per_second":1000.0,"probe_us":90.0,"durability":"fsync=on","version":"15"}"#;

const PAGE: &str = "# Page\n\n\
    | durable turns | <!-- abide-bench report turns-embedded-4: begin -->x\
    <!-- abide-bench report turns-embedded-4: end --> |\n\n\
    <!-- abide-bench report goals: begin -->\n<!-- abide-bench report goals: end -->\n\
    <!-- abide-bench report machine: begin -->\nold\n<!-- abide-bench report machine: end -->\n\
    <!-- abide-bench report turns: begin -->\n<!-- abide-bench report turns: end -->\n\
    <!-- abide-bench report peers: begin -->\n<!-- abide-bench report peers: end -->\n\
    <!-- abide-bench report reads: begin -->\n<!-- abide-bench report reads: end -->\n\
    <!-- abide-bench report delta: begin -->\n<!-- abide-bench report delta: end -->\n\
    <!-- abide-bench report open: begin -->\n<!-- abide-bench report open: end -->\nThe end.\n";

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abide-bench"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("the bench starts")
}

/// The standard output of a command that succeeds.
fn output(folder: &Path, arguments: &[&str]) -> String {
    let output = bench(folder, arguments);
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {shown}");
    String::from_utf8(output.stdout).expect("the output is text")
}

#[test]
fn records_of_one_run_fill_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut records = output(folder, &["machine"]);
    for arguments in [
        &["turns", "--turns=32", "--sessions=1,4"][..],
        &["reads", "--turns=64", "--sessions=4", "--rates=0,1000"],
        &["delta", "--calls=5"],
        &["open", "--journal-mib=1"],
    ] {
        records += &output(folder, &[arguments, &["--rounds=1", "--json"]].concat());
    }
    assert_eq!(records.lines().count(), 1 + 3 * 2 + 2 + 1 + 2, "{records}");
    records += &PEER.replace('\n', "");
    std::fs::write(folder.join("records.jsonl"), &records).expect("the records are written");
    std::fs::write(folder.join("page.md"), PAGE).expect("the page is written");
    output(folder, &["report", "--from=records.jsonl", "--page=page.md"]);

    let page = std::fs::read_to_string(folder.join("page.md")).expect("the page is read");
    assert!(page.starts_with("# Page\n\n| durable turns | <!--") && page.ends_with("The end.\n"));
    for expected in [
        "begin -->\n- Machine: ",
        "| PostgreSQL 15 ",
        "- PostgreSQL 15: fsync=on",
        "| Abide, WebSocket, one batch of four calls |        4 |",
        "| 1, WAL lost |",
        "| writer CPU per call, embedded, 64 sessions ",
    ] {
        assert!(page.contains(expected), "no {expected:?} in\n{page}");
    }
    assert!(!page.contains("NaN") && !page.contains("old"), "{page}");
    for plot in ["peers", "reads", "open"] {
        let file = format!("performance-{plot}.svg");
        assert!(page.contains(&format!("]({file})")), "{file} is not in the page");
        let svg = std::fs::read_to_string(folder.join(&file)).expect("the plot is read");
        assert!(svg.contains("<circle ") && !svg.contains("NaN"), "{file}");
    }
    let left = std::fs::read_dir(folder).expect("the folder exists").count();
    assert_eq!(left, 2 + 3, "the databases are removed");
}

#[test]
fn records_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let machine = output(folder, &["machine"]);
    for (records, page, why) in [
        ("{}".to_owned(), PAGE, "records.jsonl:1: not a record"),
        (machine.clone() + &machine, PAGE, "the records are of several runs"),
        (PEER.replace('\n', "").replace("postgresql", "x"), PAGE, "unknown contender `x`"),
        (machine.clone(), "# Page\n", "page.md: no part is marked"),
        (machine, PAGE, "no run of embedded with 4 sessions"),
    ] {
        std::fs::write(folder.join("records.jsonl"), records).expect("the records are written");
        std::fs::write(folder.join("page.md"), page).expect("the page is written");
        let refused = bench(folder, &["report", "--from=records.jsonl", "--page=page.md"]);
        let shown = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && shown.contains(why), "{why:?} is not in {shown}");
        let left = std::fs::read_to_string(folder.join("page.md")).expect("the page is read");
        assert_eq!(left, page, "the page is unchanged");
    }
}
