//! The tools of an agent with a memory: `save_memory`, `search_memories` and `forget_memory`. A change of the memory
//! and the result of its call are one batch. Failures are texts for the model.

use abide_client::arguments::{CompleteToolCall, ForgetMemories, SaveMemories};
use abide_client::{Call, Code, Error, NewMemory, ToolCall};
use abide_definitions::agent_tool::{FORGET_MEMORY, MEMORY_TOOLS, SAVE_MEMORY, SEARCH_MEMORIES};
use abide_models::ToolSpec;
use abide_tools::{Effect, Failure, Parameters, ToolDeclaration, ToolOutcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::memory;
use crate::memory::block::Fact;
use crate::memory::space::MemorySpace;
use crate::model::outgoing::Purpose;
use crate::run::driver::Driver;
use crate::run::lease::fencing_token;
use crate::run::step::{Step, StepError};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SaveArguments {
    /// What the fact is about, such as preferred_language. A fact with the same key is replaced.
    #[schemars(length(min = 1, max = 100))]
    key: String,
    /// What is known, in one sentence.
    #[schemars(length(min = 1, max = 1000))]
    value: String,
    /// How certain it is, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default)]
    confidence: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchArguments {
    /// What to look for, in words.
    #[schemars(length(min = 1, max = 1000))]
    query: String,
    /// Maximum number of facts; 10 if omitted.
    #[schemars(range(min = 1, max = 50))]
    #[serde(default)]
    limit: Option<i64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ForgetArguments {
    /// The key of the fact.
    #[schemars(length(min = 1, max = 256))]
    key: String,
}

/// Facts that a search returns if the model names no number.
const FOUND: i64 = 10;

/// The declarations to register.
pub(crate) fn declarations() -> [ToolDeclaration; 3] {
    let declaration = |name: &str, description: &str, schema: schemars::Schema, effect| {
        let mut declaration = ToolDeclaration::new(name, description, schema.to_value());
        declaration.effect = effect;
        declaration
    };
    [
        declaration(
            SAVE_MEMORY,
            "Saves a fact for later conversations.",
            schemars::schema_for!(SaveArguments),
            // A repeated call saves the same fact.
            Effect::Idempotent,
        ),
        declaration(
            SEARCH_MEMORIES,
            "Searches the facts that were saved in this and earlier conversations.",
            schemars::schema_for!(SearchArguments),
            Effect::ReadOnly,
        ),
        declaration(
            FORGET_MEMORY,
            "Deletes a saved fact that is wrong or no longer needed.",
            schemars::schema_for!(ForgetArguments),
            Effect::Idempotent,
        ),
    ]
}

fn declaration(name: &str) -> Option<ToolDeclaration> {
    declarations().into_iter().find(|declaration| declaration.name == name)
}

/// Whether a name is that of a tool of the active agent's memory.
pub(crate) fn is_one(driver: &Driver, name: &str) -> bool {
    MEMORY_TOOLS.contains(&name) && memory::facts::settings(driver).is_some()
}

/// Whether a call changes the memory.
pub(crate) fn changes(driver: &Driver, call: &ToolCall) -> bool {
    call.tool_name != SEARCH_MEMORIES && is_one(driver, &call.tool_name)
}

/// While a recording is repeated: the outcome that a call of the memory had. The file of the repetition does not have the
/// facts of that time. What was saved then is saved again, so that calls which are not in the recording find it.
pub(crate) fn recorded(driver: &Driver, call: &ToolCall) -> Option<ToolOutcome> {
    let outcome = driver.shared.recorded_outcomes.get(&call.call_id)?;
    let saves = call.tool_name == SAVE_MEMORY && !outcome.is_error;
    (is_one(driver, &call.tool_name) && !saves).then(|| outcome.clone())
}

/// The effect of a tool.
pub(crate) fn effect(name: &str) -> Effect {
    declaration(name).map_or(Effect::AtMostOnce, |declaration| declaration.effect)
}

/// The tools as the model sees them; none if the agent has no memory.
pub(crate) fn specs(driver: &Driver) -> Vec<ToolSpec> {
    if memory::facts::settings(driver).is_none() {
        return Vec::new();
    }
    let specs = declarations().into_iter().map(|declaration| {
        let ToolDeclaration { name, description, parameters, .. } = declaration;
        ToolSpec { name, description, parameters }
    });
    specs.collect()
}

/// The parsed arguments, or the error text for the model.
pub(crate) fn admit(name: &str, arguments: &str) -> Result<Value, String> {
    let declaration = declaration(name).ok_or_else(|| format!("there is no tool {name}"))?;
    let fitted = Parameters::of(&declaration.parameters)?.fit_text(arguments);
    Ok(fitted.map_err(|mismatch| format!("{name}: {mismatch}"))?.arguments)
}

/// Searches facts.
pub(crate) async fn search(driver: &Driver, claimed: &ToolCall) -> ToolOutcome {
    let arguments: SearchArguments = match serde_json::from_value(claimed.arguments.value()) {
        Ok(arguments) => arguments,
        Err(why) => return ToolOutcome::failed(Failure::Arguments, why.to_string()),
    };
    match found(driver, &arguments).await {
        Ok(text) => ToolOutcome::text(text),
        Err(StepError::Refused(error)) => ToolOutcome::failed(Failure::Tool, error.to_string()),
        Err(_) => ToolOutcome::failed(Failure::Cancelled, "the search was cancelled"),
    }
}

async fn found(driver: &Driver, arguments: &SearchArguments) -> Step<String> {
    let Some(settings) = memory::facts::settings(driver) else { return Ok(String::new()) };
    let space = memory::facts::space(driver, &settings).await?;
    let max = arguments.limit.unwrap_or(FOUND);
    let query = &arguments.query;
    let found = memory::facts::search(driver, space, Purpose::Search, query, max).await?;
    let (events, spent) = found.usage();
    if !events.is_empty() {
        driver.record(&events, spent.as_ref(), Vec::new()).await?;
    }
    let facts = found.facts.iter().filter(|fact| fact.rank > 0.0);
    let lines: Vec<String> = facts.map(Fact::line).collect();
    Ok(match lines.is_empty() {
        true => "There is no fact about this.".to_owned(),
        false => lines.join("\n"),
    })
}

/// Changes the memory and records the result of the call, atomically. Returns the outcome of a call that failed.
pub(crate) async fn change(driver: &Driver, claimed: &ToolCall) -> Step<Option<ToolOutcome>> {
    let Some(settings) = memory::facts::settings(driver) else { return Ok(None) };
    let space = memory::facts::space(driver, &settings).await?;
    let arguments = claimed.arguments.value();
    let change = match claimed.tool_name.as_str() {
        SAVE_MEMORY => save(driver, space, arguments).map(Call::of),
        _ => forget(driver, space, arguments).await?.map(Call::of),
    };
    let change = match change {
        Ok(change) => change,
        Err(why) => return Ok(Some(ToolOutcome::failed(Failure::Tool, why))),
    };
    let text = if claimed.tool_name == SAVE_MEMORY { "saved" } else { "forgotten" };
    let result = json!({"text": text, "content": text, "exit_code": 0});
    let done = CompleteToolCall::new(&claimed.call_id, fencing_token(claimed), result);
    match space.client.batch([change, Call::of(done)]).await {
        // The model can react to it, for example by forgetting a fact when the memory is full.
        Err(error) if error.code().is_some_and(is_for_the_model) => {
            Ok(Some(ToolOutcome::failed(Failure::Tool, error.to_string())))
        }
        // The next step reads the call's current state.
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(StepError::Refused(error)),
        Ok(_) => Ok(None),
    }
}

/// Errors that the model can react to.
fn is_for_the_model(code: Code) -> bool {
    matches!(code, Code::BadArguments | Code::NotFound | Code::LimitExceeded)
}

fn save(driver: &Driver, space: &MemorySpace, arguments: Value) -> Result<SaveMemories, String> {
    let SaveArguments { key, value, confidence } =
        serde_json::from_value(arguments).map_err(|why| why.to_string())?;
    let answer = driver.entries.iter().rfind(|entry| entry.role == "assistant");
    let source_seq = answer.map(|entry| entry.seq.0);
    let fact = NewMemory { key, value, confidence, source_seq };
    let lease = &driver.run_lease;
    Ok(SaveMemories {
        run_id: Some(lease.run_id.clone()),
        fencing_token: Some(lease.fencing_token),
        ..space.save(vec![fact])
    })
}

async fn forget(
    driver: &Driver,
    space: &MemorySpace,
    arguments: Value,
) -> Result<Result<ForgetMemories, String>, Error> {
    let key = match serde_json::from_value(arguments) {
        Ok(ForgetArguments { key }) => key,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let sql = "SELECT id FROM memories WHERE space = :space AND key = :key";
    let query = space.client.sql(sql).param("space", &space.name);
    let known: Vec<(i64,)> = query.param("key", &key).fetch().await?;
    if known.is_empty() {
        return Ok(Err(format!("there is no fact {key}: {SEARCH_MEMORIES} finds the keys")));
    }
    let lease = &driver.run_lease;
    Ok(Ok(ForgetMemories {
        keys: Some(vec![key]),
        run_id: Some(lease.run_id.clone()),
        fencing_token: Some(lease.fencing_token),
        ..ForgetMemories::new(&space.name)
    }))
}
