//! How a step of a run ends, and how the work of a driver ends.

use abide_client::Error;

pub(crate) type Step<T = ()> = Result<T, StepError>;

/// Why a step did not complete.
pub(crate) enum StepError {
    /// The run fails.
    Failed(Failure),
    /// The run was aborted.
    Aborted,
    /// The run has ended: the step recorded its end together with other rows.
    Ended,
    /// The step was refused, or could not be sent.
    Refused(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> StepError {
        StepError::Refused(error)
    }
}

/// Why a run cannot go on, as shown to its user.
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: impl Into<String>, message: impl Into<String>) -> Failure {
        Failure { code: code.into(), message: message.into() }
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
}

/// The failure of a run that has reached its deadline.
pub(crate) fn overtime() -> StepError {
    StepError::Failed(Failure::new("execution_timeout", "the run has reached its time limit"))
}
