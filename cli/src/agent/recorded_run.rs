//! `abide agent record` and `test`: recordings of runs, repeated offline with the current definitions.

use std::fs;
use std::path::{Path, PathBuf};

use abide_agent::{AgentProject, Catalog, RecordedRun, RecordingError, RunChange};
use abide_client::Abide;
use abide_schema::{Code, Refusal};
use clap::Args;
use serde_json::json;

use super::host::{open_offline, prompt_store};
use crate::cells::pluralize;
use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line, print_part};
use crate::printable::{Printable, one_line};

/// Arguments of `abide agent record`.
#[derive(Args, Debug)]
pub(super) struct Record {
    /// The id of the run, which has ended
    run: String,

    /// The name of the recording; the id of the run if omitted
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Arguments of `abide agent test`.
#[derive(Args, Debug)]
pub(super) struct Test {
    /// A folder of recordings (*.jsonl), or one file
    recordings: PathBuf,

    /// Only recordings whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Write the new behaviour into the recordings that have changed
    #[arg(long)]
    accept: bool,
}

/// Writes a recording to stdout.
///
/// # Errors
/// The run does not exist or has not ended.
pub(super) async fn record(options: &Options, args: Record) -> Result<(), Failure> {
    let abide = connect(options, Access::Read).await?;
    let name = args.name.as_deref().unwrap_or(&args.run);
    let recorded = RecordedRun::record(&abide, &args.run, name).await;
    abide.close().await;
    for line in recorded.map_err(recording_failure)?.to_text().lines() {
        print_line(Printable::json(line))?;
    }
    Ok(())
}

/// Repeats recordings, and shows what has changed.
///
/// # Errors
/// A recording has changed, or cannot be read.
pub(super) async fn test(options: &Options, folder: &Path, args: Test) -> Result<(), Failure> {
    let project = open_offline(options, folder).await?;
    let stored = prompt_store(options, &project.catalog).await?;
    let mut counts = Counts::default();
    for path in list_recordings(&args.recordings)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let (changes, now) = match repeat(folder, &project, stored.as_ref(), &path).await {
            Ok(repeated) => repeated,
            Err(why) => {
                counts.failed += 1;
                print_failure(options, &name, &why)?;
                continue;
            }
        };
        let is_same = changes.iter().all(|change| change.kind.is_note());
        print_changes(options, &name, &changes, args.accept)?;
        if is_same {
            counts.same += 1;
        } else {
            counts.changed += 1;
        }
        if args.accept && !changes.is_empty() {
            fs::write(&path, now.to_text()).map_err(|why| {
                Failure::system(&format!("{} cannot be written", path.display()), &why)
            })?;
        }
    }
    print_summary(options, &args, counts)
}

/// How many recordings were repeated, by the result.
#[derive(Default)]
struct Counts {
    same: u64,
    changed: u64,
    failed: u64,
}

async fn repeat(
    folder: &Path,
    project: &AgentProject,
    stored: Option<&Abide>,
    path: &Path,
) -> Result<(Vec<RunChange>, RecordedRun), RecordingError> {
    let recorded = RecordedRun::from_file(path)?;
    let empty = tempfile::tempdir().map_err(|why| RecordingError::Malformed(why.to_string()))?;
    let catalog = |tools| match stored {
        Some(abide) => {
            Catalog::new(folder, tools).deployment_of(&project.catalog).prompts_of(abide)
        }
        None => Catalog::new(folder, tools).deployment_of(&project.catalog),
    };
    let abide = Abide::open(empty.path().join("repeated.db"))?;
    let repeated = recorded.repeat(&project.tools, catalog, &abide, empty.path()).await;
    abide.close().await;
    let now = repeated?;
    Ok((recorded.changes(&now), now))
}

/// The recordings, in the order of their names.
fn list_recordings(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let hint = "`abide agent record RUN > FOLDER/NAME.jsonl` makes a recording";
    if folder.is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = fs::read_dir(folder).map_err(|why| {
        let detail = format!("{} cannot be read: {why}", folder.display());
        Refusal::new(Code::NotFound, detail).hint(hint)
    })?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "jsonl") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        let detail = format!("{} has no recordings", folder.display());
        return Err(Refusal::new(Code::NotFound, detail).hint(hint).into());
    }
    paths.sort();
    Ok(paths)
}

fn print_changes(
    options: &Options,
    name: &str,
    changes: &[RunChange],
    accepted: bool,
) -> Result<(), Failure> {
    let is_same = changes.iter().all(|change| change.kind.is_note());
    if options.json {
        let changes: Vec<_> = changes
            .iter()
            .map(|it| {
                json!({"kind": it.kind.as_str(), "position": it.position, "before": it.before,
                "after": it.after, "note": it.kind.is_note()})
            })
            .collect();
        return print_json(&json!({"recording": name, "same": is_same, "changes": changes}));
    }
    let status = match (is_same, accepted) {
        (true, _) => "ok      ",
        (false, true) => "accepted",
        (false, false) => "changed ",
    };
    print_line(one_line(&format!("{status}  {name}")))?;
    for change in changes {
        let note = if change.kind.is_note() { "note: " } else { "" };
        for (at, line) in change.to_string().lines().enumerate() {
            let prefix = if at == 0 { note } else { "" };
            print_part("  ")?;
            print_line(one_line(&format!("{prefix}{line}")))?;
        }
    }
    Ok(())
}

fn print_failure(options: &Options, name: &str, why: &RecordingError) -> Result<(), Failure> {
    if options.json {
        print_json(&json!({"recording": name, "error": why.to_string()}))
    } else {
        print_line(one_line(&format!("error     {name}: {why}")))
    }
}

fn print_summary(options: &Options, args: &Test, counts: Counts) -> Result<(), Failure> {
    let Counts { same, changed, failed } = counts;
    if same + changed + failed == 0 {
        let only = args.only.as_deref().unwrap_or_default();
        let detail = format!("no recording has {only:?} in its name");
        return Err(Refusal::new(Code::NotFound, detail).hint("omit --only to run all").into());
    }
    if !options.json {
        let of_all = pluralize(same + changed + failed, "recording");
        print_line(format!("{of_all}: {same} same, {changed} changed, {failed} failed"))?;
    }
    if failed > 0 || (changed > 0 && !args.accept) {
        let detail =
            format!("{} changed, {failed} could not be repeated", pluralize(changed, "recording"));
        let refusal = Refusal::new(Code::Conflict, detail);
        let hint = "--accept writes the new behaviour into the recordings";
        return Err(if changed > 0 { refusal.hint(hint) } else { refusal }.into());
    }
    Ok(())
}

fn recording_failure(error: RecordingError) -> Failure {
    match error {
        RecordingError::Abide(error) => error.into(),
        RecordingError::Missing(_) => {
            let hint = "`abide sql \"SELECT id, session_id, status FROM runs\"` lists them";
            Refusal::new(Code::NotFound, error.to_string()).hint(hint).into()
        }
        error => Refusal::new(Code::BadTransition, error.to_string()).into(),
    }
}
