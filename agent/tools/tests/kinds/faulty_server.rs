//! Faulty MCP servers: `examples/faulty_mcp_server.rs` over pipes.

use abide_tools::{
    ConfiguredTools, Failure, Invocation, McpServer, McpServerConfig, McpStatus, PreparedMcpServer,
    Selection, ToolOutcome, Tools,
};
use expect_test::expect;
use serde_json::{Value, json};

use crate::{call, context, environment, example, output};

fn config(mode: &str) -> McpServerConfig {
    let mut config =
        McpServerConfig::program("faulty", [example("faulty_mcp_server"), mode.to_owned()]);
    config.prefix = Some(String::new());
    config
}

async fn start(config: McpServerConfig) -> (McpServer, Tools) {
    let tools = Tools::new();
    let server = McpServer::start(config, &environment(), &tools).await.expect("it starts");
    (server, tools)
}

async fn call_of(tools: &Tools, name: &str) -> ToolOutcome {
    call(tools.get(name).expect("the server has it").as_ref(), json!({})).await
}

#[tokio::test]
async fn listed_tools_become_tools() {
    let old = "2025-11-25";
    for (mode, protocol) in [("", "2026-07-28"), ("old", old), ("old-but-discovered", old)] {
        let mut config = config(mode);
        config.prefix = None;
        config.only =
            Some(vec!["pid".to_owned(), "again".to_owned(), "b*".to_owned(), "odd*".to_owned()]);
        config.needs_approval = vec!["bi*".to_owned()];
        let (server, tools) = start(config).await;
        let McpStatus::Up { protocol: spoken, .. } = server.status().await else {
            panic!("the server is down")
        };
        assert_eq!(spoken, protocol);
        let output: Vec<String> = tools
            .declarations()
            .iter()
            .map(|tool| {
                let approval = if tool.needs_approval { " approval" } else { "" };
                let annotations = tool.annotations.clone().unwrap_or_default();
                format!("{} {}{approval} {annotations}", tool.name, tool.effect)
            })
            .collect();
        expect![[r#"
            faulty_again idempotent {"destructiveHint":false,"idempotentHint":true}
            faulty_big at_most_once approval {}
            faulty_odd_name_with_characters_1e171ef6 at_most_once {"readOnlyHint":false}
            faulty_pid read_only {"readOnlyHint":true,"title":"Process id"}"#]]
        .assert_eq(&output.join("\n"));
        server.close().await;
        assert_eq!(tools.names(), [""; 0], "the tools are removed");
    }
}

/// Class: trust in the peer to end. A server whose cursor does not advance was asked 2,500 times a second until the timeout, kept
/// 30 MB of pages a second in memory, and was then unavailable.
#[tokio::test]
async fn a_list_of_tools_without_an_end_is_bounded() {
    for (pages, expected) in [
        ("again", "t0, t1, t2"),
        ("empty", "t0"),
        (
            "new",
            "it failed to list its tools: its list of tools has more than 20 pages (max_list_pages)",
        ),
        (
            "large",
            "it failed to list its tools: its list of tools has more than 5000000 bytes (max_message_bytes)",
        ),
    ] {
        let mut config = config("pages");
        config.command.push(pages.to_owned());
        config.required = false;
        config.max_list_pages = 20;
        config.max_message_bytes = 5_000_000;
        let (server, tools) = start(config).await;
        let listed = match server.status().await {
            McpStatus::Down { why } => why,
            McpStatus::Up { .. } => {
                let mut names = tools.names();
                // A repeated page has the same tools: the registry keeps one of each name.
                names.sort();
                names.join(", ")
            }
        };
        assert_eq!(listed, expected, "{pages}");
    }
}

/// Class: one undecodable value costs the message. The SDK drops such a response, so the call waited for its timeout, and a
/// person had to settle it although the server had answered.
#[tokio::test]
async fn a_response_that_cannot_be_decoded_ends_its_call() {
    for mode in ["", "old"] {
        let (_server, tools) = start(config(mode)).await;
        let mut lines = Vec::new();
        for name in ["half", "hologram", "nan"] {
            let outcome = call_of(&tools, name).await;
            let failure = outcome.failure.map_or("ok", |failure| failure.code());
            lines.push(format!("{failure}: {}", outcome.text));
        }
        expect![[r#"
            ok: cut �
            tool: the tool ran, but a part of its result cannot be read: content 1 (hologram)
            seen
            lost: MCP server faulty has answered, but the response cannot be read: expected value at line 1 column 87"#]].assert_eq(&lines.join("\n"));
    }
}

#[tokio::test]
async fn configured_effects_override_annotations() {
    let mut config = config("");
    config.effects =
        serde_json::from_value(json!({"pid": "at_most_once"})).expect("they are effects");
    let (_server, tools) = start(config).await;
    let effect =
        |name: &str| tools.get(name).expect("the tool exists").declaration().effect.to_string();
    assert_eq!([effect("pid"), effect("again")], ["at_most_once", "idempotent"]);
}

#[tokio::test]
async fn all_kinds_of_content_are_kept_complete() {
    let (_server, tools) = start(config("")).await;
    expect![[r#"
        ok 0
        words
        [image, image/png, 4 bytes]
        [audio, audio/wav, 4 bytes]
        [resource file:///a.txt]
        inside
        [resource file:///b.bin, unknown type, 3 bytes]
        [link to c file:///c: the third]
        {"_meta":{"dev.abide/test":true},"content":[{"text":"words","type":"text"},{"data":"iVBORw==","mimeType":"image/png","type":"image"},{"data":"UklGRg==","mimeType":"audio/wav","type":"audio"},{"resource":{"mimeType":"text/plain","text":"inside","uri":"file:///a.txt"},"type":"resource"},{"resource":{"blob":"AAEC","uri":"file:///b.bin"},"type":"resource"},{"description":"the third","name":"c","type":"resource_link","uri":"file:///c"}],"isError":false,"structuredContent":{"three":3}}"#]].assert_eq(&output(&call_of(&tools, "kinds").await));
}

#[tokio::test]
async fn errors_of_a_tool_and_of_the_protocol_are_reported() {
    let (_server, tools) = start(config("")).await;
    let mut lines = Vec::new();
    for name in ["fail", "refuse"] {
        lines.push(output(&call_of(&tools, name).await));
    }
    expect![[r#"
        tool 1
        there is no such file
        {"content":[{"text":"there is no such file","type":"text"}],"isError":true,"resultType":"complete"}
        arguments 1
        MCP server faulty returned an error: the path is outside of what is allowed
        {"error":{"code":-32602,"message":"the path is outside of what is allowed"}}"#]].assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn a_crashed_server_is_reported_and_restarted_for_the_next_call() {
    let (server, tools) = start(config("")).await;
    let first = call_of(&tools, "pid").await.text;
    let died = call_of(&tools, "die").await;
    expect![[r#"
        the connection to MCP server faulty was lost during the call: it ended with exit code 3; stderr:
        the disk of this server is full"#]].assert_eq(&died.text);
    assert_eq!(died.failure, Some(Failure::Lost));
    assert!(matches!(server.status().await, McpStatus::Down { .. }));
    let second = call_of(&tools, "pid").await;
    assert!(!second.is_error && second.text != first, "{}", second.text);
}

#[tokio::test]
async fn a_hanging_call_times_out_and_is_cancelled() {
    let mut hasty = config("");
    hasty.timeout_ms = Some(2_000);
    let (_server, tools) = start(hasty).await;
    let late = call_of(&tools, "hang").await;
    assert_eq!(
        (late.failure, late.text.as_str()),
        (Some(Failure::TimedOut), "hang timed out after 2 s")
    );
    assert_eq!(
        call_of(&tools, "cancelled").await.text,
        "1",
        "the server received the cancellation"
    );
}

#[tokio::test]
async fn a_cancellation_reaches_the_server() {
    let (_server, tools) = start(config("old")).await;
    let hang = tools.get("hang").expect("the tool exists");
    let invocation = Invocation::new("call-1", json!({}), context());
    let cancel = invocation.cancel.clone();
    let running = tokio::spawn(hang.run(invocation));
    // The answer to a later call shows that the server has received this one.
    call_of(&tools, "pid").await;
    cancel.cancel();
    assert_eq!(running.await.expect("the task does not panic").failure, Some(Failure::Cancelled));
    assert_eq!(call_of(&tools, "cancelled").await.text, "1");
}

#[tokio::test]
async fn floods_invalid_output_and_long_results_are_handled() {
    let (_server, tools) = start(config("")).await;
    assert_eq!(call_of(&tools, "flood").await.text, "it is drained");
    assert_eq!(call_of(&tools, "nonsense").await.text, "all the same");
    let big = call_of(&tools, "big").await;
    assert_eq!((big.text.len(), big.is_error), (10_000_000, false));
    assert_eq!(big.content["content"][0]["text"].as_str().map(str::len), Some(10_000_000));
}

/// Regression: integers became `1e+23` and `1.8446744073709552e19` in SQL. A double from the SDK may have been an
/// integer.
#[tokio::test]
async fn integers_that_would_lose_digits_fail_the_call() {
    let (_server, tools) = start(config("")).await;
    let mut lines = Vec::new();
    for name in ["unsigned", "long"] {
        lines.push(call_of(&tools, name).await);
    }
    let output: Vec<String> = lines.iter().map(output).collect();
    expect![[r#"
        tool 1
        the tool ran, but the response of MCP server faulty cannot be stored: the number 18446744073709551615 at /structuredContent/a~1b/0 may be an integer that does not fit a signed 64-bit integer
        {"error":{"code":"tool","message":"the tool ran, but the response of MCP server faulty cannot be stored: the number 18446744073709551615 at /structuredContent/a~1b/0 may be an integer that does not fit a signed 64-bit integer"}}
        tool 1
        the tool ran, but the response of MCP server faulty cannot be stored: the number 1e+23 at /structuredContent/n may be an integer that does not fit a signed 64-bit integer
        {"error":{"code":"tool","message":"the tool ran, but the response of MCP server faulty cannot be stored: the number 1e+23 at /structuredContent/n may be an integer that does not fit a signed 64-bit integer"}}"#]].assert_eq(&output.join("\n"));
}

#[tokio::test]
async fn an_oversized_message_fails_permanently_with_the_reason() {
    let mut narrow = config("");
    narrow.max_message_bytes = 1_000_000;
    let (_server, tools) = start(narrow).await;
    let outcome = call_of(&tools, "big").await;
    assert_eq!(outcome.failure, Some(Failure::TooLarge));
    let begin = "the connection to MCP server faulty was closed: it sent a message of at least 10";
    let end = " bytes; the maximum is 1000000";
    let text = &outcome.text;
    assert!(text.starts_with(begin) && text.ends_with(end), "{text}");
    assert!(!call_of(&tools, "pid").await.is_error, "the server is restarted");
}

#[tokio::test]
async fn tools_added_later_are_listed() {
    for mode in ["", "old", "old-but-discovered"] {
        let (_server, tools) = start(config(mode)).await;
        assert!(tools.get("late").is_none());
        let mut revision = tools.revision();
        revision.mark_unchanged();
        assert_eq!(call_of(&tools, "grow").await.text, "there is one more");
        while tools.get("late").is_none() {
            revision.changed().await.expect("the registry exists");
        }
        assert_eq!(call_of(&tools, "late").await.text, "late");
    }
}

#[tokio::test]
async fn an_unavailable_required_server_is_an_error_with_its_stderr() {
    let started = async |config| {
        let tools = Tools::new();
        let why =
            McpServer::start(config, &environment(), &tools).await.err().expect("it is refused");
        assert!(tools.names().is_empty() && tools.problems().is_empty());
        format!("{}: {why}", why.code())
    };
    let mut silent = config("silent");
    silent.connect_timeout_ms = 300;
    let mut both = config("");
    both.url = Some("http://127.0.0.1:1/".to_owned());
    let mut neither = config("");
    neither.command.clear();
    let output = [
        started(config("refuse")).await,
        started(silent).await,
        started(McpServerConfig::program("gone", ["no-such-program-anywhere"])).await,
        started(McpServerConfig::at("url", "not a url")).await,
        started(McpServerConfig::at("noname", "http://127.0.0.1:1/mcp")).await,
        started(both).await,
        started(neither).await,
    ];
    expect![[r#"
        mcp_unavailable: MCP server faulty is unavailable: it closed the connection; it ended with exit code 7; stderr:
        no licence for this server was found
        mcp_unavailable: MCP server faulty is unavailable: it did not respond within 0.3 s
        mcp_unavailable: MCP server gone is unavailable: cannot start no-such-program-anywhere: No such file or directory (os error 2)
        bad_tool_config: invalid definition of url: its url is invalid: relative URL without a base
        mcp_unavailable: MCP server noname is unavailable: Client error: error sending request for url (http://127.0.0.1:1/mcp)
        bad_tool_config: invalid definition of faulty: it needs either command or url
        bad_tool_config: invalid definition of faulty: it needs either command or url"#]].assert_eq(&output.join("\n"));
}

#[tokio::test]
async fn an_optional_server_can_start_later() {
    // A server that fails at the first start and then runs.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mark = folder.path().join("tried");
    let script = format!(
        "[ -e {0} ] || {{ touch {0}; exit 5; }}; exec {1}",
        mark.display(),
        example("faulty_mcp_server")
    );
    let mut config = McpServerConfig::program("late", ["sh", "-c", &script]);
    config.required = false;
    let tools = Tools::new();
    let mut revision = tools.revision();
    let server =
        McpServer::start(config, &environment(), &tools).await.expect("the server is optional");
    let McpStatus::Down { why } = server.status().await else { panic!("the server must be down") };
    assert!(why.contains("exit code 5"), "{why}");
    let named =
        |name: &str| Selection { tools: Some(vec![name.to_owned()]), ..Selection::default() };
    let view = tools.view(named("late_pid")).expect("the tool may be added later");
    assert!(tools.view(named("other_pid")).is_err());
    while view.get("late_pid").is_none() {
        revision.changed().await.expect("the registry exists");
    }
    assert!(matches!(server.status().await, McpStatus::Up { .. }));
    assert!(tools.view(named("late_nosuch")).is_err(), "the server has listed its tools");
}

#[tokio::test]
async fn a_failing_server_is_retried_with_a_backoff() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mark = folder.path().join("gone");
    let faulty = example("faulty_mcp_server");
    let script = format!("[ ! -e {0} ] || exit 5; touch {0}; exec {faulty}", mark.display());
    let mut config = McpServerConfig::program("mortal", ["sh", "-c", &script]);
    config.prefix = Some(String::new());
    let (_server, tools) = start(config).await;
    call_of(&tools, "die").await;
    let at_once = call_of(&tools, "pid").await;
    let resting = call_of(&tools, "pid").await;
    assert_eq!(at_once.failure, Some(Failure::Unavailable));
    assert!(at_once.text.ends_with("it ended with exit code 5"), "{}", at_once.text);
    assert!(resting.text.contains("; the next attempt is in "), "{}", resting.text);
    std::fs::remove_file(&mark).expect("the file exists");
    // Calls during the backoff fail immediately, without an attempt to start the server.
    let mut back = resting;
    while back.is_error {
        back = call_of(&tools, "pid").await;
    }
}

#[tokio::test]
async fn a_duplicate_server_name_is_an_error() {
    let (_server, tools) = start(config("")).await;
    let again = McpServer::start(config(""), &environment(), &tools).await.err();
    let output = again.expect("it is refused").to_string();
    expect!["tool source faulty already exists"].assert_eq(&output);
    assert!(!call_of(&tools, "pid").await.is_error, "the first server is not affected");
}

#[tokio::test]
async fn dropping_a_server_stops_it() {
    let (server, tools) = start(config("")).await;
    let pid = call_of(&tools, "pid").await.text;
    drop(server);
    assert!(tools.names().is_empty());
    while std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z "))
    {
        tokio::task::yield_now().await;
    }
}

/// A server that is replaced by another one of the same name ends, and the tools of the new one stay.
#[tokio::test]
async fn a_server_is_replaced_by_one_of_the_same_name() {
    let (server, tools) = start(config("")).await;
    let before = call_of(&tools, "pid").await.text;
    let next = PreparedMcpServer::new(config("old"), &environment(), &tools).expect("it is valid");
    let change = ConfiguredTools {
        leaving: vec!["faulty".to_owned()],
        coming: vec![next.source()],
        ..ConfiguredTools::default()
    };
    tools.configure(change).expect("the names are unique");
    server.leave();
    let next = next.connect().await;
    let after = call_of(&tools, "pid").await.text;
    assert_ne!(after, before);
    while std::fs::read_to_string(format!("/proc/{before}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z "))
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(call_of(&tools, "pid").await.text, after);
    next.close().await;
    assert!(tools.names().is_empty());
}

#[test]
fn a_definition_can_set_all_fields() {
    let read = |config: Value| serde_json::from_value::<McpServerConfig>(config);
    let program = read(json!({"name": "files", "command": ["npx", "server"], "env": {"A": "b"}}));
    assert!(program.expect("it is valid").required);
    assert!(read(json!({"name": "files", "url": "http://h/", "headres": {}})).is_err());
}

#[tokio::test]
async fn a_server_receives_the_context_of_a_call() {
    let forged = json!({"_meta": {"abide/context": {"scope": {"tenant": "evil"}}}});
    for (mode, sends) in [("", None), ("old", None), ("", Some(false))] {
        let mut config = config(mode);
        config.send_context = sends;
        let (_server, tools) = start(config).await;
        let outcome = call(tools.get("context").expect("it exists").as_ref(), forged.clone()).await;
        let expected = match sends {
            None => context().to_json("call-1").to_string(),
            Some(_) => "null".to_owned(),
        };
        assert_eq!(outcome.text, expected, "{mode}");
    }
}
