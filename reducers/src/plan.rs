//! Plans: the steps that an agent intends to do in a session. The current steps are rows, and so is each version.
//!
//! Exactly one step is in progress while steps are left and work has begun; otherwise at most one. A unique index and
//! triggers enforce it.

use abide_schema::limits::{PLAN_STEPS, PLAN_TEXT_BYTES};
use abide_schema::reducer::RowVisibility;
use abide_schema::{
    Abort, Code, Context, Json, Micros, Module, Refusal, Seq, TextEnum, Value, reducer, table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::check;
use crate::run::{self, Run};

/// The status of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub enum PlanStepStatus {
    /// Work on it has not begun.
    NotStarted,
    /// The step that is worked on.
    InProgress,
    /// Done.
    Completed,
    /// It cannot be done now.
    Blocked,
}

/// Work has begun when a step is completed or blocked. Steps are left while one is not started.
macro_rules! one_step {
    ($name:literal, $event:literal) => {
        concat!(
            "CREATE TRIGGER ",
            $name,
            " BEFORE ",
            $event,
            " ON plans
WHEN EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id AND status = 'not_started')
  AND EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id
    AND (status = 'completed' OR status = 'blocked'))
  AND NOT EXISTS (SELECT 1 FROM plan_steps WHERE session_id = NEW.session_id
    AND status = 'in_progress')
BEGIN SELECT RAISE(FAIL, 'bad_transition: one step must be in progress while steps are left'); END"
        )
    };
}

const OF_INSERT: &str = one_step!("plans_one_step", "INSERT");

const OF_UPDATE: &str = one_step!("plans_next_step", "UPDATE");

const COUNTS_UP: &str = "CREATE TRIGGER plans_versions BEFORE UPDATE ON plans
WHEN NEW.version <> OLD.version + 1
BEGIN SELECT RAISE(FAIL, 'conflict: a plan changes one version at a time'); END";

const VERSIONS_STAY: &str = "CREATE TRIGGER plan_versions_stay BEFORE UPDATE ON plan_versions
BEGIN SELECT RAISE(FAIL, 'conflict: a version of a plan cannot be changed'); END";

/// The plan of a session.
#[table(
    name = "plans",
    without_rowid,
    constraint = "CHECK (completed >= 0 AND completed <= steps)",
    trigger = OF_INSERT,
    trigger = OF_UPDATE,
    trigger = COUNTS_UP
)]
pub struct SessionPlan {
    /// The session.
    #[column(key, references = "sessions(id)")]
    pub session_id: String,
    /// The number of changes so far.
    pub version: i64,
    /// The number of its steps.
    pub steps: i64,
    /// The number of completed steps. The adherence is `completed / steps`, and 1 without steps.
    pub completed: i64,
    /// The run that last changed it.
    #[column(references = "runs(id)")]
    pub run_id: String,
    /// When it was first written.
    pub created_at: Micros,
    /// When it last changed.
    pub updated_at: Micros,
    /// The event of the last change.
    pub seq: Seq,
}

/// A step of the current plan.
#[table(name = "plan_steps", unique(session_id, where = "status = 'in_progress'"))]
pub struct PlanStep {
    /// The session.
    #[column(key, references = "sessions(id)")]
    pub session_id: String,
    /// Its number in the plan: 1, 2, 3 …
    #[column(key)]
    pub step: i64,
    /// The task.
    pub title: String,
    /// Its status.
    pub status: PlanStepStatus,
    /// More details.
    pub description: Option<String>,
    /// The agent that works on it.
    pub owner: Option<String>,
    /// When it counts as done.
    pub exit_criteria: Option<String>,
    /// The evidence that it is done.
    pub evidence: Option<String>,
    /// The event of the last change.
    pub seq: Seq,
}

/// A version of a plan.
#[table(name = "plan_versions", trigger = VERSIONS_STAY)]
pub struct PlanVersion {
    /// The session.
    #[column(key, references = "sessions(id)")]
    pub session_id: String,
    /// The version, from 1.
    #[column(key)]
    pub version: i64,
    /// The run that wrote it.
    #[column(references = "runs(id)")]
    pub run_id: String,
    /// All steps: an array of objects with the columns of `plan_steps`.
    pub steps: Json,
    /// When it was written.
    pub created_at: Micros,
    /// The event that wrote it.
    pub seq: Seq,
}

/// A step as a driver records it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPlanStep {
    /// The task.
    pub title: String,
    /// Its status.
    pub status: PlanStepStatus,
    /// More details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The agent that works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// When it counts as done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_criteria: Option<String>,
    /// The evidence that it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("plan")
        .visible::<SessionPlan>(RowVisibility::InScope)
        .visible::<PlanStep>(RowVisibility::InScope)
        .visible::<PlanVersion>(RowVisibility::InScope)
        .reducer(write_plan::definition())
}

