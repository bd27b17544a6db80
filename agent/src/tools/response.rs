//! The tool `get_tool_response`: returns a result that the model sees only as a marker or in part, or the arguments of
//! its call, by execution id or by the provider's id of the call. It reads rows of the same session only.

use abide_client::rows::{AgentState, ArchivedResult, ToolCall};
use abide_client::{Error, Json};
use abide_definitions::agent_tool::GET_TOOL_RESPONSE;
use abide_models::ToolSpec;
use abide_tools::{Effect, Failure, ToolDeclaration, ToolOutcome};
use futures_util::future::{BoxFuture, FutureExt as _};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::context::reduction::NEVER_REDUCED;
use crate::middleware::redaction;
use crate::run::driver::Driver;
use crate::run::step::Step;
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool};

/// The arguments of the tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResponseArguments {
    /// The execution id in the marker, or the id of the tool call.
    id: String,
    /// output: the result. input: the arguments of the call.
    #[serde(default)]
    part: Part,
    /// The first character to return, from 0.
    #[serde(default)]
    offset: usize,
    /// How many characters to return.
    length: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Part {
    #[default]
    Output,
    Input,
}

/// Characters that one call returns at most. They fit into the default limit of results.
const MOST: usize = 24_000;

/// Characters that one call returns if it names no length.
const DEFAULT: usize = 8_000;

/// The tool `get_tool_response`.
pub(crate) struct GetToolResponse;

impl RuntimeTool for GetToolResponse {
    fn declaration(&self) -> ToolDeclaration {
        let schema = schemars::schema_for!(ResponseArguments).to_value();
        let description = "Returns the original of a result that is archived or was cut, or the \
                           arguments of its call. Ask for the range that you need.";
        ToolDeclaration::new(GET_TOOL_RESPONSE, description, schema)
    }

    fn name(&self) -> &str {
        GET_TOOL_RESPONSE
    }

    fn missing(&self, driver: &Driver) -> Option<&'static str> {
        (!is_offered(driver)).then_some("no result is archived")
    }

    fn effect(&self) -> Effect {
        Effect::ReadOnly
    }

    // The results that a run has fetched are counted.
    fn order(&self) -> CallOrder {
        CallOrder::InSequence
    }

    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>> {
        let RunningCall { driver, claimed, .. } = call;
        async move { Ok(Some(run(driver, claimed).await?)) }.boxed()
    }
}

/// Returns `true` if there is something to fetch: a result is archived or was cut.
fn is_offered(driver: &Driver) -> bool {
    driver.state.has_cut_results
        || driver.state.context.as_ref().is_some_and(|context| context.number() > 0)
}

/// Returns the tool as the model sees it.
pub(crate) fn tool() -> ToolSpec {
    let ToolDeclaration { name, description, parameters, .. } = GetToolResponse.declaration();
    ToolSpec { name, description, parameters }
}

/// Executes a call. Failures are texts for the model.
///
/// # Errors
/// [`Error`] if the rows cannot be read.
async fn run(driver: &Driver, claimed: &ToolCall) -> Result<ToolOutcome, Error> {
    let failed = |why: String| Ok(ToolOutcome::failed(Failure::Tool, why));
    let wish: Result<ResponseArguments, _> = serde_json::from_value(claimed.arguments.value());
    let wish = match wish {
        Ok(wish) => wish,
        Err(why) => return failed(format!("the arguments cannot be read: {why}")),
    };
    let max = driver.agent.definition.settings().context.tool_responses;
    if count_fetched(driver).await? >= max {
        return failed(format!(
            "this run has fetched {max} results, the most that one run may fetch: work with what you have"
        ));
    }
    match original(driver, &wish).await? {
        Some(text) => {
            // Before the range is taken: parts of personal data would pass the rules.
            let text = redaction::for_model(driver, &redaction::redact_result(driver, text));
            Ok(ToolOutcome::text(slice(driver, &text, &wish)))
        }
        None => {
            let id = &wish.id;
            failed(format!("no result of this session has the id {id}: use an id from a marker"))
        }
    }
}

