//! The real programs, offline: each one uses a scripted model on loopback, and is run with its usual command.
//! Opt-in, because they must be installed first, and one of them is not free software:
//!
//! ```text
//! npm i --ignore-scripts @openai/codex @google/gemini-cli opencode-ai @anthropic-ai/claude-agent-sdk
//! ABIDE_GENUINE_AGENTS=$PWD/node_modules cargo test -p abide-programs --test genuine
//! ```
//!
//! A missing program is skipped with a message. Their output is not stored.

mod mock;

use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_programs::{
    CliConfig, Decision, InputFormat, Line, Program, ProgramEvent, Prompt, Running, run,
};
use futures_util::StreamExt as _;
use tempfile::TempDir;

use mock::{DONE, Mock, Script};

/// These programs start slowly; a longer run has failed.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The command that the model requests. It writes a file, so it needs an approval.
const COMMAND: &str = "printf done > made";

/// A file of an installed program; `None` with a message if it is missing.
fn installed(file: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("ABIDE_GENUINE_AGENTS") else {
        println!("skipped: ABIDE_GENUINE_AGENTS is not set");
        return None;
    };
    let path = Path::new(&folder).join(file);
    let there = path.is_file();
    if !there {
        println!("skipped: {} does not exist", path.display());
    }
    there.then_some(path)
}

/// A program with an empty home directory and a working directory.
struct Sandbox {
    home: TempDir,
    config: CliConfig,
}

impl Sandbox {
    fn new(command: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let work = home.path().join("folder");
        std::fs::create_dir(&work).expect("it can be created");
        let mut config = CliConfig { timeout: TIMEOUT, ..CliConfig::new(command.to_vec()) };
        config.working_dir = Some(work);
        let mut place = Self { home, config };
        let path = place.home.path().to_str().expect("it is text").to_owned();
        place.set("HOME", &path);
        place
    }

    fn set(&mut self, name: &str, value: &str) {
        self.config.env.insert(name.to_owned(), value.to_owned().into());
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.home.path().join(file);
        std::fs::create_dir_all(path.parent().expect("the path has a parent"))
            .expect("it can be created");
        std::fs::write(path, text).expect("it can be written");
    }

    fn start(&self) -> Running {
        run(self.config.clone(), Prompt::user("Do it."), None)
    }

    fn made(&self) -> Option<String> {
        std::fs::read_to_string(self.home.path().join("folder/made")).ok()
    }
}

/// All events of a run.
async fn all(running: Running) -> Vec<ProgramEvent> {
    let lines: Vec<Line> = running.collect().await;
    lines.into_iter().flat_map(|line| line.events).collect()
}

