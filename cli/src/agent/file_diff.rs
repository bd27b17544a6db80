//! The change of a file that a tool call requests, as a unified diff for people.

use serde_json::Value;

use crate::cells::pluralize;
use crate::printable::Printable;
use crate::terminal::Terminal;

/// How many lines are shown, and how much of each.
const LINES: usize = 60;
const COLUMNS: usize = 300;

/// Unchanged lines before and after a change.
const CONTEXT: usize = 3;

/// A change of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileDiff {
    pub(super) path: String,
    /// What the diff does not show.
    about: &'static str,
    lines: Vec<String>,
}

/// The names of the arguments of a tool that changes files.
struct FileTool {
    name: &'static str,
    path: &'static str,
    /// The text that is replaced; `None` if the whole file is.
    old: Option<&'static str>,
    new: &'static str,
}

/// The built-in tools, and those of Claude Code.
const TOOLS: [FileTool; 4] = [
    FileTool { name: "write_file", path: "path", old: None, new: "content" },
    FileTool { name: "edit_file", path: "path", old: Some("old"), new: "new" },
    FileTool { name: "Write", path: "file_path", old: None, new: "content" },
    FileTool { name: "Edit", path: "file_path", old: Some("old_string"), new: "new_string" },
];

impl FileDiff {
    /// The change that a call requests. `None` if its tool changes no files, or its arguments do not say how.
    pub(super) fn from_call(tool: &str, arguments: &Value) -> Option<FileDiff> {
        let tool = TOOLS.iter().find(|known| known.name == tool)?;
        let shown = [Some(tool.path), tool.old, Some(tool.new), Some("all"), Some("replace_all")];
        // The approver sees everything that runs. Another tool of this name may have other arguments.
        if !arguments.as_object()?.keys().all(|name| shown.contains(&Some(name.as_str()))) {
            return None;
        }
        let text = |name: &str| arguments[name].as_str();
        let path = text(tool.path)?.to_owned();
        let new = text(tool.new)?;
        let Some(old) = tool.old else {
            let lines = split_lines(new).map(|line| format!("+{line}")).collect();
            return Some(FileDiff { path, about: "the whole new content", lines });
        };
        let old = text(old)?;
        // The lines of both would be equal.
        let has_both = !old.is_empty() && !new.is_empty();
        if has_both && old.ends_with('\n') != new.ends_with('\n') {
            return None;
        }
        let replaces_all = ["all", "replace_all"].iter().any(|name| arguments[*name] == true);
        let about = if replaces_all { "at each occurrence" } else { "" };
        Some(FileDiff { path, about, lines: changed_lines(old, new) })
    }

    /// Whether [`FileDiff::render`] cuts nothing.
    pub(super) fn is_whole(&self) -> bool {
        self.lines.len() <= LINES && self.lines.iter().all(|line| line.chars().count() <= COLUMNS)
    }

    /// The diff with its header. Long lines and diffs are cut.
    pub(super) fn render(&self, terminal: Terminal) -> Printable {
        let FileDiff { path, about, lines } = self;
        let about = if about.is_empty() { String::new() } else { format!("  ({about})") };
        let mut shown = vec![
            terminal.bold(Printable::line(&format!("--- {path}"))),
            terminal.bold(Printable::line(&format!("+++ {path}{about}"))),
        ];
        for line in lines.iter().take(LINES) {
            let cut: String = line.chars().take(COLUMNS).collect();
            let more = if cut.len() < line.len() { " …" } else { "" };
            // Tabs indent.
            let text = Printable::from(format!("{cut}{more}"));
            shown.push(match line.as_bytes().first() {
                Some(b'+') => terminal.with("32", text),
                Some(b'-') => terminal.with("31", text),
                _ => text,
            });
        }
        if let Some(more @ 1..) = lines.len().checked_sub(LINES) {
            let more = format!("… {} more", pluralize(more as u64, "line"));
            shown.push(terminal.dim(Printable::line(&more)));
        }
        Printable::lines(&shown)
    }
}

/// Lines without the line feed at their end. A carriage return stays.
fn split_lines(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
    (!text.is_empty()).then_some(lines).into_iter().flatten()
}

/// The lines of a change: those that are equal at its begin and end are context.
fn changed_lines(old: &str, new: &str) -> Vec<String> {
    let old: Vec<&str> = split_lines(old).collect();
    let new: Vec<&str> = split_lines(new).collect();
    let before = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    // A line that belongs to the equal beginning does not belong to the equal end, too.
    let rest = old.len().min(new.len()) - before;
    let after =
        old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let old_end = old.len() - after;
    let new_end = new.len() - after;
    let mut lines = Vec::new();
    lines.extend(old[before.saturating_sub(CONTEXT)..before].iter().map(|line| format!(" {line}")));
    lines.extend(old[before..old_end].iter().map(|line| format!("-{line}")));
    lines.extend(new[before..new_end].iter().map(|line| format!("+{line}")));
    let context_end = old.len().min(old_end + CONTEXT);
    lines.extend(old[old_end..context_end].iter().map(|line| format!(" {line}")));
    lines
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    const PLAIN: Terminal = Terminal { size: None, styled: false };

    fn diff(tool: &str, arguments: &Value) -> String {
        FileDiff::from_call(tool, arguments)
            .map_or_else(|| "none".to_owned(), |diff| diff.render(PLAIN).as_str().to_owned())
    }

    /// The approver of a file change saw JSON with `\n` in one line, and could not review it.
    #[test]
    fn a_file_change_is_a_diff() {
        let old = "a\nb\nc\nd\nx\n\ty\ne\nf\ng\nh\n";
        let new = "a\nb\nc\nd\nX\ne\nf\ng\nh\n";
        let edit = json!({"path": "calc.py", "old": old, "new": new, "all": true});
        expect![[r#"
            --- calc.py
            +++ calc.py  (at each occurrence)
             b
             c
             d
            -x
            -	y
            +X
             e
             f
             g"#]]
        .assert_eq(&diff("edit_file", &edit));
        expect![[r#"
            --- a
            +++ a
            +more"#]]
        .assert_eq(&diff(
            "Edit",
            &json!({"file_path": "a", "old_string": "", "new_string": "more"}),
        ));
        assert_eq!(diff("execute", &json!({"command": "rm a"})), "none");
        assert_eq!(diff("edit_file", &json!({"path": "a", "old": 1, "new": "b"})), "none");
    }

    /// A file could move the cursor, and hide the lines before it.
    #[test]
    fn a_diff_is_escaped_and_limited() {
        let content =
            format!("\u{1b}[2Jhidden\rshown\n{}\n{}", "x".repeat(400), "line\n".repeat(70));
        let shown = diff("write_file", &json!({"path": "a\nb\u{1b}", "content": content}));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines[..3],
            [
                r"--- a\nb\u{1b}",
                r"+++ a\nb\u{1b}  (the whole new content)",
                r"+\u{1b}[2Jhidden\rshown"
            ]
        );
        assert_eq!((lines[3].chars().count(), lines[3].ends_with("x …")), (COLUMNS + 2, true));
        assert_eq!((lines.len(), lines[LINES + 2]), (LINES + 3, "… 12 lines more"));
    }
}
