//! The tool `grep`.

use abide_client::rows::Effect;
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::Look;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::find::pattern;
use super::list::{Walk, content, file_tool};
use super::touched::{Touch, touched};
use crate::function::Function;
use crate::outcome::ToolOutcome;
use abide_sandbox::{EntryKind, Sandbox, Workspace, WorkspaceError};

/// Maximum number of lines in an answer.
const LINES: usize = 500;

/// Maximum size of a searched file, in bytes.
const FILE_BYTES: usize = 4 << 20;

/// Maximum size of all searched files, in bytes.
const ALL_BYTES: usize = 256 << 20;

/// Maximum length of a shown line, in bytes.
const LINE_BYTES: usize = 400;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Grep {
    /// A regular expression (RE2 syntax: no lookaround, no backreferences).
    pattern: String,
    /// The file or folder to search, relative to the workspace. The default is the workspace itself.
    path: Option<String>,
    /// Search only files whose name, relative to path, matches this pattern, such as **/*.rs
    glob: Option<String>,
    /// Whether case does not matter. The default is false.
    ignore_case: Option<bool>,
    /// The number of lines to show before and after each match, at most 10. The default is 0.
    context: Option<usize>,
}

pub(super) fn grep(sandbox: &Sandbox) -> Function {
    let description = "Searches the text files of the workspace for a regular expression. Each \
                       result is path:line:text. The folders .git, node_modules and target are \
                       searched only if path names them.";
    file_tool(sandbox, "grep", description, Effect::ReadOnly, run)
}

fn run(workspace: &Workspace, arguments: Grep) -> Result<ToolOutcome, WorkspaceError> {
    let regex = RegexBuilder::new(&arguments.pattern)
        .case_insensitive(arguments.ignore_case == Some(true))
        .build()
        .map_err(|why| WorkspaceError::new(format!("the pattern is invalid: {why}")))?;
    let names = arguments.glob.as_deref().map(pattern).transpose()?;
    let around = arguments.context.unwrap_or(0).min(10);
    let in_files = in_files(&arguments);
    let mut search = Search { regex, in_files, around, ..Search::default() };
    let start = workspace.relative(arguments.path.as_deref().unwrap_or("."))?;
    if let Ok((file, real)) = workspace.open_file(&start) {
        search.file(&real.to_string_lossy(), &content(file, &real, FILE_BYTES)?);
    } else {
        let mut walk = Walk::start(workspace, &start)?;
        let (_, start) = workspace.open_folder(&start)?;
        for (path, kind) in walk.by_ref() {
            let name = path.to_string_lossy();
            let below = path.strip_prefix(&start).unwrap_or(&path).to_string_lossy();
            // Models also write the pattern relative to the workspace.
            let is_named =
                names.as_ref().is_none_or(|names| names.is_match(&below) || names.is_match(&name));
            if kind != EntryKind::File || !is_named {
                continue;
            }
            if search.is_full() {
                break;
            }
            // A file that disappeared, may not be read, or is too large, is not searched.
            let opened = workspace.open_file(&path);
            match opened.and_then(|(file, real)| content(file, &real, FILE_BYTES)) {
                Ok(bytes) => search.file(&name, &bytes),
                Err(_) => search.skipped += 1,
            }
        }
        search.is_cut |= walk.is_cut;
        search.skipped += walk.unreadable;
    }
    Ok(search.outcome(&arguments.pattern))
}

/// Returns the pattern over complete files: where it does not match, no line matches, and most files are searched in
/// one pass. `None` for patterns that could match a line and not the file.
fn in_files(arguments: &Grep) -> Option<Regex> {
    let ignores_case = arguments.ignore_case == Some(true);
    let mut parser = ParserBuilder::new();
    parser.case_insensitive(ignores_case).multi_line(true).utf8(false);
    let looks = parser.build().parse(&arguments.pattern).ok()?.properties().look_set();
    // They hold at the limits of the text, or depend on what follows a line.
    if [Look::Start, Look::End, Look::StartCRLF, Look::EndCRLF].iter().any(|it| looks.contains(*it))
    {
        return None;
    }
    let mut pattern = RegexBuilder::new(&arguments.pattern);
    pattern.case_insensitive(ignores_case).multi_line(true).build().ok()
}

struct Search {
    regex: Regex,
    /// See [`in_files`].
    in_files: Option<Regex>,
    around: usize,
    lines: Vec<String>,
    matches: usize,
    files: Vec<serde_json::Value>,
    bytes: usize,
    skipped: usize,
    is_cut: bool,
}