fn said(events: &[ProgramEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        ProgramEvent::AssistantDelta { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Checks that the program ran its command once and succeeded, with usage and session. Returns the session.
fn check(place: &Sandbox, events: &[ProgramEvent]) -> String {
    let Some(ProgramEvent::Final(answer)) = events.last() else { panic!("{events:#?}") };
    assert_eq!(answer.text, DONE);
    assert_eq!(said(events), DONE, "the message is sent once");
    assert_eq!(place.made().as_deref(), Some("done"), "the command was run");
    let started = events.iter().find_map(|event| match event {
        ProgramEvent::ToolCallStarted { id, .. } => Some(id.clone()),
        _ => None,
    });
    let finished = events.iter().find_map(|event| match event {
        ProgramEvent::ToolCallFinished { id, is_error, .. } => Some((id.clone(), *is_error)),
        _ => None,
    });
    assert_eq!(finished, started.map(|id| (id, false)), "the same call started and finished");
    let usage = answer.usage.as_ref().expect("usage is reported");
    assert!(usage.input_tokens.is_some_and(|tokens| tokens >= 10), "{usage:?}");
    answer.session_id.clone().expect("it has a session")
}

/// Checks that a later run resumes the session of an earlier one.
async fn resume(place: &mut Sandbox, session: String) {
    place.config.session = Some(session.clone());
    let events = all(place.start()).await;
    let Some(ProgramEvent::Final(answer)) = events.last() else { panic!("{events:#?}") };
    assert_eq!(answer.session_id.as_deref(), Some(session.as_str()));
}

/// Claude Code with JSON lines as input.
async fn claude(script: Script, more: &[&str]) -> Option<(Sandbox, Mock)> {
    let program = installed("@anthropic-ai/claude-agent-sdk-linux-x64/claude")?;
    let mock = Mock::start(script, COMMAND).await;
    let program = program.to_str().expect("it is text");
    let mut place = Sandbox::new(&[&[program, "-p"], more].concat());
    place.config.input_format = InputFormat::StreamJson;
    place.set("ANTHROPIC_BASE_URL", &mock.address);
    place.set("ANTHROPIC_API_KEY", "sk-none");
    place.set("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    Some((place, mock))
}

/// Runs the program until it requests an approval, and decides it.
async fn decide(place: &Sandbox, decision: Decision) -> Vec<ProgramEvent> {
    let mut running = place.start();
    let handle = running.handle();
    let mut events = Vec::new();
    while let Some(line) = running.next().await {
        for event in &line.events {
            if let ProgramEvent::ApprovalRequested { request_id, input, .. } = event {
                assert!(input.to_string().contains(COMMAND), "{event:?}");
                handle.answer(request_id, decision.clone()).expect("the approval is pending");
            }
        }
        events.extend(line.events);
    }
    events
}

#[tokio::test]
async fn claude_code_runs_an_allowed_command_and_resumes() {
    let partial = ["--include-partial-messages"];
    let Some((mut place, mock)) = claude(Script::RunsCommand, &partial).await else { return };
    let session = check(&place, &decide(&place, Decision::Allow { input: None }).await);
    let before = mock.asked().len();
    place.config.session = Some(session.clone());
    let events = all(place.start()).await;
    let Some(ProgramEvent::Final(answer)) = events.last() else { panic!("{events:#?}") };
    assert_eq!(answer.session_id.as_deref(), Some(session.as_str()));
    let resumed =
        mock.asked()[before..].iter().any(|request| request.to_string().contains(COMMAND));
    assert!(resumed, "the model sees the earlier messages");
}

#[tokio::test]
async fn claude_code_does_not_run_a_denied_command() {
    let Some((place, _)) = claude(Script::RunsCommand, &[]).await else { return };
    let denied = Decision::Deny { message: "not today".to_owned(), interrupt: false };
    let events = decide(&place, denied).await;
    let Some(ProgramEvent::Final(answer)) = events.last() else { panic!("{events:#?}") };
    assert_eq!(answer.denials[0].tool, "Bash");
    assert_eq!(place.made(), None);
    let rendered = events.iter().any(|event| match event {
        ProgramEvent::ToolCallFinished { output, is_error, .. } => {
            *is_error && output.to_string().contains("not today")
        }
        _ => false,
    });
    assert!(rendered, "the agent gets the reason");
}

#[tokio::test]
async fn claude_code_stops_when_it_is_interrupted() {
    let Some((place, mock)) = claude(Script::Stalls, &[]).await else { return };
    let running = place.start();
    let handle = running.handle();
    tokio::spawn(async move {
        mock.stalled.notified().await;
        handle.interrupt();
    });
    let events = all(running).await;
    let Some(ProgramEvent::Error(failure)) = events.last() else { panic!("{events:#?}") };
    assert_eq!(failure.kind.code(), "cancelled", "{failure:?}");
}

/// Codex with a command.
async fn codex(script: Script, command: &[&str]) -> Option<(Sandbox, Mock)> {
    let file = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";
    let program = installed(file)?;
    let mock = Mock::start(script, COMMAND).await;
    let program = program.to_str().expect("it is text");
    let mut place = Sandbox::new(&[&[program], command].concat());
    let provider = format!(
        "model = \"mock\"\nmodel_provider = \"mock\"\n[model_providers.mock]\nname = \"mock\"\n\
         base_url = \"{}/v1\"\nwire_api = \"responses\"\nenv_key = \"MOCK_KEY\"\n",
        mock.address
    );
    place.write(".codex/config.toml", &provider);
    place.set("MOCK_KEY", "none");
    Some((place, mock))
}

#[tokio::test]
async fn codex_runs_a_command_and_resumes() {
    let command = ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-"];
    let Some((mut place, _)) = codex(Script::RunsCommand, &command).await else { return };
    let session = check(&place, &all(place.start()).await);
    resume(&mut place, session).await;
}

/// Gemini CLI with these arguments.
async fn gemini(arguments: &[&str]) -> Option<(Sandbox, Mock)> {
    let program = installed("@google/gemini-cli/bundle/gemini.js")?;
    let mock = Mock::start(Script::RunsCommand, COMMAND).await;
    let program = program.to_str().expect("it is text");
    let mut place = Sandbox::new(&[&["node", program], arguments].concat());
    place.set("GEMINI_API_KEY", "none");
    place.set("GOOGLE_GEMINI_BASE_URL", &mock.address);
    place.set("GEMINI_CLI_TRUST_WORKSPACE", "true");
    let auth = r#"{"security": {"auth": {"selectedType": "gemini-api-key"}}}"#;
    place.write(".gemini/settings.json", auth);
    Some((place, mock))
}

#[tokio::test]
async fn gemini_cli_runs_a_command_and_resumes() {
    let command = ["--approval-mode", "yolo", "-m", "gemini-2.5-pro"];
    let Some((mut place, _)) = gemini(&command).await else { return };
    assert_eq!(Program::detect(&place.config.command), Program::Gemini);
    let session = check(&place, &all(place.start()).await);
    resume(&mut place, session).await;
}

/// OpenCode with a command. It asks before it runs one.
async fn opencode(command: &[&str]) -> Option<(Sandbox, Mock)> {
    let program = installed("opencode-linux-x64/bin/opencode")?;
    let mock = Mock::start(Script::RunsCommand, COMMAND).await;
    let program = program.to_str().expect("it is text");
    let place = Sandbox::new(&[&[program], command].concat());
    let provider = serde_json::json!({
        "autoupdate": false, "model": "mock/mock", "permission": {"bash": "ask"},
        "provider": {"mock": {
            "npm": "@ai-sdk/openai-compatible", "name": "mock",
            "options": {"baseURL": format!("{}/v1", mock.address), "apiKey": "none"},
            "models": {"mock": {"name": "mock", "tool_call": true}},
        }},
    });
    place.write("folder/opencode.json", &provider.to_string());
    Some((place, mock))
}

#[tokio::test]
async fn opencode_runs_a_command_and_resumes() {
    let command = ["run", "-m", "mock/mock", "--auto"];
    let Some((mut place, _)) = opencode(&command).await else { return };
    let session = check(&place, &all(place.start()).await);
    resume(&mut place, session).await;
}

/// A conversation in a protocol: the command runs after it was allowed, and not if it was denied; a later process
/// continues the session and knows what was said.
async fn converse(kind: Program, (mut place, mock): (Sandbox, Mock)) {
    assert_eq!(place.config.kind(), kind);
    let events = decide(&place, Decision::Allow { input: None }).await;
    let Some(ProgramEvent::Final(answer)) = events.last() else { panic!("{events:#?}") };
    assert_eq!((answer.text.as_str(), said(&events).as_str()), (DONE, DONE));
    assert_eq!(place.made().as_deref(), Some("done"), "the command was run");
    let ended = events
        .iter()
        .filter(|event| matches!(event, ProgramEvent::ToolCallFinished { is_error: false, .. }));
    assert_eq!(ended.count(), 1, "{events:#?}");
    let session = answer.session_id.clone().expect("it has a session");
    let before = mock.asked().len();
    resume(&mut place, session).await;
    let continued = mock.asked()[before..].iter().any(|it| it.to_string().contains(COMMAND));
    assert!(continued, "the model sees the earlier messages");
}

async fn is_denied((place, _mock): (Sandbox, Mock)) {
    let denied = Decision::Deny { message: "not today".to_owned(), interrupt: false };
    let events = decide(&place, denied).await;
    assert_eq!(place.made(), None, "{events:#?}");
    let asked = |event: &ProgramEvent| matches!(event, ProgramEvent::ApprovalRequested { .. });
    assert!(events.iter().any(asked), "{events:#?}");
}

#[tokio::test]
async fn opencode_asks_with_acp_and_resumes() {
    let Some(found) = opencode(&["acp"]).await else { return };
    converse(Program::Acp, found).await;
    is_denied(opencode(&["acp"]).await.expect("it is installed")).await;
}

#[tokio::test]
async fn gemini_cli_asks_with_acp_and_resumes() {
    let command = ["--acp", "-m", "gemini-2.5-pro"];
    let Some(found) = gemini(&command).await else { return };
    converse(Program::Acp, found).await;
    is_denied(gemini(&command).await.expect("it is installed")).await;
}

#[tokio::test]
async fn codex_asks_with_its_app_server_and_resumes() {
    let policy = ["-c", "approval_policy=\"on-request\"", "-c", "sandbox_mode=\"read-only\""];
    let command = [&["app-server"], &policy[..]].concat();
    let script = Script::RunsCommandUnconfined;
    let Some(found) = codex(script, &command).await else { return };
    converse(Program::CodexAppServer, found).await;
    is_denied(codex(script, &command).await.expect("it is installed")).await;
}
