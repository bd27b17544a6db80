//! A provider and a model, as chosen from the configuration.

use std::fmt;
use std::sync::Arc;

use crate::{ModelProvider, Price, StructuredOutput};

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

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider.id(), self.model)
    }
}
