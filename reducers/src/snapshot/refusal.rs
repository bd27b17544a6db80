//! The refusals that the parts of this domain share.

use abide_schema::{Code, Refusal, limits};

/// A snapshot that cannot be right.
pub(super) fn wrong(detail: String) -> Refusal {
    Refusal::new(Code::BadArguments, format!("the snapshot is not valid: {detail}"))
        .hint("export the run again; an edited snapshot is refused")
}

/// More rows than one call copies.
pub(super) fn too_many(rows: usize) -> Refusal {
    let max = limits::SNAPSHOT_ROWS;
    let detail = format!("it has {rows} messages and calls or more; the limit is {max}");
    Refusal::new(Code::LimitExceeded, detail).hint("fork the session at an earlier event")
}
