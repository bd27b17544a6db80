//! Quotes values in errors.

use std::io;

use serde_json::Value;

/// Maximum bytes of a quoted value.
const QUOTED: usize = 200;

/// A value as JSON, truncated if long. The time does not depend on the size of the value.
pub(crate) fn quote(value: &Value) -> String {
    let mut quoted = TruncatedText(Vec::new());
    let cut = serde_json::to_writer(&mut quoted, value).is_err();
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
