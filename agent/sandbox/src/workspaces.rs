//! The workspaces of a sandbox: one for sessions without a scope, and one for each scope, so that the tools of a
//! tenant do not reach the files of another one.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::config::{SandboxConfig, SandboxError};

#[derive(Debug)]
pub(super) struct Workspaces {
    /// Of sessions without a scope.
    root: PathBuf,
    /// The folder with those of the scopes.
    scoped: PathBuf,
    /// The folder of the configuration.
    configuration: PathBuf,
}

impl Workspaces {
    pub(super) fn open(config: &SandboxConfig, folder: &Path) -> Result<Workspaces, SandboxError> {
        let root = fs::canonicalize(&config.workspace).map_err(|why| {
            SandboxError::Invalid(format!("workspace {}: {why}", config.workspace.display()))
        })?;
        if !root.is_dir() || root == Path::new("/") {
            let why = format!("workspace {} must be a folder other than /", root.display());
            return Err(SandboxError::Invalid(why));
        }
        let configuration = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        if root.starts_with(&configuration) && root == configuration {
            let why = "the workspace must not be the folder of the configuration";
            return Err(SandboxError::Invalid(why.to_owned()));
        }
        let scoped = config.scoped_workspaces.clone().unwrap_or_default();
        Ok(Workspaces { root, scoped, configuration })
    }

    /// Returns the workspace of a scope, which is created if it does not exist.
    pub(super) fn create(&self, scope: &Map<String, Value>) -> io::Result<PathBuf> {
        if scope.is_empty() {
            return Ok(self.root.clone());
        }
        // `Map` is sorted by key, so equal scopes have equal texts.
        let digest = Sha256::digest(Value::Object(scope.clone()).to_string());
        let folder = self.scoped.join(hex::encode(&digest[..16]));
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        fs::canonicalize(folder)
    }

    /// Returns the folder of the configuration.
    pub(super) fn configuration(&self) -> &Path {
        &self.configuration
    }

    /// Returns `true` if a folder is in the workspace of sessions without a scope, and not in that of the
    /// configuration.
    pub(super) fn exposes(&self, folder: &Path) -> bool {
        folder.starts_with(&self.root) && !folder.starts_with(&self.configuration)
    }

    /// Returns the folder of the configuration, relative to a workspace that contains it.
    pub(super) fn hidden_in(&self, root: &Path) -> Option<PathBuf> {
        self.configuration.strip_prefix(root).ok().map(Path::to_owned)
    }
}
