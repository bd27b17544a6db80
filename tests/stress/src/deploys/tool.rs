//! The program of the agents' tool: it takes a time that follows from the seed and the id of its call. Half of the longest
//! time is the shortest.

use std::env;
use std::path::Path;
use std::time::Duration;

use abide_sim::random::Random;
use serde_json::Value as JsonValue;

use super::effects::note;
use crate::CheckResult;
use crate::pace::pause_thread;

/// The name of the tool.
pub(super) const NAME: &str = "pay";

/// The command of this program that runs it: `deploys-tool FILE MOST_MS SEED`.
pub(crate) const VERB: &str = "deploys-tool";

/// Runs it.
pub(crate) fn run(words: &[String]) -> CheckResult {
    let [file, most_ms, seed] = words else { return Err(format!("{VERB} FILE MOST_MS SEED")) };
    let number = |text: &str| text.parse::<u64>().map_err(|why| format!("{text}: {why}"));
    let most_ms = number(most_ms)?;
    let context = env::var("ABIDE_CONTEXT").map_err(|why| format!("ABIDE_CONTEXT: {why}"))?;
    let context: JsonValue = serde_json::from_str(&context).map_err(|why| why.to_string())?;
    let call_id = context["call_id"].as_str().ok_or("the context has no call_id")?;
    let seed = call_id
        .bytes()
        .fold(number(seed)?, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let half = most_ms / 2;
    note(Path::new(file), "began", call_id)?;
    pause_thread(Duration::from_millis(half + Random::new(seed).draw() % (most_ms - half)));
    note(Path::new(file), "done", call_id)
}
