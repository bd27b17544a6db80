//! How a model gives structured answers.

use serde::{Deserialize, Serialize};

/// How a model gives a structured answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StructuredOutput {
    /// The provider enforces [`ModelRequest::response_schema`](crate::ModelRequest::response_schema).
    #[default]
    Native,
    /// The model calls a tool whose arguments are the answer.
    Tool,
}
