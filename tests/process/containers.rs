//! The files for containers in `deploy/`: a server has the time to stop, probes ask paths that exist, and the token can
//! be a secret. `xtask/src/tidy/packages.rs` compares the name of the image, and `xtask/src/package/image.rs` the
//! `Dockerfile`.

use std::fs;

use serde_json::{Value as JsonValue, json};

use crate::agent::request_with;
use crate::metrics::read;
use crate::program::{Process, abide, run};

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
