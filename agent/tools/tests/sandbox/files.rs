//! The file tools: what they return to a model, and what the log gets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use abide_tools::{Effect, Failure, ToolOutcome};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{Home, tenant};

fn project() -> Home {
    let home = Home::new();
    home.write("src/main.rs", "fn main() {\n    run();\n}\n");
    home.write("src/lib/run.rs", "pub fn run() {}\n// run again\n");
    home.write("README.md", "# Project\n");
    home.write("target/debug/main.rs", "fn main() {}\n");
    home
}

async fn check(home: &Home, calls: &[(&str, Value)], expected: Expect) {
    let mut lines = Vec::new();
    for (tool, arguments) in calls {
        let ToolOutcome { text, failure, .. } = home.call(tool, arguments.clone()).await;
        let failure = failure.map(|failure| format!(" [{}]", failure.code())).unwrap_or_default();
        lines.push(format!("{tool} {arguments}{failure}\n{text}"));
    }
    let text = lines.join("\n").replace(&home.path("").display().to_string(), "HOME/");
    expected.assert_eq(&text);
}

#[tokio::test]
async fn tools_declare_their_effect_and_describe_their_arguments() {
    let home = project();
    let mut lines = Vec::new();
    for tool in home.tools.declarations() {
        let effect = match tool.effect {
            Effect::ReadOnly => "read_only",
            Effect::Idempotent => "idempotent",
            _ => "at_most_once",
        };
        lines.push(format!("{} {effect}", tool.name));
        assert!(tool.description.len() > 40, "{}", tool.name);
        let properties = tool.parameters["properties"].as_object().expect("it has arguments");
        for (name, schema) in properties {
            let described = schema["description"].as_str().unwrap_or_default();
            assert!(described.len() > 10, "{}.{name}: {schema}", tool.name);
        }
        assert_eq!(tool.parameters["additionalProperties"], false, "{}", tool.name);
    }
    let expected = expect![[r#"
        edit_file at_most_once
        execute at_most_once
        glob read_only
        grep read_only
        ls read_only
        read_file read_only
        write_file idempotent"#]];
    expected.assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn files_are_listed_found_and_searched() {
    let calls = [
        ("ls", json!({})),
        ("ls", json!({"path": "src"})),
        ("ls", json!({"path": "README.md"})),
        ("glob", json!({"pattern": "**/*.rs"})),
        ("glob", json!({"pattern": "*.rs", "path": "target/debug"})),
        ("glob", json!({"pattern": "{x"})),
        ("grep", json!({"pattern": "run"})),
        (
            "grep",
            json!({"pattern": "RUN\\(", "ignore_case": true, "glob": "**/main.rs", "context": 1}),
        ),
        ("grep", json!({"pattern": "#", "path": "README.md"})),
        ("grep", json!({"pattern": "run", "path": "src", "glob": "*.rs"})),
        ("grep", json!({"pattern": "run", "path": "src/lib", "context": 1})),
        ("grep", json!({"pattern": "nothing"})),
        ("grep", json!({"pattern": "("})),
    ];
    check(
        &project(),
        &calls,
        expect![[r##"
            ls {}
            README.md
            src/
            target/
            ls {"path":"src"}
            lib/
            main.rs
            ls {"path":"README.md"} [tool]
            ls: a part of README.md is not a folder
            glob {"pattern":"**/*.rs"}
            src/lib/run.rs
            src/main.rs
            glob {"path":"target/debug","pattern":"*.rs"}
            target/debug/main.rs
            glob {"pattern":"{x"} [tool]
            glob: the pattern "{x" has an open {
            grep {"pattern":"run"}
            src/main.rs:2:    run();
            src/lib/run.rs:1:pub fn run() {}
            src/lib/run.rs:2:// run again
            grep {"context":1,"glob":"**/main.rs","ignore_case":true,"pattern":"RUN\\("}
            src/main.rs-1-fn main() {
            src/main.rs:2:    run();
            src/main.rs-3-}
            grep {"path":"README.md","pattern":"#"}
            README.md:1:# Project
            grep {"glob":"*.rs","path":"src","pattern":"run"}
            src/main.rs:2:    run();
            grep {"context":1,"path":"src/lib","pattern":"run"}
            src/lib/run.rs:1:pub fn run() {}
            src/lib/run.rs:2:// run again
            src/lib/run.rs-3-
            grep {"pattern":"nothing"}
            no line matches nothing
            grep {"pattern":"("} [tool]
            grep: the pattern is invalid: regex parse error:
                (
                ^
            error: unclosed group"##]],
    )
    .await;
}

#[tokio::test]
async fn files_are_read_in_ranges() {
    let home = project();
    home.write("empty", "");
    home.write("binary", "a\0b");
    home.write("wide", &"x".repeat(300_000));
    let lines: Vec<String> = (1..=2_005).map(|line| format!("line {line}")).collect();
    home.write("long", &lines.join("\n"));
    let calls = [
        ("read_file", json!({"path": "src/main.rs"})),
        ("read_file", json!({"path": "./src/../src/main.rs", "from_line": 2, "lines": 1})),
        ("read_file", json!({"path": "src/main.rs", "from_line": 9})),
        ("read_file", json!({"path": "long", "from_line": 2_003})),
        ("read_file", json!({"path": "empty"})),
        ("read_file", json!({"path": "binary"})),
        ("read_file", json!({"path": "src"})),
        ("read_file", json!({"path": "missing.rs"})),
        ("read_file", json!({"path": "src/main.rs", "line": 1})),
    ];
    check(&home, &calls, expect![[r#"
        read_file {"path":"src/main.rs"}
        1	fn main() {
        2	    run();
        3	}
        read_file {"from_line":2,"lines":1,"path":"./src/../src/main.rs"}
        2	    run();
        [lines 2 to 2 of 3: continue with from_line 3]
        read_file {"from_line":9,"path":"src/main.rs"} [tool]
        read_file: src/main.rs has only 3 lines
        read_file {"from_line":2003,"path":"long"}
        2003	line 2003
        2004	line 2004
        2005	line 2005
        read_file {"path":"empty"}
        the file is empty
        read_file {"path":"binary"}
        binary is a binary file of 3 bytes
        read_file {"path":"src"} [tool]
        read_file: src is a folder: ls lists it
        read_file {"path":"missing.rs"} [tool]
        read_file: missing.rs does not exist: glob finds files by name
        read_file {"line":1,"path":"src/main.rs"} [arguments]
        read_file: invalid arguments: Additional properties are not allowed ('line' was unexpected). Parameters: from_line (integer or null), lines (integer or null), path (string, required)"#]]).await;
    let long = home.call("read_file", json!({"path": "long"})).await.text;
    assert!(long.ends_with("[lines 1 to 2000 of 2005: continue with from_line 2001]"), "{long}");
    let wide = home.call("read_file", json!({"path": "wide"})).await.text;
    assert!(wide.len() < 300_000, "{}", wide.len());
}

#[tokio::test]
async fn files_are_written_and_edited() {
    let home = project();
    home.write("crlf", "one\r\ntwo\r\n");
    home.write("aaa", "aaa");
    let path = home.path("project/src/main.rs");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the mode can be set");
    let calls = [
        ("write_file", json!({"path": "new/folder/a.txt", "content": "one\n"})),
        ("write_file", json!({"path": "new/folder/a.txt", "content": "two\n"})),
        ("write_file", json!({"path": "src", "content": ""})),
        ("write_file", json!({"path": "..", "content": ""})),
        ("write_file", json!({"path": "README.md/a", "content": ""})),
        ("edit_file", json!({"path": "src/main.rs", "old": "run();", "new": "walk();"})),
        ("edit_file", json!({"path": "src/main.rs", "old": "run();", "new": "walk();"})),
        ("edit_file", json!({"path": "src/lib/run.rs", "old": "run", "new": "walk"})),
        ("edit_file", json!({"path": "src/lib/run.rs", "old": "run", "new": "walk", "all": true})),
        ("edit_file", json!({"path": "src/main.rs", "old": "fn  main() {", "new": "x"})),
        ("edit_file", json!({"path": "src/main.rs", "old": "fn main() {\n  no", "new": "x"})),
        ("edit_file", json!({"path": "crlf", "old": "one\ntwo", "new": "x"})),
        ("edit_file", json!({"path": "aaa", "old": "aa", "new": "b"})),
        ("edit_file", json!({"path": "aaa", "old": "", "new": "b"})),
        ("edit_file", json!({"path": "aaa", "old": "a", "new": "a"})),
        ("edit_file", json!({"path": "missing", "old": "a", "new": "b"})),
    ];
    check(&home, &calls, expect![[r#"
        write_file {"content":"one\n","path":"new/folder/a.txt"}
        created new/folder/a.txt (4 bytes)
        write_file {"content":"two\n","path":"new/folder/a.txt"}
        replaced new/folder/a.txt (4 bytes)
        write_file {"content":"","path":"src"} [tool]
        write_file: src is a folder
        write_file {"content":"","path":".."} [tool]
        write_file: .. is not a file name
        write_file {"content":"","path":"README.md/a"} [tool]
        write_file: a part of README.md is not a folder
        edit_file {"new":"walk();","old":"run();","path":"src/main.rs"}
        edited src/main.rs: 1 replacement(s), the first at line 2
        edit_file {"new":"walk();","old":"run();","path":"src/main.rs"} [tool]
        edit_file: the text is not in src/main.rs: read the file and copy the text from it
        edit_file {"new":"walk","old":"run","path":"src/lib/run.rs"} [tool]
        edit_file: the text occurs 2 times in src/lib/run.rs, at lines 1, 2: include more of the lines around it, or set all
        edit_file {"all":true,"new":"walk","old":"run","path":"src/lib/run.rs"}
        edited src/lib/run.rs: 2 replacement(s), the first at line 1
        edit_file {"new":"x","old":"fn  main() {","path":"src/main.rs"} [tool]
        edit_file: the text is not in src/main.rs exactly: spaces or line breaks differ; read the file and copy it
        edit_file {"new":"x","old":"fn main() {\n  no","path":"src/main.rs"} [tool]
        edit_file: the text is not in src/main.rs; its first line occurs at line 1, but other lines differ
        edit_file {"new":"x","old":"one\ntwo","path":"crlf"} [tool]
        edit_file: the text is not in crlf: its lines end with \r\n
        edit_file {"new":"b","old":"aa","path":"aaa"} [tool]
        edit_file: the text occurs 2 times in aaa, at lines 1, 1: include more of the lines around it, or set all
        edit_file {"new":"b","old":"","path":"aaa"} [tool]
        edit_file: old is empty: use write_file for a new file
        edit_file {"new":"a","old":"a","path":"aaa"} [tool]
        edit_file: old and new are the same text
        edit_file {"new":"b","old":"a","path":"missing"} [tool]
        edit_file: missing does not exist: glob finds files by name"#]]).await;
    assert_eq!(home.read("src/main.rs"), "fn main() {\n    walk();\n}\n");
    assert_eq!(home.read("aaa"), "aaa");
    let mode = fs::metadata(&path).expect("it exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    let left = fs::read_dir(home.path("project/src")).expect("it can be listed").count();
    assert_eq!(left, 2, "no temporary file is left");
}

/// The auditor's view of the result of a call.
#[tokio::test]
async fn results_name_the_files_that_were_touched() {
    let home = project();
    let mut lines = Vec::new();
    for (tool, arguments) in [
        ("read_file", json!({"path": "README.md"})),
        ("grep", json!({"pattern": "main", "glob": "src/**"})),
        ("write_file", json!({"path": "a.txt", "content": "a"})),
        ("edit_file", json!({"path": "a.txt", "old": "a", "new": "b"})),
        ("execute", json!({"command": "echo c > c.txt; echo d >> a.txt; rm README.md; false"})),
    ] {
        let content = home.call(tool, arguments).await.content;
        for file in content["files"].as_array().expect("a list of files") {
            let digest = file["sha256"].as_str().map_or("", |it| &it[..8]);
            let action = file["action"].as_str();
            let path = file["path"].as_str();
            let action = action.expect("a text");
            let path = path.expect("a text");
            lines.push(format!("{tool} {action} {path} {digest}").trim_end().to_owned());
        }
    }
    let expected = expect![[r#"
        read_file read README.md aef277fb
        grep read src/main.rs 4e429d42
        write_file created a.txt ca978112
        edit_file modified a.txt 3e23e816
        execute deleted README.md
        execute modified a.txt 234f5af4
        execute created c.txt a3a5e715"#]];
    expected.assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn a_tenant_does_not_reach_the_files_of_another_one() {
    let home = Home::new();
    let write = json!({"path": "a.txt", "content": "of acme"});
    let written = home.call_in("write_file", write, tenant("acme")).await;
    assert_eq!(written.failure, None, "{}", written.text);
    let read = json!({"path": "a.txt"});
    let own = home.call_in("read_file", read.clone(), tenant("acme")).await;
    assert_eq!(own.text, "1\tof acme");
    let other = home.call_in("read_file", read.clone(), tenant("evil")).await;
    assert_eq!(other.failure, Some(Failure::Tool), "{}", other.text);
    let search = json!({"command": "find / -name a.txt 2>/dev/null; cat ../*/a.txt; ls ..; pwd"});
    let found = home.call_in("execute", search, tenant("evil")).await;
    assert!(!found.text.contains("of acme") && !found.text.contains("a.txt\n"), "{}", found.text);
    // Nor does a session without a scope, whose workspace contains the folder of the configuration.
    let none = home.call("glob", json!({"pattern": "**/a.txt"})).await;
    assert_eq!(none.text, "no file matches **/a.txt");
    // A path in the arguments that names the folder of the other one.
    let acme = home.sandbox.workspace_path(&tenant("acme").scope).expect("it exists");
    let absolute = json!({"path": acme.join("a.txt")});
    let refused = home.call_in("read_file", absolute, tenant("evil")).await;
    assert_eq!(refused.failure, Some(Failure::Tool), "{}", refused.text);
}
