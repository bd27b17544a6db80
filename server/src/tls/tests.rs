//! Certificates and keys that fit and do not fit, and their replacement.

use std::fs;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::*;

/// A folder with the files of a server.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    fn files(&self) -> TlsFiles {
        let path = |name: &str| self.0.path().join(name);
        TlsFiles { certificate: path("cert.pem"), key: path("key.pem"), client_ca: None }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("it is written");
    }

    /// Writes a certificate for these years, and its key.
    fn write_pair(&self, from: i32, to: i32) {
        let (certificate, key) = pair(from, to);
        self.write("cert.pem", &certificate);
        self.write("key.pem", &key);
    }

    /// The refusal of these files, without their folder.
    fn refusal(&self) -> String {
        let refusal = Tls::open(self.files()).expect_err("they are refused");
        assert_eq!(refusal.code, Code::BadArguments);
        assert!(refusal.hint.is_some(), "{refusal}");
        refusal.detail.replace(&format!("{}/", self.0.path().display()), "")
    }
}

/// A certificate that is valid in these years, and its key.
fn pair(from: i32, to: i32) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params =
        CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name of a host");
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    let certificate = params.self_signed(&key).expect("it is signed");
    (certificate.pem(), key.serialize_pem())
}

#[test]
fn files_that_do_not_fit_are_refused_with_their_names() {
    let folder = Folder::new();
    assert_eq!(folder.refusal(), "cert.pem cannot be read: no such file or directory (os error 2)");
    folder.write_pair(2020, 2021);
    assert_eq!(folder.refusal(), "the certificate cert.pem expired at 2021-01-01T00:00:00Z");
    folder.write_pair(3020, 3021);
    assert_eq!(
        folder.refusal(),
        "the certificate cert.pem is not valid before 3020-01-01T00:00:00Z"
    );
    folder.write_pair(2020, 3020);
    assert!(Tls::open(folder.files()).is_ok());

    let (_, other_key) = pair(2020, 3020);
    folder.write("key.pem", &other_key);
    assert_eq!(folder.refusal(), "key.pem is not the key of cert.pem");
    folder.write("key.pem", "");
    assert_eq!(folder.refusal(), "key.pem contains no private key");
    for encrypted in [
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n\
         -----END EC PRIVATE KEY-----\n",
    ] {
        folder.write("key.pem", encrypted);
        assert_eq!(folder.refusal(), "the key key.pem is encrypted with a passphrase");
    }
    folder.write("key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n");
    assert_eq!(folder.refusal(), "key.pem is not valid PEM");
    folder.write("cert.pem", &other_key);
    assert_eq!(folder.refusal(), "cert.pem contains no certificate");
    folder.write("cert.pem", &"x".repeat(2 << 20));
    assert_eq!(folder.refusal(), "cert.pem has more than 1048576 bytes");
}

#[test]
fn a_certificate_of_an_authority_is_recognised() {
    let key = KeyPair::generate().expect("a key");
    for (is_ca, expected) in [
        (rcgen::IsCa::NoCa, false),
        (rcgen::IsCa::ExplicitNoCa, false),
        (rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained), true),
    ] {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("it has no names");
        params.is_ca = is_ca;
        let certificate = params.self_signed(&key).expect("it is signed");
        assert_eq!(is_authority(certificate.der()), expected);
    }
}

#[test]
fn an_error_does_not_quote_a_key() {
    let folder = Folder::new();
    folder.write_pair(2020, 3020);
    folder.write("key.pem", "-----BEGIN PRIVATE KEY-----c2VjcmV0\nc2VjcmV0\n");
    assert!(!folder.refusal().contains("c2VjcmV0"));
    folder.write("cert.pem", "-----BEGIN PRIVATE KEY-----c2VjcmV0\nc2VjcmV0\n");
    assert!(!folder.refusal().contains("c2VjcmV0"));
}

