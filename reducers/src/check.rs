//! What every domain asks of its arguments.

use abide_schema::{Code, Micros, Refusal, limits};

/// An id or name: not empty, not longer than an index key should be.
pub(crate) fn name(what: &str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(Refusal::new(Code::BadArguments, format!("{what} is empty")));
    }
    if text.len() > limits::NAME_BYTES {
        let (bytes, most) = (text.len(), limits::NAME_BYTES);
        let detail = format!("{what} has {bytes} bytes, at most {most} are taken");
        return Err(Refusal::new(Code::LimitExceeded, detail));
    }
    Ok(())
}

/// When a lease that is taken now runs out.
pub(crate) fn lease(now: Micros, lease_ms: i64) -> Result<Micros, Refusal> {
    if !limits::LEASE_MS.contains(&lease_ms) {
        let (least, most) = limits::LEASE_MS.into_inner();
        let detail = format!("a lease of {lease_ms} ms is not between {least} and {most}");
        return Err(Refusal::new(Code::BadArguments, detail));
    }
    Ok(now.plus_ms(lease_ms))
}
