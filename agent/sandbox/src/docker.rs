//! The backend `docker`: a container for each program, by the command line of Docker. The program sees the image, the
//! workspace and the configured paths.

use std::collections::BTreeMap;
use std::path::Path;

use super::backend::{IsolatedCommand, SandboxBackend, SandboxJob};
use super::bubblewrap::text;
use super::config::{BackendName, Network, SandboxConfig, SandboxError};
use crate::environment::Environment;

/// The folder of temporary files within the container.
const TEMPORARY: &str = "/tmp";

/// Variables that the image sets for itself.
const OF_IMAGE: [&str; 5] = ["PATH", "SHELL", "USER", "LOGNAME", "LD_LIBRARY_PATH"];

#[derive(Debug)]
pub(super) struct Docker {
    image: String,
    /// The variables of Docker's command line.
    client: BTreeMap<String, String>,
}

impl Docker {
    pub(super) fn new(
        config: &SandboxConfig,
        environment: &Environment,
    ) -> Result<Docker, SandboxError> {
        let image = config.image.clone().unwrap_or_default();
        if image.starts_with('-') || image.is_empty() {
            return Err(SandboxError::Invalid(format!("{image:?} is not the name of an image")));
        }
        Ok(Docker { image, client: client_variables(environment) })
    }
}

/// Returns the variables that the command line of Docker uses.
pub(super) fn client_variables(environment: &Environment) -> BTreeMap<String, String> {
    let own = environment
        .iter()
        .filter(|(name, _)| name.starts_with("DOCKER_") || matches!(*name, "PATH" | "HOME"));
    own.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl SandboxBackend for Docker {
    fn name(&self) -> BackendName {
        BackendName::Docker
    }

    fn isolate(&self, job: &SandboxJob) -> Result<IsolatedCommand, String> {
        let limits = &job.limits;
        let name = format!("abide-{}", job.id);
        let user = format!(
            "{}:{}",
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw()
        );
        let network = match job.network {
            Network::None => "none",
            Network::Host => "bridge",
        };
        let mut argv = vec!["docker".to_owned(), "run".to_owned()];
        argv.extend(["--rm", "--interactive", "--init", "--read-only"].map(str::to_owned));
        argv.extend(["--pull=never", "--cap-drop=ALL"].map(str::to_owned));
        argv.push("--security-opt=no-new-privileges".to_owned());
        argv.extend([
            format!("--name={name}"),
            format!("--network={network}"),
            format!("--user={user}"),
            format!("--memory={}m", limits.memory_mb),
            format!("--memory-swap={}m", limits.memory_mb),
            format!("--pids-limit={}", limits.processes),
            format!("--ulimit=cpu={}", limits.cpu_seconds),
            format!("--ulimit=nofile={}", limits.open_files),
            format!("--ulimit=fsize={}", limits.file_mb << 20),
            format!("--tmpfs={TEMPORARY}"),
        ]);
        argv.extend(mounts(job)?);
        argv.push(format!("--workdir={}", text(&job.working_directory())?));
        let mut environment = self.client.clone();
        for (variable, value) in &job.environment {
            if OF_IMAGE.contains(&variable.as_str()) {
                continue;
            }
            match variable.as_str() {
                "HOME" | "TMPDIR" | "TEMP" | "TMP" => {
                    argv.push(format!("--env={variable}={TEMPORARY}"));
                }
                // The value is not on the command line, where other users could read it.
                _ => {
                    argv.push(format!("--env={variable}"));
                    environment.insert(variable.clone(), value.clone());
                }
            }
        }
        argv.push(self.image.clone());
        argv.extend(job.argv.iter().cloned());
        let at_end = ["docker", "rm", "--force", &name].map(str::to_owned).to_vec();
        Ok(IsolatedCommand { argv, environment, at_end, ..IsolatedCommand::default() })
    }
}

/// Returns the options for the paths of a job.
fn mounts(job: &SandboxJob) -> Result<Vec<String>, String> {
    let mut options = Vec::new();
    let mut mount = |source: Option<&str>, target: &Path, how: &str| -> Result<(), String> {
        let target = text(target)?;
        // The syntax of a mount has no escape for a comma.
        if target.contains(',') {
            return Err(format!("docker cannot mount {target:?}: it contains a comma"));
        }
        let source = source.unwrap_or(&target);
        options.push(format!("--mount=type=bind,source={source},target={target}{how}"));
        Ok(())
    };
    mount(None, &job.workspace, "")?;
    for path in &job.writable {
        mount(None, path, "")?;
    }
    for path in &job.readable {
        mount(None, path, ",readonly")?;
    }
    for path in job.masked_in_view() {
        mount(Some("/dev/null"), path, ",readonly")?;
    }
    if let Some(hidden) = &job.hidden {
        options.push(format!("--tmpfs={}", text(&job.workspace.join(hidden))?));
    }
    Ok(options)
}
