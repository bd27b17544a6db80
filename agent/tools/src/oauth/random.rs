//! Random text that cannot be guessed, for states, verifiers and ids.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::error::OAuthError;

/// 256 random bits.
pub(super) fn random() -> Result<String, OAuthError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|_| OAuthError::Unavailable("the system has no random numbers".to_owned()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
