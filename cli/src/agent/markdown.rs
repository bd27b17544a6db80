//! Markdown that arrives in pieces, styled for a terminal: headings, lists, quotes, code and emphasis. Every other
//! construct is shown as it is written. The beginning of a line, and marks such as `**`, are held back until their
//! meaning is certain, which takes at most a few characters or, for the line of a code fence, one line.

use crate::printable::Printable;

/// A text in progress.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    /// Characters whose meaning is not certain yet.
    held: String,
    /// Whether the line has begun, so that no prefix can follow.
    in_line: bool,
    /// Whether the text is within a code fence.
    in_fence: bool,
    /// The style of the line: that of a heading or a quote.
    line: Option<&'static str>,
    bold: bool,
    italic: bool,
    code: bool,
    /// The output of one call, in pieces that are printable.
    out: Output,
}

#[derive(Debug, Default)]
struct Output {
    done: String,
    plain: String,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const ITALIC: &str = "3";
const CODE: &str = "36";
/// The longest indentation that is held back.
const INDENT: usize = 16;

/// The meaning of the beginning of a line.
enum Prefix {
    Unknown,
    Fence,
    Heading,
    Bullet(usize),
    Quote,
    Text,
}

impl Markdown {
    /// The styled text as far as it is certain.
    pub(super) fn push(&mut self, text: &str) -> Printable {
        for c in text.chars() {
            self.push_char(c);
        }
        self.out.take()
    }

    /// The rest of the text. The next text begins without styles.
    pub(super) fn end(&mut self) -> Printable {
        self.release_all();
        let is_styled = !self.styles().is_empty();
        let mut out = std::mem::take(&mut self.out);
        if is_styled {
            out.set_style(&[]);
        }
        *self = Markdown::default();
        out.take()
    }

    fn push_char(&mut self, c: char) {
        if c == '\n' {
            return self.end_line();
        }
        if self.in_line {
            return self.push_inline(c);
        }
        self.held.push(c);
        match classify_prefix(&self.held, self.in_fence) {
            Prefix::Unknown | Prefix::Fence => {}
            Prefix::Heading => {
                self.held.clear();
                self.begin_line(Some(BOLD));
            }
            Prefix::Quote => {
                self.held.clear();
                self.begin_line(Some(DIM));
                self.out.plain.push_str("│ ");
            }
            Prefix::Bullet(indent) => {
                self.held.clear();
                self.begin_line(None);
                self.out.plain.push_str(&" ".repeat(indent));
                self.out.plain.push_str("• ");
            }
            Prefix::Text => self.release(),
        }
    }

    fn begin_line(&mut self, style: Option<&'static str>) {
        self.in_line = true;
        self.line = style;
        self.restyle();
    }

    /// Treats the held beginning of a line as text.
    fn release(&mut self) {
        if !self.in_line && !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            self.begin_line(None);
            held.chars().for_each(|c| self.push_inline(c));
        }
    }

    /// Treats everything that is held as text: nothing follows it on the line.
    fn release_all(&mut self) {
        self.release();
        let marks = std::mem::take(&mut self.held);
        self.apply_marks(&marks, None);
    }

    fn end_line(&mut self) {
        if !self.in_line && matches!(classify_prefix(&self.held, self.in_fence), Prefix::Fence) {
            let fence = std::mem::take(&mut self.held);
            self.in_fence = !self.in_fence;
            self.out.set_style(&[DIM]);
            self.out.plain.push_str(&fence);
            self.out.set_style(&[]);
        } else {
            self.release_all();
            let was_styled = !self.styles().is_empty();
            (self.line, self.bold, self.italic, self.code) = (None, false, false, false);
            if was_styled {
                self.out.set_style(&[]);
            }
        }
        self.out.plain.push('\n');
        self.in_line = false;
    }

    /// A character within a line. Runs of `*` and of backticks are held.
    fn push_inline(&mut self, c: char) {
        let is_mark = !self.in_fence && (c == '`' || (c == '*' && !self.code));
        if is_mark && self.held.chars().all(|held| held == c) {
            return self.held.push(c);
        }
        let held = std::mem::take(&mut self.held);
        self.apply_marks(&held, Some(c));
        if is_mark { self.held.push(c) } else { self.out.plain.push(c) }
    }

    /// A run of marks, and the character after it.
    fn apply_marks(&mut self, run: &str, next: Option<char>) {
        // A mark opens a style only if a text follows it: `2 * 3` is a product.
        let opens = next.is_some_and(|c| !c.is_whitespace());
        match run {
            "" => return,
            "`" if self.code || opens => self.code = !self.code,
            "**" if self.bold || opens => self.bold = !self.bold,
            "*" if self.italic || opens => self.italic = !self.italic,
            "***" if opens || (self.bold && self.italic) => {
                (self.bold, self.italic) = (!self.bold, !self.italic);
            }
            run => return self.out.plain.push_str(run),
        }
        self.restyle();
    }

