//! Text that is safe to write to a terminal. Stored text can contain escape sequences, or characters that hide or
//! reorder the text around them; [`Printable`] escapes them, for example as `\u{1b}`. All output of this program
//! goes through it.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::ops::Add;

use abide_schema::id::is_invisible;

use crate::stderr;

/// Text whose only control sequences are those of [`Terminal`](crate::terminal::Terminal).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Printable(String);

impl Printable {
    /// The text on one line: line breaks and tabs are escaped too.
    pub(crate) fn line(text: &str) -> Printable {
        Printable(one_line(text))
    }

    /// A JSON document. Unsafe characters are escaped as `\u001b`, which is equivalent for a JSON parser.
    pub(crate) fn json(text: &str) -> Printable {
        Printable(escape(text, |c, into| match c {
            '\n' | '\t' => into.push(c),
            c => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    into.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }))
    }

    /// Text composed of printable parts and of sequences of this program.
    pub(crate) fn from_printable_parts(text: String) -> Printable {
        Printable(text)
    }

    /// Lines, joined with line breaks.
    pub(crate) fn lines(lines: &[Printable]) -> Printable {
        let lines: Vec<&str> = lines.iter().map(|line| line.0.as_str()).collect();
        Printable(lines.join("\n"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Line breaks and tabs are kept.
impl From<&str> for Printable {
    fn from(text: &str) -> Printable {
        Printable(escape(text, |c, into| match c {
            '\n' | '\t' => into.push(c),
            c => write_out(c, into),
        }))
    }
}

impl From<String> for Printable {
    fn from(text: String) -> Printable {
        Printable::from(text.as_str())
    }
}

impl From<&String> for Printable {
    fn from(text: &String) -> Printable {
        Printable::from(text.as_str())
    }
}

impl<T: Into<Printable>> Add<T> for Printable {
    type Output = Printable;

    fn add(self, right: T) -> Printable {
        Printable(self.0 + &right.into().0)
    }
}

impl fmt::Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text on one line, escaped.
pub(crate) fn one_line(text: &str) -> String {
    escape(text, write_out)
}

/// Returns a text whose escaped form has about this many bytes at most. A peer or a file decides how long a text is.
pub(crate) fn shorten(text: &str, max_bytes: usize) -> Cow<'_, str> {
    let mut bytes = 0;
    for (at, c) in text.char_indices() {
        bytes += match c {
            '"' | '\\' => 2,
            // `\u{10ffff}`, or two units of UTF-16 in JSON.
            c if is_invisible(c) => 12,
            c => c.len_utf8(),
        };
        if bytes > max_bytes {
            let left = text.len() - at;
            return Cow::Owned(format!("{} … ({left} more bytes)", &text[..at]));
        }
    }
    Cow::Borrowed(text)
}

fn write_out(c: char, into: &mut String) {
    match c {
        '\n' => into.push_str("\\n"),
        '\t' => into.push_str("\\t"),
        '\r' => into.push_str("\\r"),
        c => into.extend(c.escape_unicode()),
    }
}

fn escape(text: &str, write_out: impl Fn(char, &mut String)) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut before = '\0';
    let mut rest = text;
    loop {
        // Most of a text is ASCII without control characters, which is copied as it is.
        let plain = rest.bytes().take_while(|byte| matches!(byte, b' '..=b'~')).count();
        let (copied, others) = rest.split_at(plain);
        escaped.push_str(copied);
        before = copied.chars().next_back().unwrap_or(before);
        let mut chars = others.chars();
        let Some(c) = chars.next() else { return escaped };
        if !is_invisible(c) || changes_glyph(before, c) {
            escaped.push(c);
            before = c;
        } else {
            write_out(c, &mut escaped);
            // It ends as ASCII, which is no glyph that the next character can change.
            before = '\0';
        }
        rest = chars.as_str();
    }
}

/// Whether a joiner or a variation selector can be a part of the glyph before it, as in emoji and in several scripts. After
/// ASCII letters it is only invisible; `1\u{fe0f}\u{20e3}` is a keycap.
fn changes_glyph(before: char, c: char) -> bool {
    match c {
        '\u{200C}' | '\u{200D}' => !before.is_ascii(),
        '\u{FE0E}' | '\u{FE0F}' => {
            !before.is_ascii() || before.is_ascii_digit() || matches!(before, '#' | '*')
        }
        _ => false,
    }
}

/// Maximum bytes of a log record: it can quote what a peer has sent.
const RECORD_BYTES: usize = 4 << 10;

/// Writes log records to stderr, one line each; see [`stderr`]. Line breaks in a record are escaped, and a long one is cut.
#[derive(Debug)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    /// Writes one record; `tracing_subscriber` passes each record as a whole.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let line = one_line(&shorten(text, RECORD_BYTES));
        stderr::write_lines(&line);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_are_escaped() {
        let cases = [
            ("\u{1b}]0;title\u{7}\u{1b}[2J", "\\u{1b}]0;title\\u{7}\\u{1b}[2J"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("two\nlines\tand\r\n", "two\\nlines\\tand\\r\\n"),
            ("a\u{202e}b\u{2066}c\u{61c}d\u{200f}e", "a\\u{202e}b\\u{2066}c\\u{61c}d\\u{200f}e"),
            (
                "rm\u{200d}\u{feff}\u{e0041}\u{fe0f}\u{e000}",
                "rm\\u{200d}\\u{feff}\\u{e0041}\\u{fe0f}\\u{e000}",
            ),
            ("1\u{fe0f}\u{20e3} a\u{fe0f}", "1\u{fe0f}\u{20e3} a\\u{fe0f}"),
            (
                "grüße 👩\u{200d}👧 ❤\u{fe0f} می\u{200c}خواهم",
                "grüße 👩\u{200d}👧 ❤\u{fe0f} می\u{200c}خواهم",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(one_line(text), expected);
            assert_eq!(one_line(expected), expected, "written out once");
        }
    }

    /// An error of a server that is not one was printed as a line of 50 MB.
    #[test]
    fn long_text_is_cut_by_its_escaped_length() {
        assert_eq!(shorten("short", 5), "short");
        assert_eq!(shorten("grüße", 5), "grü … (3 more bytes)");
        for text in ["x".repeat(1 << 20), "\u{1b}".repeat(1 << 20), "\"\u{e0041}👩".repeat(9_999)]
        {
            let cut = shorten(&text, 1_000);
            assert!(one_line(&cut).len() < 1_050, "{}", one_line(&cut).len());
            let json = serde_json::to_string(&cut).expect("it is text");
            assert!(Printable::json(&json).as_str().len() < 1_050);
        }
    }

    #[test]
    fn lines_stay_where_they_are_meant() {
        assert_eq!(Printable::from("a\n\tb\rc\u{1b}").as_str(), "a\n\tb\\rc\\u{1b}");
    }

    #[test]
    fn json_means_the_same() {
        let hostile = "\u{7f}\u{9b}\u{202e}\u{e0041}\u{1b}\n";
        let text = serde_json::to_string(hostile).expect("it is text");
        let printable = Printable::json(&text);
        assert_eq!(printable.as_str(), r#""\u007f\u009b\u202e\udb40\udc41\u001b\n""#);
        let read: String = serde_json::from_str(printable.as_str()).expect("it is JSON");
        assert_eq!(read, hostile);
    }
}
