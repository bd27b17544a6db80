//! The configurations of reverse proxies in `deploy/`, with the proxies themselves: calls, WebSockets, event streams and
//! HTTP/2 through TLS. A proxy that is not installed is reported as skipped.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use abide_client::arguments::CreateSession;
use abide_client::{Abide, Code};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::program::{Process, left_out, run};
use crate::server::Server;
use crate::tls::{Authority, LOCAL, Pair};

/// If this environment variable is set, a missing proxy is an error.
const NEEDED: &str = "ABIDE_TESTS_NEED_ALL";

/// The program of a proxy; `None` with a message if it is not installed.
fn installed(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let program = folders.map(|folder| folder.join(name)).find(|program| program.is_file());
    if program.is_none() {
        assert!(env::var_os(NEEDED).is_none(), "{name} is not installed, and {NEEDED} is set");
        left_out(&format!("deploy/ with {name}, which is not installed"));
    }
    program
}

/// A file of `deploy/`, in which every text on the left is replaced. Each must occur.
#[track_caller]
fn configuration(file: &str, changes: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    let mut text = fs::read_to_string(path).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{file} has no {from:?}");
        text = text.replace(from, to);
    }
    text
}

/// A server that requires a token, behind a proxy.
struct Deployment {
    server: Server,
    token: String,
    authority: Authority,
    pair: Pair,
    port: u16,
    folder: TempDir,
}

impl Deployment {
    fn new() -> Deployment {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("abide.db");
        let words = ["token", "create", "root", "--role", "admin", "--capability", "*", "--db"];
        let token = run(words.into_iter().chain([db.to_str().unwrap()])).good();
        let server = Server::start_on(&db);
        let authority = Authority::new("ours");
        let pair = authority.sign("proxy", &LOCAL);
        // The proxies print no port that they have chosen.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        Deployment { server, token: token.trim_end().to_owned(), authority, pair, port, folder }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// What a proxy must pass on.
    async fn check(&self) {
        let ca = self.authority.ca();
        let refused = Abide::builder(&self.url()).ca(&ca).connect().await;
        let refused = refused.expect_err("the server requires a token");
        // A proxy can send the reason in a second part, which the client does not wait for.
        assert_eq!(refused.code(), Some(Code::Unauthenticated), "{refused}");

        let client = Abide::builder(&self.url()).ca(&ca).token(&self.token);
        let abide = client.connect().await.unwrap();
        let mut sessions = abide.subscribe("SELECT id FROM sessions").await.unwrap();
        sessions.try_next().await.unwrap().expect("the first result");
        let mut events = self.connect(b"http/1.1").await;
        let head = format!(
            "GET /v1/subscribe?sql=SELECT%20id%20FROM%20sessions HTTP/1.1\r\nhost: localhost\r\n\
             accept: text/event-stream\r\nauthorization: Bearer {}\r\n\r\n",
            self.token
        );
        events.write_all(head.as_bytes()).await.unwrap();
        read_until(&mut events, "event: snapshot").await;

        abide.call(CreateSession::new("support").id("s1")).await.unwrap();
        let update = sessions.try_next().await.unwrap().expect("a change");
        assert_eq!(update.inserts::<String>().unwrap(), ["s1"]);
        // It arrives although the stream goes on.
        read_until(&mut events, "event: delta").await;
        abide.close().await;

        let http2 = self.connect(b"h2").await;
        assert_eq!(http2.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    }

    /// A connection with this protocol.
    async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.authority.ca()).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let socket = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }
}

async fn read_until(stream: &mut TlsStream<TcpStream>, text: &str) {
    let mut received = String::new();
    while !received.contains(text) {
        let mut part = [0; 4096];
        let bytes = stream.read(&mut part).await.unwrap();
        assert!(bytes > 0, "{received}");
        received.push_str(std::str::from_utf8(&part[..bytes]).unwrap());
    }
}

/// nginx, which leaves the terminal when it listens. It is stopped when this is dropped.
struct Nginx(Command);

impl Nginx {
    fn start(program: &Path, folder: &Path, config: &Path) -> Nginx {
        let globals = format!("pid {0}/nginx.pid; error_log {0}/error.log;", folder.display());
        let command = || {
            let mut command = Command::new(program);
            command.arg("-p").arg(folder).arg("-c").arg(config).args(["-g", &globals]);
            command.stdin(Stdio::null());
            command
        };
        let output = command().output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut stop = command();
        stop.args(["-s", "stop"]);
        Nginx(stop)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // A test that has failed has its own message.
        let _ = self.0.output();
    }
}

#[tokio::test]
async fn nginx_passes_everything_on() {
    let Some(program) = installed("nginx") else { return };
    let deployment = Deployment::new();
    let folder = deployment.folder.path();
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {}/{name};", folder.display()))
        .join(" ");
    let text = configuration(
        "nginx.conf",
        &[
            ("http {", &format!("http {{ access_log off; {folders}")),
            ("listen 443 ssl", &format!("listen 127.0.0.1:{} ssl", deployment.port)),
            ("/etc/nginx/agents.example.pem", deployment.pair.certificate.to_str().unwrap()),
            ("/etc/nginx/agents.example.key", deployment.pair.key.to_str().unwrap()),
            ("server_name agents.example", "server_name localhost"),
            ("127.0.0.1:7341", deployment.server.address()),
        ],
    );
    let config = deployment.write("nginx.conf", &text);
    let _nginx = Nginx::start(&program, folder, &config);
    deployment.check().await;
}

#[tokio::test]
async fn caddy_passes_everything_on() {
    let Some(program) = installed("caddy") else { return };
    let deployment = Deployment::new();
    let site = format!(
        "{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{} {{\n\tbind 127.0.0.1\n\ttls {} {}",
        deployment.url(),
        deployment.pair.certificate.display(),
        deployment.pair.key.display()
    );
    let text = configuration(
        "Caddyfile",
        &[("agents.example {", &site), ("127.0.0.1:7341", deployment.server.address())],
    );
    let config = deployment.write("Caddyfile", &text);
    let mut command = Command::new(program);
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config);
    let home = deployment.folder.path();
    command.env("HOME", home).env("XDG_DATA_HOME", home).env("XDG_CONFIG_HOME", home);
    let caddy = Process::spawn(command.stdin(Stdio::null()));
    while !caddy.error_line().contains("serving initial configuration") {}
    deployment.check().await;
}
