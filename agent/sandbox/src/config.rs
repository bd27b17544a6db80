//! The section `sandbox` of the configuration: the backend, the workspace and the limits.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::scope_limiter::Concurrency;

/// The configuration of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a sandbox: a map with workspace, and optionally backend and limits"
)]
pub struct SandboxConfig {
    /// The backend; the default is `local`.
    #[serde(default)]
    pub backend: BackendName,
    /// The folder that tools can change, for sessions without a scope.
    pub workspace: PathBuf,
    /// The folder with one workspace for each scope; the default is `workspaces` in the folder of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scoped_workspaces: Option<PathBuf>,
    /// Further paths that programs can read and execute, such as a toolchain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub readable: Vec<PathBuf>,
    /// Further paths that programs can change, such as a cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<PathBuf>,
    /// Whether programs can use the network. The default is `host` for `local`, which cannot deny it, and otherwise
    /// `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Whether programs can use Unix sockets, for `local`; the default is `false`. Through them a program reaches
    /// others of the same user, such as Docker or the agent of `ssh`, whose files it does not reach.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unix_sockets: bool,
    /// The image of containers, for `docker`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Limits of each program.
    #[serde(default)]
    pub limits: SandboxLimits,
    /// Maximum numbers of programs at a time; the default is 64, and 16 of one scope.
    #[serde(default = "concurrency")]
    pub concurrency: Concurrency,
}

fn concurrency() -> Concurrency {
    Concurrency::new(64, 16)
}

/// The backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendName {
    /// Landlock and resource limits.
    #[default]
    Local,
    /// Namespaces, by the program `bwrap`.
    Bubblewrap,
    /// Containers, by the program `docker`.
    Docker,
}

/// Access to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// No network.
    None,
    /// The network of the machine.
    Host,
}

/// Limits of a program in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "limits of a sandbox: a map")]
pub struct SandboxLimits {
    /// Maximum number of processes at a time; the default is 256.
    pub processes: u64,
    /// Maximum memory of each process (of the container, with `docker`) in megabytes; the default is 4,096.
    pub memory_mb: u64,
    /// Maximum processor time of each process, in seconds; the default is 600.
    pub cpu_seconds: u64,
    /// Maximum size of a file that a program writes, in megabytes; the default is 1,024.
    pub file_mb: u64,
    /// Maximum number of open files of each process; the default is 1,024.
    pub open_files: u64,
    /// Space in megabytes that programs leave on the disks of the workspace and of temporary files: with less they are
    /// stopped. The default is 256; 0 for no limit.
    pub free_mb: u64,
}

impl Default for SandboxLimits {
    fn default() -> SandboxLimits {
        SandboxLimits {
            processes: 256,
            memory_mb: 4_096,
            cpu_seconds: 600,
            file_mb: 1_024,
            open_files: 1_024,
            free_mb: 256,
        }
    }
}

/// Why a sandbox cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Two settings contradict each other, or a path is missing.
    #[error("sandbox: {0}")]
    Invalid(String),
    /// The backend does not work on this machine.
    #[error("the sandbox {backend} is not available: {reason}")]
    Unavailable {
        /// The backend.
        backend: BackendName,
        /// The reason.
        reason: String,
    },
}

impl SandboxError {
    /// Returns a stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            SandboxError::Invalid(_) => "bad_sandbox_config",
            SandboxError::Unavailable { .. } => "sandbox_unavailable",
        }
    }
}

impl BackendName {
    /// All backends.
    pub const ALL: [BackendName; 3] =
        [BackendName::Local, BackendName::Bubblewrap, BackendName::Docker];

    /// Returns the name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BackendName::Local => "local",
            BackendName::Bubblewrap => "bubblewrap",
            BackendName::Docker => "docker",
        }
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl SandboxConfig {
    /// Creates a sandbox with this workspace and otherwise the defaults.
    #[must_use]
    pub fn new(workspace: impl Into<PathBuf>) -> SandboxConfig {
        SandboxConfig {
            backend: BackendName::default(),
            workspace: workspace.into(),
            scoped_workspaces: None,
            readable: Vec::new(),
            writable: Vec::new(),
            network: None,
            unix_sockets: false,
            image: None,
            limits: SandboxLimits::default(),
            concurrency: concurrency(),
        }
    }

    /// Returns the network of programs.
    #[must_use]
    pub fn network(&self) -> Network {
        self.network.unwrap_or(match self.backend {
            BackendName::Local => Network::Host,
            BackendName::Bubblewrap | BackendName::Docker => Network::None,
        })
    }

    /// Returns the configuration with paths relative to a folder, after checks.
    pub(super) fn checked(mut self, folder: &Path) -> Result<SandboxConfig, SandboxError> {
        let invalid = |why: &str| Err(SandboxError::Invalid(why.to_owned()));
        match (self.backend, self.network) {
            (BackendName::Local, Some(Network::None)) => {
                return invalid(
                    "the backend local cannot deny the network: use bubblewrap or docker",
                );
            }
            (BackendName::Docker, _) if self.image.is_none() => {
                return invalid("the backend docker needs an image");
            }
            (BackendName::Local | BackendName::Bubblewrap, _) if self.image.is_some() => {
                return invalid("only the backend docker has an image");
            }
            (BackendName::Docker | BackendName::Bubblewrap, _) if self.unix_sockets => {
                return invalid("only the backend local has unix_sockets");
            }
            _ => {}
        }
        let SandboxLimits { processes, memory_mb, cpu_seconds, file_mb, open_files, free_mb: _ } =
            self.limits;
        if [processes, memory_mb, cpu_seconds, file_mb, open_files].contains(&0) {
            return invalid("a limit must not be 0");
        }
        let here = std::path::absolute(folder)
            .map_err(|why| SandboxError::Invalid(format!("{}: {why}", folder.display())))?;
        self.workspace = here.join(&self.workspace);
        self.scoped_workspaces =
            Some(here.join(self.scoped_workspaces.unwrap_or_else(|| "workspaces".into())));
        for path in self.readable.iter_mut().chain(&mut self.writable) {
            *path = here.join(&*path);
        }
        Ok(self)
    }
}
