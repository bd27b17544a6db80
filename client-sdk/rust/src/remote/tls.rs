//! TLS of a connection: whom it trusts, the certificate that it presents, and what a failed handshake means.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide_schema::{Code, Refusal, lowercase_first};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as TlsError, InconsistentKeys,
    InvalidMessage, RootCertStore,
};
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dial::TlsOptions;
use super::frame::cut;
use crate::Error;

/// Names of a certificate that a message repeats.
const SHOWN_NAMES: usize = 5;

/// The TLS of an address. Clones share it.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    /// As errors name it.
    url: String,
    host: String,
    name: ServerName<'static>,
    ca: Option<PathBuf>,
    has_certificate: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration has the private key.
        f.debug_struct("Tls")
            .field("host", &self.host)
            .field("ca", &self.ca)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Returns the TLS for a host.
    ///
    /// # Errors
    /// [`Error::Refused`] if a file cannot be used; [`Error::Address`] if the host has no form that a certificate can name.
    pub(super) fn new(url: &str, host: &str, options: &TlsOptions) -> Result<Tls, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Address {
            url: url.to_owned(),
            why: "no certificate can name its host".to_owned(),
        })?;
        Ok(Tls {
            connector: TlsConnector::from(Arc::new(read_config(url, options)?)),
            url: url.to_owned(),
            host: host.to_owned(),
            name,
            ca: options.ca.clone(),
            has_certificate: options.client.is_some(),
        })
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// [`Error::Tls`] with the reason; [`Error::Unreachable`] if the connection was lost.
    pub(super) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Error> {
        self.connector
            .connect(self.name.clone(), stream)
            .await
            .map_err(|why| self.explain(&why).unwrap_or_else(|| Error::unreachable(&self.url, why)))
    }

    /// Returns what an error of TLS means for the caller; `None` for other errors of a connection.
    pub(super) fn explain(&self, error: &io::Error) -> Option<Error> {
        let error = error.get_ref()?.downcast_ref::<TlsError>()?;
        let (why, hint) = match error {
            TlsError::InvalidCertificate(why) => self.explain_certificate(why),
            TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => (
                "it does not speak TLS".to_owned(),
                "write http:// in place of https://, or start the server with --tls-cert and --tls-key",
            ),
            TlsError::AlertReceived(alert)
                if is_about_certificate(*alert) && !self.has_certificate =>
            {
                (
                    format!("the server requires a certificate of this client ({alert:?})"),
                    "give the certificate and its key: --cert FILE --key FILE, in Rust `client_certificate(…)`",
                )
            }
            TlsError::AlertReceived(alert) if is_about_certificate(*alert) => (
                format!("the server does not accept the certificate of this client ({alert:?})"),
                "present a certificate that an authority of `abide serve --tls-client-ca` has signed and that has not expired, or none",
            ),
            // Some servers send it to a client without a certificate.
            TlsError::AlertReceived(alert @ AlertDescription::HandshakeFailure)
                if !self.has_certificate =>
            {
                (
                    format!("the server ended the handshake ({alert:?})"),
                    "check that the server speaks TLS 1.2 or 1.3; if it requires a certificate of this client, give it with --cert FILE --key FILE, in Rust `client_certificate(…)`",
                )
            }
            TlsError::AlertReceived(alert) => (
                format!("the server ended the handshake ({alert:?})"),
                "check that the server speaks TLS 1.2 or 1.3, and its log",
            ),
            TlsError::PeerIncompatible(why) => (
                format!("the server and this client have no common protocol ({why:?})"),
                "check that the server speaks TLS 1.2 or 1.3",
            ),
            other => (lowercase_first(&other.to_string()), OTHER_HINT),
        };
        Some(Error::Tls { url: self.url.clone(), why: cut(&why), hint: hint.to_owned() })
    }

    fn explain_certificate(&self, error: &CertificateError) -> (String, &'static str) {
        match error {
            CertificateError::UnknownIssuer => match &self.ca {
                None => (
                    "its certificate is signed by an authority that this machine does not trust"
                        .to_owned(),
                    UNKNOWN_ISSUER_HINT,
                ),
                Some(ca) => (
                    format!("its certificate is not signed by an authority in {}", ca.display()),
                    UNKNOWN_ISSUER_HINT,
                ),
            },
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
                "its certificate has expired".to_owned(),
                "renew the certificate of the server, or check the clock of this machine",
            ),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
                "its certificate is not valid yet".to_owned(),
                "check the clock of this machine, and that of the authority",
            ),
            CertificateError::NotValidForName => {
                (format!("its certificate does not name {}", self.host), NAME_HINT)
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                let names: Vec<&str> =
                    presented.iter().take(SHOWN_NAMES).map(|name| bare_name(name)).collect();
                let names = names.join(", ");
                (format!("its certificate names {names}, and not {}", self.host), NAME_HINT)
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
                "its certificate is not one of a server".to_owned(),
                "request a certificate with the extended key usage serverAuth",
            ),
            other => (lowercase_first(&other.to_string()), OTHER_HINT),
        }
    }
}

