//! The backend `bubblewrap`: new namespaces for files, processes, network and users, by the program `bwrap`.

use std::path::Path;

use super::backend::{IsolatedCommand, SandboxBackend, SandboxJob};
use super::config::{BackendName, Network};
use super::local::system_paths;

/// The folder of temporary files within the sandbox.
const TEMPORARY: &str = "/tmp";

#[derive(Debug)]
pub(super) struct Bubblewrap;

impl SandboxBackend for Bubblewrap {
    fn name(&self) -> BackendName {
        BackendName::Bubblewrap
    }

    fn isolate(&self, job: &SandboxJob) -> Result<IsolatedCommand, String> {
        let mut argv: Vec<String> = ["bwrap", "--unshare-all", "--die-with-parent"]
            .into_iter()
            .chain(["--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"])
            .map(str::to_owned)
            .collect();
        if job.network == Network::Host {
            argv.push("--share-net".to_owned());
        }
        let mut bind = |how: &str, from: &str, to: &str| {
            argv.extend([how, from, to].map(str::to_owned));
        };
        for path in system_paths() {
            match std::fs::read_link(path) {
                Ok(target) => bind("--symlink", &target.display().to_string(), path),
                Err(_) => bind("--ro-bind-try", path, path),
            }
        }
        argv.extend(["--proc", "/proc", "--dev", "/dev"].map(str::to_owned));
        // Not a file system in memory, so that the limit of the disk applies.
        let temporary = text(&job.temporary)?;
        let mut bind = |how: &str, from: &str, to: &str| {
            argv.extend([how, from, to].map(str::to_owned));
        };
        bind("--bind", &temporary, TEMPORARY);
        let program = Path::new(job.argv.first().map_or("", String::as_str));
        let program = program.is_absolute().then_some(program);
        let folder = job.folder.is_absolute().then_some(job.folder.as_path());
        for path in job.readable.iter().map(AsRef::as_ref).chain(program).chain(folder) {
            bind("--ro-bind-try", &text(path)?, &text(path)?);
        }
        let workspace = text(&job.workspace)?;
        bind("--bind", &workspace, &workspace);
        for path in &job.writable {
            bind("--bind-try", &text(path)?, &text(path)?);
        }
        if let Some(hidden) = &job.hidden {
            argv.extend(["--tmpfs".to_owned(), text(&job.workspace.join(hidden))?]);
        }
        for path in job.masked_in_view() {
            argv.extend(["--ro-bind".to_owned(), "/dev/null".to_owned(), text(path)?]);
        }
        argv.extend(["--chdir".to_owned(), text(&job.working_directory())?]);
        argv.push("--".to_owned());
        argv.extend(job.argv.iter().cloned());
        let mut environment = job.environment.clone();
        for name in ["HOME", "TMPDIR", "TEMP", "TMP"] {
            environment.insert(name.to_owned(), TEMPORARY.to_owned());
        }
        Ok(IsolatedCommand { argv, environment, ..IsolatedCommand::default() })
    }
}

/// Returns a path as text.
pub(super) fn text(path: &Path) -> Result<String, String> {
    let text = path.to_str().ok_or_else(|| format!("{} is not Unicode", path.display()));
    text.map(str::to_owned)
}
