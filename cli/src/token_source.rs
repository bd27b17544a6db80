//! The token of this process, and where it is from: an option, the environment, a file, or a credential of systemd.

use std::net::IpAddr;
use std::path::Path;

use url::Url;

use crate::configuration::Origin;
use crate::failure::Failure;
use crate::global_options::Options;
use crate::text_file::TextFile;

/// The variables of the options.
const VARIABLE: &str = "ABIDE_TOKEN";
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
    /// Where it is from, for people. It has no secret.
    pub(crate) source: String,
}

/// Finds the token. The environment of the process must be known.
///
/// # Errors
/// A file cannot be read, or two places of equal rank have a token.
pub(crate) fn find(options: &Options) -> Result<Option<Token>, Failure> {
    let file = options.token_file.as_deref();
    let file_origin = options.configuration.origin("token-file");
    if options.configuration.origin("token") == Origin::CommandLine {
        return if file_origin == Origin::CommandLine {
            Err(twice("--token", "--token-file"))
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
            Err(twice(VARIABLE, FILE_VARIABLE))
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

fn twice(first: &str, second: &str) -> Failure {
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

/// Refuses to send a token to an address that only a file in the current folder names: the folder can be of someone
/// else.
///
/// # Errors
/// The address is on another machine, and its file was not named.
pub(crate) fn check_address(options: &Options, token: &Token) -> Result<(), Failure> {
    let configuration = &options.configuration;
    let is_found =
        matches!(configuration.origin("url"), Origin::File(_)) && options.config_file.is_none();
    let is_at_file = options.db.is_some() || options.local_server.is_some();
    if !is_found || is_at_file || is_of_this_machine(&options.url) {
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

fn is_of_this_machine(url: &str) -> bool {
    let url = Url::parse(url).ok();
    url.as_ref().and_then(Url::host_str).is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
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
            assert_eq!(is_of_this_machine(url), is_own, "{url}");
        }
    }
}
