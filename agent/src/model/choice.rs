//! The models that a run asks, and what their answers consume.

use abide_client::arguments::{ModelUsage, NewRunEvent};
use abide_client::rows::RunEventKind;
use abide_definitions::agent::ModelChoice;
use abide_definitions::middleware::Middleware;
use abide_models::{
    Chain, ModelProvider as _, ModelRequest, ModelResponse, ModelSelection, ModelStream, Price,
    StructuredOutput, Usage, dollars,
};
use serde_json::json;

use crate::middleware::observability;
use crate::model::outgoing::{self, Purpose};
use crate::run::driver::Driver;
use crate::run::lease::run_event;
use crate::run::step::{RunFailure, Step, StepError};

/// The candidates of a request, in order.
pub(crate) struct Candidates {
    chain: Chain,
    /// The price of the first candidate, if it is known.
    pub(crate) price: Option<Price>,
    /// The model of the first candidate.
    pub(crate) model: String,
    /// How the candidates give structured answers: by the tool if one of them needs it.
    pub(crate) structured_output: StructuredOutput,
}

impl Candidates {
    /// Asks the candidates, in order.
    pub(crate) async fn ask(
        &self,
        driver: &Driver,
        purpose: Purpose,
        request: ModelRequest,
    ) -> Step<ModelStream> {
        outgoing::ready(driver, purpose).await?;
        let request = ModelRequest { purpose: purpose.request_purpose(), ..request };
        let stream = self.chain.stream(request);
        Ok(observability::count_attempts(driver, stream, self.chain.id(), &self.model))
    }
}

/// Returns the models of these choices, in order.
pub(crate) fn candidates<'a>(
    driver: &Driver,
    choices: impl IntoIterator<Item = &'a ModelChoice>,
) -> Step<Candidates> {
    let mut candidates = Vec::new();
    for choice in choices {
        let wanted =
            ModelSelection { provider: choice.provider.clone(), model: choice.model.clone() };
        let resolved = driver.shared.models.get().resolve(&wanted);
        let resolved = resolved
            .map_err(|why| StepError::Failed(RunFailure::new(why.code(), why.to_string())))?;
        let limits = [&driver.own_definition.limits, &driver.agent.definition.limits];
        if limits.iter().any(|it| it.cost_usd.is_some()) && resolved.price.is_none() {
            // A cost limit cannot be enforced for a model without a price.
            let why = format!("the run has a cost limit, but {} has no price", resolved.name());
            return Err(StepError::Failed(RunFailure::new("price_unknown", why)));
        }
        candidates.push(resolved);
    }
    let model = candidates.first().map(|first| first.model.clone()).unwrap_or_default();
    let price = candidates.first().and_then(|first| first.price);
    let by_tool = candidates.iter().any(|it| it.structured_output == StructuredOutput::Tool);
    let structured_output = if by_tool { StructuredOutput::Tool } else { StructuredOutput::Native };
    let chain = Chain::new(candidates, driver.shared.settings.retry);
    Ok(Candidates { chain, price, model, structured_output })
}

/// Returns the models of the active agent, in order.
pub(crate) fn agent_candidates(driver: &Driver) -> Step<Candidates> {
    let config = &driver.agent.definition.config;
    let first = ModelChoice { provider: config.provider.clone(), model: config.model.clone() };
    let middleware = driver.agent.definition.all_middleware(&driver.deployment);
    let fallbacks = middleware.filter_map(|it| match it {
        Middleware::ModelFallback(fallback) => Some(&fallback.models),
        _ => None,
    });
    let others = config.fallbacks.iter().chain(fallbacks.flatten());
    candidates(driver, std::iter::once(&first).chain(others))
}

/// Returns the event that reports the usage of an answer.
pub(crate) fn usage(answer: &ModelResponse) -> NewRunEvent {
    usage_event(&answer.usage, &answer.provider, &answer.model, answer.cost_micros, None)
}

/// Returns the event that reports the usage of a request. `operation` is what was requested, if it is not an answer.
pub(crate) fn usage_event(
    usage: &Usage,
    provider: &str,
    model: &str,
    cost_micros: Option<i64>,
    operation: Option<&str>,
) -> NewRunEvent {
    let mut data = json!({
        "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens, "reasoning_tokens": usage.reasoning_tokens,
        "completeness": usage.completeness, "estimated_cost": cost_micros.map(dollars),
        "provider": provider, "model": model});
    if let Some(operation) = operation {
        data["operation"] = json!(operation);
    }
    run_event(RunEventKind::Usage, data)
}

/// Returns the usage of an answer with this number of tool calls.
pub(crate) fn spent(answer: &ModelResponse, calls: usize) -> ModelUsage {
    ModelUsage {
        iteration: true,
        tool_calls: i64::try_from(calls).unwrap_or(i64::MAX),
        ..model_usage(&answer.usage, answer.cost_micros)
    }
}

/// Returns the usage of a request, which the run records.
pub(crate) fn model_usage(usage: &Usage, cost_micros: Option<i64>) -> ModelUsage {
    ModelUsage {
        input_tokens: usage.input_tokens.and_then(|tokens| i64::try_from(tokens).ok()),
        output_tokens: usage.output_tokens.and_then(|tokens| i64::try_from(tokens).ok()),
        cost_micros,
        ..ModelUsage::default()
    }
}
