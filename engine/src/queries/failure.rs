//! Why a planned query gave no result.

use abide_schema::Refusal;

/// Why a planned query gave no result.
#[derive(Clone, Debug)]
pub(crate) enum QueryFailure {
    /// The policies have changed since it was planned: it must be planned again. Callers never see this.
    Outdated,
    /// The answer for the caller.
    Refused(Refusal),
}

impl From<Refusal> for QueryFailure {
    fn from(refusal: Refusal) -> QueryFailure {
        QueryFailure::Refused(refusal)
    }
}
