//! What is wrong with a tool's definition, and what definitions of all kinds have in common.

use std::time::Duration;

use serde_json::{Value, json};

use crate::template::Template;
use crate::tool::DEFAULT_TIMEOUT;

/// Why a tool cannot be made of its definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the definition of {tool} cannot be used: {why}")]
pub struct ConfigError {
    /// The tool or server.
    pub tool: String,
    /// What is wrong, in one sentence.
    pub why: String,
}

impl ConfigError {
    pub(crate) fn new(tool: &str, why: impl Into<String>) -> ConfigError {
        ConfigError { tool: tool.to_owned(), why: why.into() }
    }

    /// A name that does not change, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "bad_tool_config"
    }
}

/// A timeout in a definition.
pub(crate) fn timeout(tool: &str, timeout_ms: Option<u64>) -> Result<Duration, ConfigError> {
    match timeout_ms {
        None => Ok(DEFAULT_TIMEOUT),
        Some(0) => Err(ConfigError::new(tool, "a timeout of 0 ms leaves no time to run")),
        Some(timeout_ms) => Ok(Duration::from_millis(timeout_ms)),
    }
}

/// The schema of a tool that takes nothing.
pub(crate) fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

/// A template whose places are all parameters of the tool.
pub(crate) fn template(
    tool: &str,
    text: &str,
    parameters: &Value,
) -> Result<Template, ConfigError> {
    let template = Template::parse(text).map_err(|why| ConfigError::new(tool, why))?;
    let known = parameters["properties"].as_object();
    let unknown = template.names().find(|name| !known.is_some_and(|all| all.contains_key(*name)));
    if let Some(name) = unknown {
        let why = format!("{text:?} has a place for {name}, which is none of the parameters");
        return Err(ConfigError::new(tool, why));
    }
    Ok(template)
}
