//! `abide dev`: serves the agents of a project while they are written. It is `abide serve --agents .abide` with another
//! greeting.

use clap::Args;

use crate::failure::Failure;
use crate::global_options::Options;
use crate::logging::LogFormat;
use crate::serve::{self, Serve};

/// Arguments of `abide dev`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Dev {
    #[command(flatten)]
    serve: Serve,
}

impl Dev {
    /// Returns the form of log records, if it is given.
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        self.serve.log_format()
    }
}

const EXAMPLES: &str = "\
It is `abide serve` with the agents of the project: those of .abide, unless --agents names another
folder. Changes of abide.yaml and of the definitions apply within a second, and are printed. The
commands of `abide agent` use this server while it runs. Ctrl-C stops it; runs that have not ended
continue at the next start.

Examples:
  abide init && abide dev              # a new project
  abide dev --listen 127.0.0.1:0       # any free port
  abide dev --agents agents            # another folder
  abide agent chat default             # in another terminal";

/// Serves until a signal.
///
/// # Errors
/// There is no project, or the errors of [`serve::run`].
pub(crate) async fn run(options: &Options, args: Dev) -> Result<(), Failure> {
    serve::run(options, args.serve.for_development()).await
}
