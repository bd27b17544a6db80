//! Addresses in messages, without the password that they can have.

/// Returns a text in which no address has a password: `http://ann:…@example.com`. A user without a password is replaced too,
/// since it can be a token.
pub(crate) fn hide_user_info(text: &str) -> String {
    const SCHEME_END: &str = "://";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SCHEME_END) {
        let (before, address) = rest.split_at(at + SCHEME_END.len());
        shown.push_str(before);
        rest = address;
        if let Some(end) = find_user_info_end(address) {
            let (user_info, after) = address.split_at(end);
            if let Some((user, _)) = user_info.split_once(':') {
                shown.push_str(user);
                shown.push(':');
            }
            shown.push('…');
            rest = after;
        }
    }
    shown.push_str(rest);
    shown
}

/// As [`hide_user_info`], for a text that is meant as an address: a scheme can be missing.
pub(crate) fn hide_user_info_of_address(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((_, host)) if !address.contains("://") => format!("…@{host}"),
        _ => hide_user_info(address),
    }
}

/// Returns where the `@` is that ends the user and the password of an address, if it has them.
fn find_user_info_end(address: &str) -> Option<usize> {
    let word = address
        .split(|c: char| c.is_whitespace() || ['"', '`', '<', '>'].contains(&c))
        .next()
        .unwrap_or_default();
    let authority = word.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    if let Some(at) = authority.rfind('@') {
        return Some(at);
    }
    // A password with a slash is not valid in an address, and is a password nevertheless.
    let port = authority.rsplit_once(':').map(|(_, port)| port)?;
    let is_port = port.chars().all(|c| c.is_ascii_digit() || !c.is_alphanumeric());
    if is_port { None } else { word.rfind('@') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_has_a_password() {
        for (text, shown) in [
            ("http://127.0.0.1:7341", "http://127.0.0.1:7341"),
            ("agents.db", "agents.db"),
            ("127.0.0.1:7341", "127.0.0.1:7341"),
            ("https://ann:s3cret@example.com/x", "https://ann:…@example.com/x"),
            ("\"https://s3cret@h\" is not valid", "\"https://…@h\" is not valid"),
            (
                "http://a:s3@cret@h:1 and ws://b:s3cret@[::1]:2/x@y",
                "http://a:…@h:1 and ws://b:…@[::1]:2/x@y",
            ),
            ("http://a:s3/cret@h is not valid", "http://a:…@h is not valid"),
            ("http://[::1]:7341/x@y", "http://[::1]:7341/x@y"),
            (
                "http://h:7341: refused, ask ann@example.com",
                "http://h:7341: refused, ask ann@example.com",
            ),
            ("greeting@v3 in http://h", "greeting@v3 in http://h"),
        ] {
            assert_eq!(hide_user_info(text), shown);
        }
        assert_eq!(hide_user_info_of_address("ann:s3cret@h:1"), "…@h:1");
        assert_eq!(hide_user_info_of_address("http://ann:s3cret@h"), "http://ann:…@h");
    }
}
