//! The context of a call in signed headers, so that a server can rely on who calls.
//!
//! `Abide-Context` has the context as JSON in base64url. `Abide-Signature` is `t=SECONDS,v1=HEX`: HMAC-SHA-256 over the
//! lines time, method, path with query, the value of `Abide-Context`, and the SHA-256 of the body in hex.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use sha2::{Digest as _, Sha256};

const CONTEXT: HeaderName = HeaderName::from_static("abide-context");
const SIGNATURE: HeaderName = HeaderName::from_static("abide-signature");

/// The block size of SHA-256 in bytes.
const BLOCK: usize = 64;

/// A secret that the tool shares with its server.
pub(super) struct ContextKey(Vec<u8>);

impl ContextKey {
    pub(super) fn new(key: String) -> ContextKey {
        ContextKey(key.into_bytes())
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
        let signature = format!("t={now},v1={}", hex::encode(hmac(&self.0, text.as_bytes())));
        for (name, value) in [(CONTEXT, context), (SIGNATURE, signature)] {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
    }
}

/// HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner_pad = block.map(|byte| byte ^ 0x36);
    let outer_pad = block.map(|byte| byte ^ 0x5C);
    let inner = Sha256::new().chain_update(inner_pad).chain_update(text).finalize();
    Sha256::new().chain_update(outer_pad).chain_update(inner).finalize().into()
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
            assert_eq!(hex::encode(hmac(&key, text.as_bytes())), code);
        }
    }
}
