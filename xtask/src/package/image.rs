//! The images of containers, written without a daemon as archives of an OCI layout.
//!
//! The server image contains the program, the C library, certificates and time zones: no shell and no package manager.
//! The image for agents has a Debian root with a shell, git and bubblewrap. Both have a layer of the system and a layer
//! of the program. `docker load`, `podman load` and `skopeo copy oci-archive:…` read them.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as JsonValue, json};

use super::archive::{Archive, gzip, sha256};
use super::check::{self, Installed};
use super::release::{Release, describe};

/// The user of both images, whose number is that of "nonroot" in other minimal images.
const USER: u64 = 65532;

/// The Debian packages of the server image.
const SERVER_PACKAGES: [&str; 6] =
    ["base-files", "ca-certificates", "libc6", "libgcc-s1", "netbase", "tzdata"];

/// The libraries that the program and the resolver of the C library load.
const LIBRARIES: [&str; 10] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libnss_dns.so.2",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
];

/// Files of the system that libraries and scanners read.
const SYSTEM_FILES: [&str; 5] =
    ["etc/debian_version", "etc/os-release", "etc/protocols", "etc/services", "usr/lib/os-release"];

/// What is added to the essential packages of Debian in the image for agents.
const AGENT_PACKAGES: &str = "bash,bubblewrap,ca-certificates,git,tzdata";

/// The release of Debian. The sources of packages are those of the machine.
const DEBIAN: &str = "bookworm";
const SOURCES: &str = "/etc/apt/sources.list.d/debian.sources";

/// Maximum bytes of the layers of the server image.
const MAX_SERVER_BYTES: usize = 40 << 20;

/// An image: its name, the lowest layer, and how it starts.
struct Image {
    name: String,
    system: Vec<u8>,
    arguments: Vec<&'static str>,
    volumes: &'static [&'static str],
}

/// The volume of the database.
const DATA: &str = "/data";

/// The folder of the image for agents in which a project is mounted, and the agents of the project. The sandbox of a new project
/// has the folder around its agents as its workspace.
const PROJECT: &str = "/project";
const AGENTS: &str = "/project/.abide";

/// Where they listen.
const LISTEN: &str = "0.0.0.0:7341";

/// What the servers of both images have in common: the file is on the volume, and the first start creates a token.
const SERVE: [&str; 9] = [
    "serve",
    "--listen",
    LISTEN,
    "--db",
    "/data/abide.db",
    "--first-token",
    "/data/admin.token",
    "--require-volume",
    DATA,
];

/// How a container is checked: it asks the server that has the file open, without a shell.
const HEALTH: [&str; 4] = ["/usr/bin/abide", "health", "--db", "/data/abide.db"];

/// Seconds between two checks, those that a check may take, and those in which a server that starts may fail: a large file can
/// take minutes to recover, or to migrate.
const HEALTH_INTERVAL_S: u64 = 10;
const HEALTH_TIMEOUT_S: u64 = 10;
const HEALTH_START_S: u64 = 300;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Writes the server image.
pub(super) fn pack_server(release: &Release) -> Result<Vec<PathBuf>, String> {
    let Some(architecture) = release.platform.architecture else { return Ok(Vec::new()) };
    let system = server_system()?.to_tar(release.epoch).map_err(|why| why.to_string())?;
    let image =
        Image { name: release.name.clone(), system, arguments: SERVE.to_vec(), volumes: &[DATA] };
    let packed = image.pack(release, architecture)?;
    if packed.bytes > MAX_SERVER_BYTES {
        return Err(format!("the layers of the server image have {} bytes", packed.bytes));
    }
    Ok(packed.files)
}

