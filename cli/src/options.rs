//! The options that every command takes.

use std::path::PathBuf;

use abide_agent::Environment;
use clap::Args;

/// Default address of a server.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:7341";

/// Default URL of commands.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7341";

/// The default file.
pub(crate) const DEFAULT_DB: &str = "abide.db";

/// The options that every command takes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Options {
    /// Print JSON, with all digits
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// The address of the server
    #[arg(
        long,
        global = true,
        env = "ABIDE_URL",
        value_name = "URL",
        default_value = DEFAULT_URL
    )]
    pub(crate) url: String,

    /// Work directly on this database file, without a server
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,

    /// The bearer token; for `serve`, a token that gives admin access
    #[arg(long, global = true, env = "ABIDE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,

    /// The environment variables available to tools and models.
    #[arg(skip)]
    pub(crate) environment: Environment,
}

impl Options {
    /// The file, named or default.
    pub(crate) fn db_or_default(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DB))
    }
}
