//! The backend `docker`, with a program in place of Docker's command line: it records its arguments and runs the
//! command without a container. This tests the command that Abide builds, and not the isolation by Docker.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use abide_tools::{
    BuiltinToolsConfig, Environment, Invocation, Sandbox, SandboxConfig, ToolContext, Tools,
    add_builtin_tools,
};
use expect_test::expect;
use serde_json::json;

use crate::launcher;

/// `docker run … IMAGE command` runs the command; every call is recorded.
const DOCKER: &str = r#"#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
test "$1" = version && echo 28.0 && exit
test "$1" = run || exit 0
for word; do shift; test "$word" = debian:12 && break; done
exec "$@"
"#;

#[tokio::test]
async fn a_container_gets_the_workspace_the_limits_and_no_network() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    fs::create_dir_all(path.join("project/.abide")).expect("the workspace can be created");
    let docker = path.join("docker");
    fs::write(&docker, DOCKER).expect("the program can be written");
    fs::set_permissions(&docker, fs::Permissions::from_mode(0o755)).expect("it is executable");
    let search = format!("{}:/usr/bin:/bin", path.display());
    let environment: Environment =
        [("PATH".to_owned(), search), ("LANG".to_owned(), "C".to_owned())].into_iter().collect();
    let config: SandboxConfig =
        serde_json::from_value(json!({"workspace": "..", "backend": "docker",
        "image": "debian:12", "readable": ["/opt/toolchain"]}))
        .expect("it is valid");
    let sandbox = Sandbox::open(config, &path.join("project/.abide"), launcher(), &environment);
    let sandbox = sandbox.expect("the program answers as Docker does");
    let tools = Tools::new();
    let builtin = BuiltinToolsConfig::default();
    add_builtin_tools(&tools, &builtin, Some(&sandbox), &environment).expect("they are added");
    let execute = tools.get("execute").expect("it exists");
    let call = json!({"command": "echo in the container", "folder": ".."});
    let refused = execute.run(Invocation::new("call-1", call, ToolContext::default())).await;
    assert!(refused.text.contains("leaves the workspace"), "{}", refused.text);
    let call = json!({"command": "echo in the container"});
    let outcome = execute.run(Invocation::new("call-1", call, ToolContext::default())).await;
    assert_eq!(outcome.text, "in the container");

    let text = recorded(path);
    expect![[r#"
        version
          --format {{.Server.Version}}
        run
          --rm
          --interactive
          --init
          --read-only
          --pull=never
          --cap-drop=ALL
          --security-opt=no-new-privileges
          --name=NAME
          --network=none
          --user=USER
          --memory=4096m
          --memory-swap=4096m
          --pids-limit=256
          --ulimit=cpu=600
          --ulimit=nofile=1024
          --ulimit=fsize=1073741824
          --tmpfs=/tmp
          --mount=type=bind,source=HOME/project,target=HOME/project
          --mount=type=bind,source=/opt/toolchain,target=/opt/toolchain,readonly
          --tmpfs=HOME/project/.abide
          --workdir=HOME/project
          --env=ABIDE_CONTEXT
          --env=HOME=/tmp
          --env=LANG
          --env=TEMP=/tmp
          --env=TMP=/tmp
          --env=TMPDIR=/tmp debian:12 sh -c echo in the container
        rm
          --force NAME
    "#]]
    .assert_eq(&text);
}

/// The recorded calls, one option per line, without what differs between runs.
fn recorded(path: &Path) -> String {
    let calls = fs::read_to_string(path.join("calls")).expect("the calls are recorded");
    let real = path.canonicalize().expect("it exists");
    let name = calls.split("--name=").nth(1).and_then(|it| it.split(' ').next());
    let name = name.expect("a container has a name");
    let user =
        calls.split("--user=").nth(1).and_then(|it| it.split(' ').next()).expect("it has a user");
    calls
        .replace(&real.display().to_string(), "HOME")
        .replace(name, "NAME")
        .replace(user, "USER")
        .replace(" --", "\n  --")
}

#[test]
fn an_image_is_not_an_option() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config: SandboxConfig = serde_json::from_value(
        json!({"workspace": "..", "backend": "docker", "image": "--privileged"}),
    )
    .expect("it is valid");
    let refused = Sandbox::open(config, folder.path(), launcher(), &Environment::default());
    let refused = refused.map(drop).expect_err("it is refused");
    assert_eq!(refused.to_string(), "sandbox: \"--privileged\" is not the name of an image");
}
