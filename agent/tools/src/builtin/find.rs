//! The tool `glob`, and the patterns of file names.

use abide_client::rows::Effect;
use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::list::{Walk, file_tool};
use crate::function::Function;
use crate::outcome::ToolOutcome;
use abide_sandbox::{EntryKind, Sandbox, Workspace, WorkspaceError};

/// Maximum number of files in an answer.
const FOUND: usize = 1_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Glob {
    /// The pattern, relative to path: * matches within a name, ** any folders, ? one character, {a,b} alternatives.
    /// For example src/**/*.rs
    pattern: String,
    /// The folder to search, relative to the workspace. The default is the workspace itself.
    path: Option<String>,
}

pub(super) fn glob(sandbox: &Sandbox) -> Function {
    let description = "Finds files of the workspace by name. The folders .git, node_modules and \
                       target are searched only if path names them.";
    file_tool(sandbox, "glob", description, Effect::ReadOnly, run)
}

fn run(workspace: &Workspace, arguments: Glob) -> Result<ToolOutcome, WorkspaceError> {
    let pattern = pattern(&arguments.pattern)?;
    let start = workspace.relative(arguments.path.as_deref().unwrap_or("."))?;
    let (_, start) = workspace.open_folder(&start)?;
    let below = if start.as_os_str().is_empty() { ".".into() } else { start.clone() };
    let mut walk = Walk::start(workspace, &below)?;
    let mut found = Vec::new();
    for (path, kind) in walk.by_ref() {
        let name = path.strip_prefix(&start).unwrap_or(&path).to_string_lossy();
        if kind != EntryKind::Other && pattern.is_match(&name) {
            if found.len() >= FOUND {
                walk.is_cut = true;
                break;
            }
            found.push(path.to_string_lossy().into_owned());
        }
    }
    found.sort();
    let mut text = if found.is_empty() {
        format!("no file matches {}", arguments.pattern)
    } else {
        found.join("\n")
    };
    if walk.is_cut {
        text.push_str("\n[not complete: use a narrower pattern or path]");
    }
    if walk.unreadable > 0 {
        text.push_str(&format!("\n[{} folders cannot be read]", walk.unreadable));
    }
    let is_complete = !walk.is_cut && walk.unreadable == 0;
    let content = json!({"paths": found, "is_complete": is_complete});
    Ok(ToolOutcome { text, ..ToolOutcome::json(content) })
}

/// Returns the regular expression of a pattern; matching is linear in the length of the name.
pub(super) fn pattern(glob: &str) -> Result<Regex, WorkspaceError> {
    let mut text = String::from("^(?s:");
    let mut chars = glob.strip_prefix("./").unwrap_or(glob).chars().peekable();
    let mut depth = 0_u32;
    while let Some(c) = chars.next() {
        match c {
            '*' if chars.peek() == Some(&'*') => {
                chars.next();
                // `**/` also matches no folder.
                match chars.peek() {
                    Some('/') => {
                        chars.next();
                        text.push_str("(?:.*/)?");
                    }
                    _ => text.push_str(".*"),
                }
            }
            '*' => text.push_str("[^/]*"),
            '?' => text.push_str("[^/]"),
            '{' => {
                depth += 1;
                text.push_str("(?:");
            }
            '}' if depth > 0 => {
                depth -= 1;
                text.push(')');
            }
            ',' if depth > 0 => text.push('|'),
            c => text.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    if depth > 0 {
        return Err(WorkspaceError::new(format!("the pattern {glob:?} has an open {{")));
    }
    text.push_str(")$");
    Regex::new(&text).map_err(|_| WorkspaceError::new(format!("the pattern {glob:?} is too long")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (glob, matching, other) in [
            ("*.rs", "main.rs", "src/main.rs"),
            ("**/*.rs", "src/a/main.rs", "src/main.py"),
            ("**/*.rs", "main.rs", "main.rsx"),
            ("src/**", "src/a/b", "source/a"),
            ("a?c", "abc", "a/c"),
            ("*.{ts,tsx}", "x.tsx", "x.js"),
            ("[a].(b)", "[a].(b)", "a.b"),
        ] {
            let pattern = pattern(glob).expect("the pattern is valid");
            assert!(pattern.is_match(matching), "{glob} {matching}");
            assert!(!pattern.is_match(other), "{glob} {other}");
        }
        assert!(pattern("{a").is_err());
        assert!(pattern(&"{a,".repeat(100_000)).is_err());
    }
}
