//! Lines of a terminal. A text that is pasted is one block, and a line that the terminal has cut is noticed.
//!
//! The terminal marks a pasted text if it is asked to (bracketed paste, xterm's mode 2004), and repeats the marks on the
//! screen: as text, unless control characters are not shown (ECHOCTL of termios).

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::printable::Printable;

/// What a terminal sends before and after a pasted text.
const BEGIN: &[u8] = b"\x1b[200~";
const END: &[u8] = b"\x1b[201~";

/// A terminal keeps so many bytes of a line, and drops the rest without a sign (`N_TTY_BUF_SIZE` of Linux, less one for the
/// end of the line).
pub(super) const LINE_BYTES: usize = 4095;

/// A line or a pasted text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    Whole(Vec<u8>),
    /// The terminal has dropped a part of it.
    Cut,
}

/// Joins the lines of pasted texts.
#[derive(Debug, Default)]
pub(super) struct PastedLines {
    /// The text up to here, inside of a pasted text.
    open: Option<Vec<u8>>,
    is_cut: bool,
}

impl PastedLines {
    /// Adds a line with its end; returns the block that it completes.
    pub(super) fn add(&mut self, line: &[u8]) -> Option<Block> {
        self.is_cut |= line.len() > LINE_BYTES;
        let mut is_open = self.open.is_some();
        let mut block = self.open.take().unwrap_or_default();
        let mut rest = line;
        loop {
            let mark = if is_open { END } else { BEGIN };
            let Some(at) = rest.windows(mark.len()).position(|part| part == mark) else { break };
            block.extend(&rest[..at]);
            rest = &rest[at + mark.len()..];
            is_open = !is_open;
        }
        block.extend(rest);
        if is_open {
            self.open = Some(block);
            return None;
        }
        Some(self.finish_block(block))
    }

    /// The rest, at the end of the input.
    pub(super) fn finish(&mut self) -> Option<Block> {
        self.open.take().map(|block| self.finish_block(block))
    }

    /// The bytes of the block that is not complete.
    pub(super) fn bytes(&self) -> usize {
        self.open.as_ref().map_or(0, Vec::len)
    }

    fn finish_block(&mut self, block: Vec<u8>) -> Block {
        if std::mem::take(&mut self.is_cut) { Block::Cut } else { Block::Whole(block) }
    }
}

/// The terminal marks pasted texts until this is dropped.
pub(super) struct PasteMarks {
    /// Whether control characters were shown before.
    showed_controls: bool,
}

impl PasteMarks {
    /// `None` where no terminal can be asked.
    pub(super) fn enable() -> Option<PasteMarks> {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return None;
        }
        let showed_controls = show_controls(false).ok()?;
        send_control("\x1b[?2004h");
        Some(PasteMarks { showed_controls })
    }
}

impl Drop for PasteMarks {
    fn drop(&mut self) {
        send_control("\x1b[?2004l");
        if self.showed_controls {
            let _ = show_controls(true);
        }
    }
}

/// Sends a control sequence. The terminal may be gone.
fn send_control(sequence: &str) {
    let mut out = io::stderr().lock();
    let sequence = Printable::from_printable_parts(sequence.to_owned());
    let _ = write!(out, "{sequence}").and_then(|()| out.flush());
}

/// Sets whether the terminal shows control characters as text. Returns whether it did.
fn show_controls(shows: bool) -> io::Result<bool> {
    let mut modes = tcgetattr(io::stdin())?;
    let before = modes.local_modes.contains(LocalModes::ECHOCTL);
    modes.local_modes.set(LocalModes::ECHOCTL, shows);
    tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(lines: &[&str]) -> Vec<String> {
        let mut pasted = PastedLines::default();
        let mut found: Vec<Block> =
            lines.iter().filter_map(|line| pasted.add(line.as_bytes())).collect();
        found.extend(pasted.finish());
        let shown = found.into_iter().map(|block| match block {
            Block::Whole(text) => String::from_utf8(text).expect("it is text"),
            Block::Cut => "cut".to_owned(),
        });
        shown.collect()
    }

    /// Each line of a pasted text was a message.
    #[test]
    fn a_pasted_text_is_one_block() {
        let begin = "\x1b[200~";
        let end = "\x1b[201~";
        let paste = |text: &str| format!("{begin}{text}");
        assert_eq!(blocks(&["one\n", "two\n"]), ["one\n", "two\n"]);
        assert_eq!(
            blocks(&[&paste("a\n"), "b\n", &format!("c{end} d\n"), "e\n"]),
            ["a\nb\nc d\n", "e\n"]
        );
        assert_eq!(
            blocks(&[&format!("see {begin}x{end} and {begin}y\n"), &format!("{end}\n")]),
            ["see x and y\n\n"]
        );
        assert_eq!(blocks(&[&paste("\n"), "b\n", &format!("{end}\n")]), ["\nb\n\n"]);
        assert_eq!(blocks(&[&paste("a\n"), "b\n"]), ["a\nb\n"]);
    }

    /// A longer line was cut without a word.
    #[test]
    fn a_line_that_the_terminal_has_cut_is_noticed() {
        let line = |bytes: usize| format!("{}\n", "x".repeat(bytes));
        assert_eq!(blocks(&[&line(4094)]), [line(4094)]);
        assert_eq!(blocks(&[&line(4095), "y\n"]), ["cut", "y\n"]);
        let pasted = format!("\x1b[200~{}", line(4089));
        assert_eq!(blocks(&[&pasted, "b\x1b[201~\n", "y\n"]), ["cut", "y\n"]);
    }
}