/// Returns how many results the run has fetched.
async fn count_fetched(driver: &Driver) -> Result<i64, Error> {
    let sql = "SELECT count(*) FROM tool_calls WHERE tool_name = :tool AND session_id = :sid \
               AND status = 'succeeded' AND substr(call_id, 1, length(:run)) = :run";
    let query = driver
        .abide
        .sql(sql)
        .param("tool", GET_TOOL_RESPONSE)
        .param("sid", &driver.state.run.session_id);
    let count: Vec<(i64,)> = query.param("run", driver.run_lease.call_id("")).fetch().await?;
    Ok(count.first().map_or(0, |(count,)| *count))
}

/// Returns the text of a result or of arguments. The provider's ids may repeat: the newest call counts.
async fn original(driver: &Driver, wish: &ResponseArguments) -> Result<Option<String>, Error> {
    let sid = &driver.state.run.session_id;
    let sql = "SELECT * FROM tool_calls WHERE session_id = :sid \
               AND (call_id = :id OR provider_call_id = :id) ORDER BY call_id = :id DESC, \
               created_seq DESC LIMIT 1";
    let query = driver.abide.sql(sql).param("sid", sid).param("id", &wish.id);
    let call: Vec<ToolCall> = query.fetch().await?;
    if let Some(call) = call.first().filter(|call| !NEVER_REDUCED.contains(&&*call.tool_name)) {
        let of_call = match wish.part {
            Part::Input => Some(call.arguments.as_str().to_owned()),
            Part::Output => call.result.as_ref().map(result_text).or_else(|| call.error.clone()),
        };
        if of_call.is_some() {
            return Ok(of_call);
        }
    }
    if wish.part == Part::Input {
        return Ok(None);
    }
    // A call that was never recorded, such as one with wrong arguments: its result is a message.
    let sql = "SELECT * FROM archived_results WHERE session_id = :sid \
               AND (call_id = :id OR provider_call_id = :id) ORDER BY entry_id DESC LIMIT 1";
    let query = driver.abide.sql(sql).param("sid", sid).param("id", &wish.id);
    let archived: Vec<ArchivedResult> = query.fetch().await?;
    let Some(archived) = archived.first() else { return Ok(None) };
    let sql = "SELECT * FROM agent_state WHERE id = :id AND session_id = :sid";
    let query = driver.abide.sql(sql).param("id", archived.entry_id).param("sid", sid);
    let entry: Vec<AgentState> = query.fetch().await?;
    Ok(entry.into_iter().next().and_then(|entry| entry.content))
}

/// Returns the text of a recorded result, as the model would have seen it without limits.
fn result_text(result: &Json) -> String {
    let result = result.value();
    let text = match &result {
        Value::Object(object) if object.contains_key("text") => &object["text"],
        other => other,
    };
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}

/// Returns the wanted range, and where the text continues. It never takes more than about an eighth of the window, for
/// four characters per token.
fn slice(driver: &Driver, text: &str, wish: &ResponseArguments) -> String {
    let definition = &driver.agent.definition;
    let window = usize::try_from(definition.settings().context.window_tokens).unwrap_or(MOST);
    let evicts = definition.config.tool_token_limit_before_evict.map_or(MOST, |it| it * 4);
    let max = MOST.min(window / 2).min(evicts).saturating_sub(200).max(200);
    let length = wish.length.unwrap_or(DEFAULT).clamp(1, max);
    let total = text.chars().count();
    let begin = wish.offset.min(total);
    let slice: String = text.chars().skip(begin).take(length).collect();
    let end = begin + slice.chars().count();
    let next = if end < total { format!("; continue with offset {end}") } else { String::new() };
    format!("{slice}\n[characters {begin} to {end} of {total}{next}]")
}
