//! The format of a snapshot, and the checks of what comes from outside.

use std::collections::BTreeSet;

use abide_schema::reducer::DERIVED;
use abide_schema::{Code, Context, Micros, Refusal, TextEnum, limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as JsonValue};

use super::context::SnapshotContext;
use super::{invalid, too_many_rows};
use crate::check;
use crate::pause::PauseStage;
use crate::tool_call::ToolCallStatus;

/// The value of `format`.
pub(super) const FORMAT: &str = "abide-run";

/// The version that is written and read. Another one has other members, and is refused.
pub(super) const VERSION: i64 = 4;

/// Returns `true` if a result is that of a failed call: the exit code of its program.
fn is_exit_code(result: &JsonValue) -> bool {
    let members = result.as_object().filter(|members| members.len() == 1);
    members.is_some_and(|members| members.get("exit_code").is_some_and(JsonValue::is_i64))
}

/// A run that waits, with the delegated runs that it waits for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSnapshot {
    /// `abide-run`.
    pub format: String,
    /// The version of the format.
    pub version: i64,
    /// The id of the snapshot.
    pub id: String,
    /// When it was made.
    pub created_at: Micros,
    /// A label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether it is a copy: the run continues at its origin, too.
    pub is_copy: bool,
    /// The tools that the file which imports it must have.
    pub tools: Vec<String>,
    /// The agents of the runs, and those that have taken over.
    pub agents: Vec<SnapshotAgent>,
    /// The run, then the runs that it delegated and waits for, each after the one that delegated it.
    pub runs: Vec<SnapshotRun>,
}

/// An agent of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotAgent {
    /// Its name.
    pub name: String,
    /// Its revision at the origin.
    pub revision: i64,
    /// Its definition; absent if the exporting caller may not read definitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Map<String, JsonValue>>,
}

/// A run of a snapshot, with its session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRun {
    /// Its id at the origin.
    pub id: String,
    /// Its session at the origin.
    pub session_id: String,
    /// Its agent.
    pub agent: String,
    /// The agent's revision at the origin.
    pub revision: i64,
    /// The run that delegated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// The title of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The scope of its session.
    pub scope: Map<String, JsonValue>,
    /// The metadata of its session.
    pub metadata: Map<String, JsonValue>,
    /// The reason for which it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The turn that has ended with its wait. It continues with the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// Answers of the model so far.
    pub iterations: i64,
    /// Tool calls requested by the model so far.
    pub tool_calls: i64,
    /// Input tokens so far.
    pub input_tokens: i64,
    /// Output tokens so far.
    pub output_tokens: i64,
    /// Answers of unknown usage.
    pub usage_missing: i64,
    /// Its cost so far in millionths of a dollar, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
    /// Tokens that count against its budget, with those of delegated runs.
    pub budget_tokens: i64,
    /// The cost that counts against its budget, with that of delegated runs.
    pub budget_cost_micros: i64,
    /// When it must have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Micros>,
    /// When it began.
    pub began_at: Micros,
    /// Microseconds in which it has not waited. The time until its import counts as a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worked_us: Option<i64>,
    /// The stage of its last pause, which it has passed when it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<PauseStage>,
    /// How many answers it had then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_iteration: Option<i64>,
    /// The messages of its session, in order.
    pub messages: Vec<SnapshotMessage>,
    /// The tool calls that its messages name and that have an outcome or started a run, in order.
    pub calls: Vec<SnapshotCall>,
    /// Other state of the session that determines the model's view.
    #[serde(default, skip_serializing_if = "SnapshotContext::is_empty")]
    pub context: SnapshotContext,
}

/// A message of a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotMessage {
    /// The author's role.
    pub role: String,
    /// Its kind.
    pub kind: String,
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Other data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<JsonValue>,
    /// Whether the driver of a run wrote it. The data of other messages has no effect on the run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_run: bool,
}

