//! `abide agent pause` and `resume`: a run stops at a stage of its loop, and continues there. `abort`: it ends.

use std::time::Duration;

use abide_client::arguments::{AbortRun, PauseRun, ResumeRun};
use abide_client::rows::{PauseStage, Run};
use abide_client::{Abide, Committed, Error};
use clap::{Args, ValueEnum};
use serde_json::Value as JsonValue;
use tokio::time::{sleep, timeout};

use crate::call::{call_and_print, print_committed};
use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::note;

/// Arguments of `abide agent pause`.
#[derive(Args, Debug)]
pub(super) struct Pause {
    /// The id of the run
    run: String,

    /// The stage; without it, the next one
    #[arg(long, value_name = "STAGE")]
    at: Option<Stage>,

    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// A stage, as the command line names it: as the rows do.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Stage {
    /// Before the model is asked
    BeforeGuardrails,
    /// Before the tools of an answer run
    AfterAgent,
    /// When the results of an answer's tools are known
    AfterTools,
    /// Before the run ends with its answer
    AfterLoop,
}

impl From<Stage> for PauseStage {
    fn from(stage: Stage) -> PauseStage {
        match stage {
            Stage::BeforeGuardrails => PauseStage::BeforeGuardrails,
            Stage::AfterAgent => PauseStage::AfterAgent,
            Stage::AfterTools => PauseStage::AfterTools,
            Stage::AfterLoop => PauseStage::AfterLoop,
        }
    }
}

/// Arguments of `abide agent resume`.
#[derive(Args, Debug)]
pub(super) struct Resume {
    /// The id of the run
    run: String,
}

/// Requests that a run pauses.
///
/// # Errors
/// The call is refused.
pub(super) async fn pause(options: &Options, args: Pause) -> Result<(), Failure> {
    let Pause { run, at, reason } = args;
    let stage = at.map(PauseStage::from);
    call_and_print(options, PauseRun { stage, reason, ..PauseRun::new(run) }).await
}

/// Resumes a paused run.
///
/// # Errors
/// The call is refused.
pub(super) async fn resume(options: &Options, args: Resume) -> Result<(), Failure> {
    call_and_print(options, ResumeRun::new(args.run)).await
}

/// Arguments of `abide agent abort`.
#[derive(Args, Debug)]
pub(super) struct Abort {
    /// The id of the run
    run: String,

    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// What is said of a run that has not ended after [`PATIENCE`].
const NOT_ENDED: &str = "the run has not ended: its abort is recorded, but its driver has not stopped, or was killed and its \
    lease has not expired; repeat the command to wait again";

/// How long a file is kept open for the end of the run: longer than the lease of a driver that was killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Aborts a run. In a file, waits until it has ended: a driver that was killed cannot end it, and its lease has to expire.
///
/// # Errors
/// The call is refused.
pub(super) async fn abort(options: &Options, args: Abort) -> Result<(), Failure> {
    let abide = connect(options, Access::Write).await?;
    let aborted = abort_and_wait(options, &abide, args).await;
    abide.close().await;
    print_committed(options, &aborted?)
}

async fn abort_and_wait(
    options: &Options,
    abide: &Abide,
    args: Abort,
) -> Result<Committed<JsonValue>, Failure> {
    let call = AbortRun { reason: args.reason, ..AbortRun::new(args.run) };
    let mut called: Committed<JsonValue> = abide.call(call).returning().await?;
    let id = called.value["id"].as_str().unwrap_or_default().to_owned();
    if options.db.is_none() || called.value["ended_at"] != JsonValue::Null {
        return Ok(called);
    }
    match timeout(PATIENCE, wait_until_ended(abide, &id)).await {
        Ok(run) => called.value = serde_json::to_value(run?).unwrap_or_default(),
        Err(_) => note(NOT_ENDED),
    }
    Ok(called)
}

/// Waits until a run has ended.
async fn wait_until_ended(abide: &Abide, id: &str) -> Result<Run, Failure> {
    let sql = "SELECT * FROM runs WHERE id = :id AND ended_at IS NOT NULL";
    let mut ended = abide.subscribe(sql).param("id", id).await?;
    let mut is_noted = false;
    loop {
        if let Some(run) = ended.typed_rows::<Run>()?.into_iter().next() {
            return Ok(Run { fencing_token: None, ..run });
        }
        tokio::select! {
            update = ended.try_next() => {
                update?.ok_or(Error::Closed)?;
            }
            () = sleep(NOTED), if !is_noted => {
                note("waiting: the process that drove the run has not ended it; its lease expires soon");
                is_noted = true;
            }
        }
    }
}

/// A wait of this time is explained.
const NOTED: Duration = Duration::from_secs(1);
