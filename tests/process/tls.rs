//! TLS as its users meet it: clients that trust the server and clients that do not, certificates of clients, renewed
//! certificates, and commands on the machine of the server.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_client::arguments::CreateSession;
use abide_client::{Abide, Error};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::Value as JsonValue;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::program::{ExitedProcess, Process, abide, run};
use crate::server::Server;

/// An authority that signs certificates, with a folder for them.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    /// Its own certificate.
    pub(crate) fn ca(&self) -> String {
        text(&self.folder.path().join("ca.pem"))
    }

    /// Signs a certificate. Returns its file, and the file of its key.
    pub(crate) fn sign(&self, file: &str, names: &[&str]) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |kind: &str| self.folder.path().join(format!("{file}{kind}"));
        fs::write(path(".pem"), certificate.pem()).unwrap();
        fs::write(path(".key"), key.serialize_pem()).unwrap();
        Pair { certificate: path(".pem"), key: path(".key") }
    }
}

/// The files of a certificate and of its key.
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Pair {
    /// The options of a server.
    fn server_options(&self) -> Vec<String> {
        ["--tls-cert".to_owned(), text(&self.certificate), "--tls-key".to_owned(), text(&self.key)]
            .into()
    }

    /// The options of a client.
    fn client_options(&self) -> [String; 4] {
        ["--cert".to_owned(), text(&self.certificate), "--key".to_owned(), text(&self.key)]
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The names of this machine.
pub(crate) const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// A server with TLS on a new file.
struct TlsServer {
    server: Server,
    folder: TempDir,
}

impl TlsServer {
    fn start(options: &[String]) -> TlsServer {
        let folder = tempfile::tempdir().unwrap();
        TlsServer { server: Server::start_with(&folder.path().join("abide.db"), options), folder }
    }

    fn url(&self) -> String {
        format!("https://{}", self.server.address())
    }

    /// Runs a command against its address to its end.
    fn run(&self, args: &[&str], tls: &[&str]) -> ExitedProcess {
        run(args.iter().chain(tls).copied().chain(["--url", &self.url()]))
    }

    /// Runs a command in its folder, without an address.
    fn run_next_to_file(&self, args: &[&str]) -> ExitedProcess {
        Process::spawn(abide().args(args).current_dir(self.folder.path())).ended()
    }
}

/// A command failed for this reason.
#[track_caller]
fn assert_failed(ended: &ExitedProcess, code: i32, why: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.stderr.contains(why), "{why}: {ended:?}");
}

const COUNT: [&str; 2] = ["sql", "SELECT count(*) FROM sessions"];

#[test]
fn a_client_trusts_the_authority_that_it_names_or_those_of_the_system() {
    let authority = Authority::new("ours");
    let other = Authority::new("other");
    let served = TlsServer::start(&authority.sign("server", &LOCAL).server_options());
    served.run(&COUNT, &["--ca", &authority.ca()]).good();
    let with_system = |ca: &str| {
        let mut command = abide();
        command.args(COUNT).args(["--url", &served.url()]).env("SSL_CERT_FILE", ca);
        Process::spawn(command.env_remove("SSL_CERT_DIR")).ended()
    };
    with_system(&authority.ca()).good();
    assert_failed(&with_system(&other.ca()), 3, "an authority that this machine does not trust");
    let wrong = served.run(&COUNT, &["--ca", &other.ca()]);
    assert_failed(&wrong, 3, "its certificate is not signed by an authority in");
    for untrusted in [&wrong, &with_system(&other.ca())] {
        assert_failed(untrusted, 3, "--ca FILE");
    }
    let none = served.run(&COUNT, &["--ca", "/dev/null"]);
    assert_failed(&none, 1, "/dev/null cannot be used: it has no certificate in PEM");

    let elsewhere = TlsServer::start(&authority.sign("else", &["agents.example"]).server_options());
    let misnamed = elsewhere.run(&COUNT, &["--ca", &authority.ca()]);
    assert_failed(&misnamed, 3, "its certificate names agents.example, and not 127.0.0.1");
}

#[test]
fn plain_text_and_tls_at_the_wrong_port_are_explained() {
    let authority = Authority::new("ours");
    let served = TlsServer::start(&authority.sign("server", &LOCAL).server_options());
    let plain_url = format!("http://{}", served.server.address());
    let plain = run(COUNT.into_iter().chain(["--url", &plain_url]));
    assert_failed(&plain, 1, "this port requires TLS, and the request came in plain text");

    let server = Server::start();
    let tls_url = format!("https://{}", server.address());
    let tls = run(COUNT.into_iter().chain(["--url", &tls_url, "--ca", &authority.ca()]));
    assert_failed(&tls, 3, "it does not speak TLS");
}

#[test]
fn a_server_does_not_start_with_files_that_do_not_fit() {
    let authority = Authority::new("ours");
    let first = authority.sign("first", &LOCAL);
    let second = authority.sign("second", &LOCAL);
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let start = |options: &[&str]| {
        let words = ["serve", "--listen", "127.0.0.1:0", "--db", db.to_str().unwrap()];
        run(words.iter().chain(options).copied())
    };
    let certificate = text(&first.certificate);
    let mixed = start(&["--tls-cert", &certificate, "--tls-key", &text(&second.key)]);
    assert_failed(&mixed, 1, "is not the key of");
    let missing = start(&["--tls-cert", "none.pem", "--tls-key", &text(&first.key)]);
    assert_failed(&missing, 1, "none.pem cannot be read");
    let of_client = start(&["--cert", &certificate, "--key", &text(&first.key)]);
    assert_failed(&of_client, 2, "--cert and --key are the certificate of a client");
    assert_eq!(start(&["--tls-cert", &certificate]).code, Some(2));
    assert!(!db.exists(), "nothing is created");
}

#[tokio::test]
async fn websockets_and_event_streams_work_over_tls() {
    let authority = Authority::new("ours");
    let served = TlsServer::start(&authority.sign("server", &LOCAL).server_options());
    let abide = Abide::builder(&served.url()).ca(authority.ca()).connect().await.unwrap();
    let mut sessions = abide.subscribe("SELECT id FROM sessions").await.unwrap();
    sessions.try_next().await.unwrap().expect("the first result");
    abide.call(CreateSession::new("support").id("s1")).await.unwrap();
    let update = sessions.try_next().await.unwrap().expect("a change");
    assert_eq!(update.inserts::<String>().unwrap(), ["s1"]);

    let mut stream = connect(&served, &authority).await;
    let head =
        "GET /v1/subscribe?sql=SELECT%20id%20FROM%20sessions HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut received = String::new();
    while !received.contains("s1") {
        let mut part = [0; 4096];
        let bytes = stream.read(&mut part).await.unwrap();
        assert!(bytes > 0, "{received}");
        received.push_str(std::str::from_utf8(&part[..bytes]).unwrap());
    }
    assert!(received.contains("event: snapshot"), "{received}");
    abide.close().await;
}

async fn connect(
    served: &TlsServer,
    authority: &Authority,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpStream::connect(served.server.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
}

#[tokio::test]
async fn the_metrics_say_when_the_certificate_expires() {
    let authority = Authority::new("ours");
    let served = TlsServer::start(&authority.sign("server", &LOCAL).server_options());
    let mut stream = connect(&served, &authority).await;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let name = "abide_tls_certificate_not_after_seconds ";
    let value = answer.lines().find_map(|line| line.strip_prefix(name)).expect(&answer);
    // The certificates of `rcgen` are valid until 4096-01-01.
    assert_eq!(value.parse::<f64>(), Ok(67_090_118_400.0), "{value}");
}

#[tokio::test]
async fn the_sdk_reports_an_untrusted_certificate_as_an_error_of_its_own() {
    let authority = Authority::new("ours");
    let served = TlsServer::start(&authority.sign("server", &LOCAL).server_options());
    let other = Authority::new("other");
    let failed = Abide::builder(&served.url()).ca(other.ca()).connect().await;
    let error = failed.expect_err("it is not trusted");
    assert!(matches!(error, Error::Tls { .. }), "{error}");
    assert!(error.hint().is_some());
}

/// The error named an alert of TLS, and no option. Abide's own server accepts clients without a certificate.
#[tokio::test]
async fn a_server_that_requires_a_certificate_of_the_client_is_explained() {
    let authority = Authority::new("ours");
    let pair = authority.sign("server", &LOCAL);
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let roots = Arc::new(roots);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build().unwrap();
    let certificate = CertificateDer::from_pem_file(&pair.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((socket, _)) = listener.accept().await {
            let accepted = acceptor.accept(socket).into_fallible().await;
            let (_, mut socket) = accepted.expect_err("the client has no certificate");
            // A socket that is closed before it is read discards the alert.
            let _ = socket.shutdown().await;
            let _ = socket.read_to_end(&mut Vec::new()).await;
        }
    });
    let failed = Abide::builder(&url).ca(authority.ca()).connect().await;
    let error = failed.expect_err("it has no certificate");
    assert!(error.to_string().contains("requires a certificate of this client"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--cert FILE --key FILE")), "{error:?}");
    serving.abort();
}

/// A server whose log the test reads.
fn start_with_log(db: &Path, options: &[String]) -> (Process, String) {
    let mut command = abide();
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db"]).arg(db).args(options);
    let process = Process::spawn(command.env("ABIDE_LOG", "info"));
    let greeting: JsonValue = serde_json::from_str(&process.line()).unwrap();
    assert_eq!(greeting["tls"], true);
    (process, format!("https://{}", greeting["listening"].as_str().unwrap()))
}

/// Waits until the log has a line with this text.
#[track_caller]
fn await_log(process: &Process, text: &str) -> String {
    loop {
        let line = process.error_line();
        if line.contains(text) {
            return line;
        }
    }
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let before = Authority::new("before");
    let after = Authority::new("after");
    let pair = before.sign("server", &LOCAL);
    let renewed = after.sign("server", &LOCAL);
    let folder = tempfile::tempdir().unwrap();
    let (process, url) = start_with_log(&folder.path().join("abide.db"), &pair.server_options());
    let ask = |ca: &str| run(COUNT.into_iter().chain(["--url", &url, "--ca", ca]));
    ask(&before.ca()).good();

    // The first half of the new pair does not fit the second half of the old one.
    fs::rename(&renewed.certificate, &pair.certificate).unwrap();
    let line = await_log(&process, "the server continues with its former certificate");
    assert!(line.contains("WARN") && line.contains("is not the key of"), "{line}");
    ask(&before.ca()).good();

    fs::rename(&renewed.key, &pair.key).unwrap();
    await_log(&process, "the certificate was replaced");
    ask(&after.ca()).good();
    assert_failed(&ask(&before.ca()), 3, "is not signed by an authority in");
}

/// The thread that read a pipe waited for ever, and so did the end of the process.
#[test]
fn a_pipe_in_place_of_a_certificate_does_not_hold_up_the_stop() {
    let authority = Authority::new("ours");
    let pair = authority.sign("server", &LOCAL);
    let folder = tempfile::tempdir().unwrap();
    let (process, url) = start_with_log(&folder.path().join("abide.db"), &pair.server_options());
    fs::remove_file(&pair.certificate).unwrap();
    mkfifoat(CWD, &pair.certificate, Mode::RWXU).unwrap();
    let line = await_log(&process, "it is not a regular file");
    assert!(line.contains("certificate_not_replaced"), "{line}");
    run(COUNT.into_iter().chain(["--url", &url, "--ca", &authority.ca()])).good();
    process.terminate();
    assert_eq!(process.ended().code, Some(0));
}

#[test]
fn a_certificate_of_a_client_is_a_credential_of_an_identity() {
    let authority = Authority::new("ours");
    let worker = authority.sign("w1", &[]);
    let stranger = authority.sign("stranger", &[]);
    let other = Authority::new("other");
    let forged = other.sign("w1", &[]);
    let mut options = authority.sign("server", &LOCAL).server_options();
    options.extend(["--tls-client-ca".to_owned(), authority.ca()]);
    let served = TlsServer::start(&options);
    let ca = authority.ca();
    let run_as = |pair: &Pair, words: &[&str]| {
        let mut args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        args.extend(pair.client_options());
        args.extend(["--url".to_owned(), served.url(), "--ca".to_owned(), ca.clone()]);
        run(args)
    };
    // The administrator of the machine needs no credential: the socket next to the file is one.
    let certificate = text(&worker.certificate);
    let words = ["token", "create", "w1", "--role", "worker", "--certificate", &certificate];
    let fingerprint = served.run_next_to_file(&words).good();
    let id = &fingerprint[..32];

    let none = served.run(&COUNT, &["--ca", &ca]);
    assert_failed(&none, 1, "the request has no token");
    assert_failed(&none, 1, "--cert FILE --key FILE");
    run_as(&worker, &COUNT).good();
    for (mode, warnings) in [(0o644, 1), (0o640, 0)] {
        fs::set_permissions(&worker.key, Permissions::from_mode(mode)).unwrap();
        let ended = run_as(&worker, &COUNT);
        let count = ended.stderr.matches("can read the private key").count();
        assert_eq!((ended.code, count), (Some(0), warnings), "{mode:o}: {ended:?}");
    }
    run_as(&worker, &["call", "register_tool", "name=refund", "effect=at_most_once"]).good();
    let denied = run_as(&worker, &["call", "create_session", "agent=support"]);
    assert_failed(&denied, 1, "[denied]");
    let callers = ["sql", "SELECT caller FROM events WHERE reducer = 'register_tool'", "--json"];
    assert!(served.run_next_to_file(&callers).good().contains("w1"));
    let unknown = run_as(&stranger, &COUNT);
    assert_failed(&unknown, 1, "the client certificate belongs to no identity");
    let refused = run_as(&forged, &COUNT);
    assert_failed(&refused, 3, "the server does not accept the certificate of this client");

    served.run_next_to_file(&["token", "revoke", id]).good();
    assert_failed(&run_as(&worker, &COUNT), 1, "was revoked at");
}

#[test]
fn commands_next_to_the_file_need_no_address_and_no_certificate() {
    let authority = Authority::new("ours");
    // The certificate does not name this machine.
    let pair = authority.sign("server", &["agents.example"]);
    let mut served = TlsServer::start(&pair.server_options());
    served.run_next_to_file(&["call", "create_session", "agent=support", "id=s1"]).good();
    let db = text(&served.server.db());
    let sessions = ["sql", "SELECT id FROM sessions", "--json"];
    assert!(run(sessions.into_iter().chain(["--db", &db])).good().contains("s1"));
    let ready = format!("ready  ·  {}\n", served.url());
    assert_eq!(served.run_next_to_file(&["health"]).good(), ready);
    assert_eq!(run(["health", "--db", &db]).good(), ready);

    // A token is that of its identity, also at the socket.
    let words = ["token", "create", "reader", "--role", "auditor"];
    let token = served.run_next_to_file(&words).good();
    let token = token.trim_end();
    served.run_next_to_file(&[&sessions[..], &["--token", token]].concat()).good();
    let words = ["call", "create_session", "agent=support", "--token", token];
    assert_failed(&served.run_next_to_file(&words), 1, "[denied]");

    let lock = fs::read_to_string(served.server.sibling("abide.db-lock")).unwrap();
    let holder: JsonValue = serde_json::from_str(&lock).unwrap();
    let socket = PathBuf::from(holder["socket"].as_str().unwrap());
    assert!(socket.exists() && holder["url"].as_str().unwrap().starts_with("https://"));
    served.server.stop();
    assert!(!socket.parent().unwrap().exists());
}

/// The socket of a server that was killed stayed in the folder for temporary files.
#[test]
fn the_socket_of_a_killed_server_is_removed_by_the_next_one() {
    let authority = Authority::new("ours");
    let mut served = TlsServer::start(&authority.sign("server", &LOCAL).server_options());
    let socket = |served: &TlsServer| {
        let lock = fs::read_to_string(served.server.sibling("abide.db-lock")).unwrap();
        let holder: JsonValue = serde_json::from_str(&lock).unwrap();
        PathBuf::from(holder["socket"].as_str().unwrap())
    };
    let first = socket(&served);
    served.server.kill();
    assert!(first.exists());
    served.server.start_again();
    let second = socket(&served);
    assert!(!first.exists() && second.exists());
    // A command that opens the file also replaces the entry that names the socket.
    served.server.kill();
    let db = text(&served.server.db());
    run(COUNT.into_iter().chain(["--db", &db])).good();
    assert!(!second.parent().unwrap().exists());
}

/// A command that goes on started an engine of its own while the server was restarted, and the server found the file in
/// use.
#[test]
fn a_command_that_goes_on_waits_for_the_next_start_of_the_server() {
    let authority = Authority::new("ours");
    let mut served = TlsServer::start(&authority.sign("server", &LOCAL).server_options());
    let mut command = abide();
    command.args(["watch", "SELECT id FROM sessions", "--json"]).current_dir(served.folder.path());
    let watch = Process::spawn(&mut command);
    watch.line();
    served.server.stop();
    served.server.start_again();
    served.run_next_to_file(&["call", "create_session", "agent=support", "id=s1"]).good();
    while !watch.line().contains("s1") {}
}
