//! TLS of a server: a certificate and a key from PEM files, which are read again when they change, and certificates of
//! clients.
//!
//! It does not decide who a caller is: [`ClientCertificate`] is a credential, and [`crate::auth`] looks it up.
//!
//! *Invariant:* the files in use are valid. Invalid files do not replace them, and a server does not start with them.

use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_schema::{Code, Micros, Refusal, lowercase_first};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::BasicConstraints;

use crate::{limits, regular_file};

/// Maximum parts of a kilobyte that are read after a handshake has failed. A client has sent at most its first requests.
const PARTS_AFTER_FAILURE: usize = 64;

/// The protocols over TLS, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files of a server's TLS, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, followed by the certificates of the authorities between it and a root.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities that sign certificates of clients. `None`: clients are not asked for one.
    pub client_ca: Option<PathBuf>,
}

/// TLS of a server. Clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// The files as they were before they were read.
    versions: FileVersions,
    /// When the certificate expires.
    not_after: Micros,
    /// Whether the log says that it has expired.
    is_expiry_logged: bool,
    /// Why later files are not in use, as the log says.
    refusal: Option<Refusal>,
}

/// What a check of the files has found.
#[derive(Debug, PartialEq, Eq)]
enum Checked {
    /// They are the ones in use, or they cannot be used for the same reason as before.
    Unchanged,
    /// They have changed, and are used from now on.
    Replaced,
    /// They have changed, and cannot be used.
    Refused(Refusal),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.0.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// `bad_arguments` with the file: it cannot be read, it is not PEM, the certificate has expired or is not valid yet, or
    /// the key is that of another certificate.
    pub fn open(files: TlsFiles) -> Result<Tls, Refusal> {
        let current = Current::read(&files, UnixTime::now())?;
        Ok(Tls(Arc::new(Shared { files, current: Mutex::new(current) })))
    }

    /// Returns `true` if a certificate of a client is a credential.
    #[must_use]
    pub fn accepts_client_certificates(&self) -> bool {
        self.0.files.client_ca.is_some()
    }

    /// Returns when the certificate in use expires.
    pub(crate) fn not_after(&self) -> Micros {
        self.lock().not_after
    }

    /// Reads the files again whenever they have changed. It never completes.
    pub(crate) async fn reload_on_change(&self) {
        loop {
            tokio::time::sleep(limits::TLS_CHECK_INTERVAL).await;
            let tls = self.clone();
            // A folder of a network can take long to answer.
            let checked = tokio::task::spawn_blocking(move || tls.check(UnixTime::now())).await;
            let files = &self.0.files;
            match checked {
                Ok(Checked::Unchanged) => {}
                Ok(Checked::Replaced) => {
                    tracing::info!(name: "certificate_replaced", certificate = %files.certificate.display(), "the certificate was replaced");
                }
                Ok(Checked::Refused(why)) => {
                    tracing::warn!(name: "certificate_not_replaced", %why, "the server continues with its former certificate");
                }
                Err(why) => {
                    tracing::error!(name: "certificate_check_failed", %why, "the check of the certificate failed")
                }
            }
        }
    }

    /// Reads the files if they are not the ones in use.
    fn check(&self, now: UnixTime) -> Checked {
        let files = &self.0.files;
        let versions = FileVersions::of(files);
        {
            let mut current = self.lock();
            if versions == current.versions {
                current.refusal = None;
                current.log_expiry(files, now);
                return Checked::Unchanged;
            }
        }
        match Current::read(files, now) {
            Ok(read) => {
                *self.lock() = read;
                Checked::Replaced
            }
            // They are read again at the next check: a reason can pass without a change of the files. A new certificate
            // becomes valid, or the process has a free descriptor again.
            Err(why) => {
                let mut current = self.lock();
                current.log_expiry(files, now);
                if current.refusal.as_ref() == Some(&why) {
                    return Checked::Unchanged;
                }
                current.refusal = Some(why.clone());
                Checked::Refused(why)
            }
        }
    }

    /// Begins a connection.
    ///
    /// # Errors
    /// The connection ended, or its handshake failed.
    pub(crate) async fn accept(&self, socket: TcpStream) -> io::Result<FirstContact> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // A request of HTTP begins with its method, and TLS with the byte 22 (RFC 8446, section 5.1).
        if first[0].is_ascii_uppercase() {
            return Ok(FirstContact::PlainHttp(socket));
        }
        let config = Arc::clone(&self.lock().config);
        let stream = match TlsAcceptor::from(config).accept(socket).into_fallible().await {
            Ok(stream) => stream,
            Err((why, socket)) => {
                let _ = timeout(limits::CLOSE_TIMEOUT, close_after_alert(socket)).await;
                return Err(why);
            }
        };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificate = certificates.first().and_then(ClientCertificate::of);
        Ok(FirstContact::Tls(Box::new(stream), certificate))
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a connection whose handshake has failed. A socket that is closed while it has bytes to read discards what it has
/// sent, and with it the alert that says why.
async fn close_after_alert(mut socket: TcpStream) {
    let mut part = [0; 1 << 10];
    if socket.shutdown().await.is_ok() {
        for _ in 0..PARTS_AFTER_FAILURE {
            if !matches!(socket.read(&mut part).await, Ok(1..)) {
                return;
            }
        }
    }
}

/// How a client begins a connection.
pub(crate) enum FirstContact {
    /// With a handshake, which has succeeded; and its certificate, which an accepted authority has signed.
    Tls(Box<TlsStream<TcpStream>>, Option<ClientCertificate>),
    /// With a request in plain text.
    PlainHttp(TcpStream),
}

impl Current {
    fn read(files: &TlsFiles, now: UnixTime) -> Result<Current, Refusal> {
        // First, so that the next check finds a file that is replaced while it is read.
        let versions = FileVersions::of(files);
        let (config, not_after) = read_config(files, now)?;
        let config = Arc::new(config);
        Ok(Current { config, versions, not_after, is_expiry_logged: false, refusal: None })
    }

