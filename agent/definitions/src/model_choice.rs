//! The choice of a model in a definition.

use serde::{Deserialize, Serialize};

/// A model of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a model: a map with provider, model or both")]
pub struct ModelChoice {
    /// The provider's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}
