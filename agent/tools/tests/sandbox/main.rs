//! Sandboxes with real programs, and the built-in tools.

mod databases;
mod docker;
mod escapes;
mod files;
mod lifetime;
mod paths;
mod program_tools;
mod web;

use std::fs;
use std::path::PathBuf;

use abide_tools::{
    Availability, BackendName, BuiltinToolsConfig, Environment, Invocation, Launcher, Sandbox,
    SandboxConfig, ToolContext, ToolOutcome, Tools, add_builtin_tools,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A secret that no tool may return.
const SECRET: &str = "TOP-SECRET";

/// The supervisor.
fn launcher() -> Launcher {
    Launcher::at(env!("CARGO_BIN_EXE_abide-sandbox-exec"))
}

/// The variables of this process, and a secret.
fn environment() -> Environment {
    let secret = ("TEST_SECRET".to_owned(), SECRET.to_owned());
    std::env::vars().chain([secret]).collect()
}

/// A home folder with a secret, and the workspace in it.
struct Home {
    folder: TempDir,
    tools: Tools,
    sandbox: Sandbox,
}

impl Home {
    fn new() -> Home {
        Home::with(&json!({}))
    }

    /// A home with more settings of the sandbox.
    fn with(settings: &Value) -> Home {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path();
        fs::create_dir_all(path.join("project/.abide")).expect("the workspace can be created");
        fs::write(path.join("secret"), SECRET).expect("the secret can be written");
        fs::write(path.join("project/.abide/abide.yaml"), SECRET).expect("the key can be written");
        let mut config = json!({"workspace": ".."});
        let members = config.as_object_mut().expect("it is an object");
        members.extend(settings.as_object().expect("it is an object").clone());
        let config: SandboxConfig =
            serde_json::from_value(config).expect("the configuration is valid");
        let agents = path.join("project/.abide");
        let sandbox = Sandbox::open(config, &agents, launcher(), &environment());
        let sandbox = sandbox.expect("the sandbox is available");
        let tools = Tools::new();
        let builtin = BuiltinToolsConfig::default();
        add_builtin_tools(&tools, &builtin, Some(&sandbox), &environment())
            .expect("they are added");
        Home { folder, tools, sandbox }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn write(&self, below: &str, content: &str) {
        let path = self.path("project").join(below);
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("it can be created");
        fs::write(path, content).expect("the file can be written");
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path("project").join(below)).expect("the file can be read")
    }

    async fn call(&self, tool: &str, arguments: Value) -> ToolOutcome {
        self.call_in(tool, arguments, ToolContext::default()).await
    }

    async fn call_in(&self, tool: &str, arguments: Value, context: ToolContext) -> ToolOutcome {
        let view = self.tools.view(abide_tools::Selection::default()).expect("all tools");
        let admitted = match view.admit_value(tool, arguments) {
            Ok(admitted) => admitted,
            Err(outcome) => return outcome,
        };
        admitted.tool.run(Invocation::new("call-1", admitted.arguments, context)).await
    }

    /// Runs a shell command.
    async fn sh(&self, command: &str) -> ToolOutcome {
        self.call("execute", json!({"command": command})).await
    }
}

/// The backends that run here. One that does not run says why.
fn backends() -> Vec<BackendName> {
    let mut usable = Vec::new();
    for name in [BackendName::Local, BackendName::Bubblewrap] {
        match Availability::probe(name, &launcher(), &environment()) {
            Availability::Available(_) => usable.push(name),
            Availability::Unavailable(reason) => {
                assert!(!reason.is_empty());
                assert_ne!(name, BackendName::Local, "{reason}");
                eprintln!("{name} is skipped: {reason}");
            }
        }
    }
    usable
}

/// The context of a session of a tenant.
fn tenant(name: &str) -> ToolContext {
    let scope = json!({"tenant": name}).as_object().expect("it is an object").clone();
    ToolContext { session_id: format!("session-{name}"), scope, ..ToolContext::default() }
}