    /// Says once that the certificate in use has expired.
    fn log_expiry(&mut self, files: &TlsFiles, now: UnixTime) {
        if !self.is_expiry_logged && self.not_after <= micros(now) {
            self.is_expiry_logged = true;
            let certificate = files.certificate.display();
            tracing::warn!(name: "certificate_expired", %certificate, at = %self.not_after, "the certificate has expired: clients refuse it");
        }
    }
}

/// What distinguishes a file from the one that had its name before: its device and number, and when it was changed. A
/// certificate is replaced by a new file, by a new target of a symlink, or in place. `None` if there is no file.
type FileVersion = Option<(u64, u64, i64, i64)>;

/// The versions of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileVersions([FileVersion; 3]);

impl FileVersions {
    fn of(files: &TlsFiles) -> FileVersions {
        FileVersions([
            version_of(&files.certificate),
            version_of(&files.key),
            files.client_ca.as_deref().and_then(version_of),
        ])
    }
}

fn version_of(path: &Path) -> FileVersion {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
}

/// Returns the configuration of these files, and when the certificate expires.
fn read_config(files: &TlsFiles, now: UnixTime) -> Result<(ServerConfig, Micros), Refusal> {
    let provider = Arc::new(ring::default_provider());
    let chain = read_certificates(&files.certificate)?;
    let leaf = chain.first().ok_or_else(|| no_certificate(&files.certificate))?;
    let not_after = check_validity(&files.certificate, leaf, now)?;
    let is_of_authority = is_authority(leaf);
    let key = read_key(&files.key)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|why| unusable(&files.certificate, &why))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(read_roots(path)?);
            // Without a certificate a client sends a token.
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .allow_unauthenticated()
                .build()
                .map_err(|why| unusable(path, &why))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|why| match why {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let certificate = files.certificate.display();
            let detail = format!("{} is not the key of {certificate}", files.key.display());
            Refusal::new(Code::BadArguments, detail)
                .hint("give the key with which the certificate was requested; the first certificate of the file counts")
        }
        rustls::Error::InvalidCertificate(why) => unusable(&files.certificate, &why),
        why => unusable(&files.key, &why),
    })?;
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
    if is_of_authority {
        let certificate = files.certificate.display();
        tracing::warn!(name: "certificate_of_authority", %certificate, "the certificate is one of an authority (CA:TRUE), which clients in Rust refuse");
    }
    Ok((config, not_after))
}

/// Refuses a certificate that no client accepts at this time. Returns when it expires.
fn check_validity(
    path: &Path,
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<Micros, Refusal> {
    let parsed =
        x509_cert::Certificate::from_der(certificate).map_err(|why| unusable(path, &why))?;
    let validity = parsed.tbs_certificate.validity;
    let not_before = micros_of(validity.not_before.to_unix_duration().as_secs());
    let not_after = micros_of(validity.not_after.to_unix_duration().as_secs());
    let path = path.display();
    if not_after <= micros(now) {
        let detail = format!("the certificate {path} expired at {not_after}");
        return Err(Refusal::new(Code::BadArguments, detail)
            .hint("renew it, and give the new file; check the clock of this machine"));
    }
    if micros(now) < not_before {
        let detail = format!("the certificate {path} is not valid before {not_before}");
        return Err(Refusal::new(Code::BadArguments, detail)
            .hint("check the clock of this machine, and whether the file is the one in use"));
    }
    Ok(not_after)
}

/// Whether a certificate signs others, as `openssl req -x509` makes it.
fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    let Ok(parsed) = x509_cert::Certificate::from_der(certificate) else { return false };
    let constraints = parsed.tbs_certificate.get::<BasicConstraints>();
    constraints.is_ok_and(|found| found.is_some_and(|(_, constraints)| constraints.ca))
}

fn micros(time: UnixTime) -> Micros {
    micros_of(time.as_secs())
}

fn micros_of(seconds: u64) -> Micros {
    Micros(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000))
}

/// Reads the certificates of a file.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    let text = read_file(path)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|_| malformed(path))?;
    if certificates.is_empty() { Err(no_certificate(path)) } else { Ok(certificates) }
}

