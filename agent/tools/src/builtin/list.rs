//! The tool `ls`, and what all file tools share.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use abide_client::rows::Effect;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::function::Function;
use crate::outcome::{Failure, ToolOutcome};
use crate::tool::{Invocation, ToolDeclaration};
use abide_sandbox::{EntryKind, Sandbox, Workspace, WorkspaceError};

/// Maximum number of entries that `ls` shows.
const ENTRIES: usize = 1_000;

/// The work of a file tool.
type FileWork = dyn FnOnce() -> Result<ToolOutcome, WorkspaceError> + Send;

/// Returns a file tool: its function runs on a thread that may block.
pub(super) fn file_tool<A>(
    sandbox: &Sandbox,
    name: &'static str,
    description: &str,
    effect: Effect,
    function: fn(&Workspace, A) -> Result<ToolOutcome, WorkspaceError>,
) -> Function
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
{
    let parameters = schemars::schema_for!(A).to_value();
    let declaration =
        ToolDeclaration { effect, ..ToolDeclaration::new(name, description, parameters) };
    let sandbox = sandbox.clone();
    Function::untyped(declaration, move |invocation: Invocation| {
        let sandbox = sandbox.clone();
        async move {
            let Invocation { arguments, context, .. } = invocation;
            // Boxed, so that the code of the task exists once and not for each tool.
            let work: Box<FileWork> = Box::new(move || {
                let arguments = serde_json::from_value::<A>(arguments)
                    .map_err(|why| WorkspaceError::new(format!("invalid arguments: {why}")))?;
                function(&sandbox.open_workspace(&context.scope)?, arguments)
            });
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(why)) => ToolOutcome::failed(Failure::Tool, format!("{name}: {why}")),
                Err(_) => ToolOutcome::failed(Failure::Panicked, format!("{name} panicked")),
            }
        }
    })
}

/// Returns the content of a file up to a size.
pub(super) fn content(file: File, path: &Path, max: usize) -> Result<Vec<u8>, WorkspaceError> {
    let mut bytes = Vec::new();
    let most_read = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let read = file.take(most_read).read_to_end(&mut bytes);
    read.map_err(|why| WorkspaceError::io(&path.display().to_string(), &why))?;
    if bytes.len() > max {
        let why = format!("{} has more than {max} bytes", path.display());
        return Err(WorkspaceError::new(why));
    }
    Ok(bytes)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ls {
    /// The folder, relative to the workspace. The default is the workspace itself.
    path: Option<String>,
}

pub(super) fn ls(sandbox: &Sandbox) -> Function {
    let description = "Lists a folder of the workspace: one name per line, folders end with /, \
                       symbolic links with @. Use glob to find files in subfolders.";
    file_tool(sandbox, "ls", description, Effect::ReadOnly, run)
}

fn run(workspace: &Workspace, arguments: Ls) -> Result<ToolOutcome, WorkspaceError> {
    let path = workspace.relative(arguments.path.as_deref().unwrap_or("."))?;
    let (folder, real) = workspace.open_folder(&path)?;
    let mut entries = workspace.entries(&folder, &real, ENTRIES + 1)?;
    let is_cut = entries.len() > ENTRIES;
    entries.truncate(ENTRIES);
    let lines: Vec<String> = entries
        .iter()
        .map(|entry| {
            let mark = match entry.kind {
                EntryKind::Folder => "/",
                EntryKind::Link => "@",
                EntryKind::File => "",
                EntryKind::Other => "?",
            };
            format!("{}{mark}", entry.name.to_string_lossy())
        })
        .collect();
    let mut text =
        if lines.is_empty() { "the folder is empty".to_owned() } else { lines.join("\n") };
    if is_cut {
        text.push_str(&format!("\n[more than {ENTRIES} entries: use glob with a pattern]"));
    }
    let content = json!({"path": path_text(&real), "entries": lines, "is_complete": !is_cut});
    Ok(ToolOutcome { text, ..ToolOutcome::json(content) })
}

/// Returns a path below the root as text; the root is `.`.
pub(super) fn path_text(path: &Path) -> String {
    if path.as_os_str().is_empty() { ".".to_owned() } else { path.to_string_lossy().into_owned() }
}

/// A folder to walk through: an open one and its path.
pub(super) struct Walk<'a> {
    workspace: &'a Workspace,
    open: Vec<(std::os::fd::OwnedFd, PathBuf)>,
    /// Files that are still to be returned.
    files: Vec<(PathBuf, EntryKind)>,
    entries: usize,
    /// Whether a limit ended the walk.
    pub(super) is_cut: bool,
    /// Folders that could not be read.
    pub(super) unreadable: usize,
}

/// Maximum number of entries that a walk looks at.
const WALKED: usize = 100_000;

/// Maximum depth of folders, and number of folders that are open at a time.
const DEPTH: usize = 64;

/// Folders that a walk enters only if it begins in them: they have many files that are not the project's own.
const SKIPPED: [&str; 3] = [".git", "node_modules", "target"];

impl<'a> Walk<'a> {
    pub(super) fn start(workspace: &'a Workspace, path: &Path) -> Result<Walk<'a>, WorkspaceError> {
        let start = workspace.open_folder(path)?;
        let files = Vec::new();
        let entries = 0;
        let is_cut = false;
        let unreadable = 0;
        Ok(Walk { workspace, open: vec![start], files, entries, is_cut, unreadable })
    }

    /// Reads the next folder: its files are returned next, and its folders are opened later.
    fn read_folder(&mut self) -> Option<()> {
        let (folder, path) = self.open.pop()?;
        let left = WALKED.saturating_sub(self.entries);
        let Ok(entries) = self.workspace.entries(&folder, &path, left) else {
            self.unreadable += 1;
            return Some(());
        };
        self.entries += entries.len();
        self.is_cut |= entries.len() >= left;
        for entry in entries.into_iter().rev() {
            let below = path.join(&entry.name);
            match entry.kind {
                EntryKind::Folder => {
                    let is_skipped = SKIPPED.iter().any(|skipped| entry.name == *skipped);
                    let is_deep = below.components().count() > DEPTH || self.open.len() > 512;
                    self.is_cut |= is_deep;
                    if !is_skipped && !is_deep {
                        match self.workspace.open_child(&folder, &below) {
                            Some(child) => self.open.push((child, below)),
                            None => self.unreadable += 1,
                        }
                    }
                }
                kind => self.files.push((below, kind)),
            }
        }
        Some(())
    }
}

impl Iterator for Walk<'_> {
    type Item = (PathBuf, EntryKind);

    fn next(&mut self) -> Option<(PathBuf, EntryKind)> {
        while self.files.is_empty() {
            self.read_folder()?;
        }
        self.files.pop()
    }
}
