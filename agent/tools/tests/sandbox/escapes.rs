//! Programs that try to leave their sandbox. Each attempt is a shell script; the secret is outside of the workspace.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;

use abide_tools::{Availability, BackendName, Network, SandboxConfig};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;

use crate::{Home, SECRET, backends, environment, launcher};

/// Attempts to read the secret, or to change something outside of the workspace. `$home` is the folder with the
/// secret and the workspace; `$server` is the process that runs the tools.
const ATTEMPTS: [(&str, &str); 25] = [
    ("..", "cat ../secret"),
    ("an absolute path", "cat $home/secret"),
    ("a symlink", "ln -s ../secret link; cat link"),
    ("a symlink to a folder", "ln -s $home up; cat up/secret; ls up/"),
    ("a hard link", "ln ../secret hard && cat hard"),
    ("/proc/self/root", "cat /proc/self/root$home/secret"),
    ("the root of the supervisor", "cat /proc/$PPID/root$home/secret"),
    ("the working directory of the supervisor", "cat /proc/$PPID/cwd/../secret"),
    ("a file that is moved", "mv ../secret . && cat secret"),
    ("a new file", "echo x > ../new; echo x > $home/new; cp /etc/hostname $home/new"),
    ("a changed file", "echo x >> ../secret; truncate -s0 $home/secret; chmod 777 ../secret"),
    ("a removed file", "rm -f ../secret $home/secret; rm -rf $home"),
    ("a mount", "mkdir m; mount --bind $home m && cat m/secret"),
    ("the environment of the server", "cat /proc/$server/environ | tr '\\0' '\\n'"),
    ("the environment of the supervisor", "cat /proc/$PPID/environ | tr '\\0' '\\n'"),
    ("its own environment", "env; export -p"),
    ("the memory of the server", "head -c 100 /proc/$server/mem; ls -l /proc/$server/fd"),
    ("a signal to the server", "kill -0 $server && echo TOP-SECRET"),
    ("a signal to the supervisor", "test $PPID -gt 2 && kill -0 $PPID && echo TOP-SECRET"),
    ("the clock", "date -s @$(date +%s) && echo TOP-SECRET"),
    ("the name of the machine", "hostname $(uname -n) && echo TOP-SECRET"),
    ("a limit of the server", "prlimit --pid $server --core=0 && echo TOP-SECRET"),
    ("the priority of the server", "renice -n 1 -p $server && echo TOP-SECRET"),
    (
        "its capabilities",
        "grep -E 'Cap(Inh|Prm|Eff|Amb):.*[1-9a-f]' /proc/self/status && echo TOP-SECRET",
    ),
    ("new privileges", "grep -q NoNewPrivs:.1 /proc/self/status || echo TOP-SECRET"),
];

/// Further attempts, of the backend that has no namespaces.
const ATTEMPTS_LOCAL: [(&str, &str); 3] = [
    ("passwords of the system", "cat /etc/shadow && echo TOP-SECRET"),
    (
        "capabilities of a new program",
        "grep CapBnd:.*[1-9a-f] /proc/self/status && test $(id -u) = 0 && echo TOP-SECRET",
    ),
    ("a user namespace", "unshare --user true && echo TOP-SECRET"),
];

#[tokio::test]
async fn programs_do_not_leave_the_sandbox() {
    for backend in backends() {
        let own = if backend == BackendName::Local { &ATTEMPTS_LOCAL[..] } else { &[] };
        for (what, script) in ATTEMPTS.iter().chain(own) {
            let home = Home::with(&json!({"backend": backend}));
            let begin = format!("home={} server={};", home.path("").display(), std::process::id());
            let outcome = home.sh(&format!("{begin} {script}")).await;
            assert!(!outcome.text.contains(SECRET), "{backend}, {what}: {}", outcome.text);
            // The program ran, and failed within.
            assert_eq!(outcome.failure, None, "{backend}, {what}: {}", outcome.text);
            let secret = fs::read_to_string(home.path("secret")).expect("the secret still exists");
            assert_eq!(secret, SECRET, "{backend}, {what}");
            assert!(!home.path("new").exists(), "{backend}, {what}");
        }
    }
}

