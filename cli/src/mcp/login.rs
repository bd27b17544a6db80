//! `abide mcp login`: a login to an MCP server of a folder of agents. The authorization server redirects the browser to a port of this
//! machine. If the browser runs on another machine, the URL of its last page is pasted.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, thread};

use abide_agent::mcp_servers;
use abide_schema::{Code, Refusal};
use abide_tools::{McpLogin, McpServerConfig, OAuthError, forget_mcp_login};
use clap::Args;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::cannot_listen;
use crate::agent::{FOLDER, check_named_folder, folder_failure};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json, print_line};

/// Maximum time for a login.
const LOGIN: Duration = Duration::from_secs(600);

/// Maximum time until a browser has sent its request, and its maximum size in bytes.
const REQUEST: Duration = Duration::from_secs(10);
const REQUEST_BYTES: usize = 16 << 10;

/// Arguments of `abide mcp login`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Login {
    /// The name of the server in mcp_servers of abide.yaml
    name: String,

    /// The folder of the agents
    #[arg(long, value_name = "FOLDER", default_value = FOLDER)]
    agents: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  abide mcp login github                    # the server `github` of .abide/abide.yaml
  abide mcp login github --agents desk
  abide mcp logout github

The command prints a URL. Open it in a browser and log in. On a machine without a browser, open
it elsewhere, and paste the URL of the last page, which the browser cannot show.

The tokens are stored in the folder `logins` of the agents, for their owner only. A running server
uses them within a minute.";

/// Arguments of `abide mcp logout`.
#[derive(Args, Debug)]
pub(super) struct Logout {
    /// The name of the server in mcp_servers of abide.yaml
    name: String,

    /// The folder of the agents
    #[arg(long, value_name = "FOLDER", default_value = FOLDER)]
    agents: PathBuf,
}

/// Logs in.
///
/// # Errors
/// There is no such server, the login is refused, or it takes too long.
pub(super) async fn login(
    options: &Options,
    args: Login,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let config = find_server(options, &args.agents, &args.name)?;
    let port = config.oauth.as_ref().and_then(|oauth| oauth.redirect_port).unwrap_or(0);
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|why| bind_failure(port, &why))?;
    let address = listener.local_addr().map_err(|why| cannot_listen(&why))?;
    let redirect_uri = format!("http://{address}/callback");
    let login = config.login(&options.environment, &redirect_uri).await.map_err(login_failure)?;
    if options.json {
        print_json(&json!({ "url": login.url(), "scopes": login.scopes() }))?;
    } else {
        print_line(format!("Open this URL in a browser, and log in:\n\n  {}\n", login.url()))?;
    }
    tokio::select! {
        done = complete_login(&login, listener) => done?,
        () = stop => return Err(Failure::Reported),
        () = tokio::time::sleep(LOGIN) => {
            let why = format!("there was no login within {} minutes", LOGIN.as_secs() / 60);
            return Err(Refusal::new(Code::NotFound, why).into());
        }
    }
    if options.json {
        print_json(&json!({ "logged_in": args.name }))
    } else {
        print_line(format!("Logged in to {}.", args.name))
    }
}

/// Removes the tokens.
///
/// # Errors
/// The folder has no such server, there is no login, or its file cannot be removed.
pub(super) async fn logout(options: &Options, args: &Logout) -> Result<(), Failure> {
    let config = find_server(options, &args.agents, &args.name)?;
    let folder = config.login_folder.unwrap_or_default();
    if !forget_mcp_login(&folder, &args.name).await.map_err(login_failure)? {
        let why = format!("there is no login to the MCP server {}", args.name);
        return Err(Refusal::new(Code::NotFound, why).into());
    }
    if options.json {
        print_json(&json!({ "logged_out": args.name }))
    } else {
        print_line(format!("The tokens of {} are removed.", args.name))
    }
}

