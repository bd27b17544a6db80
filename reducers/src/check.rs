//! Argument checks shared by all domains.

use std::ops::RangeInclusive;

use abide_schema::id::forbidden_character;
use abide_schema::{Caller, Code, Micros, Refusal, limits};

/// Checks an id or name: not empty, not longer than an index key should be, and only characters that a person sees.
pub(crate) fn name(what: &str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(Refusal::new(Code::BadArguments, format!("{what} is empty")));
    }
    if text.len() > limits::NAME_BYTES {
        let bytes = text.len();
        let max = limits::NAME_BYTES;
        let detail = format!("{what} has {bytes} bytes; the limit is {max}");
        return Err(Refusal::new(Code::LimitExceeded, detail));
    }
    characters(what, text)
}

/// Returns an argument of a command in a hint, quoted for a POSIX shell if necessary: others have chosen the ids in it.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:=@%+,~".contains(c))
        && !text.contains("=~")
        && !text.contains(":~");
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Returns `true` if the names of agents, prompts and namespaces may contain a character.
pub(crate) fn is_path_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/')
}

/// Checks a name that can be omitted.
pub(crate) fn optional_name(what: &str, text: Option<&str>) -> Result<(), Refusal> {
    text.map_or(Ok(()), |text| name(what, text))
}

/// Checks that a person sees each character of an id or name.
pub(crate) fn characters(what: &str, text: &str) -> Result<(), Refusal> {
    let Some(c) = forbidden_character(text) else { return Ok(()) };
    let detail = format!("{what} contains the character U+{:04X}", u32::from(c));
    let hint = "control, invisible and bidirectional characters are not allowed, and no blank but the space";
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

/// Checks that an optional number is in a range.
pub(crate) fn in_range(
    what: &str,
    number: Option<i64>,
    range: &RangeInclusive<i64>,
) -> Result<(), Refusal> {
    match number {
        Some(number) if !range.contains(&number) => {
            let (least, max) = range.clone().into_inner();
            let detail = format!("{what} must be between {least} and {max}, not {number}");
            Err(Refusal::new(Code::BadArguments, detail))
        }
        _ => Ok(()),
    }
}

/// Returns the time after an optional delay.
pub(crate) fn time_after(
    what: &str,
    now: Micros,
    span_ms: Option<i64>,
) -> Result<Option<Micros>, Refusal> {
    in_range(what, span_ms, &limits::AHEAD_MS)?;
    Ok(span_ms.map(|span_ms| now.plus_ms(span_ms)))
}

/// Returns the refusal of a deadline call for a row that is not due at that time.
pub(crate) fn not_due(id: &str, at: Micros) -> Refusal {
    Refusal::new(Code::Conflict, format!("{id} is not due at {at}"))
}

/// Condition for callers who may see permissions: those who manage them, and auditors.
pub(crate) const MANAGERS: &str = ":caller_role = 'admin' OR :caller_role = 'auditor'";

/// Checks that the caller has the capability that a row requires.
pub(crate) fn capability(
    caller: &Caller,
    required: Option<&str>,
    what: &str,
) -> Result<(), Refusal> {
    match required {
        Some(required) if !caller.can(required) => {
            let detail =
                format!("{what} requires the capability {required}, which the caller lacks");
            let hint = "an admin can grant it: `abide identity change ID --capability …`";
            Err(Refusal::new(Code::Denied, detail).hint(hint))
        }
        _ => Ok(()),
    }
}

/// When a lease that starts now expires.
pub(crate) fn lease_end(now: Micros, lease_ms: i64) -> Result<Micros, Refusal> {
    if !limits::LEASE_MS.contains(&lease_ms) {
        let (least, max) = limits::LEASE_MS.into_inner();
        let detail = format!("lease_ms must be between {least} and {max}, not {lease_ms}");
        let hint = "lease_ms is in milliseconds; a heartbeat extends a lease";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    Ok(now.plus_ms(lease_ms))
}
