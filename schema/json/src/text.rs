//! Quotes values in errors.

use std::io;

use serde_json::Value;

/// Maximum bytes of a quoted value.
const QUOTED: usize = 200;

/// Maximum number of values in a list.
const LISTED: usize = 12;

/// Returns a value as JSON, truncated if long. The time does not depend on the size of the value.
pub(crate) fn quote(value: &Value) -> String {
    write_truncated(|into| serde_json::to_writer(into, value).is_err())
}

/// Returns a text as JSON, truncated if long.
pub(crate) fn quote_text(text: &str) -> String {
    write_truncated(|into| serde_json::to_writer(into, text).is_err())
}

/// Returns the first values of a list as JSON.
pub(crate) fn quote_all(values: &[Value]) -> String {
    join_first(values.iter().map(quote))
}

/// Returns the first texts of a list, and how many more there are.
pub(crate) fn join_first(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(LISTED);
    let mut first: Vec<String> = all.take(LISTED).collect();
    if more > 0 {
        first.push(format!("{more} more"));
    }
    first.join(", ")
}

/// Returns a name in single quotes, truncated if long.
pub(crate) fn quote_name(name: &str) -> String {
    let end = name.floor_char_boundary(QUOTED);
    let cut = if end < name.len() { "…" } else { "" };
    format!("'{}{cut}'", &name[..end])
}

fn write_truncated(write: impl FnOnce(&mut TruncatedText) -> bool) -> String {
    let mut quoted = TruncatedText(Vec::new());
    let cut = write(&mut quoted);
    let mut text = String::from_utf8_lossy(&quoted.0).trim_end_matches('\u{fffd}').to_owned();
    if cut {
        text.push('…');
    }
    text
}

struct TruncatedText(Vec<u8>);

impl io::Write for TruncatedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = QUOTED - self.0.len().min(QUOTED);
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room { Err(io::Error::other("it is long")) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
