//! Ids of responses: they contain the turn and the run, so they need no storage.

use abide_schema::{Code, Refusal};

/// A response: a turn of a run.
pub(super) struct ResponseId<'a> {
    pub(super) turn: i64,
    pub(super) run_id: &'a str,
}

impl ResponseId<'_> {
    /// Parses `resp_<turn>_<run>`.
    pub(super) fn parse(id: &str) -> Result<ResponseId<'_>, Refusal> {
        let parts = id.strip_prefix("resp_").and_then(|rest| rest.split_once('_'));
        let parsed = parts.and_then(|(turn, run_id)| {
            let number: i64 = turn.parse().ok()?;
            // One response has one id.
            let is_canonical = number > 0 && turn == number.to_string();
            is_canonical.then_some(ResponseId { turn: number, run_id })
        });
        parsed.ok_or_else(|| missing(id))
    }
}

/// Returns the id of the response for a turn.
pub(super) fn response_id(run_id: &str, turn: i64) -> String {
    format!("resp_{turn}_{run_id}")
}

/// Returns the refusal for an id without a response.
pub(super) fn missing(id: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no response {id}"))
        .hint("use the id of a response that POST /v1/responses has returned")
}