/// Writes the image for agents.
pub(super) fn pack_agents(release: &Release) -> Result<Vec<PathBuf>, String> {
    let Some(architecture) = release.platform.architecture else { return Ok(Vec::new()) };
    let mut arguments = SERVE.to_vec();
    arguments.extend(["--agents", AGENTS]);
    let name = format!("{}-agents", release.name);
    let system = agents_system(release)?;
    let image = Image { name, system, arguments, volumes: &[DATA, PROJECT] };
    Ok(image.pack(release, architecture)?.files)
}

/// The root of the server image, without the program.
fn server_system() -> Result<Archive, String> {
    let folder = check::empty_folder()?;
    let downloads = folder.path().join("downloads");
    let root = folder.path().join("root");
    for folder in [&downloads, &root] {
        fs::create_dir(folder).map_err(describe(folder))?;
    }
    let mut apt = Command::new("apt-get");
    apt.args(["download", "--quiet=2"]).args(SERVER_PACKAGES).current_dir(&downloads);
    check::output(&mut apt)?;
    let mut system = Archive::default();
    for entry in fs::read_dir(&downloads).map_err(describe(&downloads))? {
        let package = entry.map_err(describe(&downloads))?.path();
        check::output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&root))?;
        // Scanners for vulnerabilities read which packages an image has.
        let fields = check::output(Command::new("dpkg-deb").arg("--field").arg(&package))?;
        let name =
            check::output(Command::new("dpkg-deb").arg("--field").arg(&package).arg("Package"))?;
        system.file(format!("var/lib/dpkg/status.d/{}", name.trim()), 0o644, fields);
    }
    system.tree(&root, "", &is_kept).map_err(describe(&root))?;
    let certificates = certificates(&root.join("usr/share/ca-certificates/mozilla"))?;
    system.file("etc/ssl/certs/ca-certificates.crt", 0o644, certificates);
    system.file("etc/nsswitch.conf", 0o644, "hosts: files dns\n");
    let passwd = format!(
        "root:x:0:0:root:/:/sbin/nologin\nabide:x:{USER}:{USER}:Abide:/data:/sbin/nologin\n"
    );
    system.file("etc/passwd", 0o644, passwd);
    system.file("etc/group", 0o644, format!("root:x:0:\nabide:x:{USER}:\n"));
    system.folder("tmp", 0o1777, 0);
    // A new volume gets the owner and the permissions of the folder of the image.
    system.folder("data", 0o700, USER);
    Ok(system)
}

/// Whether the server image contains a file of the Debian packages.
fn is_kept(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_zone = path.starts_with("usr/share/zoneinfo/")
        // Copies of all zones, with leap seconds and without.
        && !path.starts_with("usr/share/zoneinfo/right/")
        && !path.starts_with("usr/share/zoneinfo/posix/");
    // On newer releases `lib` is a link to `usr/lib`.
    let is_top_link = ["lib", "lib64"].contains(&path);
    is_zone
        || is_top_link
        || LIBRARIES.contains(&name)
        || SYSTEM_FILES.contains(&path)
        || (path.starts_with("usr/share/doc/") && name == "copyright")
}

/// The certificates of a folder in one file, as `update-ca-certificates` writes it.
fn certificates(folder: &Path) -> Result<Vec<u8>, String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(describe(folder))? {
        paths.push(entry.map_err(describe(folder))?.path());
    }
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        all.extend(fs::read(&path).map_err(describe(&path))?);
    }
    Ok(all)
}

