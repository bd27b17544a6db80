//! The trait of a backend: a command becomes the command of an isolated process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::config::{BackendName, Network, SandboxLimits};
use crate::supervision::{LandlockPaths, ProtectedPaths};

/// The isolation of a program: a backend turns a command into the command of an isolated process.
pub trait SandboxBackend: Send + Sync + fmt::Debug {
    /// Returns the name in the configuration.
    fn name(&self) -> BackendName;

    /// Returns the command that runs a job isolated.
    ///
    /// # Errors
    /// One sentence: the job cannot run in this backend.
    fn isolate(&self, job: &SandboxJob) -> Result<IsolatedCommand, String>;
}

/// A command to run in a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxJob {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// All environment variables of the program.
    pub environment: BTreeMap<String, String>,
    /// The folder that the program can change.
    pub workspace: PathBuf,
    /// A folder below the workspace that the program must not see.
    pub hidden: Option<PathBuf>,
    /// Files that the program must neither read nor change, although they are below a folder that it can read: those of
    /// databases.
    pub masked: Vec<PathBuf>,
    /// The working directory: absolute, or relative to the workspace.
    pub folder: PathBuf,
    /// Further paths that the program can read and execute.
    pub readable: Vec<PathBuf>,
    /// Further paths that the program can change.
    pub writable: Vec<PathBuf>,
    /// Whether the program can use the network.
    pub network: Network,
    /// Limits of the program.
    pub limits: SandboxLimits,
    /// A new folder for temporary files. The supervisor creates and removes it.
    pub temporary: PathBuf,
    /// A name that no other job has.
    pub id: String,
}

impl SandboxJob {
    /// Returns the masked files that are not in the hidden folder.
    pub(super) fn masked_in_view(&self) -> impl Iterator<Item = &Path> {
        let hidden = self.hidden.as_ref().map(|hidden| self.workspace.join(hidden));
        self.masked
            .iter()
            .map(PathBuf::as_path)
            .filter(move |path| !hidden.as_ref().is_some_and(|it| path.starts_with(it)))
    }

    /// Returns the working directory as an absolute path.
    #[must_use]
    pub fn working_directory(&self) -> PathBuf {
        let parts = self.folder.components().filter(|part| *part != Component::CurDir);
        self.workspace.join(parts.collect::<PathBuf>()).components().collect()
    }
}

/// The command of an isolated process.
#[derive(Clone, Debug, Default)]
pub struct IsolatedCommand {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its environment variables.
    pub environment: BTreeMap<String, String>,
    /// Paths that Landlock permits. `None`: the backend isolates by other means.
    pub landlock: Option<LandlockPaths>,
    /// What the process excludes from these paths for itself, where the kernel permits it mounts of its own.
    pub protected: ProtectedPaths,
    /// A command that ends what the process leaves behind outside of its process tree.
    pub at_end: Vec<String>,
}
