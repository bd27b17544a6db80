//! Usage per model: a view over the `usage` events of runs. Each row is one request to a model.

use abide_schema::Module;

const MODEL_USAGE: &str = "SELECT e.session_id, e.run_id, e.number,
  e.data ->> '$.provider' AS provider, e.data ->> '$.model' AS model,
  e.data ->> '$.input_tokens' AS input_tokens, e.data ->> '$.output_tokens' AS output_tokens,
  e.data ->> '$.cached_tokens' AS cached_tokens,
  e.data ->> '$.reasoning_tokens' AS reasoning_tokens,
  e.data ->> '$.estimated_cost' AS cost_usd, e.data ->> '$.completeness' AS completeness,
  e.created_at, e.seq
FROM run_events e WHERE e.kind = 'usage'";

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("usage").view("model_usage", MODEL_USAGE)
}
