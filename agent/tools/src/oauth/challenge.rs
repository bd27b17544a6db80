//! The challenge of a server: the header `WWW-Authenticate` of a 401 or 403 (RFC 6750, RFC 9728).

use std::collections::BTreeMap;

/// Maximum number of scopes in a challenge; the rest is ignored.
const SCOPES: usize = 64;

/// The parameters of a challenge of the scheme `Bearer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// The address of the metadata of the protected resource.
    pub(crate) resource_metadata: Option<String>,
    /// The scopes that the request needs.
    pub(crate) scopes: Vec<String>,
    /// Whether the token lacks scopes.
    pub(crate) is_insufficient_scope: bool,
}

impl Challenge {
    /// Reads a header. A header of another scheme has no parameters.
    pub(crate) fn parse(header: &str) -> Challenge {
        let parameters = parameters(header);
        let scopes = parameters.get("scope").map(String::as_str).unwrap_or_default();
        Challenge {
            resource_metadata: parameters.get("resource_metadata").cloned(),
            scopes: scopes.split_ascii_whitespace().take(SCOPES).map(str::to_owned).collect(),
            is_insufficient_scope: parameters
                .get("error")
                .is_some_and(|it| it == "insufficient_scope"),
        }
    }
}

/// Returns the parameters of the first challenge of the scheme `Bearer`, with names in lower case.
fn parameters(header: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let lower = header.to_ascii_lowercase();
    let starts_word = |at: usize| at == 0 || matches!(lower.as_bytes()[at - 1], b' ' | b',');
    let start = lower.match_indices("bearer ").map(|(at, _)| at).find(|at| starts_word(*at));
    let Some(start) = start else { return found };
    let mut rest = &header[start + "bearer ".len()..];
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let Some((name, after)) = rest.split_once('=') else { return found };
        let name = name.trim_end();
        if name.is_empty() || name.contains([' ', ',', '"']) {
            // The next challenge.
            return found;
        }
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => {
                let after = after.trim_start();
                let end = after.find([',', ' ']).unwrap_or(after.len());
                (after[..end].to_owned(), &after[end..])
            }
        };
        found.entry(name.to_ascii_lowercase()).or_insert(value);
        rest = after;
    }
}

/// Returns a quoted string without its quotes, and the text after it.
fn unquoted(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let check = |header: &str, metadata: Option<&str>, scopes: &[&str], insufficient: bool| {
            let challenge = Challenge::parse(header);
            assert_eq!(challenge.resource_metadata.as_deref(), metadata, "{header}");
            assert_eq!(challenge.scopes, scopes, "{header}");
            assert_eq!(challenge.is_insufficient_scope, insufficient, "{header}");
        };
        check("Bearer", None, &[], false);
        check("Basic realm=\"a\"", None, &[], false);
        check(
            r#"Bearer realm="a, b=c", scope="x y", resource_metadata="https://a/b""#,
            Some("https://a/b"),
            &["x", "y"],
            false,
        );
        check("bearer error=insufficient_scope,scope=x", None, &["x"], true);
        check(r#"Basic realm="Bearer x", Bearer scope="a\"b""#, None, &["a\"b"], false);
        check(r#"Bearer scope="a", DPoP scope="b""#, None, &["a"], false);
        check(r#"Bearer scope="a"#, None, &["a"], false);
        check("Bearer =", None, &[], false);
    }
}