/// The root of the image for agents, as an archive.
fn agents_system(release: &Release) -> Result<Vec<u8>, String> {
    let folder = check::empty_folder()?;
    let file = folder.path().join("root.tar");
    let account = format!(
        "echo 'abide:x:{USER}:{USER}:Abide:/data:/bin/bash' >> \"$1/etc/passwd\" && \
         echo 'abide:x:{USER}:' >> \"$1/etc/group\" && \
         mkdir -m 700 \"$1{DATA}\" \"$1{PROJECT}\" && \
         chown {USER}:{USER} \"$1{DATA}\" \"$1{PROJECT}\""
    );
    let mut debian = debian("essential", AGENT_PACKAGES, Some(&account), &file);
    check::output(debian.env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    fs::read(&file).map_err(describe(&file))
}

/// The command that makes a Debian root in an archive or a folder: a variant of mmdebstrap with more packages, without
/// documentation, and changed by a command.
pub(super) fn debian(variant: &str, packages: &str, change: Option<&str>, root: &Path) -> Command {
    let mut debian = Command::new("mmdebstrap");
    debian.args(["--quiet", "--skip=output/dev"]);
    debian.arg(format!("--variant={variant}")).arg(format!("--include={packages}"));
    for path in ["doc", "info", "locale", "man"] {
        debian.arg(format!("--dpkgopt=path-exclude=/usr/share/{path}/*"));
    }
    debian.arg("--dpkgopt=path-include=/usr/share/doc/*/copyright");
    if let Some(change) = change {
        debian.arg(format!("--customize-hook={change}"));
    }
    debian.arg(DEBIAN).arg(root).arg(SOURCES);
    debian
}

/// An image that was written, and the size of its layers.
struct PackedImage {
    files: Vec<PathBuf>,
    bytes: usize,
}

impl Image {
    /// Writes the image as an archive of an OCI layout, which `docker load` of older versions reads as well.
    fn pack(&self, release: &Release, architecture: &str) -> Result<PackedImage, String> {
        let mut program = Archive::default();
        program.file("usr/bin/abide", 0o755, release.program()?);
        for (document, content) in release.documents()? {
            program.file(format!("usr/share/doc/abide/{document}"), 0o644, content);
        }
        // A runtime mounts file systems there. mmdebstrap leaves out `/dev`, whose devices only root can unpack.
        for empty in ["dev", "proc", "sys"] {
            program.folder(empty, 0o755, 0);
        }
        let program = program.to_tar(release.epoch).map_err(|why| why.to_string())?;
        let mut layout = Archive::default();
        let mut layers = Vec::new();
        let mut bytes = 0;
        for tar in [&self.system, &program] {
            let layer = gzip(tar).map_err(|why| why.to_string())?;
            bytes += layer.len();
            let media = "application/vnd.oci.image.layer.v1.tar+gzip";
            layers.push(add_blob(&mut layout, media, layer));
        }
        let digests = [&self.system, &program].map(|tar| format!("sha256:{}", sha256(tar)));
        let config = self.config(release, architecture, &digests);
        let media = "application/vnd.oci.image.config.v1+json";
        let config = add_blob(&mut layout, media, config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": layers,
        });
        let media = "application/vnd.oci.image.manifest.v1+json";
        let mut entry = add_blob(&mut layout, media, manifest.to_string().into_bytes());
        let version = release.version.as_str();
        entry["platform"] = json!({"architecture": architecture, "os": "linux"});
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": version});
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        });
        layout.file("index.json", 0o644, index.to_string());
        layout.file("oci-layout", 0o644, json!({"imageLayoutVersion": "1.0.0"}).to_string());
        let docker = json!([{
            "Config": blob_path(&config),
            "RepoTags": [format!("{}:{version}", self.name)],
            "Layers": layers.iter().map(blob_path).collect::<Vec<_>>(),
        }]);
        layout.file("manifest.json", 0o644, docker.to_string());
        let layout = layout.to_tar(release.epoch).map_err(|why| why.to_string())?;
        let file = format!("{}_{version}_{architecture}.oci.tar", self.name);
        Ok(PackedImage { files: release.write(&file, &layout)?, bytes })
    }

    /// The configuration: what is started, as which user, with which volumes.
    fn config(&self, release: &Release, architecture: &str, digests: &[String]) -> JsonValue {
        let volumes = self.volumes.iter().map(|path| ((*path).to_owned(), json!({})));
        let volumes: Map<String, JsonValue> = volumes.collect();
        let check: Vec<&str> = iter::once("CMD").chain(HEALTH).collect();
        json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": format!("{USER}:{USER}"),
                "ExposedPorts": {"7341/tcp": {}},
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/data"],
                "Entrypoint": ["/usr/bin/abide"],
                "Cmd": self.arguments,
                "Volumes": volumes,
                "WorkingDir": DATA,
                "StopSignal": "SIGTERM",
                // Of Docker, and not of OCI.
                "Healthcheck": {
                    "Test": check,
                    "Interval": HEALTH_INTERVAL_S * SECOND_NS,
                    "Timeout": HEALTH_TIMEOUT_S * SECOND_NS,
                    "StartPeriod": HEALTH_START_S * SECOND_NS,
                },
                "Labels": {
                    "org.opencontainers.image.title": self.name,
                    "org.opencontainers.image.version": release.version,
                    "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                },
            },
            "rootfs": {"type": "layers", "diff_ids": digests},
            "history": [{"comment": "the system"}, {"comment": "the program abide"}],
        })
    }
}

