//! Signs the state of a request that needs input. The client returns it, and must not change it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::Value as JsonValue;

use crate::mcp_handler::McpFailure;

/// How long a client may take to answer. A person who decides may be away for a while.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The key of this process.
pub(super) struct StateSeal {
    encoding: EncodingKey,
    decoding: DecodingKey,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    /// The identity of the caller.
    sub: String,
    /// The request: the state of one is not valid for another.
    aud: String,
    exp: u64,
    state: JsonValue,
}

impl std::fmt::Debug for StateSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateSeal")
    }
}

impl Default for StateSeal {
    fn default() -> StateSeal {
        let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
        let secret = halves.map(uuid::Uuid::into_bytes).concat();
        StateSeal {
            encoding: EncodingKey::from_secret(&secret),
            decoding: DecodingKey::from_secret(&secret),
        }
    }
}

impl StateSeal {
    /// Signs a state for an identity and a request.
    pub(super) fn sign(
        &self,
        sub: &str,
        aud: &str,
        state: JsonValue,
    ) -> Result<String, McpFailure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let exp = (now + LIFETIME).as_secs();
        let claims = Claims { sub: sub.to_owned(), aud: aud.to_owned(), exp, state };
        let header = Header::new(Algorithm::HS256);
        jsonwebtoken::encode(&header, &claims, &self.encoding).map_err(|why| McpFailure {
            code: -32603,
            message: format!("the state cannot be signed: {why}"),
            data: None,
        })
    }

    /// Returns the state, if it was signed for this identity and request.
    pub(super) fn open(&self, sub: &str, aud: &str, text: &str) -> Result<JsonValue, McpFailure> {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_audience(&[aud]);
        let opened = jsonwebtoken::decode::<Claims>(text, &self.decoding, &validation).ok();
        let opened = opened.map(|data| data.claims).filter(|claims| claims.sub == sub);
        opened.map(|claims| claims.state).ok_or_else(|| {
            McpFailure::invalid(
                "requestState is not valid: it was changed, has expired, or is of another request \
                 or server; call again without it",
            )
        })
    }
}
