//! A program for tests. It is the supervisor of sandboxes, and, as `run WORKSPACE BACKEND COMMAND`, a server that runs
//! one command with `execute`. As `connect PATH` it
//! is a program that connects to a Unix socket.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use abide_tools::{
    BuiltinToolsConfig, Environment, Invocation, Launcher, Sandbox, SandboxConfig, ToolContext,
    Tools, add_builtin_tools,
};
use serde_json::json;

fn main() -> ExitCode {
    if let Some(code) = abide_tools::sandbox_exec() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, path] = &arguments[..]
        && mode == "connect"
    {
        match UnixStream::connect(path) {
            Ok(_) => println!("connected"),
            Err(why) => println!("{why}"),
        }
        return ExitCode::SUCCESS;
    }
    let [mode, workspace, backend, command] = &arguments[..] else { return ExitCode::FAILURE };
    assert_eq!(mode, "run");
    let config: SandboxConfig =
        serde_json::from_value(json!({"workspace": workspace, "backend": backend}))
            .expect("the configuration is valid");
    let environment = Environment::of_process();
    let launcher = Launcher::this_program();
    let sandbox = Sandbox::open(config, Path::new("/nonexistent"), launcher, &environment)
        .expect("the sandbox is available");
    let tools = Tools::new();
    let builtin = BuiltinToolsConfig::default();
    add_builtin_tools(&tools, &builtin, Some(&sandbox), &environment).expect("they are added");
    let execute = tools.get("execute").expect("there is a sandbox");
    let call = Invocation::new("call-1", json!({"command": command}), ToolContext::default());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be started");
    let outcome = runtime.block_on(execute.run(call));
    print!("{}", outcome.content);
    ExitCode::SUCCESS
}
