//! The context of a call in signed headers, so that a server can rely on who calls.
//!
//! `Abide-Context` has the context as JSON in base64url. `Abide-Signature` is `t=SECONDS,v1=HEX`: HMAC-SHA-256 over the
//! lines time, method, path with query, the value of `Abide-Context`, and the SHA-256 of the body in hex.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use sha2::{Digest as _, Sha256};

const CONTEXT: HeaderName = HeaderName::from_static("abide-context");
const SIGNATURE: HeaderName = HeaderName::from_static("abide-signature");

/// A secret that the tool shares with its server.
pub(super) struct ContextKey(EncodingKey);

impl ContextKey {
    pub(super) fn new(key: &str) -> ContextKey {
        ContextKey(EncodingKey::from_secret(key.as_bytes()))
    }

    /// Sets the headers of a request.
    pub(super) fn sign(
        &self,
        headers: &mut HeaderMap,
        method: &Method,
        url: &Url,
        context: &str,
        body: &str,
    ) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let context = URL_SAFE_NO_PAD.encode(context);
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let digest = hex::encode(Sha256::digest(body));
        let text = format!("{now}\n{method}\n{target}\n{context}\n{digest}");
        let signature = format!("t={now},v1={}", hmac(&self.0, &text));
        for (name, value) in [(CONTEXT, context), (SIGNATURE, signature)] {
            let value = HeaderValue::try_from(value).expect("base64url and hex are ASCII");
            headers.insert(name, value);
        }
    }
}

/// Returns the HMAC-SHA-256 (RFC 2104) of a text, in hex.
fn hmac(key: &EncodingKey, text: &str) -> String {
    // HS256 of JWTs is this function (RFC 7518, section 3.2), in base64url.
    let code = jsonwebtoken::crypto::sign(text.as_bytes(), key, Algorithm::HS256)
        .expect("every secret is a key of HMAC");
    hex::encode(URL_SAFE_NO_PAD.decode(code).expect("a signature is base64url"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn the_code_is_that_of_the_standard() {
        for (key, text, code) in [
            (
                vec![0x0B; 20],
                "Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe".to_vec(),
                "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                vec![0xAA; 131],
                "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            assert_eq!(hmac(&EncodingKey::from_secret(&key), text), code);
        }
    }
}
