//! The packages of npm: the client, the program of the platform, and the package whose command is the program.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::check::{self, Installed};
use super::release::Release;

/// The folder of the client.
const CLIENT: &str = "client-sdk/typescript";

/// Packs them.
pub(super) fn pack(release: &Release) -> Result<Vec<PathBuf>, String> {
    let Some(platform) = release.platform.npm else { return Ok(Vec::new()) };
    let folder = release.root.join(CLIENT);
    check::output(Command::new("npm").args(["ci", "--silent"]).current_dir(&folder))?;
    check::output(Command::new("npm").args(["run", "build", "--silent"]).current_dir(&folder))?;
    let documents = check::empty_folder()?;
    release.write_documents(documents.path())?;
    let mut pack = Command::new("node");
    pack.args(["scripts/pack.mjs", "--platform", platform, "--distribution", &release.name]);
    pack.arg("--binary").arg(&release.binary).arg("--documents").arg(documents.path());
    pack.arg("--out").arg(&release.out);
    let files = check::output(pack.current_dir(&folder))?;
    Ok(files.lines().map(PathBuf::from).collect())
}

/// Installs them from a registry with nothing else, in an empty folder and with an empty cache.
pub(super) fn check(release: &Release, _files: &[PathBuf]) -> Result<Option<Duration>, String> {
    let name = release.name.as_str();
    let registry = Registry::start(&release.root, &release.out)?;
    let empty = check::empty_folder()?;
    let version = registry.run("npx", empty.path(), &["--yes", name, "--version"])?;
    if version != format!("abide {}\n", release.version) {
        return Err(format!("npx {name} --version printed {version:?}"));
    }

    let project = check::empty_folder()?;
    let start = Instant::now();
    registry.run(
        "npm",
        project.path(),
        &["install", "--silent", "--no-audit", "--no-fund", name],
    )?;
    // npm itself does not pass SIGTERM on, so the server is not started with `npx`.
    let command = project.path().join("node_modules/.bin/abide");
    let approved = check::exercise(release, &Installed::new(command, project.path()), start)?;

    let client = format!("@abide/client@npm:{name}-client");
    let install = ["install", "--silent", "--no-audit", "--no-fund", client.as_str()];
    registry.run("npm", project.path(), &install)?;
    let program = "const { Abide } = await import('@abide/client');
        const abide = await Abide.open('agents.db');
        const { rows } = await abide.sql('SELECT 1 AS one');
        await abide.close();
        console.log(rows[0].one);";
    let printed =
        registry.run("node", project.path(), &["--input-type=module", "--eval", program])?;
    if printed != "1\n" {
        return Err(format!("the client printed {printed:?}"));
    }
    Ok(approved)
}

/// `package/npm/registry.mjs`, and an empty cache of its packages.
struct Registry {
    child: Child,
    url: String,
    cache: TempDir,
}

impl Registry {
    /// Starts it for the packages of a folder, and waits until it listens.
    fn start(root: &Path, packages: &Path) -> Result<Registry, String> {
        let cache = check::empty_folder()?;
        let mut node = Command::new("node");
        node.arg(root.join("package/npm/registry.mjs")).arg(packages);
        let child = node.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|why| format!("cannot start node: {why}"))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        // From here on the process is ended in any case.
        let mut registry = Registry { child, url: String::new(), cache };
        let mut port = String::new();
        BufReader::new(stdout).read_line(&mut port).map_err(|why| why.to_string())?;
        registry.url = format!("http://127.0.0.1:{}/", port.trim());
        Ok(registry)
    }

    /// Runs a program of npm or Node in a folder, with this registry alone. Returns its output.
    fn run(&self, program: &str, folder: &Path, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env_remove("ABIDE_BINARY");
        command.env("npm_config_registry", &self.url).env("npm_config_cache", self.cache.path());
        command.env("npm_config_update_notifier", "false").env("npm_config_fetch_retries", "0");
        check::output(&mut command)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
