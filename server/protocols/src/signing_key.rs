//! The key that signs cards of agents and push notifications: Ed25519 (RFC 8032). Its public half is served as a JWKS
//! (RFC 7517), so that anyone can verify the signatures.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use abide_schema::{Code, Refusal};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ed25519_dalek::Signer as _;
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use serde_json::{Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

/// A private key.
#[derive(Clone)]
pub struct SigningKey {
    key: Arc<ed25519_dalek::SigningKey>,
    /// The public key, in base64url.
    public: String,
    /// The thumbprint of the public key (RFC 7638).
    id: String,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.id)
    }
}

impl SigningKey {
    /// Reads a key from a file: PKCS#8 in PEM, as `openssl genpkey -algorithm ed25519` writes it.
    ///
    /// # Errors
    /// `bad_arguments` if the file cannot be read or has another form.
    pub fn open(path: &Path) -> Result<SigningKey, Refusal> {
        let text =
            std::fs::read_to_string(path).map_err(|why| unusable_key(path, &why.to_string()))?;
        SigningKey::parse(&text)
            .ok_or_else(|| unusable_key(path, "the file is not an Ed25519 key in PKCS#8 PEM"))
    }

    fn parse(pem: &str) -> Option<SigningKey> {
        let (_, rest) = pem.split_once("-----BEGIN PRIVATE KEY-----")?;
        let (body, _) = rest.split_once("-----END PRIVATE KEY-----")?;
        let body: String = body.split_whitespace().collect();
        let der = BASE64_STANDARD.decode(body).ok()?;
        let key = ed25519_dalek::SigningKey::from_pkcs8_der(&der).ok()?;
        let public = BASE64_URL_SAFE_NO_PAD.encode(key.verifying_key().as_bytes());
        let thumbprint = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{public}"}}"#);
        let id = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(thumbprint.as_bytes()));
        Some(SigningKey { key: Arc::new(key), public, id })
    }

    /// Returns the signature of a message, in base64.
    pub(crate) fn sign(&self, message: &[u8]) -> String {
        BASE64_STANDARD.encode(self.key.sign(message).to_bytes())
    }

    /// Returns a detached JSON Web Signature (RFC 7515) of a payload: the protected header and the signature. `keys` is
    /// the address of the JWKS.
    pub(crate) fn sign_detached(&self, payload: &str, keys: &str) -> (String, String) {
        let header = json!({"alg": "EdDSA", "kid": self.id, "jku": keys, "typ": "JOSE"});
        let protected = BASE64_URL_SAFE_NO_PAD.encode(header.to_string());
        let input = format!("{protected}.{}", BASE64_URL_SAFE_NO_PAD.encode(payload));
        let signature = self.key.sign(input.as_bytes()).to_bytes();
        (protected, BASE64_URL_SAFE_NO_PAD.encode(signature))
    }

    /// Returns the public key as a JWKS.
    pub(crate) fn public_keys(&self) -> JsonValue {
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": self.public, "kid": self.id,
            "alg": "EdDSA", "use": "sig"}]})
    }
}

fn unusable_key(path: &Path, why: &str) -> Refusal {
    let detail = format!("{}: {why}", path.display());
    let hint = "create a key: `openssl genpkey -algorithm ed25519 -out signing.pem`";
    Refusal::new(Code::BadArguments, detail).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of RFC 8037, appendix A.
    const PEM: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
        -----END PRIVATE KEY-----\n";

    #[test]
    fn a_key_signs_as_rfc_8037_shows() {
        let key = SigningKey::parse(PEM).expect("it is a key");
        assert_eq!(key.id, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
        assert_eq!(
            key.public_keys()["keys"][0]["x"],
            "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
        );
        // Its example signs the header {"alg":"EdDSA"} and the payload "Example of Ed25519 signing".
        let input = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
        let signature = BASE64_STANDARD.decode(key.sign(input.as_bytes())).expect("it is base64");
        assert_eq!(
            BASE64_URL_SAFE_NO_PAD.encode(signature),
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
        );
    }

    #[test]
    fn other_files_are_no_keys() {
        for text in ["", "-----BEGIN PRIVATE KEY-----\n?\n-----END PRIVATE KEY-----", &PEM[..60]] {
            assert!(SigningKey::parse(text).is_none(), "{text}");
        }
        let missing = SigningKey::open(Path::new("/nowhere")).expect_err("there is no file");
        assert_eq!(missing.code, Code::BadArguments);
    }
}