/// A program of another sandbox belongs to the same user. It waits for the end of the other one in a named pipe.
#[tokio::test]
async fn programs_do_not_read_other_sandboxes() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let other = "export PART=TOP; export KEY=$PART-SECRET; mkfifo end; \
                     sh -c 'echo $$ > pid; read line < end'";
        let reads = "until test -s pid; do :; done; cd /proc/$(cat pid); cat environ mem; \
                     ls -l fd cwd; cd - > /dev/null; echo > end";
        let (other, reads) = tokio::join!(home.sh(other), home.sh(reads));
        assert_eq!(other.failure, None, "{backend}: {}", other.text);
        assert_eq!(reads.failure, None, "{backend}: {}", reads.text);
        assert!(!reads.text.contains(SECRET), "{backend}: {}", reads.text);
    }
}

/// System V objects of a program stayed after its end, and counted for the whole machine.
#[tokio::test]
async fn memory_does_not_outlive_its_program() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let outcome = home.sh("ipcmk --shmem 54321").await;
        assert_eq!(outcome.failure, None, "{backend}: {}", outcome.text);
        let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        assert!(!segments.contains(" 54321 "), "{backend}: {segments}");
    }
}

/// A program of one tenant read the commands of others in `/proc`.
#[tokio::test]
async fn programs_do_not_see_the_commands_of_others() {
    for backend in backends() {
        let availability = Availability::probe(backend, &launcher(), &environment());
        if format!("{availability:?}").contains("no namespace of processes") {
            eprintln!("{backend} is left out: {availability:?}");
            continue;
        }
        let home = Home::with(&json!({"backend": backend}));
        let marker = format!("marker-{}", std::process::id());
        let other = format!("mkfifo end; sh -c 'echo x > ready; read line < end' {marker}");
        let looks = "until test -s ready; do :; done; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; \
                     echo > end";
        let (other, looks) = tokio::join!(home.sh(&other), home.sh(looks));
        assert_eq!(other.failure, None, "{backend}: {}", other.text);
        assert!(looks.text.contains("until test"), "{backend}: it sees itself: {}", looks.text);
        assert!(!looks.text.contains(&marker), "{backend}: {}", looks.text);
    }
}

/// A program of another user of the machine, such as Docker, listens on a Unix socket. Landlock does not limit who connects
/// to it.
#[tokio::test]
async fn programs_do_not_connect_to_unix_sockets() {
    let program = env!("CARGO_BIN_EXE_abide-sandbox-exec");
    let outcome = async |settings: serde_json::Value| {
        let home = Home::with(&settings);
        let _listener = UnixListener::bind(home.path("socket")).expect("it is a new path");
        let path = home.path("socket");
        home.sh(&format!("{program} connect {}", path.display())).await.text
    };
    let refused = outcome(json!({"readable": [program]})).await;
    assert_eq!(refused, "Operation not permitted (os error 1)");
    let permitted = outcome(json!({"readable": [program], "unix_sockets": true})).await;
    assert_eq!(permitted, "connected");
}

/// A shell or a service manager can leave files open. A program that inherits a folder leaves every sandbox with it, and
/// one that inherits a file shares it with the programs of other tenants.
#[tokio::test]
async fn programs_inherit_only_the_standard_streams() {
    let left_open = memfd_create("left-open", MemfdFlags::empty()).expect("a file in memory");
    let link = format!("/proc/self/fd/{}", left_open.as_raw_fd());
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let outcome = home.sh(&format!("readlink {link}; readlink /proc/self/fd/0")).await;
        assert!(!outcome.text.contains("left-open"), "{backend}: {}", outcome.text);
        assert!(outcome.text.contains("pipe:"), "{backend}: {}", outcome.text);
    }
}

#[tokio::test]
async fn programs_can_work_in_the_workspace() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        home.write("src/a.txt", "one\n");
        let script = "cat src/a.txt && echo two >> src/a.txt && mkdir new && mv src new/ && pwd && \
                      echo x > $TMPDIR/t && cat $TMPDIR/t && cd ~ && echo done && head -c1 /dev/urandom | wc -c";
        let outcome = home.sh(script).await;
        let path = home.path("project").canonicalize().expect("it exists");
        let expected = format!("one\n{}\nx\ndone\n1", path.display());
        assert_eq!(outcome.text, expected, "{backend}");
        assert_eq!(home.read("new/src/a.txt"), "one\ntwo\n", "{backend}");
        let files = &outcome.content["files"];
        let paths: Vec<_> =
            files.as_array().expect("a list").iter().map(|it| &it["path"]).collect();
        assert_eq!(paths, ["new/src/a.txt", "src/a.txt"], "{backend}: {files}");
    }
}

