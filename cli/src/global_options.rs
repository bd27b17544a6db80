//! The options that every command takes.

use abide_agent::AgentLoops;
use std::path::PathBuf;
use std::time::SystemTime;

use abide_agent::Environment;
use abide_client::Config;
use abide_schema::Module;
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

    /// Whether the address is named, on the command line or in the environment.
    #[arg(skip)]
    pub(crate) is_url_named: bool,

    /// Whether the address is named on the command line.
    #[arg(skip)]
    pub(crate) is_url_typed: bool,

    /// Work directly on this database file, without a server
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,

    /// The bearer token; for `serve`, a token that gives admin access
    #[arg(long, global = true, env = "ABIDE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,

    /// A file with the bearer token, such as a mounted secret
    #[arg(long, global = true, env = "ABIDE_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Whether the file of the token is named on the command line.
    #[arg(skip)]
    pub(crate) is_token_file_typed: bool,

    /// The environment variables available to tools and models.
    #[arg(skip)]
    pub(crate) environment: Environment,

    /// When the command began
    #[arg(skip = SystemTime::now())]
    pub(crate) started: SystemTime,

    /// The custom modules of the program
    #[arg(skip)]
    pub(crate) modules: Vec<Module>,

    /// The loops in Rust of the program
    #[arg(skip)]
    pub(crate) agent_loops: AgentLoops,
}

impl Options {
    /// How this program opens a file.
    pub(crate) fn config(&self) -> Config {
        Config { modules: self.modules.clone(), ..Config::default() }
    }

    /// The file that is meant, named or not.
    pub(crate) fn db_or_default(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DB))
    }
}