    fn restyle(&mut self) {
        let styles = self.styles();
        self.out.set_style(&styles);
    }

    fn styles(&self) -> Vec<&'static str> {
        let styles = [
            self.line,
            self.bold.then_some(BOLD),
            self.italic.then_some(ITALIC),
            (self.code || (self.in_fence && self.in_line)).then_some(CODE),
        ];
        styles.into_iter().flatten().collect()
    }
}

impl Output {
    /// Changes the style of what follows.
    fn set_style(&mut self, styles: &[&str]) {
        self.flush();
        let codes: String = styles.iter().map(|style| format!(";{style}")).collect();
        let reset = format!("\x1b[0{codes}m");
        if !self.done.ends_with(&reset) {
            self.done.push_str(&reset);
        }
    }

    fn flush(&mut self) {
        self.done.push_str(Printable::from(std::mem::take(&mut self.plain)).as_str());
    }

    fn take(&mut self) -> Printable {
        self.flush();
        Printable::from_printable_parts(std::mem::take(&mut self.done))
    }
}

fn classify_prefix(line: &str, in_fence: bool) -> Prefix {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    if text.is_empty() {
        return if indent < INDENT { Prefix::Unknown } else { Prefix::Text };
    }
    if text.starts_with("```") {
        return Prefix::Fence;
    }
    if "```".starts_with(text) {
        return Prefix::Unknown;
    }
    let hashes = text.bytes().take_while(|byte| *byte == b'#').count();
    match text {
        _ if in_fence => Prefix::Text,
        "-" | "*" | "+" | ">" => Prefix::Unknown,
        "- " | "* " | "+ " => Prefix::Bullet(indent),
        "> " => Prefix::Quote,
        _ if (1..=6).contains(&hashes) && text.len() == hashes => Prefix::Unknown,
        _ if (1..=6).contains(&hashes) && &text[hashes..] == " " => Prefix::Heading,
        _ => Prefix::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with its styles in angle brackets, in one piece and character by character.
    fn check(text: &str, expected: &str) {
        let mut whole = Markdown::default();
        let at_once = format!("{}{}", whole.push(text), whole.end());
        let mut pieces = Markdown::default();
        let mut shown: String =
            text.chars().map(|c| pieces.push(&c.to_string()).to_string()).collect();
        shown += pieces.end().as_str();
        let readable = |text: &str| -> String {
            let mut out = text.replace("\x1b[0m", "<>").replace("\x1b[0", "<");
            for code in [";1", ";2", ";3", ";36"] {
                out = out.replace(&format!("{code}m"), &format!("{code}>"));
            }
            out
        };
        assert_eq!(readable(&at_once), expected, "{text:?}");
        assert_eq!(readable(&shown), expected, "{text:?} in pieces");
    }

    #[test]
    fn marks_become_styles() {
        check("plain text\nand more", "<>plain text\n<>and more");
        check("a **bold** word", "<>a <;1>bold<> word");
        check("a `let x = *y;` here", "<>a <;36>let x = *y;<> here");
        check("## Title\ntext", "<;1>Title<>\n<>text");
        check("- one\n  - two", "<>• one\n<>  • two");
        check("> quoted", "<;2>│ quoted<>");
        check("***both***", "<><;1;3>both<>");
    }

    #[test]
    fn text_that_is_not_markdown_stays() {
        check("2 * 3 ** 4", "<>2 * 3 ** 4");
        check("#hashtag -x", "<>#hashtag -x");
        check("a*", "<>a*");
        check("snake_case_name", "<>snake_case_name");
    }

    #[test]
    fn code_fences_keep_their_text() {
        check(
            "```rust\n# no **title**\n- x\n```\nend",
            "<;2>```rust<>\n<;36># no **title**<>\n<;36>- x<>\n<;2>```<>\n<>end",
        );
    }

    /// A style that is open at the end of a line or of the text ends there.
    #[test]
    fn a_style_never_outlives_its_line() {
        check("**open\nnext", "<><;1>open<>\n<>next");
        check("`open", "<><;36>open<>");
    }

    #[test]
    fn escape_sequences_of_the_model_are_escaped() {
        let mut markdown = Markdown::default();
        let shown = format!("{}{}", markdown.push("**\u{1b}[2J**\u{1b}]0;x\u{7}"), markdown.end());
        assert!(!shown.contains("\u{1b}[2J") && !shown.contains("\u{1b}]"), "{shown:?}");
    }
}