fn bind_failure(port: u16, why: &io::Error) -> Failure {
    if why.kind() != io::ErrorKind::AddrInUse {
        return cannot_listen(why);
    }
    let detail = format!("port {port}, to which the browser is redirected, is in use");
    let hint = "end the program that uses it, or change redirect_port in abide.yaml";
    Refusal::new(Code::Conflict, detail).hint(hint).into()
}

/// The definition of a server.
fn find_server(options: &Options, folder: &Path, name: &str) -> Result<McpServerConfig, Failure> {
    check_named_folder(options, folder)?;
    let servers = mcp_servers(folder).map_err(folder_failure)?;
    let names: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
    servers.into_iter().find(|server| server.name == name).ok_or_else(|| {
        let why = format!("abide.yaml has no MCP server {name}");
        let refusal = Refusal::new(Code::NotFound, why);
        if names.is_empty() {
            refusal.hint("name it in mcp_servers of abide.yaml; see docs/mcp.md").into()
        } else {
            refusal.hint(format!("its servers are {}", names.join(", "))).into()
        }
    })
}

fn login_failure(error: OAuthError) -> Failure {
    Failure::Run(error.code().to_owned(), Refusal::new(Code::Denied, error.to_string()))
}

/// An address to which a browser was redirected, and where the result is shown.
struct Redirected {
    address: String,
    page: Option<Page>,
}

/// The page of a browser that waits.
struct Page {
    text: oneshot::Sender<&'static str>,
    /// Completes when the page was sent.
    sent: oneshot::Receiver<()>,
}

/// Waits for the address that completes the login. Other requests to the port do not end it.
async fn complete_login(login: &McpLogin, listener: TcpListener) -> Result<(), Failure> {
    let (found, mut redirects) = mpsc::channel(8);
    let pasted = found.clone();
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let address = line.trim().to_owned();
            if !address.is_empty()
                && pasted.blocking_send(Redirected { address, page: None }).is_err()
            {
                break;
            }
        }
    });
    let accepting = async {
        loop {
            let accepted = listener.accept().await;
            let (browser, _) = accepted.map_err(|why| {
                Failure::system("the answer of the browser cannot be received", &why)
            })?;
            tokio::spawn(answer_browser(browser, found.clone()));
        }
    };
    let completing = async {
        while let Some(Redirected { address, page }) = redirects.recv().await {
            let finished = login.finish(&address).await;
            let shown = match &finished {
                Ok(()) => "The login is complete. You can close this page.",
                Err(_) => "The login is not complete. The command has the reason.",
            };
            if let Some(Page { text, sent }) = page {
                let _ = text.send(shown);
                // The browser gets its page before the process ends.
                let _ = timeout(REQUEST, sent).await;
            }
            match finished {
                Err(error @ OAuthError::ForeignState) => note(format!("warning: {error}")),
                other => return other.map_err(login_failure),
            }
        }
        Err(Failure::Reported)
    };
    tokio::select! {
        done = completing => done,
        failed = accepting => failed,
    }
}

/// Passes the address of a browser's request on, and shows the result.
async fn answer_browser(mut browser: TcpStream, found: mpsc::Sender<Redirected>) {
    let Ok(Some(address)) = timeout(REQUEST, read_target(&mut browser)).await else { return };
    let (text, shown) = oneshot::channel();
    let (_sent, sent) = oneshot::channel();
    let page = Some(Page { text, sent });
    if found.send(Redirected { address, page }).await.is_err() {
        return;
    }
    let text = shown.await.unwrap_or("The login has ended.");
    let length = text.len();
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\n\
         connection: close\r\nreferrer-policy: no-referrer\r\ncache-control: no-store\r\n\r\n{text}"
    );
    let _ = browser.write_all(response.as_bytes()).await;
    let _ = browser.shutdown().await;
}

/// The target of a request to the redirect URI.
async fn read_target(browser: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > REQUEST_BYTES || browser.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let method = words.next()?;
    let target = words.next()?;
    (method == "GET" && target.starts_with("/callback?")).then(|| target.to_owned())
}
