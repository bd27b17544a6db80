//! The files for containers in `deploy/`: a server has the time to stop, probes ask paths that exist, and the token can
//! be a secret. `xtask/src/tidy/packages.rs` compares the name of the image, and `xtask/src/package/image.rs` the
//! `Dockerfile`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value as JsonValue, json};

use crate::agent::request_with;
use crate::metrics::read;
use crate::program::{Process, abide, left_out, program, run};
use crate::project::Project;
use crate::server::Server;

/// The default of `--drain` in seconds.
fn drain() -> u64 {
    let help = run(["serve", "--help"]).good();
    let (_, option) = help.split_once("--drain ").expect("it is an option");
    let (_, default) = option.split_once("[default: ").expect("it has a default");
    let (seconds, _) = default.split_once("s]").expect("it is in seconds");
    seconds.parse().unwrap()
}

fn kubernetes() -> Vec<JsonValue> {
    let text = read("deploy/kubernetes.yaml");
    text.split("\n---\n").map(|object| abide_yaml::from_str(object).unwrap()).collect()
}

/// The object of a kind.
fn of_kind<'objects>(objects: &'objects [JsonValue], kind: &str) -> &'objects JsonValue {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn compose_gives_a_server_the_time_to_stop() {
    let project: JsonValue = abide_yaml::from_str(&read("deploy/compose.yaml")).unwrap();
    let service = &project["services"]["abide"];
    assert_eq!(service["stop_grace_period"], format!("{}s", drain() + 15));
    assert_eq!(service["read_only"], true);
    assert_eq!(service["cap_drop"], json!(["ALL"]));
    assert_eq!(service["ports"], json!(["127.0.0.1:7341:7341"]), "other machines need TLS");
    // The image refuses to start without a volume there.
    assert_eq!(service["volumes"], json!(["data:/data"]));
    assert!(project["volumes"].get("data").is_some(), "{project}");
}

/// The check of a container needed a shell, a token or `curl`, which the image of a release does not have.
#[test]
fn the_health_check_of_compose_asks_the_server() {
    let project: JsonValue = abide_yaml::from_str(&read("deploy/compose.yaml")).unwrap();
    let check = project["services"]["abide"]["healthcheck"]["test"].as_array().unwrap();
    let check: Vec<&str> = check.iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(check[..2], ["CMD", "/usr/bin/abide"]);
    let mut server = Server::start();
    let db = server.db();
    let words: Vec<&str> = check[2..]
        .iter()
        .map(|word| if *word == "/data/abide.db" { db.to_str().unwrap() } else { *word })
        .collect();
    assert_eq!(run(&words).good(), format!("ready  ·  {}\n", server.url()));
    let asked = server.run(&["health", "--json"]).json();
    assert_eq!(asked, json!({"ready": true, "url": server.url()}));

    server.kill();
    for ended in [run(&words), server.run(&["health", "--wait", "1s"])] {
        assert!(ended.code == Some(3) && ended.stderr.contains("[unreachable]"), "{ended:?}");
    }
}

/// Another program on the port of the server is not the server.
#[test]
fn only_a_server_of_abide_is_healthy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        assert!(socket.read(&mut request).unwrap() > 0);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
        socket.write_all(answer.as_bytes()).unwrap();
    });
    let ended = run(["health", "--url", &url]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("is not an Abide server"), "{ended:?}");
    other.join().unwrap();
}