/// Adds a blob. Returns its descriptor.
fn add_blob(layout: &mut Archive, media: &str, content: Vec<u8>) -> JsonValue {
    let digest = sha256(&content);
    let size = content.len();
    layout.file(format!("blobs/sha256/{digest}"), 0o644, content);
    json!({"mediaType": media, "digest": format!("sha256:{digest}"), "size": size})
}

/// The path of a blob in the layout, from its descriptor.
fn blob_path(descriptor: &JsonValue) -> String {
    let digest = descriptor["digest"].as_str().unwrap_or_default();
    format!("blobs/{}", digest.replace(':', "/"))
}

/// Unpacks the layers, and runs the program in their root as the user of the image, with volumes and without. The image for
/// agents serves the project that was made.
pub(super) fn check(release: &Release, files: &[PathBuf]) -> Result<Option<Duration>, String> {
    let [file] = files else { return Err(format!("one image was expected, not {}", files.len())) };
    let folder = check::empty_folder()?;
    let start = Instant::now();
    let layout = folder.path().join("layout");
    let root = folder.path().join("root");
    let data = folder.path().join("data");
    for folder in [&layout, &root, &data] {
        fs::create_dir(folder).map_err(describe(folder))?;
    }
    check::output(Command::new("tar").arg("-xf").arg(file).arg("-C").arg(&layout))?;
    let index = read_json(&layout.join("index.json"))?;
    let manifest = read_json(&layout.join(blob_path(&index["manifests"][0])))?;
    let config = read_json(&layout.join(blob_path(&manifest["config"])))?;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let layer = layout.join(blob_path(layer));
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(layer).arg("-C").arg(&root).arg("--no-same-owner");
        check::output(&mut tar)?;
    }
    let approved = check::exercise(release, &in_root(&root, &[(data.as_path(), DATA)]), start)?;

    let arguments = config["config"]["Cmd"].as_array().cloned().unwrap_or_default();
    let arguments: Vec<&str> = arguments.iter().filter_map(JsonValue::as_str).collect();
    if arguments.contains(&AGENTS) {
        // A free port of this machine, whose network the sandbox has.
        let mut serve = arguments.clone();
        for argument in serve.iter_mut().filter(|argument| **argument == LISTEN) {
            *argument = "127.0.0.1:0";
        }
        serve.push("--json");
        in_root(&root, &[(data.as_path(), DATA), (data.as_path(), PROJECT)])
            .start_and_stop(&serve)?;
    }

    // The command of the image refuses to start without its volume, before it creates anything.
    let refused = in_root(&root, &[]).stderr(&arguments)?;
    if refused.contains("no volume is mounted at /data") {
        Ok(approved)
    } else {
        Err(format!("without its volume the image printed {refused:?}"))
    }
}

