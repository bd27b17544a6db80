//! One test for each program error (condition, error kind, recoverable),
//! observed as the end of a run. The programs are shell commands.

use abide_client::rows::Run;

use crate::fixture::RuntimeFixture;

/// The end of a run with this program: status, code and message.
async fn ends(cli: &str) -> (String, String, String) {
    let fixture = RuntimeFixture::start(&format!("cli: {cli}\n"), "answers: []").await;
    let run = fixture.begin("Go on.").await;
    fixture.output(&run.id, 0).await;
    let sql = "SELECT * FROM runs";
    let runs: Vec<Run> = fixture.abide.sql(sql).fetch().await.expect("the query succeeds");
    fixture.close().await;
    let run = runs.into_iter().next().expect("there is at least one");
    let output = |text: Option<String>| text.unwrap_or_default();
    (run.status.as_str().to_owned(), output(run.error_code), output(run.error_message))
}

async fn fails_with(cli: &str, code: &str) {
    let (status, found, message) = ends(cli).await;
    assert_eq!((status.as_str(), found.as_str()), ("failed", code), "{message}");
}

/// `Timeout exceeded | mcp_timeout | No`
#[tokio::test]
async fn timeout_exceeded_is_mcp_timeout() {
    fails_with("{ command: [sleep, '600'], timeout_seconds: 0.2 }", "mcp_timeout").await;
}

/// `Output exceeds max_output_bytes | budget_exceeded | --`
#[tokio::test]
async fn output_exceeds_max_output_bytes_is_budget_exceeded() {
    fails_with("{ command: [yes], max_output_bytes: 1000 }", "budget_exceeded").await;
}

/// `Non-zero exit code | runtime_crash | --`
#[tokio::test]
async fn non_zero_exit_code_is_runtime_crash() {
    fails_with("{ command: [sh, -c, exit 3] }", "runtime_crash").await;
}

/// `Exit code 0 without terminal NDJSON event | bad_model_output | --`
#[tokio::test]
async fn exit_code_0_without_terminal_event_is_bad_model_output() {
    fails_with("{ command: ['true'] }", "bad_model_output").await;
}

/// `Unexpected exception | runtime_crash | --`
#[tokio::test]
async fn unexpected_exception_is_runtime_crash() {
    fails_with("{ command: [no-such-program-anywhere] }", "runtime_crash").await;
}
