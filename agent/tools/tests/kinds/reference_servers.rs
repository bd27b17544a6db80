//! The protocol's reference servers from the npm registry. `tests/node/package.json` has their versions, and `cargo
//! xtask test` installs them if npm is available.

use std::io::{Write, stdout};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use abide_tools::{McpServer, McpServerConfig, Selection, ToolView, Tools};
use expect_test::expect;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::{context, environment};

/// If this environment variable is set, a missing server is an error.
const NEEDED: &str = "ABIDE_TESTS_NEED_ALL";

/// The command of a server; `None` with a message if it is not installed.
fn installed(server: &str) -> Option<Vec<String>> {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/node_modules");
    let main = modules.join("@modelcontextprotocol").join(server).join("dist/index.js");
    if main.exists() {
        return Some(vec!["node".to_owned(), main.to_str()?.to_owned()]);
    }
    assert!(std::env::var_os(NEEDED).is_none(), "{server} is not installed, and {NEEDED} is set");
    // Written past the harness' capture, so that `cargo xtask test` repeats it at the end.
    writeln!(stdout(), "skipped: MCP with {server}, which is not installed").expect("stdout");
    None
}

async fn start(config: McpServerConfig) -> (McpServer, ToolView) {
    let tools = Tools::new();
    let server = McpServer::start(config, &environment(), &tools).await.expect("it starts");
    (server, tools.view(Selection::default()).expect("no name is unknown"))
}

/// The outcome of a call as a model writes it.
async fn say(view: &ToolView, name: &str, arguments: &str) -> String {
    match view.admit(name, arguments) {
        Ok(admitted) => {
            let outcome = admitted.run("call-1", context()).await;
            let failure = outcome.failure.map_or("ok", |failure| failure.code());
            let text: String = outcome.text.chars().take(300).collect();
            format!("{name}: {failure}: {text}")
        }
        Err(outcome) => format!("{name}: not admitted: {}", outcome.text),
    }
}

