//! Why a server cannot be used with OAuth.

use std::error::Error;
use std::io;

use crate::config::ConfigError;

/// Why a token could not be obtained. No variant contains a token, a code or a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OAuthError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A person has to log in.
    #[error("it requires a login{}: run `abide mcp login {server}`", describe_scopes(.scopes))]
    LoginRequired {
        /// The server.
        server: String,
        /// The scopes that the server asks for, if it has named them.
        scopes: Vec<String>,
    },
    /// The authorization server cannot be reached. A later attempt may succeed.
    #[error("its authorization server is unavailable: {0}")]
    Unavailable(String),
    /// Metadata or an answer must not be used, or the authorization server has refused the request.
    #[error("the authorization was refused: {0}")]
    Refused(String),
    /// The answer of the browser does not belong to this login.
    #[error("the answer does not belong to this login: its state differs")]
    ForeignState,
    /// The stored login cannot be read or written.
    #[error("the stored login cannot be used: {0}")]
    Storage(String),
}

fn describe_scopes(scopes: &[String]) -> String {
    if scopes.is_empty() { String::new() } else { format!(" with the scopes {}", scopes.join(" ")) }
}

impl OAuthError {
    /// Returns a stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            OAuthError::Config(why) => why.code(),
            OAuthError::LoginRequired { .. } => "oauth_login_required",
            OAuthError::Unavailable(_) => "oauth_unavailable",
            OAuthError::Refused(_) => "oauth_refused",
            OAuthError::ForeignState => "oauth_foreign_state",
            OAuthError::Storage(_) => "oauth_storage",
        }
    }

    /// Returns `true` if only a person can change it, outside of the run: a repetition fails again until then.
    pub(crate) fn needs_person(&self) -> bool {
        matches!(self, OAuthError::LoginRequired { .. } | OAuthError::Storage(_))
    }

    /// Returns the error of this kind among the causes of another one.
    pub(crate) fn among_causes<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a OAuthError> {
        let mut cause = Some(error);
        while let Some(one) = cause {
            if let Some(found) = one.downcast_ref::<OAuthError>() {
                return Some(found);
            }
            // An I/O error does not report the error that it contains as its cause.
            let inner = one.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if let Some(found) = inner.and_then(|inner| inner.downcast_ref::<OAuthError>()) {
                return Some(found);
            }
            cause = one.source();
        }
        None
    }
}
