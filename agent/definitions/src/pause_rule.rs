//! The causes of a pause: the rules of a definition, and the callback of a runtime.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_client::rows::{PauseStage, Run};
use abide_tools::tool_matches;
use serde::{Deserialize, Serialize};

use crate::error::InvalidSetting;

/// A rule of a definition that pauses a run. All of its conditions must hold. Without a condition it pauses at every
/// such stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a pause, such as {at: after_agent, tools: [NAME]}")]
pub struct PauseRule {
    /// The stage.
    pub at: PauseStage,
    /// The last answer requests a call of one of these tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The model has given exactly this number of answers in the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<i64>,
    /// The run has consumed at least this number of input and output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
}

impl PauseRule {
    /// Checks that the conditions can hold.
    ///
    /// # Errors
    /// The condition that can never hold.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        if [self.iteration, self.tokens].into_iter().flatten().any(|number| number < 0) {
            return Err(InvalidSetting::new("pause", "has a negative number"));
        }
        if self.at == PauseStage::AfterLoop && !self.tools.is_empty() {
            let why = "has tools at after_loop, but the last answer of a run has no calls";
            return Err(InvalidSetting::new("pause", why));
        }
        Ok(())
    }

    /// Why the run pauses, if the rule demands it.
    pub fn demands(&self, point: &PausePoint<'_>) -> Option<String> {
        let names_a_call =
            self.tools.iter().any(|name| point.tools.iter().any(|tool| tool_matches(name, tool)));
        let tokens = point.run.input_tokens + point.run.output_tokens;
        let holds = self.at == point.stage
            && (self.tools.is_empty() || names_a_call)
            && self.iteration.is_none_or(|wanted| wanted == point.run.iterations)
            && self.tokens.is_none_or(|least| tokens >= least);
        holds.then(|| format!("the definition of agent {} pauses here", point.agent))
    }
}

/// A stage that a run has reached, for a callback.
#[derive(Clone, Debug)]
pub struct PausePoint<'a> {
    /// The stage.
    pub stage: PauseStage,
    /// The run. `iterations` is the number of answers so far.
    pub run: &'a Run,
    /// The active agent.
    pub agent: &'a str,
    /// The text of the last answer; empty before the first one.
    pub text: &'a str,
    /// The tools that the last answer calls, in order.
    pub tools: Vec<&'a str>,
}

type Callback = dyn Fn(&PausePoint<'_>) -> Option<String> + Send + Sync;

/// The callback of a runtime; the default pauses nothing.
#[derive(Clone, Default)]
pub struct PauseCallback(Option<Arc<Callback>>);

impl fmt::Debug for PauseCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PauseCallback").field(&self.0.is_some()).finish()
    }
}

impl PauseCallback {
    /// Asks a function where each run could pause; its text is the reason.
    pub fn new(
        callback: impl Fn(&PausePoint<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> PauseCallback {
        PauseCallback(Some(Arc::new(callback)))
    }

    /// Returns `true` if there is one.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Why the run pauses, if the callback demands it.
    pub fn demands(&self, point: &PausePoint<'_>) -> Option<String> {
        let callback = self.0.as_ref()?;
        // `AssertUnwindSafe` is sound: the run pauses, and nothing else depends on the callback's state. A run that
        // was to be supervised must not go on because its supervision failed.
        let asked = catch_unwind(AssertUnwindSafe(|| callback(point)));
        asked.unwrap_or_else(|_| Some("the pause callback panicked".to_owned()))
    }
}
