//! The database of the server inside of the workspace: `write_file` replaced it, and a program could remove it, while the
//! server went on.

use std::fs;

use expect_test::expect;
use serde_json::json;

use crate::{Home, SECRET, backends};

const FILES: [&str; 4] = ["abide.db", "abide.db-wal", "abide.db-lock", "abide.db-redo-1"];

/// A home whose workspace has a database.
fn home(backend: &str) -> Home {
    let home = Home::with(&json!({"backend": backend}));
    for name in FILES {
        home.write(name, SECRET);
    }
    home.write("abide.db.md", "a page");
    assert!(home.sandbox.protect(&home.path("project/abide.db")), "it is in the workspace");
    home
}

fn check_kept(home: &Home, what: &str) {
    for name in FILES {
        assert_eq!(home.read(name), SECRET, "{what}: {name}");
    }
}

#[tokio::test]
async fn file_tools_do_not_reach_the_database() {
    let home = home("local");
    let mut lines = Vec::new();
    for name in FILES.into_iter().chain(["src/../abide.db"]) {
        fs::create_dir_all(home.path("project/src")).expect("it can be created");
        for (tool, arguments) in [
            ("read_file", json!({"path": name})),
            ("write_file", json!({"path": name, "content": "changed"})),
            ("edit_file", json!({"path": name, "old": "TOP", "new": "changed"})),
            ("grep", json!({"pattern": ".", "path": name})),
        ] {
            let outcome = home.call(tool, arguments).await;
            assert!(!outcome.text.contains(SECRET), "{tool} {name}: {}", outcome.text);
            assert!(outcome.is_error, "{tool} {name}: {}", outcome.text);
            lines.push(outcome.text);
        }
    }
    lines.truncate(2);
    expect![[r#"
        read_file: abide.db belongs to the database and is not accessible
        write_file: abide.db belongs to the database and is not accessible"#]]
    .assert_eq(&lines.join("\n"));
    for (tool, arguments) in [
        ("ls", json!({})),
        ("glob", json!({"pattern": "**"})),
        ("grep", json!({"pattern": "TOP|page"})),
    ] {
        let outcome = home.call(tool, arguments).await;
        assert!(outcome.text.contains("abide.db.md"), "{tool}: {}", outcome.text);
        assert!(!outcome.text.contains("abide.db-"), "{tool}: {}", outcome.text);
        assert!(!outcome.text.contains(SECRET), "{tool}: {}", outcome.text);
    }
    check_kept(&home, "file tools");
}

/// Attempts to read or change the database or the configuration.
const ATTEMPTS: [&str; 8] = [
    "cat abide.db abide.db-wal",
    "rm -f abide.db abide.db-wal; rm -rf .abide",
    "echo x > abide.db; echo x >> abide.db-wal; truncate -s0 abide.db-redo-1",
    "echo x > new; mv -f new abide.db",
    "mv abide.db away; ln abide.db away; cp abide.db away",
    "chmod 777 abide.db; touch abide.db",
    "echo x > .abide/abide.yaml; rm .abide/abide.yaml; mv .abide away; touch .abide/more",
    "umount abide.db; umount -l .abide; cat abide.db",
];

#[tokio::test]
async fn programs_do_not_reach_the_database() {
    for backend in backends() {
        for script in ATTEMPTS {
            let home = home(backend.as_str());
            let outcome = home.sh(&format!("{script}; echo ok > done")).await;
            assert!(!outcome.text.contains(SECRET), "{backend}, {script}: {}", outcome.text);
            check_kept(&home, script);
            let config = fs::read_to_string(home.path("project/.abide/abide.yaml"));
            assert_eq!(config.ok().as_deref(), Some(SECRET), "{backend}, {script}");
            assert!(!home.path("project/.abide/more").exists(), "{backend}, {script}");
            assert_eq!(home.read("done"), "ok\n", "{backend}, {script}: {}", outcome.text);
        }
    }
}

/// What is configured as writable stays so below the folder of the configuration.
#[tokio::test]
async fn a_writable_folder_of_the_configuration_stays_writable() {
    let home = Home::with(&json!({"writable": ["cache"]}));
    fs::create_dir(home.path("project/.abide/cache")).expect("it can be created");
    home.sh("echo x > .abide/cache/a; echo x > .abide/b").await;
    assert!(home.path("project/.abide/cache/a").exists());
    assert!(!home.path("project/.abide/b").exists());
}

#[tokio::test]
async fn an_interrupted_command_leaves_the_list_of_its_changes() {
    let home = home("local");
    home.write("old.txt", "one");
    home.write("gone.txt", "one");
    let tool = home.tools.get("execute").expect("it exists");
    assert_eq!(tool.interrupted("call-1".to_owned()).await, None);
    // Opening one end of a named pipe waits for the other end.
    let pipe = home.path("project/pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    let changed = tokio::task::spawn_blocking(move || fs::read_to_string(pipe));
    let script =
        "echo two >> old.txt; rm gone.txt; echo new > new.txt; echo done > pipe; sleep 1000";
    // The call is dropped, as it is when the server is killed.
    tokio::select! {
        outcome = home.call("execute", json!({"command": script})) => panic!("{}", outcome.text),
        read = changed => assert_eq!(read.expect("it ends").expect("it is read"), "done\n"),
    }
    let found = tool.interrupted("call-1".to_owned()).await.expect("it is stored");
    let lines: Vec<String> = found["files"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|file| file["path"] != "pipe")
        .map(|file| format!("{} {} {}", file["action"], file["path"], file["bytes"]))
        .collect();
    assert_eq!(
        lines,
        [r#""deleted" "gone.txt" null"#, r#""created" "new.txt" 4"#, r#""modified" "old.txt" 7"#]
    );
    assert_eq!(found["files_complete"], true);
    // What changes later is not of this call.
    home.write("later.txt", "one");
    assert_eq!(tool.interrupted("call-1".to_owned()).await, Some(found));
}
