//! The log of a server: formats, the access log, and what is in no record.

use std::path::Path;

use serde_json::{Map, Value as JsonValue, json};

use crate::agent::request_with;
use crate::program::{Process, abide, run};

const TOKEN: &str = "s3cret-token";

/// Variables of the environment.
type Variables<'a> = &'a [(&'a str, &'a str)];

/// A server with this token and environment, and its address.
fn serve(folder: &Path, options: &[&str], env: Variables<'_>) -> (Process, String) {
    let mut command = abide();
    command.current_dir(folder).env("ABIDE_TOKEN", TOKEN).envs(env.iter().copied());
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db", "a.db"]).args(options);
    let server = Process::spawn(&mut command);
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    let address = greeting["listening"].as_str().unwrap().to_owned();
    (server, address)
}

/// Every record at the lowest level is one JSON object on one line, and none has a token, content, SQL or a query string.
#[test]
fn records_are_json_objects_without_secrets_and_content() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = serve(folder.path(), &[], &[("ABIDE_LOG", "trace")]);
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    let ask = |method: &str, path: &str, body: JsonValue| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        request_with(&address, method, path, &bearer, &body).0
    };
    assert_eq!(ask("POST", "/v1/call/create_session", json!({"agent": "clerk", "id": "s1"})), 200);
    let content = "s3cret-content\n{\"level\":\"ERROR\"}\u{1b}[2J\u{202e}\u{2066}\u{7f}";
    let message = json!({"session_id": "s1", "role": "user", "content": content});
    assert_eq!(ask("POST", "/v1/call/append_message", message), 200);
    let query = json!({"sql": "SELECT 's3cret-sql' AS x WHERE :p <> ''", "params": {"p": content}});
    assert_eq!(ask("POST", "/v1/sql", query), 200);
    assert_eq!(ask("GET", "/v1/sessions?agent=s3cret-query", JsonValue::Null), 200);
    assert_eq!(ask("GET", "/s3cret-path", JsonValue::Null), 404);
    assert_eq!(ask("GET", "/v1/runs/s3cret-id", JsonValue::Null), 404);
    for _ in 0..3 {
        let wrong = "authorization: Bearer s3cret-guess\r\n";
        assert_eq!(request_with(&address, "GET", "/v1/schema", wrong, "").0, 401);
    }
    let url = format!("http://{address}");
    run(["sql", "SELECT 1", "--url", &url, "--token", TOKEN]).good();
    server.terminate();
    let ended = server.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let mut requests = Vec::new();
    let mut refused = Vec::new();
    for line in ended.stderr.lines() {
        let record: Map<String, JsonValue> =
            serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        for member in ["timestamp", "level", "target", "message"] {
            assert!(record[member].is_string(), "{member}: {line}");
        }
        assert!(!line.contains("s3cret") && !line.contains('\u{202e}'), "{line}");
        match record.get("event").and_then(JsonValue::as_str) {
            Some("request") => {
                assert_eq!(record["target"], "abide_server::access_log");
                assert!(record["duration_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{line}");
                let of = |name: &str| record.get(name).cloned().unwrap_or_default();
                requests.push((of("method"), of("route"), of("status"), of("seq")));
            }
            Some("credentials_refused") => refused.push(record["count"].clone()),
            _ => {}
        }
    }
    let none = JsonValue::Null;
    for expected in [
        (json!("POST"), json!("/v1/call/{reducer}"), json!(200), json!(1)),
        (json!("POST"), json!("/v1/call/{reducer}"), json!(200), json!(2)),
        (json!("POST"), json!("/v1/sql"), json!(200), none.clone()),
        (json!("GET"), json!("/v1/sessions"), json!(200), none.clone()),
        (json!("GET"), none.clone(), json!(404), none.clone()),
        (json!("GET"), json!("/v1/runs/{id}"), json!(404), none.clone()),
        (json!("GET"), json!("/v1/schema"), json!(401), none.clone()),
    ] {
        assert!(requests.contains(&expected), "{expected:?}\n{requests:?}");
    }
    let of_schema = requests.iter().filter(|it| it.1 == "/v1/schema").count();
    assert_eq!(of_schema, 3, "one record for each request: {requests:?}");
    assert_eq!(refused, [json!(1)], "one record a minute");
}

/// A worker that disappears leaves a call that a person must settle. The operator of the server learns it without a query.
#[test]
fn a_call_with_an_unknown_outcome_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = serve(folder.path(), &[], &[]);
    let url = format!("http://{address}");
    for words in [
        &["create_session", "agent=support", "id=s1"][..],
        &["register_tool", "name=refund", "effect=at_most_once"],
        &["request_tool_call", "call_id=c1", "session_id=s1", "tool_name=refund", "arguments={}"],
        &["claim_tool_call", "call_id=c1", "worker=w1", "lease_ms=100"],
    ] {
        run(["call", "--url", &url, "--token", TOKEN].iter().chain(words)).good();
    }
    let line = server.error_line();
    let record: JsonValue = serde_json::from_str(&line).unwrap();
    let of = |name: &str| record[name].as_str().unwrap_or_default();
    assert_eq!((of("level"), of("event")), ("WARN", "call_unknown"), "{line}");
    assert_eq!((of("call_id"), of("tool")), ("c1", "refund"), "{line}");
}

#[test]
fn the_format_is_chosen_by_an_option_or_the_environment() {
    let cases: [(&[&str], Variables<'_>); 3] = [
        (&["--log-format", "text"], &[]),
        (&[], &[("ABIDE_LOG_FORMAT", "text")]),
        (&["--log-format", "text"], &[("ABIDE_LOG_FORMAT", "json")]),
    ];
    for (options, env) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (server, address) = serve(folder.path(), options, env);
        assert_eq!(request_with(&address, "GET", "/v1/schema", "", "").0, 401);
        let line = server.error_line();
        let is_text = line.contains(" WARN abide_server::auth::refused: requests had no valid");
        assert!(is_text && line.ends_with(" event=credentials_refused"), "{line}");
    }
}

#[test]
fn a_variable_that_is_not_valid_is_told() {
    for (name, value, told) in [
        ("ABIDE_LOG_FORMAT", "yaml", "ABIDE_LOG_FORMAT is neither text nor json: yaml"),
        ("ABIDE_LOG", "abide=loud", "ABIDE_LOG is not a list of levels: "),
    ] {
        let ended = Process::spawn(abide().args(["verify", "none.db"]).env(name, value)).ended();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with(&format!("error: {told}")), "{ended:?}");
        assert!(ended.stderr.contains("hint: "), "{ended:?}");
    }
}
