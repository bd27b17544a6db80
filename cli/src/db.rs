//! `abide db`: creates a database file.

use std::path::PathBuf;

use abide_client::Abide;
use abide_schema::{Code, Refusal};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::connect::check_folder;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};

/// Arguments of `abide db`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Db {
    #[command(subcommand)]
    what: DbCommand,
}

#[derive(Debug, Subcommand)]
enum DbCommand {
    /// Create an empty database file
    Create(Create),
}

#[derive(Args, Debug)]
struct Create {
    /// The file to create; it must not exist
    file: PathBuf,
}

const EXAMPLES: &str = "\
`abide serve` and `abide open` create their file as well. Commands that work on a file with --db do
not, except `token create --role`, `agent run`, `agent chat` and `agent import`.

Examples:
  abide db create agents.db
  abide sql 'SELECT count(*) FROM sessions' --db agents.db";

/// Runs the command.
///
/// # Errors
/// The file exists, or it cannot be created.
pub(crate) async fn run(options: &Options, args: Db) -> Result<(), Failure> {
    match args.what {
        DbCommand::Create(args) => create(options, args).await,
    }
}

async fn create(options: &Options, args: Create) -> Result<(), Failure> {
    let file = args.file;
    if file.exists() {
        let detail = format!("{} exists already", file.display());
        let hint = "name a file that does not exist";
        return Err(Refusal::new(Code::Conflict, detail).hint(hint).into());
    }
    check_folder(&file)?;
    Abide::open_with(&file, options.config())?.close().await;
    if options.json {
        return print_json(&json!({"created": file.display().to_string()}));
    }
    print_line(format!("created {}", file.display()))
}
