//! Tokens of identities, generated on the client: only their hash is sent.

use std::fmt;

use abide_reducers::arguments::CreateToken;
use sha2::{Digest as _, Sha256};

/// A newly generated token: 256 random bits. It cannot be recovered later.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
}

/// Number of letters in a token's id.
const ID_LETTERS: usize = 12;

impl Secret {
    /// Generates a token.
    ///
    /// # Errors
    /// The error of the operating system if it has no randomness available.
    pub fn new() -> std::io::Result<Secret> {
        let mut id = [0; ID_LETTERS];
        let mut secret = [0; 32];
        let filled = getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut secret));
        filled.map_err(|why| std::io::Error::other(why.to_string()))?;
        // Lower-case letters and digits without look-alikes: five bits each.
        let letters = b"abcdefghjkmnpqrstuvwxyz023456789";
        let id: String =
            id.iter().map(|byte| char::from(letters[usize::from(byte & 31)])).collect();
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Secret { text: format!("abide_{id}_{secret}") })
    }

    /// Returns the token of a text that [`Secret::text`] has returned; `None` if the text has another form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Secret> {
        let (id, secret) = text.strip_prefix("abide_")?.split_once('_')?;
        let is_id = id.len() == ID_LETTERS
            && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let is_secret = secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_id && is_secret).then(|| Secret { text: text.to_owned() })
    }

    /// Returns the token itself. It grants access to its bearer.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns its id, which is not secret: `revoke_token` takes it.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text.split('_').nth(1).expect("a token has an id")
    }

    /// Returns the SHA-256 of the token, in hexadecimal.
    #[must_use]
    pub fn hash(&self) -> String {
        Sha256::digest(self.text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the call that registers it as a token of an identity; send it alone or in a batch.
    #[must_use]
    pub fn create_token(&self, identity_id: impl Into<String>) -> CreateToken {
        let last_four = &self.text[self.text.len() - 4..];
        CreateToken::new(self.id(), identity_id, self.hash(), last_four)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret(abide_{}_…)", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_only_by_text() {
        let secret = Secret::new().expect("there is randomness");
        let parts: Vec<&str> = secret.text().split('_').collect();
        assert_eq!((parts.len(), parts[0], parts[1].len(), parts[2].len()), (3, "abide", 12, 64));
        let output = format!("{secret:?} {:?}", secret.create_token("ann"));
        assert!(!output.contains(parts[2]) && output.contains(parts[1]), "{output}");
        assert_ne!(secret, Secret::new().expect("there is randomness"));
        assert_eq!(Secret::parse(secret.text()), Some(secret));
        let not_hexadecimal = format!("abide_{}_{}é", "a".repeat(12), "0".repeat(62));
        for wrong in ["", "abide_", "secret", "abide__", not_hexadecimal.as_str()] {
            assert_eq!(Secret::parse(wrong), None, "{wrong}");
        }
    }
}
