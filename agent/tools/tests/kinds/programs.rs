//! Program tools, and faults of programs. Each program is a literal shell script; the tool itself uses no shell.

use std::time::{Duration, Instant};

use abide_tools::{Failure, Invocation, SubprocessTool, SubprocessToolConfig, Tool};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{call, context, environment, output};

/// The definition of a shell script, with additional fields.
fn script(script: &str, more: &Value) -> Value {
    let mut config = json!({"name": "script", "description": "", "command": ["sh", "-c", script]});
    let members = config.as_object_mut().expect("it is an object");
    members.extend(more.as_object().expect("it is an object").clone());
    config
}

fn tool(config: Value) -> Result<SubprocessTool, String> {
    let config: SubprocessToolConfig =
        serde_json::from_value(config).map_err(|why| why.to_string())?;
    SubprocessTool::new(config, &environment()).map_err(|why| why.to_string())
}

async fn check(config: Value, arguments: Value, expected: Expect) {
    let tool = tool(config).expect("the definition is valid");
    expected.assert_eq(&output(&call(&tool, arguments).await));
}

#[tokio::test]
async fn arguments_go_to_stdin_as_json() {
    check(
        script("cat; echo warning >&2", &json!({"output": "json"})),
        json!({"text": "two\nlines"}),
        expect![[r#"
            ok 0
            {"text":"two\nlines"}
            {"exit_code":0,"output":{"text":"two\nlines"},"stderr":"warning","stdout":"{\"text\":\"two\\nlines\"}\n"}"#]],
    )
    .await;
}

#[tokio::test]
async fn arguments_fill_the_argument_vector_without_a_shell() {
    let parameters =
        json!({"type": "object", "properties": {"pattern": {}, "paths": {}, "limit": {}}});
    let config = json!({"name": "grep", "description": "", "parameters": parameters,
        "command": ["printf", "<%s>", "-e", "--limit={limit}", "{pattern}", "--", "{paths}"]});
    let arguments = [
        json!({"pattern": "$(id); `id` | 'x'", "paths": ["a b", "-rf"], "limit": 3}),
        json!({"pattern": "*"}),
        json!({"pattern": "--file=/etc/passwd"}),
        json!({"pattern": -5}),
        json!({"pattern": "a\u{0}b"}),
    ];
    let tool = tool(config).expect("the definition is valid");
    let mut lines = Vec::new();
    for arguments in arguments {
        lines.push(call(&tool, arguments).await.text);
    }
    expect![[r#"
        <-e><--limit=3><$(id); `id` | 'x'><--><a b><-rf>
        <-e><*><-->
        "--file=/etc/passwd" begins with - and would be parsed as an option
        <-e><-5><-->
        an argument contains a zero byte"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn invalid_definitions_are_refused() {
    let places = json!({"type": "object", "properties": {"a": {}}});
    let of = |command: Value| {
        let mut config = script("", &json!({"name": "t", "parameters": places}));
        config["command"] = command;
        config
    };
    let errors: Vec<String> = [
        of(json!([])),
        of(json!(["{a}"])),
        of(json!(["ls", "{b}"])),
        of(json!(["ls", "{a"])),
        of(json!(["ls", "a}"])),
        script("", &json!({"timeout_ms": 0})),
        script("", &json!({"timeout": 5})),
        script("", &json!({"env": {"TOKEN": {"env": "NO_SUCH_VARIABLE"}}})),
    ]
    .into_iter()
    .map(|config| tool(config).err().expect("it is refused"))
    .collect();
    expect![[r#"
        invalid definition of t: its command is empty
        invalid definition of t: the program must not be a placeholder
        invalid definition of t: "{b}" has the placeholder b, which is not a parameter
        invalid definition of t: "{a" has a { without a name: write {{ for a literal brace
        invalid definition of t: "a}" has an unmatched }: write }} for a literal brace
        invalid definition of script: timeout_ms must not be 0
        unknown field `timeout`, expected one of `name`, `description`, `parameters`, `command`, `stdin`, `working_dir`, `readable`, `writable`, `env`, `inherit_env`, `ok_exit_codes`, `output`, `max_output_bytes`, `timeout_ms`, `grace_ms`, `effect`, `needs_approval`, `approval`, `retry`, `required_capability`, `limits`
        invalid definition of script: the environment variable NO_SUCH_VARIABLE is not set"#]].assert_eq(&errors.join("\n"));
}

#[tokio::test]
async fn the_environment_is_an_allowlist_by_default() {
    let show = "echo ${{PATH:+path}} $TEST_OTHER $TEST_TOKEN $MINE";
    let mine = json!({"MINE": "set", "TEST_TOKEN": {"env": "TEST_TOKEN", "prefix": "Bearer "}});
    let mut lines = Vec::new();
    for more in [
        json!({}),
        json!({"env": mine}),
        json!({"inherit_env": "all"}),
        json!({"inherit_env": "none", "env": {"PATH": "/usr/bin:/bin"}}),
        json!({"inherit_env": ["TEST_TOKEN"]}),
    ] {
        let mut config = script(show, &more);
        config["command"][0] = json!("/bin/sh");
        lines.push(call(&tool(config).expect("it is valid"), json!({})).await.text);
    }
    expect![[r#"
        path
        path Bearer s3cret set
        path other s3cret
        path
        path s3cret"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn exit_codes_are_reported() {
    check(
        script("echo half; echo no >&2; exit 3", &json!({})),
        json!({}),
        expect![[r#"
        tool 3
        script failed with exit code 3; stderr:
        no
        stdout:
        half
        {"exit_code":3,"failure":"tool","stderr":"no","stdout":"half\n"}"#]],
    )
    .await;
    check(
        script("exit 3", &json!({"ok_exit_codes": [0, 3]})),
        json!({}),
        expect![[r#"
        ok 3
        no output
        {"exit_code":3,"stdout":""}"#]],
    )
    .await;
    check(
        script("kill -9 $$", &json!({})),
        json!({}),
        expect![[r#"
        tool 137
        script failed with exit code 137
        {"exit_code":137,"failure":"tool","stdout":""}"#]],
    )
    .await;
    check(
        script("echo nonsense", &json!({"output": "json"})),
        json!({}),
        expect![[r#"
        tool 0
        script ran, but its output is not valid JSON: expected ident at line 1 column 2
        stdout:
        nonsense
        {"exit_code":0,"failure":"tool","stdout":"nonsense\n"}"#]],
    )
    .await;
    let gone = json!({"name": "gone", "description": "", "command": ["no-such-program-anywhere"]});
    check(gone, json!({}), expect![[r#"
        unavailable 1
        gone did not run: cannot start no-such-program-anywhere: No such file or directory (os error 2)
        {"error":{"code":"unavailable","message":"gone did not run: cannot start no-such-program-anywhere: No such file or directory (os error 2)"}}"#]]).await;
}

#[tokio::test]
async fn a_hanging_program_is_stopped() {
    let more = json!({"timeout_ms": 200, "grace_ms": 10_000});
    check(
        script("echo begun; exec tail -f /dev/null", &more),
        json!({}),
        expect![[r#"
        timed_out 143
        script timed out after 0.2 s
        stdout:
        begun
        {"exit_code":143,"failure":"timed_out","stdout":"begun\n"}"#]],
    )
    .await;
}

#[tokio::test]
async fn a_program_that_ignores_sigterm_is_killed_with_its_children() {
    let script_ = "trap '' TERM; echo $$; (trap '' TERM; tail -f /dev/null) & tail -f /dev/null";
    let tool = tool(script(script_, &json!({"timeout_ms": 300, "grace_ms": 200})));
    let outcome = call(&tool.expect("it is valid"), json!({})).await;
    assert_eq!(outcome.failure, Some(Failure::TimedOut));
    assert_eq!(outcome.exit_code, 137, "128 and SIGKILL");
    let group = outcome.content["stdout"].as_str().expect("it is text").trim();
    while runs_in(group) {
        tokio::task::yield_now().await;
    }
}

/// Whether a process of the group is running. A killed process stays visible until its parent reaps it.
fn runs_in(group: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted").filter_map(Result::ok);
    let stats =
        processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.into_iter().any(|stat| {
        // The fields after the name in parentheses: state, parent, group.
        let words: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        words[0] != "Z" && words.get(2) == Some(&group)
    })
}

#[tokio::test]
async fn a_cancelled_program_is_stopped() {
    let tool = tool(script("exec tail -f /dev/null", &json!({}))).expect("it is valid");
    let invocation = Invocation::new("call-1", json!({}), context());
    let cancel = invocation.cancel.clone();
    let running = tokio::spawn(tool.run(invocation));
    cancel.cancel();
    let outcome = running.await.expect("the task does not panic");
    assert_eq!((outcome.failure, outcome.exit_code), (Some(Failure::Cancelled), 143));
}

#[tokio::test]
async fn stderr_is_drained_and_its_end_is_kept() {
    let flood = "head -c 10000000 /dev/zero | tr '\\0' x >&2; echo; echo last words >&2; echo done";
    let tool = tool(script(flood, &json!({}))).expect("it is valid");
    let outcome = call(&tool, json!({})).await;
    assert_eq!((outcome.text.as_str(), outcome.exit_code), ("\ndone", 0));
    let stderr = outcome.content["stderr"].as_str().expect("it is text");
    assert!(stderr.ends_with("xxx\nlast words") || stderr.ends_with("xxxlast words"), "{stderr}");
    assert!(outcome.content["stderr_bytes_before"].as_i64() > Some(9_900_000));
}

#[tokio::test]
async fn a_program_need_not_read_its_stdin() {
    let long = "x".repeat(1_000_000);
    let script = script("exec 0<&-; echo fine", &json!({}));
    check(
        script,
        json!({"text": long}),
        expect![[r#"
        ok 0
        fine
        {"exit_code":0,"stdout":"fine\n"}"#]],
    )
    .await;
}

/// Regression: the output became `{"id": 1e+23}`.
#[tokio::test]
async fn output_with_integers_that_would_lose_digits_fails_the_call() {
    check(
        script(r#"echo '[{{"id": 100000000000000000000000}}]'"#, &json!({"output": "json"})),
        json!({}),
        expect![[r#"
            tool 0
            script ran, but its output cannot be stored: the integer 100000000000000000000000 at /0/id does not fit a signed 64-bit integer
            stdout:
            [{"id": 100000000000000000000000}]
            {"exit_code":0,"failure":"tool","stdout":"[{\"id\": 100000000000000000000000}]\n"}"#]],
    )
    .await;
}

#[tokio::test]
async fn a_line_of_ten_megabytes_is_complete_or_too_large() {
    let line = "head -c 10000000 /dev/zero | tr '\\0' x";
    let whole = tool(script(line, &json!({"max_output_bytes": 10_000_000}))).expect("it is valid");
    assert_eq!(call(&whole, json!({})).await.text.len(), 10_000_000);
    let short = tool(script(line, &json!({"max_output_bytes": 9_999_999}))).expect("it is valid");
    let outcome = call(&short, json!({})).await;
    assert_eq!(outcome.failure, Some(Failure::TooLarge));
    let began = "script was stopped: its output exceeds 9999999 bytes\nstdout:\nxxx";
    assert!(outcome.text.starts_with(began), "{}", &outcome.text[..100]);
}

#[tokio::test]
async fn endless_output_is_stopped_before_the_timeout() {
    let tool = tool(script("yes", &json!({"max_output_bytes": 1_000}))).expect("it is valid");
    let outcome = call(&tool, json!({})).await;
    assert_eq!(outcome.failure, Some(Failure::TooLarge));
    assert_eq!(outcome.content["stdout"].as_str().map(str::len), Some(1_000));
}

#[tokio::test]
async fn binary_output_is_kept() {
    check(
        script("printf 'a\\377b'", &json!({})),
        json!({}),
        expect![[r#"
        ok 0
        a�b
        {"exit_code":0,"stdout_base64":"Yf9i"}"#]],
    )
    .await;
}

#[tokio::test]
async fn a_grandchild_with_an_open_pipe_does_not_block_the_call() {
    let begun = Instant::now();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let left = folder.path().join("left");
    let left = left.display();
    // The first one is in the group and is killed with it. The second one has left the group when the script ends;
    // the call does not wait for it.
    let in_the_group = "tail -f /dev/null & echo done".to_owned();
    let outside = format!(
        "mkfifo {left}; setsid sh -c 'echo done $$; echo > {left}; exec tail -f /dev/null' & read _ < {left}"
    );
    for script_ in [in_the_group, outside] {
        let tool = tool(script(&script_, &json!({"timeout_ms": 30_000}))).expect("it is valid");
        let outcome = call(&tool, json!({})).await;
        assert!(outcome.text.starts_with("done"), "{}", outcome.text);
        if let Some(escaped) = outcome.text.strip_prefix("done ") {
            let ended = std::process::Command::new("kill").args(["-9", escaped]).status();
            assert!(ended.expect("kill runs").success());
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn dropping_a_run_kills_its_processes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("group");
    let text = format!("echo $$ > {0}.new; mv {0}.new {0}; exec tail -f /dev/null", path.display());
    let tool = tool(script(&text, &json!({}))).expect("it is valid");
    let running = tokio::spawn(tool.run(Invocation::new("call-1", json!({}), context())));
    let group = loop {
        match std::fs::read_to_string(&path) {
            Ok(group) => break group,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    running.abort();
    assert!(running.await.expect_err("the task is aborted").is_cancelled());
    while runs_in(group.trim()) {
        tokio::task::yield_now().await;
    }
}