/// With namespaces, even the names of the configuration and of other processes are not visible.
#[tokio::test]
async fn bubblewrap_hides_the_configuration_the_network_and_other_processes() {
    if !backends().contains(&BackendName::Bubblewrap) {
        return;
    }
    let home = Home::with(&json!({"backend": "bubblewrap"}));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let script = format!(
        "cat .abide/abide.yaml; ls -A .abide; ls /proc | grep -c '^[0-9]'; \
         bash -c 'echo x > /dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo connected; ls /root /home"
    );
    let outcome = home.sh(&script).await;
    assert!(!outcome.text.contains(SECRET), "{}", outcome.text);
    assert!(!outcome.text.contains("connected"), "{}", outcome.text);
    let stdout = outcome.content["stdout"].as_str().expect("it is text");
    let processes: usize = stdout.trim().parse().expect("only the count is printed");
    assert!(processes < 10, "{stdout}");

    // The control: with the network of the machine, the same connection succeeds.
    let home = Home::with(&json!({"backend": "bubblewrap", "network": "host"}));
    assert!(home.sh(&script).await.text.contains("connected"));
}

#[test]
fn settings_that_promise_too_much_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = |config: serde_json::Value| {
        let config: SandboxConfig =
            serde_json::from_value(config).map_err(|why| why.to_string())?;
        let opened = abide_tools::Sandbox::open(config, folder.path(), launcher(), &environment());
        opened.map(drop).map_err(|why| format!("{}: {why}", why.code()))
    };
    let cases = [
        json!({"workspace": ".", "network": "none"}),
        json!({"workspace": "/"}),
        json!({"workspace": "."}),
        json!({"workspace": "missing"}),
        json!({"workspace": ".", "backend": "docker"}),
        json!({"workspace": ".", "image": "debian"}),
        json!({"workspace": ".", "backend": "bubblewrap", "unix_sockets": true}),
        json!({"workspace": ".", "limits": {"processes": 0}}),
        json!({"workspace": ".", "backend": "gvisor"}),
        json!({"workspace": ".", "root": "/"}),
        json!({}),
    ];
    let lines: Vec<String> = cases
        .into_iter()
        .map(|config| match open(config.clone()) {
            Ok(()) => format!("{config}: accepted"),
            Err(why) => format!("{config}: {why}"),
        })
        .map(|line| line.replace(&folder.path().display().to_string(), "FOLDER"))
        .collect();
    expect_test::expect![[r#"
        {"network":"none","workspace":"."}: bad_sandbox_config: sandbox: the backend local cannot deny the network: use bubblewrap or docker
        {"workspace":"/"}: bad_sandbox_config: sandbox: workspace / must be a folder other than /
        {"workspace":"."}: bad_sandbox_config: sandbox: the workspace must not be the folder of the configuration
        {"workspace":"missing"}: bad_sandbox_config: sandbox: workspace FOLDER/missing: No such file or directory (os error 2)
        {"backend":"docker","workspace":"."}: bad_sandbox_config: sandbox: the backend docker needs an image
        {"image":"debian","workspace":"."}: bad_sandbox_config: sandbox: only the backend docker has an image
        {"backend":"bubblewrap","unix_sockets":true,"workspace":"."}: bad_sandbox_config: sandbox: only the backend local has unix_sockets
        {"limits":{"processes":0},"workspace":"."}: bad_sandbox_config: sandbox: a limit must not be 0
        {"backend":"gvisor","workspace":"."}: unknown variant `gvisor`, expected one of `local`, `bubblewrap`, `docker`
        {"root":"/","workspace":"."}: unknown field `root`, expected one of `backend`, `workspace`, `scoped_workspaces`, `readable`, `writable`, `network`, `unix_sockets`, `image`, `limits`, `concurrency`
        {}: missing field `workspace`"#]].assert_eq(&lines.join("\n"));
    assert_eq!(SandboxConfig::new(".").network(), Network::Host);
}

#[test]
fn without_a_launcher_no_sandbox_is_available() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = SandboxConfig::new("..");
    let launcher = abide_tools::Launcher::none();
    let refused =
        abide_tools::Sandbox::open(config, folder.path(), launcher.clone(), &environment());
    let refused = refused.map(drop).expect_err("there is no supervisor");
    assert_eq!(refused.code(), "sandbox_unavailable");
    let all = abide_tools::available_backends(&launcher, &environment());
    assert!(all.iter().all(|backend| backend["available"] == false), "{all:?}");
}
