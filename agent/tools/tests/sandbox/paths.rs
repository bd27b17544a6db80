//! Paths in the arguments of file tools that try to leave the workspace.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use expect_test::expect;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use crate::{Home, SECRET};

/// A workspace with links out of it.
fn prepared() -> Home {
    let home = Home::new();
    home.write("inside/file", "inside");
    let work = home.path("project");
    for (target, name) in [
        ("../secret", "link"),
        ("..", "up"),
        ("inside", "in"),
        ("missing", "dangling"),
        ("loop", "loop"),
        (".abide", "hidden"),
        ("/proc/self/root", "root"),
    ] {
        symlink(target, work.join(name)).expect("the link can be made");
    }
    symlink(home.path("secret"), work.join("absolute")).expect("the link can be made");
    fs::hard_link(home.path("secret"), work.join("hard")).expect("the link can be made");
    home
}

/// Paths that a model may write.
const PATHS: [&str; 15] = [
    "../secret",
    "inside/../../secret",
    "/etc/passwd",
    "link",
    "absolute",
    "up/secret",
    "in/file",
    "dangling",
    "loop",
    "root/etc/passwd",
    "/proc/self/root/etc/passwd",
    ".abide/abide.yaml",
    "inside/../.abide/abide.yaml",
    "hidden/abide.yaml",
    "a\0b",
];

#[tokio::test]
async fn file_tools_do_not_leave_the_workspace() {
    let home = prepared();
    let absolute = home.path("secret").display().to_string();
    let mut lines = Vec::new();
    for path in PATHS.into_iter().chain([absolute.as_str()]) {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "changed"})),
            ("edit_file", json!({"path": path, "old": "TOP", "new": "changed"})),
            ("ls", json!({"path": path})),
            ("grep", json!({"pattern": ".", "path": path})),
            ("glob", json!({"pattern": "**", "path": path})),
        ] {
            let outcome = home.call(tool, arguments).await;
            assert!(!outcome.text.contains(SECRET), "{tool} {path}: {}", outcome.text);
            if tool != "read_file" && tool != "write_file" {
                continue;
            }
            let text = outcome.text.replace(&home.path("").display().to_string(), "HOME/");
            lines
                .push(format!("{}: {text}", path.replace(&absolute, "HOME/secret").escape_debug()));
        }
    }
    assert_eq!(fs::read_to_string(home.path("secret")).expect("it exists"), SECRET);
    let key = fs::read_to_string(home.path("project/.abide/abide.yaml")).expect("it exists");
    assert_eq!(key, SECRET);
    expect![[r#"
        ../secret: read_file: ../secret leaves the workspace: use a path below it
        ../secret: write_file: .. leaves the workspace: use a path below it
        inside/../../secret: read_file: inside/../../secret leaves the workspace: use a path below it
        inside/../../secret: write_file: inside/../.. leaves the workspace: use a path below it
        /etc/passwd: read_file: /etc/passwd is outside of the workspace: use a path relative to it
        /etc/passwd: write_file: /etc/passwd is outside of the workspace: use a path relative to it
        link: read_file: link leaves the workspace: use a path below it
        link: write_file: link is a symbolic link: write to its target
        absolute: read_file: absolute leaves the workspace: use a path below it
        absolute: write_file: absolute is a symbolic link: write to its target
        up/secret: read_file: up/secret leaves the workspace: use a path below it
        up/secret: write_file: up leaves the workspace: use a path below it
        in/file: 1	inside
        in/file: replaced inside/file (7 bytes)
        dangling: read_file: dangling does not exist: glob finds files by name
        dangling: write_file: dangling is a symbolic link: write to its target
        loop: read_file: loop contains a symbolic link that is not followed
        loop: write_file: loop is a symbolic link: write to its target
        root/etc/passwd: read_file: root/etc/passwd leaves the workspace: use a path below it
        root/etc/passwd: write_file: root leaves the workspace: use a path below it
        /proc/self/root/etc/passwd: read_file: /proc/self/root/etc/passwd is outside of the workspace: use a path relative to it
        /proc/self/root/etc/passwd: write_file: /proc/self/root/etc/passwd is outside of the workspace: use a path relative to it
        .abide/abide.yaml: read_file: .abide/abide.yaml belongs to the configuration of the agents and is not accessible
        .abide/abide.yaml: write_file: .abide belongs to the configuration of the agents and is not accessible
        inside/../.abide/abide.yaml: read_file: .abide/abide.yaml belongs to the configuration of the agents and is not accessible
        inside/../.abide/abide.yaml: write_file: .abide belongs to the configuration of the agents and is not accessible
        hidden/abide.yaml: read_file: .abide/abide.yaml belongs to the configuration of the agents and is not accessible
        hidden/abide.yaml: write_file: .abide belongs to the configuration of the agents and is not accessible
        a\0b: read_file: the path contains a zero byte
        a\0b: write_file: the path contains a zero byte
        HOME/secret: read_file: HOME/secret is outside of the workspace: use a path relative to it
        HOME/secret: write_file: HOME/secret is outside of the workspace: use a path relative to it"#]].assert_eq(&lines.join("\n"));
}

/// A hard link shares the file. The tools give the name a new file, so the other name keeps its content.
#[tokio::test]
async fn a_write_does_not_reach_the_other_name_of_a_file() {
    let home = prepared();
    let outcome = home.call("write_file", json!({"path": "hard", "content": "changed"})).await;
    assert_eq!(outcome.failure, None, "{}", outcome.text);
    assert_eq!(home.read("hard"), "changed");
    assert_eq!(fs::read_to_string(home.path("secret")).expect("it exists"), SECRET);
}

#[tokio::test]
async fn special_files_are_not_opened() {
    let home = Home::new();
    let pipe = home.path("project/pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let read = home.call("read_file", json!({"path": "pipe"})).await;
    assert_eq!(read.text, "read_file: pipe is not a regular file");
    let write = home.call("write_file", json!({"path": "pipe", "content": ""})).await;
    assert_eq!(write.text, "write_file: pipe is not a regular file");
    let search = home.call("grep", json!({"pattern": "x"})).await;
    assert_eq!(search.text, "no line matches x");
}

/// While the tools run, another thread exchanges a folder of the workspace with a link to its parent.
#[tokio::test]
async fn a_folder_that_becomes_a_link_during_the_call_is_not_followed() {
    let home = Home::new();
    home.write("folder/secret", "inside");
    let folder = home.path("project/folder");
    let link = home.path("project/link");
    symlink("..", &link).expect("the link can be made");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let swaps = std::thread::spawn(move || {
        let mut swaps = 0_u64;
        while !stopped.load(Ordering::Relaxed) {
            renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE).expect("an exchange");
            swaps += 1;
        }
        swaps
    });
    let mut inside = 0;
    for _ in 0..500 {
        let read = home.call("read_file", json!({"path": "folder/secret"})).await;
        assert!(!read.text.contains(SECRET), "{}", read.text);
        inside += usize::from(read.failure.is_none());
        let write = json!({"path": "folder/new", "content": "x"});
        home.call("write_file", write).await;
        let listed = home.call("ls", json!({"path": "folder"})).await;
        assert!(!listed.text.contains("project/"), "{}", listed.text);
        let found = home.call("grep", json!({"pattern": SECRET})).await;
        assert!(!found.text.contains(":TOP"), "{}", found.text);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(swaps.join().expect("the thread ends") > 0);
    assert!(inside > 0, "the file inside was never read");
    assert!(!home.path("new").exists());
}
