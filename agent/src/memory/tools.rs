//! The tools of an agent with a memory: `save_memory`, `search_memories` and `forget_memory`. A change of the memory
//! and the result of its call are one batch. Failures are texts for the model.

use abide_client::arguments::{CompleteToolCall, ForgetMemories, NewMemory, SaveMemories};
use abide_client::rows::ToolCall;
use abide_client::{Call, Error};
use abide_definitions::agent_tool::{FORGET_MEMORY, SAVE_MEMORY, SEARCH_MEMORIES};
use abide_tools::{Effect, Failure, ToolDeclaration, ToolOutcome};
use futures_util::future::{BoxFuture, FutureExt as _};
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
use crate::tools::runtime_tool::{CallOrder, RunningCall, RuntimeTool, refused};

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

/// A tool of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryTool {
    /// `save_memory`
    Save,
    /// `search_memories`
    Search,
    /// `forget_memory`
    Forget,
}

impl RuntimeTool for MemoryTool {
    fn declaration(&self) -> ToolDeclaration {
        let (description, schema) = match self {
            MemoryTool::Save => {
                ("Saves a fact for later conversations.", schemars::schema_for!(SaveArguments))
            }
            MemoryTool::Search => (
                "Searches the facts that were saved in this and earlier conversations.",
                schemars::schema_for!(SearchArguments),
            ),
            MemoryTool::Forget => (
                "Deletes a saved fact that is wrong or no longer needed.",
                schemars::schema_for!(ForgetArguments),
            ),
        };
        ToolDeclaration::new(self.name(), description, schema.to_value())
    }

    fn name(&self) -> &str {
        match self {
            MemoryTool::Save => SAVE_MEMORY,
            MemoryTool::Search => SEARCH_MEMORIES,
            MemoryTool::Forget => FORGET_MEMORY,
        }
    }

    fn is_reserved(&self) -> bool {
        false
    }

    fn missing(&self, driver: &Driver) -> Option<&'static str> {
        memory::facts::settings(driver).is_none().then_some("this agent has no memory")
    }

    fn effect(&self) -> Effect {
        match self {
            // A repeated call saves the same fact.
            MemoryTool::Save | MemoryTool::Forget => Effect::Idempotent,
            MemoryTool::Search => Effect::ReadOnly,
        }
    }

    fn order(&self) -> CallOrder {
        match self {
            MemoryTool::Save | MemoryTool::Forget => CallOrder::InSequence,
            MemoryTool::Search => CallOrder::Any,
        }
    }

    fn run<'a>(&'a self, call: RunningCall<'a>) -> BoxFuture<'a, Step<Option<ToolOutcome>>> {
        run(*self, call).boxed()
    }
}

async fn run(tool: MemoryTool, call: RunningCall<'_>) -> Step<Option<ToolOutcome>> {
    let RunningCall { driver, claimed, .. } = call;
    // While a recording is repeated, the file does not have the facts of that time. What was saved then is saved again, so that
    // calls which are not in the recording find it.
    if let Some(outcome) = driver.shared.recorded_outcomes.get(&claimed.call_id)
        && (tool != MemoryTool::Save || outcome.is_error)
    {
        return Ok(Some(outcome.clone()));
    }
    match tool {
        MemoryTool::Search => Ok(Some(search(driver, claimed).await)),
        MemoryTool::Save | MemoryTool::Forget => change(tool, driver, claimed).await,
    }
}

/// Searches facts.
async fn search(driver: &Driver, claimed: &ToolCall) -> ToolOutcome {
    let arguments: SearchArguments = match serde_json::from_value(claimed.arguments.value()) {
        Ok(arguments) => arguments,
        Err(why) => return ToolOutcome::failed(Failure::Arguments, why.to_string()),
    };
    match search_text(driver, &arguments).await {
        Ok(text) => ToolOutcome::text(text),
        Err(StepError::Refused(error)) => ToolOutcome::failed(Failure::Tool, error.to_string()),
        Err(_) => ToolOutcome::failed(Failure::Cancelled, "the search was cancelled"),
    }
}

async fn search_text(driver: &Driver, arguments: &SearchArguments) -> Step<String> {
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
    Ok(if lines.is_empty() { "There is no fact about this.".to_owned() } else { lines.join("\n") })
}

/// Changes the memory and records the result of the call, atomically. Returns the outcome of a call that failed.
async fn change(
    tool: MemoryTool,
    driver: &Driver,
    claimed: &ToolCall,
) -> Step<Option<ToolOutcome>> {
    let Some(settings) = memory::facts::settings(driver) else {
        return Ok(Some(ToolOutcome::failed(Failure::Denied, "this agent has no memory")));
    };
    let space = memory::facts::space(driver, &settings).await?;
    let arguments = claimed.arguments.value();
    let is_save = tool == MemoryTool::Save;
    let change = if is_save {
        save(driver, space, arguments).map(Call::from)
    } else {
        forget(driver, space, arguments).await?.map(Call::from)
    };
    let change = match change {
        Ok(change) => change,
        Err(why) => return Ok(Some(ToolOutcome::failed(Failure::Tool, why))),
    };
    let text = if is_save { "saved" } else { "forgotten" };
    let result = json!({"text": text, "content": text, "exit_code": 0});
    let done = CompleteToolCall::new(&claimed.call_id, fencing_token(claimed), result);
    match space.client.batch([change, Call::from(done)]).await {
        // The model can react to it, for example by forgetting a fact when the memory is full.
        Err(error) => refused(error),
        Ok(_) => Ok(None),
    }
}

fn save(driver: &Driver, space: &MemorySpace, arguments: Value) -> Result<SaveMemories, String> {
    let SaveArguments { key, value, confidence } =
        serde_json::from_value(arguments).map_err(|why| why.to_string())?;
    let answer = driver.state.entries.iter().rfind(|entry| entry.role == "assistant");
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
