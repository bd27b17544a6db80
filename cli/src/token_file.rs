//! Reads the token from a file: a secret that is mounted into a container, or a credential of systemd.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use abide_schema::{Code, Refusal};

/// Maximum bytes of the file. A JSON Web Token has a few thousand.
const MAX_BYTES: u64 = 64 << 10;

/// Returns the token in a file, without the line break that editors and `echo` add.
///
/// # Errors
/// The file cannot be read, or it does not contain one line of text.
pub(crate) fn read(file: &Path) -> Result<String, Refusal> {
    let path = file.display();
    let text = read_text(file).map_err(|why| {
        Refusal::new(Code::BadArguments, format!("cannot read the token in {path}: {why}")).hint(
            "check the path in --token-file or ABIDE_TOKEN_FILE, and that this user may read the file",
        )
    })?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        let detail = format!("{path} does not contain a token");
        let hint = "the file has one line, the token, and nothing else";
        return Err(Refusal::new(Code::BadArguments, detail).hint(hint));
    }
    Ok(token.to_owned())
}

fn read_text(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_has_one_token() {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("token");
        let check = |content: &[u8]| {
            fs::write(&file, content).expect("it can be written");
            read(&file).map_err(|refusal| refusal.detail.replace(&file.display().to_string(), "F"))
        };
        assert_eq!(check(b"secret"), Ok("secret".to_owned()));
        assert_eq!(check(b"secret\r\n"), Ok("secret".to_owned()));
        for wrong in [&b""[..], b"\n", b"two words", b"two\nlines\n"] {
            assert_eq!(check(wrong), Err("F does not contain a token".to_owned()));
        }
        let not_text = check(b"\xff\xfe").expect_err("it is refused");
        assert!(not_text.starts_with("cannot read the token in F: "), "{not_text}");
        let missing = read(&folder.path().join("none")).expect_err("it is refused");
        assert!(missing.hint.is_some_and(|hint| hint.contains("ABIDE_TOKEN_FILE")));
    }
}
