//! `abide init`: creates an empty database file.

use abide_client::Abide;
use clap::Args;
use serde_json::json;

use abide_schema::{Code, Refusal};

use crate::connect::check_folder;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};

/// Arguments of `abide init`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Init {}

const EXAMPLES: &str = "\
`abide serve` and `abide open` create their file as well. Commands that work on a file with --db do
not, except `token create --role`, `agent run`, `agent chat` and `agent import`.

Examples:
  abide init                     # abide.db
  abide init --db agents.db";

/// Creates the file.
///
/// # Errors
/// It exists, or it cannot be created.
pub(crate) async fn run(options: &Options, _: Init) -> Result<(), Failure> {
    let file = options.db_or_default();
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