/// A tool call of a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCall {
    /// Its id at the origin.
    pub call_id: String,
    /// The tool.
    pub tool_name: String,
    /// The arguments that it ran with.
    pub arguments: JsonValue,
    /// The provider's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_call_id: Option<String>,
    /// Its status.
    pub status: SnapshotCallStatus,
    /// Number of attempts.
    pub attempt: i64,
    /// Its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonValue>,
    /// Its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The status of a tool call in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum SnapshotCallStatus {
    /// It waits for a run of the snapshot, which it started.
    Delegated,
    /// Succeeded.
    Succeeded,
    /// Failed.
    Failed,
    /// Its approval was rejected or expired.
    Rejected,
    /// Cancelled before it ran.
    Cancelled,
    /// It may have run: its outcome must be settled.
    Unknown,
}

impl SnapshotCallStatus {
    /// Returns the status of a call that has an outcome; `None` if it has none yet.
    pub(super) fn from_outcome(status: ToolCallStatus) -> Option<SnapshotCallStatus> {
        Some(match status {
            ToolCallStatus::Succeeded => SnapshotCallStatus::Succeeded,
            ToolCallStatus::Failed => SnapshotCallStatus::Failed,
            ToolCallStatus::Rejected => SnapshotCallStatus::Rejected,
            ToolCallStatus::Cancelled => SnapshotCallStatus::Cancelled,
            ToolCallStatus::Unknown => SnapshotCallStatus::Unknown,
            _ => return None,
        })
    }

    /// Returns the status of the imported call.
    pub(super) fn imported(self) -> ToolCallStatus {
        match self {
            SnapshotCallStatus::Delegated => ToolCallStatus::Pending,
            SnapshotCallStatus::Succeeded => ToolCallStatus::Succeeded,
            SnapshotCallStatus::Failed => ToolCallStatus::Failed,
            SnapshotCallStatus::Rejected => ToolCallStatus::Rejected,
            SnapshotCallStatus::Cancelled => ToolCallStatus::Cancelled,
            SnapshotCallStatus::Unknown => ToolCallStatus::Unknown,
        }
    }
}

/// Refuses a label that is too long.
pub(super) fn check_tag(tag: Option<&str>) -> Result<(), Refusal> {
    match tag {
        Some(tag) if tag.len() > limits::REASON_BYTES => {
            let bytes = tag.len();
            let max = limits::REASON_BYTES;
            let detail = format!("tag has {bytes} bytes; the limit is {max}");
            Err(Refusal::new(Code::LimitExceeded, detail))
        }
        _ => Ok(()),
    }
}

impl RunSnapshot {
    /// Checks everything that does not depend on the file. A snapshot comes from outside: each number and each id of it
    /// may be forged.
    pub(super) fn check(&self, ctx: &Context<'_>) -> Result<(), Refusal> {
        if self.format != FORMAT {
            let detail = format!("format must be {FORMAT:?}, not {:?}", self.format);
            return Err(invalid(detail).hint("`abide agent export` makes a snapshot"));
        }
        if self.version != VERSION {
            let detail = format!("version must be {VERSION}, not {}", self.version);
            return Err(invalid(detail).hint("import it with the version of abide that made it"));
        }
        check::name("snapshot.id", &self.id)?;
        check_tag(self.tag.as_deref())?;
        let rows = self.runs.iter().map(SnapshotRun::rows).sum::<usize>();
        if rows > limits::SNAPSHOT_ROWS {
            return Err(too_many_rows(rows));
        }
        let max = limits::RUN_DESCENDANTS as usize + 1;
        if self.runs.is_empty() || self.runs.len() > max {
            let detail = format!("runs must have 1 to {max} items, not {}", self.runs.len());
            return Err(invalid(detail));
        }
        for (at, run) in self.runs.iter().enumerate() {
            run.check(ctx, &self.runs[..at]).map_err(|refusal| Refusal {
                detail: format!("run {at} of the snapshot: {}", refusal.detail),
                ..refusal
            })?;
        }
        let agents: BTreeSet<&str> = self.agents.iter().map(|agent| &*agent.name).collect();
        match self.runs.iter().find(|run| !agents.contains(&*run.agent)) {
            Some(run) => Err(invalid(format!("agents does not name {}", run.agent))),
            None => Ok(()),
        }
    }
}

impl SnapshotRun {
    /// Returns how many rows an import of it writes.
    fn rows(&self) -> usize {
        self.messages.len() + self.calls.len() + self.context.rows()
    }

