//! One request to a model, from the conversation to the recorded answer: builds the request, asks, and gives the answer to
//! [`answer::record`].
//!
//! What comes before a request (limits, guardrails, facts, the watchdog) is in `run/drive.rs`. The order here matters: middleware and
//! redaction change the request before its size is measured, the budget is reserved for what is sent, and nothing is sent before
//! the steps that it depends on are durable ([`crate::model::outgoing::ready`]). Attempts and fallbacks are those of
//! [`abide_models::Chain`].

use abide_client::rows::ToolCall;
use abide_models::{ModelMessage, ModelRequest, StructuredOutput, ToolSpec};

use crate::context::request_size::{self, RequestSize};
use crate::middleware::streaming;
use crate::model::answer::{self, AnsweredRequest};
use crate::model::outgoing::Purpose;
use crate::model::stream::listen;
use crate::model::{choice, structured};
use crate::run::driver::Driver;
use crate::run::step::Step;
use crate::tools::registry;
use crate::watchdog::MeasuredRequest;
use crate::{context, memory, middleware, model, plan};

/// The instruction that the model receives when it must not call more tools.
const NO_MORE_CALLS: &str = "The tool call limit is reached. Answer with what you have.";

/// Sends the request and records the answer. Returns its tool call if it is the only one and was claimed with the answer. Without
/// a request, because a guardrail denies it or older messages are summarised first, the next action asks again.
pub(crate) async fn ask(driver: &mut Driver) -> Step<Option<ToolCall>> {
    let left =
        driver.agent.definition.settings().limits.tool_calls - driver.state.consumed().tool_calls;
    let allowed = usize::try_from(left).unwrap_or(0);
    let candidates = choice::agent_candidates(driver)?;
    let output = candidates.structured_output;
    let mut request = request(driver, allowed > 0, output);
    if driver.agent.definition.keeps_plan() {
        let plan = plan::todo_list::current(&driver.abide, &driver.state.run.session_id).await?;
        add_block(&mut request, plan::replan::block(driver, &plan));
    }
    middleware::redaction::redact_request(driver, &mut request);
    if let Err(message) = middleware::hooks::before_model(driver, &mut request) {
        return middleware::request_check::deny(driver, &message).await.map(|()| None);
    }
    let size = RequestSize::for_next_request(driver, &candidates.model);
    let estimated = size.estimate.request(&request);
    if context::compaction::advance(driver, &request, size, size.tokens(estimated)).await? {
        return Ok(None);
    }
    let fitted = request_size::fit(driver, &mut request, size, allowed > 0, estimated)?;
    driver.state.has_cut_results |= fitted.cut_results > 0;
    let estimated = fitted.estimated;
    model::budget::reserve(driver, &request, candidates.price).await?;
    let measured = MeasuredRequest::measure(driver, &request, estimated);
    streaming::asks(driver, &candidates.model).await?;
    let stream = candidates.ask(driver, Purpose::Answer, request).await?;
    let mut answered = listen(driver, stream).await?;
    answered.unrecorded.extend(fitted.event(driver));
    let answered = AnsweredRequest { answered, allowed, output, fitted, measured };
    answer::record(driver, answered).await
}

/// Builds the request for the model.
fn request(driver: &Driver, may_call: bool, output: StructuredOutput) -> ModelRequest {
    let definition = &driver.agent.definition;
    let config = &definition.config;
    let mut messages = driver.state.conversation(&definition.settings().context);
    let mut tools = if may_call { specs(driver) } else { Vec::new() };
    let mut system = definition.instructions.clone();
    let mut response_schema = definition.response_format.clone();
    if let Some(schema) = structured::by_tool(driver, output) {
        tools.push(structured::spec(schema));
        let parts = system.into_iter().chain([structured::RESPONSE_RULES.to_owned()]);
        system = Some(parts.collect::<Vec<_>>().join("\n\n"));
        response_schema = None;
    }
    if let Some(facts) = memory::facts::block(driver) {
        // At the end: the part before it is the same in each run, so providers can cache it.
        system = Some(system.into_iter().chain([facts]).collect::<Vec<_>>().join("\n\n"));
    }
    if !may_call {
        messages.push(ModelMessage::System { text: NO_MORE_CALLS.to_owned() });
    }
    ModelRequest {
        system,
        messages,
        tools,
        temperature: config.temperature,
        max_tokens: config.max_tokens,
        response_schema,
        omitted_answers: driver
            .state
            .context
            .as_ref()
            .map_or(0, |context| usize::try_from(context.answers()).unwrap_or(0)),
        ..ModelRequest::default()
    }
}

/// Adds a block to the instructions of a request.
fn add_block(request: &mut ModelRequest, block: Option<String>) {
    let parts = request.system.take().into_iter().chain(block);
    request.system = Some(parts.collect::<Vec<_>>().join("\n\n")).filter(|it| !it.is_empty());
}

/// Returns the tools that the model sees, including the blocked ones.
fn specs(driver: &Driver) -> Vec<ToolSpec> {
    let own = driver.agent.tools.declarations().into_iter().map(|tool| ToolSpec {
        name: tool.name,
        description: tool.description,
        parameters: tool.parameters,
    });
    own.chain(registry::specs(driver)).collect()
}
