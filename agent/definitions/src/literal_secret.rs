//! Secrets that a configuration has in plain text. They are stored with the definition, and shown to everyone who can read it.
//! The rule rather misses a secret than reports another text: users would ignore all warnings if some were false.

use serde_json::Value;

use crate::error::DefinitionError;

/// Members whose texts are no settings: schemas, and effects of tools by name.
const SKIPPED: [&str; 4] = ["description", "effects", "parameters", "response_format"];

/// The last words of names whose values are secrets.
const SECRET_WORDS: [&str; 7] =
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY"];

/// Names of headers and variables whose values are credentials.
const CREDENTIALS: [&str; 4] = ["AUTHORIZATION", "PROXY_AUTHORIZATION", "COOKIE", "PGPASSWORD"];

/// The beginnings of keys of well-known services.
const PREFIXES: [&str; 17] = [
    "sk-",
    "sk_live_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "AIza",
    "hf_",
    "npm_",
    "pypi-",
    "whsec_",
];

/// Minimum length of a secret. Shorter values are placeholders for servers that need none.
const BYTES_MIN: usize = 8;

/// Minimum length of a value that is a secret because of its beginning.
const PREFIXED_BYTES_MIN: usize = 16;

/// Returns the secrets in a part of a configuration, such as `cli`, with the name of the part. A value `{env: NAME}` is
/// none.
#[must_use]
pub fn literal_secrets(part: &str, value: &Value) -> Vec<DefinitionError> {
    let mut found = Vec::new();
    collect(part, "", value, &mut found);
    found
}

fn collect(path: &str, name: &str, value: &Value, found: &mut Vec<DefinitionError>) {
    match value {
        Value::String(text) if is_secret(name, text) => {
            found.push(DefinitionError::LiteralSecret { setting: path.to_owned() });
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(&format!("{path}[{index}]"), "", item, found);
            }
        }
        Value::Object(members) => {
            for (name, member) in
                members.iter().filter(|(name, _)| !SKIPPED.contains(&name.as_str()))
            {
                collect(&format!("{path}.{name}"), name, member, found);
            }
        }
        _ => {}
    }
}

/// Returns `true` if a text is a secret, by the name of its setting or by its content.
fn is_secret(name: &str, text: &str) -> bool {
    // A scheme of the header Authorization is no part of the secret.
    let bare = ["Bearer ", "Basic ", "Token "].iter().find_map(|scheme| text.strip_prefix(scheme));
    let text = bare.unwrap_or(text).trim();
    // Blanks are those of a sentence, the other characters those of a template. A private key has blanks, too.
    if text.contains(|c: char| c.is_whitespace() || "{}<>$".contains(c)) {
        return text.starts_with("-----BEGIN ") && text.contains("PRIVATE KEY");
    }
    if has_password(text) {
        return true;
    }
    let has_digit = text.contains(|c: char| c.is_ascii_digit());
    let is_prefixed = PREFIXES.iter().any(|prefix| text.starts_with(prefix));
    if is_prefixed && has_digit && text.len() >= PREFIXED_BYTES_MIN {
        return true;
    }
    let is_place = text.starts_with(['/', '.', '~']) || text.contains("://");
    if text.len() < BYTES_MIN || is_place || text.parse::<f64>().is_ok() {
        return false;
    }
    let words = words(name);
    let last = words.rsplit('_').next().unwrap_or_default();
    if CREDENTIALS.contains(&words.as_str()) {
        return true;
    }
    // Words such as `not-needed` stand for keys and tokens that a local server ignores.
    let is_word = matches!(last, "KEY" | "TOKEN" | "APIKEY") && !has_digit;
    let is_public = words.ends_with("PUBLIC_KEY");
    SECRET_WORDS.contains(&last) && !is_word && !is_public
}

/// Returns `true` if a URL has a password.
fn has_password(text: &str) -> bool {
    let authority = text.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or(rest));
    let user = authority.and_then(|authority| authority.rsplit_once('@')).map(|(user, _)| user);
    user.and_then(|user| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
}

/// Returns the words of a name, such as `API_KEY` for `api-key`, `apiKey` and `API_KEY`.
fn words(name: &str) -> String {
    let mut words = String::new();
    let mut was_lowercase = false;
    for c in name.chars() {
        if was_lowercase && c.is_ascii_uppercase() {
            words.push('_');
        }
        was_lowercase = c.is_ascii_lowercase();
        words.push(if c == '-' || c == '.' { '_' } else { c.to_ascii_uppercase() });
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(value: &Value) -> Vec<String> {
        literal_secrets("cli", value).iter().map(ToString::to_string).collect()
    }

    /// Class: a secret in plain text is stored with the definition, in the log for ever.
    #[test]
    fn secrets_are_found_by_their_names_and_by_themselves() {
        for (name, value) in [
            ("OPENAI_API_KEY", "abcdef123456"),
            ("GITHUB_TOKEN", "0123456789abcdef"),
            ("DB_PASSWORD", "correct-horse"),
            ("ClientSecret", "correct-horse"),
            ("client_secret", "correct-horse"),
            ("x-api-key", "abc12345"),
            ("apiKey", "abc12345"),
            ("Authorization", "Bearer abcdefghijkl"),
            ("authorization", "Basic YTpiYWJhYmE="),
            ("OTHER", "sk-proj-0123456789abcdef"),
            ("OTHER", "Bearer ghp_0123456789abcdefghij"),
            ("OTHER", "AKIA0123456789ABCDEF"),
            ("DATABASE_URL", "postgres://app:s3cret@db.example/app"),
            ("PEM", "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----"),
        ] {
            assert!(is_secret(name, value), "{name}: {value}");
        }
        for (name, value) in [
            ("OPENAI_API_KEY", ""),
            ("OPENAI_API_KEY", "none"),
            ("OPENAI_API_KEY", "not-needed"),
            ("OPENAI_API_KEY", "sk-no-key-required"),
            ("SSH_KEY", "/run/secrets/deploy-1234"),
            ("PUBLIC_KEY", "abcdef123456"),
            ("KEY_FILE", "deploy-1234.pem"),
            ("MAX_TOKENS", "12345678"),
            ("CACHE_TOKEN", "123456789"),
            ("TOKEN_URL", "https://login.example/token"),
            ("DATABASE_URL", "postgres://app@db.example/app"),
            ("API_KEY", "{api_key_2}"),
            ("API_KEY", "$API_KEY_2"),
            ("API_KEY", "<your key 1>"),
            ("MODEL", "gpt-4.1-mini-2025"),
            ("LANG", "en_US.UTF-8"),
            ("MONKEY", "banana-banana-1"),
        ] {
            assert!(!is_secret(name, value), "{name}: {value}");
        }
    }

    #[test]
    fn each_secret_is_named_and_none_is_shown() {
        let value = json!({"command": ["agent", "--key", "sk-proj-0123456789abcdef"],
            "env": {"API_KEY": "abcdef123456", "B_KEY": {"env": "B_KEY", "prefix": "x"}, "MODE": "x"},
            "effects": {"rotate_key": "at_most_once1"}, "working_dir": "/tmp"});
        assert_eq!(
            found(&value),
            [
                "cli.command[2] is a secret in plain text",
                "cli.env.API_KEY is a secret in plain text"
            ]
        );
    }
}
