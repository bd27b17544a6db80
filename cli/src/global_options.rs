//! The options that every command takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use abide_agent::{AgentLoops, Environment};
use abide_client::Config;
use abide_schema::Module;
use clap::Args;

use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::lock_holder::{LocalServer, find_holder, is_server};
use crate::user_info::hide_user_info_of_address;

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

    /// Whether the address is named, on the command line, in the environment or in the file of the configuration.
    #[arg(skip)]
    pub(crate) is_url_named: bool,

    /// Whether the address is named on the command line.
    #[arg(skip)]
    pub(crate) is_url_typed: bool,

    /// Work directly on this database file, without a server
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,

    /// Whether the file is named on the command line: then it is opened, even if a server could be asked.
    #[arg(skip)]
    pub(crate) is_db_typed: bool,

    /// Whether the folder of agents is named, on the command line, in the environment or in the file of the configuration. Else
    /// it was only found in the current folder.
    #[arg(skip)]
    pub(crate) is_agents_folder_named: bool,

    /// The bearer token; for `serve`, a token that gives admin access
    #[arg(long, global = true, env = "ABIDE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,

    /// A file with the token; also the credential abide-token of systemd
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// For https: trust only the authorities in this PEM file
    #[arg(long, global = true, env = "ABIDE_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// For https: the certificate of this client
    #[arg(long, global = true, env = "ABIDE_CLIENT_CERT", value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,

    /// For https: the key of that certificate
    #[arg(long, global = true, env = "ABIDE_CLIENT_KEY", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// The file of the configuration  [default: abide.toml, if it exists]
    #[arg(long = "config", global = true, value_name = "FILE")]
    pub(crate) config_file: Option<PathBuf>,

    /// The configuration of this process.
    #[arg(skip)]
    pub(crate) configuration: Arc<Configuration>,

    /// The server with TLS that has the file of the command open. Then `db` is empty.
    #[arg(skip)]
    pub(crate) local_server: Option<LocalServer>,

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

    /// The certificate of this client, and its key.
    ///
    /// # Errors
    /// One of them is missing.
    pub(crate) fn client_certificate(&self) -> Result<Option<(&Path, &Path)>, Failure> {
        match (&self.cert, &self.key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            _ => Err(Failure::usage(
                "a certificate of a client needs its key",
                "give both: --cert FILE --key FILE, or ABIDE_CLIENT_CERT and ABIDE_CLIENT_KEY",
            )),
        }
    }

    /// The file that is meant, named or not.
    pub(crate) fn db_or_default(&self) -> PathBuf {
        self.db.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DB))
    }

    /// What is used, for people: the file, or the address of the server.
    pub(crate) fn place(&self) -> String {
        match &self.db {
            Some(db) => db.display().to_string(),
            None => hide_user_info_of_address(&self.url),
        }
    }

    /// Uses the server that has the file open, unless the command line names the file. Without a file and an address, this is
    /// a server with TLS on the default file; another one has the default address.
    pub(crate) fn prefer_server(&mut self) {
        let is_default = self.db.is_none();
        if self.is_db_typed || (is_default && self.is_url_named) {
            return;
        }
        let file = self.db_or_default();
        let Some(holder) = find_holder(&file).filter(is_server) else { return };
        let local_server = LocalServer::from_holder(&file, &holder);
        if is_default && local_server.is_none() {
            return;
        }
        self.is_url_named = !is_default;
        self.local_server = local_server;
        // For a server with TLS, it is only shown.
        self.url = holder.url.unwrap_or_default();
        self.db = None;
    }
}