#[test]
fn a_new_pair_replaces_the_former_one_and_an_invalid_pair_does_not() {
    let folder = Folder::new();
    folder.write_pair(2020, 3020);
    let tls = Tls::open(folder.files()).expect("they fit");
    let now = UnixTime::now();
    let config = || Arc::clone(&tls.lock().config);
    let first = config();
    assert_eq!(tls.check(now), Checked::Unchanged);

    // As an authority's program does: first the certificate, then its key.
    let (certificate, key) = pair(2020, 3021);
    folder.write("next.pem", &certificate);
    fs::rename(folder.0.path().join("next.pem"), folder.files().certificate).expect("it exists");
    let Checked::Refused(why) = tls.check(now) else { panic!("the key is that of the former one") };
    assert!(why.detail.contains("is not the key of"), "{why}");
    assert_eq!(tls.check(now), Checked::Unchanged, "the log has one line for one change");
    assert!(Arc::ptr_eq(&first, &config()), "the former pair is in use");
    folder.write("next.pem", &key);
    fs::rename(folder.0.path().join("next.pem"), folder.files().key).expect("it exists");
    assert_eq!(tls.check(now), Checked::Replaced);
    let second = config();
    assert!(!Arc::ptr_eq(&first, &second));

    fs::remove_file(folder.files().key).expect("it exists");
    assert!(matches!(tls.check(now), Checked::Refused(_)));
    assert!(Arc::ptr_eq(&second, &config()));
    folder.write_pair(2020, 3022);
    assert_eq!(tls.check(now), Checked::Replaced);
}

/// A new certificate that the clock of the server took for one of the future was not used before the files changed again.
#[test]
fn a_certificate_that_is_not_valid_yet_is_used_when_it_is() {
    let folder = Folder::new();
    folder.write_pair(2020, 3020);
    let tls = Tls::open(folder.files()).expect("they fit");
    let now = UnixTime::now();
    folder.write_pair(2500, 3021);
    let Checked::Refused(why) = tls.check(now) else { panic!("it is not valid before 2500") };
    assert!(why.detail.contains("is not valid before 2500-01-01"), "{why}");
    assert_eq!(tls.check(now), Checked::Unchanged, "the log has one line for one reason");
    assert!(!tls.lock().is_expiry_logged);
    // In the year 2514.
    let later = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1 << 34));
    assert_eq!(tls.check(later), Checked::Replaced);
    assert_eq!(tls.check(later), Checked::Unchanged);
}

/// Secrets of Kubernetes are symlinks into a folder, which is a symlink that is replaced.
#[test]
fn a_pair_behind_a_symlink_is_replaced_at_once() {
    let folder = Folder::new();
    let path = |name: &str| folder.0.path().join(name);
    for (name, to) in [("first", 3020), ("second", 3021)] {
        fs::create_dir(path(name)).expect("it is created");
        let (certificate, key) = pair(2020, to);
        folder.write(&format!("{name}/cert.pem"), &certificate);
        folder.write(&format!("{name}/key.pem"), &key);
    }
    let link = |from: &str, to: &str| std::os::unix::fs::symlink(from, path(to)).expect("a link");
    link("first", "data");
    link("data/cert.pem", "cert.pem");
    link("data/key.pem", "key.pem");
    let tls = Tls::open(folder.files()).expect("they fit");
    link("second", "data-next");
    fs::rename(path("data-next"), path("data")).expect("it is replaced");
    assert_eq!(tls.check(UnixTime::now()), Checked::Replaced);
}

#[test]
fn a_certificate_that_expires_while_it_is_in_use_is_logged_once() {
    let folder = Folder::new();
    folder.write_pair(2020, 3020);
    let tls = Tls::open(folder.files()).expect("they fit");
    assert_eq!(tls.not_after().to_string(), "3020-01-01T00:00:00Z");
    assert_eq!(tls.check(UnixTime::now()), Checked::Unchanged);
    assert!(!tls.lock().is_expiry_logged);
    let later = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1 << 36));
    assert_eq!(tls.check(later), Checked::Unchanged);
    assert!(tls.lock().is_expiry_logged);
}

#[test]
fn a_certificate_has_the_fingerprint_that_openssl_prints() {
    let folder = Folder::new();
    folder.write_pair(2020, 3020);
    let path = folder.files().certificate;
    let certificate = ClientCertificate::open(&path).expect("it is a certificate");
    let der = CertificateDer::from_pem_file(&path).expect("it is a certificate");
    assert_eq!(certificate.fingerprint(), hex::encode(Sha256::digest(&der)));
    assert_eq!(certificate.token_id(), &certificate.fingerprint()[..32]);
    assert_eq!(certificate.not_after().to_string(), "3020-01-01T00:00:00Z");
    assert_eq!(ClientCertificate::of(&der), Some(certificate.clone()));
    assert!(certificate.fingerprint().ends_with(certificate.last_four()));
    assert!(ClientCertificate::open(&folder.files().key).is_err());
}
