//! `abide demo`, the first command of a new user.

use std::fs;

use serde_json::{Value as JsonValue, json};

use crate::program::{ExitedProcess, Process, abide, left_out, run};

#[track_caller]
fn assert_good(report: &JsonValue) {
    assert_eq!(report["acknowledged_lost"], json!([]));
    assert_eq!(report["tool_calls_run_twice"], 0);
    assert_eq!(report["differing_from_recording"], json!([]));
    assert_eq!(report["acknowledged"], report["events"], "one event for each acknowledged write");
    let killed = report["killed_at_event"].as_i64();
    let events = report["events"].as_i64();
    assert!(killed > Some(0) && killed <= events, "killed at {killed:?} of {events:?}");
    assert!(report["clients_resumed"].as_u64() > Some(0), "{report}");
    assert!(report["deltas"].as_u64() > Some(0), "{report}");
    assert_eq!(report["head"].as_str().unwrap().len(), 64);
}

#[test]
fn the_built_in_recordings() {
    let ended = run(["demo", "--json"]);
    assert_eq!(ended.stderr, "", "a new user sees no warnings");
    let report = ended.json();
    assert_good(&report);
    let played = ["sessions", "messages", "tool_calls", "tool_calls_run", "handoffs"];
    assert_eq!(played.map(|what| report[what].as_u64().unwrap()), [24, 731, 185, 182, 3]);
}

#[test]
fn a_kept_file_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.db");
    let keep = kept.to_str().unwrap();
    let demo = || run(["demo", "--conversations", "2", "--keep", keep]);
    let picture = demo().good();
    for line in ["  acknowledged writes lost   0 of ", "  tool calls run twice       0 of "] {
        assert!(picture.contains(line), "{picture}");
    }
    assert!(picture.contains(", chain verified\n"), "{picture}");
    let names = || -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let verified = run(["verify", "--json", keep]).json();
    assert!(verified["events"].as_i64() > Some(10), "{verified}");
    let bytes = fs::read(&kept).unwrap();
    let before = names();

    let ExitedProcess { code, stderr, .. } = demo();
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("exists already   [conflict]\n  hint: "), "{stderr}");
    assert!(fs::read(&kept).unwrap() == bytes && names() == before, "the file was touched");
}

#[test]
fn recordings_of_other_agents() {
    let Some(recordings) = abide_tests::recordings() else {
        return left_out("the demo with other recordings: they are not on this machine");
    };
    let file = "conversations/gpt-4.1-mini_tau2-mixed_activegraph.jsonl.zst";
    let file = recordings.join(file);
    let report = run(["demo", "--json", "--data", file.to_str().unwrap()]).json();
    assert_good(&report);
    assert_eq!(report["data"], file.to_str().unwrap());
}

#[test]
fn files_that_cannot_be_played() {
    let ended = run(["demo", "--data", "/nowhere/at-all"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains("hint: "), "{ended:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letter.jsonl");
    fs::write(&file, "Dear grandmother\n").unwrap();
    let ended = run(["demo", "--data", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("hint: "), "{ended:?}");
    // It said that its output could not be written.
    let missing = folder.path().join("missing");
    let ended = Process::spawn(abide().arg("demo").env("TMPDIR", missing)).ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("no temporary folder can be created: no such"), "{ended:?}");
}
