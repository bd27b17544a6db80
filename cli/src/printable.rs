//! Text that is safe to write to a terminal. Stored text can contain escape sequences, or characters that hide or
//! reorder the text around them; [`Printable`] escapes them, for example as `\u{1b}`. All output of this program
//! goes through it.

use std::fmt;
use std::io::{self, Write};
use std::ops::Add;

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
    pub(crate) fn of_printable_parts(text: String) -> Printable {
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
    for c in text.chars() {
        // Joiners are part of emoji and of several scripts. Between ASCII letters they are invisible.
        let joins = matches!(c, '\u{200C}' | '\u{200D}') && !before.is_ascii();
        if joins || !is_unsafe(c) {
            escaped.push(c);
        } else {
            write_out(c, &mut escaped);
        }
        before = c;
    }
    escaped
}

/// Control characters (C0, DEL, C1), and invisible characters that hide, reorder or smuggle text: those of the
/// Unicode category Cf that no script needs, line and paragraph separators, fillers, and most variation selectors.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}'
            | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{3164}' | '\u{FE00}'..='\u{FE0D}'
            | '\u{FEFF}' | '\u{FFA0}'
            | '\u{FFF0}'..='\u{FFFB}' | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}')
}

/// Writes log records to stderr, one line each. Line breaks in a record are escaped.
#[derive(Debug)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    /// Writes one record; `tracing_subscriber` passes each record as a whole.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let line = one_line(text.strip_suffix('\n').unwrap_or(&text));
        writeln!(io::stderr().lock(), "{line}")?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
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
            ("rm\u{200d}\u{feff}\u{e0041}", "rm\\u{200d}\\u{feff}\\u{e0041}"),
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
