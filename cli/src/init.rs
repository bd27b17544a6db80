//! `abide init`: makes a project. `abide agent init` does the same for a folder of agents of any name.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::agent::{FOLDER, ProjectOptions, create_project, quote};
use crate::failure::Failure;
use crate::global_options::Options;

/// Arguments of `abide init`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Init {
    /// The folder of the project; it is created if it does not exist  [default: the current folder]
    dir: Option<PathBuf>,

    #[command(flatten)]
    project: ProjectOptions,
}

const EXAMPLES: &str = "\
The project is the folder .abide: an agent, a tool that waits for an approval, and abide.yaml with
the model. Without a key of a provider the model answers from a script, so it can be tried at once.

Examples:
  abide init                         # in the current folder
  abide init shop                    # in the folder shop
  abide init --provider anthropic    # with this model; the key is ANTHROPIC_API_KEY
  abide agent chat default           # converse with the agent
  abide dev                          # serve it, and read its files again when they change
  abide db create agents.db          # only a database file";

/// Makes the project.
///
/// # Errors
/// There is one already, or a file cannot be written.
pub(crate) fn run(options: &Options, args: Init) -> Result<(), Failure> {
    if let Some(file) = meant_database(options, args.dir.as_deref()) {
        let file = quote(&file.display().to_string());
        let detail = "`abide init` makes a project, not a database file";
        return Err(Failure::usage(detail, format!("`abide db create {file}` creates the file")));
    }
    let folder = args.dir.as_deref().map_or(PathBuf::from(FOLDER), |dir| dir.join(FOLDER));
    create_project(options, &folder, args.dir.as_deref(), args.project)
}

/// Returns the file that a command line means if it is about a database: `init x.db`, `init --db x`.
fn meant_database(options: &Options, dir: Option<&Path>) -> Option<PathBuf> {
    if options.is_db_typed {
        return options.db.clone();
    }
    let dir = dir?;
    let extension = dir.extension()?.to_str()?.to_ascii_lowercase();
    ["db", "sqlite", "sqlite3"].contains(&extension.as_str()).then(|| dir.to_owned())
}
