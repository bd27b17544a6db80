//! The repository follows the rules, and each rule finds violations in a small sample.

use super::dependencies::{self, Edge};
use super::source::Source;
use super::*;

/// The findings for one Rust file, one per line.
fn check_rust(path: &str, text: &str) -> String {
    let source = source(path, text);
    let mut findings: Vec<Finding> = opening::check(&source).into_iter().collect();
    findings.extend(sleeps::check(&source));
    findings.extend(sockets::check(&source));
    lines(&findings)
}

fn source(path: &str, text: &str) -> Source {
    Source::parse(&File { path: path.to_owned(), text: text.to_owned() })
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_repository_is_tidy() {
    let report = check(crate::root()).expect("tidy can read the repository");
    assert!(report.findings.is_empty(), "\n{}\n", lines(&report.findings));
}

#[test]
fn a_file_starts_with_a_description() {
    let found = "a.rs: does not start with `//!` and a description of the file";
    assert_eq!(check_rust("a.rs", "//! A file.\n"), "");
    assert_eq!(check_rust("a.rs", "use std::fmt;\n"), found);
    assert_eq!(check_rust("a.rs", "//!\n//! Too late.\n"), found);
    assert_eq!(check_rust("a.rs", ""), found);
}

#[test]
fn sockets_are_used_in_named_places_only() {
    let code = "//! A file.\nuse tokio::net::TcpStream;\nfn f(my_reqwest: u8) {}\n";
    let why = "uses sockets: name the file in ARCHITECTURE.md and in xtask/src/tidy/sockets.rs";
    assert_eq!(check_rust("engine/src/a.rs", code), format!("engine/src/a.rs:2: {why}"));
    assert_eq!(check_rust("server/src/a.rs", code), "");
    assert_eq!(check_rust("tests/it/a.rs", code), "");
}

#[test]
fn tests_do_not_sleep() {
    let sleep = "//! A file.\nfn f() { thread::sleep(SECOND) }\n";
    let found = "2: `sleep`: wait for the expected event, or give a reason above: `tidy: <reason>`";
    assert_eq!(check_rust("a.rs", sleep), "");
    assert_eq!(check_rust("tests/a.rs", sleep), format!("tests/a.rs:{found}"));
    assert_eq!(check_rust("src/a/tests.rs", sleep), format!("src/a/tests.rs:{found}"));
    assert_eq!(
        check_rust(
            "tests/a.rs",
            "//! A file.\nasync fn f() { tokio::time::sleep(SECOND).await }\n"
        ),
        format!("tests/a.rs:{found}")
    );
    assert_eq!(
        check_rust("a.rs", "//! A file.\n#[cfg(test)]\nmod tests {\nfn f() { sleep(SECOND) }\n}\n"),
        format!("a.rs:{}", found.replacen('2', "4", 1))
    );
    let waived = "//! A file.\n// tidy: the clock is paused\nfn f() { sleep(SECOND) }\n";
    assert_eq!(check_rust("tests/a.rs", waived), "");
    let no_reason = "//! A file.\n// tidy: \nfn f() { sleep(SECOND) }\n";
    assert!(check_rust("tests/a.rs", no_reason).contains("`sleep`"));
}

#[test]
fn tests_in_scripts_do_not_sleep() {
    let check = |path: &str, text: &str| {
        lines(&sleeps::check_script(&File { path: path.to_owned(), text: text.to_owned() }))
    };
    let found = "`sleep`: wait for the expected event, or give a reason above: `tidy: <reason>`";
    let script = "await new Promise((resolve) => setTimeout(resolve, 50));\n";
    assert_eq!(check("sdk/test/a.ts", script), format!("sdk/test/a.ts:1: {found}"));
    assert_eq!(check("sdk/src/a.ts", script), "");
    assert_eq!(check("tests/a.py", "await asyncio.sleep(0.1)\n"), format!("tests/a.py:1: {found}"));
    assert_eq!(check("tests/a.py", "await asyncio.sleep(0)\n"), "");
    assert_eq!(check("tests/a.mjs", "setTimeout(resolve, 0);\n"), "");
    assert_eq!(check("tests/a.py", "# tidy: no event\ntime.sleep(1)\n"), "");
    assert_eq!(check("tests/a.py", "# tidy: \ntime.sleep(1)\n"), format!("tests/a.py:2: {found}"));
}

#[test]
fn locations_of_one_machine_are_found() {
    let check =
        |path: &str, text: String| lines(&places::check(&File { path: path.to_owned(), text }));
    let folder = |name: &str| format!("\nDATA = \"/{name}/x\"\n");
    assert_eq!(check("a.py", folder("work")), "a.py:2: names a folder of one machine");
    assert_eq!(check("a.py", folder("root")), "a.py:2: names a folder of one machine");
    assert_eq!(check("a.py", folder("srv")), "");
    assert_eq!(check("a.md", "../work/x and /v1/work/x".to_owned()), "");

    let url = |host: &str| format!("see https://{host}/simple");
    let found = "a.md:1: names the host of a package registry";
    assert_eq!(check("a.md", url(&["files.python", "hosted.org"].concat())), found);
    assert_eq!(check("a.md", url("example.org/pypi")), "");
}

/// Each line of the sample is `from -> to`, with a `?` if the dependency is optional.
#[test]
fn dependencies_in_the_wrong_direction_are_found() {
    let check = |sample: &str| {
        lines(&dependencies::check(
            &sample
                .lines()
                .map(|line| {
                    let (from, to) =
                        line.trim().split_once(" -> ").expect("a sample line has an arrow");
                    let name = to.trim_end_matches('?');
                    Edge { from: from.to_owned(), to: name.to_owned(), optional: name != to }
                })
                .collect::<Vec<_>>(),
        ))
    };
    assert_eq!(
        check(
            "abide-engine -> abide-live
             abide-engine -> tokio
             abide-client -> abide-engine?
             abide-store -> rusqlite
             abide -> abide-server
             abide-bench -> rusqlite
             abide-tests -> abide-engine"
        ),
        ""
    );
    assert_eq!(
        check(
            "abide-engine -> abide-reducers
             abide-schema -> abide-log
             abide-client -> abide-engine
             abide-server -> abide
             abide-log -> abide-macros
             abide-live -> rusqlite
             abide-tests -> abide-reducers
             abide-utils -> abide-schema"
        ),
        "abide-utils: is not in the table of xtask/src/tidy/dependencies.rs\n\
         abide-engine: depends on abide-reducers, which is the wrong direction\n\
         abide-schema: depends on abide-log, which is the wrong direction\n\
         abide-client: depends on abide-engine, which must be optional\n\
         abide-server: depends on abide, which is the wrong direction\n\
         abide-log: depends on abide-macros, which is the wrong direction\n\
         abide-live: depends on rusqlite: only abide-store may use it\n\
         abide-tests: depends on abide-reducers, which is the wrong direction"
    );
}

#[test]
fn pages_name_files_that_exist() {
    let check = |path: &str, text: &str| {
        let page = File { path: path.to_owned(), text: text.to_owned() };
        lines(&named_files::check(&page, &["engine/src/lib.rs".to_owned()]))
    };
    let text = "`engine/src/lib.rs`, `engine/`, `engine/src/gone.rs`\n```\n`a/b.rs`\n```\n`lib.rs`";
    let gone = ":1: names engine/src/gone.rs, which does not exist";
    assert_eq!(
        check("ARCHITECTURE.md", text),
        format!("ARCHITECTURE.md{gone}\nARCHITECTURE.md:5: names lib.rs, which does not exist")
    );
    assert_eq!(check("CONTRIBUTING.md", text), format!("CONTRIBUTING.md{gone}"));
    assert_eq!(check("docs/other.md", text), "");
}

#[test]
fn events_of_the_log_have_names_and_a_row_in_the_page() {
    let text = "//! A file.\nfn f() {\n    tracing::warn!(\n        name: \"lost\",\n        run = of(1, 2),\n        \
        %why,\n        \"it is lost, (see \\\"x\\\")\"\n    );\n    tracing::info!(\"no name\");\n    tracing::debug!(\"any\");\n}\n";
    let mut events = log_events::LogEvents::new();
    let findings = log_events::collect(&source("engine/src/a.rs", text), &mut events);
    assert!(lines(&findings).starts_with("engine/src/a.rs:9: an event of the log has no name"));
    assert!(log_events::collect(&source("bench/src/a.rs", text), &mut events).is_empty());
    let page = |rows: &str| {
        let text = format!(
            "# Logs\n\n| `other` | x |\n\n## All events\n\n| event | level |\n|---|---|\n{rows}"
        );
        let file = File { path: "docs/logs.md".to_owned(), text };
        lines(&log_events::check_page(&file, &events))
    };
    assert_eq!(page("| `lost` | WARN | `why`, `run` | it is lost |\n"), "");
    let is = "`WARN` with the fields `run, why`";
    let missing = format!("docs/logs.md: the event lost is missing: {is}");
    assert_eq!(page(""), missing);
    let wrong = format!("docs/logs.md: the event lost is {is}");
    assert_eq!(page("| `lost` | ERROR | `run`, `why` | it is lost |\n"), wrong);
    let unknown = page("| `lost` | WARN | `run`, `why` | |\n| `gone` | WARN | | |\n");
    assert_eq!(unknown, "docs/logs.md: no code writes the event gone");
}

#[test]
fn packages_have_the_version_and_the_name_of_the_workspace() {
    let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
    let good = [
        file("client-sdk/typescript/package.json", "{\n  \"version\": \"1.2.3\",\n"),
        file("package/npm/README.md", "npx my-db demo\n"),
    ];
    let found = lines(&packages::check(&good, "1.2.3", "my-db"));
    let names = |path: &str| found.lines().any(|line| line.starts_with(&format!("{path}: ")));
    assert!(!names("client-sdk/typescript/package.json") && !names("package/npm/README.md"));
    assert!(names("docs/install.md"), "a missing file is found: {found}");
    let found = lines(&packages::check(&good, "1.2.4", "your-db"));
    let version = "client-sdk/typescript/package.json: does not contain `\"version\": \"1.2.4\"`";
    assert!(found.contains(version), "{found}");
    assert!(
        found.contains("package/npm/README.md: does not contain `npx your-db demo`"),
        "{found}"
    );
}