/// Writes the next version of the plan of a run's session: all steps, in order. Refused with `conflict` if the plan
/// has another version than expected, and with `bad_transition` if not exactly one step is in progress while steps
/// are left and work has begun.
#[reducer(roles(app, agent))]
pub fn write_plan(
    ctx: &mut Context<'_>,
    #[id(Run)] id: String,
    /// The fencing token of the claim.
    fencing_token: i64,
    /// The version that the change is based on; 0 if there is no plan yet.
    expected_version: i64,
    /// All steps, in order.
    steps: Vec<NewPlanStep>,
) -> Result<SessionPlan, Abort> {
    let run = run::drive::find_claimed(ctx, &id, fencing_token)?;
    let before = ctx.get::<SessionPlan>(run.session_id.as_str())?;
    let version = before.as_ref().map_or(0, |before| before.version);
    if version != expected_version {
        let detail = format!("the plan is at version {version}, not {expected_version}");
        let hint = "read the plan and repeat the change";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    check_steps(&steps)?;
    let plan = put_version(ctx, &run.session_id, &run.id, version + 1, &steps)?;
    match before {
        None => ctx.insert(plan),
        Some(before) => {
            let plan = SessionPlan { created_at: before.created_at, ..plan };
            ctx.update(&plan).map(|()| plan)
        }
    }
}

/// Writes the plan of a copied session, which has none yet.
pub(crate) fn restore(
    ctx: &mut Context<'_>,
    session_id: &str,
    run_id: &str,
    version: i64,
    steps: &[NewPlanStep],
) -> Result<(), Abort> {
    let plan = put_version(ctx, session_id, run_id, version, steps)?;
    ctx.insert(plan).map(drop)
}

/// Writes the steps and the row of a version. Returns the plan, which the caller writes.
fn put_version(
    ctx: &mut Context<'_>,
    session_id: &str,
    run_id: &str,
    version: i64,
    steps: &[NewPlanStep],
) -> Result<SessionPlan, Abort> {
    replace_steps(ctx, session_id, steps)?;
    ctx.insert(PlanVersion {
        session_id: session_id.to_owned(),
        version,
        run_id: run_id.to_owned(),
        steps: Json::from(json!(steps)),
        created_at: ctx.now,
        seq: ctx.seq,
    })?;
    let completed = count(steps, PlanStepStatus::Completed);
    Ok(SessionPlan {
        session_id: session_id.to_owned(),
        version,
        steps: i64::try_from(steps.len()).unwrap_or(i64::MAX),
        completed: i64::try_from(completed).unwrap_or(i64::MAX),
        run_id: run_id.to_owned(),
        created_at: ctx.now,
        updated_at: ctx.now,
        seq: ctx.seq,
    })
}

/// Checks the steps. The triggers check the rule about the step in progress again.
pub(crate) fn check_steps(steps: &[NewPlanStep]) -> Result<(), Refusal> {
    if steps.len() > PLAN_STEPS {
        let detail = format!("the plan has {} steps; the limit is {PLAN_STEPS}", steps.len());
        let hint = "give parts of the work to other agents, or plan it later";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint));
    }
    for (step, number) in steps.iter().zip(1..) {
        if step.title.trim().is_empty() {
            let detail = format!("step {number} has no title");
            return Err(Refusal::new(Code::BadArguments, detail));
        }
        let owner = step.owner.as_deref().unwrap_or_default();
        check::characters(&format!("the owner of step {number}"), owner)?;
        let optional = [&step.description, &step.owner, &step.exit_criteria, &step.evidence];
        let mut texts = optional.into_iter().flatten().chain([&step.title]);
        if let Some(long) = texts.find(|text| text.len() > PLAN_TEXT_BYTES) {
            let bytes = long.len();
            let detail = format!(
                "a text of step {number} has {bytes} bytes; the limit is {PLAN_TEXT_BYTES}"
            );
            return Err(Refusal::new(Code::LimitExceeded, detail));
        }
    }
    use PlanStepStatus::{Blocked, Completed, InProgress, NotStarted};
    let has_begun = count(steps, Completed) + count(steps, Blocked) > 0;
    let detail = match count(steps, InProgress) {
        0 if has_begun && count(steps, NotStarted) > 0 => {
            "no step is in progress, but steps are left and work has begun".to_owned()
        }
        0 | 1 => return Ok(()),
        many => format!("{many} steps are in progress"),
    };
    let hint = "exactly one step is in progress while steps are left and work has begun";
    Err(Refusal::new(Code::BadTransition, detail).hint(hint))
}

/// Returns the number of steps with a status.
fn count(steps: &[NewPlanStep], status: PlanStepStatus) -> usize {
    steps.iter().filter(|step| step.status == status).count()
}

/// Writes the rows that change. The step that is in progress is written last, because there is at most one.
fn replace_steps(
    ctx: &mut Context<'_>,
    session_id: &str,
    steps: &[NewPlanStep],
) -> Result<(), Abort> {
    let of_session = "WHERE session_id = ?1 ORDER BY step";
    let before = ctx.find::<PlanStep>(of_session, &[Value::from(session_id)])?;
    for gone in before.iter().skip(steps.len()) {
        ctx.delete::<PlanStep>((session_id, gone.step))?;
    }
    let rows = steps.iter().zip(1..).map(|(step, number)| PlanStep {
        session_id: session_id.to_owned(),
        step: number,
        title: step.title.clone(),
        status: step.status,
        description: step.description.clone(),
        owner: step.owner.clone(),
        exit_criteria: step.exit_criteria.clone(),
        evidence: step.evidence.clone(),
        seq: ctx.seq,
    });
    let (last, first): (Vec<PlanStep>, Vec<PlanStep>) =
        rows.partition(|row| row.status == PlanStepStatus::InProgress);
    for row in first.into_iter().chain(last) {
        match before.iter().find(|old| old.step == row.step) {
            None => drop(ctx.insert(row)?),
            Some(old) if PlanStep { seq: old.seq, ..row.clone() } == *old => {}
            Some(_) => ctx.update(&row)?,
        }
    }
    Ok(())
}