/// The calls to `server-everything` over both transports.
async fn ask_everything(view: &ToolView) {
    let output: Vec<String> =
        view.declarations().iter().map(|tool| format!("{} {}", tool.name, tool.effect)).collect();
    expect![[r#"
        everything_echo read_only
        everything_get-annotated-message read_only
        everything_get-env read_only
        everything_get-resource-links read_only
        everything_get-resource-reference read_only
        everything_get-structured-content read_only
        everything_get-sum read_only
        everything_get-tiny-image read_only
        everything_gzip-file-as-resource idempotent
        everything_simulate-research-query at_most_once
        everything_toggle-simulated-logging at_most_once
        everything_toggle-subscriber-updates at_most_once
        everything_trigger-elicitation-request at_most_once
        everything_trigger-long-running-operation read_only
        everything_trigger-url-elicitation at_most_once"#]]
    .assert_eq(&output.join("\n"));
    let mut lines = Vec::new();
    for (name, arguments) in [
        ("everything_echo", r#"{"message": "hi"}"#),
        ("everything_get-sum", r#"{"a": 2, "b": "3"}"#),
        ("everything_get-sum", r#"{"a": 2}"#),
        ("everything_get-structured-content", r#"{"location": "New York"}"#),
        ("everything_get-tiny-image", "{}"),
        ("everything_get-resource-links", r#"{"count": 2}"#),
        ("everything_trigger-long-running-operation", r#"{"duration": 0.1, "steps": 2}"#),
    ] {
        lines.push(say(view, name, arguments).await);
    }
    expect![[r#"
        everything_echo: ok: Echo: hi
        everything_get-sum: ok: The sum of 2 and 3 is 5.
        everything_get-sum: not admitted: everything_get-sum: invalid arguments: "b" is a required property. Parameters: a (number, required), b (number, required)
        everything_get-structured-content: ok: {"temperature":33,"conditions":"Cloudy","humidity":82}
        everything_get-tiny-image: ok: Here's the image you requested:
        [image, image/png, 4033 bytes]
        The image above is the MCP logo.
        everything_get-resource-links: ok: Here are 2 resource links to resources available in this server:
        [link to Blob Resource 1 demo://resource/dynamic/blob/1: Resource 1: plaintext resource]
        [link to Text Resource 2 demo://resource/dynamic/text/2: Resource 2: plaintext resource]
        everything_trigger-long-running-operation: ok: Long running operation completed. Duration: 0.1 seconds, Steps: 2."#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn everything_over_pipes() {
    let Some(command) = installed("server-everything") else { return };
    let (server, view) = start(McpServerConfig::program("everything", command)).await;
    ask_everything(&view).await;
    server.close().await;
}

#[tokio::test]
async fn everything_over_streamable_http() {
    let Some(mut command) = installed("server-everything") else { return };
    command.push("streamableHttp".to_owned());
    // The server needs a port number and cannot choose a free one itself.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a port is free").port();
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .env("PORT", port.to_string())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("node runs");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    while let Some(line) = stderr.next_line().await.expect("it can be read") {
        if line.contains("listening on port") {
            break;
        }
    }
    // Drain the rest of its output, so that the server never blocks on it.
    tokio::spawn(async move { while let Ok(Some(_)) = stderr.next_line().await {} });
    let url = format!("http://127.0.0.1:{port}/mcp");
    let (server, view) = start(McpServerConfig::at("everything", &url)).await;
    ask_everything(&view).await;

    child.kill().await.expect("the server can be killed");
    // It depends on timing whether this request was sent before the connection was lost. The next one is not sent.
    let gone = say(&view, "everything_echo", r#"{"message": "hi"}"#).await;
    assert!(["lost", "unavailable"].iter().any(|how| gone.contains(how)), "{gone}");
    let gone = say(&view, "everything_echo", r#"{"message": "hi"}"#).await;
    assert!(gone.contains("unavailable"), "{gone}");
    server.close().await;
}

#[tokio::test]
async fn files_over_pipes() {
    let Some(mut command) = installed("server-filesystem") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().canonicalize().expect("the folder exists");
    let at = |name: &str| root.join(name).to_str().expect("it is Unicode").to_owned();
    command.push(at(""));
    let (server, view) = start(McpServerConfig::program("fs", command)).await;
    let output: Vec<String> =
        view.declarations().iter().map(|tool| format!("{} {}", tool.name, tool.effect)).collect();
    expect![[r#"
        fs_create_directory idempotent
        fs_directory_tree read_only
        fs_edit_file at_most_once
        fs_get_file_info read_only
        fs_list_allowed_directories read_only
        fs_list_directory read_only
        fs_list_directory_with_sizes read_only
        fs_move_file at_most_once
        fs_read_file read_only
        fs_read_media_file read_only
        fs_read_multiple_files read_only
        fs_read_text_file read_only
        fs_search_files read_only
        fs_write_file idempotent"#]]
    .assert_eq(&output.join("\n"));
    let mut lines = Vec::new();
    for (name, arguments) in [
        ("fs_write_file", json!({"path": at("a.txt"), "content": "one\ntwo\n"})),
        ("fs_read_text_file", json!({"path": at("a.txt"), "head": "1"})),
        ("fs_edit_file", json!({"path": at("a.txt"), "edits": {"oldText": "two", "newText": "2"}})),
        ("fs_list_directory", json!({"input": {"path": at("")}})),
        ("fs_read_text_file", json!({"path": "/etc/hostname"})),
    ] {
        let line = say(&view, name, &arguments.to_string()).await;
        lines.push(
            line.replace(&at(""), "ROOT/").replace(root.to_str().expect("it is Unicode"), "ROOT"),
        );
    }
    expect![[r#"
        fs_write_file: ok: Successfully wrote to ROOT/a.txt
        fs_read_text_file: ok: one
        fs_edit_file: ok: ```diff
        Index: ROOT/a.txt
        ===================================================================
        --- ROOT/a.txt	original
        +++ ROOT/a.txt	modified
        @@ -1,2 +1,2 @@
         one
        -two
        +2
        ```


        fs_list_directory: ok: [FILE] a.txt
        fs_read_text_file: tool: Access denied - path outside allowed directories: /etc/hostname not in ROOT"#]].assert_eq(&lines.join("\n"));
    server.close().await;
}