fn no_certificate(path: &Path) -> Refusal {
    let detail = format!("{} contains no certificate", path.display());
    Refusal::new(Code::BadArguments, detail)
        .hint("give a PEM file: it has the line -----BEGIN CERTIFICATE-----")
}

/// Reads the private key of a file.
fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Refusal> {
    let text = read_file(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|why| match why {
        _ if is_encrypted(&text) => {
            let detail = format!("the key {} is encrypted with a passphrase", path.display());
            Refusal::new(Code::BadArguments, detail)
                .hint("decrypt it with `openssl pkey -in FILE -out NEW`, and protect the new file with mode 0600")
        }
        rustls::pki_types::pem::Error::NoItemsFound => {
            let detail = format!("{} contains no private key", path.display());
            Refusal::new(Code::BadArguments, detail)
                .hint("give a PEM file: it has the line -----BEGIN PRIVATE KEY-----")
        }
        _ => malformed(path),
    })
}

/// The refusal of a file that the parser of PEM does not accept. Its error quotes the file, which may have a key.
fn malformed(path: &Path) -> Refusal {
    let detail = format!("{} is not valid PEM", path.display());
    Refusal::new(Code::BadArguments, detail)
        .hint("compare it with the file that the authority or `openssl` wrote")
}

/// Returns `true` if a key has a passphrase: in the form of PKCS#8, or with the header of RFC 1421 that older forms have.
fn is_encrypted(pem: &[u8]) -> bool {
    let text = String::from_utf8_lossy(pem);
    text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
}

/// Reads the authorities of a file.
fn read_roots(path: &Path) -> Result<RootCertStore, Refusal> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|why| unusable(path, &why))?;
    }
    Ok(roots)
}

/// Reads a file of a bounded size.
fn read_file(path: &Path) -> Result<Vec<u8>, Refusal> {
    let mut content = Vec::new();
    let read = regular_file::open(path)
        .and_then(|file| file.take(limits::PEM_BYTES + 1).read_to_end(&mut content));
    if let Err(why) = read {
        let reason = lowercase_first(&why.to_string());
        let detail = format!("{} cannot be read: {reason}", path.display());
        return Err(Refusal::new(Code::BadArguments, detail)
            .hint("check the path, and that the user of the server may read the file")
            .explain_exhaustion(&why));
    }
    if content.len() as u64 > limits::PEM_BYTES {
        let detail = format!("{} has more than {} bytes", path.display(), limits::PEM_BYTES);
        return Err(Refusal::new(Code::BadArguments, detail)
            .hint("give a PEM file with the certificate of this server only"));
    }
    Ok(content)
}

/// The refusal of a file whose content a library does not accept.
fn unusable(path: &Path, why: &dyn fmt::Display) -> Refusal {
    let why = lowercase_first(&why.to_string());
    let detail = format!("{} cannot be used: {why}", path.display());
    Refusal::new(Code::BadArguments, detail)
        .hint("give an X.509 certificate and its RSA, ECDSA or Ed25519 key, in PEM")
}

/// A certificate of a client, by its SHA-256, and when it expires. It is a credential of an identity: the row in `tokens` that has its
/// fingerprint as the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    fingerprint: Arc<str>,
    not_after: Micros,
}

impl ClientCertificate {
    /// Letters of the fingerprint in the id of its row.
    const ID_LETTERS: usize = 32;

    /// Returns the certificate of a handshake, which has checked it. `None` if its dates cannot be read: such a certificate
    /// cannot be registered either ([`ClientCertificate::open`]).
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<ClientCertificate> {
        let parsed = x509_cert::Certificate::from_der(certificate).ok()?;
        let not_after = parsed.tbs_certificate.validity.not_after.to_unix_duration();
        Some(ClientCertificate::new(certificate, micros_of(not_after.as_secs())))
    }

    fn new(certificate: &CertificateDer<'_>, not_after: Micros) -> ClientCertificate {
        let fingerprint = hex::encode(Sha256::digest(certificate)).into();
        ClientCertificate { fingerprint, not_after }
    }

    /// Reads the first certificate of a PEM file.
    ///
    /// # Errors
    /// `bad_arguments`: the file cannot be read, has no certificate, or the certificate has expired.
    pub fn open(path: &Path) -> Result<ClientCertificate, Refusal> {
        let certificates = read_certificates(path)?;
        let certificate = certificates.first().ok_or_else(|| no_certificate(path))?;
        let not_after = check_validity(path, certificate, UnixTime::now())?;
        Ok(ClientCertificate::new(certificate, not_after))
    }

    /// Returns the SHA-256 of the certificate in DER, in lower-case hexadecimal.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns when it expires.
    pub(crate) fn not_after(&self) -> Micros {
        self.not_after
    }

    /// Returns the id of its row in `tokens`: the first half of the fingerprint.
    #[must_use]
    pub fn token_id(&self) -> &str {
        &self.fingerprint[..ClientCertificate::ID_LETTERS]
    }

    /// Returns the last four letters, by which people recognise it.
    #[must_use]
    pub fn last_four(&self) -> &str {
        &self.fingerprint[self.fingerprint.len() - 4..]
    }
}

#[cfg(test)]
mod tests;