/// The program in the root of an image, with folders as its volumes.
fn in_root(root: &Path, volumes: &[(&Path, &str)]) -> Installed {
    let root_path = root.display().to_string();
    let user = USER.to_string();
    let mut arguments: Vec<String> = ["--ro-bind", &root_path, "/", "--proc", "/proc"]
        .into_iter()
        .chain(["--dev", "/dev", "--tmpfs", "/tmp", "--unshare-user", "--uid", &user])
        .chain([
            "--gid",
            &user,
            "--die-with-parent",
            "--clearenv",
            "--setenv",
            "PATH",
            "/usr/bin:/bin",
        ])
        .map(str::to_owned)
        .collect();
    for (folder, path) in volumes {
        arguments.extend(["--bind".to_owned(), folder.display().to_string(), (*path).to_owned()]);
    }
    arguments.extend(["--chdir", DATA, "/usr/bin/abide"].map(str::to_owned));
    // The server image has no shell.
    let has_shell = fs::symlink_metadata(root.join("bin/sh")).is_ok();
    Installed::started_by("bwrap", arguments, root, has_shell)
}

fn read_json(path: &Path) -> Result<JsonValue, String> {
    let text = fs::read_to_string(path).map_err(describe(path))?;
    serde_json::from_str(&text).map_err(|why| format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_image_contains_what_the_program_loads() {
        for (path, is_in) in [
            ("lib/x86_64-linux-gnu/libc.so.6", true),
            ("usr/lib/x86_64-linux-gnu/libc.so.6", true),
            ("lib64/ld-linux-x86-64.so.2", true),
            ("lib/x86_64-linux-gnu/libmvec.so.1", false),
            ("usr/share/zoneinfo/Europe/Berlin", true),
            ("usr/share/zoneinfo/right/Europe/Berlin", false),
            ("usr/share/doc/libc6/copyright", true),
            ("usr/share/doc/libc6/changelog.Debian.gz", false),
            ("usr/bin/ldd", false),
            ("lib", true),
        ] {
            assert_eq!(is_kept(path), is_in, "{path}");
        }
    }

    /// Compose and Kubernetes run either image.
    #[test]
    fn the_dockerfile_starts_the_server_as_the_image_does() {
        let file = include_str!("../../../deploy/Dockerfile");
        let value = |word: &str| {
            let mut lines = file.lines().filter_map(|line| line.strip_prefix(word));
            lines.next().unwrap_or_else(|| panic!("no {word}")).trim()
        };
        let list = |word: &str| -> Vec<String> {
            serde_json::from_str(value(word)).expect("it is a list of texts")
        };
        assert_eq!(list("CMD "), SERVE);
        assert_eq!(list("ENTRYPOINT "), ["/usr/bin/abide"]);
        assert_eq!(list("VOLUME "), ["/data"]);
        assert_eq!(value("USER "), format!("{USER}:{USER}"));
        assert_eq!(value("WORKDIR "), "/data");
        assert_eq!(value("STOPSIGNAL "), "SIGTERM");
        let (options, check) = value("HEALTHCHECK ").split_once(" CMD ").expect("it has both");
        let expected = format!(
            "--interval={HEALTH_INTERVAL_S}s --timeout={HEALTH_TIMEOUT_S}s --start-period={HEALTH_START_S}s"
        );
        assert_eq!(options, expected);
        let check: Vec<String> = serde_json::from_str(check).expect("it is a list of texts");
        assert_eq!(check, HEALTH);
    }

    #[test]
    fn a_blob_is_found_by_its_descriptor() {
        let mut layout = Archive::default();
        let descriptor = add_blob(&mut layout, "text/plain", b"abc".to_vec());
        assert_eq!(descriptor["size"], 3);
        let path = blob_path(&descriptor);
        assert!(path.starts_with("blobs/sha256/ba7816bf8f01cfea"), "{path}");
        let tar = layout.to_tar(0).expect("memory has room");
        assert!(tar.windows(path.len()).any(|bytes| bytes == path.as_bytes()));
    }
}
