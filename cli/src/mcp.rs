//! `abide mcp`: the MCP server over stdin and stdout, for clients that start their servers. It passes messages to the
//! endpoint `/mcp`: that of a running server, or that of a file which this process opens. `abide mcp login` logs in to an MCP
//! server that agents use.

mod endpoint;
mod legacy_session;
mod lines;
mod login;
mod proxy;
mod subscription;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use abide_agent::AgentProject;
use abide_engine::{Engine, LockState};
use abide_protocols::AgentProtocols;
use abide_server::{AccessConfig, Services};
use clap::{Args, Subcommand};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::agent::{AgentHost, open_project};
use crate::connect::{Access, check_file, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::http_client::HttpServer;
use crate::open::engine_listener;
use crate::{serve, signals, stderr};
use endpoint::Endpoint;
use proxy::Proxy;

/// Arguments of `abide mcp`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    what: Option<McpCommand>,

    /// With --db: also drive runs of agents, with the models, tools and definitions of this folder
    #[arg(long, value_name = "FOLDER")]
    agents: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    /// Log in to an MCP server that agents use, and store its tokens
    Login(login::Login),
    /// Remove the stored tokens of an MCP server
    Logout(login::Logout),
}

impl Mcp {
    pub(crate) fn drives_agents(&self) -> bool {
        self.agents.is_some()
    }
}

const EXAMPLES: &str = "\
Examples:
  abide mcp                                  # the server at 127.0.0.1:7341
  abide mcp --url http://10.0.0.2:7341       # another one; ABIDE_TOKEN has the token
  abide mcp --db abide.db --agents .abide    # no server needed
  abide mcp login github                     # to an MCP server that agents use

A client of MCP starts it. In the configuration of Claude Desktop and other programs:
  {\"mcpServers\": {\"abide\": {\"command\": \"abide\", \"args\": [\"mcp\"]}}}

Each line of stdin and stdout is a message of JSON-RPC. If the server is restarted, requests wait
for it and continue; nothing runs twice. The process ends when stdin is closed and the requests
before that are answered.";

/// Passes messages until stdin is closed.
///
/// # Errors
/// No server answers, or the file cannot be opened.
pub(crate) async fn run(options: &Options, args: Mcp) -> Result<(), Failure> {
    let stop = signals::stop_requested()?;
    match args.what {
        Some(McpCommand::Login(login)) => return login::login(options, login, stop).await,
        Some(McpCommand::Logout(logout)) => return login::logout(options, &logout).await,
        None => {}
    }
    let Some(db) = &options.db else {
        if args.agents.is_some() {
            let detail = "--agents is given without --db: a server drives its own agents";
            return Err(Failure::usage(
                detail,
                "`abide serve --agents FOLDER` drives the agents of a folder",
            ));
        }
        // A client shows this error; later ones are answers to its requests.
        connect(options, Access::Read).await?.close().await;
        let endpoint = Endpoint::new(HttpServer::named(options)?)?;
        return run_proxy(endpoint, stop).await;
    };
    // A client starts this command, so a new file at a mistyped path would not be noticed.
    check_file(db, Access::Write)?;
    let project = match &args.agents {
        Some(folder) => Some(open_project(options, folder).await?),
        None => None,
    };
    let former = LockState::read(db);
    let engine = Engine::open(db, abide_engine::Config::from(options.config()))
        .map_err(|error| error.to_refusal())?;
    engine_listener::remove_after_kill(&former);
    let passed = match OwnServer::start(options, project, &engine).await {
        Ok(server) => {
            let passed = run_proxy(server.endpoint()?, stop).await;
            server.stop().await;
            passed
        }
        Err(failure) => Err(failure),
    };
    serve::close(&engine).await;
    passed
}

async fn run_proxy(endpoint: Endpoint, stop: impl Future<Output = ()>) -> Result<(), Failure> {
    let proxy = Arc::new(Proxy::new(endpoint));
    tokio::select! {
        passed = proxy.run() => passed.map_err(Failure::from),
        () = stop => Ok(()),
    }
}

/// The failure of a process that cannot listen on a port of this machine.
fn cannot_listen(why: &io::Error) -> Failure {
    Failure::system("cannot listen on a loopback port", why)
}

/// A server in this process, for this process.
struct OwnServer {
    url: String,
    token: String,
    agents: Option<AgentHost>,
    stop: CancellationToken,
    serving: JoinHandle<io::Result<()>>,
}

impl OwnServer {
    async fn start(
        options: &Options,
        project: Option<AgentProject>,
        engine: &Engine,
    ) -> Result<OwnServer, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|why| cannot_listen(&why))?;
        let address = listener.local_addr().map_err(|why| cannot_listen(&why))?;
        let url = format!("http://{address}");
        // Other users of this machine do not know it.
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let access = AccessConfig::bearer(token.clone())?;
        let agents = match project {
            Some(project) => Some(AgentHost::for_engine(options, project, engine).await?),
            None => None,
        };
        let protocols = AgentProtocols {
            mcp_handler: agents.as_ref().and_then(AgentHost::mcp_handler),
            ..AgentProtocols::default()
        };
        let services = Services {
            agents: agents.as_ref().map(AgentHost::registry),
            protocols: Some(Arc::new(protocols)),
            dropped_log_records: stderr::dropped_lines(),
            ..Services::default()
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let engine = engine.clone();
        let serving = tokio::spawn(async move {
            abide_server::serve_with(engine, listener, access, services, stopped).await
        });
        Ok(OwnServer { url, token, agents, stop, serving })
    }

    fn endpoint(&self) -> Result<Endpoint, Failure> {
        Endpoint::new(HttpServer::own(&self.url, &self.token))
    }

    async fn stop(self) {
        self.stop.cancel();
        match self.serving.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(name: "server_failed", %error, "the server failed"),
            Err(error) => tracing::error!(name: "server_panicked", %error, "the server panicked"),
        }
        if let Some(agents) = self.agents {
            agents.close().await;
        }
    }
}
