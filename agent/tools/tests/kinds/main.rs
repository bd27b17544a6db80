//! Tools of every kind against real programs, an HTTP server on loopback, and MCP servers.

mod continuations;
mod faulty_server;
mod http;
mod json_server;
mod oauth;
mod programs;
mod questions;
mod reference_servers;

use std::path::PathBuf;

use abide_tools::{Environment, Invocation, Tool, ToolContext, ToolOutcome};
use serde_json::{Map, Value};

/// Calls a tool with these arguments, as call `call-1`.
async fn call(tool: &dyn Tool, arguments: Value) -> ToolOutcome {
    tool.run(Invocation::new("call-1", arguments, context())).await
}

fn context() -> ToolContext {
    ToolContext {
        session_id: "session-1".to_owned(),
        agent: "tester".to_owned(),
        scope: Map::new(),
        ..ToolContext::default()
    }
}

/// The environment of this process, a secret, and a variable that programs must not inherit.
fn environment() -> Environment {
    let ours = [("TEST_TOKEN", "s3cret"), ("TEST_OTHER", "other")];
    let ours = ours.map(|(name, value)| (name.to_owned(), value.to_owned()));
    std::env::vars().chain(ours).collect()
}

/// An outcome in three lines: status, text and content.
fn output(outcome: &ToolOutcome) -> String {
    let failure = outcome.failure.map_or("ok", |failure| failure.code());
    format!("{failure} {}\n{}\n{}", outcome.exit_code, outcome.text, outcome.content)
}

/// The path of a program in `examples/`, which is built with the tests.
fn example(name: &str) -> String {
    let test = std::env::current_exe().expect("a test runs from a file");
    let folder =
        test.parent().and_then(|deps| deps.parent()).expect("the test is in target/…/deps");
    let path: PathBuf = folder.join("examples").join(name);
    assert!(path.exists(), "{} is not built: run all targets of the package", path.display());
    path.to_str().expect("the path is Unicode").to_owned()
}
