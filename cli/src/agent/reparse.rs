//! `abide agent reparse`: the stored lines of a program's run, read again with the current parser.

use std::path::Path;
use std::sync::Arc;

use abide_agent::{Catalog, ReparseError, Reparsed, ReparsedChange, Tools};
use abide_schema::{Code, Refusal};
use clap::Args;
use serde_json::json;

use crate::cells::pluralize;
use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::printable::one_line;

/// Arguments of `abide agent reparse`.
#[derive(Args, Debug)]
pub(super) struct Reparse {
    /// The id of the run, which has ended
    run: String,
    /// Stores the differences as a correction of the run: table run_corrections, view run_results
    #[arg(long)]
    store: bool,
    /// Why the run is corrected
    #[arg(long, value_name = "TEXT", requires = "store")]
    reason: Option<String>,
}

/// Shows what the current parser makes of a run, and stores it as a correction. The run stays as it is.
///
/// # Errors
/// The run does not exist, has not ended, or is not one of a program; the correction is refused.
pub(super) async fn reparse(
    options: &Options,
    folder: &Path,
    args: Reparse,
) -> Result<(), Failure> {
    super::host::check_named_folder(options, folder)?;
    let access = if args.store { Access::Write } else { Access::Read };
    let abide = connect(options, access).await?;
    // Its tools are not needed: an agent that is a program has none.
    let catalog = Arc::new(Catalog::new(folder, Tools::new()).prompts_of(&abide));
    let reparsed = Reparsed::read(&abide, &catalog, &args.run).await;
    let stored = match &reparsed {
        Ok(reparsed) if args.store => reparsed.store(&abide, args.reason).await,
        _ => Ok(None),
    };
    abide.close().await;
    let correction = stored?.map(|correction| correction.number);
    print_reparsed(options, &reparsed.map_err(to_failure)?, correction)?;
    match (options.json, correction) {
        (true, _) => Ok(()),
        (false, Some(number)) => print_line(format!("stored as correction {number} of the run")),
        (false, None) if args.store => print_line("nothing to store"),
        (false, None) => Ok(()),
    }
}

fn print_reparsed(
    options: &Options,
    reparsed: &Reparsed,
    correction: Option<i64>,
) -> Result<(), Failure> {
    let Reparsed { run_id: run, agent, is_current, lines, changes, .. } = reparsed;
    if options.json {
        let changes: Vec<_> = changes
            .iter()
            .map(|ReparsedChange { number, before, after }| {
                json!({"number": number, "before": before, "after": after})
            })
            .collect();
        let definition = if *is_current { "folder" } else { "run" };
        return print_json(&json!({"run": run, "agent": agent, "definition": definition,
            "lines": lines, "changes": changes, "correction": correction}));
    }
    for ReparsedChange { number, before, after } in changes {
        print_line(match number {
            Some(number) => format!("line {number}"),
            None => "result".to_owned(),
        })?;
        for text in
            before.iter().filter(|text| count_equal(text, before) != count_equal(text, after))
        {
            print_line(one_line(&format!("  - {text}")))?;
        }
        for text in
            after.iter().filter(|text| count_equal(text, before) != count_equal(text, after))
        {
            print_line(one_line(&format!("  + {text}")))?;
        }
    }
    let with = if *is_current {
        "the definition in the folder"
    } else {
        "the definition that the run was started with"
    };
    let lines = pluralize(*lines as u64, "line");
    let differences = pluralize(changes.len() as u64, "difference");
    print_line(one_line(&format!("{run}: {lines} of {agent} with {with}, {differences}")))
}

fn count_equal(text: &str, texts: &[String]) -> usize {
    texts.iter().filter(|it| *it == text).count()
}

fn to_failure(error: ReparseError) -> Failure {
    let text = error.to_string();
    match error {
        ReparseError::Runtime(abide_agent::RuntimeError::Abide(error)) => error.into(),
        ReparseError::Missing(_) => {
            let hint = "`abide sql \"SELECT id, agent, status FROM runs\"` lists them";
            Refusal::new(Code::NotFound, text).hint(hint).into()
        }
        ReparseError::Active(_) => Refusal::new(Code::BadTransition, text).into(),
        ReparseError::Parser(_) => {
            let hint = "Catalog::parser registers a parser in Rust; Reparsed::read reads with it";
            Refusal::new(Code::BadArguments, text).hint(hint).into()
        }
        _ => Refusal::new(Code::BadArguments, text).into(),
    }
}