    fn check(&self, ctx: &Context<'_>, before: &[SnapshotRun]) -> Result<(), Refusal> {
        check::name("id", &self.id)?;
        check::name("agent", &self.agent)?;
        let counts = 0..=i64::from(u32::MAX);
        for (name, number) in [
            ("iterations", Some(self.iterations)),
            ("tool_calls", Some(self.tool_calls)),
            ("usage_missing", Some(self.usage_missing)),
            ("stage_iteration", self.stage_iteration),
            ("turn", self.turn),
        ] {
            check::in_range(name, number, &counts)?;
        }
        // As large as the sum of the counts of many answers.
        let sums = 0..=(1 << 53);
        for (name, number) in [
            ("input_tokens", Some(self.input_tokens)),
            ("output_tokens", Some(self.output_tokens)),
            ("cost_micros", self.cost_micros),
            ("budget_tokens", Some(self.budget_tokens)),
            ("budget_cost_micros", Some(self.budget_cost_micros)),
            ("worked_us", self.worked_us),
        ] {
            check::in_range(name, number, &sums)?;
        }
        self.check_times(ctx.now)?;
        self.context.check(self.messages.len())?;
        let mut ids = BTreeSet::new();
        for call in &self.calls {
            check::name("call_id", &call.call_id)?;
            check::name("tool_name", &call.tool_name)?;
            check::in_range("attempt", Some(call.attempt), &counts)?;
            if !ids.insert(call.call_id.as_str()) {
                return Err(invalid(format!("calls contains call {} twice", call.call_id)));
            }
            let fits = match call.status {
                SnapshotCallStatus::Succeeded => call.result.is_some() && call.error.is_none(),
                SnapshotCallStatus::Failed => call.result.as_ref().is_none_or(is_exit_code),
                _ => call.result.is_none(),
            };
            if !fits {
                let id = &call.call_id;
                let status = call.status;
                return Err(invalid(format!(
                    "the result of call {id} contradicts its status {status}"
                )));
            }
        }
        for message in &self.messages {
            check::name("role", &message.role)?;
            check::name("kind", &message.kind)?;
        }
        match (&self.parent_id, before.is_empty()) {
            (None, true) => Ok(()),
            (Some(parent), false) => self.check_parent(parent, before),
            (Some(_), true) => {
                Err(invalid("the first run has parent_id: export the run that delegated it"))
            }
            (None, false) => Err(invalid("only the first run has no parent_id")),
        }
    }

    fn check_times(&self, now: Micros) -> Result<(), Refusal> {
        if self.began_at > now {
            return Err(invalid("began_at is in the future"));
        }
        // An older run is claimed before younger ones.
        let times = [("began_at", Some(self.began_at)), ("deadline_at", self.deadline_at)];
        match times.into_iter().find(|(_, time)| time.is_some_and(|time| time < Micros(0))) {
            Some((name, _)) => Err(invalid(format!("{name} is before 1970"))),
            None => Ok(()),
        }
    }

    /// A delegated run belongs to a call of the run that delegated it, and its ids say so.
    fn check_parent(&self, parent: &str, before: &[SnapshotRun]) -> Result<(), Refusal> {
        let Some(parent) = before.iter().find(|run| run.id == parent) else {
            return Err(invalid(format!("the run that delegated it, {parent}, is not before it")));
        };
        let own_calls = parent.calls.iter().filter(|call| {
            call.call_id == self.session_id && call.status == SnapshotCallStatus::Delegated
        });
        let is_derived = self.session_id.strip_prefix(&*parent.id).is_some_and(|rest| {
            rest.strip_prefix(DERIVED).is_some_and(|rest| !rest.contains(DERIVED))
        });
        let own_id = format!("{}{DERIVED}run", self.session_id);
        if !is_derived || self.id != own_id || own_calls.count() != 1 {
            let detail = format!("it does not belong to a call of run {}", parent.id);
            return Err(invalid(detail));
        }
        if before.iter().any(|run| run.id == self.id) {
            Err(invalid(format!("runs contains run {} twice", self.id)))
        } else {
            Ok(())
        }
    }
}