/// Where the system does not mount `/proc`, commands that start this program again ended with an internal error.
#[test]
fn programs_without_proc_work_or_say_what_is_missing() {
    let in_root = |arguments: &[&str]| {
        let mut command = Command::new("bwrap");
        command.args(["--dev-bind", "/", "/", "--tmpfs", "/proc"]).args(arguments);
        command.stdin(Stdio::null());
        command
    };
    if !in_root(&["true"]).status().is_ok_and(|status| status.success()) {
        return left_out("a root without /proc: bwrap cannot make it here");
    }
    let config = "models:
  default: { provider: script }
  providers:
    - { id: script, kind: script, script: answers.yaml, models: [scripted] }
";
    let project = Project::configured(config, "answers:\n  - text: Hello.\n");
    fs::write(project.path(".abide/agents/clerk.yaml"), "description: x\n").unwrap();
    let abide = program().to_str().unwrap();
    let start = |words: &[&str]| {
        let mut command = in_root(&[&[abide][..], words].concat());
        // A variable that is hidden from tools.
        command.current_dir(project.folder()).env("OPENAI_API_KEY", "s3cret-key");
        Process::spawn(&mut command).ended()
    };
    let run = ["agent", "run", "clerk", "Hi", "--db", ".abide/agents.db"];
    assert!(start(&run).good().contains("Hello."));

    // A command joins the engine that programs share.
    let engine = project.spawn(&["open", "shared.db", "--json"]);
    engine.line();
    start(&["call", "create_session", "agent=a", "--db", "shared.db"]).good();

    let config = format!("{config}sandbox: {{ workspace: .. }}\n");
    fs::write(project.path(".abide/abide.yaml"), config).unwrap();
    let refused = start(&run);
    assert!(refused.stderr.contains("/proc is not mounted"), "{refused:?}");
    assert!(!refused.stderr.contains("[internal]"), "{refused:?}");
}

#[test]
fn kubernetes_runs_one_pod_that_may_do_little() {
    let objects = kubernetes();
    let set = &of_kind(&objects, "StatefulSet")["spec"];
    assert_eq!(set["replicas"], 1);
    let pod = &set["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], drain() + 15);
    // The service is named `abide`, so its variables would be those of options.
    assert_eq!(pod["enableServiceLinks"], false);
    let security = &pod["securityContext"];
    assert_eq!(security["runAsNonRoot"], true);
    assert_eq!(security["fsGroup"], security["runAsUser"]);
    let [container] = &pod["containers"].as_array().unwrap()[..] else { panic!("{pod}") };
    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));

    let [claim] = &set["volumeClaimTemplates"].as_array().unwrap()[..] else { panic!("{set}") };
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mount_of = |name: &JsonValue| mounts.iter().find(|mount| mount["name"] == *name).unwrap();
    assert_eq!(mount_of(&claim["metadata"]["name"])["mountPath"], "/data");
    for volume in pod["volumes"].as_array().unwrap() {
        mount_of(&volume["name"]);
    }
    let [variable] = &container["env"].as_array().unwrap()[..] else { panic!("{container}") };
    assert_eq!(variable["name"], "ABIDE_TOKEN_FILE");
    let secret = mount_of(&json!("token"))["mountPath"].as_str().unwrap();
    assert_eq!(variable["value"], format!("{secret}/token"));

    let service = &of_kind(&objects, "Service")["spec"];
    assert_eq!(service["selector"], set["selector"]["matchLabels"]);
    assert_eq!(service["selector"], set["template"]["metadata"]["labels"]);
    assert_eq!(service["ports"][0]["targetPort"], container["ports"][0]["name"]);
    assert_eq!(container["ports"][0]["containerPort"], 7341);
}

/// Kubernetes mounts a secret as a link to a file, and its probes have no credentials.
#[test]
fn probes_of_kubernetes_are_answered() {
    let objects = kubernetes();
    let set = of_kind(&objects, "StatefulSet");
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data"), "the-token-of-an-operator\n").unwrap();
    let token = folder.path().join("token");
    std::os::unix::fs::symlink("data", &token).unwrap();
    let mut serve = abide();
    serve.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db", "abide.db"]);
    let server = Process::spawn(serve.env("ABIDE_TOKEN_FILE", &token).current_dir(folder.path()));
    let greeting: JsonValue = serde_json::from_str(&server.line()).unwrap();
    assert_eq!(greeting["requires_token"], true);
    let address = greeting["listening"].as_str().unwrap();
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let request = &container[probe]["httpGet"];
        assert_eq!(request["port"], container["ports"][0]["name"], "{probe}");
        let path = request["path"].as_str().unwrap();
        let (status, body) = request_with(address, "GET", path, "", "");
        assert_eq!(status, 200, "{probe}: {body}");
    }
    let (status, body) = request_with(address, "GET", "/metrics", "", "");
    assert_eq!(status, 401, "{body}");
    // A server that is about to stop is not ready, and must not be restarted.
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/ready");
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/health");
}