const UNKNOWN_ISSUER_HINT: &str = "give the certificate of the authority that signed it: --ca FILE or ABIDE_CA, in Rust `ca(…)`; the server sends those between both";

const NAME_HINT: &str =
    "write a name of the certificate in the URL, or request a certificate that has this name";

const OTHER_HINT: &str =
    "see docs/tls.md; `openssl s_client -connect HOST:PORT` shows what the server presents";

/// Whether the alert of a server is about the certificate of the client.
fn is_about_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::NoCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
    )
}

/// Returns `localhost` of `DnsName("localhost")`, and `127.0.0.1` of `IpAddress(127.0.0.1)`.
fn bare_name(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(name, |inner| inner.trim_matches('"'))
}

fn read_config(url: &str, options: &TlsOptions) -> Result<ClientConfig, Error> {
    // The provider is named, because a program can have several.
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|why| Error::Tls {
            url: url.to_owned(),
            why: lowercase_first(&why.to_string()),
            hint: OTHER_HINT.to_owned(),
        })?;
    let builder = match &options.ca {
        // No other authority is trusted: one of the public could certify the same name.
        Some(path) => builder.with_root_certificates(read_roots(path)?),
        None => {
            let verifier = Verifier::new(provider).map_err(|why| Error::Tls {
                url: url.to_owned(),
                why: format!("this machine has no trusted authorities: {why}"),
                hint: "install the package ca-certificates, or give the authority: --ca FILE or ABIDE_CA, in Rust `ca(…)`".to_owned(),
            })?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let mut config = match &options.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(read_certificates(certificate)?, read_key(key)?)
            .map_err(|why| match why {
                TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    let certificate = certificate.display();
                    let detail = format!("{} is not the key of {certificate}", key.display());
                    Refusal::new(Code::BadArguments, detail)
                        .hint("give the key with which the certificate was requested")
                }
                why => unusable(certificate, &lowercase_first(&why.to_string())),
            })?,
    };
    // A WebSocket begins with a request of HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn read_roots(path: &Path) -> Result<RootCertStore, Refusal> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|why| unusable(path, &lowercase_first(&why.to_string())))?;
    }
    Ok(roots)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    let text = read_file(path)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        // The error of the parser quotes the file, which may have a key.
        _ => Err(unusable(path, "it has no certificate in PEM")),
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Refusal> {
    let text = read_file(path)?;
    warn_of_readers(path);
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| unusable(path, "it has no private key in PEM without a passphrase"))
}

/// Warns once for a client: a key is read when the client is created.
#[cfg(unix)]
fn warn_of_readers(key: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    // The group can be meant to read it, as `ssl-cert` of Debian.
    if fs::metadata(key).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o004 != 0) {
        tracing::warn!(
            name: "key_exposed",
            key = %key.display(),
            "other users of this machine can read the private key"
        );
    }
}

#[cfg(not(unix))]
fn warn_of_readers(_key: &Path) {}

fn read_file(path: &Path) -> Result<Vec<u8>, Refusal> {
    fs::read(path).map_err(|why| {
        let reason = lowercase_first(&why.to_string());
        let detail = format!("{} cannot be read: {reason}", path.display());
        Refusal::new(Code::BadArguments, detail)
            .hint("check the path, and who may read the file")
            .explain_exhaustion(&why)
    })
}

fn unusable(path: &Path, why: &str) -> Refusal {
    Refusal::new(Code::BadArguments, format!("{} cannot be used: {why}", path.display()))
        .hint("give certificates and keys in PEM, as `openssl` and authorities write them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_certificates_are_shown_as_a_user_writes_them() {
        for (name, bare) in [
            (r#"DnsName("agents.example")"#, "agents.example"),
            ("IpAddress(127.0.0.1)", "127.0.0.1"),
            ("DirectoryName", "DirectoryName"),
        ] {
            assert_eq!(bare_name(name), bare);
        }
    }

    #[test]
    fn a_file_without_certificates_is_refused_before_a_connection() {
        let options = TlsOptions { ca: Some("/dev/null".into()), client: None };
        let error = Tls::new("https://a", "a", &options).expect_err("it has no certificate");
        assert_eq!(error.code(), Some(Code::BadArguments));
        assert_eq!(error.to_string(), "/dev/null cannot be used: it has no certificate in PEM");
        let options = TlsOptions { ca: Some("/dev/null/no".into()), client: None };
        assert!(Tls::new("https://a", "a", &options).is_err());
    }
}
