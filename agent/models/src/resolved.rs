//! A provider and a model, as chosen from the configuration.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{ModelProvider, Price};

/// The chosen provider and model.
#[derive(Clone)]
pub struct Resolved {
    /// The provider.
    pub provider: Arc<dyn ModelProvider>,
    /// The model.
    pub model: String,
    /// The price of its tokens, if known.
    pub price: Option<Price>,
    /// How it gives structured answers.
    pub structured_output: StructuredOutput,
}

impl Resolved {
    /// Returns the name of the model with its provider, such as `openai/gpt-5`. Vectors are stored with it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.provider.id(), self.model)
    }
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

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
