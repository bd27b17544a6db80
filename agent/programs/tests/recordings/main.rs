//! Parses every recorded line of every program: a golden summary for each file, and for programs with a known
//! format an independent second parser as an oracle.
//!
//! The fixtures of this crate are a published part of the recordings. If the other recordings are missing, the test
//! reports that.
//!
//! All texts in them are untrusted data: they contain prompts for other agents.

mod oracle;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use abide_programs::{Program, ProgramEvent};
use abide_tests::{files_under, recordings};
use expect_test::{ExpectFile, expect_file};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The program that wrote a file, by its folder and name.
fn program(file: &str) -> Program {
    let (folder, name) = file.split_once('/').expect("a recording lies in a folder");
    let begins = |beginnings: &[&str]| beginnings.iter().any(|text| name.starts_with(text));
    match folder {
        "claude-stream-json" | "claude-session-jsonl" => Program::Claude,
        "codex-exec-json" => Program::Codex,
        _ if begins(&["gleam__", "untether__amp"]) => Program::Claude,
        _ if begins(&["codex_", "untether__codex"]) => Program::Codex,
        _ if begins(&["gemini_", "untether__gemini"]) => Program::Gemini,
        _ if begins(&["opencode_", "untether__opencode"]) => Program::OpenCode,
        _ => Program::Generic,
    }
}

/// The lines as a program writes them. A single message over several lines becomes one line. A line that a client
/// failed to parse is stored as text in a message of the client.
fn lines(path: &Path) -> Vec<String> {
    let lines = abide_tests::lines(path);
    let whole = serde_json::from_str::<Value>(&lines.join("\n"));
    match whole {
        Ok(message) => match message["raw_json"].as_str() {
            Some(raw) => vec![raw.to_owned()],
            None => vec![message.to_string()],
        },
        Err(_) => lines,
    }
}

/// The events of a run with these lines, including the end of output.
fn events(program: Program, lines: &[String]) -> Vec<ProgramEvent> {
    let mut parser = program.parser();
    let mut events: Vec<ProgramEvent> =
        lines.iter().flat_map(|line| parser.parse_line(line)).collect();
    events.extend(parser.finish());
    events
}

/// The number of events of each kind, one file per line.
fn summary(file: &str, program: Program, lines: &[String], events: &[ProgramEvent]) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for event in events {
        let event = serde_json::to_value(event).expect("an event is JSON");
        let kind = event["type"].as_str().expect("an event has a type");
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!("{file} [{program:?}] {} lines: {}\n", lines.len(), kinds.join(", "))
}

fn check(folder: &Path, files: &[PathBuf], golden: ExpectFile) {
    let mut output = String::new();
    for path in files {
        let file = path.strip_prefix(folder).expect("the path is in the folder").to_string_lossy();
        let program = program(&file);
        let lines = lines(path);
        let events = events(program, &lines);
        write!(output, "{}", summary(&file, program, &lines, &events))
            .expect("writing to a string succeeds");
        oracle::check(&file, program, &lines, &events);
    }
    golden.assert_eq(&output);
}

#[test]
fn the_fixtures_match_the_golden_summary_and_the_oracle() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    check(&folder, &fixtures(&folder), expect_file!["../golden/fixtures.txt"]);
}

fn fixtures(folder: &Path) -> Vec<PathBuf> {
    files_under(folder)
        .into_iter()
        .filter(|path| {
            path.extension().is_some_and(|ending| ending == "jsonl" || ending == "ndjson")
        })
        .collect()
}

/// Every fixture is unchanged and has a provenance.
#[test]
fn every_fixture_has_a_provenance() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let table = std::fs::read_to_string(folder.join("PROVENANCE.tsv")).expect("the table exists");
    let mut named: Vec<(String, String)> = table
        .lines()
        .skip(1)
        .map(|row| {
            let mut columns = row.split('\t').map(str::to_owned);
            let mut column = || columns.next().expect("a row has a file and its hash");
            (column(), column())
        })
        .collect();
    named.sort();
    let found: Vec<(String, String)> = fixtures(&folder)
        .iter()
        .map(|path| {
            let bytes = std::fs::read(path).expect("it can be read");
            let hash = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let file = path.strip_prefix(&folder).expect("the path is in the folder");
            (file.to_string_lossy().into_owned(), hash)
        })
        .collect();
    assert_eq!(found, named);
}

/// Programs change their formats, and lines may be malicious: any value at any location must be parsed without a
/// panic, and must not end a run without a terminal line.
#[test]
fn no_value_in_a_line_breaks_a_parser() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let shapes = ["null", "true", "-1", "\"\"", "[[]]", "{\"type\":{}}"];
    let shapes = shapes.map(|shape| serde_json::from_str::<Value>(shape).expect("it is JSON"));
    let mut read = 0;
    for path in fixtures(&folder) {
        let file = path.strip_prefix(&folder).expect("the path is in the folder").to_string_lossy();
        for line in lines(&path) {
            let line: Value = serde_json::from_str(&line).expect("a fixture is JSON");
            for place in places(&line) {
                for shape in &shapes {
                    let mut changed = line.clone();
                    *changed.pointer_mut(&place).expect("the location exists") = shape.clone();
                    let changed = changed.to_string();
                    read += events(program(&file), &[changed.clone(), changed]).len();
                }
            }
        }
    }
    assert!(read > 10_000, "all variants were parsed");
}

/// All locations in a value, as JSON pointers.
fn places(value: &Value) -> Vec<String> {
    let inside = |key: &str, value: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        places(value).into_iter().map(|rest| format!("/{key}{rest}")).collect::<Vec<_>>()
    };
    let mut found = vec![String::new()];
    match value {
        Value::Object(object) => {
            found.extend(object.iter().flat_map(|(key, value)| inside(key, value)));
        }
        Value::Array(values) => {
            let values = values.iter().enumerate();
            found.extend(values.flat_map(|(at, value)| inside(&at.to_string(), value)));
        }
        _ => {}
    }
    found
}

#[test]
fn every_recording_matches_the_oracle() {
    let Some(folder) = recordings().map(|data| data.join("recordings")) else {
        let why = "skipped: unpublished recordings of programs (ABIDE_EXTERNAL_FIXTURES)";
        writeln!(std::io::stdout(), "{why}").expect("stdout can be written");
        return;
    };
    check(&folder, &files_under(&folder), expect_file!["../golden/recordings.txt"]);
}
