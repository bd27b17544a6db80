//! Errors in tool definitions, and parts that all kinds of definitions share.

use std::time::Duration;

use serde_json::{Value, json};

use crate::template::Template;
use crate::tool::DEFAULT_TIMEOUT;

/// Why a tool definition is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid definition of {tool}: {why}")]
pub struct ConfigError {
    /// The tool or server.
    pub tool: String,
    /// The error, in one sentence.
    pub why: String,
}

impl ConfigError {
    pub(crate) fn new(tool: &str, why: impl Into<String>) -> ConfigError {
        ConfigError { tool: tool.to_owned(), why: why.into() }
    }

    /// Returns a stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "bad_tool_config"
    }
}

/// Returns the timeout of a definition.
pub(crate) fn timeout(tool: &str, timeout_ms: Option<u64>) -> Result<Duration, ConfigError> {
    match timeout_ms {
        None => Ok(DEFAULT_TIMEOUT),
        Some(0) => Err(ConfigError::new(tool, "timeout_ms must not be 0")),
        Some(timeout_ms) => Ok(Duration::from_millis(timeout_ms)),
    }
}

/// Returns the schema of a tool without parameters.
pub(crate) fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

/// Parses a template and checks that its placeholders are parameters of the tool.
pub(crate) fn template(
    tool: &str,
    text: &str,
    parameters: &Value,
) -> Result<Template, ConfigError> {
    let template = Template::parse(text).map_err(|why| ConfigError::new(tool, why))?;
    let known = parameters["properties"].as_object();
    let unknown = template.names().find(|name| !known.is_some_and(|all| all.contains_key(*name)));
    if let Some(name) = unknown {
        let why = format!("{text:?} has the placeholder {name}, which is not a parameter");
        return Err(ConfigError::new(tool, why));
    }
    Ok(template)
}
