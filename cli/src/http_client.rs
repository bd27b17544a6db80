//! How commands without the SDK send HTTP to the server that the options name: `abide mcp`, `abide health`, and
//! questions that have no call.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use abide_engine::Holder;
use abide_schema::{Code, Refusal, lowercase_first};
use reqwest::{Certificate, ClientBuilder, Identity};
use rustix::process::geteuid;

use crate::failure::Failure;
use crate::global_options::Options;
use crate::lock_holder::LocalServer;

/// A server, and a client that reaches it.
pub(crate) struct HttpServer {
    /// The client, to which the caller adds its timeouts.
    pub(crate) client: ClientBuilder,
    /// The address, without a slash at its end.
    pub(crate) url: String,
    pub(crate) token: Option<String>,
}

impl HttpServer {
    /// The server that the options name, or the one with TLS that has the file of the command open.
    ///
    /// # Errors
    /// A file of TLS cannot be used.
    pub(crate) fn named(options: &Options) -> Result<HttpServer, Failure> {
        if let Some(LocalServer { holder, .. }) = &options.local_server {
            let server = HttpServer::at_socket(holder)?;
            let token = options.token.clone().or(server.token);
            return Ok(HttpServer { client: server.client, url: server.url, token });
        }
        let url = options.url.trim_end_matches('/').to_owned();
        let mut client = builder();
        if let Some(ca) = &options.ca {
            let roots = Certificate::from_pem_bundle(&read(ca)?).map_err(|_| unusable(ca))?;
            client = client.tls_certs_only(roots);
        }
        if let Some((certificate, key)) = options.client_certificate()? {
            let mut pem = read(certificate)?;
            pem.push(b'\n');
            pem.extend(read(key)?);
            let identity = Identity::from_pem(&pem).map_err(|_| unusable(certificate))?;
            client = client.identity(identity);
        }
        Ok(HttpServer { client, url, token: options.token.clone() })
    }

    /// The process that has a file open; `None` if it serves no other process.
    ///
    /// # Errors
    /// Its socket was removed.
    pub(crate) fn of_holder(holder: &Holder) -> Result<Option<HttpServer>, Failure> {
        if holder.socket.is_some() {
            return HttpServer::at_socket(holder).map(Some);
        }
        let token = holder.token.clone();
        let server = holder.url.clone().map(|url| HttpServer { client: builder(), url, token });
        Ok(server)
    }

    /// The process that has a file open, at its private socket.
    fn at_socket(holder: &Holder) -> Result<HttpServer, Failure> {
        let socket = holder.socket.as_ref().map(PathBuf::from).filter(|it| is_private(it));
        let socket = socket.ok_or_else(|| {
            Refusal::new(Code::Unavailable, "the socket of the local server was removed")
                .hint("name the server with --url")
        })?;
        let url = "http://localhost".to_owned();
        Ok(HttpServer { client: builder().unix_socket(socket), url, token: holder.token.clone() })
    }

    /// A server in this process.
    pub(crate) fn own(url: &str, token: &str) -> HttpServer {
        HttpServer { client: builder(), url: url.to_owned(), token: Some(token.to_owned()) }
    }
}

fn builder() -> ClientBuilder {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ClientBuilder::new().user_agent("abide")
}

/// Whether only this user can have put a socket there.
fn is_private(socket: &Path) -> bool {
    let folder = socket.parent().and_then(|folder| fs::symlink_metadata(folder).ok());
    folder.is_some_and(|meta| {
        meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Refusal> {
    fs::read(path).map_err(|why| {
        let reason = lowercase_first(&why.to_string());
        let detail = format!("{} cannot be read: {reason}", path.display());
        Refusal::new(Code::BadArguments, detail)
            .hint("check the path, and who may read the file")
            .explain_exhaustion(&why)
    })
}

/// The refusal of a file. The error of the library is about no file.
fn unusable(path: &Path) -> Refusal {
    Refusal::new(Code::BadArguments, format!("{} has no certificate in PEM", path.display()))
        .hint("give certificates and keys in PEM, as `openssl` and authorities write them")
}
