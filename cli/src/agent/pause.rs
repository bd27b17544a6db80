//! `abide agent pause` and `resume`: a run stops at a stage of its loop, and continues there. `abort`: it ends.

use abide_client::PauseStage;
use abide_client::arguments::{AbortRun, PauseRun, ResumeRun};
use clap::{Args, ValueEnum};

use crate::call::make;
use crate::failure::Failure;
use crate::global_options::Options;

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
    make(options, PauseRun { stage, reason, ..PauseRun::new(run) }).await
}

/// Resumes a paused run.
///
/// # Errors
/// The call is refused.
pub(super) async fn resume(options: &Options, args: Resume) -> Result<(), Failure> {
    make(options, ResumeRun::new(args.run)).await
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

/// Aborts a run.
///
/// # Errors
/// The call is refused.
pub(super) async fn abort(options: &Options, args: Abort) -> Result<(), Failure> {
    make(options, AbortRun { reason: args.reason, ..AbortRun::new(args.run) }).await
}
