//! Which built-in tools there are: those of files and programs with a sandbox, the others by their settings.

use serde::{Deserialize, Serialize};

use super::browser::{BrowserConfig, browser};
use super::edit::{edit_file, write_file};
use super::execute::{ExecuteConfig, execute};
use super::find::glob;
use super::grep::grep;
use super::list::ls;
use super::packages::{PackagesConfig, inspect_package};
use super::read::read_file;
use super::search::{SearchConfig, search};
use crate::config::ConfigError;
use crate::function::Function;
use crate::registry::{Tools, ToolsError};
use abide_sandbox::Environment;
use abide_sandbox::Sandbox;

/// The section `builtin_tools` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "built-in tools: a map with execute, browser, search, packages and without"
)]
pub struct BuiltinToolsConfig {
    /// The settings of `execute`.
    pub execute: ExecuteConfig,
    /// The tool `browser`; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub browser: Option<BrowserConfig>,
    /// The tool `search`; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchConfig>,
    /// The tool `inspect_package`; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<PackagesConfig>,
    /// Tools to leave out, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

/// Why the built-in tools cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another tool has the name.
    #[error(transparent)]
    Tools(#[from] ToolsError),
}

const NAMES: [&str; 10] = [
    "browser",
    "edit_file",
    "execute",
    "glob",
    "grep",
    "inspect_package",
    "ls",
    "read_file",
    "search",
    "write_file",
];

/// Adds the configured built-in tools. Those of files and programs need a sandbox.
///
/// # Errors
/// A setting is invalid, or another tool has the name.
pub fn add_builtin_tools(
    tools: &Tools,
    config: &BuiltinToolsConfig,
    sandbox: Option<&Sandbox>,
    environment: &Environment,
) -> Result<(), BuiltinError> {
    if let Some(name) = config.without.iter().find(|name| !NAMES.contains(&name.as_str())) {
        let why = format!("unknown built-in tool {name} in without; known: {}", NAMES.join(", "));
        return Err(ConfigError::new("builtin_tools", why).into());
    }
    let mut all: Vec<Function> = Vec::new();
    if let Some(sandbox) = sandbox {
        all.extend([
            ls(sandbox),
            read_file(sandbox),
            write_file(sandbox),
            edit_file(sandbox),
            glob(sandbox),
            grep(sandbox),
            execute(sandbox, &config.execute)?,
        ]);
    }
    all.extend(config.browser.as_ref().map(browser).transpose()?);
    all.extend(config.search.as_ref().map(|it| search(it, environment)).transpose()?);
    all.extend(config.packages.as_ref().map(inspect_package).transpose()?);
    for tool in all {
        let is_left_out = config.without.iter().any(|name| *name == tool.name());
        if !is_left_out {
            tools.add(tool)?;
        }
    }
    Ok(())
}
