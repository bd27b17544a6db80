//! How a step of a run can fail, and how the work of a driver ends. What follows from a failed step is decided by `Driver::end_after`
//! in `run/drive.rs`.

use abide_client::Error;

/// The result of a step.
pub(crate) type Step<T = ()> = Result<T, StepError>;

/// Why a step did not complete.
pub(crate) enum StepError {
    /// The run fails.
    Failed(RunFailure),
    /// The run was aborted.
    Aborted,
    /// The run has ended: the step recorded its end together with other rows.
    Ended,
    /// The runtime stops: the run is left to the next one, before the next step.
    Released,
    /// The step was refused, or could not be sent. Whether that ends the run depends on the code of the refusal.
    Refused(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> StepError {
        StepError::Refused(error)
    }
}

/// Why a run cannot go on, as shown to its user.
pub(crate) struct RunFailure {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl RunFailure {
    pub(crate) fn new(code: impl Into<String>, message: impl Into<String>) -> RunFailure {
        RunFailure { code: code.into(), message: message.into() }
    }
}

/// How a driver's work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriveResult {
    /// The run is over.
    Ended,
    /// The run waits for a decision.
    Waits,
    /// Another driver holds the run.
    Lost,
    /// The runtime stops, and the next one continues the run.
    Released,
}

/// Returns the failure of a run that has reached its deadline.
pub(crate) fn overtime() -> StepError {
    StepError::Failed(RunFailure::new("execution_timeout", "the run has reached its time limit"))
}
