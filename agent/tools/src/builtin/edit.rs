//! The tools `write_file` and `edit_file`. A file is replaced completely or not at all.

use abide_client::rows::Effect;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::list::{content, file_tool};
use super::read::FILE_BYTES;
use super::touched::{Touch, touched};
use crate::function::Function;
use crate::outcome::ToolOutcome;
use abide_sandbox::{Sandbox, Workspace, WorkspaceError};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// The file, relative to the workspace. Missing folders are created.
    path: String,
    /// The complete content of the file.
    content: String,
}

pub(super) fn write_file(sandbox: &Sandbox) -> Function {
    let description = "Creates a file of the workspace, or replaces its whole content. Use \
                       edit_file to change a part of a file.";
    file_tool(sandbox, "write_file", description, Effect::Idempotent, write)
}

fn write(workspace: &Workspace, arguments: WriteFile) -> Result<ToolOutcome, WorkspaceError> {
    let path = workspace.relative(&arguments.path)?;
    let bytes = arguments.content.as_bytes();
    let (real, existed) = workspace.write(&path, bytes)?;
    let touch = if existed { Touch::Modified } else { Touch::Created };
    let verb = if existed { "replaced" } else { "created" };
    let text = format!("{verb} {} ({} bytes)", real.display(), bytes.len());
    let content = json!({"files": [touched(&real, touch, Some(bytes))]});
    Ok(ToolOutcome { text, ..ToolOutcome::json(content) })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    /// The file, relative to the workspace.
    path: String,
    /// The text to replace, exactly as it is in the file, with all spaces and line breaks. It must occur once, or
    /// set all.
    old: String,
    /// The text to write in its place.
    new: String,
    /// Whether to replace every occurrence. The default is false.
    all: Option<bool>,
}

pub(super) fn edit_file(sandbox: &Sandbox) -> Function {
    let description = "Replaces an exact text in a file of the workspace. Read the file first. \
                       If the text occurs more than once, include more of the lines around it, \
                       or set all.";
    file_tool(sandbox, "edit_file", description, Effect::AtMostOnce, edit)
}

fn edit(workspace: &Workspace, arguments: EditFile) -> Result<ToolOutcome, WorkspaceError> {
    let EditFile { path, old, new, all } = arguments;
    let path = workspace.relative(&path)?;
    let (file, real) = workspace.open_file(&path)?;
    let bytes = content(file, &real, FILE_BYTES)?;
    let shown = real.display();
    let text = String::from_utf8(bytes)
        .map_err(|_| WorkspaceError::new(format!("{shown} is not a text file in UTF-8")))?;
    if old.is_empty() {
        return Err(WorkspaceError::new("old is empty: use write_file for a new file"));
    }
    if old == new {
        return Err(WorkspaceError::new("old and new are the same text"));
    }
    let places = occurrences(&text, &old);
    let edited = match places.len() {
        0 => return Err(WorkspaceError::new(not_found(&shown.to_string(), &text, &old))),
        1 => text.replacen(&old, &new, 1),
        _ if all == Some(true) => text.replace(&old, &new),
        count => {
            let lines = places.iter().take(10).map(|at| line_at(&text, *at).to_string());
            let lines = lines.collect::<Vec<_>>().join(", ");
            let why = format!(
                "the text occurs {count} times in {shown}, at lines {lines}: include more of the lines around it, \
                 or set all"
            );
            return Err(WorkspaceError::new(why));
        }
    };
    if edited.len() > FILE_BYTES {
        return Err(WorkspaceError::new(format!(
            "{shown} would have more than {FILE_BYTES} bytes"
        )));
    }
    let (real, _) = workspace.write(&real, edited.as_bytes())?;
    let replaced = if all == Some(true) { places.len() } else { 1 };
    let line = line_at(&text, places[0]);
    let text =
        format!("edited {}: {replaced} replacement(s), the first at line {line}", real.display());
    let content = json!({"files": [touched(&real, Touch::Modified, Some(edited.as_bytes()))],
        "replacements": replaced, "line": line});
    Ok(ToolOutcome { text, ..ToolOutcome::json(content) })
}

/// Where a text occurs, even if occurrences overlap: then a replacement would be ambiguous.
fn occurrences(text: &str, part: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(part) {
        found.push(from + at);
        // Not after the whole occurrence, so that overlapping ones are found.
        let step = text[from + at..].chars().next().map_or(1, char::len_utf8);
        from += at + step;
    }
    found
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Why a text is not found, with the nearest cause that is known.
fn not_found(path: &str, text: &str, old: &str) -> String {
    let first = old.lines().find(|line| !line.trim().is_empty()).unwrap_or(old).trim();
    if text.contains("\r\n") && text.replace("\r\n", "\n").contains(old) {
        return format!("the text is not in {path}: its lines end with \\r\\n");
    }
    if collapse_spaces(text).contains(&collapse_spaces(old)) {
        return format!(
            "the text is not in {path} exactly: spaces or line breaks differ; read the file and copy it"
        );
    }
    let near = text.lines().position(|line| line.contains(first)).filter(|_| !first.is_empty());
    match near {
        Some(at) => format!(
            "the text is not in {path}; its first line occurs at line {}, but other lines differ",
            at + 1
        ),
        None => format!("the text is not in {path}: read the file and copy the text from it"),
    }
}

fn collapse_spaces(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
