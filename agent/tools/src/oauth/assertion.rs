//! The assertion with which a client authenticates: a JWT that its private key signs (RFC 7523, `private_key_jwt`).

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::error::OAuthError;
use super::random::random;
use crate::config::ConfigError;

/// Lifetime of an assertion, in seconds.
const LIFETIME: u64 = 60;

/// The algorithms, in the order in which a key is tried.
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::ES256, Algorithm::ES384, Algorithm::EdDSA, Algorithm::RS256];

/// A private key and its algorithm.
pub(crate) struct SigningKey {
    key: EncodingKey,
    algorithm: Algorithm,
}

impl SigningKey {
    /// Reads a key. Its algorithm follows from its kind.
    pub(super) fn from_pem(server: &str, pem: &str) -> Result<SigningKey, ConfigError> {
        let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        let der = STANDARD.decode(body.split_ascii_whitespace().collect::<String>());
        let der = der.unwrap_or_default();
        let keys = ALGORITHMS.into_iter().map(|algorithm| {
            let key = match algorithm {
                Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_der(&der),
                Algorithm::EdDSA => EncodingKey::from_ed_der(&der),
                _ => EncodingKey::from_rsa_der(&der),
            };
            SigningKey { key, algorithm }
        });
        let mut usable = keys.filter(|key| key.sign(&json!({})).is_ok());
        usable.next().ok_or_else(|| {
            let why = "oauth.private_key must be PEM: an EC (P-256 or P-384) or Ed25519 key in \
                       PKCS #8, or an RSA key in PKCS #1";
            ConfigError::new(server, why)
        })
    }

    fn sign(&self, claims: &Value) -> Result<String, jsonwebtoken::errors::Error> {
        encode(&Header::new(self.algorithm), claims, &self.key)
    }

    /// Returns an assertion for one authorization server.
    pub(super) fn assertion(&self, client_id: &str, issuer: &str) -> Result<String, OAuthError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({
            "iss": client_id,
            "sub": client_id,
            "aud": issuer,
            "iat": now,
            "exp": now + LIFETIME,
            "jti": random()?,
        });
        self.sign(&claims)
            .map_err(|_| OAuthError::Refused("the assertion cannot be signed".to_owned()))
    }
}
