//! The token of this process, and its source: an option, the environment, a file, or a credential of systemd.

use std::path::Path;

use url::{Host, Url};

use crate::configuration::Origin;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::text_file::TextFile;

/// The variable of `--token`.
const VARIABLE: &str = "ABIDE_TOKEN";

/// The variable of `--token-file`.
const FILE_VARIABLE: &str = "ABIDE_TOKEN_FILE";

/// The folder that systemd makes for the credentials of a unit (`LoadCredential=abide-token:PATH`).
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// The name of the credential.
const CREDENTIAL: &str = "abide-token";

/// Maximum bytes of a file. Tokens of issuers (JWT) have a few thousand.
const MAX_BYTES: u64 = 16 << 10;

/// A token.
pub(crate) struct Token {
    pub(crate) secret: String,
    /// Where the token is from, for people: an option, a variable or a file. It does not contain the secret.
    pub(crate) source: String,
}

/// Finds the token. The first of these places that has one counts: the command line, the environment, the file of the
/// configuration, a credential of systemd. Call it when `options.environment` is set.
///
/// # Errors
/// A file cannot be read, or two places of equal rank have a token.
pub(crate) fn find(options: &Options) -> Result<Option<Token>, Failure> {
    let file = options.token_file.as_deref();
    let file_origin = options.configuration.origin("token-file");
    if options.configuration.origin("token") == Origin::CommandLine {
        return if file_origin == Origin::CommandLine {
            Err(two_tokens("--token", "--token-file"))
        } else {
            Ok(options.token.clone().map(|secret| Token::new(secret, "--token")))
        };
    }
    if let Some(file) = file
        && file_origin == Origin::CommandLine
    {
        return read(file, "--token-file").map(Some);
    }
    if let Some(secret) = variable(options, VARIABLE) {
        return if file_origin == Origin::Variable {
            Err(two_tokens(VARIABLE, FILE_VARIABLE))
        } else {
            Ok(Some(Token::new(secret.to_owned(), VARIABLE)))
        };
    }
    if let Some(file) = file {
        let source = match &options.configuration.file {
            _ if file_origin == Origin::Variable => FILE_VARIABLE.to_owned(),
            Some(configuration) => format!("token-file in {}", configuration.display()),
            None => "token-file".to_owned(),
        };
        return read(file, &source).map(Some);
    }
    let Some(folder) = variable(options, CREDENTIALS_VARIABLE) else { return Ok(None) };
    let credential = Path::new(folder).join(CREDENTIAL);
    // A unit can have credentials for other programs only.
    if credential.symlink_metadata().is_err() {
        return Ok(None);
    }
    read(&credential, CREDENTIALS_VARIABLE).map(Some)
}

/// Returns a variable that is set and not empty. The environment can be hidden from the parser.
fn variable<'a>(options: &'a Options, name: &str) -> Option<&'a str> {
    options.environment.value(name).filter(|value| !value.is_empty())
}

impl Token {
    fn new(secret: String, source: &str) -> Token {
        Token { secret, source: source.to_owned() }
    }
}

/// Returns the failure of a command with a token in two places of equal rank.
fn two_tokens(first: &str, second: &str) -> Failure {
    Failure::usage(
        format!("{first} and {second} both have a token"),
        format!("leave out {first}, or {second}"),
    )
}

/// Reads the token that a file has, without the end of its line.
fn read(path: &Path, source: &str) -> Result<Token, Failure> {
    let name = path.display();
    let hint = format!("{source} names the file: it has one line, and this user can read it");
    let file = TextFile::read(path, MAX_BYTES).map_err(|why| {
        Failure::usage(format!("the token cannot be read from {name}: {why}"), hint.as_str())
    })?;
    let secret = file.text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        return Err(Failure::usage(format!("{name} has no token"), hint));
    }
    if secret.contains(char::is_control) {
        return Err(Failure::usage(format!("{name} has more than one line"), hint));
    }
    Ok(Token { secret: secret.to_owned(), source: format!("{source} ({name})") })
}

/// Checks that the token may be sent to the address of the server. An `abide.toml` in the current folder is read
/// although nobody named it, and the folder can be someone else's: the address in such a file could collect tokens.
///
/// # Errors
/// The address is on another machine, and is from a file that neither `--config` nor `ABIDE_CONFIG` names.
pub(crate) fn check_address(options: &Options, token: &Token) -> Result<(), Failure> {
    let configuration = &options.configuration;
    let is_from_file = matches!(configuration.origin("url"), Origin::File(_));
    let is_file_named = options.config_file.is_some();
    // A command on a database file, or on the server that has it open, does not use the address.
    let uses_address = options.db.is_none() && options.local_server.is_none();
    if !is_from_file || is_file_named || !uses_address || is_on_this_machine(&options.url) {
        return Ok(());
    }
    let file = configuration.file.as_deref().unwrap_or(Path::new("")).display();
    let detail = format!(
        "the token of {} is not sent to {}, an address of {file}, which was only found in this folder",
        token.source, options.url
    );
    let hint =
        format!("if you trust the file, name it: --config {file}, or export ABIDE_CONFIG={file}");
    Err(Failure::usage(detail, hint))
}

/// Returns `true` if the host of a URL is `localhost` or a loopback address. Names are not resolved.
fn is_on_this_machine(url: &str) -> bool {
    match Url::parse(url).as_ref().map(Url::host) {
        Ok(Some(Host::Domain(name))) => name == "localhost",
        Ok(Some(Host::Ipv4(address))) => address.is_loopback(),
        Ok(Some(Host::Ipv6(address))) => address.is_loopback(),
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_known_by_their_host() {
        for (url, is_own) in [
            ("http://127.0.0.1:7341", true),
            ("http://[::1]:7341", true),
            ("http://localhost:7341/", true),
            ("http://127.0.0.1@example.com", false),
            ("http://127.0.0.1.example.com", false),
            ("https://example.com/#127.0.0.1", false),
            ("localhost", false),
        ] {
            assert_eq!(is_on_this_machine(url), is_own, "{url}");
        }
    }
}
