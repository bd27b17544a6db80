//! The names of OpenTelemetry's semantic conventions for generative AI, version 1.41. They have the status
//! "Development", so a later version can change them; they are here and nowhere else.
//! <https://github.com/open-telemetry/semantic-conventions/tree/v1.41.0/docs/gen-ai>

/// The operation of a span.
pub(crate) const OPERATION: &str = "gen_ai.operation.name";
/// A run of an agent.
pub(crate) const INVOKE_AGENT: &str = "invoke_agent";
/// A request to a model.
pub(crate) const CHAT: &str = "chat";
/// A request for vectors of texts; also the member `operation` of the event `usage` of such a request.
pub(crate) const EMBEDDINGS: &str = "embeddings";
/// A tool call.
pub(crate) const EXECUTE_TOOL: &str = "execute_tool";

pub(crate) const PROVIDER: &str = "gen_ai.provider.name";
pub(crate) const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub(crate) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(crate) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(crate) const AGENT_NAME: &str = "gen_ai.agent.name";
pub(crate) const AGENT_VERSION: &str = "gen_ai.agent.version";
/// The session.
pub(crate) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(crate) const TOOL_NAME: &str = "gen_ai.tool.name";
pub(crate) const TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
/// Content: with `log_data` only.
pub(crate) const TOOL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
/// Content: with `log_data` only.
pub(crate) const TOOL_RESULT: &str = "gen_ai.tool.call.result";
/// Content: with `log_data` only.
pub(crate) const INPUT_MESSAGES: &str = "gen_ai.input.messages";
/// Content: with `log_data` only.
pub(crate) const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
/// Of all spans that failed.
pub(crate) const ERROR_TYPE: &str = "error.type";

/// Our own: the run.
pub(crate) const RUN: &str = "abide.run.id";
/// Our own: how a run or a call has ended.
pub(crate) const STATUS: &str = "abide.status";
/// Our own: the attempt of a call.
pub(crate) const ATTEMPT: &str = "abide.tool.attempt";

/// The name of the service.
pub(crate) const SERVICE_NAME: &str = "service.name";
