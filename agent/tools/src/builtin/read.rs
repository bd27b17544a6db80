//! The tool `read_file`.

use abide_client::rows::Effect;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::list::{content, file_tool};
use super::touched::{Touch, touched};
use crate::function::Function;
use crate::outcome::ToolOutcome;
use abide_sandbox::{Sandbox, Workspace, WorkspaceError};

/// Maximum size of a file that the tool reads, in bytes.
pub(super) const FILE_BYTES: usize = 16 << 20;

/// Default number of lines.
const LINES: usize = 2_000;

/// Maximum size of the returned text, in bytes.
const TEXT_BYTES: usize = 256 << 10;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// The file, relative to the workspace.
    path: String,
    /// The first line to read, from 1. The default is 1.
    from_line: Option<usize>,
    /// The number of lines to read. The default is 2000.
    lines: Option<usize>,
}

pub(super) fn read_file(sandbox: &Sandbox) -> Function {
    let description = "Reads a text file of the workspace. Each line is prefixed with its \
                       number and a tab; the prefix is not a part of the file. Read a large \
                       file in ranges with from_line and lines.";
    file_tool(sandbox, "read_file", description, Effect::ReadOnly, run)
}

fn run(workspace: &Workspace, arguments: ReadFile) -> Result<ToolOutcome, WorkspaceError> {
    let path = workspace.relative(&arguments.path)?;
    let (file, real) = workspace.open_file(&path)?;
    let bytes = content(file, &real, FILE_BYTES)?;
    let files = json!([touched(&real, Touch::Read, Some(&bytes))]);
    if bytes.iter().take(8 << 10).any(|byte| *byte == 0) {
        let text = format!("{} is a binary file of {} bytes", real.display(), bytes.len());
        let content = json!({"files": files, "is_binary": true});
        return Ok(ToolOutcome { text, ..ToolOutcome::json(content) });
    }
    let all = String::from_utf8_lossy(&bytes);
    let total = all.lines().count();
    let from = arguments.from_line.unwrap_or(1).max(1);
    let max = arguments.lines.unwrap_or(LINES);
    if from > total.max(1) {
        let why = format!("{} has only {total} lines", real.display());
        return Err(WorkspaceError::new(why));
    }
    let mut text = String::new();
    let mut until = from - 1;
    for (at, line) in all.lines().enumerate().skip(from - 1).take(max) {
        let numbered = format!("{}\t{line}\n", at + 1);
        if text.len() + numbered.len() > TEXT_BYTES && !text.is_empty() {
            break;
        }
        let end = numbered.floor_char_boundary(TEXT_BYTES);
        text.push_str(&numbered[..end]);
        until = at + 1;
    }
    if total == 0 {
        text = "the file is empty".to_owned();
    } else if until < total {
        text.push_str(&format!(
            "[lines {from} to {until} of {total}: continue with from_line {}]",
            until + 1
        ));
    }
    let content = json!({"files": files, "from_line": from, "to_line": until, "lines": total});
    Ok(ToolOutcome { text: text.trim_end_matches('\n').to_owned(), ..ToolOutcome::json(content) })
}
