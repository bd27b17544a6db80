//! The kind of stdout: a terminal with its size, or a pipe.

use std::io::{self, IsTerminal as _};

use crate::printable::Printable;

/// The kind of stdout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Columns and rows of a terminal.
    pub(crate) size: Option<(u16, u16)>,
    /// Whether styles (bold, dim, colours) are used.
    pub(crate) styled: bool,
}

impl Terminal {
    /// Inspects stdout. A terminal can be resized, so inspect it again before each drawing.
    pub(crate) fn from_stdout() -> Terminal {
        if !io::stdout().is_terminal() {
            return Terminal { size: None, styled: false };
        }
        let size = rustix::termios::tcgetwinsize(io::stdout())
            .ok()
            .filter(|size| size.ws_col > 0 && size.ws_row > 0)
            .map_or((80, 24), |size| (size.ws_col, size.ws_row));
        // <https://no-color.org>
        let styled = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Terminal { size: Some(size), styled }
    }

    /// The columns of a terminal.
    pub(crate) fn columns(self) -> Option<u16> {
        self.size.map(|(columns, _)| columns)
    }

    /// The text, dimmed if styles are used.
    pub(crate) fn dim(self, text: impl Into<Printable>) -> Printable {
        self.with("2", text)
    }

    /// The text, bold if styles are used.
    pub(crate) fn bold(self, text: impl Into<Printable>) -> Printable {
        self.with("1", text)
    }

    /// The text in a colour of the terminal's palette (ANSI SGR number), if styles are used.
    pub(crate) fn with(self, style: &'static str, text: impl Into<Printable>) -> Printable {
        let text = text.into();
        if self.styled {
            Printable::from_printable_parts(format!("\x1b[{style}m{text}\x1b[0m"))
        } else {
            text
        }
    }
}