impl Default for Search {
    fn default() -> Search {
        Search {
            regex: Regex::new("").expect("the empty pattern is valid"),
            in_files: None,
            around: 0,
            lines: Vec::new(),
            matches: 0,
            files: Vec::new(),
            bytes: 0,
            skipped: 0,
            is_cut: false,
        }
    }
}

impl Search {
    fn is_full(&mut self) -> bool {
        let is_full = self.lines.len() >= LINES || self.bytes >= ALL_BYTES;
        self.is_cut |= is_full;
        is_full
    }

    /// Returns `true` if a line of a file can match.
    fn is_in(&self, bytes: &[u8]) -> bool {
        self.in_files.as_ref().is_none_or(|pattern| pattern.is_match(bytes))
    }

    fn file(&mut self, name: &str, bytes: &[u8]) {
        self.bytes += bytes.len();
        let is_binary = bytes[..bytes.len().min(8 << 10)].contains(&0);
        if is_binary || !self.is_in(bytes) {
            return;
        }
        let all: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let matching: Vec<usize> =
            (0..all.len()).filter(|at| self.regex.is_match(all[*at])).collect();
        if matching.is_empty() {
            return;
        }
        self.files.push(touched(name.as_ref(), Touch::Read, Some(bytes)));
        let mut shown_until = 0;
        for &at in &matching {
            if self.is_full() {
                return;
            }
            self.matches += 1;
            let from = at.saturating_sub(self.around).max(shown_until);
            let until = (at + self.around + 1).min(all.len());
            for (line, text) in all.iter().enumerate().take(until).skip(from) {
                let mark = if matching.binary_search(&line).is_ok() { ':' } else { '-' };
                let text = String::from_utf8_lossy(text);
                let text = &text[..text.floor_char_boundary(LINE_BYTES)];
                self.lines.push(format!("{name}{mark}{}{mark}{text}", line + 1));
            }
            shown_until = until.max(shown_until);
        }
    }

    fn outcome(self, pattern: &str) -> ToolOutcome {
        let mut text = if self.lines.is_empty() {
            format!("no line matches {pattern}")
        } else {
            self.lines.join("\n")
        };
        if self.is_cut {
            text.push_str("\n[not complete: use a narrower pattern, path or glob]");
        }
        if self.skipped > 0 {
            text.push_str(&format!(
                "\n[{} files or folders are too large, or cannot be read: they were not searched]",
                self.skipped
            ));
        }
        let content = json!({"matches": self.matches, "files": self.files,
            "is_complete": !self.is_cut && self.skipped == 0});
        ToolOutcome { text, ..ToolOutcome::json(content) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One pass is possible unless the pattern depends on the limits of a text.
    #[test]
    fn most_patterns_search_files_in_one_pass() {
        let is_possible = |pattern: &str| {
            let pattern = pattern.to_owned();
            let path = None;
            let glob = None;
            let ignore_case = None;
            let context = None;
            in_files(&Grep { pattern, path, glob, ignore_case, context }).is_some()
        };
        for pattern in ["fn main", "^use ", r"\bid\b.*;$", "(?i)todo", "(?s)a.b", "a|b"] {
            assert!(is_possible(pattern), "{pattern}");
        }
        for pattern in [r"\Ause", r"end\z", "(?-m)^use", "(?R)end$"] {
            assert!(!is_possible(pattern), "{pattern}");
        }
    }

    proptest! {
        /// A file that is left out has no line that matches.
        #[test]
        fn the_search_of_a_file_leaves_out_no_line(
            parts in proptest::collection::vec(
                prop::sample::select(vec![
                    "a", "B", ".", "^", "$", r"\b", r"\B", r"\s", "[^a]", "(", ")", "|", "*", "?", r"\A", r"\z", "(?-m)", "(?i)", "(?R)", "(?s)",
                    r"\r", r"\W", "a{2}",
                ]),
                1..6,
            ),
            text in "[abB \\r\\n]{0,12}",
            ignore_case in any::<Option<bool>>(),
        ) {
            let pattern = parts.concat();
            let lines =
                RegexBuilder::new(&pattern).case_insensitive(ignore_case == Some(true)).build();
            prop_assume!(lines.is_ok());
            let lines = lines.expect("it is valid");
            let arguments = Grep { pattern, path: None, glob: None, ignore_case, context: None };
            let search = Search { in_files: in_files(&arguments), ..Search::default() };
            let text = text.as_bytes();
            if text.split(|byte| *byte == b'\n').any(|line| lines.is_match(line)) {
                prop_assert!(search.is_in(text));
            }
        }
    }
}
