//! `abide completions` prints the completions of a shell. `abide manual`, which no help lists, writes the manual pages
//! for packages.

use std::fs;
use std::path::PathBuf;

use abide_schema::{Code, Refusal};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::print_part;

/// Arguments of `abide completions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "\
The Debian package installs them. Without it, add a line to the file that your shell reads first.

Examples:
  source <(abide completions bash)              # in ~/.bashrc
  source <(abide completions zsh)               # in ~/.zshrc, after compinit
  abide completions fish > ~/.config/fish/completions/abide.fish";

/// Prints the completions of this command line.
///
/// # Errors
/// The reader has closed the output.
pub(crate) fn run(mut program: Command, args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "abide", &mut script);
    print_part(String::from_utf8_lossy(&script).into_owned())
}

/// Arguments of `abide manual`.
#[derive(Args, Debug)]
#[command(after_help = MANUAL_EXAMPLES)]
pub(crate) struct Manual {
    /// The folder to write to; it is created if it does not exist
    folder: PathBuf,
}

const MANUAL_EXAMPLES: &str = "\
Examples:
  abide manual man1 && man ./man1/abide-serve.1";

/// Writes a manual page for the program and for each command.
///
/// # Errors
/// The folder cannot be written.
pub(crate) fn write_manual(program: Command, args: &Manual) -> Result<(), Failure> {
    let written = fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(program, &args.folder));
    written.map_err(|why| {
        let detail = format!("cannot write the manual pages to {}: {why}", args.folder.display());
        Refusal::new(Code::BadRequest, detail).hint("name a folder that this user can write").into()
    })
}
